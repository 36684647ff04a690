// The page of explorer and lab. All that is set is in the address, and all that is shown comes from answers, which
// `transport.js` brings: of a server, or of Python in a worker of the browser.

import { mountTimelines } from './timeline.js';
import { ask, open as reach, RIGHTS } from './transport.js';

const $ = id => document.getElementById(id);
const COLORS = {
  weights: '#77AADD',
  gradients: '#99DDFF',
  optimizer: '#EE8866',
  activations: '#44BB99',
  logits: '#BBCC33',
  buffers: '#EEDD88',
  tensors: '#77AADD',
};
const tab = Math.random().toString(36).slice(2);
let page,
  state = {},
  pinned = null,
  options = [],
  values = {},
  last = null,
  kept = null,
  timelines = [],
  drawing = Promise.resolve(),
  touched = '',
  trusted = false;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name in element && name !== 'list') element[name] = value;
    else element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// --- the address ---

const plain = text => {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
};

function stateOf(text) {
  const found = { options: {} };
  for (const [name, value] of new URLSearchParams(text)) {
    if (name.startsWith('o.')) found.options[name.slice(2)] = plain(value);
    else if (['strategy', 'source'].includes(name)) found[name] = value;
    else if (!['token', 'a', 'knob', 'figure', 'exercise'].includes(name)) found[name] = plain(value);
  }
  return found;
}

function textOf(given) {
  const words = new URLSearchParams();
  const write = value => (typeof value === 'string' ? value : JSON.stringify(value));
  for (const [name, value] of Object.entries(given)) if (name !== 'options') words.set(name, write(value));
  for (const [name, value] of Object.entries(given.options || {})) words.set('o.' + name, write(value));
  return words;
}

function address() {
  const words = textOf(state);
  if (pinned) words.set('a', textOf(pinned));
  if ($('knob').value) {
    words.set('knob', $('knob').value);
    words.set('figure', $('figure').value);
  }
  const exercise = exercises?.length ? $('exercise').value : inAddress();
  if (exercise) words.set('exercise', exercise);
  return '#' + words;
}

function note(push) {
  const next = address();
  if (next !== location.hash) history[push ? 'pushState' : 'replaceState'](null, '', next);
}

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  state =
    words.has('strategy') || words.has('workload') ? stateOf(location.hash.slice(1)) : { ...page.first, options: {} };
  state.strategy ||= page.first.strategy;
  pinned = words.has('a') ? stateOf(words.get('a')) : null;
  kept = null;
  if (words.has('knob')) {
    $('knob').dataset.wanted = words.get('knob');
    $('figure').value = words.get('figure');
  }
}

// --- questions ---

const asking = (question, given, take) =>
  ask(question, { tab, ...given }, take).catch(error => take({ error: error.message, fields: [] }));

let number = 0,
  busySince = 0,
  isBusy = false,
  again = null;

// One question at a time: what is changed meanwhile is asked when the answer is there, or after a while in its place.
function update() {
  clearTimeout(again);
  if (isBusy && performance.now() - busySince < 1500) {
    again = setTimeout(update, 1500);
    isDirty = true;
    return;
  }
  evaluate();
}
let isDirty = false;

async function evaluate() {
  const mine = ++number,
    began = performance.now(),
    asked = structuredClone(state);
  isBusy = true;
  isDirty = false;
  busySince = began;
  if (asked.strategy === 'own' && !trusted) {
    isBusy = false;
    return askForTrust();
  }
  let isStopped = false, // nor would its legal values be found
    isAnswered = false;
  const slow = setTimeout(() => {
    $('stop').hidden = false;
    if (!isAnswered) $('result').classList.add('old');
  }, 400);
  await asking('evaluate', { state: asked }, message => {
    isStopped ||= !!message.stopped;
    isAnswered ||= !!message.figures;
    if (mine !== number || message.superseded) return;
    show(message, asked);
    if (message.figures) document.body.dataset.figures = (performance.now() - began).toFixed(1);
    if (message.picture !== undefined)
      drawing.then(() =>
        requestAnimationFrame(() =>
          setTimeout(() => {
            document.body.dataset.latency = (performance.now() - began).toFixed(1);
            document.body.dataset.shown = mine;
          }),
        ),
      );
  });
  clearTimeout(slow);
  if (mine !== number) return;
  isBusy = false;
  $('stop').hidden = true;
  if (isDirty) return update();
  setTimeout(() => {
    if (mine === number && !isStopped) askOptions(asked);
  }, 150); // who drags on does not wait for it
}

function askForTrust() {
  const run = make('button', {
    type: 'button',
    textContent: 'run it',
    onclick: () => {
      trusted = true;
      update();
    },
  });
  $('fault').replaceChildren(
    `This link brings a strategy of its own, which would run ${RIGHTS}. Read it first. `,
    run,
  );
  $('fault').hidden = false;
}

// --- knobs ---

function knob(name, label, meaning, ...controls) {
  const id = 'knob-' + name;
  (controls[0].querySelector('input[type=number]') || controls[0]).id = id;
  return make(
    'div',
    { className: 'knob', id: 'field-' + name },
    make('label', { htmlFor: id, title: meaning, textContent: label }),
    ...controls,
  );
}

const words = name =>
  ({
    workload: 'model',
    seq_len: 'sequence, tokens',
    world_size: 'ranks',
    global_batch_size: 'batch, samples',
    num_layers: 'layers',
    lora: 'LoRA, rank',
  })[name] || name.replaceAll('_', ' ');

function set(name, value, isOption, commit = true) {
  const target = isOption ? state.options : state;
  if (value === '' || value === null || Number.isNaN(value)) delete target[name];
  else target[name] = value;
  touched = name;
  if (name === 'strategy') state.options = {};
  if (name === 'workload')
    for (const other of hasModel() ? ['num_layers'] : page.of_transformer) delete state[other];
  if (name === 'strategy' || name === 'workload') build();
  note(commit);
  update();
}

const hasModel = () => state.workload && state.workload !== 'dense';

function choice(name, choices, given, usual, isOption) {
  const select = make('select', {
    onchange: () => set(name, select.value === '' ? '' : plain(select.value), isOption),
  });
  const isPhrase = String(usual).includes(' ');  // which says itself that it is usual
  if (usual !== undefined)
    select.append(
      make('option', {
        value: '',
        textContent: usual === '' || String(usual).includes('--') ? 'as usual' : (isPhrase ? '' : 'as usual: ') + usual,
      }),
    );
  for (const value of choices) select.append(make('option', { value: String(value), textContent: String(value) }));
  select.value = given === undefined ? '' : String(given);
  return knob(name, words(name), '', select);
}

function count(one) {
  const given = state[one.name] ?? (typeof one.default === 'number' ? one.default : undefined),
    ladder = one.ladder;
  const nearest = value =>
    ladder.reduce(
      (best, each, place) =>
        Math.abs(Math.log(each / value)) < Math.abs(Math.log(ladder[best] / value)) ? place : best,
      0,
    );
  const number = make('input', { type: 'number', min: one.least, value: given ?? '', placeholder: 'as usual' });
  const slider = make('input', {
    type: 'range',
    min: 0,
    max: ladder.length - 1,
    value: nearest(given || ladder[0]),
    ariaLabel: words(one.name),
  });
  number.onchange = () => {
    slider.value = nearest(+number.value || ladder[0]);
    set(one.name, number.value === '' ? '' : +number.value);
  };
  let isDragged = false; // one step of the history a drag
  slider.oninput = () => {
    number.value = ladder[+slider.value];
    set(one.name, ladder[+slider.value], false, !isDragged);
    isDragged = true;
  };
  slider.onchange = () => {
    isDragged = false;
  };
  return knob(one.name, words(one.name), one.meaning, make('div', { className: 'both' }, slider, number));
}

/** Show what a number is that nobody has set. */
function showUsual(name, value) {
  const number = $('knob-' + name);
  if (!number || number.value !== '') return;
  number.placeholder = value;
  number.previousSibling.value = page.knobs.find(one => one.name === name).ladder.findIndex(each => each >= value);
}

function build() {
  const own = state.strategy === 'own',
    hidden = hasModel() ? ['num_layers'] : page.of_transformer;
  const knobs = page.knobs
    .filter(one => !hidden.includes(one.name))
    .map(one => {
      const made = one.choices
        ? choice(
            one.name,
            one.choices,
            state[one.name],
            one.name === 'hardware' ? one.default : one.shown || one.default || '',
          )
        : count(one);
      made.firstChild.title = one.meaning;
      return made;
    });
  const place = name => knobs.filter(one => one.id === 'field-' + name);
  const rest = ['network', 'fidelity', 'platform', 'precision', 'lora', 'frozen_layers', 'ema'];
  const source = make('textarea', {
    spellcheck: false,
    value: state.source ?? page.starter,
    ariaLabel: 'the strategy',
  });
  let typing,
    isTyped = false;
  source.oninput = () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      trusted = true;
      set('source', source.value, false, !isTyped);
      isTyped = true;
    }, 300);
  };
  source.onchange = () => {
    isTyped = false;
  };
  if (own && state.source === undefined) {
    state.source = page.starter;
    trusted = true;
  }
  $('knobs').replaceChildren(
    ...knobs.filter(one => !rest.some(name => one.id === 'field-' + name)),
    make(
      'fieldset',
      {},
      make('legend', { textContent: 'strategy' }),
      choice('strategy', page.strategies, state.strategy),
      ...(own ? [knob('source', 'your own: an async function of one rank', '', source)] : []),
      make('div', { id: 'options' }),
    ),
    make('fieldset', {}, make('legend', { textContent: 'prices' }), ...rest.flatMap(place)),
  );
  buildOptions();
}

function askOptions(asked) {
  const mine = number;
  asking('options', { state: asked }, message => {
    if (mine !== number) return;
    if (message.options) {
      options = message.options;
    }
    if (message.values) values = message.values;
    if ((message.values || message.error) && !$('options').contains(document.activeElement)) buildOptions();
    buildChart();
  });
}

function buildOptions() {
  const fields = options.map(one => {
    const given = state.options[one.name],
      may = values[one.name] || [],
      why = value => (may.find(([each]) => each === value) || [])[1];
    if (one.switch) {
      const box = make('input', {
        type: 'checkbox',
        checked: given ?? one.default,
        disabled: !!why(!(given ?? one.default)) && !why(given ?? one.default),
      });
      box.onchange = () => set(one.name, box.checked === one.default ? '' : box.checked, true);
      return make(
        'div',
        { className: 'knob switch', id: 'field-' + one.name, title: why(!box.checked) || one.meaning },
        make('label', {}, box, words(one.name)),
      );
    }
    if (one.choices || one.ladder) {
      const listed = one.choices || may.map(([value]) => value);
      const all = given === undefined || listed.includes(given) ? listed : [...listed, given];
      const made = choice(one.name, all, given, one.default ?? '', true);
      for (const option of made.querySelector('select').options) {
        const reason = option.value === '' ? null : why(plain(option.value));
        if (reason) {
          option.disabled = option.value !== String(given);
          option.title = reason;
          option.textContent += ' ✗';
        }
      }
      made.firstChild.title = one.meaning;
      return made;
    }
    const text = make('input', {
      value: given === undefined ? '' : JSON.stringify(given),
      placeholder: one.default === null ? 'none' : String(one.default),
    });
    text.onchange = () => set(one.name, text.value === '' ? '' : plain(text.value), true);
    return knob(one.name, words(one.name), one.meaning, text);
  });
  if ($('options')) $('options').replaceChildren(...fields);
}

// --- what is shown ---

function fault(message) {
  for (const old of document.querySelectorAll('.knob.bad')) {
    old.classList.remove('bad');
    old.querySelector('.fault')?.remove();
  }
  $('fault').hidden = true;
  if (!message) return;
  const named = message.fields.includes(touched) ? touched : message.fields[0],
    field = named && $('field-' + named);
  $('result').classList.add('old');
  if (!field) {
    $('fault').textContent = message.error;
    $('fault').hidden = false;
    return;
  }
  field.classList.add('bad');
  field.append(make('p', { className: 'fault', role: 'alert', textContent: message.error }));
  if (field.getBoundingClientRect().top > innerHeight || field.getBoundingClientRect().bottom < 0) {
    $('fault').textContent = message.error;
    $('fault').hidden = false;
  }
}

function show(message, asked) {
  if (message.error) {
    fault(message);
    document.body.dataset.shown = number;
    return;
  }
  if (message.figures) {
    fault(null);
    $('result').classList.remove('old');
    last = { ...message, state: asked };
    $('title').textContent = message.title;
    $('notes').textContent = message.notes.join('. ');
    $('as-python').textContent = message.python;
    $('as-command').textContent = message.command;
    for (const [name, value] of Object.entries(message.usual)) showUsual(name, value);
    showFigures();
    showMemory(message.memory);
  }
  if (message.picture !== undefined) {
    last.picture = message.picture;
    drawing = showPictures();
  }
  if (message.why !== undefined) {
    $('why').innerHTML = message.why;
    last.picture.accounts = message.accounts;
    drawing.then(() => timelines.forEach(one => one.draw()));
  }
}

function showFigures() {
  const isBetter = { 'step ms': -1, USD: -1, GiB: -1, 'bubble %': -1, 'comm %': -1, 'tok/s': 1, 'MFU %': 1 };
  const head = kept ? make('tr', {}, ...['', 'A', 'B', 'B / A'].map(text => make('th', { textContent: text }))) : '';
  const rows = last.figures
    .filter(one => one.number !== null)
    .map(one => {
      const row = make('tr', {}, make('td', { textContent: one.title }));
      const before = kept && kept.figures.find(each => each.head === one.head);
      if (kept) row.append(make('td', { textContent: before.text }));
      row.append(make('td', { textContent: one.text }));
      if (kept) {
        const ratio = before.number ? one.number / before.number : NaN,
          good = (ratio - 1) * isBetter[one.head];
        row.append(
          make('td', {
            textContent: Number.isFinite(ratio) ? ratio.toFixed(3) : '-',
            className: good > 5e-4 ? 'better' : good < -5e-4 ? 'worse' : '',
          }),
        );
      }
      return row;
    });
  $('figures').replaceChildren(head, ...rows);
}

function showMemory(memory) {
  const total = Object.values(memory.kinds).reduce((sum, size) => sum + size, 0),
    most = Math.max(total, memory.capacity || 0) || 1;
  const entries = Object.entries(memory.kinds).filter(([, size]) => size > 0),
    color = name => COLORS[name] || '#BBBBBB';
  const bar = make(
    'div',
    { className: 'stack', role: 'img', ariaLabel: memory.text },
    ...entries.map(([name, size]) =>
      make('i', {
        style: `width:${(100 * size) / most}%;background:${color(name)}`,
        title: `${name} ${(size / 2 ** 30).toFixed(2)} GiB`,
      }),
    ),
  );
  if (memory.capacity && total > memory.capacity)
    bar.append(
      make('b', {
        className: 'limit',
        style: `left:${(100 * memory.capacity) / most}%`,
        title: 'what the device may hold',
      }),
    );
  const keys = entries.map(([name, size]) =>
    make('span', {}, make('i', { style: 'background:' + color(name) }), `${name} ${(size / 2 ** 30).toFixed(1)}`),
  );
  $('memory').replaceChildren(
    make('div', { textContent: `memory of the fullest device: ${memory.text}` }),
    bar,
    make('div', { className: 'keys' }, ...keys),
    ...(memory.out_of_memory ? [make('p', { className: 'fault', textContent: memory.out_of_memory })] : []),
  );
}

/** What a setting has that another has not, in words. */
function differences(one, other) {
  const flat = given => ({ ...given, ...given.options, options: undefined, source: undefined });
  const [mine, theirs] = [flat(one), flat(other)];
  const differ = Object.keys({ ...mine, ...theirs }).filter(name => mine[name] !== theirs[name]);
  return differ.map(name => `${words(name)} ${mine[name] ?? 'as usual'}`).join(' · ');
}

async function showPictures() {
  const both = kept
    ? [
        ['A', kept],
        ['B', last],
      ]
    : [['', last]];
  const fresh = make('div', { className: 'fresh' });
  $('pictures').append(fresh); // not seen until all is drawn, so that nothing flickers
  const pictures = both
    .filter(([, one]) => one.picture)
    .map(([name, one]) => ({
      name,
      facts: `${one.figures[0].text} ms · ${differences(one.state, name === 'A' ? last.state : kept?.state || {})}`,
      data: one.picture,
    }));
  const mounted = await mountTimelines(fresh, pictures, { maxHeight: 420 });
  if (fresh !== $('pictures').lastChild) return mounted.forEach(one => one.destroy()), fresh.remove(); // a later one is drawn
  timelines.forEach(one => one.destroy());
  timelines = mounted;
  fresh.className = '';
  $('pictures').replaceChildren(fresh);
}

// --- A and B ---

function showPinned() {
  $('pin').hidden = !!pinned;
  $('swap').hidden = $('unpin').hidden = !pinned;
}

async function evaluatePinned() {
  showPinned();
  if (!pinned) {
    kept = null;
    return;
  }
  if (pinned.strategy === 'own' && !trusted) return;
  const asked = structuredClone(pinned),
    found = { state: asked };
  await asking('evaluate', { state: asked, tab: tab + '-a' }, message => Object.assign(found, message));
  if (found.accounts) found.picture.accounts = found.accounts;
  if (found.figures) {
    kept = found;
    if (last) {
      showFigures();
      showPictures();
    }
  }
}

$('pin').onclick = () => {
  pinned = structuredClone(state);
  kept = last;
  note(true);
  showPinned();
  showFigures();
  showPictures();
};
$('unpin').onclick = () => {
  pinned = kept = null;
  note(true);
  showPinned();
  showFigures();
  showPictures();
};
$('swap').onclick = () => {
  [state, pinned] = [pinned, state];
  kept = last;
  note(true);
  build();
  update();
};

// --- charts ---

const numeric = () => options.filter(one => one.ladder || one.choices || one.switch);

function buildChart() {
  const select = $('knob'),
    before = select.dataset.wanted || select.value;
  const hidden = hasModel() ? ['num_layers'] : page.of_transformer;
  const names = [
    ...page.knobs.map(one => one.name).filter(name => !hidden.includes(name)),
    ...numeric().map(one => one.name),
  ];
  select.replaceChildren(...names.map(name => make('option', { value: name, textContent: words(name) })));
  select.value = names.includes(before) ? before : names[0];
  if (names.includes(before)) delete select.dataset.wanted;
}

function valuesOf(name) {
  const one = page.knobs.find(each => each.name === name);
  if (one) return one.choices || one.ladder;
  const option = options.find(each => each.name === name),
    may = values[name] || [];
  return (may.length ? may.filter(([, why]) => !why).map(([value]) => value) : option?.choices) || [];
}

$('draw').onclick = async () => {
  const name = $('knob').value,
    listed = valuesOf(name),
    points = [];
  note(true);
  $('stop').hidden = false;
  await asking('chart', { state: structuredClone(state), knob: name, values: listed }, message => {
    if (message.superseded) return;
    if (message.x === undefined) {
      $('points').textContent = message.error;
      return;
    }
    points.push(message);
    $('points').textContent = `${points.length} of ${listed.length}`;
    curve(name, points, listed);
  });
  $('stop').hidden = true;
  const failed = points.filter(one => one.error);
  if (points.length)
    $('points').textContent = failed.length ? `not at ${failed.map(one => one.x).join(', ')}: ${failed[0].error}` : '';
  document.body.dataset.drawn = points.length;
  $('figure').onchange = () => {
    note(false);
    curve(name, points, listed);
  };
};

function curve(name, points, listed) {
  const head = $('figure').value,
    W = 820,
    H = 240,
    L = 60,
    B = 34,
    svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const shown = points
    .map(one => [listed.indexOf(one.x), one.figures?.[head], one])
    .filter(([, y]) => typeof y === 'number');
  const top = Math.max(...shown.map(([, y]) => y), 0) || 1,
    least = Math.min(...shown.map(([, y]) => y)),
    isLog = least > 0 && top / least > 50;
  const share = value => (isLog ? Math.log(value / least) / Math.log(top / least) : value / top);
  const x = place => L + (W - L - 20) * (listed.length > 1 ? place / (listed.length - 1) : 0.5),
    y = value => (H - B - 20) * (1 - share(value)) + 20;
  const draw = (tag, attributes, text) => {
    const one = document.createElementNS(svg.namespaceURI, tag);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    if (text !== undefined) one.textContent = text;
    svg.append(one);
    return one;
  };
  svg.setAttribute('viewBox', `0 0 ${W} ${H}`);
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `${head} over ${words(name)}`);
  for (const part of [0, 0.5, 1]) {
    const value = isLog ? least * (top / least) ** part : top * part;
    draw('path', { class: 'axis', d: `M${L} ${y(value)}H${W - 10}` });
    draw(
      'text',
      { x: L - 6, y: y(value) + 4, 'text-anchor': 'end' },
      value >= 1e6 ? value.toExponential(0) : +value.toPrecision(3),
    );
  }
  draw(
    'text',
    { x: 0, y: 0, 'dominant-baseline': 'hanging' },
    isLog
      ? `${head}, each line ${(top / least) ** 0.5 >= 1e6 ? 'many' : Math.round((top / least) ** 0.5)} times the one below`
      : head,
  );
  const isLong = listed.some(value => String(value).length > 7);
  listed.forEach((value, place) => {
    const at = { x: x(place), y: H - 12, 'text-anchor': isLong ? 'end' : 'middle' };
    if (isLong) at.transform = `rotate(-24 ${at.x} ${at.y})`;
    draw('text', at, value);
  });
  const isOrdered = listed.every(value => typeof value === 'number');
  if (isOrdered && shown.length > 1)
    draw('path', { class: 'line', d: 'M' + shown.map(([place, value]) => `${x(place)} ${y(value)}`).join('L') });
  for (const [place, value, one] of shown) {
    const isHere = (state[name] ?? state.options[name]) === one.x;
    const dot = draw('circle', {
      cx: x(place),
      cy: y(value),
      r: 5,
      tabindex: 0,
      class: `${one.fits ? '' : 'full'} ${isHere ? 'here' : ''}`,
    });
    const title = document.createElementNS(svg.namespaceURI, 'title');
    title.textContent = `${words(name)} ${one.x}: ${head} ${+value.toPrecision(4)}${one.fits ? '' : ', out of memory'}`;
    dot.append(title);
    dot.onclick = dot.onkeydown = event => {
      if (event.type === 'click' || event.key === 'Enter') {
        set(name, one.x, !page.knobs.some(each => each.name === name));
        build();
      }
    };
  }
  $('curve').replaceChildren(svg);
}

// --- search ---

$('search').onclick = async () => {
  $('progress').hidden = false;
  $('stop').hidden = false;
  $('progress').removeAttribute('value');
  $('best').replaceChildren();
  $('found').textContent = 'finding which layouts there are ...';
  await asking('tune', { state: structuredClone(state) }, message => {
    if (message.error) $('found').textContent = message.error;
    if (message.all) {
      $('progress').max = message.all;
      $('progress').value = message.done;
      $('found').textContent = `${message.done} of ${message.all} layouts`;
    }
    if (message.best) {
      $('found').textContent = message.verdicts;
      $('best').replaceChildren(
        ...message.best.map(one =>
          make(
            'tr',
            {},
            make('td', { textContent: one.step }),
            make('td', {
              className: 'rest',
              textContent: Object.entries(one.options)
                .map(([name, value]) => `${name}=${value}`)
                .join(', '),
            }),
            make(
              'td',
              {},
              make('button', {
                type: 'button',
                textContent: 'take',
                onclick: () => {
                  state.options = { ...one.options };
                  note(true);
                  build();
                  update();
                },
              }),
            ),
          ),
        ),
      );
    }
  });
  $('progress').hidden = true;
  $('stop').hidden = true;
};

// --- exercises ---

let exercises = null;

const inAddress = () => new URLSearchParams(location.hash.slice(1)).get('exercise');

// Ask for the exercises when somebody opens their part of the page.
async function listExercises() {
  if (exercises) return;
  exercises = [];
  await asking('exercises', { tab: tab + '-exercises' }, message => {
    exercises = message.exercises || [];
  });
  $('exercise').replaceChildren(
    make('option', { value: '', textContent: 'none' }),
    ...exercises.map(one => make('option', { value: one.name, textContent: `${one.name.slice(0, 2)} ${one.title}` })),
  );
  showExercise(inAddress());
}
$('exercises').ontoggle = listExercises;

const chosen = () => (exercises || []).find(one => one.name === $('exercise').value);

function showExercise(name) {
  $('exercise').value = (exercises || []).some(one => one.name === name) ? name : '';
  const one = chosen();
  $('starter').hidden = $('check').hidden = !one;
  $('verdict').textContent = '';
  $('checks').replaceChildren();
  $('statement').replaceChildren(...(one ? marked(one.statement) : []));
}

// What statements have of Markdown: paragraphs, fenced text, `code` and **strong** words; the title is in the list.
function marked(text) {
  const inline = line =>
    line.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map(part => {
      if (part.startsWith('`')) return make('code', { textContent: part.slice(1, -1) });
      return part.startsWith('**') ? make('b', { textContent: part.slice(2, -2) }) : part;
    });
  return text.split(/```\w*\n([^]*?)```/).flatMap((part, place) => {
    if (place % 2) return [make('pre', { textContent: part.trimEnd() })];
    const paragraphs = part.split(/\n{2,}/).filter(one => one.trim() && !one.startsWith('# '));
    return paragraphs.map(one => make('p', {}, ...inline(one.trim())));
  });
}

$('exercise').onchange = () => {
  showExercise($('exercise').value);
  note(true);
};
$('starter').onclick = () => {
  state = structuredClone(chosen().state);
  trusted = true;
  note(true);
  build();
  update();
};
$('check').onclick = async () => {
  $('verdict').textContent = 'checking ...';
  $('checks').replaceChildren();
  await asking('check', { state: { source: state.source ?? page.starter }, exercise: chosen().name }, message => {
    if (message.superseded) return;
    $('verdict').textContent = message.error || message.verdict;
    const lines = (message.results || []).flatMap(one => [
      make('dt', { className: one.status, textContent: `${one.name}: ${one.status}` }),
      ...one.lines.map(line => make('dd', { textContent: line })),
    ]);
    $('checks').replaceChildren(...lines);
  });
  document.body.dataset.checked = +(document.body.dataset.checked || 0) + 1;
};

// --- buttons ---

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    $('said').textContent = what + ' copied';
  } catch {
    $('said').textContent = 'copying is not allowed here; the text is at the end of the page';
    $('as-python').closest('details').open = true;
  }
  setTimeout(() => {
    $('said').textContent = '';
  }, 4000);
}
$('link').onclick = () => copy(location.origin + location.pathname + address(), 'link');
$('python').onclick = () => copy($('as-python').textContent, 'Python');
$('command').onclick = () => copy($('as-command').textContent, 'command');
$('stop').onclick = () => asking('stop', {}, () => {});
$('knobs').onsubmit = event => event.preventDefault();

async function begin() {
  reach(new URLSearchParams(location.hash.slice(1)), text => {
    $('begin').textContent = text;
    $('begin').hidden = !text;
  });
  await asking('page', {}, message => {
    if (message.error) {
      $('fault').textContent = message.error;
      $('fault').hidden = false;
    } else page = message;
  });
  if (!page) return;
  $('tune').hidden = !page.can_tune;
  $('figure').replaceChildren(...page.figures.map(one => make('option', { value: one.head, textContent: one.title })));
  const open = () => {
    readAddress();
    trusted = trusted || state.source === undefined || state.source === page.starter;
    build();
    buildChart();
    evaluatePinned();
    update();
  };
  open();
  note(false);
  if (inAddress()) $('exercises').open = true;
  addEventListener('popstate', () => {
    open();
    showExercise(inAddress());
  });
}

begin();
