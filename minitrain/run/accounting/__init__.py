"""Two other ways to keep account of a run: `strict` follows every tensor alive, `summary_log` keeps totals, not events.

Open `strict.observer` or `summary_log` first.
"""
