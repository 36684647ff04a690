"""A machine from its own real steps: `mt.calibrate(["ddp", "1f1b"], ...)`, `minitrain hw calibrate --strategy ddp`.

Each program is trained for some steps. Every operation is one measurement, its median over them, taken as it happens in
a step: with all ranks at work, with what it finds in caches, and with other transfers beside it. So nothing is measured
alone that never is alone. A transfer lasts from when the one before it on its stream has ended, as in a simulation.
Lines are fitted to means (`minitrain.machine.given_durations.Line`), since a step is a sum.

How sure it is comes from the same programs: each is predicted by lines that were fitted to the others.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]

from minitrain.errors import UsageError, require_count, typed
from minitrain.machine.given_durations import MESSAGES, Asked, CalibratedPredictor, Calibration, Line
from minitrain.operations import PRICE, STRIDE
from minitrain.run.analysis.moments import Moments
from minitrain.run.analysis.retiming import make_graph
from minitrain.run.analysis.timeline import Bools, Timeline
from minitrain.run.parameters import DEFAULTS
from minitrain.run.simulation import simulate
from minitrain.training.train import train

MOST_USAGE = 0.9

STEPS = 16
"""How many steps of each program are taken; the first two warm up."""

WARM_UP = 2


class Observed(NamedTuple):
    """One operation of a real step.

    Args:
        asked: what it was.
        seconds: what it took.
        beside_s: how long of that the rank was computing and communicating at once.
    """

    asked: Asked
    seconds: float
    beside_s: float


@dataclass(frozen=True)
class Measured:
    """What the real steps of one program have said.

    Args:
        strategy: what was trained.
        parameters: as for `simulate`.
        step_s: the median step, s.
        spread: how far steps differ: the distance of their quartiles by the median.
        operations: the operations.
        between: seconds before operations that nothing in the program explains.
        hardware: what the run calls it.
    """

    strategy: Any
    parameters: Mapping[str, Any]
    step_s: float
    spread: float
    operations: Sequence[Observed]
    between: Sequence[float]
    hardware: str

    def __str__(self) -> str:
        name = self.strategy if isinstance(self.strategy, str) else self.strategy.__name__
        given = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{name} ({given}): {1e3 * self.step_s:.4g} ms"


@typed
def calibrate(
    strategies: Sequence[Any],
    sizes: Sequence[Mapping[str, Any]],
    *,
    world_size: int = 2,
    steps: int = STEPS,
    watch: Callable[[int, int, str], None] | None = None,
    **parameters: Any,
) -> Calibration:
    """Measure this machine by real steps of some strategies, each at some sizes.

    Args:
        strategies: as for `train`.
        sizes: parameters of each size: `{"num_layers": 8, "workload": DenseRows(512)}`.
        world_size: number of ranks, all on this machine.
        steps: of each.
        watch: called after each program with how many are done, of how many, and what was measured.
        parameters: others of `train`.

    Raises:
        UsageError: nothing is to be measured, or a size has what all sizes share.
        MinitrainError: what `train` raises.
    """
    programs = [(strategy, dict(size)) for size in sizes for strategy in strategies]
    if not programs:
        raise UsageError("a calibration needs a strategy and a size to measure; give both")
    if "hardware" in parameters or any("hardware" in size for size in sizes):
        raise UsageError("a calibration measures this machine; leave hardware out")
    if shared := {"strategy", "world_size", "steps", *parameters} & {name for size in sizes for name in size}:
        names = ", ".join(sorted(shared))
        raise UsageError(f"all sizes of a calibration share {names}; give it beside the sizes, or in them alone")
    found = []
    began, before = monotonic(), _work_of_others_s()
    for number, (strategy, size) in enumerate(programs):
        found.append(measure(strategy, steps=steps, world_size=world_size, **size, **parameters))
        if watch is not None:
            watch(number + 1, len(programs), str(found[-1]))
    worked_s = _work_of_others_s() - before
    others = min(max(worked_s / (monotonic() - began) / (os.cpu_count() or 1), 0.0), 1.0)
    return replace(calibration_of(found, world_size), others=others)


def _work_of_others_s() -> float:
    """Return how long other processes have used this machine's processors since it started, s; 0 where none can tell.

    It is /proc/stat's time of all but of this process and of those that it has started, which have ended.
    """
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, words)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def measure(strategy: Any, *, steps: int = STEPS, world_size: int = 2, **parameters: Any) -> Measured:
    """Take real steps of a strategy, and return what its operations took.

    Args:
        strategy: as for `train`.
        steps: how many.
        world_size: number of ranks.
        parameters: others of `train`.
    """
    require_count("steps", steps, WARM_UP + 2)
    run = train(strategy, steps=steps, world_size=world_size, hardware=asking(world_size), **parameters)
    return measured_by(run, strategy, parameters)


def asking(world_size: int) -> CalibratedPredictor:
    """Return what `train` is to be given as hardware, so that `measured_by` knows what each operation was."""
    return CalibratedPredictor(_NOTHING, world_size)


def measured_by(run: Any, strategy: Any, parameters: Mapping[str, Any]) -> Measured:
    """Return what a run has said, whose hardware was `asking`.

    Args:
        run: the `MeasuredRun`.
        strategy: what was trained.
        parameters: others of `train`.
    """
    prepared = run.predicted.prepared
    predictor, known = prepared.predictor, prepared.parameters.by_name()
    own = (*_OWN, "num_layers") if hasattr(predictor.workload, "model") else _OWN  # a transformer has its own
    given = {name: value for name, value in known.items() if value != DEFAULTS[name] and name not in own}
    options = {
        name: value for name, value in parameters.items() if name not in {*DEFAULTS, *signature(train).parameters}
    }
    questions = {id(price): predictor.asked(question) for question, price in predictor._answers.items()}
    asked = [questions.get(id(price)) for log in run.predicted.logs for price in log._rows[PRICE::STRIDE]]
    low, median, high = statistics.quantiles(run.step_times[WARM_UP:], n=4)
    taken = observed(run.typical_timeline, asked)
    return Measured(strategy, {**given, **options}, median, (high - low) / median, *taken, run.hardware)


def observed(line: Timeline, asked: Sequence[Asked | None]) -> tuple[list[Observed], list[float]]:
    """Return what the operations of a step took, and what passed before each that nothing in the program explains.

    A transfer lasts from when the one before it on its stream has ended. What its own rank computes is beside it: where
    members end at different times, others go on to compute.

    Args:
        line: the operations.
        asked: what each was; None of what has no price.
    """
    case, count = Moments(make_graph(line)).case(line), line.num_events
    spans = np.column_stack([line.end - case.durations, line.end])
    known = [event for event in range(count) if asked[event] is not None and not line.loading[event]]

    def of_ranks(chosen: Bools) -> list[list[list[float]]]:
        return [spans[chosen & (line.rank == rank)].tolist() for rank in range(line.num_ranks)]

    computing = of_ranks(line.computes & ~line.loading)
    # a receive waits for its message, and takes nothing until then
    transfers = of_ranks(np.array([each is not None and each.is_collective for each in asked]))
    operations = []
    for event in known:
        what: Any = asked[event]
        begin, end = spans[event].tolist()
        others = (computing if what.is_transfer else transfers)[line.rank[event]]
        operations.append(Observed(what, float(case.durations[event]), _overlap(begin, end, others)))
    lags = case.lags[count : 2 * count][known]
    return operations, np.maximum(lags, 0.0).tolist()


def _overlap(begin: float, end: float, others: Iterable[list[float]]) -> float:
    """Return how long of an interval some of the others, which may overlap one another, were there too, s."""
    seconds, since = 0.0, begin
    for first, last in sorted(others):
        until = min(last, end)
        if until > max(first, since):
            seconds, since = seconds + until - max(first, since), until
    return seconds


def calibration_of(found: Sequence[Measured], world_size: int) -> Calibration:
    """Return the calibration that some measurements make.

    Args:
        found: the measurements.
        world_size: ranks that were at work at once.
    """
    cores = os.cpu_count() or 1
    name = f"{found[0].hardware}, {world_size} ranks"
    runs = tuple(map(str, found))
    spread = statistics.median(each.spread for each in found)
    whole = Calibration(name, cores, world_size, **_fitted(found), waiting=1.0, ratios=(), runs=runs, spread=spread)
    ratios = []
    for place, each in enumerate(found):
        others = [*found[:place], *found[place + 1 :]]
        if others:
            without = replace(whole, **_fitted(others))
            ratios.append(each.step_s / predicted_s(each, without))
    if not ratios:
        return whole
    waits = [statistics.median([*ratios[:place], *ratios[place + 1 :]] or [1.0]) for place in range(len(ratios))]
    without_it = sorted(ratio / waiting for ratio, waiting in zip(ratios, waits, strict=True))
    return replace(whole, waiting=statistics.median(ratios), ratios=tuple(without_it))


def predicted_s(measured: Measured, calibration: Calibration) -> float:
    """Return what a calibration predicts for the step of a program, s."""
    return simulate(measured.strategy, **{**measured.parameters, "hardware": calibration}).step_time


def _fitted(found: Sequence[Measured]) -> dict[str, Any]:
    """Return what measured programs say of the fields of a calibration.

    What computes or communicates beside an operation takes a share of its rate, so that it lasts longer by that share
    of the time beside. Both shares are at most one together: what shares a processor does not work less than alone.
    Lines are fitted to what is left.
    """
    operations = [operation for each in found for operation in each.operations]
    shares = {
        "usage": _share_lost([o for o in operations if not o.asked.is_transfer]),
        "computing_usage": _share_lost([o for o in operations if o.asked.is_collective]),
    }
    most = max(1.0, sum(shares.values()))
    shares = {name: share / most for name, share in shares.items()}
    alone: dict[str, dict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for asked, seconds, beside_s in operations:
        lost = 0.0 if asked.name in MESSAGES else shares["computing_usage" if asked.is_transfer else "usage"]
        alone[asked.kind][asked.sizes].append(seconds - lost * beside_s)
    between = [seconds for each in found for seconds in each.between]
    lines = {kind: _line(durations) for kind, durations in alone.items()}
    return {"lines": lines, "between_s": _trimmed(between), **shares}


def _share_lost(operations: Iterable[Observed]) -> float:
    """Return which share of their rate operations lose to what passes beside them.

    It is the slope of seconds by time beside, among operations that ask for the same; 0 where all have as much of it.
    """
    alike: dict[Asked, list[tuple[float, float]]] = defaultdict(list)
    for asked, seconds, beside_s in operations:
        alike[asked].append((seconds, beside_s))
    both = varies = 0.0
    for each in alike.values():
        distances = np.array(each) - np.mean(each, axis=0)
        both += float(distances[:, 0] @ distances[:, 1])
        varies += float(distances[:, 1] @ distances[:, 1])
    return min(max(both / varies, 0.0), MOST_USAGE) if varies else 0.0


def _line(durations: Mapping[tuple[float, ...], Sequence[float]]) -> Line:
    """Return the line through mean durations by sizes: the least squares of relative distances, none negative.

    Where one size was measured alone, half of it is fixed and half grows with the size.
    """
    sizes = np.array(list(durations))
    means = np.array([_mean(each) for each in durations.values()])
    weights = np.sqrt([len(each) for each in durations.values()]) / means
    table = np.hstack([np.ones((len(sizes), 1)), sizes])
    units = np.maximum(table.max(0), 1e-300)
    if len(sizes) == 1:
        solved = np.r_[means[0] / 2, means[0] / 2, np.zeros(sizes.shape[1] - 1)]
        if not sizes[0, 0]:
            solved = np.r_[means[0], np.zeros(sizes.shape[1])]
    else:
        solved, _ = nnls(table / units * weights[:, None], means * weights)
    seconds = solved / units
    fitted = table @ seconds
    distances = [one / at - 1 for at, each in zip(fitted, durations.values(), strict=True) for one in each if at > 0]
    return Line(
        seconds=tuple(map(float, seconds)),
        least=tuple(map(float, sizes.min(0))),
        most=tuple(map(float, sizes.max(0))),
        spread=float(np.sqrt(np.mean(np.square(distances)))) if distances else 0.0,
        count=sum(map(len, durations.values())),
    )


def _trimmed(seconds: Sequence[float]) -> float:
    """Return the mean of the smaller nine tenths: what is far longer is the system's, and not the tool's."""
    kept = sorted(seconds)[: max(1, len(seconds) * 9 // 10)]
    return max(statistics.fmean(kept), 0.0) if kept else 0.0


def _mean(seconds: Sequence[float]) -> float:
    """Return the mean of durations."""
    return max(statistics.fmean(seconds), 1e-9)


_OWN = ("hardware", "contention", "observers", "fold")  # of a simulated step; the others are of any
_NOTHING = Calibration("", os.cpu_count() or 1, 1, {}, 0.0, 0.0, 0.0, 1.0, (), (), 0.0)  # it knows what was asked
