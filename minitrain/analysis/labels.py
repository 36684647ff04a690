"""Short texts for people: ranges of numbers, streams, durations and reasons."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from minitrain.analysis.timeline import Stream
from minitrain.events import COMM, RECV, SEND

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_MAX_PARTS = 8


def ranges(numbers: Iterable[int]) -> str:
    """Write whole numbers compactly, in order.

    >>> ranges([3, 0, 1, 2, 8])
    '0-3,8'
    >>> ranges(range(0, 64, 8))
    '0-56 step 8'
    """
    ordered = sorted(numbers)
    step = _common_step(ordered)
    if step > 1:
        return f"{ordered[0]}-{ordered[-1]} step {step}"
    parts = [f"{first}" if first == last else f"{first}-{last}" for first, last in _runs(ordered)]
    shown = parts[:_MAX_PARTS]
    return ",".join(shown) + (f",... ({len(ordered)} in all)" if len(parts) > _MAX_PARTS else "")


def stream_name(stream: Stream) -> str:
    """Name a stream: "compute", "comm", "comm 0-3", "send to 1", "recv from 0"."""
    if stream.kind == COMM and stream.group is not None:
        return f"comm {ranges(stream.group)}"
    if stream.kind == SEND:
        return f"send to {stream.peer}"
    return f"recv from {stream.peer}" if stream.kind == RECV else stream.kind


def time_unit(longest: float) -> tuple[float, str]:
    """Return the unit, in s and by name, in which times up to `longest` s read well.

    >>> time_unit(0.25)
    (0.001, 'ms')
    """
    for scale, name in _TIME_UNITS:
        if longest >= scale:
            return scale, name
    return _TIME_UNITS[0]


def duration(seconds: float) -> str:
    """Write a duration in s with four digits and a unit.

    >>> duration(0.0123456)
    '12.35 ms'
    """
    scale, name = time_unit(abs(seconds))
    return f"{seconds / scale:.4g} {name}"


def _common_step(ordered: list[int]) -> int:
    """Return the step of at least three evenly spaced numbers, 0 otherwise."""
    if len(ordered) < 3:
        return 0
    step = ordered[1] - ordered[0]
    even = all(later - earlier == step for earlier, later in pairwise(ordered))
    return step if even else 0


def _runs(ordered: list[int]) -> list[tuple[int, int]]:
    """Group numbers that follow one another into (first, last)."""
    runs: list[tuple[int, int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
