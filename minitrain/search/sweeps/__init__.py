"""Many configurations over processes: `sweep` simulates a grid of them, and keeps a row of figures for each.

Open `sweep` first.

| module | what it does |
|---|---|
| `sweep` | the rows of a sweep, its configurations, which strategy takes which option, and the file that keeps rows |
| `batches` | simulates configurations in batches, those that differ in prices alone by one execution |
| `executors` | where batches run: which workers an `executor=` means, with those of Dask and Ray |
| `own_processes` | workers of this machine: tasks of a lost one are repeated, a simulation that hangs is ended |
| `page` | a sweep as an HTML page |
"""
