"""Tables of runs and comparisons for a terminal, drawn by rich.

They are narrow enough for 60 columns, and readable when piped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minitrain.errors import OutOfMemoryError, text_of
from minitrain.plain_text import printable
from minitrain.run.analysis.labels import GIB, duration, in_letters, size
from minitrain.run.figures import STEP_MS, TABLES, Column, FiguresOf, must_be_held
from minitrain.tensors.index_sets import grouped
from minitrain.view.run_folder import MESSAGES, communication_text, memory_text, notes_of_all, peak_text, title_of

if TYPE_CHECKING:
    from minitrain.run.device_memory import MemoryOutsideStores
    from minitrain.run.facts import KindFigures
    from minitrain.run.result import Run, TokenBudget
    from minitrain.run.simulation import Comparison


def budget_columns() -> tuple[str, ...]:
    """Return the columns of what so many tokens take."""
    return "days", "USD", "MWh"


def budget_cells(budget: TokenBudget | None) -> list[str]:
    """Return what so many tokens take, in words that are as short as figures of this kind are sure."""
    figures = (None,) * 3 if budget is None else (budget.days, budget.dollars, budget.megawatt_hours)
    return ["-" if figure is None else _rounded(figure) for figure in figures]


def _rounded(value: float) -> str:
    """Return three digits, or all before the point.

    >>> _rounded(0.012345), _rounded(12345.6)
    ('0.0123', '12,346')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def comparison_table(comparison: Comparison, tokens: float | None = None) -> Table:
    """Return one row a strategy, fastest first; the winner is marked, and runs that failed or ran out of memory.

    Args:
        comparison: the runs.
        tokens: add the days, dollars and energy of training on so many.
    """
    table = plain_table(title_of(comparison))
    table.add_column("", width=1)
    table.add_column("\nstrategy", overflow="fold", min_width=8)
    scale, unit = _unit(max((run.step_time for run in comparison.succeeded), default=0))
    trains = any(run.trained_model for run in comparison.succeeded)
    of_tokens = budget_columns() if trains and tokens is not None else ()
    columns = [
        replace(column, head=f"step {unit}", scale=scale, text=_number) if column is STEP_MS else column
        for column in TABLES["compare transformers" if trains else "compare"]
        if not (of_tokens and column.gives_way)
    ]
    for head in (*(column.head.replace(" ", "\n", 1) for column in columns), *(f"\n{name}" for name in of_tokens)):
        table.add_column(head, justify="right", no_wrap=True)
    winner = comparison.winner
    for run in comparison.succeeded:
        row = FiguresOf(run)
        table.add_row(
            Text("★", style="green") if run is winner else "",
            _text(run.strategy),
            *(column.cell(row) if run.oom is None else _out_of_memory(column, row) for column in columns),
            *(budget_cells(run.for_tokens(tokens)) if of_tokens and tokens is not None else ()),
            style="bold" if run is winner else "",
        )
    for failure in comparison.failed:
        table.add_row("", _text(failure.strategy), Text(_end(failure.error), style="red"))
    notes = comparison_notes(comparison)
    table.caption = _text("\n".join(notes)) if notes else None
    return table


def _out_of_memory(column: Column, row: FiguresOf) -> str | Text:
    """Return a cell of a run that needs more memory than there is, with that beside what it needs."""
    cell = column.cell(row)
    return Text(f"{cell} OOM", style="red") if column.of is must_be_held else cell


def _end(error: Exception) -> str:
    """Return in one word how a strategy ended."""
    return "OOM" if isinstance(error, OutOfMemoryError) else "failed"


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return which strategies failed or ran out of memory, how long they load, what to know of all, and how sure."""
    notes = [
        f"{failure.strategy}: {type(failure.error).__name__}: {text_of(failure.error)}" for failure in comparison.failed
    ]
    notes += [f"{run.strategy}: {run.oom}" for run in comparison.succeeded if run.oom is not None]
    return notes + _loading(comparison) + notes_of_all(comparison) + _sureness_notes(comparison)


def _sureness_notes(comparison: Comparison) -> list[str]:
    """Return how sure the step times of transformers are, a line for all strategies of which the same is to be said."""
    transformers = (run for run in comparison.succeeded if run.trained_model is not None)
    said = grouped((run.sureness, run.strategy) for run in transformers)
    return [f"how sure, {', '.join(names)}: {words}" for words, names in said.items()]


def _loading(comparison: Comparison) -> list[str]:
    """Return how long weights are loaded before the steps begin, where that takes time."""
    times = [run.load_time for run in comparison.succeeded]
    if not any(times):
        return []
    low, high = duration(min(times)), duration(max(times))
    taken = low if low == high else f"{low} to {high}"
    return [f"A step begins when the weights are there; loading them takes {taken}."]


def run_table(run: Run, tokens: float | None = None) -> Table:
    """Return the figures of one run, a row each.

    Args:
        run: the run.
        tokens: add the days, dollars and energy of training on so many.
    """
    scale, unit = _unit(run.step_time)
    fullest = run.peak_memory_per_rank.index(run.peak_memory)
    rows = {
        "step time": f"{_number(run.step_time * scale)} {unit}",
        "loading": f"{_number(run.load_time * scale)} {unit}" if run.load_time else "",
        "steps": "; ".join(str(steps) for steps in (run.steps, run.round) if steps is not None),
        "peak memory": f"{peak_text(run)}, on rank {fullest}",
        **{column.title: column.words(FiguresOf(run), " ") for column in TABLES["run"]},
        "messages": MESSAGES.get(run.messages, ""),
        "events": f"{run.num_events}",
    }
    if run.interval is not None:
        rows["a real step"] = " to ".join(f"{_number(seconds * scale)} {unit}" for seconds in run.interval)
        rows["how sure"] = run.sureness
    if run.tokens_per_second is not None:
        each = run.tokens_per_second / run.world_size
        rows["tokens"] = f"{run.tokens_per_second:,.0f} a second, {each:,.0f} a device"
        rows["HFU"] = "-" if run.hfu is None else f"{run.hfu * 100:.1f} %, with what backward computes again"
        if run.dropped_token_fraction:
            rows["dropped tokens"] = f"{run.dropped_token_fraction * 100:.1f} % of those sent to experts"
        rows["how sure"] = run.sureness
        rows |= {"peak by kind": memory_text(run), "communication": communication_text(run)}
    if tokens is not None:
        days, dollars, energy = budget_cells(run.for_tokens(tokens))
        rows[f"{in_letters(tokens)} tokens"] = f"{days} days, {dollars} USD, {energy} MWh of the devices"
    if run.peak_host_memory_bytes:
        rows["host memory"] = f"{size(run.peak_host_memory_bytes, '.2f')} a rank at most"
    if run.held_outside is not None:
        rows["held outside stores"] = _outside(run, run.held_outside)
    rows |= {f"{each.kind.name} ({len(each.kind.ranks)} ranks)": kind_text(each) for each in run.by_device_kind}
    if run.oom is not None:
        rows["out of memory"] = str(run.oom).removeprefix("out of memory ")
    return facts_table({name: text for name, text in rows.items() if text})


def kind_text(figures: KindFigures) -> str:
    """Return in words what the ranks of one kind of device came to."""
    kind, waits = figures.kind, figures.waits_for_s or {}
    capacity = "" if kind.capacity_bytes is None else f" of {kind.capacity_bytes / GIB:.4g}"
    longest = max(waits, key=waits.__getitem__, default="")
    limited = "" if kind.limited_by is None else f", clock {kind.clock_share:.0%} ({kind.limited_by})"
    texts = [
        f"idle {figures.idle_fraction:.1%}" + (f", most of it for {longest}" if longest else ""),
        "" if figures.work_fraction is None else f"{figures.work_fraction:.1%} of the work",
        f"{figures.peak_memory_bytes / GIB:.2f}{capacity} GiB{' OOM' if figures.is_out_of_memory else ''}",
        "" if figures.energy_joules is None else f"{figures.energy_joules:.4g} J",
        f"{kind.hardware}{limited}",
    ]
    return "; ".join(text for text in texts if text)


def _outside(run: Run, held: MemoryOutsideStores) -> str:
    """Return what a strict run held outside its stores, and the lines of code that made it."""

    def in_words(elements: float) -> str:
        return size(elements * run.bytes_per_element)

    waiting = f"{in_words(held.waiting_messages)} of messages not received yet" if held.waiting_messages else ""
    if not held.elements:
        return waiting or "nothing"
    lines = ", ".join(f"{in_words(elements)} made at {line}" for line, elements in held.elements_by_line.items())
    return f"at most {in_words(held.elements)}, on rank {held.rank}: {lines}" + (f"; and {waiting}" if waiting else "")


def facts_table(rows: Mapping[str, str]) -> Table:
    """Return names and values, a row each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(_text(name), _text(value))
    return table


def ranks_table(run: Run, most: int = 16) -> Table:
    """Return where the step time of each rank goes; computing + exposed communication + waiting = step time.

    Args:
        run: the run.
        most: number of rows shown; of more, the first and the last ones are. Neighbours that show the same share a row.
    """
    scale, unit = _unit(run.step_time)
    heads = ("\nrank", f"computing\n{unit}", f"exposed comm\n{unit}", f"waiting\n{unit}", "peak\nGiB")
    parts = run.breakdown
    rows = []
    for rank, peak in enumerate(run.peak_memory_per_rank):
        times = (_number(scale * part[rank]) for part in (parts.computing, parts.exposed, parts.waiting))
        rows.append((*times, f"{peak * run.bytes_per_element / GIB:.2f}"))
    alike = [[rank for rank, _ in group] for _, group in groupby(enumerate(rows), key=itemgetter(1))]
    shown = [(str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}", *rows[ranks[0]]) for ranks in alike]
    if len(shown) > most:
        shown[most // 2 : len(shown) - most // 2] = [("...",) * len(heads)]
    return filled_table(dict.fromkeys(heads), shown)


def _text(text: str) -> Text:
    """Return text for a cell as it is: names and messages are no markup, and control nothing."""
    return Text(printable(text))


def plain_table(title: str = "") -> Table:
    """Return an empty table in the style that all have."""
    return Table(
        title=_text(title) if title else None,
        title_justify="left",
        title_style="dim",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


_LONGEST_WORD = 20
"""Characters of a word that no column breaks."""


def filled_table(
    columns: Mapping[str, int | None], rows: Iterable[Iterable[str | Text]], table: Table | None = None
) -> Table:
    """Return a table of rows.

    Args:
        columns: heads, each with the least width of what may fold, between words; of figures, which never do, None.
        rows: the cells of each; texts that others wrote are to be `Text`, or printable.
        table: an empty one in another style.
    """
    table = plain_table() if table is None else table
    cells = [[*row] for row in rows]
    for place, (head, width) in enumerate(columns.items()):
        if width is None:
            table.add_column(head, justify="right", no_wrap=True)
        else:
            word = max((len(word) for row in cells for word in str(row[place]).split()), default=0)
            table.add_column(head, overflow="fold", min_width=max(width, min(word, _LONGEST_WORD)))
    for row in cells:
        table.add_row(*row)
    return table


def frameless_table() -> Table:
    """Return an empty table without lines."""
    return Table(box=None, pad_edge=False)


def table_text(table: Table) -> str:
    """Return a table as plain text, as wide as it needs."""
    plain: dict[str, Any] = {"color_system": None, "force_jupyter": False, "markup": False, "emoji": False}
    console = Console(file=io.StringIO(), width=10_000, **plain)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n")  # type: ignore[attr-defined]  # a StringIO


def _unit(longest_s: float) -> tuple[float, str]:
    """Return the unit in which times up to `longest_s` are shown: how many make a second, and its name."""
    return (1, "s") if longest_s >= 10 else (1e3, "ms")


def _number(value: float) -> str:
    """Return a time with three digits after the point, so that columns line up, or more where these would be zeros.

    >>> _number(30.67315), _number(0.00002)
    ('30.673', '2e-05')
    """
    return f"{value:.3f}" if value >= 0.0995 or value == 0 else f"{value:.3g}"
