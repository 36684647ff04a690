"""What ranks do, as records: an operation stands once, with all that anybody has to know of it.

May import: `errors`, `tensors`. Open `collectives` first: the record of each collective says what its members must
bring and what they get, what it puts on the wire, what it does to memory, and what others call it. `computations` are
what a rank does alone: what each is given, and what others call it. A `Transfer` is a message or a move to the host.
Prices, laws, memory, strict runs, proofs, folded runs, logs and exports read the records; the method of a rank is in
the room `engine`.

The log of a rank (`EventLog`) is a flat list of values, of which `Event` objects are made when somebody reads it.

Adding a row of plain values to a list takes about a third of the time of making an object, and less memory.

What happened on a rank: `Event`, one operation on the logical clock.

The first seven fields are the specification's. The optional ones that follow explain the time it took: on which stream
the operation ran, with which ranks, how many bytes it moved, and which rank it waited for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar, overload

from minitrain.errors import UsageError
from minitrain.operations.collectives import COLLECTIVES as RECORDS
from minitrain.operations.collectives import TRANSFERS
from minitrain.operations.computations import names_of

COMPUTE = "compute"
COMM = "comm"
SEND = "send"
RECV = "recv"

LOAD_WEIGHTS = "load_weights"
ROUTING = names_of("experts")
"""Passes of a layer with experts that go before the experts or after them."""
_PASSES_IN_ORDER = (*names_of("pass", "attention"), *ROUTING)
PASSES = frozenset(_PASSES_IN_ORDER)
UPDATE = "update"
COMPUTING = frozenset((*PASSES, *names_of("compression", "local", "update")))
"""What takes longer on a slower device: loading weights is no computing."""
COLLECTIVES = tuple(RECORDS)
COMMUNICATIONS = (*COLLECTIVES, SEND, RECV)
OFFLOAD, FETCH, WRITE, UPDATE_ON_HOST = "offload", "fetch", "write", "update_on_host"
HOST_MOVES = tuple(record.name for record in TRANSFERS.values() if record.of_host)
ON_HOST = frozenset(record.name for record in TRANSFERS.values() if record.on_host)
EVENT_TYPES = (
    LOAD_WEIGHTS,
    *_PASSES_IN_ORDER,
    *names_of("compression", "local", "update"),
    *COMMUNICATIONS,
    *HOST_MOVES,
)
"""Every type of event: what a rank computes, in the order of a step, its collectives and messages, then host memory."""

STORES = ("weights", "opt_states", "activations", "grad_activations", "grad_weights")
"""The stores of a rank."""

STORE_NAMES = {
    "weights": "weights",
    "opt_states": "optimizer state",
    "grad_weights": "gradients",
    "activations": "activations",
    "logits": "logits",
    "grad_activations": "activation gradients",
    "in_flight": "in flight",
}
"""Name of each kind of memory in words, in the order in which they are stacked; see `MemoryChange`."""


@dataclass(slots=True)
class Event:
    """One operation of one rank. Times are in seconds, memory in elements.

    Args:
        typ: load_weights, forward, loss, backward, backward_input, backward_weight, update, all_reduce,
            reduce_scatter, all_gather, broadcast, all_to_all, barrier, send, recv, offload, fetch, write or
            update_on_host; of an attention in steps, keys_values, attend, project, backward_project, backward_attend
            or backward_keys_values; around experts, route, combine, backward_combine and backward_route.
        layer: the layer it works on, or None.
        rank: the rank it ran on.
        time: when it began to work (after all waiting), s.
        duration: how long it worked, s.
        memory: elements in the rank's five stores when it was logged, before its result could be stored.
        samples: samples it works on.
        stream: where it ran: "compute", "comm" (collectives; one stream a group), "send" or "recv" (one stream a
            peer and direction), or the name of what the host takes part in ("offload", "fetch" ...).
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
        after: indices in the rank's log of the launched operations whose results it was given before their await, and
            of the launched send to another rank that its interface carries before it.
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
    after: tuple[int, ...] = ()

    @property
    def end(self) -> float:
        """When it finished, s."""
        return self.time + self.duration


class MemoryChange(NamedTuple):
    """Something entered or left a rank's memory.

    Args:
        place: how many events the rank had logged by then.
        kind: one of the stores (weights, opt_states, activations, grad_activations, grad_weights), logits for those
            among a transformer's activations, or in_flight for what launched operations hold.
        elements: what entered, negative for what left.
        tensor: which tensor it was, a number from 1 on that no other one of the rank has; 0 in files that do not say.
        layer: the tensor's layer, if it has one.
    """

    place: int
    kind: str
    elements: float
    tensor: int = 0
    layer: int | None = None


class Outage(NamedTuple):
    """A time in which no rank could go on, until a moment that no operation sets.

    Args:
        start: when it began, s.
        end: when ranks could go on, s.
        reason: why, in words.
    """

    start: float
    end: float
    reason: str


UNITS_PER_ELEMENT = 2**40
"""Rows hold memory as an integer number of units of 2**-40 element, so that rounding errors cannot add up."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Where an operation runs; those of one stream run in program order.

    Args:
        kind: "compute", "comm", "send", "recv", or one of `HOST_MOVES`.
        group: members of a collective's group, or None for the whole world.
        peer: the other rank of a message, or None.
    """

    kind: str
    group: tuple[int, ...] | None = None
    peer: int | None = None

    def __reduce__(self) -> Any:
        """Copy and pickle the compute stream, which is known by identity, as itself."""
        return "ON_COMPUTE" if self is ON_COMPUTE else (Stream, (self.kind, self.group, self.peer))


ON_COMPUTE = Stream(COMPUTE)
NO_SAMPLES: frozenset[int] = frozenset()


class Note:
    """What only communications have: the tag of a message, and what an operation that overlapped others waited for.

    Attributes:
        after: the indices of the launched operations that end before it begins, as it was given their results before
            anybody awaited them, or as one interface carries both messages.
        tag: the tag of a message.
        overlaps: whether the operation may have run beside others of its rank.
        awaited: the index of the first event after its result was awaited, or None as long as nobody did.
    """

    __slots__ = ("after", "awaited", "overlaps", "tag")

    def __init__(self, tag: Hashable = None, overlaps: bool = False) -> None:
        self.tag = tag
        self.overlaps = overlaps
        self.awaited: int | None = None
        self.after: tuple[int, ...] = ()


# The columns of a row. Row k takes the places k * STRIDE to (k + 1) * STRIDE - 1 of the list.
TYP, LAYER, TIME, PRICE, MEMORY, SAMPLES, STREAM, WAITED_FOR, LAUNCHED, NOTE = range(10)
STRIDE = 10


_set = object.__setattr__
T = TypeVar("T")


class MadeWhenRead(Sequence[T]):
    """Values that are made when somebody reads them; they compare and add up as lists do."""

    __slots__ = ()
    _words = "value", "list"

    @abstractmethod
    def _at(self, place: int) -> T:
        """Make the value of a place."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            value, values = self._words
            raise IndexError(f"{value} {index} of a {values} of {len(self)} is out of range")
        return self._at(place)

    def __iter__(self) -> Iterator[T]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __add__(self, other: Iterable[T]) -> list[T]:
        return [*self, *other]

    def __radd__(self, other: Iterable[T]) -> list[T]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))


class ReadOnlyLog(Sequence[Event]):
    """A log that its readers cannot change: what looks like a change raises a `UsageError` that says so."""

    __slots__ = ()
    _words = "event", "log"

    def _refuse_change(self, *_: Any) -> NoReturn:
        raise UsageError("a log is for reading: it holds what operations wrote, and only they add to it")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_change
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse_change

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") or name.startswith("__"):
            self._refuse_change()
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_change()


class EventLog(ReadOnlyLog, MadeWhenRead[Event]):
    """The events of one rank in program order, as a list that cannot be changed.

    Args:
        rank: whose log it is.
        rows: the flat list that the log reads, which the rank's operations write; an empty one by default.
    """

    __slots__ = ("_rank", "_recomputed", "_rows", "_seen")

    _rank: int
    _recomputed: list[bool]  # of the events that somebody has read, as is the next
    _rows: list[Any]
    _seen: dict[int | None, set[int]]

    def __init__(self, rank: int, rows: list[Any] | None = None) -> None:
        _set(self, "_rank", rank)
        _set(self, "_rows", [] if rows is None else rows)

    @property
    def rank(self) -> int:
        """Whose log it is."""
        return self._rank

    @property
    def rows_of_memory(self) -> list[Any]:
        """The rows that say what a device must hold: all of them."""
        return self._rows

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle what it was made of."""
        return EventLog, (self._rank, self._rows)

    def __len__(self) -> int:
        return len(self._rows) // STRIDE

    def __repr__(self) -> str:
        return f"EventLog(rank={self._rank}, {list(self)!r})"

    def _at(self, place: int) -> Event:
        """Make the event of one place."""
        row = self._rows[place * STRIDE : (place + 1) * STRIDE]
        typ, layer, time, price, units, samples, stream, waited_for, launched, note = row
        blocking = None if stream is ON_COMPUTE else place + 1
        return Event(
            typ,
            layer,
            self._rank,
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
            () if note is None else note.after,
        )

    def _is_recomputed(self, place: int) -> bool:
        """Return whether a forward takes samples through a layer that they had passed on this rank before."""
        if not hasattr(self, "_recomputed"):
            self._recomputed, self._seen = [], {}
        for later in range(len(self._recomputed), place + 1):
            row = later * STRIDE
            again = False
            if self._rows[row + TYP] == "forward":
                seen = self._seen.setdefault(self._rows[row + LAYER], set())
                samples = self._rows[row + SAMPLES]
                again = not seen.isdisjoint(samples)
                seen.update(samples)
            self._recomputed.append(again)
        return self._recomputed[place]
