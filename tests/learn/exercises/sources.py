"""Submissions as text: the shipped strategies as files of their own, and changes to them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import minitrain as mt

SUBMISSIONS = Path(__file__).parent / "submissions"
RIGHT = SUBMISSIONS / "ddp_as_it_goes.py"
"""A right submission for exercise 02, and its text."""

DDP = RIGHT.read_text()


def shipped_source(name: str, function: str | None = None) -> str:
    """Return a shipped strategy as a file that needs no other one.

    Args:
        name: of its module, such as "one_f_one_b".
        function: what to call it; its own name if None.
    """
    strategy = {"one_f_one_b": "1f1b"}.get(name, name)
    module: Any = inspect.getmodule(mt.strategies()[strategy])
    shared = [importlib.import_module(f"minitrain.strategies.{each}") for each in ("_batch", "_tied")]
    text = "\n\n".join(map(inspect.getsource, [*shared, module]))
    return re.sub(r"from \._(batch|tied) import [^\n]*\n", "", text).replace(
        f"async def {name}(", f"async def {function or name}("
    )


def changed(source: str, *edits: tuple[str, str], before: str = "") -> str:
    """Return a submission with some of its text replaced, and perhaps something before it."""
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    return before + source
