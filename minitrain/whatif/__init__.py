"""A finished run again, where something is otherwise: other machines, shared links, noise, failing devices.

May import: the rooms up to `view`. Open `price` first: one execution of a strategy for many machines. Strategies do not
look at the clock, so what one asks is answered for a thousand machines (`joint_execution`), those of a kind by one
config of columns (`recorded`); the graph of the run is timed with the answers, and its figures are columns
(`joint_figures`).

`replayed_runs` times runs again that share the links of one platform. `diff` says where the gap between two runs comes
from. `noise` says what may disturb a run; `monte_carlo` times one under thousands of draws of
it, or with another duration of each operation, and `distribution` has what comes of that, as figures and in
words. `figure` draws both. `disturbed_run` is a step in which devices die, until one succeeds on those that are left,
and `goodput` weeks of training with checkpoints, restarts and repairs.
"""
