"""Many configurations over processes: `sweep` simulates a grid of them, and keeps a row of figures for each.

Open `sweep` first.

| module | what it does |
|---|---|
| `sweep` | the rows of a sweep, its configurations, which strategy takes which option, and the file that keeps rows |
| `batches` | simulates configurations in batches, those that differ in prices alone by one execution |
| `executors` (a folder) | where batches run: own processes, Dask, Ray |
| `page` | a sweep as an HTML page |
"""
