"""Events at exact moments of a SimPy environment, and a timer that can be moved or cancelled.

`env.timeout(delay)` happens at `env.now + delay`. Where the moment is known and not the delay, both the difference and
the sum are rounded, so that the event is off in the last digit. A timeout that is no longer wanted stays in the queue,
so that `env.run()` ends too late. `at` and `Timer` avoid both; nothing else here touches SimPy's queue.
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
    """Call a function at a moment.

    Args:
        env: whose clock counts.
        time: when, s; not before `env.now`.
        happen: called with the event then.
        value: the event's value.

    Returns:
        The event, which has its value from now on.
    """
    event = env.event()
    event._ok, event._value = True, value
    event.callbacks.append(happen)
    queue: list[Any] = env._queue
    heappush(queue, (time, _NORMAL, next(env._eid), event))
    return event


@final
class Timer:
    """Calls a function once, at a moment that may be moved.

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
        """Set the moment, in place of one that was set before."""
        if self._entry is not None:
            if self._time == time:
                return
            self.cancel()
        self._entry, self._time = at(self._env, time, self._expire), time

    def cancel(self) -> None:
        """Cancel the call, if one is set."""
        if self._entry is None:
            return
        queue = self._env._queue
        queue.remove(next(item for item in queue if item[3] is self._entry))
        heapify(queue)
        self._entry = None

    def _expire(self, _: Event) -> None:
        self._entry = None
        self._happen()
