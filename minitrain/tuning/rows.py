"""A row for each configuration of a search, and which rows nothing beats: the front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minitrain.analysis.labels import GIB
from minitrain.errors import UsageError
from minitrain.sweeps.batches import key_of
from minitrain.tuning.problem import Machine
from minitrain.tuning.space import Candidate
from minitrain.tuning.worker_tasks import Figures

Row = dict[str, Any]

FITS, OUT_OF_MEMORY, ILLEGAL, PRUNED, FAILED = "fits", "out of memory", "illegal", "pruned", "failed"
VERDICTS = (FITS, OUT_OF_MEMORY, ILLEGAL, PRUNED, FAILED)
"""The outcomes that a configuration may have."""

OBJECTIVES: Mapping[str, tuple[str, int]] = {
    "step_time": ("step_time_s", 1),
    "tokens_per_second": ("tokens_per_second", -1),
    "tokens_per_dollar": ("tokens_per_dollar", -1),
    "energy": ("energy_joules", 1),
}
"""What may be wanted: the column, and 1 where less is better."""

OF_FRONT = ("step_time_s", "peak_memory_bytes", "dollars", "energy_joules")


def row_of(candidate: Candidate, figures: Figures | None, machine: Machine, most_bytes: float) -> Row:
    """Return the row of a configuration.

    Args:
        candidate: the configuration.
        figures: those of its step; None for one that breaks a rule of the space.
        machine: where it runs.
        most_bytes: what a device may hold, bytes.
    """
    status, reason = _verdict(candidate, figures, most_bytes)
    known = figures or Figures()
    row: Row = {
        "strategy": candidate.label,
        "hardware": machine.parameters.hardware if isinstance(machine.parameters.hardware, str) else _name(machine),
        "world_size": candidate.problem.world_size,
        "global_batch_size": candidate.problem.global_batch_size,
        "precision": None if machine.model is None else machine.model.precision.name,
        **candidate.options,
        "status": status,
        "reason": reason,
        "peak_memory_bytes": known.peak_memory_bytes,
        "needed_memory_bytes": known.needed_memory_bytes,
    }
    if known.step_time_s is None:
        return row | dict.fromkeys(_TIMES)
    return row | machine.figures(known.step_time_s, known.busy_s)


_TIMES = (
    "step_time_s",
    "mfu",
    "tokens_per_second",
    "tokens_per_second_per_rank",
    "dollars",
    "tokens_per_dollar",
    "energy_joules",
)
FIGURES = ("peak_memory_bytes", "needed_memory_bytes", *_TIMES)
"""The figures of a row."""

_OWN = frozenset({"strategy", "hardware", "world_size", "global_batch_size", "precision", "status", "reason", *FIGURES})


def options_of(row: Row) -> Row:
    """Return the options of the strategy in a row."""
    return {name: value for name, value in row.items() if name not in _OWN}


def _name(machine: Machine) -> str:
    return str(getattr(getattr(machine.predictor, "system", None), "name", "custom"))


def _verdict(candidate: Candidate, figures: Figures | None, most_bytes: float) -> tuple[str, str | None]:
    """Return the outcome of a configuration, and the reason."""
    if figures is None:
        return ILLEGAL, candidate.illegal
    if figures.error is not None:
        return (ILLEGAL if figures.is_rule else FAILED), figures.error
    needed_bytes = figures.needed_memory_bytes or figures.peak_memory_bytes
    if needed_bytes is not None and needed_bytes > most_bytes:
        return _too_large(needed_bytes, most_bytes, "at least " if figures.is_bound else "")
    if figures.is_pruned:
        return PRUNED, figures.why_pruned or "its least step time is longer than that of a configuration that fits"
    return FITS, None


def _too_large(needed_bytes: float, most_bytes: float, at_least: str = "") -> tuple[str, str]:
    """Return that a configuration does not fit, and why."""
    needed, most = needed_bytes / GIB, most_bytes / GIB
    return OUT_OF_MEMORY, f"a device must hold {at_least}{needed:.4g} GiB, and {most:.4g} GiB may be used"


def memory_of(row: Row) -> float | None:
    """Return what a row's verdict is by: what the device must hold, or the tensors where that is all there is."""
    needed_bytes: float | None = row.get("needed_memory_bytes")
    return row["peak_memory_bytes"] if needed_bytes is None else needed_bytes


def judged_again(row: Row, most_bytes: float) -> Row | None:
    """Return a row of an earlier search with the verdict of this one; None where it must be tried again.

    Args:
        row: the row, in which the earlier search had its own objective, pruning and head room.
        most_bytes: what a rank may hold now, bytes.
    """
    if row["status"] not in (FITS, OUT_OF_MEMORY, PRUNED):
        return row
    if row["step_time_s"] is None:  # only bounds were known
        return None
    needed = memory_of(row)
    status, reason = (FITS, None) if needed is None or needed <= most_bytes else _too_large(needed, most_bytes)
    return {**row, "status": status, "reason": reason}


def key_of_candidate(candidate: Candidate) -> str:
    """Return a text that tells configurations apart, the same in every process and on every day.

    A sweep may write to the same file, whose rows have other columns; so its keys are others.
    """
    return "tune " + key_of((candidate.strategy, candidate.parameters))


def value_of(row: Row, objective: str) -> float:
    """Return how good a row is, less being better; infinity where it has no such figure."""
    column, sign = OBJECTIVES[objective]
    value = row[column]
    return math.inf if value is None else sign * value


def require_objective(objective: str) -> None:
    """Require an objective that there is."""
    if objective not in OBJECTIVES:
        raise UsageError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}", objective=objective)


def ranked(rows: Iterable[Row], objective: str) -> list[Row]:
    """Return the rows that fit, the best first; of equal ones, those of less memory."""
    fitting = [row for row in rows if row["status"] == FITS]
    return sorted(fitting, key=lambda row: (value_of(row, objective), row["peak_memory_bytes"]))


def distinct(rows: Iterable[Row]) -> list[Row]:
    """Return rows, leaving out those with the strategy, step time and memory of an earlier one."""
    seen: dict[Any, Row] = {}
    for row in rows:
        seen.setdefault((row["strategy"], row["step_time_s"], row["peak_memory_bytes"]), row)
    return list(seen.values())


def front_of(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that fit and that no other one beats: none is better in one figure and no worse in the others.

    Of rows with equal figures, the first one stays. Figures that no row has are left out.
    """
    fitting = [row for row in rows if row["status"] == FITS]
    columns = [name for name in OF_FRONT if any(row[name] is not None for row in fitting)]
    if not fitting:
        return []
    points = np.array([[math.inf if row[name] is None else row[name] for name in columns] for row in fitting])
    kept = np.empty((0, len(columns)))
    found = []
    for place in np.lexsort(points.T[::-1]).tolist():  # whatever beats a point comes before it
        if not (kept <= points[place]).all(axis=1).any():
            kept = np.vstack([kept, points[place]])
            found.append(fitting[place])
    return found
