"""Point-to-point messages: first in, first out within (source, dest, tag)."""

from __future__ import annotations

from collections import deque
from typing import Any

from minitrain.engine.transport.calls import Call
from minitrain.engine.transport.waiting import wake_soon

# Both queues of a new channel. A deque takes more memory than the channel itself, which seldom needs both of them.
_EMPTY: deque[Call] = deque(maxlen=0)


class Channel:
    """The messages of one source, destination and tag that were sent and not yet received.

    Args:
        capacity: how many messages may lie here before a blocking send waits, or None for no bound.
        temporary_key: the key of a channel that is dropped once it is empty, as a program may use ever new tags; None
            for a channel that stays.

    Attributes:
        sent: messages that nobody has received, oldest first.
        receivers: receives that wait for a message, oldest first.
    """

    __slots__ = ("capacity", "receivers", "sent", "temporary_key")

    def __init__(self, capacity: int | None, temporary_key: tuple[Any, ...] | None = None) -> None:
        self.capacity = capacity
        self.temporary_key = temporary_key
        self.sent = self.receivers = _EMPTY

    def __len__(self) -> int:
        return len(self.sent)

    def put(self, send: Call) -> None:
        """Deliver a message to the oldest receive that waits, or keep it until one comes."""
        receive = self._next_receiver()
        if receive is not None:
            _deliver(send, receive)
            return
        if self.sent is _EMPTY:
            self.sent = deque()
        self.sent.append(send)
        send.settled = self.capacity is None or len(self.sent) <= self.capacity

    def get(self, receive: Call) -> None:
        """Take the oldest message, which may wake a waiting sender, or wait for one."""
        if not self.sent:
            if self.receivers is _EMPTY:
                self.receivers = deque()
            self.receivers.append(receive)
            return
        _deliver(self.sent.popleft(), receive)
        if self.capacity is not None and len(self.sent) >= self.capacity:
            accepted = self.sent[self.capacity - 1]
            accepted.settled = True
            wake_soon([accepted.waiters])

    def _next_receiver(self) -> Call | None:
        """Return the oldest receive that is still wanted."""
        while self.receivers:
            receive = self.receivers.popleft()
            if not receive.is_abandoned:
                return receive
        return None


def _deliver(send: Call, receive: Call) -> None:
    """Settle both sides of a message."""
    send.settled = True
    receive.deliver(send.value, send.clock)
