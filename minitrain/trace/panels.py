"""Where the panels of a comparison are, with all runs in sight or one alone, and the buttons that switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minitrain.trace.layout import MEMORY_HEIGHT, gantt_height

_CAPTION, _MEMORY_GAP, _TOP, _BOTTOM = 34, 30, 122, 52
_HIDDEN = (0, 0.001)  # Plotly takes a domain without height for a mistake and makes it the whole
_MIN_ROW, _MAX_ROW = 3, 20  # px; below 20, Plotly finds no room for numbers


@dataclass(frozen=True, slots=True)
class Panels:
    """The panels of a comparison, one a run above one of memory.

    Args:
        runs: name, number of ranks and number of lanes of each run, from the top.
        owners: for each trace of the figure the name of its run, or None if it is always shown.
        overlays: places of the traces that stay hidden until they are asked for in the legend.
    """

    runs: Sequence[tuple[str, int, int]]
    owners: Sequence[str | None]
    overlays: Sequence[int] = ()

    @property
    def margin(self) -> dict[str, int]:
        """Space around the panels, px."""
        return {"l": 64, "r": 150, "t": _TOP, "b": _BOTTOM}

    def everything(self) -> dict[str, Any]:
        """Return the changes of layout that show every run."""
        return self._arranged([_small_height(ranks, lanes) for _, ranks, lanes in self.runs])

    def alone(self, name: str) -> dict[str, Any]:
        """Return the changes of layout that show one run."""
        return self._arranged([gantt_height(ranks, lanes) if run == name else 0 for run, ranks, lanes in self.runs])

    def menu(self) -> list[dict[str, Any]]:
        """Return the row of buttons: all runs, then one each."""
        names = [name for name, _, _ in self.runs]
        buttons = [_button("all", self._visible(set(names)), self.everything())]
        buttons += [_button(name, self._visible({name}), self.alone(name)) for name in names]
        place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": _CAPTION - 2}}
        return [{"type": "buttons", "direction": "right", "showactive": True, "buttons": buttons, **place}]

    def _visible(self, names: set[str]) -> list[bool | str]:
        """Return which traces some runs show; an overlay is off again after every switch."""
        shown: list[bool | str] = [owner is None or owner in names for owner in self.owners]
        for place in self.overlays:
            shown[place] = "legendonly" if shown[place] else False
        return shown

    def _arranged(self, heights: list[int]) -> dict[str, Any]:
        """Return domains and captions for panels of these heights, px; a height of 0 hides its panel."""
        shown = [height + _CAPTION for height in heights if height]
        inner = max(sum(shown) - _CAPTION, 0) + (_MEMORY_GAP if shown else 0) + MEMORY_HEIGHT
        changes: dict[str, Any] = {"height": inner + _TOP + _BOTTOM, "legend2.y": MEMORY_HEIGHT / inner}
        top = inner
        for place, height in enumerate(heights):
            axis = f"yaxis{place + 1}" if place else "yaxis"
            changes[f"{axis}.visible"] = bool(height)
            changes[f"annotations[{place}].visible"] = bool(height)
            changes[f"annotations[{place}].y"] = top / inner
            changes[f"{axis}.domain"] = (max(top - height, 0) / inner, top / inner) if height else _HIDDEN
            top -= height + _CAPTION if height else 0
        memory = f"yaxis{len(heights) + 1}" if heights else "yaxis"
        changes[f"{memory}.domain"] = (0, MEMORY_HEIGHT / inner)
        return changes


def _small_height(num_ranks: int, num_lanes: int) -> int:
    """Return the height of one panel among many, px."""
    row = min(_MAX_ROW, max(_MIN_ROW, 160 // max(num_ranks, 1))) * (1.4 if num_lanes > 1 else 1)
    return int(min(max(row * num_ranks, 40), 320))


def _button(label: str, visible: list[bool | str], layout: dict[str, Any]) -> dict[str, Any]:
    return {"label": label, "method": "update", "args": [{"visible": visible}, layout]}
