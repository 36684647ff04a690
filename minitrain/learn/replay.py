"""Replaying a recorded program on the grader's own engine, and measuring what the replayed run needed.

**Replay** goes through the public operations of the engine's models. A program comes from a submission's process and
may hold anything: a step of another form, or one that names a tensor that does not exist, is an error of the
submission. Laws, numbers, clocks and memory are those of the replay. Its processor time and the number of its tensors
are limited.

**Measures** are communication, time and memory, and what each rank kept for its backward passes. Peak memory tells
little about a schedule: most of it are weights, gradients and optimizer states, beside which one microbatch more hardly
shows. So two further figures of each rank count activations alone:

- How many inputs of layers it kept, sample by sample: those that its forwards have used and its backwards have not.
  This is a property of the order of the operations, whatever a strategy stores where.
- The most bytes of activations that were alive, wherever they were held.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from minitrain import tensors
from minitrain.engine.model import Model
from minitrain.engine.semantics import DeclaredLocalSteps
from minitrain.errors import LawError, MinitrainError, StrategyError
from minitrain.learn.recorder import Step, leaves
from minitrain.operations import COMMUNICATIONS, HOST_MOVES, RECV, SEND, STORES, UNITS_PER_ELEMENT, Event
from minitrain.operations.collectives import COLLECTIVES, TRANSFERS
from minitrain.operations.computations import COMPUTATIONS, names_of
from minitrain.run.result import Run
from minitrain.tensors import OptState
from minitrain.tensors.fields import copy_to_device
from minitrain.tensors.index_sets import overlapping_shards, ranges

KINDS = {kind.__name__: kind for kind in tensors.FIELDS}
_COMPUTED = frozenset(COMPUTATIONS) - {"combine", "set_final_weight"} | {"combine_outputs"}  # tensors combine too
_SPECIAL = frozenset({"put", "drop", "add", "combine", "shard", "free", "set_final_weight"})  # methods of a player
_INPUTS = frozenset(names_of("input"))
_OF_LOCAL_STEPS = {*names_of("compression", "local", "update"), "load_compression", "load_outer_state"} - {"update"}
_LOADS = frozenset(names_of("load"))

MOST_TENSORS = 100_000
"""Tensors that all ranks together may have at once; those of the shipped runs have some hundreds each."""


def replayed(
    programs: Sequence[Sequence[Step]],
    name: str,
    seconds: float = float("inf"),
    watch: Callable[[Player, int], None] | None = None,
    semantics: DeclaredLocalSteps | None = None,
) -> Callable[[Model], Awaitable[Model]]:
    """Return a strategy in which each rank replays its program.

    Args:
        programs: steps of the ranks.
        name: of the strategy.
        seconds: processor time that all ranks together may take, s.
        watch: called after each step with the rank's player and the number of the step.
        semantics: what the exercise means to compute, where that is not one synchronous step.
    """
    end = time.process_time() + seconds  # a machine that is busy must cost nobody a grade

    async def strategy(model: Model) -> Model:
        player = Player(model)
        steps = programs[model.rank]
        for number in range(len(steps)):
            _require_within(model, number, len(steps), end, seconds)
            try:
                await player.play(number, steps[number])
                if watch is not None:
                    watch(player, number)
            except MinitrainError as error:
                error.place = model.rank, number, len(model.log)  # type: ignore[attr-defined]  # for who knows its line
                raise
            except Exception as error:  # whatever it is, it is the program's
                raise StrategyError(f"step {number} of rank {model.rank} makes no sense: {error!r:.200}") from error
        return model

    strategy.__name__ = strategy.__qualname__ = name
    strategy.semantics = semantics  # type: ignore[attr-defined]  # as `mt.local_steps` declares it
    return strategy


def _require_within(model: Model, number: int, steps: int, end: float, seconds: float) -> None:
    """Require that the grader's run of a program has time left."""
    if time.process_time() > end:
        raise StrategyError(
            f"the grader's own run of it was stopped after {seconds:.3g} s, at step {number} of {steps} of rank "
            f"{model.rank}; let it do fewer operations",
            rank=model.rank,
        )


class Player:
    """The tensors and pending operations of one rank, by the steps that made them.

    Attributes:
        values: the tensors that the strategy can reach, by step and place among its results.
        works: its communications, by step.
        loaded: what shards and parts were loaded, by step and layer, each as (shards, shard, parts, part).
        activation_units: what the activations among the tensors take, in units of the account of memory.
        state_units: what the optimizer states take.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.values: dict[tuple[int, int], Any] = {}
        self.works: dict[int, Any] = {}
        self.loaded: dict[tuple[str, int], list[tuple[int, ...]]] = defaultdict(list)
        self.activation_units = self.state_units = 0

    async def play(self, number: int, step: Step) -> None:
        """Do one step."""
        kind, *what = step
        if kind == "await":
            await self.wait(*what)
        elif kind in COLLECTIVES:
            self.collective(number, kind, *what)
        elif kind in ("send", "receive"):
            self.message(number, kind, *what)
        elif kind in HOST_MOVES:
            self.move(number, kind, *what)
        elif kind in _SPECIAL:
            getattr(self, kind)(*([number, *what] if kind in ("add", "combine", "shard") else what))
        else:
            self.compute(number, kind, *what)

    def value(self, name: Any) -> Any:
        """Return the tensor, bucket or other value that a step names."""
        if isinstance(name, list):
            return self.values[name[0], name[1]]
        if "launched" in name:
            return self.works[name["launched"]]
        if "bucket" in name:
            return [self.value(item) for item in name["bucket"]]
        if "made" in name:
            fields = {
                key: frozenset(field) if isinstance(field, list) else field for key, field in name["fields"].items()
            }
            return KINDS[name["made"]](**fields)
        return None if name["alien"] == "None" else name["alien"]

    def keep(self, number: int, result: Any) -> None:
        """Name the results of a step."""
        if len(self.values) * self.model.world_size >= MOST_TENSORS:
            raise ValueError(f"a rank has {len(self.values)} tensors at once; let go of those that it needs no more")
        for place, tensor in enumerate(result if isinstance(result, tuple) else (result,)):
            self.name((number, place), tensor)

    def name(self, name: tuple[int, int], tensor: Any) -> None:
        """Name a tensor, which the strategy can reach from now on."""
        self._count(self.values.get(name), -1)
        self.values[name] = tensor
        self._count(tensor, 1)

    def _count(self, tensor: Any, sign: int) -> None:
        """Count an activation or an optimizer state in or out."""
        if isinstance(tensor, tensors.Activation):
            self.activation_units += sign * self.model._account.units_of(tensor)
        elif isinstance(tensor, tensors.OptState):
            self.state_units += sign * self.model._account.units_of(tensor)

    def compute(self, number: int, kind: str, *what: Any) -> None:
        """Do an operation of the rank alone."""
        if kind not in _COMPUTED:
            raise ValueError(f"there is no step {kind!r}")
        if kind in _OF_LOCAL_STEPS and self.model._semantics is None:
            raise StrategyError(
                f"{kind} on rank {self.model.rank}: this exercise means one synchronous step, in which replicas "
                "have no weights of their own; reduce the gradients instead",
                rank=self.model.rank,
            )
        operation = getattr(self.model, "combine" if kind == "combine_outputs" else kind)
        named: dict[str, Any] = {}
        if what and isinstance(what[-1], dict) and "named" in what[-1]:
            *what, last = what  # type: ignore[assignment]  # any sequence
            named = last["named"]
        if kind not in _INPUTS:  # whose lists are of numbers
            what = tuple(self.value(item) if isinstance(item, list | dict) else item for item in what)
        made = operation(*what, **named)
        if kind in _LOADS:
            self.require_first_load(kind, made[0])
        self.keep(number, made)

    def require_first_load(self, kind: str, weight: Any) -> None:
        """Require that a rank loads what it begins with once, and then keeps it or gets it from other ranks.

        Raises:
            LawError: a part of it was loaded before.
        """
        (shard,), (part,) = weight.shards, getattr(weight, "parts", (0,))
        for other_shards, other_shard, other_parts, other_part in self.loaded[kind, weight.layer]:
            if other_shard not in overlapping_shards(shard, weight.num_shards, other_shards):
                continue
            if other_part not in overlapping_shards(part, weight.num_parts, other_parts):
                continue
            rule = (
                f"{kind} on rank {self.model.rank}: weights of layer {weight.layer} were loaded before, at least in "
                "part; they are loaded once in a step, so keep what is needed again, or gather it"
            )
            raise LawError(rule, rank=self.model.rank, layer=weight.layer)
        self.loaded[kind, weight.layer].append((weight.num_shards, shard, weight.num_parts, part))

    def put(self, store: str, key: int, name: Any) -> None:
        """Put a tensor into a store."""
        self.store(store)[key] = self.value(name)

    def drop(self, store: str, key: int) -> None:
        """Take a tensor out of a store."""
        del self.store(store)[key]

    def store(self, name: str) -> Any:
        """Return a store, or the memory of the host."""
        if name not in (*STORES, "host"):
            raise ValueError(f"there is no store {name!r}")
        return getattr(self.model, name)

    def add(self, number: int, left: Any, right: Any) -> None:
        """Add two gradients."""
        self.keep(number, self.value(left) + self.value(right))

    def combine(self, number: int, left: Any, right: Any) -> None:
        """Combine two tensors."""
        self.keep(number, self.value(left).combine(self.value(right)))

    def shard(self, number: int, whole: Any, shard: int, num_shards: int) -> None:
        """Cut a shard."""
        self.keep(number, self.value(whole).shard(shard, num_shards))

    def free(self, name: Any) -> None:
        """Drop the reference to a tensor, which the strategy dropped too."""
        self._count(self.values.pop((name[0], name[1]), None), -1)

    def set_final_weight(self, layer: int, name: Any) -> None:
        """Set a final weight."""
        self.model.set_final_weight(layer, self.value(name))

    def collective(
        self, number: int, kind: str, name: Any, layer: int | None, ranks: Sequence[int], detail: Any, launched: bool
    ) -> None:
        """Submit a collective, launched or not.

        Raises:
            StrategyError: it is for no layer that there is.
        """
        if layer is not None and not (isinstance(layer, int) and 0 <= layer <= self.model.num_layers):
            raise StrategyError(
                f"{kind} must be for a layer of 0 to {self.model.num_layers}, got {layer!r:.80}; give the layer of "
                "its tensor",
                rank=self.model.rank,
            )
        if launched:
            self.works[number] = self.model.launch(self.coroutine(kind, self.value(name), layer, ranks, detail))
        else:
            self.works[number] = self.model._collective(kind, self.value(name), layer, ranks, detail)

    def coroutine(self, kind: str, value: Any, layer: Any, ranks: Sequence[int], detail: Any) -> Any:
        """Return the coroutine of a collective, for `Model.launch`."""
        model = self.model
        if kind == "barrier":
            return model.barrier(group=ranks)
        if COLLECTIVES[kind].has_root:
            return getattr(model, kind)(value, detail, layer, group=ranks)
        asked = {} if detail is None else {"algorithm": detail}
        return getattr(model, kind)(value, layer, group=ranks, **asked)

    def message(self, number: int, kind: str, *what: Any) -> None:
        """Submit a send or a receive."""
        model = self.model
        *names, peer, tag, launched = what
        if kind == "send":
            value, dest = self.value(names[0]), peer
            work = model.launch(model.send(dest, value, tag=tag)) if launched else model._send(dest, value, tag)
        else:
            source = peer
            work = model.launch(model.receive(source, tag=tag)) if launched else model._receive(source, tag)
        self.works[number] = work

    def move(self, number: int, kind: str, name: Any, launched: bool) -> None:
        """Submit a copy to the host's memory, back, or to the storage."""
        model, value, submits = self.model, self.value(name), TRANSFERS[kind].submits
        given = value if isinstance(value, list) else [value]
        self.works[number] = model.launch(getattr(model, kind)(*given)) if launched else getattr(model, submits)(value)

    async def wait(self, number: int, names: Sequence[Any]) -> None:
        """Await an operation and name its results."""
        for name, leaf in zip(names, leaves(await self.works[number]), strict=True):
            self.name((name[0], name[1]), leaf)


_WEIGHTS: Mapping[str, int] = {
    **{name: 0 if record.gives == "nothing" else record.passes or 1 for name, record in COLLECTIVES.items()},
    RECV: 0,
}
"""How often what an operation carries crosses the wire; once if it is not here. A receive is its send's other end."""

_BACK = frozenset({"backward", "backward_weight"})


def communication_by_kind(run: Run) -> dict[str, float]:
    """Return the bytes of all ranks' communication by kind."""
    moved: dict[str, float] = defaultdict(float)
    for log in run.logs:
        for event in log:
            if event.typ in COMMUNICATIONS and (weight := _WEIGHTS.get(event.typ, 1)):
                moved[event.typ] += weight * event.size_bytes
    return {kind: moved[kind] for kind in sorted(moved) if moved[kind]}


def last_clock(run: Run) -> float:
    """Return the latest final clock of all ranks where an interface carries one transfer at a time each way, s.

    By default a rank's launched receives from several peers come beside one another, each at full rate, and so do
    collectives of several groups, and messages beside them. Who is graded must not gain by that.
    """
    if not any(_has_transfers_at_once(log, way) for log in run.logs for way in (SEND, RECV)):
        return run.last_clock
    from minitrain.run.analysis import retiming  # noqa: PLC0415  (where transfers meet, which is rare)

    line = run.timeline
    program = retiming.make_program(retiming.with_shared_interfaces(retiming.make_graph(line)), line.price)
    return float(retiming.retime(program, retiming.seconds_of(line.prices), program.clock).max())


def _has_transfers_at_once(log: Iterable[Event], way: str) -> bool:
    """Return whether transfers of a rank go one way beside one another: its sends or receives, and collectives."""
    spans = sorted((event.time, event.end) for event in log if event.typ == way or event.typ in COLLECTIVES)
    return any(begin < end for (_, end), (begin, _) in pairwise(span for span in spans if span[0] < span[1]))


class Meter:
    """Watches a replay, and keeps the most that each rank held of some kinds, and which step made which event.

    Attributes:
        most_units: of activations, by rank.
        most_state_units: of optimizer states, by rank.
        steps: by rank, the number of the step of each event in its log.
    """

    def __init__(self) -> None:
        self.most_units: dict[int, int] = defaultdict(int)
        self.most_state_units: dict[int, int] = defaultdict(int)
        self.steps: dict[int, list[int]] = defaultdict(list)

    def __call__(self, player: Player, number: int) -> None:
        """Look at a rank after one of its steps."""
        rank = player.model.rank
        self.most_units[rank] = max(self.most_units[rank], player.activation_units)
        self.most_state_units[rank] = max(self.most_state_units[rank], player.state_units)
        steps = self.steps[rank]
        steps += [number] * (len(player.model.log) - len(steps))

    def held(self, run: Run) -> Held:
        """Return the most bytes of each rank."""
        scale = run.bytes_per_element / UNITS_PER_ELEMENT
        activations, states = (
            [units[rank] * scale for rank in range(run.world_size)]
            for units in (self.most_units, self.most_state_units)
        )
        return Held(activations, states)


@dataclass(frozen=True, slots=True)
class Held:
    """The most that each rank held of some kinds.

    Args:
        activation_bytes: of activations, by rank.
        state_bytes: of optimizer states on the device, by rank.
    """

    activation_bytes: Sequence[float]
    state_bytes: Sequence[float]


@dataclass(frozen=True, slots=True)
class Kept:
    """The inputs of layers that a rank kept for its backward passes at the moment when it kept most.

    Args:
        most: pairs of layer and sample.
        samples: those samples.
        layers: those layers.
        event: the event of the rank's log with which they became so many.
    """

    most: int = 0
    samples: frozenset[int] = field(default_factory=frozenset)
    layers: frozenset[int] = field(default_factory=frozenset)
    event: int = 0

    def __str__(self) -> str:
        if not self.most:
            return "none"
        return f"{self.most} ({named('sample', self.samples)}; {named('layer', self.layers)})"


def named(what: str, numbers: Collection[int]) -> str:
    """Return "sample 3" or "samples 0-3"."""
    return f"{what}{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def kept_of(log: Iterable[Event]) -> Kept:
    """Return the most that a rank kept at any moment, from its log."""
    kept: set[tuple[int, int]] = set()
    most = Kept()
    for place, event in enumerate(log):
        pairs = {(event.layer or 0, sample) for sample in event.samples}
        if event.typ == "forward":
            kept |= pairs
            if len(kept) > most.most:
                layers, samples = (frozenset(numbers) for numbers in zip(*kept, strict=True))
                most = Kept(len(kept), samples, layers, place)
        elif event.typ in _BACK:
            kept -= pairs
    return most


def handed_in(run: Run) -> list[float]:
    """Return how many elements of each layer's final weight all ranks hand in, together."""
    elements = [0.0] * run.num_layers
    for model in run.models:
        measure = model.runtime_predictor.workload.memory_elements
        for weights in (model.final_weights, model.final_experts):
            for layer, weight in weights.items():
                elements[layer] += measure(weight)
    return elements


def states_on_host(run: Run) -> list[float]:
    """Return how many elements of each layer's updated optimizer state lie in the memory of hosts at the end."""
    elements = [0.0] * run.num_layers
    for model in run.models:
        for kept in model.host.values() if model.peak_host_bytes else ():
            tensor = copy_to_device(kept)
            if isinstance(tensor, OptState) and tensor.step:
                elements[tensor.layer] += model.runtime_predictor.workload.memory_elements(tensor)
    return elements


def kept_by_rank(run: Run) -> Sequence[Kept]:
    """Return what each rank of a run kept."""
    return [kept_of(log) for log in run.logs]
