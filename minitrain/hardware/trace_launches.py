"""The kernels of a profiler's trace in the order of their launches, each with what it was launched for.

A kernel and the call that launched it carry one correlation id. Where and when that call was made tells the rest:

1. Within `Optimizer.step` it is the update.
2. Where autograd evaluates a function around it, it is backward. The function belongs to a forward operation: the
   trace's arrows say to which ("fwdbwd"), or its sequence number where there is none. The layer is that of the range
   around the forward operation.
3. Else it is forward, and the layer is that of the range around the call.

A trace without kernels is one of a CPU, where an operation that no other operation calls is what a kernel is elsewhere.
Kernels of communication (NCCL, RCCL, c10d) are left out, since a run pays for transfers itself.

Source of the format: the keys that Kineto writes (output_json.cpp of github.com/pytorch/kineto), and what autograd's
sequence numbers mean (torch.autograd.profiler, "Forward-backward correlation").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from minitrain.hardware.trace_ranges import Range, ThreadRanges

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_MODULE = "nn.Module: "
_AUTOGRAD = "autograd::engine::evaluate_function"
_UPDATE = "Optimizer.step"
_COMMUNICATION = re.compile(r"^(nccl|rccl|ncclKernel|ncclDev|c10d::|_c10d_functional::|gloo:)", re.IGNORECASE)

Thread = tuple[Any, Any]
Moment = tuple[Thread, float]


class Kernel(NamedTuple):
    """Something that kept the device busy, times in microseconds; `launched` is the thread and the moment."""

    name: str
    start: float
    end: float
    launched: Moment


@final
@dataclass(slots=True)
class Launch:
    """A kernel with what it was launched for.

    Args:
        kernel: the kernel.
        phase: "forward", "backward" or "update".
        layer: the layer, as its range is labelled; None where no range says it.
        pass_: what tells one pass of a layer from another.
    """

    kernel: Kernel
    phase: str
    layer: int | str | None = None
    pass_: int = 0

    @property
    def span(self) -> tuple[float, float]:
        """When it kept the device busy, from and to, in microseconds."""
        return self.kernel.start, self.kernel.end


@final
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
