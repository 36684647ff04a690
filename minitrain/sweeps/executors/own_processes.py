"""A sweep's own processes: one that is lost is replaced, and its task is repeated.

Each is a pool of one process, so that the task of a lost process is known, and no other task is lost with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from minitrain.errors import MinitrainError
from minitrain.run.worker_processes import worker_pool
from minitrain.sweeps.executors.lossy_workers import LossyWorkers, SentTask

_MOST_LOSSES = 2  # one may be bad luck
_MOST_FAILED_STARTS = 3


@final
@dataclass(eq=False, slots=True)
class _Process:
    """A process, which may have ended.

    Args:
        pool: of this process alone.
        start: done when the process works.
    """

    pool: ProcessPoolExecutor
    start: Future[None]


@final
class OwnProcesses(LossyWorkers):
    """Processes of this machine.

    Args:
        num_processes: how many; each is started when there is work for it.
    """

    def __init__(self, num_processes: int) -> None:
        super().__init__(2 * num_processes, _MOST_LOSSES)
        self._num_missing = num_processes
        self._processes: list[_Process] = []  # the lost ones too: a pool must not be dropped in a thread of its own
        self._idle: list[_Process] = []
        self._waiting: deque[SentTask] = deque()
        self._num_failed_starts = 0  # one after the other

    def _call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        return function, *arguments

    def _send(self, task: SentTask) -> None:
        with self._lock:
            self._waiting.append(task)
        self._begin()

    def _end(self, tasks: Sequence[SentTask]) -> None:  # noqa: ARG002  (all of them)
        with self._lock:
            self._waiting.clear()
        with ThreadPoolExecutor(max(1, len(self._processes))) as threads:  # a process takes a moment to end
            list(threads.map(lambda process: process.pool.shutdown(cancel_futures=True), self._processes))

    def _begin(self) -> None:
        """Give waiting tasks to idle processes."""
        while (given := self._next()) is not None:
            task, process = given
            try:
                done = process.pool.submit(*task.call)
            except BrokenExecutor:
                self._replace(process, task, was_at_work=False)
            else:
                done.add_done_callback(partial(self._take, task, process))

    def _next(self) -> tuple[SentTask, _Process] | None:
        """Return a waiting task and an idle process, if there are both."""
        with self._lock:
            if not self._waiting or not (self._idle or self._num_missing):
                return None
            if not self._idle:
                self._num_missing -= 1
                self._idle.append(_started())
                self._processes.append(self._idle[-1])
            return self._waiting.popleft(), self._idle.pop()

    def _take(self, task: SentTask, process: _Process, done: Future[Any]) -> None:
        """Take the outcome of a task, in the thread of its pool."""
        if done.cancelled() or not self._is_wanted(task):
            return
        error = done.exception()
        if isinstance(error, BrokenExecutor):
            self._replace(process, task, was_at_work=True)
            self._begin()
            return
        with self._lock:
            self._num_failed_starts = 0
            self._idle.append(process)
        self._begin()
        if error is None:
            self._succeeded(task, done.result())
        else:
            self._failed(task, error)

    def _replace(self, process: _Process, task: SentTask, *, was_at_work: bool) -> None:
        """Replace a lost process, and repeat its task unless that has lost too many."""
        if process.start.exception() is None:
            is_wanted = not was_at_work or self._lost(task)
        elif self._is_last_start():
            self._failed(task, MinitrainError(_NO_START))
            return
        else:
            is_wanted = True
        with self._lock:
            self._num_missing += 1
            if is_wanted:
                self._waiting.appendleft(task)

    def _is_last_start(self) -> bool:
        """Note that a process ended before it could do anything, and return whether no other one is tried."""
        with self._lock:
            self._num_failed_starts += 1
            return self._num_failed_starts >= _MOST_FAILED_STARTS


def _started() -> _Process:
    """Start a process."""
    pool = worker_pool(1)
    return _Process(pool, pool.submit(_do_nothing))


def _do_nothing() -> None:
    """Show that this process works."""


_NO_START = (
    "the worker processes end before they can do anything (killed, or out of the machine's own memory?); a script that "
    "sweeps needs `if __name__ == '__main__':`"
)
