"""Which layout trains a workload best on a machine: `tune` searches, and `Tuning` is what it has found.

Open `tune` first.

Layouts of the strategy megatron are not simulated one by one. What a layer takes is recorded in short runs, as
*pieces* (some operations with their seconds and memory). Many layouts at once are then put together from pieces. A
*place* is a rank of the pipeline.

| module | what it does |
|---|---|
| `tune`, `problem` | the call and its result, what it tunes, and the configurations that there are |
| `search`, `bounds` | which configurations are tried, by whom, a row for each, and which cannot win |
| `pieces` | executes short runs, and cuts them into pieces |
| `layouts`, `step_figures` | put pieces together in the order of a pipeline's steps, for many layouts at once |
| `findings` | all rows, of which `Tuning` is made, and a layout in the options of other tools |
| `explanation` | why the best one wins, which price would have to change, and the page that shows it |
"""
