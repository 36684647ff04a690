"""Exact moments on a SimPy environment.

`env.timeout(delay)` happens at `env.now + delay`. Where the moment is what is known, the difference is rounded, and the
sum again, so that the moment is missed by the last digit. And a timeout that is no longer wanted stays in the queue, so
that `env.run()` ends too late. `Timer` does neither. It is the one place that reaches into SimPy's queue.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from simpy import Environment, Event

_NORMAL = 1
"""SimPy's priority of events that are not urgent."""


def at(env: Environment, time: float, happen: Callable[[Any], None], value: Any = None) -> Event:
    """Let something happen at a moment.

    Args:
        env: whose clock counts.
        time: when, s; not before `env.now`.
        happen: called with the event then.
        value: the event's value.

    Returns:
        The event, which has its value from now on.
    """
    from simpy import Event  # noqa: PLC0415  (where a platform runs, it is loaded)

    event = Event(env)
    event._ok, event._value = True, value
    event.callbacks.append(happen)
    queue: list[Any] = env._queue
    heappush(queue, (time, _NORMAL, next(env._eid), event))
    return event


@final
class Timer:
    """Something that happens once, at a moment that may be moved.

    Args:
        env: whose clock counts.
        happen: called when the moment comes.
    """

    __slots__ = ("_entry", "_env", "_happen", "_time")

    def __init__(self, env: Environment, happen: Callable[[], None]) -> None:
        self._env = env
        self._happen = happen
        self._entry: Event | None = None
        self._time = 0.0

    def set(self, time: float) -> None:
        """Choose the moment, instead of one that was chosen before."""
        if self._entry is not None:
            if self._time == time:
                return
            self.cancel()
        self._entry, self._time = at(self._env, time, self._ring), time

    def cancel(self) -> None:
        """Let it not happen."""
        if self._entry is None:
            return
        queue = self._env._queue
        queue.remove(next(item for item in queue if item[3] is self._entry))
        heapify(queue)
        self._entry = None

    def _ring(self, _: Event) -> None:
        self._entry = None
        self._happen()
