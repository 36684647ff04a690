"""Style and script of a validation's page."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #24292f; --soft: #57606a; --line: rgba(128,128,128,.3);
  --light: 42%;
  --forward: #0a7d5a; --backward: #2f6fde; --update: #8a5cc4; --communication: #cc6a1f; --waiting: #8b949e; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --soft: #9aa4af; --light: 66%;
  --forward: #3fb68b; --backward: #6ca3ff; --update: #b48ae8; --communication: #f0995a; --waiting: #6e7681; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1280px; padding: 8px 12px 40px; background: var(--back); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
h1 { font-size: 19px; margin: 8px 0 2px; } h2 { font-size: 15px; margin: 22px 0 4px; }
p { margin: 4px 0; } .soft { color: var(--soft); }
.both { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 8px 32px; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); } .equal { stroke: var(--text); stroke-dasharray: 4 3; opacity: .6; }
.strip, .dot { fill: hsl(var(--hue) 65% var(--light)); fill-opacity: .75; } .strip { fill-opacity: .35; }
 .faded { fill-opacity: .08; }
.near { stroke: var(--text); stroke-width: 2; fill-opacity: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 6px; margin: 4px 0; }
.legend button { font: inherit; color: inherit; background: none; border: 1px solid transparent; border-radius: 6px;
  padding: 1px 6px; cursor: pointer; }
.legend button[aria-pressed=true] { border-color: var(--text); }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 5px;
  background: hsl(var(--hue) 65% var(--light)); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: min(100%, 520px); }
#scatter { max-width: 860px; }
th, td { white-space: nowrap; text-align: right; padding: 3px 0 3px 14px; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 400; color: var(--soft); } th:first-child, td:first-child { text-align: left; padding-left: 0; }
th.words, td.words { text-align: left; min-width: 150px; white-space: normal; }
tr.part td { color: var(--soft); border-bottom-color: transparent; }
.bar { display: flex; height: 12px; min-width: 160px; margin-top: 4px; } .bar i { display: block; }
.key i { display: inline-block; width: 10px; height: 10px; margin: 0 5px 0 12px; }
#tip { position: absolute; pointer-events: none; background: var(--back); border: 1px solid var(--line);
  padding: 4px 8px; border-radius: 6px; max-width: 300px; box-shadow: 0 2px 8px rgba(0,0,0,.25); font-size: 12.5px;
  white-space: pre-line; }
"""

SCRIPT = """
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
"""
