"""Configurations as one HTML page that opens without internet, those of a sweep or of a search, and as tables.

A page has parallel coordinates and a scatter plot, on canvases, since there may be tens of thousands, and a table to
sort. A configuration that is clicked in any of them shows all of its figures, the command that simulates it, and what
was drawn of it. `configurations.js` draws all that, and `minitrain.view.timeline` what its ranks do.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from minitrain.files import write_text
from minitrain.run.figures import TABLES, Column
from minitrain.run.parameters import command_of
from minitrain.search.sweeps.batches import Row, flat, succeeded
from minitrain.view.explanation_panel import table
from minitrain.view.timeline import timeline_script

_OF_SWEEPS = TABLES["page of a sweep"]
MOST_EVENTS = 400_000
"""The most events of a run that a page draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configurations:
    """What a page shows of some rows; `names` to `known` are of the rows that the table has.

    Args:
        options: by name, what each row has, as text: axes with a place for each word.
        figures: by name, the number of each row, None where there is none.
        fits: whether each row is one to choose.
        pace: the figure by which rows are quick.
        named: the rows of the table, in its order.
        names: what each of them is called.
        commands: what simulates each.
        columns: of the table: options, figures, and a head for the names.
        axes: of the parallel coordinates.
        x: what the scatter plot begins with, beside the pace.
        hue: the option that colours rows; the pace does if None.
        listed: how many rows the table shows at a time.
        front: rows that no other one beats.
        drawn: by place in the table: "picture" (of `minitrain.view.run_folder`), "parts" of the
            step (s), "memory" (GiB).
        known: by place in the table, what is known of a row beside options and figures.
    """

    options: Mapping[str, Sequence[str]]
    figures: Mapping[str, Sequence[float | None]]
    fits: Sequence[bool]
    pace: str
    named: Sequence[int]
    names: Sequence[str]
    commands: Sequence[str]
    columns: Sequence[str]
    axes: Sequence[str]
    x: str
    hue: str | None = None
    listed: int
    front: Sequence[int] = ()
    drawn: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    known: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """Return what the page's script takes, ready for JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        options = {name: _coded(texts) for name, texts in self.options.items()}
        return fields | {"options": options, "fits": list(map(int, self.fits))}


def write_page(
    path: Path, title: str, found: Configurations, above: Sequence[str], caption: str, below: str = ""
) -> Path:
    """Write the page of some configurations, and return its path.

    Args:
        path: where to.
        title: what they are of.
        found: what is shown of them.
        above: sentences below the title.
        caption: what the colours of the lines say.
        below: HTML below all.
    """
    return write_text(path, _page(title, found, above, caption, below))


def _page(title: str, found: Configurations, above: Sequence[str], caption: str, below: str) -> Iterator[str]:
    """Yield the page in pieces."""
    style, script = (Path(__file__).with_name(f"configurations.{end}").read_text("utf-8") for end in ("css", "js"))
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{style}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
    yield from (f"<p>{html.escape(sentence)}.</p>\n" for sentence in above)
    yield "<p>Click a line, a point or a row to see it; click a column's title to sort.</p>\n"
    yield f'<figure><figcaption>{caption}</figcaption><div class="wide"><div id="lines" class="plot"></div></div>'
    yield '</figure>\n<div class="plots"><figure><figcaption><label><select id="y"></select></label> over '
    ringed = "; ringed: nothing beats them" if found.front else ""
    yield f'<label><select id="x"></select></label>{ringed}</figcaption><div id="points" class="plot"></div></figure>\n'
    yield '<section id="details"></section></div>\n<div class="wide"><table id="table"></table></div>\n'
    text = json.dumps(found.data(), allow_nan=False).replace("<", "\\u003c")
    yield f'{below}<script id="data" type="application/json">{text}</script>\n<script>{script}</script>\n'
    if any(drawn.get("picture") for drawn in found.drawn.values()):
        yield f"<script type='module'>{timeline_script()}{_MOUNT}</script>\n"
    yield "</body></html>\n"


_MOUNT = "window.mountTimelines = mountTimelines; drawDetails();"


def _coded(texts: Sequence[str]) -> dict[str, Any]:
    """Return texts as indices into the distinct ones, and the distinct ones in their order."""
    kinds = sorted(set(texts), key=lambda text: (not text.isdigit(), int(text) if text.isdigit() else 0, text))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    return {"kinds": kinds, "codes": [numbers[text] for text in texts]}


def option_text(value: Any) -> str:
    """Return an option's value as text.

    >>> option_text(None), option_text(True), option_text(8)
    ('-', 'on', '8')
    """
    if value is None:
        return "-"
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def numbers_of(rows: Sequence[Row], columns: Sequence[Column]) -> dict[str, list[float | None]]:
    """Return the figures of rows that any of them has, by head, in five digits."""
    found = {column.head: list(map(partial(_number, column), rows)) for column in columns}
    return {head: numbers for head, numbers in found.items() if any(number is not None for number in numbers)}


def _number(column: Column, row: Row) -> float | None:
    number = column.number(row)
    return None if number is None else float(f"{number:.5g}")


def write_sweep_page(
    path: Path,
    rows: Sequence[Row],
    given: Sequence[Mapping[str, Any]],
    pictures: Mapping[int, Mapping[str, Any]],
    notes: Sequence[str] = (),
) -> Path:
    """Write the page of a sweep and return its path.

    Args:
        path: where to.
        rows: the rows of the sweep.
        given: the parameters and options that each row was simulated with.
        pictures: of runs, by the place of the row.
        notes: sentences about the rows.
    """
    title = f"{len(rows)} configurations: {len(succeeded(rows))} ok"
    return write_page(path, title, _of_sweep(rows, given, pictures), notes, "Each configuration, coloured by strategy")


def _of_sweep(
    rows: Sequence[Row], given: Sequence[Mapping[str, Any]], pictures: Mapping[int, Mapping[str, Any]]
) -> Configurations:
    """Return what the page shows of a sweep: all rows, the fastest first."""
    names = dict.fromkeys(name for parameters in given for name in parameters)
    varied = ["strategy", *(name for name in names if len({json.dumps(row.get(name)) for row in rows}) > 1)]
    options = {name: [option_text(row.get(name)) for row in rows] for name in (*varied, "status")}
    figures = {column.head: [_number(column, row) for row in rows] for column in _OF_SWEEPS}
    quickness, memory, *_ = figures
    paces = figures[quickness]
    named = sorted(range(len(rows)), key=lambda row: inf if (pace := paces[row]) is None else pace)
    return Configurations(
        options=options,
        figures=figures,
        fits=[row["status"] == "ok" for row in rows],
        pace=quickness,
        named=named,
        names=[", ".join(f"{name} {options[name][row]}" for name in varied) for row in named],
        commands=[command_of(str(rows[row]["strategy"]), given[row]) for row in named],
        columns=[*varied, *figures, "status"],
        axes=[*varied, *(name for name in list(figures)[:4] if any(number is not None for number in figures[name]))],
        x=memory,
        hue="strategy",
        listed=len(rows),
        drawn={place: {"picture": pictures[row]} for place, row in enumerate(named) if row in pictures},
        known={
            place: {name: value for name, value in flat(rows[row]).items() if value is not None}
            for place, row in enumerate(named)
        },
    )


def figures_of(row: Row) -> dict[str, float | None]:
    """Return the figures of a row as tables show them; None where a run failed.

    >>> figures_of({"step_time_s": 0.5, "peak_memory_bytes": 2**31, "global_batch_size": 64, "mfu": 0.25,
    ...     "bubble_fraction": 0.5, "exposed_comm_fraction": None})["samples/s"]
    128.0
    """
    return {column.head: column.number(row) for column in _OF_SWEEPS}


def html_of_rows(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return rows as an HTML table: the strategy, some parameters, and the figures."""
    columns, lines = ["strategy", *names, *(column.head for column in _OF_SWEEPS)], []
    for row in rows:
        cells = {**row, **{name: "-" if value is None else f"{value:.4g}" for name, value in figures_of(row).items()}}
        lines.append([html.escape("-" if cells.get(name) is None else str(cells[name])) for name in columns])
    return table("rows", list(map(html.escape, columns)), lines) if rows else ""
