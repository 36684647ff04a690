"""The CSV form of a schedule, as `torch.distributed.pipelining` dumps and loads it.

One row a rank, one cell an action (`2F0`), an idle slot empty, actions that shall overlap in one cell:
`(0F3;3B1)OVERLAP_F_B`. This is torch's format "compute_only". Files of its format "compute_comms" hold
communication beside it (`0SEND_F1`, `2UNSHARD`, `2REDUCE_GRAD` ...); such cells are left out when read, since
here communication follows from the order of the computation.

Source: torch 2.13, torch/distributed/pipelining/schedules.py, `_Action.from_str`, `_dump_csv` and
`_load_csv`.
"""

import csv
import io
import re
from collections.abc import Iterable

from minitrain.errors import UsageError
from minitrain.schedules.action import Action, Cell

Row = tuple[Cell, ...]

_FUSED = re.compile(r"\((.*)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"[0-9]+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB][0-9]+)")


def write_rows(rows: Iterable[Row]) -> str:
    """Return the CSV text of a schedule's rows, each line ended by a newline."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell_text(cell) for cell in row] for row in rows)
    return text.getvalue()


def read_rows(text: str) -> tuple[Row, ...]:
    """Read a schedule's rows from CSV text; empty lines at its end are no ranks.

    Raises:
        UsageError: if a cell has none of the known forms, or if there is no row.
    """
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise UsageError(f"the schedule is no CSV text: {error}") from error
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UsageError("the CSV text of a schedule needs one row a rank, but it is empty")
    return tuple(_read_row(rank, line) for rank, line in enumerate(lines))


def _cell_text(cell: Cell) -> str:
    """Return a cell's text: empty, one action, or a fused group."""
    text = ";".join(map(str, cell))
    return f"({text})OVERLAP_F_B" if len(cell) > 1 else text


def _read_row(rank: int, line: list[str]) -> Row:
    """Read one rank's cells, without those that communicate."""
    computing = ((column, text) for column, text in enumerate(line) if not _COMMUNICATION.fullmatch(text.strip()))
    return tuple(_read_cell(text.strip(), rank, column) for column, text in computing)


def _read_cell(text: str, rank: int, column: int) -> Cell:
    """Read one cell, and say where it is if it cannot be read."""
    try:
        return _cell(text)
    except UsageError as error:
        raise UsageError(f"row {rank}, cell {column} of the CSV: {error}", rank=rank, cell=column) from error


def _cell(text: str) -> Cell:
    """Read the text of one cell."""
    if not text:
        return ()
    fused = _FUSED.fullmatch(text)
    if fused is None:
        return (Action.from_text(text),)
    actions = tuple(Action.from_text(part.strip()) for part in fused[1].split(";"))
    if len(actions) < 2:
        raise UsageError(f"a fused cell needs two actions or more, but {text!r} has one; write it plainly")
    return actions
