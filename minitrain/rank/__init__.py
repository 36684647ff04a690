"""One rank of a training run: `Model`, its stores, its operations, the laws that they obey, its clock and its log.

May import: `errors`, `tensors`, `workloads`, `hardware`, `events`, `transport`. Open `model` first, then `computation`
(what a rank does alone) and `communication` (what it does with others). `laws` says what must hold before an operation
may happen, `operations` what becomes of a communication that was submitted, and `stores` what a rank holds in memory.
`parts` has the operations on one part of a layer, `experts` those on layers whose experts are divided among ranks, and
`kept_for_backward` says what forward keeps. `stages` cuts the layers of a pipeline into stages, and `divided_batch` the
batch into samples and microbatches of ranks; `shares` says who takes how much where ranks are not alike.
"""
