"""Weeks of training with random failures: devices fail, the job recovers, and every second is counted by its cause.

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
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

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


@final
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


@final
@dataclass(slots=True)
class LongRun:
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

    def play(self) -> LongRun:
        """Play the run to its end."""
        self.spares = self.job.spares
        self._draw()
        while self.now_s < self.job.duration_s:
            if self._work() and self._write():
                self._grow()
            elif self.now_s < self.job.duration_s:
                self._recover()
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

    def _work(self) -> bool:
        """Work until the next checkpoint."""
        return self._spend(self.job.interval_s, None)

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
