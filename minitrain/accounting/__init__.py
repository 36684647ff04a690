"""Other accounts of the same run: `strict` follows every tensor alive, `summary` keeps totals instead of events.

May import: the rooms up to `run`. Open `strict.model` or `summary.model` first: each is a kind of `Model`.
"""
