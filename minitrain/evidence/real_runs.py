"""Steps of real processes, predicted and compared: tables, and folders that others have contributed.

A table has the columns of `COLUMNS`; a row needs `strategy`, `hardware` and `step_time_s`. `hardware` is the name of a
config, or the path of a config or a calibration, from the table's own folder. A folder is read with all below it: each
`run.json` is a row (see `minitrain.run.contributions`), whose step time is the median of its steps but the first.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.evidence.columns import listed
from minitrain.evidence.errors_by_table import RowResult
from minitrain.evidence.rows import LackingError, Row, read_rows
from minitrain.files import StrPath, write_text
from minitrain.run.contributions import CALIBRATION_FILE, RUN_FILE, Contribution
from minitrain.run.simulation import simulate

COLUMNS: Mapping[str, str] = listed()["of_real_runs"]
"""The columns of a table of real runs, and what each says."""

_COUNTS = ("world_size", "num_layers", "global_batch_size", "seq_len")
_WORDS = ("workload", "precision")


def read_rows_of(path: StrPath) -> list[Row]:
    """Return the rows of a table of any kind, or of a folder of contributed runs.

    Raises:
        UsageError: it cannot be read, or has no runs.
    """
    file = Path(path)
    with suppress(OSError):  # which reading the table tells, such as a name that is too long
        if file.is_dir():
            return _rows_below(file)
    return [_beside(row, file.parent) if is_real(row) else row for row in read_rows(file)]


def _beside(row: Row, folder: Path) -> Row:
    """Return a row whose files are looked for in a folder."""
    return Row(row.table, {**row.values, "folder": str(folder)}, row.line)


def _rows_below(root: Path) -> list[Row]:
    """Return a row for each contributed run of a folder."""
    files = sorted(root.rglob(RUN_FILE))
    if not files:
        raise UsageError(f"{root}: expected {RUN_FILE} of contributed runs, found none in the folder or below")
    return [_row_of(Contribution.read(file), file.parent, root) for file in files]


def _row_of(run: Contribution, folder: Path, root: Path) -> Row:
    """Return a contributed run as a row."""
    steps = run.step_times_s[1:] or run.step_times_s
    values = {
        "row_id": folder.relative_to(root).as_posix() if folder != root else root.name,
        "strategy": run.strategy,
        "workload": run.workload,
        "precision": run.precision,
        "hardware": run.hardware or _nearest_calibration(folder, root),
        "step_time_s": repr(statistics.median(steps)) if steps else "",
        "peak_memory_bytes": repr(run.peak_memory_bytes),
        "machine": str(run.machine.get("machine", "")),
        "folder": str(folder),
    }
    has_layers = not run.precision  # a transformer has its own
    counts = {name: getattr(run, name) for name in _COUNTS if name != "num_layers" or has_layers}
    return Row(root.name, values | {name: str(count) for name, count in counts.items() if count is not None}, 0)


def _nearest_calibration(folder: Path, root: Path) -> str:
    """Return the calibration in a folder or in one above it, up to the root; "" where there is none."""
    above = [folder, *folder.parents]
    for place in above[: above.index(root) + 1]:
        if (place / CALIBRATION_FILE).is_file():
            return str((place / CALIBRATION_FILE).resolve())
    return ""


def is_real(row: Row) -> bool:
    """Return whether a row is of real processes."""
    return "strategy" in row.values


def real_results(row: Row) -> Iterator[RowResult]:
    """Yield the result of a row.

    Raises:
        LackingError: the row lacks something, or a column is not known.
        MinitrainError: it cannot be simulated.
    """
    for name in row.values:
        if name not in COLUMNS:
            nearest = get_close_matches(name, COLUMNS, 1)
            hint = f'; nearest is "{nearest[0]}"' if nearest else ""
            raise LackingError(f'line {row.line}: there is no column "{name:.40}" of real runs{hint}')
    for name in ("strategy", "hardware", "step_time_s"):
        if not row.text(name):
            raise LackingError(
                f"{name} is empty, which a real run needs; hardware is a config, or a calibration.json in the folder"
            )
    given: dict[str, Any] = {name: row.count(name) for name in _COUNTS if row.text(name)}
    given |= {name: row.text(name) for name in _WORDS if row.text(name)}
    run = simulate(_from(row, row.text("strategy")), hardware=_from(row, row.text("hardware")), **given)
    has_memory = bool(row.text("peak_memory_bytes"))
    yield RowResult(
        table=row.table,
        row_id=row.row_id,
        about=f"{row.text('strategy')}, {run.world_size} ranks, {run.workload}",
        group=row.text("machine"),
        device=run.hardware,
        model=run.workload,
        world_size=run.world_size,
        measured_s=row.positive("step_time_s"),
        predicted_s=run.step_time,
        measured_bytes=row.positive("peak_memory_bytes") if has_memory else None,
        predicted_bytes=run.peak_memory_bytes if has_memory else None,
        memory_kind="allocated" if has_memory else "",
        interval_s=run.interval,
    )


def _from(row: Row, name: str) -> str:
    """Return a name, or the path of a file of that name beside the row's table."""
    path, separator, rest = name.partition(":")
    beside = Path(row.text("folder")) / path
    return f"{beside}{separator}{rest}" if path.endswith((".py", ".json")) and beside.is_file() else name


def write_rows(path: StrPath, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table of real runs."""
    text = io.StringIO()
    table = csv.DictWriter(text, [name for name in COLUMNS if name != "folder"], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(Path(path), [text.getvalue()])
