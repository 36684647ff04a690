"""One run explained: where its time goes, why ranks wait, what sets the step time, what would help, what fills memory.

An `Explanation` puts together what `breakdown`, `retiming` and `memory_over_time` find, as objects and as data that can
be written as JSON. Two further analyses are here:

**Why ranks are idle** (`Gaps`). A gap is a time in which no stream of a rank is at work. It ends with an operation of
the rank that had to wait for one of another rank, or with the step. Each gap has the operation that ended it, the rank
that it waited for, and a kind:

- step's end: the rank has done its part, and others have not.
- straggler: a collective waited for its last member.
- warm-up, steady or cool-down bubble: a message was sent late. A rank is in its warm-up before its first backward, and
  in its cool-down after its last forward.
- communication: a straggler or a bubble of which more than half was communication by the operations that were waited
  for.
- recovery: the run was interrupted, as by a device that died.

**The textbook's bubble** (`ClosedForm`) beside the measured one, for the shipped pipeline schedules. In the formulas, p
is the number of ranks of a pipeline, m the number of microbatches, and v the number of stages a rank. tf, ti and tw are
the seconds that forward, input gradient and weight gradient of one microbatch take on one rank, and tb = ti + tw. The
tests of `minitrain.search.schedules` check the formulas. They hold where communication takes no time, so the bubble is
measured twice: in the run as it was, and in the run timed again without communication. The second figure is the one to
compare with the formula. The difference between the two is the cost of communication.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean
from typing import Any

import numpy as np

from minitrain.operations import COMM, COMMUNICATIONS, RECV
from minitrain.run.analysis import retiming
from minitrain.run.analysis.breakdown import Breakdown, breakdown, checked_end
from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.memory_over_time import HighWater, Journals, high_water
from minitrain.run.analysis.timeline import (
    NO_LAYER,
    NONE,
    Bools,
    Floats,
    Ints,
    Timeline,
    Trace,
    as_timeline,
    sweep_timeline,
)

WARMUP, STEADY, COOLDOWN, STRAGGLER, COMMUNICATION, STEP_END, RECOVERY = range(7)
GAP_KINDS = (
    "warm-up bubble",
    "steady bubble",
    "cool-down bubble",
    "straggler",
    "communication",
    "step's end",
    "recovery",
)

_ROUNDING = 1e-12  # of the step time; a shorter gap is a rounding error


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """The idle times of all ranks, by rank and start; those until the step's end come last.

    Args:
        timeline: the run.
        rank: whose gap it is, (num_gaps,), like all that follow.
        start: when it begins, s.
        end: when it ends, s.
        event: the operation of the rank that ended it, `NONE` for the step's end.
        source: the operation of another rank that it waited for, or `NONE`; of a gap until the step's end, the
            operation that ends last.
        kind: index into `GAP_KINDS`.
    """

    timeline: Timeline
    rank: Ints
    start: Floats
    end: Floats
    event: Ints
    source: Ints
    kind: Ints

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def duration(self) -> Floats:
        """How long each gap lasts, s."""
        return self.end - self.start

    def seconds(self) -> Floats:
        """Return how long each rank waited in gaps of each kind, s, (num_ranks, number of kinds)."""
        size = self.timeline.num_ranks, len(GAP_KINDS)
        place = self.rank * size[1] + self.kind
        sums = np.bincount(place, weights=self.duration, minlength=size[0] * size[1])
        return sums.astype(float).reshape(size)

    def reason(self, gap: int) -> str:
        """Say in words what a rank waited for: "rank 2's send of layer 7"."""
        line, event, source = self.timeline, int(self.event[gap]), int(self.source[gap])
        whose = "" if source == NONE else f"rank {line.rank_name(line.rank[source])}"
        why = self._documents(gap) if whose and line.is_packed else ""
        if self.kind[gap] == RECOVERY:
            begin, end = self.start[gap], self.end[gap]
            return f"the recovery: {'; then '.join(out.reason for out in line.outages if begin < out.end <= end)}"
        if event == NONE:
            return f"the step's end, which {whose or 'another rank'} sets{why}"
        typ, layer = line.typs[line.typ[event]], line.layer[event]
        of_layer = "" if layer == NO_LAYER else f" of {line.layer_name(int(layer))}"
        if not whose:
            return f"what comes before {typ}{of_layer}"
        return (f"{whose}'s send{of_layer}" if typ == RECV else f"{whose}, the last to come to {typ}{of_layer}") + why

    def _documents(self, gap: int) -> str:
        """Say how much longer documents keep a rank that is waited for, where that is most of why it is."""
        line, until = self.timeline, self.end[gap]
        of_attention = [name.startswith("attention") for name in line.layer_names]

        def attending(rank: int) -> float:
            here = slice(line.starts[rank], line.starts[rank + 1])
            counts = line.computes[here] & (line.end[here] <= until + _ROUNDING) & (line.layer[here] != NO_LAYER)
            counts[counts] = np.array([*of_attention, False])[line.layer[here][counts]]
            return float(line.duration[here][counts].sum())

        longer = attending(int(line.rank[self.source[gap]])) - attending(int(self.rank[gap]))
        if longer < (until - self.start[gap]) / 2:
            return ""
        return f"; its documents take {duration(longer)} longer in attention so far"


def find_gaps(
    timeline: Timeline,
    step_end: float | None = None,
    graph: retiming.Graph | None = None,
    bound: retiming.Binding | None = None,
) -> Gaps:
    """Return every gap of every rank, with its reason and kind.

    Args:
        timeline: the run.
        step_end: when the step ends, s; the latest end of all ranks if None.
        graph: the dependencies, if they are known already.
        bound: the last dependency of each moment, likewise.
    """
    rank, start, end, event = gaps_of(timeline, checked_end(timeline.last_end, step_end))
    source = _sources(timeline, event)
    kind = _kinds(timeline, rank, start, event)
    graph = graph or retiming.make_graph(timeline)
    waits = event != NONE
    held = _held_by_communication(graph, bound or retiming.binding(graph), start[waits], event[waits])
    kind[waits] = np.where(held > 0.5 * (end - start)[waits], COMMUNICATION, kind[waits])
    for outage in timeline.outages:
        kind[(start < outage.end) & (end >= outage.end)] = RECOVERY
    return Gaps(timeline, rank, start, end, event, source, kind)


def waits_by_device(timeline: Timeline, step_end: float | None = None) -> dict[str, dict[str, float]]:
    """Return how long a rank with each kind of device waits on average, by the device of the rank it waits for, s.

    Args:
        timeline: a run on several kinds of device.
        step_end: when the step ends, s; the latest end of all ranks if None.
    """
    rank, start, end, event = gaps_of(timeline, checked_end(timeline.last_end, step_end))
    source = _sources(timeline, event)
    known = source != NONE
    names = list(dict.fromkeys(timeline.devices))
    device = np.array([names.index(name) for name in timeline.devices])
    sums = np.zeros((timeline.num_ranks, len(names)))
    np.add.at(sums, (rank[known], device[timeline.rank[source[known]]]), (end - start)[known])
    means = {name: [mean(column) for column in sums[device == kind].T.tolist()] for kind, name in enumerate(names)}
    return {name: {other: wait for other, wait in zip(names, row, strict=True) if wait} for name, row in means.items()}


def gaps_of(timeline: Timeline, step_end: float) -> tuple[Ints, Floats, Floats, Ints]:
    """Return rank, start, end and ending event of every gap, from when all weights are there to the step's end."""
    swept = sweep_timeline(timeline)
    step = step_end - swept.begin
    gap = swept.start - swept.busy_until > _ROUNDING * step
    last = swept.last_end(timeline.num_ranks)
    early = np.flatnonzero(step_end - last > _ROUNDING * step)
    return (
        np.concatenate([swept.rank[gap], early]),
        np.concatenate([swept.busy_until[gap], last[early]]),
        np.concatenate([swept.start[gap], np.full(len(early), step_end)]),
        np.concatenate([swept.order[gap], np.full(len(early), NONE)]),
    )


def _sources(timeline: Timeline, event: Ints) -> Ints:
    """Return the operation of another rank that each gap waited for: a send, or the last one of a collective."""
    source = np.full(timeline.num_events + 1, NONE)  # the last place is that of the step's end
    first, num_ranks = retiming.first_events(timeline), timeline.num_ranks
    keys = first * num_ranks + timeline.rank
    order, late = np.argsort(keys), np.flatnonzero(timeline.waited_for != NONE)
    wanted = first[late] * num_ranks + timeline.waited_for[late]
    found = order[np.minimum(np.searchsorted(keys[order], wanted), timeline.num_events - 1)]
    source[late] = np.where(keys[found] == wanted, found, NONE)
    source[-1] = np.argmax(timeline.end) if timeline.num_events else NONE
    return source[event]


def _kinds(timeline: Timeline, rank: Ints, start: Floats, event: Ints) -> Ints:
    """Return the kind of every gap by what ended it and when it began."""
    first_backward, last_forward = _phases(timeline)
    phase = np.full(len(rank), STEADY)
    phase[start >= last_forward[rank]] = COOLDOWN
    phase[start < first_backward[rank]] = WARMUP
    meets = np.append(timeline.on_stream(COMM), False)[event]
    return np.where(event == NONE, STEP_END, np.where(meets, STRAGGLER, phase))


def _phases(timeline: Timeline) -> tuple[Floats, Floats]:
    """Return when each rank begins its first backward and ends its last forward, s, (num_ranks,) each."""
    first, last = np.full(timeline.num_ranks, np.inf), np.full(timeline.num_ranks, -np.inf)
    backwards, forwards = timeline.beginning_with("backward"), timeline.beginning_with("forward")
    np.minimum.at(first, timeline.rank[backwards], timeline.time[backwards])
    np.maximum.at(last, timeline.rank[forwards], timeline.end[forwards])
    return first, last


def _held_by_communication(graph: retiming.Graph, bound: retiming.Binding, start: Floats, event: Ints) -> Floats:
    """Return how much of each gap the operations that it waited for spent in communication, s.

    These are found backwards from the operation that ended the gap, by the dependency that was fulfilled last.
    """
    line, count = graph.timeline, graph.timeline.num_events
    moments, after_end = bound.moment.tolist(), bound.after_end.tolist()
    time, end, computes = line.time.tolist(), line.end.tolist(), line.computes.tolist()
    held = []
    for begin, last in zip(start.tolist(), event.tolist(), strict=True):
        total, moment = 0.0, last
        while True:
            counts, moment = after_end[moment], moments[moment]
            if moment == NONE or (moment < count and end[moment] <= begin):
                break
            if counts and moment < count and not computes[moment]:
                total += end[moment] - max(time[moment], begin)
            if moment < count and time[moment] <= begin:
                break
        held.append(total)
    return np.array(held)


@dataclass(frozen=True, eq=False)
class Explanation:
    """All analyses of one run; each is computed when it is first asked for.

    Args:
        timeline: the run.
        bytes_per_element: bytes of one element of memory.
        step_end: when the step ends, s; the latest end of all ranks if None.
        strategy: name of the strategy, for the textbook's bubble.
        options: its options.
        journals: every change of every store, one journal a rank; empty if none were kept.
    """

    timeline: Timeline
    bytes_per_element: float
    step_end: float | None = None
    strategy: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    journals: Journals = ()

    @cached_property
    def graph(self) -> retiming.Graph:
        """Which operations wait for which."""
        return retiming.make_graph(self.timeline)

    @cached_property
    def binding(self) -> retiming.Binding:
        """The dependency of each moment that was fulfilled last."""
        return retiming.binding(self.graph)

    @cached_property
    def breakdown(self) -> Breakdown:
        """Computing, exposed communication and waiting of each rank."""
        return breakdown(self.timeline, self.step_end)

    @cached_property
    def gaps(self) -> Gaps:
        """Every idle time with its reason."""
        return find_gaps(self.timeline, self.step_end, self.graph, self.binding)

    @cached_property
    def critical_path(self) -> retiming.CriticalPath:
        """The chain of operations that sets the step time."""
        return retiming.critical_path(self.graph, self.binding)

    @cached_property
    def what_ifs(self) -> Mapping[str, float]:
        """The step time if one class of operation were free, s."""
        return retiming.what_ifs(self.graph)

    @cached_property
    def closed_form(self) -> ClosedForm | None:
        """The bubble by the textbook's formula beside the measured one."""
        return closed_form(self.graph, self.strategy, self.options)

    @cached_property
    def high_water(self) -> list[HighWater]:
        """When each rank held most memory, and what it consisted of."""
        return high_water(self.timeline, self.journals)

    @cached_property
    def waits_by_device(self) -> Mapping[str, Mapping[str, float]]:
        """How long a rank with each kind of device waits on average, by the kind that it waits for, s."""
        return waits_by_device(self.timeline, self.step_end)

    def longest_gaps(self, count: int = 5) -> list[int]:
        """Return the longest gaps, as indices into `gaps`, the longest first."""
        order = np.lexsort((np.arange(len(self.gaps)), -self.gaps.duration))
        return [int(gap) for gap in order[:count]]

    def data(self) -> dict[str, Any]:
        """Return all analyses as plain data, ready for JSON: times in s, sizes in bytes."""
        split, waits = self.breakdown, self.gaps.seconds()
        kinds = [kind.replace("-", "_").replace(" ", "_").replace("'", "") for kind in GAP_KINDS]
        form = self.closed_form
        return {
            "step_time_s": split.step_time_s,
            "ranks": [
                {
                    "rank": rank,
                    "computing_s": float(split.computing[rank]),
                    "exposed_communication_s": float(split.exposed[rank]),
                    "overlapped_communication_s": float(split.overlapped[rank]),
                    "waiting_s": float(split.waiting[rank]),
                    "waiting_by_kind_s": dict(zip(kinds, waits[rank].tolist(), strict=True)),
                    "high_water": self._mark(self.high_water[rank]),
                }
                for rank in range(self.timeline.num_ranks)
            ],
            **({"waits_by_device_s": self.waits_by_device} if self.timeline.devices else {}),
            "longest_waits": [self._gap(gap) for gap in self.longest_gaps()],
            "critical_path": {
                **{f"{part}_s": value for part, value in self.critical_path.seconds().items()},
                "by_type_s": self.critical_path.by_typ(),
                "num_operations": len(self.critical_path.event),
            },
            "step_time_if_free_s": dict(self.what_ifs),
            "closed_form": None if form is None else _form(form),
        }

    def _gap(self, gap: int) -> dict[str, Any]:
        gaps = self.gaps
        return {
            "rank": int(gaps.rank[gap]),
            "start_s": float(gaps.start[gap]),
            "duration_s": float(gaps.duration[gap]),
            "kind": GAP_KINDS[gaps.kind[gap]],
            "waits_for": gaps.reason(gap),
        }

    def _mark(self, mark: HighWater) -> dict[str, Any]:
        scale = self.bytes_per_element
        return {
            "time_s": mark.time,
            "bytes": mark.elements * scale,
            "by_kind_bytes": {name: size * scale for name, size in mark.held.items()},
            "text": mark.text(self.timeline, scale),
        }


def _form(form: ClosedForm) -> dict[str, Any]:
    """Return a closed form as data."""
    return {
        "formula": form.formula,
        "condition": form.condition,
        "holds": form.holds,
        "textbook_s": form.textbook_s,
        "with_free_communication_s": form.free_s,
        "measured_s": form.measured_s,
        "textbook_fraction": form.fraction(form.textbook_s),
        "with_free_communication_fraction": form.fraction(form.free_s),
        "measured_fraction": form.fraction(form.measured_s),
    }


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes in the formulas: p, m, v, and seconds for one microbatch on one rank.

    Args:
        p: ranks of a pipeline.
        m: microbatches.
        v: stages a rank.
        tf: forward, s.
        ti: input gradient, s.
        tw: weight gradient, s; 0 where the backward is not split (ti is the whole backward then).
    """

    p: int
    m: int
    v: int
    tf: float
    ti: float
    tw: float


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A bubble: time from the first pass through a layer to the last one, less the work of the busiest rank.

    Args:
        formula: the formula, as text.
        condition: where it holds, as text.
        holds: whether the run meets that condition.
        sizes: the sizes that were put into it.
        textbook_s: the bubble by the formula, s.
        free_s: the bubble that the run would have if communication took no time, s.
        measured_s: the bubble of the run, s.
        work_s: the work of the busiest rank, s.
    """

    formula: str
    condition: str
    holds: bool
    sizes: Sizes
    textbook_s: float
    free_s: float
    measured_s: float
    work_s: float

    def fraction(self, bubble_s: float) -> float:
        """Return a bubble as a share of the time from the first pass to the last, 0 to 1."""
        return bubble_s / (bubble_s + self.work_s) if bubble_s + self.work_s > 0 else 0.0


_Form = tuple[str, Callable[[Sizes], float], str, Callable[[Sizes], bool]]
_EVEN = "tf = ti = tw and m >= 2p - 1"


def _is_even(s: Sizes) -> bool:
    return s.m >= 2 * s.p - 1 and _near(s.tf, s.ti) and _near(s.tf, s.tw)


def _near(left: float, right: float) -> bool:
    return abs(left - right) <= 1e-9 * max(left, right)


_FILL: _Form = ("(p - 1)(tf + tb)", lambda s: (s.p - 1) * (s.tf + s.ti + s.tw), "m >= 1", lambda s: s.m >= 1)
_LOOPED: _Form = (
    "(p - 1)(tf + tb) / v",
    lambda s: (s.p - 1) * (s.tf + s.ti + s.tw) / s.v,
    "m >= p",
    lambda s: s.m >= s.p,
)
_FORMS: Mapping[str, _Form] = {
    "gpipe": _FILL,
    "1f1b": _FILL,
    "one_f_one_b": _FILL,
    "pp_dp": _FILL,
    "pp_zero1": _FILL,
    "interleaved_1f1b": _LOOPED,
    "looped_bfs": _LOOPED,
    "chimera": (
        "(p - 2) tb",
        lambda s: (s.p - 2) * (s.ti + s.tw),
        "m = p and tb >= tf, or m a multiple of p and tb = tf",
        lambda s: (s.m == s.p and s.ti + s.tw >= s.tf) or (s.m % s.p == 0 and _near(s.tf, s.ti + s.tw)),
    ),
    "zb_h1": (
        "(p - 1)(tf + ti - tw)",
        lambda s: (s.p - 1) * (s.tf + s.ti - s.tw),
        "tw <= min(tf, ti) and m >= p",
        lambda s: s.m >= s.p and s.tw <= min(s.tf, s.ti) * (1 + 1e-9),
    ),
    "interleaved_zero_bubble": (
        "(p - 1) tf / v",
        lambda s: (s.p - 1) * s.tf / s.v,
        "tf = ti = tw and m a multiple of p",
        lambda s: s.m % s.p == 0 and _near(s.tf, s.ti) and _near(s.tf, s.tw),
    ),
    "zb_h2": ("(p - 1) tf", lambda s: (s.p - 1) * s.tf, _EVEN, _is_even),
    "zbv": ("(p - 1) tf / 2", lambda s: (s.p - 1) * s.tf / 2, _EVEN, _is_even),
    "dualpipe_v": (
        "(p - 1) tf / 2",
        lambda s: (s.p - 1) * s.tf / 2,
        "tf = ti = tw and m >= 2p",
        lambda s: s.m >= 2 * s.p and _is_even(s),
    ),
}


def closed_form(
    trace: Trace | retiming.Graph, strategy: str, options: Mapping[str, Any] | None = None
) -> ClosedForm | None:
    """Return the bubble by the textbook's formula beside the measured one.

    Args:
        trace: one log a rank, columns, or their graph.
        strategy: name of a shipped strategy.
        options: its options: `pp` and `num_chunks` count.

    Returns:
        Both, or None for a strategy that has no closed form, or of which a file tells sizes that are none.
    """
    form = _FORMS.get(re.split("[: ]", strategy)[0])  # without options ("zb_h2:pp=4") and number ("gpipe (2)")
    graph = trace if isinstance(trace, retiming.Graph) else retiming.make_graph(as_timeline(trace))
    line = graph.timeline
    passes = line.beginning_with("forward", "loss", "backward")
    counts = [(options or {}).get(name) or 1 for name in ("pp", "num_chunks")]
    if form is None or not passes.any() or not all(isinstance(count, int) and count > 0 for count in counts):
        return None
    sizes = _sizes(graph, strategy, options or {})
    free = np.where(line.beginning_with(*COMMUNICATIONS), 0.0, line.duration)
    work = np.bincount(line.rank[passes], weights=line.duration[passes])
    formula, bubble, condition, holds = form
    return ClosedForm(
        formula,
        condition,
        holds(sizes),
        sizes,
        bubble(sizes),
        _makespan(retiming.retimed_events(graph, free)[1], free, passes) - float(work.max()),
        _makespan(line.time, line.duration, passes) - float(work.max()),
        float(work.max()),
    )


def _makespan(time: Floats, duration: Floats, passes: Bools) -> float:
    """Return the time from the first pass to the last, s."""
    return float((time + duration)[passes].max() - time[passes].min())


def _sizes(graph: retiming.Graph, strategy: str, options: Mapping[str, Any]) -> Sizes:
    """Return p, m, v and the times of the busiest rank, as the run shows them."""
    line = graph.timeline
    forwards = line.beginning_with("forward")
    busiest = int(np.argmax(np.bincount(line.rank, weights=np.where(line.computes, line.duration, 0.0))))
    own = line.rank == busiest
    m = len(np.unique(line.samples[forwards & own])) or 1
    tf, tb, tw = (
        float(line.duration[line.beginning_with(name) & own].sum()) / m
        for name in ("forward", "backward", "backward_weight")
    )
    chunks = 2 if re.match("interleaved|looped|zbv|dualpipe", strategy) else NONE
    p = options.get("pp") or (2 if strategy.startswith("pp_") else line.num_ranks)
    return Sizes(p, m, options.get("num_chunks") or max(chunks, 1), tf, tb - tw, tw)
