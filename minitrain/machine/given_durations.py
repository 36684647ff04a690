"""Predictors whose durations are given: by hand, as real runs have measured them, or with loads that take no time.

**By hand** (`FixedPredictor`), one for each type of event. Figures in papers often count time in units: a forward takes
1, a backward takes 2. `FixedPredictor(forward=1, backward=2)` does the same. It has no device and no network.

**As real runs have measured them** (`CalibratedPredictor`): `simulate(..., hardware="this_machine.json")`. What an
operation takes is a line through measured durations of single operations in real steps, with all ranks at work. Of
computing it is a fixed time, a time for each FLOP and one for each byte of traffic, by kind of operation. Of transfers
it is a fixed time and a time for each byte, by kind and number of members. `minitrain.training.calibration` fits them.

Each prediction has an interval, from how far measured steps were from what was predicted without them (`ratios`). A new
step lies in it with the stated chance if it is as like the measured ones as they are like one another (split conformal
prediction: Lei et al. 2018, "Distribution-Free Predictive Inference for Regression", section 2.2). What lies outside of
the measured sizes is said.

**With loads that take no time** (`with_free_loading`): a run whose weights are there before it begins. Where ranks load
for unequal times, the clocks of a run do not say what its step takes (see `minitrain.run.analysis.breakdown`). A run
that keeps no events is executed once more with these.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from annotated_types import Ge, Gt

from minitrain.errors import UsageError, typed, typed_methods
from minitrain.files import StrPath, read_json, read_text, write_text
from minitrain.machine.network import no_such_algorithm
from minitrain.machine.predictor import DevicePredictor
from minitrain.machine.price import FREE, Account, Part, Predictor, Price, RankPredictors
from minitrain.operations import COMPUTING, EVENT_TYPES, HOST_MOVES, RECV, SEND
from minitrain.operations.collectives import COLLECTIVES
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import USUAL, PassMode, Workload

_SHORTEST_S, _LONGEST_S = 1e-100, 1e100  # outside of them sums and ratios overflow or vanish, as in configs


class FixedPredictor:
    """Price every operation by its type alone: `FixedPredictor(forward=1, backward=2)`.

    There is no device behind it, so that MFU and memory capacity are None. Use it wherever a hardware name goes.

    Args:
        durations: s a call, by event type; 0 for those not given, and `recv` as `send`.

    Raises:
        UsageError: an event type is unknown, or a duration is no number of at least 0.

    >>> FixedPredictor(forward=1, backward=2).compute("backward", num_samples=8).seconds
    2.0
    """

    workload: Workload = MATMUL_LAYER
    prices_layers_alike = True
    peak_flop_per_s = None
    capacity_bytes = None
    host_capacity_bytes = math.inf

    def __init__(self, **durations: float) -> None:
        for typ, seconds in durations.items():
            if typ not in EVENT_TYPES:
                raise UsageError(f"there is no event type {typ!r}; use {', '.join(EVENT_TYPES)}")
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
                raise UsageError(f"the duration of {typ} must be a number of at least 0, got {seconds!r}")
            if seconds and not _SHORTEST_S <= seconds <= _LONGEST_S:
                raise UsageError(
                    f"the duration of {typ} must be 0 or lie in {_SHORTEST_S}..{_LONGEST_S} s, got {seconds!r}"
                )
        self._given = durations
        self.durations = {
            typ: float(seconds) for typ, seconds in {"recv": durations.get("send", 0), **durations}.items()
        }
        self._slowdown = 1.0

    def __repr__(self) -> str:
        return f"FixedPredictor({', '.join(f'{typ}={seconds:g}' for typ, seconds in self._given.items())})"

    def slowed(self, factor: float) -> FixedPredictor:
        """Return the same durations for a rank whose computing takes `factor` times as long."""
        other = copy.copy(self)
        other._slowdown = self._slowdown * factor
        return other

    def training(self, workload: Workload) -> FixedPredictor:
        """Return the same durations for another workload, whose tensors have other sizes."""
        other = copy.copy(self)
        other.workload = workload
        return other

    def compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> Price:
        """Price a pass through a layer; what it computes again is part of the given duration."""
        return self._price(typ)

    def update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        """Price an optimizer step."""
        return self._price("update")

    def load(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        """Price loading weights."""
        return self._price("load_weights")

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        """Price a collective; one of a single rank is free. There is no network that could have algorithms."""
        if algorithm is not None:
            raise no_such_algorithm(op, algorithm, "its duration is given by hand; use algorithm=None")
        return self._price(op, size_bytes) if len(ranks) > 1 else Price(0.0, size_bytes)

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price one side of a message."""
        return self._price(op, size_bytes)

    def host_transfer(self, op: str, size_bytes: float) -> Price:
        """Price a move to or from host memory."""
        return self._price(op, size_bytes)

    def _price(self, typ: str, size_bytes: float = 0) -> Price:
        seconds = self.durations.get(typ, 0.0)
        return Price(seconds * self._slowdown if typ in COMPUTING and self._slowdown != 1 else seconds, size_bytes)


P = TypeVar("P")


def with_free_loading(predictor: P) -> P:
    """Return the same predictor, or predictors of ranks, with loads that take no time."""
    if not isinstance(predictor, RankPredictors):
        return _FreeLoading(predictor)  # type: ignore[return-value]  # which answers all that the predictor does
    free = {id(each): _FreeLoading(each) for each in predictor.predictors}
    ranks: Any = copy.copy(predictor)
    ranks.predictors = tuple(free[id(each)] for each in predictor.predictors)
    return ranks  # type: ignore[no-any-return]  # predictors of ranks


class _FreeLoading:
    """A predictor with loads that take no time.

    Args:
        own: what prices all else.
    """

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        if name == "_own":  # while it is copied
            raise AttributeError(name)
        return getattr(self._own, name)

    def load(self, *_: Any, **__: Any) -> Price:
        """Price loading: it takes no time."""
        return FREE

    def slowed(self, factor: float) -> Predictor:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        return _FreeLoading(self._own.slowed(factor))

    def training(self, workload: Any) -> Predictor:
        """Return the same machine for another workload."""
        return _FreeLoading(self._own.training(workload))


AtLeast0 = Annotated[float, Ge(0)]

LEVEL = 0.8
"""The share of steps that an interval is to hold."""

CALIBRATED = "calibrated, "
"""How what priced a run begins, where that was a calibration."""

MOST_OTHERS = 0.1
"""The share of the processors' time from which on what was measured is called unsure."""

ROOM = 1.5
"""A size counts as measured if one within this factor of it was."""

_UNKNOWN = 0.5  # how far a line may be off, relatively, where nothing like it was measured
_LIKE = {
    "backward_input": "backward",
    "backward_weight": "backward",
    "attend": "forward",
    "keys_values": "forward",
    "project": "forward",
}
MESSAGES = (SEND, RECV, *HOST_MOVES)


class Asked(NamedTuple):
    """What an operation is, for its price.

    Args:
        kind: of computing its name, and of which kind of a transformer's layers ("forward of attention"); of a transfer
            its name and members ("all_reduce among 2").
        sizes: FLOP and bytes of computing, or bytes of a transfer.
    """

    kind: str
    sizes: tuple[float, ...]

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.kind.split()[0]

    @property
    def is_transfer(self) -> bool:
        """Whether it is one, and no computing."""
        return len(self.sizes) == 1

    @property
    def is_collective(self) -> bool:
        """Whether it is one, and no message."""
        return self.is_transfer and self.name not in MESSAGES

    @property
    def members(self) -> int:
        """How many ranks a transfer is among; 1 of computing."""
        return int(self.kind.partition(" among ")[2] or 1)


@dataclass(frozen=True, slots=True)
class Line:
    """What one kind of operation takes.

    Args:
        seconds: fixed, and for one unit of each size.
        least: the smallest measured sizes.
        most: the largest ones.
        spread: root of the mean squared relative distance of single operations from the line.
        count: operations that were measured.
    """

    seconds: tuple[AtLeast0, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]
    spread: AtLeast0
    count: Annotated[int, Ge(0)]

    def at(self, sizes: Sequence[float]) -> float:
        """Return the duration of an operation, s."""
        return self.seconds[0] + sum(each * size for each, size in zip(self.seconds[1:], sizes, strict=True))

    def has_measured(self, sizes: Sequence[float]) -> bool:
        """Return whether sizes lie within what was measured, or close to it."""
        bounds = zip(sizes, self.least, self.most, strict=True)
        return all(least / ROOM <= size <= most * ROOM for size, least, most in bounds)


@typed_methods
@typed
@dataclass(frozen=True, slots=True)
class Calibration:
    """What real runs have said of a machine.

    Args:
        machine: what it is called.
        cores: its cores.
        ranks: how many ranks were at work at once.
        lines: by kind of operation.
        between_s: what passes between two operations of a rank: the tool's own time, s.
        usage: the share of a processor that collectives take from computing beside them.
        computing_usage: the share of a collective's rate that computing beside it takes.
        waiting: by how much steps take longer than their operations say: ranks wait for the slowest of noisy ones, and
            submitting takes time.
        ratios: measured by predicted step time of runs that were predicted without themselves, ascending.
        runs: what was measured, in words.
        spread: how far steps of one program differed: the distance of their quartiles by their median.
        others: the share of the processors' time that other processes took meanwhile; 0 where nobody could tell.
    """

    machine: str
    cores: Annotated[int, Ge(1)]
    ranks: Annotated[int, Ge(1)]
    lines: dict[str, Line]
    between_s: AtLeast0
    usage: AtLeast0
    computing_usage: AtLeast0
    waiting: AtLeast0
    ratios: tuple[Annotated[float, Gt(0)], ...]
    runs: tuple[str, ...]
    spread: AtLeast0
    others: AtLeast0 = 0.0

    @classmethod
    def read(cls, path: StrPath) -> Calibration:
        """Read a calibration that `write` has written.

        Raises:
            UsageError: it is no calibration.
        """
        try:
            found: Calibration = read_json(path, Calibration, what="calibration")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the calibration {path}: {error}; write it with hw calibrate") from error
        return found

    def write(self, path: StrPath) -> None:
        """Write it as JSON."""
        write_text(Path(path), [json.dumps(asdict(self), indent=1) + "\n"])

    def factors(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Return by which factors of a prediction its measurement may lie, or None where too few steps were measured.

        Of n distances `|log(ratio)|`, the ceil((n + 1) level)-th smallest is the bound.
        """
        distances = sorted(abs(math.log(ratio)) for ratio in self.ratios)
        place = math.ceil((len(distances) + 1) * level)
        if place > len(distances):
            return None
        bound = math.exp(distances[place - 1])
        return 1 / bound, bound

    def __str__(self) -> str:
        return f"{self.machine} (calibrated)"

    def how_sure(self) -> str:
        """Say how far predictions were off, as headlines and tables do."""
        factors = self.factors()
        if factors is None:
            enough = f"{math.ceil(round(LEVEL / (1 - LEVEL), 9))} measured programs"
            return f"{CALIBRATED}{enough} give an interval of {100 * LEVEL:.0f} %, here are {len(self.runs)}"
        low, high = (f"{100 * (factor - 1):+.0f}".replace("-", "\N{MINUS SIGN}") for factor in factors)
        return f"{CALIBRATED}{low} to {high} % ({100 * LEVEL:.0f} % of {len(self.ratios)} measured steps)"

    @property
    def warning(self) -> str:
        """What was wrong with the machine while it was measured; "" for nothing."""
        if self.others < MOST_OTHERS:
            return ""
        return (
            f"other processes took {100 * self.others:.0f} % of the processors while this machine was measured, and "
            f"steps of one program differed by {100 * self.spread:.0f} %; measure again when nothing else runs"
        )

    def predictor(self, world_size: int, workload: Workload | None) -> CalibratedPredictor:
        """Return what prices the operations of a run."""
        return CalibratedPredictor(self, world_size, workload or MATMUL_LAYER)


class CalibratedPredictor(DevicePredictor):
    """Price operations as real runs have measured them.

    Args:
        calibration: of the machine.
        world_size: ranks of the run; more than cores share them.
        workload: what the layers cost and hold.
    """

    peak_flop_per_s = None  # type: ignore[assignment]  # a machine whose rates depend on what it does
    capacity_bytes = None  # type: ignore[assignment]  # `minitrain train` looks at what is free
    host_capacity_bytes = math.inf

    def __init__(self, calibration: Calibration, world_size: int, workload: Workload = MATMUL_LAYER) -> None:
        self.calibration = calibration
        self.pricing: Any = calibration.how_sure()
        self.workload = workload
        self._slowdown = 1.0
        self.reference = None
        self._world_size = world_size
        self._crowd = _crowding(world_size, calibration) / _crowding(calibration.ranks, calibration)
        self._remember_prices()

    def _remember_prices(self) -> None:
        self._answers: dict[tuple[Any, ...], Price] = {}
        self._pairs_are_alike = True

    def __repr__(self) -> str:
        return f"{self.calibration.machine} (calibrated)"

    def asked(self, question: tuple[Any, ...]) -> Asked | None:
        """Return what a question asks for; None for what has no price: loads, and transfers within one rank."""
        kind, *given = question
        workload: Any = self.workload
        if kind == "compute":
            typ, samples, layer, mode = given
            cost = workload.compute_cost(typ, samples, layer, *(() if mode is USUAL else (mode,)))
            return Asked(typ + self._of_layer(layer), (cost.work_flop * cost.share, cost.traffic_bytes * cost.share))
        if kind == "update":
            *shards, layer, num_parts = given
            cost = workload.update_cost(*shards, layer, *(() if num_parts == 1 else (num_parts,)))
            return Asked(kind, (cost.work_flop * cost.share, cost.traffic_bytes * cost.share))
        if kind == "collective":
            op, size_bytes, ranks, _ = given
            return Asked(f"{op} among {len(ranks)}", (size_bytes,)) if len(ranks) > 1 else None
        if kind == "p2p":
            return Asked(f"{given[0]} among 2", (given[1],))
        return Asked(given[0], (given[1],)) if kind == "host_transfer" else None

    def _of_layer(self, layer: int) -> str:
        """Return of which kind of layer a computation is, as the names of lines end."""
        model = getattr(self.workload, "model", None)
        units = () if model is None else model.units()
        return f" of {units[layer].kind}" if layer < len(units) else ""

    def _answer(self, question: tuple[Any, ...]) -> Price:
        asked = self.asked(question)
        size_bytes = question[2] if question[0] in ("collective", "p2p", "host_transfer") else 0
        seconds = 0.0 if asked is None else self._seconds(asked)
        price = Price(seconds, size_bytes)
        if asked is not None and asked.is_collective:
            known = self.calibration
            price = replace(price, processor_usage=known.usage, computing_usage=known.computing_usage, tier_size=1)
        self._answers[question] = price
        return price

    def _account(self, question: tuple[Any, ...], price: Price) -> Account:
        asked = self.asked(question)
        work_flop, traffic_bytes = (0.0, 0.0) if asked is None or asked.is_transfer else asked.sizes
        return Account(f"measured runs: {self.calibration.machine}", Part("", price.seconds, work_flop, traffic_bytes))

    def _seconds(self, asked: Asked) -> float:
        known, factor = self._line(asked)
        if known is None:
            return 0.0
        seconds = known.at(asked.sizes) * factor
        if not asked.is_transfer:
            seconds *= self._crowd * self._slowdown
        return (seconds + self.calibration.between_s) * self.calibration.waiting

    def _line(self, asked: Asked) -> tuple[Line | None, float]:
        """Return the line of an operation, or of the one most like it, and by what it is to be multiplied."""
        lines = self.calibration.lines
        if (found := lines.get(asked.kind)) is not None:
            return found, 1.0
        if not asked.is_transfer:
            return self._most_like(asked), 1.0
        known = [(Asked(kind, ()), line) for kind, line in lines.items() if " among " in kind]
        if not known:
            return None, 1.0
        other, line = min(known, key=lambda each: (each[0].name != asked.name, abs(each[0].members - asked.members)))
        return line, _on_wire(asked) / _on_wire(other)

    def _most_like(self, asked: Asked) -> Line | None:
        """Return the line of computing most like this: of other layers, or of the operation that it is a part of."""
        of_layer = asked.kind.partition(" of ")[2]
        for name in (asked.name, _LIKE.get(asked.name, "forward")):
            alike = [kind for kind in self.calibration.lines if kind.split()[0] == name]
            if alike:
                return self.calibration.lines[max(alike, key=lambda kind: kind.endswith(of_layer))]
        return None

    def training(self, workload: Workload) -> Self:
        """Return the same machine for another workload."""
        other = copy.copy(self)
        other.workload = workload
        other._remember_prices()
        return other

    def doubts(self, counts: Mapping[int, int], step_s: float) -> list[str]:
        """Return what a prediction rests on that was not measured, in words: what matters most first.

        Args:
            counts: how many operations of a rank have each price, by the price's id.
            step_s: the predicted step, s.
        """
        found = []
        for asked, seconds in self._asked_of(counts):
            line, _ = self._line(asked)
            known = self.calibration.lines.get(asked.kind)
            if known is not None and known.has_measured(asked.sizes):
                continue
            off = _UNKNOWN if known is None or line is None else max(_UNKNOWN * 0.5, known.spread)
            found.append((off * seconds / step_s, asked))
        found.sort(key=lambda each: -each[0])
        return [f"{_in_words(asked)}: up to {share:.0%} of the step" for share, asked in found if share > 0.01]

    def _asked_of(self, counts: Mapping[int, int]) -> Iterator[tuple[Asked, float]]:
        """Yield what a step asks for, and the seconds of all such operations, each kind and size once."""
        for question, price in self._answers.items():
            asked = self.asked(question)
            if asked is not None and id(price) in counts:
                yield asked, price.seconds * counts[id(price)]


def _crowding(ranks: int, calibration: Calibration) -> float:
    """Return how many ranks share a core."""
    return max(1.0, ranks / calibration.cores)


def _on_wire(asked: Asked) -> float:
    """Return how often each byte crosses the wire of a member (Thakur et al. 2005)."""
    record = COLLECTIVES.get(asked.name)
    if record is None:
        return 1.0
    if record.passes:
        return record.passes * (asked.members - 1) / asked.members
    return record.wire_share(asked.members) or 1.0  # a barrier carries nothing, and takes as long as it takes


def _in_words(asked: Asked) -> str:
    """Return an operation in words: "all_reduce among 4 of 1.05 MB"."""
    size = asked.sizes[-1]
    if asked.members > 1 or len(asked.sizes) == 1:
        return f"{asked.kind} of {size / 1e6:.3g} MB"
    return f"{asked.kind} of {asked.sizes[0] / 1e6:.3g} MFLOP"


def names_calibration(source: Any) -> bool:
    """Return whether what names hardware names a calibration: a file with the key `lines`."""
    if not isinstance(source, str | os.PathLike) or not os.fspath(source).lower().endswith(".json"):
        return False
    with suppress(OSError, ValueError):  # who reads it says what is wrong
        return '"lines"' in read_text(source)
    return False
