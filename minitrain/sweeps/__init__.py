"""Many configurations over processes: `sweep` simulates a grid of them, and keeps a row of figures for each.

May import: the rooms up to `trace`, whose picture of a run its page shows. Open `sweep` first.

| module | what it does |
|---|---|
| `sweep`, `grid`, `shared_options` | the rows of a sweep, its configurations, and which strategy takes which option |
| `batches`, `shared_by_batch` | simulate configurations in batches, and keep what those of a batch share |
| `rows_together` | executes configurations that differ in prices alone once for all |
| `executors` (a folder) | where batches run: own processes, Dask, Ray |
| `results_file` | keeps rows, so that a sweep goes on where another one ended |
| `page`, `page_script` | a sweep as an HTML page |
"""
