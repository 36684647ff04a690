"""Where ranks meet: barrier, process groups, collectives, messages, waiting, and finding deadlocks.

May import: `errors`, `tensors`, `events`. It carries values and clocks, and knows nothing of seconds a byte. Open
`dist` first: the transport of one run. Collectives meet in the `communicator` of their group, messages in a channel of
`channels`; `collectives` says what comes of the values, and `deadlocks` notices that nobody can go on.
"""
