"""The colours of bars by kind of operation, after Okabe and Ito (2008): colour-blind readers can tell them apart.

Compute has the warm and bright colours, communication the deep ones. A pattern marks forwards that are done again, and
waiting. On black, the deepest colours are replaced by lighter ones. Where kinds are summed up, there are three colours
(`Use`): blue for computing, red for exposed communication, and grey for waiting.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.events import COMPUTE
from minitrain.operations.collectives import COLLECTIVES

WAITING = "waiting"
RECOMPUTED = "forward again"


class Kind(NamedTuple):
    """The look of one kind of bar.

    Args:
        name: as in the legend: an event's type, "forward again" or "waiting".
        color: fill, as "#rrggbb" or rgba().
        ink: colour of the text on it.
        pattern: "" or a hatch, as Plotly names it.
        dark: fill in dark mode, where it is another one.
        dark_ink: colour of the text on that.
    """

    name: str
    color: str
    ink: str = "#111111"
    pattern: str = ""
    dark: str = ""
    dark_ink: str = ""


class Use(NamedTuple):
    """The look of what time is used for: computing, exposed communication or waiting.

    Args:
        name: what it is.
        color: where nothing else is done, on white.
        pale: where other things are done nearly as much, on white.
        dark: as `color`, on black.
        dark_pale: as `pale`, on black.
    """

    name: str
    color: str
    pale: str
    dark: str
    dark_pale: str


COMPUTING = Use("computing", "#3A9BDC", "#94C9EE", "#56B4E9", "#27577A")
EXPOSED = Use("exposed communication", "#C8450B", "#E8A07E", "#E8662A", "#7D3A1B")
IDLE = Use("waiting", "#D5D8DC", "#ECEDEF", "#353C45", "#262C33")
USES = (COMPUTING, EXPOSED, IDLE)

_WHITE = "#ffffff"
_KINDS = (
    Kind("load_weights", "#F0E442"),
    Kind("forward", "#56B4E9"),
    Kind(RECOMPUTED, "#56B4E9", pattern="/"),
    Kind("loss", "#000000", _WHITE, dark="#F4F4F4", dark_ink="#111111"),
    Kind("route", "#A6D5F2"),
    Kind("combine", "#A6D5F2"),
    Kind("backward", "#E69F00"),
    Kind("backward_input", "#E69F00"),
    Kind("backward_weight", "#F7D08A"),
    Kind("keys_values", "#A6D8F5"),
    Kind("attend", "#3E93CB"),
    Kind("project", "#A6D8F5"),
    Kind("backward_project", "#F7D08A"),
    Kind("backward_attend", "#C77F00"),
    Kind("backward_keys_values", "#F7D08A"),
    Kind("backward_combine", "#F3C16B"),
    Kind("backward_route", "#F3C16B"),
    Kind("update", "#009E73", _WHITE),
    *(Kind(each.name, each.color, each.ink, "", each.dark, each.dark_ink) for each in COLLECTIVES.values()),
    Kind("send", "#332288", _WHITE, dark="#6F5FE8", dark_ink=_WHITE),
    Kind("recv", "#8C7BC8", _WHITE, dark="#B9ACEB", dark_ink="#111111"),
    Kind("offload", "#999933"),
    Kind("fetch", "#DDCC77"),
    Kind(WAITING, "rgba(128,128,128,0.16)", "#777777", "/"),
)
_BY_NAME = {kind.name: kind for kind in _KINDS}
_PLACE = {kind.name: place for place, kind in enumerate(_KINDS)}
_UNKNOWN_COMPUTE, _UNKNOWN_COMM = "#B8C4CE", "#5B6770"


def kind_of(name: str, stream: str = COMPUTE) -> Kind:
    """Return the look of an event type; unknown types have one neutral colour for compute and one for communication."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return Kind(name, _UNKNOWN_COMPUTE) if stream == COMPUTE else Kind(name, _UNKNOWN_COMM, _WHITE)


def dark_kinds() -> list[Kind]:
    """Return the kinds that have another colour in dark mode."""
    return [kind for kind in _KINDS if kind.dark]


def legend_place(name: str) -> tuple[int, str]:
    """Return a key that sorts kinds in the order of a step, unknown ones just before "waiting"."""
    return _PLACE.get(name, _PLACE[WAITING] - 1), name
