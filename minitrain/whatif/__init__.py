"""A finished run again, where something is otherwise: other machines, shared links, noise, failing devices.

May import: the rooms up to `view`. Open `vector.price` first: one run for many machines. `replayed_runs` times runs
again that share the links of one platform. `diff` says where the gap between two runs comes from, and `diff_page`
draws it. `noise` has step times under noise, and what they are sensitive to. `faults` has steps in which
devices die, and weeks of training with checkpoints and restarts.
"""
