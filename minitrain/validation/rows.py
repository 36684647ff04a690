"""Rows of a table of measurements, with errors for values that are missing.

A table is a CSV file in the common columns that `docs/accuracy.md` lists, or in those of one of the tables beside this
file. Nothing is guessed: a value that is missing, or that is no number, makes the row one that cannot be simulated,
with its reason.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from minitrain.errors import UsageError

_LEADING_NUMBER = re.compile(r"\s*([-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)")
_MOST_CHARACTERS = 1 << 20  # of one field


@final
class LackingError(Exception):
    """A row lacks what the model needs; its text says what."""


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One measurement as its table has it.

    Args:
        table: what the table is called.
        values: text by column.
        line: its line in the file, from 2.
    """

    table: str
    values: Mapping[str, str]
    line: int

    @property
    def row_id(self) -> str:
        """What the row is called: its own id, or its place in the file."""
        return self.text("row_id") or self.text("case") or f"{self.table}-{self.line}"

    def text(self, column: str) -> str:
        """Return a value, or "" where the table has none."""
        return (self.values.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Return the number that a value begins with, or None."""
        found = _LEADING_NUMBER.match(self.text(column))
        return float(found.group(1)) if found else None

    def count(self, column: str, default: int | None = None) -> int:
        """Return a number of things, at least 1.

        Raises:
            LackingError: there is none, and no default.
        """
        value = self.number(column)
        if value is None and default is not None:
            return default
        if value is None or value < 1 or value != int(value):
            raise LackingError(f"{column} is {self.text(column)!r}, where a whole number of at least 1 is needed")
        return int(value)

    def positive(self, column: str) -> float:
        """Return a number above 0.

        Raises:
            LackingError: there is none.
        """
        value = self.number(column)
        if value is None or not value > 0:
            raise LackingError(f"{column} is {self.text(column)!r}, where a number above 0 is needed")
        return value


def read_rows(path: str | os.PathLike[str], table: str | None = None) -> list[Row]:
    """Return the rows of a CSV file.

    Args:
        path: the file; its first line names the columns.
        table: what the table is called; the file's name without ".csv" if None.

    Raises:
        UsageError: the file cannot be read as such a table.
    """
    file = Path(path)
    csv.field_size_limit(_MOST_CHARACTERS)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            found = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read the table {file}: {error}; give a CSV file in UTF-8") from error
    name = table or file.stem
    return [Row(name, _strings(values), line) for line, values in enumerate(found, 2)]


def _strings(values: Mapping[Any, Any]) -> dict[str, str]:
    """Return the columns that have a name; a row with more values than columns keeps those that have one."""
    return {name: value or "" for name, value in values.items() if isinstance(name, str)}
