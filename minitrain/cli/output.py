"""What goes to stdout: tables for people, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from minitrain.plain_text import printable


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal allows."""
    Console(markup=False, emoji=False).print(table)


def print_lines(lines: Iterable[str]) -> None:
    """Print text, wrapped between words on a terminal and one line each elsewhere."""
    console = Console()
    for line in lines:
        console.print(printable(line), markup=False, highlight=False, emoji=False, soft_wrap=not console.is_terminal)


def print_json(data: Any) -> None:
    """Print data as JSON."""
    print(json.dumps(data, indent=2, allow_nan=False))


def user_prints_to_stderr(wanted: bool) -> contextlib.AbstractContextManager[Any]:
    """Let what a strategy prints go to stderr, so that stdout stays pure."""
    return contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext()
