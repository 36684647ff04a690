"""Text that others wrote, made harmless for where it goes: a terminal, or a table that a spreadsheet opens.

A strategy's name, an option or the message of an exception may hold anything: escape sequences that move a terminal's
cursor, or a formula that a spreadsheet would compute. It is a file of its own, since every room that shows text needs
it.
"""

from __future__ import annotations

from typing import Any

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001  (spreadsheets know the wide ones too)


def printable(text: str) -> str:
    r"""Return text for a terminal: control characters but line breaks and tabs as Python writes them.

    >>> printable("\x1b[31mred\n")
    '\\x1b[31mred\n'
    """
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def text_of(error: BaseException) -> str:
    """Return the text of an error; of one that cannot say it, that it cannot."""
    try:
        return str(error)
    except Exception as another:  # an exception of a user's may do anything
        return f"(no text: {type(another).__name__} when it was asked for)"


def spreadsheet_cell(value: Any) -> Any:
    """Return a value for a table that a spreadsheet may open: a text that it would compute gets an apostrophe in front.

    >>> spreadsheet_cell("=1+1"), spreadsheet_cell(-1), spreadsheet_cell("ddp")
    ("'=1+1", -1, 'ddp')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value
