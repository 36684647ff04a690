"""Workers of Dask: tasks go to a `dask.distributed` client.

The scheduler itself repeats the tasks of a lost worker, and gives up a task that has lost four workers (its setting
`allowed-failures`). When the scheduler is lost, the client waits some seconds for one at the same address, to which the
tasks are sent again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, final

from minitrain.errors import MinitrainError, UsageError
from minitrain.sweeps.executors.cluster_workers import ClusterWorkers, installed, with_remedy
from minitrain.sweeps.executors.lossy_workers import SentTask
from minitrain.sweeps.executors.sent_work import do_sent_work

_CONNECT_S = 30
_MOST_LOSSES = 2  # each is as many workers as the scheduler allows: once among other tasks, once alone
_ANSWERING = ("running", "connecting")
_GONE = (
    "the Dask scheduler was lost and did not come back; with a results file, the same call goes on where this one ended"
)


@contextlib.contextmanager
def dask_workers(client: Any, strategies: Sequence[Any]) -> Iterator[DaskWorkers]:
    """Provide the workers of a client, or of the scheduler at an address.

    Raises:
        UsageError: Dask is not installed, nothing answers at the address, or the client is one of coroutines.
    """
    distributed = installed("distributed", "dask")
    if isinstance(client, str):
        with _connected(distributed, client) as own, dask_workers(own, strategies) as workers:
            yield workers
        return
    if client.asynchronous:
        raise UsageError("the client of Dask must not be asynchronous; make it with Client(address)")
    workers = DaskWorkers(client, strategies)
    try:
        yield workers
    finally:
        workers.close()


@contextlib.contextmanager
def _connected(distributed: Any, address: str) -> Iterator[Any]:
    """Provide a client of the scheduler at an address."""
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address}; start one with `dask scheduler`, and give the address it says"
        ) from error
    with client:
        yield client


@final
class DaskWorkers(ClusterWorkers):
    """Workers of a Dask cluster.

    Args:
        client: the client, which is not asynchronous.
        strategies: whose files the workers need.
    """

    def __init__(self, client: Any, strategies: Sequence[Any]) -> None:
        super().__init__(strategies, import_module("cloudpickle"), sum(client.nthreads().values()), _MOST_LOSSES)
        self._client = client
        self._killed = import_module("distributed").KilledWorker
        self._lost_connection = import_module("distributed.comm").CommClosedError
        self._is_closed = threading.Event()
        self._was_restarted = False
        self._suspects: list[SentTask] = []
        self._alone: SentTask | None = None  # the suspect that runs
        self._last_event_s = max((seconds for seconds, _ in client.get_events("all")), default=0.0)

    def _end(self, tasks: Sequence[SentTask]) -> None:
        self._is_closed.set()
        with contextlib.suppress(OSError, TimeoutError):  # the scheduler may be lost by now
            if self._client.status == "running":
                self._note_replaced_workers()
                if handles := [task.handle for task in tasks if task.handle is not None]:
                    self._client.cancel(handles, force=True)

    def _note_replaced_workers(self) -> None:
        """Warn of lost workers whose tasks the scheduler itself has repeated."""
        if not self._was_restarted:
            events = (event for seconds, event in self._client.get_events("all") if seconds > self._last_event_s)
            if any(map(_is_loss, events)):
                self._note_loss()

    def _send(self, task: SentTask) -> None:
        if self._client.status not in _ANSWERING:
            self._failed(task, MinitrainError(_GONE))
            return
        task.handle = self._client.submit(do_sent_work, task.call, pure=False)
        task.handle.add_done_callback(lambda done: self._take(task, done))

    def _take(self, task: SentTask, done: Any) -> None:
        """Take what the scheduler says of a task, in a thread of the client's."""
        if not self._is_wanted(task):
            return
        try:
            self._succeeded(task, done.result())
        except self._killed:
            if self._lost(task):
                self._suspects.append(task)
        except self._lost_connection:
            self._send_again(task, "scheduler")
        except Exception as error:  # in a callback, it would reach nobody
            if done.cancelled():
                self._send_again(task, str(getattr(error, "reason", "")))
            else:
                self._failed(task, with_remedy(error))
        self._send_suspect()

    def _send_suspect(self) -> None:
        """Send a task again that may have ended its workers, or was beside one that did, if no other suspect runs."""
        with self._lock:
            self._suspects = [task for task in self._suspects if task in self._tasks]
            if self._alone in self._tasks or not self._suspects:
                return
            self._alone = task = self._suspects.pop(0)
        self._send(task)

    def _send_again(self, task: SentTask, reason: str) -> None:
        """Send a task again that the scheduler has forgotten, once there is one.

        Args:
            task: the task.
            reason: why it was forgotten, in words of Dask; a result may also be lost with its worker.
        """
        while self._client.status == "connecting":  # the client offers nothing to wait on
            if self._is_closed.wait(0.1):
                break
        if not self._is_wanted(task):
            return
        if self._client.status == "running" and reason.startswith("scheduler"):
            self._was_restarted = True
            self._note("the Dask scheduler or its workers were restarted; what was under way is done again")
        elif self._client.status == "running":
            self._note_loss()
        self._send(task)


def _is_loss(event: Any) -> bool:
    """Return whether an event of the scheduler is that a worker was lost while it did something."""
    is_removal = isinstance(event, dict) and event.get("action") == "remove-worker"
    return is_removal and bool(event.get("processing-tasks")) and not event.get("expected")
