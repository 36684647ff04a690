"""Simulating a strategy on all ranks, and its result: `simulate`, `compare`, `Run`.

May import: the rooms up to `engine`. What rooms further up do for a run (pictures, proofs, failing devices, the shipped
strategies) is handed in by `minitrain` itself, and asked for through `above`.

Open `simulation` first, then `parameters` (what a run can be given) and `result` (what it gives). The other files, in
the order of a run:

- The strategy: `strategy_loading` finds it, imports what lies beside its file, and gives it options of its own.
- The ranks: `rank_tasks` makes a run ready and runs its ranks in one of the `event_loops`.
- The result: `figures` is the registry of what is said of it. `contention` may time the run again. `ranks_once` says
  which ranks did the same. `device_memory` has what a device's memory holds, `facts` its steps, kinds of device and
  transformer.
- The file: `saved_runs` writes and reads it; `run_file` judges its first line.

`analysis` says where time and memory of a run went. `strict` follows every tensor; `summary_log` keeps totals, not
events; `folding` simulates one rank for many alike. `worker_processes` makes processes for the rooms that run many
runs.
"""
