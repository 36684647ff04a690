"""Rules for the values of a run file, and the faults that were found in one, by line and key.

The first line of a run file: what it says of a run, and what it must say before anything is made from it.

No value in it may cause more work than the file's size justifies. A file holds a peak for each of its ranks. The
numbers of layers and samples, which take no space, are bounded by the file's size and by what anybody trains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, signature
from math import isfinite, prod
from typing import Any, NamedTuple, TypeVar

from minitrain.errors import UsageError
from minitrain.files import JsonObject, key_path, shown
from minitrain.machine.config import first_faults
from minitrain.operations import Event, Outage
from minitrain.run.device_memory import MemoryOutsideStores, OutOfMemory
from minitrain.run.facts import DeviceKind, Steps, TrainedModel
from minitrain.tensors.index_sets import runs
from minitrain.workloads.matmul import SPECIFIED as SPECIFIED_WORKLOAD

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


def _is_range(value: Any) -> bool:
    """Return whether a value is [first, past-the-last] of at least one rank."""
    if value.__class__ is not list or len(value) != 2:
        return False
    return all(end.__class__ is int for end in value) and 0 <= value[0] < value[1]


RANGE = Rule("a range [first, past-the-last]", _is_range)


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

    def expect(self, is_so: bool, expected: str, *place: int | str) -> None:
        """Keep a fault of the first line unless something is so."""
        if not is_so:
            self.add(1, f"expected {expected}", place)

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
    "tuple[int, ...]": (LIST, RANGE),
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
            for key, item in _inside(values[name]):
                faults.judge(1, (*place, name, key), item, of_items)
    return faults.number == before


def _inside(values: Any) -> Iterable[tuple[int | str, Any]]:
    """Return what an object or a list holds, with keys or places."""
    return values.items() if isinstance(values, dict) else enumerate(values or ())


def read_record(kind: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Return what an object stands for that was judged."""
    return kind(
        **{
            name: _members(values[name], of_items) if isinstance(values[name], list) else values[name]
            for name, _, of_items, _ in _saved_fields(kind)
            if name in values
        }
    )


def _members(values: list[Any], of_items: Rule | None) -> tuple[Any, ...]:
    """Return what a list has, or the ranks of its ranges."""
    return tuple(rank for start, stop in values for rank in range(start, stop)) if of_items is RANGE else tuple(values)


def saved_record(record: Any) -> dict[str, Any]:
    """Return the fields of a record as files have them: words and counts only where they are not as usual."""
    found: dict[str, Any] = {}
    for name, _, of_items, default in _saved_fields(type(record)):
        value = getattr(record, name)
        if isinstance(value, float) or value != default:
            found[name] = (
                to_ranges(value) if of_items is RANGE else dict(value) if isinstance(value, Mapping) else value
            )
    return found


def to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return a set of integers as ascending [first, past-the-last] ranges."""
    return [[first, last + 1] for first, last in runs(numbers)]


FORMAT = "minitrain-run"
VERSION, VERSION_WITH_JOURNALS, VERSION_OF_ALIKE = 1, 2, 3
FIELDS = tuple(field.name for field in fields(Event))
SPECIFIED = FIELDS[:7]
TYPICAL = ("time", "duration", "launched")
"""What a first line may say of the typical times of measured operations."""

MOST_LAYERS, _MOST_SAMPLES, _MOST_RANKS = 2**20, 2**24, 2**24  # of a file of no size
_MOST_BYTES_PER_ELEMENT = 1024
_NEEDED = Parameter.empty


class _Key(NamedTuple):
    """What a key of the first line holds: a parameter of `Run`, by its name.

    Args:
        rule: for the value.
        usual: what the value is where the key is missing; files must have a key that has none.
        kind: what its object, or each object of its list, stands for.
        item: the rule for each value in it.
    """

    rule: Rule
    usual: Any = _NEEDED
    kind: Callable[..., Any] | None = None
    item: Rule | None = None


def _keys(size: int = 0) -> Mapping[str, _Key]:
    """Return the keys of the first line in a file of so many bytes."""
    return {
        "strategy": _Key(TEXT),
        "world_size": _Key(whole(1, _MOST_RANKS + size)),
        "num_layers": _Key(whole(1, MOST_LAYERS + size)),
        "global_batch_size": _Key(whole(1, _MOST_SAMPLES + size)),
        "hardware": _Key(TEXT),
        "peak_memory_per_rank": _Key(LIST, item=AT_LEAST_0),
        "bytes_per_element": _Key(whole(1, _MOST_BYTES_PER_ELEMENT)),
        "useful_flop": _Key(AT_LEAST_0),
        "peak_flop_per_s": _Key(ABOVE_0.or_null()),
        "capacity_bytes": _Key(ABOVE_0.or_null()),
        "num_events": _Key(whole(0, size), None),
        "options": _Key(OBJECT, item=PLAIN),
        "oom": _Key(OBJECT.or_null(), kind=OutOfMemory),
        "network": _Key(one_of(("flat", "hierarchical", "measured")), "flat"),
        "num_nodes": _Key(whole(1, _MOST_RANKS + size), 1),
        "priced_by": _Key(TEXT, "roofline"),
        "workload": _Key(TEXT, ""),
        "held_outside": _Key(OBJECT.or_null(), None, MemoryOutsideStores),
        "peak_host_memory_bytes": _Key(AT_LEAST_0, 0.0),
        "steps": _Key(OBJECT, None, Steps),
        "outages": _Key(LIST, (), Outage),
        "device_kinds": _Key(LIST, (), DeviceKind),
        "trained_model": _Key(OBJECT.or_null(), None, TrainedModel),
        "needed_memory_bytes": _Key(ABOVE_0.or_null(), None),
        "memory_by_kind": _Key(OBJECT.or_null(), None, item=AT_LEAST_0),
        "meshes": _Key(LIST, [], item=OBJECT),
    }


_OF_NETWORKS = ("network", "num_nodes")
_OF_TRANSFORMERS = {"needed_memory_bytes", "memory_by_kind", "meshes"}


def said_of(run: Any) -> dict[str, Any]:
    """Return what the first line says of a `Run`, which imports this file: what is not as usual."""
    values = {name: (getattr(run, name), key.usual) for name, key in _keys().items()}
    said = {name for name, (value, usual) in values.items() if value != usual}
    if run.workload == _usual_workload(run.trained_model):
        said.remove("workload")
    said = said - _OF_TRANSFORMERS if run.trained_model is None else said | _OF_TRANSFORMERS
    if not said.isdisjoint(_OF_NETWORKS):
        said.update(_OF_NETWORKS)
    return {name: _written(value) for name, (value, _) in values.items() if name in said}


def _usual_workload(trained: TrainedModel | None) -> str:
    """Return what was trained where a first line does not say it."""
    return SPECIFIED_WORKLOAD if trained is None else trained.name


def _written(value: Any) -> Any:
    """Return a value of a run as files have it."""
    if value.__class__ in _KINDS:
        return saved_record(value)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [_written(each) for each in value] if isinstance(value, list | tuple) else value


_KINDS = frozenset(key.kind for key in _keys().values())


def plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if isinstance(value, float) and not isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def told_by(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a `Run` that a first line says, which was judged."""
    told = {name: _read(header.get(name, key.usual), key.kind) for name, key in _keys().items()}
    told["workload"] = told["workload"] or _usual_workload(told["trained_model"])
    del told["num_events"]  # its logs know
    told["typical"] = tuple(header["typical"][name] for name in TYPICAL) if "typical" in header else None
    return told


def _read(value: Any, kind: Callable[..., Any] | None) -> Any:
    """Return what a value stands for."""
    if kind is None or value is None:
        return value
    return read_record(kind, value) if isinstance(value, dict) else tuple(read_record(kind, each) for each in value)


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
    before, keys = faults.number, {**_keys(size), "fields": _Key(LIST, item=TEXT)}
    judge_repeated(faults, 1, header)
    missing = [name for name, key in keys.items() if key.usual is _NEEDED and name not in header]
    if missing:
        faults.add(1, f"its first line lacks {', '.join(missing)}")
    rules = {name: key.rule for name, key in keys.items()} | {"typical": OBJECT}
    faults.judge_keys(1, (), header, {name: rule for name, rule in rules.items() if name in header})
    for judge in (_judge_parts, _judge_together):
        if faults.number == before:
            judge(header, keys, faults)
    return faults.number == before


def _judge_parts(header: Mapping[str, Any], keys: Mapping[str, _Key], faults: Faults) -> None:
    """Judge what lists and objects hold."""
    rank = whole(0, header["world_size"] - 1)
    for name, key in keys.items():
        value = header.get(name)
        if key.kind is not None and isinstance(value, dict):
            judge_record(key.kind, value, (name,), faults, rank=rank)
        elif key.kind is not None:
            for place, record in _inside(value):
                judge_record(key.kind, record, (name, place), faults)
        elif key.item is not None:
            for place, item in _inside(value):
                faults.judge(1, (name, place), item, key.item)


def _judge_together(header: Mapping[str, Any], _: object, faults: Faults) -> None:
    """Judge what must hold between values."""
    world_size, peaks, names = header["world_size"], header["peak_memory_per_rank"], header["fields"]
    found = f"a value for each of {world_size} ranks (world_size), found {len(peaks)}"
    faults.expect(len(peaks) == world_size, found, "peak_memory_per_rank")
    missing = [name for name in SPECIFIED if name not in names]
    faults.expect(not missing, f"{', '.join(SPECIFIED)} and more, found no {', '.join(missing)}", "fields")
    faults.expect(len(set(names)) == len(names), "each name once, found one more than once; remove one", "fields")
    if header.get("trained_model") is not None:
        layers, num_layers = len(header["trained_model"]["layer_names"]), header["num_layers"]
        found = f"a name for each of {num_layers} layers (num_layers), found {layers}"
        faults.expect(layers == num_layers, found, "trained_model", "layer_names")
    for place, mesh in enumerate(header.get("meshes", ())):
        _judge_mesh(mesh, place, world_size, faults)
    if header.get("steps") is not None:
        _judge_steps(faults=faults, **header["steps"])
    if header.get("device_kinds"):
        _judge_device_kinds(header["device_kinds"], world_size, faults)
    if "typical" in header:
        count = header.get("num_events")
        numbers = Rule(
            f"a list of {count} numbers",
            lambda values: values.__class__ is list and len(values) == count and all(map(is_number, values)),
        )
        faults.judge_keys(1, ("typical",), header["typical"], dict.fromkeys(TYPICAL, numbers))


def _judge_mesh(mesh: Mapping[str, Any], place: int, world_size: int, faults: Faults) -> None:
    """Judge the axes of a mesh, which have a size each, and as many ranks as there are."""
    size = whole(1, world_size)
    found = [length for axis, length in mesh.items() if faults.judge(1, ("meshes", place, axis), length, size)]
    is_all = len(found) < len(mesh) or prod(found) == world_size
    faults.expect(is_all, f"axes of {world_size} ranks (world_size), found {prod(found)}", "meshes", place)


def _judge_steps(
    num_steps: int, load_time: float, ends: Sequence[float], period: int | None, faults: Faults, **_: object
) -> None:
    """Judge when each of several steps ended."""
    in_order = bool(ends) and sorted([load_time, *ends]) == [load_time, *ends]
    faults.expect(in_order, "times of at least one step, in order, after load_time", "steps", "ends")
    are_all = len(ends) == num_steps or (len(ends) < num_steps and period is not None)
    faults.expect(are_all, "an end for each of num_steps, or a period", "steps", "ends")
    found = f"at most {len(ends)}, as many as there are ends, found {period}"
    faults.expect(period is None or period <= len(ends), found, "steps", "period")


def _judge_device_kinds(kinds: Sequence[Mapping[str, Any]], world_size: int, faults: Faults) -> None:
    """Judge the kinds of device: each rank has one of them."""
    starts, stops = zip((world_size, 0), *sorted(pair for kind in kinds for pair in kind["ranks"]), strict=True)
    all_ranks = f"that hold each of 0..{world_size - 1} once"
    faults.expect(starts[1:] == stops[:-1], f"ranges of ranks {all_ranks}", "device_kinds")
    is_one = stops[-1] == world_size and len({kind["name"] for kind in kinds}) == len(kinds)
    faults.expect(is_one, f"kinds of different names {all_ranks}", "device_kinds")
