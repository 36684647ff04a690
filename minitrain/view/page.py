"""Runs as HTML pages that open without internet, one or several, and as what a notebook shows.

A page has its title and facts, then an explanation (`minitrain.view.explanation_panel`) or a table, then the timeline
(`minitrain.view.timeline`). All but the picture is plain HTML, which wraps in a narrow window and is there even if no
script runs. A page of curves has a Plotly figure, and its JavaScript, in the place of the timeline.

`page.css` is its style in light and dark mode and in narrow windows, `page.js` draws the figure.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.files import write_text
from minitrain.run.analysis.breakdown import breakdown
from minitrain.run.analysis.explanation import Explanation
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.analysis.memory_over_time import Journals
from minitrain.run.analysis.timeline import Timeline, Trace, as_timeline
from minitrain.view.bars import USES, Bars, make_bars
from minitrain.view.explanation_panel import Line, explanation_panel, lines_table, section
from minitrain.view.layout import OUT_OF_MEMORY, Drawing, View, figure_json, link_panel, page_json, plotly_script
from minitrain.view.timeline import timeline_data, timeline_script

_SCRIPT, _OWN_STYLE = (Path(__file__).with_suffix(end).read_text("utf-8") for end in (".js", ".css"))
_LIGHT, _DARK = (
    "".join(f"--{name}: {color}; " for name, color in zip(("computing", "exposed", "idle"), colors, strict=True))
    for colors in ([use.color for use in USES], [use.dark for use in USES])
)
STYLE = f":root {{ {_LIGHT}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {_DARK}}} }}\n{_OWN_STYLE}"


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
        include_plotlyjs: True, "directory" or "parent"; the page has no script of Plotly's, so all give the same one.
        journals: every change of every store, for memory by kind, if they were kept.

    Returns:
        The path.
    """
    view = view or View()
    _shared_script(include_plotlyjs)
    explained, bars = _explained(trace, view, journals)
    below = "" if view.links is None else link_panel(view.links)
    body = view.panel + explanation_panel(explained, view)
    picture = {"name": "", "data": timeline_data(bars, view, explained, journals)}
    return write_timelines(path, [picture], view.title, body, view.facts, below)


def _explained(trace: Trace, view: View, journals: Journals) -> tuple[Explanation, Bars]:
    """Return why the ranks of a run wait, and its bars."""
    found = Explanation(as_timeline(trace), view.bytes_per_element, view.step_end, journals=journals)
    return found, make_bars(found.timeline, view.step_end, found.gaps)


def write_timelines(
    path: str | Path,
    pictures: Sequence[Mapping[str, Any]],
    title: str,
    body: str = "",
    facts: Sequence[str] = (),
    below: str = "",
) -> Path:
    """Write timelines as an HTML page that needs no other file.

    Args:
        path: where to.
        pictures: as for `timeline_section`.
        title: the page's title.
        body: HTML above them.
        facts: short texts below the title.
        below: HTML below them.
    """
    return write_words(path, title, f"{body}{timeline_section(pictures)}{below}{_NO_SCRIPT}", facts)


def write_words(path: str | Path, title: str, body: str, facts: Sequence[str] = ()) -> Path:
    """Write an HTML page that needs no other file.

    Args:
        path: where to.
        title: the page's title.
        body: its HTML.
        facts: short texts below the title.
    """
    return write_text(path, [*_beginning(title), f"{_head(title, facts)}{body}</body></html>\n"])


def timeline_section(pictures: Sequence[Mapping[str, Any]]) -> str:
    """Return timelines on one time axis as HTML that needs no other file.

    Args:
        pictures: for each the name of its run, and its `minitrain.view.timeline.timeline_data`; as `mountTimelines` of
            the script takes them.
    """
    return (
        f'<div id="timeline"></div><script id="timeline-data" type="application/json">{page_json(pictures)}</script>\n'
        f"<script type='module'>{timeline_script()}{_MOUNT}</script>\n"
    )


_MOUNT = """
const pictures = JSON.parse(document.getElementById('timeline-data').textContent);
window.timelines = await mountTimelines(document.getElementById('timeline'), pictures);
window.timeline = timelines[0];
document.body.dataset.ready = 'yes';
"""
_NO_SCRIPT = "<noscript><p>The picture is drawn by JavaScript, which is switched off.</p></noscript>\n"


def write_compare_html(
    path: str | Path,
    traces: Mapping[str, Trace],
    views: Mapping[str, View] | None = None,
    *,
    title: str = "",
    table: Sequence[Row] | None = None,
    notes: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
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

    Returns:
        The path.
    """
    rows = comparison_rows(traces, views) if table is None else table
    pictures = [run_picture(name, trace, (views or {}).get(name, View())) for name, trace in traces.items()]
    said = f"<p>{'<br>'.join(map(html.escape, notes))}</p>" if notes else ""
    body = f'<div class="wide">{html_table(rows, links or {})}</div>{said}'
    body += _time_of_runs(traces, views or {}, links or {})
    return write_timelines(path, pictures, title, body)


def run_picture(
    name: str, trace: Trace, view: View, marks: Sequence[Mapping[str, Any]] = (), journals: Journals = ()
) -> dict[str, Any]:
    """Return a run for `timeline_section`.

    Args:
        name: what it is called beside the others.
        trace: one log a rank, or columns.
        view: facts and units.
        marks: frames around operations, as `mountTimeline` of the script takes them.
        journals: every change of every store, for memory by kind, if they were kept.
    """
    explained, bars = _explained(trace, view, journals)
    facts = view.subtitle or f"step {duration(bars.step_end)}"
    return {"name": name, "facts": facts, "data": timeline_data(bars, view, explained, journals), "marks": marks}


def frame(name: str, rank: int, start: float, end: float, color: str, text: str) -> dict[str, Any]:
    """Return a frame around an operation, for `run_picture`; frames of one name belong together."""
    return {"name": name, "rank": rank, "start": start, "end": end, "color": color, "text": text}


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
    body: str = "",
    facts: Sequence[str] = (),
    below: str = "",
) -> Path:
    """Write a figure as an HTML page.

    Args:
        path: where to.
        figure: a drawing, or a Plotly figure.
        title: the page's title.
        include_plotlyjs: True for a page that needs no other file; "directory" to share one "plotly.min.js" with
            the other pages of the folder, which is written there if it is missing; "parent" to share that of the
            folder above. A page whose file is missing says so.
        body: HTML above the figure.
        facts: short texts below the title.
        below: HTML below the figure.
    """
    target = Path(path)
    head = _head(title, facts) + body
    if include_plotlyjs is True:
        script = ("<script>", plotly_script(), "</script>\n")
        return write_text(target, _page(figure, title, script, head, below))
    shared = _shared_script(include_plotlyjs)
    _share_plotlyjs(target.parent / shared)
    return write_text(target, _page(figure, title, [_missing(shared)], head, below))


def _shared_script(include_plotlyjs: bool | str) -> str:
    """Return the path of the shared script as seen from a page; "" where each page has its own."""
    if include_plotlyjs is True:
        return ""
    if include_plotlyjs not in _SHARED:
        raise UsageError(
            f"include_plotlyjs must be True, 'directory' or 'parent', got {include_plotlyjs!r}: a page must open "
            "without internet"
        )
    return _SHARED[str(include_plotlyjs)]


def _head(title: str, facts: Sequence[str]) -> str:
    """Return the title and the facts below it."""
    texts = "".join(
        f"<span{' class=lacks' if OUT_OF_MEMORY in fact else ''}>{html.escape(fact)}</span> " for fact in facts
    )
    return (f"<h1>{html.escape(title)}</h1>\n" if title else "") + (f'<p class="facts">{texts}</p>\n' if texts else "")


def _missing(shared: str) -> str:
    """Return the reference to a shared script, and what is said if it is not there."""
    return (
        f'<script src="{shared}"></script>\n<p id="missing" hidden>The picture cannot be drawn: this page shares the '
        f"script <code>{shared}</code> with other pages, and there is no such file beside it. Copy that file too, at "
        "the same place from here. Or write a page that needs no other file: <code>minitrain trace show RUN</code> "
        "writes one of a run.</p>\n"
    )


def _beginning(title: str) -> Iterator[str]:
    """Yield the head of a page."""
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title or "trace")}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body>\n"


def _page(figure: Any, title: str, plotlyjs: Iterable[str], body: str, below: str) -> Iterator[str]:
    """Yield the page of a Plotly figure in pieces."""
    yield from _beginning(title)
    yield f"{body}<div id='figure'></div>\n{below}{_NO_SCRIPT}"
    yield from plotlyjs
    yield f'<script id="data" type="application/json">{figure_json(figure)}</script>\n'
    yield f"<script>const CONFIG = {page_json(CONFIG)};{_SCRIPT}</script></body></html>\n"


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
    return f'<table class="runs"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n'


def _lines_of(row: Row, num_columns: int, links: Mapping[str, str]) -> str:
    """Return a row, and beneath it what is said of it at length."""
    cells = _cells({name: value for name, value in row.items() if name not in _BENEATH}, num_columns, links)
    said = "; ".join(f"{column}: {html.escape(row[column])}" for column in _BENEATH if row.get(column))
    if not said:
        return f"<tr>{cells}</tr>\n"
    beneath = f'<td class="rest beneath" colspan="{num_columns}"><div>{said}</div></td>'
    return f'<tr class="more">{cells}</tr>\n<tr>{beneath}</tr>\n'


def _cells(row: Row, num_columns: int, links: Mapping[str, str]) -> str:
    """Return the cells of one row; the text of a row that ends early, such as an error, takes the rest of it."""
    values = list(row.values())
    texts = [html.escape(value) for value in values]
    if values[0] in links:
        texts[0] = f'<a href="{html.escape(links[values[0]])}">{texts[0]}</a>'
    last = max((place for place, value in enumerate(values) if value), default=0)
    ends_early = 0 < last < num_columns - 1
    whole = zip(row, texts[:last] if ends_early else texts, strict=False)
    cells = "".join(f'<td data-name="{html.escape(name)}">{text}</td>' for name, text in whole)
    return f'{cells}<td class="rest" colspan="{num_columns - last}">{texts[last]}</td>' if ends_early else cells


def notebook_html(timeline: Timeline, view: View, journals: Journals = ()) -> str:
    """Return a run's timeline as HTML for a notebook: a frame that needs no internet and touches no other output."""
    picture = timeline_section([run_picture("", timeline, view, journals=journals)])
    page = "".join([*_beginning(view.title), picture, _FIT, "</body></html>"])
    return f'<iframe srcdoc="{html.escape(page)}" title="timeline" style="width:100%;height:480px;border:0"></iframe>'


_FIT = """<script>
new ResizeObserver(() => { frameElement.style.height = document.body.offsetHeight + 8 + 'px'; }).observe(document.body);
</script>"""
