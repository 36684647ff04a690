"""The options that say where a sweep or a search runs: on Dask or on Ray, and how long a configuration may take."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from minitrain.cli.failures import print_error
from minitrain.errors import UsageError
from minitrain.sweeps.executors.choice import require_workers
from minitrain.sweeps.executors.own_processes import LostWorkersWarning

_PANEL = "Workers"

Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", metavar="N", min=1, max=1024, help="Processes; one a core by default.")
]
Dask = Annotated[
    str | None,
    typer.Option(
        "--dask", metavar="ADDRESS", help="Run on the Dask scheduler at tcp://host:8786.", rich_help_panel=_PANEL
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help="Run on Ray: auto, host:6379 or ray://host:10001.", rich_help_panel=_PANEL
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        help="A configuration that takes longer is a failed row.",
        rich_help_panel=_PANEL,
    ),
]


def executor_of(dask: str | None, ray: str | None, jobs: int | None) -> str | None:
    """Return the executor of `sweep` and `tune`.

    Raises:
        UsageError: more than one place is given, or what is given is no address.

    >>> executor_of(None, "auto", None), executor_of("tcp://10.0.0.1:8786", None, None)
    ('ray:auto', 'tcp://10.0.0.1:8786')
    """
    given = [name for name, value in (("--dask", dask), ("--ray", ray), ("--jobs", jobs)) if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} say where to run; give one of them")
    if ray is not None:
        return ray if ray.startswith("ray://") else f"ray:{ray}"
    if dask is not None and "://" not in dask:
        raise UsageError(f"--dask takes the address of a scheduler, such as tcp://host:8786, got {dask!r}")
    require_workers(dask)
    return dask


@contextlib.contextmanager
def saying_losses() -> Iterator[None]:
    """Say on stderr, in a line each, that workers were lost."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", LostWorkersWarning)
        shown: Any = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if issubclass(category, LostWorkersWarning):
                print_error(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        yield
