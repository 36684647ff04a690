"""Times of layers from a trace of the PyTorch profiler (Kineto's chrome trace): a table for `MeasuredLayers`.

The user profiles some whole steps with the activities CPU and CUDA. Layers are found by marks, by FSDP's
ranges, by modules or by the order of kernels, and for each kernel what it was launched for.

A layer's time is how long its kernels keep the device busy, the median over all its passes in the trace. Gaps are left
out. What checkpointing computes again is part of backward. The update is shared evenly by the layers.

Ranges of one thread nest, as calls do. A range lies within another if it begins no earlier and ends no later; one that
does not nest (a clock that jumped) counts as within nothing that ends before it.

The kernels of a profiler's trace in the order of their launches, each with what it was launched for.

A kernel and the call that launched it carry one correlation id. Where and when that call was made tells the rest:

1. Within `Optimizer.step` it is the update.
2. Where autograd evaluates a function around it, it is backward. The function belongs to a forward operation: the
   trace's arrows say to which ("fwdbwd"), or its sequence number where there is none. The layer is that of the range
   around the forward operation.
3. Else it is forward, and the layer is that of the range around the call.

A trace without kernels is one of a CPU, where an operation that no other operation calls is what a kernel is elsewhere.
Kernels of communication (NCCL, RCCL, c10d) are left out: a run pays for transfers itself. So are, of a layer's time,
copies within FSDP2's hooks ("FSDP::"), which put weights and gradients where NCCL takes and leaves them.

Source of the format: the keys that Kineto writes (output_json.cpp of github.com/pytorch/kineto), and what autograd's
sequence numbers mean (torch.autograd.profiler, "Forward-backward correlation").

Which layer the kernels of a profiler's trace belong to: by marks, by FSDP's ranges, by modules, or by their order.

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

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from minitrain.errors import UsageError
from minitrain.files import StrPath, parse_json, read_bytes
from minitrain.machine.measured_layers import LayerTime


@dataclass(slots=True)
class Range:
    """Something that a thread did from a time to a time; `parent` is what it lies within.

    `is_named` says that somebody gave it a name: an annotation or a module, and no operation.
    """

    start: float
    end: float
    name: str
    layer: int | str | None = None
    sequence: int | None = None
    parent: Range | None = field(default=None, repr=False)
    is_named: bool = False

    def around(self) -> Iterator[Range]:
        """Yield this and what it lies within, from the inside out."""
        found: Range | None = self
        while found is not None:
            yield found
            found = found.parent


class ThreadRanges:
    """The ranges of one thread, which finds those around a moment."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = sorted(ranges, key=lambda one: (one.start, -one.end))
        self._starts = [one.start for one in self._ranges]
        open_ranges: list[Range] = []
        for one in self._ranges:
            while open_ranges and open_ranges[-1].end < one.end:
                open_ranges.pop()
            one.parent = open_ranges[-1] if open_ranges else None
            open_ranges.append(one)

    def around(self, moment: float) -> Iterator[Range]:
        """Yield the ranges around a moment, from the inside out."""
        place = bisect_right(self._starts, moment)
        if place:
            yield from (one for one in self._ranges[place - 1].around() if one.end >= moment)


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of some spans lasts.

    >>> union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_MODULE = "nn.Module: "
_AUTOGRAD = "autograd::engine::evaluate_function"
_UPDATE = "Optimizer.step"
_MOVES = "FSDP::"
_COMMUNICATION = re.compile(r"^(nccl|rccl|ncclKernel|ncclDev|c10d::|_c10d_functional::|gloo:)", re.IGNORECASE)

Thread = tuple[Any, Any]
Moment = tuple[Thread, float]


class Kernel(NamedTuple):
    """Something that kept the device busy, times in microseconds; `launched` is the thread and the moment."""

    name: str
    start: float
    end: float
    launched: Moment


@dataclass(slots=True)
class Launch:
    """A kernel with what it was launched for.

    Args:
        kernel: the kernel.
        phase: "forward", "backward" or "update".
        layer: the layer, as its range is labelled; None where no range says it.
        pass_: what tells one pass of a layer from another.
        moves: whether FSDP moves weights or gradients by it.
    """

    kernel: Kernel
    phase: str
    layer: int | str | None = None
    pass_: int = 0
    moves: bool = False

    @property
    def span(self) -> tuple[float, float]:
        """When it kept the device busy, from and to, in microseconds."""
        return self.kernel.start, self.kernel.end


class LaunchedKernels:
    """The ranges and kernels of a trace; ranges are labelled with layers before launches are asked for."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.ranges: dict[Thread, list[Range]] = {}
        """What threads did: operations, annotations and calls of modules."""
        self._launches: dict[Any, Moment] = {}
        self._kernels: list[tuple[Any, str, float, float]] = []
        arrows: dict[str, dict[Any, Moment]] = {"s": {}, "f": {}}
        for event in events:
            if event.get("ph") == "X":
                self._take(event)
            elif event.get("cat") == "fwdbwd" and event.get("ph") in arrows:
                arrows[event["ph"]][event.get("id")] = _moment(event)
        self._forward_of = {end: arrows["s"][key] for key, end in arrows["f"].items() if key in arrows["s"]}
        self._threads: dict[Thread, ThreadRanges] = {}
        self._marked_by_sequence: dict[int, Range] = {}

    def named(self) -> Iterator[tuple[Thread, Range]]:
        """Yield the annotations and the calls of modules, with their threads, in order."""
        found = [(thread, one) for thread, each in self.ranges.items() for one in each if one.is_named]
        yield from sorted(found, key=lambda pair: pair[1].start)

    def add(self, thread: Thread, one: Range) -> None:
        """Add a range that was found between two others."""
        self.ranges.setdefault(thread, []).append(one)

    def launches(self) -> list[Launch]:
        """Return what kept the device busy, in the order of the launches."""
        self._threads = {thread: ThreadRanges(found) for thread, found in self.ranges.items()}
        self._marked_by_sequence = self._marked_of_sequences()
        kernels = sorted(self._of_device() if self._kernels else self._of_cpu(), key=lambda kernel: kernel.launched[1])
        return [self._launch(kernel) for kernel in kernels if not _COMMUNICATION.match(kernel.name)]

    def _take(self, event: Mapping[str, Any]) -> None:
        """Sort one event into what it is."""
        category, name = event.get("cat"), str(event.get("name"))
        arguments = event.get("args", {})
        if category in _KERNELS:
            start = float(event["ts"])
            self._kernels.append((arguments.get("correlation"), name, start, start + float(event["dur"])))
        elif category in _LAUNCHES:
            self._launches[arguments.get("correlation")] = _moment(event)
        elif category in ("user_annotation", "cpu_op") or (
            category == "python_function" and name.startswith(_MODULE)  # other functions say nothing of layers
        ):
            thread, start = _moment(event)
            sequence = arguments.get("Sequence number")
            one = Range(start, start + float(event["dur"]), name, None, sequence, is_named=category != "cpu_op")
            self.ranges.setdefault(thread, []).append(one)

    def _of_device(self) -> Iterator[Kernel]:
        """Yield the kernels whose launch is in the trace."""
        for correlation, name, start, end in self._kernels:
            if correlation in self._launches:
                yield Kernel(name, start, end, self._launches[correlation])

    def _of_cpu(self) -> Iterator[Kernel]:
        """Yield the operations that no other operation calls."""
        for thread, ranges in self.ranges.items():
            for one in ranges:
                outer = [each for each in one.around() if each is not one]
                if not (one.is_named or _is_autograd(one)) and all(_is_autograd(o) or o.is_named for o in outer):
                    yield Kernel(one.name, one.start, one.end, (thread, one.start))

    def _marked_of_sequences(self) -> dict[int, Range]:
        """Return the labelled range in which the forward operation of each sequence number lies.

        Operations that make no gradient show the number of the next one that does; so the last one with a number
        counts. What checkpointing computes again is forward too, in a labelled range within autograd.
        """
        found: dict[int, Range | None] = {}
        for one in sorted((one for each in self.ranges.values() for one in each), key=lambda one: one.start):
            if one.sequence is not None and one.sequence >= 0:
                inner = next((each for each in one.around() if each.layer is not None or _is_autograd(each)), None)
                if inner is None or not _is_autograd(inner):
                    found[one.sequence] = inner
        return {sequence: marked for sequence, marked in found.items() if marked is not None}

    def _around(self, thread: Thread, moment: float) -> Iterator[Range]:
        """Yield what a thread did around a moment, from the inside out."""
        if thread in self._threads:
            yield from self._threads[thread].around(moment)

    def _launch(self, kernel: Kernel) -> Launch:
        """Return what a kernel was launched for."""
        around = list(self._around(*kernel.launched))
        found = self._purpose(kernel, around)
        found.moves = any(one.name.startswith(_MOVES) for one in around)
        return found

    def _purpose(self, kernel: Kernel, around: Sequence[Range]) -> Launch:
        """Return what the ranges around a launch say of it."""
        marked = _marked(around)
        if any(map(_is_autograd, around)):
            of_function = self._layer_of_function(kernel.launched[0], around)
            is_other = marked is not None and (of_function is None or of_function.layer != marked.layer)
            return _labelled(kernel, "backward", marked if is_other else of_function)
        if marked is not None:
            return _labelled(kernel, "forward", marked)
        updating = next((one for one in around if one.name.startswith(_UPDATE)), None)
        return Launch(kernel, "forward") if updating is None else Launch(kernel, "update", None, id(updating))

    def _layer_of_function(self, thread: Thread, around: Iterable[Range]) -> Range | None:
        """Return the layer whose forward made the function that autograd evaluates."""
        for one in around:
            if (thread, one.start) in self._forward_of:
                return _marked(self._around(*self._forward_of[thread, one.start]))
            if _is_autograd(one):
                return self._marked_by_sequence.get(-1 if one.sequence is None else one.sequence)
        return None


def _labelled(kernel: Kernel, phase: str, marked: Range | None) -> Launch:
    """Return a launch for what a range stands for."""
    return Launch(kernel, phase) if marked is None else Launch(kernel, phase, marked.layer, id(marked))


def _moment(event: Mapping[str, Any]) -> Moment:
    """Return on which thread an event begins, and when."""
    return (event.get("pid"), event.get("tid")), float(event["ts"])


def _marked(around: Iterable[Range]) -> Range | None:
    """Return the innermost range that is a layer."""
    return next((one for one in around if one.layer is not None), None)


def _is_autograd(one: Range) -> bool:
    """Return whether a range is autograd's evaluation of a function."""
    return one.name.startswith(_AUTOGRAD)


_FSDP = re.compile(r"FSDP::(?P<what>\w+) \((?P<module>(?:[^()]*?\.)?\d+)(?:\.[^()]*)?\)")
_MODULE_MARK = re.compile(r"nn\.Module: (?P<kind>\w+?)_(?P<number>\d+)")
_LAYER_CLASS = re.compile(r"(Layer|Block)$")  # TransformerLayer, LlamaDecoderLayer, GPTBlock, TransformerBlock
_MOST_OF = 0.5  # of a container's time is its layers'
_ALIKE = 0.9  # of the kernels of two layers
_MOST_NAMED = 8
_Repetition = tuple[int, int, int]  # where it begins, its period, and how often it comes
EMBEDDING, HEAD = "embedding", "head"
FSDP_RANGES = "the ranges of FSDP"


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
        return _labelled_ranges(trace, "marks")
    if marks is not None:
        raise _no_layers(marks, {one.name for _, one in trace.named()}, source)
    for by, label in ((FSDP_RANGES, _label_by_fsdp), ("the calls of modules", _label_by_modules)):
        if label(trace):
            return _with_ends(_labelled_ranges(trace, by))
    launches = _settled(trace.launches())
    order = _label_by_order(launches, source)
    return _with_ends(FoundLayers("the order of kernels", order, launches))


def _labelled_ranges(trace: LaunchedKernels, by: str) -> FoundLayers:
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
    calls = [(thread, one, match) for thread, one in trace.named() if (match := _MODULE_MARK.fullmatch(one.name))]
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
            each = [replace(launch, phase="update", layer=None, pass_=after[1][0].pass_) for launch in each]  # noqa: PLW2901
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
    found = f"{num_layers} times the same kernels forward are not met by as many backward"
    if num_layers < 2:
        found = "no sequence of kernels comes again forward"
    return UsageError(
        f"{source} does not say what its layers are: it has no marks, no ranges of FSDP and no calls of modules, and "
        f"{found}; profile whole training steps with the activities CPU and CUDA and with_stack=True, or mark layers "
        'by torch.profiler.record_function("layer 0")'
    )


_S = 1e-6  # times in a trace are in microseconds
_Busy = Mapping[tuple[int | str, str], float]


@dataclass(frozen=True, slots=True)
class TracedLayers:
    """What a trace says of layers.

    Args:
        source: what messages call the trace.
        found_by: what its layers were found by, in words.
        layers: their labels, in the order of forward; the embedding first and the head last, if they were found.
        busy_s: the median of how long a pass of a layer keeps the device busy, s, by label and "forward" or "backward".
        update_s: the median of the updates of all layers, s.
        coverage: the share of the time of all kernels but those of communication that belongs to one of these.
        gpu: the device's name in the trace.
    """

    source: str
    found_by: str
    layers: tuple[int | str, ...]
    busy_s: _Busy
    update_s: float
    coverage: float
    gpu: str = ""

    @classmethod
    def read(cls, path: StrPath, marks: Marks | None = None) -> TracedLayers:
        """Read a trace.

        Args:
            path: of the trace, .json or .json.gz.
            marks: which ranges are layers; they are found if None.

        Raises:
            UsageError: the trace cannot be read, or does not say what its layers are.
        """
        source = Path(path).name
        data = read_trace(Path(path), source)
        found = find_layers(LaunchedKernels(data["traceEvents"]), marks, source)
        busy, update_s, coverage = _times(found)
        layers = (EMBEDDING, *found.order, HEAD) if found.has_ends else found.order
        return cls(source, found.by, layers, busy, update_s, coverage, _device_of(data))

    def rows(
        self, *, microbatch: int, tp: int = 1, model: str = "", gpu: str | None = None, num_layers: int | None = None
    ) -> list[LayerTime]:
        """Return the rows of a table.

        Args:
            microbatch: samples of a pass.
            tp: tensor-parallel degree.
            model: what the table calls the model.
            gpu: what it calls the device; the name in the trace if None.
            num_layers: layers of the model beside embedding and head, where the trace shows a part of them; all layers
                then take the median of those.

        Returns:
            A row a layer, in order; one for all layers between embedding and head, if `num_layers` is given.

        Raises:
            UsageError: a layer has no kernels forward or backward.
        """
        update_s = self.update_s / len(self.layers)
        inner = [label for label in self.layers if label not in (EMBEDDING, HEAD)]
        numbers = self._numbers(inner)
        rows = [
            LayerTime(
                first_layer=numbers[label],
                last_layer=numbers[label],
                forward_s=self._time(label, "forward"),
                backward_s=self._time(label, "backward"),
                update_s=update_s,
                microbatch=microbatch,
                tp=tp,
                model=model,
                gpu=self.gpu if gpu is None else gpu,
            )
            for label in self.layers
        ]
        return rows if num_layers is None else self._stretched(rows, num_layers)

    def _stretched(self, rows: Sequence[LayerTime], num_layers: int) -> list[LayerTime]:
        """Return rows for a model of more layers than were traced."""
        has_ends = self.layers[0] == EMBEDDING
        inner = rows[1:-1] if has_ends else rows
        first, last = int(has_ends), num_layers - 1 + int(has_ends)
        times = {kind: median(getattr(row, kind) for row in inner) for kind in ("forward_s", "backward_s", "update_s")}
        middle = replace(inner[0], first_layer=first, last_layer=last, **times)
        if not has_ends:
            return [middle]
        return [rows[0], middle, replace(rows[-1], first_layer=last + 1, last_layer=last + 1)]

    def _numbers(self, inner: Sequence[int | str]) -> dict[int | str, int]:
        """Return the table's number of each layer: as marked, or after the embedding and before the head."""
        if len(inner) < len(self.layers):
            return {EMBEDDING: 0, **{label: place for place, label in enumerate(inner, 1)}, HEAD: len(inner) + 1}
        return {label: label if isinstance(label, int) else place for place, label in enumerate(inner)}

    def _time(self, label: int | str, phase: str) -> float:
        """Return the median of a layer's passes, s."""
        found = self.busy_s.get((label, phase))
        if found is not None:
            return found
        if label == EMBEDDING and phase == "backward":
            return 0.0  # its gradient may be added up by a kernel of another function
        raise UsageError(
            f"{self.source} has no {phase} kernels of layer {label}; profile whole training steps, with the activities "
            "CPU and CUDA, and mark forward of each layer",
            layer=label,
        )


def _times(found: FoundLayers) -> tuple[_Busy, float, float]:
    """Return the median time of each layer's passes and of the updates, s, and the share of all time that they are."""
    passes: dict[tuple[int | str, str, int], list[tuple[float, float]]] = {}
    updates: dict[int, list[tuple[float, float]]] = {}
    computing = [launch for launch in found.launches if not launch.moves]
    for launch in computing:
        if launch.phase == "update":
            updates.setdefault(launch.pass_, []).append(launch.span)
        elif launch.layer is not None:
            passes.setdefault((launch.layer, launch.phase, launch.pass_), []).append(launch.span)
    busy: dict[tuple[int | str, str], list[float]] = {}
    for (layer, phase, _), spans in passes.items():
        busy.setdefault((layer, phase), []).append(union(spans) * _S)
    known = [span for each in (passes, updates) for spans in each.values() for span in spans]
    whole = union(launch.span for launch in computing)
    update_s = median([union(spans) * _S for spans in updates.values()] or [0.0])
    return {key: median(each) for key, each in busy.items()}, update_s, union(known) / whole if whole else 0.0


def _device_of(data: Mapping[str, Any]) -> str:
    """Return the name of the device in a trace."""
    devices = data.get("deviceProperties") or [{}]
    return str(devices[0].get("name", ""))


MOST_BYTES = 4 * 2**30
"""Of a trace, unpacked: minutes of a large run have some hundred MB."""

_NUMBER, _NAME = (int, float), (int, str)
_TIMES = {"X": ("ts", "dur"), "M": ()}  # of an event, by its phase; all others have a moment alone
_KINDS_OF_ARGUMENTS: Mapping[str, Any] = {
    "correlation": _NAME,
    "Sequence number": int,
    "In msg nelems": _NUMBER,
    "Out msg nelems": _NUMBER,
    "Input type": list,
}


def _is_event(event: Any) -> bool:
    """Return whether something has the shape of an event of a chrome trace: names, times, and arguments."""
    if not isinstance(event, dict):
        return False
    arguments = event.get("args", {})
    return (
        all(isinstance(event.get(key, ""), str) for key in ("ph", "cat", "name"))
        and all(isinstance(event.get(key, 0), _NAME) for key in ("pid", "tid", "id"))
        and all(_is_time(event.get(key)) for key in _TIMES.get(event.get("ph", ""), ("ts",)))
        and _is_time(event.get("dur", 0))
        and event.get("dur", 0) >= 0
        and isinstance(arguments, dict)
        and all(isinstance(arguments[key], kind) for key, kind in _KINDS_OF_ARGUMENTS.items() if key in arguments)
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, _NUMBER) and not isinstance(value, bool) and math.isfinite(value)


def read_trace(path: Path, source: str) -> Mapping[str, Any]:
    """Return the data of a trace, which has a list of "traceEvents".

    Args:
        path: of the trace, .json or .json.gz.
        source: what messages call it.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        data = parse_json(read_bytes(path, "trace", MOST_BYTES))
    except (OSError, ValueError) as error:
        raise UsageError(f"the trace {source} cannot be read: {error}; give a chrome trace of the profiler") from error
    data = {"traceEvents": data} if isinstance(data, list) else data
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise UsageError(f"the trace {source} has no list of traceEvents; give a chrome trace of the profiler")
    devices = data.get("deviceProperties") or []
    if not (isinstance(devices, list) and all(isinstance(device, dict) for device in devices)):
        raise UsageError(f"the trace {source} is damaged: its deviceProperties are no list of objects; profile again")
    for number, event in enumerate(data["traceEvents"]):
        if not _is_event(event):
            raise UsageError(
                f"the trace {source} is damaged: event {number} must have numbers as ts and dur (at least 0), names, "
                f"and an object as args; found {json.dumps(event):.200}; give a chrome trace of the profiler"
            )
    return data
