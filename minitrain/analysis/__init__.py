"""Where the time and the memory of a run went: pure functions on event logs, without pictures.

May import: `errors`, `tensors`, `events`. Open `timeline` first: event logs as columns, the form that the analyses work
on, which `from_logs` makes. `breakdown` splits a step into computing, exposed communication and waiting; `waits` says
why each wait is there, `critical_path` what sets the step time, and `what_if` what it would be if operations lasted
differently.
"""
