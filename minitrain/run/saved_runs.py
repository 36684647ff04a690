"""The file of a run: JSON Lines that `Run.save` writes and `load_run` reads.

The first line is an object with the run's figures, `"format": "minitrain-run"`, `"version"`, and `"fields"`, the names
of an event's places. Every further line is one event as an array in that order, trailing defaults left out; the events
of a rank stand in program order, rank after rank. `samples` and `group` are lists of [first, past-the-last] ranges;
times are in seconds, memory in elements, and floats are written so that reading gives the same float.

The first line of a strict run has `held_outside`: what was held outside the stores. That of a run on more than one node
has `network` ("flat" or "hierarchical") and `num_nodes`.

Version 2 has one more line a rank, an object with its journal of memory by kind. A run without journals is written as
version 1, which older readers know.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TextIO

from minitrain.errors import UsageError
from minitrain.events import Event, MemoryChange
from minitrain.files import write_text
from minitrain.run.memory_reports import MemoryOutsideStores, OutOfMemory

FORMAT = "minitrain-run"
VERSION, VERSION_WITH_JOURNALS = 1, 2

_FIELDS = tuple(field.name for field in fields(Event))
_DEFAULTS = tuple(getattr(field, "default", None) for field in fields(Event))
_SETS: Mapping[str, Callable[[Iterable[int]], Collection[int]]] = {"samples": frozenset, "group": tuple}
_SET_PLACES = tuple(_FIELDS.index(name) for name in _SETS)
_Ranges = dict[int, tuple[Iterable[int], list[list[int]]]]  # sets and their ranges, by the set's identity
_Sets = dict[tuple[Any, ...], Collection[int]]  # sets by field and ranges
_HEADER = (
    "strategy",
    "world_size",
    "num_layers",
    "global_batch_size",
    "hardware",
    "peak_memory_per_rank",
    "bytes_per_element",
    "useful_flop",
    "peak_flop_per_s",
    "capacity_bytes",
)

_NETWORK: Mapping[str, Any] = {"network": "flat", "num_nodes": 1}
"""What is true of the run where its first line says nothing: it fits into one tier, or older writers did not tell."""


class SavableRun(Protocol):
    """What is saved of a run, beside the figures of the first line."""

    @property
    def logs(self) -> Sequence[Sequence[Event]]:
        """The events of each rank."""

    @property
    def num_events(self) -> int:
        """Number of events of all ranks."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The strategy's options."""

    @property
    def oom(self) -> OutOfMemory | None:
        """Where the device's memory was exceeded."""

    @property
    def memory_journals(self) -> Sequence[Sequence[MemoryChange]]:
        """Every change of every store of each rank."""

    @property
    def network(self) -> str:
        """How transfers were priced."""

    @property
    def num_nodes(self) -> int:
        """In how many units of the smallest network tier the ranks sit."""

    @property
    def held_outside(self) -> MemoryOutsideStores | None:
        """What was held outside the stores."""


def plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def save_run(run: SavableRun, path: str | PathLike[str]) -> None:
    """Write a run to a file, whole or not at all."""
    write_text(Path(path), (line + "\n" for line in _lines(run)))


def _lines(run: SavableRun) -> Iterator[str]:
    """Yield the lines of the file."""
    oom = run.oom and {
        "rank": run.oom.rank,
        "time": run.oom.time,
        "capacity_bytes": run.oom.capacity_bytes,
        "held_bytes": dict(run.oom.held_bytes),
    }
    version = VERSION_WITH_JOURNALS if run.memory_journals else VERSION
    header = {"format": FORMAT, "version": version, "fields": _FIELDS, **{name: getattr(run, name) for name in _HEADER}}
    header["num_events"] = run.num_events
    header["options"] = {name: plain(value) for name, value in run.options.items()}
    header["oom"] = oom
    network = {name: getattr(run, name) for name in _NETWORK}
    if network != _NETWORK:
        header |= network
    if run.held_outside is not None:
        header["held_outside"] = asdict(run.held_outside)
    yield json.dumps(header)
    ranges: _Ranges = {}
    for log in run.logs:
        for event in log:
            yield json.dumps(_pack(event, ranges), separators=(",", ":"), default=repr)  # a tag may be anything
    for rank, journal in enumerate(run.memory_journals):
        yield json.dumps(_pack_journal(rank, journal), separators=(",", ":"))


def _pack_journal(rank: int, journal: Sequence[MemoryChange]) -> dict[str, Any]:
    """Return a journal as an object: changes are [place, index of the kind, elements]."""
    kinds = list(dict.fromkeys(change.kind for change in journal))
    codes = {kind: code for code, kind in enumerate(kinds)}
    changes = [[place, codes[kind], int(size) if size == int(size) else size] for place, kind, size in journal]
    return {"rank": rank, "kinds": kinds, "changes": changes}


def _pack(event: Event, ranges: _Ranges) -> list[Any]:
    """Return an event as the values of its fields, trailing defaults left out.

    Args:
        event: the event.
        ranges: the sets of the events before it, to which its own are added.
    """
    values = [getattr(event, name) for name in _FIELDS]
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


def to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return a set of integers as ascending [first, past-the-last] ranges."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return ranges


def read_run(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the fields of a saved run by name.

    Raises:
        UsageError: the file is missing, damaged, or of an unknown version.
    """
    file = Path(path)
    try:
        with _open(file) as lines:
            header = _header(json.loads(next(lines, "")))
            logs, journals = _logs(lines, header)
        oom = None if header["oom"] is None else OutOfMemory(**header["oom"])
        outside = header.get("held_outside")  # of strict runs only; older writers did not know it
        held_outside = None if outside is None else MemoryOutsideStores(**outside)
    except OSError as error:
        raise UsageError(f"the run file {file} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, LookupError, EOFError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{file} is not a {FORMAT} file, or it is damaged: {error}; write it with run.save()"
        ) from error
    return {
        **{name: header[name] for name in (*_HEADER, "options")},
        "logs": logs,
        "oom": oom,
        "memory_journals": journals,
        "held_outside": held_outside,
        **{name: header.get(name, default) for name, default in _NETWORK.items()},
    }


def _open(file: Path) -> TextIO:
    """Open a file, compressed or not, for reading."""
    return gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8")


def _header(header: Any) -> Mapping[str, Any]:
    """Return the first line if this program can read what follows."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("its first line does not say so")
    if header.get("version") not in (VERSION, VERSION_WITH_JOURNALS):
        known = f"{VERSION} and {VERSION_WITH_JOURNALS}"
        raise UsageError(f"the run file is of version {header.get('version')!r}; this minitrain reads {known}")
    missing = [name for name in (*_HEADER, "options", "oom", "fields") if name not in header]
    if missing:
        raise ValueError(f"its first line lacks {', '.join(missing)}")
    return header


def _logs(
    lines: Iterable[str], header: Mapping[str, Any]
) -> tuple[Sequence[Sequence[Event]], Sequence[Sequence[MemoryChange]]]:
    """Read the events of every rank, and their journals if there are any."""
    names = header["fields"]
    places = [place for place, name in enumerate(names) if name in _SETS]
    logs: list[list[Event]] = [[] for _ in range(header["world_size"])]
    journals: dict[int, list[MemoryChange]] = {}
    sets: _Sets = {}
    for line in lines:
        values = json.loads(line)
        if isinstance(values, dict):
            journals[_rank(values["rank"], logs)] = _journal(values)
            continue
        event = _event(names, values, places, sets)
        logs[_rank(event.rank, logs)].append(event)
    number = sum(map(len, logs))
    if header.get("num_events", number) != number:
        raise ValueError(f"it has {number} of {header['num_events']} events")
    if header["version"] == VERSION_WITH_JOURNALS and len(journals) < len(logs):
        raise ValueError(f"it has the journals of {len(journals)} of {len(logs)} ranks")
    return logs, [journals[rank] for rank in sorted(journals)] or ()


def _rank(rank: Any, logs: Sequence[Any]) -> int:
    """Return a rank, which must be one of the run's."""
    if type(rank) is not int or not 0 <= rank < len(logs):
        raise ValueError(f"rank {rank!r} is none of 0..{len(logs) - 1}")
    return rank


def _event(names: Sequence[str], values: list[Any], places: Sequence[int], sets: _Sets) -> Event:
    """Return the event of one line.

    Args:
        names: of the fields.
        values: of the fields, in that order.
        places: which of them are sets.
        sets: those of the events before it, to which its own are added, so that events share them.
    """
    for place in places:
        if place < len(values) and values[place] is not None:
            ranges = names[place], *map(tuple, values[place])
            if ranges not in sets:
                numbers = [number for first, stop in values[place] for number in range(first, stop)]
                sets[ranges] = _SETS[names[place]](numbers)
            values[place] = sets[ranges]
    known = dict(zip(names, values, strict=False))
    if known["samples"] is None:
        raise ValueError("an event has no samples")
    if isinstance(known.get("tag"), list):
        known["tag"] = _tuples(known["tag"])
    event = Event(**known)
    if not all(math.isfinite(number) for number in (event.time, event.duration, event.memory)):
        raise ValueError(f"an event of rank {event.rank} has a time or a memory that is not finite")
    return event


def _journal(values: Mapping[str, Any]) -> list[MemoryChange]:
    """Return the journal of one rank."""
    kinds = values["kinds"]
    return [MemoryChange(place, kinds[code], float(size)) for place, code, size in values["changes"]]


def _tuples(value: Any) -> Any:
    """Return nested lists as tuples, which a tag must be to be hashable."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
