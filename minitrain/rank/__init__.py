"""One rank of a training run: `Model`, its stores, its operations, the laws that they obey, its clock and its log.

May import: `errors`, `tensors`, `workloads`, `hardware`, `events`, `transport`. Open `model` first, then `computing`
(what a rank does alone) and `communicating` (what it does with others). `laws` says what must hold before an operation
may happen.
"""
