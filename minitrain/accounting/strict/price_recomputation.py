"""The check that the prices in the logs of a finished run are those of its hardware, for every row.

A row does not say how many shards an update worked on, or which tensor a collective moved. The models of a strict run
write that down when it happens (see `Moved`). When the run has ended, each operation is priced once more, by a copy of
the predictor that remembers no price.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from operator import is_
from typing import Any, NamedTuple

from minitrain.accounting.strict.clock_recomputation import clock_error
from minitrain.errors import StrategyError
from minitrain.events import COMM, LAYER, PASSES, PRICE, SAMPLES, STREAM, STRIDE, TYP, UNITS_PER_ELEMENT, UPDATE, Stream
from minitrain.hardware.collective_algorithms import ALGORITHMS
from minitrain.hardware.price import PENDING, Predictor, Price
from minitrain.tensors import FIELDS
from minitrain.tensors.placed import sums_what_all_hold

Moved = Any
"""What an operation moved: class and fields of a tensor, a list of such, the lists of all members, or None."""


class Offloaded(NamedTuple):
    """What a move to or from host memory moved.

    Args:
        units: how much, in units of 2**-40 elements.
    """

    units: int


class Asked(NamedTuple):
    """What a collective moved by an algorithm that the strategy asked for.

    Args:
        moved: what it moved.
        algorithm: the algorithm.
    """

    moved: Moved
    algorithm: str


def moved_by(op: str, operations: Sequence[Any], results: Sequence[Any]) -> Moved:
    """Return what a collective is priced by."""
    if op in ALGORITHMS and operations[0].detail is not None:
        return Asked(_moved_by(op, operations, results), operations[0].detail)
    return _moved_by(op, operations, results)


def _moved_by(op: str, operations: Sequence[Any], results: Sequence[Any]) -> Moved:
    """Return what a collective is priced by, whatever its algorithm."""
    given, result = operations[0].value, results[0]
    if op == "all_reduce" and sums_what_all_hold(result, given):
        return _COMMON, facts_of(result)
    if op == "all_to_all":
        return tuple(facts_of(operation.value) for operation in operations)
    return facts_of(results[0] if op in ("all_gather", "broadcast") else operations[0].value)


def facts_of(value: Any) -> Moved:
    """Return the facts of a tensor or a bucket, which keep no tensor alive."""
    kind = value.__class__
    if kind in FIELDS:
        return kind, FIELDS[kind](value)
    return None if value is None else [facts_of(item) for item in value]


_COMMON = "what all parts hold"
_IN_SHARDS = (
    *("Weight", "WeightGrad", "WeightPart", "WeightGradPart"),
    *("RouterWeight", "RouterGrad", "ExpertWeight", "ExpertGrad"),
)


def _column(rows: Sequence[Any], places: Iterable[int], column: int) -> list[Any]:
    """Return one column of some rows."""
    return [rows[row + column] for row in places]


class PriceRecomputation:
    """The prices of a run's operations, computed again.

    Args:
        predictor: that of one or more ranks.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor.slowed(1.0)  # a copy that remembers no price
        self.workload = predictor.workload
        self._are_alike = self.workload.is_uniform and getattr(predictor, "prices_layers_alike", False)
        self._seen: set[Hashable] = set()
        self._facts: tuple[Any, ...] = (), ()  # of the rank that was checked last
        self._sizes: dict[Any, int] = {}

    def check(self, model: Any) -> None:
        """Check every row of a rank's log.

        Raises:
            StrategyError: a price is another one, or no price at all.
        """
        rows = model._log._rows
        if max((*model._shard_counts, *model._moved), default=-1) >= len(rows):
            raise StrategyError(
                f"rows of the log of rank {model._rank} are gone; a log is for reading", rank=model._rank
            )
        facts = self._facts_of(model)
        if not self._are_known(facts):  # many ranks do the same as the one before
            self._check_all(model, facts)
            self._facts = facts

    def _facts_of(self, model: Any) -> tuple[Any, ...]:
        """Return all that the prices of a rank's operations depend on; a message has a stream of its own."""
        rows = model._log._rows
        layers = None if self._are_alike else rows[LAYER::STRIDE]
        log = rows[TYP::STRIDE], [*map(len, rows[SAMPLES::STRIDE])], layers
        return rows[PRICE::STRIDE], rows[STREAM::STRIDE], log, model._shard_counts, model._moved, model.pass_modes

    def _are_known(self, facts: tuple[Any, ...]) -> bool:
        """Return whether facts are those that were checked last; prices and streams must be the same objects."""
        (prices, streams, *others), (known_prices, known_streams, *known) = facts, self._facts
        return (
            len(prices) == len(known_prices)
            and all(map(is_, prices, known_prices))
            and all(map(is_, streams, known_streams))
            and others == known
        )

    def _check_all(self, model: Any, facts: tuple[Any, ...]) -> None:
        """Check every row of a rank's log that does not do what the one before did."""
        rows, prices, (types, num_samples, layers) = model._log._rows, facts[0], facts[2]
        layers = repeat(0) if layers is None else layers
        passes = zip(types, num_samples, map(id, prices), layers, strict=False)
        self._check_each(model, passes, range(0, len(rows), STRIDE))
        known = model._shard_counts
        layers = repeat(0) if self._are_alike else _column(rows, known, LAYER)
        asked = zip(
            _column(rows, known, TYP), map(id, _column(rows, known, PRICE)), known.values(), layers, strict=False
        )
        self._check_each(model, asked, known)
        moved = model._moved
        columns = (map(id, _column(rows, moved, column)) for column in (PRICE, STREAM))
        asked = zip(_column(rows, moved, TYP), map(self._in_any_layer, moved.values()), *columns, strict=True)
        self._check_each(model, asked, moved)

    def _in_any_layer(self, moved: Moved) -> Hashable:
        """Return the facts of one tensor without its layer, where layers are alike; of anything else, its identity."""
        if self._are_alike and moved.__class__ is tuple and isinstance(moved[0], type):
            kind, fields = moved
            return kind, fields[1:]  # the layer comes first
        return id(moved)

    def _check_each(self, model: Any, questions: Iterable[Hashable], places: Iterable[int]) -> None:
        """Check one row of all that ask the same and have the same price; ranks share what was checked."""
        found = dict(zip(questions, places, strict=False))
        for question, row in found.items():
            if question not in self._seen:
                self._check_row(model, row)
        self._seen |= found.keys()

    def _check_row(self, model: Any, row: int) -> None:
        """Check one row."""
        typ, layer, _, price, _, samples, stream = model._log._rows[row : row + STREAM + 1]
        if price is PENDING:  # given up; the clock shows whether it may be
            return
        expected: Price = price
        if typ in PASSES:
            mode = model.pass_modes.get(row)
            expected = self.predictor.compute(typ, len(samples), layer or 0, *(() if mode is None else (mode,)))
        elif row in model._shard_counts:
            held, num_shards, num_parts = model._shard_counts[row]
            ask = self.predictor.update if typ == UPDATE else self.predictor.load
            expected = ask(held, num_shards, layer, *(() if num_parts == 1 else (num_parts,)))
        elif row in model._moved:
            expected = self._transfer(model._rank, typ, stream, model._moved[row], model._world_size)
        if price is not expected and price != expected:
            raise clock_error(model._rank, f"the duration of a {typ}", price.seconds, expected.seconds)
        if not 0 <= expected.seconds < math.inf:
            raise StrategyError(
                f"the hardware gives {expected.seconds!r} s for a {typ}; a duration is a number of at least 0",
                rank=model._rank,
            )

    def _transfer(self, rank: int, typ: str, stream: Stream, moved: Moved, world_size: int) -> Price:
        """Return the price of a collective, of one side of a message, or of a move to or from the host."""
        size_bytes: float
        if isinstance(moved, Offloaded):
            size_bytes = moved.units / UNITS_PER_ELEMENT * self.workload.bytes_per_element
            return self.predictor.host_transfer(typ, size_bytes)  # type: ignore[attr-defined,no-any-return]  # or nothing was moved
        if stream.kind != COMM:
            peers = (rank, stream.peer) if typ == "send" else (stream.peer, rank)
            return self.predictor.p2p(typ, self._size(moved), *peers)
        is_world = stream.group is None
        asked: Sequence[str] = ()
        if isinstance(moved, Asked):
            moved, asked = moved.moved, (moved.algorithm,)
        ranks = tuple(range(world_size)) if stream.group is None else stream.group
        if typ == "all_to_all":
            size_bytes = max(self._size(member) for member in moved)
        else:
            size_bytes = self._size(moved, whole=is_world)
        return self.predictor.collective(typ, size_bytes, ranks, *asked)

    def _size(self, moved: Moved, *, whole: bool = True) -> int:
        """Return the bytes of what was moved; of shards in a proper subgroup, those that it works on."""
        if moved is None:
            return 0
        if isinstance(moved, list):
            return sum(self._size(item, whole=whole) for item in moved)
        kind, fields = moved
        if kind is _COMMON:
            of_total, fields_of_total = fields
            return self.workload.common_bytes(of_total(*fields_of_total))
        key = kind, fields, whole
        if key not in self._sizes:
            tensor = kind(*fields)
            size_bytes = self.workload.message_bytes(tensor)
            if not whole and kind.__name__ in _IN_SHARDS:
                size_bytes = size_bytes * len(tensor.shards) // tensor.num_shards
            self._sizes[key] = size_bytes
        return self._sizes[key]
