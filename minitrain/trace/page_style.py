"""The style of a page, in light and dark mode and for narrow windows."""

from __future__ import annotations

from minitrain.trace.colors import USES

_VARIABLES = ("computing", "exposed", "idle")
_LIGHT = "".join(f"--{name}: {use.color}; " for name, use in zip(_VARIABLES, USES, strict=True))
_DARK = "".join(f"--{name}: {use.dark}; " for name, use in zip(_VARIABLES, USES, strict=True))
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT}--line: rgba(128,128,128,.25); --soft: #57606a; }}
html {{ overflow-y: scroll; }}
body {{ margin: 0 auto; max-width: 1800px; padding: 8px 12px; background: #fff; color: #24292f;
  font: 14px/1.45 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }}
h1 {{ font-size: 19px; line-height: 1.3; margin: 6px 0 2px; overflow-wrap: anywhere; }}
h2 {{ font-size: 14px; margin: 10px 0 4px; }}
p {{ margin: 6px 0; }}
small {{ color: var(--soft); margin-left: .6em; }}
code {{ font-size: 13px; overflow-wrap: anywhere; }}
.facts span {{ display: inline-block; }}
.facts span:not(:last-child)::after {{ content: "·"; margin: 0 .1em 0 .4em; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 8px 0 4px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 3px 0 3px 14px; text-align: right; border-bottom: 1px solid var(--line); }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
td:nth-child(2) {{ white-space: nowrap; }}
td.rest {{ text-align: left; white-space: normal; overflow-wrap: anywhere; }}
.more td {{ border-bottom: 0; padding-bottom: 0; }}
td.beneath {{ color: var(--soft); font-size: 12px; padding-top: 0; }}
.beneath div {{ position: sticky; left: 0; width: fit-content; max-width: calc(100vw - 40px); }}
.answer {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)); gap: 0 32px;
  margin: 4px 0 10px; padding-bottom: 6px; border-bottom: 1px solid var(--line); font-size: 13px; }}
.answer > div {{ min-width: 0; max-width: 680px; }}
.answer table {{ width: 100%; }}
.answer th {{ font-weight: 400; color: var(--soft); white-space: nowrap; }}
.answer th, .answer td {{ padding-top: 2px; padding-bottom: 2px; line-height: 1.35; }}
.answer td {{ vertical-align: top; }}
.waits th:last-child, .waits td:last-child {{ text-align: left; }}
.answer p {{ color: var(--soft); margin: 4px 0; }}
.lines td {{ border: 0; padding: 0 0 0 8px; line-height: 1.35; width: 2.6em; vertical-align: middle !important; }}
.lines td:first-child {{ width: 1%; padding-left: 0; white-space: nowrap; }}
.lines td.bar {{ width: auto; min-width: 80px; }}
.bar b {{ display: flex; height: 11px; }}
.bar i, .legend i {{ display: block; height: 100%; }}
.legend span {{ display: inline-block; margin-right: 12px; }}
.legend i {{ display: inline-block; width: 11px; height: 11px; margin-right: 5px; }}
i.computing {{ background: var(--computing); }}
i.exposed {{ background: var(--exposed); }}
i.idle {{ background: var(--idle); }}
.links {{ border-top: 1px solid var(--line); margin-top: 8px; font-size: 13px; }}
.strips {{ width: 100%; }}
.strips td {{ border: 0; padding-top: 1px; padding-bottom: 1px; white-space: nowrap; width: 1%; }}
.strips td.strip {{ width: auto; min-width: 120px; }}
.strip svg {{ display: block; width: 100%; height: 13px; background: var(--line); }}
.strip rect {{ fill: var(--exposed); }}
@media (max-width: 600px) {{ .strips td:first-child {{ max-width: 9em; overflow: hidden; text-overflow: ellipsis; }} }}
#missing, noscript p {{ border: 1px solid #D55E00; padding: 8px 12px; }}
#buttons button {{ font: 12px/1.4 inherit; font-family: inherit; color: inherit; background: none; cursor: pointer;
  border: 1px solid rgba(128,128,128,.5); border-radius: 4px; padding: 4px 12px; margin: 4px 6px 2px 0; }}
#buttons button[aria-pressed=true] {{ background: rgba(56,139,253,.22); }}
@media (max-width: 600px) {{ th, td {{ padding-left: 8px; }} table {{ font-size: 13px; }} }}
@media (prefers-color-scheme: dark) {{
  :root {{ {_DARK}--soft: #9aa4af; }}
  body {{ background: #0d1117; color: #c9d1d9; }}
  a {{ color: #79b8ff; }}
  /* Plotly's own colour of a chosen button and of one that is pointed at, which suits light pages alone */
  .updatemenu-item-rect[style*="244, 250, 255"] {{ fill: #30507a !important; }}
}}
"""
