"""The step time of a finished run under noise (`monte_carlo`), or with other durations or prices (`sensitivity`).

**`monte_carlo`** gives the step time as a distribution, and what makes its tail. A strategy does not look at the clock,
so that its run need not be repeated: the recorded operations keep their dependencies, and only their durations are
drawn. A strategy that would choose another order under noise is not modelled.

**`sensitivity`** says how the step time changes with one kind of operation, or with one figure of the hardware. The
step time is the longest path through the recorded operations. Its derivative by the duration of a kind, as a share of
that duration, is the time that the kind takes on the critical path. That holds as long as the path stays the same. So
the step is also timed with each kind quicker and slower by a given share, as in `minitrain.run.analysis.retiming`.

**`price_swings`** does so for each figure of the hardware config: bandwidths, latencies, rates, efficiencies. The run
is executed once more, with the clocks of many machines (see `minitrain.whatif.joint_execution`). Two have one figure
lower and higher by a given share, which gives the two step times. Two others have it lower and higher by a
ten-thousandth, which gives the derivative. Whole numbers (how many ranks a tier spans) and rows of efficiencies are
left as they are; a row acts as the peak that it is a share of.

**`MonteCarlo`** names the slowest samples: which ranks and operations are on their critical paths, and what they add.
The critical path of a sample is followed backwards from its latest end, as in `minitrain.run.analysis.retiming`,
for all samples side by side. Of dependencies that are fulfilled at the same time, the end of the first activity is
taken: those of low ranks come first. A path has no gap, so that its activities together last as long as the step.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minitrain.errors import UsageError, is_number, require_count, require_percent, typed, typed_methods
from minitrain.files import StrPath
from minitrain.machine.config import numbers_of, rule_of, varied_configs
from minitrain.machine.config_format import SHARE, WHOLE
from minitrain.machine.given_durations import FixedPredictor
from minitrain.machine.platforms import Platform
from minitrain.machine.price import ROOFLINE, Pricing
from minitrain.operations import PRICE, STRIDE, EventLog
from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.retiming import retime
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Bools, Floats, Ints
from minitrain.run.event_loops import run_to_end
from minitrain.run.facts import require_events
from minitrain.run.figures import data_frame
from minitrain.run.parameters import AUTO
from minitrain.run.rank_tasks import PreparedRun
from minitrain.run.result import Run
from minitrain.whatif.joint_execution import step_times
from minitrain.whatif.noise import COMMUNICATION, COMPUTING, PERCENTILES, Activities, Draws, Noise, make_activities
from minitrain.whatif.recorded import Machine, Machines

_NUMBERS_AT_ONCE = 2**20  # in arrays of durations and moments, 8 MiB: about as much as a processor's cache holds
_MOST_NUMBERS = 2**23
_LEAST_AT_ONCE = 192  # samples: a moment takes one numpy call, whatever their number
_WORST = 10  # the slowest 1 / 10 of the samples are the tail


@dataclass(frozen=True, slots=True)
class PriceSwing:
    """How the step time changes with one figure.

    Args:
        path: its key path, as in messages about configs.
        value: what it is, in the config's unit.
        derivative: growth of the step time by the figure, s a unit.
        lower_s: the step time with the figure lower by the change, s.
        higher_s: the step time with the figure higher by the change, s; a share is 1 at most.
    """

    path: str
    value: float
    derivative: float
    lower_s: float
    higher_s: float

    @property
    def span_s(self) -> float:
        """How far apart the two step times are, s."""
        return abs(self.higher_s - self.lower_s)


Variation = Callable[[str, float], Any]
"""Makes what prices a run with another value under a path."""


def price_swings(run: Run, change: float) -> tuple[PriceSwing, ...]:
    """Return how the step time changes with each figure of the hardware, the widest span first, without spans of 0.

    Nothing is found where no config or `FixedPredictor` prices the run, where contention was asked for, and
    where devices died in it.

    Args:
        run: what `simulate` returned.
        change: the share by which each figure is made lower and higher.
    """
    prepared: PreparedRun | None = run.prepared
    if prepared is None or prepared.parameters.contention not in (AUTO, False):
        return ()
    numbers, vary = _figures_of(prepared)
    values = {path: value for path, value in numbers.items() if value}
    spans = _steps(prepared, vary, values, change)
    felt = {
        path: value for path, value in values.items() if len(set(spans[path])) > 1 or spans[path][0] != run.step_time
    }
    slopes = _steps(prepared, vary, felt, _SMALL)
    found = []
    for path, value in felt.items():
        (less, more), (lower, higher) = slopes[path], _around(path, value, _SMALL)
        found.append(PriceSwing(path, value, (more - less) / (higher - lower), *spans[path]))
    return tuple(sorted(found, key=lambda one: (-one.span_s, one.path)))


def _steps(
    prepared: PreparedRun, vary: Variation, values: Mapping[str, float], change: float
) -> dict[str, tuple[float, float]]:
    """Return the step times with each figure lower and higher, s, by path."""
    if not values:
        return {}
    sources = [vary(path, each) for path, value in values.items() for each in _around(path, value, change)]
    slowdowns = [prepared.parameters.slowdown] * len(sources)
    machines = Machines(sources, slowdowns if prepared.parameters.slowdown else None)
    steps = run_to_end(lambda: step_times(prepared, machines)).tolist()
    return {path: (steps[2 * place], steps[2 * place + 1]) for place, path in enumerate(values)}


def _around(path: str, value: float, change: float) -> tuple[float, float]:
    """Return a value lower and higher by a share."""
    higher = value * (1 + change)
    return value * (1 - change), min(higher, 1.0) if rule_of(path) == SHARE.expected else higher


def _last(path: str) -> str:
    """Return the last key of a path."""
    return path.rpartition(".")[2]


def _figures_of(prepared: PreparedRun) -> tuple[dict[str, float], Variation]:
    """Return the figures that a run is priced by, and the function that changes one of them."""
    predictor: Any = prepared.predictor
    if type(predictor) is FixedPredictor:
        return dict(predictor._given), lambda typ, seconds: Machine(
            FixedPredictor(**{**predictor._given, typ: seconds})
        )
    system, pricing = getattr(predictor, "system", None), getattr(predictor, "pricing", ROOFLINE)
    if system is None or not hasattr(predictor, "topology"):
        return {}, lambda *_: None
    left_out = _NO_PRICES if pricing.fidelity == "kernels" else (*_NO_PRICES, *_OF_KERNELS)
    numbers = {
        path: value
        for path, value in numbers_of(system).items()
        if _last(path) not in left_out
        and rule_of(path) != WHOLE.expected
        and not any(f"{key}." in path for key in left_out)
    }
    return {**numbers, **_of_platform(pricing)}, lambda path, value: _varied(prepared, system, pricing, path, value)


def _of_platform(pricing: Pricing) -> dict[str, float]:
    """Return the numbers of a platform that add to prices of kernels."""
    if pricing.fidelity != "kernels":
        return {}
    platform = pricing.known_platform
    values = {field.name: getattr(platform, field.name) for field in fields(Platform)}
    return {f"platform.{name}": value for name, value in values.items() if type(value) is float}


def _varied(prepared: PreparedRun, system: Any, pricing: Pricing, path: str, value: float) -> Any:
    """Return the source of prices with another value of one figure."""
    parameters = prepared.parameters
    if path.startswith("platform."):
        platform: Any = replace(pricing.known_platform, **{_last(path): value})  # type: ignore[arg-type]  # a number
        pricing = replace(pricing, platform=platform)
    else:
        (system,) = varied_configs([system], path, [value])
    return Machine(system, parameters.network, parameters.placement, pricing)


@dataclass(frozen=True, slots=True)
class Swing:
    """How the step time changes with one kind of operation.

    Args:
        kind: "computing", "communication", or a type of event.
        derivative_s: growth of the step time by the share by which the kind gets slower: its time on the critical
            path, s.
        quicker_s: the step time with the kind quicker by the change, s.
        slower_s: the step time with the kind slower by the change, s.
    """

    kind: str
    derivative_s: float
    quicker_s: float
    slower_s: float

    @property
    def span_s(self) -> float:
        """How far apart the two step times are, s."""
        return self.slower_s - self.quicker_s


@typed_methods
@dataclass(frozen=True)
class Sensitivity:
    """What the step time of a run depends on.

    Args:
        strategy: the run's strategy.
        step_time: the step time as recorded, s.
        change: the share by which each kind and each figure is changed.
        swings: the kinds, the one with the widest span first.
        run: the run, of whose hardware the figures are.
    """

    strategy: str
    step_time: float
    change: float
    swings: tuple[Swing, ...]
    run: Run = field(repr=False, compare=False)

    @cached_property
    def prices(self) -> tuple[PriceSwing, ...]:
        """How the step time changes with each figure of the hardware, the widest span first; this executes the run.

        Nothing for a run that was read from a file, is priced by no config, was asked to have contention, or in which
        devices died.
        """
        return price_swings(self.run, self.change)

    def summary(self) -> dict[str, Any]:
        """Return all figures, ready for JSON."""
        kinds, prices = ([asdict(one) for one in swings] for swings in (self.swings, self.prices))
        head = {"strategy": self.strategy, "step_time_s": self.step_time, "change": self.change}
        return {**head, "kinds": kinds, "prices": prices}

    def to_pandas(self, of: str = "kinds") -> Any:
        """Return a pandas DataFrame with a row a kind, or a row a price.

        Raises:
            UsageError: `of` is neither "kinds" nor "prices", or pandas, which is no dependency, is not installed.
        """
        _require_of(of)
        return data_frame([asdict(one) for one in (self.swings if of == "kinds" else self.prices)])

    def figure(self, of: str = "kinds") -> Any:
        """Return a Plotly figure: a tornado chart of the kinds of operation, or of prices, the widest span on top.

        Raises:
            UsageError: `of` is neither "kinds" nor "prices".
        """
        from minitrain.whatif.figure import KINDS, PRICES, tornado  # noqa: PLC0415  (plotly only when somebody looks)

        _require_of(of)
        if of == "kinds":
            bars = [(one.kind, one.quicker_s, one.slower_s) for one in self.swings]
            return tornado(self.strategy, self.step_time, self.change, bars, KINDS)
        bars = [(one.path, one.lower_s, one.higher_s) for one in self.prices]
        return tornado(self.strategy, self.step_time, self.change, bars, PRICES)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield a line a kind."""
        yield f"{self.strategy}: step {duration(self.step_time)}; each kind {self.change:.0%} quicker and slower"
        wide = max((len(one.kind) for one in self.swings), default=0)
        for one in self.swings:
            times = f"{duration(one.quicker_s):>9} to {duration(one.slower_s):>9}"
            share = one.derivative_s / self.step_time if self.step_time else 0.0
            yield f"  {one.kind:<{wide}}  {times}, {share:>6.1%} of the critical path"

        if self.prices:
            yield f"each figure of the hardware {self.change:.0%} lower and higher, and what 1% of it adds to the step"
        wide = max((len(one.path) for one in self.prices), default=0)
        for price in self.prices:
            times = f"{duration(price.lower_s):>9} to {duration(price.higher_s):>9}"
            share = price.derivative * price.value / self.step_time if self.step_time else 0.0
            yield f"  {price.path:<{wide}}  {times}, {share / 100:>+7.3%}"


@typed
def sensitivity(run: Run, change: float = 0.1) -> Sensitivity:
    """Return how the step time of a finished run changes with each kind of operation and each price.

    Args:
        run: what `simulate` returned, or `load_run` read; every rank's events are needed.
        change: the share by which each kind, and each figure of the hardware, is changed, above 0 and below 1.

    Raises:
        UsageError: the run has not kept every rank's events, or `change` is outside its rule.
    """
    if not (is_number(change) and 0 < change < 1):
        raise UsageError(f"change must be a share above 0 and below 1, such as 0.1, got {change!r}")
    require_events(run, "sensitivity")
    activities = make_activities(run.step_timeline)
    kinds = _kinds(activities)
    count = activities.num_activities
    chosen = np.stack([members for _, members in kinds], axis=1) if kinds else np.zeros((count, 0), bool)
    columns = [np.ones((count, 1)), 1 - change * chosen, 1 + change * chosen]
    steps = activities.step_times(activities.duration[:, None] * np.concatenate(columns, axis=1)).tolist()
    recorded, quicker, slower = steps[0], steps[1 : 1 + len(kinds)], steps[1 + len(kinds) :]
    names = [name for name, _ in kinds]
    rows = zip(names, _derivatives(activities, [members for _, members in kinds]), quicker, slower, strict=True)
    swings = sorted((Swing(*row) for row in rows), key=lambda one: (-one.span_s, -one.derivative_s))
    return Sensitivity(run.strategy, recorded, change, tuple(swings), run)


def _require_of(of: str) -> None:
    """Require the name of what there is.

    Raises:
        UsageError: it is another one.
    """
    if of not in ("kinds", "prices"):
        raise UsageError(f'of must be "kinds" or "prices", got {of!r:.80}')


def _kinds(activities: Activities) -> list[tuple[str, Bools]]:
    """Return the kinds that last in a run, and which activities belong to each, (num_activities,)."""
    line = activities.timeline
    typ, computes = line.typ[activities.event], line.computes[activities.event]
    groups = [(COMPUTING, computes), (COMMUNICATION, ~computes)]
    groups += [(name, typ == code) for code, name in enumerate(line.typs)]
    found = [(name, members & ~activities.loading) for name, members in groups]
    return [(name, members) for name, members in found if activities.duration[members].any()]


def _derivatives(activities: Activities, kinds: Sequence[Bools]) -> list[float]:
    """Return the time of each kind on the critical path, s."""
    if not activities.num_activities:
        return []
    path = PathFinder(activities).path(activities.duration[:, None])
    return [float(path.seconds[members[path.activity]].sum()) for members in kinds]


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


_MOST_LINES = 3


@typed_methods
@dataclass(frozen=True, eq=False)
class MonteCarlo:
    """The step time of a run under noise, with its pictures and tables.

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
        require_percent(percent)
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
        require_count("num_bins", num_bins, most=10**6)
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

    def to_pandas(self) -> Any:
        """Return the samples as a pandas DataFrame: sample, step_time_s.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame({"sample": list(range(self.num_samples)), "step_time_s": self.step_times.tolist()})

    def figure(self) -> Any:
        """Return a Plotly figure: how often each step time came, with the recorded one and the percentiles."""
        from minitrain.whatif.figure import figure  # noqa: PLC0415  (plotly only when somebody looks)

        return figure(self)

    def write_html(self, path: StrPath, include_plotlyjs: bool | str = True) -> Path:
        """Write one page that opens without internet: the recorded run, and below it the distribution.

        Args:
            path: where to.
            include_plotlyjs: as for `Run.write_html`.

        Returns:
            The path.
        """
        from minitrain.whatif.figure import write_html  # noqa: PLC0415

        return write_html(self, Path(path), include_plotlyjs)

    def _repr_html_(self) -> str:
        """Show the figures and a picture that needs no script."""
        from minitrain.whatif.figure import distribution_svg  # noqa: PLC0415

        return f"<pre>{html.escape(str(self))}</pre>{distribution_svg(self)}"


def _row(one: Carrier) -> dict[str, Any]:
    return {"name": one.name, "share": one.share, "seconds_s": one.seconds, "added_s": one.added_s}


def _added(one: Carrier) -> str:
    """Return in words how much longer than recorded it is on the path."""
    return f"{duration(abs(one.added_s))} {'more' if one.added_s >= 0 else 'less'} than recorded"


@typed
def monte_carlo(run: Run, noise: Noise, *, samples: int = 1000, seed: int = 0) -> MonteCarlo:
    """Time a finished run again under many draws of noise.

    Args:
        run: what `simulate` returned, or `load_run` read; every rank's events are needed.
        noise: what disturbs it.
        samples: how many steps to draw.
        seed: the same seed gives the same samples; sample k is the same however many are drawn.

    Returns:
        The distribution of the step time, and which ranks and operations carry its tail.

    Raises:
        UsageError: the run has not kept every rank's events, noise is for ranks or a tier that it does not have, or a
            parameter is outside its rule.
    """
    require_count("samples", samples, most=2**24)
    require_count("seed", seed, 0)
    require_events(run, "monte_carlo")
    _require_ranks(noise, run.world_size)
    activities = make_activities(run.step_timeline)
    draws = Draws(activities, noise, seed, _tiers(run))
    numbers = max(activities.num_numbers, 1)
    at_once = max(_NUMBERS_AT_ONCE // numbers, min(_LEAST_AT_ONCE, _MOST_NUMBERS // numbers), 1)
    parts = [activities.step_times(draws.durations(part)) for part in _parts(np.arange(samples), at_once)]
    step_times = np.concatenate(parts)
    worst = np.argsort(-step_times, kind="stable")[: -(-samples // _WORST)]
    recorded = float(activities.step_times(activities.duration[:, None])[0])
    return MonteCarlo(run, noise, seed, step_times, recorded, _tail(activities, draws, worst, at_once))


def _parts(samples: Ints, at_once: int) -> Iterator[Ints]:
    """Yield samples in parts, so that memory does not grow with their number."""
    for begin in range(0, len(samples), at_once):
        yield samples[begin : begin + at_once]


def _tail(activities: Activities, draws: Draws, worst: Ints, at_once: int) -> Tail:
    """Return what is on the critical paths of some samples, which are drawn again."""
    finder = PathFinder(activities)
    sums = [path_sums_of_ranks(activities), path_sums_of_types(activities), path_sums_of_operations(activities)]
    for part in _parts(worst, at_once) if activities.num_activities else ():
        path = finder.path(draws.durations(part))
        for each in sums:
            each.add(path, len(part))
    return Tail(worst, *(each.carriers() for each in sums))


def _require_ranks(noise: Noise, world_size: int) -> None:
    """Require that noise is for ranks of the run.

    Raises:
        UsageError: it is for others.
    """
    named = dict.fromkeys(noise.slowdown, "slowdown")
    named |= {rank: "the pair of a slow link" for link in noise.slow_links for rank in link.pair or ()}
    beyond = [f"{what} names rank {rank}" for rank, what in named.items() if rank >= world_size]
    if beyond:
        raise UsageError(
            f"noise must be for ranks of the run, which has {world_size}: {', '.join(beyond)}; use ranks 0 to "
            f"{world_size - 1}"
        )


def _tiers(run: Run) -> Ints | None:
    """Return the size of the network tier that carries each event, or None for a run that was read from a file."""
    logs = [log for log in run.logs if isinstance(log, EventLog)]
    if len(logs) < run.world_size:
        return None
    return np.array([price.tier_size for log in logs for price in log._rows[PRICE::STRIDE]], np.int64)


_SMALL = 1e-4

_NO_PRICES = ("GiB", "processor_usage")
_OF_KERNELS = ("kernels", "curves")
