"""Where a sweep or a search runs: in processes of its own, on an executor, on Dask or on Ray.

May import: errors, and of `run` what loads strategies, starts processes and runs event loops.

Open `choice` first: it finds out what is meant. `lossy_workers` does again what a worker that is lost was doing, and
says so; `own_processes` are such workers. `cluster_workers` is what those of all engines have in common, `dask_workers`
and `ray_workers` what is an engine's own; these are extras, imported where one is used. `sent_work` is how work and the
files of strategies reach another machine, and `time_limit` ends a simulation that hangs.
"""
