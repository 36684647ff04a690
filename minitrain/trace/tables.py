"""Tables of runs and comparisons for a terminal, drawn by rich.

They are narrow enough for 60 columns, and readable when piped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minitrain.analysis.labels import GIB
from minitrain.errors import OutOfMemoryError
from minitrain.plain_text import printable, text_of
from minitrain.trace.run_folder import communication_text, memory_text, title_of

if TYPE_CHECKING:
    from minitrain.run.comparison import Comparison
    from minitrain.run.device_kinds import KindFigures
    from minitrain.run.memory_reports import MemoryOutsideStores
    from minitrain.run.result import Run


def comparison_table(comparison: Comparison) -> Table:
    """Return one row a strategy, fastest first; the winner is marked, and runs that failed or ran out of memory.

    Args:
        comparison: the runs.
    """
    table = plain_table(title_of(comparison))
    table.add_column("", width=1)
    table.add_column("\nstrategy", overflow="fold", min_width=8)
    scale, unit = _unit(max((run.step_time for run in comparison.succeeded), default=0))
    more = ("tok/s\na rank", "HFU\n%") if any(run.trained_model for run in comparison.succeeded) else ()
    for column in (f"step\n{unit}", "peak\nGiB", "MFU\n%", "bubble\n%", "comm\n%", *more):
        table.add_column(column, justify="right", no_wrap=True)
    winner = comparison.winner
    for run in comparison.succeeded:
        table.add_row(*_cells(run, scale, is_winner=run is winner), style="bold" if run is winner else "")
    for failure in comparison.failed:
        nothing = [""] * (4 + len(more))
        table.add_row("", _text(failure.strategy), Text(_end(failure.error), style="red"), *nothing)
    notes = comparison_notes(comparison)
    table.caption = _text("\n".join(notes)) if notes else None
    return table


def _end(error: Exception) -> str:
    """Return in one word how a strategy ended."""
    return "OOM" if isinstance(error, OutOfMemoryError) else "failed"


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return a line for each strategy that failed or ran out of memory, with the reason."""
    notes = [
        f"{failure.strategy}: {type(failure.error).__name__}: {text_of(failure.error)}" for failure in comparison.failed
    ]
    return notes + [f"{run.strategy}: {run.oom}" for run in comparison.succeeded if run.oom is not None]


def _cells(run: Run, scale: float, *, is_winner: bool) -> list[str | Text]:
    """Return the cells of a run."""
    memory = f"{run.peak_memory_bytes / GIB:.2f}"
    return [
        Text("★", style="green") if is_winner else "",
        _text(run.strategy),
        _number(run.step_time * scale),
        Text(f"{memory} OOM", style="red") if run.oom is not None else memory,
        "-" if run.mfu is None else f"{run.mfu * 100:.1f}",
        f"{run.bubble_fraction * 100:.1f}",
        f"{run.exposed_comm_fraction * 100:.1f}",
        *([] if run.tokens_per_second_per_rank is None else [f"{run.tokens_per_second_per_rank:,.0f}"]),
        *([] if run.hfu is None else [f"{run.hfu * 100:.1f}"]),
    ]


def run_table(run: Run) -> Table:
    """Return the figures of one run, a row each."""
    share = "" if run.capacity_bytes is None else f" of {run.capacity_bytes / GIB:.4g}"
    scale, unit = _unit(run.step_time)
    fullest = run.peak_memory_per_rank.index(run.peak_memory)
    rows = {
        "step time": f"{_number(run.step_time * scale)} {unit}",
        "peak memory": f"{run.peak_memory_bytes / GIB:.2f}{share} GiB, on rank {fullest}",
        "MFU": "-" if run.mfu is None else f"{run.mfu * 100:.1f} %",
        "bubble": f"{run.bubble_fraction * 100:.1f} %",
        "exposed communication": f"{run.exposed_comm_fraction * 100:.1f} %",
        "events": f"{run.num_events}",
    }
    if run.tokens_per_second is not None:
        each = run.tokens_per_second / run.world_size
        rows["tokens"] = f"{run.tokens_per_second:,.0f} a second, {each:,.0f} a device"
        rows["HFU"] = "-" if run.hfu is None else f"{run.hfu * 100:.1f} %, with what backward computes again"
        if run.dropped_token_fraction:
            rows["dropped tokens"] = f"{run.dropped_token_fraction * 100:.1f} % of those sent to experts"
        rows |= {"peak by kind": memory_text(run), "communication": communication_text(run)}
    if run.peak_host_memory_bytes:
        rows["host memory"] = f"{run.peak_host_memory_bytes / GIB:.2f} GiB a rank at most"
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
    if not held.elements:
        return "nothing"
    lines = [
        f"{elements * run.bytes_per_element / GIB:.3g} GiB made at {line}"
        for line, elements in held.elements_by_line.items()
    ]
    return f"at most {held.elements * run.bytes_per_element / GIB:.3g} GiB, on rank {held.rank}: {', '.join(lines)}"


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
        most: number of ranks shown; of more, the first and the last ones are.
    """
    table = plain_table()
    scale, unit = _unit(run.step_time)
    for column in ("\nrank", f"computing\n{unit}", f"exposed comm\n{unit}", f"waiting\n{unit}", "peak\nGiB"):
        table.add_column(column, justify="right", no_wrap=True)
    parts = run.breakdown
    for rank in _ends(run.world_size, most):
        if rank is None:
            table.add_row(*["..."] * 5)
            continue
        times = [_number(scale * part[rank]) for part in (parts.computing, parts.exposed, parts.waiting)]
        size_bytes = run.peak_memory_per_rank[rank] * run.bytes_per_element
        table.add_row(str(rank), *times, f"{size_bytes / GIB:.2f}")
    return table


def _ends(count: int, most: int) -> Iterable[int | None]:
    """Return 0 to count - 1, or the first and the last of them around None."""
    if count <= most:
        return range(count)
    return [*range(most // 2), None, *range(count - most // 2, count)]


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


def table_text(table: Table) -> str:
    """Return a table as plain text, as wide as it needs."""
    console = Console(file=io.StringIO(), width=10_000, color_system=None, markup=False, emoji=False)
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
