"""Running a strategy on all ranks, and what came of it: `simulate`, `compare`, `Run`.

May import: the rooms up to `rank`, and `analysis`. Open `simulation` first, then `result`. `rank_tasks` drives the
ranks in one event loop, `saved_runs` writes and reads the file of a run, `final_weights` checks that every layer was
trained.
"""
