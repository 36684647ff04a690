"""Folding: ranks that do the same but for their shard index and samples are simulated once a class.

`simulate(..., fold=True)` lays the ranks out on the axes of the strategy's own mesh (or on one axis, the world). An
axis is *kept* if messages travel along it (a pipeline: each of its positions is a class of its own) and *folded*
otherwise. The one rank that stands for a class gets `Each` values for whatever differs between its ranks: rank,
coordinate, shard index, samples. They are linear in the folded coordinates, so that a comparison, a sum or a set of
them is evaluated over all ranks at once; where ranks would part ways, `Each` raises and names the line.
"""
