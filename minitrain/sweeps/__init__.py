"""Many configurations over processes: `sweep`, its grid, its batches of configurations, the file of its rows, its page.

May import: the rooms up to `trace`, whose picture of a run its page shows. Open `sweep` first.
"""
