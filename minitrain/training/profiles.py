"""`mt.read_profiles`: traces of torch's profiler (Kineto), one a rank, as a measured run beside a predicted one.

Any program that torch has profiled will do, such as a run of Megatron-LM or torchtitan. The operations are those of the
predicted run; each that is found in the traces gets the times that it has there:

| operation | found by |
|---|---|
| forward, backward | marks, FSDP's ranges, modules or kernels (`minitrain.machine.profiler_traces`), pass by pass |
| update | `Optimizer.step`, of which each layer has an equal part |
| collectives | type and group; then layer, where a range around the call names it, or else order |

Where a trace has fewer collectives than the program, as DDP has of buckets, those whose sizes add up share its time.
A collective's kernel is that of NCCL, or gloo's range on its own thread: the n-th that begins is the n-th submitted.
Messages (`send`, `recv`) and what a program has beside these is not matched. What is not matched keeps its predicted
duration, as far as there is time for it, and is told. Peaks of memory are the predicted ones: a trace has none.

One whole step is read, between two marks of the profiler or two ends of `Optimizer.step`: that of the median time. The
clocks of ranks are aligned by the ends of their collectives, which all members leave together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from minitrain.errors import UsageError, typed
from minitrain.files import StrPath
from minitrain.machine.profiler_traces import (
    EMBEDDING,
    FSDP_RANGES,
    HEAD,
    FoundLayers,
    LaunchedKernels,
    Marks,
    Range,
    Thread,
    ThreadRanges,
    find_layers,
    read_trace,
)
from minitrain.operations import COLLECTIVES, COMPUTE, LOAD_WEIGHTS, UPDATE, Event
from minitrain.run.analysis.labels import duration
from minitrain.run.result import Run
from minitrain.training.measured import MeasuredRun, measured_fields

_S = 1e-6  # times in a trace are in microseconds
_STEP, _OPTIMIZER = "ProfilerStep#", "Optimizer.step"
_MOVES = "FSDP::"  # what moves weights and gradients for a layer, perhaps while another one computes
_SUBMITTED = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "barrier": "barrier",
}
"""Operations by how torch calls them, in `c10d::_allgather_base_` as in NCCL's "Collective name"."""
_BYTES = {"float": 4, "double": 8, "bfloat16": 2, "half": 2}
_ALIKE = 0.05  # sizes that differ by less are the same
_PASSES = ("forward", "backward")

Span = tuple[float, float]


class Done(NamedTuple):
    """One collective of a trace: its type, group (None where it is not said), layer, bytes (0 likewise) and time, s."""

    typ: str
    group: tuple[int, ...] | None
    layer: int | None
    size_bytes: float
    span: Span


@dataclass(frozen=True)
class TracedStep:
    """What one rank did in one step of its trace.

    Args:
        rank: which.
        span: of the step, s.
        passes: when each pass of a layer computed, in order, by "forward" or "backward" and place of the layer, s.
        updates: when the optimizer computed, s.
        collectives: in the order of their submission.
        layers: how many there are.
        found_by: what layers were found by, in words.
        source: what messages call the trace.
    """

    rank: int
    span: Span
    passes: Mapping[tuple[str, int], Sequence[Span]]
    updates: Sequence[Span]
    collectives: Sequence[Done]
    layers: int
    found_by: str
    source: str


class Match(NamedTuple):
    """How many operations of a type there are in a predicted step and in a traced one, of all ranks, and in both.

    `without` are ranks that have some in the predicted step, and none in their traces.
    """

    typ: str
    predicted: int
    traced: int
    matched: int
    without: tuple[int, ...] = ()


@dataclass(frozen=True)
class Profiled:
    """A measured run from traces.

    Args:
        run: the run.
        matches: what was matched, by type of operation.
        notes: what else to know: by what layers were found, which step was read, which ranks have no trace.
    """

    run: MeasuredRun
    matches: Sequence[Match]
    notes: Sequence[str]

    @property
    def words(self) -> list[str]:
        """Say what was matched and what was not, a line each."""
        return [f"{each.typ}: {_match_in_words(each)}" for each in self.matches] + [*self.notes]

    def summary(self) -> dict[str, Any]:
        """Return what was matched, ready for JSON."""
        return {"matches": [each._asdict() for each in self.matches], "notes": [*self.notes]}

    def __str__(self) -> str:
        return "\n".join(self.words)


def _match_in_words(each: Match) -> str:
    """Return in words how many operations were matched."""
    if each.matched == each.predicted == each.traced:
        return f"all {each.matched} matched"
    if not each.traced:
        return f"{each.predicted} predicted, none found in the traces: they keep their predicted durations"
    without = f", none in the trace of rank {', '.join(map(str, each.without))}" if each.without else ""
    return f"{each.matched} matched of {each.predicted} predicted and {each.traced} traced{without}"


def _of_another_program(matches: Sequence[Match]) -> str:
    """Return what is said where traces have other collectives than the prediction; "" where they have not."""
    found = {each.typ: each for each in matches if each.typ in COLLECTIVES}
    more = [typ for typ, each in found.items() if not each.predicted]
    missing = [typ for typ, each in found.items() if not each.traced]
    if not (more and missing):
        return ""
    return (
        f"the traces have {' and '.join(more)} where {' and '.join(missing)} was predicted: they are of another "
        "strategy; simulate the one that was profiled"
    )


@typed
def read_profiles(
    predicted: Run, traces: Sequence[StrPath], *, marks: Marks | None = None, step: int | None = None
) -> Profiled:
    """Read traces of torch's profiler as a measured run of the program that was predicted.

    Args:
        predicted: a run of the same program, simulated or read from a file.
        traces: chrome traces of the profiler, .json or .json.gz, of all ranks or some; a rank without one takes the
            times of the lowest rank that has one and did the same.
        marks: which ranges are layers; they are found if None.
        step: which whole step of the traces, from 0 on; that of the median time if None.

    Returns:
        The run, and what was matched.

    Raises:
        UsageError: a trace cannot be read, ends in the middle of a step, or is of another rank, world or model.
    """
    if not traces:
        raise UsageError("there are no traces; give one of each rank, or of one of them")
    if len(predicted.logs) != predicted.world_size:
        raise UsageError('traces need every event of the predicted run; simulate it with log="full"')
    opened = [_Opened(path, place, marks, predicted.num_layers) for place, path in enumerate(traces)]
    steps, chosen = _same_step(opened, predicted, step)
    for each in steps:
        _require_model(each, predicted)
    by_rank = {each.rank: each for each in steps}
    clocks = _behind(by_rank)
    origin = min(each.span[0] + clocks[each.rank] for each in steps)
    events = [list(log) for log in predicted.logs]
    taken, counts = {}, _Counts()
    for rank, log in enumerate(events):
        like = rank if rank in by_rank else _like(rank, events, by_rank)
        times = _matched(log, by_rank[like], counts if like == rank else _Counts())
        shift = clocks[like] - origin
        taken[rank] = {index: (begin + shift, end + shift) for index, (begin, end) in times.items()}
    logs = _met(events, [_with_times(log, taken[rank]) for rank, log in enumerate(events)])
    run = MeasuredRun(
        **{**measured_fields(predicted, f"profiled, {opened[0].backend}"), "logs": logs},
        backend=opened[0].backend,
        predicted=predicted,
    )
    run = replace(run, peak_memory_per_rank=predicted.peak_memory_per_rank, seconds=(run.step_time,))
    missing = sorted(set(range(predicted.world_size)) - set(by_rank))
    notes = [
        f"layers were found by {steps[0].found_by}; step {chosen} of the traces was read, "
        f"{duration(max(each.span[1] - each.span[0] for each in steps))} with what the program does around it"
    ]
    if missing:
        notes.append(f"ranks without a trace take the times of one that did the same: {', '.join(map(str, missing))}")
    matches = counts.matches()
    return Profiled(run, matches, [*notes, *filter(None, [_of_another_program(matches)])])


class _Counts:
    """How many operations of each type were predicted, traced and matched."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._without: dict[str, list[int]] = defaultdict(list)

    def add(self, typ: str, predicted: int, traced: int, matched: int, rank: int | None = None) -> None:
        """Count operations of a type; those of a rank are all that it has."""
        if rank is not None and predicted and not traced:
            self._without[typ].append(rank)
        for place, number in enumerate((predicted, traced, matched)):
            self._numbers[typ][place] += number

    def matches(self) -> list[Match]:
        """Return the numbers by type."""
        return [
            Match(typ, predicted, traced, matched, tuple(self._without[typ]))
            for typ, (predicted, traced, matched) in self._numbers.items()
            if predicted or traced
        ]


class _Opened:
    """A trace that was read: its ranges, kernels and steps.

    Args:
        path: of the trace.
        place: of the trace among those given: its rank, where it does not say one.
        marks: which ranges are layers.
        num_layers: of the predicted run: embedding and head are layers where it counts them.
    """

    def __init__(self, path: StrPath, place: int, marks: Marks | None, num_layers: int) -> None:
        self.source = Path(path).name
        data = read_trace(Path(path), self.source)
        try:
            known = data.get("distributedInfo") or {}
            self.rank, self.world_size = int(known.get("rank", place)), known.get("world_size")
            self.backend = str(known.get("backend", "unknown"))
            groups = known.get("pg_config") or [{}]
            self._group = tuple(map(int, groups[0].get("ranks", ()))) or None if len(groups) == 1 else None
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UsageError(
                f"{self.source} is damaged: its distributedInfo must have a rank, world_size, backend and pg_config as "
                "the profiler writes them; profile again"
            ) from None
        self._events = [event for event in data["traceEvents"] if event.get("ph") == "X"]
        trace = LaunchedKernels(data["traceEvents"])
        self.found: FoundLayers = find_layers(trace, marks, self.source)
        self._threads = {thread: ThreadRanges(ranges) for thread, ranges in trace.ranges.items()}
        self.order = self._order(num_layers)
        self._is_fsdp = self.found.by == FSDP_RANGES
        self.collectives = self._collectives()
        self.steps = self._steps(trace)

    def _order(self, num_layers: int) -> dict[int | str | None, int]:
        """Return the place of each layer in the model."""
        inner = list(self.found.order)
        labels = [EMBEDDING, *inner, HEAD] if self.found.has_ends and len(inner) != num_layers else inner
        return {label: place for place, label in enumerate(labels)}

    def _steps(self, trace: LaunchedKernels) -> list[Span]:
        """Return the whole steps, in microseconds."""
        named = [one for _, one in trace.named()]
        marked = sorted((one.start, one.end, one.name) for one in named if one.name.startswith(_STEP))
        numbers = [int(number) for _, _, name in marked if (number := name.removeprefix(_STEP)).isdecimal()]
        if numbers != sorted(numbers):
            raise UsageError(
                f"the clock of {self.source} runs backwards: its steps come in the order "
                f"{', '.join(map(str, numbers[:6]))}; profile again"
            )
        if marked:
            return [(start, end) for start, end, _ in marked]
        ends = sorted(one.end for one in named if one.name.startswith(_OPTIMIZER))
        if not ends:
            raise UsageError(
                f"{self.source} has no whole step: neither marks of the profiler ({_STEP}1) nor Optimizer.step; "
                "profile whole training steps, with a schedule and profiler.step()"
            )
        first = min(launch.span[0] for launch in self.found.launches)
        return list(zip([first, *ends], ends, strict=False))

    def _collectives(self) -> list[Done]:
        """Return all collectives, in the order of their submission, times in microseconds."""
        kernels = [
            event for event in self._events if event.get("cat") == "kernel" and _args(event).get("Collective name")
        ]
        if kernels:
            return [self._done(event, event) for event in sorted(kernels, key=_start) if _typ(event)]
        calls = sorted((e for e in self._events if str(e.get("name")).startswith("c10d::") and _typ(e)), key=_start)
        works = sorted((e for e in self._events if str(e.get("name")).startswith("gloo:")), key=_start)
        return [self._done(call, work) for call, work in zip(calls, works or calls, strict=False)]

    def _done(self, call: Mapping[str, Any], work: Mapping[str, Any]) -> Done:
        """Return a collective by its call and what worked on it."""
        thread: Thread = (call.get("pid"), call.get("tid"))
        around: Iterator[Range] = self._threads[thread].around(_start(call)) if thread in self._threads else iter(())
        layer = self.order.get(next((one.layer for one in around if one.layer is not None), None))
        ranks = re.findall(r"\d+", str(_args(call).get("Process Group Ranks", "")))
        group = tuple(map(int, ranks)) or self._group
        return Done(
            _typ(call), group, layer, _size_bytes(_args(call)), (_start(work), _start(work) + float(work["dur"]))
        )

    def _around(self, thread: Thread, moment: float) -> list[str]:
        """Return the names of what a thread did around a moment."""
        return [one.name for one in self._threads[thread].around(moment)] if thread in self._threads else []

    def step(self, place: int) -> TracedStep:
        """Return what was done in one of the steps."""
        begin, end = self.steps[place]
        passes: dict[tuple[str, int, Hashable], list[Span]] = defaultdict(list)
        updates: list[Span] = []
        before, number = (
            ("", -1),
            0,
        )  # FSDP has several ranges a pass: what follows of the same layer is of the same pass
        for launch in self.found.launches:
            if not begin <= launch.kernel.launched[1] <= end:
                continue
            around = self._around(*launch.kernel.launched)
            if any(name.startswith(_OPTIMIZER) for name in around):
                updates.append(launch.span)
            elif launch.layer in self.order and not any(name.startswith(_MOVES) for name in around):
                key = launch.phase, self.order[launch.layer]
                number += key != before
                before = key
                passes[(*key, number if self._is_fsdp else launch.pass_)].append(launch.span)
        by_layer: dict[tuple[str, int], list[Span]] = defaultdict(list)
        for (phase, layer, _), spans in passes.items():
            by_layer[phase, layer].append(_scaled((min(s for s, _ in spans), max(e for _, e in spans))))
        return TracedStep(
            self.rank,
            _scaled((begin, end)),
            {key: sorted(spans) for key, spans in by_layer.items()},
            [_scaled((min(s for s, _ in updates), max(e for _, e in updates)))] if updates else [],
            [one._replace(span=_scaled(one.span)) for one in self.collectives if begin <= one.span[0] <= end],
            len(self.order),
            self.found.by,
            self.source,
        )


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = event.get("args") or {}
    return found


def _start(event: Mapping[str, Any]) -> float:
    return float(event["ts"])


def _scaled(span: Span) -> Span:
    return span[0] * _S, span[1] * _S


def _typ(event: Mapping[str, Any]) -> str:
    """Return which operation a call or kernel is; "" for another one."""
    name = str(_args(event).get("Collective name") or event.get("name")).removeprefix("c10d::").lower()
    name = name.replace("_all", "all").lstrip("_")
    return next((typ for begin, typ in _SUBMITTED.items() if name.startswith(begin)), "")


def _size_bytes(args: Mapping[str, Any]) -> float:
    """Return the bytes of the largest tensor that a call has, or 0 where the trace does not say them."""
    if "In msg nelems" in args:
        elements = max(float(args["In msg nelems"]), float(args.get("Out msg nelems", 0)))
        return elements * _BYTES.get(str(args.get("dtype")).lower(), 4)
    dims, types = args.get("Input Dims") or [], args.get("Input type") or []
    each = _BYTES.get(str(types[0]).lower().removeprefix("c10::") if types else "", 4)
    return float(max((prod(shape) for shape in _shapes(dims)), default=0) * each)


def _shapes(dims: Any) -> Iterator[Sequence[int]]:
    """Yield the shapes in nested lists of them."""
    if isinstance(dims, list) and dims and all(isinstance(item, int) for item in dims):
        yield dims
    elif isinstance(dims, list):
        for item in dims:
            yield from _shapes(item)


def _same_step(opened: Sequence[_Opened], predicted: Run, step: int | None) -> tuple[list[TracedStep], int]:
    """Return the same step of all traces, and which it is.

    Raises:
        UsageError: there is no such step, or two traces are of one rank, or one of a rank that the run has not.
    """
    ranks = [each.rank for each in opened]
    for each in opened:
        if ranks.count(each.rank) > 1 or each.rank >= predicted.world_size:
            raise UsageError(
                f"{each.source} is the trace of rank {each.rank}; give one trace a rank, of ranks 0 to "
                f"{predicted.world_size - 1}"
            )
        if each.world_size not in (None, predicted.world_size):
            raise UsageError(
                f"{each.source} is a trace of {each.world_size} ranks, and the run has {predicted.world_size}; "
                f"simulate the run with world_size={each.world_size}"
            )
    number = min(len(each.steps) for each in opened)
    lengths = [end - begin for begin, end in opened[0].steps[:number]]
    chosen = sorted(range(number), key=lengths.__getitem__)[(number - 1) // 2] if step is None else step
    if not 0 <= chosen < number:
        raise UsageError(f"the traces have {number} whole steps, 0 to {number - 1}; there is no step {step}")
    return [each.step(chosen) for each in opened], chosen


def _require_model(step: TracedStep, predicted: Run) -> None:
    """Require that a trace is of the predicted model, and has what it does.

    Raises:
        UsageError: it is of another one, or has been cut off.
    """
    if step.layers != predicted.num_layers:
        raise UsageError(
            f"{step.source} is a trace of {step.layers} layers, found by {step.found_by}, and the run has "
            f"{predicted.num_layers}; simulate the run with num_layers={step.layers}, or mark each layer by "
            'torch.profiler.record_function("layer 0")'
        )
    if not step.passes:
        raise UsageError(f"{step.source} has no operations of layers in that step; it may be cut off, profile again")


def _behind(steps: Mapping[int, TracedStep]) -> dict[int, float]:
    """Return what is added to each rank's clock, s, so that all ranks leave a collective together."""
    ends = {rank: _ends(step) for rank, step in steps.items()}
    first = ends[min(ends)]
    return {
        rank: median([first[key] - end for key, end in each.items() if key in first] or [0.0])
        for rank, each in ends.items()
    }


def _ends(step: TracedStep) -> dict[Hashable, float]:
    """Return when each collective ends, by group and number."""
    counts: dict[Hashable, int] = defaultdict(int)
    found: dict[Hashable, float] = {}
    for one in step.collectives:
        counts[one.group] += 1
        found[one.group, counts[one.group]] = one.span[1]
    return found


def _like(rank: int, events: Sequence[Sequence[Event]], traced: Mapping[int, Any]) -> int:
    """Return the lowest rank with a trace that does what another rank does.

    Raises:
        UsageError: there is none.
    """
    own = [(each.typ, each.layer) for each in events[rank]]
    for other in sorted(traced):
        if [(each.typ, each.layer) for each in events[other]] == own:
            return other
    raise UsageError(f"rank {rank} does what no rank with a trace does; give the trace of rank {rank} too")


def _matched(log: Sequence[Event], step: TracedStep, counts: _Counts) -> dict[int, Span]:
    """Return the times of the operations that are found in a step, s, by their places in the log."""
    times = _matched_passes(log, step, counts)
    updates = [index for index, event in enumerate(log) if event.typ == UPDATE]
    known = updates if step.updates else []
    if known:
        times |= dict(zip(known, _cut(step.updates[0], [1.0] * len(known)), strict=True))
    counts.add(UPDATE, len(updates), len(known), len(known))
    for typ in COLLECTIVES:
        predicted = [index for index, event in enumerate(log) if event.typ == typ]
        traced = [one for one in step.collectives if one.typ == typ]
        found = _matched_collectives(log, predicted, traced)
        times |= found
        counts.add(typ, len(predicted), len(traced), len(found), step.rank)
    for event in log:
        if event.typ not in (*_PASSES, UPDATE, LOAD_WEIGHTS, *COLLECTIVES):
            counts.add(event.typ, 1, 0, 0)
    return times


def _matched_passes(log: Sequence[Event], step: TracedStep, counts: _Counts) -> dict[int, Span]:
    """Return the times of forward and backward, where a layer has as many passes in both, s."""
    by_layer: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for index, event in enumerate(log):
        if event.typ in _PASSES:
            by_layer[event.typ, event.layer].append(index)
    times: dict[int, Span] = {}
    for (typ, layer), indices in by_layer.items():
        spans = step.passes.get((typ, -1 if layer is None else layer), ())
        found = dict(zip(indices, spans, strict=False)) if len(spans) == len(indices) else {}
        times |= found
        counts.add(typ, len(indices), len(spans), len(found))
    return times


def _matched_collectives(log: Sequence[Event], predicted: Sequence[int], traced: Sequence[Done]) -> dict[int, Span]:
    """Return the times of collectives of one type: matched by group, and layer or order."""
    times: dict[int, Span] = {}
    every = {one.group for one in traced}
    groups = {index: log[index].group if log[index].group in every else None for index in predicted}
    for group in dict.fromkeys(groups.values()):
        mine = [index for index in predicted if groups[index] == group]
        theirs = [one for one in traced if group is None or one.group == group]
        if any(one.layer is not None for one in theirs):
            times |= _by_layer(log, mine, theirs)
        elif len(mine) == len(theirs):
            times |= {index: one.span for index, one in zip(mine, theirs, strict=True)}
        else:
            times |= _joined(log, mine, theirs)
    return times


def _by_layer(log: Sequence[Event], predicted: Sequence[int], traced: Sequence[Done]) -> dict[int, Span]:
    """Return the times of collectives whose layers are known: of each layer the n-th is the n-th."""
    spans: dict[int | None, list[Span]] = defaultdict(list)
    for one in traced:
        spans[one.layer].append(one.span)
    times = {}
    for index in predicted:
        layer = log[index].layer
        if layer is not None and spans.get(layer):
            times[index] = spans[layer].pop(0)
    return times


def _joined(log: Sequence[Event], predicted: Sequence[int], traced: Sequence[Done]) -> dict[int, Span]:
    """Return the times of collectives that were done together, as buckets; nothing where their sizes do not add up."""
    whole = sum(log[index].size_bytes for index in predicted), sum(one.size_bytes for one in traced)
    if not all(whole) or len(traced) > len(predicted):
        return {}
    left = list(predicted)
    times: dict[int, Span] = {}
    for one in traced:
        members, share = [], 0.0
        while left and share < one.size_bytes / whole[1] - _ALIKE / len(traced):
            members.append(left.pop(0))
            share += log[members[-1]].size_bytes / whole[0]
        if not members or abs(share - one.size_bytes / whole[1]) > _ALIKE / len(traced):
            return {}
        times |= dict(zip(members, _cut(one.span, [log[index].size_bytes for index in members]), strict=True))
    return {} if left else times


def _cut(span: Span, sizes: Sequence[float]) -> list[Span]:
    """Return a span in pieces, one after another, as long as their sizes say.

    >>> _cut((1.0, 5.0), [1, 3])
    [(1.0, 2.0), (2.0, 5.0)]
    """
    whole, done, pieces = sum(sizes) or 1.0, 0.0, []
    for size in sizes:
        begin = span[0] + (span[1] - span[0]) * done / whole
        done += size
        pieces.append((begin, span[0] + (span[1] - span[0]) * done / whole))
    return pieces


def _with_times(log: Sequence[Event], times: Mapping[int, Span]) -> list[Event]:
    """Return the events of a rank with traced times; what was not traced has its predicted duration, if there is time.

    A rank computes one operation after another, so one that overlaps the one before it begins when that ends.
    """
    found: list[Event] = []
    clock = 0.0
    awaited: dict[int, list[float]] = defaultdict(list)
    later: Callable[[int], float] = _next_traced(log, times)
    loading = True
    for index, event in enumerate(log):
        loading = loading and event.typ == LOAD_WEIGHTS
        clock = max([clock, *awaited.pop(index, ())])
        known = times.get(index)
        if loading:
            found.append(replace(event, time=0.0, duration=0.0, launched=0.0, waited_for=None))
            continue
        begin = clock if known is None else max(known[0], clock)
        predicted_end = begin + min(event.duration, max(later(index) - begin, 0.0))
        end = predicted_end if known is None else max(known[1], begin)
        launched = begin if event.stream == COMPUTE else clock
        found.append(replace(event, time=begin, duration=end - begin, launched=launched, waited_for=None))
        if event.stream == COMPUTE:
            clock = end
        elif event.awaited is not None:
            awaited[event.awaited].append(end)
    return found


def _next_traced(log: Sequence[Event], times: Mapping[int, Span]) -> Callable[[int], float]:
    """Return what says when the next traced operation after a place begins, s."""
    begins = [float("inf")] * (len(log) + 1)
    for index in range(len(log) - 1, -1, -1):
        begins[index] = times[index][0] if index in times else begins[index + 1]
    return begins.__getitem__


def _met(predicted: Sequence[Sequence[Event]], logs: Sequence[list[Event]]) -> list[list[Event]]:
    """Return the events of all ranks, where a collective begins when its last member has come."""
    counts: dict[Hashable, int] = defaultdict(int)
    meetings: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for rank, log in enumerate(predicted):
        for index, event in enumerate(log):
            if event.typ in COLLECTIVES:
                counts[rank, event.group] += 1
                meetings[event.group, counts[rank, event.group]].append((rank, index))
    for members in meetings.values():
        begins = {rank: logs[rank][index].time for rank, index in members}
        last = max(begins, key=begins.__getitem__)
        for rank, index in members:
            event = logs[rank][index]
            waits = None if begins[rank] == begins[last] else last
            end = max(event.end, begins[last])
            logs[rank][index] = replace(event, time=begins[last], duration=end - begins[last], waited_for=waits)
    return [*logs]
