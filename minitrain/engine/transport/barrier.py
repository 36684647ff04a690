"""A barrier: no rank passes before all ranks have arrived."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

from minitrain.errors import LawError, UsageError


class Barrier:
    """A barrier that holds ranks until `target` of them have arrived; it can be used again at once.

    Attributes:
        target: number of ranks that must arrive.
        counter: number of ranks that wait now.
    """

    def __init__(self, target: int) -> None:
        if isinstance(target, bool) or not isinstance(target, int) or target < 1:
            raise UsageError(f"target must be an integer of at least 1, got {target!r}")
        self.target = target
        self.counter = 0
        self._arrived: set[int] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._passed: WeakSet[asyncio.Task[Any]] | None = None  # made when needed: a group hardly ever needs it

    def arrive(self, rank: int) -> bool:
        """Count a rank in and return whether it was the last; the last one lets all go on.

        Raises:
            LawError: the rank waits here already.
        """
        if rank in self._arrived:
            raise LawError(f"rank {rank} waits at this barrier already; each rank arrives once", rank=rank)
        self._arrived.add(rank)
        self.counter += 1
        if self.counter < self.target:
            return False
        self._release()
        return True

    def _release(self) -> None:
        """Start the next round and wake those of this one."""
        waiters, self._waiters = self._waiters, []
        self._arrived.clear()
        self.counter = 0
        for waiter in waiters:
            if not waiter.done():  # its task was not cancelled
                waiter.set_result(None)

    async def wait(self, rank: int) -> None:
        """Wait until all ranks have arrived."""
        if not self.arrive(rank):
            await self._round()
        task = asyncio.current_task()
        if task is not None:
            if self._passed is None:
                self._passed = WeakSet()
            self._passed.add(task)

    async def reset(self) -> None:
        """Return once the round in progress is over.

        A task that has passed has nothing to wait for: the barrier is ready for its next round, which others may
        have begun.
        """
        if self.counter and asyncio.current_task() not in (self._passed or ()):
            await self._round()

    def _round(self) -> asyncio.Future[None]:
        """Return the future that is set at the end of this round."""
        waiter: asyncio.Future[None] = asyncio.Future()
        self._waiters.append(waiter)
        return waiter
