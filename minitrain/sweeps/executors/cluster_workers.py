"""What workers on a cluster have in common: an engine, to which tasks are sent as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, final

from minitrain.errors import MinitrainError, UsageError
from minitrain.sweeps.executors.lossy_workers import LossyWorkers
from minitrain.sweeps.executors.sent_work import Sender

_FEWEST_AT_ONCE = 16
"""More tasks than there may be workers yet: an adaptive cluster grows with what waits."""


def installed(package: str, extra: str) -> Any:
    """Return the package of an engine.

    Args:
        package: its name.
        extra: the extra of minitrain that installs it.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise UsageError(
            f'{extra.capitalize()} is not installed; `pip install "minitrain[{extra}]"` installs it'
        ) from error


class ClusterWorkers(LossyWorkers):
    """Workers of an engine, as an executor.

    Args:
        strategies: whose files the workers need.
        pickler: cloudpickle, of the engine.
        num_threads: how many tasks the workers do at once.
        most_losses: a task whose worker is lost so often is not begun again.
    """

    def __init__(self, strategies: Sequence[Any], pickler: ModuleType, num_threads: int, most_losses: int) -> None:
        super().__init__(max(_FEWEST_AT_ONCE, 2 * num_threads), most_losses)
        self._sender = Sender(strategies, pickler)

    @final
    def _call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
        return self._sender.bytes_of(function, arguments)


def with_remedy(error: BaseException) -> BaseException:
    """Return an error of a worker; what must be done, where minitrain is not what the worker has."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "minitrain":
        return MinitrainError(
            f"the workers cannot import {error.name}: install the same version of minitrain on every worker"
        )
    return error
