"""Point-to-point messages: first in, first out within (source, dest, tag)."""

from __future__ import annotations

from collections import deque
from typing import Any

from minitrain.transport.calls import Call
from minitrain.transport.waiting import wake_soon

# What waits until somebody does: a deque takes more memory than the channel, which seldom needs both of its two.
_NOBODY: deque[Call] = deque(maxlen=0)


class Channel:
    """The messages of one source, destination and tag that were sent and not yet received.

    Args:
        capacity: how many messages may lie here before a blocking send waits, or None for no bound.
        passing: what to find it by if it is not to stay once it is empty, None if it is: there is no end of tags.
    """

    __slots__ = ("capacity", "passing", "receivers", "sent")

    def __init__(self, capacity: int | None, passing: tuple[Any, ...] | None = None) -> None:
        self.capacity = capacity
        self.passing = passing
        self.sent = self.receivers = _NOBODY

    def __len__(self) -> int:
        return len(self.sent)

    def put(self, send: Call) -> None:
        """Deliver a message to who waits for it, or let it lie."""
        receive = self._next_receiver()
        if receive is not None:
            _deliver(send, receive)
            return
        if self.sent is _NOBODY:
            self.sent = deque()
        self.sent.append(send)
        send.settled = self.capacity is None or len(self.sent) <= self.capacity

    def get(self, receive: Call) -> None:
        """Take the oldest message, which lets a waiting sender go on, or wait for one."""
        if not self.sent:
            if self.receivers is _NOBODY:
                self.receivers = deque()
            self.receivers.append(receive)
            return
        _deliver(self.sent.popleft(), receive)
        if self.capacity is not None and len(self.sent) >= self.capacity:
            accepted = self.sent[self.capacity - 1]
            accepted.settled = True
            wake_soon([accepted.waiters])

    def _next_receiver(self) -> Call | None:
        """Return the oldest receive whose task has not given up."""
        while self.receivers:
            receive = self.receivers.popleft()
            if receive.is_wanted:
                return receive
        return None


def _deliver(send: Call, receive: Call) -> None:
    """Settle both sides of a message."""
    send.settled = True
    receive.deliver(send.value, send.clock)
