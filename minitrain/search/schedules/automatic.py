"""Zero-bubble schedules made for given times and a limit of memory: ZB-1p and ZB-2p.

Ranks are followed in time. A rank that is free takes the next forward or input gradient in turn, one of each, as far as
its activations stay within the limit. A weight gradient fills the wait for it, where it fits, where the rank would
else have the largest bubble of all, or where its activations stand in the way. Three choices are open: whether a rank
takes one more forward where its first gradient comes soon, whether it leaves out a forward where it is ahead of the
next rank, and whether the largest bubble counts. All eight are tried, and ZB-H1 and ZB-H2 where their memory allows.
The one with the shortest span is taken, and of several the one that ends first.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3.1. Left out: the integer program
that the authors begin from the result.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import final

from minitrain.errors import UsageError
from minitrain.search.schedules.generators import check_chunks, check_sizes, zb_h1, zb_h2
from minitrain.search.schedules.schedule import Action, Kind, Schedule

EQUAL_COSTS = (1.0, 1.0, 1.0, 0.0, 1.0)
"""Of passes that are alike, messages that take no time, and weight gradients that keep all activations."""

_PASSES: tuple[Kind, ...] = ("F", "I", "W")


def zb_1p(num_ranks: int, num_microbatches: int, num_chunks: int = 1, costs: Sequence[float] = EQUAL_COSTS) -> Schedule:
    """Make the zero-bubble schedule for given costs in the memory of 1F1B.

    Live activations: as many as p microbatches have on every rank, where a weight gradient counts its share.

    Args:
        num_ranks: p; stage s is on rank s.
        num_microbatches: m, any number.
        num_chunks: 1.
        costs: the time of a forward, an input gradient, a weight gradient and a message, in one unit; and the share of
            a microbatch's activations that its weight gradient keeps.

    Returns:
        The schedule.

    Raises:
        UsageError: for sizes or costs outside these rules.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, sections 3.1 and 4.
    """
    return _shortest("zb_1p", num_ranks, num_microbatches, num_chunks, num_ranks, tuple(costs))


def zb_2p(num_ranks: int, num_microbatches: int, num_chunks: int = 1, costs: Sequence[float] = EQUAL_COSTS) -> Schedule:
    """Make the zero-bubble schedule for given costs in twice the memory of 1F1B.

    Live activations: as many as 2p microbatches have on every rank, where a weight gradient counts its share.

    Args:
        num_ranks: p; stage s is on rank s.
        num_microbatches: m, any number.
        num_chunks: 1.
        costs: the time of a forward, an input gradient, a weight gradient and a message, in one unit; and the share of
            a microbatch's activations that its weight gradient keeps.

    Returns:
        The schedule.

    Raises:
        UsageError: for sizes or costs outside these rules.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, sections 3.1 and 4.
    """
    return _shortest("zb_2p", num_ranks, num_microbatches, num_chunks, 2 * num_ranks, tuple(costs))


@lru_cache(maxsize=64)
def _shortest(
    name: str, num_ranks: int, num_microbatches: int, num_chunks: int, most_alive: int, costs: tuple[float, ...]
) -> Schedule:
    """Return the schedule of the choices with the shortest span, of these the one that ends first."""
    check_sizes(name, num_ranks, num_microbatches, num_chunks)
    check_chunks(name, num_chunks, 1, "use zbv for several stages a rank")
    is_legal = len(costs) == 5 and all(0 < cost < math.inf for cost in costs[:3]) and 0 <= costs[3] < math.inf
    if not (is_legal and 0 <= costs[4] <= 1):
        raise UsageError(
            f"costs of {name} must be the times of a forward, an input gradient and a weight gradient (above 0) and of "
            f"a message (from 0), and a share (0 to 1), got {costs}; leave them out where passes are alike"
        )
    tried = [
        _Pipeline(num_ranks, num_microbatches, most_alive, costs, choices).run()
        for choices in product((False, True), repeat=3)
    ]
    handmade = (zb_h1, zb_h2) if most_alive > num_ranks else (zb_h1,)
    tried += [generator(num_ranks, num_microbatches) for generator in handmade]
    return Schedule(min(tried, key=lambda schedule: span_and_end(schedule, costs)).rows, name)


def span_and_end(schedule: Schedule, costs: Sequence[float]) -> tuple[float, float]:
    """Return the longest time from a rank's first start to its last end, and the last end of all ranks.

    Args:
        schedule: of one stage a rank.
        costs: as for `zb_1p`, in whose unit times are returned.
    """
    times, message = dict(zip(_PASSES, costs, strict=False)), costs[3]
    done: dict[tuple[Kind, int, int], float] = {}
    free, begun = [0.0] * schedule.num_ranks, [-1.0] * schedule.num_ranks
    left = [list(reversed(order)) for order in schedule.orders]
    while any(left):
        for rank, actions in enumerate(left):
            while actions:
                action = actions[-1]
                source = rank + {"F": -1, "I": 1}.get(action.kind, schedule.num_ranks)
                needed = (action.kind, source, action.microbatch)
                if 0 <= source < schedule.num_ranks and needed not in done:
                    break
                start = max(free[rank], done.get(needed, -message) + message)
                begun[rank] = start if begun[rank] < 0 else begun[rank]
                free[rank] = done[action.kind, rank, action.microbatch] = start + times[action.kind]
                actions.pop()
    return round(max(end - start for end, start in zip(free, begun, strict=True)), 9), round(max(free), 9)


@final
class _Pipeline:
    """Ranks in time.

    Args:
        num_ranks: p.
        num_microbatches: m.
        most_alive: microbatches that a rank may keep.
        costs: as for `zb_1p`.
        choices: the three that are open, in the order of the module's docstring.
    """

    def __init__(
        self,
        num_ranks: int,
        num_microbatches: int,
        most_alive: int,
        costs: Sequence[float],
        choices: tuple[bool, ...],
    ) -> None:
        self.last, self.num, self.most_alive = num_ranks - 1, num_microbatches, most_alive
        self.times: dict[Kind, float] = dict(zip(_PASSES, costs[:3], strict=True))
        self.message, self.share = costs[3:]
        self.delays, self.skips, self.evens = choices
        self.orders: list[list[Action]] = [[] for _ in range(num_ranks)]
        self.ends: list[dict[Kind, list[float]]] = [{"F": [], "I": [], "W": []} for _ in range(num_ranks)]
        self.free = [0.0] * num_ranks
        self.bubbles = [0.0] * num_ranks

    def run(self) -> Schedule:
        """Follow all ranks to the end, and return what they did."""
        moments = [0.0]
        while moments:
            now = heapq.heappop(moments)
            for rank in range(self.last + 1):
                if self.free[rank] <= now:
                    for moment in self._take(rank, now):
                        heapq.heappush(moments, moment)
        return Schedule.from_orders(self.orders)

    def _take(self, rank: int, now: float) -> tuple[float, ...]:
        """Begin what a free rank does now, and return when something follows from that."""
        kind = self._chosen(rank, now)
        if kind is None:
            return ()
        if self.orders[rank]:
            self.bubbles[rank] += now - self.free[rank]
        end = now + self.times[kind]
        self.orders[rank].append(Action(kind, rank, self._done(rank, kind)))
        self.ends[rank][kind].append(end)
        self.free[rank] = end
        return (end, end + self.message)

    def _done(self, rank: int, kind: Kind) -> int:
        return len(self.ends[rank][kind])

    def _chosen(self, rank: int, now: float) -> Kind | None:
        """Return what a rank begins now, or None if it waits."""
        forward, gradient = self._arrival(rank, "F"), self._arrival(rank, "I")
        has_room = self._alive(rank) + 1 <= self.most_alive
        may_go = forward is not None and forward <= now and has_room
        may_return = gradient is not None and gradient <= now
        has_weights = self._done(rank, "W") < self._done(rank, "I")
        is_turn = self._is_turn_of_gradient(rank)
        makes_room = not is_turn and not has_room and has_weights and self._done(rank, "F") < self.num
        if may_return and (is_turn or not may_go) and not makes_room:
            return "I"
        wait = math.inf if gradient is None else gradient - now
        if may_go and (not is_turn or self.delays or wait >= self.times["F"]):
            return "F"
        if not has_weights:
            return None
        if not is_turn and has_room and forward is not None:
            wait = min(wait, forward - now)
        is_largest = self.evens and self.bubbles[rank] + wait > max(self.bubbles)
        return "W" if wait >= self.times["W"] or is_largest or makes_room else None

    def _is_turn_of_gradient(self, rank: int) -> bool:
        """Return whether an input gradient comes before the next forward, one of each in turn after the first."""
        if not self._done(rank, "I"):
            return self._arrival(rank, "I") is not None
        is_ahead = rank < self.last and self._done(rank, "F") - self._done(rank + 1, "F") > 1
        was_forward = next(action.kind for action in reversed(self.orders[rank]) if action.kind != "W") == "F"
        return was_forward or (self.skips and is_ahead)

    def _alive(self, rank: int) -> float:
        """Return the activations that a rank keeps, in those of a microbatch."""
        forwards, backwards, weights = (self._done(rank, kind) for kind in _PASSES)
        return forwards - backwards + self.share * (backwards - weights)

    def _arrival(self, rank: int, kind: Kind) -> float | None:
        """Return when what the next action of a kind needs is there; None where that has not begun, or none is left."""
        place = self._done(rank, kind)
        if place == self.num or (kind == "I" and place == self._done(rank, "F")):
            return None
        if kind == "F":
            return 0.0 if rank == 0 else self._sent(self.ends[rank - 1]["F"], place)
        return self._sent(self.ends[rank + 1]["I"], place) if rank < self.last else self.ends[rank]["F"][place]

    def _sent(self, ends: Sequence[float], place: int) -> float | None:
        return ends[place] + self.message if place < len(ends) else None
