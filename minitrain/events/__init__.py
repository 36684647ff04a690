"""What happened on a rank: `Event`, one operation on the logical clock, and the log that a rank writes.

May import: `errors`. Open `event` first: the fields of an event, and the names of its types and streams. `event_log` is
the log of a rank: a flat list of rows, which makes `Event` objects when somebody reads it.
"""

from minitrain.events.event import (
    COLLECTIVES,
    COMM,
    COMMUNICATIONS,
    COMPUTE,
    PASSES,
    RECV,
    SEND,
    Event,
    MemoryChange,
)
from minitrain.events.event_log import (
    LAUNCHED,
    LAYER,
    MEMORY,
    NO_SAMPLES,
    NOTE,
    ON_COMPUTE,
    PRICE,
    SAMPLES,
    STREAM,
    STRIDE,
    TIME,
    TYP,
    UNITS_PER_ELEMENT,
    WAITED_FOR,
    EventLog,
    Note,
    Stream,
)

__all__ = [
    "COLLECTIVES",
    "COMM",
    "COMMUNICATIONS",
    "COMPUTE",
    "LAUNCHED",
    "LAYER",
    "MEMORY",
    "NOTE",
    "NO_SAMPLES",
    "ON_COMPUTE",
    "PASSES",
    "PRICE",
    "RECV",
    "SAMPLES",
    "SEND",
    "STREAM",
    "STRIDE",
    "TIME",
    "TYP",
    "UNITS_PER_ELEMENT",
    "WAITED_FOR",
    "Event",
    "EventLog",
    "MemoryChange",
    "Note",
    "Stream",
]
