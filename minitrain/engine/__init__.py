"""One rank of a training run: `Model`, its stores, its operations, the laws that they obey, its clock and its log.

May import: `errors`, `files`, `source_lines`, `tensors`, `operations`, `workloads`, `machine`. Open `model` first, then
`strategy_model` (what a strategy may use of it), `computation` (what a rank does alone, attention in steps too) and
`communication` (how it calls on others: what comes of the values is decided in operations/collectives.py). `laws` says
what must hold before an operation may happen, `operations` when a submitted communication starts and ends, and `stores`
what a rank holds in memory.

The rest, by what a reader looks for:

- What all operations change: `state`, which also remembers prices.
- Features beside the usual path: `placed_passes` (layers that differ, recomputation, parts of layers, and shards of
  sequences), `experts` (expert parallelism), and `host_memory` (offloading).
- What a strategy means to compute, who takes how much where ranks are not alike, and the check at the end that every
  layer was trained: `semantics`; `gradients` has what ranks do with theirs.
- Who takes what: `stages` cuts layers into pipeline stages and the batch into samples and microbatches.
- Who takes part: `observers` has those that are told of all that ranks do, and executors, which decide what is done
  beside. `watched` of `model` makes models that tell both.
- Where ranks meet: `protocol` is the interface that a model uses: process groups and meshes, and one rank's part in an
  operation. It carries values and clocks, and knows no prices. `dist` implements it for ranks in one process. Tasks
  belong to a run, whose `event_loop` is also given the errors that nobody retrieved. `deadlocks` reports when no rank
  can go on, as the loop tells it, and says where each of them waits.
"""
