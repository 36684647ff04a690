"""Launched operations of a strict run: what they hold until they are awaited, and who owns their results.

A launched operation holds what it was given, and its result as soon as that is known, in the rank's ledger. Awaiting it
hands the result to the strategy. From then on the operation refers to the result weakly, so that a strategy that keeps
the operation does not keep the result alive without counting it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar
from weakref import ReferenceType, ref

from minitrain.accounting.strict.provenance import Origin
from minitrain.errors import StrategyError
from minitrain.rank.operations import Launched, Operation
from minitrain.tensors import FIELDS

T = TypeVar("T")


class LaunchHold:
    """What a launched operation holds until it is awaited: what it was given, and its result.

    Attributes:
        window: the ledger's window at the launch while the size of the result is not known, else None.
    """

    __slots__ = ("held", "window")

    def __init__(self) -> None:
        self.held: list[tuple[Any, Origin]] = []
        self.window: int | None = None

    def add(self, tensor: Any) -> None:
        """Hold one more tensor."""
        origin = getattr(tensor, "_origin", None)
        buffer = None if origin is None else origin.buffer
        if buffer is not None:
            buffer.enter()
            self.held.append((tensor, buffer))

    def release(self) -> None:
        """Release everything."""
        for _, buffer in self.held:
            buffer.leave()
        self.held.clear()


class StrictLaunched(Launched[T]):
    """A launched operation that gives its result to whoever awaits it first, and remembers it weakly afterwards."""

    __slots__ = ("_is_bucket", "_results")

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        self._results: list[ReferenceType[Any]] | None = None
        self._is_bucket = False

    def __await__(self) -> Generator[Any, None, T]:
        if self._results is None:
            result: Any = yield from self.operation.__await__()
            if self._results is None:  # no other task was quicker
                self._results = [ref(item) for item in tensors_in(result)]
                self._is_bucket = isinstance(result, list)
                self.operation.model.release_launched(self.operation)  # type: ignore[attr-defined]  # the model is a strict one
                return result  # type: ignore[no-any-return]
        return self._again()

    def _again(self) -> T:
        """Return the result again, if it still exists."""
        results = [found() for found in self._results or ()]
        if any(result is None for result in results):
            raise StrategyError(
                f"{self.operation.op} on rank {self.operation.rank} was awaited before and its result was freed since; "
                "keep the result in a store if it is needed again",
                rank=self.operation.rank,
                op=self.operation.op,
            )
        if self._is_bucket:
            return results  # type: ignore[return-value]
        return results[0] if results else None  # type: ignore[return-value]


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors of a bucket, the one tensor, or nothing."""
    if value.__class__ in FIELDS:
        return [value]
    if isinstance(value, list):
        return value
    return list(value) if isinstance(value, tuple) else [] if value is None else [value]
