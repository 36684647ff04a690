"""Published measurements of training steps, simulated here, and how far the predictions are off.

May import: the rooms up to `run`. Open `validate` first. The measurements lie beside the code as CSV files, each row
with its source.

| module | what it does |
|---|---|
| `validate`, `row_results` | simulates the rows of tables, and how each kind of table is predicted |
| `tables_of_package`, `rows` | the package's tables, and the rows of a CSV file |
| `cases` | what is simulated for a row, with its `models`, `machines`, `layouts` and `frameworks` |
| `prediction`, `quickest_microbatch`, `sequence_shares` | simulate a case; no microbatch said; sequences in shares |
| `layer_tables`, `model_states`, `cluster_tables` | tables in other columns: layers, ZeRO's states, mixed clusters |
| `errors_by_table`, `page`, `page_script` | errors, summed up and as an HTML page |
| `fitting` | fits a platform to one's own runs |
| `stored`, `similar_runs` | keep the errors, and say how far validated runs like a given one were off |
"""
