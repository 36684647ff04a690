"""The order of a pipeline, by a word: which schedule of `minitrain.schedules` a strategy runs."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType

from minitrain import schedules
from minitrain.errors import StrategyError, UsageError
from minitrain.schedules import Schedule

Generator = Callable[[int, int, int], Schedule]

_COMBINED = partial(schedules.interleaved_1f1b, in_pairs=True)

ORDERS: Mapping[str, tuple[Generator, Generator | None, int]] = MappingProxyType(
    {
        "1f1b": (schedules.one_f_one_b, schedules.interleaved_1f1b, 1),
        "interleaved": (schedules.one_f_one_b, schedules.interleaved_1f1b, 1),
        "combined_1f1b": (_COMBINED, _COMBINED, 1),
        "gpipe": (schedules.gpipe, schedules.looped_bfs, 1),
        "zb_h1": (schedules.zb_h1, schedules.interleaved_zero_bubble, 1),
        "zb_h2": (schedules.zb_h2, None, 1),
        "zb_1p": (schedules.zb_1p, None, 1),
        "zb_2p": (schedules.zb_2p, None, 1),
        "zbv": (schedules.zbv, schedules.zbv, 2),
        "dualpipe_v": (schedules.dualpipe_v, schedules.dualpipe_v, 2),
    }
)
"""By word: the schedule of one stage a rank, that of several, and the fewest stages a rank."""

IN_ROUNDS = frozenset({"1f1b", "interleaved", "combined_1f1b"})
"""The orders in which microbatches go through several stages of a rank in rounds."""

AUTOMATIC = MappingProxyType({"zb_1p": schedules.zb_1p, "zb_2p": schedules.zb_2p})
"""The orders that are made for given costs."""


def chunks_of(order: str, num_chunks: int, strategy: str) -> int:
    """Return the stages that each rank has in an order: two at least in those that are V-shaped.

    Raises:
        StrategyError: there is no such order.
    """
    if order not in ORDERS:
        words = ", ".join(f'"{word}"' for word in ORDERS)
        raise StrategyError(f"schedule must be one of {words} for {strategy}, got {order!r}; use one of them")
    return max(num_chunks, ORDERS[order][2])


@lru_cache(maxsize=8)
def schedule_of(
    order: str, num_ranks: int, num_microbatches: int, num_chunks: int, costs: tuple[float, ...] | None = None
) -> Schedule:
    """Return the schedule of an order, the same for all ranks of a run.

    Args:
        order: its word.
        num_ranks: of a pipeline.
        num_microbatches: of a replica.
        num_chunks: stages a rank.
        costs: what automatic orders are made for; equal ones if None.

    Raises:
        StrategyError: it does not run with these numbers.
    """
    if costs is not None and order not in AUTOMATIC:
        raise StrategyError(
            f"pass_costs make orders of {' or '.join(AUTOMATIC)} alone, got schedule={order!r}; leave them out"
        )
    plain, of_chunks, _ = ORDERS[order]
    generator = of_chunks if num_chunks > 1 and of_chunks else plain
    try:
        if costs is not None:
            return AUTOMATIC[order](num_ranks, num_microbatches, num_chunks, costs)
        return generator(num_ranks, num_microbatches, num_chunks)
    except UsageError as error:
        raise StrategyError(str(error)) from error
