"""Letting Optuna choose which configurations are tried, where there are too many to try all.

Each axis is a categorical parameter. A configuration is found by going through the axes: of those that are left, the
ones with the suggested value stay, if there are any.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from minitrain.errors import UsageError
from minitrain.search.tuning.search import FITS, Row, Search, Task, value_of
from minitrain.search.tuning.space import Candidate

_AT_ONCE = 16
_PENALTY = 1e6  # of what does not fit, times how much too large it is


def sample_with_optuna(search: Search, num_samples: int, seed: int = 0) -> None:
    """Try configurations that Optuna's TPE sampler chooses.

    Args:
        search: the search.
        num_samples: how many are tried.
        seed: of the sampler.

    Raises:
        UsageError: Optuna is not installed.
    """
    try:
        optuna: Any = import_module("optuna")
    except ImportError as error:
        raise UsageError(
            'sampler="optuna" needs Optuna, which is not installed; `pip install "minitrain[tune]"` installs it'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    search.run(lambda missing: _chosen(search, study, missing, num_samples))


def _chosen(search: Search, study: Any, missing: Task, num_samples: int) -> Iterator[Task]:
    """Yield the configurations that Optuna suggests, and report their losses to it."""
    axes = _axes(missing)
    left = min(num_samples, len(missing))
    tried: set[int] = set()
    while left > 0:
        asked = [study.ask() for _ in range(min(_AT_ONCE, left))]
        found = [_suggested(trial, axes, missing) for trial in asked]
        yield [one for one in dict(found).items() if one[0] not in search.rows]
        for trial, (place, _) in zip(asked, found, strict=True):
            if place in search.rows:
                study.tell(trial, _loss(search.rows[place], search))
        new = {place for place, _ in found} - tried
        tried |= new
        left -= max(1, len(new))


def _axes(missing: Task) -> dict[str, list[str]]:
    """Return the values of each axis, as text."""
    axes: dict[str, dict[str, None]] = {"strategy": {}}
    for _, candidate in missing:
        axes["strategy"][candidate.label] = None
        for name, value in candidate.options.items():
            axes.setdefault(name, {})[repr(value)] = None
    return {name: list(values) for name, values in axes.items()}


def _suggested(trial: Any, axes: dict[str, list[str]], missing: Task) -> tuple[int, Candidate]:
    """Return the configuration that a trial suggests."""
    left = missing
    for name, values in axes.items():
        if name != "strategy" and not any(name in one.options for _, one in left):
            continue
        value = trial.suggest_categorical(name, values)
        left = [one for one in left if _value(one[1], name) == value] or left
    return left[0]


def _value(candidate: Candidate, name: str) -> str:
    return candidate.label if name == "strategy" else repr(candidate.options.get(name))


def _loss(row: Row, search: Search) -> float:
    """Return how bad a configuration is."""
    if row["status"] == FITS:
        return value_of(row, search.objective)
    return _PENALTY * (row["peak_memory_bytes"] or 2**50)
