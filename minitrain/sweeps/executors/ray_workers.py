"""Workers of Ray: each task is a remote function, as Ray has no executor of `concurrent.futures`.

Ray would repeat the task of a lost worker without a warning. That is switched off here, so that a loss is reported, and
a task that ends its process is given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.sweeps.executors.cluster_workers import ClusterWorkers, installed, with_remedy
from minitrain.sweeps.executors.lossy_workers import SentTask
from minitrain.sweeps.executors.sent_work import do_sent_work

_MOST_LOSSES = 3
_LOSSES = ("WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "OutOfMemoryError", "ObjectLostError")


@contextlib.contextmanager
def ray_workers(address: str | None, strategies: Sequence[Any]) -> Iterator[RayWorkers]:
    """Provide the workers of the Ray that is initialised, or of the one at an address.

    Args:
        address: what `ray.init` takes; None for the Ray that the caller has initialised.
        strategies: whose files the workers need.

    Raises:
        UsageError: Ray is not installed, or nothing answers at the address.
    """
    ray = installed("ray", "ray")
    with contextlib.ExitStack() as connection:
        if not ray.is_initialized():
            _connect(ray, address or "auto")
            connection.callback(ray.shutdown)
        workers = RayWorkers(ray, strategies)
        connection.callback(workers.close)
        yield workers


def _connect(ray: Any, address: str) -> None:
    """Connect with the cluster at an address."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address}; start one with `ray start --head`, and give the address it says"
        ) from error


@final
class RayWorkers(ClusterWorkers):
    """Workers of a Ray cluster.

    Args:
        ray: the package, which is initialised.
        strategies: whose files the workers need.
    """

    def __init__(self, ray: Any, strategies: Sequence[Any]) -> None:
        num_threads = int(ray.cluster_resources().get("CPU", 1))
        super().__init__(strategies, import_module("ray.cloudpickle"), num_threads, _MOST_LOSSES)
        self._ray = ray
        self._do = ray.remote(max_retries=0)(do_sent_work)
        self._losses = tuple(getattr(ray.exceptions, name) for name in _LOSSES)
        self._takes = ThreadPoolExecutor(1, "minitrain-ray")  # so that Ray's own thread does not wait for us

    def _send(self, task: SentTask) -> None:
        task.handle = self._do.remote(task.call)
        task.handle.future().add_done_callback(lambda done: self._have_taken(task, done))

    def _end(self, tasks: Sequence[SentTask]) -> None:
        for task in tasks:
            if task.handle is not None:
                self._ray.cancel(task.handle, force=True)
        self._takes.shutdown()

    def _have_taken(self, task: SentTask, done: Future[Any]) -> None:
        """Let another thread take the outcome of a task."""
        with contextlib.suppress(RuntimeError):  # closed: nobody waits
            self._takes.submit(self._take, task, done)

    def _take(self, task: SentTask, done: Future[Any]) -> None:
        """Take the outcome of a task."""
        if not self._is_wanted(task):
            return
        try:
            self._succeeded(task, done.result())
        except self._losses:
            if self._lost(task):
                self._send(task)
        except (Exception, CancelledError) as error:  # in this thread, it would reach nobody
            self._failed(task, with_remedy(getattr(error, "cause", None) or error))
