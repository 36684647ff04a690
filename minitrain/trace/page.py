"""A figure as one HTML file that opens without internet and asks nobody for anything."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from plotly.io.json import to_json_plotly  # type: ignore[import-untyped]  # plotly ships no types
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.memory_by_kind import Journals
from minitrain.analysis.timeline import Trace, as_timeline
from minitrain.errors import UsageError
from minitrain.files import write_text
from minitrain.trace.bars import make_bars
from minitrain.trace.gantt import MAX_BARS, figure_of_bars
from minitrain.trace.payload import payload
from minitrain.trace.script import PAGE_SCRIPT, STYLE
from minitrain.trace.view import View

PLOTLY_FILE = "plotly.min.js"
_SHARED = {"directory": PLOTLY_FILE, "parent": f"../{PLOTLY_FILE}"}
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "showTips": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}


def write_html(
    path: str | Path,
    trace: Trace,
    view: View | None = None,
    include_plotlyjs: bool | str = True,
    journals: Journals = (),
) -> Path:
    """Write the figure of one run as a page.

    Args:
        path: where to.
        trace: one log a rank, or columns.
        view: title, facts and units; plain ones if None.
        include_plotlyjs: True for a page that needs no other file; "directory" to share one "plotly.min.js" with
            the other pages of the folder, which is written there if it is missing; "parent" to share that of the
            folder above.
        journals: every change of every store, for memory by kind, if they were kept.

    Returns:
        The path.
    """
    view = view or View()
    bars = make_bars(as_timeline(trace), view.step_time)
    figure, num_fixed = figure_of_bars(bars, view, journals)
    details = {**payload(bars, view), "numFixed": num_fixed} if len(bars) > MAX_BARS else None
    return write_page(path, figure, view.title, include_plotlyjs, details)


def write_page(
    path: str | Path,
    figure: Any,
    title: str,
    include_plotlyjs: bool | str = True,
    details: dict[str, Any] | None = None,
    body: str = "",
) -> Path:
    """Write a figure as a page.

    Args:
        path: where to.
        figure: a Plotly figure.
        title: the page's title.
        include_plotlyjs: as for `write_html`.
        details: columns of bars that the page draws when it is zoomed into, or None.
        body: HTML above the figure.
    """
    target = Path(path)
    if include_plotlyjs is True:
        return write_text(target, _page(figure, title, _plotlyjs(), details, body))
    if include_plotlyjs not in _SHARED:
        raise UsageError(
            f"include_plotlyjs must be True, 'directory' or 'parent', got {include_plotlyjs!r}: a page must open "
            "without internet"
        )
    shared = _SHARED[str(include_plotlyjs)]
    _share_plotlyjs(target.parent / shared)
    return write_text(target, _page(figure, title, [f'<script src="{shared}"></script>\n'], details, body))


def _page(figure: Any, title: str, plotlyjs: Iterable[str], details: dict[str, Any] | None, body: str) -> Iterator[str]:
    """Write the page, piece by piece."""
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title or "trace")}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body>\n{body}<div id='figure'></div>\n"
    yield from plotlyjs
    yield f'<script id="data" type="application/json">{_json(figure)}</script>\n'
    yield f'<script id="details" type="application/json">{_json(details)}</script>\n'
    yield f"<script>const CONFIG = {_json(CONFIG)};\n{PAGE_SCRIPT}</script></body></html>\n"


def _plotlyjs() -> Iterator[str]:
    """Write Plotly's own JavaScript into the page."""
    yield "<script>"
    yield _code()
    yield "</script>\n"


def _code() -> str:
    """Return Plotly's JavaScript without the address that its share button would send a figure to."""
    code: str = get_plotlyjs()
    return re.sub(r'(plotlyServerURL:\{valType:"string",dflt:)"[^"]*"', r'\1""', code, count=1)


def _json(data: Any) -> str:
    """Return JSON that may stand inside a script element: arrays packed, no "<"."""
    text: str = to_json_plotly(data)
    return text.replace("<", "\\u003c")


def _share_plotlyjs(shared: Path) -> None:
    """Write Plotly's JavaScript where several pages find it, unless the very same is there."""
    code = _code()
    if not shared.exists() or shared.read_text(encoding="utf-8") != code:
        write_text(shared, [code])
