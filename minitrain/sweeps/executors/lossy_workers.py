"""Workers that may be lost: their tasks are repeated, and a warning says so once."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, final

from minitrain.errors import MinitrainError


class LostWorkersWarning(RuntimeWarning):
    """Workers were lost, and their tasks are repeated; a sweep warns once of each kind of loss."""


class WorkerLostError(MinitrainError):
    """Every worker that began a task was lost, for which the task may be the cause."""


@final
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

    @final
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
