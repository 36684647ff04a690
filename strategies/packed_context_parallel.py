"""Context parallelism of packed documents, balanced by their lengths (Llama 3, section 3.3.2; Wang et al. 2025)."""

from collections.abc import Sequence
from typing import Any

from minitrain.lib import Model

from ._batch import microbatches, require_multiple, require_range, share
from ._context import context_mesh, require_cut, shards_of, shares_of_work
from .gathered_context import gathered_step


async def packed_context_parallel(
    model: Model,
    microbatch_size: int | None = None,
    cp: int | None = None,
    tp: int = 1,
    cut: str = "best",
    balance: bool = True,
    whole: int = 0,
    recompute: str = "none",
) -> Model:
    """Train as `gathered_context` does, on documents that are packed into sequences, with as even work as they allow.

    Attention's work follows the pairs of tokens that see one another, which long documents have most of. Replicas get
    as many samples, and about as many pairs. The ranks that share a sequence cut each document by itself where that
    leaves them more even work than shards of the sequence ("WLB-LLM", sections 4 and 5).

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; all of a replica if None.
        cp: ranks that share a sequence; all that are left beside tp if None.
        tp: parts that a layer is divided into; heads and columns must be multiples.
        cut: what is cut into two shards a rank: the "sequence", as Llama 3 does; each "document"; or whichever is
            "best", the one with fewer pairs on the ranks with most.
        balance: whether samples are given to replicas by their pairs, and not in their order.
        whole: samples of each replica that are not cut, those with fewest pairs: each rank takes as many by itself, and
            sends no keys and values for them (dynamic context parallelism); a multiple of cp.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    require_cut(cut, "packed_context_parallel")
    mesh = context_mesh(model, cp, tp, "packed_context_parallel")
    replicas, size = mesh.group("dp"), mesh.group("cp").size
    pairs = [model.count_pairs([sample]) for sample in range(model.global_batch_size)]
    shares = shares_of_work(pairs, replicas.size) if balance else None
    if whole:
        samples_each = model.global_batch_size // replicas.size
        require_range("microbatch_size", microbatch_size, samples_each, "packed_context_parallel")
        require_range("whole", whole, samples_each, "packed_context_parallel")
        require_multiple("whole", whole, "cp", size, "packed_context_parallel")

    def samples_of(replica: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the samples that a replica cuts, and those that its ranks take whole."""
        own: Sequence[int] = (
            share(model.global_batch_size, replicas.size, replica) if shares is None else shares[replica]
        )
        if not whole:
            return own, []
        uncut = sorted(own, key=pairs.__getitem__)[:whole]
        return [sample for sample in own if sample not in uncut], uncut

    def slowest(cut: str) -> int:
        """Return the pairs of the ranks with most, for which the others wait in each microbatch."""
        places = [shards_of(place, size, balanced=True) for place in range(size)]
        batches = [batch for replica in range(replicas.size) for batch in batches_of(samples_of(replica)[0])]
        return sum(max(model.count_pairs(batch, *each, cut) for each in places) for batch in batches)

    def batches_of(samples: Sequence[int]) -> Sequence[Sequence[int]]:
        of_each = microbatch_size
        if whole and microbatch_size is not None:  # of those that are cut, or that are not, there may be fewer
            of_each = min(microbatch_size, max(len(samples), 1))
        return microbatches(samples, of_each, "packed_context_parallel")

    cut = min(("sequence", "document"), key=slowest) if cut == "best" else cut
    together, uncut = samples_of(replicas.index)
    shards = shards_of(mesh.coord("cp"), size, balanced=True)
    inputs: list[tuple[Any, ...]] = [(batch, *shards, cut) for batch in batches_of(together)]
    if uncut:
        by_rank = shares_of_work([pairs[sample] for sample in uncut], size)
        place = mesh.group("cp").index
        alone = uncut[place::size] if by_rank is None else [uncut[index] for index in by_rank[place]]
        inputs += [(batch,) for batch in batches_of(alone)]
    return await gathered_step(model, mesh, inputs, recompute)
