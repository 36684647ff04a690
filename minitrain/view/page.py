"""Figures as HTML pages that open without internet, of one run or of several, and as what a notebook shows.

A page has its title and facts, then an explanation (`minitrain.view.explanation_panel`) or a table, then the figure.
All but the figure is plain HTML, which wraps in a narrow window and is there even if Plotly's JavaScript is not.

The part of a page's JavaScript that fits the figure to the window: legends, captions and buttons.

Plotly neither wraps a text nor moves a legend. In a narrow window, legends go above and below the panels, and captions
get a second line. The buttons of a comparison are part of the page, which wraps them.

A run of more than `MAX_BARS` bars is drawn on a canvas (`minitrain.view.timeline`), without Plotly.

The style of a page, in light and dark mode and for narrow windows.
"""

from __future__ import annotations

import html
import json
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
from minitrain.view.bars import COMPUTING, EXPOSED, IDLE, USES, Bars, dark_kinds, make_bars
from minitrain.view.comparison_figure import drawn_comparison
from minitrain.view.drawing import Drawing, figure_json, page_json, plotly_script
from minitrain.view.explanation_panel import Line, explanation_panel, lines_table, section
from minitrain.view.gantt import MAX_BARS, drawn_bars, heat_legend, scale
from minitrain.view.layout import View, link_panel
from minitrain.view.svg import svg
from minitrain.view.timeline import timeline_data, timeline_script

ARRANGEMENT = r"""
const gd = document.getElementById('figure');
const read = id => JSON.parse(document.getElementById(id).textContent);
const figure = read('data');
const dark = window.matchMedia && matchMedia('(prefers-color-scheme: dark)').matches;

// Where the window is narrow, legends stand above and below the panels instead of beside them.
const NARROW = 760, MODEBAR = 32, layout = figure.layout, legends = ['legend', 'legend2'].filter(name => layout[name]);
const places = Object.fromEntries(legends.map(name => [name, { ...layout[name] }]));
const margin = { ...layout.margin }, captions = (layout.annotations || []).map(note => ({ ...note }));
let inner = layout.height - margin.t - margin.b;

// the widest lines of whole facts, with a font that lets two of them stand above a panel
function caption(note, width) {
  if (note.xref !== 'paper') return {};
  const pen = document.createElement('canvas').getContext('2d');
  const wide = (text, size) => {
    pen.font = size + 'px ' + layout.font.family;
    return pen.measureText(text.replace(/<[^>]*>/g, '')).width * 1.04;
  };
  if (wide(note.text, 13) <= width) return { text: note.text, font: { ...note.font, size: 13 } };
  const lines = [''];
  note.text.split(' · ').forEach((fact, place) => {
    const longer = lines.at(-1) + (place ? ' · ' : '') + fact;
    if (place && wide(longer, 11) > width) lines.push(fact); else lines[lines.length - 1] = longer;
  });
  return { text: lines.join('<br>'), font: { ...note.font, size: 11 }, align: 'left' };
}

function arranged() {
  const width = gd.clientWidth, narrow = width < NARROW, top = layout.meta.captions;
  const side = narrow ? { l: 52, r: 12 } : { l: margin.l, r: margin.r };
  const full = gd._fullLayout, high = name => (narrow && full && full[name] && full[name]._height) || 0;
  // Plotly shrinks the panels unless a margin has some px more than the legend in it
  const t = narrow ? top + high('legend') + 12 + MODEBAR : Math.max(top, MODEBAR);
  const b = margin.b + (narrow ? high('legend2') + 12 : 0);
  const changes = { height: inner + t + b, margin: { ...margin, ...side, t, b },
    'uniformtext.minsize': narrow ? 10 : layout.uniformtext.minsize };  // bars of a few px are no place for a number
  legends.forEach((name, below) => {
    const across = { orientation: 'h', x: -(side.l - 8) / (width - side.l - side.r), xanchor: 'left',
      y: below ? -(margin.b - 4) / inner : 1 + (top + 2) / inner, yanchor: below ? 'top' : 'bottom' };
    Object.entries(narrow ? across : { orientation: 'v', ...places[name] })
      .forEach(([key, value]) => { changes[name + '.' + key] = value; });
  });
  captions.forEach((note, place) => Object.entries(caption(note, width - side.l - side.r))
    .forEach(([key, value]) => { changes['annotations[' + place + '].' + key] = value; }));
  return changes;
}

// twice where it is narrow: only then it is known how high the legends are
async function arrange(visible, shown) {
  if (!layout.meta) return;  // a figure of somebody else's
  await Plotly.update(gd, visible || {}, { ...shown, ...arranged() });
  if (gd.clientWidth < NARROW) await Plotly.relayout(gd, arranged());
}

// the buttons of a comparison as part of the page, where they wrap
function makeButtons() {
  const menu = (layout.updatemenus || []).find(menu => menu.type === 'buttons');
  if (!menu) return;
  layout.updatemenus = layout.updatemenus.filter(other => other !== menu);
  const made = menu.buttons.map(button => {
    const element = document.createElement('button');
    element.textContent = button.label;
    element.onclick = () => {
      const [visible, shown] = button.args;
      made.forEach(other => other.setAttribute('aria-pressed', other === element));
      inner = shown.height - margin.t - margin.b;
      if (places.legend2) places.legend2.y = shown['legend2.y'];
      arrange(visible, shown);
    };
    return element;
  });
  made[0].setAttribute('aria-pressed', true);
  document.getElementById('buttons').append(...made);
}
"""


_DRAWING = r"""
function adapt(layout) {
  if (layout.meta) delete layout.title;  // the page has it as its headline
  layout.font.color = dark ? '#c9d1d9' : '#3d444d';
  layout.modebar = { ...layout.modebar, bgcolor: 'rgba(0,0,0,0)', color: dark ? '#8b949e' : '#8c959f',
    activecolor: dark ? '#fff' : '#24292f' };
  if (dark && layout.updatemenus) layout.updatemenus.forEach(menu => {
    menu.bgcolor = '#21262d'; menu.bordercolor = '#484f58'; menu.font = { ...menu.font, color: '#c9d1d9' };
  });
}

// on black, some kinds have lighter colours
function darken(trace) {
  const look = dark && DARK_KINDS[trace.name];
  if (!look || !trace.marker || trace.marker.color.startsWith('rgba(0,0,0,0')) return trace;
  const font = trace.insidetextfont && { insidetextfont: { ...trace.insidetextfont, color: look.ink } };
  return { ...trace, marker: { ...trace.marker, color: look.color }, ...font };
}

async function draw() {
  adapt(layout);
  makeButtons();
  if (dark) {
    figure.data = figure.data.map(darken);
    figure.data.filter(trace => trace.type === 'heatmap').forEach(trace => { trace.colorscale = DARK_SCALE; });
  }
  await Plotly.newPlot(gd, figure.data, layout, CONFIG);
  await arrange();
  let timer = 0;
  addEventListener('resize', () => { clearTimeout(timer); timer = setTimeout(arrange, 100); });
  document.body.dataset.ready = 'yes';
}

if (window.Plotly) draw();
else {
  document.getElementById('missing').hidden = false;
  document.body.dataset.ready = 'missing';
}
"""
PAGE_SCRIPT = ARRANGEMENT + _DRAWING


def constants() -> dict[str, Any]:
    """Return the constants of the script: the colours of dark mode."""
    kinds = {kind.name: {"color": kind.dark, "ink": kind.dark_ink} for kind in dark_kinds()}
    uses = {
        trace["name"]: {"color": use.dark, "ink": use.dark}
        for trace, use in zip(heat_legend(), (COMPUTING, EXPOSED, IDLE), strict=True)
    }
    return {"DARK_KINDS": kinds | uses, "DARK_SCALE": scale(dark=True)}


_VARIABLES = ("computing", "exposed", "idle")
_LIGHT = "".join(f"--{name}: {use.color}; " for name, use in zip(_VARIABLES, USES, strict=True))
_DARK = "".join(f"--{name}: {use.dark}; " for name, use in zip(_VARIABLES, USES, strict=True))
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT}--line: rgba(128,128,128,.25); --soft: #57606a; }}
html {{ overflow-y: scroll; }}
body {{ margin: 0 auto; max-width: 1800px; padding: 8px 12px; background: #fff; color: #24292f;
  font: 14px/1.45 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }}
h1 {{ font-size: 19px; line-height: 1.3; margin: 6px 0 2px; overflow-wrap: anywhere; }}
h2 {{ font-size: 14px; margin: 10px 0 4px; }}
p {{ margin: 6px 0; }}
small {{ color: var(--soft); margin-left: .6em; }}
code {{ font-size: 13px; overflow-wrap: anywhere; }}
.facts span {{ display: inline-block; }}
.facts span:not(:last-child)::after {{ content: "·"; margin: 0 .1em 0 .4em; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 8px 0 4px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 3px 0 3px 14px; text-align: right; border-bottom: 1px solid var(--line); }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
td:nth-child(2) {{ white-space: nowrap; }}
td.rest {{ text-align: left; white-space: normal; overflow-wrap: anywhere; }}
.more td {{ border-bottom: 0; padding-bottom: 0; }}
td.beneath {{ color: var(--soft); font-size: 12px; padding-top: 0; }}
.beneath div {{ position: sticky; left: 0; width: fit-content; max-width: calc(100vw - 40px); }}
.answer {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)); gap: 0 32px;
  margin: 4px 0 10px; padding-bottom: 6px; border-bottom: 1px solid var(--line); font-size: 13px; }}
.answer > div {{ min-width: 0; max-width: 680px; }}
.answer table {{ width: 100%; }}
.answer th {{ font-weight: 400; color: var(--soft); white-space: nowrap; }}
.answer th, .answer td {{ padding-top: 2px; padding-bottom: 2px; line-height: 1.35; }}
.answer td {{ vertical-align: top; }}
.waits th:last-child, .waits td:last-child {{ text-align: left; }}
.answer p {{ color: var(--soft); margin: 4px 0; }}
.lines td {{ border: 0; padding: 0 0 0 8px; line-height: 1.35; width: 2.6em; vertical-align: middle !important; }}
.lines td:first-child {{ width: 1%; padding-left: 0; white-space: nowrap; }}
.lines td.bar {{ width: auto; min-width: 80px; }}
.bar b {{ display: flex; height: 11px; }}
.bar i, .legend i {{ display: block; height: 100%; }}
.legend span {{ display: inline-block; margin-right: 12px; }}
.legend i {{ display: inline-block; width: 11px; height: 11px; margin-right: 5px; }}
i.computing {{ background: var(--computing); }}
i.exposed {{ background: var(--exposed); }}
i.idle {{ background: var(--idle); }}
.links {{ border-top: 1px solid var(--line); margin-top: 8px; font-size: 13px; }}
.strips {{ width: 100%; }}
.strips td {{ border: 0; padding-top: 1px; padding-bottom: 1px; white-space: nowrap; width: 1%; }}
.strips td.strip {{ width: auto; min-width: 120px; }}
.strip svg {{ display: block; width: 100%; height: 13px; background: var(--line); }}
.strip rect {{ fill: var(--exposed); }}
@media (max-width: 600px) {{ .strips td:first-child {{ max-width: 9em; overflow: hidden; text-overflow: ellipsis; }} }}
#missing, noscript p {{ border: 1px solid #D55E00; padding: 8px 12px; }}
#buttons button {{ font: 12px/1.4 inherit; font-family: inherit; color: inherit; background: none; cursor: pointer;
  border: 1px solid rgba(128,128,128,.5); border-radius: 4px; padding: 4px 12px; margin: 4px 6px 2px 0; }}
#buttons button[aria-pressed=true] {{ background: rgba(56,139,253,.22); }}
@media (max-width: 600px) {{ th, td {{ padding-left: 8px; }} table {{ font-size: 13px; }} }}
@media (prefers-color-scheme: dark) {{
  :root {{ {_DARK}--soft: #9aa4af; }}
  body {{ background: #0d1117; color: #c9d1d9; }}
  a {{ color: #79b8ff; }}
  /* Plotly's own colour of a chosen button and of one that is pointed at, which suits light pages alone */
  .updatemenu-item-rect[style*="244, 250, 255"] {{ fill: #30507a !important; }}
}}
"""


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
    below = "" if view.links is None else link_panel(view.links)
    body = view.panel + explanation_panel(explained)
    if len(bars) > MAX_BARS:
        _shared_script(include_plotlyjs)  # which this page does not need
        section = timeline_section(bars, view, explained, journals)
        return write_text(path, _timeline_page(section, view.title, _head(view.title, view.facts) + body, below))
    drawing, _ = drawn_bars(bars, view, journals, explained.critical_path)
    return write_page(path, drawing, view.title, include_plotlyjs, body, view.facts, below)


def _timeline_page(section: str, title: str, body: str, below: str) -> Iterator[str]:
    """Yield a page whose picture is a timeline on a canvas."""
    yield from _beginning(title)
    yield f"{body}{section}{below}{_NO_SCRIPT}</body></html>\n"


def timeline_section(bars: Bars, view: View, explained: Explanation, journals: Journals = ()) -> str:
    """Return the timeline of a run as HTML that needs no other file; see `minitrain.view.timeline.timeline_data`."""
    data = page_json(timeline_data(bars, view, explained, journals))
    return (
        f'<div id="timeline"></div><script id="timeline-data" type="application/json">{data}</script>\n'
        f"<script type='module'>{timeline_script()}{_MOUNT}</script>\n"
    )


_MOUNT = """
const data = JSON.parse(document.getElementById('timeline-data').textContent);
window.timeline = await mountTimeline(document.getElementById('timeline'), data);
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
        include_plotlyjs: as for `minitrain.view.page.write_html`.

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
        body: HTML above the figure.
        facts: short texts below the title.
        below: HTML below the figure.
    """
    target = Path(path)
    head = _head(title, facts) + body
    if include_plotlyjs is True:
        return write_text(target, _page(figure, title, _plotlyjs(), head, below))
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


def _beginning(title: str) -> Iterator[str]:
    """Yield the head of a page."""
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title or "trace")}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body>\n"


def _page(figure: Any, title: str, plotlyjs: Iterable[str], body: str, below: str) -> Iterator[str]:
    """Yield the page of a Plotly figure in pieces."""
    yield from _beginning(title)
    yield f"{body}<div id='buttons'></div><div id='figure'></div>\n{below}{_NO_SCRIPT}"
    yield from plotlyjs
    yield f'<script id="data" type="application/json">{figure_json(figure)}</script>\n'
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
