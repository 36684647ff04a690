"""A sweep as one HTML page that opens without internet: a table to sort, a scatter plot, and parallel coordinates.

A row that is clicked, in any of the three, shows all of its figures, and the picture of its run where one was made. For
the others, it shows the command that makes it.
"""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minitrain.analysis.labels import GIB
from minitrain.files import write_text
from minitrain.run.comparison import FailedRun
from minitrain.run.parameters import DEFAULTS
from minitrain.run.strategy_loading import split_options
from minitrain.sweeps.batches import Row, succeeded
from minitrain.sweeps.page_script import SCRIPT, STYLE

_OF_EVERY_ROW = {*FailedRun("", {}, Exception()).summary(), "status"}
_FLAGS = {
    "world_size": "--world-size",
    "num_layers": "--layers",
    "global_batch_size": "--batch",
    "hardware": "--hw",
    "network": "--network",
    "microbatch_size": "--microbatch",
}
_FIGURES = ("step ms", "peak GiB", "samples/s", "MFU %", "bubble %", "comm %")


def write_sweep_page(path: str | Path, rows: Sequence[Row], pictures: Mapping[int, str]) -> Path:
    """Write the page and return its path.

    Args:
        path: where to.
        rows: the rows of the sweep.
        pictures: SVG of a run by the place of its row.
    """
    return write_text(path, _page(rows, pictures))


def _page(rows: Sequence[Row], pictures: Mapping[int, str]) -> Iterator[str]:
    """Yield the page in pieces."""
    names = _varied(rows)
    title = f"{len(rows)} configurations: {len(succeeded(rows))} ok"
    data = {
        "columns": ["strategy", *names, *_FIGURES, "status"],
        "varied": ["strategy", *names],
        "figures": _FIGURES,
        "rows": [_shown(row, names, pictures.get(place)) for place, row in enumerate(rows)],
    }
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
    yield "<p>Click a point, a line or a row for its figures and its picture; click a column's title to sort.</p>\n"
    yield '<div class="plots"><figure><figcaption>Each configuration: <label><select id="y"></select></label> over '
    yield '<label><select id="x"></select></label></figcaption><svg id="scatter"></svg></figure>\n'
    yield '<figure><figcaption id="lines">Parallel coordinates</figcaption><svg id="parallel"></svg></figure></div>\n'
    yield '<section id="details" hidden></section>\n<div class="wide"><table id="table"></table></div>\n'
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    yield f'<script id="data" type="application/json">{text}</script>\n<script>{SCRIPT}</script></body></html>\n'


def _varied(rows: Sequence[Row]) -> list[str]:
    """Return the parameters and options that are not the same in all rows."""
    given = dict.fromkeys(name for row in rows for name in row if name in DEFAULTS or name not in _OF_EVERY_ROW)
    return [name for name in given if len({json.dumps(row.get(name)) for row in rows}) > 1]


def _shown(row: Row, names: Sequence[str], picture: str | None) -> dict[str, Any]:
    """Return what the page shows of a row: cells by column, all that is known, its command and its picture."""
    cells = {"strategy": row["strategy"], **{name: row.get(name) for name in names}, "status": row["status"]}
    known = {name: value for name, value in row.items() if value is not None}
    return {"cells": cells | figures_of(row), "known": known, "command": command_of(row), "picture": picture}


def figures_of(row: Row) -> dict[str, float | None]:
    """Return the figures of a row as tables show them; None where a run failed.

    >>> figures_of({"step_time_s": 0.5, "peak_memory_bytes": 2**31, "global_batch_size": 64, "mfu": 0.25,
    ...     "bubble_fraction": 0.5, "exposed_comm_fraction": None})["samples/s"]
    128.0
    """
    step, peak = row["step_time_s"], row["peak_memory_bytes"]
    shares = (row["mfu"], row["bubble_fraction"], row["exposed_comm_fraction"])
    figures = (
        None if step is None else step * 1e3,
        None if peak is None else peak / GIB,
        row["global_batch_size"] / step if step else None,
        *(None if share is None else share * 100 for share in shares),
    )
    return dict(zip(_FIGURES, figures, strict=True))


def command_of(row: Row) -> str:
    """Return the command that simulates the configuration of a row, and writes its page."""
    words = ["minitrain", "run", str(row["strategy"])]
    for name, flag in _FLAGS.items():
        if row.get(name) is not None and row[name] != DEFAULTS.get(name):
            words += [flag, str(row[name])]
    own = split_options(row["strategy"])[1]
    options = [name for name in row if name not in _OF_EVERY_ROW and name not in DEFAULTS and name not in _FLAGS]
    for name in options:
        if name not in own:
            words += ["-o", f"{name}={row[name]}"]
    return shlex.join(words)
