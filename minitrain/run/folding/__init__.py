"""Folding: ranks that do the same but for their shard index and samples are simulated once.

`simulate(..., fold=True)` lays the ranks out on named axes: those of the strategy's own mesh, or one axis for the whole
world. Along a *folded* axis all ranks belong to one class, and one rank is simulated for all of them. Along a *kept*
axis messages travel, as in a pipeline, and each position is a class of its own. An axis is also kept where ranks do the
same and the network does not carry it in the same time for all (`mesh`).

Whatever differs between the ranks of a class (rank, coordinate, shard index, samples) is a value or a set for each
rank, linear in the folded coordinates. So a comparison, a sum or a union is evaluated for all ranks at once. Where the
ranks of a class would do different things, they *diverge*: the operation raises and names the line.

Open `driver` first: it makes one attempt (`attempt`) after the other, with a `model` for each class. `per_rank_values`
has what strategies see in place of ints and frozensets, and `mesh` of groups and meshes.

Ranks are kept apart by prices (`mesh`), by shards of a sequence (`model`), and by devices and shares (`attempt`).
`expansion` has the result, and makes logs and models of any rank from those of its class. `microbatches` simulates few
of many alike microbatches, and repeats the steady phase.
"""
