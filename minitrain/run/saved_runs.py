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
One of many steps has `steps`: `num_steps`, `load_time` (s), `ends` (s) and `period` (see `minitrain.run.steps.Steps`).
That of several measured steps has `typical`: lists of `time`, `duration` and `launched`, s, a number for each event.

Version 2 has one more line a rank, an object with its journal of memory by kind. A run without journals is written as
version 1, which older readers know. Version 3 has events of some ranks alone, and one more line for each other rank,
which did what one of those did: `rank`, `like`, and its own `samples` and `partners` (see `minitrain.run.ranks_once`);
it has no journals.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from minitrain.errors import UsageError
from minitrain.files import json_object, size_of, write_text
from minitrain.machine.config_files import label_of
from minitrain.operations import Event, MemoryChange, Outage
from minitrain.run.device_memory import MemoryOutsideStores, OutOfMemory, kinds_of_journals
from minitrain.run.ranks_once import Repeated
from minitrain.run.run_file import (
    FIELDS,
    FORMAT,
    HEADER,
    VERSION,
    VERSION_OF_ALIKE,
    VERSION_WITH_JOURNALS,
    Faults,
    Reader,
    Rule,
    is_number,
    judge_header,
    kinds_of_header,
    read_record,
    saved_record,
)
from minitrain.run.steps import Steps
from minitrain.run.trained_model import TrainedModel
from minitrain.workloads.matmul import SPECIFIED

if TYPE_CHECKING:
    pass


TYPICAL = ("time", "duration", "launched")
"""What a first line may say of the typical times of measured operations."""
_PARTS: Mapping[str, Any] = {
    "oom": OutOfMemory,
    "held_outside": MemoryOutsideStores,
    "trained_model": TrainedModel,
    "steps": Steps,
}
"""What objects of a first line stand for."""
_NETWORK: Mapping[str, Any] = {"network": "flat", "num_nodes": 1}
"""The network of a run whose first line does not say it: one tier, or the file is of an older version."""
ROOFLINE = "roofline"
"""How operations were priced where the first line does not say it."""
_DEFAULTS = tuple(getattr(field, "default", None) for field in fields(Event))
_SET_PLACES = (FIELDS.index("samples"), FIELDS.index("group"))
_Ranges = dict[int, tuple[Iterable[int], list[list[int]]]]  # sets and their ranges, by the set's identity

_LONGEST_LINE = 2**27  # characters, enough for a journal of six million changes
_MOST_UNPACKED, _UNPACKED_A_BYTE = 2**24, 32  # logs shrink to about a seventh when they are compressed


def plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def save_run(run: Any, path: str | PathLike[str], repeated: Sequence[Repeated] = ()) -> None:
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
    header = {"format": FORMAT, "version": version, "fields": FIELDS, **{name: getattr(run, name) for name in HEADER}}
    header["num_events"] = sum(len(run.logs[rank]) for rank in written) if repeated else run.num_events
    header["options"] = {name: plain(value) for name, value in run.options.items()}
    header["oom"] = run.oom and saved_record(run.oom)
    header |= _more_of(run)
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


def _more_of(run: Any) -> dict[str, Any]:
    """Return what only the first lines of some runs say."""
    more: dict[str, Any] = {}
    network = {name: getattr(run, name) for name in _NETWORK}
    if network != _NETWORK:
        more |= network
    usual = {"priced_by": ROOFLINE, "workload": SPECIFIED if run.trained_model is None else run.trained_model.name}
    more |= {name: getattr(run, name) for name, value in usual.items() if getattr(run, name) != value}
    if run.held_outside is not None:
        more["held_outside"] = saved_record(run.held_outside)
    if run.peak_host_memory_bytes:
        more["peak_host_memory_bytes"] = run.peak_host_memory_bytes
    if run.steps is not None:
        more["steps"] = saved_record(run.steps)
    if run.outages:
        more["outages"] = [outage._asdict() for outage in run.outages]
    if run.device_kinds:
        more["device_kinds"] = [asdict(kind) | {"ranks": to_ranges(kind.ranks)} for kind in run.device_kinds]
    if run.trained_model is not None:
        more["trained_model"] = saved_record(run.trained_model)
        more["needed_memory_bytes"] = run.needed_memory_bytes
        more["memory_by_kind"] = run.memory_by_kind and dict(run.memory_by_kind)
        more["meshes"] = [dict(mesh) for mesh in run.meshes]
    return more


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
        with _open(file) as lines:
            header, logs, journals = _read(_numbered(lines, size, faults), size, faults)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        if isinstance(error, UsageError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the run file {label} cannot be read: {reason}; write it with run.save()") from error
    parts = {key: header.get(key) and read_record(kind, header[key]) for key, kind in _PARTS.items()}
    trained = parts["trained_model"]
    return {
        **{name: header[name] for name in HEADER},
        "options": dict(header["options"]),
        "logs": logs,
        **parts,
        "memory_journals": journals,
        "needed_memory_bytes": header.get("needed_memory_bytes"),
        "memory_by_kind": _kinds(header, journals),
        "meshes": header.get("meshes", []),
        "outages": tuple(read_record(Outage, each) for each in header.get("outages", ())),
        "typical": tuple(header["typical"][name] for name in TYPICAL) if "typical" in header else None,
        "peak_host_memory_bytes": header.get("peak_host_memory_bytes", 0.0),
        **{name: header.get(name, default) for name, default in _NETWORK.items()},
        "priced_by": header.get("priced_by", ROOFLINE),
        "workload": header.get("workload", SPECIFIED if trained is None else trained.name),
        "device_kinds": kinds_of_header(header),
    }


def _kinds(header: Mapping[str, Any], journals: Sequence[Sequence[MemoryChange]]) -> dict[str, float] | None:
    """Return the bytes of each kind at the peak: those that the file states, or else those of its journals."""
    stated: Mapping[str, float] | None = header.get("memory_by_kind")
    if stated is not None:
        return dict(stated)
    return kinds_of_journals(journals, header["bytes_per_element"]) if journals else None


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
    if not (judge_header(header, size, faults) and _judge_typical(header, faults)):
        raise faults.error()
    reader = Reader(header, size, faults)
    for number, values in lines:
        reader.take(number, values)
    journals = reader.end(number)
    if faults.number:
        raise faults.error()
    return header, reader.logs, journals


def _judge_typical(header: Mapping[str, Any], faults: Faults) -> bool:
    """Return whether typical times, where a first line has them, are a number for each event."""
    count = header.get("num_events")
    numbers = Rule(
        f"a list of {count} numbers",
        lambda values: values.__class__ is list and len(values) == count and all(map(is_number, values)),
    )
    columns = header.get("typical")
    if "typical" not in header:
        return True
    if not isinstance(columns, dict):
        faults.add(1, f"expected an object, found {columns!r:.40}", ("typical",))
        return False
    return faults.judge_keys(1, ("typical",), columns, dict.fromkeys(TYPICAL, numbers))
