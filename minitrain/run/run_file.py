"""The events and journals of a run file: each is validated as it is read, in memory bounded by the file's size.

What an event may say follows from the run: ranks of its world, samples of its batch, times that are no less than 0, an
await after the operation itself. Sets of ranks and samples are written as ranges and become sets again; together they
may have 2**20 members, and 16 more for each byte of the file.

Rules for the values of a run file, and the faults that were found in one, by line and key.

Which ranks have which device, in the file of a run on a cluster: validated, and read.

The first line of a run file: what it must say, before anything is made from it.

No value in it may cause more work than the file's size justifies. A file holds a peak for each of its ranks. The
numbers of layers and samples, which take no space, are bounded by the file's size and by what anybody trains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, signature
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from minitrain.errors import UsageError
from minitrain.files import JsonObject, key_path, shown
from minitrain.machine.config_files import first_faults
from minitrain.operations import COLLECTIVES, COMM, COMPUTE, EVENT_TYPES, Event, MemoryChange, Outage
from minitrain.operations.collectives import TRANSFERS
from minitrain.run.device_memory import MemoryOutsideStores, OutOfMemory
from minitrain.run.ranks_once import OnceWritten, Partners, distinct_of
from minitrain.run.steps import Steps
from minitrain.run.trained_model import TrainedModel

if TYPE_CHECKING:
    from minitrain.run.device_kinds import DeviceKind


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
    from minitrain.run.device_kinds import DeviceKind  # noqa: PLC0415  (few runs have several kinds)

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
    from minitrain.run.device_kinds import DeviceKind  # noqa: PLC0415  (few runs have several kinds)

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
_MOST_LAYERS, _MOST_SAMPLES, _MOST_RANKS = 2**20, 2**24, 2**24  # of a file of no size
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
_A_TENSOR, _A_LAYER = whole(0, 2**40), whole(-_MOST_LAYERS, _MOST_LAYERS).or_null()
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
                and after == ()
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
        a_rank = whole(0, self.world_size - 1)
        peak, logged = (self._peaks[rank], len(self.logs[rank])) if a_rank.accepts(rank) else (LARGEST, 0)
        other = Rule(f"another rank in 0..{self.world_size - 1}", _other(a_rank, rank)).or_null()
        stream = _STREAM_OF.get(typ) if typ.__class__ is str else COMPUTE
        farthest = _FARTHEST_LAYER if stream in (COMM, None) else None
        stream = stream or COMPUTE

        def are_made(places: list[Any]) -> bool:
            log = self.logs[rank]
            inside = all(place.__class__ is int and 0 <= place < len(log) for place in places)
            return inside and all(log[place].stream != COMPUTE for place in places)

        return {
            "typ": Rule(f"one of {', '.join(_TYPES)}", lambda typ: typ.__class__ is str and _is_priced(event)),
            "layer": whole(-(farthest or 1), farthest or self.num_layers).or_null(),
            "rank": Rule(f"a rank in 0..{self.world_size - 1}", a_rank.accepts),
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
                lambda after: after == () or (after.__class__ is list and a_rank.accepts(rank) and are_made(after)),
            ),
        }

    def _accepts_words(self, line: int, values: list[Any]) -> bool:
        """Return whether tag and algorithm are what they may be; a list as tag becomes a tuple."""
        tag, algorithm = values[10], values[16]
        if tag.__class__ is list:
            values[10] = _tuple(tag)
        good = bool(values[10] is not None or tag is None)
        if tag.__class__ is dict or not good:
            self.faults.add(line, f"expected text, a number or a list of them, found {shown(tag)}", ("tag",))
            good = False
        return self.faults.judge(line, ("algorithm",), algorithm, TEXT.or_null()) and good

    def _set_of(
        self,
        line: int,
        name: str,
        ranges: Any,
        known: dict[Any, _Set],
        end: int,
        kind: Callable[[Iterable[int]], _Set],
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
        a_rank = whole(0, self.world_size - 1)
        rules = {
            "rank": Rule(
                f"a rank in 0..{self.world_size - 1} without events",
                lambda rank: a_rank.accepts(rank) and not self.logs[rank],
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
        other = Rule(f"another rank in 0..{self.world_size - 1}", _other(whole(0, self.world_size - 1), rank))
        if values.__class__ is not list or len(values) != 3:
            self.faults.add(line, f"expected [group, peer, waited for], found {shown(values)}", ("partners",))
            return None
        group, peer, waited_for = values
        good = self.faults.judge(line, ("partners",), peer, Rule("null", _is_none) if theirs[1] is None else other)
        good &= self.faults.judge(
            line, ("partners",), waited_for, Rule("null", _is_none) if theirs[2] is None else other
        )
        if (group is None) != (theirs[0] is None):
            self.faults.add(line, "expected a group where the other rank has one, and nowhere else", ("partners",))
            return None
        if group is not None:
            found = self._set_of(line, "partners", group, self._groups, self.world_size, tuple)
            if found is None or rank not in found:
                self.faults.add(line, f"expected a group of rank {rank}, found one without it", ("partners",))
                return None
            group = found
        return (group, peer, waited_for) if good else None

    def _take_journal(self, line: int, values: Mapping[str, Any], journals: dict[int, list[MemoryChange]]) -> None:
        """Take the journal of one rank."""
        if self.header["version"] != VERSION_WITH_JOURNALS:
            self.faults.add(line, f"expected journals in version {VERSION_WITH_JOURNALS} alone, found one")
            return
        rank = whole(0, self.world_size - 1)
        rules = {"rank": Rule(f"a rank in 0..{self.world_size - 1}", rank.accepts), "kinds": LIST, "changes": LIST}
        if not self.faults.judge_keys(line, (), values, rules):
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


def _is_none(value: Any) -> bool:
    return value is None


def _other(a_rank: Rule, own: Any) -> Callable[[Any], bool]:
    """Return whether a value is a rank, and not an event's own."""
    return lambda value: a_rank.accepts(value) and value != own


def _up_to(most: float, what: str) -> Rule:
    """Return the rule for a number from 0 to another one, which is named."""
    return Rule(f"a number in 0..{most:g}, {what}", lambda value: value.__class__ in NUMBERS and 0 <= value <= most)


def _tuple(values: list[Any], depth: int = 1) -> Any:
    """Return nested lists as tuples, which a tag must be to be hashable; None if that cannot be."""
    if depth > _DEEPEST_TAG or any(item.__class__ is dict for item in values):
        return None
    items = [_tuple(item, depth + 1) if item.__class__ is list else item for item in values]
    lost = any(now is None and was is not None for now, was in zip(items, values, strict=True))
    return None if lost else tuple(items)
