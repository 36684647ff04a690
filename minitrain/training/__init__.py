"""Real processes: the same strategy, trained by torch and torch.distributed (`minitrain train`).

    losses = mt.train("zero3", world_size=2, steps=100).losses

A step is simulated first. The recorded program is then the contract of each rank, which runs the same function on a
`Model` whose tensors carry torch tensors.

May import: the rooms up to `proof`. Open `train` first, which also draws loss over the seconds of other machines. The
other files:

| what | files |
|---|---|
| what each rank must do, from a simulation | `program` |
| what a rank does: its transport and executor | `wire`; what its tensors carry, also compressed: `contents` |
| its arithmetic | `layers`; what is divided among ranks: `divided`; on a CPU or a GPU, what it holds: `devices` |
| what is trained | `nets`, `transformer` |
| processes | `ranks` tells each what to do, `launcher` starts and watches them, `worker` is what they run |
| from step to step, and to disk | `checkpoints` |
| the result | `measured`; from traces of torch's profiler: `profiles` |
| what other runs would take | `calibration` |

Only `train`, `program`, `measured`, `calibration` and `profiles` can be imported without torch.
"""
