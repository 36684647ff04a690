"""Times of layers from a trace of the PyTorch profiler (Kineto's chrome trace): a table for `MeasuredLayers`.

The user marks layers by `torch.profiler.record_function("layer 7")` and profiles some steps with the activities CPU and
CUDA. Then a kernel belongs to a layer by where it was launched:

1. The kernel and the call that launched it carry one correlation id.
2. If the call lies within a marked range of its thread, that is the layer; it is forward, or backward where autograd
   runs around it (what checkpointing computes again is part of backward).
3. Else, if autograd evaluates a function around it, that belongs to a forward operation, which lies within a marked
   range: the layer's backward. The trace's arrows say to which ("fwdbwd"), or its sequence number where there is none.
4. Kernels within `Optimizer.step` are the update.

A layer's time is how long its kernels keep the device busy, the median over all its passes in the trace. Kernels of
communication (NCCL, RCCL) are left out, since a run pays for transfers itself, and so are gaps between kernels. The
update is shared evenly by the layers.

Source of the format: the keys that Kineto writes (output_json.cpp of github.com/pytorch/kineto), and what autograd's
sequence numbers mean (torch.autograd.profiler, "Forward-backward correlation").
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.hardware.measured_layers import LayerTime
from minitrain.hardware.trace_ranges import Range, ThreadRanges, union

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_RANGES = ("user_annotation", "cpu_op")
_AUTOGRAD = "autograd::engine::evaluate_function"
_UPDATE = "Optimizer.step"
_COMMUNICATION = re.compile(r"^(nccl|rccl|ncclKernel|ncclDev)", re.IGNORECASE)
_MOST_NAMED = 8
_S = 1e-6  # times in a trace are in microseconds

Thread = tuple[Any, Any]
_Moment = tuple[Thread, float]


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

    def pattern(self) -> re.Pattern[str]:
        """Return what the names of layers' ranges match."""
        before, after = self.layer.split("{layer}")
        return re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}")


def layers_from_trace(
    path: str | os.PathLike[str], marks: Marks, *, microbatch: int, tp: int = 1, model: str = "", gpu: str | None = None
) -> list[LayerTime]:
    """Return the times of layers that a trace shows.

    Args:
        path: of the trace, .json or .json.gz.
        marks: which ranges are layers.
        microbatch: samples of a pass.
        tp: tensor-parallel degree.
        model: what the table calls the model.
        gpu: what it calls the device; the name in the trace if None.

    Returns:
        A row a layer, in order.

    Raises:
        UsageError: the trace cannot be read, no range is a layer, or a layer has no kernels forward or backward.
    """
    source = Path(path).name
    data = _read(Path(path), source)
    trace = _Trace(data["traceEvents"], marks)
    if not trace.names_of_layers:
        raise _no_layers(marks, trace.names, source)
    busy, update_s = trace.seconds()
    layers = _numbered(trace.names_of_layers, marks)
    name = _device_of(data) if gpu is None else gpu
    return [
        LayerTime(
            microbatch=microbatch,
            tp=tp,
            first_layer=number,
            last_layer=number,
            forward_s=_time(busy, mark, "forward", source),
            backward_s=_time(busy, mark, "backward", source),
            update_s=update_s / len(layers),
            gpu=name,
            model=model,
        )
        for mark, number in layers.items()
    ]


@final
class _Trace:
    """A trace as threads' timelines, launches and kernels."""

    def __init__(self, events: Sequence[Mapping[str, Any]], marks: Marks) -> None:
        self._pattern, self._ends = marks.pattern(), {marks.embedding: "embedding", marks.head: "head"}
        self.names: set[str] = set()
        self.names_of_layers: set[int | str] = set()
        ranges: dict[Thread, list[Range]] = {}
        self._launches: dict[Any, _Moment] = {}
        self._kernels: list[tuple[Any, float, float]] = []
        arrows: dict[str, dict[Any, _Moment]] = {"s": {}, "f": {}}
        for event in events:
            if event.get("ph") == "X":
                self._take(event, ranges)
            elif event.get("cat") == "fwdbwd" and event.get("ph") in arrows:
                arrows[event["ph"]][event.get("id")] = _moment(event)
        self._forward_of = {end: arrows["s"][key] for key, end in arrows["f"].items() if key in arrows["s"]}
        self._threads = {thread: ThreadRanges(found) for thread, found in ranges.items()}
        self._layer_of_sequence = self._forward_of_sequences(ranges)

    def _take(self, event: Mapping[str, Any], ranges: dict[Thread, list[Range]]) -> None:
        """Sort one event into what it is."""
        category = event.get("cat")
        correlation = event.get("args", {}).get("correlation")
        if category in _KERNELS:
            if not _COMMUNICATION.match(str(event.get("name"))):
                self._kernels.append((correlation, float(event["ts"]), float(event["dur"])))
        elif category in _LAUNCHES:
            self._launches[correlation] = _moment(event)
        elif category in _RANGES:
            ranges.setdefault(_moment(event)[0], []).append(self._range(event))

    def _range(self, event: Mapping[str, Any]) -> Range:
        """Return what a thread did, with the layer that it stands for."""
        start, name = float(event["ts"]), str(event.get("name"))
        if event.get("cat") == "user_annotation":
            self.names.add(name)
        found = self._pattern.fullmatch(name)
        layer: int | str | None = int(found[1]) if found else self._ends.get(name)
        if layer is not None:
            self.names_of_layers.add(layer)
        return Range(start, start + float(event["dur"]), name, layer, event.get("args", {}).get("Sequence number"))

    def _forward_of_sequences(self, ranges: Mapping[Thread, Sequence[Range]]) -> dict[int, Range]:
        """Return the marked range in which the forward operation of each sequence number lies.

        Operations that make no gradient show the number of the next one that does; so the last one with a number
        counts. What checkpointing computes again is forward too, in a marked range within autograd.
        """
        found: dict[int, Range | None] = {}
        for one in sorted((one for each in ranges.values() for one in each), key=lambda one: one.start):
            if one.sequence is not None and one.sequence >= 0:
                inner = next((each for each in one.around() if each.layer is not None or _is_autograd(each)), None)
                if inner is None or not _is_autograd(inner):
                    found[one.sequence] = inner
        return {sequence: marked for sequence, marked in found.items() if marked is not None}

    def seconds(self) -> tuple[dict[tuple[int | str, str], list[float]], float]:
        """Return how long each pass of each layer keeps the device busy, and the median of the updates, s."""
        passes: dict[tuple[int | str, str, int], list[tuple[float, float]]] = {}
        updates: dict[int, list[tuple[float, float]]] = {}
        for correlation, start, duration in self._kernels:
            kind, marked = self._owner(correlation)
            if marked is None:
                continue
            if kind == "update":
                updates.setdefault(id(marked), []).append((start, start + duration))
            else:
                assert marked.layer is not None  # it is marked
                passes.setdefault((marked.layer, kind, id(marked)), []).append((start, start + duration))
        busy: dict[tuple[int | str, str], list[float]] = {}
        for (layer, kind, _), spans in passes.items():
            busy.setdefault((layer, kind), []).append(union(spans) * _S)
        return busy, median([union(spans) * _S for spans in updates.values()] or [0.0])

    def _around(self, thread: Thread, moment: float) -> Iterator[Range]:
        """Yield what a thread did around a moment, from the inside out."""
        if thread in self._threads:
            yield from self._threads[thread].around(moment)

    def _layer_of_function(self, thread: Thread, around: Iterable[Range]) -> Range | None:
        """Return the layer whose forward made the function that autograd evaluates."""
        for one in around:
            if (thread, one.start) in self._forward_of:
                return _marked(self._around(*self._forward_of[thread, one.start]))
            if _is_autograd(one):
                return self._layer_of_sequence.get(-1 if one.sequence is None else one.sequence)
        return None

    def _owner(self, correlation: Any) -> tuple[str, Range | None]:
        """Return what a kernel was launched for, and the range that marks it."""
        if correlation not in self._launches:
            return "", None
        thread, moment = self._launches[correlation]
        around = list(self._around(thread, moment))
        marked = _marked(around)
        if any(map(_is_autograd, around)):
            of_function = self._layer_of_function(thread, around)
            is_other = marked is not None and (of_function is None or of_function.layer != marked.layer)
            return "backward", marked if is_other else of_function
        if marked is not None:
            return "forward", marked
        return "update", next((one for one in around if one.name.startswith(_UPDATE)), None)


def _moment(event: Mapping[str, Any]) -> _Moment:
    """Return on which thread an event begins, and when."""
    return (event.get("pid"), event.get("tid")), float(event["ts"])


def _marked(around: Iterable[Range]) -> Range | None:
    """Return the innermost range that is a layer."""
    return next((one for one in around if one.layer is not None), None)


def _is_autograd(one: Range) -> bool:
    """Return whether a range is autograd's evaluation of a function."""
    return one.name.startswith(_AUTOGRAD)


def _numbered(names: set[int | str], marks: Marks) -> dict[int | str, int]:
    """Return the table's number of each layer: as marked, or after the embedding and before the head."""
    numbers = sorted(name for name in names if isinstance(name, int))
    if marks.embedding is None:
        return {number: number for number in numbers}
    inner: dict[int | str, int] = {number: place for place, number in enumerate(numbers, 1)}
    return {"embedding": 0, **inner, "head": len(numbers) + 1}


def _time(busy: Mapping[tuple[int | str, str], Sequence[float]], layer: int | str, kind: str, source: str) -> float:
    """Return the median of a layer's passes, s."""
    found = busy.get((layer, kind))
    if found:
        return median(found)
    if layer == "embedding" and kind == "backward":
        return 0.0  # its gradient may be added up by a kernel of another function
    raise UsageError(
        f"{source} has no {kind} kernels of layer {layer}; profile whole training steps, with the activities CPU and "
        "CUDA, and mark forward of each layer",
        layer=layer,
    )


def _no_layers(marks: Marks, names: Iterable[str], source: str) -> UsageError:
    """Return the error for a trace without marked layers, with the names that it has."""
    known = sorted(names)
    listed = ", ".join(known[:_MOST_NAMED]) + (", ..." if len(known) > _MOST_NAMED else "")
    return UsageError(
        f"{source} has no range named {marks.layer!r}; it has {listed or 'no named ranges'}; mark layers by "
        "torch.profiler.record_function, or give the name of the ranges there are"
    )


def _device_of(data: Mapping[str, Any]) -> str:
    """Return the name of the device in a trace."""
    devices = data.get("deviceProperties") or [{}]
    return str(devices[0].get("name", ""))


def _read(path: Path, source: str) -> Mapping[str, Any]:
    """Return the data of a trace."""
    try:
        content = path.read_bytes()
        data = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(f"the trace {source} cannot be read: {error}; give a chrome trace of the profiler") from error
    data = {"traceEvents": data} if isinstance(data, list) else data
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise UsageError(f"the trace {source} has no list of traceEvents; give a chrome trace of the profiler")
    return data
