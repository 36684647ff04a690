"""The first line of a run file: what it must say, before anything is made from it.

No value in it may cause more work than the file's size justifies. A file holds a peak for each of its ranks. The
numbers of layers and samples, which take no space, are bounded by the file's size and by what anybody trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import prod
from typing import Any

from minitrain.errors import UsageError
from minitrain.events import Event
from minitrain.hardware.config_faults import shown
from minitrain.run.run_file_faults import (
    ABOVE_0,
    AT_LEAST_0,
    LIST,
    OBJECT,
    PLAIN,
    TEXT,
    TIME,
    Faults,
    Place,
    Rule,
    whole,
)
from minitrain.run.run_file_kinds import judge_device_kinds

FORMAT = "minitrain-run"
VERSION, VERSION_WITH_JOURNALS, VERSION_OF_ALIKE = 1, 2, 3
HEADER = (
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
NETWORKS = ("flat", "hierarchical", "measured")
FIELDS = tuple(field.name for field in fields(Event))
SPECIFIED = FIELDS[:7]

_KEYS = (*HEADER, "options", "oom", "fields")
_MOST_LAYERS, _MOST_SAMPLES, _MOST_RANKS = 2**20, 2**24, 2**24  # of a file of no size
_MOST_BYTES_PER_ELEMENT = 1024
_MOST_TOKENS = 2**40


class Object(dict[str, Any]):
    """A JSON object that remembers which of its keys came twice."""

    repeated: tuple[str, ...] = ()


def object_of(pairs: list[tuple[str, Any]]) -> Object:
    """Make an object of its pairs; the last of two equal keys wins, as everywhere in JSON."""
    result = Object(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        result.repeated = tuple(name for name in result if names.count(name) > 1)
    return result


def judge_repeated(faults: Faults, line: int, values: Any, place: tuple[str, ...] = ()) -> None:
    """Keep a fault for each key that came twice in an object, or in one that it holds."""
    if isinstance(values, Object):
        for name in values.repeated:
            faults.add(line, "expected each key once, found it more than once; remove one", (*place, name))
        for name, value in values.items():
            judge_repeated(faults, line, value, (*place, name))


def judge_header(header: Any, size: int, faults: Faults) -> bool:
    """Return whether the first line is as it must be, so that the lines after it can be read.

    Args:
        header: what it holds.
        size: bytes of the file.
        faults: of the file.

    Raises:
        UsageError: the file is of a version that this program does not know.
    """
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        faults.add(1, f'its first line does not say so: expected an object with "format": "{FORMAT}"')
        return False
    version = header.get("version")
    if version.__class__ is not int or version not in (VERSION, VERSION_WITH_JOURNALS, VERSION_OF_ALIKE):
        known = f"{VERSION}, {VERSION_WITH_JOURNALS} and {VERSION_OF_ALIKE}"
        raise UsageError(f"the run file is of version {shown(version)}; this minitrain reads {known}")
    before = faults.number
    judge_repeated(faults, 1, header)
    missing = [name for name in _KEYS if name not in header]
    if missing:
        faults.add(1, f"its first line lacks {', '.join(missing)}")
    rules = _rules(size)
    faults.judge_keys(1, (), header, {key: rule for key, rule in rules.items() if key in header})
    if faults.number == before:
        _judge_parts(header, faults)
    return faults.number == before


def _rules(size: int) -> Mapping[str, Rule]:
    """Return what each key must hold."""
    return {
        "strategy": TEXT,
        "world_size": whole(1, _MOST_RANKS + size),
        "num_layers": whole(1, _MOST_LAYERS + size),
        "global_batch_size": whole(1, _MOST_SAMPLES + size),
        "hardware": TEXT,
        "peak_memory_per_rank": LIST,
        "bytes_per_element": whole(1, _MOST_BYTES_PER_ELEMENT),
        "useful_flop": AT_LEAST_0,
        "peak_flop_per_s": ABOVE_0.or_null(),
        "capacity_bytes": ABOVE_0.or_null(),
        "num_events": whole(0, size),
        "network": TEXT,
        "priced_by": TEXT,
        "workload": TEXT,
        "num_nodes": whole(1, _MOST_RANKS + size),
        "options": OBJECT,
        "oom": OBJECT.or_null(),
        "held_outside": OBJECT.or_null(),
        "trained_model": OBJECT.or_null(),
        "needed_memory_bytes": ABOVE_0.or_null(),
        "memory_by_kind": OBJECT.or_null(),
        "meshes": LIST,
        "device_kinds": LIST,
        "outages": LIST,
        "peak_host_memory_bytes": AT_LEAST_0,
        "fields": LIST,
    }


def _judge_parts(header: Mapping[str, Any], faults: Faults) -> None:
    """Judge what the lists and objects hold, and what must hold between values."""
    world_size, peaks = header["world_size"], header["peak_memory_per_rank"]
    if len(peaks) != world_size:
        expected = f"expected a value for each of {world_size} ranks (world_size), found {len(peaks)}"
        faults.add(1, expected, ("peak_memory_per_rank",))
    for place, peak in enumerate(peaks):
        faults.judge(1, ("peak_memory_per_rank", place), peak, AT_LEAST_0)
    for name, value in header["options"].items():
        faults.judge(1, ("options", name), value, PLAIN)
    _judge_fields(header["fields"], faults)
    judge_device_kinds(header, faults)
    _judge_outages(header.get("outages", ()), faults)
    if header.get("network", "flat") not in NETWORKS:
        faults.add(1, f"expected one of {', '.join(NETWORKS)}, found {shown(header['network'])}", ("network",))
    rank = whole(0, world_size - 1)
    rules: dict[str, Rule]
    if header["oom"] is not None:
        rules = {"rank": rank, "time": TIME, "capacity_bytes": ABOVE_0, "held_bytes": OBJECT}
        rules |= {"device": TEXT} if "device" in header["oom"] else {}
        _judge_amounts(header["oom"], "oom", rules, "held_bytes", faults)
    if header.get("held_outside") is not None:
        rules = {"rank": rank, "time": TIME, "elements": AT_LEAST_0, "elements_by_line": OBJECT}
        _judge_amounts(header["held_outside"], "held_outside", rules, "elements_by_line", faults)
    _judge_transformer(header, faults)


def _judge_outages(outages: Iterable[Any], faults: Faults) -> None:
    """Judge when the step was interrupted."""
    for place, outage in enumerate(outages):
        if faults.judge(1, ("outages", place), outage, OBJECT):
            faults.judge_keys(1, ("outages", place), outage, {"start": TIME, "end": TIME, "reason": TEXT})


def _judge_transformer(header: Mapping[str, Any], faults: Faults) -> None:
    """Judge what is said where a transformer was trained."""
    if header.get("trained_model") is not None:
        _judge_trained_model(header["trained_model"], header["num_layers"], faults)
    for kind, size_bytes in (header.get("memory_by_kind") or {}).items():
        faults.judge(1, ("memory_by_kind", kind), size_bytes, AT_LEAST_0)
    for place, mesh in enumerate(header.get("meshes", ())):
        _judge_mesh(mesh, ("meshes", place), header["world_size"], faults)


def _judge_mesh(mesh: Any, place: Place, world_size: int, faults: Faults) -> None:
    """Judge the axes of a mesh: a size by name, and as many ranks as there are."""
    if not faults.judge(1, place, mesh, OBJECT):
        return
    size = whole(1, world_size)
    found = [length for axis, length in mesh.items() if faults.judge(1, (*place, axis), length, size)]
    if len(found) == len(mesh) and prod(found) != world_size:
        faults.add(1, f"expected axes of {world_size} ranks (world_size), found {prod(found)}", place)


def _judge_trained_model(values: Any, num_layers: int, faults: Faults) -> None:
    """Judge what is said of a transformer: a name for each of its layers, and more."""
    place = ("trained_model",)
    rules = {"name": TEXT, "seq_len": whole(1, _MOST_TOKENS), "layer_names": LIST, "recomputed_flop": AT_LEAST_0}
    copies: dict[str, Rule] = {key: AT_LEAST_0 for key in ("routed_copies", "dropped_copies") if key in values}
    copies |= {key: whole(1, _MOST_TOKENS) for key in ("max_seq_len",) if key in values}
    copies |= {key: TEXT for key in ("kind", "precision", "peak_of") if key in values}
    if not faults.judge_keys(1, place, values, {**rules, **copies}):
        return
    names = values["layer_names"]
    if len(names) != num_layers:
        expected = f"expected a name for each of {num_layers} layers (num_layers), found {len(names)}"
        faults.add(1, expected, (*place, "layer_names"))
    for layer, name in enumerate(names):
        faults.judge(1, (*place, "layer_names", layer), name, TEXT)


def _judge_amounts(values: Any, key: str, rules: Mapping[str, Rule], amounts: str, faults: Faults) -> None:
    """Judge an object of which one key holds amounts by name."""
    if faults.judge_keys(1, (key,), values, rules):
        for name, amount in values[amounts].items():
            faults.judge(1, (key, amounts, name), amount, AT_LEAST_0)


def _judge_fields(names: list[Any], faults: Faults) -> None:
    """Judge the names of an event's places; those that nobody knows may stand there, but events must not use them."""
    texts = [name for place, name in enumerate(names) if faults.judge(1, ("fields", place), name, TEXT)]
    missing = [name for name in SPECIFIED if name not in texts]
    if missing:
        faults.add(1, f"expected {', '.join(SPECIFIED)} and more, found no {', '.join(missing)}", ("fields",))
    if len(set(texts)) < len(texts):
        faults.add(1, "expected each name once, found one more than once; remove one", ("fields",))
