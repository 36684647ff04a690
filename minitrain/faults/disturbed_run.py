"""A step in which devices die: what was done, what was lost, and how long it takes until the step is complete.

Time is one clock from the beginning of the step. An attempt begins; a device dies; the others are stopped once it is
noticed (`Recovery.detection_s`). A spare takes the place of the dead device; or the job goes on with fewer ranks; or it
waits for the repair. The processes start again, read the last checkpoint, repeat the steps finished since then, and
begin the step again. A fault during a recovery restarts the recovery.

The logs of the run hold what was finished of every attempt, so that its picture, its bubble and its MFU are those of
the disturbed step. The time of a recovery counts as waiting.

A smaller job keeps the global batch. It has the most ranks with which the strategy runs, on the devices that are left,
in their order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, final

import numpy as np

from minitrain.analysis.labels import duration
from minitrain.analysis.timeline import Bools
from minitrain.events import Event, Outage
from minitrain.faults.checkpoints import checkpoint_of
from minitrain.faults.stopped_step import finished_events
from minitrain.run.faults import Fault, FaultRate, Recovery
from minitrain.run.result import Run

Simulate = Callable[[Sequence[int]], Awaitable[Run]]
"""Simulates the step, without faults, on the devices of some ranks of the planned job, or as many as it runs with."""

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "lost_work_s": "lost work",
        "detection_s": "detection",
        "repair_s": "repair",
        "replan_s": "replanning",
        "restart_s": "restart",
        "reload_s": "reload",
        "repeated_s": "repeated steps",
    }
)
"""What a fault costs, in the order in which it comes: the field of an `Interruption`, and its name in reports."""
_FEWER_RANKS = "fewer ranks"  # a cause of lost time that belongs to no single fault


@final
@dataclass(frozen=True, slots=True)
class Interruption:
    """What one fault cost, all in s.

    Args:
        fault: what happened.
        num_ranks: how many ranks went on.
        lost_work_s: time of the attempt that it undid.
        detection_s: until all ranks were stopped.
        repair_s: waiting for the device, where no spare took its place.
        replan_s: finding the layout of fewer ranks.
        restart_s: starting and connecting the processes.
        reload_s: reading the checkpoint.
        repeated_s: doing again the finished steps since that checkpoint.
    """

    fault: Fault
    num_ranks: int
    lost_work_s: float
    detection_s: float = 0.0
    repair_s: float = 0.0
    replan_s: float = 0.0
    restart_s: float = 0.0
    reload_s: float = 0.0
    repeated_s: float = 0.0

    @property
    def by_cause(self) -> dict[str, float]:
        """What was lost to each cause, s."""
        return {cause: getattr(self, name) for name, cause in CAUSES.items()}

    @property
    def recovery_s(self) -> float:
        """Time from the fault to the next attempt, s."""
        return sum(self.by_cause.values()) - self.lost_work_s

    def cut_short(self, seconds: float) -> Interruption:
        """Return the interruption whose recovery a further fault has ended after so many seconds."""
        left, spent = seconds, {}
        for name in CAUSES:
            if name != "lost_work_s":
                spent[name] = min(getattr(self, name), left)
                left -= spent[name]
        return replace(self, **spent)

    def __str__(self) -> str:
        """Say it in words."""
        parts = ", ".join(f"{cause} {duration(seconds)}" for cause, seconds in self.by_cause.items() if seconds)
        return f"rank {self.fault.rank} died at {duration(self.fault.at_s)}: {parts}; {self.num_ranks} ranks went on"


@final
@dataclass(frozen=True, repr=False)
class DisturbedRun(Run):
    """A step in which devices died.

    Args:
        interruptions: what each fault cost, in the order of time.
        undisturbed_step_time: what the step would have taken without faults, s.
        without_effect: faults of devices that no longer took part, or that came after the step's end.
    """

    interruptions: tuple[Interruption, ...] = ()
    undisturbed_step_time: float = 0.0
    without_effect: tuple[Fault, ...] = ()

    @property
    def notes(self) -> Sequence[str]:
        """What pictures say beside the figures."""
        lost = {cause: seconds for cause, seconds in self.lost_by_cause.items() if seconds}
        told = f"without faults {duration(self.undisturbed_step_time)}"
        if len(self.interruptions) > 1 or _FEWER_RANKS in lost:
            told += f"; lost in all: {', '.join(f'{cause} {duration(seconds)}' for cause, seconds in lost.items())}"
        return [*map(str, self.interruptions), told]

    @property
    def lost_by_cause(self) -> dict[str, float]:
        """What faults cost by cause, s; "fewer ranks" is the time by which a smaller job is slower."""
        if not self.interruptions:
            return {}
        found: dict[str, float] = {}
        for interruption in self.interruptions:
            for cause, seconds in interruption.by_cause.items():
                found[cause] = found.get(cause, 0.0) + seconds
        is_smaller = self.interruptions[-1].num_ranks < self.world_size
        slower = self.step_time - self.undisturbed_step_time - sum(found.values()) if is_smaller else 0.0
        return {**found, _FEWER_RANKS: max(slower, 0.0)}

    def summary(self) -> dict[str, Any]:
        """Return the run's figures, ready for JSON, and what faults cost."""
        return {
            **super().summary(),
            "undisturbed_step_time_s": self.undisturbed_step_time,
            "faults": [{"rank": each.fault.rank, "at_s": each.fault.at_s} for each in self.interruptions],
            "lost_by_cause_s": self.lost_by_cause,
        }


async def simulate_disturbed(
    simulate: Simulate, world_size: int, devices: Sequence[str], faults: Any, recovery: Recovery
) -> DisturbedRun:
    """Simulate a step until it is complete, however often devices die.

    Args:
        simulate: simulates the step on some of the devices.
        world_size: ranks of the job as it was planned.
        devices: hardware config or group of each rank's device.
        faults: a list of `Fault`, or a `FaultRate`.
        recovery: what happens then.

    Raises:
        UsageError: the strategy runs with no smaller number of ranks.
    """
    undisturbed = await simulate(range(world_size))
    if isinstance(faults, FaultRate):
        faults = faults.draw(devices, undisturbed.last_clock)
    step = _StepUnderFaults(simulate, world_size, recovery, undisturbed)
    for fault in sorted(faults, key=lambda fault: (fault.at_s, fault.rank)):
        await step.take(fault)
    return step.finished()


@final
class _StepUnderFaults:
    """A step under way, to which faults happen one after the other."""

    def __init__(self, simulate: Simulate, world_size: int, recovery: Recovery, run: Run) -> None:
        self.simulate, self.recovery = simulate, recovery
        self.whole, self.attempt = run, run
        self.ranks: list[int] = list(range(world_size))  # of the planned job, those that work at present
        self.spares = recovery.spares
        self.begin_s = 0.0  # of the present attempt
        self.logs: list[list[Event]] = [[] for _ in self.ranks]
        self.peaks = list(run.peak_memory_per_rank)
        self.interruptions: list[Interruption] = []
        self.without_effect: list[Fault] = []

    async def take(self, fault: Fault) -> None:
        """Let a device die."""
        done_s = fault.at_s - self.begin_s
        if done_s >= self.attempt.last_clock or fault.rank not in self.ranks:
            self.without_effect.append(fault)
            return
        if done_s >= 0:
            self._keep(finished_part(self.attempt, self.ranks.index(fault.rank), done_s, self.recovery.detection_s))
        else:
            last = self.interruptions[-1]
            self.interruptions[-1] = last.cut_short(fault.at_s - last.fault.at_s)
        await self._recover(fault, max(done_s, 0.0))

    async def _recover(self, fault: Fault, done_s: float) -> None:
        """Bring the job back after a death, and begin the next attempt."""
        how, repair_s, replan_s = self.recovery, 0.0, 0.0
        if self.spares:
            self.spares -= 1
        elif how.elastic:
            replan_s = how.replan_s
            left = [rank for rank in self.ranks if rank != fault.rank]
            self.attempt = await self.simulate(left)
            self.ranks = left[: self.attempt.world_size]
        else:
            repair_s = how.repair_s
        reload_s = checkpoint_of(self.attempt).read_s(how)
        times = how.detection_s, repair_s, replan_s, how.restart_s, reload_s, how.since_checkpoint_s
        self.interruptions.append(Interruption(fault, len(self.ranks), done_s, *times))
        self.begin_s = fault.at_s + self.interruptions[-1].recovery_s

    def _keep(self, logs: Sequence[Sequence[Event]]) -> None:
        """Keep what an attempt has finished, at its place on the clock of the step."""
        for rank, log in zip(self.ranks, logs, strict=True):
            kept = self.logs[rank]
            before = len(kept)
            kept.extend(_moved(event, rank, self.begin_s, before, self.ranks) for event in log)

    def finished(self) -> DisturbedRun:
        """Return the step, with the attempt that succeeded at its end."""
        self._keep(self.attempt.logs)
        for rank, peak in zip(self.ranks, self.attempt.peak_memory_per_rank, strict=True):
            self.peaks[rank] = max(self.peaks[rank], peak)
        outages = [Outage(each.fault.at_s, each.fault.at_s + each.recovery_s, str(each)) for each in self.interruptions]
        fields = {name: getattr(self.whole, name) for name in Run.__dataclass_fields__}
        own = {"logs": self.logs, "peak_memory_per_rank": self.peaks, "outages": outages, "prepared": None}
        return DisturbedRun(
            **(fields | own),
            interruptions=tuple(self.interruptions),
            undisturbed_step_time=self.whole.step_time,
            without_effect=tuple(self.without_effect),
        )


def finished_part(run: Run, dead: int, at_s: float, detection_s: float) -> list[list[Event]]:
    """Return the events of a step that come to an end before the ranks are stopped, one list a rank.

    Args:
        run: the step without faults.
        dead: the rank that dies.
        at_s: when, s.
        detection_s: how long the others go on after that, s.
    """
    line = run.timeline
    finished = finished_events(line, {dead}, at_s, at_s + detection_s)
    parts = np.split(finished, line.starts[1:-1])
    return [_kept(log, part) for log, part in zip(run.logs, parts, strict=True)]


def _kept(log: Sequence[Event], is_kept: Bools) -> list[Event]:
    """Return some events of a rank, which refer to one another by their new places."""
    places = np.append(0, np.cumsum(is_kept)).tolist()
    events = [event for event, kept in zip(log, is_kept.tolist(), strict=True) if kept]
    return [event if event.awaited is None else replace(event, awaited=places[event.awaited]) for event in events]


def _moved(event: Event, rank: int, by_s: float, places: int, ranks: Sequence[int]) -> Event:
    """Return an event of an attempt as one of the step: later, behind other events, of a rank of the planned job."""
    awaited = None if event.awaited is None else event.awaited + places
    launched = None if event.launched is None else event.launched + by_s
    waited_for = None if event.waited_for is None else ranks[event.waited_for]
    peer = None if event.peer is None else ranks[event.peer]
    group = None if event.group is None else tuple(ranks[member] for member in event.group)
    return replace(
        event,
        rank=rank,
        time=event.time + by_s,
        launched=launched,
        awaited=awaited,
        waited_for=waited_for,
        peer=peer,
        group=group,
    )
