"""Which of many is best: orders of a pipeline, grids of runs, layouts of a model, plans for unlike devices.

May import: the rooms up to `whatif`. Open `sweeps.sweep` first: one run for each configuration of a grid. `tuning`
searches the layouts of a model on a machine, and `planning` those of a cluster of unlike devices. `schedules` has
pipeline schedules as data, which strategies run.
"""
