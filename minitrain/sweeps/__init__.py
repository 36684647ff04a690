"""Many configurations over processes: `sweep`, its grid, its batches of configurations, and the file of its rows.

May import: the rooms up to `run`, `folding`, and `trace` for its page. Open `sweep` first.
"""
