"""Where the gap between two runs comes from: `diff`, and what it returns.

Two runs of one program issue the same operations in the same order, so the k-th of a rank in one is the k-th in the
other: a simulated step and the same step measured, two machines, before and after a change. What differs is how long
each operation lasts, and the *lag* before each moment, which no dependency explains: the host between two operations.

**The attribution.** Let every duration and lag go from those of A to those of B, all at the same pace. The step time is
the length of the longest path, a convex, piecewise linear function on this way. Wherever an operation is on the longest
path, the step grows by as much as the operation does. An operation's part of the gap is its difference times the share
of the way for which it is on the longest path (Aumann and Shapley's values of a game, 1974). The parts add up to the
gap, no order of causes is chosen, and what both runs hide costs nothing. Where paths change is found exactly, by
tangents, up to `minitrain.run.analysis.moments.MOST_PATHS` paths; beyond those a stretch is divided between its two
ends so that the sum holds.

**Chance.** Of a run whose steps were measured, each operation has its median over them, so that what disturbs now
one and now another leaves no trace. By how much a step takes longer than these medians say is a part of its own.

**What explains it.** For one operation, one kind, one layer, one rank or one link after the other: the step time of B
with A's times for this alone. The narrowest that closes most of the gap is found. If all of its rank, link or kind are
longer by about as much, though others hide it, that is named in its place.

Where the programs differ (another strategy, other microbatches), there is no way from one to the other. Then the
critical path of each run, which is as long as its step, is split by the same causes, and the parts are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minitrain.errors import UsageError, typed, typed_methods
from minitrain.files import StrPath
from minitrain.operations import COMM, HOST_MOVES
from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.moments import NEAR, Case, Moments, Way
from minitrain.run.analysis.retiming import critical_path, first_events, make_graph, numbered
from minitrain.run.analysis.timeline import NO_LAYER, Bools, Floats, Ints, Timeline
from minitrain.run.figures import data_frame
from minitrain.run.result import Run, load_run
from minitrain.tensors.index_sets import grouped

COMPUTING, BESIDE, SKEW = "computing", "computing beside communication", "skew between ranks"
LATENCY, BANDWIDTH, TRANSFER = "latency", "bandwidth", "communication"
HOST, LATE, MOVES = "between operations", "late begins", "moves to the host"
CHANCE = "chance"
CAUSES = {
    COMPUTING: "kernels that take longer, on all ranks alike",
    BESIDE: "kernels that take longer while communication runs beside them than they do alone",
    SKEW: "kernels that take longer on this rank than on the median one",
    LATENCY: "what each collective takes whatever its size",
    BANDWIDTH: "what collectives take by the byte",
    TRANSFER: "collectives and messages of one size, or single ones that differ from the others of their kind",
    MOVES: "moves to the host's memory and back, and writes to the storage",
    HOST: "time before an operation in which its rank does nothing that the log knows: the host, and launching",
    LATE: "communication that begins after all that it waits for",
    CHANCE: "by how much a measured step takes longer than the medians of its operations say",
}
"""What a part of a gap may be due to."""

_SIZES = ("world_size", "num_layers", "global_batch_size")
_CONDITIONS = ("strategy", "options", "workload", *_SIZES, "hardware", "priced_by")
_CLOSES = 0.9  # of what the best explanation closes: what a narrower one must close to be named
_ALIKE = 0.5  # of what an operation has changed: what others must have changed to be of the same cause
_TRIED = 24  # explanations of each form
_AT_ONCE = 16  # of these, timed together
_RATHER_CHANCE = 0.25  # of what is chance: a gap between typical times that is smaller may be chance too
_LIKE = 3  # ranks with a like operation, from which one may say what is usual
_BESIDE, _ALONE = 0.5, 0.1  # shares of an operation that communication runs beside


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the gap.

    Args:
        cause: why, a key of `CAUSES`.
        operation: what, such as "backward" or "all_gather".
        seconds: how much of the gap this is, s; negative where B is faster.
        layers: of its operations, in order; empty where they have none.
        ranks: of its operations, in order.
        count: how many operations.
        before: mean duration (or lag) of these in A, s; their sum on the critical path if the programs differ.
        after: likewise in B.
        per: what these two are: "each" or "on the path".
    """

    cause: str
    operation: str
    seconds: float
    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    count: int
    before: float
    after: float
    per: str = "each"

    def __str__(self) -> str:
        what = self.operation if self.cause in (COMPUTING, TRANSFER) else f"{self.cause}, {self.operation}"
        where = f" ({self.where})" if self.where else ""
        return f"{what}{where}: {duration(self.after)} {self.per}, not {duration(self.before)}"

    @property
    def where(self) -> str:
        """The layers and ranks of its operations, in words."""
        return ", ".join(text for text in (_numbers("layer", self.layers), _numbers("rank", self.ranks)) if text)


@dataclass(frozen=True, slots=True)
class MainCause:
    """What explains most of a gap.

    Args:
        what: an operation, a kind of operation, a layer, a rank or a link, in words.
        form: which of these: "all" (computing, or communication), "operation", "kind", "kind on a rank",
            "kind of a layer", "layer", "rank" or "link".
        step_time: the step time of B with A's times for this alone, s.
        layers: of its operations, in order.
        ranks: of its operations, in order.
        count: how many operations these are; of a collective or a message, one a rank.
    """

    what: str
    form: str
    step_time: float
    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    count: int


@typed_methods
@dataclass(frozen=True, eq=False)
class Gap:
    """The difference between the step times of two runs, and what it is due to.

    Args:
        before: the first run, A.
        after: the second, B.
        names: what both are called.
        attribution: parts that add up to `seconds`, the largest first.
        lines: the operations of both, with typical times where several steps were measured.
        explanation: what explains most of it; None where nothing does, or the programs differ.
        without_partner: operations of one run alone, in words; empty for runs of the same program.
    """

    before: Run
    after: Run
    names: tuple[str, str]
    attribution: Sequence[Part]
    lines: tuple[Timeline, Timeline] = field(repr=False)
    explanation: MainCause | None = None
    without_partner: Sequence[str] = ()
    share_by_event: Any = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        """How much longer the step of B takes, s."""
        return self.after.step_time - self.before.step_time

    @property
    def is_same_program(self) -> bool:
        """Whether both runs did the same operations in the same order, so that each has its partner."""
        return self.share_by_event is not None

    @property
    def _is_rather_chance(self) -> bool:
        """Whether what no operation usually takes is more than half of the gap."""
        return any(2 * abs(part.seconds) > abs(self.seconds) for part in self.attribution if part.cause == CHANCE)

    @property
    def conditions(self) -> dict[str, tuple[Any, Any]]:
        """What the runs were given that differs, by name: of A, and of B."""
        both = {name: (getattr(self.before, name), getattr(self.after, name)) for name in _CONDITIONS}
        return {name: pair for name, pair in both.items() if pair[0] != pair[1]}

    @cached_property
    def words(self) -> list[str]:
        """What the gap is due to, in sentences, the most important first."""
        a, b = self.names
        first, second, more = self.before.step_time, self.after.step_time, self.seconds
        how_much = f"{duration(abs(more))} {'longer' if more >= 0 else 'shorter'}"
        times = f" ({second / first:.3g} times as long)" if first and more else ""
        found = [f"{b} takes {duration(second)} a step, {a} {duration(first)}: {how_much}{times}."]
        if self.conditions:
            listed = (f"{name} {first} and {second}" for name, (first, second) in self.conditions.items())
            found.append(f"What they were given differs: {'; '.join(listed)}.")
        if self.explanation is not None:
            mostly = "Apart from chance, mostly" if self._is_rather_chance else "Mostly"
            found.append(
                f"{mostly}: {self.explanation.what}. With the times of {a} for this alone, {b} would take "
                f"{duration(self.explanation.step_time)}."
            )
        for part in self.attribution[:4]:
            if abs(part.seconds) >= 0.05 * abs(self.seconds):
                found.append(f"{duration(part.seconds)} of {duration(self.seconds)}: {part}.")
        if not self.is_same_program:
            found.append("The programs differ, so what is compared is what sets the step time of each.")
        return [*found, *self.without_partner]

    def summary(self) -> dict[str, Any]:
        """Return all of it as a plain dict, ready for JSON."""
        return {
            "before": self.names[0],
            "after": self.names[1],
            "step_time_before_s": self.before.step_time,
            "step_time_after_s": self.after.step_time,
            "gap_s": self.seconds,
            "same_program": self.is_same_program,
            "conditions": self.conditions,
            "explanation": None if self.explanation is None else asdict(self.explanation),
            "attribution": [asdict(part) for part in self.attribution],
            "without_partner": [*self.without_partner],
        }

    def to_pandas(self) -> Any:
        """Return the parts as a pandas DataFrame, a row each.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame([asdict(part) for part in self.attribution])

    def table(self) -> Any:
        """Return the parts as a rich table; `rich.print` shows it."""
        from minitrain.whatif.figure import parts_table  # noqa: PLC0415  (rich only when somebody looks)

        return parts_table(self)

    def write_html(self, path: StrPath) -> Path:
        """Write words, table and both runs on one time axis as a page that needs no internet, and return its path."""
        from minitrain.whatif.figure import write_diff_page  # noqa: PLC0415  (plotly only when somebody looks)

        return write_diff_page(self, Path(path))

    def __str__(self) -> str:
        return "\n".join(self.words)

    def __repr__(self) -> str:
        return f"<Gap: {self.words[0]}>"


@typed
def diff(before: Any, after: Any, *, names: tuple[str, str] = ("A", "B")) -> Gap:
    """Attribute the gap between the step times of two runs.

    Args:
        before: the run to compare with, A: a `Run`, a `MeasuredRun`, or the path of a saved run.
        after: the run whose step is longer or shorter, B, likewise.
        names: what to call them.

    Returns:
        The parts of the gap, which add up to it.

    Raises:
        UsageError: a run kept no events (`log="summary"`), or has none.
    """
    first, second = (_run_of(given, name) for given, name in zip((before, after), names, strict=True))
    lines = first.typical_timeline, second.typical_timeline
    chance = _chance(first, second, lines)
    if _is_same_program(*lines):
        return _of_same_program(first, second, lines, names, chance)
    parts = _compared(*(_on_critical_path(line) for line in lines))
    alone = _without_partner(*lines, names)
    return Gap(first, second, names, _largest_first([*parts, *chance]), lines=lines, without_partner=alone)


def _run_of(given: Any, name: str) -> Run:
    """Return a run with events.

    Raises:
        UsageError: it is none.
    """
    run = given if isinstance(given, Run) else load_run(given)
    if not run.keeps_events:
        raise UsageError(f'{name} kept totals and no events; simulate it with log="full" to compare its operations')
    if not run.num_events:
        raise UsageError(f"{name} has no events; a diff needs two runs that did something")
    return run


def _is_same_program(a: Timeline, b: Timeline) -> bool:
    """Return whether two runs did the same operations in the same order."""
    if not np.array_equal(a.starts, b.starts):
        return False
    columns = ((a.layer, b.layer), (a.peer, b.peer), (a.awaited, b.awaited))
    if not all(np.array_equal(*pair) for pair in columns):
        return False
    coded = ("typ", "typs"), ("group", "groups"), ("tag", "tags"), ("samples", "sample_sets"), ("after", "chains")
    return all(_say_the_same((getattr(a, x), getattr(a, y)), (getattr(b, x), getattr(b, y))) for x, y in coded)


def _say_the_same(a: tuple[Ints, tuple[Any, ...]], b: tuple[Ints, tuple[Any, ...]]) -> bool:
    """Return whether two columns of indices into tuples have the same values."""
    pairs = np.unique(np.column_stack([a[0], b[0]]), axis=0)
    return all(a[1][i] == b[1][j] for i, j in pairs.tolist())


# --- what the parts are due to -----------------------------------------------------------------------------------


class _Share(NamedTuple):
    """Some seconds of a gap, and the operation that they belong to.

    Args:
        cause: a key of `CAUSES`.
        event: the operation.
        seconds: how much, s.
        before: how long the operation, or the lag before it, is in A, s.
        after: likewise in B.
    """

    cause: str
    event: int
    seconds: float
    before: float
    after: float


def _chance(first: Run, second: Run, lines: tuple[Timeline, Timeline]) -> list[Part]:
    """Return the part of a gap that typical times leave out, if they do."""
    before, after = (run.step_time - line.step_time for run, line in zip((first, second), lines, strict=True))
    if abs(after - before) <= NEAR * second.step_time:
        return []
    return [Part(CHANCE, "all operations", after - before, (), (), 1, before, after, "a step")]


def _largest_first(parts: Iterable[Part]) -> list[Part]:
    return sorted(parts, key=lambda part: -abs(part.seconds))


def _of_same_program(
    first: Run, second: Run, lines: tuple[Timeline, Timeline], names: tuple[str, str], chance: Sequence[Part]
) -> Gap:
    """Return the gap between two runs whose operations are partners."""
    program = Moments(make_graph(lines[0]))
    a, b = (program.case(line) for line in lines)
    way = Way(program, a, b)
    way.walk()
    shares = [*_of_durations(lines, a, b, way), *_of_lags(program, a, b, way)]
    by_event = np.zeros(program.num_events)
    for share in shares:
        by_event[share.event] += share.seconds
    parts = _largest_first([*_parts(lines[0], shares), *chance])
    gap = lines[1].step_time - lines[0].step_time
    explanation = None
    if abs(gap) > max(NEAR, _RATHER_CHANCE * sum(abs(part.seconds) for part in chance)):
        explanation = _Explanations(program, lines[0], a, b, by_event).best(second.step_time)
    return Gap(first, second, names, parts, lines, explanation, share_by_event=by_event)


def _of_durations(lines: tuple[Timeline, Timeline], a: Case, b: Case, way: Way) -> Iterator[_Share]:
    """Yield the shares of operations that last longer or shorter, by cause."""
    line, on_path = lines[0], np.flatnonzero(way.of_events)
    usual, beside = _usual_differences(line, a, way.more), _slower_beside(lines, a, b)
    latency, by_size = _fitted(line, a.durations), _fitted(line, b.durations)
    computes, moves = line.computes, line.of_types(HOST_MOVES)
    for event in on_path.tolist():
        seconds, more = float(way.of_events[event]), float(way.more.durations[event])
        share, both = seconds / more, (float(a.durations[event]), float(b.durations[event]))
        if computes[event]:
            common = float(usual[event])
            busy = min(max(beside[event], 0.0), max(common, 0.0))
            causes = {COMPUTING: common - busy, BESIDE: busy, SKEW: more - common}
        elif moves[event]:
            causes = {MOVES: more}
        else:
            kind, size = _kind_of_transfer(line, event), float(line.size_bytes[event])
            causes = {TRANSFER: more}
            if kind in latency and kind in by_size:
                (before, each), (after, each_after) = latency[kind], by_size[kind]
                causes = {LATENCY: after - before, BANDWIDTH: (each_after - each) * size}
                causes[TRANSFER] = more - sum(causes.values())
        yield from (_Share(cause, event, share * part, *both) for cause, part in causes.items() if share * part)


def _of_lags(program: Moments, a: Case, b: Case, way: Way) -> Iterator[_Share]:
    """Yield the shares of time that nothing explains: before operations, and before communication begins."""
    count = program.num_events
    for moment in np.flatnonzero(way.of_moments[: 2 * count]).tolist():
        cause = LATE if moment < count else HOST
        seconds = float(way.of_moments[moment])
        yield _Share(cause, moment % count, seconds, float(a.lags[moment]), float(b.lags[moment]))


def _usual_differences(line: Timeline, a: Case, more: Case) -> Floats:
    """Return the difference of each operation that its like on other ranks have too, s, (num_events,).

    Alike are the k-th operations of a type on a layer, where three ranks or more have it: the usual difference is their
    median. Elsewhere, as in a pipeline, alike are all of one kind: what is usual is the median of the ranks' ratios.
    """
    _, kind = np.unique(np.column_stack([line.typ, line.layer, line.recomputed]), axis=0, return_inverse=True)
    pairs = numbered(kind.reshape(-1), line.rank)[:, [0, 2]]
    _, like, size = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    like = like.reshape(-1)
    usual = _medians(like, more.durations)
    names, _ = _kinds(line)
    lasts = (size[like] < _LIKE) & (a.durations > 0)
    for name in np.unique(names[lasts]).tolist():
        same = np.flatnonzero(lasts & (names == name))
        ratios = [np.median(more.durations[on] / a.durations[on]) for on in _by_rank(line, same)]
        if len(ratios) >= _LIKE:
            usual[same] = a.durations[same] * np.median(ratios)
    return usual


def _by_rank(line: Timeline, events: Ints) -> list[Ints]:
    """Return events in groups, one a rank."""
    return [events[line.rank[events] == rank] for rank in np.unique(line.rank[events])]


def _medians(group: Ints, values: Floats) -> Floats:
    """Return the median of each value's group, (num_values,); of two in the middle, that which is nearer to 0."""
    order = np.lexsort((values, group))
    begins = np.searchsorted(group[order], np.arange(group.max(initial=-1) + 2))
    low, high = begins[:-1], np.maximum(begins[1:] - 1, 0)
    lower, upper = values[order][(low + high) // 2], values[order][(low + high + 1) // 2]
    middle = np.where(np.abs(lower) <= np.abs(upper), lower, upper)
    found: Floats = middle[group]
    return found


def _slower_beside(lines: tuple[Timeline, Timeline], a: Case, b: Case) -> Floats:
    """Return how much longer each computation is in B than those of its rank that run alone, s."""
    line, after = lines
    share = _share_beside(after)
    found = np.zeros(line.num_events)
    ratio = np.divide(b.durations, a.durations, out=np.ones(line.num_events), where=a.durations > 0)
    computes = line.computes & ~line.loading
    for typ in np.unique(line.typ[computes]).tolist():
        for own in _by_rank(line, np.flatnonzero(computes & (line.typ == typ))):
            alone, beside = own[share[own] <= _ALONE], own[share[own] >= _BESIDE]
            if len(alone) and len(beside):
                found[beside] = (ratio[beside] - np.median(ratio[alone])) * a.durations[beside]
    return found


def _share_beside(line: Timeline) -> Floats:
    """Return which share of each computation some communication of its rank runs beside, (num_events,)."""
    share = np.zeros(line.num_events)
    for low, high in pairwise(line.starts.tolist()):
        computes, last = line.computes[low:high], line.duration[low:high]
        moving = np.flatnonzero(~computes & (last > 0)) + low
        if not len(moving):
            continue
        moving = moving[np.argsort(line.time[moving], kind="stable")]
        begins, ends = line.time[moving], np.maximum.accumulate(line.end[moving])
        starts = np.append(True, begins[1:] > ends[:-1])
        begins, ends = begins[starts], ends[np.append(np.flatnonzero(starts)[1:] - 1, len(ends) - 1)]
        passed = np.append(0.0, np.cumsum(ends - begins))

        def busy(moments: Floats, begins: Floats = begins, ends: Floats = ends, passed: Floats = passed) -> Floats:
            place = np.searchsorted(begins, moments, side="right")
            over = np.append(-np.inf, ends)[place] - moments
            result: Floats = passed[place] - np.maximum(over, 0.0)
            return result

        mine = slice(low, high)
        covered = busy(line.end[mine]) - busy(line.time[mine])
        share[mine] = np.divide(covered, last, out=np.zeros(high - low), where=(last > 0) & computes)
    return share


def _kind_of_transfer(line: Timeline, event: int) -> Hashable:
    """Return what transfers of one curve have in common: their type, and how many ranks meet."""
    group = line.groups[line.group[event]]
    return line.typs[line.typ[event]], None if group is None else len(group)


def _fitted(line: Timeline, durations: Floats) -> dict[Hashable, tuple[float, float]]:
    """Return latency, s, and s a byte of each kind of transfer that comes in several sizes, by least squares."""
    transfers = np.flatnonzero(~line.computes & ~line.of_types(HOST_MOVES)).tolist()
    found = grouped((_kind_of_transfer(line, event), event) for event in transfers)
    fits = {}
    for kind, events in found.items():
        sizes = line.size_bytes[events]
        if len(np.unique(sizes)) > 1:
            each, latency = np.polyfit(sizes, durations[events], 1)
            fits[kind] = float(latency), float(each)
    return fits


def _parts(line: Timeline, shares: Iterable[_Share]) -> list[Part]:
    """Return shares as parts, one for each cause and kind of operation, the largest first."""
    found = grouped(((share.cause, _name_of(line, share.event)), share) for share in shares)
    parts = [
        Part(
            cause,
            operation,
            sum(share.seconds for share in alike),
            _distinct(line.layer[[share.event for share in alike]], NO_LAYER),
            _distinct(line.rank[[share.event for share in alike]]),
            len(alike),
            float(np.mean([share.before for share in alike])),
            float(np.mean([share.after for share in alike])),
        )
        for (cause, operation), alike in found.items()
    ]
    least = _ROUNDING * max((abs(part.seconds) for part in parts), default=0.0)
    return [part for part in parts if abs(part.seconds) > least]


_ROUNDING = 1e-12
"""Of the largest part: what is less is an error of sums."""


def _distinct(values: Ints, but: int | None = None) -> tuple[int, ...]:
    return tuple(value for value in np.unique(values).tolist() if value != but)


def _name_of(line: Timeline, event: int) -> str:
    """Return what an operation is called: "backward", or "backward of attention" where layers have kinds."""
    typ, layer = line.typs[line.typ[event]], int(line.layer[event])
    name = line.layer_names[layer] if 0 <= layer < len(line.layer_names) else ""
    kind = name.rstrip("0123456789 ")
    return f"{typ} of {kind}" if kind else typ


def _kinds(line: Timeline) -> tuple[Ints, list[str]]:
    """Return the kind of each operation, (num_events,): what it is called, as a number of a list of names."""
    alike = np.column_stack([line.typ, line.layer])
    _, first, inverse = np.unique(alike, axis=0, return_index=True, return_inverse=True)
    called = [_name_of(line, event) for event in first.tolist()]
    names = {name: number for number, name in enumerate(dict.fromkeys(called))}
    found: Ints = np.array([names[name] for name in called], np.int64)[inverse.reshape(-1)]
    return found, list(names)


def _numbers(word: str, numbers: Sequence[int]) -> str:
    """Return numbers in words: "layers 3 to 30", "ranks 1, 4"."""
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{word}s {numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:4]))
    return f"{word}s {shown}{f' and {len(numbers) - 4} more' if len(numbers) > 4 else ''}"


# --- what explains most of it ------------------------------------------------------------------------------------


class _Explanations:
    """Groups of operations, and the step time of B where each group, alone, is as in A."""

    def __init__(self, program: Moments, line: Timeline, a: Case, b: Case, by_event: Floats) -> None:
        self._program, self._line, self._a, self._b, self._by_event = program, line, a, b, by_event
        self._meeting = first_events(line)

    def best(self, step_time: float) -> MainCause | None:
        """Return the group of the fewest operations that closes most of the gap; None if none closes half of it.

        A group around it that closes as much is returned if its other operations have changed like it.

        Args:
            step_time: of B, s, with what is chance.
        """
        candidates = self._candidates()
        if not candidates:
            return None
        gap = self._step(self._b) - self._step(self._a)
        steps = self._with_times_of_a([chosen for _, _, chosen in candidates])
        closed = (self._step(self._b) - steps) / gap
        best = float(closed.max())
        if best < 0.5:
            return None
        enough = [place for place in range(len(candidates)) if closed[place] >= _CLOSES * min(best, 1.0)]
        place = min(enough, key=lambda place: (int(candidates[place][2].sum()), -closed[place]))
        narrowest = candidates[place][2]
        around = [at for at in enough if self._changes_alike(narrowest, candidates[at][2])]
        place = max([place, *around], key=lambda place: int(candidates[place][2].sum()))
        form, what, chosen = candidates[place]
        layers, ranks = _distinct(self._line.layer[chosen], NO_LAYER), _distinct(self._line.rank[chosen])
        shorter = self._step(self._b) - float(steps[place])
        return MainCause(what, form, step_time - shorter, layers, ranks, int(chosen.sum()))

    def _changes_alike(self, group: Bools, around: Bools) -> bool:
        """Return whether three in four of what a wider group has beside a group have changed half as much, or more.

        That is in seconds, as where each message comes later, or in proportion, as on a slower device.
        """
        a, more = self._a.durations, self._b.durations - self._a.durations
        others = around & ~group & (a > 0)
        if np.any(group & ~around) or not others.any():
            return False
        mine = group & (a > 0)
        for changes in (more, np.divide(more, a, out=np.zeros_like(a), where=a > 0)):
            usual = float(np.median(changes[mine])) if mine.any() else 0.0
            if usual and np.quantile(changes[others] / usual, 0.25) >= _ALIKE:
                return True
        return False

    def _step(self, case: Case) -> float:
        return float(self._program.step_times(case.durations[:, None], case.lags[:, None])[0])

    def _with_times_of_a(self, groups: Sequence[Bools]) -> Floats:
        """Return the step time of B with the durations and lags of A in each group, s, (num_groups,)."""
        found = [self._steps_at_once(groups[low : low + _AT_ONCE]) for low in range(0, len(groups), _AT_ONCE)]
        return np.concatenate(found)

    def _steps_at_once(self, groups: Sequence[Bools]) -> Floats:
        """Return the step times of a few groups."""
        chosen, a, b = np.stack(groups, axis=1), self._a, self._b
        durations = np.where(chosen, a.durations[:, None], b.durations[:, None])
        both = np.concatenate([chosen, chosen, np.zeros((len(b.lags) - 2 * len(chosen), len(groups)), bool)])
        return self._program.step_times(durations, np.where(both, a.lags[:, None], b.lags[:, None]))

    def _candidates(self) -> list[tuple[str, str, Bools]]:
        """Return form, words and operations of the groups with the largest parts of the gap."""
        own, found = ~self._line.loading, []
        for form, group in self._groups().items():
            counts = np.flatnonzero((self._by_event != 0) & (group >= 0))
            sums = np.bincount(group[counts], self._by_event[counts])
            by_name, first = np.unique(group[counts], return_index=True)
            names = by_name[np.argsort(first)].tolist()
            sign = np.sign(sum(sums[names].tolist()))
            largest = sorted((name for name in names if sums[name] * sign > 0), key=lambda name: -abs(sums[name]))
            for name in largest[:_TRIED]:
                chosen = own & (group == name)
                found.append((form, self._words(form, int(np.argmax(group == name)), chosen), chosen))
        return found

    def _groups(self) -> dict[str, Ints]:
        """Return, by form, the number of the group that each operation is in; -1 where it is in none."""
        line, (kind, names) = self._line, _kinds(self._line)
        computes, layer = line.computes, line.layer - line.layer.min(initial=0)
        in_layer = line.layer != NO_LAYER
        return {
            "all": computes.astype(np.int64),
            "operation": self._meeting,
            "kind": kind,
            "kind on a rank": np.where(computes, line.rank * len(names) + kind, -1),
            "kind of a layer": np.where(in_layer, layer * len(names) + kind, -1),
            "layer": np.where(in_layer, layer, -1),
            "rank": np.where(computes, line.rank, -1),
            "link": self._links,
        }

    @cached_property
    def _links(self) -> Ints:
        """Between whom each communication is, as a number; -1 of others."""
        alike = np.column_stack([self._line.stream, self._line.rank, self._line.peer])
        _, first, inverse = np.unique(alike, axis=0, return_index=True, return_inverse=True)
        links = [self._link(event) for event in first.tolist()]
        numbers = {link: number for number, link in enumerate(dict.fromkeys(filter(None, links)))}
        found: Ints = np.array([numbers.get(link, -1) for link in links], np.int64)[inverse.reshape(-1)]
        return found

    def _link(self, event: int) -> Hashable:
        """Return between whom a communication is; None of others."""
        line = self._line
        if line.peer[event] >= 0:
            return tuple(sorted((int(line.rank[event]), int(line.peer[event]))))
        stream = line.streams[line.stream[event]]
        return (stream.group or ("all ranks",)) if stream.kind == COMM else None

    def _words(self, form: str, event: int, chosen: Bools) -> str:
        """Return the group of an operation in words."""
        line, name = self._line, _name_of(self._line, event)
        rank, layer = line.rank_name(int(line.rank[event])), int(line.layer[event])
        if form == "operation":
            event = int(np.flatnonzero(chosen)[0])
            layers = _numbers("layer", _distinct(line.layer[chosen], NO_LAYER))
            ranks = _numbers("rank", _distinct(line.rank[chosen]))
            place = f"event {event - line.starts[line.rank[event]]} there"
            return f"one {_name_of(line, event)} ({', '.join(text for text in (layers, ranks, place) if text)})"
        if form == "all":
            return f"all {'computing' if line.computes[event] else 'communication'}"
        if form == "kind":
            return f"{name} on all ranks"
        if form == "kind on a rank":
            return f"{name} on rank {rank}"
        if form == "kind of a layer":
            return f"{name} of {line.layer_name(layer)}"
        if form == "layer":
            return f"all of {line.layer_name(layer)}"
        if form == "rank":
            return f"all computing of rank {rank}"
        link: Any = self._link(event)
        return f"communication among {'all ranks' if link == ('all ranks',) else _numbers('rank', link)}"


# --- runs of different programs ----------------------------------------------------------------------------------


def _on_critical_path(line: Timeline) -> list[tuple[str, str, float, int, int]]:
    """Return cause, operation, seconds, layer and rank of what sets the step time of a run."""
    path = critical_path(make_graph(line))
    found = []
    for event, wait, counts in zip(path.event.tolist(), path.wait.tolist(), path.counts.tolist(), strict=True):
        name, place = _name_of(line, event), (int(line.layer[event]), int(line.rank[event]))
        typ = line.typs[line.typ[event]]
        cause = COMPUTING if line.streams[line.stream[event]].kind == "compute" else TRANSFER
        if counts:
            found.append((MOVES if typ in HOST_MOVES else cause, name, float(line.duration[event]), *place))
        if wait:
            found.append((HOST, name, wait, *place))
    return found


def _compared(a: Sequence[tuple[Any, ...]], b: Sequence[tuple[Any, ...]]) -> list[Part]:
    """Return the differences between what sets the step times of two runs, by cause and operation."""
    keys = dict.fromkeys((each[0], each[1]) for each in (*a, *b))
    parts = []
    for cause, operation in keys:
        alike = [[each for each in path if each[:2] == (cause, operation)] for path in (a, b)]
        before, after = (sum(each[2] for each in found) for found in alike)
        layers = tuple(sorted({each[3] for found in alike for each in found if each[3] != NO_LAYER}))
        ranks = tuple(sorted({each[4] for found in alike for each in found}))
        if abs(after - before) > NEAR * max(before, after):
            count = max(map(len, alike))
            parts.append(Part(cause, operation, after - before, layers, ranks, count, before, after, "on the path"))
    return parts


def _without_partner(a: Timeline, b: Timeline, names: tuple[str, str]) -> list[str]:
    """Return, in words, which operations of one run have no partner in the other: by rank, type, layer and samples."""
    counts = [_counted(line) for line in (a, b)]
    found = []
    for own, other, name in ((counts[0], counts[1], names[0]), (counts[1], counts[0], names[1])):
        alone: Counter[str] = Counter()
        for key, number in (own - other).items():
            alone[key[1]] += number
        if alone:
            listed = ", ".join(f"{number} {typ}" for typ, number in alone.most_common())
            found.append(f"Of {name} alone: {listed}.")
    return found


def _counted(line: Timeline) -> Counter[tuple[int, str, int, frozenset[int]]]:
    """Return how many operations there are of each rank, type, layer and set of samples."""
    typs = (line.typs[code] for code in line.typ.tolist())
    sets = (line.sample_sets[code] for code in line.samples.tolist())
    return Counter(zip(line.rank.tolist(), typs, line.layer.tolist(), sets, strict=True))
