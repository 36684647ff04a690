"""Which layer the kernels of a profiler's trace belong to: by marks, by FSDP's ranges, by modules, or by their order.

A trace need not be made for us. Layers are found by the first of these that a trace has:

| found by | what a trace needs |
|---|---|
| marks | ranges of `record_function` whose name has the layer's number |
| FSDP | nothing beside FSDP2, which names what it wraps: "FSDP::pre_forward (layers.3)" |
| modules | `with_stack=True` or `with_modules`: calls of modules, "nn.Module: TransformerLayer_3" |
| order | nothing: the sequence of kernels that comes again and again is a layer's |

Where layers were not marked by hand, what runs before the first one is the embedding, and what runs after the last one
is the head with its loss; what runs between backward and the optimizer (the norm of all gradients) is the update.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

import numpy as np

from minitrain.errors import UsageError
from minitrain.hardware.trace_launches import Launch, LaunchedKernels, Thread
from minitrain.hardware.trace_ranges import Range

_FSDP = re.compile(r"FSDP::(?P<what>\w+) \((?P<module>(?:[^()]*?\.)?\d+)(?:\.[^()]*)?\)")
_MODULE = re.compile(r"nn\.Module: (?P<kind>\w+?)_(?P<number>\d+)")
_LAYER_CLASS = re.compile(r"(Layer|Block)$")  # TransformerLayer, LlamaDecoderLayer, GPTBlock, TransformerBlock
_MOST_OF = 0.5  # of a container's time is its layers'
_ALIKE = 0.9  # of the kernels of two layers
_MOST_NAMED = 8
_Repetition = tuple[int, int, int]  # where it begins, its period, and how often it comes
EMBEDDING, HEAD = "embedding", "head"


@final
@dataclass(frozen=True, slots=True)
class Marks:
    """Which ranges of a trace are layers.

    Args:
        layer: the name of a layer's range, with "{layer}" where its number is.
        embedding: the name of the embedding's range; if given, layers are numbered from 1 on, and it is layer 0.
        head: the name of the head's range, loss included; it is the last layer.

    Raises:
        UsageError: `layer` has no number, or only one of the ends is given.
    """

    layer: str = "layer {layer}"
    embedding: str | None = None
    head: str | None = None

    def __post_init__(self) -> None:
        if self.layer.count("{layer}") != 1:
            raise UsageError(
                f'the name of a layer\'s range must have "{{layer}}" where its number is, got {self.layer!r:.80}; '
                'write "layer {layer}", for example'
            )
        if (self.embedding is None) is not (self.head is None):
            raise UsageError("embedding and head go together; name both ranges, or none")

    def label(self, name: str) -> int | str | None:
        """Return the layer that a range of that name stands for."""
        before, after = self.layer.split("{layer}")
        found = re.fullmatch(rf"{re.escape(before)}(\d+){re.escape(after)}", name)
        return int(found[1]) if found else {self.embedding: EMBEDDING, self.head: HEAD}.get(name)


@final
@dataclass(frozen=True, slots=True)
class FoundLayers:
    """The layers of a trace, and what kept the device busy for them.

    Args:
        by: what they were found by, in words.
        order: their labels, in the order of forward, without embedding and head.
        launches: what kept the device busy.
    """

    by: str
    order: tuple[int | str, ...]
    launches: Sequence[Launch]

    @property
    def has_ends(self) -> bool:
        """Whether an embedding and a head were found beside them."""
        return {EMBEDDING, HEAD} <= {launch.layer for launch in self.launches}


def find_layers(trace: LaunchedKernels, marks: Marks | None, source: str) -> FoundLayers:
    """Return the layers of a trace.

    Args:
        trace: its ranges and kernels; ranges of layers are labelled here.
        marks: which ranges are layers; what is found if None.
        source: what messages call the trace.

    Raises:
        UsageError: no range is a layer, and no sequence of kernels comes again.
    """
    if _label_by_marks(trace, marks or Marks()):
        return _labelled(trace, "marks")
    if marks is not None:
        raise _no_layers(marks, {one.name for _, one in trace.named()}, source)
    for by, label in (("the ranges of FSDP", _label_by_fsdp), ("the calls of modules", _label_by_modules)):
        if label(trace):
            return _with_ends(_labelled(trace, by))
    launches = _settled(trace.launches())
    order = _label_by_order(launches, source)
    return _with_ends(FoundLayers("the order of kernels", order, launches))


def _labelled(trace: LaunchedKernels, by: str) -> FoundLayers:
    """Return the layers of a trace whose ranges are labelled."""
    order = dict.fromkeys(one.layer for _, one in trace.named() if one.layer not in (None, EMBEDDING, HEAD))
    return FoundLayers(by, tuple(label for label in order if label is not None), trace.launches())


def _label_by_marks(trace: LaunchedKernels, marks: Marks) -> bool:
    """Label the ranges that marks name, and return whether there are any."""
    for _, one in trace.named():
        one.layer = marks.label(one.name)
    return any(one.layer is not None for _, one in trace.named())


def _label_by_fsdp(trace: LaunchedKernels) -> bool:
    """Label what FSDP does for a module with a number, and the forward of each, from its first hook to its last."""
    found = [(thread, one, match) for thread, one in trace.named() if (match := _FSDP.fullmatch(one.name))]
    begun: dict[tuple[Thread, str], Range] = {}
    for thread, one, match in found:
        one.layer = match["module"]
        if match["what"] == "pre_forward":
            begun.setdefault((thread, match["module"]), one)  # parts of a layer that are wrapped too lie within it
        elif match["what"] == "post_forward" and (thread, match["module"]) in begun:
            first = begun.pop((thread, match["module"]))
            trace.add(thread, Range(first.start, one.end, match["module"], match["module"], is_named=True))
    return bool(found)


def _label_by_modules(trace: LaunchedKernels) -> bool:
    """Label the calls of the class of modules that the model consists of."""
    calls = [(thread, one, match) for thread, one in trace.named() if (match := _MODULE.fullmatch(one.name))]
    kind = _class_of_layers([(one, match["kind"], match["number"]) for _, one, match in calls])
    for _, one, match in calls:
        if match["kind"] == kind:
            one.layer = int(match["number"])
    return kind is not None


def _class_of_layers(calls: Sequence[tuple[Range, str, str]]) -> str | None:
    """Return the class of modules that are a model's layers; None where no class has several.

    Of classes that are called like layers, it is the one that takes longest; but one whose modules consist of several
    of another is a container of layers.
    """
    numbers: dict[str, set[str]] = {}
    time: dict[str, float] = {}
    for one, kind, number in calls:
        numbers.setdefault(kind, set()).add(number)
        time[kind] = time.get(kind, 0.0) + one.end - one.start
    several = [kind for kind, found in numbers.items() if len(found) > 1]
    likely = [kind for kind in several if _LAYER_CLASS.search(kind)]
    by_time = sorted(likely or several, key=lambda kind: -time[kind])
    best = by_time[0] if by_time else None
    for kind in by_time[1:] if likely else ():
        if best and len(numbers[kind]) >= 2 * len(numbers[best]) and time[kind] > _MOST_OF * time[best]:
            best = kind
    return best


def _settled(launches: Sequence[Launch]) -> list[Launch]:
    """Return launches in which what runs between backward and the optimizer is part of the update."""
    found: list[Launch] = []
    groups = [(phase, list(each)) for phase, each in groupby(launches, key=lambda launch: launch.phase)]
    for place, (phase, each) in enumerate(groups):
        before = groups[place - 1][0] if place else ""
        after = groups[place + 1] if place + 1 < len(groups) else ("", [])
        if (before, phase, after[0]) == ("backward", "forward", "update"):
            each = [Launch(launch.kernel, "update", None, after[1][0].pass_) for launch in each]  # noqa: PLW2901
        found += each
    return found


def _with_ends(found: FoundLayers) -> FoundLayers:
    """Return layers with the embedding before the first and the head after the last."""
    launches = _settled(found.launches)
    runs = groupby(launches, key=lambda launch: launch.layer is not None or launch.phase == "update")
    stretches = [(is_known, list(each)) for is_known, each in runs]
    for place, (is_known, each) in enumerate(stretches):
        if not is_known:
            before = stretches[place - 1][1][-1] if place else None
            after = stretches[place + 1][1][0] if place + 1 < len(stretches) else None
            for launch in each:
                _take_end(launch, before, after, place)
    return FoundLayers(found.by, found.order, launches)


def _take_end(launch: Launch, before: Launch | None, after: Launch | None, place: int) -> None:
    """Say what a launch belongs to that lies between those of two layers, or of a layer and an update."""
    if after is None:
        return  # the trace ends in the middle of something
    phases = before.phase if before else "", after.phase
    if phases == (launch.phase, launch.phase):
        assert before is not None  # its phase was looked at
        launch.layer, launch.pass_ = before.layer, before.pass_
    elif phases == ("forward", "backward"):
        launch.layer, launch.pass_ = HEAD, place
    elif launch.phase == phases[1] == "forward" or launch.phase == phases[0] == "backward":
        launch.layer, launch.pass_ = EMBEDDING, place


def _label_by_order(launches: Sequence[Launch], source: str) -> tuple[int, ...]:
    """Label the launches of passes whose kernels come again and again, and return the layers.

    Forward says how many layers there are. Backward then has as many times nearly the same kernels; the first time a
    gradient is added up, it may be another one.

    Raises:
        UsageError: no sequence of kernels comes again, or no backward has that many.
    """
    runs = [(phase, list(each)) for phase, each in groupby(launches, key=lambda launch: launch.phase)]
    forwards, backwards = ([each for phase, each in runs if phase == wanted] for wanted in ("forward", "backward"))
    repeats = _once_a_sequence(forwards, _repeat)
    num_layers = max((count for *_, count in repeats), default=0)
    again = (
        _once_a_sequence(backwards, lambda names, seconds: _near_repeat(names, seconds, num_layers))
        if num_layers > 1
        else []
    )
    if num_layers not in {count for *_, count in again}:
        raise _no_order(num_layers, source)
    for place, (each, found) in enumerate(zip([*forwards, *backwards], [*repeats, *again], strict=True)):
        if found[2] == num_layers:  # others lie at an end of the trace, and are not whole
            _label_pass(each, found, place)
    return tuple(range(num_layers))


def _once_a_sequence(
    passes: Sequence[Sequence[Launch]], find: Callable[[Sequence[str], Sequence[float]], _Repetition]
) -> list[_Repetition]:
    """Return the repetition within each pass, looked for once in those that launch the same kernels."""
    known: dict[tuple[str, ...], _Repetition] = {}
    names = [tuple(launch.kernel.name for launch in each) for each in passes]
    for sequence, each in zip(names, passes, strict=True):
        if sequence not in known:
            known[sequence] = find(sequence, [launch.kernel.end - launch.kernel.start for launch in each])
    return [known[sequence] for sequence in names]


def _label_pass(launches: Sequence[Launch], found: _Repetition, place: int) -> None:
    """Label the launches of one pass, whose layers backward takes in reverse."""
    start, period, count = found
    for number in range(count):
        layer = number if launches[0].phase == "forward" else count - 1 - number
        for launch in launches[start + number * period : start + (number + 1) * period]:
            launch.layer, launch.pass_ = layer, place


def _repeat(names: Sequence[str], seconds: Sequence[float]) -> _Repetition:
    """Return where the repetition begins that takes most time, its period, and how often it comes: (0, 0, 0) if none.

    >>> _repeat("xabcabcabcy", [1.0] * 11)
    (1, 3, 3)
    """
    numbers = np.unique(list(names), return_inverse=True)[1]
    until = np.concatenate(([0.0], np.cumsum(seconds)))
    best, most = (0, 0, 0), 0.0
    for period in range(1, len(numbers) // 2 + 1):
        equal = np.concatenate(([0], numbers[:-period] == numbers[period:], [0]))
        borders = np.flatnonzero(np.diff(equal))
        for start, end in zip(borders[::2], borders[1::2], strict=True):
            count = 1 + int(end - start) // period
            time = float(until[start + count * period] - until[start])
            if count > 1 and time > most * (1 + 1e-9):
                best, most = (int(start), period, count), time
    return best


def _near_repeat(names: Sequence[str], seconds: Sequence[float], count: int) -> _Repetition:
    """Return where nearly the same kernels come so many times, as `_repeat` does: of all places the one of most time.

    >>> _near_repeat("xabcdegabcdefabcdefy", [1.0] * 20, 3)
    (1, 6, 3)
    """
    numbers = np.unique(list(names), return_inverse=True)[1]
    until = np.concatenate(([0.0], np.cumsum(seconds)))
    best, most = (0, 0, 0), 0.0
    for period in range(1, len(numbers) // count + 1):
        length = (count - 1) * period
        alike = np.concatenate(([0], np.cumsum(numbers[:-period] == numbers[period:])))
        matches = alike[length:] - alike[:-length]
        start = int(matches.argmax())
        time = float(until[start + count * period] - until[start])
        if matches[start] >= _ALIKE * length and time > most:
            best, most = (start, period, count), time
    return best


def _no_layers(marks: Marks, names: set[str], source: str) -> UsageError:
    """Return the error for a trace without marked layers, with the names that it has."""
    known = sorted(names)
    listed = ", ".join(known[:_MOST_NAMED]) + (", ..." if len(known) > _MOST_NAMED else "")
    return UsageError(
        f"{source} has no range named {marks.layer!r}; it has {listed or 'no named ranges'}; mark layers by "
        "torch.profiler.record_function, or give the name of the ranges there are"
    )


def _no_order(num_layers: int, source: str) -> UsageError:
    """Return the error for a trace in which no layers were found."""
    found = (
        "no sequence of kernels comes again forward"
        if num_layers < 2
        else (f"{num_layers} times the same kernels forward are not met by as many backward")
    )
    return UsageError(
        f"{source} does not say what its layers are: it has no marks, no ranges of FSDP and no calls of modules, and "
        f"{found}; profile whole training steps with the activities CPU and CUDA and with_stack=True, or mark layers "
        'by torch.profiler.record_function("layer 0")'
    )
