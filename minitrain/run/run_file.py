"""Rules for the values of a run file, and the faults that were found in one, by line and key.

Which ranks have which device, in the file of a run on a cluster: validated, and read.

The first line of a run file: what it must say, before anything is made from it.

No value in it may cause more work than the file's size justifies. A file holds a peak for each of its ranks. The
numbers of layers and samples, which take no space, are bounded by the file's size and by what anybody trains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, signature
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from minitrain.errors import UsageError
from minitrain.files import JsonObject, key_path, shown
from minitrain.machine.config import first_faults
from minitrain.operations import Event, Outage
from minitrain.run.device_memory import MemoryOutsideStores, OutOfMemory
from minitrain.run.facts import Steps, TrainedModel

if TYPE_CHECKING:
    from minitrain.run.facts import DeviceKind


SMALLEST, LARGEST = 1e-100, 1e100  # outside these magnitudes products of fields overflow or vanish, as in configs
LONGEST_S = 1e200  # a sum of times
NUMBERS: frozenset[Any] = frozenset({int, float})  # true and false are neither

_MOST_KEPT, _MOST_FOUND = 20, 1000

Place = tuple[int | str, ...]

T = TypeVar("T")


class Rule(NamedTuple):
    """What a value must be.

    Args:
        expected: in words.
        accepts: whether a value is one.
    """

    expected: str
    accepts: Callable[[Any], bool]

    def or_null(self) -> Rule:
        """Return the rule that accepts null too."""
        return Rule(f"{self.expected}, or null", lambda value: value is None or self.accepts(value))


def whole(least: int, most: int) -> Rule:
    """Return the rule for a whole number within bounds."""
    return Rule(f"a whole number in {least}..{most}", lambda value: value.__class__ is int and least <= value <= most)


def is_number(value: Any) -> bool:
    """Return whether a value is a number of sensible magnitude."""
    return value.__class__ in NUMBERS and -LARGEST <= value <= LARGEST


NUMBER = Rule("a number in -1e100..1e100", is_number)
AT_LEAST_0 = Rule(
    "0 or a number in 1e-100..1e100", lambda value: is_number(value) and (value >= SMALLEST or value == 0)
)
TIME = Rule(
    "0 or a time in 1e-100..1e200 s",
    lambda value: value.__class__ in NUMBERS and (SMALLEST <= value <= LONGEST_S or value == 0),
)
ABOVE_0 = Rule("a number in 1e-100..1e100", lambda value: is_number(value) and value >= SMALLEST)
FLAG = Rule("true or false", lambda value: value.__class__ is bool)
TEXT = Rule("text", lambda value: value.__class__ is str)
LIST = Rule("a list", lambda value: value.__class__ is list)
OBJECT = Rule("an object", lambda value: isinstance(value, dict))
PLAIN = Rule(
    "null, true, false, a number or text",
    lambda value: value is None or value.__class__ in (bool, str) or is_number(value),
)


def one_of(names: Collection[str]) -> Rule:
    """Return the rule for one of some names."""
    return Rule(f"one of {', '.join(names)}", lambda value: value.__class__ is str and value in names)


class Faults:
    """The faults of a file: all are counted, and the first ones kept in words.

    Args:
        label: what messages call the file.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.kept: list[str] = []
        self.number = 0

    def add(self, line: int, fault: str, place: Place = ()) -> None:
        """Keep a fault.

        Raises:
            UsageError: there are so many that nobody would read on.
        """
        self.number += 1
        if self.number <= _MOST_KEPT:
            self.kept.append(f"line {line}, {key_path(place)}: {fault}" if place else f"line {line}: {fault}")
        if self.number >= _MOST_FOUND:
            raise self.error()

    def judge(self, line: int, place: Place, value: Any, rule: Rule) -> bool:
        """Return whether a value is as it must be; keep the fault if it is not."""
        good = rule.accepts(value)
        if not good:
            self.add(line, f"expected {rule.expected}, found {shown(value)}", place)
        return good

    def judge_keys(self, line: int, place: Place, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> bool:
        """Return whether an object holds what it must; keep each fault."""
        before = self.number
        for key, rule in rules.items():
            if key in values:
                self.judge(line, (*place, key), values[key], rule)
            else:
                self.add(line, f"expected {rule.expected}, found nothing", (*place, key))
        return self.number == before

    def error(self) -> UsageError:
        """Return the error that names the first faults (facts: `path`, and `faults`, which has some more)."""
        begin, remedy = f"{self.label} is not a minitrain-run file, or it is damaged", "write it with run.save()"
        facts = {"path": self.label, "faults": tuple(self.kept)}
        if self.number == 1:
            return UsageError(f"{begin}: {self.kept[0]}; {remedy}", **facts)
        return UsageError(
            "\n".join(first_faults(f"{begin}: {self.number} faults; {remedy}", self.kept, self.number)), **facts
        )


_OF_TYPE: Mapping[str, tuple[Rule, Rule | None]] = {
    "str": (TEXT, None),
    "int": (whole(0, 2**53), None),
    "float": (AT_LEAST_0, None),
    "tuple[int, ...]": (LIST, None),
    "tuple[str, ...]": (LIST, TEXT),
    "tuple[float, ...]": (LIST, TIME),
    "Mapping[str, float]": (OBJECT, AT_LEAST_0),
}
"""What a field of a type must be in a file, and each of what it holds."""
_COUNT = whole(1, 2**40)
_OF_NAME: Mapping[str, Rule] = {
    **dict.fromkeys(("time", "start", "end", "load_time"), TIME),
    **dict.fromkeys(("capacity_bytes", "peak_flop_per_s", "watts"), ABOVE_0),
    **dict.fromkeys(("seq_len", "max_seq_len"), _COUNT),
    **dict.fromkeys(("num_steps", "period"), whole(1, 2**24)),
    "clock_share": Rule("a number in 1e-100..1", lambda value: ABOVE_0.accepts(value) and value <= 1),
}
"""Of some names more than their types say."""
_NOT_SAVED = frozenset({"first", "returned"})  # of steps


def _saved_fields(kind: Callable[..., Any]) -> Iterator[tuple[str, Rule, Rule | None, Any]]:
    """Yield the fields of a class that files have: name, rule, rule of what it holds, and default."""
    for name, field in signature(kind).parameters.items():
        if name not in _NOT_SAVED:
            typ, _, is_null = str(getattr(field.annotation, "__forward_arg__", field.annotation)).partition(" | ")
            of_type, of_items = _OF_TYPE[typ]
            rule = _OF_NAME.get(name, of_type)
            yield name, rule.or_null() if is_null else rule, of_items, field.default


def judge_record(kind: Callable[..., Any], values: Any, place: Place, faults: Faults, **more: Rule) -> bool:
    """Judge an object of the first line by the fields of the class that it becomes; return whether it is as it must be.

    Args:
        kind: a dataclass or named tuple; its fields with defaults need not be there.
        values: the object.
        place: where it is.
        faults: of the file.
        more: rules of fields that depend on the rest of the line.
    """
    if not faults.judge(1, place, values, OBJECT):
        return False
    before = faults.number
    for name, of_field, of_items, default in _saved_fields(kind):
        rule = more.get(name, of_field)
        if name not in values:
            if default is Parameter.empty:
                faults.add(1, f"expected {rule.expected}, found nothing", (*place, name))
        elif faults.judge(1, (*place, name), values[name], rule) and of_items is not None:
            items = values[name]
            for key, item in items.items() if isinstance(items, dict) else enumerate(items):
                faults.judge(1, (*place, name, key), item, of_items)
    return faults.number == before


def read_record(kind: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Return what an object stands for that was judged."""
    known = {name: values[name] for name, *_ in _saved_fields(kind) if name in values}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})


def saved_record(record: Any) -> dict[str, Any]:
    """Return the fields of a record as files have them: words and counts only where they are not as usual."""
    found = {name: (getattr(record, name), default) for name, *_, default in _saved_fields(type(record))}
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, (value, default) in found.items()
        if isinstance(value, float) or value != default
    }


_KEY = "device_kinds"


def judge_device_kinds(header: Mapping[str, Any], faults: Faults) -> None:
    """Judge the kinds of device, if there are any: each rank has one of them."""
    before, world_size = faults.number, header["world_size"]
    if not (kinds := header.get(_KEY)):
        return
    from minitrain.run.facts import DeviceKind  # noqa: PLC0415  (few runs have several kinds)

    for place, kind in enumerate(kinds):
        judge_record(DeviceKind, kind, (_KEY, place), faults)
    if faults.number > before:
        return
    ranges = [found for kind in kinds for found in kind["ranks"]]
    if not _follow_one_another(ranges):
        faults.add(1, f"expected ranges of ranks that hold each of 0..{world_size - 1} once", (_KEY,))
        return
    names, last = {kind["name"] for kind in kinds}, max([stop for _, stop in ranges], default=0)
    if last != world_size or len(names) < len(kinds):
        faults.add(1, f"expected kinds of different names that hold each rank of 0..{world_size - 1} once", (_KEY,))


def _follow_one_another(ranges: Sequence[Any]) -> bool:
    """Return whether ranges of ranks, once they are sorted, begin with rank 0 and each where the one before ends."""
    if not all(map(_is_range, ranges)):
        return False
    ordered = sorted(ranges)
    return [start for start, _ in ordered] == [0, *[stop for _, stop in ordered]][:-1]


def _is_range(found: Any) -> bool:
    """Return whether a value is [first, past-the-last] of at least one rank."""
    if not isinstance(found, list) or len(found) != 2:
        return False
    return all(value.__class__ is int for value in found) and 0 <= found[0] < found[1]


def kinds_of_header(header: Mapping[str, Any]) -> Sequence[DeviceKind]:
    """Return the kinds of device in a first line that was validated."""
    if not header.get(_KEY):
        return ()
    from minitrain.run.facts import DeviceKind  # noqa: PLC0415  (few runs have several kinds)

    return tuple(read_record(DeviceKind, kind | {"ranks": _ranks(kind["ranks"])}) for kind in header[_KEY])


def _ranks(ranges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the ranks of some ranges."""
    return tuple(rank for start, stop in ranges for rank in range(start, stop))


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
MOST_LAYERS, _MOST_SAMPLES, _MOST_RANKS = 2**20, 2**24, 2**24  # of a file of no size
_MOST_BYTES_PER_ELEMENT = 1024


def judge_repeated(faults: Faults, line: int, values: Any, place: tuple[str, ...] = ()) -> None:
    """Keep a fault for each key that came twice in an object, or in one that it holds."""
    if isinstance(values, JsonObject):
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
        "num_layers": whole(1, MOST_LAYERS + size),
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
        "steps": OBJECT,
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
    if "steps" in header:
        _judge_steps(header["steps"], faults)
    if header.get("network", "flat") not in NETWORKS:
        faults.add(1, f"expected one of {', '.join(NETWORKS)}, found {shown(header['network'])}", ("network",))
    _judge_moments(header, faults)
    _judge_transformer(header, faults)


def _judge_moments(header: Mapping[str, Any], faults: Faults) -> None:
    """Judge when memory was exceeded, most was held outside the stores, and the step was interrupted."""
    rank = whole(0, header["world_size"] - 1)
    for key, kind in (("oom", OutOfMemory), ("held_outside", MemoryOutsideStores)):
        if header.get(key) is not None:
            judge_record(kind, header[key], (key,), faults, rank=rank)
    for place, outage in enumerate(header.get("outages", ())):
        judge_record(Outage, outage, ("outages", place), faults)


def _judge_steps(steps: Mapping[str, Any], faults: Faults) -> None:
    """Judge when each of several steps ended."""
    if not judge_record(Steps, steps, ("steps",), faults):
        return
    ends, period = steps["ends"], steps["period"]
    if not ends or sorted([steps["load_time"], *ends]) != [steps["load_time"], *ends]:
        faults.add(1, "expected times of at least one step, in order, after load_time", ("steps", "ends"))
    if len(ends) > steps["num_steps"] or (len(ends) < steps["num_steps"]) > (period is not None):
        faults.add(1, "expected an end for each of num_steps, or a period", ("steps", "ends"))
    if period is not None and period > len(ends):
        faults.add(1, f"expected at most {len(ends)}, as many as there are ends, found {period}", ("steps", "period"))


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
    if judge_record(TrainedModel, values, ("trained_model",), faults) and len(values["layer_names"]) != num_layers:
        expected = f"expected a name for each of {num_layers} layers (num_layers), found {len(values['layer_names'])}"
        faults.add(1, expected, ("trained_model", "layer_names"))


def _judge_fields(names: list[Any], faults: Faults) -> None:
    """Judge the names of an event's places; those that nobody knows may stand there, but events must not use them."""
    texts = [name for place, name in enumerate(names) if faults.judge(1, ("fields", place), name, TEXT)]
    missing = [name for name in SPECIFIED if name not in texts]
    if missing:
        faults.add(1, f"expected {', '.join(SPECIFIED)} and more, found no {', '.join(missing)}", ("fields",))
    if len(set(texts)) < len(texts):
        faults.add(1, "expected each name once, found one more than once; remove one", ("fields",))
