"""A search as one HTML page that opens without internet: all configurations, the front, and any layout at a click.

Configurations are drawn on canvases, since there may be tens of thousands. The best are simulated once more: for them,
the page has where their time goes, what fills the memory, and what each place of the pipeline does. For the others, it
has the command that shows it.

The style and the JavaScript of a search's page; it draws on canvases.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.files import write_text
from minitrain.operations import PASSES, Event
from minitrain.run.analysis.labels import GIB
from minitrain.run.figures import TABLES
from minitrain.search.tuning.explanation import Spending
from minitrain.search.tuning.findings import Findings, described
from minitrain.search.tuning.search import FITS, Row, distinct, options_of

if TYPE_CHECKING:
    from minitrain.run.result import Run


STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --dim: #6e7781; --grid: rgba(128,128,128,.35); --paper: #fff;
  --chosen: #cf222e; --slow: #d7dbe0; }
@media (prefers-color-scheme: dark) { :root { --ink: #c9d1d9; --dim: #8b949e; --paper: #0d1117; --chosen: #ff7b72;
  --slow: #30363d; } }
body { margin: 0 auto; max-width: 1600px; padding: 8px 12px; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
h1 { font-size: 18px; margin: 8px 0 0; } p { margin: 4px 0 8px; color: var(--dim); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 16px; }
figure { margin: 8px 0; min-width: 0; } figcaption { min-height: 28px; color: var(--dim); }
.plot { position: relative; height: 340px; }
.plot canvas, .plot svg { position: absolute; inset: 0; width: 100%; height: 100%; } .plot svg { pointer-events: none; }
svg text { fill: var(--ink); font-size: 11px; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
 .axis { stroke: var(--grid); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 12px 0; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 260px; }
tbody tr { cursor: pointer; } tbody tr.chosen { outline: 2px solid var(--chosen); outline-offset: -2px; }
tbody tr:focus-visible { outline: 2px solid var(--dim); }
#details { min-width: 0; } #details dl { columns: 180px; margin: 8px 0; }
#details dt { color: var(--dim); display: inline; }
#details dd { display: inline; margin: 0 0 0 6px; } #details div { break-inside: avoid; }
#details canvas { width: 100%; } code { overflow-wrap: anywhere; }
.bar { display: flex; height: 16px; margin: 2px 0; } .bar i { display: block; height: 100%; }
.legend span { margin-right: 12px; white-space: nowrap; } .legend i { display: inline-block; width: 10px; height: 10px;
  margin-right: 4px; }
select { font: inherit; max-width: 100%; } summary { cursor: pointer; color: var(--dim); }
"""

SCRIPT = r"""
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const COLORS = ['#56B4E9', '#E69F00', '#009E73', '#CC79A7', '#D55E00', '#0072B2', '#882255', '#B8A800'];
const KINDS = ['forward', 'backward', 'update', 'communication'];
const KIND_COLORS = ['#56B4E9', '#E69F00', '#009E73', '#CC79A7'];
const count = data.fits.length, options = Object.keys(data.options), figures = Object.keys(data.figures);
const front = new Set(data.front), rank = new Map(data.ranked.map((row, i) => [row, i]));
const show = value => value == null ? '-' : typeof value !== 'number' ? String(value)
  : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(+value.toPrecision(4));
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let chosen = data.ranked.length ? data.ranked[0] : null, isDark = false;

function html(kind, text, parent) {
  const made = document.createElement(kind);
  if (text != null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function drawing(holder) {
  holder.replaceChildren();
  const canvas = html('canvas', null, holder), ratio = window.devicePixelRatio || 1;
  const width = holder.clientWidth, height = holder.clientHeight;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  holder.append(svg);
  const put = (kind, attributes, text) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text != null) made.textContent = text;
    svg.append(made);
  };
  return { canvas, pen, width, height, put };
}

// An axis: from a row to a place between two pixels, and the marks beside it.
function axis(name, from, to, numMarks) {
  if (name in data.options) {
    const { kinds, codes } = data.options[name];
    const at = code => kinds.length < 2 ? (from + to) / 2 : from + (to - from) * code / (kinds.length - 1);
    return { at: row => at(codes[row]), marks: kinds.map((kind, i) => [kind, at(i)]) };
  }
  const values = data.figures[name], known = values.filter(value => value != null && value > 0);
  let low = Infinity, high = -Infinity;
  for (const value of known) { low = Math.min(low, value); high = Math.max(high, value); }
  const span = Math.log(high / low) || 1;
  const place = value => from + (to - from) * (high === low ? .5 : Math.log(value / low) / span);
  return {
    at: row => values[row] > 0 ? place(values[row]) : null,
    marks: Array.from({ length: numMarks }, (_, i) => low * Math.exp(span * i / Math.max(1, numMarks - 1)))
      .map(value => [show(value), place(value)]),
  };
}

const order = (() => {  // those that do not fit first, then the slowest: the best are drawn on top
  const steps = data.figures['step s'];
  return Array.from({ length: count }, (_, i) => i)
    .sort((a, b) => data.fits[a] - data.fits[b] || steps[b] - steps[a]);
})();
const fitting = order.filter(row => data.fits[row]);
const quickness = new Map(fitting.map((row, i) => [row, (i + 1) / fitting.length]));
const tint = row => {
  const share = quickness.get(row) ?? 0;
  return `hsl(${200 + 20 * share} 80% ${isDark ? 35 + 35 * share : 75 - 45 * share}%)`;
};

let lines = null, points = null;
const AXIS = 60;  // px: the name of an axis may be twice as wide, as names stand in two rows

function drawLines() {
  const names = [...options, ...figures.filter(name => ['step s', 'GiB', 'MFU %'].includes(name))];
  $('lines').style.minWidth = `${AXIS * names.length}px`;  // a narrow window scrolls them
  const { canvas, pen, width, height, put } = drawing($('lines'));
  const x = i => 50 + (width - 100) * i / Math.max(1, names.length - 1);
  const axes = names.map(name => axis(name, height - 16, 54, 3));
  const jitter = row => ((row * 2654435761 % 1000) / 1000 - .5) * 10;
  const path = row => axes.map((one, i) => {
    const at = one.at(row);
    return at == null ? null : [x(i), at + (names[i] in data.options ? jitter(row) : 0)];
  }).filter(point => point);
  const stroke = (row, color, wide) => {
    pen.strokeStyle = color; pen.lineWidth = wide; pen.beginPath();
    path(row).forEach(([a, b], i) => i ? pen.lineTo(a, b) : pen.moveTo(a, b));
    pen.stroke();
  };
  pen.globalAlpha = Math.max(.05, Math.min(.6, 400 / count));
  for (const row of order) if (!data.fits[row]) stroke(row, css('--slow'), 1);
  pen.globalAlpha = Math.max(.04, Math.min(.8, 250 / Math.max(1, fitting.length)));
  for (const row of fitting) stroke(row, tint(row), 1);
  pen.globalAlpha = 1;
  if (chosen != null) stroke(chosen, css('--chosen'), 3);
  names.forEach((name, i) => {
    put('line', { class: 'axis', x1: x(i), x2: x(i), y1: 54, y2: height - 16 });
    put('text', { x: x(i), y: i % 2 ? 34 : 18, 'text-anchor': 'middle' }, name.replaceAll('_', ' '));
    for (const [text, at] of axes[i].marks) put('text', { x: x(i) + 4, y: at + 4 }, text);
  });
  lines = { canvas, path };
  canvas.addEventListener('click', event => choose(nearest(event, row => distanceToPath(event, path(row)))));
}

function distanceToPath(event, path) {
  const at = event.offsetX, i = path.findIndex(([x]) => x >= at);
  if (i < 0) return Infinity;
  if (i === 0) return Math.abs(path[0][1] - event.offsetY);
  const [[x1, y1], [x2, y2]] = [path[i - 1], path[i]];
  return Math.abs(y1 + (y2 - y1) * (at - x1) / (x2 - x1) - event.offsetY);
}

function nearest(event, distance) {
  let best = null, least = Infinity;
  for (let i = order.length - 1; i >= 0; i--) {
    const one = distance(order[i]);
    if (one < least - .5) { least = one; best = order[i]; }
  }
  return best;
}

function drawPoints() {
  const { canvas, pen, width, height, put } = drawing($('points'));
  const x = axis($('x').value, 60, width - 16, 4), y = axis($('y').value, height - 30, 12, 5);
  for (const [text, at] of x.marks) {
    put('line', { class: 'axis', x1: at, x2: at, y1: 12, y2: height - 30 });
    put('text', { x: at, y: height - 14, 'text-anchor': 'middle' }, text);
  }
  for (const [text, at] of y.marks) {
    put('line', { class: 'axis', x1: 60, x2: width - 16, y1: at, y2: at });
    put('text', { x: 54, y: at + 4, 'text-anchor': 'end' }, text);
  }
  const dot = (row, size) => {
    const a = x.at(row), b = y.at(row);
    if (a == null || b == null) return;
    pen.beginPath(); pen.arc(a, b, size, 0, 7); pen.fill();
  };
  pen.fillStyle = css('--slow');
  for (const row of order) if (!data.fits[row]) dot(row, 2);
  for (const row of fitting) { pen.fillStyle = tint(row); dot(row, 2.5); }
  pen.lineWidth = 1.5; pen.strokeStyle = css('--ink');
  for (const row of front) {
    const a = x.at(row), b = y.at(row);
    if (a == null || b == null) continue;
    pen.beginPath(); pen.arc(a, b, 5, 0, 7); pen.stroke();
  }
  if (chosen != null) { pen.fillStyle = css('--chosen'); dot(chosen, 6); }
  canvas.addEventListener('click', event => choose(nearest(event, row => {
    const a = x.at(row), b = y.at(row);
    return a == null || b == null ? Infinity : Math.hypot(a - event.offsetX, b - event.offsetY);
  })));
}

function drawTable() {
  const table = $('table');
  table.replaceChildren();
  const head = html('tr', null, html('thead', null, table)), body = html('tbody', null, table);
  for (const name of ['layout', ...figures]) html('th', name, head);
  data.ranked.slice(0, 50).forEach((row, i) => {
    const line = html('tr', null, body);
    html('td', data.names[i], line);
    for (const name of figures) html('td', show(data.figures[name][row]), line);
    line.tabIndex = 0;
    line.classList.toggle('chosen', row === chosen);
    line.addEventListener('click', () => choose(row));
    line.addEventListener('keydown', event => { if (event.key === 'Enter') choose(row); });
  });
}

function bar(parts, unit, parent) {
  const total = Object.values(parts).reduce((a, b) => a + b, 0) || 1, holder = html('div', null, parent);
  holder.className = 'bar';
  const legend = html('div', null, parent);
  legend.className = 'legend';
  Object.entries(parts).forEach(([name, value], i) => {
    const piece = html('i', null, holder);
    piece.style.width = `${100 * value / total}%`;
    piece.style.background = name === 'waiting' ? css('--grid') : COLORS[i % COLORS.length];
    const label = html('span', null, legend), sign = html('i', null, label);
    sign.style.background = piece.style.background;
    label.append(`${name} ${show(value)} ${unit}`);
  });
}

function gantt(spans, step, parent) {
  const canvas = html('canvas', null, parent), ratio = window.devicePixelRatio || 1;
  const width = parent.clientWidth, tall = Math.max(4, Math.min(24, 260 / spans.length)), height = tall * spans.length;
  canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  spans.forEach((list, place) => list.forEach(([kind, start, end]) => {
    pen.fillStyle = KIND_COLORS[kind];
    pen.fillRect(width * start / step, place * tall, Math.max(.3, width * (end - start) / step - .3), tall - 1);
  }));
  const legend = html('div', null, parent);
  legend.className = 'legend';
  KINDS.forEach((name, i) => {
    const label = html('span', null, legend);
    html('i', null, label).style.background = KIND_COLORS[i];
    label.append(name);
  });
}

function drawDetails() {
  const details = $('details');
  details.replaceChildren();
  if (chosen == null) return;
  const place = rank.get(chosen), drawn = place == null ? null : data.drawn[place];
  html('strong', place == null ? `${data.fits[chosen] ? 'fits' : 'does not fit'}`
    : `${place + 1}. ${data.names[place]}`, details);
  if (drawn) {
    html('p', 'Where the step goes, on average over ranks', details);
    bar(drawn.parts, 's', details);
    if (Object.keys(drawn.memory).length) {
      html('p', 'What fills the memory of the fullest rank', details);
      bar(drawn.memory, 'GiB', details);
    }
    if (drawn.gantt.length) {
      html('p', 'What a rank of each stage does', details);
      gantt(drawn.gantt, drawn.step, details);
    }
  }
  const list = html('dl', null, details);
  const pairs = [...options.map(name => [name, data.options[name].kinds[data.options[name].codes[chosen]]]),
    ...figures.map(name => [name, show(data.figures[name][chosen])])];
  for (const [name, value] of pairs) {
    const pair = html('div', null, list);
    html('dt', name, pair);
    html('dd', value, pair);
  }
  if (place != null) html('code', data.commands[place], html('p', null, details));
}

function choose(row) {
  if (row == null) return;
  chosen = row;
  draw();
}

function draw() {
  isDark = matchMedia('(prefers-color-scheme: dark)').matches;
  drawLines();
  drawPoints();
  drawTable();
  drawDetails();
}

for (const [id, first] of [['x', 'GiB'], ['y', 'step s']]) {
  for (const name of [...figures, ...options]) $(id).append(new Option(name, name, name === first, name === first));
  $(id).addEventListener('change', draw);
}
draw();
window.addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
"""


_FIGURES = {column.head: column for column in TABLES["page of a search"]}
_NAMED = 200  # layouts that are listed
MOST_EVENTS = 400_000
"""The most events of a run, of one rank of each class, that a page draws."""
FORWARD, BACKWARD, UPDATE, COMMUNICATION = range(4)
"""The kinds of spans in a Gantt chart."""


def write_tuning_page(path: Path, tuning: Findings, pictures: int) -> Path:
    """Write the page and return its path.

    Args:
        path: where to.
        tuning: the search.
        pictures: how many of the best are simulated once more.
    """
    return write_text(path, _page(tuning, pictures))


def _page(tuning: Findings, pictures: int) -> Iterator[str]:
    """Yield the page in pieces."""
    title = _title(tuning)
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
    yield f"<p>{html.escape(tuning.verdicts())}. Click a line, a point or a row to see it.</p>\n"
    yield "<figure><figcaption>All configurations with figures: the strongest blue is the quickest, grey does not fit"
    yield '</figcaption><div class="wide"><div id="lines" class="plot"></div></div></figure>\n'
    yield '<div class="plots"><figure><figcaption><label><select id="y"></select></label> over '
    yield '<label><select id="x"></select></label>; ringed: nothing beats them</figcaption>'
    yield '<div id="points" class="plot"></div></figure>\n<section id="details"></section></div>\n'
    yield '<div class="wide"><table id="table"></table></div>\n'
    yield f"<details><summary>What was not priced, and why</summary><ul>{''.join(_reasons(tuning))}</ul></details>\n"
    text = json.dumps(_data(tuning, pictures), allow_nan=False).replace("<", "\\u003c")
    yield f'<script id="data" type="application/json">{text}</script>\n<script>{SCRIPT}</script></body></html>\n'


def _title(tuning: Findings) -> str:
    """Return what was searched."""
    row = tuning.rows[0] if tuning.rows else None
    if row is None:
        return "no configurations"
    problem = tuning.choice(row).candidate.problem
    name = getattr(problem.machine.workload, "name", "layers")
    return f"{name} on {row['world_size']:,} x {row['hardware']}, batch {row['global_batch_size']:,}"


def _reasons(tuning: Findings) -> Iterator[str]:
    """Yield how many configurations have each reason, the most frequent first."""
    found = Counter(
        (row["status"], _general(row["reason"])) for row in tuning.rows if row["reason"] and row["step_time_s"] is None
    )
    for (status, reason), count in found.most_common(20):
        yield f"<li>{count:,} {html.escape(status)}: {html.escape(reason)}</li>"


def _general(reason: str) -> str:
    """Return a reason without its numbers, so that equal ones count together."""
    return " ".join("..." if any(sign.isdigit() for sign in word) else word for word in reason.split())


def _data(tuning: Findings, pictures: int) -> dict[str, Any]:
    """Return what the page's script draws."""
    rows = [row for row in tuning.rows if row["step_time_s"] is not None]
    names = _varied(rows)
    order = {id(row): place for place, row in enumerate(rows)}
    best = distinct(tuning.ranked)[:_NAMED]
    return {
        "options": {name: _coded([_text(row.get(name)) for row in rows]) for name in names},
        "figures": {name: [_figure(row, name) for row in rows] for name in _FIGURES if _is_known(rows, name)},
        "fits": [int(row["status"] == FITS) for row in rows],
        "front": sorted(order[id(row)] for row in tuning.front),
        "ranked": [order[id(row)] for row in best],
        "names": [f"{row['strategy']} {described(options_of(row))}" for row in best],
        "commands": [tuning.choice(row).command for row in best],
        "drawn": _drawn(tuning, pictures),
    }


def _varied(rows: Sequence[Row]) -> list[str]:
    """Return the options and parameters that are not the same in all rows."""
    names = dict.fromkeys(name for row in rows for name in ("strategy", "hardware", "world_size", *options_of(row)))
    return [name for name in names if len({_text(row.get(name)) for row in rows}) > 1]


def _coded(texts: Sequence[str]) -> dict[str, Any]:
    """Return texts as indices into the distinct ones, and the distinct ones in their order."""
    kinds = sorted(set(texts), key=lambda text: (not text.isdigit(), int(text) if text.isdigit() else 0, text))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    return {"kinds": kinds, "codes": [numbers[text] for text in texts]}


def _text(value: Any) -> str:
    """Return an option's value as text."""
    if value is None:
        return "-"
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _is_known(rows: Sequence[Row], name: str) -> bool:
    return any(_FIGURES[name].number(row) is not None for row in rows)


def _figure(row: Row, name: str) -> float | None:
    """Return a figure in the unit of the page, in five digits."""
    number = _FIGURES[name].number(row)
    return None if number is None else float(f"{number:.5g}")


def _drawn(tuning: Findings, pictures: int) -> list[dict[str, Any]]:
    """Return where the time of the best goes, and what their ranks do."""
    found = []
    for row in distinct(tuning.ranked)[:pictures]:
        choice = tuning.choice(row)
        run = choice.simulate(check=False)
        spending = Spending.of_run(choice, run)
        found.append(
            {
                "parts": {name: round(seconds, 9) for name, seconds in spending.parts().items()},
                "memory": {kind: round(size / GIB, 4) for kind, size in spending.memory_bytes.items() if size},
                "gantt": gantt_of(run) if sum(map(len, run.class_logs)) <= MOST_EVENTS else [],
                "step": run.step_time,
            }
        )
    return found


def gantt_of(run: Run) -> list[list[list[float]]]:
    """Return what each class of ranks does: spans as [kind, start s, end s], those of one pass of a microbatch in one.

    The step begins at 0, when all weights are there.

    A collective among the parts of a layer belongs to the pass that it is part of.
    """
    return [_spans(log, run.load_time) for log in run.class_logs]


def _spans(log: Sequence[Event], begin: float) -> list[list[float]]:
    """Return the spans of one rank."""
    spans: list[list[float]] = []
    last: Any = None
    for event in sorted(log, key=lambda event: event.time):
        if not event.duration or event.typ == "load_weights":
            continue
        kind, key = _kind(event, last)
        end = event.time + event.duration
        if spans and last == key and event.time <= spans[-1][2] + 1e-9 + 1e-6 * end:
            spans[-1][2] = max(spans[-1][2], end)
        else:
            spans.append([kind, event.time, end])
        last = key
    return [[kind, float(f"{max(start - begin, 0):.7g}"), float(f"{end - begin:.7g}")] for kind, start, end in spans]


def _kind(event: Event, last: Any) -> tuple[int, Any]:
    """Return the kind of an event, and a key that differs between passes."""
    if event.typ in ("forward", "loss"):
        return FORWARD, (FORWARD, event.samples)
    if event.typ in PASSES:
        return BACKWARD, (BACKWARD, event.samples)
    if event.typ == "update":
        return UPDATE, (UPDATE, None)
    if event.peer is None and isinstance(last, tuple) and last[1] is not None and last[1] == event.samples:
        return last
    return COMMUNICATION, (COMMUNICATION, None)
