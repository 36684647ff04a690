"""Where ranks meet: collectives, messages, process groups, waiting, and finding deadlocks.

It carries values and clocks, and knows no prices. Open `protocol` first: the interface that a model uses, process
groups and meshes. `calls` has one rank's part in an operation. `dist` implements the interface for ranks in one
process. There, collectives and messages meet in a `communicator`, which also has the specified barrier; what they come
to is in the room `operations`.

Tasks wait on futures (`calls`) and belong to a run (`task_ownership`), which is also given the errors that nobody
retrieved. `deadlocks` reports when no rank can go on, as the `event_loop` tells it, and says where each of them waits.
"""
