"""Published measurements of training steps, simulated here, and how far the predictions are off.

May import: the rooms up to `run`, and `search`, whose pieces make long pipelines quick. Open `validate` first. The
measurements lie beside the code as CSV files, each row with its source.

| module | what it does |
|---|---|
| `validate` | simulates the rows of tables, each kind in its way |
| `errors_by_table` | the package's tables, and how far predictions are off |
| `rows`, `layouts` | a row: its model, machine and framework; how it divides its model, what it leaves open |
| `columns` | the columns of tables and their known words, and how cells are read |
| `cases` | what is simulated for a row |
| `cluster_tables` | tables in other columns: mixed clusters, layers, ZeRO's states |
| `real_runs` | tables and folders of steps of real processes |
| `page` | errors as an HTML page |
| `fitting` | fits a platform to one's own runs |
| `stored`, `similar_runs` | keep the errors, and say how far validated runs like a given one were off |
"""
