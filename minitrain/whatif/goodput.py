"""`goodput`: how much of a long run is training, and where the rest of its time goes.

The step is simulated once; the run of days is then simulated many times with random failures.
*Goodput* is the share of the run's time that was training at full speed and was kept.
Work that failures undid does not count, nor what a job of fewer ranks did not do.

Weeks of training with random failures: devices fail, the job recovers, and every second is counted by its cause.

One sample is simulated from event to event. The job works for an interval and writes a checkpoint. A failure undoes the
work since the last complete checkpoint, and the job recovers; a failure during a recovery restarts it. Times between
failures are exponential, with the rate of the whole job, as in Daly (2006).

A checkpoint that is written beside the training costs the copy into host memory alone. It is complete when the writing
ends, and the next one waits for that.

With spares, a dead device is replaced at once as long as one is left; it comes back repaired, as a spare. Without one,
a job of fixed size waits for the first repair. An elastic job goes on at the next smaller size and returns to its full
size at the first checkpoint after the repair, for a restart and a reload.
"""

from __future__ import annotations

import heapq
import html
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minitrain.errors import UsageError, require_count, require_number, require_percent, typed, typed_methods
from minitrain.machine.device import mtbf_hours_of, require_devices, require_mtbf
from minitrain.operations import OFFLOAD, WRITE
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.analysis.timeline import as_timeline
from minitrain.run.event_loops import run_to_end
from minitrain.run.parameters import Recovery, require_recovery
from minitrain.run.rank_tasks import prepare
from minitrain.run.result import Run
from minitrain.run.simulation import GoodputKeywords, of_strategy, simulate_prepared
from minitrain.run.strategy_loading import Strategy
from minitrain.whatif import disturbed_run

WORK, WRITING, LOST, DETECTION, REPAIR, REPLANNING, RESTART, RELOAD, FEWER = (
    "training",
    "checkpoints",
    "lost work",
    "detection",
    "repair",
    "replanning",
    "restart",
    "reload",
    "fewer ranks",
)
CAUSES = (WORK, WRITING, LOST, DETECTION, REPAIR, REPLANNING, RESTART, RELOAD, FEWER)
"""What time goes to, in the order of reports; all but training is lost."""
_UNTIL_ALIKE = 4  # ends of checkpoints: the first may wait for none, the second holds no wait for the first


@dataclass(frozen=True, slots=True)
class Job:
    """The parameters of a long run, times in s.

    Args:
        duration_s: how long it runs.
        interval_s: of work between two checkpoints.
        block_s: how long a checkpoint stops the work.
        write_s: until it is whole, counted from the same moment.
        mtbf_s: mean time between failures of the job at full size.
        detection_s: until all ranks are stopped.
        restart_s: starting the processes.
        reload_s: reading a checkpoint.
        repair_s: until a dead device is back.
        replan_s: finding the layout of fewer ranks.
        spares: devices that stand by.
        speeds: speed of the job with 0, 1, ... devices missing, as a share of its full speed; (1,) for a fixed size.
    """

    duration_s: float
    interval_s: float
    block_s: float
    write_s: float
    mtbf_s: float
    detection_s: float
    restart_s: float
    reload_s: float
    repair_s: float
    replan_s: float = 0.0
    spares: int = 0
    speeds: Sequence[float] = (1.0,)


@dataclass(slots=True)
class SampledRun:
    """One sample as it goes on.

    Args:
        job: its parameters.
        chance: random numbers, for failures.

    Attributes:
        seconds: the time so far by cause, s.
        num_failures: how many there were.
    """

    job: Job
    chance: random.Random
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    num_failures: int = 0
    now_s: float = 0.0
    next_failure_s: float = 0.0
    missing: int = 0  # devices by which the job is short
    spares: int = 0
    repairs: list[float] = field(default_factory=list)  # when dead devices are back, a heap
    unsafe: dict[str, float] = field(default_factory=lambda: {WORK: 0.0, FEWER: 0.0})  # since the last whole checkpoint
    written: dict[str, float] = field(default_factory=dict)  # of that, what the checkpoint on its way holds
    whole_at_s: float | None = None  # when the checkpoint on its way is whole
    cycles: list[tuple[float, int, dict[str, float]]] = field(default_factory=list)  # ends of the last ones: `_repeat`

    def play(self) -> SampledRun:
        """Play the run to its end."""
        self.spares = self.job.spares
        self._draw()
        while self.now_s < self.job.duration_s:
            failures = self.num_failures
            if self._spend(self.job.interval_s, None) and self._write():
                self._grow()
            elif self.now_s < self.job.duration_s:
                self._recover()
            self._repeat(undisturbed=self.num_failures == failures)
        self._keep_written(self.now_s)
        self._settle(WORK, FEWER)
        return self

    def _draw(self) -> None:
        """Draw the next failure."""
        self.next_failure_s = self.now_s + self.chance.expovariate(1 / self.job.mtbf_s)

    def _spend(self, seconds: float, cause: str | None) -> bool:
        """Let time pass for a cause, or for work (None), and return whether nothing ended that early."""
        end = min(self.now_s + seconds, self.job.duration_s, self.next_failure_s)
        if cause is None:
            speed = self.job.speeds[self.missing]
            self.unsafe[WORK] += (end - self.now_s) * speed
            self.unsafe[FEWER] += (end - self.now_s) * (1 - speed)
        else:
            self.seconds[cause] += end - self.now_s
        comes_to_end = end == self.now_s + seconds
        self.now_s = end
        return comes_to_end

    def _write(self) -> bool:
        """Begin a checkpoint, once the one before is whole."""
        self._keep_written(self.now_s)
        if self.whole_at_s is not None:  # the work goes on until the storage has taken the last one
            if not self._spend(self.whole_at_s - self.now_s, None):
                return False
            self._keep_written(self.now_s)
        self.written, begin_s = dict(self.unsafe), self.now_s
        if not self._spend(self.job.block_s, WRITING):
            return False
        self.whole_at_s = begin_s + self.job.write_s
        self._keep_written(self.now_s)
        return True

    def _repeat(self, *, undisturbed: bool) -> None:
        """Let as many checkpoints pass at once as are like the last one, the third or later since a failure or repair.

        Each then begins where the one before did: the last checkpoint is as far on its way, and holds as much.
        """
        if not undisturbed or (self.cycles and self.cycles[-1][1] != self.missing):
            self.cycles.clear()
        self.cycles.append((self.now_s, self.missing, dict(self.seconds)))
        if len(self.cycles) < _UNTIL_ALIKE:
            return
        (begin_s, _, before), (end_s, _, after) = self.cycles[-2:]
        until_s = min(self.job.duration_s, self.next_failure_s, *(self.repairs[:1] if self.missing else ()))
        times = max(0, int((until_s - end_s) / (end_s - begin_s)) - 1)  # the last one is played: it may be cut short
        for cause in CAUSES:
            self.seconds[cause] += times * (after[cause] - before[cause])
        passed_s = times * (end_s - begin_s)
        self.now_s += passed_s
        if self.whole_at_s is not None:
            self.whole_at_s += passed_s
        self.cycles.clear()

    def _keep_written(self, now_s: float) -> None:
        """Count what a checkpoint holds as done, if it is whole by now."""
        if self.whole_at_s is not None and self.whole_at_s <= now_s:
            for cause, seconds in self.written.items():
                self.seconds[cause] += seconds
                self.unsafe[cause] -= seconds
            self.written, self.whole_at_s = {}, None

    def _settle(self, *causes: str) -> None:
        """Count the work that is in no checkpoint: as done at the run's end, otherwise as lost."""
        for cause, unsafe in zip(causes, self.unsafe, strict=True):
            self.seconds[cause] += self.unsafe[unsafe]
            self.unsafe[unsafe] = 0.0

    def _recover(self) -> None:
        """Recover from a failure, and from those that come during the recovery."""
        self._keep_written(self.now_s)
        self._settle(LOST, LOST)
        self.written, self.whole_at_s = {}, None
        while self.now_s < self.job.duration_s:
            self._fail()
            if self._come_back():
                return

    def _fail(self) -> None:
        """Let a device die."""
        self.num_failures += 1
        heapq.heappush(self.repairs, self.now_s + self.job.repair_s)
        self.missing += 1
        self._draw()

    def _come_back(self) -> bool:
        """Find devices, start, and reload; return False if a failure comes in between."""
        job = self.job
        if not self._spend(job.detection_s, DETECTION):
            return False
        self._take_repaired()
        while self.missing >= len(job.speeds):
            if not self._spend(self.repairs[0] - self.now_s, REPAIR):
                return False
            self._take_repaired()
        return (
            (not self.missing or self._spend(job.replan_s, REPLANNING))
            and self._spend(job.restart_s, RESTART)
            and self._spend(job.reload_s, RELOAD)
        )

    def _take_repaired(self) -> None:
        """Take devices that are back, and spares, into the job."""
        while self.repairs and self.repairs[0] <= self.now_s:
            heapq.heappop(self.repairs)
            self.spares += 1
        taken = min(self.spares, self.missing)
        self.spares -= taken
        self.missing -= taken

    def _grow(self) -> None:
        """After a checkpoint, let a job that is short take what is back."""
        before = self.missing
        self._take_repaired()
        if self.missing < before:
            ready = self._spend(self.job.restart_s, RESTART) and self._spend(self.job.reload_s, RELOAD)
            if not ready and self.now_s < self.job.duration_s:
                self._recover()


_DAY_S = 86_400
_SHOWN = 5e-5  # a smaller share would be printed as 0.00 %
_MOST_MISSING = 8  # sizes of an elastic job that are simulated
_MOST_FAILURES = 10**7  # in all samples, which take minutes


@typed_methods
@dataclass(frozen=True, eq=False)
class Goodput:
    """How much of a long run is training.

    Args:
        run: the step.
        job: what the long run was played with.
        checkpoint: its size.
        asynchronous: whether checkpoints are written beside the training.
        shares: of each sample, what share of the run's time went to each cause, (samples, len(CAUSES)).
        num_failures: of each sample, (samples,).
    """

    run: Run
    job: Job
    checkpoint: disturbed_run.Checkpoint
    asynchronous: bool
    shares: np.ndarray[Any, np.dtype[np.float64]] = field(repr=False)
    num_failures: np.ndarray[Any, np.dtype[np.int64]] = field(repr=False)

    @property
    def fraction(self) -> float:
        """Share of the run's time that was training at full speed and lasted, the mean of all samples, 0 to 1."""
        return float(self.shares[:, CAUSES.index(WORK)].mean())

    def percentile(self, percent: float) -> float:
        """Return the goodput that so many percent of the samples do not reach, 0 to 1."""
        require_percent(percent)
        return float(np.percentile(self.shares[:, CAUSES.index(WORK)], percent))

    @property
    def by_cause(self) -> dict[str, float]:
        """Share of the run's time that went to each cause, the mean of all samples; they add up to 1."""
        return dict(zip(CAUSES, self.shares.mean(axis=0).tolist(), strict=True))

    @property
    def checkpoint_interval_s(self) -> float:
        """Work between two checkpoints, s."""
        return self.job.interval_s

    @property
    def young_s(self) -> float:
        """The best interval by Young (1974), s."""
        return disturbed_run.young_s(self.job.block_s, self.job.mtbf_s)

    @property
    def daly_s(self) -> float:
        """The best interval by Daly (2006), s."""
        return disturbed_run.daly_s(self.job.block_s, self.job.mtbf_s)

    @property
    def num_steps(self) -> float:
        """Steps that are done in the run, the mean of all samples."""
        return self.fraction * self.job.duration_s / self.run.step_time

    def summary(self) -> dict[str, Any]:
        """Return the figures, ready for JSON."""
        return {
            "strategy": self.run.strategy,
            "world_size": self.run.world_size,
            "hardware": self.run.hardware,
            "step_time_s": self.run.step_time,
            "duration_s": self.job.duration_s,
            "goodput": self.fraction,
            "goodput_p10": self.percentile(10),
            "goodput_p90": self.percentile(90),
            "num_steps": self.num_steps,
            "failures": float(self.num_failures.mean()),
            "mtbf_s": self.job.mtbf_s,
            "checkpoint_bytes": self.checkpoint.size_bytes,
            "checkpoint_interval_s": self.checkpoint_interval_s,
            "young_interval_s": self.young_s,
            "daly_interval_s": self.daly_s,
            "share_by_cause": self.by_cause,
        }

    def __str__(self) -> str:
        """Say it in words."""
        job, spread = self.job, f"P10 {self.percentile(10):.1%}, P90 {self.percentile(90):.1%}"
        written = "beside the training" if self.asynchronous else "while the training waits"
        lines = [
            f"{self.run.strategy} on {self.run.world_size} ranks of {self.run.hardware} for "
            f"{job.duration_s / _DAY_S:.4g} days: goodput {self.fraction:.1%} ({spread}), {self.num_steps:,.0f} steps",
            f"  a failure every {duration(job.mtbf_s)}, {self.num_failures.mean():.1f} in all",
            f"  a checkpoint of {self.checkpoint.size_bytes / GIB:.4g} GiB every {duration(job.interval_s)}, written "
            f"in {duration(job.write_s)} {written} (Young {duration(self.young_s)}, Daly {duration(self.daly_s)})",
        ]
        lost = {cause: share for cause, share in self.by_cause.items() if cause != WORK and share >= _SHOWN}
        ordered = sorted(lost.items(), key=lambda item: -item[1])
        return "\n".join([*lines, *(f"  {cause:<12}{share:7.2%}" for cause, share in ordered)])

    def __repr__(self) -> str:
        return f"<Goodput {self.fraction:.1%}: {self.run.strategy}, {self.run.world_size} ranks>"

    def _repr_html_(self) -> str:
        """Show the figures in a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"


@of_strategy(GoodputKeywords)
@typed
def goodput(
    strategy: str | Strategy,
    *,
    days: float = 30.0,
    checkpoint_interval_s: float | None = None,
    checkpoint_bytes: float | None = None,
    asynchronous: bool = False,
    saving: Mapping[str, Any] | None = None,
    mtbf_hours: float | Mapping[str, float] | None = None,
    samples: int = 200,
    seed: int = 0,
    **parameters: Any,
) -> Goodput:
    """Simulate a step, and play days of it with failures, checkpoints and restarts.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function".
        days: how long the run lasts.
        checkpoint_interval_s: work between two checkpoints, s; the best by Daly (2006) if None.
        checkpoint_bytes: size of a checkpoint; what the ranks' weights and optimizer states take if None.
        asynchronous: write checkpoints beside the training; it waits only for the copy into host memory.
        saving: options with which the strategy writes a checkpoint in its run, by `model.offload` and `model.write`.
            Both runs are simulated: what saving adds to the step time is how long a checkpoint stops the training, and
            it is whole as long after its first copy as there. Formulas say both if None.
        mtbf_hours: mean time between failures of a device, hours, for all or by hardware config, group of a cluster, or
            family; the published one of its family if None (see `minitrain.machine.device`).
        samples: how many runs to play.
        seed: the same seed gives the same samples.
        parameters: those of `simulate`, and the strategy's own options; `recovery` says what happens after a failure.

    Returns:
        Goodput, and what was lost by cause.

    Raises:
        UsageError: a parameter is outside its rule, or it is not known how often a device fails.
        MinitrainError: of the kind that says what went wrong in the strategy.
    """
    _require(days, checkpoint_interval_s, checkpoint_bytes)
    if saving is not None and (checkpoint_bytes is not None or not isinstance(saving, Mapping)):
        raise UsageError(
            "saving must be options with which the strategy writes a checkpoint, whose size it then has, got "
            f"{saving!r:.80}{'' if checkpoint_bytes is None else '; leave checkpoint_bytes out'}"
        )
    require_count("samples", samples)
    require_count("seed", seed, 0)
    require_mtbf(mtbf_hours)
    if parameters.get("faults"):
        raise UsageError("goodput draws its faults by mtbf_hours; leave faults out")
    require_recovery(parameters.get("recovery"))
    recovery = parameters.pop("recovery", None) or Recovery()
    prepared = prepare(strategy, parameters)
    devices = disturbed_run.devices_of(prepared)
    require_devices(mtbf_hours, devices)
    hours = [mtbf_hours_of(device, mtbf_hours) for device in devices]
    _require_playable(days, samples, disturbed_run.mtbf_of_all_s(hours))
    run = run_to_end(lambda: simulate_prepared(prepared), None)
    written = disturbed_run.checkpoint_of(run)
    if checkpoint_bytes is not None:
        written = written.of_size(checkpoint_bytes)
    speeds: tuple[float, ...] = (1.0,)
    if recovery.elastic:
        steps = run_to_end(lambda: disturbed_run.smaller_steps(prepared, simulate_prepared, _MOST_MISSING), None)
        speeds = (1.0, *(run.step_time / step for step in steps))
    write_s = written.write_s(recovery)
    block_s = min(written.snapshot_s(recovery), write_s) if asynchronous else write_s
    if saving is not None:
        saved = run_to_end(lambda: simulate_prepared(prepare(strategy, parameters | dict(saving))), None)
        size_bytes, write_s = _written_in(saved)
        block_s, written, asynchronous = max(0.0, saved.step_time - run.step_time), written.of_size(size_bytes), True
    job = _job(
        days, checkpoint_interval_s, written, (block_s, write_s), disturbed_run.mtbf_of_all_s(hours), recovery, speeds
    )
    played = [SampledRun(job, random.Random(f"{seed} {sample}")).play() for sample in range(samples)]
    shares = np.array([[each.seconds[cause] for cause in CAUSES] for each in played]) / job.duration_s
    return Goodput(run, job, written, asynchronous, shares, np.array([each.num_failures for each in played]))


def _written_in(run: Run) -> tuple[float, float]:
    """Return the bytes that ranks write in a run, and the time from the first copy to the end of the last write, s."""
    line = as_timeline(run.logs)
    writes = line.of_types((WRITE,))
    if not writes.any():
        raise UsageError(
            f"saving: {run.strategy} writes no checkpoint with these options; let it `await model.write(...)` what it "
            "has offloaded"
        )
    begin = line.time[line.of_types((OFFLOAD,))].min()
    return float(line.size_bytes[writes].sum()), float(line.end[writes].max() - begin)


def _job(
    days: float,
    interval_s: float | None,
    written: disturbed_run.Checkpoint,
    times: tuple[float, float],
    mtbf_s: float,
    recovery: Recovery,
    speeds: Sequence[float],
) -> Job:
    """Return the parameters of the long run."""
    block_s, write_s = times[0], max(times)
    return Job(
        duration_s=days * _DAY_S,
        interval_s=(disturbed_run.daly_s(block_s, mtbf_s) or write_s) if interval_s is None else interval_s,
        block_s=block_s,
        write_s=write_s,
        mtbf_s=mtbf_s,
        detection_s=recovery.detection_s,
        restart_s=recovery.restart_s,
        reload_s=written.read_s(recovery),
        repair_s=recovery.repair_s,
        replan_s=recovery.replan_s,
        spares=recovery.spares,
        speeds=speeds,
    )


def _require(days: float, interval_s: float | None, checkpoint_bytes: float | None) -> None:
    """Require that sizes of a long run are positive numbers."""
    given = {"days": days, "checkpoint_interval_s": interval_s, "checkpoint_bytes": checkpoint_bytes}
    for name, value in given.items():
        if value is not None or name == "days":
            require_number(name, value)


def _require_playable(days: float, samples: int, mtbf_s: float) -> None:
    """Require that the failures of all samples can be played; of longer runs the shares are the same."""
    num_failures = days * _DAY_S / mtbf_s * samples
    if num_failures > _MOST_FAILURES:
        raise UsageError(
            f"days ({days:g}) have {num_failures:.2g} failures in {samples} samples, and at most {_MOST_FAILURES:.0e} "
            f"are played; use days={0.9 * days * _MOST_FAILURES / num_failures:.2g}, whose shares are alike, or fewer "
            "samples"
        )
