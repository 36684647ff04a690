"""What is printed: results on stdout (tables for people, JSON for programs), and progress on stderr."""

from __future__ import annotations

import _thread
import contextlib
import copy
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from rich.console import Console
from rich.live import Live
from rich.measure import Measurement
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from minitrain.plain_text import printable

if TYPE_CHECKING:
    from minitrain.run.rank_tasks import RunProgress
    from minitrain.run.result import Run

PATIENCE_S = 1.0  # before progress is shown
REPEAT_S = 10.0  # before it is shown again where no terminal is
_FRAME_S = 0.08  # likewise on a terminal


def print_table(table: Table) -> None:
    """Print a table; on a terminal that is too narrow, in blocks of columns below one another, none left out."""
    console = Console(markup=False, emoji=False)
    for block in blocks_of_columns(table, console):
        width = max(console.width, _narrowest(block, console))  # a terminal folds what is still too wide
        Console(markup=False, emoji=False, width=width).print(_folded(block, console, width))


def blocks_of_columns(table: Table, console: Console) -> Iterator[Table]:
    """Yield a table if it fits, or else blocks of its columns that do, each after the columns that name the rows."""
    width = console.width
    if _narrowest(table, console) <= width:
        yield table
        return
    names = 1 + next((place for place, column in enumerate(table.columns) if str(column.header).strip()), 0)
    shown = list(range(names))
    for place in range(names, len(table.columns)):
        if len(shown) > names and _narrowest(_with_columns(table, [*shown, place]), console) > width:
            yield _with_columns(table, shown)
            shown = list(range(names))
        shown.append(place)
    yield _with_columns(table, shown)


def _narrowest(table: Table, console: Console) -> int:
    """Return how wide a table is at least, characters, if no figure is cut."""
    fixed = _with_columns(table, range(len(table.columns)))
    options = console.options.update(width=10_000)
    for column in fixed.columns:
        if column.no_wrap:
            column.min_width = max(_widest(cell, console) for cell in (column.header, *column.cells))
        elif column.overflow == "fold":  # a long name may take several lines
            column.max_width = max(column.min_width or 8, _widest(column.header, console))
    return Measurement.get(console, options, fixed).minimum


def _folded(table: Table, console: Console, width: int) -> Table:
    """Return a table whose folding columns, the widest first, leave it no wider; rich alone may cut off a character."""
    shown = _with_columns(table, range(len(table.columns)))
    folding = [column for column in shown.columns if column.overflow == "fold"]
    natural = {id(column): max(_widest(cell, console) for cell in (column.header, *column.cells)) for column in folding}
    for column in sorted(folding, key=lambda column: -natural[id(column)]):
        excess = Measurement.get(console, console.options.update(width=10_000), shown).maximum - width
        if excess > 0:
            least = max(column.min_width or 8, _widest(column.header, console))
            column.max_width = max(least, natural[id(column)] - excess)
    return shown


def _widest(cell: Any, console: Console) -> int:
    """Return the width of the longest line in a cell, characters."""
    return Measurement.get(console, console.options.update(width=10_000), cell).maximum


def _with_columns(table: Table, places: Iterable[int]) -> Table:
    """Return some columns of a table as a table."""
    part = copy.copy(table)
    part.columns = [copy.copy(table.columns[place]) for place in places]
    for place, column in enumerate(part.columns):
        column._index = place
    return part


def print_lines(lines: Iterable[str]) -> None:
    """Print text, wrapped between words on a terminal and one line each elsewhere."""
    console = Console()
    for line in lines:
        console.print(printable(line), markup=False, highlight=False, emoji=False, soft_wrap=not console.is_terminal)


def print_lanes(run: Run) -> None:
    """Print what the ranks do, in at most 80 columns: in colour on a terminal, with letters elsewhere."""
    from minitrain.view.lanes import WIDTH, lanes  # noqa: PLC0415  (numpy only when somebody draws)

    console = Console(markup=False, emoji=False, highlight=False)
    blocks = console.encoding.lower().startswith("utf")
    for line in lanes(run, min(WIDTH, console.width), color=console.color_system is not None, blocks=blocks):
        console.print(line, no_wrap=True, crop=False)


def print_json(data: Any) -> None:
    """Print data as JSON."""
    print(json.dumps(data, indent=2, allow_nan=False))


def user_prints_to_stderr(wanted: bool) -> contextlib.AbstractContextManager[Any]:
    """Redirect what a strategy prints to stderr if wanted, so that stdout holds nothing but the result."""
    return contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext()


class Progress:
    """Say what is going on, on stderr, once work has taken longer than `patience_s`.

    On a terminal the words change in place and vanish at the end; elsewhere each gets a line. Words that change while
    the work goes on are asked for again: on a terminal all the time, elsewhere every `REPEAT_S`. Where there is no
    memory for a thread, nothing is said.

    Args:
        console: where to say it; stderr by default.
        patience_s: how long to wait before anything is shown, s; `PATIENCE_S` by default.
    """

    def __init__(self, console: Console | None = None, patience_s: float | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._words: Callable[[], str] = str
        self._said = ""
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._end = threading.Lock()  # which is free when the work is over
        self._is_shown = self._is_over = False

    def __enter__(self) -> Self:
        self._end.acquire()
        # A `threading.Thread` would count as one that may wake an event loop, so that no deadlock would be found; and
        # who starts one waits for ever if it gets memory for its stack, and none to begin.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(self._go_on, ())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_over = True
            if self._live is not None:
                self._live.stop()
        self._end.release()

    def say(self, words: str | Callable[[], str]) -> None:
        """Say what is going on from now on; words that change are given as a function."""
        with self._lock:
            self._words = words if callable(words) else lambda: words
            if self._is_shown:
                self._show()

    def __rich__(self) -> Text:
        return Text(printable(self._words()))  # not as markup: a strategy's name may look like it

    def _go_on(self) -> None:
        """Show what is going on, again and again until it is over."""
        wait_s = self._patience_s
        with contextlib.suppress(Exception):  # nobody listens, or there is no memory left
            while not self._end.acquire(timeout=wait_s):
                with self._lock:
                    if not self._is_over:
                        self._show()
                wait_s = _FRAME_S if self._console.is_terminal else REPEAT_S

    def _show(self) -> None:
        """Show what was said last, if it is not shown."""
        self._is_shown = True
        if self._console.is_terminal:
            if self._live is None:
                spinner = Spinner("dots", cast(Any, self), style="status.spinner")  # asked for its words when drawn
                self._live = Live(spinner, console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.refresh()
            return
        words = printable(self._words())
        if words != self._said:
            self._console.print(words, markup=False, highlight=False)
        self._said = words


class Counted:
    """Say how far work of many parts is, whenever it is called with how many are done.

    Args:
        progress: where to say it.
        words: makes the words, of the seconds since the beginning and of what it was called with last.
    """

    def __init__(self, progress: Progress, words: Callable[..., str]) -> None:
        self._progress, self._words = progress, words
        self._start = time.monotonic()
        self._news: tuple[Any, ...] = ()

    def __call__(self, *news: Any) -> None:
        """Say it from now on."""
        is_first = not self._news
        if news[:1] >= self._news[:1]:  # what is done may be gone through again
            self._news = news
        if is_first:
            self._progress.say(lambda: self._words(time.monotonic() - self._start, *self._news))


class RunsInProgress(Progress):
    """Say which strategy is being simulated and how far its ranks are, and what is left after an interruption."""

    def __init__(self, console: Console | None = None, patience_s: float | None = None) -> None:
        super().__init__(console, patience_s)
        self._strategy = ""
        self._kept = "nothing was kept"

    def simulating(self, strategy: str) -> None:
        """Say that a strategy is being simulated."""
        self._strategy = strategy
        self.say(f"simulating {strategy}")

    def watch(self, run: RunProgress) -> None:
        """Say from now on how far the ranks of a run are."""
        strategy = self._strategy
        self.say(lambda: f"simulating {strategy}: {run}" if run.num_events else f"simulating {strategy}")

    def writing(self, folder: Path) -> None:
        """Say that traces are being written into a folder."""
        self._kept = f"every file in {folder} is whole, but some may be missing"
        self.say("writing traces")

    def kept(self) -> str:
        """Return what an interruption leaves."""
        return self._kept
