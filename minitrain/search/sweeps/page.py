"""A sweep as one HTML page that opens without internet: a table to sort, a scatter plot, and parallel coordinates.

A row that is clicked, in any of the three, shows all of its figures, and the picture of its run where one was made. For
the others, it shows the command that makes it.

The style and the JavaScript of a sweep's page; it draws with SVG alone.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minitrain.files import write_text
from minitrain.run.figures import TABLES
from minitrain.run.parameters import command_of
from minitrain.search.sweeps.batches import Row, flat, succeeded

STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --dim: #6e7781; --grid: rgba(128,128,128,.3); --paper: #fff;
  --chosen: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #c9d1d9; --dim: #8b949e; --paper: #0d1117; --chosen: #ff7b72; } }
body { margin: 0 auto; max-width: 1600px; padding: 8px 12px; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
h1 { font-size: 18px; margin: 8px 0 0; } p { margin: 4px 0 8px; color: var(--dim); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 12px; }
figure { margin: 0; min-width: 0; } figcaption { min-height: 30px; }
svg { width: 100%; height: 320px; display: block; overflow: visible; }
svg text { fill: var(--ink); font-size: 11px; } .axis { stroke: var(--grid); }
.mark { cursor: pointer; stroke-width: 1.2; } .mark.chosen { stroke: var(--chosen) !important; stroke-width: 3; }
circle.mark { stroke: var(--paper); } path.mark { fill: none; stroke-opacity: .55; }
path.mark.chosen { stroke-opacity: 1; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 12px 0; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
tbody tr { cursor: pointer; } tbody tr.chosen { outline: 2px solid var(--chosen); outline-offset: -2px; }
tbody tr:focus-visible { outline: 2px solid var(--dim); }
#details { border: 1px solid var(--grid); border-radius: 6px; padding: 8px 12px; margin-top: 12px; }
#details dl { columns: 260px; margin: 8px 0; } #details dt { color: var(--dim); display: inline; }
#details dd { display: inline; margin: 0 0 0 6px; overflow-wrap: anywhere; } #details div { break-inside: avoid; }
#details img { max-width: 100%; } code { overflow-wrap: anywhere; }
select { font: inherit; max-width: 100%; }
"""

SCRIPT = r"""
const { columns, varied, figures, rows } = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const COLORS = ['#56B4E9', '#E69F00', '#009E73', '#CC79A7', '#D55E00', '#0072B2', '#882255', '#B8A800'];
const MOST_LINES = 1000;
const strategies = [...new Set(rows.map(row => row.cells.strategy))];
const color = row => COLORS[strategies.indexOf(row.cells.strategy) % COLORS.length];
const numeric = name => rows.some(row => typeof row.cells[name] === 'number')
  && rows.every(row => row.cells[name] == null || typeof row.cells[name] === 'number');
const show = value => value == null ? '-' : typeof value !== 'number' ? String(value)
  : Number.isInteger(value) ? String(value)
  : Math.abs(value) >= 1000 ? String(Math.round(value))
  : value.toPrecision(4).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '');
let chosen = null, sorted = { name: 'step ms', down: false };

function element(kind, attributes = {}, text) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text != null) made.textContent = text;
  return made;
}

function html(kind, text, parent) {
  const made = document.createElement(kind);
  if (text != null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

// A scale: from a value to a place between two pixels, and the values to write beside the axis.
function scale(name, from, to, marks) {
  const values = rows.map(row => row.cells[name]).filter(value => value != null);
  if (!numeric(name)) {
    const kinds = [...new Set(values.map(show))];
    const at = place => kinds.length < 2 ? (from + to) / 2 : from + (to - from) * place / (kinds.length - 1);
    return { at: value => at(kinds.indexOf(show(value))), marks: kinds.slice(0, 24).map((kind, i) => [kind, at(i)]) };
  }
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const at = value => high === low ? (from + to) / 2 : from + (to - from) * (value - low) / span;
  const count = high === low ? 1 : marks;
  return { at, marks: Array.from({ length: count }, (_, i) => low + span * i / Math.max(1, count - 1))
    .map(value => [show(value), at(value)]) };
}

function mark(shape, row) {
  shape.classList.add('mark');
  shape.append(element('title', {}, columns.map(name => `${name}: ${show(row.cells[name])}`).join('\n')));
  shape.addEventListener('click', () => choose(row));
  row.shapes.push(shape);
  return shape;
}

function drawScatter() {
  const svg = $('scatter'), width = svg.clientWidth || 430, height = 320;
  svg.replaceChildren();
  const x = scale($('x').value, 64, width - 16, 5), y = scale($('y').value, height - 34, 12, 5);
  const line = (x1, y1, x2, y2) => element('line', { class: 'axis', x1, y1, x2, y2 });
  for (const [text, at] of x.marks) svg.append(line(at, 12, at, height - 34),
    element('text', { x: at, y: height - 18, 'text-anchor': 'middle' }, text));
  for (const [text, at] of y.marks) svg.append(line(64, at, width - 16, at),
    element('text', { x: 58, y: at + 4, 'text-anchor': 'end' }, text));
  for (const row of rows) {
    const [a, b] = [row.cells[$('x').value], row.cells[$('y').value]];
    if (a == null || b == null) continue;
    svg.append(mark(element('circle', { cx: x.at(a), cy: y.at(b), r: 5, fill: color(row) }), row));
  }
}

function drawLines() {
  const svg = $('parallel'), width = svg.clientWidth || 430, height = 320;
  svg.replaceChildren();
  const names = [...varied, ...figures.slice(0, 4)].filter(name => rows.some(row => row.cells[name] != null));
  const place = i => 40 + (width - 80) * i / Math.max(1, names.length - 1);
  const axes = names.map(name => scale(name, height - 20, 48, 2));
  const drawn = rows.filter(row => row.cells['step ms'] != null);
  drawn.sort((a, b) => a.cells['step ms'] - b.cells['step ms']);
  $('lines').textContent = 'Parallel coordinates'
    + (drawn.length > MOST_LINES ? ` of the fastest ${MOST_LINES} configurations` : '');
  for (const row of drawn.slice(0, MOST_LINES)) {
    const crossed = names.map((name, i) => [i, row.cells[name]]).filter(([, value]) => value != null);
    const points = crossed.map(([i, value]) => `${place(i)},${axes[i].at(value)}`);
    svg.append(mark(element('path', { d: 'M' + points.join('L'), stroke: color(row) }), row));
  }
  names.forEach((name, i) => {
    svg.append(element('line', { class: 'axis', x1: place(i), x2: place(i), y1: 48, y2: height - 20 }),
      element('text', { x: place(i), y: i % 2 ? 32 : 16, 'text-anchor': 'middle' }, name));
    for (const [text, at] of axes[i].marks) svg.append(
      element('text', { x: place(i), y: at + (at > height / 2 ? 14 : -4), 'text-anchor': 'middle' }, text));
  });
}

function drawTable() {
  const table = $('table');
  table.replaceChildren();
  const head = html('tr', null, html('thead', null, table));
  for (const name of columns) {
    const cell = html('th', null, head), button = html('button', name, cell);
    if (sorted.name === name) {
      cell.setAttribute('aria-sort', sorted.down ? 'descending' : 'ascending');
      button.textContent += sorted.down ? ' ▼' : ' ▲';
    }
    button.addEventListener('click', () => {
      sorted = { name, down: sorted.name === name && !sorted.down };
      drawTable();
    });
  }
  const body = html('tbody', null, table), sign = sorted.down ? -1 : 1;
  const order = (a, b) => a == null ? (b == null ? 0 : 1) : b == null ? -1
    : sign * (typeof a === 'number' && typeof b === 'number' ? a - b : show(a).localeCompare(show(b)));
  for (const row of [...rows].sort((a, b) => order(a.cells[sorted.name], b.cells[sorted.name]))) {
    const line = html('tr', null, body);
    for (const name of columns) html('td', show(row.cells[name]), line);
    line.tabIndex = 0;
    line.addEventListener('click', () => choose(row));
    line.addEventListener('keydown', event => { if (event.key === 'Enter') choose(row); });
    line.classList.toggle('chosen', row === chosen);
    row.line = line;
  }
}

function choose(row) {
  chosen = row;
  for (const other of rows) {
    other.line.classList.toggle('chosen', other === row);
    for (const shape of other.shapes) {
      shape.classList.toggle('chosen', other === row);
      if (other === row) shape.parentNode.append(shape);  // above the others
    }
  }
  const details = $('details');
  details.hidden = false;
  details.replaceChildren();
  html('strong', row.cells.strategy, details);
  if (row.picture) {
    const picture = html('img', null, html('p', null, details));
    picture.alt = `What every rank does: ${row.command}`;
    picture.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(row.picture);
  }
  const words = row.picture ? 'Its page is written by ' : 'This command writes its page and picture: ';
  html('code', row.command, html('p', words, details));
  const list = html('dl', null, details);
  for (const [name, value] of Object.entries(row.known)) {
    const pair = html('div', null, list);
    html('dt', name, pair);
    html('dd', typeof value === 'object' ? JSON.stringify(value) : show(value), pair);
  }
}

function draw() {
  for (const row of rows) row.shapes = [];
  drawScatter();
  drawLines();
  if (chosen) choose(chosen);
}

for (const [id, first] of [['x', 'step ms'], ['y', 'peak GiB']]) {
  for (const name of columns) $(id).append(new Option(name, name, name === first, name === first));
  $(id).addEventListener('change', draw);
}
drawTable();
draw();
window.addEventListener('resize', draw);
"""


_SHOWN = TABLES["page of a sweep"]
_FIGURES = tuple(column.head for column in _SHOWN)


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
    return {column.head: column.number(row) for column in _SHOWN}


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
