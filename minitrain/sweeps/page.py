"""A sweep as one HTML page that opens without internet: a table to sort, a scatter plot, and parallel coordinates.

A row that is clicked, in any of the three, shows all of its figures, and the picture of its run where one was made. For
the others, it shows the command that makes it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minitrain.analysis.labels import GIB
from minitrain.files import write_text
from minitrain.run.command_line import command_of
from minitrain.sweeps.batches import Row, flat, succeeded
from minitrain.sweeps.page_script import SCRIPT, STYLE

_FIGURES = ("step ms", "peak GiB", "samples/s", "MFU %", "bubble %", "comm %")


def write_sweep_page(
    path: str | Path,
    rows: Sequence[Row],
    given: Sequence[Mapping[str, Any]],
    pictures: Mapping[int, str],
    notes: Sequence[str] = (),
) -> Path:
    """Write the page and return its path.

    Args:
        path: where to.
        rows: the rows of the sweep.
        given: the parameters and options that each row was simulated with.
        pictures: SVG of a run by the place of its row.
        notes: sentences about the rows.
    """
    return write_text(path, _page(rows, given, pictures, notes))


def _page(
    rows: Sequence[Row], given: Sequence[Mapping[str, Any]], pictures: Mapping[int, str], notes: Sequence[str]
) -> Iterator[str]:
    """Yield the page in pieces."""
    names = _varied(rows, given)
    title = f"{len(rows)} configurations: {len(succeeded(rows))} ok"
    data = {
        "columns": ["strategy", *names, *_FIGURES, "status"],
        "varied": ["strategy", *names],
        "figures": _FIGURES,
        "rows": [_shown(row, names, given[place], pictures.get(place)) for place, row in enumerate(rows)],
    }
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
    yield "<p>Click a point, a line or a row for its figures and its picture; click a column's title to sort.</p>\n"
    yield from (f"<p>{html.escape(note)}.</p>\n" for note in notes)
    yield '<div class="plots"><figure><figcaption>Each configuration: <label><select id="y"></select></label> over '
    yield '<label><select id="x"></select></label></figcaption><svg id="scatter"></svg></figure>\n'
    yield '<figure><figcaption id="lines">Parallel coordinates</figcaption><svg id="parallel"></svg></figure></div>\n'
    yield '<section id="details" hidden></section>\n<div class="wide"><table id="table"></table></div>\n'
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    yield f'<script id="data" type="application/json">{text}</script>\n<script>{SCRIPT}</script></body></html>\n'


def _varied(rows: Sequence[Row], given: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the parameters and options that are not the same in all rows."""
    names = dict.fromkeys(name for parameters in given for name in parameters)
    return [name for name in names if len({json.dumps(row.get(name)) for row in rows}) > 1]


def _shown(row: Row, names: Sequence[str], given: Mapping[str, Any], picture: str | None) -> dict[str, Any]:
    """Return what the page shows of a row: cells by column, all that is known, its command and its picture."""
    cells = {"strategy": row["strategy"], **{name: row.get(name) for name in names}, "status": row["status"]}
    known = {name: value for name, value in flat(row).items() if value is not None}
    command = command_of(str(row["strategy"]), given)
    return {"cells": cells | figures_of(row), "known": known, "command": command, "picture": picture}


def figures_of(row: Row) -> dict[str, float | None]:
    """Return the figures of a row as tables show them; None where a run failed.

    >>> figures_of({"step_time_s": 0.5, "peak_memory_bytes": 2**31, "global_batch_size": 64, "mfu": 0.25,
    ...     "bubble_fraction": 0.5, "exposed_comm_fraction": None})["samples/s"]
    128.0
    """
    step, peak = row["step_time_s"], row.get("needed_memory_bytes") or row["peak_memory_bytes"]
    shares = (row["mfu"], row["bubble_fraction"], row["exposed_comm_fraction"])
    figures = (
        None if step is None else step * 1e3,
        None if peak is None else peak / GIB,
        row["global_batch_size"] / step if step else None,
        *(None if share is None else share * 100 for share in shares),
    )
    return dict(zip(_FIGURES, figures, strict=True))


def html_of_rows(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return rows as an HTML table: the strategy, some parameters, and the figures."""
    columns = ["strategy", *names, *_FIGURES]
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = ""
    for row in rows:
        cells = {**row, **{name: "-" if value is None else f"{value:.4g}" for name, value in figures_of(row).items()}}
        body += f"<tr>{''.join(f'<td>{html.escape(_text(cells.get(column)))}</td>' for column in columns)}</tr>\n"
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n" if rows else ""


def _text(value: Any) -> str:
    """Return the text of a cell."""
    return "-" if value is None else str(value)
