"""`validate`: simulate measured runs and compare.

From a row to its results: how it is predicted depends on the columns of its table.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minitrain.errors import MinitrainError, typed, typed_methods
from minitrain.evidence.cases import Case, Prediction, case_and_prediction
from minitrain.evidence.cluster_tables import COLUMNS, cluster_results, layer_results, stage_results, state_results
from minitrain.evidence.columns import unknown_columns
from minitrain.evidence.errors_by_table import (
    TABLES,
    RowResult,
    Skipped,
    TableErrors,
    memory_errors,
    rows_of,
    summarize,
    time_errors,
)
from minitrain.evidence.layouts import MOST_MOVED
from minitrain.evidence.real_runs import is_real, read_rows_of, real_results
from minitrain.evidence.rows import LackingError, Row, framework_of
from minitrain.files import StrPath
from minitrain.machine.measured_layers import read_layer_times
from minitrain.machine.platforms import Platform, find_platform
from minitrain.machine.price import Pricing
from minitrain.run.event_loops import rare_collections
from minitrain.run.worker_processes import WorkerProcesses


@dataclass(frozen=True, slots=True)
class RowToPredict:
    """A row, and how it is to be predicted.

    Args:
        row: the row.
        platform: instead of the one that follows from the row.
        layers: a table of measured layers, for rows that need one; the package's if None.
        without: terms of the price to leave out.
        is_strict: whether to refuse a row whose time hangs on an assumption.
    """

    row: Row
    platform: str | Platform | None = None
    layers: str | None = None
    without: tuple[str, ...] = ()
    is_strict: bool = False


def predict_row(task: RowToPredict) -> list[RowResult | Skipped]:
    """Return the results of a row, or the reason why there are none."""
    row = task.row
    try:
        unread = _unread_columns(row)
        with rare_collections():  # between its runs, too
            return [replace(found, unread=(*unread, *found.unread)) for found in _kind_of(row)(task)]
    except (LackingError, MinitrainError) as error:
        return [Skipped(row.table, row.row_id, _one_line(error), row.line)]


def _unread_columns(row: Row) -> list[str]:
    """Return the columns that tables of a row's kind do not have, in words; its own function reads the common ones.

    Raises:
        LackingError: a name is misspelt.
    """
    known = next((listed for name, listed in COLUMNS.items() if name in row.values), None)
    if known is None or is_real(row):
        return []
    faults, unread = unknown_columns(tuple(row.values), (*known, "notes", "source"))
    if faults:
        raise LackingError(f"line {row.line}: {'; '.join(faults)}")
    return [f'column "{name:.40}" is not known: not read' for name in unread]


def _kind_of(row: Row) -> Callable[[RowToPredict], Iterator[RowResult]]:
    """Return the function that predicts a row, by its table's columns."""
    if is_real(row):
        return lambda task: real_results(task.row)
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
    if task.is_strict:
        _require_sure(task, case, found)
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
        assumed=tuple(assumption.text for assumption in case.assumed),
        unread=case.unread,
        terms=found.terms,
        kind=case.model.kind,
        axes=case.layout.axes,
        framework=framework_of(task.row).name,
    )


def _require_sure(task: RowToPredict, case: Case, found: Prediction) -> None:
    """Refuse a row whose step time hangs on something that it does not say, or that was not read.

    Raises:
        LackingError: an assumption moves the time by more than 2 %, or nobody can tell by how much.
    """
    if case.unread:
        raise LackingError(f"strict: {'; '.join(case.unread)}")
    for assumption in case.assumed:
        if assumption.is_open:
            raise LackingError(f"strict: {assumption.text}: how far that moves the time is not known")
        moved = [(_moved(task, assumption.column, other, found), other) for other in assumption.others]
        most, other = max(moved, key=lambda pair: abs(pair[0]), default=(0.0, ""))
        if abs(most) > MOST_MOVED:
            raise LackingError(
                f"strict: {assumption.text}; {other!r} would change the time by {100 * most:+.1f} %: fill in "
                f"{assumption.column}"
            )


def _moved(task: RowToPredict, column: str, cell: str, found: Prediction) -> float:
    """Return by what share another cell changes the predicted time; 0 where no such run can be simulated."""
    values = {**task.row.values, column: cell}
    try:
        other = case_and_prediction(replace(task.row, values=values), task.platform, task.without)[1]
    except (LackingError, MinitrainError):
        return 0.0
    return other.seconds / found.seconds - 1


def _one_line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split())


MEMORY_KINDS = ("states", "allocated", "reserved", "device")
"""What a measured memory may count: states alone, what the allocator gave out, what it holds, what the driver shows."""

_CHUNK = 4  # rows that a process takes at a time
Progress = Callable[[int, int], None]


@typed_methods
@dataclass(frozen=True, slots=True)
class Validation:
    """Measured runs, and what they were predicted to take.

    Args:
        results: one a measured figure, in the order of the tables.
        skipped: the rows that were not simulated, and why.
        without: the terms of the price that were left out.
    """

    results: tuple[RowResult, ...]
    skipped: tuple[Skipped, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return a plain value a measured figure, with at least table, row_id, measured_s, predicted_s and error."""
        return [result.summary() for result in self.results]

    @property
    def answered(self) -> dict[str, tuple[int, int]]:
        """Return how many rows of each table were simulated, and how many it has."""
        done = [table for table, *_ in {(each.table, each.row_id, each.about) for each in self.results}]
        rows = [*done, *(each.table for each in self.skipped)]
        return {name: (done.count(name), rows.count(name)) for name in dict.fromkeys((*self._names(), *rows))}

    @property
    def in_interval(self) -> tuple[int, int]:
        """Return how many measured times lie in the interval of their prediction, and how many have one."""
        held = [each.is_in_interval for each in self.results if each.is_in_interval is not None]
        return sum(held), len(held)

    @property
    def tables(self) -> list[TableErrors]:
        """Return the errors of each table, and below it of its groups if there are several."""
        return [errors for name in self._names() for errors in self._of_table(name)]

    @property
    def kinds(self) -> list[TableErrors]:
        """Return the errors of times of all tables, by device and framework, and below these by parallelism."""
        by_kind: dict[tuple[str, str], list[RowResult]] = {}
        for each in self.results:
            if each.framework:
                device = each.device.partition("_")[0].upper()
                by_kind.setdefault((f"{device}, {each.framework}", each.parallelism), []).append(each)
        found = [errors for (name, group), each in sorted(by_kind.items()) for errors in _errors(name, group, each, "")]
        return [errors for errors in found if errors.of == "time"]

    def summary(self) -> list[dict[str, Any]]:
        """Return the errors by table as plain values."""
        return [errors.summary() for errors in self.tables]

    def worst(self, num: int = 10) -> list[RowResult]:
        """Return the rows whose time is furthest off."""
        timed = [result for result in self.results if result.error is not None]
        return sorted(timed, key=lambda result: -abs(result.error or 0.0))[:num]

    def write_html(self, path: StrPath) -> Path:
        """Write a page with predicted against measured times, errors by table and the worst rows; return its path."""
        from minitrain.evidence.page import write_validation_page  # noqa: PLC0415  (only when somebody looks)

        return write_validation_page(
            os.fspath(path), self.results, self.skipped, self.tables, self.worst(), self.without
        )

    def _names(self) -> list[str]:
        return list(dict.fromkeys(result.table for result in self.results))

    def _of_table(self, name: str) -> Iterator[TableErrors]:
        """Yield the errors of a table."""
        mine = [result for result in self.results if result.table == name]
        fitted = TABLES[name].fitted if name in TABLES else ""
        groups = list(dict.fromkeys(result.group for result in mine))
        yield from _errors(name, "", mine, fitted)
        if len(groups) > 1:
            for group in groups:
                yield from _errors(name, group, [result for result in mine if result.group == group], fitted)


def _errors(name: str, group: str, results: Sequence[RowResult], fitted: str) -> Iterator[TableErrors]:
    """Yield the errors of times, and of each kind of memory, of some rows."""
    found = summarize(time_errors(results))
    if found is not None:
        yield TableErrors(name, group, "time", found, fitted)
    for kind in MEMORY_KINDS:
        found = summarize(memory_errors(results, kind))
        if found is not None:
            yield TableErrors(name, group, f"memory, {kind}", found, "")


@typed
def validate(
    tables: str | Sequence[str] | None = None,
    csv: StrPath | Sequence[StrPath] = (),
    *,
    platform: str | Platform | None = None,
    layers: StrPath | None = None,
    without: Sequence[str] = (),
    strict: bool = False,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> Validation:
    """Simulate published runs with `fidelity="kernels"`, and compare with what was measured.

    Args:
        tables: names of the package's tables (see `minitrain.evidence.errors_by_table`); all of them if None and
            no file is given.
        csv: files of measured runs, in the common columns, in those of one of the package's tables, or in those of
            real processes; and folders of contributed runs (`minitrain.evidence.real_runs`).
        platform: the platform for every row, instead of the one that follows from its framework and device;
            "components" for none.
        layers: a table of measured layers, for runs on clusters of several devices.
        without: terms of the price to leave out, as for `simulate`.
        strict: whether to refuse rows with assumptions that move the time by more than 2 %, or words that are not read.
        jobs: processes; one a core if None.
        progress: called with the number of rows done, and with that of all.

    Returns:
        The results; rows that lack what the model needs are in `skipped`, with their reason.

    Raises:
        UsageError: there is no such table, file, platform or term.
    """
    files = [csv] if isinstance(csv, str | os.PathLike) else list(csv)
    names = [tables] if isinstance(tables, str) else tables
    rows = rows_of(names) if names is not None or not files else []
    rows += [row for file in files for row in read_rows_of(file)]
    terms = Pricing("kernels", without=without).without
    chosen = None if platform is None else find_platform(platform)
    table = None if layers is None else os.fspath(layers)
    if table is not None:  # even where no row is of a cluster, and none asks for it
        read_layer_times(Path(table), table)
    tasks = [RowToPredict(row, chosen, table, tuple(terms), strict) for row in rows]
    results: list[RowResult | Skipped] = []
    for place, found in enumerate(_results(tasks, jobs), 1):
        results += found
        if progress is not None:
            progress(place, len(tasks))
    return Validation(
        tuple(each for each in results if isinstance(each, RowResult)),
        tuple(each for each in results if isinstance(each, Skipped)),
        tuple(terms),
    )


def _results(tasks: Sequence[RowToPredict], jobs: int | None) -> Iterable[list[RowResult | Skipped]]:
    """Return the results of each row, in the order of the rows, from some processes."""
    num_jobs = jobs or os.cpu_count() or 1
    return map(predict_row, tasks) if num_jobs == 1 or len(tasks) <= _CHUNK else _in_processes(tasks, num_jobs)


def _in_processes(tasks: Sequence[RowToPredict], num_jobs: int) -> Iterator[list[RowResult | Skipped]]:
    """Yield the results of each row; the processes end at once if the caller stops iterating."""
    with contextlib.closing(WorkerProcesses(num_jobs)) as processes:
        for chunk in processes.map(_results_here, [tasks[i : i + _CHUNK] for i in range(0, len(tasks), _CHUNK)]):
            yield from chunk


def _results_here(tasks: Sequence[RowToPredict]) -> list[list[RowResult | Skipped]]:
    """Return the results of each row, made in this process."""
    return list(map(predict_row, tasks))
