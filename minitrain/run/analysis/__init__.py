"""Where the time and the memory of a run went: pure functions on event logs, without pictures.

Open `timeline` first: event logs as columns, the form that the analyses work on. Each file answers one question:

- How is the step time split? `breakdown`: computing, exposed communication and waiting, by axis of the mesh and type.
- What sets the step time, and what would the clocks be if operations lasted differently? `retiming`: the graph of a
  run, with its critical path, timed for one case or for many at once.
- Which memory is held when? `memory_over_time`.

`explanation` puts all of it together, and says why ranks wait and how large the bubble is in theory; `labels` are its
texts.
"""
