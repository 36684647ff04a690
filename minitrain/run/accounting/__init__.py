"""Two other ways to keep account of a run: `strict` follows every tensor alive, `summary` keeps totals, not events.

Open `strict.observer` or `summary.log` first.
"""
