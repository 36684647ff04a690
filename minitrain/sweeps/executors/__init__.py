"""Where a sweep or a search runs, if not in processes of its own: on an executor, on Dask or on Ray.

May import: errors, and of `run` what loads strategies and runs event loops.

Open `choice` first: it finds out what is meant. `cluster_workers` is what workers of all engines have in common,
`dask_workers` and `ray_workers` what is an engine's own; these are extras, imported where one is used. `sent_work` is
how work and the files of strategies reach a worker, and `time_limit` ends a simulation that hangs.
"""
