"""Where ranks meet: collectives, messages, process groups, waiting, and finding deadlocks.

It carries values and clocks, and knows no
prices. Open `protocol` first: the interface that a model uses, with `calls` (one rank's part in an operation) and
`groups` (process groups and meshes). `dist` implements it for ranks in one process. There, collectives meet in the
`communicator` of their group and messages in one of the `channels`; what they come to is in the room `operations`.
`barrier` is the specified barrier.

Tasks wait on futures (`waiting`) and belong to a run (`task_ownership`), which is also given the errors that nobody
retrieved. `deadlocks` reports when no rank can go on, as the `event_loop` tells it, and says where each of them waits
(`waiting_places`).
"""
