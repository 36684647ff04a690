"""What is printed: results on stdout (tables for people, JSON for programs), and progress on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from minitrain.plain_text import printable

PATIENCE_S = 1.0  # before progress is shown


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
    """Redirect what a strategy prints to stderr if wanted, so that stdout holds nothing but the result."""
    return contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext()


class Progress:
    """Say what is going on, on stderr, once work has taken longer than `patience_s`.

    On a terminal the words change in place and vanish at the end; elsewhere each gets a line.

    Args:
        console: where to say it; stderr by default.
        patience_s: how long to wait before anything is shown, s; `PATIENCE_S` by default.
    """

    def __init__(self, console: Console | None = None, patience_s: float | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._words = ""
        self._status: Status | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE_S if patience_s is None else patience_s, self._begin)
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._status is not None:
            self._status.stop()

    def say(self, words: str) -> None:
        """Say what is going on from now on."""
        with self._lock:
            self._words = printable(words)
            if self._status is not None:
                self._show()

    def _begin(self) -> None:
        """Begin to show what is going on."""
        with self._lock:
            self._status = Status("", console=self._console)
            self._status.start()
            self._show()

    def _show(self) -> None:
        """Show what was said last."""
        assert self._status is not None
        self._status.update(Text(self._words))  # not as markup: a strategy's name may look like it
        if not self._console.is_terminal:
            self._console.print(self._words, markup=False, highlight=False)
