"""Grades put into the table of students that a learning platform has exported: Canvas, Moodle, Gradescope, or any CSV.

Columns, order and other rows stay as they are, so that the platform takes the table back. An exercise has the column
that begins with its name, or a new one. A student is found by a cell, or by two neighbouring cells (first and last
name), whatever the case, the order and the signs between; else by a number of at least four digits in the name, as
platforms put into the names of files that they collect; else by the name without its numbers.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from minitrain.errors import UsageError
from minitrain.files import read_text
from minitrain.learn.classes import Row

_NUMBER = re.compile(r"\d{4,}")


def with_grades(path: str | os.PathLike[str], rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Return a table of students with a class's scores, and the submissions whose student is not in it, or not once.

    Of several submissions of a student to an exercise, the best counts.

    Args:
        path: the table, a CSV file whose first line names the columns.
        rows: the class.

    Raises:
        UsageError: there is no such table.
    """
    lines = _lines_of(path)
    places: defaultdict[str, set[int]] = defaultdict(set)
    for number, cells in enumerate(lines[1:], 1):
        for key in _keys_of(cells):
            places[key].add(number)
    best: defaultdict[str, dict[int, int]] = defaultdict(dict)  # by exercise and line
    lost = []
    for row in filter(_is_graded, rows):
        found = _found(row.student, places)
        if len(found) == 1:
            (line,) = found
            best[row.exercise][line] = max(row.score, best[row.exercise].get(line, 0))
        else:
            lost.append(row.file)
    for exercise, score_by_line in sorted(best.items()):
        column = _column(lines, exercise)
        for line, score in score_by_line.items():
            lines[line][column] = str(score)
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(lines)
    return written.getvalue().rstrip("\n"), lost


def _is_graded(row: Row) -> bool:
    return bool(row.exercise)


def _lines_of(path: str | os.PathLike[str]) -> list[list[str]]:
    """Return the lines of a table of students.

    Raises:
        UsageError: there is none.
    """
    try:
        lines = list(csv.reader(io.StringIO(read_text(path, "table of students").lstrip("\ufeff"))))
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"cannot read the table of students {path}: {error}; give a CSV file in UTF-8") from error
    if len(lines) < 2:
        raise UsageError(f"the table of students {path} has no students; its first line names the columns")
    return lines


def _keys_of(cells: Sequence[str]) -> Iterator[str]:
    """Yield what a student may be called."""
    for cell in cells:
        yield from _spellings(cell)
    for pair in pairwise(cells):
        yield from _spellings(" ".join(pair))


def _spellings(text: str) -> tuple[str, str]:
    """Return letters and digits alone, and the words in the order of the alphabet."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return "".join(words), " ".join(sorted(words))


def _found(student: str, places: dict[str, set[int]]) -> set[int]:
    """Return the lines that may be a student's."""
    keys = (_spellings(student), _NUMBER.findall(student), _spellings(_NUMBER.sub(" ", student)))
    found = ({line for key in some if key for line in places.get(key, ())} for some in keys)
    return next(filter(None, found), set())


def _column(lines: list[list[str]], exercise: str) -> int:
    """Return the column of an exercise, which is made if there is none; all lines reach it then."""
    heads = lines[0]
    column = next((place for place, head in enumerate(heads) if head.startswith(exercise)), len(heads))
    for cells in lines:
        cells.extend([""] * (column + 1 - len(cells)))
    heads[column] = heads[column] or exercise
    return column
