"""The floor: what the event loop alone costs, by a program of bare asyncio that imports nothing of minitrain.

It has the ranks, layers and suspensions of ZeRO stage 3: three collectives a layer (the weight is gathered for forward
and for backward, the gradient is reduced), each one shared future that all ranks but the last one to come await
directly, and one small tuple appended to the rank's log an event. Everything else of a simulator is left
out: clocks, prices, laws, tensors, memory.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, get_running_loop

Log = list[tuple[str, int, int]]


class Meeting:
    """The collectives of all ranks, one after the other."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.missing = world_size
        self.future: Future[None] = get_running_loop().create_future()

    def arrive(self) -> Future[None] | None:
        """Return the future to wait for; the last rank wakes all others, and gets None."""
        self.missing -= 1
        if self.missing:
            return self.future
        self.missing = self.world_size
        done, self.future = self.future, get_running_loop().create_future()
        done.set_result(None)
        return None


async def one_rank(meeting: Meeting, num_layers: int, log: Log) -> None:
    """Wait and log as one rank of ZeRO stage 3 does."""
    for layer in range(num_layers):
        log.append(("load_weights", layer, 0))
    for layer in range(num_layers):
        waiting = meeting.arrive()
        if waiting is not None:
            await waiting
        log.append(("all_gather", layer, 0))
        log.append(("forward", layer, 0))
    log.append(("loss", num_layers, 0))
    for layer in reversed(range(num_layers)):
        waiting = meeting.arrive()
        if waiting is not None:
            await waiting
        log.append(("all_gather", layer, 0))
        log.append(("backward", layer, 0))
        waiting = meeting.arrive()
        if waiting is not None:
            await waiting
        log.append(("reduce_scatter", layer, 0))
    for layer in range(num_layers):
        log.append(("update", layer, 0))


async def all_ranks(world_size: int, num_layers: int) -> list[Log]:
    """Run all ranks and return their logs."""
    meeting = Meeting(world_size)
    logs: list[Log] = [[] for _ in range(world_size)]
    await asyncio.gather(*(one_rank(meeting, num_layers, log) for log in logs))
    return logs


def floor(world_size: int, num_layers: int) -> int:
    """Run the floor and return the number of its events: 7 a layer and a loss, on every rank."""
    return sum(map(len, asyncio.run(all_ranks(world_size, num_layers))))
