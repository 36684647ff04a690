"""Tuning: which layout trains a workload best on a machine; `tune` searches, `Tuning` is what it has found.

Open `tune.py` first. `space` says which configurations there are, `search` goes through them, `rows` makes a row of
each. Layouts of pipelines are put together: `orders` executes a strategy for the order of its steps, `recording` and
`pieces` for what a layer takes, and `layouts`, `memory` and `clocks` add these up for many layouts at once. `bounds`
says what cannot win. `explanation` says why the best one does, `words` says it to other tools, and `page` draws it.

This room imports runs, folding, pictures and sweeps.
"""
