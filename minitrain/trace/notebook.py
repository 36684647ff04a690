"""What a notebook shows of a run: the interactive figure where it can draw Plotly's, and the SVG where it cannot.

Both need no internet. Of a run too large for an SVG only the figure is offered.
"""

from __future__ import annotations

import json
from typing import Any

from plotly.io.json import to_json_plotly  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.memory_by_kind import Journals
from minitrain.analysis.timeline import Timeline
from minitrain.trace.bars import make_bars
from minitrain.trace.gantt import MAX_BARS, figure_of_bars
from minitrain.trace.page import CONFIG
from minitrain.trace.svg import svg
from minitrain.trace.view import View

PLOTLY_MIME = "application/vnd.plotly.v1+json"


def mime_bundle(timeline: Timeline, view: View, journals: Journals = ()) -> dict[str, Any]:
    """Return the forms in which a notebook can show a run, by MIME type."""
    bars = make_bars(timeline, view.step_time)
    figure = json.loads(to_json_plotly(figure_of_bars(bars, view, journals)[0]))
    bundle: dict[str, Any] = {PLOTLY_MIME: {**figure, "config": CONFIG}}
    if len(bars) <= MAX_BARS:
        bundle["text/html"] = svg(timeline, view)
    return bundle
