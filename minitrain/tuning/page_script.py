"""The style and the JavaScript of a search's page; it draws on canvases."""

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
