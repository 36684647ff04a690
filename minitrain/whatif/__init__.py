"""A finished run again, where something is otherwise: other machines, shared links, noise, failing devices.

May import: the rooms up to `view`. Open `price` first: one execution of a strategy for many machines. Strategies do not
look at the clock, so what one asks is answered for a thousand machines (`joint_execution`), those of a kind by one
config of columns (`recorded`); the graph of the run is timed with the answers, and its figures are columns
(`joint_figures`).

| what | files |
|---|---|
| runs that share the links of one platform, timed again | `replayed_runs` |
| where the gap between two runs comes from | `diff` |
| what may disturb a run | `noise` |
| thousands of draws of it, and what comes of them; also other durations or prices | `monte_carlo` |
| pictures of draws, and of gaps | `figure` |
| a step in which devices die, until one succeeds on those that are left | `disturbed_run` |
| weeks of training with checkpoints, restarts and repairs | `goodput` |
"""
