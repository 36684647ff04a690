"""`fit_platform`: what a framework adds to the prices of kernels, from one's own measured runs.

A platform's numbers are chosen so that the mean of |log(predicted / measured)| is least. Each evaluation simulates all
runs. Around a platform the logarithm of a step time is nearly linear in those of its numbers, so that a few steps of
Gauss and Newton are enough: elasticities by differences, least absolute deviations, and again.

How many numbers the runs can tell is found by leaving each run out in turn: a number is fitted only where the others
then predict the run left out better. The same errors say how sure predictions for further runs are; resampled runs
(the bootstrap) say how sure the numbers are.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import UsageError
from minitrain.evidence.cases import Case, case_and_prediction, case_of, predict
from minitrain.evidence.errors_by_table import Skipped
from minitrain.evidence.rows import QUICKEST, LackingError, Row, read_rows
from minitrain.files import StrPath
from minitrain.machine.platforms import COMPONENTS, Platform, find_platform
from minitrain.run.worker_processes import WorkerProcesses

NUMBERS = ("clock", "attention_clock", "eager", "parts_exposed", "launch_s")
"""The numbers of a platform that may be fitted."""

LAUNCHES_S = (1e-5, 2e-5, 4e-5, 8e-5)
"""Times between two launches of a host that dispatches from Python, to begin with; the device's own is tried first."""

_FEWEST_RUNS = 3
_RUNS_A_NUMBER = 3
_STEP = math.log(1.1)  # for differences
_FARTHEST = math.log(2.0)  # in one step
_NEAR = 0.003  # numbers that move less are found
_MOST_STEPS = 4
_WORTH = 0.002  # a number has to lower the error of runs left out by this much
_TELLS = 1e-3  # elasticity
_STAYS = 0.16  # a deviation of 4 % in a run is as likely as a number that is 25 % from where shipped platforms have it
_NUM_SAMPLES = 1000

_Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPlatform:
    """A platform that was fitted, and how sure it is.

    Args:
        platform: the platform, with `fitted_error`.
        intervals: the interval that holds nine in ten of the values of each fitted number, over resampled runs.
        before: mean |error| of the runs with the platform that the fit began with.
        after: the same with the fitted one.
        left_out: the same where each run is predicted by the fit to all others.
        rows: a plain value a run: row_id, measured_s, before_s, predicted_s, left_out (its error).
        skipped: rows that were not simulated, and why.
    """

    platform: Platform
    intervals: Mapping[str, tuple[float, float]]
    before: float
    after: float
    left_out: float
    rows: tuple[Mapping[str, Any], ...]
    skipped: tuple[Skipped, ...] = ()


def fit_platform(
    csv: StrPath | Sequence[StrPath],
    *,
    name: str = "mine",
    start: str | Platform | None = None,
    numbers: Sequence[str] = NUMBERS,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> FittedPlatform:
    """Fit a platform to measured runs.

    Args:
        csv: files of measured runs, in the common columns, which `minitrain validate --template` lists.
        name: what the platform is called.
        start: the platform to begin with; that which stands for the framework of all rows if None, or components.
        numbers: those of `NUMBERS` that may be fitted.
        jobs: processes; one a core if None.
        progress: called with the number of simulated steps that are done, and with that of all so far.

    Returns:
        The platform; one of `mt.simulate(..., platform=)` and of `minitrain tune`, too.

    Raises:
        UsageError: a file cannot be read, fewer than three runs have a time and can be simulated, or a number is none
            of `NUMBERS`.
    """
    unknown = [number for number in numbers if number not in NUMBERS]
    if unknown or not numbers:
        raise UsageError(
            f"numbers must be some of {', '.join(NUMBERS)}, got {', '.join(unknown) or 'none'}; choose some"
        )
    files = [csv] if isinstance(csv, str | os.PathLike) else list(csv)
    cases, skipped = _cases([row for file in files for row in read_rows(file)], start)
    if len(cases) < _FEWEST_RUNS:
        why = f": {skipped[0].reason}" if skipped else ""
        raise UsageError(
            f"a platform is fitted to at least {_FEWEST_RUNS} runs with a step time, got {len(cases)}"
            f"{f'; {len(skipped)} rows were not simulated{why}' if skipped else ''}; add runs"
        )
    num_jobs = jobs or os.cpu_count() or 1
    if num_jobs == 1:
        return _Fit(cases, _common(cases, name, start), numbers, map, progress).fitted(skipped)
    with contextlib.closing(WorkerProcesses(num_jobs)) as processes:
        return _Fit(cases, _common(cases, name, start), numbers, processes.map, progress).fitted(skipped)


def _cases(rows: Iterable[Row], start: str | Platform | None) -> tuple[list[Case], list[Skipped]]:
    """Return what is simulated for rows, and the rows that cannot be.

    Rows that leave their microbatch open take the one that is quickest before the fit.
    """
    cases: list[Case] = []
    skipped: list[Skipped] = []
    for row in rows:
        try:
            cases.append(_case_of(row, start))
        except (LackingError, UsageError) as error:
            skipped.append(Skipped(row.table, row.row_id, " ".join(str(error).split()), row.line))
    return cases, skipped


def _case_of(row: Row, start: str | Platform | None) -> Case:
    """Return what is simulated for a row; a platform to begin with keeps the attention kernel that the row names."""
    case = case_and_prediction(row, start)[0] if row.text("mbs") == QUICKEST else case_of(row)
    if case.measured_s is None:
        raise LackingError("it has neither step_time_s nor tokens_per_s_per_gpu")
    if start is None:
        return case
    given, own = find_platform(start), case.platform or COMPONENTS
    return replace(case, platform=replace(given, attention=given.attention or own.attention))


_OF_FRAMEWORK = (
    *("parts_overlap", "separate_gradients", "stops_early", "attention", "fused_loss", "gradient_accesses"),
    *("accesses_alone", "batches_messages", "is_eager", "captures", "num_devices"),
)


def _common(cases: Sequence[Case], name: str, start: str | Platform | None) -> Platform:
    """Return the platform to begin with: what the rows' platforms agree in."""
    platforms = [case.platform or COMPONENTS for case in cases]
    first = find_platform(start) if start is not None else platforms[0]
    agreed = {
        field: getattr(platforms[0], field)
        for field in _OF_FRAMEWORK
        if len({getattr(platform, field) for platform in platforms}) == 1
    }
    is_one = len({platform.name for platform in platforms}) == 1
    return replace(first if is_one else COMPONENTS, name=name, **agreed)


class _Fit:
    """The search for a platform's numbers."""

    def __init__(
        self,
        cases: Sequence[Case],
        start: Platform,
        numbers: Sequence[str],
        simulate: Callable[..., Iterable[float]],
        progress: Progress | None,
    ) -> None:
        self._cases, self._start, self._simulate, self._progress = cases, start, simulate, progress
        self._measured = np.log([case.measured_s or math.nan for case in cases])
        self._numbers = tuple(number for number in numbers if number != "launch_s")
        self._tries_launches = "launch_s" in numbers
        self._done = 0

    def fitted(self, skipped: Sequence[Skipped]) -> FittedPlatform:
        """Return the platform that fits best."""
        begin = self._seconds(self._start)
        platform, slopes = self._start, self._slopes(self._start, begin)
        if self._tries_launches:
            platform, slopes, now = self._best_host(begin, slopes)
        else:
            now = begin
        chosen = _worth_fitting(slopes, self._measured - now, self._numbers)
        for _ in range(_MOST_STEPS):
            moved_by = self._moved(platform, chosen)
            move = _least_deviations(slopes[:, chosen], self._measured - now, moved_by).clip(-_FARTHEST, _FARTHEST)
            if not chosen or float(np.abs(move).max()) < _NEAR:
                break
            names = [self._numbers[place] for place in chosen]
            values = {name: getattr(platform, name) * math.exp(by) for name, by in zip(names, move, strict=True)}
            moved = replace(platform, **values)
            seconds = self._seconds(moved)
            if _error(seconds - self._measured) > _error(now - self._measured):
                break  # the step was too long for a straight line; the numbers before it are nearer
            platform, now = moved, seconds
            slopes = self._slopes(platform, now)
        return self._result(platform, begin, now, slopes, chosen, skipped)

    def _best_host(self, begin: _Floats, slopes: _Floats) -> tuple[Platform, _Floats, _Floats]:
        """Return the start with the time between launches whose fit leaves the least error, its slopes and times."""
        best = self._start, slopes, begin
        least = self._best_error(slopes, begin)
        for launch_s in LAUNCHES_S:
            platform = replace(self._start, launch_s=launch_s)
            seconds = self._seconds(platform)
            if np.allclose(seconds, begin, rtol=0, atol=1e-4):
                continue  # no run is limited by such a host
            slopes = self._slopes(platform, seconds)
            error = self._best_error(slopes, seconds)
            if error < least - _WORTH:
                best, least = (platform, slopes, seconds), error
        return best

    def _best_error(self, slopes: _Floats, now: _Floats) -> float:
        """Return the mean |log error| of runs left out, with the numbers that are worth it."""
        gap = self._measured - now
        return _error_left_out(slopes[:, _worth_fitting(slopes, gap, self._numbers)], gap)

    def _moved(self, platform: Platform, chosen: Sequence[int]) -> _Floats:
        """Return how far numbers are from where they began, on a logarithmic scale."""
        names = [self._numbers[place] for place in chosen]
        return np.array([math.log(getattr(platform, name) / getattr(self._start, name)) for name in names])

    def _seconds(self, platform: Platform) -> _Floats:
        """Return the logarithms of all step times with a platform's numbers."""
        cases = [_with_numbers(case, platform) for case in self._cases]
        found: list[float] = []
        for seconds in self._simulate(_step_time, cases):
            found.append(seconds)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._done + len(cases) - len(found))
        return np.log(found)

    def _slopes(self, platform: Platform, now: _Floats) -> _Floats:
        """Return the elasticity of each step time in each number: a row a run, a column a number."""
        columns = [
            (self._seconds(replace(platform, **{number: getattr(platform, number) * math.exp(_STEP)})) - now) / _STEP
            for number in self._numbers
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self._cases), 0))

    def _result(
        self,
        platform: Platform,
        begin: _Floats,
        now: _Floats,
        slopes: _Floats,
        chosen: Sequence[int],
        skipped: Sequence[Skipped],
    ) -> FittedPlatform:
        """Return the fitted platform with its errors."""
        gap, used = self._measured - now, slopes[:, chosen]
        moved = self._moved(platform, chosen)
        left_out = np.abs(np.expm1(_left_out(used, gap, moved)))
        names = [self._numbers[place] for place in chosen]
        if platform.launch_s != self._start.launch_s:
            names.append("launch_s")
        spread = _resampled(used, gap, moved)
        intervals = {
            name: tuple(
                float(getattr(platform, name) * math.exp(by)) for by in np.percentile(spread[:, place], (5, 95))
            )
            for place, name in enumerate(names)
            if name != "launch_s"
        }
        fitted_on = f"{len(gap)} runs of one's own ({', '.join(sorted({case.table for case in self._cases}))})"
        return FittedPlatform(
            platform=replace(
                platform,
                about="Fitted to runs of one's own.",
                fitted_on=f"{fitted_on}: {', '.join(names) or 'no number'}",
                fitted_error=float(np.percentile(left_out, 90)),
            ),
            intervals=cast("Mapping[str, tuple[float, float]]", intervals),
            before=_error(begin - self._measured),
            after=_error(-gap),
            left_out=float(left_out.mean()),
            rows=tuple(self._rows(begin, now, left_out)),
            skipped=tuple(skipped),
        )

    def _rows(self, begin: _Floats, now: _Floats, left_out: _Floats) -> Iterable[dict[str, Any]]:
        """Yield a plain value a run."""
        for case, before, after, error in zip(self._cases, np.exp(begin), np.exp(now), left_out, strict=True):
            yield {
                "table": case.table,
                "row_id": case.row_id,
                "about": case.about,
                "measured_s": case.measured_s,
                "before_s": float(before),
                "predicted_s": float(after),
                "left_out": float(error),
            }


def _with_numbers(case: Case, platform: Platform) -> Case:
    """Return a case with the numbers of a platform, and the words that its row says."""
    own = case.platform or COMPONENTS
    numbers = {number: getattr(platform, number) for number in (*NUMBERS, "num_devices")}
    return replace(case, platform=replace(own, **numbers))


def _step_time(case: Case) -> float:
    """Return how long a step takes, s."""
    return predict(case).seconds


def _error(log_ratios: _Floats) -> float:
    """Return the mean |error| of predictions, from log(predicted / measured)."""
    return float(np.abs(np.expm1(log_ratios)).mean())


def _least_deviations(slopes: _Floats, gap: _Floats, moved: _Floats, num_rounds: int = 30) -> _Floats:
    """Return the moves that leave the least sum of absolute deviations, by reweighted least squares.

    Numbers that move away from where they began count as deviations too, so that two that runs can hardly tell apart do
    not run away from one another.
    """
    slopes = np.vstack([slopes, _STAYS * np.eye(slopes.shape[1])])
    gap = np.concatenate([gap, -_STAYS * moved])
    move: _Floats = np.zeros(slopes.shape[1])
    for _ in range(num_rounds if slopes.size else 0):
        weights = 1 / np.sqrt(np.maximum(np.abs(gap - slopes @ move), 1e-4))
        found = np.linalg.lstsq(slopes * weights[:, None], gap * weights, rcond=1e-6)[0]
        move = np.asarray(found, dtype=np.float64)
    return move


def _left_out(slopes: _Floats, gap: _Floats, moved: _Floats) -> _Floats:
    """Return log(predicted / measured) of each run, by the fit to all others."""
    found = np.empty(len(gap))
    for place in range(len(gap)):
        others = np.arange(len(gap)) != place
        found[place] = slopes[place] @ _least_deviations(slopes[others], gap[others], moved) - gap[place]
    return found


def _worth_fitting(slopes: _Floats, gap: _Floats, numbers: Sequence[str]) -> list[int]:
    """Return the places of the numbers that predict runs left out best; each has to be worth it."""
    telling = [place for place in range(len(numbers)) if np.abs(slopes[:, place]).max() > _TELLS]
    most = min(len(telling), max(1, len(gap) // _RUNS_A_NUMBER))
    choices = [list(each) for size in range(most + 1) for each in combinations(telling, size)]
    return min(choices, key=lambda each: _error_left_out(slopes[:, each], gap) + _WORTH * len(each))


def _error_left_out(slopes: _Floats, gap: _Floats) -> float:
    """Return the mean |log error| of runs left out, with numbers that have not moved yet."""
    return float(np.abs(_left_out(slopes, gap, np.zeros(slopes.shape[1]))).mean())


def _resampled(slopes: _Floats, gap: _Floats, moved: _Floats) -> _Floats:
    """Return the moves that resampled runs ask for: a row a sample."""
    generator = np.random.default_rng(0)
    places = generator.integers(0, len(gap), (_NUM_SAMPLES, len(gap)))
    return np.stack([_least_deviations(slopes[each], gap[each], moved, 10) for each in places])
