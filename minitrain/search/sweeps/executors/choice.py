"""Which workers an `executor=` means: own processes, an executor as it is, a client of Dask, Ray, or either's address.

An address is a text: "tcp://host:8786" (or tls, ucx, ws) of a Dask scheduler, "ray" for the Ray that is initialised or
runs on this machine, "ray://host:10001" or "ray:ADDRESS" for any other that `ray.init` can find. A connection that is
made here ends here; what the caller has made stays as it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

from minitrain.errors import UsageError
from minitrain.search.sweeps.executors.own_processes import LossyWorkers, OwnProcesses

DASK_PROTOCOLS = ("tcp://", "tls://", "ucx://", "ws://", "wss://")
_RAY = "ray"


def require_workers(executor: Any) -> None:
    """Require something that work can be given to, before any work begins.

    Raises:
        UsageError: it is neither an executor nor a client of Dask, nor Ray, nor an address of either.
    """
    is_known = executor is None or isinstance(executor, Executor) or _is_client(executor) or _is_ray(executor)
    if not is_known and not _is_address_of_dask(executor):
        raise UsageError(
            "executor must be a concurrent.futures executor, a dask.distributed client or its address "
            f'("tcp://host:8786"), the module ray, "ray" or "ray://host:10001"; got {executor!r:.80}'
        )


@contextlib.contextmanager
def workers_of(executor: Any, jobs: int | None, strategies: Sequence[Any]) -> Iterator[tuple[Executor, int]]:
    """Provide an executor for what the caller gave, and how many tasks to submit to it at once.

    Args:
        executor: what `require_workers` takes; None for processes that end with this.
        jobs: how many processes; one a core if None.
        strategies: what is simulated; workers on a cluster are sent their files.

    Raises:
        UsageError: the engine is not installed, or does not answer.
    """
    require_workers(executor)
    if isinstance(executor, Executor) and not _is_of_dask(executor):
        yield executor, 2 * int(getattr(executor, "_max_workers", None) or os.cpu_count() or 1)
        return
    with _lossy_workers(executor, jobs, strategies) as workers:
        yield workers, workers.num_at_once


def first_done(workers: Executor, futures: Collection[Future[Any]]) -> Collection[Future[Any]]:
    """Wait until some futures of an executor are done, and return them."""
    if isinstance(workers, LossyWorkers):
        return workers.first_done(futures)
    return wait(futures, return_when=FIRST_COMPLETED).done


def _lossy_workers(
    executor: Any, jobs: int | None, strategies: Sequence[Any]
) -> contextlib.AbstractContextManager[LossyWorkers]:
    """Return a context manager of workers, each of which may be lost."""
    if executor is None:
        return contextlib.closing(OwnProcesses(jobs or os.cpu_count() or 1))
    if _is_ray(executor):
        from minitrain.search.sweeps.executors.cluster_workers import ray_workers  # noqa: PLC0415  (an extra)

        return ray_workers(_address_of_ray(executor) if isinstance(executor, str) else None, strategies)
    from minitrain.search.sweeps.executors.cluster_workers import dask_workers  # noqa: PLC0415  (an extra)

    return dask_workers(executor._client if _is_of_dask(executor) else executor, strategies)


def _is_of_dask(executor: Any) -> bool:
    """Return whether something is what `client.get_executor()` returns."""
    return isinstance(executor, Executor) and _is_client(getattr(executor, "_client", None))


def _is_client(executor: Any) -> bool:
    """Return whether something is a client of Dask; one can only be there where Dask is imported."""
    return any(each.__module__ == "distributed.client" and each.__name__ == "Client" for each in type(executor).__mro__)


def _is_address_of_dask(executor: Any) -> bool:
    """Return whether something is the address of a Dask scheduler."""
    return isinstance(executor, str) and executor.startswith(DASK_PROTOCOLS)


def _is_ray(executor: Any) -> bool:
    """Return whether something is the module ray, or an address of Ray."""
    if isinstance(executor, str):
        return executor == _RAY or executor.startswith(f"{_RAY}:")
    return getattr(executor, "__name__", None) == _RAY and hasattr(executor, "remote")


def _address_of_ray(text: str) -> str:
    """Return the address that `ray.init` takes.

    >>> [_address_of_ray(text) for text in ("ray", "ray:auto", "ray:10.0.0.1:6379", "ray://10.0.0.1:10001")]
    ['auto', 'auto', '10.0.0.1:6379', 'ray://10.0.0.1:10001']
    """
    return text if text.startswith("ray://") else text.partition(":")[2] or "auto"
