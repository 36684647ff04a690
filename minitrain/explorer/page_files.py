"""The files of the page, which the server gives and the lab consists of.

It is a file of its own, since the server needs an extra and the lab does not.
"""

from __future__ import annotations

from importlib import resources

PAGE = ("index.html", "explore.js", "transport.js", "timeline.js", "explore.css", "style.css")
"""Those that the server gives; `transport.js` says how questions reach what answers them."""
_MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def media_type(name: str) -> str:
    """Return the type of a file, as servers say it."""
    return _MEDIA_TYPES[name.rpartition(".")[2]]


def text_of(name: str) -> str:
    """Return a file of the page; the style and the timeline are those of all pages."""
    if name == "style.css":
        from minitrain.view.page import STYLE  # noqa: PLC0415  (Plotly's words, which take a moment)

        return STYLE
    if name == "timeline.js":
        from minitrain.view.timeline import timeline_script  # noqa: PLC0415

        return timeline_script()
    return resources.files("minitrain.explorer").joinpath("page", name).read_text(encoding="utf-8")
