"""The part of a page's JavaScript that fits the figure to the window: legends, captions and buttons.

Plotly neither wraps a text nor moves a legend. In a narrow window, legends go above and below the panels, and captions
get a second line. The buttons of a comparison are part of the page, which wraps them.
"""

ARRANGEMENT = r"""
const gd = document.getElementById('figure');
const read = id => JSON.parse(document.getElementById(id).textContent);
const figure = read('data'), details = read('details');
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
