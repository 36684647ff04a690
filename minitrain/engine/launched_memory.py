"""The memory that a launched operation holds from its launch to its first await.

What the operation was given counts, unless a store counts it already, and so does its result. Reductions work in place,
as on a device: their result is part of what they were given. The size of a result may not be known at the launch (a
message that was not sent yet). Once it is known, it is counted from the launch on, so that the log never depends on
which rank came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from minitrain.errors import StrategyError
from minitrain.operations import FETCH, MEMORY, NOTE, SEND, STRIDE, WRITE, Note
from minitrain.operations.collectives import COLLECTIVES, TRANSFERS

if TYPE_CHECKING:
    from minitrain.engine.state import RankState
    from minitrain.engine.stores import Account

_RECORDS: Mapping[str, Any] = MappingProxyType({**COLLECTIVES, **TRANSFERS})
RESULT_IS_NEW = frozenset(name for name, record in _RECORDS.items() if record.result_is_new)


class LaunchedOperation(Protocol):
    """The part of an `Operation` that is read here."""

    model: RankState
    op: str
    rank: int
    row: int
    detail: Any
    settled: bool
    outcome: Any
    error: BaseException | None
    chain: Any
    owner: Any
    launched_memory: LaunchedMemory | None

    @property
    def given(self) -> Any:
        """What the rank gave."""


class LaunchedMemory:
    """What one launched operation holds in memory.

    Args:
        operation: the operation, just submitted.

    Attributes:
        awaited: whether the operation was awaited already.
        followers: operations that were given the result before anybody awaited it.
        window: the account's window at the launch while the size of the result is not known, else None.
        stored_tensors: what it was given and a store holds; the operation counts them only while no store does.
        units: what it counts itself.
        handed_over: the result, once a strategy got it whose tensors are followed.
        own: what of it was never in a store, with its units, for the journal.
    """

    __slots__ = ("awaited", "followers", "handed_over", "own", "stored_tensors", "units", "window")

    def __init__(self, operation: LaunchedOperation) -> None:
        account = _account_of(operation)
        self.awaited = False
        self.followers: list[Any] = []
        self.handed_over: HandedOver | None = None
        self.window: int | None = None
        self.stored_tensors: list[Any] = []
        self.units = 0
        self.own: list[tuple[Any, int]] = []
        given = _items(operation.given) if operation.chain is None else operation.chain.own
        for value in () if operation.op == FETCH else given:  # a fetch is given what lies on the host
            if getattr(value, "_home", None) is account:
                self.stored_tensors.append(value)
                account.launched_tensors[id(value)] = 0
            elif value is not None:
                self.units += account.units_of(value)
                self._own(operation, value)
        account.grow(self.units)
        mark_overlap(operation)
        alone = operation.settled and operation.outcome is operation.given  # a lone rank gets what it gave
        if operation.op in RESULT_IS_NEW and operation.detail != operation.rank and not alone:
            self.window = account.open_window()
            if operation.settled and operation.error is None:
                self.know_result(operation)

    def know_result(self, operation: LaunchedOperation) -> None:
        """Count the result from the launch on, now that it is known, and let operations go on that were given it."""
        for follower in self.followers:
            follower.chain.take(follower, operation, operation.outcome)
        if self.followers:
            operation.model._go_on_soon()  # type: ignore[attr-defined]  # of `Communication`
        if self.window is None:
            return
        account = operation.model._account
        is_given = operation.outcome is operation.given  # a lone rank gets what it gave
        units = 0 if is_given else sum(map(account.units_of, _items(operation.outcome)))
        rows = operation.model._log._rows
        for row in range(operation.row + STRIDE, len(rows), STRIDE):
            rows[row + MEMORY] += units
        account.backdate(self.window, units)  # which may report out of memory, and then reads the rows
        self.units += units
        self.window = None
        for value in () if is_given else _items(operation.outcome):
            self._own(operation, value)

    def _own(self, operation: LaunchedOperation, value: Any) -> None:
        """Enter a tensor that no store held in the journal, at the operation's launch."""
        journal = operation.model._account.journal
        if journal is not None and value is not None:
            self.own.append((value, value._units))
            journal.enter("in_flight", value._units, value, operation.row // STRIDE + 1)

    def end(self, operation: LaunchedOperation) -> None:
        """Count nothing any more: whoever awaited the operation has the result now."""
        self.awaited = True
        account = _account_of(operation)
        left = [*self.own]
        for value in self.stored_tensors:
            units = account.launched_tensors.pop(id(value), 0)
            self.units += units
            left.append((value, units))
        account.units -= self.units
        if account.journal is not None:
            for value, units in left:
                account.journal.enter("in_flight", -units, value)
        self.own.clear()
        del operation.model._in_flight[id(operation)]
        if operation.op == SEND and operation.owner.interface.last is operation:
            operation.owner.interface.last = None
        for follower in self.followers:
            if follower.launched_memory is not None and operation in follower.chain.inputs:
                follower.launched_memory.adopt(follower, operation.outcome)
        self.followers.clear()

    def adopt(self, operation: LaunchedOperation, result: Any) -> None:
        """Hold the result of another operation, which this one was given and somebody has awaited now."""
        account = operation.model._account
        for value in _items(result):
            if value is not None and id(value) not in account.launched_tensors:
                units = 0 if getattr(value, "_home", None) is account else account.units_of(value)
                self.stored_tensors.append(value)
                account.launched_tensors[id(value)] = units
                account.grow(units)
                if account.journal is not None and units:
                    account.journal.enter("in_flight", units, value)

    def hand_over(self, result: Any) -> None:
        """Keep no tensor alive any more; the result is remembered for who awaits the operation again."""
        self.handed_over = HandedOver(result)
        self.stored_tensors.clear()


class HandedOver:
    """The result of a launched operation that a strategy got, remembered as long as the strategy keeps it.

    Args:
        result: a tensor, a bucket, or None.
    """

    __slots__ = ("_is_bucket", "_results")

    def __init__(self, result: Any) -> None:
        self._is_bucket = isinstance(result, list)
        self._results = [ref(item) for item in _items(result) if item is not None]

    def again(self, operation: LaunchedOperation) -> Any:
        """Return the result again.

        Raises:
            StrategyError: it was freed.
        """
        results = [found() for found in self._results]
        if any(result is None for result in results):
            raise StrategyError(
                f"{operation.op} on rank {operation.rank} was awaited before and its result was freed since; "
                "keep the result in a store if it is needed again",
                rank=operation.rank,
                op=operation.op,
            )
        return results if self._is_bucket else next(iter(results), None)


def _account_of(operation: LaunchedOperation) -> Account:
    """Return the account of the memory that an operation is given something of: the host's, of a write."""
    model: Any = operation.model
    return model.host._account if operation.op == WRITE else model._account  # type: ignore[no-any-return]  # of a model


def _items(value: Any) -> list[Any]:
    """Return the tensors of a bucket, or the one tensor."""
    return value if isinstance(value, list) else [value]


def mark_overlap(operation: LaunchedOperation) -> Note:
    """Return the note of an operation's event, which says that it may run beside others."""
    rows = operation.model._log._rows
    note: Note = rows[operation.row + NOTE] or Note()
    rows[operation.row + NOTE] = note
    note.overlaps = True
    return note
