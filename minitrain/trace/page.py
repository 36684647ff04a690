"""Figures as HTML pages that open without internet, of one run or of several, and as what a notebook shows.

A page has its title and facts, then an explanation (`minitrain.trace.explanation_panel`) or a table, then the figure.
All but the figure is plain HTML, which wraps in a narrow window and is there even if Plotly's JavaScript is not.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minitrain.analysis.breakdown import breakdown
from minitrain.analysis.explanation import Explanation
from minitrain.analysis.labels import GIB, duration
from minitrain.analysis.memory_over_time import Journals
from minitrain.analysis.timeline import Timeline, Trace, as_timeline
from minitrain.errors import UsageError
from minitrain.files import write_text
from minitrain.trace.bars import make_bars
from minitrain.trace.comparison_figure import drawn_comparison
from minitrain.trace.drawing import Drawing, figure_json, page_json, plotly_script
from minitrain.trace.explanation_panel import Line, explanation_panel, lines_table, section
from minitrain.trace.gantt import MAX_BARS, drawn_bars
from minitrain.trace.layout import View
from minitrain.trace.link_panel import link_panel
from minitrain.trace.page_script import PAGE_SCRIPT, constants, payload
from minitrain.trace.page_style import STYLE
from minitrain.trace.svg import svg

PLOTLY_FILE = "plotly.min.js"
_SHARED = {"directory": PLOTLY_FILE, "parent": f"../{PLOTLY_FILE}"}
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "showTips": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}
PLOTLY_MIME = "application/vnd.plotly.v1+json"

Row = Mapping[str, str]
_BENEATH = ("peak by kind", "communication")


def write_html(
    path: str | Path,
    trace: Trace,
    view: View | None = None,
    include_plotlyjs: bool | str = True,
    journals: Journals = (),
) -> Path:
    """Write the figure of one run as an HTML page.

    Args:
        path: where to.
        trace: one log a rank, or columns.
        view: title, facts and units; plain ones if None.
        include_plotlyjs: True for a page that needs no other file; "directory" to share one "plotly.min.js" with
            the other pages of the folder, which is written there if it is missing; "parent" to share that of the
            folder above. A page whose file is missing says so.
        journals: every change of every store, for memory by kind, if they were kept.

    Returns:
        The path.
    """
    view = view or View()
    explained = Explanation(as_timeline(trace), view.bytes_per_element, view.step_end, journals=journals)
    bars = make_bars(explained.timeline, view.step_end, explained.gaps)
    drawing, num_fixed = drawn_bars(bars, view, journals, explained.critical_path)
    details = {**payload(bars, view), "numFixed": num_fixed} if len(bars) > MAX_BARS else None
    below = "" if view.links is None else link_panel(view.links)
    return write_page(
        path, drawing, view.title, include_plotlyjs, details, explanation_panel(explained), view.facts, below
    )


def write_compare_html(
    path: str | Path,
    traces: Mapping[str, Trace],
    views: Mapping[str, View] | None = None,
    *,
    title: str = "",
    table: Sequence[Row] | None = None,
    notes: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
    include_plotlyjs: bool | str = True,
) -> Path:
    """Write a comparison as an HTML page: a table of all runs above their figure.

    Args:
        path: where to.
        traces: one trace a name, drawn in this order.
        views: facts and units by name.
        title: what is compared.
        table: rows of column title -> text, the first column the name; made from the traces if None.
        notes: what to know of the table, a sentence each.
        links: address of a run's own page by name.
        include_plotlyjs: as for `minitrain.trace.page.write_html`.

    Returns:
        The path.
    """
    rows = comparison_rows(traces, views) if table is None else table
    drawing = drawn_comparison(traces, views, title)
    said = f"<p>{'<br>'.join(map(html.escape, notes))}</p>" if notes else ""
    body = f'<div class="wide">{html_table(rows, links or {})}</div>{said}'
    body += _time_of_runs(traces, views or {}, links or {})
    return write_page(path, drawing, title, include_plotlyjs, body=body)


def _time_of_runs(traces: Mapping[str, Trace], views: Mapping[str, View], links: Mapping[str, str]) -> str:
    """Return a bar a run: the mean of its ranks' time in each use, on one scale."""
    lines = []
    for name, trace in traces.items():
        split = breakdown(as_timeline(trace), views.get(name, View()).step_end)
        seconds = [float(part.mean()) if len(part) else 0.0 for part in (split.computing, split.exposed, split.waiting)]
        lines.append(Line(name, (seconds[0], seconds[1], seconds[2]), links.get(name, "")))
    longest = max((sum(line.seconds) for line in lines), default=0.0)
    bars = lines_table(lines, longest)
    return section([("Where the time goes, mean of all ranks", [bars])]) if bars else ""


def write_page(
    path: str | Path,
    figure: Drawing | Any,
    title: str,
    include_plotlyjs: bool | str = True,
    details: dict[str, Any] | None = None,
    body: str = "",
    facts: Sequence[str] = (),
    below: str = "",
) -> Path:
    """Write a figure as an HTML page.

    Args:
        path: where to.
        figure: a drawing, or a Plotly figure.
        title: the page's title.
        include_plotlyjs: as for `write_html`.
        details: the bars as columns, for a page that draws them when it is zoomed into; None for one that need not.
        body: HTML above the figure.
        facts: short texts below the title.
        below: HTML below the figure.
    """
    target = Path(path)
    head = _head(title, facts) + body
    if include_plotlyjs is True:
        return write_text(target, _page(figure, title, _plotlyjs(), details, head, below))
    if include_plotlyjs not in _SHARED:
        raise UsageError(
            f"include_plotlyjs must be True, 'directory' or 'parent', got {include_plotlyjs!r}: a page must open "
            "without internet"
        )
    shared = _SHARED[str(include_plotlyjs)]
    _share_plotlyjs(target.parent / shared)
    return write_text(target, _page(figure, title, [_missing(shared)], details, head, below))


def _head(title: str, facts: Sequence[str]) -> str:
    """Return the title and the facts below it."""
    texts = "".join(f"<span>{html.escape(fact)}</span> " for fact in facts)
    return (f"<h1>{html.escape(title)}</h1>\n" if title else "") + (f'<p class="facts">{texts}</p>\n' if texts else "")


def _missing(shared: str) -> str:
    """Return the reference to a shared script, and what is said if it is not there."""
    return (
        f'<script src="{shared}"></script>\n<p id="missing" hidden>The picture cannot be drawn: this page shares the '
        f"script <code>{shared}</code> with other pages, and there is no such file beside it. Copy that file too, at "
        "the same place from here. Or write a page that needs no other file: <code>minitrain trace show RUN</code> "
        "for one run, <code>minitrain compare</code> without <code>--shared-script</code> for several.</p>\n"
    )


def _page(
    figure: Any, title: str, plotlyjs: Iterable[str], details: dict[str, Any] | None, body: str, below: str
) -> Iterator[str]:
    """Yield the page in pieces."""
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title or "trace")}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body>\n{body}<div id='buttons'></div><div id='figure'></div>\n{below}"
    yield "<noscript><p>The picture is drawn by JavaScript, which is switched off.</p></noscript>\n"
    yield from plotlyjs
    yield f'<script id="data" type="application/json">{figure_json(figure)}</script>\n'
    yield f'<script id="details" type="application/json">{page_json(details)}</script>\n'
    values = "".join(
        f"const {name} = {page_json(value)};\n" for name, value in {"CONFIG": CONFIG, **constants()}.items()
    )
    yield f"<script>{values}{PAGE_SCRIPT}</script></body></html>\n"


def _plotlyjs() -> Iterator[str]:
    """Yield Plotly's JavaScript as a part of the page."""
    yield "<script>"
    yield plotly_script()
    yield "</script>\n"


def _share_plotlyjs(shared: Path) -> None:
    """Write Plotly's JavaScript to a file that several pages share, unless it is there already."""
    code = plotly_script()
    if not shared.exists() or shared.read_text(encoding="utf-8") != code:
        write_text(shared, [code])


def comparison_rows(traces: Mapping[str, Trace], views: Mapping[str, View] | None = None) -> list[Row]:
    """Return a row a run: step time, the shares of all ranks' time, and peak memory; the bubble is their waiting."""
    rows: list[Row] = []
    for name, trace in traces.items():
        timeline, view = as_timeline(trace), (views or {}).get(name, View())
        split = breakdown(timeline, view.step_end)
        peak = timeline.memory.max(initial=0.0) * view.bytes_per_element / GIB
        rows.append(
            {
                "strategy": name,
                "step time": duration(split.step_time_s),
                "computing": f"{split.computing_fraction:.1%}",
                "exposed communication": f"{split.exposed_comm_fraction:.1%}",
                "bubble": f"{split.bubble_fraction:.1%}",
                "peak memory": f"{peak:.4g} GiB",
            }
        )
    return rows


def html_table(rows: Sequence[Row], links: Mapping[str, str]) -> str:
    """Return rows as an HTML table; names with a link lead to their run's own page.

    What is a list of figures has a line of its own beneath its row, where it is not squeezed into a narrow column.
    """
    if not rows:
        return ""
    columns = [column for column in rows[0] if column not in _BENEATH]
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(_lines_of(row, len(columns), links) for row in rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n"


def _lines_of(row: Row, num_columns: int, links: Mapping[str, str]) -> str:
    """Return a row, and beneath it what is said of it at length."""
    cells = _cells([value for column, value in row.items() if column not in _BENEATH], num_columns, links)
    said = "; ".join(f"{column}: {html.escape(row[column])}" for column in _BENEATH if row.get(column))
    if not said:
        return f"<tr>{cells}</tr>\n"
    beneath = f'<td class="rest beneath" colspan="{num_columns}"><div>{said}</div></td>'
    return f'<tr class="more">{cells}</tr>\n<tr>{beneath}</tr>\n'


def _cells(values: list[str], num_columns: int, links: Mapping[str, str]) -> str:
    """Return the cells of one row; the text of a row that ends early, such as an error, takes the rest of it."""
    texts = [html.escape(value) for value in values]
    if values[0] in links:
        texts[0] = f'<a href="{html.escape(links[values[0]])}">{texts[0]}</a>'
    last = max((place for place, value in enumerate(values) if value), default=0)
    if not 0 < last < num_columns - 1:
        return "".join(f"<td>{text}</td>" for text in texts)
    cells = "".join(f"<td>{text}</td>" for text in texts[:last])
    return f'{cells}<td class="rest" colspan="{num_columns - last}">{texts[last]}</td>'


def mime_bundle(timeline: Timeline, view: View, journals: Journals = ()) -> dict[str, Any]:
    """Return the forms in which a notebook can show a run, by MIME type.

    They are the interactive figure, and an SVG for notebooks that cannot draw Plotly's. Both need no internet. Of a run
    with more than `MAX_BARS` bars there is no SVG.
    """
    bars = make_bars(timeline, view.step_end)
    figure = json.loads(figure_json(drawn_bars(bars, view, journals)[0]))
    bundle: dict[str, Any] = {PLOTLY_MIME: {**figure, "config": CONFIG}}
    if len(bars) <= MAX_BARS:
        bundle["text/html"] = svg(timeline, view)
    return bundle
