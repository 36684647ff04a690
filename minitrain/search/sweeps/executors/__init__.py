"""Where a sweep or a search runs: in processes of its own, on an executor, on Dask or on Ray.

Open `choice` first: it finds out which workers an `executor=` means. `own_processes` are workers of this machine: the
tasks of one that is lost are repeated, and a simulation that hangs is ended. `cluster_workers` are those of Dask and
Ray, to which work and the files of strategies are sent; both packages are extras, imported where one is used.
"""
