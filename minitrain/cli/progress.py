"""What is going on, on stderr, once it has taken more than a second."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.text import Text

from minitrain.plain_text import printable

PATIENCE_S = 1.0


class Progress:
    """Say what is going on, but only of work that takes longer than somebody waits without wondering.

    On a terminal the words change in place and vanish at the end; elsewhere there is a line each.

    Args:
        console: where to say it; stderr by default.
        patience_s: how long to be silent, s; `PATIENCE_S` by default.
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
        """Break the silence."""
        with self._lock:
            self._status = Status("", console=self._console)
            self._status.start()
            self._show()

    def _show(self) -> None:
        """Show the present words."""
        assert self._status is not None
        self._status.update(Text(self._words))  # not as markup: a strategy's name may look like it
        if not self._console.is_terminal:
            self._console.print(self._words, markup=False, highlight=False)
