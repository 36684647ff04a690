// The configurations of a sweep or a search on one page: parallel coordinates, a scatter plot, a table to sort, and what is
// known of a chosen one. `Configurations` in page.py says what `data` has.
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const COLORS = ['#56B4E9', '#E69F00', '#009E73', '#CC79A7', '#D55E00', '#0072B2', '#882255', '#B8A800'];
const count = data.fits.length, options = Object.keys(data.options), figures = Object.keys(data.figures);
const paces = data.figures[data.pace] ?? [];
const front = new Set(data.front), placeOf = new Map(data.named.map((row, i) => [row, i]));
const show = value => value == null ? '-' : typeof value === 'object' ? JSON.stringify(value)
  : typeof value !== 'number' ? String(value)
  : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(+value.toPrecision(4));
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let chosen = data.named.length ? data.named[0] : null, isDark = false, sorted = null;

// A row's cell: a figure, the text of an option, or its name.
function cell(row, name) {
  if (name in data.figures) return data.figures[name][row];
  if (name in data.options) return data.options[name].kinds[data.options[name].codes[row]];
  return data.names[placeOf.get(row)];
}

function html(kind, text, parent) {
  const made = document.createElement(kind);
  if (text != null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function drawing(holder, distance) {
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
    if (text == null) return;
    const { x, width: wide } = made.getBBox();  // what would be cut moves into the picture
    made.setAttribute('x', attributes.x + Math.max(0, -x) - Math.max(0, x + wide - width));
  };
  canvas.addEventListener('click', event => choose(nearest(event, distance)));
  canvas.addEventListener('mousemove', event => {
    const row = nearest(event, distance);
    canvas.title = row == null ? '' : [...options, ...figures].map(name => `${name}: ${show(cell(row, name))}`).join('\n');
  });
  return { pen, width, height, put };
}

// An axis: from a row to a place between two pixels, and the marks beside it. Figures above 0 have a logarithmic one.
function axis(name, from, to, numMarks) {
  if (name in data.options) {
    const { kinds, codes } = data.options[name];
    const at = code => kinds.length < 2 ? (from + to) / 2 : from + (to - from) * code / (kinds.length - 1);
    return { at: row => at(codes[row]), marks: kinds.slice(0, 24).map((kind, i) => [kind, at(i)]) };
  }
  const values = data.figures[name];
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value != null) { low = Math.min(low, value); high = Math.max(high, value); }
  const [scale, back] = low > 0 ? [Math.log, Math.exp] : [value => value, value => value];
  const span = scale(high) - scale(low) || 1;
  const place = value => high === low ? (from + to) / 2 : from + (to - from) * (scale(value) - scale(low)) / span;
  return {
    at: row => values[row] == null ? null : place(values[row]),
    marks: Array.from({ length: high === low ? 1 : high > low ? numMarks : 0 },
      (_, i) => back(scale(low) + span * i / Math.max(1, numMarks - 1))).map(value => [show(value), place(value)]),
  };
}

// Those that do not fit first, then the slowest: the best are drawn on top. What has no pace is not drawn.
const order = Array.from({ length: count }, (_, i) => i).filter(row => paces[row] != null)
  .sort((a, b) => data.fits[a] - data.fits[b] || paces[b] - paces[a]);
const fitting = order.filter(row => data.fits[row]);
const quickness = new Map(fitting.map((row, i) => [row, (i + 1) / fitting.length]));
const tint = row => {
  if (data.hue) return COLORS[data.options[data.hue].codes[row] % COLORS.length];
  const share = quickness.get(row) ?? 0;
  return `hsl(${200 + 20 * share} 80% ${isDark ? 35 + 35 * share : 75 - 45 * share}%)`;
};

const AXIS = 60;  // px: the name of an axis may be twice as wide, as names stand in two rows

function drawLines() {
  const names = data.axes;
  $('lines').style.minWidth = `${AXIS * names.length}px`;  // a narrow window scrolls them
  const { pen, width, height, put } = drawing($('lines'), (event, row) => distanceToPath(event, path(row)));
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
    const one = distance(event, order[i]);
    if (one < least - .5) { least = one; best = order[i]; }
  }
  return best;
}

const LEFT = 76;  // px: the longest figure stands beside the axis

function pointAxes() {
  const plot = $('points');
  return [axis($('x').value, LEFT, plot.clientWidth - 16, 4), axis($('y').value, plot.clientHeight - 30, 12, 5)];
}

function drawPoints() {
  const [x, y] = pointAxes(), point = row => {
    const [a, b] = [x.at(row), y.at(row)];
    return a == null || b == null ? null : [a, b];
  };
  const { pen, width, height, put } = drawing($('points'), (event, row) => {
    const at = point(row);
    return at ? Math.hypot(at[0] - event.offsetX, at[1] - event.offsetY) : Infinity;
  });
  for (const [text, at] of x.marks) {
    put('line', { class: 'axis', x1: at, x2: at, y1: 12, y2: height - 30 });
    put('text', { x: at, y: height - 14, 'text-anchor': 'middle' }, text);
  }
  for (const [text, at] of y.marks) {
    put('line', { class: 'axis', x1: LEFT, x2: width - 16, y1: at, y2: at });
    put('text', { x: LEFT - 6, y: at + 4, 'text-anchor': 'end' }, text);
  }
  const dot = (row, size, finish) => {
    const at = point(row);
    if (!at) return;
    pen.beginPath(); pen.arc(...at, size, 0, 7); pen[finish]();
  };
  const size = count > 1000 ? 2.5 : 4;
  pen.fillStyle = css('--slow');
  for (const row of order) if (!data.fits[row]) dot(row, size, 'fill');
  for (const row of fitting) { pen.fillStyle = tint(row); dot(row, size, 'fill'); }
  pen.lineWidth = 1.5; pen.strokeStyle = css('--ink');
  for (const row of front) dot(row, 5, 'stroke');
  if (chosen != null) { pen.fillStyle = css('--chosen'); dot(chosen, 6, 'fill'); }
}

const lineOf = new Map();  // the table's line of each row that is listed

function drawTable() {
  const table = $('table');
  table.className = data.columns[0] in data.options ? '' : 'layouts';
  table.replaceChildren();
  lineOf.clear();
  const head = html('tr', null, html('thead', null, table)), body = html('tbody', null, table);
  for (const name of data.columns) {
    const top = html('th', null, head), button = html('button', name, top);
    if (sorted?.name === name) {
      top.setAttribute('aria-sort', sorted.down ? 'descending' : 'ascending');
      button.textContent += sorted.down ? ' ▼' : ' ▲';
    }
    button.addEventListener('click', () => {
      sorted = { name, down: sorted?.name === name && !sorted.down };
      drawTable();
    });
  }
  for (const row of inOrder().slice(0, data.listed)) {
    const line = html('tr', null, body);
    for (const name of data.columns) html('td', show(cell(row, name)), line);
    line.tabIndex = 0;
    line.classList.toggle('chosen', row === chosen);
    line.addEventListener('click', () => choose(row));
    line.addEventListener('keydown', event => { if (event.key === 'Enter') choose(row); });
    lineOf.set(row, line);
  }
}

// The named rows, sorted by the column that was clicked; what is not known comes last.
function inOrder() {
  if (!sorted) return data.named;
  const value = row => sorted.name in data.options ? data.options[sorted.name].codes[row] : cell(row, sorted.name);
  const compare = (a, b) => typeof a === 'number' ? a - b : a.localeCompare(b);
  return [...data.named].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    return a == null ? (b == null ? 0 : 1) : b == null ? -1 : (sorted.down ? -1 : 1) * compare(a, b);
  });
}

function legend(parent, words, colors) {
  const holder = html('div', null, parent);
  holder.className = 'legend';
  words.forEach((word, i) => {
    const label = html('span', null, holder);
    html('i', null, label).style.background = colors[i];
    label.append(word);
  });
}

function bar(parts, unit, parent) {
  const total = Object.values(parts).reduce((a, b) => a + b, 0) || 1, holder = html('div', null, parent);
  holder.className = 'parts';
  const colors = Object.keys(parts).map((name, i) => name === 'waiting' ? css('--grid') : COLORS[i % COLORS.length]);
  Object.values(parts).forEach((value, i) => {
    const piece = html('i', null, holder);
    piece.style.width = `${100 * value / total}%`;
    piece.style.background = colors[i];
  });
  legend(parent, Object.entries(parts).map(([name, value]) => `${name} ${show(value)} ${unit}`), colors);
}

let timelines = [];

// What the ranks of a run do, once the script of timelines is there.
async function drawTimeline(picture, parent) {
  const mounted = window.mountTimelines ? await mountTimelines(parent, [picture]) : [];
  if (parent.isConnected) timelines = mounted;
  else mounted.forEach(one => one.destroy());
}

function drawDetails() {
  const details = $('details');
  timelines.forEach(one => one.destroy());
  timelines = [];
  details.replaceChildren();
  if (chosen == null) return;
  const place = placeOf.get(chosen), drawn = data.drawn[place];
  html('strong', place == null ? `${data.fits[chosen] ? 'fits' : 'does not fit'}`
    : `${place + 1}. ${data.names[place]}`, details);
  if (drawn?.parts) {
    html('p', 'Where the step goes, on average over ranks', details);
    bar(drawn.parts, 's', details);
  }
  if (Object.keys(drawn?.memory ?? {}).length) {
    html('p', 'What fills the memory of the fullest rank', details);
    bar(drawn.memory, 'GiB', details);
  }
  if (drawn?.picture) drawTimeline(drawn.picture, html('div', null, details));
  const list = html('dl', null, details);
  const known = data.known[place] ?? Object.fromEntries([...options, ...figures].map(name => [name, cell(chosen, name)]));
  for (const [name, value] of Object.entries(known)) {
    const pair = html('div', null, list);
    html('dt', name, pair);
    html('dd', show(value), pair);
  }
  if (place != null) html('code', data.commands[place], html('p', 'This command writes its page and pictures: ', details));
}

function choose(row) {
  if (row == null) return;
  chosen = row;
  for (const [other, line] of lineOf) line.classList.toggle('chosen', other === row);
  draw();
  drawDetails();
}

function draw() {
  if (!count) return;
  isDark = matchMedia('(prefers-color-scheme: dark)').matches;
  drawLines();
  drawPoints();
}

for (const [id, first] of [['x', data.x], ['y', data.pace]]) {
  for (const name of [...figures, ...options]) $(id).append(new Option(name, name, name === first, name === first));
  $(id).addEventListener('change', draw);
}
drawTable();
draw();
drawDetails();
window.addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
