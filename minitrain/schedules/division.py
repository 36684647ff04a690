"""How ranks divide a model and its batch beside the stages of a pipeline: which groups each rank belongs to.

Ranks of a stage lie as Megatron-Core places them: those of one tensor-parallel group are neighbours, then come those
that share a sequence, then replicas. Experts are divided among neighbours too, whatever these have in common otherwise
("parallel folding", Liu et al. 2025), so that a group that exchanges tokens may lie across parts and sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from minitrain.errors import StrategyError
from minitrain.rank.model import Model
from minitrain.transport.groups import Group, Mesh


@dataclass(frozen=True, slots=True)
class Degrees:
    """Into how many parts ranks divide what a stage does.

    Args:
        pp: ranks of a pipeline.
        tp: parts that a layer is divided into.
        cp: ranks that share a sequence.
        ep: parts that experts are divided into.
        sequence_parallel: whether activations between layers are shards of the sequence among the `tp` parts.
        shard_size: ranks that share optimizer states (and, at higher stages of ZeRO, gradients and weights); all that
            hold the same if None.
        cp_comm_type: how keys and values come to queries: "p2p", round a ring, or "all_gather".
    """

    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    shard_size: int | None = None
    cp_comm_type: str = "p2p"


def require_degrees(model: Model, degrees: Degrees, strategy: str) -> None:
    """Raise a StrategyError unless the ranks can be divided so."""
    for name in ("pp", "tp", "cp", "ep"):
        value = getattr(degrees, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= model.world_size:
            raise StrategyError(f"{name} must be an integer of 1..{model.world_size} for {strategy}, got {value!r}")
    names = "tp x pp" if degrees.cp == 1 else "tp x cp x pp"
    require_multiple("world_size", model.world_size, names, degrees.tp * degrees.cp * degrees.pp, strategy)
    of_stage = model.world_size // degrees.pp
    require_multiple("the ranks of a stage", of_stage, "ep", degrees.ep, strategy)
    if degrees.cp_comm_type not in ("p2p", "all_gather"):
        raise StrategyError(
            f'cp_comm_type must be "p2p" or "all_gather" for {strategy}, got {degrees.cp_comm_type!r}; use one of them'
        )
    if degrees.ep > 1 and degrees.tp > 1 and not degrees.sequence_parallel:
        raise StrategyError(
            f"experts that are divided beside tp ({degrees.tp}) need shards of the sequence for {strategy}, so that no "
            "token is sent twice; use sequence_parallel=True"
        )


def require_multiple(what: str, value: int, of: str, divisor: int, strategy: str) -> None:
    """Raise a StrategyError unless `value` is a multiple of `divisor`."""
    if value % divisor:
        below = value - value % divisor
        remedy = f"{below} or {below + divisor}" if below else f"{divisor}"
        raise StrategyError(f"{what} ({value}) must be a multiple of {of} ({divisor}) for {strategy}; use {remedy}")


class Division:
    """The groups of a rank.

    Args:
        model: the rank.
        degrees: how ranks divide what a stage does.
        strategy: name of the strategy, for errors.

    Attributes:
        mesh: the ranks on named axes, `pp` first.
        parts: the ranks that have a part each of the same layers.
        sequence: the ranks that share a sequence.
        replicas: the ranks at the same place of pipelines that train on other samples.
        experts: the ranks that exchange tokens.
    """

    def __init__(self, model: Model, degrees: Degrees, strategy: str) -> None:
        require_degrees(model, degrees, strategy)
        self._model, self.degrees = model, degrees
        of_stage = model.world_size // degrees.pp
        self._axes = _axes(of_stage, degrees, strategy)
        sizes = {axis.name: axis.size for axis in reversed(self._axes)}
        self.mesh: Mesh = model.mesh(pp=degrees.pp, **sizes)
        tp, shared = degrees.tp, degrees.tp * degrees.cp
        self.parts = self._group(1, tp)
        self.sequence = self._group(tp, shared) if degrees.cp > 1 else None
        self.replicas = self._group(shared, of_stage)
        self.experts = self._group(1, degrees.ep) if degrees.ep > 1 else None
        self.shards_sequence = degrees.sequence_parallel and tp > 1

    @property
    def place(self) -> int:
        """The rank's place in its pipeline."""
        return self.mesh.coord("pp")

    def peer(self, place: int) -> int:
        """Return the rank at another place of the pipeline."""
        return self.mesh.peer("pp", place - self.place, wrap=True)

    def neighbour(self, offset: int) -> int:
        """Return another rank of those that share a sequence, so many places further round."""
        assert self.sequence is not None  # asked for where there are several
        if self.mesh.axes.get("cp") == self.sequence.size:
            return self.mesh.peer("cp", offset, wrap=True)
        return self.sequence.ranks[(self.sequence.index + offset) % self.sequence.size]

    def sharing(self, piece: str) -> tuple[Group | None, Group | None]:
        """Return the ranks that hold the same of a layer: those that share its states, and one of each such group.

        None stands for the rank alone.

        Args:
            piece: "layer" (or a part of it), "router" (what all ranks of a stage hold) or "experts".
        """
        first = {"layer": self.degrees.tp, "router": 1, "experts": self.degrees.ep}[piece]
        of_stage = self._model.world_size // self.degrees.pp
        border = of_stage if self.degrees.shard_size is None else self.degrees.tp * self.degrees.shard_size
        border = max(border, first)
        return (
            self._group(first, border) if border > first else None,
            self._group(border, of_stage) if of_stage > border else None,
        )

    def input_of(self, samples: Sequence[int]) -> Any:
        """Return the model's input for some samples: the rank's shards of their sequences."""
        if self.sequence is None:
            return self._model.get_input_activation(samples)
        cp, place = self.sequence.size, self.sequence.index
        # one shard from the beginning and one from the end: the causal mask leaves all ranks the same work
        return self._model.get_input_shard(samples, [place, 2 * cp - 1 - place], 2 * cp)

    def _group(self, first: int, last: int) -> Group:
        """Return the ranks along the axes between two borders."""
        return self.mesh.group(*(axis.name for axis in self._axes if first <= axis.first and axis.last <= last))


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of a stage's ranks, between two borders: multiples of so many neighbours."""

    name: str
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last // self.first


def _axes(of_stage: int, degrees: Degrees, strategy: str) -> list[_Axis]:
    """Return the axes of a stage's ranks, neighbours first, cut wherever a group ends.

    Raises:
        StrategyError: groups would lie across one another.
    """
    shared = degrees.tp * degrees.cp
    ends: Mapping[str, int] = {
        "tp": degrees.tp,
        "tp x cp": shared,
        "ep": degrees.ep,
        "tp x shard_size": degrees.tp * (degrees.shard_size or 1),
        "the ranks of a stage": of_stage,
    }
    ordered = sorted(ends.items(), key=lambda end: end[1])
    for (of, fewer), (what, more) in pairwise(ordered):
        require_multiple(what, more, of, fewer, strategy)
    borders = sorted({1, *ends.values()})
    found = [_Axis(_name(last, degrees, of_stage), first, last) for first, last in pairwise(borders)]
    named = {axis.name for axis in found}
    return [*(_Axis(name, 1, 1) for name in ("tp",) if name not in named), *found] + [
        _Axis("dp", of_stage, of_stage) for _ in range("dp" not in named)
    ]


def _name(last: int, degrees: Degrees, of_stage: int) -> str:
    """Return what the axis up to a border is called: the outermost one of a kind as the kind, others by their use."""
    shared = degrees.tp * degrees.cp
    for kind, end in (("tp", degrees.tp), ("cp", shared), ("dp", of_stage)):
        if last == end:
            return kind
        if last < end:
            return "ep" if last == degrees.ep else f"{kind}_shard"
    return "dp"
