"""Where the time and the memory of a run went: pure functions on event logs, without pictures.

May import: `errors`, `tensors`, `events`. Open `timeline` first: event logs as columns, the form that the analyses work
on, which `from_logs` makes. Each file answers one question:

- How is the step time split? `breakdown` (computing, exposed communication, waiting), `communication` (by axis of the
  mesh), `totals_by_type`; `busy_time` finds the same sums without columns.
- Why does a rank wait, and what sets the step time? `waits` and `critical_path`, on the graph of `dependencies` between
  operations that `matching` pairs.
- What would the step time be if operations lasted differently? `what_if`, by the `levels` of that graph.
- Which memory is held when? `memory_over_time`.
- How large is the bubble in theory? `textbook_bubble`.

`explanation` puts all of it together. `intervals` and `labels` are shared: unions of intervals, and texts.
"""
