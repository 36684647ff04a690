"""How ranks share the sequence of each sample: checks of their sizes, and the shards of each rank."""

from collections.abc import Sequence

from minitrain.engine.protocol import Mesh
from minitrain.errors import StrategyError
from minitrain.lib import Model

from ._batch import require_multiple, require_range


def context_mesh(model: Model, cp: int | None, tp: int, strategy: str) -> Mesh:
    """Lay the ranks out: parts of a layer as neighbours, then those that share a sequence, and replicas beyond.

    Args:
        model: the rank.
        cp: ranks that share a sequence; all that are left beside tp if None.
        tp: parts that a layer is divided into.
        strategy: name of the strategy, for errors.
    """
    if not hasattr(model, "get_input_shard"):  # the specification knows no sequences
        raise StrategyError(f"{strategy} needs a model with get_input_shard; use minitrain's own")
    for name, value in (("tp", tp), ("cp", cp)):
        require_range(name, value, model.world_size, strategy)
    require_multiple("world_size", model.world_size, "tp", tp, strategy)
    cp = cp or model.world_size // tp
    require_multiple("world_size", model.world_size, "cp x tp", cp * tp, strategy)
    mesh = model.mesh(dp=model.world_size // (cp * tp), cp=cp, tp=tp)
    require_multiple("global_batch_size", model.global_batch_size, "replicas", mesh.group("dp").size, strategy)
    return mesh


def shards_of(place: int, cp: int, *, balanced: bool) -> tuple[list[int], int]:
    """Return a rank's shards of the sequence, and how many there are.

    Balanced, the sequence has 2 cp shards, and a rank has one from its beginning and one from its end (Llama 3, section
    3.3.2).
    """
    return ([place, 2 * cp - 1 - place], 2 * cp) if balanced else ([place], cp)


def require_cut(cut: str, strategy: str) -> None:
    """Raise a StrategyError unless a packed sequence can be cut so."""
    if cut not in ("best", "sequence", "document"):
        raise StrategyError(f'cut must be "best", "sequence" or "document" for {strategy}, got {cut!r}')


def shares_of_work(work: Sequence[int], num_replicas: int) -> list[list[int]] | None:
    """Return the samples of each replica: as many for all, and about as much work; None where all work is the same.

    The sample with most work goes to the replica with least so far that has room (Graham 1969, the longest first).

    Args:
        work: of each sample.
        num_replicas: how many share the samples, a divisor of their number.
    """
    if len(set(work)) == 1:
        return None
    shares: list[list[int]] = [[] for _ in range(num_replicas)]
    for sample in sorted(range(len(work)), key=lambda sample: -work[sample]):
        room = [share for share in shares if len(share) < len(work) // num_replicas]
        min(room, key=lambda share: sum(work[other] for other in share)).append(sample)
    return shares
