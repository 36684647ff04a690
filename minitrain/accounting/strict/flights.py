"""Launched operations of a strict run: what they hold until they are awaited, and that their results die with them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar
from weakref import ReferenceType, ref

from minitrain.accounting.strict.origin import Origin
from minitrain.errors import StrategyError
from minitrain.rank.operations import Launched, Work
from minitrain.tensors import FIELDS

T = TypeVar("T")


class Flight:
    """What a launched operation holds until it is awaited: what it was given, and its result.

    Attributes:
        window: where the count of a result begins that is not known yet.
    """

    __slots__ = ("held", "window")

    def __init__(self) -> None:
        self.held: list[tuple[Any, Origin]] = []
        self.window: int | None = None

    def hold(self, tensor: Any) -> None:
        """Hold a tensor."""
        origin = getattr(tensor, "_origin", None)
        buffer = None if origin is None else origin.buffer
        if buffer is not None:
            buffer.enter()
            self.held.append((tensor, buffer))

    def release(self) -> None:
        """Let everything go."""
        for _, buffer in self.held:
            buffer.leave()
        self.held.clear()


class LaunchedOnce(Launched[T]):
    """A launched operation whose result belongs to whoever awaits it first; later it is only remembered weakly."""

    __slots__ = ("_is_bucket", "_results")

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._results: list[ReferenceType[Any]] | None = None
        self._is_bucket = False

    def __await__(self) -> Generator[Any, None, T]:
        if self._results is None:
            result: Any = yield from self.work.__await__()
            if self._results is None:  # nobody was quicker
                self._results = [ref(item) for item in items(result)]
                self._is_bucket = isinstance(result, list)
                self.work.model.land(self.work)  # type: ignore[attr-defined]  # the model is a strict one
                return result  # type: ignore[no-any-return]
        return self._again()

    def _again(self) -> T:
        """Return the result once more, if it still lives."""
        results = [found() for found in self._results or ()]
        if any(result is None for result in results):
            raise StrategyError(
                f"{self.work.op} on rank {self.work.rank} was awaited before and its result was freed since; keep the "
                "result in a store if it is needed again",
                rank=self.work.rank,
                op=self.work.op,
            )
        if self._is_bucket:
            return results  # type: ignore[return-value]
        return results[0] if results else None  # type: ignore[return-value]


def items(value: Any) -> list[Any]:
    """Return the tensors of a bucket, the one tensor, or nothing."""
    if value.__class__ in FIELDS:
        return [value]
    if isinstance(value, list):
        return value
    return list(value) if isinstance(value, tuple) else [] if value is None else [value]
