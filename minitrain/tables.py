"""Tables for a terminal, drawn by rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from minitrain.comparison import Comparison
    from minitrain.run import Run


def comparison_table(comparison: Comparison) -> Table:
    """Return one row a strategy, fastest first; the winner is marked, and who ran out of memory.

    Args:
        comparison: the runs.
    """
    table = Table(title=_title(comparison), title_justify="left", caption_justify="left")
    table.add_column("", width=1)
    table.add_column("strategy", no_wrap=True)
    for column in ("step ms", "peak GiB", "MFU %", "bubble %", "comm %"):
        table.add_column(column, justify="right", no_wrap=True)
    winner = comparison.winner
    for run in comparison.succeeded:
        table.add_row(*_cells(run, is_winner=run is winner), style="bold" if run is winner else "")
    for failure in comparison.failed:
        table.add_row("", failure.strategy, Text("failed", style="red"), "", "", "", "")
    table.caption = _caption(comparison)
    return table


def _title(comparison: Comparison) -> str:
    """Return what all runs share."""
    runs = comparison.succeeded
    if not runs:
        return "no strategy came to its end"
    run = runs[0]
    return f"{run.world_size} ranks, {run.num_layers} layers, batch {run.global_batch_size}, {run.hardware}"


def _cells(run: Run, *, is_winner: bool) -> list[str | Text]:
    """Return the cells of a run."""
    memory = f"{run.peak_memory_bytes / 2**30:.2f}"
    return [
        Text("★", style="green") if is_winner else "",
        run.strategy,
        f"{run.step_time * 1e3:.3f}",
        Text(f"{memory} OOM", style="red") if run.oom is not None else memory,
        "-" if run.mfu is None else f"{run.mfu * 100:.1f}",
        f"{run.bubble_fraction * 100:.1f}",
        f"{run.exposed_comm_fraction * 100:.1f}",
    ]


def _caption(comparison: Comparison) -> Text | None:
    """Return why strategies failed, a line each."""
    lines = [f"{failure.strategy}: {type(failure.error).__name__}: {failure.error}" for failure in comparison.failed]
    lines += [f"{run.strategy}: {run.oom}" for run in comparison.succeeded if run.oom is not None]
    return Text("\n".join(lines)) if lines else None
