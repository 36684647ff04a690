"""How far predictions are off: one value a row, and a summary a table.

The tables of measurements in the package: `tables.json` says what each holds, and what was fitted on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError
from minitrain.evidence.rows import Row, read_rows
from minitrain.files import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """A row, measured and predicted.

    Args:
        table: the table that it is from.
        row_id: its row there.
        about: what tables call it.
        group: which figure of the table it belongs to: one table may hold several, such as step times by device.
        device: the hardware config.
        model: what is trained.
        world_size: ranks.
        measured_s: the measured time, s; None where the row has memory alone.
        predicted_s: the predicted time, s.
        measured_bytes: the measured peak memory of a device; None where the row has none.
        predicted_bytes: the predicted one.
        memory_kind: what the measured memory counts: "allocated", "reserved" or "device".
        platform: the platform whose prices these are; None for components alone.
        assumed: what the row does not say, and was taken as the framework's default.
        unread: its words and columns that are not known, and were not read.
        terms: what the predicted time is made of, s.
        kind: of its model; "" of parts of a step, and where layers were measured.
        axes: sizes by name of the axes of its layout; "fsdp" is how many ranks share weights or gradients.
        framework: what trained it; "" where that is not told.
        interval_s: where a calibration says that the measured time lies, s; None without one.
    """

    table: str
    row_id: str
    about: str
    group: str
    device: str
    model: str
    world_size: int
    measured_s: float | None = None
    predicted_s: float | None = None
    measured_bytes: float | None = None
    predicted_bytes: float | None = None
    memory_kind: str = ""
    platform: str | None = None
    assumed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    terms: Mapping[str, float] = field(default_factory=dict, hash=False)
    kind: str = ""
    axes: Mapping[str, int] = field(default_factory=dict, hash=False)
    framework: str = ""
    interval_s: tuple[float, float] | None = None

    @property
    def is_in_interval(self) -> bool | None:
        """Return whether the measured time lies in the interval of its prediction; None without both."""
        if self.interval_s is None or self.measured_s is None:
            return None
        return self.interval_s[0] <= self.measured_s <= self.interval_s[1]

    @property
    def parallelism(self) -> str:
        """Return the axes along which its model is divided: "tp pp"; "dp" where every rank has all of it."""
        return " ".join(axis for axis, size in self.axes.items() if size > 1) or "dp"

    @property
    def error(self) -> float | None:
        """Return predicted over measured time, less one; None without a time."""
        return _error(self.predicted_s, self.measured_s)

    @property
    def memory_error(self) -> float | None:
        """Return predicted over measured memory, less one; None without memory."""
        return _error(self.predicted_bytes, self.measured_bytes)

    def summary(self) -> dict[str, Any]:
        """Return the row as plain values, as `validate --json` prints it."""
        found: dict[str, Any] = {
            "parallelism": self.parallelism if self.axes else None,
            **{name: getattr(self, name) or None for name in ("framework", "memory_kind")},
            **{name: list(getattr(self, name)) for name in ("assumed", "unread")},
            "interval_s": self.interval_s and list(self.interval_s),
            "terms": dict(self.terms),
        }
        return {name: found[name] if name in found else getattr(self, name) for name in _SUMMARY}


_SUMMARY = (
    *("table", "row_id", "group", "about", "device", "model", "world_size", "framework", "parallelism", "platform"),
    *("measured_s", "predicted_s", "error", "interval_s", "measured_bytes", "predicted_bytes", "memory_error"),
    *("memory_kind", "assumed", "unread", "terms"),
)
"""What `validate --json` prints of a row."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was not simulated, and why.

    Args:
        table: the table that it is from.
        row_id: its row there.
        reason: why, in words.
        line: its line in the file, from 2; 0 where nobody knows.
    """

    table: str
    row_id: str
    reason: str
    line: int = 0

    def summary(self) -> dict[str, Any]:
        """Return the row as plain values, as `validate --json` prints it: `skipped` is the reason."""
        return {"table": self.table, "row_id": self.row_id, "line": self.line, "skipped": self.reason}


@dataclass(frozen=True, slots=True)
class Summary:
    """The errors of some rows.

    Args:
        num_runs: how many.
        mean: of their absolute values.
        median: of their absolute values.
        p90: the absolute value that nine in ten do not exceed.
        bias: the mean error; positive where predictions are too long.
    """

    num_runs: int
    mean: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class TableErrors:
    """The errors of a table, or of one figure of it.

    Args:
        table: its name.
        group: which figure; "" for all.
        of: "time", or what memory counts.
        errors: the summary.
        fitted: what was fitted on it; "" for nothing.
    """

    table: str
    group: str
    of: str
    errors: Summary
    fitted: str

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "table": self.table,
            "group": self.group or None,
            "of": self.of,
            **asdict(self.errors),
            "fitted": self.fitted or None,
        }


def summarize(errors: Sequence[float]) -> Summary | None:
    """Return the summary of some errors, or None for none.

    Example:
        >>> summarize([0.1, -0.3])
        Summary(num_runs=2, mean=0.2, median=0.2, p90=0.3, bias=-0.1)
    """
    if not errors:
        return None
    sizes = sorted(map(abs, errors))
    place = max(0, -(-len(sizes) * 9 // 10) - 1)
    return Summary(len(sizes), fmean(sizes), median(sizes), sizes[place], round(fmean(errors), 12))


def time_errors(rows: Iterable[RowResult]) -> list[float]:
    """Return the errors of the rows that have a time."""
    return [row.error for row in rows if row.error is not None]


def memory_errors(rows: Iterable[RowResult], kind: str) -> list[float]:
    """Return the errors of the rows that have memory of a kind."""
    return [row.memory_error for row in rows if row.memory_error is not None and row.memory_kind == kind]


def _error(predicted: float | None, measured: float | None) -> float | None:
    """Return a relative error."""
    return None if predicted is None or measured is None else predicted / measured - 1


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of measurements.

    Args:
        name: what it is called here.
        about: what was measured.
        fitted: what was fitted on it, in words; "" for nothing, "blind" where no rule was chosen by it either.
        lacks: what it does not say, and was not guessed; "" for nothing.
    """

    name: str
    about: str
    fitted: str = ""
    lacks: str = ""


TABLES: Mapping[str, PublishedTable] = MappingProxyType(
    {name: PublishedTable(name, **told) for name, told in read_json(Path(__file__).with_name("tables.json")).items()}
)
"""The tables by name, in the order of the report."""


def tables_folder() -> Path:
    """Return the folder of the package's tables."""
    return Path(str(resources.files("minitrain.evidence").joinpath("tables")))


def rows_of(names: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of some tables of the package, or of all.

    Raises:
        UsageError: there is no such table.
    """
    wanted = list(TABLES) if names is None else list(names)
    for name in wanted:
        if name not in TABLES:
            raise UsageError(f"there is no table {name!r:.40}; use {', '.join(TABLES)}")
    return [row for name in wanted for row in read_rows(tables_folder() / f"{name}.csv", name)]
