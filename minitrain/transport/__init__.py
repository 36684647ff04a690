"""Where ranks meet: collectives, messages, process groups, waiting, and finding deadlocks.

May import: `errors`, `source_lines`, `tensors`, `events`. It carries values and clocks, and knows no prices.
Open `protocol` first: what a model asks of a transport. `dist` implements it for ranks in one process. There,
collectives meet in the `communicator` of their group and messages in one of the `channels`; `collectives` computes the
results of collectives of whole layers, and `partial_sums`, `context_sums` and `expert_exchange` those of other tensors.
`deadlocks` reports when no rank can go on.
"""
