"""Many configurations over processes: `sweep`, its grid, its batches of configurations, and the file of its rows.

May import: the rooms up to `run`, and `folding`. Open `sweep` first.
"""
