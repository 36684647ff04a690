"""The same layouts on machines with other prices: which price would have to change for another layout to win."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from minitrain.errors import MinitrainError
from minitrain.hardware.config import SystemConfig, load_config
from minitrain.hardware.device import Processor, Rate
from minitrain.tuning.problem import TuningProblem
from minitrain.tuning.space import Candidate
from minitrain.tuning.worker_tasks import Figures, price_pipelines, simulate_each

Change = Callable[[SystemConfig, float], SystemConfig]


@final
@dataclass(frozen=True, slots=True)
class TurningPoint:
    """A price that, changed enough, lets another layout win.

    Args:
        price: what is changed, in words.
        factor: by what it is multiplied.
        winner: place of the layout that wins then, among those that were given.
        step_time_s: its step time then, s.
        before_s: the step time of the layout that wins now, with the changed price, s.
    """

    price: str
    factor: float
    winner: int
    step_time_s: float
    before_s: float


def knobs(system: SystemConfig) -> Mapping[str, Change]:
    """Return the changes of single prices that are tried on a machine, by name."""
    found: dict[str, Change] = {
        "arithmetic rate": _rates,
        "memory bandwidth": lambda config, factor: replace(
            config, mem1=replace(config.mem1, GBps=config.mem1.GBps * factor)
        ),
        "bandwidth to the host": lambda config, factor: replace(
            config, mem2=replace(config.mem2, GBps=config.mem2.GBps * factor)
        ),
    }
    for place, tier in enumerate(system.networks):
        found[f"bandwidth of the tier of {tier.size:,}"] = _of_tier(place)
    return found


def _of_tier(place: int) -> Change:
    """Return what changes the bandwidth of a tier, also that of its curves."""

    def change(config: SystemConfig, factor: float) -> SystemConfig:
        tier = config.networks[place]
        curves = {
            op: replace(
                curve,
                bandwidths=None
                if curve.bandwidths is None
                else tuple((low, rate * factor) for low, rate in curve.bandwidths),
            )
            for op, curve in tier.curves.items()
        }
        changed = replace(tier, bandwidth=tier.bandwidth * factor, curves=curves)
        return replace(config, networks=(*config.networks[:place], changed, *config.networks[place + 1 :]))

    return change


def _rates(config: SystemConfig, factor: float) -> SystemConfig:
    """Change the rates of both compute units."""

    def scaled(rates: Mapping[str, Rate]) -> dict[str, Rate]:
        return {name: replace(rate, tflops=rate.tflops * factor) for name, rate in rates.items()}

    processor = config.processor
    return replace(config, processor=Processor(scaled(processor.matrix), scaled(processor.vector)))


def turns(contenders: Sequence[Candidate], factors: Sequence[float]) -> list[TurningPoint]:
    """Return the least changes of single prices by which the first of some layouts is beaten by another of them.

    Args:
        contenders: layouts of one problem, the winner first.
        factors: by what each price is multiplied and divided, ascending. A price that changes nothing at the last one
            is not tried at the others.
    """
    problem = contenders[0].problem
    system = load_config(problem.hardware)
    found = []
    for name, change in knobs(system).items():
        for direction in (1, -1):
            search = _TurnSearch(contenders, name, system, change)
            if search.at(factors[-1] ** direction) is not None:
                found.append(next(filter(None, (search.at(factor**direction) for factor in factors))))
    return sorted(found, key=lambda turn: max(turn.factor, 1 / turn.factor))


class _TurnSearch:
    """Who wins when a price changes.

    Args:
        contenders: the layouts.
        name: what the price is called.
        system: the machine as it is.
        change: what changes it.
    """

    def __init__(self, contenders: Sequence[Candidate], name: str, system: SystemConfig, change: Change) -> None:
        self._contenders, self._name, self._system, self._change = contenders, name, system, change

    def at(self, factor: float) -> TurningPoint | None:
        """Return which layout beats the winner when the price is multiplied by a factor; None where none does."""
        times = step_times(self._contenders, self._change(self._system, factor))
        best = min(range(len(times)), key=lambda place: (times[place], place))
        return TurningPoint(self._name, factor, best, times[best], times[0]) if times[best] < times[0] else None


def step_times(contenders: Sequence[Candidate], system: SystemConfig) -> list[float]:
    """Return the step times of layouts on another machine, s; infinity for what cannot run there."""
    before = contenders[0].problem
    problem = replace(before, hardware=system)
    try:
        times = [_figures(problem, one).step_time_s for one in contenders]
    except MinitrainError:
        return [float("inf")] * len(contenders)
    return [float("inf") if seconds is None else seconds for seconds in times]


def _figures(problem: TuningProblem, candidate: Candidate) -> Figures:
    """Return the figures of one layout."""
    if candidate.pipeline is not None:
        return price_pipelines(problem, [candidate.pipeline])[0]
    return simulate_each(problem, [(candidate.strategy, dict(candidate.options))])[0]
