"""Whether the prices in the logs of a finished run are those of its hardware, for every row.

A row does not say how many shards an update worked on, or which tensor a collective moved. The models of a strict run
write that down when it happens (see `Moved`). When the run has ended, each operation is priced once more, by a copy of
the predictor that remembers no price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minitrain.accounting.strict.clock_recomputation import clock_error
from minitrain.errors import StrategyError
from minitrain.events import COMM, LAYER, LOAD_WEIGHTS, PASSES, PRICE, SAMPLES, STREAM, STRIDE, TYP, UPDATE, Stream
from minitrain.hardware.price import PENDING, Predictor, Price
from minitrain.tensors import FIELDS

Moved = Any
"""What an operation moved: class and fields of a tensor, a list of such, the lists of all members, or None."""


def moved_by(op: str, operations: Sequence[Any], results: Sequence[Any]) -> Moved:
    """Return what a collective is priced by."""
    if op == "all_to_all":
        return tuple(facts_of(operation.value) for operation in operations)
    return facts_of(results[0] if op in ("all_gather", "broadcast") else operations[0].value)


def facts_of(value: Any) -> Moved:
    """Return the facts of a tensor or a bucket, which keep no tensor alive."""
    kind = value.__class__
    if kind in FIELDS:
        return kind, FIELDS[kind](value)
    return None if value is None else [facts_of(item) for item in value]


class PriceRecomputation:
    """The prices of a run's operations, computed again.

    Args:
        predictor: that of one or more ranks.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor.slowed(1.0)  # a copy that remembers no price
        self.workload = predictor.workload
        self._seen: dict[Any, Price] = {}  # the price of rows that were checked and are alike
        self._sizes: dict[Any, int] = {}

    def check(self, model: Any) -> None:
        """Check every row of a rank's log.

        Raises:
            StrategyError: a price is another one, or no price at all.
        """
        rows, is_uniform = model._log._rows, self.workload.is_uniform
        columns = (rows[column::STRIDE] for column in (TYP, LAYER, PRICE, SAMPLES, STREAM))
        seen, shards, moved = self._seen, model._shard_counts, model._moved
        for place, (typ, layer, price, samples, stream) in enumerate(zip(*columns, strict=True)):
            if typ in PASSES:
                key: Any = (typ, len(samples)) if is_uniform else (typ, len(samples), layer)
            elif typ in (UPDATE, LOAD_WEIGHTS):
                key = typ, *shards.get(place * STRIDE, ()), *(() if is_uniform else (layer,))
            else:
                key = typ, id(stream), id(moved.get(place * STRIDE))
            if seen.get(key) is not price:
                self._check_row(model, place * STRIDE)
                seen[key] = price

    def _check_row(self, model: Any, row: int) -> None:
        """Check one row."""
        typ, layer, _, price, _, samples, stream = model._log._rows[row : row + STREAM + 1]
        if price is PENDING:  # given up; the clock shows whether it may be
            return
        expected: Price = price
        if typ in PASSES:
            expected = self.predictor.compute(typ, len(samples), layer or 0)
        elif row in model._shard_counts:
            held, num_shards = model._shard_counts[row]
            ask = self.predictor.update if typ == UPDATE else self.predictor.load
            expected = ask(held, num_shards, layer)
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
        """Return the price of a collective, or of one side of a message."""
        if stream.kind != COMM:
            peers = (rank, stream.peer) if typ == "send" else (stream.peer, rank)
            return self.predictor.p2p(typ, self._size(moved), *peers)
        is_world = stream.group is None
        ranks = tuple(range(world_size)) if stream.group is None else stream.group
        if typ == "all_to_all":
            size_bytes: float = max(self._size(member) for member in moved)
        else:
            size_bytes = self._size(moved, whole=is_world)
        return self.predictor.collective(typ, size_bytes, ranks)

    def _size(self, moved: Moved, *, whole: bool = True) -> int:
        """Return the bytes of what was moved; of shards in a proper subgroup, those that it works on."""
        if moved is None:
            return 0
        if isinstance(moved, list):
            return sum(self._size(item, whole=whole) for item in moved)
        kind, fields = moved
        key = kind, fields, whole
        if key not in self._sizes:
            tensor = kind(*fields)
            size_bytes = self.workload.message_bytes(tensor)
            if not whole and kind.__name__ in ("Weight", "WeightGrad"):
                size_bytes = size_bytes * len(tensor.shards) // tensor.num_shards
            self._sizes[key] = size_bytes
        return self._sizes[key]
