"""A comparison as one HTML file: a table of all runs above their figure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from minitrain.analysis.breakdown import breakdown
from minitrain.analysis.labels import duration
from minitrain.analysis.timeline import Trace, as_timeline
from minitrain.trace.compare import compare_figure
from minitrain.trace.page import write_page
from minitrain.trace.texts import GIB
from minitrain.trace.view import View

Row = Mapping[str, str]


def write_compare_html(
    path: str | Path,
    traces: Mapping[str, Trace],
    views: Mapping[str, View] | None = None,
    *,
    title: str = "",
    table: Sequence[Row] | None = None,
    links: Mapping[str, str] | None = None,
    include_plotlyjs: bool | str = True,
) -> Path:
    """Write a comparison as a page.

    Args:
        path: where to.
        traces: one trace a name, drawn in this order.
        views: facts and units by name.
        title: what is compared.
        table: rows of column title -> text, the first column the name; made from the traces if None.
        links: address of a run's own page by name.
        include_plotlyjs: as for `minitrain.trace.page.write_html`.

    Returns:
        The path.
    """
    rows = comparison_rows(traces, views) if table is None else table
    figure = compare_figure(traces, views, title)
    return write_page(path, figure, title, include_plotlyjs, body=html_table(rows, links or {}))


def comparison_rows(traces: Mapping[str, Trace], views: Mapping[str, View] | None = None) -> list[Row]:
    """Return a row a run: step time, where it goes, and peak memory; shares are of all ranks' time."""
    rows: list[Row] = []
    for name, trace in traces.items():
        timeline, view = as_timeline(trace), (views or {}).get(name, View())
        split = breakdown(timeline, view.step_time)
        peak = timeline.memory.max(initial=0.0) * view.bytes_per_element / GIB
        rows.append(
            {
                "strategy": name,
                "step time": duration(split.step_time_s),
                "computing": f"{split.computing_fraction:.1%}",
                "exposed communication": f"{split.exposed_comm_fraction:.1%}",
                "waiting": f"{split.bubble_fraction:.1%}",
                "peak memory": f"{peak:.4g} GiB",
            }
        )
    return rows


def html_table(rows: Sequence[Row], links: Mapping[str, str]) -> str:
    """Return rows as an HTML table; names with a link lead to their run's own page."""
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in rows[0])
    body = "".join(f"<tr>{_cells(list(row.values()), links)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n"


def _cells(values: list[str], links: Mapping[str, str]) -> str:
    """Return the cells of one row."""
    texts = [html.escape(value) for value in values]
    if values[0] in links:
        texts[0] = f'<a href="{html.escape(links[values[0]])}">{texts[0]}</a>'
    return "".join(f"<td>{text}</td>" for text in texts)
