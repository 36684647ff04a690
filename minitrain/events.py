"""What happened on a rank: `Event`, one operation on the logical clock.

The first seven fields are the specification's. The optional ones that follow say what a reader needs to explain time:
on which stream the operation ran, with whom, how much it moved, and for whom it waited.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from minitrain.storage import UNITS_PER_ELEMENT

COMPUTE = "compute"
COMM = "comm"
SEND = "send"
RECV = "recv"

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
COMMUNICATIONS = (*COLLECTIVES, SEND, RECV)
PASSES = frozenset({"forward", "loss", "backward", "backward_input", "backward_weight"})


@dataclass(slots=True)
class Event:
    """One operation of one rank. Times are in seconds, memory in elements.

    Args:
        typ: load_weights, forward, loss, backward, backward_input, backward_weight, update, all_reduce,
            reduce_scatter, all_gather, broadcast, all_to_all, barrier, send or recv.
        layer: the layer it works on, or None.
        rank: the rank it ran on.
        time: when it began to work (after all waiting), s.
        duration: how long it worked, s.
        memory: elements in the rank's five stores when it was logged, before its result could be stored.
        samples: samples it works on.
        stream: where it ran: "compute", "comm" (collectives; one stream a group), "send" or "recv" (one stream a
            peer and direction).
        group: ranks of the collective's group, or None (None too for the whole world).
        peer: the other rank of a send or recv, or None.
        tag: the tag of a send or recv, or None.
        size_bytes: bytes of the message or collective, 0 for compute.
        launched: clock of the rank's compute stream when the operation was submitted, s.
        waited_for: the rank that the operation had to wait for, or None: the lowest rank with the latest clock.
        awaited: index in the rank's log of the first event that was logged after its result was awaited; the index
            of the very next event unless it was launched to overlap.
        recomputed: a forward of samples that this rank had already taken through the layer.
        algorithm: how a collective was priced where there is a choice ("ring" or "hierarchical"), or None.
    """

    typ: str
    layer: int | None
    rank: int
    time: float
    duration: float
    memory: float
    samples: frozenset[int] = frozenset()
    stream: str = COMPUTE
    group: tuple[int, ...] | None = None
    peer: int | None = None
    tag: Hashable = None
    size_bytes: float = 0
    launched: float | None = None
    waited_for: int | None = None
    awaited: int | None = None
    recomputed: bool = False
    algorithm: str | None = None

    @property
    def end(self) -> float:
        """When it finished, s."""
        return self.time + self.duration


class MemoryChange(NamedTuple):
    """Something entered or left a rank's memory.

    Args:
        place: how many events the rank had logged by then.
        kind: weights, opt_states, activations, grad_activations, grad_weights (the stores) or in_flight.
        elements: what entered, negative for what left.
    """

    place: int
    kind: str
    elements: float


@dataclass(frozen=True, slots=True)
class Stream:
    """Where an operation runs; those of one stream run in program order.

    Args:
        kind: "compute", "comm", "send" or "recv".
        group: members of a collective's group, or None for the whole world.
        peer: the other rank of a message, or None.
    """

    kind: str
    group: tuple[int, ...] | None = None
    peer: int | None = None


ON_COMPUTE = Stream(COMPUTE)
NO_SAMPLES: frozenset[int] = frozenset()


class Note:
    """What few events need: the tag of a message, and when an operation that overlapped others was awaited."""

    __slots__ = ("awaited", "overlaps", "tag")

    def __init__(self, tag: Hashable = None) -> None:
        self.tag = tag
        self.overlaps = False
        self.awaited: int | None = None


# One event is STRIDE places of a flat list, the cheapest log that Python offers; `Event` objects are made on demand.
TYP, LAYER, TIME, PRICE, MEMORY, SAMPLES, STREAM, WAITED_FOR, LAUNCHED, NOTE = range(10)
STRIDE = 10


class EventLog(Sequence[Event]):
    """The events of one rank in program order: a list to read, made of `Event` objects when somebody looks.

    Args:
        rank: whose log it is.
        rows: the flat list behind it, for those who write it.
    """

    __slots__ = ("_recomputed", "_seen", "rank", "rows")

    def __init__(self, rank: int, rows: list[Any] | None = None) -> None:
        self.rank = rank
        self.rows: list[Any] = [] if rows is None else rows
        self._recomputed: list[bool] = []
        self._seen: dict[int | None, set[int]] = {}

    def __len__(self) -> int:
        return len(self.rows) // STRIDE

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self._event(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"event {index} of a log of {len(self)}")
        return self._event(place)

    def __iter__(self) -> Iterator[Event]:
        return (self._event(place) for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __add__(self, other: Iterable[Event]) -> list[Event]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Event]) -> list[Event]:
        return [*other, *self]

    def __repr__(self) -> str:
        return f"EventLog(rank={self.rank}, {list(self)!r})"

    def _event(self, place: int) -> Event:
        """Make the event of one place."""
        row = self.rows[place * STRIDE : (place + 1) * STRIDE]
        typ, layer, time, price, units, samples, stream, waited_for, launched, note = row
        blocking = None if stream is ON_COMPUTE else place + 1
        return Event(
            typ,
            layer,
            self.rank,
            time,
            price.seconds,
            units / UNITS_PER_ELEMENT,
            samples,
            stream.kind,
            stream.group,
            stream.peer,
            None if note is None else note.tag,
            price.size_bytes,
            launched,
            waited_for,
            note.awaited if note is not None and note.overlaps else blocking,
            typ == "forward" and self._is_recomputed(place),
            price.algorithm,
        )

    def _is_recomputed(self, place: int) -> bool:
        """Return whether a forward takes samples through a layer that they had passed on this rank before."""
        for later in range(len(self._recomputed), place + 1):
            row = later * STRIDE
            again = False
            if self.rows[row + TYP] == "forward":
                seen = self._seen.setdefault(self.rows[row + LAYER], set())
                samples = self.rows[row + SAMPLES]
                again = not seen.isdisjoint(samples)
                seen.update(samples)
            self._recomputed.append(again)
        return self._recomputed[place]
