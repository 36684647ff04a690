"""What rooms above this one do for a run: pictures, proofs, failing devices, shared links, strategies by name.

A run knows none of these rooms. `minitrain` itself says who does what (`hand_in`), as a table of module names; a module
is imported when a run first asks for it.

It is a file of its own, since it is all that the rooms below and above `run` agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_DOES: dict[str, str] = {}


def hand_in(modules: Mapping[str, str]) -> None:
    """Say which module does what for runs.

    Args:
        modules: the names of modules, by what they do.
    """
    _DOES.update(modules)


def above(does: str) -> Any:
    """Return the module that does something for runs.

    Args:
        does: what it does, a key of the table that was handed in.
    """
    return import_module(_DOES[does])
