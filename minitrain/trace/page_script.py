"""The JavaScript of a page, and the bars of a large trace as columns for it (`payload`).

The script draws the figure. Of a large trace it draws the part that is zoomed into: every bar where at most `maxBars`
are visible, shares of time where more are. For this it does in JavaScript what `gantt.bar_traces`, `heat_map.heat` and
`bar_texts.hover_texts` do in Python, so a change of one of them must be made here too.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minitrain.analysis.explanation import GAP_KINDS
from minitrain.analysis.labels import GIB, time_unit
from minitrain.analysis.timeline import NO_LAYER, NONE, Ints
from minitrain.tensors.index_sets import ranges
from minitrain.trace.bar_texts import bar_numbers
from minitrain.trace.bars import Bars
from minitrain.trace.colors import COMPUTING, EXPOSED, IDLE, dark_kinds
from minitrain.trace.gantt import MAX_BARS, lane_geometry
from minitrain.trace.heat_map import MAX_ROWS, NUM_BINS, STEPS, heat_legend, scale
from minitrain.trace.layout import View
from minitrain.trace.page_arrangement import ARRANGEMENT

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

const TYPES = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u1: Uint8Array };
function unpack(packed) {
  const raw = atob(packed.bdata), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new TYPES[packed.dtype](bytes.buffer);
}

const UNITS = [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs'], [1e-9, 'ns']];
function duration(value) {
  const seconds = value * details.unit;
  const long = Math.abs(seconds) < 360000 ? [3600, 'h'] : [86400, 'days'];
  const short = UNITS.find(([size]) => Math.abs(seconds) >= size) || UNITS[0];
  const [scale, name] = Math.abs(seconds) < 1e4 ? short : long;
  return Number((seconds / scale).toPrecision(4)) + ' ' + name;
}

function hover(d, i, rank) {
  const kind = d.kinds[d.kind[i]].name, span = duration(d.length[i]) + ' from ' + duration(d.start[i]);
  const layer = d.layer[i] === d.noLayer ? '' : (d.layerNames || [])[d.layer[i]] || 'layer ' + d.layer[i];
  const lines = ['<b>' + kind + '</b> · rank ' + ((d.rankNames || [])[rank] || rank)];
  if (d.kind[i] === d.kinds.length - 1) {
    const typ = d.waitTyp[i] === 255 ? '' : d.typs[d.waitTyp[i]], ofLayer = layer && ' of ' + layer;
    const who = d.waitsFor[i] < 0 ? '' : 'rank ' + ((d.rankNames || [])[d.waitsFor[i]] || d.waitsFor[i]);
    lines.push(span);
    if (d.gapKinds[d.gapKind[i]] === 'recovery') lines.push('for the recovery from a fault');
    else if (!typ) lines.push("for the step's end, which " + (who || 'another rank') + ' sets');
    else if (!who) lines.push('for what comes before ' + typ + ofLayer);
    else lines.push('for ' + who + (typ === 'recv' ? "'s send" : ', the last to come to ' + typ) + ofLayer);
    lines.push(d.gapKinds[d.gapKind[i]]);
    return lines.join('<br>');
  }
  const samples = d.samples[d.sample[i]];
  const works = [layer, samples && 'samples ' + samples].filter(part => part).join(' · ');
  if (works) lines.push(works);
  lines.push(span, 'memory ' + Number(d.memory[i].toPrecision(4)) + ' GiB');
  return lines.join('<br>');
}

function prepare(d) {
  ['start', 'length', 'kind', 'lane', 'layer', 'sample', 'number', 'waitsFor', 'gapKind', 'waitTyp', 'memory']
    .forEach(name => { d[name] = unpack(d[name]); });
  d.numRanks = d.first.length - 1;
  // the latest end of a rank's bars so far: it only grows, so that the first visible bar is found by bisection
  d.until = new Float64Array(d.start.length);
  for (let rank = 0; rank < d.numRanks; rank++) {
    let until = 0;
    for (let i = d.first[rank]; i < d.first[rank + 1]; i++) {
      until = Math.max(until, d.start[i] + d.length[i]);
      d.until[i] = until;
    }
  }
}

function firstAbove(column, value, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

function visible(d, window) {
  const spans = [];
  let count = 0;
  for (let rank = window.top; rank <= window.bottom; rank++) {
    const from = firstAbove(d.until, window.left, d.first[rank], d.first[rank + 1]);
    const to = firstAbove(d.start, window.right, from, d.first[rank + 1]);
    spans.push([rank, from, to]);
    count += to - from;
  }
  return { spans, count };
}

function barTraces(d, spans) {
  const rows = d.kinds.map(() => ({ base: [], x: [], y: [], width: [], text: [], hovertext: [] }));
  for (const [rank, from, to] of spans) for (let i = from; i < to; i++) {
    const row = rows[d.kind[i]];
    row.base.push(d.start[i]);
    row.x.push(d.length[i]);
    row.y.push(rank + d.center[d.lane[i]]);
    row.width.push(d.width[d.lane[i]]);
    row.text.push(d.number[i] < 0 || d.kind[i] === d.kinds.length - 1 ? '' : String(d.number[i]));
    row.hovertext.push(hover(d, i, rank));
  }
  return rows.map((row, code) => {
    const kind = d.kinds[code], marker = { color: kind.color, line: { width: 0 } };
    if (kind.pattern) marker.pattern = { shape: kind.pattern, size: 6, solidity: 0.12, fgcolor: '#666666' };
    return { ...row, type: 'bar', orientation: 'h', name: kind.name, textposition: 'inside',
      insidetextanchor: 'middle', textangle: 0, insidetextfont: { color: kind.ink, size: 11 },
      hoverinfo: 'text', marker };
  }).filter(trace => trace.x.length).map(darken);
}

// on black, some kinds have lighter colours
function darken(trace) {
  const look = dark && DARK_KINDS[trace.name];
  if (!look || !trace.marker || trace.marker.color.startsWith('rgba(0,0,0,0')) return trace;
  const font = trace.insidetextfont && { insidetextfont: { ...trace.insidetextfont, color: look.ink } };
  return { ...trace, marker: { ...trace.marker, color: look.color }, ...font };
}

function heatTrace(d, spans, window) {
  const perRow = Math.ceil(spans.length / d.maxRows), numRows = Math.ceil(spans.length / perRow);
  const size = (window.right - window.left) / d.numBins, zero = () => new Float32Array(d.numBins);
  // waiting, computing, communicating: of each cell, what is done most decides its colour, how much its strength
  const shares = [0, 1, 2].map(() => Array.from({ length: numRows }, zero));
  spans.forEach(([, from, to], place) => {
    const row = Math.floor(place / perRow), share = 100 / Math.min(perRow, spans.length - row * perRow);
    for (let i = from; i < to; i++) {
      const waits = d.kind[i] === d.kinds.length - 1;
      if (!waits && !d.computes[d.kind[i]]) continue;
      const target = shares[waits ? 0 : 1][row];
      const left = Math.max((d.start[i] - window.left) / size, 0);
      const right = Math.min((d.start[i] + d.length[i] - window.left) / size, d.numBins);
      for (let bin = Math.floor(left); bin < right; bin++)
        target[bin] += share * (Math.min(bin + 1, right) - Math.max(bin, left));
    }
  });
  const [waiting, computing, exposed] = shares, z = exposed.map(row => row.slice());
  for (let row = 0; row < numRows; row++) for (let bin = 0; bin < d.numBins; bin++) {
    const parts = [waiting[row][bin], computing[row][bin]].map(part => Math.min(Math.round(part), 100));
    parts.push(Math.max(100 - parts[0] - parts[1], 0));
    const most = Math.max(...parts);
    z[row][bin] = d.steps * parts.indexOf(most) + Math.max(most - (100 - d.steps + 1), 0);
    shares.forEach((share, use) => { share[row][bin] = parts[use]; });
  }
  return { ...figure.data[d.numFixed], z, customdata: computing, text: exposed, x0: window.left + size / 2, dx: size,
    y0: window.top + (perRow - 1) / 2, dy: perRow };
}

function follow(d) {
  prepare(d);
  const legend = figure.data.slice(d.numFixed + 1);
  let shown = '';
  const update = () => {
    const [left, right] = gd.layout.xaxis.range.map(Number), rows = gd.layout.yaxis.range.map(Number);
    const window = { left, right,
      top: Math.max(0, Math.ceil(Math.min(...rows) - 0.5)),
      bottom: Math.min(d.numRanks - 1, Math.floor(Math.max(...rows) + 0.5)) };
    const key = JSON.stringify(window);
    if (key === shown) return;
    shown = key;
    const { spans, count } = visible(d, window);
    const drawn = count <= d.maxBars ? barTraces(d, spans) : [heatTrace(d, spans, window), ...legend];
    // curves and overlays come first and stay as they are: what was switched on remains so
    Plotly.react(gd, [...gd.data.slice(0, d.numFixed), ...drawn], gd.layout, CONFIG);
  };
  let timer = 0;
  gd.on('plotly_relayout', () => { clearTimeout(timer); timer = setTimeout(update, 30); });
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
  if (details) follow(details);
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


def payload(bars: Bars, view: View) -> dict[str, Any]:
    """Return the columns of all bars, by rank and start, each in a small type that holds its values.

    Times are in the unit of the figure's axis. Starts are 64-bit, since one may zoom in a millionfold.
    """
    line = bars.timeline
    unit, unit_name = time_unit(bars.step_end)
    event = bars.event  # NONE for a wait until the end, which reads the last event; the page does not show it
    center, width = lane_geometry(bars.num_lanes)
    layer = np.where(line.layer == NO_LAYER, np.iinfo(np.int16).min, line.layer)
    wait_typ = np.where(bars.waits & (event != NONE), line.typ[event], 255)
    source, gap_kind = np.append(bars.gaps.source, NONE)[bars.gap], np.append(bars.gaps.kind, 0)[bars.gap]
    return {
        "maxBars": MAX_BARS,
        "maxRows": MAX_ROWS,
        "numBins": NUM_BINS,
        "steps": STEPS,
        "unit": unit,
        "unitName": unit_name,
        "noLayer": int(np.iinfo(np.int16).min),
        "kinds": [kind._asdict() for kind in bars.kinds],
        "computes": _compute_kinds(bars),
        "typs": line.typs,
        **({"layerNames": line.layer_names} if line.layer_names else {}),
        **({"rankNames": line.rank_names} if line.rank_names else {}),
        "samples": [ranges(numbers) for numbers in line.sample_sets],
        "center": center.tolist(),
        "width": width.tolist(),
        "gapKinds": GAP_KINDS,
        "first": np.searchsorted(bars.rank, np.arange(line.num_ranks + 1)).tolist(),
        "start": packed(bars.start / unit),
        "length": packed((bars.duration / unit).astype(np.float32)),
        "kind": packed(bars.kind.astype(np.uint8)),
        "lane": packed(bars.lane.astype(np.uint8)),
        "layer": packed(layer[event].astype(np.int16)),
        "sample": packed(smallest(line.samples[event])),
        "number": packed(smallest(bar_numbers(line)[event])),
        "waitsFor": packed(smallest(np.where(source == NONE, NONE, line.rank[source]))),
        "gapKind": packed(gap_kind.astype(np.uint8)),
        "waitTyp": packed(wait_typ.astype(np.uint8)),
        "memory": packed((line.memory[event] * view.bytes_per_element / GIB).astype(np.float32)),
    }


def packed(values: NDArray[Any]) -> dict[str, str]:
    """Return an array in the form that Plotly uses for its own: the type, and the bytes in base 64."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return {"dtype": values.dtype.kind + str(values.dtype.itemsize), "bdata": b64encode(little.tobytes()).decode()}


def smallest(values: Ints) -> NDArray[Any]:
    """Return whole numbers in the smallest type of 8, 16 or 32 bits that holds them."""
    for kind in (np.int8, np.int16):
        limits = np.iinfo(kind)
        if values.min(initial=0) >= limits.min and values.max(initial=0) <= limits.max:
            return values.astype(kind)
    return values.astype(np.int32)


def _compute_kinds(bars: Bars) -> list[bool]:
    """Tell which kinds run on the compute stream."""
    computes = np.zeros(len(bars.kinds), dtype=bool)
    chosen = ~bars.waits
    np.logical_or.at(computes, bars.kind[chosen], bars.timeline.computes[bars.event[chosen]])
    return [bool(value) for value in computes]
