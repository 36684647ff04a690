"""Which layout trains a workload best on a machine: `tune` searches, and `Tuning` is what it has found.

May import: `errors`, `files`, `tensors`, `workloads`, `events`, `hardware`, `rank`, `analysis`, `run`, `folding`,
`sweeps`. Open `tune` first. `space` says which configurations there are, `search` goes through them, `work` is what a
worker does, `rows` makes a row of each, and `findings` holds them. Layouts of pipelines are put together: `stages` cuts
the model, `orders` executes a strategy for the order of its steps, `recording` and `pieces` for what a layer takes, and
`layouts`, `memory` and `clocks` add these up for many layouts at once. `bounds` says what cannot win. `explanation`
says why the best one does, `words` says it to other tools, `page` draws it.
"""
