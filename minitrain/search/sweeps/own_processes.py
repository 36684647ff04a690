"""A sweep's own processes: one that is lost is replaced, and its task is repeated.

Workers that may be lost: their tasks are repeated, and a warning says so once.

A time limit for a call: it interrupts what hangs in Python, or waits in its event loop.

In the main thread of a process an alarm interrupts whatever Python does, sleeping too. In another thread (a worker of
Dask) Python raises an exception there when the next line runs; an event loop that waits is woken for that. A library's
call that never comes back to Python cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import ctypes
import pickle
import signal
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from minitrain.engine.event_loop import RankLoop
from minitrain.errors import MinitrainError, require_number
from minitrain.run.event_loops import run_to_end
from minitrain.run.worker_processes import Outcome, WorkerEndedError, WorkerProcesses


class LostWorkersWarning(RuntimeWarning):
    """Workers were lost, and their tasks are repeated; a sweep warns once of each kind of loss."""


class WorkerLostError(MinitrainError):
    """Every worker that began a task was lost, for which the task may be the cause."""


@dataclass(eq=False, slots=True)
class SentTask:
    """A task that was given to workers.

    Args:
        call: what they do, as they take it.
        future: what its caller waits for.
        handle: the engine's own future of it.
        num_losses: how many workers were lost while they did it.
    """

    call: Any
    future: Future[Any]
    handle: Any = None
    num_losses: int = 0


@dataclass(slots=True)
class _Warnings:
    """Warnings, each of which is given once."""

    given: set[str] = field(default_factory=set)
    pending: list[str] = field(default_factory=list)


class LossyWorkers(Executor):
    """Workers that may be lost, as an executor.

    Args:
        num_at_once: how many tasks are worth submitting at once.
        most_losses: a task whose worker is lost so often is not begun again.
    """

    def __init__(self, num_at_once: int, most_losses: int) -> None:
        self.num_at_once = num_at_once
        self._most_losses = most_losses
        self._lock = threading.Lock()
        self._tasks: set[SentTask] = set()
        self._warnings = _Warnings()

    @abstractmethod
    def _call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return a call as these workers take it."""

    @abstractmethod
    def _send(self, task: SentTask) -> None:
        """Give a task to the workers, and have `_succeeded`, `_failed` or `_lost` called when it is over."""

    @abstractmethod
    def _end(self, tasks: Sequence[SentTask]) -> None:
        """Have the workers forget tasks, and end what was begun for them."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a call, and return the future of its result."""
        assert not kwargs  # tasks are calls by position
        self._warn()
        task = SentTask(self._call(fn, args), Future())
        with self._lock:
            self._tasks.add(task)
        self._send(task)
        return task.future

    def first_done(self, futures: Collection[Future[Any]]) -> Collection[Future[Any]]:
        """Wait until some of these futures are done, and return them."""
        return wait(futures, return_when=FIRST_COMPLETED).done

    def close(self) -> None:
        """Cancel what is not done, and give the warnings that are pending."""
        with self._lock:
            tasks = list(self._tasks)
            self._tasks.clear()
        for task in tasks:
            task.future.cancel()
        self._end(tasks)
        self._warn()

    def _succeeded(self, task: SentTask, result: Any) -> None:
        """Hand a task's result to its caller."""
        self._forget(task)
        with suppress(InvalidStateError):  # it was cancelled
            task.future.set_result(result)

    def _failed(self, task: SentTask, error: BaseException) -> None:
        """Hand a task's error to its caller."""
        self._forget(task)
        with suppress(InvalidStateError):
            task.future.set_exception(error)

    def _lost(self, task: SentTask) -> bool:
        """Note that the worker of a task was lost, and return whether the task must be sent again."""
        self._note_loss()
        task.num_losses += 1
        if task.num_losses >= self._most_losses:
            self._failed(task, WorkerLostError("every worker that simulated this was lost: it may end its process"))
        return self._is_wanted(task)

    def _is_wanted(self, task: SentTask) -> bool:
        """Return whether a task is neither done nor cancelled."""
        with self._lock:
            return task in self._tasks

    def _forget(self, task: SentTask) -> None:
        with self._lock:
            self._tasks.discard(task)

    def _note_loss(self) -> None:
        """Warn that a worker was lost."""
        self._note("a worker was lost (killed, or out of the machine's own memory?); what it was doing is done again")

    def _note(self, text: str) -> None:
        """Give a warning once, from the thread that submits tasks."""
        with self._lock:
            if text not in self._warnings.given:
                self._warnings.given.add(text)
                self._warnings.pending.append(text)

    def _warn(self) -> None:
        with self._lock:
            texts, self._warnings.pending = self._warnings.pending, []
        for text in texts:
            warnings.warn(text, LostWorkersWarning, stacklevel=3)


_MOST_LOSSES = 2  # one may be bad luck


class OwnProcesses(LossyWorkers):
    """Processes of this machine. They are used from one thread, whose waiting keeps them at work.

    Args:
        num_processes: how many; each is started when there is work for it.
    """

    def __init__(self, num_processes: int) -> None:
        super().__init__(2 * num_processes, _MOST_LOSSES)
        self._processes = WorkerProcesses(num_processes)

    def first_done(self, futures: Collection[Future[Any]]) -> Collection[Future[Any]]:
        """Wait until some of these futures are done, and return them; meanwhile keep the processes at work."""
        while not (done := [future for future in futures if future.done()]):
            for task, outcome in self._processes.next_outcomes():
                if self._is_wanted(task):
                    self._take(task, outcome)
        return done

    def _call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        return function, *arguments

    def _send(self, task: SentTask) -> None:
        try:
            self._processes.begin(task, *task.call)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            self._failed(task, error)

    def _end(self, tasks: Sequence[SentTask]) -> None:  # noqa: ARG002  (all of them)
        self._processes.close()

    def _take(self, task: SentTask, outcome: Outcome) -> None:
        """Take the outcome of a task; repeat one whose process was lost, unless it has lost too many."""
        if outcome.error is None:
            self._succeeded(task, outcome.result)
        elif not isinstance(outcome.error, WorkerEndedError) or not outcome.is_begun:
            self._failed(task, outcome.error)
        elif self._lost(task):
            self._send(task)


T = TypeVar("T")

_AGAIN_S = 1.0  # after which the exception is raised again, in case the strategy caught it
_AWAKE_S = 0.25  # how often an event loop wakes up, and so how late a limit may act


class TimeLimitError(MinitrainError):
    """A simulation took longer than it may."""


class _OverTimeError(KeyboardInterrupt):
    """The time is over; it is a KeyboardInterrupt, so that a simulation ends as on Ctrl-C, whatever it does."""


def require_time_limit(seconds: float | None) -> None:
    """Require a positive number of seconds, or None.

    Raises:
        UsageError: it is no positive number.
    """
    if seconds is not None:
        require_number("time_limit_s", seconds, " of seconds")


def run_within(seconds: float, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end in a loop of its own, and return its result.

    Args:
        seconds: how long it may take, s.
        start: makes the coroutine.

    Raises:
        TimeLimitError: it took longer.
    """
    is_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    limit = min(seconds, 1e9)  # timers take no more
    alarm = _Alarm(limit) if is_main else _Timer(limit)
    try:
        try:
            return run_to_end(lambda: _awake(start))
        finally:
            alarm.stop()
    except _OverTimeError:
        alarm.stop()  # it may have raised while it was being stopped
        raise TimeLimitError(
            f"the simulation did not end within time_limit_s={seconds:g}; give it more time, or simulate it alone to "
            "see where it hangs",
            time_limit_s=seconds,
        ) from None


async def _awake(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await a coroutine in a loop that wakes often: in a thread, only a line that runs can raise the exception."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RankLoop)  # of `run_to_end`
    loop.longest_wait_s = _AWAKE_S
    return await start()


class _Alarm:
    """A signal to the main thread, after some seconds and then again and again.

    Args:
        seconds: after how many.
    """

    def __init__(self, seconds: float) -> None:
        self._before = signal.signal(signal.SIGALRM, _raise)
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)

    def stop(self) -> None:
        """Send no more signals."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


def _raise(_signal: int, _frame: Any) -> None:
    raise _OverTimeError


class _Timer:
    """A thread that raises an exception in the one that made it, after some seconds and then again and again.

    Args:
        seconds: after how many.
    """

    def __init__(self, seconds: float) -> None:
        self._thread_id = threading.get_ident()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, args=(seconds,), name="minitrain-time-limit", daemon=True).start()

    def stop(self) -> None:
        """Raise no more, and take back an exception that was not raised yet."""
        self._stopped.set()
        with self._lock:
            _raise_in(self._thread_id, None)

    def _run(self, seconds: float) -> None:
        """Wait and raise, until it is stopped."""
        while not self._stopped.wait(seconds):
            with self._lock:
                if not self._stopped.is_set():
                    _raise_in(self._thread_id, _OverTimeError)
            seconds = _AGAIN_S


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    """Have an exception raised in a thread, or take back the one that was to be raised."""
    raised = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), raised)
