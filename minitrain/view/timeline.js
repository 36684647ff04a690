// The timeline: what ranks do over time on a canvas, a row for all that do the same, with their memory below.
//
//   const timeline = await mountTimeline(element, data, {maxHeight: 640, span: 1.2, onSelect: bar => ...});
//
// `data` is what `minitrain.view.timeline.timeline_data` returns, `element` any empty block. `span` is how long the axis
// is at least, s, so that two runs share one; `late` is how much later than on its own axis all of this run
// is drawn, and `zero` which moment of the axis is called 0, s; `most` is the most memory of its axis, bytes. `marks` are frames around
// operations: {rank, start, end, color, text}. `onChange` is told of {zoom: [start, end]}, {path: bool},
// {patterns: bool} and {search: text}. The promise gives {zoomTo(start, end), search(text), showPath(bool), showPatterns(bool),
// select(index), like(bar), shown(), svg(), destroy(), bars}; times are in seconds.
//
//   const timelines = await mountTimelines(element, [{name, facts, data, marks}, ...]);
//
// shows several runs below one another on one axis, on which their steps begin together. They are moved, searched and chosen in together.
// Nothing outside of `element` is touched, and no other file is asked for.

const INTS = {1: Int8Array, 2: Int16Array, 4: Int32Array, 8: BigInt64Array};
const AXIS = 22, MEMORY = 96, LINE = 13, GAP = 8, LEAST = 0.02, BLOCK = 16, SPARE = 32, FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const KEYS = [['w / s', 'zoom in, out'], ['a / d', 'go left, right'], ['0', 'all of it'], ['f', 'zoom to what is chosen'],
  [', / .', 'choose the one before, after'], ['/', 'search'], ['c', 'critical path on and off'],
  ['p', 'patterns beside colours, on and off'], ['Esc', 'choose nothing'], ['Ctrl + wheel, pinch', 'zoom'],
  ['drag, Shift + wheel', 'go along time'], ['double click', 'zoom to a bar, as deep as its kernels'],
  ['click on a row\'s name', 'a row for each of its ranks']];
const SHAPES = ['', '\\', '|', '.', '-', 'x', '+', ':'], TILE = 12, STRIP = 12;
/** Whether a pixel of a pattern is drawn; all patterns repeat after `TILE` pixels. */
const INKED = {'/': (x, y) => (x + y) % 6 === 0, '\\': (x, y) => (x - y + TILE) % 6 === 0, '|': x => x % 4 === 0,
  '-': (_, y) => y % 4 === 0, '.': (x, y) => x % 4 === 0 && y % 4 === 0, 'x': (x, y) => (x + y) % 6 === 0 || (x - y + TILE) % 6 === 0,
  '+': (x, y) => x % 6 === 0 || y % 6 === 0, ':': (x, y) => x % 6 < 2 && y % 4 < 2};
const STYLE = `
.mt-timeline{--ink:#24292f;--soft:#57606a;--line:rgba(128,128,128,.28);--back:#fff;--lane:#f4f5f7;position:relative;
 color:var(--ink);font:12px/1.4 ${FONT}}
@media(prefers-color-scheme:dark){.mt-timeline{--ink:#c9d1d9;--soft:#9aa4af;--back:#0d1117;--lane:#171c23}}
.mt-timeline .bar{display:flex;flex-wrap:wrap;gap:4px 8px;align-items:center;margin:4px 0}
.mt-timeline button,.mt-timeline input,.mt-timeline select{font:inherit;color:inherit;background:none;
 border:1px solid var(--line);border-radius:4px;padding:3px 9px}
.mt-timeline option{color:#111}
.mt-timeline button[aria-pressed=true]{background:rgba(56,139,253,.22)}
.mt-timeline input{width:17em;max-width:100%}
.mt-timeline .found{color:var(--soft)}
.mt-timeline .kinds span{display:inline-block;margin-right:11px;white-space:nowrap}
.mt-timeline .kinds i{display:inline-block;width:12px;height:12px;margin-right:4px;vertical-align:-2px}
.mt-timeline .kinds span{cursor:pointer}
.mt-timeline .scroll{overflow-y:auto;overflow-x:hidden;position:relative}
.mt-timeline canvas{display:block;position:sticky;top:0;width:100%;touch-action:pan-y;cursor:default}
.mt-timeline canvas:focus-visible{outline:2px solid #388bfd;outline-offset:-2px}
.mt-timeline .tip{position:absolute;z-index:2;pointer-events:none;max-width:280px;padding:5px 8px;border-radius:4px;
 background:var(--back);border:1px solid var(--line);box-shadow:0 1px 4px rgba(0,0,0,.2)}
.mt-timeline .told{border:1px solid var(--line);border-radius:4px;padding:6px 10px;margin:6px 0}
.mt-timeline .told dl{display:grid;grid-template-columns:max-content 1fr;gap:1px 12px;margin:4px 0 0}
.mt-timeline dt{color:var(--soft)}.mt-timeline dd{margin:0;overflow-wrap:anywhere}
.mt-timeline .wide{overflow-x:auto}
.mt-timeline .kernels{border-collapse:collapse;margin:6px 0 0;white-space:nowrap}
.mt-timeline .kernels :is(td,th){padding:1px 14px 1px 0;text-align:left;font-size:12px;font-weight:400;border:0}
.mt-timeline .kernels :is(td,th):nth-child(2){text-align:right}
.mt-timeline .kernels th{color:var(--soft)}
.mt-timeline [hidden]{display:none!important}`;

/** Return the columns of `data` as arrays of numbers. */
async function columnsOf({head, blob}) {
  const text = atob(blob), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer()), columns = {};
  let from = 0;
  for (const [name, size, length, sums] of head) {
    const plain = new Uint8Array(length * size);  // bytes come by their place in the number
    for (let b = 0; b < size; b++) for (let i = 0; i < length; i++) plain[i * size + b] = raw[from + b * length + i];
    const values = new INTS[size](plain.buffer), found = new Float64Array(length);
    for (let i = 0; i < length; i++) found[i] = Number(values[i]) + (sums && i ? found[i - 1] : 0);
    columns[name] = found;
    from += length * size;
  }
  return columns;
}

/** Return the index of the first value that is not below `x`, from `low` on. */
function firstFrom(values, x, low = 0, high = values.length) {
  while (low < high) { const m = (low + high) >> 1; if (values[m] < x) low = m + 1; else high = m; }
  return low;
}

/** A colour a share of the way from one to another. */
const between = (color, other, share = 1 / 3) => '#' + rgb(color).map((part, i) => Math.round(part + (rgb(other)[i] - part) * share).toString(16).padStart(2, '0')).join('');
const rgb = color => [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));

function duration(seconds) {
  const size = Math.abs(seconds);
  if (!size) return '0 s';
  const [scale, name] = size >= 1 ? [1, 's'] : size >= 1e-3 ? [1e-3, 'ms'] : size >= 1e-6 ? [1e-6, 'µs'] : [1e-9, 'ns'];
  return Number((seconds / scale).toPrecision(4)) + ' ' + name;
}

function amount(bytes) {
  const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let place = 0;
  while (bytes >= 1024 && place < 4) { bytes /= 1024; place++; }
  return Number(bytes.toPrecision(4)) + ' ' + names[place];
}

/** Return a step of 1, 2 or 5 times a power of ten near x. */
function niceStep(x) {
  const power = 10 ** Math.floor(Math.log10(x)), times = x / power;
  return (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10) * power;
}

/** Return lanes of consecutive bars, whose times without overlap are `begin` and `finish`: the earlier bar has what two have. */
function lanesOf(c, bars) {
  const lanes = [];
  for (let from = 0, to; from < bars.start.length; from = to) {
    to = from;
    while (to < bars.start.length && c.row[to] === c.row[from] && c.lane[to] === c.lane[from]) to++;
    const start = bars.start.subarray(from, to), end = bars.end.subarray(from, to), begin = start.slice(), finish = end.slice();
    for (let i = 1; i < begin.length; i++) {
      begin[i] = Math.max(begin[i], finish[i - 1]);
      finish[i] = Math.max(finish[i], begin[i]);
    }
    lanes.push(sumUp({row: c.row[from], lane: c.lane[from], from, to, start, end, begin, finish}, c.kind));
  }
  return lanes;
}

/** Add to a lane the codes of its bars that differ, which of them each bar has, and their time before every block of bars. */
function sumUp(lane, codeOf) {
  const {from, to, begin, finish} = lane, codes = [], slots = new Map(), slot = new Uint8Array(to - from);
  for (let i = from; i < to; i++) {
    let k = slots.get(codeOf[i]);
    if (k === undefined) { slots.set(codeOf[i], k = codes.length); codes.push(codeOf[i]); }
    slot[i - from] = k;
  }
  const size = codes.length, blocks = Math.floor(slot.length / BLOCK), sums = new Float64Array((blocks + 1) * size);
  for (let block = 0, i = 0; block < blocks; block++) {
    const at = (block + 1) * size;
    sums.copyWithin(at, at - size, at);
    for (const next = i + BLOCK; i < next; i++) sums[at + slot[i]] += finish[i] - begin[i];
  }
  return Object.assign(lane, {codes, slot, sums});
}

/** Add to `busy`, a row of pixels by a column a code, the time of a lane in each of `width` pixels of `dt`; so long bars take no longer. */
function fillBusy({begin, finish, sums, slot, codes}, t0, dt, width, busy) {
  const size = codes.length, count = begin.length, last = Math.floor(count / BLOCK);
  for (let pixel = 0, i = firstFrom(finish, t0); pixel < width && i < count; pixel++) {
    const from = t0 + pixel * dt, to = from + dt, at = pixel * size;
    if (begin[i] < from) {
      busy[at + slot[i]] = Math.min(finish[i], to) - from;
      if (finish[i] > to) continue;
      i++;
    }
    while (i < count && finish[i] <= to) {
      if (i % BLOCK === 0 && i + BLOCK <= count && finish[i + BLOCK - 1] <= to) {
        const first = i / BLOCK;
        let block = first + 1, step = 1;
        for (; block + step <= last && finish[(block + step) * BLOCK - 1] <= to; step *= 2) block += step;
        for (; step >= 1; step /= 2) if (block + step <= last && finish[(block + step) * BLOCK - 1] <= to) block += step;
        for (let k = 0; k < size; k++) busy[at + k] += sums[block * size + k] - sums[first * size + k];
        i = block * BLOCK;
      } else {
        busy[at + slot[i]] += finish[i] - begin[i];
        i++;
      }
    }
    if (i < count && begin[i] < to) busy[at + slot[i]] += to - begin[i];
  }
}

/** Fill lines of `wide` pixels with bars on one another, as high as `heights` says: of `colors[k]` or, from so many lines on, `tiles[k]`. */
function fillBand(band, wide, dense, heights, order, colors, tiles, least) {
  const lines = band.length / wide, size = order.length;
  for (let pixel = 0; pixel < wide; pixel++) {
    let foot = lines, rest = lines + 0.5;
    for (let nth = 0; nth < size; nth++) {
      const k = order[nth], high = heights[pixel * size + k];
      if (high === 0) continue;
      rest -= high;
      const stop = rest > 0 ? rest | 0 : 0, tile = tiles[k], color = colors[k];
      if (tile && high >= least[k]) {
        const column = Math.floor(pixel / dense) % TILE;
        for (; foot > stop; foot--) band[(foot - 1) * wide + pixel] = tile[Math.floor((foot - 1) / dense) % TILE * TILE + column];
      } else for (let place = (foot - 1) * wide + pixel; foot > stop; foot--, place -= wide) band[place] = color;
    }
  }
}

function eachInked(shape, see) {
  for (let y = 0; y < TILE; y++) for (let x = 0; x < TILE; x++) if (INKED[shape](x, y)) see(x, y);
}

/** A colour as a pixel of `ImageData`. */
function codeOfColor(color) { const [r, g, b] = rgb(color); return (255 << 24 | b << 16 | g << 8 | r) >>> 0; }
/** The pixels of a pattern, one line after another. */
function tileOf(color, dot, shape) {
  const tile = new Uint32Array(TILE * TILE).fill(codeOfColor(color));
  if (shape) eachInked(shape, (x, y) => { tile[y * TILE + x] = codeOfColor(dot); });
  return tile;
}

/** What draws on a canvas of `dense` pixels a px; `svgPainter` has the same methods but for `pixels`. */
function canvasPainter(g, dense = 1) {
  const patterns = new Map(), sheet = document.createElement('canvas').getContext('2d', {alpha: false});
  let picture = new ImageData(1, 1);
  const hatched = (shape, color) => {
    if (!patterns.has(shape + color)) {
      const tile = document.createElement('canvas'), pen = tile.getContext('2d');
      tile.width = tile.height = TILE;
      pen.fillStyle = color;
      eachInked(shape, (x, y) => pen.fillRect(x, y, 1, 1));
      patterns.set(shape + color, g.createPattern(tile, 'repeat'));
    }
    return patterns.get(shape + color);
  };
  return {
    rect(x, y, w, h, color, alpha = 1, shape = '', hatch = '') {
      g.globalAlpha = alpha; g.fillStyle = color; g.fillRect(x, y, w, h);
      if (shape) { g.globalAlpha = alpha * 0.7; g.fillStyle = hatched(shape, hatch); g.fillRect(x, y, w, h); }
      g.globalAlpha = 1;
    },
    text(x, y, text, color, align = 'left', bold = false) {
      g.font = `${bold ? '600 ' : ''}11px ${FONT}`; g.textBaseline = 'middle'; g.textAlign = align; g.fillStyle = color;
      g.fillText(text, x, y);
    },
    line(points, color, width, fill = '') {
      g.beginPath(); points.forEach(([x, y], i) => { if (i) g.lineTo(x, y); else g.moveTo(x, y); });
      if (fill) { g.fillStyle = fill; g.fill(); }
      if (width) { g.strokeStyle = color; g.lineWidth = width; g.stroke(); }
    },
    clip(x, y, w, h) { g.save(); g.beginPath(); g.rect(x, y, w, h); g.clip(); },
    unclip() { g.restore(); },
    /** The pixels of a block, which `paint` colours, with `SPARE` px above that are not shown; as rectangles they would take ten times as long. */
    pixels(x, y, w, h, paint) {
      const wide = Math.floor(w * dense), above = Math.round(SPARE * dense), tall = above + Math.floor(h * dense);
      if (picture.width !== wide || picture.height !== tall) {
        picture = new ImageData(wide, tall);
        Object.assign(sheet.canvas, {width: wide, height: tall});
      }
      paint(new Uint32Array(picture.data.buffer), wide, tall, above);
      sheet.putImageData(picture, 0, 0);
      g.imageSmoothingEnabled = false;
      g.drawImage(sheet.canvas, 0, above, wide, tall - above, x, y, wide / dense, (tall - above) / dense);
    },
  };
}

function svgPainter(width, height) {
  const parts = [], n = x => Number(x.toFixed(2));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);
  const patterns = new Map(), hatches = new Map();  // those that nothing has been drawn over are one path a pattern
  const add = part => {
    for (const [id, d] of hatches) parts.push(`<path d="${d}" fill="url(#${id})" opacity="0.7"/>`);
    hatches.clear();
    parts.push(part);
  };
  let clips = 0;
  const hatched = (shape, color) => {
    const key = shape + color;
    if (!patterns.has(key)) {
      let dots = '';
      eachInked(shape, (x, y) => { dots += `M${x} ${y}h1v1h-1z`; });
      patterns.set(key, `<pattern id="hatch${patterns.size}" width="${TILE}" height="${TILE}" patternUnits="userSpaceOnUse">` +
        `<path d="${dots}" fill="${color}"/></pattern>`);
    }
    return 'hatch' + [...patterns.keys()].indexOf(key);
  };
  return {
    rect(x, y, w, h, color, alpha = 1, shape = '', hatch = '') {
      const box = `<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="${color}"`, id = shape && hatched(shape, hatch);
      if (alpha < 1) add(`${box} opacity="${n(alpha)}"/>`);
      else parts.push(`${box}/>`);
      if (shape) hatches.set(id, `${hatches.get(id) || ''}M${n(x)} ${n(y)}h${n(w)}v${n(h)}h${n(-w)}z`);
    },
    text(x, y, text, color, align = 'left', bold = false) {
      const anchor = {left: 'start', center: 'middle', right: 'end'}[align];
      add(`<text x="${n(x)}" y="${n(y + 4)}" fill="${color}" text-anchor="${anchor}"` +
        `${bold ? ' font-weight="600"' : ''}>${safe(text)}</text>`);
    },
    line(points, color, width, fill = '') {
      const corners = points.map(([x, y]) => `${n(x)},${n(y)}`).join(' ');
      add(`<polyline points="${corners}" fill="${fill || 'none'}" stroke="${width ? color : 'none'}" ` +
        `stroke-width="${width}"/>`);
    },
    clip(x, y, w, h) {
      clips++;
      add(`<clipPath id="c${clips}"><rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}"/></clipPath>` +
        `<g clip-path="url(#c${clips})">`);
    },
    unclip() { add('</g>'); },
    whole: () => add('') || `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${n(width)} ${n(height)}" width="${n(width)}" ` +
      `height="${n(height)}" font-family='${FONT}' font-size="11"><defs>${[...patterns.values()].join('')}</defs>${parts.join('')}</svg>`,
  };
}

/** Show a timeline in an element; see the head of this file. */
export async function mountTimeline(element, data, options = {}) {
  const c = await columnsOf(data), unit = data.unit, late = options.late || 0, zero = options.zero || 0,
    step = Math.max(data.step_s + late, options.span || 0), count = c.row.length;
  const seconds = ticks => ticks.map(value => value * unit + late);
  const bars = {...c, start: seconds(c.start), end: c.start.map((value, i) => (value + c.length[i]) * unit + late)};
  const waiting = data.kinds.length - 1, lanes = lanesOf(c, bars), scheme = matchMedia('(prefers-color-scheme: dark)');
  const titles = data.kinds.map(({name, axis}) => `${name} ${axis}`.trimEnd()), titleOf = k => titles[k];
  const samples = seconds(c.memory_time), memories = data.rows.map(() => new Map());
  for (let from = 0, to; from < samples.length; from = to) {
    to = from;
    while (to < samples.length && c.memory_row[to] === c.memory_row[from] && c.memory_kind[to] === c.memory_kind[from]) to++;
    const bytes = c.memory_kib.subarray(from, to).map(kib => kib * 1024), of = memories[c.memory_row[from]];
    const below = [...of.values()].at(-1), level = below ? bytes.map((value, i) => value + below.level[i]) : bytes;
    const most = new Float64Array(Math.ceil(level.length / BLOCK));
    level.forEach((value, i) => { most[i / BLOCK | 0] = Math.max(most[i / BLOCK | 0], value); });
    of.set(c.memory_kind[from], {time: samples.subarray(from, to), bytes, level, most});
  }
  const path = {row: c.path_row, start: seconds(c.path_start), end: seconds(c.path_end)};
  const state = {t0: 0, t1: step, chosen: -1, hover: -1, path: false, memory: data.peak_row, open: new Set(), found: null,
    patterns: matchMedia('(prefers-contrast: more)').matches};
  const tellOthers = change => options.onChange && options.onChange(change), begin = data.begin_s + late, finish = data.step_s + late;
  const borders = (data.steps_s || []).map(t => t + late);
  const rowOf = rank => data.rows.findIndex(row => row.members.some(([first, many, by]) =>
    rank >= first && rank < first + many * by && (rank - first) % by === 0));
  const marks = (options.marks || []).map(each => ({...each, start: each.start + late, end: each.end + late}));
  for (const each of marks) each.bar = markedBar(each);
  const framed = new Set(marks.map(each => each.bar));

  /** The index of the bar that a mark is around; -1 if there is none. */
  function markedBar({rank, start, end}) {
    const row = rowOf(rank), tick = step * 2e-9;
    for (const lane of lanes) {
      const i = firstFrom(lane.start, start - tick);
      if (lane.row === row && i < lane.start.length && Math.abs(lane.start[i] - start) <= tick && Math.abs(lane.end[i] - end) <= 2 * tick) return lane.from + i;
    }
    return -1;
  }

  // ---- what stands around the canvas
  const make = (tag, more = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), more);
    made.append(...inside);
    return made;
  };
  const button = (text, title, act) => make('button', {type: 'button', textContent: text, title, onclick: act});
  const search = make('input', {type: 'search', placeholder: 'attention 4, rank 3, mb 2, tp'});
  search.setAttribute('aria-label', 'search operations, layers, ranks, microbatches and groups');
  const said = make('span', {className: 'found'}), pathButton = button('critical path', 'c', () => showPath(!state.path));
  said.setAttribute('role', 'status');
  const patternButton = button('patterns', 'p: patterns beside colours', () => showPatterns(!state.patterns));
  pathButton.setAttribute('aria-pressed', false);
  patternButton.setAttribute('aria-pressed', state.patterns);
  const whose = make('select', {title: 'whose memory is shown'});
  data.rows.forEach((row, i) => whose.append(make('option', {value: i, textContent: `memory of ${row.name}, ${amount(row.peak_bytes)}`})));
  whose.value = state.memory;
  whose.onchange = () => { state.memory = Number(whose.value); schedule(); };
  const help = make('div', {className: 'told', hidden: true});
  help.append(make('dl', {}, ...KEYS.flatMap(([key, does]) =>
    [make('dt', {textContent: key}), make('dd', {textContent: does})])));
  const tools = make('div', {className: 'bar'}, search, pathButton, patternButton,
    button('−', 's', () => zoom(1.5)), button('+', 'w', () => zoom(1 / 1.5)), button('all', '0', () => zoomTo(0, step)),
    button('SVG', 'save what is seen as a picture', save), button('PDF', 'print what is seen, also to a file', print),
    button('?', 'keys', () => { help.hidden = !help.hidden; }), said);
  const legend = make('div', {className: 'kinds'}), canvas = make('canvas', {tabIndex: 0}), tip = make('div', {className: 'tip', hidden: true});
  const spacer = make('div'), scroll = make('div', {className: 'scroll'}, spacer), told = make('div', {className: 'told', hidden: true});
  spacer.append(canvas);
  told.setAttribute('aria-live', 'polite');
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', `timeline of ${data.rows.length} rows; what it shows is in the table below`);
  const root = make('div', {className: 'mt-timeline'}, make('style', {textContent: STYLE}), tools, help, legend, ...(data.rows.length > 1 ? [whose] : []), scroll, tip, told, table());
  element.replaceChildren(root);

  /** The same as a table, which a screen reader reads: how long each row does what. */
  function table() {
    const body = make('tbody'), sums = data.rows.map(() => new Float64Array(data.kinds.length));
    for (let i = 0; i < count; i++) sums[c.row[i]][c.kind[i]] += bars.end[i] - bars.start[i];
    sums.forEach((of, row) => of.forEach((busy, kind) => busy > 0 && body.append(make('tr', {},
      ...[data.rows[row].name, titleOf(kind), duration(busy), (100 * busy / data.step_s).toFixed(1) + ' %']
        .map(textContent => make('td', {textContent}))))));
    const head = make('tr', {}, ...['ranks', 'operation', 'time of one', 'share of the step']
      .map(textContent => make('th', {textContent})));
    return make('details', {}, make('summary', {textContent: 'As a table'}),
      make('div', {className: 'wide'}, make('table', {}, make('thead', {}, head), body)));
  }

  // ---- words
  const severalMicrobatches = c.number.some(number => number > 0);
  const kindOf = i => data.kinds[c.kind[i]];
  const layerName = layer => layer < 0 ? '' : data.layers.length ? data.layers[layer] || '' : 'layer ' + layer;
  const layerOf = i => layerName(c.layer[i]);
  const place = i => `${data.rows[c.row[i]].name} · ${data.lanes[c.lane[i]]}`;
  function reason(i) {
    const typ = data.typs[c.wait_typ[i]] || '', layer = layerOf(i), of = layer && ' of ' + layer;
    const who = c.source[i] < 0 ? '' : 'rank ' + data.ranks[c.source[i]];
    if (data.gap_kinds[c.gap_kind[i]] === 'recovery') return 'for the recovery from a fault';
    if (!typ) return `for the step's end, which ${who || 'another rank'} sets`;
    if (!who) return `for what comes before ${typ}${of}`;
    return typ === 'recv' ? `for ${who}'s send${of}` : `for ${who}, the last to come to ${typ}${of}`;
  }
  function facts(i) {
    const begin = c.cause[i], pairs = [['on', place(i)]];
    pairs.push(['time', `${duration(bars.end[i] - bars.start[i])} from ${duration(bars.start[i] - zero)}`]);
    if (c.kind[i] === waiting) return [...pairs, ['waits', reason(i)], ['a', data.gap_kinds[c.gap_kind[i]]]];
    if (layerOf(i)) pairs.push(['layer', layerOf(i)]);
    if (c.number[i] >= 0) pairs.push(['part', 'microbatch ' + c.number[i]]);
    if (data.samples[c.samples[i]]) pairs.push(['works on', data.samples[c.samples[i]]]);
    if (kindOf(i).law) pairs.push(['law', kindOf(i).law]);
    const {facts: told, seconds: alone} = accountOf(i), longer = bars.end[i] - bars.start[i] - alone;
    pairs.push(...told);
    if (alone && longer > 0.001 * alone) pairs.push(['slowed down', `by ${duration(longer)}, by what runs beside it`]);
    if (c.account[i] < 0 && data.unexplained) pairs.push(['price', data.unexplained]);
    if (begin >= 0) pairs.push(['began when it did', `since ${data.kinds[c.cause_kind[i]].name}` +
      ` ${layerName(c.cause_layer[i])}`.trimEnd() + ` of rank ${data.ranks[begin]} came before`]);
    if (c.bytes[i] > 0) pairs.push(['moves', `${amount(c.bytes[i])} ${data.partners[c.partner[i]] || ''}`.trim()]);
    for (const each of marks) if (each.bar === i) pairs.push(['difference ' + each.name, each.text]);
    pairs.push(['memory then', amount(heldAt(c.row[i], bars.start[i]))]);
    return pairs;
  }
  /** What the price of a bar is made of, as Python tells it. */
  function accountOf(i) { return data.accounts[c.account[i]] || {facts: [], parts: [], seconds: 0}; }
  /** What a row holds of each kind at a moment, as pairs of its name and bytes. */
  function heldByKind(row, t) {
    return [...memories[row]].map(([kind, {time, bytes}]) => [data.memory_kinds[kind], bytes[firstFrom(time, t + step * 1e-9) - 1] || 0]);
  }
  const heldAt = (row, t) => heldByKind(row, t).reduce((sum, [, bytes]) => sum + bytes, 0);
  function show(i, more = []) {
    told.hidden = i < 0;
    if (i < 0) return;
    const kernels = accountOf(i).parts.map(([name, share, bound, said]) => make('tr', {},
      ...[name, (100 * share).toFixed(1) + ' %', said, bound].map(textContent => make('td', {textContent}))));
    const head = make('tr', {}, ...['kernel', 'share', 'takes', 'bound by'].map(textContent => make('th', {textContent})));
    told.replaceChildren(make('b', {textContent: `${titleOf(c.kind[i])} ${c.kind[i] === waiting ? '' : layerOf(i)}`}),
      make('dl', {}, ...[...facts(i), ...more].flatMap(([name, value]) => [make('dt', {textContent: name}), make('dd', {textContent: value})])),
      ...(kernels.length ? [make('div', {className: 'wide'}, make('table', {className: 'kernels'}, head, ...kernels))] : []));
  }

  // ---- where things are
  let width = 0, height = 0, left = 0, total = 0, deep = MEMORY, foot = 18, items = [], labels = [];
  function arrange() {
    width = Math.max(root.clientWidth, 200);
    const narrow = width < 700, many = data.rows.length > 12;
    left = narrow ? 6 : 168;
    items = []; labels = [];
    let y = 0;
    data.rows.forEach((row, r) => {
      const own = lanes.filter(lane => lane.row === r), copies = state.open.has(r) ? members(row).slice(0, 64) : [null];
      copies.forEach(rank => {
        const top = y;
        if (narrow) y += 15;
        labels.push({row: r, y: top, name: rank === null ? row.name : 'rank ' + rank, own, narrow});
        own.forEach((lane, place) => {
          const high = place ? (many ? 8 : 15) : (many ? 16 : 26);
          items.push({lane, y, high, first: !place});
          y += high + 1;
        });
        y += many ? 3 : 8;
      });
    });
    deep = MEMORY + LINE * Math.max(0, ...data.rows.map((_, row) => titleOfMemory(row).length - 1));
    foot = 4 + 14 * Math.max(1, ...data.rows.map((_, row) => inLines(namesOfMemory(row))[1]));
    total = AXIS + y + GAP + deep + foot;
    height = Math.min(total, options.maxHeight || tallest());
    spacer.style.height = total + 'px';
    scroll.style.maxHeight = height + 'px';
    const dense = devicePixelRatio || 1;
    canvas.width = width * dense; canvas.height = height * dense; canvas.style.height = height + 'px';
    const pen = canvas.getContext('2d', {alpha: false});
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    painter = canvasPainter(pen, dense);
    draw();
  }
  const members = row => row.members.flatMap(([first, many, by]) => Array.from({length: many}, (_, i) => first + i * by));
  const span = () => width - left - 8, xOf = t => left + (t - state.t0) / (state.t1 - state.t0) * span();
  const timeOf = x => state.t0 + (x - left) / span() * (state.t1 - state.t0);

  // ---- drawing
  const inkOf = dark => dark ? '#c9d1d9' : '#24292f', backOf = dark => dark ? '#0d1117' : '#ffffff', laneOf = dark => dark ? '#171c23' : '#f4f5f7';
  let painter, due = false, known = {}, room = new Float64Array(0);
  const schedule = () => { if (!due) { due = true; requestAnimationFrame(() => { due = false; draw(); }); } };
  function draw(on = painter, dark = scheme.matches) {
    const ink = inkOf(dark), soft = dark ? '#9aa4af' : '#57606a', back = backOf(dark), lane = laneOf(dark), grid = dark ? '#2b3139' : '#e6e8eb';
    const bottom = height - deep - foot, shift = Math.round(scroll.scrollTop), {title, columns, high} = memoryOf(state.memory, bottom);
    const looks = {...looksOf(dark), soft}, phases = new Map(), isCrowded = ([{lane}]) => seenOf(lane).many > span() / (on.pixels ? 8 : 3);
    const seen = items.map(item => [item, AXIS + item.y - shift]).filter(([item, y]) => y <= bottom && y + item.high >= AXIS);
    const crowded = seen.filter(isCrowded);
    on.rect(0, 0, width, height, back);
    const grids = ticks(on, ink, grid);
    const from = crowded.length ? AXIS : bottom - GAP;
    if (on.pixels) on.pixels(left, from, span(), height - from, (into, wide, tall, above) => {
      const dense = wide / span(), lineOf = y => above + Math.round((y - from) * dense), [empty, plain, dash] = [back, lane, grid].map(codeOfColor);
      const clear = (first, last) => {
        into.fill(empty, first * wide, (first + 1) * wide);
        for (const x of grids) into.fill(dash, first * wide + x * dense, first * wide + (x + 1) * dense);
        for (let done = 1, number = last - first; done < number; done *= 2) into.copyWithin((first + done) * wide, first * wide, (first + Math.min(done, number - done)) * wide);
      };
      const linesOf = (y, high) => into.subarray(lineOf(y) * wide, (lineOf(y) + Math.round(high * dense)) * wide);
      clear(0, lineOf(bottom - GAP));
      if (crowded.length) for (const [item, y] of seen) linesOf(y, item.high).fill(plain);
      for (const [item, y] of crowded) phases.set(item, paintShares(linesOf(y, item.high), wide, dense, item.lane, looks, plain));
      clear(lineOf(bottom - GAP), tall);
      paintMemory(linesOf(high(mostMemory()) - 1, bottom + deep - high(mostMemory()) + 1), wide, dense, columns, high, dark);
    });
    on.clip(0, AXIS, width, bottom - AXIS - GAP);
    if (!on.pixels || !crowded.length) for (const [item, y] of seen) on.rect(left, y, span(), item.high, lane);
    if (!on.pixels) for (const [item, y] of crowded) phases.set(item, drawShares(on, item.lane, y, item.high, looks));
    for (const [item, y] of seen) drawBars(on, item.lane, y, item.high, looks, phases.get(item));
    on.clip(left, AXIS, span(), height);
    if (begin > 0) on.rect(xOf(begin), AXIS, 1, bottom - AXIS, soft);
    for (const t of borders) on.rect(xOf(t) - 1, AXIS, 2, bottom - AXIS, ink);
    if (step > finish * 1.001) {
      on.rect(xOf(finish), AXIS, 2, bottom - AXIS, '#d6006c');
      const says = `ends ${duration(step - finish)} before the last`;
      const [first] = items;  // in whose lane nothing follows
      if (xOf(finish) + widthOf(says) + 8 < width) on.text(xOf(finish) + 6, AXIS + first.y + first.high / 2 - shift, says, soft);
    }
    on.unclip();
    const tags = [];
    for (const each of marks) frame(on, each, shift, tags);
    arrow(on, state.chosen, shift);
    names(on, ink, soft, shift);
    if (state.path) drawPath(on, shift, dark);
    for (const [i, color] of [[state.hover, soft], [state.chosen, '#d6006c']]) mark(on, i, color, shift);
    on.unclip();
    drawMemory(on, bottom, title, columns, high, ink, soft, dark);
    for (const [says, x] of namesOfSteps()) on.text(x, 9, says, ink, 'left', true);
  }
  /** The names of the steps that begin in sight, with where they stand on the axis. */
  function namesOfSteps() {
    return borders.map((t, i) => ['step ' + (i + 2), t]).filter(([, t]) => t >= state.t0 && t <= state.t1)
      .map(([says, t]) => [says, Math.min(xOf(t) + 4, width - widthOf(says) - 4)]);
  }
  /** The pattern of each kind of bar. */
  function shapesOf() {
    return data.kinds.map((kind, k) => kind.pattern || (state.patterns ? SHAPES[k % SHAPES.length] : ''));
  }
  function ticks(on, ink, grid) {
    const steps = namesOfSteps(), grids = [];
    const by = niceStep((state.t1 - state.t0) / Math.max(1, span() / 95));
    const [scale, name] = state.t1 >= 1 ? [1, 's'] : state.t1 >= 1e-3 ? [1e-3, 'ms'] : state.t1 >= 1e-6 ? [1e-6, 'µs'] : [1e-9, 'ns'];
    const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(by / scale) + 1e-9)));
    for (let t = Math.ceil((state.t0 - zero) / by) * by; t <= state.t1 - zero; t += by) {
      const x = xOf(t + zero);
      on.rect(Math.round(x), AXIS - 4, 1, height - AXIS, grid);
      if (x < left + span() - 1) grids.push(Math.round(x) - left);
      const says = `${(t / scale).toFixed(digits)} ${name}`, half = widthOf(says) / 2 + 12;
      const free = steps.every(([step, at]) => x + half < at || x - half > at + widthOf(step));
      if (free && x > left + 14 && x < width - 26) on.text(x, 9, says, ink, 'center');
    }
    return grids;
  }
  /** The colours of kinds and, behind them, of kinds that are not searched for; also as tiles of pixels. */
  function looksOf(dark) {
    const key = [dark, state.patterns].join(), dimmed = all => [...all, ...all.map(color => between(laneOf(dark), color, 0.15))];
    if (known.key === key) return known;
    const fresh = data.kinds.map(kind => dark && kind.dark || kind.color), shapes = shapesOf();
    fresh[waiting] = dark ? '#2a2f36' : '#e7e9ec';
    const inks = data.kinds.map(kind => dark && kind.dark && kind.dark_ink || kind.ink);
    const fits = data.kinds.map((kind, k) => k === waiting ? (dark ? '#6b737d' : '#8c959f') : kind.axis ? between(fresh[k], inks[k]) : inks[k]);
    const colors = dimmed(fresh), dots = dimmed(fits), all = [...shapes, ...shapes], tiles = colors.map((color, k) => tileOf(color, dots[k], all[k]));
    return known = {key, colors, inks, dots, shapes: all, tiles};
  }
  const codeOf = i => c.kind[i] + (state.found && !state.found[i] ? data.kinds.length : 0);
  /** The bars of a lane that are in sight: from, to, how many. */
  function seenOf({start}) {
    const first = Math.max(0, firstFrom(start, state.t0) - 1), last = firstFrom(start, state.t1, first);
    return {first, last, many: last - first};
  }
  /** Draw the bars of a lane and what is said in them; where shares are drawn, with `phases`, only that. */
  function drawBars(on, lane, y, high, {colors, inks, shapes, dots, soft}, phases) {
    const {start, end, from} = lane, {first, last, many} = seenOf(lane), right = left + span(), named = phases && many > span() / 3 ? phases : [];
    if (named !== phases) for (let i = first, drawn = -1; i < last; i++) {
      if (end[i] < state.t0) continue;
      const code = codeOf(from + i), kind = c.kind[from + i], isDim = code !== kind;
      const x0 = Math.max(left, xOf(start[i])), wide = Math.min(right, xOf(end[i])) - x0;
      if (high >= 13 && wide > 0) prolong(named, wide < 14 && !isDim ? kind : waiting, x0, x0 + wide);
      if (!phases) {
        if (wide < 0.5 && Math.round(x0) === drawn && (isDim || !state.found)) continue;
        if (wide < 0.5) drawn = Math.round(x0);  // the last pixel with something in it: bars below a pixel are drawn once
        on.rect(x0, y, Math.max(wide > 4 ? wide - 0.7 : wide, 0.7), high, colors[code], 1, wide > 3 ? shapes[code] : '', dots[code]);
      }
      if (high < 13 || wide < 14 || isDim) continue;
      const isNested = hasStrip(from + i, high, wide), middle = isNested ? (high - STRIP) / 2 : high / 2;
      const text = label(from + i, wide - 6 - (framed.has(from + i) ? 18 : 0));
      if (text && shapes[kind] && kind !== waiting) on.rect(x0 + 1, y + middle - 6, widthOf(text) + 4, 13, colors[kind], 0.8);
      if (text) on.text(x0 + 3, y + middle + 0.5, text, kind === waiting ? soft : inks[kind]);
      if (isNested) drawKernels(on, from + i, y + high - STRIP, colors[kind], inks[kind]);
    }
    if (high >= 13) labelPhases(on, named, y + high / 2 + 0.5, inks);
  }
  /** Add what is seen of a kind to phases from left to right: neighbours of one kind are one. */
  function prolong(phases, kind, from, to) {
    const last = phases.at(-1);
    if (last && last.kind === kind && from - last.to <= 2) last.to = to;
    else phases.push({kind, from, to});
  }
  /** Name phases, whose bars are too narrow for labels of their own. */
  function labelPhases(on, phases, y, inks) {
    for (const {kind, from, to} of phases) {
      if (to - from < 24) continue;
      const text = titleOf(kind).replace('_', '-');
      if (kind !== waiting && to - from > widthOf(text) + 10) on.text((from + to) / 2, y, text, inks[kind], 'center');
    }
  }
  /** Whether there is room for the kernels of a bar below its label. */
  function hasStrip(i, high, wide) { return high >= 2 * STRIP && wide > 80 && accountOf(i).parts.length > 1; }
  /** Call `see` for each kernel of a bar: its place among them, and where it begins and ends, px. */
  function eachKernel(i, see) {
    const x0 = xOf(bars.start[i]), wide = xOf(bars.end[i]) - x0;
    let before = 0;
    accountOf(i).parts.forEach(([, share], place) => { see(place, x0 + wide * before, x0 + wide * (before += share)); });
  }
  function drawKernels(on, i, y, color, ink) {
    eachKernel(i, (place, from, to) => {
      const x0 = Math.max(left, from), wide = Math.min(width, to) - x0;
      if (wide < 0.3) return;
      const [name, share] = accountOf(i).parts[place], tries = [`${name} ${(100 * share).toFixed(0)} %`, name];
      on.rect(x0, y, wide, STRIP, color);
      on.rect(x0, y, wide, STRIP, '#ffffff', place % 2 ? 0.34 : 0.2);
      const text = [...tries, wide > 90 ? cut(name, wide - 5) : name.split(' ')[0]].find(text => widthOf(text) <= wide - 5);
      if (text) on.text(x0 + 3, y + STRIP / 2, text, ink);
    });
  }
  /** The longest text that fits: operation, layer and microbatch, or less of it. */
  function label(i, room) {
    const name = titleOf(c.kind[i]).replace('_', '-'), layer = layerOf(i), mb = severalMicrobatches && c.number[i] >= 0 ? 'mb ' + c.number[i] : '';
    const number = (layer.match(/\d+$/) || [''])[0], both = [layer, mb].filter(Boolean).join(' · ');
    const tries = c.kind[i] === waiting ? [reason(i), 'waits ' + data.gap_kinds[c.gap_kind[i]], 'waits']
      : [`${name} ${both}`, `${name} ${layer || mb}`, both, layer, name, mb && String(c.number[i]), number];
    return tries.find(text => text && widthOf(text) <= room) || '';
  }
  /** How high each code of a lane, whose bars are too many, is drawn in each pixel; and its phases. */
  function heightsOf(lane, wide, dense, high) {
    const {codes} = lane, size = codes.length, phases = [], dt = (state.t1 - state.t0) / span() / dense, scale = high / dt;
    const least = codes.map(code => code >= waiting ? 0 : state.found ? high / 2 : 2 * dense), from = state.found ? 1e-9 : LEAST * high;
    if (room.length < wide * size) room = new Float64Array(wide * size);
    const heights = room.subarray(0, wide * size).fill(0);
    fillBusy(lane, state.t0, dt, wide, heights);
    for (let pixel = 0, phase = {kind: -1}; pixel < wide; pixel++) {
      const at = pixel * size, end = at + size;
      let most = at;
      for (let k = at; k < end; k++) {
        heights[k] *= scale;
        if (heights[k] > heights[most]) most = k;
      }
      const kind = heights[most] > 0.6 * high ? Math.min(codes[most - at], waiting) : waiting;
      if (phase.kind !== kind) phases.push(phase = {kind, from: left + pixel / dense});
      phase.to = left + (pixel + 1) / dense;
      for (let k = at; k < end; k++) if (heights[k] < least[k - at] && heights[k] >= from) {  // is seen, at the cost of the largest
        heights[most] = Math.max(0, heights[most] - least[k - at] + heights[k]);
        heights[k] = least[k - at];
      }
    }
    return {heights, phases};
  }
  const orderOf = ({codes}) => codes.map((_, k) => k).sort((a, b) => codes[a] - codes[b]);
  /** Fill lines of pixels with the shares of a lane, where bars that are wide end with a gap; return its phases. */
  function paintShares(band, wide, dense, lane, {colors, tiles, shapes}, back) {
    const {codes, start, end} = lane, lines = band.length / wide, {heights, phases} = heightsOf(lane, wide, dense, lines);
    const plain = Uint32Array.from(codes, code => codeOfColor(colors[code])), least = codes.map(code => code === waiting ? 0.6 * lines : 0);
    fillBand(band, wide, dense, heights, orderOf(lane), plain, codes.map(code => shapes[code] && tiles[code]), least);
    const seen = seenOf(lane), scale = span() * dense / (state.t1 - state.t0);
    if (seen.many <= span()) for (let i = seen.first; i < seen.last; i++) {
      const pixel = Math.round((end[i] - state.t0) * scale) - 1;
      if ((end[i] - start[i]) * scale > 4 * dense && pixel < wide) for (let place = pixel; place < band.length; place += wide) band[place] = back;
    }
    return phases;
  }
  /** Draw the shares of a lane as rectangles; return its phases. */
  function drawShares(on, lane, y, high, {colors, shapes, dots}) {
    const {codes} = lane, order = orderOf(lane);
    let run = null;  // neighbours that look alike are one rectangle
    const flush = () => {
      let foot = y + high;
      if (run) for (const [code, tall] of run.parts) {
        foot -= tall;
        on.rect(left + run.from, foot, run.wide, tall, colors[code], 1, code === waiting && tall < 0.6 * high ? '' : shapes[code], dots[code]);
      }
    };
    const wide = Math.floor(span()), {heights, phases} = heightsOf(lane, wide, 1, high);
    for (let pixel = 0; pixel < wide; pixel++) {
      const parts = order.map(k => [codes[k], Math.round(heights[pixel * codes.length + k] * 2) / 2]).filter(([, tall]) => tall > 0), key = parts.join(' ');
      if (run && run.key === key) { run.wide++; continue; }
      flush();
      run = {key, parts, from: pixel, wide: 1};
    }
    flush();
    return phases;
  }
  function names(on, ink, soft, shift) {
    for (const {row, y, name, own, narrow} of labels) {
      const at = AXIS + y - shift, count = data.rows[row].count, sign = count > 1 && on.pixels ? (state.open.has(row) ? '▾ ' : '▸ ') : '';
      if (narrow) on.text(left, at + 7, cut(`${sign}${name}: ${own.map(lane => data.lanes[lane.lane]).join(', ')}`, span()), ink, 'left', true);
      else {
        on.text(4, at + 8, cut(sign + name, left - 12), ink, 'left', true);
        if (data.rows.length <= 12) items.filter(item => own.includes(item.lane) && !item.first && item.y > y && item.y < y + 160)
          .slice(0, own.length - 1).forEach(item => on.text(left - 6, AXIS + item.y - shift + item.high / 2, data.lanes[item.lane.lane], soft, 'right'));
      }
    }
  }
  function drawPath(on, shift, dark) {
    const main = new Map(items.filter(item => item.first).map(item => [item.lane.row, item]).reverse()), points = [];
    path.row.forEach((row, i) => {
      const item = main.get(row);
      if (!item || path.end[i] < state.t0 || path.start[i] > state.t1) return;
      const y = AXIS + item.y - shift + item.high * 0.85;
      points.push([xOf(path.start[i]), y], [xOf(path.end[i]), y]);
    });
    on.clip(left, AXIS, span(), height);
    on.line(points, dark ? '#ff5ca8' : '#d6006c', 2.5);
    on.unclip();
  }
  function mark(on, i, color, shift) {
    const item = i >= 0 && items.find(item => i >= item.lane.from && i < item.lane.to);
    if (!item) return;
    const x0 = Math.max(left, xOf(bars.start[i])), x1 = Math.max(x0 + 2, Math.min(width - 4, xOf(bars.end[i])));
    const y0 = AXIS + item.y - shift, y1 = y0 + item.high - 1;
    if (x0 < width) on.line([[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]], color, 2);
  }
  /** Draw an arrow to a bar from the rank that it, or what ended it where it is a wait, had to wait for. */
  function arrow(on, i, shift) {
    if (i < 0) return;
    const waits = c.kind[i] === waiting, who = waits ? c.source[i] : c.cause[i], t = waits ? bars.end[i] : bars.start[i];
    const [from, to] = [who < 0 ? -1 : data.row_of_rank[who], c.row[i]].map(row => items.find(({lane, first}) => first && lane.row === row));
    if (!from || !to || from === to || t < state.t0 || t > state.t1) return;
    const down = from.y < to.y, x = xOf(t), y0 = AXIS + from.y - shift + from.high / 2;
    const y1 = AXIS + to.y - shift + (down ? 0 : to.high), back = down ? -7 : 7;
    on.line([[x, y0], [x, y1]], '#d6006c', 2);
    on.line([[x - 4, y1 + back], [x, y1], [x + 4, y1 + back]], '#d6006c', 2);
  }
  /** Draw a frame around an operation of a rank, which its row stands for. */
  /** A frame with its number in the upper right corner, unless that of a more important one, in `tags`, is there. */
  function frame(on, {name, rank, bar, start, end, color}, shift, tags) {
    const item = items.find(({lane}) => bar >= lane.from && bar < lane.to) || items.find(({lane}) => lane.row === rowOf(rank));
    if (!item || end < state.t0 || start > state.t1) return;
    const x0 = xOf(start), x1 = Math.max(x0 + 3, xOf(end)), y0 = AXIS + item.y - shift, y1 = y0 + item.high;
    on.clip(left, AXIS, span(), height);
    on.line([[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]], color, 2.5);
    const wide = widthOf(name) + 6, tag = [x1 - wide, y0];
    if (!tags.some(([x, y]) => y === y0 && Math.abs(x - tag[0]) < wide)) {
      tags.push(tag);
      on.rect(...tag, wide, 12, color);
      on.text(x1 - wide / 2, y0 + 6, name, '#ffffff', 'center', true);
    }
    on.unclip();
  }
  const isOneKind = () => data.memory_kinds.length < 2, PLAIN_MEMORY = ['#cfe3f2', '#1b3a52'];
  const SHADES = ['#0072B2', '#CC79A7', '#E69F00', '#56B4E9', '#999999', '#D55E00', '#009E73', '#3A9BDC'];
  /** What is said above the memory of a row, in lines that fit. */
  function titleOfMemory(row) {
    const all = data.capacity_bytes, its = all && `; ${drawnCapacity() ? "the line is the device's" : 'the device has'} ${amount(all)}`;
    const held = data.rows[row], peak = held && held.peak.replace('{}', duration(held.peak_at_s + late - zero));
    return wrapped(`memory: ${peak ? peak + (its || '') : 'none'}`, span() - 4);
  }
  const mostMemory = () => Math.max(options.most || 0, ...data.rows.map(row => row.peak_bytes || 0), 1);
  /** The device's memory, if the curves come near it; 0 otherwise. */
  const drawnCapacity = () => data.capacity_bytes && data.capacity_bytes < mostMemory() * 1.5 ? data.capacity_bytes : 0;
  /** What is seen of a row's memory: its title, how much it holds up to each kind in each column of the axis, and how high bytes are. */
  function memoryOf(row, top) {
    const title = titleOfMemory(row), room = deep - LINE * title.length - 3, scale = room / Math.max(drawnCapacity(), mostMemory());
    const columns = wide => [...(memories[row] || new Map()).values()].map(curve => peaksOf(curve, wide));
    return {title, columns, high: bytes => top + deep - bytes * scale};
  }
  /** The most of a curve in each of `wide` columns. */
  function peaksOf({time, level, most}, wide) {
    const found = new Float64Array(wide), dt = (state.t1 - state.t0) / wide;
    let i = firstFrom(time, state.t0) - 1;
    for (let column = 0; column < wide; column++) {
      const to = state.t0 + (column + 1) * dt;
      let peak = i < 0 || i === time.length - 1 ? 0 : level[i];
      for (i++; i < time.length && time[i] < to; i++) {
        if (i % BLOCK === 0 && i + BLOCK < time.length && time[i + BLOCK] < to) { peak = Math.max(peak, most[i / BLOCK]); i += BLOCK - 1; }
        else peak = Math.max(peak, level[i]);
      }
      i--;
      found[column] = peak;
    }
    return found;
  }
  /** Fill lines of pixels with what is held: a colour a kind or, where kinds are not known, one with a line above. */
  function paintMemory(band, wide, dense, columns, high, dark) {
    const found = columns(wide), size = found.length, heights = new Float64Array(wide * size), scale = (high(0) - high(1e9)) * dense / 1e9;
    found.forEach((levels, k) => levels.forEach((bytes, pixel) => { heights[pixel * size + k] = (bytes - (k ? found[k - 1][pixel] : 0)) * scale; }));
    const [plain, edge] = isOneKind() ? [[PLAIN_MEMORY[+dark]], codeOfColor(SHADES[0])] : [SHADES];
    fillBand(band, wide, dense, heights, found.map((_, k) => k), Uint32Array.from(found, (_, k) => codeOfColor(plain[k % plain.length])), [], []);
    if (edge) for (let pixel = 0, lines = band.length / wide, before = lines; pixel < wide; pixel++) {
      const top = Math.min(lines - 1, Math.round(lines - heights[pixel])), last = Math.min(lines, Math.max(top + 1, before));
      if (heights[pixel]) for (let line = Math.min(top, before); line < last; line++) band[line * wide + pixel] = edge;
      before = top;
    }
  }
  function drawMemory(on, top, title, columns, high, ink, soft, dark) {
    const known = !isOneKind(), capacity = drawnCapacity(), wide = Math.floor(span() * 2);
    title.forEach((line, place) => on.text(narrowText(), top + 6 + LINE * place, line, ink));
    if (!on.pixels) {
      let below = new Float64Array(wide);
      columns(wide).forEach((levels, place) => {
        const edge = of => Array.from(of).flatMap((bytes, i) => i && bytes === of[i - 1] && bytes === of[i + 1] ? [] : [[left + i / 2, high(bytes)], [left + (i + 1) / 2, high(bytes)]]);
        const shade = SHADES[place % SHADES.length];
        on.line([...edge(levels), ...edge(below).reverse()], shade, known ? 0 : 1, known ? shade : PLAIN_MEMORY[+dark]);
        below = levels;
      });
    }
    if (capacity) on.rect(left, high(capacity), span(), 1, '#D55E00');
    on.rect(left, top + deep, span(), 1, soft);
    if (known) for (const [place, [name, x, line]] of inLines(namesOfMemory(state.memory))[0].entries()) {
      on.rect(x, top + deep + 5 + 14 * line, 9, 9, SHADES[place % SHADES.length]);
      on.text(x + 12, top + deep + 10 + 14 * line, name, ink);
    }
  }
  const namesOfMemory = row => [...(memories[row] || new Map()).keys()].map(kind => data.memory_kinds[kind]);
  /** Where names stand side by side, [name, x, line], in how many lines. */
  function inLines(names) {
    let x = left, line = 0;
    const entries = names.map(name => {
      const wide = widthOf(name) + 24;
      if (x > left && x + wide - 8 > width) { x = left; line++; }
      x += wide;
      return [name, x - wide, line];
    });
    return [entries, line + 1];
  }
  const narrowText = () => left + 2;
  function seek(text) { search.value = text; tellOthers({search: text}); return find(text); }
  /** The same operation of another run: its kind, layer, microbatch and, where it can be, rank. */
  function like({rank, name, layer, number}) {
    const row = rowOf(rank), alike = i => kindOf(i).name === name && layerOf(i) === layer && c.number[i] === number;
    let found = -1;
    for (let i = 0; i < count; i++) if (alike(i) && (found < 0 || c.row[i] === row && c.row[found] !== row)) found = i;
    return found;
  }
  const barOf = i => ({rank: data.rows[c.row[i]].members[0][0], name: kindOf(i).name, layer: layerOf(i), number: c.number[i],
    start: bars.start[i], seconds: bars.end[i] - bars.start[i]});
  function print() {
    const picture = svg(false), [, high] = picture.match(/ height="([\d.]+)"/);
    const sheet = make('iframe', {srcdoc: `<style>@page{size:${width}px ${Math.ceil(high) + 1}px;margin:0}body{margin:0}svg{display:block}</style>${picture}`});
    sheet.style.cssText = 'position:absolute;width:0;height:0;border:0';
    sheet.onload = () => { sheet.contentWindow.onafterprint = () => sheet.remove(); sheet.contentWindow.print(); };
    root.append(sheet);
  }

  // ---- what one does
  function zoomTo(a, b) {
    const least = step * 1e-7, size = Math.min(step, Math.max(least, b - a));
    state.t0 = Math.max(0, Math.min(a, step - size));
    state.t1 = state.t0 + size;
    tellOthers({zoom: [state.t0, state.t1]});
    schedule();
  }
  function zoom(by, x = left + span() / 2) {
    const t = timeOf(x), size = Math.min(step, (state.t1 - state.t0) * by), share = (t - state.t0) / (state.t1 - state.t0);
    zoomTo(t - share * size, t - share * size + size);
  }
  const go = dt => zoomTo(state.t0 + dt, state.t1 + dt);
  function select(i) {
    state.chosen = i;
    if (i >= 0) { state.memory = c.row[i]; whose.value = state.memory; }
    show(i);
    schedule();
    if (options.onSelect) options.onSelect(i < 0 ? null : {index: i, facts: facts(i), ...barOf(i)});
  }
  function focusOn(i) {
    if (i < 0) return;
    const size = Math.max(bars.end[i] - bars.start[i], step * 1e-6);
    zoomTo(bars.start[i] - 2 * size, bars.end[i] + 2 * size);
  }
  function showPatterns(on) { state.patterns = on; patternButton.setAttribute('aria-pressed', on); tellOthers({patterns: on}); tell(); }
  function showPath(on) { state.path = on; pathButton.setAttribute('aria-pressed', on); tellOthers({path: on}); schedule(); }
  /** Every word must be in a bar's description; the rest is dimmed. */
  function find(text) {
    const words = text.toLowerCase().replace(/\bmb (\d+)/g, 'mb:$1').replace(/\brank (\d+)/g, 'rank:$1').split(/\s+/).filter(Boolean);
    state.found = null;
    if (words.length) {
      const known = new Map(), within = data.rows.map(row => {
        const wanted = words.filter(word => word.startsWith('rank:')).map(word => Number(word.slice(5)));
        return wanted.every(rank => row.members.some(([first, many, by]) => rank >= first && rank < first + many * by && (rank - first) % by === 0));
      });
      const others = words.filter(word => !word.startsWith('rank:'));
      state.found = Uint8Array.from({length: count}, (_, i) => {
        if (!within[c.row[i]]) return 0;
        const key = [c.kind[i], c.layer[i], c.number[i], c.lane[i], c.partner[i]].join();
        if (!known.has(key)) {
          const all = [titleOf(c.kind[i]), layerOf(i), data.lanes[c.lane[i]], (data.partners[c.partner[i]] || '').match(/among.*/), `mb:${c.number[i]}`].join(' ').toLowerCase().split(/\s+/);
          known.set(key, others.every(word => all.some(one => /\d$/.test(word) ? one === word : one.includes(word))) ? 1 : 0);
        }
        return known.get(key);
      });
    }
    const codes = state.found ? c.kind.map((kind, i) => codeOf(i)) : c.kind;
    lanes.forEach(lane => sumUp(lane, codes));
    const number = state.found ? state.found.reduce((sum, one) => sum + one, 0) : 0;
    said.textContent = state.found ? `${number.toLocaleString('en')} found` : '';
    schedule();
    return number;
  }
  function save() {
    const link = make('a', {href: URL.createObjectURL(new Blob([svg()], {type: 'image/svg+xml'})), download: 'timeline.svg'});
    link.click();
    URL.revokeObjectURL(link.href);
  }
  /** What is seen as SVG, with what its colours mean. */
  function svg(dark = scheme.matches) {
    const {colors, shapes, dots} = looksOf(dark), used = [...new Set(c.kind)].sort((a, b) => a - b);
    const [entries, lines] = inLines(used.map(titleOf)), on = svgPainter(width, height + 4 + 14 * lines);
    on.rect(0, height, width, 4 + 14 * lines, backOf(dark));
    draw(on, dark);
    entries.forEach(([name, x, line], i) => {
      on.rect(x, height + 14 * line, 9, 9, colors[used[i]], 1, shapes[used[i]], dots[used[i]]);
      on.text(x + 12, height + 5 + 14 * line, name, inkOf(dark));
    });
    return on.whole();
  }
  function at(x, y) {
    if (y < AXIS || y > height - deep - foot || x < left) return -1;
    const item = items.find(item => y >= AXIS + item.y - scroll.scrollTop && y < AXIS + item.y - scroll.scrollTop + item.high);
    if (!item) return -1;
    const near = 2 * (state.t1 - state.t0) / span(), t = timeOf(x), i = firstFrom(item.lane.start, t + near) - 1;
    for (const one of [i, i - 1]) if (one >= 0 && item.lane.start[one] <= t && item.lane.end[one] >= t) return item.lane.from + one;
    return i >= 0 && item.lane.end[i] >= t - near ? item.lane.from + i : -1;
  }
  /** The kernel of a bar that is under the mouse. */
  function kernelAt(i, x, y) {
    const item = items.find(({lane}) => i >= lane.from && i < lane.to), foot = AXIS + item.y - scroll.scrollTop + item.high;
    if (y < foot - STRIP || !hasStrip(i, item.high, xOf(bars.end[i]) - xOf(bars.start[i]))) return null;
    let found = null;
    eachKernel(i, (place, from, to) => { if (x >= from && x < to) found = accountOf(i).parts[place]; });
    return found;
  }
  function tipAt(event, title, lines) {
    tip.replaceChildren(make('b', {textContent: title}), ...lines.filter(Boolean).flatMap(line => [make('br'), String(line)]));
    tip.hidden = false;
    const box = root.getBoundingClientRect(), seen = canvas.getBoundingClientRect();
    tip.style.left = Math.max(0, Math.min(event.offsetX + 14, width - 290)) + 'px';
    tip.style.top = seen.top - box.top + event.offsetY + 16 + 'px';
  }
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener('pointerdown', event => { fingers.set(event.pointerId, event.offsetX); moved = 0; });
  canvas.addEventListener('pointermove', event => {
    const x = event.offsetX, before = fingers.get(event.pointerId);
    if (before !== undefined) {
      const other = [...fingers].find(([id]) => id !== event.pointerId);
      if (other) zoom(Math.abs(before - other[1]) / Math.max(4, Math.abs(x - other[1])), other[1]);
      else go((before - x) / span() * (state.t1 - state.t0));
      moved += Math.abs(x - before);
      if (moved > 4 && !canvas.hasPointerCapture(event.pointerId)) canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, x);
      tip.hidden = true;
      return;
    }
    if (event.offsetY > height - deep - foot + 12 && x > left) {
      const t = timeOf(x), held = heldByKind(state.memory, t).filter(([, bytes]) => bytes > 0);
      tipAt(event, `${amount(heldAt(state.memory, t))} at ${duration(t - zero)}`,
        held.length > 1 ? held.sort(([, one], [, other]) => other - one).map(([name, bytes]) => `${name} ${amount(bytes)}`) : []);
      return;
    }
    const i = at(x, event.offsetY), kernel = i < 0 ? null : kernelAt(i, x, event.offsetY);
    canvas.style.cursor = i >= 0 || rowAt(x, event.offsetY) >= 0 ? 'pointer' : 'default';
    tip.hidden = i < 0;
    if (i >= 0) {
      tipAt(event, `${titleOf(c.kind[i])} ${layerOf(i)}`,
        kernel ? [kernel[0], kernel[3], kernel[2] && 'bound by ' + kernel[2]] : facts(i).slice(0, 4).map(([, value]) => value));
    }
    if (i !== state.hover) { state.hover = i; schedule(); }
  });
  const lift = event => fingers.delete(event.pointerId);
  canvas.addEventListener('pointerup', lift);
  canvas.addEventListener('pointercancel', lift);
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; state.hover = -1; schedule(); });
  function rowAt(x, y) {
    const found = labels.find(each => Math.abs(y - (AXIS + each.y - scroll.scrollTop + 8)) < 8);
    return found && (x < left || found.narrow) && data.rows[found.row].count > 1 ? found.row : -1;
  }
  canvas.addEventListener('click', event => {
    if (moved > 4) return;
    const row = rowAt(event.offsetX, event.offsetY);
    if (row < 0) { select(at(event.offsetX, event.offsetY)); return; }
    if (!state.open.delete(row)) state.open.add(row);
    arrange();
  });
  canvas.addEventListener('dblclick', event => focusOn(at(event.offsetX, event.offsetY)));
  canvas.addEventListener('wheel', event => {
    const along = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!along && !event.ctrlKey && !event.metaKey) return;  // the page scrolls
    event.preventDefault();
    if (along) go((event.deltaX || event.deltaY) / span() * (state.t1 - state.t0));
    else zoom(Math.exp(event.deltaY * 0.002), event.offsetX);
  }, {passive: false});
  const beside = by => {
    const lane = lanes.find(each => state.chosen >= each.from && state.chosen < each.to) || lanes[0];
    if (lane) select(Math.max(lane.from, Math.min(lane.to - 1, state.chosen < 0 ? lane.from : state.chosen + by)));
  };
  const acts = {w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => go((state.t0 - state.t1) * 0.15),
    d: () => go((state.t1 - state.t0) * 0.15), 0: () => zoomTo(0, step), f: () => focusOn(state.chosen), c: () => showPath(!state.path), p: () => showPatterns(!state.patterns),
    '/': () => search.focus(), '?': () => { help.hidden = !help.hidden; }, Escape: () => { help.hidden = true; select(-1); },
    ',': () => beside(-1), '.': () => beside(1)};
  Object.assign(acts, {ArrowLeft: acts.a, ArrowRight: acts.d, '+': acts.w, '-': acts.s});
  canvas.addEventListener('keydown', event => {
    const act = !event.ctrlKey && !event.metaKey && acts[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  search.oninput = () => { tellOthers({search: search.value}); find(search.value); };
  search.onkeydown = event => {
    if (event.key === 'Escape') { search.value = ''; find(''); canvas.focus(); }
    if (event.key !== 'Enter' || !state.found) return;
    const next = state.found.indexOf(1, state.chosen + 1), i = next < 0 ? state.found.indexOf(1) : next;
    select(i);
    focusOn(i);
  };
  function tell() {
    const dark = scheme.matches, shape = shapesOf();
    legend.replaceChildren(...data.kinds.map((kind, k) => {
      const tile = make('canvas', {width: 12, height: 12}), square = make('i'), color = k === waiting ? '#8c959f33' : dark && kind.dark || kind.color;
      canvasPainter(tile.getContext('2d')).rect(0, 0, 12, 12, color, 1, shape[k],
        k === waiting ? '#8c959f' : kind.axis ? between(color, kind.ink) : dark && kind.dark && kind.dark_ink || kind.ink);
      square.style.background = `url(${tile.toDataURL()})`;
      return make('span', {title: `${kind.law} A click shows these alone.`.trim(), onclick: () => seek(search.value === titleOf(k) ? '' : titleOf(k))}, square, titleOf(k));
    }));
    schedule();
  }
  const seen = new ResizeObserver(arrange);
  tell();
  arrange();
  seen.observe(root);
  scroll.addEventListener('scroll', schedule);
  scheme.addEventListener('change', tell);
  element.dataset.ready = 'yes';
  /** Where the main lane of a row, by its name, is at a time: x and y in the canvas, px. */
  function placeOf(name, t) {
    const item = items.find(({lane, first}) => first && data.rows[lane.row].name === name);
    return [xOf(t), AXIS + item.y - scroll.scrollTop + item.high / 2];
  }
  /** Mark a bar and say more of it, without telling others. */
  function point(i, more = []) {
    state.chosen = i;
    show(i, more);
    schedule();
  }
  return {shown: () => [state.t0, state.t1], zoomTo, search: seek, showPath, showPatterns, select, like, point, barOf, placeOf, svg, bars, draw: () => draw(), resize: arrange,
    destroy() { seen.disconnect(); scheme.removeEventListener('change', tell); element.replaceChildren(); }};
}

/** Show several runs on one axis; see the head of this file. */
export async function mountTimelines(element, pictures, options = {}) {
  const zero = Math.max(0, ...pictures.map(({data}) => data.begin_s)), several = pictures.length > 1, timelines = [];
  const lates = pictures.map(({data}) => zero - data.begin_s), span = Math.max(0, ...pictures.map(({data}, i) => data.step_s + lates[i]));
  const most = Math.max(0, ...pictures.flatMap(({data}) => data.rows.map(row => row.peak_bytes || 0)));
  const node = (tag, more, ...inside) => { const made = Object.assign(document.createElement(tag), more); made.append(...inside); return made; };
  const own = pictures.map(() => node('div', {}));
  const sections = pictures.map(({name, facts}, place) => node('section', {},
    ...(several ? [node('p', {}, node('b', {textContent: name}), '  ' + (facts || ''))] : []), own[place]));
  const buttons = several ? ['all', ...pictures.map(({name}) => name)].map((name, place) => node('button',
    {type: 'button', textContent: name, onclick: () => only(place - 1)})) : [];
  function only(place) {
    sections.forEach((section, other) => { section.hidden = place >= 0 && other !== place; });
    buttons.forEach((button, other) => button.setAttribute('aria-pressed', other === place + 1));
    timelines.forEach(timeline => timeline.resize());
  }
  element.replaceChildren(node('style', {textContent: `.mt-runs section:not([hidden]) ~ section .bar{display:none}
.mt-runs>p button{font:inherit;color:inherit;background:none;border:1px solid rgba(128,128,128,.5);border-radius:4px;padding:3px 9px;margin:0 6px 4px 0}
.mt-runs>p button[aria-pressed=true]{background:rgba(56,139,253,.22)}.mt-runs section>p{margin:12px 0 2px}`}),
    node('div', {className: 'mt-runs'}, ...(several ? [node('p', {}, ...buttons)] : []), ...sections));
  let telling = false;  // what one is told is not told on
  const toOthers = (place, act) => {
    if (telling) return;
    telling = true;
    timelines.forEach((timeline, other) => { if (other !== place) act(timeline, pictures[other]); });
    telling = false;
  };
  for (const [place, {data, marks}] of pictures.entries()) timelines.push(await mountTimeline(own[place], data, {
    ...options, span, zero: several ? zero : 0, late: lates[place], most, marks, maxHeight: options.maxHeight || (several ? 420 : tallest()),
    onChange: ({zoom, path, patterns, search}) => toOthers(place, timeline => {
      if (zoom) timeline.zoomTo(...zoom);
      else if (search !== undefined) timeline.search(search);
      else if (patterns !== undefined) timeline.showPatterns(patterns);
      else timeline.showPath(path);
    }),
    onSelect: bar => toOthers(place, timeline => {
      const i = bar ? timeline.like(bar) : -1, mine = i < 0 ? null : timeline.barOf(i), by = mine && mine.seconds - bar.seconds;
      timeline.point(i, mine ? [[`beside ${pictures[place].name}`,
        `${Math.abs(by) < 1e-12 ? 'as long' : duration(Math.abs(by)) + (by > 0 ? ' longer' : ' shorter')}, begins ` +
        `${duration(Math.abs(mine.start - bar.start))} ${mine.start < bar.start ? 'earlier' : 'later'}`]] : []);
    }),
  }));
  if (several) only(-1);
  return timelines;
}

const pen = document.createElement('canvas').getContext('2d'), widths = new Map();
function widthOf(text) {
  if (!widths.has(text)) { pen.font = `11px ${FONT}`; widths.set(text, pen.measureText(text).width); }
  return widths.get(text);
}
function cut(text, room) {
  if (widthOf(text) * 1.06 <= room) return text;
  let end = text.length;
  while (end > 1 && widthOf(text.slice(0, end) + '…') * 1.06 > room) end--;
  return text.slice(0, end) + '…';
}
/** Return a text in lines of so many px. */
function wrapped(text, room) {
  const lines = [''];
  for (const word of text.split(' ')) {
    const longer = `${lines.at(-1)} ${word}`.trimStart();
    if (widthOf(longer) * 1.06 <= room || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
const tallest = () => Math.max(640, innerHeight - 40);
