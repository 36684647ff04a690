"""Simulating a strategy on all ranks, and its result: `simulate`, `compare`, `Run`.

May import: the rooms up to `rank`, and `analysis`. Two files reach further up, when they are asked to: `variants`
chooses the kinds of model and run that accounting, numerics and folding add, and `result` and `comparison` show
pictures of `trace`.

Open `simulation` first, then `parameters` (what a run can be given) and `result` (what it gives). `prepared_run` is a
run that is ready to start, and `rank_tasks` runs the ranks. `strategy_loading` finds a strategy, and `chosen_strategy`
gives it options of its own. `progress` says how far the ranks are. `out_of_memory`, `contention`, `log_interning` and
`garbage_collection` each add one thing to a run. `saved_runs` writes and reads its file.
"""
