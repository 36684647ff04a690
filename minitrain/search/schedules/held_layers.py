"""What a rank holds of its layers: loaded, gathered for use, summed with the ranks that hold the same, and updated.

The ZeRO stage (Rajbhandari et al. 2020) says what these ranks share: 1 optimizer states, 2 gradients, 3 weights. They
may share within groups of `shard_size` and sum over the others, as HSDP does. Gradients are summed at the end of the
step (stages 0 and 1), after each microbatch (2 and 3), or, with `overlap_replicas`, as soon as the last microbatch has
made them.

How ranks divide a model and its batch beside the stages of a pipeline: which groups each rank belongs to.

Ranks of a stage lie as Megatron-Core places them: those of one tensor-parallel group are neighbours, then come those
that share a sequence, then replicas. Experts are divided among neighbours too, whatever these have in common otherwise
("parallel folding", Liu et al. 2025), so that a group that exchanges tokens may lie across parts and sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from typing import Any

from minitrain.engine.model import Model
from minitrain.engine.operations import Launched
from minitrain.engine.protocol import Group, Mesh
from minitrain.errors import StrategyError
from minitrain.source_lines import count_as_strategy
from minitrain.tensors import OptState, Weight


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
        copies: 2 where each stage lives on two ranks of a pipeline, as far from its one end as from its other.
    """

    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    shard_size: int | None = None
    cp_comm_type: str = "p2p"
    copies: int = 1


def require_degrees(model: Model, degrees: Degrees, strategy: str) -> None:
    """Raise a StrategyError unless the ranks can be divided so."""
    for name in ("pp", "tp", "cp", "ep", "shard_size"):
        value = getattr(degrees, name)
        if value is None and name == "shard_size":
            continue
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
        pipeline = {"pp": degrees.pp} if degrees.copies == 1 else {"copy": 2, "pp": degrees.pp // 2}
        self.mesh: Mesh = model.mesh(**pipeline, **sizes)
        tp, shared = degrees.tp, degrees.tp * degrees.cp
        self.parts = self._group(1, tp)
        self.sequence = self._group(tp, shared) if degrees.cp > 1 else None
        self.replicas = self._group(shared, of_stage)
        self.experts = self._group(1, degrees.ep) if degrees.ep > 1 else None
        self.shards_sequence = degrees.sequence_parallel and tp > 1

    @property
    def place(self) -> int:
        """The rank's place in its pipeline; the second half of one with copies begins at its end."""
        place = self.mesh.coord("pp")
        return self.degrees.pp - 1 - place if self.has_copies and self.mesh.coord("copy") else place

    @property
    def has_copies(self) -> bool:
        """Whether each stage lives on two ranks of a pipeline."""
        return self.degrees.copies > 1

    def peer(self, place: int) -> int:
        """Return the rank at another place of the pipeline."""
        if not self.has_copies:
            return self.mesh.peer("pp", place - self.place, wrap=True)
        along = min(place, self.degrees.pp - 1 - place) - self.mesh.coord("pp")
        across = int(place >= self.degrees.pp // 2) - self.mesh.coord("copy")
        return self.mesh.peer("pp", along, wrap=True) + self.mesh.peer("copy", across, wrap=True) - self.mesh.rank

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
        copies = ("copy",) if self.has_copies else ()
        return (
            self._group(first, border) if border > first else None,
            self._group(border, of_stage, *copies) if of_stage > border or copies else None,
        )

    def input_of(self, samples: Sequence[int]) -> Any:
        """Return the model's input for some samples: the rank's shards of their sequences."""
        if self.sequence is None:
            return self._model.get_input_activation(samples)
        cp, place = self.sequence.size, self.sequence.index
        # one shard from the beginning and one from the end: the causal mask leaves all ranks the same work
        return self._model.get_input_shard(samples, [place, 2 * cp - 1 - place], 2 * cp)

    def _group(self, first: int, last: int, *others: str) -> Group:
        """Return the ranks along the axes between two borders, and along others of the mesh."""
        axes = (axis.name for axis in self._axes if first <= axis.first and axis.last <= last)
        return self.mesh.group(*axes, *others)


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


count_as_strategy(__file__)

ZERO_STAGES = (0, 1, 2, 3)

Steps = Generator[Any, Any, Any]
"""What a rank does; it yields each communication that it waits for, and is sent the result."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A layer, or a piece of one with experts.

    Args:
        layer: which layer.
        sharing: the ranks that share its states.
        others: one rank of each group that does.
        load: loads a shard of it.
    """

    layer: int
    sharing: Group | None
    others: Group | None
    load: Callable[[int, int], tuple[Any, Any]]


class HeldLayers:
    """What a rank holds.

    Args:
        model: the rank.
        division: how ranks divide layers.
        zero: the ZeRO stage.
        num_microbatches: how many gradients are added to one.
        strategy: name of the strategy, for errors.
        overlap_replicas: whether a gradient is summed under what follows the last microbatch's backward, and weights
            that were updated in shards are gathered under the first forward; with zero 3, whether a block's weights are
            gathered under the block before (`gather_ahead`).
        sum_tied: whether the gradient of a table that embedding and head share is summed over both also where they are
            on two ranks, or others hold them too.
        host_fraction: share of the parameters, from the first on, whose state lies in the host's memory, and which the
            host updates; layers are not cut.
        overlap_host: whether the host updates a layer while gradients of later ones come, and weights of earlier ones
            go.
        ends: the places of the first and of the last stage; those of the pipeline if None.
    """

    def __init__(
        self,
        model: Model,
        division: Division,
        zero: int,
        num_microbatches: int,
        strategy: str,
        *,
        overlap_replicas: bool = False,
        sum_tied: bool = False,
        host_fraction: float = 0,
        overlap_host: bool = False,
        ends: tuple[int, int] | None = None,
    ) -> None:
        if isinstance(zero, bool) or zero not in ZERO_STAGES:
            raise StrategyError(f"zero must be a ZeRO stage, 0 to 3, for {strategy}, got {zero!r}")
        if not isinstance(host_fraction, int | float) or not 0 <= host_fraction <= 1:
            got = f"got {host_fraction!r}; 1 is all of them"
            raise StrategyError(f"optimizer_offload_fraction must be a share, 0 to 1, for {strategy}, {got}")
        self._model, self._division, self._zero = model, division, zero
        self._overlaps, self._gathers_ahead = overlap_replicas and zero < 3, overlap_replicas and zero == 3
        self._num_microbatches = num_microbatches
        self._held: dict[Any, _Held] = {}
        self._collected: dict[Any, int] = {}  # gradients that were added, by key
        self._gathers: dict[Any, Launched[Any]] = {}
        self._reductions: dict[Any, Launched[Any]] = {}
        self._other_sums: dict[Any, Launched[Any]] = {}  # of what groups have summed, over the other groups
        self._reducing: dict[Any, Launched[Any]] = {}  # every microbatch's, with ZeRO 2 and 3
        self._block_of = {layer: block for block, layers in enumerate(model.blocks) for layer in layers}
        self._tied = model.tied_layers if sum_tied else ()
        self._host_fraction, self._overlaps_host = host_fraction, overlap_host
        self._on_host: list[Any] = []  # keys of what the host updates
        self._ends = ends or (0, division.degrees.pp - 1)

    def load(self, layers: Iterable[int]) -> Steps:
        """Load layers: of those whose experts are divided, what all ranks hold and this rank's experts."""
        layers = [*layers]
        for layer, is_on_host in zip(layers, self._by_host(layers), strict=True):
            for key, held in self._pieces(layer):
                self._held[key] = held
                self._load(key, held)
                if is_on_host:
                    yield from self._move_to_host(key)
        for key, held in self._held.items() if self._overlaps else ():
            if self._zero_of(held):  # the step begins with what the one before has updated
                self._gathers[key] = self._model.launch(self._gather(key, held))

    def _pieces(self, layer: int) -> list[tuple[Any, _Held]]:
        """Return what there is of a layer, by key of the stores."""
        model, division = self._model, self._division
        experts, parts = division.experts, division.parts
        if experts is not None and model.has_experts(layer):
            router = _Held(layer, *division.sharing("router"), lambda *shard: model.load_router(layer, *shard))
            part = {"part": experts.index, "num_parts": experts.size}
            own = _Held(layer, *division.sharing("experts"), lambda *shard: model.load_experts(layer, *shard, **part))
            return [(layer, router), (("experts", layer), own)]
        part = {"part": parts.index, "num_parts": parts.size}
        held = _Held(layer, *division.sharing("layer"), lambda *shard: model.load_weights(layer, *shard, **part))
        return [(layer, held)]

    def _zero_of(self, held: _Held) -> int:
        """Return the ZeRO stage of what a rank may hold alone."""
        return self._zero if held.sharing is not None else 0

    def _load(self, key: Any, held: _Held) -> None:
        """Load a piece, in shards where its ranks share it."""
        model, zero, sharing = self._model, self._zero_of(held), held.sharing
        shard = (0, 1) if sharing is None else (sharing.index, sharing.size)
        model.weights[key], model.opt_states[key] = held.load(*(shard if zero == 3 else (0, 1)))
        if zero in (1, 2):
            model.opt_states[key] = model.opt_states[key].shard(*shard)
            if self._overlaps:
                model.weights[key] = model.weights[key].shard(*shard)

    def _by_host(self, layers: Sequence[int]) -> list[bool]:
        """Return whether the host updates each layer: the first ones, until they have the share of the parameters."""
        if not self._host_fraction:
            return [False] * len(layers)
        states = (OptState(layer, self._model.num_layers, 0, frozenset([0]), 1) for layer in layers)
        again = [layer for layer in self._model.tied_layers if layer in layers][1:]  # whose table another layer has
        sizes = [0 if state.layer in again else self._model.held_bytes(state) for state in states]
        before = accumulate(sizes, initial=0)
        most = self._host_fraction * sum(sizes)
        return [self._host_fraction == 1 or seen < most for seen, _ in zip(before, sizes, strict=False)]

    def _move_to_host(self, key: Any) -> Steps:
        """Move what the host updates: the state, and a copy of the weight."""
        model = self._model
        self._on_host.append(key)
        model.host["state", key] = yield model.offload(model.opt_states.pop(key))
        model.host["weight", key] = yield model.offload(self._own(key))

    def _own(self, key: Any) -> Weight:
        """Return the weight, or the shard of it that the rank holds states of."""
        sharing, weight = self._held[key].sharing, self._model.weights[key]
        is_whole = self._zero in (1, 2) and sharing is not None and weight.is_complete()
        return weight.shard(sharing.index, sharing.size) if is_whole else weight  # type: ignore[union-attr]  # it is one

    def gather_ahead(self, layers: Sequence[int]) -> None:
        """Begin to gather weights in shards of the block that a pass comes to, and of the block after it.

        Args:
            layers: all that the pass comes to.
        """
        if self._zero != 3:
            return
        first = self._block_of[layers[0]]
        coming = takewhile(lambda layer: abs(self._block_of[layer] - first) <= 1, layers if self._gathers_ahead else ())
        for key in (key for layer in coming for key in (layer, ("experts", layer))):
            held = self._held.get(key)
            if held is not None and held.sharing is not None and key not in self._gathers:
                self._gathers[key] = self._model.launch(self._gather(key, held))

    def _gather(self, key: Any, held: _Held) -> Any:
        return self._model.all_gather(self._model.weights[key], held.layer, group=held.sharing)

    def whole(self, key: Any) -> Generator[Any, Any, Weight]:
        """Return a whole weight, gathered where it is in shards; `drop_whole` frees what was gathered for one pass."""
        weights, held = self._model.weights, self._held[key]
        name = key if self._zero_of(held) < 3 else ("whole", key)
        if key in self._gathers:
            weights[name] = yield self._gathers.pop(key)
        elif self._zero_of(held) == 3 and name not in weights:
            weights[name] = yield self._gather(key, held)
        return weights[name]

    def drop_whole(self, key: Any) -> None:
        """Free a gathered weight."""
        self._model.weights.pop(("whole", key), None)

    def add(self, key: Any) -> None:
        """Add the new gradient to its total in place, unless its sum over ranks comes first (`reduce`)."""
        self._collected[key] = self._collected.get(key, 0) + 1
        if self._zero_of(self._held[key]) < 2 or key in self._tied:
            self._accumulate(key, self._model.grad_weights.pop("new"))

    def reduce(self, key: Any) -> Steps:
        """Begin to sum a gradient over the ranks that hold the same, if it is time for it."""
        model, held = self._model, self._held[key]
        if key in self._tied:  # whole until both uses of the table are there
            return
        if self._zero_of(held) >= 2:
            yield from self._cover("new", held)
            yield from self._finish_reductions([other for other in self._reducing if not self._may_reduce(other, key)])
            operation = model.reduce_scatter(model.grad_weights.pop("new"), held.layer, group=held.sharing)
            self._reducing[key] = model.launch(operation)
        elif self._overlaps and held.sharing is not None and self._collected[key] == self._num_microbatches:
            yield from self._cover(key, held)
            yield from self._begin_other_sums()
            self._reductions[key] = model.launch(self._sum_over_replicas(key, held))

    def _begin_other_sums(self) -> Steps:
        """Begin to sum over the other groups what a group has summed."""
        for key in [key for key in self._reductions if self._is_summed_by_others(key)]:
            held, grad = self._held[key], (yield self._reductions.pop(key))
            self._other_sums[key] = self._model.launch(self._model.all_reduce(grad, held.layer, group=held.others))

    def _is_summed_by_others(self, key: Any) -> bool:
        """Return whether a gradient is summed over other groups, and not with the other use of its table before."""
        held = self._held[key]
        is_before = key in self._tied and self._zero_of(held) and self._division.has_copies
        return held.others is not None and not is_before

    def _may_reduce(self, other: Any, key: Any) -> bool:
        """Return whether a gradient may be reduced while another of its block is."""
        blocks = [self._block_of[self._held[one].layer] for one in (other, key)]
        return other != key and blocks[0] == blocks[1]

    def _finish_reductions(self, keys: Iterable[Any]) -> Steps:
        """Add the shards of gradients that are being reduced."""
        for key in keys:
            self._accumulate(key, (yield self._reducing.pop(key)))

    def _accumulate(self, key: Any, grad: Any) -> None:
        """Add a gradient to a total in place: the first one becomes the total."""
        total = self._model.grad_weights.get(key)
        self._model.grad_weights[key] = grad if total is None else total + grad

    def _cover(self, key: Any, held: _Held) -> Steps:
        """Complete a gradient: of norms, biases and adapters that all parts hold, a rank may have a share of a sum."""
        if getattr(self._model.grad_weights[key], "has_share_of_common", False):
            grads, parts = self._model.grad_weights, self._division.parts
            grads[key] = yield self._model.all_reduce(grads[key], held.layer, group=parts)

    def _sum_over_replicas(self, key: Any, held: _Held) -> Any:
        """Return the operation that sums a gradient over the ranks that share, in shards with ZeRO."""
        reduce = self._model.reduce_scatter if self._zero_of(held) else self._model.all_reduce
        return reduce(self._model.grad_weights.pop(key), held.layer, group=held.sharing)

    def update(self) -> Steps:
        """Take the optimizer's step on all that the rank holds."""
        yield from self._finish_reductions([*self._reducing])
        tied = [key for key in self._model.tied_layers if key in self._held]
        are_here_alone = len(tied) == 2 and all(
            held.sharing is held.others is None for held in map(self._held.__getitem__, tied)
        )
        if not (self._tied or are_here_alone):
            tied = []
        if tied:
            yield from self._sum_table(tied)
        for key, held in self._held.items():
            if key not in tied:
                yield from self._total(key, held)
            if not self._on_host:
                self._update(key, held)
                yield from self._finish(key, held)
        if self._on_host:
            yield from self._update_beside_host()

    def _update_beside_host(self) -> Steps:
        """Update a part by the device while the other part's gradients leave, and then that by the host."""
        model, host, grads, weights = self._model, self._model.host, self._model.grad_weights, self._model.weights
        leaving = {key: model.launch(model.offload(grads[key])) for key in self._on_host}
        coming: dict[Any, Launched[Any]] = {}
        yield from (work for work in leaving.values() if not self._overlaps_host)
        for key in (key for key in self._held if key not in leaving):
            self._update(key, self._held[key])
        for key in self._on_host:
            host["grad", key] = yield leaving.pop(key)
            del grads[key]
            yield model.update_on_host(host["grad", key], host["weight", key], host["state", key])
            del host["grad", key], weights[key]
            if self._overlaps_host:
                coming[key] = model.launch(model.fetch(host["weight", key]))
        for key in self._on_host:
            weights[key] = yield coming.get(key) or model.fetch(host["weight", key])
        for key, held in self._held.items():
            yield from self._finish(key, held)

    def _sum_table(self, tied: Sequence[int]) -> Steps:
        """Sum the gradient of a table that embedding and head share, over both uses and all ranks that hold the same.

        Args:
            tied: which of the two the rank holds.
        """
        model, grads = self._model, self._model.grad_weights
        is_sharded = any(self._zero_of(self._held[layer]) for layer in tied)
        for layer in () if is_sharded else tied:  # shards of the two layers lie otherwise
            yield from self._total(layer, self._held[layer])
        for layer in tied if is_sharded and self._division.has_copies else ():  # the two uses are of other samples here
            yield from self._cover(layer, self._held[layer])
            grads[layer] = yield model.all_reduce(grads[layer], layer, group=self._held[layer].others)
        for layer in tied:
            use = model.table_gradient(layer, grads[layer])
            grads["table"] = grads.pop("table") + use if "table" in grads else use
        if len(tied) == 1:
            ends = [*map(self._division.peer, self._ends)]
            grads["table"] = yield model.all_reduce(grads["table"], tied[0], group=ends)
        for layer in tied:
            grads[layer] = model.with_table(layer, grads[layer], grads["table"])
        del grads["table"]
        for layer in tied if is_sharded else ():
            yield from self._total(layer, self._held[layer])

    def _total(self, key: Any, held: _Held) -> Steps:
        """Complete the sum of a gradient over all ranks that hold the same."""
        model, grads = self._model, self._model.grad_weights
        if key in self._other_sums:
            grads[key] = yield self._other_sums.pop(key)
            return
        if key in self._reductions:
            grads[key] = yield self._reductions.pop(key)
        elif self._zero_of(held) < 2 or key in self._tied:
            yield from self._cover(key, held)
            if held.sharing is not None:
                grads[key] = yield self._sum_over_replicas(key, held)
        if self._is_summed_by_others(key):
            grads[key] = yield model.all_reduce(grads[key], held.layer, group=held.others)

    def _update(self, key: Any, held: _Held) -> None:
        """Update a piece, or the shard of it that the rank holds states of."""
        model = self._model
        model.weights[key], model.opt_states[key] = model.update(
            held.layer, model.grad_weights[key], self._own(key), model.opt_states[key]
        )
        del model.grad_weights[key]

    def _finish(self, key: Any, held: _Held) -> Steps:
        """Gather a piece that was updated in shards, and hand it in."""
        model, zero, layer = self._model, self._zero_of(held), held.layer
        if zero in (1, 2) and not self._overlaps:
            model.weights[key] = yield model.all_gather(model.weights[key], layer, group=held.sharing)
        model.set_final_weight(layer, model.weights[key])
