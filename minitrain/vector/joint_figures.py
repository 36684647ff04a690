"""The figures of a run that was executed for several machines at once, as columns: those of `Run`, machine by machine.

Each is computed when it is asked for, with the operations of `Run` in their order, so that the numbers are the same to
the last float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from minitrain.analysis.breakdown import PassTimes
from minitrain.analysis.busy_time import load_end_of
from minitrain.analysis.communication import AxisTotal, mean_by_axis, totals_of_log
from minitrain.events import PRICE, STRIDE, TIME, EventLog
from minitrain.hardware.many_predictors import ManyPredictors
from minitrain.hardware.per_machine import Floats, PerMachine, latest, values_of
from minitrain.hardware.price import Price
from minitrain.run.energy import SECONDS_AN_HOUR, watts_of
from minitrain.run.memory_reports import OutOfMemory
from minitrain.run.result import Run
from minitrain.run.saved_runs import plain
from minitrain.run.trained_model import described, figures_of
from minitrain.vector.axis_times import communication_by_axis
from minitrain.vector.busy_times import RankTimes, pass_times, rank_times, sum_over_ranks
from minitrain.vector.capacities import excesses_of_devices, first_excesses


class JointFigures:
    """Figures of several machines that one execution has made.

    Args:
        run: what the execution has made: its times are those of all machines.
        predictor: what priced it.
        without_loading: the same with loads that take no time, where ranks load for unequal times.
    """

    def __init__(self, run: Run, predictor: ManyPredictors, without_loading: Run | None = None) -> None:
        self._run = run
        self._predictor = predictor
        self._timed = without_loading or run

    def __len__(self) -> int:
        return self._predictor.num_machines

    def _everywhere(self, number: Any) -> Floats:
        """Return a number as a column."""
        return np.array(np.broadcast_to(values_of(number), len(self)), dtype=float)

    @cached_property
    def load_time(self) -> Floats:
        """When the weights of all ranks are there, s."""
        return self._everywhere(latest([load_end_of(log._rows) for log in self._run.class_logs]))  # type: ignore[attr-defined]  # flat logs

    @cached_property
    def _begin(self) -> Floats:
        """When the step begins on the clocks that figures are made from, s."""
        return self.load_time if self._timed is self._run else np.zeros(len(self))

    @cached_property
    def step_time(self) -> Floats:
        """From the end of loading to the latest final clock of all ranks, s."""
        return self._everywhere(latest([model.time for model in self._timed.class_models])) - self._begin

    @property
    def peak_memory_bytes(self) -> Floats:
        """The highest memory of all ranks, bytes: the same on all machines."""
        return self._everywhere(self._run.peak_memory_bytes)

    @property
    def num_events(self) -> Floats:
        """Number of events of all ranks: the same on all machines."""
        return np.full(len(self), self._run.num_events)

    @cached_property
    def capacity_bytes(self) -> list[float | None]:
        """The memory of a device; None where there is no device."""
        return self._predictor.of_each("capacity_bytes")

    @cached_property
    def peak_flop_per_s(self) -> list[float | None]:
        """The peak rate of a device; None where there is no device."""
        return self._predictor.of_each("peak_flop_per_s")

    @cached_property
    def oom(self) -> list[OutOfMemory | None]:
        """Where and when a device's memory was exceeded; None where all fits."""
        if self._run.needed_memory_bytes is None:
            return first_excesses(self._run.class_models, len(self))
        return excesses_of_devices(self._run.class_models, self.capacity_bytes)

    @cached_property
    def mfu(self) -> Floats:
        """Model FLOPs utilization; nan where there is no device."""
        peaks = np.array([np.nan if peak is None else peak for peak in self.peak_flop_per_s])
        return _ratio(self._run.useful_flop, peaks * self._run.world_size * self.step_time)

    @property
    def hfu(self) -> Floats:
        """Hardware FLOPs utilization; nan where it has none."""
        trained, useful = self._run.trained_model, self._run.useful_flop
        if trained is None or not useful:
            return self._everywhere(np.nan)
        return self.mfu * (1 + trained.recomputed_flop / useful)

    @property
    def tokens_per_second(self) -> Floats:
        """Tokens that all ranks train on in a second; nan where there are none."""
        trained = self._run.trained_model
        if trained is None:
            return self._everywhere(np.nan)
        num_tokens = self._run.global_batch_size * trained.seq_len
        return np.where(self.step_time == 0, np.nan, _ratio(num_tokens, self.step_time))

    @property
    def tokens_per_second_per_rank(self) -> Floats:
        """One rank's share of them."""
        return self.tokens_per_second / self._run.world_size

    @cached_property
    def _times(self) -> RankTimes:
        """Where the time of each log's rank goes."""
        return rank_times(self._timed.class_logs, self.step_time)

    @cached_property
    def _log_of_rank(self) -> Any:
        """The log that stands for each rank; None where each has its own."""
        fold: Any = getattr(self._run, "fold", None)
        return None if fold is None else np.array(fold.of_every_rank(list(range(len(self._run.class_logs)))))

    def _over_ranks(self, of_logs: Floats) -> Floats:
        """Return a sum over all ranks."""
        return sum_over_ranks(of_logs, self._log_of_rank)

    def _share(self, of_logs: Floats) -> Floats:
        """Return the share of all ranks' time that something takes."""
        return _ratio(self._over_ranks(of_logs), self.step_time * self._run.world_size)

    @cached_property
    def computing_fraction(self) -> Floats:
        """Share of all ranks' time spent computing."""
        return self._share(self._times.computing)

    @cached_property
    def exposed_comm_fraction(self) -> Floats:
        """Share of all ranks' time spent communicating with no compute beside it."""
        return self._share(self._times.exposed)

    @cached_property
    def bubble_fraction(self) -> Floats:
        """Share of all ranks' time spent waiting."""
        return self._share(self._times.waiting)

    @cached_property
    def _passes(self) -> PassTimes:
        """When ranks pass microbatches through their layers."""
        return pass_times(self._timed.class_logs, len(self))

    @property
    def span_bubble(self) -> Floats:
        """The longest idle time of a rank between its first and its last pass, s."""
        passes = self._passes
        longest: Floats = (passes.last_end - passes.first_start - passes.busy).max(axis=0, initial=0.0)
        return longest

    @property
    def makespan_bubble(self) -> Floats:
        """Time from the first pass of any rank to the last, less the compute of the busiest rank, s."""
        passes = self._passes
        if not passes.busy.size:
            return self._everywhere(0.0)
        bubble: Floats = passes.last_end.max(axis=0) - passes.first_start.min(axis=0) - passes.busy.max(axis=0)
        return bubble

    def _of_sheets(self, figure: Callable[[Any], float | None]) -> Floats:
        """Return a figure of the data sheet of each machine's devices; nan where there is none."""
        sheets = [getattr(system, "sheet", None) for system in self._predictor.of_each("system")]
        found = {id(sheet): figure(sheet) for sheet in {id(sheet): sheet for sheet in sheets}.values()}
        return np.array([found[id(sheet)] for sheet in sheets], dtype=float)

    @cached_property
    def energy_joules(self) -> Floats:
        """What all devices draw in the step, J; nan where a config does not say their power."""
        rated, idle = (self._of_sheets(partial(_watts, place)) for place in (0, 1))
        busy, waiting = (self._times.computing + self._times.exposed) * rated, self._times.waiting * idle
        return self._over_ranks(busy) + self._over_ranks(waiting)

    @cached_property
    def dollars(self) -> Floats:
        """What renting the devices for the step costs, USD; nan where a config does not say its price."""
        of_one_hour = self._of_sheets(lambda sheet: None if sheet is None else sheet.price_usd_per_hour)
        return of_one_hour * self._run.world_size * self.step_time / SECONDS_AN_HOUR

    def names(self, hardware: Sequence[Any]) -> list[str]:
        """Return what runs call the hardware of each machine.

        Args:
            hardware: what was given as the hardware of each machine.
        """
        systems = zip(self._predictor.of_each("system"), hardware, strict=True)
        return [str(getattr(system, "name", None) or given) for system, given in systems]

    def summaries(self, hardware: Sequence[Any]) -> list[dict[str, Any]]:
        """Return what `Run.summary` says on each machine.

        Args:
            hardware: what was given as the hardware of each machine.
        """
        run, count = self._run, len(self)
        options = {name: plain(value) for name, value in run.options.items()}
        columns: dict[str, list[Any]] = {
            "strategy": [run.strategy] * count,
            "world_size": [run.world_size] * count,
            "num_layers": [run.num_layers] * count,
            "global_batch_size": [run.global_batch_size] * count,
            "hardware": self.names(hardware),
            "network": [kind or "flat" for kind in self._predictor.kinds()],
            "workload": [described(run.workload)] * count,
            "options": [dict(options) for _ in range(count)],
            "step_time_s": self.step_time.tolist(),
            "load_time_s": self.load_time.tolist(),
            "peak_memory_elements": [run.peak_memory] * count,
            "peak_memory_bytes": [run.peak_memory_bytes] * count,
            "capacity_bytes": self.capacity_bytes,
            "out_of_memory": [None if oom is None else str(oom) for oom in self.oom],
            "mfu": list(map(_or_none, self.mfu.tolist())),
            "bubble_fraction": self.bubble_fraction.tolist(),
            "exposed_comm_fraction": self.exposed_comm_fraction.tolist(),
            "span_bubble_s": self.span_bubble.tolist(),
            "makespan_bubble_s": self.makespan_bubble.tolist(),
            "held_outside_bytes": [None] * count,
            "num_events": [run.num_events] * count,
        }
        transformers = self._of_transformer() if run.trained_model else [{}] * count
        rows = zip(zip(*columns.values(), strict=True), transformers, strict=True)
        return [{**dict(zip(columns, row, strict=True)), **more, "error": None} for row, more in rows]

    def _of_transformer(self) -> list[dict[str, Any]]:
        """Return what summaries say of a transformer alone, on each machine."""
        run = self._run
        numbers = zip(self.hfu, self.tokens_per_second, self.tokens_per_second_per_rank, strict=True)
        priced_by = [str(pricing or "roofline") for pricing in self._predictor.of_each("pricing")]
        names = self.names([run.hardware] * len(self))
        found = []
        for machine, (hfu, tokens, each) in enumerate(numbers):
            one: Any = SimpleNamespace(
                trained_model=run.trained_model,
                priced_by=priced_by[machine],
                sureness=replace(run, priced_by=priced_by[machine], hardware=names[machine]).sureness,
                hfu=_or_none(hfu),
                tokens_per_second=_or_none(tokens),
                tokens_per_second_per_rank=_or_none(each),
                needed_memory_bytes=run.needed_memory_bytes,
                memory_by_kind=run.memory_by_kind,
                peak_host_memory_bytes=run.peak_host_memory_bytes,
                communication_by_axis=self.communication_by_axis[machine],
            )
            found.append(figures_of(one))
        return found

    @cached_property
    def communication_by_axis(self) -> list[dict[str, AxisTotal]]:
        """What a rank communicates along each axis, on average."""
        run = self._run
        logs = list(zip(run.ranks_of_class_logs, run.class_logs, strict=True))
        found = communication_by_axis(logs, run.world_size, run.meshes, len(self))
        return found or [self._communication_on(machine) for machine in range(len(self))]

    def _communication_on(self, machine: int) -> dict[str, AxisTotal]:
        """Return what a rank communicates along each axis on one machine, from the log of that machine alone."""
        run = self._run
        return mean_by_axis(
            [
                totals_of_log(_log_of(log, machine), rank, run.world_size, run.meshes)
                for rank, log in zip(run.ranks_of_class_logs, run.class_logs, strict=True)
            ]
        )


def _or_none(number: float) -> float | None:
    """Return a number of a column, None for nan."""
    return None if number != number else float(number)


def _watts(place: int, sheet: Any) -> float | None:
    """Return the rated (0) or idle (1) power of a device, W; None where its config does not say both."""
    watts = watts_of([sheet])
    return None if watts is None else float(watts[place][0])


def _ratio(above: Any, below: Floats) -> Floats:
    """Return a quotient, 0 where nothing is to divide by."""
    quotients: Floats = np.divide(above, below, out=np.zeros_like(below), where=~(below <= 0))
    return quotients


def _log_of(log: Any, machine: int) -> EventLog:
    """Return a log of the times of one machine."""
    found, rows = EventLog(log.rank), list(log._rows)
    rows[TIME::STRIDE] = [_number(time, machine) for time in rows[TIME::STRIDE]]
    rows[PRICE::STRIDE] = [
        Price(_number(price.seconds, machine), _number(price.size_bytes, machine)) for price in rows[PRICE::STRIDE]
    ]
    found._rows = rows
    return found


def _number(number: Any, machine: int) -> Any:
    """Return a number as it is on one machine."""
    return float(number.values[machine]) if type(number) is PerMachine else number
