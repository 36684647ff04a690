"""What a run needed: communication, time and memory, and what each rank kept for its backward passes.

Peak memory alone tells little about a schedule: most of it are weights, gradients and optimizer states, beside which
one microbatch more hardly shows. So two further figures are taken for each rank, which count activations alone:

- How many inputs of layers it kept, sample by sample: those that its forwards have used and its backwards have not.
  This is a property of the order of the operations, whatever a strategy stores where.
- The most bytes of activations that were alive, wherever they were held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from minitrain.learn.replay import Player
from minitrain.operations import COLLECTIVES, COMMUNICATIONS, RECV, SEND, UNITS_PER_ELEMENT, Event
from minitrain.run.result import Run
from minitrain.tensors import OptState
from minitrain.tensors.fields import copy_to_device
from minitrain.tensors.index_sets import ranges

_WEIGHTS: Mapping[str, int] = {"all_reduce": 2, "recv": 0, "barrier": 0}
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
