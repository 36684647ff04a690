"""What workers on a cluster have in common: tasks that are sent as bytes, and done again when their worker is lost."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, final

from minitrain.errors import MinitrainError
from minitrain.sweeps.executors.sent_work import Sender

MOST_LOSSES = 3
"""A task whose worker is lost so often is not begun again."""


class ClusterWarning(RuntimeWarning):
    """Part of a cluster was lost, and what it was doing is done again; each kind is said once a sweep."""


class WorkerLostError(MinitrainError):
    """Every worker that began a task was lost, for which the task may be the cause."""


@final
@dataclass(eq=False, slots=True)
class SentTask:
    """A task that was sent.

    Args:
        sent: the call, as bytes.
        future: what its caller waits for.
        handle: the engine's own future of it.
        num_losses: how many workers were lost while they did it.
    """

    sent: bytes
    future: Future[Any]
    handle: Any = None
    num_losses: int = 0


@dataclass(slots=True)
class _News:
    """What is to be said, each text once."""

    said: set[str] = field(default_factory=set)
    pending: list[str] = field(default_factory=list)


class ClusterWorkers(Executor):
    """Workers of an engine, as an executor.

    Args:
        strategies: whose files the workers need.
        pickler: cloudpickle, of the engine.
        num_threads: how many tasks the workers do at once.
    """

    def __init__(self, strategies: Sequence[Any], pickler: ModuleType, num_threads: int) -> None:
        self.num_at_once = max(_FEWEST_AT_ONCE, 2 * num_threads)
        self._sender = Sender(strategies, pickler)
        self._lock = threading.Lock()
        self._tasks: set[SentTask] = set()
        self._news = _News()

    @abstractmethod
    def _send(self, task: SentTask) -> None:
        """Give a task to the engine, and have `_succeeded`, `_failed` or `_lost` called when it is over."""

    @abstractmethod
    def _cancel(self, tasks: Sequence[SentTask]) -> None:
        """Have the engine forget tasks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a call, and return the future of its result."""
        assert not kwargs  # tasks are calls by position
        self._say_news()
        task = SentTask(self._sender.bytes_of(fn, args), Future())
        with self._lock:
            self._tasks.add(task)
        self._send(task)
        return task.future

    def close(self) -> None:
        """Have everything forgotten that is not done, and say what is left to be said."""
        with self._lock:
            tasks = list(self._tasks)
            self._tasks.clear()
        for task in tasks:
            task.future.cancel()
        self._cancel(tasks)
        self._say_news()

    def _succeeded(self, task: SentTask, result: Any) -> None:
        """Note what a task came to."""
        self._is_over(task)
        with suppress(InvalidStateError):  # it was cancelled
            task.future.set_result(result)

    def _failed(self, task: SentTask, error: BaseException) -> None:
        """Note why a task came to nothing."""
        self._is_over(task)
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "minitrain":
            error = MinitrainError(
                f"the workers cannot import {error.name}: install the same version of minitrain on every worker"
            )
        with suppress(InvalidStateError):
            task.future.set_exception(error)

    def _note_loss(self) -> None:
        """Have said that a worker was lost."""
        self._note("a worker was lost (killed, or out of the machine's own memory?); what it was doing is done again")

    def _lost(self, task: SentTask, *, is_final: bool = False) -> None:
        """Send a task again whose worker was lost, unless it was lost too often.

        Args:
            task: the task.
            is_final: whether the engine has tried often enough itself.
        """
        self._note_loss()
        task.num_losses += 1
        if is_final or task.num_losses >= MOST_LOSSES:
            tries = "" if is_final else f" {task.num_losses} times"
            self._failed(
                task, WorkerLostError(f"every worker that simulated this was lost{tries}: it may end its process")
            )
        elif self._is_wanted(task):
            self._send(task)

    def _is_wanted(self, task: SentTask) -> bool:
        """Return whether somebody still waits for a task."""
        with self._lock:
            return task in self._tasks

    def _is_over(self, task: SentTask) -> None:
        with self._lock:
            self._tasks.discard(task)

    def _note(self, text: str) -> None:
        """Have something said once, by the thread that submits."""
        with self._lock:
            if text not in self._news.said:
                self._news.said.add(text)
                self._news.pending.append(text)

    def _say_news(self) -> None:
        with self._lock:
            texts, self._news.pending = self._news.pending, []
        for text in texts:
            warnings.warn(text, ClusterWarning, stacklevel=3)


_FEWEST_AT_ONCE = 16  # more than there may be workers yet: an adaptive cluster grows with what waits
