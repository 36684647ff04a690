"""The figures of a run that was executed for several machines at once, as columns: those of `Run`, machine by machine.

Each figure of `JointFigures` is computed when it is asked for, with the operations of `Run` in their order, so that the
numbers are the same to the last float. Logs hold the times of all machines. How long ranks are at work (`rank_times`)
and what they communicate along each axis (`communication_by_axis`) are the sums of `minitrain.run.analysis.breakdown`,
added in the same order; means over ranks are rounded once. Bytes are the same on all machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from minitrain.operations import COMPUTE, PRICE, RECV, STREAM, STRIDE, TYP, EventLog
from minitrain.run.analysis.breakdown import AxisTotal, Meshes, PassTime, axis_finder, mean
from minitrain.run.analysis.timeline import Floats, Ints
from minitrain.run.device_memory import (
    DeviceMemory,
    OutOfMemory,
    communication_of,
    device_memory_of,
    excess_of,
    fullest_row,
    known_platform,
    workspace_bytes_of,
    worst_of,
)
from minitrain.run.figures import FIGURES, FiguresOfStep, over, summary_of, usd_per_hour_of, watts_of
from minitrain.run.result import Run
from minitrain.tensors.index_sets import grouped
from minitrain.whatif.recorded import Fleet, Recorded, TimedLog, covered, in_order

_MOST_NUMBERS = 1 << 22  # in one array: 32 MiB


class RankTimes(NamedTuple):
    """Where the time of the ranks goes, s, one row a log and one column a machine.

    Args:
        computing: time with the compute stream at work.
        exposed: time communicating with no compute beside it.
        waiting: time with no stream at work.
    """

    computing: Floats
    exposed: Floats
    waiting: Floats


def rank_times(logs: Sequence[TimedLog], step_times: Floats) -> RankTimes:
    """Split the step time of every log on every machine.

    Args:
        logs: those of the ranks, or of classes of ranks that are alike.
        step_times: s, (num_machines,).
    """
    computing = np.array([log.work[0] for log in logs])
    busy = np.maximum(np.array([log.work[1] for log in logs]), computing)
    waiting = step_times - busy
    return RankTimes(computing, busy - computing, np.where(waiting < 1e-12 * step_times, 0.0, waiting))


def _of_ranks(of_logs: Floats, log_of_rank: Ints | None, num_ranks: int) -> Floats:
    """Return the figure of every rank on some machines, (num_machines, num_ranks), each machine's in one piece."""
    if log_of_rank is None:
        return np.ascontiguousarray(of_logs.T)
    if len(of_logs) == 1:
        return np.repeat(of_logs[0], num_ranks).reshape(-1, num_ranks)
    return np.ascontiguousarray(of_logs.T[:, log_of_rank])


def sum_over_ranks(of_logs: Floats, log_of_rank: Ints | None) -> Floats:
    """Return sums over all ranks, (num_machines,), as numpy adds the column of one machine.

    Args:
        of_logs: (num_logs, num_machines).
        log_of_rank: the log that each rank has; None where each has its own.
    """
    num_ranks = len(of_logs) if log_of_rank is None else len(log_of_rank)
    step = max(1, _MOST_NUMBERS // max(1, num_ranks))
    sums = np.empty(of_logs.shape[1])
    for first in range(0, len(sums), step):
        columns = of_logs[:, first : first + step]
        sums[first : first + step] = _of_ranks(columns, log_of_rank, num_ranks).sum(axis=1)
    return sums


def communication_by_axis(
    logs: Iterable[tuple[int, TimedLog]], world_size: int, meshes: Meshes, num_machines: int
) -> list[dict[str, AxisTotal]]:
    """Return what a rank communicates along each axis on average, on each machine.

    Args:
        logs: the log of each rank, or of each class of ranks, with its rank.
        world_size: number of ranks.
        meshes: size by axis of each mesh that the ranks have made.
        num_machines: how many machines the times are of.
    """
    known: dict[Any, dict[str, AxisTotal]] = {}  # whose seconds are columns, as in what follows
    of_ranks = []
    for rank, log in logs:
        axis_of = axis_finder(rank, world_size, meshes)
        axes = tuple("" if stream.kind == COMPUTE else axis_of(stream) for stream in log.rows[STREAM::STRIDE])
        key = id(log), axes
        if key not in known:
            known[key] = _sums_of(log, axes)
        of_ranks.append(known[key])
    return _means(of_ranks, num_machines)


def _sums_of(log: TimedLog, axes: Sequence[str | None]) -> dict[str, Any]:
    """Return what one rank communicates along each axis; "" stands for compute, None for nothing."""
    names = [axis for axis in dict.fromkeys(axes) if axis]
    if not names:
        return {}
    starts, ends = log.intervals()
    codes = {axis: code for code, axis in enumerate(dict.fromkeys(axes))}
    labels = np.array([codes[axis] for axis in axes])[:, None]
    starts, ends, labels = in_order(starts, ends, labels)
    computes = labels == codes.get("", -1)
    computing = covered(starts, np.where(computes, ends, -np.inf))
    found = {}
    for name in names:
        communicates = labels == codes[name]
        seconds: Any = covered(starts, np.where(communicates, ends, -np.inf))
        either: Any = covered(starts, np.where(computes | communicates, ends, -np.inf))
        events = zip(axes, log.rows[TYP::STRIDE], log.rows[PRICE::STRIDE], strict=True)
        own = [0.0 if typ == RECV else price.size_bytes for axis, typ, price in events if axis == name]
        found[name] = AxisTotal(len(own), 0.0 + sum(own), seconds, either - computing)
    return found


def _means(of_ranks: Sequence[dict[str, Any]], num_machines: int) -> list[dict[str, AxisTotal]]:
    """Return the means over ranks on each machine, axes in alphabetical order."""
    found: list[dict[str, AxisTotal]] = [{} for _ in range(num_machines)]
    for axis in sorted({axis for sums in of_ranks for axis in sums}):
        nothing: Any = AxisTotal(0, 0.0, np.zeros(num_machines), np.zeros(num_machines))  # type: ignore[arg-type]
        parts = [sums.get(axis, nothing) for sums in of_ranks]
        number, size_bytes = mean([part.num_operations for part in parts]), mean([part.size_bytes for part in parts])
        seconds, exposed_s = (_mean_of_columns([part[place] for part in parts]) for place in (2, 3))
        for machine, times in enumerate(zip(seconds, exposed_s, strict=True)):
            found[machine][axis] = AxisTotal(number, size_bytes, *times)
    return found


def _mean_of_columns(columns: Sequence[Any]) -> list[float]:
    """Return the mean of some columns on each machine, rounded once."""
    if all(column is columns[0] for column in columns):
        return columns[0].tolist()  # type: ignore[no-any-return]  # floats
    return [mean(values) for values in np.stack(columns, axis=1).tolist()]


def excesses_of_devices(
    recorded: Recorded, sizes: Sequence[float | None], memories: Sequence[Sequence[DeviceMemory]]
) -> list[OutOfMemory | None]:
    """Return, for each machine, the rank that needs most beyond what its device has; None where all fit.

    Args:
        recorded: a run that says all that a device must hold.
        sizes: the memory of each machine's devices, bytes.
        memories: what the devices of the classes of ranks hold, by machine.
    """
    models = recorded.run.class_models
    moments = {
        model._rank: rank.submitted[fullest_row(model._rows)] if len(rank.end) else 0
        for model, rank in zip(models, recorded.program.ranks, strict=True)
    }
    times = dict(zip(moments, recorded.at(list(moments.values())), strict=True))
    found: list[OutOfMemory | None] = []
    for machine, (size_bytes, here) in enumerate(zip(sizes, memories, strict=True)):
        worst = worst_of(map(excess_of, models, here, [size_bytes] * len(models)))
        found.append(worst and replace(worst, time=float(times[worst.rank][machine])))
    return found


def first_excesses(recorded: Recorded, sizes: Sequence[float | None]) -> list[OutOfMemory | None]:
    """Return, for each machine, the first rank's report in time; None where all ranks fit."""
    # ranks ascend, so that the lowest of several at once stays
    by_size = grouped((excess.memory.size_bytes, excess) for excess in recorded.excesses)
    found: list[OutOfMemory | None] = [None] * len(sizes)
    for size_bytes, excesses in by_size.items():
        times = recorded.at([excess.moment for excess in excesses])
        first = times.argmin(axis=0)
        for machine, own in enumerate(sizes):
            if own == size_bytes:
                rank, memory, _ = excesses[first[machine]]
                time = float(times[first[machine], machine])
                found[machine] = OutOfMemory(rank, time, size_bytes, memory.held_bytes)
    return found


class JointFigures(FiguresOfStep):
    """Figures of several machines that one execution has made.

    Args:
        recorded: the run, with the times of all machines.
        parts: the fleets of the machines, and which of each they are.
        said: what summaries say beside what priced the operations.
    """

    def __init__(self, recorded: Recorded, parts: Sequence[tuple[Fleet, Ints]], said: str = "") -> None:
        self._run = run = recorded.run
        self.world_size, self.useful_flop = run.world_size, run.useful_flop
        self.hfu_to_mfu, self.tokens_trained = _or_nan(run.hfu_to_mfu), _or_nan(run.tokens_trained)
        self._recorded = recorded
        self._parts, self._said = parts, said

    def __len__(self) -> int:
        return self._recorded.num_machines

    def _everywhere(self, number: float) -> Floats:
        """Return a number as a column."""
        return np.full(len(self), float(number))

    def _of_each(self, name: str) -> list[Any]:
        """Return a figure of the hardware of each machine."""
        found: list[Any] = []
        for fleet, chosen in self._parts:
            found += map(fleet.of_each(name).__getitem__, chosen.tolist())
        return found

    @cached_property
    def load_time(self) -> Floats:
        """When the weights of all ranks are there, s."""
        latest: Floats = self._recorded.load_ends.max(axis=0)
        return latest

    @cached_property
    def _begin(self) -> Floats:
        """When the step begins on the clocks that figures are made from, s."""
        return np.where(self._recorded.loads_alike, self.load_time, 0.0)

    @cached_property
    def step_time(self) -> Floats:
        """From the end of loading to the latest final clock of all ranks, s."""
        timed = self._recorded.timed
        last: Floats = timed.at(timed.program.clock.tolist()).max(axis=0)
        return last - self._begin

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
        return self._of_each("capacity_bytes")

    @cached_property
    def peak_flop_per_s(self) -> Floats:
        """The peak rate of a device; nan where there is no device."""
        return np.array(self._of_each("peak_flop_per_s"), dtype=float)

    @cached_property
    def oom(self) -> list[OutOfMemory | None]:
        """Where and when a device's memory was exceeded; None where all fits."""
        if self._run.needed_memory_bytes is None:
            return first_excesses(self._recorded, self.capacity_bytes)
        return excesses_of_devices(self._recorded, self.capacity_bytes, self._memories)

    @cached_property
    def needed_memory_bytes(self) -> list[float | None]:
        """What the fullest device must hold; None where tensors alone count."""
        if self._run.needed_memory_bytes is None:
            return [None] * len(self)
        return [max(memory.needed_bytes for memory in memories) for memories in self._memories]

    @cached_property
    def _memories(self) -> list[list[DeviceMemory]]:
        """What the devices of the classes of ranks hold on each machine."""
        models = self._run.class_models
        known = [(device_memory_of(model), communication_of(model)) for model in models]
        workload, found = models[0]._runtime_predictor.workload, dict[Any, list[DeviceMemory]]()
        keys: list[Any] = []
        for system, pricing in zip(self._of_each("system"), self._of_each("pricing"), strict=True):
            machine = SimpleNamespace(system=system, pricing=pricing, workload=workload)
            platform, tiers = known_platform(machine), () if system is None else system.networks
            keys.append((system and system.name, tuple((tier.size, tier.nics) for tier in tiers), platform))
            if keys[-1] not in found:
                workspace_bytes = workspace_bytes_of(machine)
                found[keys[-1]] = [
                    replace(held, workspace_bytes=workspace_bytes, buffer_bytes=whom.buffer_bytes(system, platform))
                    for held, whom in known
                ]
        return [found[key] for key in keys]

    @cached_property
    def _times(self) -> RankTimes:
        """Where the time of each log's rank goes."""
        return rank_times(self._recorded.timed.logs, self.step_time)

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
        shares: Any = over(self._over_ranks(of_logs), self.step_time * self.world_size)
        return shares  # type: ignore[no-any-return]  # a column

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
    def _passes(self) -> Any:
        """When ranks pass microbatches through their layers, s: a `PassTime` of columns, (num_logs, num_machines)."""
        found = [log.passes for log in self._recorded.timed.logs if log.passes is not None]
        return PassTime(*np.array(found).reshape(-1, 3, len(self)).transpose(1, 0, 2))

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
        return np.maximum(bubble, 0.0)

    @cached_property
    def _systems(self) -> tuple[dict[int, Any], list[int]]:
        """The configs of all machines, each once by its identity; and the identity of each machine's."""
        systems = self._of_each("system")
        keys = list(map(id, systems))
        return dict(zip(keys, systems, strict=True)), keys

    def _of_sheets(self, figure: Callable[[Any], float | None]) -> Floats:
        """Return a figure of the data sheet of each machine's devices; nan where there is none."""
        systems, keys = self._systems
        found = {key: figure(getattr(system, "sheet", None)) for key, system in systems.items()}
        return np.array(list(map(found.__getitem__, keys)), dtype=float)

    @cached_property
    def energy_joules(self) -> Floats:
        """What all devices draw in the step, J; nan where a config does not say their power."""
        rated, idle = (self._of_sheets(partial(_watts, place)) for place in (0, 1))
        busy, waiting = (self._times.computing + self._times.exposed) * rated, self._times.waiting * idle
        return self._over_ranks(busy) + self._over_ranks(waiting)

    @property
    def usd_per_hour(self) -> Floats:
        """What renting all devices costs, USD an hour; nan where a config does not say its price."""
        return self._of_sheets(lambda sheet: usd_per_hour_of([sheet], self.world_size))

    def names(self, hardware: Sequence[Any]) -> list[str]:
        """Return what runs call the hardware of each machine.

        Args:
            hardware: what was given as the hardware of each machine.
        """
        systems = zip(self._of_each("system"), hardware, strict=True)
        return [str(getattr(system, "name", None) or given) for system, given in systems]

    def summaries(self, hardware: Sequence[Any]) -> list[dict[str, Any]]:
        """Return what `Run.summary` says on each machine.

        Args:
            hardware: what was given as the hardware of each machine.
        """
        of_each = zip(self.names(hardware), self._of_each("network"), self._of_each("pricing"), strict=True)
        return [
            summary_of(_OnMachine(self, machine, hardware=name, network=kind or "flat", priced_by=words + self._said))
            for machine, (name, kind, pricing) in enumerate(of_each)
            for words in [str(pricing or "roofline")]
        ]

    def system(self, machine: int) -> Any:
        """Return the hardware config of a machine; None where it has none."""
        return self._of_each("system")[machine]

    @property
    def run(self) -> Run:
        """What the execution has made."""
        return self._run

    def logs_on(self, machine: int) -> list[EventLog]:
        """Return the logs of all ranks as they are on one machine."""
        logs, place_of = self._run.logs, self._log_of_rank
        places = range(len(logs)) if place_of is None else place_of.tolist()
        return [self._recorded.log_on(machine, log, place) for log, place in zip(logs, places, strict=True)]

    @cached_property
    def _listed(self) -> dict[str, list[Any]]:
        """Columns that were asked for as lists."""
        return {}

    def on(self, machine: int, name: str) -> Any:
        """Return a column's entry for one machine, None for nan."""
        if name not in self._listed:
            column = getattr(self, name)
            self._listed[name] = (
                column
                if isinstance(column, list)
                else [None if number != number else number for number in column.tolist()]
            )
        return self._listed[name][machine]

    @cached_property
    def communication_by_axis(self) -> list[dict[str, AxisTotal]]:
        """What a rank communicates along each axis, on average."""
        run = self._run
        logs = zip(run.ranks_of_class_logs, self._recorded.logs, strict=True)
        return communication_by_axis(logs, run.world_size, run.meshes, len(self))


class _OnMachine:
    """A run as it is on one of the machines, to be asked for figures.

    Figures that have a column come from there. All others are those of a run with the logs of this machine.
    """

    def __init__(self, joint: JointFigures, machine: int, **named: Any) -> None:
        self._joint = joint
        self._machine = machine
        self._run = replace(joint.run, **named)  # with the times of all machines

    @cached_property
    def _alone(self) -> Run:
        """The run on this machine."""
        system = self._joint.system(self._machine)
        return replace(
            self._run,
            logs=self._joint.logs_on(self._machine),
            models=(),
            sheets=(getattr(system, "sheet", None),),
            **{name: self._joint.on(self._machine, name) for name in ("peak_flop_per_s", "capacity_bytes", "oom")},
        )

    def __getattr__(self, name: str) -> Any:
        if name in _COLUMNS:
            return self._joint.on(self._machine, name)
        return getattr(self._run if name in _ON_ALL else self._alone, name)


_COLUMNS = frozenset(figure.column for figure in FIGURES) | {"oom", "communication_by_axis", "needed_memory_bytes"}
_ON_ALL = frozenset(field.name for field in fields(Run)) | {"peak_memory", "sureness", "dropped_token_fraction"}
"""What no time and no device has a part in."""


def _or_nan(number: float | None) -> float:
    """Return a number as columns hold it, nan for None."""
    return np.nan if number is None else number


def _watts(place: int, sheet: Any) -> float | None:
    """Return the rated (0) or idle (1) power of a device, W; None where its config does not say both."""
    watts = watts_of([sheet])
    return None if watts is None else float(watts[place][0])
