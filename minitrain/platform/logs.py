"""What a platform did, as event logs: one for each endpoint, so that pictures and exports of runs are its own too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minitrain.events import COMM, COMPUTE, RECV, SEND, Event
from minitrain.platform.tasks import ComputeResult, TransferResult

if TYPE_CHECKING:
    from minitrain.platform.devices import Memory

_TRANSFER, _TASK = "transfer", "task"


def event_logs(
    results: Sequence[ComputeResult | TransferResult], memories: Mapping[str, Memory]
) -> dict[str, list[Event]]:
    """Return the events of each endpoint that did something, in the order of their beginning.

    A task is an event of its device, a transfer one of both ends, a collective one of each participant.

    Args:
        results: what has ended.
        memories: the memory of each device, whose level events show.
    """
    names = list(memories) + [name for result in results for name in _places(result)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    logs: dict[str, list[Event]] = {name: [] for name in numbers}
    for result in results:
        for name in _places(result):
            logs[name].append(_event(result, name, numbers))
    for name, log in logs.items():
        log.sort(key=lambda event: event.time)
        if name in memories:
            _show_memory(log, memories[name].steps)
    return {name: log for name, log in logs.items() if log or name in memories}


def _places(result: ComputeResult | TransferResult) -> tuple[str, ...]:
    return (result.device_id,) if isinstance(result, ComputeResult) else result.endpoints


def _event(result: ComputeResult | TransferResult, name: str, numbers: Mapping[str, int]) -> Event:
    """Return the event of one endpoint for a result."""
    rank = numbers[name]
    if isinstance(result, ComputeResult):
        seconds = result.end - result.start
        return Event(_TASK, None, rank, result.start, seconds, 0.0, stream=COMPUTE, tag=result.task_id)
    begin, seconds, size = result.submitted, result.seconds, result.size_bytes
    if result.op == _TRANSFER:
        is_source = name == result.endpoints[0]
        peer = numbers[result.endpoints[-1] if is_source else result.endpoints[0]]
        kind = SEND if is_source else RECV
        return Event(kind, None, rank, begin, seconds, 0.0, stream=kind, peer=peer, tag=result.task_id, size_bytes=size)
    group = tuple(sorted(numbers[member] for member in result.endpoints))
    return Event(
        result.op, None, rank, begin, seconds, 0.0, stream=COMM, group=group, tag=result.task_id, size_bytes=size
    )


def _show_memory(log: list[Event], steps: Sequence[tuple[float, int]]) -> None:
    """Let each event show what was allocated when it began."""
    place = 0
    for event in log:
        while place + 1 < len(steps) and steps[place + 1][0] <= event.time:
            place += 1
        event.memory = float(steps[place][1])
