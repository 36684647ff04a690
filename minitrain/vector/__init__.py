"""One execution of a strategy for many machines at once: `price`, and what it returns.

Strategies do not look at the clock. So one execution can carry the clocks of a thousand machines: each clock and each
price is an array of one number a machine, and the figures are columns.

May import: the rooms up to `folding`. Open `price` first, then `execution`.

| module | what it does |
|---|---|
| `price` | the call and its result, for machines executed together or simulated one by one |
| `execution` | executes a strategy for machines that make the same choices, and divides those that do not |
| `joint_figures` | the figures of machines from one execution |
"""
