"""From a row to its results: how it is predicted depends on the columns of its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from minitrain.errors import MinitrainError
from minitrain.hardware.platforms import Platform
from minitrain.validation.cluster_tables import cluster_results
from minitrain.validation.errors_by_table import RowResult, Skipped
from minitrain.validation.layer_tables import layer_results, stage_results
from minitrain.validation.model_states import state_results
from minitrain.validation.quickest_microbatch import case_and_prediction
from minitrain.validation.rows import LackingError, Row


@final
@dataclass(frozen=True, slots=True)
class RowToPredict:
    """A row, and how it is to be predicted.

    Args:
        row: the row.
        platform: instead of the one that follows from the row.
        layers: a table of measured layers, for rows that need one; the package's if None.
        without: terms of the price to leave out.
    """

    row: Row
    platform: str | Platform | None = None
    layers: str | None = None
    without: tuple[str, ...] = ()


def predict_row(task: RowToPredict) -> list[RowResult | Skipped]:
    """Return the results of a row, or the reason why there are none."""
    row = task.row
    try:
        return list(_kind_of(row)(task))
    except (LackingError, MinitrainError) as error:
        return [Skipped(row.table, row.row_id, _one_line(error))]


def _kind_of(row: Row) -> Callable[[RowToPredict], Iterator[RowResult]]:
    """Return the function that predicts a row, by its table's columns."""
    if "fwd_ms" in row.values:
        return lambda task: layer_results(task.row, task.platform, task.without)
    if "T_F_ms" in row.values:
        return lambda task: stage_results(task.row, task.platform, task.without)
    if "zero_stage" in row.values:
        return lambda task: state_results(task.row)
    if "layers_by_stage" in row.values:
        return lambda task: cluster_results(task.row, task.layers)
    return _common_results


def _common_results(task: RowToPredict) -> Iterator[RowResult]:
    """Yield the result of a row in the common columns."""
    case, found = case_and_prediction(task.row, task.platform, task.without)
    has_memory = case.measured_bytes is not None
    yield RowResult(
        table=case.table,
        row_id=case.row_id,
        about=case.about,
        group=case.group,
        device=case.system.name,
        model=case.model.name,
        world_size=case.layout.world_size,
        measured_s=case.measured_s,
        predicted_s=None if case.measured_s is None else found.seconds,
        measured_bytes=case.measured_bytes,
        predicted_bytes=found.memory[case.memory_kind] if has_memory else None,
        memory_kind=case.memory_kind if has_memory else "",
        platform=case.platform.name if case.platform is not None and case.platform.numbers() else None,
        assumed=case.assumed,
        terms=found.terms,
        kind=case.model.kind,
        axes={"tp": case.layout.tp, "pp": case.layout.pp, "cp": case.layout.cp, "ep": case.layout.ep},
    )


def _one_line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split())
