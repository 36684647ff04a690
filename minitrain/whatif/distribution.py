"""`Distribution`: the step time of a run under noise, and what makes its tail, as figures and in words.

The slowest samples: which ranks and which operations are on their critical paths, and what they add there.

The critical path of a sample is followed backwards from its latest end, as in `minitrain.run.analysis.retiming`,
for all samples side by side. Of dependencies that are fulfilled at the same time, the end of the first activity is
taken: those of low ranks come first. A path has no gap, so that its activities together last as long as the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.retiming import retime
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Floats, Ints
from minitrain.run.result import Run
from minitrain.whatif.noise import Activities, Noise


@dataclass(frozen=True, slots=True)
class Carrier:
    """How a rank or an operation contributes to the slowest samples.

    Args:
        name: "rank 3", or "forward of layer 2".
        share: of those samples, how many have it on their critical path, 0 to 1.
        seconds: its time on the path, the mean of those samples, s.
        added_s: how much of that is beyond what it lasted in the recorded run, s.
    """

    name: str
    share: float
    seconds: float
    added_s: float


class CriticalEvents(NamedTuple):
    """The activities on the critical paths of some samples, in no order.

    Args:
        sample: the sample of each, by its place, (num_steps,).
        activity: the activity, (num_steps,).
        seconds: how long it lasted there, s, (num_steps,).
    """

    sample: Ints
    activity: Ints
    seconds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """What contributes to the slowest samples of a Monte Carlo; each list begins with what adds most.

    Args:
        samples: the samples, the slowest first, (num_samples,).
        ranks: what ranks do alone: computing, and their messages.
        types: types of operations, over all ranks and layers.
        operations: types of operations and their layers, over all ranks.
    """

    samples: Ints
    ranks: Sequence[Carrier]
    types: Sequence[Carrier]
    operations: Sequence[Carrier]


class PathFinder:
    """Finds the critical paths of samples.

    Args:
        activities: the run.
    """

    def __init__(self, activities: Activities) -> None:
        self._activities = activities
        target, self._source, self._activity = activities.program.waits()
        self._first = np.searchsorted(target, np.arange(len(activities.program.code) + 1))

    def path(self, durations: Floats) -> CriticalEvents:
        """Return the critical paths of samples, given how long activities last, (num_activities, num_samples)."""
        times = retime(self._activities.program, durations)
        steps = list(self._steps(times))
        sample, activity = (np.concatenate(parts) for parts in zip(*steps, strict=True))
        seconds = durations[activity, sample]
        kept = (seconds > 0) & ~self._activities.loading[activity]
        return CriticalEvents(sample[kept], activity[kept], seconds[kept])

    def _steps(self, times: Floats) -> Iterator[tuple[Ints, Ints]]:
        """Yield the next activity of each sample's path, backwards from the last, until all have reached the start."""
        sample = np.arange(times.shape[1])
        moment = np.full(times.shape[1], self._activities.last)
        while len(sample):
            wait = self._fulfilled_last(sample, moment, times)
            ended = self._activity[wait] != NONE
            yield sample[ended], self._activity[wait[ended]]
            moment = self._source[wait]
            going = self._first[moment + 1] > self._first[moment]
            sample, moment = sample[going], moment[going]

    def _fulfilled_last(self, sample: Ints, moment: Ints, times: Floats) -> Ints:
        """Return the wait that was over last before the moment of each sample, (num_samples,)."""
        counts = self._first[moment + 1] - self._first[moment]
        begins = np.cumsum(counts) - counts
        owner = np.repeat(np.arange(len(counts)), counts)
        wait = np.arange(len(owner)) + (self._first[moment] - begins)[owner]
        arrival = times[self._source[wait], sample[owner]]
        is_last = np.flatnonzero(arrival == np.maximum.reduceat(arrival, begins)[owner])
        _, first = np.unique(owner[is_last], return_index=True)
        chosen: Ints = wait[is_last[first]]
        return chosen


class PathSums:
    """Adds up the time of groups of activities on the critical paths of samples.

    Args:
        names: the name of each group.
        group: the group of each activity, or `NONE`, (num_activities,).
        recorded: how long each activity lasted in the recorded run, s, (num_activities,).
    """

    def __init__(self, names: Sequence[str], group: Ints, recorded: Floats) -> None:
        self._names, self._group, self._recorded = names, group, recorded
        self._num_samples = 0
        self._counts, self._seconds, self._added = (np.zeros(len(names)) for _ in range(3))

    def add(self, path: CriticalEvents, num_samples: int) -> None:
        """Add the critical paths of some samples."""
        group = self._group[path.activity]
        mine = group != NONE
        group, sample, many = group[mine], path.sample[mine], len(self._names)
        self._num_samples += num_samples
        self._counts += np.bincount(np.unique(sample * many + group) % many, minlength=many)
        self._seconds += np.bincount(group, path.seconds[mine], minlength=many)
        beyond = path.seconds[mine] - self._recorded[path.activity[mine]]
        self._added += np.bincount(group, beyond, minlength=many)

    def carriers(self) -> tuple[Carrier, ...]:
        """Return the groups that are on some path, what adds most first."""
        columns = (self._counts, self._seconds, self._added)
        figures = (np.stack(columns, axis=1) / max(self._num_samples, 1)).tolist()
        found = (Carrier(name, *row) for name, row in zip(self._names, figures, strict=True) if row[0])
        return tuple(sorted(found, key=lambda one: (-one.added_s, -one.share, -one.seconds)))


def path_sums_of_ranks(activities: Activities) -> PathSums:
    """Return sums a rank, of what it does alone."""
    line = activities.timeline
    group = np.where(activities.is_shared, NONE, line.rank[activities.event])
    return PathSums([f"rank {rank}" for rank in range(line.num_ranks)], group, activities.duration)


def path_sums_of_types(activities: Activities) -> PathSums:
    """Return sums a type of operation."""
    line = activities.timeline
    return PathSums(line.typs, line.typ[activities.event], activities.duration)


def path_sums_of_operations(activities: Activities) -> PathSums:
    """Return sums a type of operation and layer."""
    line = activities.timeline
    keys = np.stack([line.typ[activities.event], line.layer[activities.event]])
    found, group = np.unique(keys, axis=1, return_inverse=True)
    names = [
        line.typs[typ] if layer == NO_LAYER else f"{line.typs[typ]} of {line.layer_name(layer)}"
        for typ, layer in found.T.tolist()
    ]
    return PathSums(names, group.reshape(-1), activities.duration)


PERCENTILES = (50, 90, 99)
_MOST_LINES = 3


@dataclass(frozen=True, eq=False)
class Distribution:
    """The step time of a run under noise.

    Args:
        run: the recorded run.
        noise: what disturbed it.
        seed: what the samples were drawn with.
        step_times: of each sample, s, (num_samples,).
        recorded_s: the step time without noise, s.
        tail: the ranks and operations on the critical paths of the slowest tenth of the samples.
    """

    run: Run
    noise: Noise
    seed: int
    step_times: Floats = field(repr=False)
    recorded_s: float
    tail: Tail = field(repr=False)

    @property
    def num_samples(self) -> int:
        """How many samples were drawn."""
        return len(self.step_times)

    @cached_property
    def mean(self) -> float:
        """The mean step time, s."""
        return float(self.step_times.mean())

    @cached_property
    def std(self) -> float:
        """The standard deviation of the step time, s."""
        return float(self.step_times.std())

    def percentile(self, percent: float) -> float:
        """Return the step time that so many percent of the samples do not exceed, s."""
        return float(np.percentile(self.step_times, percent))

    @property
    def p50(self) -> float:
        """The median step time, s."""
        return self.percentile(50)

    @property
    def p90(self) -> float:
        """The step time that nine of ten samples do not exceed, s."""
        return self.percentile(90)

    @property
    def p99(self) -> float:
        """The step time that 99 of 100 samples do not exceed, s."""
        return self.percentile(99)

    def histogram(self, num_bins: int = 60) -> tuple[Floats, Ints]:
        """Return the edges of bins of equal width, s, (num_bins + 1,), and how many samples each has, (num_bins,)."""
        counts, edges = np.histogram(self.step_times, bins=num_bins)
        return edges, counts

    def summary(self) -> dict[str, Any]:
        """Return all figures but those of single samples, ready for JSON: times in s."""
        edges, counts = self.histogram()
        return {
            "strategy": self.run.strategy,
            "world_size": self.run.world_size,
            "noise": str(self.noise),
            "samples": self.num_samples,
            "seed": self.seed,
            "recorded_step_time_s": self.recorded_s,
            "mean_s": self.mean,
            "std_s": self.std,
            **{f"p{percent}_s": self.percentile(percent) for percent in PERCENTILES},
            "least_s": float(self.step_times.min()),
            "most_s": float(self.step_times.max()),
            "histogram": {"edges_s": edges.tolist(), "counts": counts.tolist()},
            "tail": {
                "samples": len(self.tail.samples),
                "ranks": [_row(one) for one in self.tail.ranks],
                "types": [_row(one) for one in self.tail.types],
                "operations": [_row(one) for one in self.tail.operations],
            },
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield what a person wants to know first."""
        yield f"{self.run.strategy}: {self.num_samples:,} samples, seed {self.seed}; noise: {self.noise}"
        percentiles = ", ".join(f"P{one} {self._beside(self.percentile(one))}" for one in PERCENTILES)
        yield f"step {duration(self.recorded_s)} recorded; under noise {percentiles}, mean {self._beside(self.mean)}"
        yield f"the slowest {len(self.tail.samples):,} samples, by what adds most to their critical paths:"
        for carriers in (self.tail.ranks, self.tail.types, self.tail.operations):
            for one in carriers[:_MOST_LINES]:
                yield f"  {one.name}: on {one.share:.0%} of the paths, for {duration(one.seconds)}, {_added(one)}"

    def _beside(self, seconds: float) -> str:
        """Return a step time, and how it compares with the recorded one."""
        more = f" ({seconds / self.recorded_s - 1:+.1%})" if self.recorded_s else ""
        return f"{duration(seconds)}{more}"


def _row(one: Carrier) -> dict[str, Any]:
    return {"name": one.name, "share": one.share, "seconds_s": one.seconds, "added_s": one.added_s}


def _added(one: Carrier) -> str:
    """Return in words how much longer than recorded it is on the path."""
    return f"{duration(abs(one.added_s))} {'more' if one.added_s >= 0 else 'less'} than recorded"
