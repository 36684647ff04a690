"""Recording the operations of a strategy: one list of steps a rank, in program order, as plain data.

A step is a list that begins with its kind. A tensor is named by the number of the step that made it and its place
among that step's results. A step is also recorded when a tensor is freed, so that a replay has the same tensors alive
at every step as the strategy had, wherever the strategy kept them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from minitrain.engine.observers import Observer
from minitrain.engine.operations import Launched
from minitrain.learn.wire import MOST_STEPS
from minitrain.operations import HOST_MOVES
from minitrain.operations.computations import COMPUTATIONS
from minitrain.source_lines import Place, Places
from minitrain.tensors import Tensor
from minitrain.tensors.expert_load import as_imbalance

Step = list[Any]

_NAMED = frozenset({"load_weights", "load_experts", "route"})
"""Operations whose arguments by name are recorded too; the others' do not change what is done to tensors."""

_ROUTED_BY_DEFAULT: Mapping[str, Any] = {"imbalance": 1, "capacity_factor": None, "drop_tokens": True}


_LONGEST_TAG = 60
"""Characters of a tag that is written as it is."""


class Program:
    """The steps of one rank.

    Args:
        places: finds the lines of the strategy.

    Attributes:
        steps: so far.
        submitted: the step that submitted a communication, by its row in the log.
    """

    def __init__(self, places: Places[Place]) -> None:
        self.steps: list[Step] = []
        self.submitted: dict[int, int] = {}
        self._places = places
        self._lines: list[Place | None] = []

    @property
    def lines(self) -> list[str | None]:
        """Where in the strategy each step stands, as "file.py:12"; None where nothing is known."""
        said = cache(str)  # many steps stand at few places
        return [None if place is None or place.code is None else said(place) for place in self._lines]

    def add(self, *step: Any) -> int:
        """Add a step and return its number."""
        if len(self.steps) >= MOST_STEPS:
            raise RuntimeError(f"a rank did {MOST_STEPS} operations; is there a loop that never ends?")
        self.steps.append([*step])
        self._lines.append(self._places.calling())
        return len(self.steps) - 1

    def add_late(self, *step: Any) -> None:
        """Add that a tensor was freed; Python may do that at any point of the program."""
        self.steps.append([*step])
        self._lines.append(None)


class Made:
    """The origin of a tensor, which it carries while a run is recorded: the step that made it.

    Args:
        program: of the rank that has it.
        step: number of the step.
        place: among the step's results.
    """

    __slots__ = ("place", "program", "step")

    def __init__(self, program: Program, step: int, place: int = 0) -> None:
        self.program = program
        self.step = step
        self.place = place

    def __del__(self) -> None:
        self.program.add_late("free", [self.step, self.place])

    def add(self, other: Any) -> Made:
        """Record a sum."""
        return self._record("add", name_of(other))

    def combine(self, other: Any) -> Made:
        """Record a combination."""
        return self._record("combine", name_of(other))

    def shard(self, shard: int, num_shards: int) -> Made:
        """Record a cut."""
        return self._record("shard", shard, num_shards)

    def _record(self, kind: str, *what: Any) -> Made:
        """Record a step on this tensor."""
        return Made(self.program, self.program.add(kind, [self.step, self.place], *what))


def name_of(value: Any, submitted: Mapping[int, int] = MappingProxyType({})) -> Any:
    """Return how a step names a tensor: by its origin, or by its fields if the strategy itself made it.

    Args:
        value: a tensor, a bucket, or a launched operation that stands for its result.
        submitted: the steps that submitted communications, by row.
    """
    if isinstance(value, Launched):
        return {"launched": submitted.get(value._operation.row)}
    content = value if isinstance(value, Made) else getattr(value, "_content", None)
    if isinstance(content, Made):
        return [content.step, content.place]
    if isinstance(value, list | tuple):
        return {"bucket": [name_of(item, submitted) for item in value]}
    if isinstance(value, Tensor):
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}  # type: ignore[attr-defined]
        plain = {name: sorted(field) if isinstance(field, frozenset) else field for name, field in fields.items()}
        plain.pop("load", None)  # how tokens fall on experts, which is no plain value
        return {"made": type(value).__name__, "fields": plain}
    return {"alien": repr(value)[:200]}


class _Interned(dict[Hashable, int]):
    """A number for each key that is asked for, the same for equal keys."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


class _Tags(dict[Hashable, str]):
    """A text for each tag that is asked for, the same for equal tags: as Python writes it, or a number of its own."""

    def __missing__(self, tag: Hashable) -> str:
        text = repr(tag) if _is_plain(tag) else ""
        self[tag] = text = text if 0 < len(text) <= _LONGEST_TAG else f"number {len(self)}"
        return text


def _is_plain(tag: Hashable) -> bool:
    """Return whether a tag is made of whole numbers and strings alone, so that unequal ones are written differently."""
    return type(tag) in (int, str) or (type(tag) is tuple and all(map(_is_plain, tag)))


class Recorder(Observer):
    """Records what the ranks of one run do; it goes with strict accounting.

    Attributes:
        models: those of the run, as far as they were made, by rank.
    """

    def __init__(self) -> None:
        self.models: list[Any] = []
        self._programs: dict[int, Program] = {}
        self._places = Places(Place)
        self._keys = _Interned()  # of stores
        self._tags = _Tags()  # of messages, the same on all ranks

    @property
    def programs(self) -> list[list[Step]]:
        """The steps of each rank so far."""
        return [[*self._programs[model._rank].steps] for model in self.models]

    @property
    def lines(self) -> list[list[str | None]]:
        """Where in the strategy each step of each rank stands."""
        return [self._programs[model._rank].lines for model in self.models]

    def left_at(self, store: Any, key: Hashable) -> str | None:
        """Return where in the strategy a key last left a store; None if it never did, or nobody knows."""
        program, step = self._programs[store.rank], ["drop", store.label, self._keys.get(key)]
        numbers = [number for number, each in enumerate(program.steps) if each == step]
        return program.lines[numbers[-1]] if numbers else None

    def begin(self, model: Any) -> None:
        """Begin the program of a rank."""
        self.models.append(model)
        self._programs[model._rank] = Program(self._places)

    def before(self, model: Any, op: str, given: tuple[Any, ...]) -> None:
        """Write the step of a communication."""
        if op not in COMPUTATIONS:
            program = self._programs[model._rank]
            program.submitted[len(model._rows)] = program.add(*self._submission(model, op, given))

    def _submission(self, model: Any, op: str, given: tuple[Any, ...]) -> Step:
        """Return the step of a communication."""
        submitted = self._programs[model._rank].submitted
        if op in HOST_MOVES:
            return [op, name_of(given[0], submitted), model.launching]
        if op == "send":
            dest, value, tag = given
            return [op, name_of(value, submitted), dest, self._tag(tag), model.launching]
        if op == "recv":
            source, tag = given
            return ["receive", source, self._tag(tag), model.launching]
        value, layer, group, detail = (*given, None)[:4]
        ranks = [*(model._world if group is None else model._member(group)).ranks]
        return [op, name_of(value, submitted), layer, ranks, detail, model.launching]

    def _tag(self, tag: Hashable) -> str | None:
        """Return the text that stands for a tag."""
        return None if tag is None else self._tags[tag]

    def after(self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], made: Any) -> None:
        """Write the step of a computation, and name its results."""
        program = self._programs[model._rank]
        if op == "send" and not model.launching:
            _forget(made.value)  # the copy on its way
        elif op in HOST_MOVES:
            _name(program, program.submitted[made.row], [made.outcome] if made.outcome is not None else [])
        elif op == "set_final_weight":
            program.add(op, given[0], name_of(given[1]))
            _forget(model._final_of(given[1])[given[0]])  # the copy that is kept
        elif op in COMPUTATIONS:
            kind = "combine_outputs" if op == "combine" else op  # tensors combine too
            step = program.add(kind, *_arguments(op, given, made), *_by_name(op, named))
            _name(program, step, made if made.__class__ is tuple else [made])

    def launched(self, operation: Any) -> None:
        """Take the name off a copy on its way."""
        if operation.op == "send":
            _forget(operation.value)

    def departed(self, operation: Any) -> None:
        """Take the name off a copy on its way, which has waited for what it is of."""
        _forget(operation.value)

    def settled(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Name every member's results."""
        for operation, result in zip(operations, results, strict=True):
            if result is not operation.value:
                program = self._programs[operation.rank]
                _name(program, program.submitted[operation.row], leaves(result))

    def awaited(self, operation: Any, result: Any) -> None:
        """Record that the result of an operation has come."""
        program = self._programs[operation.rank]
        step = program.submitted[operation.row]
        if operation.op == "recv":
            _name(program, step, [result])
        program.add("await", step, [name_of(leaf) for leaf in leaves(result)])

    def stored(self, store: Any, key: Any, value: Any) -> None:
        """Record what enters a store."""
        self._programs[store.rank].add("put", store.label, self._keys[key], name_of(value))

    def left(self, store: Any, key: Any, value: Any) -> None:  # noqa: ARG002  (as observers')
        """Record what leaves a store, unless another tensor has taken its place."""
        if key not in store:
            self._programs[store.rank].add("drop", store.label, self._keys[key])


def _name(program: Program, step: int, tensors: Sequence[Any]) -> None:
    """Name the results of a step."""
    for place, tensor in enumerate(tensors):
        tensor._content = Made(program, step, place)


def _arguments(op: str, given: tuple[Any, ...], made: Any) -> Sequence[Any]:
    """Return the arguments of an operation as a step has them: tensors by name; of inputs, what was made of any."""
    if op == "get_input_activation":
        return [sorted(made.samples)]
    if op == "get_input_shard":
        return [sorted(made.samples), sorted(made.sequence.shards), made.sequence.num_shards]
    return [name_of(value) if isinstance(value, Tensor) else value for value in given]


def _by_name(op: str, named: Mapping[str, Any]) -> Sequence[Any]:
    """Return the arguments of an operation that are recorded by their names, as the last item of its step."""
    if op != "route":
        return [{"named": dict(named)}] if named and op in _NAMED else ()
    known = {**_ROUTED_BY_DEFAULT, **named}
    return [{"named": {**known, "imbalance": as_imbalance(known["imbalance"])}}]


def _forget(tensor: Any) -> None:
    """Take the name off a tensor that the strategy does not see."""
    if hasattr(tensor, "_content"):
        del tensor._content


def leaves(value: Any) -> list[Any]:
    """Return the tensors of a result, however deep."""
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value is None else [value]
