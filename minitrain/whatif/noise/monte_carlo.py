"""`monte_carlo`: the step time of a finished run under noise, as a distribution, and what makes its tail.

A strategy does not look at the clock, so that its run need not be repeated: the recorded operations keep their
dependencies, and only their durations are drawn. A strategy that would choose another order under noise is not
modelled.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np

from minitrain.errors import UsageError, require_count
from minitrain.operations import PRICE, STRIDE, EventLog
from minitrain.run.analysis.timeline import Ints
from minitrain.run.data_frames import data_frame
from minitrain.run.result import Run
from minitrain.run.steps import require_one_step
from minitrain.whatif.noise.distribution import (
    Distribution,
    PathFinder,
    Tail,
    path_sums_of_operations,
    path_sums_of_ranks,
    path_sums_of_types,
)
from minitrain.whatif.noise.noise import Activities, Draws, Noise, make_activities

_NUMBERS_AT_ONCE = 2**20  # in arrays of durations and moments, 8 MiB: about as much as a processor's cache holds
_MOST_NUMBERS = 2**23
_LEAST_AT_ONCE = 192  # samples: a moment takes one numpy call, whatever their number
_WORST = 10  # the slowest 1 / 10 of the samples are the tail


@final
@dataclass(frozen=True, eq=False)
class MonteCarlo(Distribution):
    """The step time of a run under noise, with its pictures and tables."""

    def to_pandas(self) -> Any:
        """Return the samples as a pandas DataFrame: sample, step_time_s.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame({"sample": list(range(self.num_samples)), "step_time_s": self.step_times.tolist()})

    def figure(self) -> Any:
        """Return a Plotly figure: how often each step time came, with the recorded one and the percentiles."""
        from minitrain.whatif.noise.figure import figure  # noqa: PLC0415  (plotly only when somebody looks)

        return figure(self)

    def write_html(self, path: str | PathLike[str], include_plotlyjs: bool | str = True) -> Path:
        """Write one page that opens without internet: the recorded run, and below it the distribution.

        Args:
            path: where to.
            include_plotlyjs: as for `Run.write_html`.

        Returns:
            The path.
        """
        from minitrain.whatif.noise.figure import write_html  # noqa: PLC0415

        return write_html(self, Path(path), include_plotlyjs)

    def _repr_html_(self) -> str:
        """Show the figures and a picture that needs no script."""
        from minitrain.whatif.noise.figure import distribution_svg  # noqa: PLC0415

        return f"<pre>{html.escape(str(self))}</pre>{distribution_svg(self)}"


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
    require_count("samples", samples)
    require_count("seed", seed, 0)
    if not isinstance(noise, Noise):
        raise UsageError(f"noise must be a `mt.Noise`, such as mt.Noise(jitter=0.05), got {noise!r:.80}")
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


def require_events(run: Run, what: str) -> None:
    """Require that a run has kept every event of every rank.

    Raises:
        UsageError: it kept totals alone, or has many steps.
    """
    require_one_step(run, what)
    if len(run.logs) != run.world_size or not all(isinstance(log, EventLog | list) for log in run.logs):
        raise UsageError(
            f"{what} needs every event of every rank, and the run of {run.strategy} has not kept them; simulate it "
            'with log="full"'
        )


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
