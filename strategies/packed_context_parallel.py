"""Context parallelism of packed documents, balanced by their lengths (Llama 3, section 3.3.2; Wang et al. 2025)."""

from collections.abc import Sequence

from minitrain.lib import Model

from ._batch import microbatches, share
from ._context import context_mesh, require_cut, shards_of, shares_of_work
from .gathered_context import gathered_step


async def packed_context_parallel(
    model: Model,
    microbatch_size: int | None = None,
    cp: int | None = None,
    tp: int = 1,
    cut: str = "best",
    balance: bool = True,
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
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    require_cut(cut, "packed_context_parallel")
    mesh = context_mesh(model, cp, tp, "packed_context_parallel")
    replicas, size = mesh.group("dp"), mesh.group("cp").size
    pairs = [model.count_pairs([sample]) for sample in range(model.global_batch_size)]
    shares = shares_of_work(pairs, replicas.size) if balance else None

    def batches_of(replica: int) -> Sequence[Sequence[int]]:
        own: Sequence[int] = (
            share(model.global_batch_size, replicas.size, replica) if shares is None else shares[replica]
        )
        return microbatches(own, microbatch_size, "packed_context_parallel")

    def slowest(cut: str) -> int:
        """Return the pairs of the ranks with most, for which the others wait in each microbatch."""
        places = [shards_of(place, size, balanced=True) for place in range(size)]
        batches = [batch for replica in range(replicas.size) for batch in batches_of(replica)]
        return sum(max(model.count_pairs(batch, *each, cut) for each in places) for batch in batches)

    cut = min(("sequence", "document"), key=slowest) if cut == "best" else cut
    shards = shards_of(mesh.coord("cp"), size, balanced=True)
    return await gathered_step(model, mesh, [(batch, *shards, cut) for batch in batches_of(replicas.index)], recompute)
