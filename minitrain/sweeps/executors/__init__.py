"""Where a sweep or a search runs: in processes of its own, on an executor, on Dask or on Ray.

May import: errors, and of `run` what loads strategies, starts processes and runs event loops.

Open `choice` first: it finds out which workers an `executor=` means. `lossy_workers` repeats the tasks of a worker that
is lost, and warns; `own_processes` are such workers. `cluster_workers` is what workers of Dask and Ray have in common,
`dask_workers` and `ray_workers` the rest; both packages are extras, imported where one is used. `sent_work` is how work
and the files of strategies reach another machine, and `time_limit` ends a simulation that hangs.
"""
