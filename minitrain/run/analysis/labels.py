"""Short texts for people: durations with their unit, streams, and what each bubble is.

The word bubble has one meaning here: the share of all ranks' time spent waiting. It is `bubble_fraction`, what pages
and tables show, and the sum of the kinds of waits. Papers also measure pipelines in other ways; those figures have
names of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.operations import COMM, RECV, SEND
from minitrain.tensors.index_sets import ranges

if TYPE_CHECKING:
    from minitrain.run.analysis.timeline import Stream

GIB = 2**30
BUBBLE = "the share of all ranks' time spent waiting, neither computing nor communicating"
MAKESPAN_BUBBLE = (
    "the time from the first pass to the last that is not work of the busiest rank, communication included"
)
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZE_UNITS = ((2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
COUNT_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"), (1.0, ""))
_LONG_UNITS = ((86400.0, "days"), (3600.0, "h"))
_LONG_S = 1e4  # from here on seconds have more digits than are shown


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
    """Write a duration in s with four digits and a unit; from `_LONG_S` on in hours, from 100 hours on in days.

    >>> duration(0.0123456), duration(86400)
    ('12.35 ms', '24 h')
    """
    length = abs(float(seconds))  # numpy's truth values are no indices
    scale, name = time_unit(length) if length < _LONG_S else _LONG_UNITS[length < 100 * 3600]
    return f"{seconds / scale:.4g} {name}"


def size(size_bytes: float, form: str = ".3g") -> str:
    """Write bytes with a unit: GiB in the given form, and what is less than a tenth of one in MiB, KiB or bytes.

    >>> size(5 * 2**30), size(12.5 * 2**20), size(0)
    ('5 GiB', '12.5 MiB', '0 bytes')
    """
    if size_bytes >= 0.1 * GIB:
        return f"{size_bytes / GIB:{form}} GiB"
    scale, name = next(((scale, name) for scale, name in _SIZE_UNITS if size_bytes >= 0.1 * scale), _SIZE_UNITS[-1])
    return f"{size_bytes / scale:.4g} {name}"


def in_letters(count: float, gap: str = "") -> str:
    """Write a count, as of tokens or parameters, in three digits and a letter.

    >>> in_letters(15e12), in_letters(8_030_261_248, " "), in_letters(106_816)
    ('15T', '8.03 B', '107K')
    """
    scale, letter = next((pair for pair in COUNT_UNITS if count >= pair[0]), COUNT_UNITS[-1])
    return f"{count / scale:.3g}{gap}{letter}"


def stream_name(stream: Stream) -> str:
    """Name a stream: "compute", "comm", "comm 0-3", "send to 1", "recv from 0"."""
    if stream.kind == COMM and stream.group is not None:
        return f"comm {ranges(stream.group)}"
    if stream.kind == SEND:
        return f"send to {stream.peer}"
    return f"recv from {stream.peer}" if stream.kind == RECV else stream.kind
