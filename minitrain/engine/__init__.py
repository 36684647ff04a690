"""One rank of a training run: `Model`, its stores, its operations, the laws that they obey, its clock and its log.

May import: `errors`, `files`, `source_lines`, `tensors`, `operations`, `workloads`, `machine`. Open `model` first, then
`strategy_model` (what a strategy may use of it), `computation` (what a rank does alone) and `communication` (how it
calls on others: what comes of the values is decided in operations/collectives.py). `laws` says what must hold before an
operation may happen, `operations` when a submitted communication starts and ends, and `stores` what a rank holds in
memory.

The rest, by what a reader looks for:

- What all operations change: `state`, which also remembers prices, with `memory_by_kind` and `launched_memory`.
- Features beside the usual path: `kept_for_backward` (recomputation), `placed_passes` (layers that differ, parts of
  them, and shards of sequences), `attention` (context parallelism), `experts` (expert parallelism), and `host_memory`
  (offloading).
- What a strategy means to compute: `semantics`; `local_steps` has what replicas do alone.
- Who takes what: `stages` cuts layers into pipeline stages and the batch into samples and microbatches, and `shares`
  says who takes how much where ranks are not alike.
- Who watches: `observers` has those that are told of all that ranks do, and executors, which decide what it is beside,
  in the models that `watched` makes.
- Between steps and after them: `final_weights` checks that every layer was trained, and has what a later step begins
  with.
"""
