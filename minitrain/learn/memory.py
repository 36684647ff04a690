"""Memory that is over its budget: which bound is broken, and what the rank held at that moment, line by line.

The programs are replayed once more for that, while one rank is watched. A run that passes is not watched, so that it
costs nothing there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from minitrain.learn.budgets import Budget
from minitrain.learn.replay import Player
from minitrain.learn.usage import Held, Kept, kept_by_rank, named
from minitrain.operations import UNITS_PER_ELEMENT
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.result import Run

KINDS = {
    "Weight": "weights",
    "OptState": "optimizer states",
    "WeightGrad": "gradients",
    "Activation": "activations",
    "ActivationGrad": "activation gradients",
}
_ACTIVATIONS = ("Activation",)
_STATES = ("OptState",)
_MOST_GROUPS = 8

Lines = Sequence[Sequence[Any]]


def gib(size_bytes: float) -> str:
    """Return a size in GiB, or in KiB where that would be nothing but zeros.

    >>> gib(3 * 2**28), gib(3 * 2**10)
    ('0.750 GiB', '3.0 KiB')
    """
    is_small = 0 < size_bytes < GIB / 100
    return f"{size_bytes / 2**10:.1f} KiB" if is_small else f"{size_bytes / GIB:.3f} GiB"


@dataclass(frozen=True, slots=True)
class Excess:
    """A bound that a rank does not keep.

    Args:
        rank: the rank.
        message: which bound.
        expected: the bound in words.
        got: what the rank needed, in words.
        measure: what is bounded, as a function of the rank's replay; the moment in question is where it is highest.
        kinds: the kinds of tensors that count.
    """

    rank: int
    message: str
    expected: str
    got: str
    measure: Callable[[Player], float]
    kinds: Collection[str] = tuple(KINDS)


def excess_of(run: Run, held: Held, budget: Budget) -> Excess | None:
    """Return the first bound on memory that a run does not keep: of the schedule, of activations, of states, of all.

    Args:
        run: the run.
        held: the most that each rank held of some kinds.
        budget: the bounds.
    """
    if budget.kept:
        for rank, (kept, most) in enumerate(zip(kept_by_rank(run), budget.kept, strict=True)):
            if kept.most > most:
                return _kept_too_many(rank, kept, most)
    for found, limits, what, kinds, measure in (
        (held.activation_bytes, budget.activation_bytes, "activations", _ACTIVATIONS, attrgetter("activation_units")),
        (held.state_bytes, budget.state_bytes, "optimizer states", _STATES, attrgetter("state_units")),
    ):
        for rank, (size_bytes, limit) in enumerate(zip(found, limits, strict=False)):
            if size_bytes > limit * (1 + 1e-9):
                return Excess(
                    rank,
                    f"a rank holds more than the budget: it has too many {what} at a time",
                    f"at most {gib(limit)} of {what}",
                    gib(size_bytes),
                    measure,
                    kinds,
                )
    if run.peak_memory_bytes > budget.memory_bytes * (1 + 1e-9):
        return Excess(
            run.peak_memory_per_rank.index(run.peak_memory),
            "a rank holds more than the budget",
            f"at most {gib(budget.memory_bytes)}",
            gib(run.peak_memory_bytes),
            lambda player: _ledger(player).units,
        )
    return None


def _kept_too_many(rank: int, kept: Kept, most: int) -> Excess:
    """Return the failure of a schedule that runs too many samples forward before their backward passes."""
    return Excess(
        rank,
        "a rank holds more than the budget: it runs too many samples forward before their backward",
        f"at most {most} activations that wait for their backward, counted by sample and layer",
        str(kept),
        lambda player: float(len(player.model.log) == kept.event + 1),
        _ACTIVATIONS,
    )


class Moment:
    """Watches one rank of a replay, and keeps what the rank held when a measure was highest.

    Args:
        excess: whose rank and measure it looks at.
        lines: where in the submission each step stands, by rank.

    Attributes:
        text: what is known of the highest moment so far.
    """

    def __init__(self, excess: Excess, lines: Lines) -> None:
        self._excess = excess
        self._lines = lines
        self._highest = float("-inf")
        self.text: list[str] = []

    def __call__(self, player: Player, number: int) -> None:
        """Look at a rank after one of its steps."""
        if player.model.rank != self._excess.rank:
            return
        value = self._excess.measure(player)
        if value > self._highest:
            self._highest = value
            self.text = [self._heading(player, number), *_held(player, number, self._excess.kinds, self._place)]

    def _place(self, number: int) -> str | None:
        """Return where in the submission a step of the rank stands."""
        try:
            known = self._lines[self._excess.rank][number]
        except (LookupError, ValueError):
            return None
        return known if isinstance(known, str) else None

    def _heading(self, player: Player, number: int) -> str:
        """Return when it is, and after what."""
        log = player.model.log
        after = ""
        if len(log):
            event = log[len(log) - 1]
            layer = "" if event.layer is None else f" of layer {event.layer}"
            after = f", after {event.typ}{layer}" + (f", {named('sample', event.samples)}" if event.samples else "")
        place = self._place(number)
        return f"rank {player.model.rank} at {duration(player.model.time)}{after}" + (f", at {place}" if place else "")


@dataclass(frozen=True, slots=True)
class _Alike:
    """What the tensors on one line of the report have in common.

    Args:
        kind: name of their class.
        line: where they were made; "" if nobody knows.
        part: "" for whole tensors, or which shards they are.
        where: what holds them, if it is neither a store nor an operation.
    """

    kind: str
    line: str
    part: str
    where: str

    def text(self, tensors: Sequence[Any], size_bytes: float) -> str:
        """Return in words what tensors there are."""
        layers = {tensor.layer for tensor in tensors}
        samples = {sample for tensor in tensors for sample in getattr(tensor, "samples", ())}
        of = f"{KINDS[self.kind]} of {named('layer', layers)}"
        if samples and self.kind.startswith("Activation"):
            of += f", {named('sample', samples)}"
        made = f", made at {self.line}" if self.line else ""
        return f"{gib(size_bytes)}: {self.part}{of}{made}{self.where}"


def _held(player: Player, now: int, kinds: Collection[str], place: Callable[[int], str | None]) -> Iterator[str]:
    """Yield what a rank holds after a step, of some kinds, the largest first: which tensors, made where, kept where."""
    scale = player.model.runtime_predictor.workload.bytes_per_element / UNITS_PER_ELEMENT
    groups: dict[_Alike, list[Any]] = defaultdict(list)
    units: dict[_Alike, int] = defaultdict(int)
    for (number, _), (tensor, buffer) in _buffers(player).items():
        kind = next(base.__name__ for base in type(tensor).__mro__ if base.__name__ in KINDS)
        where = "" if buffer.holders else ", just made" if number == now else ", held in a variable"
        alike = _Alike(kind, place(number) or "", _part(tensor), where)
        groups[alike].append(tensor)
        units[alike] += buffer.units
    shown = sorted((alike for alike in groups if alike.kind in kinds), key=lambda alike: -units[alike])
    for alike in shown[:_MOST_GROUPS]:
        yield alike.text(groups[alike], units[alike] * scale)
    rest = _ledger(player).units - sum(units.values())
    if rest > 0 and len(kinds) == len(KINDS):
        yield f"{gib(rest * scale)}: what operations under way will bring"


def _part(tensor: Any) -> str:
    """Return which shards a tensor holds, "" if all."""
    num_shards = getattr(tensor, "num_shards", 1)
    shards = tensor.shards if num_shards > 1 else tensor.sequence.shards
    num_shards = max(num_shards, tensor.sequence.num_shards)
    if len(shards) == num_shards:
        return ""
    return f"{named('shard', shards)} of {num_shards} of "


def _ledger(player: Player) -> Any:
    """Return the ledger of a rank, which every strict run has."""
    model: Any = player.model
    return model._meter


def _buffers(player: Player) -> dict[tuple[int, int], tuple[Any, Any]]:
    """Return the tensors that a rank holds, each buffer once, by the step that made them and the place there."""
    found: dict[int, tuple[tuple[int, int], tuple[Any, Any]]] = {}
    for name, tensor in player.values.items():
        buffer = getattr(getattr(tensor, "_origin", None), "buffer", None)
        if buffer is not None and buffer.units:
            found[id(buffer)] = name, (tensor, buffer)
    return dict(found.values())
