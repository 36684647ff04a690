"""A step in which devices die: what was done, what was lost, and how long it takes until the step is complete.

Time is one clock from the beginning of the step. An attempt begins; a device dies; the others are stopped once it is
noticed (`Recovery.detection_s`). A spare takes the place of the dead device; or the job goes on with fewer ranks; or it
waits for the repair. The processes start again, read the last checkpoint, repeat the steps finished since then, and
begin the step again. A fault during a recovery restarts the recovery.

The logs of the run hold what was finished of every attempt, so that its picture, its bubble and its MFU are those of
the disturbed step. The time of a recovery counts as waiting.

A smaller job keeps the global batch. It has the most ranks with which the strategy runs, on the devices that are left,
in their order.

Checkpoints: how many bytes one has, how long it takes to write and to read, and how often to write it.

A checkpoint holds the weights that are trained and optimizer states, each shard once, however many ranks keep a copy.
All nodes write at the same time, evenly, and every rank reads what it holds, frozen weights too. The slower of the
storage and the busiest node sets the time.

How often: writing one costs delta seconds, and failures come every M seconds on average. Young (1974) finds the
interval that wastes least, sqrt(2 delta M), and Daly (2006, equation 37) the next terms of the series:

    sqrt(2 delta M) (1 + 1/3 sqrt(delta / 2M) + 1/9 (delta / 2M)) - delta    for delta < 2M, and M beyond.

What every rank still finishes of a step in which devices die, as a part of its log.

A dead rank does nothing that would end after its death. What waits for it waits for ever: a collective that it has not
finished, a message that it has not sent or taken. The other ranks go on until they wait for such an operation, or are
stopped. So the run is timed again with infinite durations on the dead ranks, and cut at the stop. What happens before
a death does not depend on it.

A send whose message nobody has taken is lost with it. Left out: what a library does with a collective that is half
done; it is lost for all of its ranks.

The step on the devices that are left: the same parameters with fewer ranks, each on the node that it was on.

The batch stays as it is. Where it does not divide equally among the ranks that are left, strategies that ask for shares
get nearly equal ones. In a cluster of unlike devices the dead device is left out, so that prices are those of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum
from types import MappingProxyType
from typing import Any

import numpy as np

from minitrain.engine.semantics import Shares
from minitrain.errors import MinitrainError, UsageError
from minitrain.machine.price import Account, RankPredictors, predictor_of
from minitrain.operations import Event, Outage
from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.retiming import first_events, make_graph, retimed_events
from minitrain.run.analysis.timeline import NONE, Bools, Timeline
from minitrain.run.parameters import Fault, FaultRate, Recovery
from minitrain.run.rank_tasks import PreparedRun
from minitrain.run.result import Run
from minitrain.run.strategy_loading import stands_for
from minitrain.tensors import Weight

KEPT = ("weights", "opt_states")
"""The stores that a checkpoint holds."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The size of a checkpoint, and who reads and writes it.

    Args:
        size_bytes: each shard once.
        read_bytes: what all ranks read together, a copy for each that keeps one.
        largest_bytes: what the rank with the most reads.
        num_nodes: nodes that the ranks are on.
        ranks_a_node: the most ranks of a node.
    """

    size_bytes: float
    read_bytes: float
    largest_bytes: float
    num_nodes: int
    ranks_a_node: int

    def of_size(self, size_bytes: float) -> Checkpoint:
        """Return a checkpoint of another size, which is read and written by the same ranks in the same parts."""
        factor = size_bytes / self.size_bytes
        return replace(
            self, size_bytes=size_bytes, read_bytes=self.read_bytes * factor, largest_bytes=self.largest_bytes * factor
        )

    def write_s(self, recovery: Recovery) -> float:
        """Return how long writing it takes, s."""
        of_a_node = self.size_bytes / self.num_nodes
        return max(self.size_bytes / recovery.storage_bytes_per_s, of_a_node / recovery.node_bytes_per_s)

    def read_s(self, recovery: Recovery) -> float:
        """Return how long it takes until every rank has its part of it, s."""
        of_a_node = self.largest_bytes * self.ranks_a_node
        return max(self.read_bytes / recovery.storage_bytes_per_s, of_a_node / recovery.node_bytes_per_s)

    def snapshot_s(self, recovery: Recovery) -> float:
        """Return how long the devices take to copy it into the memory of their hosts, s."""
        share = self.size_bytes / (self.num_nodes * self.ranks_a_node)
        return share / recovery.snapshot_bytes_per_s


def checkpoint_of(run: Run) -> Checkpoint:
    """Return the checkpoint that the ranks of a finished run would write.

    Raises:
        UsageError: the run was read from a file, which does not keep what ranks hold.
    """
    models = run.class_models
    if not models:
        raise UsageError(f"the run of {run.strategy} does not keep what its ranks hold; simulate it, do not load it")
    workload = models[0].runtime_predictor.workload
    elements_of = models[0]._account.measure
    held = [[tensor for name in KEPT for tensor in getattr(model, name).values()] for model in models]
    sizes = [sum(map(elements_of, tensors)) * run.bytes_per_element for tensors in held]
    different = {(type(tensor), tensor.layer): tensor for tensors in held for tensor in tensors}
    trained: Any = getattr(workload, "trained_share", lambda _: 1.0)  # what is frozen is written by nobody
    whole = sum(
        elements_of(tensor) * _times_in_whole(tensor) * (trained(tensor) if isinstance(tensor, Weight) else 1)
        for tensor in different.values()
    )
    ranks_a_node = -(-run.world_size // run.num_nodes)
    read_bytes = fsum(size for size in sizes for _ in range(run.num_ranks_a_class))
    return Checkpoint(whole * run.bytes_per_element, read_bytes, max(sizes), run.num_nodes, ranks_a_node)


def _times_in_whole(tensor: Any) -> float:
    """Return how many times as large a tensor is with all of its shards and parts."""
    shards: float = tensor.num_shards / len(tensor.shards)
    return shards * getattr(tensor, "num_parts", 1) / len(getattr(tensor, "parts", (0,)))


def young_s(write_s: float, mtbf_s: float) -> float:
    """Return the interval between checkpoints that wastes least, by Young (1974), s.

    >>> round(young_s(60, 30_000), 3)
    1897.367
    """
    return math.sqrt(2 * write_s * mtbf_s)


def daly_s(write_s: float, mtbf_s: float) -> float:
    """Return the interval between checkpoints that wastes least, by Daly (2006), s.

    >>> round(daly_s(60, 30_000), 3)
    1857.577
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    share = write_s / (2 * mtbf_s)
    return young_s(write_s, mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - write_s


def mtbf_of_all_s(mtbf_hours: Iterable[float]) -> float:
    """Return the mean time between failures of a job, s, from those of its devices, hours: their rates add up."""
    return 3600 / sum(1 / hours for hours in mtbf_hours)


def finished_events(timeline: Timeline, dead: Collection[int], at_s: float, stop_s: float) -> Bools:
    """Return which events come to an end in a step that devices' deaths stop.

    Args:
        timeline: the step as it is without faults.
        dead: the ranks that die.
        at_s: when they die, s.
        stop_s: when all others are stopped, s.

    Returns:
        One truth value an event, (num_events,). Of a collective all events have the same, and of a message both.
    """
    lost = np.isin(timeline.rank, list(dead)) & (timeline.end > at_s)
    lost = _with_partners(timeline, lost)
    duration = np.where(lost, np.inf, timeline.duration)
    end = retimed_events(make_graph(timeline), duration)[1] + duration  # infinity for what never comes to an end
    return ~_with_partners(timeline, ~(end <= stop_s))


def _with_partners(timeline: Timeline, lost: Bools) -> Bools:
    """Return what is lost together with some events: all of a collective, and both ends of a message."""
    first = first_events(timeline)
    of_first = np.zeros_like(lost)
    np.logical_or.at(of_first, first, lost)
    found: Bools = of_first[first]
    return found


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


@dataclass(frozen=True, repr=False)
class DisturbedRun(Run):
    """A step in which devices died.

    Args:
        interruptions: what each fault cost, in the order of time.
        undisturbed_step_time: what the step would have taken without faults, s.
        without_effect: faults of devices that no longer took part, or that came after the step's end.
        attempts: the steps without faults that its parts are of.
    """

    interruptions: tuple[Interruption, ...] = ()
    undisturbed_step_time: float = 0.0
    without_effect: tuple[Fault, ...] = ()
    attempts: tuple[Run, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def timeline(self) -> Timeline:
        """The event logs as columns, with the attempts' prices: an operation's is that of an equal one."""
        line, known = super().timeline, dict[Any, Any]()
        for attempt in (each.timeline for each in self.attempts):
            prices = zip(_operations(attempt), attempt.price.tolist(), strict=True)
            known |= {operation: attempt.prices[code] for operation, code in prices if code != NONE}
        found = [known.get(operation) for operation in _operations(line)]
        distinct = {id(price): price for price in found if price is not None}
        place = {key: code for code, key in enumerate(distinct)}
        codes = np.array([place.get(id(price), NONE) for price in found], np.int64)
        return replace(line, price=codes, prices=tuple(distinct.values()))

    def accounts_of_prices(self) -> Mapping[int, Callable[[], Account]]:
        """Return what explains the prices of its attempts, by the price's id."""
        return {key: account for each in self.attempts for key, account in each.accounts_of_prices().items()}

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


class _StepUnderFaults:
    """A step under way, to which faults happen one after the other."""

    def __init__(self, simulate: Simulate, world_size: int, recovery: Recovery, run: Run) -> None:
        self.simulate, self.recovery = simulate, recovery
        self.whole, self.attempt, self.attempts = run, run, [run]
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
            self.attempts.append(self.attempt)
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
            attempts=tuple(self.attempts),
        )


def _operations(line: Timeline) -> Iterator[tuple[Any, ...]]:
    """Yield of each event what its price depends on, as far as another of the same of it has the same price."""
    typs = map(line.typs.__getitem__, line.typ.tolist())
    return zip(
        typs,
        *(column.tolist() for column in (line.layer, line.duration, line.size_bytes, line.recomputed)),
        strict=True,
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
    return [_at_places(event, places) for event in events]


def _at_places(event: Event, places: Sequence[int]) -> Event:
    """Return an event that refers to others by the new places of these."""
    awaited = None if event.awaited is None else places[event.awaited]
    after = tuple(places[index] for index in event.after)
    return replace(event, awaited=awaited, after=after) if awaited != event.awaited or after else event


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
        after=tuple(index + places for index in event.after),
        waited_for=waited_for,
        peer=peer,
        group=group,
    )


SimulatePrepared = Callable[[PreparedRun], Awaitable[Run]]


async def simulate_with_faults(prepared: PreparedRun, simulate: SimulatePrepared) -> DisturbedRun:
    """Simulate a step whose parameters have faults.

    Args:
        prepared: the run that was asked for.
        simulate: simulates a prepared run without faults.

    Raises:
        UsageError: the job is to go on with fewer ranks, and the strategy runs with no smaller number.
    """
    parameters = prepared.parameters
    faults, recovery = parameters.faults, parameters.recovery or Recovery()
    if recovery.elastic and (
        isinstance(parameters.hardware, RankPredictors) or hasattr(parameters.hardware, "compute")
    ):
        raise UsageError(
            "a smaller job needs new prices, and a predictor is for one number of ranks; name the hardware, or use "
            "elastic=False",
            hardware=parameters.hardware,
        )
    whole = replace(prepared, parameters=replace(parameters, faults=(), recovery=None))

    async def simulate_on(ranks: Sequence[int]) -> Run:
        return await largest_step(whole, ranks, simulate)

    return await simulate_disturbed(simulate_on, parameters.world_size, devices_of(prepared), faults, recovery)


def devices_of(prepared: PreparedRun) -> list[str]:
    """Return the hardware config of each rank's device, or its group in a cluster."""
    named = prepared.predictor.devices if isinstance(prepared.predictor, RankPredictors) else ()
    return list(named) or [prepared.hardware_name] * prepared.parameters.world_size


async def step_on(prepared: PreparedRun, ranks: Sequence[int], simulate: SimulatePrepared) -> Run:
    """Simulate a step on the devices of some ranks of a job.

    Args:
        prepared: the whole job.
        ranks: those whose devices work, in order.
        simulate: simulates a prepared run.

    Raises:
        MinitrainError: the strategy does not run with so many ranks, with equal shares or nearly equal ones.
    """
    if len(ranks) == prepared.parameters.world_size:
        return await simulate(prepared)
    try:
        return await simulate(_smaller(prepared, ranks))
    except MinitrainError:
        whole, rest = divmod(prepared.parameters.global_batch_size, len(ranks))
        if not rest or not whole:
            raise
        samples = [whole + (place < rest) for place in range(len(ranks))]
        return await simulate(_smaller(prepared, ranks, Shares(samples=samples)))


async def smaller_steps(prepared: PreparedRun, simulate: SimulatePrepared, most_missing: int) -> list[float]:
    """Return the step time of the job with 1, 2, ... devices missing, s, as far as the strategy runs.

    With each number of devices missing, the job has the most ranks with which the strategy runs. The last ranks are
    taken to be those that are missing.
    """
    world_size, found = prepared.parameters.world_size, []
    size = world_size
    for missing in range(1, min(most_missing, world_size - 1) + 1):
        if size > world_size - missing:
            try:
                run = await largest_step(prepared, range(world_size - missing), simulate)
            except MinitrainError:
                break
            size = run.world_size
        found.append(run.step_time)
    return found


async def largest_step(prepared: PreparedRun, ranks: Sequence[int], simulate: SimulatePrepared) -> Run:
    """Simulate a step on as many of some ranks' devices as the strategy runs with.

    Raises:
        UsageError: it runs with none of these sizes.
    """
    reason: MinitrainError | None = None
    for size in range(len(ranks), 0, -1):
        try:
            return await step_on(prepared, ranks[:size], simulate)
        except MinitrainError as error:
            reason = reason or error
    raise UsageError(
        f"{prepared.name} runs with no smaller number of ranks than {len(ranks) + 1}, so that it cannot go on without "
        "one; use a strategy that takes other sizes, spares, or elastic=False"
    ) from reason


def _smaller(prepared: PreparedRun, ranks: Sequence[int], shares: Shares | None = None) -> PreparedRun:
    """Return the job on the devices of some of its ranks."""
    old = prepared.parameters
    changes: dict[str, Any] = {"world_size": len(ranks), "shares": shares}
    nodes = nodes_of(prepared)
    if nodes is not None:
        changes |= {"placement": [nodes[rank] for rank in ranks], "network": "auto"}  # a node may have lost devices
    if old.slowdown:
        changes["slowdown"] = {place: old.slowdown[rank] for place, rank in enumerate(ranks) if rank in old.slowdown}
    parameters = replace(old, **changes)
    found = stands_for(prepared.function, prepared.options, len(ranks))
    return replace(prepared, parameters=parameters, predictor=parameters.predictor(found))


def nodes_of(prepared: PreparedRun) -> Sequence[int] | None:
    """Return the node of each rank, or None where one tier connects all ranks."""
    topology: Any = getattr(predictor_of(prepared.predictor, 0), "topology", None)
    if hasattr(topology, "places"):  # of a cluster
        return tuple(topology.places.nodes)
    if not hasattr(topology, "node"):
        return None
    return [topology.node(rank) for rank in range(prepared.parameters.world_size)]
