"""One execution of a strategy for many machines at once: `price`, and what it returns.

Strategies do not look at the clock. So one execution can carry the clocks of a thousand machines: each clock and each
price is an array of one number a machine, and the figures are columns.

May import: the rooms up to `folding`. Open `price` first, then `execution`.

| module | what it does |
|---|---|
| `price`, `priced` | the call, and its result |
| `configurations` | the parameters of a run on each machine |
| `execution` | executes a strategy for machines that make the same choices, and divides those that do not |
| `models`, `operations` | how the engine differs where clocks are arrays |
| `joint_figures` | the figures of machines from one execution, by `busy_times`, `axis_times` and `capacities` |
| `separate_figures` | those of machines that were simulated one by one |
"""
