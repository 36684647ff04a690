"""One execution of a strategy for many machines at once: `price`, and what it returns.

Strategies do not look at the clock. So a strategy is executed once, what it asks is answered for a thousand machines,
and the graph of the run is timed with the answers: the figures are columns, one number a machine.

Open `price` first, then `execution`.

| module | what it does |
|---|---|
| `price` | the call and its result, for machines executed together or simulated one by one |
| `execution` | records a strategy for machines that make the same choices, and divides those that do not |
| `recorded` | fleets of machines, each one config of columns; a run with its times on them |
| `joint_figures` | the figures of machines from one execution |
"""
