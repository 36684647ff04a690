const tip = document.getElementById('tip'), dots = [...document.querySelectorAll('.dot')];
const svg = document.getElementById('scatter');
let chosen = null, near = null;
function show(dot, x, y) {
  if (near) near.classList.remove('near');
  near = dot; tip.hidden = !dot;
  if (!dot) return;
  dot.classList.add('near'); tip.textContent = dot.dataset.tip;
  const width = Math.min(300, innerWidth - 24);
  tip.style.left = Math.max(8, Math.min(scrollX + x + 14, scrollX + innerWidth - width - 16)) + 'px';
  tip.style.top = (scrollY + y + 14) + 'px';
}
if (svg) svg.addEventListener('pointermove', event => {
  const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  let best = null, least = 14 * 14 * scale * scale;
  for (const dot of dots) {
    if (dot.classList.contains('faded')) continue;
    const far = (dot.cx.baseVal.value - x) ** 2 + (dot.cy.baseVal.value - y) ** 2;
    if (far < least) { least = far; best = dot; }
  }
  show(best, event.clientX, event.clientY);
});
if (svg) svg.addEventListener('pointerleave', () => show(null));
for (const button of document.querySelectorAll('.legend button')) button.addEventListener('click', () => {
  chosen = chosen === button.dataset.table ? null : button.dataset.table;
  for (const other of document.querySelectorAll('.legend button'))
    other.setAttribute('aria-pressed', other.dataset.table === chosen);
  for (const dot of dots) dot.classList.toggle('faded', chosen !== null && dot.dataset.table !== chosen);
});
