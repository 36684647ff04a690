"""Recording what each operation of a short run takes: its time, its bytes, and what memory does beside it.

The strategy is executed by the engine's own folded models. Their logs say when memory was measured, and what an
operation took. What memory did between two rows of the log is noted here: how much was held when the second one was
written, and the most that was held since the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minitrain.events import LAYER, PRICE, STRIDE, TIME, TYP, UNITS_PER_ELEMENT
from minitrain.folding.attempt import FoldAttempt
from minitrain.folding.model import FoldedModel
from minitrain.hardware.price import Price
from minitrain.rank.stores import Account
from minitrain.run.event_loops import run_to_end
from minitrain.run.garbage_collection import rare_collections
from minitrain.run.prepared_run import PreparedRun, prepare
from minitrain.run.rank_tasks import require_nothing_left, run_ranks


@dataclass(frozen=True, slots=True)
class Noted:
    """An operation of a rank, in program order.

    Args:
        typ: the type of its event.
        layer: the layer that its event names.
        start: when it begins, s.
        seconds: how long it lasts, s.
        size_bytes: what it puts on the wire, bytes.
        net: what memory has grown by when the next operation is submitted, elements.
        peak: the most that memory grew by until then, elements, at least 0.
    """

    typ: str
    layer: int | None
    start: float
    seconds: float
    size_bytes: float
    net: float
    peak: float


class _NotedRows(list[Any]):
    """The rows of a log, which also note what memory is held whenever one is added.

    Attributes:
        borrowed: the most that is held for a moment by the operation whose row comes next, in units.
    """

    __slots__ = ("account", "borrowed", "marks")

    def __init__(self, account: Any) -> None:
        self.account = account
        self.marks: list[tuple[int, int]] = []
        self.borrowed = 0

    def extend(self, row: Iterable[Any]) -> None:
        """Add a row, and note what is held now and the most that was held since the row before."""
        self.mark()
        list.extend(self, row)

    def mark(self) -> None:
        """Note what is held now, and begin to look for the next peak."""
        self.marks.append((self.account.units, self.account.peak_units))
        self.account.peak_units = max(self.account.units, self.borrowed)
        self.borrowed = 0


class _NotingMeter(Account):
    """The memory meter of a rank whose rows are noted: what is held for a moment counts to the row that comes next.

    Args:
        rows: the rank's.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: _NotedRows) -> None:
        super().__init__(rows.account.measure)
        self._rows = rows

    def grow(self, units: int) -> None:
        """Count in the account."""
        self._rows.account.grow(units)

    def borrow(self, units: int) -> None:
        """Hold what backward computes again: it counts to the backward, whose row is written next."""
        self._rows.borrowed = max(self._rows.borrowed, self._rows.account.units + units)


def _watch(model: FoldedModel) -> _NotedRows:
    """Let the rows of a model be noted."""
    rows = model._rows = model._log._rows = _NotedRows(model._account)
    model._meter = _NotingMeter(rows)
    return rows


def _noted(rows: _NotedRows) -> list[Noted]:
    """Return the operations of a rank, once it has finished."""
    rows.mark()
    return [
        Noted(
            rows[place + TYP],
            rows[place + LAYER],
            rows[place + TIME],
            rows[place + PRICE].seconds,
            rows[place + PRICE].size_bytes,
            (after[0] - before[0]) / UNITS_PER_ELEMENT,
            (after[1] - before[0]) / UNITS_PER_ELEMENT,
        )
        for place, before, after in zip(range(0, len(rows), STRIDE), rows.marks, rows.marks[1:], strict=False)
    ]


class PricesOfFirst:
    """The prices of a machine for groups of neighbours, each of which costs as much as the one that begins at rank 0.

    A short pipeline may have more ranks than the machine that it stands for. Messages between stages take no time here:
    what they take depends on where the stages of the long pipeline lie.

    Args:
        predictor: the prices.
        num_neighbours: ranks of a stage.
        ring: ranks from one that shares a sequence to the next, and how many do: all messages of a ring take as long as
            its slowest, for which the others wait.
    """

    world_size = None  # of any number of ranks

    def __init__(self, predictor: Any, num_neighbours: int, ring: tuple[int, int]) -> None:
        self._predictor, self._num_neighbours = predictor, num_neighbours
        self._hops = [(place * ring[0], (place + 1) % ring[1] * ring[0]) for place in range(ring[1])]
        self.workload, self.compute = predictor.workload, predictor.compute
        self.update, self.load = predictor.update, predictor.load
        self.topology = None  # so that groups are those of neighbours from rank 0 on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._predictor, name)

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        """Price a collective as if its group began at rank 0."""
        first = ranks[0]
        price: Price = self._predictor.collective(op, size_bytes, tuple(rank - first for rank in ranks), algorithm)
        return price

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price a message of a ring; of one between stages, return the bytes."""
        if source // self._num_neighbours != dest // self._num_neighbours:
            return Price(0.0, size_bytes)
        return Price(max(self._predictor.p2p(op, size_bytes, *hop).seconds for hop in self._hops), size_bytes)


def record(strategy: str, axes: dict[str, int], kept: frozenset[str], **parameters: Any) -> list[list[Noted]]:
    """Execute a strategy, folded along all axes of its mesh but some, and return each class's operations.

    Args:
        strategy: what `simulate` takes.
        axes: the strategy's mesh.
        kept: axes whose positions are classes of their own.
        parameters: those of `simulate`.

    Returns:
        The operations of the lowest rank of each class, in the order of these.

    Raises:
        MinitrainError: the strategy cannot be run so, or its ranks part ways.
    """
    prepared = prepare(strategy, {**parameters, "fold": True, "check": False})
    attempt = FoldAttempt(axes, kept)
    return run_to_end(lambda: _recorded(prepared, attempt))


async def _recorded(prepared: PreparedRun, attempt: FoldAttempt) -> list[list[Noted]]:
    """Run one rank of each class, and return what was noted."""
    sizes = prepared.parameters.num_layers, prepared.parameters.global_batch_size
    dist = prepared.transport()
    with rare_collections():
        models = [
            FoldedModel(attempt, rank, dist, *sizes, prepared.predictor_of(rank)) for rank in attempt.representatives()
        ]
        rows = [_watch(model) for model in models]
        try:
            await run_ranks(prepared, models)
            require_nothing_left(dist, models)
        finally:
            attempt.is_over = True
    return [_noted(each) for each in rows]
