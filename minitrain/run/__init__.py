"""Simulating a strategy on all ranks, and its result: `simulate`, `compare`, `Run`.

May import: the rooms up to `rank`, and `analysis`. Five files reach further up, inside functions: `variants` (the kinds
of model and run that other rooms add), `result` and `comparison` (tables and pictures), `sureness` (validated runs),
and `strategy_loading` (the shipped strategies).

Open `simulation` first, then `parameters` (what a run can be given) and `result` (what it gives). The other files, in
the order of a run:

- The strategy: `strategy_loading` finds it, `files_beside` imports what lies beside its file, and `chosen_strategy`
  gives it options of its own.
- The parameters: `exclusions` says which exclude each other, `signatures` shows them to editors, and `faults` has the
  values for failing devices. `prepared_run` is a run that is ready to start.
- The ranks: `rank_tasks` runs them in one of the `event_loops`. `progress` says how far they are. `out_of_memory`,
  `log_interning` and `garbage_collection` add one thing each.
- The result: `contention` may time the run again. `ranks_alike`, `memory_reports`, `device_memory`, `energy_figures`
  (from `energy`), `device_kind_figures` (from `device_kinds`), `transformer_figures` (with `trained_model`) and
  `data_frames` have figures of it. `comparison` holds several runs.
- The file: `saved_runs` writes and reads it, from a `savable_run`. The files `run_file_header`, `run_file_events` and
  `run_file_kinds` validate its lines by the rules of `run_file_faults`.

`worker_processes` makes processes for the rooms that run many runs.
"""
