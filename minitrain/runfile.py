"""The event-log file: JSON Lines that `Run.save` writes and `load_run` reads.

The first line is an object with the run's figures, `"format": "minitrain-run"`, `"version": 1`, and `"fields"`, the
names of an event's places. Every further line is one event as an array in that order, trailing defaults left out; the
events of a rank stand in program order, rank after rank. `samples` and `group` are lists of [first, past-the-last]
ranges; times are in seconds, memory in elements, and floats are written so that reading gives the same float.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.events import Event
from minitrain.run import OutOfMemory, Run, plain
from minitrain.trace.files import write_text

FORMAT = "minitrain-run"
VERSION = 1

_FIELDS = tuple(field.name for field in fields(Event))
_DEFAULTS = tuple(getattr(field, "default", None) for field in fields(Event))
_SETS = ("samples", "group")
_SET_PLACES = tuple(_FIELDS.index(name) for name in _SETS)
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


def save_run(run: Run, path: str | PathLike[str]) -> None:
    """Write a run to a file, whole or not at all."""
    write_text(Path(path), (line + "\n" for line in _lines(run)))


def _lines(run: Run) -> Iterator[str]:
    """Yield the lines of the file."""
    oom = run.oom and {
        "rank": run.oom.rank,
        "time": run.oom.time,
        "capacity_bytes": run.oom.capacity_bytes,
        "held_bytes": dict(run.oom.held_bytes),
    }
    header = {"format": FORMAT, "version": VERSION, "fields": _FIELDS, **{name: getattr(run, name) for name in _HEADER}}
    header["options"] = {name: plain(value) for name, value in run.options.items()}
    header["oom"] = oom
    yield json.dumps(header)
    for log in run.logs:
        for event in log:
            yield json.dumps(_pack(event), separators=(",", ":"))


def _pack(event: Event) -> list[Any]:
    """Return an event as the values of its fields, trailing defaults left out."""
    values = [getattr(event, name) for name in _FIELDS]
    while values and len(values) > 7 and values[-1] == _DEFAULTS[len(values) - 1]:
        values.pop()
    for place in _SET_PLACES:
        if place < len(values) and values[place] is not None:
            values[place] = to_ranges(values[place])
    return values


def to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return a set of integers as ascending [first, past-the-last] ranges."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return ranges


def load_run(path: str | PathLike[str]) -> Run:
    """Read a run that `Run.save` wrote.

    Raises:
        UsageError: the file is missing, damaged, or of an unknown version.
    """
    file = Path(path)
    try:
        with file.open(encoding="utf-8") as lines:
            header = _header(json.loads(next(lines, "")))
            logs = _logs(lines, header)
    except OSError as error:
        raise UsageError(f"the run file {file} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{file} is not a {FORMAT} file, or it is damaged: {error}; write it with run.save()"
        ) from error
    oom = header["oom"]
    return Run(
        **{name: header[name] for name in _HEADER},
        options=header["options"],
        logs=logs,
        oom=None if oom is None else OutOfMemory(**oom),
    )


def _header(header: Any) -> Mapping[str, Any]:
    """Return the first line if this program can read what follows."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("its first line does not say so")
    if header.get("version") != VERSION:
        raise UsageError(f"the run file is of version {header.get('version')!r}; this minitrain reads {VERSION}")
    missing = [name for name in (*_HEADER, "options", "oom", "fields") if name not in header]
    if missing:
        raise ValueError(f"its first line lacks {', '.join(missing)}")
    return header


def _logs(lines: Iterable[str], header: Mapping[str, Any]) -> Sequence[Sequence[Event]]:
    """Read the events of every rank."""
    names = header["fields"]
    places = [place for place, name in enumerate(names) if name in _SETS]
    logs: list[list[Event]] = [[] for _ in range(header["world_size"])]
    for line in lines:
        values = json.loads(line)
        for place in places:
            if place < len(values) and values[place] is not None:
                values[place] = [number for first, stop in values[place] for number in range(first, stop)]
        known = dict(zip(names, values, strict=False))
        known["samples"] = frozenset(known["samples"])
        if known.get("group") is not None:
            known["group"] = tuple(known["group"])
        if isinstance(known.get("tag"), list):
            known["tag"] = _tuples(known["tag"])
        event = Event(**known)
        logs[event.rank].append(event)
    return logs


def _tuples(value: Any) -> Any:
    """Return nested lists as tuples, which a tag must be to be hashable."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
