"""The file of a run: JSON Lines that `Run.save` writes and `load_run` reads.

The first line is an object with the run's figures, `"format": "minitrain-run"`, `"version"`, and `"fields"`, the names
of an event's places. Every further line is one event as an array in that order, trailing defaults left out; the events
of a rank stand in program order, rank after rank. `samples` and `group` are lists of [first, past-the-last] ranges;
times are in seconds, memory in elements, and floats are written so that reading gives the same float.

The first line of a strict run has `held_outside`: what was held outside the stores. That of a run on more than one node
has `network` ("flat", "hierarchical" or "measured") and `num_nodes`. One that was not priced by the roofline has
`priced_by`, and one that trained neither the specified layers nor a transformer has `workload`. That of a transformer
has `trained_model`, `needed_memory_bytes`, `memory_by_kind` and `meshes` (size by axis of each mesh of ranks). That of
a run which offloaded something has `peak_host_memory_bytes`, that of a run on a cluster `device_kinds` (which ranks
have which device). That of a step in which devices died has `outages`, objects of `start`, `end` (s) and `reason`.
One of many steps has `steps`: `num_steps`, `load_time` (s), `ends` (s) and `period` (see `minitrain.run.facts.Steps`).
That of several measured steps has `typical`: lists of `time`, `duration` and `launched`, s, a number for each event.

Version 2 has one more line a rank, an object with its journal of memory by kind. A run without journals is written as
version 1, which older readers know. Version 3 has events of some ranks alone, and one more line for each other rank,
which did what one of those did: `rank`, `like`, and its own `samples` and `partners` (see `minitrain.run.ranks_once`);
it has no journals.
Each event and journal is validated as it is read, in memory bounded by the file's size. What an event may say follows
from the run: ranks of its world, samples of its batch, times that are no less than 0, an await after the operation
itself. Sets of ranks and samples are written as ranges and become sets again; together they may have 2**20 members, and
16 more for each byte of the file.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from minitrain.errors import UsageError
from minitrain.files import StrPath, json_object, shown, size_of, write_text
from minitrain.machine.config import label_of
from minitrain.operations import COLLECTIVES, COMM, COMPUTE, EVENT_TYPES, Event, MemoryChange
from minitrain.operations.collectives import TRANSFERS
from minitrain.run.device_memory import kinds_of_journals
from minitrain.run.event_loops import rare_collections
from minitrain.run.ranks_once import OnceWritten, Partners, Repeated, distinct_of
from minitrain.run.run_file import (
    AT_LEAST_0,
    FIELDS,
    FLAG,
    FORMAT,
    LARGEST,
    LIST,
    LONGEST_S,
    MOST_LAYERS,
    NUMBER,
    NUMBERS,
    SMALLEST,
    TEXT,
    TIME,
    TYPICAL,
    VERSION,
    VERSION_OF_ALIKE,
    VERSION_WITH_JOURNALS,
    Faults,
    Rule,
    judge_header,
    judge_repeated,
    one_of,
    said_of,
    to_ranges,
    told_by,
    whole,
)

_SET_PLACES = (FIELDS.index("samples"), FIELDS.index("group"))
_Ranges = dict[int, tuple[Iterable[int], list[list[int]]]]  # sets and their ranges, by the set's identity

_LONGEST_LINE = 2**27  # characters, enough for a journal of six million changes
_MOST_UNPACKED, _UNPACKED_A_BYTE = 2**24, 32  # logs shrink to about a seventh when they are compressed


def save_run(run: Any, path: StrPath, repeated: Sequence[Repeated] = ()) -> None:
    """Write a run to a file, whole or not at all.

    Args:
        run: a `Run`, which imports this file.
        path: where to.
        repeated: the ranks whose events are not written, as they are those of others; then no journals are.
    """
    write_text(Path(path), (line + "\n" for line in _lines(run, repeated)))


def _lines(run: Any, repeated: Sequence[Repeated]) -> Iterator[str]:
    """Yield the lines of the file."""
    written = sorted({*range(run.world_size)} - {each.rank for each in repeated})
    journals = () if repeated else run.memory_journals
    version = VERSION_OF_ALIKE if repeated else VERSION_WITH_JOURNALS if journals else VERSION
    header = {"format": FORMAT, "version": version, "fields": FIELDS, **said_of(run)}
    if repeated:
        header["num_events"] = sum(len(run.logs[rank]) for rank in written)
    if run.typical is not None and not repeated:
        header["typical"] = dict(zip(TYPICAL, run.typical, strict=True))
    yield json.dumps(header)
    ranges: _Ranges = {}
    for rank in written:
        for event in run.logs[rank]:
            yield json.dumps(_pack(event, ranges), separators=(",", ":"), default=repr)  # a tag may be anything
    for each in repeated:
        yield json.dumps(_pack_repeated(each, ranges), separators=(",", ":"))
    for rank, journal in enumerate(journals):
        yield json.dumps(_pack_journal(rank, journal), separators=(",", ":"))


def _pack_repeated(repeated: Repeated, ranges: _Ranges) -> dict[str, Any]:
    """Return as an object what a rank has in the place of another one's samples and partners."""
    samples = [_shared_ranges(each, ranges) for each in repeated.samples]
    partners = [
        [None if group is None else _shared_ranges(group, ranges), peer, other]
        for group, peer, other in repeated.partners
    ]
    return {"rank": repeated.rank, "like": repeated.like, "samples": samples, "partners": partners}


def _pack_journal(rank: int, journal: Sequence[MemoryChange]) -> dict[str, Any]:
    """Return a journal as an object: changes are [place, index of the kind, elements, tensor, layer]."""
    kinds = list(dict.fromkeys(change.kind for change in journal))
    codes = {kind: code for code, kind in enumerate(kinds)}
    changes = [
        [place, codes[kind], int(size) if size == int(size) else size, tensor, layer]
        for place, kind, size, tensor, layer in journal
    ]
    return {"rank": rank, "kinds": kinds, "changes": changes}


def _pack(event: Event, ranges: _Ranges) -> list[Any]:
    """Return an event as the values of its fields, trailing defaults left out.

    Args:
        event: the event.
        ranges: the sets of the events before it, to which its own are added.
    """
    values = [getattr(event, name) for name in FIELDS]
    while values and len(values) > 7 and values[-1] == _DEFAULTS[len(values) - 1]:
        values.pop()
    for place in _SET_PLACES:
        if place < len(values) and values[place] is not None:
            values[place] = _shared_ranges(values[place], ranges)
    return values


def _shared_ranges(numbers: Iterable[int], known: _Ranges) -> list[list[int]]:
    """Return a set as ranges. They are made once a set: events share sets, and a set may be as large as the batch."""
    found = known.get(id(numbers))
    if found is None:
        found = known[id(numbers)] = numbers, to_ranges(numbers)
    return found[1]


def read_run(path: StrPath) -> dict[str, Any]:
    """Return what a file holds that `save_run` wrote: the parameters of a `Run`.

    Everything in the file is validated, in time and memory that are bounded by its size.

    Raises:
        UsageError: the file is missing, damaged, or of an unknown version; the first faults are named by line and key.
    """
    try:
        file = Path(path)
        label = label_of(str(file))
    except TypeError as error:
        raise UsageError(f"a run file's path must be text or a path, got {type(path).__name__}") from error
    faults = Faults(label)
    try:
        size = size_of(file)
        with _open(file) as lines, rare_collections():
            header, logs, journals = _read(_numbered(lines, size, faults), size, faults)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        if isinstance(error, UsageError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the run file {label} cannot be read: {reason}; write it with run.save()") from error
    told = told_by(header)
    if journals and told["memory_by_kind"] is None:
        told["memory_by_kind"] = kinds_of_journals(journals, header["bytes_per_element"])
    return {**told, "logs": logs, "memory_journals": journals}


def _open(file: Path) -> TextIO:
    """Open a file, compressed or not, for reading."""
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig")
    return file.open(encoding="utf-8-sig")


def _numbered(lines: TextIO, size: int, faults: Faults) -> Iterator[tuple[int, Any]]:
    """Yield what each line holds, with its number; keep a fault for one that is no JSON.

    Raises:
        UsageError: a line, or all of them, are longer than any file of this size can explain.
    """
    number, left = 0, (most := _MOST_UNPACKED + _UNPACKED_A_BYTE * size)
    try:
        while line := lines.readline(min(left, _LONGEST_LINE) + 1):
            number += 1
            left -= len(line)
            if left < 0 or len(line) > _LONGEST_LINE:
                what = "in a line" if left >= 0 else f"in a file of {size} bytes, unpacked"
                faults.add(number, f"expected at most {_LONGEST_LINE if left >= 0 else most} characters {what}")
                raise faults.error()
            yield from _parsed(number, line, faults)
            if number == 1 and faults.number:  # it is no run file, so that no other line need be one
                return
    except UnicodeDecodeError as error:
        faults.add(number + 1, f"expected UTF-8 text, found byte 0x{error.object[error.start]:02x}")


def _parsed(number: int, line: str, faults: Faults) -> Iterator[tuple[int, Any]]:
    """Yield what a line holds, if it is JSON."""
    try:
        yield number, json.loads(line, object_pairs_hook=json_object) if line[0] == "{" else json.loads(line)
    except json.JSONDecodeError as error:
        cut = "" if line.endswith("\n") else "; the file ends in the middle of the line"
        faults.add(number, f"expected JSON, found a mistake in column {error.colno}: {error.msg}{cut}")
    except ValueError:
        faults.add(number, "expected numbers that a computer can hold, found one of thousands of digits")
    except RecursionError:
        faults.add(number, "expected a few levels of nesting, found too many")


def _read(
    lines: Iterator[tuple[int, Any]], size: int, faults: Faults
) -> tuple[Mapping[str, Any], Sequence[Sequence[Event]], Sequence[Sequence[MemoryChange]]]:
    """Read the first line, the events of every rank, and their journals if there are any.

    Raises:
        UsageError: there are faults.
    """
    number, header = next(lines, (1, {}))
    if faults.number:  # it is no JSON
        raise faults.error()
    if not judge_header(header, size, faults):
        raise faults.error()
    reader = Reader(header, size, faults)
    for number, values in lines:
        reader.take(number, values)
    journals = reader.end(number)
    if faults.number:
        raise faults.error()
    return header, reader.logs, journals


STORE_KINDS = ("weights", "opt_states", "activations", "grad_activations", "grad_weights", "logits", "in_flight")

_TYPES = {typ: typ for typ in EVENT_TYPES}
_STREAM_OF = {typ: COMM if typ in COLLECTIVES else typ if typ in TRANSFERS else COMPUTE for typ in _TYPES}
_UNKNOWN = object()  # equal to nothing that a file can hold
_DEFAULTS = [getattr(field, "default", None) for field in fields(Event)]
_DEFAULTS[FIELDS.index("samples")] = None  # an event says its samples
_NUM_FIELDS = len(FIELDS)
_MEMBERS, _MEMBERS_A_BYTE = 2**20, 16
_DEEPEST_TAG = 16
_ROUNDING = 1.0  # elements, in a sum of parts of elements
_NULL = Rule("null", lambda value: value is None)
_TEXT_OR_NULL = TEXT.or_null()
_A_TENSOR, _A_LAYER = whole(0, 2**40), whole(-MOST_LAYERS, MOST_LAYERS).or_null()
_FARTHEST_LAYER = 2**53  # of a collective, or of a type of one's own, which may name anything

_Set = Collection[int]


class Reader:
    """Reads what follows the first line.

    Args:
        header: the first line, which was judged.
        size: bytes of the file.
        faults: of the file.

    Attributes:
        logs: the events of each rank.
    """

    def __init__(self, header: Mapping[str, Any], size: int, faults: Faults) -> None:
        self.header, self.faults = header, faults
        self.world_size, self.num_layers = header["world_size"], header["num_layers"]
        self._a_rank = Rule(f"a rank in 0..{self.world_size - 1}", whole(0, self.world_size - 1).accepts)
        self.logs: list[Any] = [[] for _ in range(self.world_size)]
        self._most = size
        self._members_left = _MEMBERS + _MEMBERS_A_BYTE * size
        # strict runs count a buffer once where stores count it twice
        strict = header.get("held_outside") is not None
        self._peaks = [LARGEST] * self.world_size if strict else header["peak_memory_per_rank"]
        self._names = header["fields"]
        self._in_order = tuple(self._names[:_NUM_FIELDS]) == FIELDS
        self._samples: dict[Any, _Set] = {}
        self._groups: dict[Any, _Set] = {}
        self._objects: list[tuple[int, dict[str, Any]]] = []
        self._distinct: dict[int, tuple[Any, ...]] = {}  # of ranks that others repeat
        self._num_events = 0

    def take(self, line: int, values: Any) -> None:
        """Take what one line holds: an event, the journal of a rank, or how it repeats another one."""
        if values.__class__ is list:
            self._num_events += 1
            self._take_event(line, values if self._in_order else self._arranged(line, values))
        elif isinstance(values, dict):
            self._objects.append((line, values))
        else:
            self.faults.add(line, f"expected an event (a list) or a journal (an object), found {shown(values)}")

    def _take_event(self, line: int, given: list[Any] | None) -> None:
        """Take one event: the usual ones pass one expression, others are judged field by field."""
        if given is None:
            return
        values = given + _DEFAULTS[len(given) :]
        try:
            typ, layer, rank, time, duration, memory, samples, stream, group, peer = values[:10]
            _, size_bytes, launched, waited_for, awaited, recomputed, _, after = values[10:]
            is_usual = (
                _STREAM_OF.get(typ, _UNKNOWN) == stream
                and (layer is None or (layer.__class__ is int and -1 <= layer <= self.num_layers))
                and rank.__class__ is int
                and 0 <= rank < self.world_size
                and time.__class__ in NUMBERS
                and (SMALLEST <= time <= LONGEST_S or time == 0)
                and duration.__class__ in NUMBERS
                and (SMALLEST <= duration <= LONGEST_S or duration == 0)
                and memory.__class__ in NUMBERS
                and 0 <= memory <= self._peaks[rank]
                and (peer is None or (peer.__class__ is int and 0 <= peer < self.world_size and peer != rank))
                and size_bytes.__class__ in NUMBERS
                and 0 <= size_bytes <= LARGEST
                and (launched is None or (launched.__class__ in NUMBERS and 0 <= launched <= time))
                and (
                    waited_for is None
                    or (waited_for.__class__ is int and 0 <= waited_for < self.world_size and waited_for != rank)
                )
                and (awaited is None or (awaited.__class__ is int and len(self.logs[rank]) < awaited <= self._most))
                and recomputed.__class__ is bool
                and (after == () or (after.__class__ is list and self._are_made(rank, after)))
            )
        except (TypeError, ValueError):
            is_usual = False
        if not (is_usual or self._accepts(line, values)):
            return
        found = self._set_of(line, "samples", samples, self._samples, self.header["global_batch_size"], frozenset)
        if group is not None:
            values[8] = self._set_of(line, "group", group, self._groups, self.world_size, tuple)
            if values[8] is not None and not any(first <= rank < stop for first, stop in group):
                self.faults.add(line, f"expected a group of rank {rank}, found one without it", ("group",))
                return
        if found is None or (group is not None and values[8] is None) or not self._accepts_words(line, values):
            return
        values[0], values[6], values[7] = _TYPES.get(typ, typ), found, _STREAM_OF.get(typ, COMPUTE)
        values[17] = tuple(after)
        self.logs[rank].append(Event(*values))

    def _arranged(self, line: int, values: list[Any]) -> list[Any] | None:
        """Return the values of an event in the order of `Event`'s fields."""
        known = dict(zip(self._names, values, strict=False))
        strange = [name for name in known if name not in FIELDS]
        if strange or len(values) > len(self._names):
            found = ", ".join(map(shown, strange)) or f"{len(values)} values for {len(self._names)} fields"
            self.faults.add(line, f"expected values of the fields that this minitrain knows, found {found}")
            return None
        return [known.get(name, default) for name, default in zip(FIELDS, _DEFAULTS, strict=True)]

    def _accepts(self, line: int, values: list[Any]) -> bool:
        """Return whether an event that is not usual is one; keep each fault."""
        if len(values) != _NUM_FIELDS:
            self.faults.add(line, f"expected an event of at most {_NUM_FIELDS} values, found {len(values)}")
            return False
        event = dict(zip(FIELDS, values, strict=True))
        return self.faults.judge_keys(line, (), event, self._rules(event))

    def _rules(self, event: Mapping[str, Any]) -> Mapping[str, Rule]:
        """Return what each field of an event must be, as far as that is a matter of one value."""
        rank, typ, time = event["rank"], event["typ"], event["time"]
        is_rank, other = self._a_rank.accepts(rank), self._another(rank).or_null()
        peak, logged = (self._peaks[rank], len(self.logs[rank])) if is_rank else (LARGEST, 0)
        stream = _STREAM_OF.get(typ) if typ.__class__ is str else COMPUTE
        farthest = _FARTHEST_LAYER if stream in (COMM, None) else None
        stream = stream or COMPUTE

        return {
            "typ": Rule(f"one of {', '.join(_TYPES)}", lambda typ: typ.__class__ is str and _is_priced(event)),
            "layer": whole(-(farthest or 1), farthest or self.num_layers).or_null(),
            "rank": self._a_rank,
            "time": TIME,
            "duration": TIME,
            "memory": _up_to(peak, "the rank's peak"),
            "stream": Rule(f'"{stream}"', lambda stream_: stream_ == stream),
            "peer": other,
            "size_bytes": AT_LEAST_0,
            "launched": _up_to(time if TIME.accepts(time) else LONGEST_S, "the event's time").or_null(),
            "waited_for": other,
            "awaited": whole(logged + 1, self._most).or_null(),
            "recomputed": FLAG,
            "after": Rule(
                "a list of the rank's communications so far",
                lambda after: after == () or (after.__class__ is list and is_rank and self._are_made(rank, after)),
            ),
        }

    def _are_made(self, rank: int, places: list[Any]) -> bool:
        """Return whether communications are at these places of a rank's log."""
        log = self.logs[rank]
        return all(
            place.__class__ is int and 0 <= place < len(log) and log[place].stream != COMPUTE for place in places
        )

    def _another(self, own: Any) -> Rule:
        """Return the rule for a rank that is another one."""
        accepts = self._a_rank.accepts
        return Rule(f"another rank in 0..{self.world_size - 1}", lambda value: accepts(value) and value != own)

    def _accepts_words(self, line: int, values: list[Any]) -> bool:
        """Return whether tag and algorithm are what they may be; a list as tag becomes a tuple."""
        tag, algorithm = values[10], values[16]
        if tag is None and algorithm is None:
            return True
        if tag.__class__ is list:
            values[10] = _tuple(tag)
        good = bool(values[10] is not None or tag is None)
        if tag.__class__ is dict or not good:
            self.faults.add(line, f"expected text, a number or a list of them, found {shown(tag)}", ("tag",))
            good = False
        return self.faults.judge(line, ("algorithm",), algorithm, _TEXT_OR_NULL) and good

    def _set_of(
        self, line: int, name: str, ranges: Any, known: dict[Any, _Set], end: int, kind: Callable[[Iterable[int]], _Set]
    ) -> _Set | None:
        """Return a set by its ranges, the same one for all events that say the same; None if there is none such.

        Args:
            line: of the event.
            name: of the field.
            ranges: what the event says.
            known: the sets by their ranges, to which this one is added.
            end: past the last number that there is.
            kind: what makes the set.
        """
        try:
            key = tuple(map(tuple, ranges))
            found = known.get(key)
        except TypeError:
            key, found = (), None
        if found is None and self._are_ranges(line, name, ranges, end):
            found = known[key] = kind([number for first, stop in ranges for number in range(first, stop)])
        return found

    def _are_ranges(self, line: int, name: str, ranges: Any, end: int) -> bool:
        """Return whether ranges ascend within 0..end, and have no more members than the file has room for."""
        if not self.faults.judge(line, (name,), ranges, LIST):
            return False
        before = members = 0
        for place, pair in enumerate(ranges):
            ends: tuple[Any, ...] = tuple(pair) if pair.__class__ is list else ()
            if not (len(ends) == 2 and ends[0].__class__ is ends[1].__class__ is int) or not (
                before <= ends[0] < ends[1] <= end
            ):
                expected = f"expected ascending ranges [first, past-the-last] within {before}..{end}"
                self.faults.add(line, f"{expected}, found {shown(pair)}", (name, place))
                return False
            before, members = ends[1], members + ends[1] - ends[0]
        self._members_left -= members
        if self._members_left < 0:
            self.faults.add(line, "expected sets that fit the file's size, found far more members than bytes", (name,))
            raise self.faults.error()
        return True

    def end(self, last: int) -> Sequence[Sequence[MemoryChange]]:
        """Judge what can be judged at the end alone, and return the journals.

        Args:
            last: number of the last line.
        """
        number = self.header.get("num_events", self._num_events)
        if number != self._num_events:
            self.faults.add(last, f"it has {self._num_events} of {number} events; was it cut short?")
        journals: dict[int, list[MemoryChange]] = {}
        are_repeated = self.header["version"] == VERSION_OF_ALIKE
        own = {rank: log for rank, log in enumerate(self.logs) if log}
        for line, values in self._objects:
            judge_repeated(self.faults, line, values)
            if are_repeated:
                self._take_repeated(line, values, own)
            else:
                self._take_journal(line, values, journals)
        if self.header["version"] == VERSION_WITH_JOURNALS and len(self._objects) < self.world_size:
            self.faults.add(last, f"it has the journals of {len(self._objects)} of {self.world_size} ranks")
        return [journals[rank] for rank in sorted(journals)] or ()

    def _take_repeated(self, line: int, values: Mapping[str, Any], own: Mapping[int, list[Event]]) -> None:
        """Take how a rank repeats another one.

        Args:
            line: of the file.
            values: what it holds.
            own: the ranks with events of their own.
        """
        rules = {
            "rank": Rule(
                f"{self._a_rank.expected} without events",
                lambda rank: self._a_rank.accepts(rank) and not self.logs[rank],
            ),
            "like": Rule("a rank with events of its own", lambda like: like.__class__ is int and like in own),
            "samples": LIST,
            "partners": LIST,
        }
        if not self.faults.judge_keys(line, (), values, rules):
            return
        rank, like = values["rank"], values["like"]
        if like not in self._distinct:
            self._distinct[like] = *distinct_of(own[like]), max(event.memory for event in own[like])
        samples, partners, memory = self._distinct[like]
        self.faults.judge(line, ("rank",), memory, _up_to(self._peaks[rank], "the rank's peak"))
        given = [
            self._set_of(line, "samples", each, self._samples, self.header["global_batch_size"], frozenset)
            for each in values["samples"]
        ]
        found = [
            self._partners(line, rank, each, theirs) for each, theirs in zip(values["partners"], partners, strict=False)
        ]
        for name, theirs, ours in (("samples", samples, values["samples"]), ("partners", partners, values["partners"])):
            if len(theirs) != len(ours):
                self.faults.add(line, f"expected {len(theirs)}, as rank {like} has them, found {len(ours)}", (name,))
        if None not in given and None not in found and len(given) == len(samples) and len(found) == len(partners):
            own_samples, own_partners = dict(zip(samples, given, strict=True)), dict(zip(partners, found, strict=True))
            self.logs[rank] = OnceWritten(rank, own[like], own_samples, own_partners)

    def _partners(self, line: int, rank: int, values: Any, theirs: Partners) -> Partners | None:
        """Return a rank's own partners in the place of another one's, which must be of the same kind."""
        if values.__class__ is not list or len(values) != 3:
            self.faults.add(line, f"expected [group, peer, waited for], found {shown(values)}", ("partners",))
            return None
        group, peer, waited_for = values
        rules = [_NULL if other is None else self._another(rank) for other in theirs[1:]]
        good = [self.faults.judge(line, ("partners",), *each) for each in zip(values[1:], rules, strict=True)]
        if (group is None) != (theirs[0] is None):
            self.faults.add(line, "expected a group where the other rank has one, and nowhere else", ("partners",))
            return None
        if group is not None:
            found = self._set_of(line, "partners", group, self._groups, self.world_size, tuple)
            if found is None or rank not in found:
                self.faults.add(line, f"expected a group of rank {rank}, found one without it", ("partners",))
                return None
            group = found
        return (group, peer, waited_for) if all(good) else None

    def _take_journal(self, line: int, values: Mapping[str, Any], journals: dict[int, list[MemoryChange]]) -> None:
        """Take the journal of one rank."""
        if self.header["version"] != VERSION_WITH_JOURNALS:
            self.faults.add(line, f"expected journals in version {VERSION_WITH_JOURNALS} alone, found one")
            return
        if not self.faults.judge_keys(line, (), values, {"rank": self._a_rank, "kinds": LIST, "changes": LIST}):
            return
        if values["rank"] in journals:
            self.faults.add(line, f"expected one journal a rank, found another one of rank {values['rank']}", ("rank",))
        kinds, rule, before = values["kinds"], one_of(STORE_KINDS), self.faults.number
        for place, kind in enumerate(kinds):
            self.faults.judge(line, ("kinds", place), kind, rule)
        if self.faults.number == before:
            # of a damaged log, the journal is not blamed for what the log lacks
            is_whole = sum(map(len, self.logs)) == self._num_events
            num_events = len(self.logs[values["rank"]]) if is_whole else self._num_events
            journals[values["rank"]] = self._changes(line, kinds, values["changes"], num_events)

    def _changes(self, line: int, kinds: Sequence[str], changes: list[Any], num_events: int) -> list[MemoryChange]:
        """Return the changes of a journal, in the order of the log."""
        found: list[MemoryChange] = []
        before, num_kinds, held = 0, len(kinds), 0.0
        place: Any
        for index, change in enumerate(changes):
            try:
                place, code, size, *of = change
                tensor, layer = of or (0, None)
                is_usual = (
                    place.__class__ is code.__class__ is int
                    and before <= place <= num_events
                    and 0 <= code < num_kinds
                    and size.__class__ in NUMBERS
                    and -LARGEST <= size <= LARGEST
                    and (_A_TENSOR.accepts(tensor) and _A_LAYER.accepts(layer))
                )
            except (TypeError, ValueError):
                is_usual = False
            if is_usual:
                held += size
                if held < -_ROUNDING:
                    self.faults.add(line, "expected no more to leave than is held, found more", ("changes", index))
                    break
                found.append(MemoryChange(place, kinds[code], float(size), tensor, layer))
                before = place
            else:
                self._refuse_change(line, index, change, before, num_events, num_kinds)
        return found

    def _refuse_change(self, line: int, index: int, change: Any, before: int, num_events: int, num_kinds: int) -> None:
        """Keep what is wrong with a change of a journal."""
        if change.__class__ is not list or len(change) not in (3, 5):
            expected = "[place, kind, elements, tensor, layer]"
            self.faults.add(line, f"expected {expected}, found {shown(change)}", ("changes", index))
            return
        rules = (whole(before, num_events), whole(0, num_kinds - 1), NUMBER, _A_TENSOR, _A_LAYER)
        for place, (value, rule) in enumerate(zip(change, rules, strict=False)):
            self.faults.judge(line, ("changes", index, place), value, rule)


def _is_priced(event: Mapping[str, Any]) -> bool:
    """Return whether an event is of a known type, or as those that a strategy logs by a type of its own: free."""
    return event["typ"] in _TYPES or (event["duration"], event["size_bytes"]) == (0, 0)


def _up_to(most: float, what: str) -> Rule:
    """Return the rule for a number from 0 to another one, which is named."""
    return Rule(f"a number in 0..{most:g}, {what}", lambda value: value.__class__ in NUMBERS and 0 <= value <= most)


def _tuple(values: list[Any], depth: int = 1) -> Any:
    """Return nested lists as tuples, which a tag must be to be hashable; None if that cannot be."""
    if depth > _DEEPEST_TAG or any(item.__class__ is dict for item in values):
        return None
    if not any(item.__class__ is list for item in values):
        return tuple(values)
    items = [_tuple(item, depth + 1) if item.__class__ is list else item for item in values]
    lost = any(now is None and was is not None for now, was in zip(items, values, strict=True))
    return None if lost else tuple(items)
