"""Text that others wrote, made harmless for where it goes: a terminal, or a table that a spreadsheet opens.

A strategy's name, an option or the message of an exception may hold anything: escape sequences that move a terminal's
cursor, or a formula that a spreadsheet would compute. It is a file of its own, since every room that shows text needs
it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001  (spreadsheets know the wide ones too)


def printable(text: str) -> str:
    r"""Return text for a terminal: control characters but line breaks and tabs as Python writes them.

    >>> printable("\x1b[31mred\n")
    '\\x1b[31mred\n'
    """
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def spreadsheet_cell(value: Any) -> Any:
    """Return a value for a table that a spreadsheet may open: a text that it would compute gets an apostrophe in front.

    >>> spreadsheet_cell("=1+1"), spreadsheet_cell(-1), spreadsheet_cell("ddp")
    ("'=1+1", -1, 'ddp')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def meanings_of(doc: str | None) -> dict[str, str]:
    r"""Return what a docstring says of each of its arguments, by name; "(UNIT)" behind a name stays before its text.

    >>> meanings_of("Wait.\n\nArgs:\n    days (N): How long\n        it lasts.")
    {'days': '(N): How long it lasts.'}
    """
    _, *sections = re.split(r"^(Args|Returns|Raises|Source):\n", inspect.cleandoc(doc or ""), flags=re.MULTILINE)
    arguments = sections[sections.index("Args") + 1] if "Args" in sections else ""
    found = re.findall(r"^ {4}(\w+)(?: (\([^)]*\)))?: (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE)
    return {name: f"{unit}{': ' if unit else ''}{' '.join(text.split())}" for name, unit, text in found}
