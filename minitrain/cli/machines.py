"""`minitrain compare --hw A,B,C`: the same model and batch on several machines, a row each, at equal tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table

from minitrain.analysis.labels import GIB, duration
from minitrain.cli.failures import FAILED, message_of, print_error
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.run.comparison import Comparison, FailedRun
from minitrain.run.result import Run
from minitrain.trace.run_folder import network_and_prices, sizes
from minitrain.trace.tables import budget_cells, budget_columns, plain_table

PER_BILLION = 1e9
"""Tokens that machines are compared by where nobody says how many."""


def print_machines(found: Mapping[str, Comparison], tokens: float | None, *, as_json: bool) -> None:
    """Print the quickest strategy of each machine that fits it.

    Args:
        found: the strategies on each machine.
        tokens: what figures are for; a billion tokens if None.
        as_json: print every run of every machine as JSON instead.

    Raises:
        Exit: no strategy fits one of the machines.
    """
    wanted = PER_BILLION if tokens is None else tokens
    if as_json:
        print_json([with_budget(run, wanted) for comparison in found.values() for run in comparison.runs.values()])
    else:
        _print(found, wanted)
    for name, comparison in found.items():
        for failure in comparison.failed:
            print_error(f"{failure.strategy} on {name} failed: {message_of(failure.error)}")
    if any(comparison.winner is None for comparison in found.values()):
        raise typer.Exit(FAILED)


def with_budget(run: Run | FailedRun, tokens: float | None) -> dict[str, Any]:
    """Return a run's summary for JSON, with what so many tokens take where that is asked for."""
    if tokens is None:
        return run.summary()
    budget = run.for_tokens(tokens) if isinstance(run, Run) else None
    return {**run.summary(), "for_tokens": None if budget is None else budget.summary()}


def _print(found: Mapping[str, Comparison], tokens: float) -> None:
    """Print a row a machine, in the order in which they were named."""
    runs = {name: comparison.winner for name, comparison in found.items()}
    first = next((run for run in runs.values() if run is not None), None)
    if first is not None:
        print_lines([sizes(first)])
    print_table(_table(runs, tokens))
    of_machines = {name: network_and_prices(run).removeprefix(", ") for name, run in runs.items() if run is not None}
    print_lines([f"{name}: {words}" for name, words in of_machines.items() if words])
    print_lines([f"the quickest strategy that fits each machine; days, dollars and energy for {_short(tokens)} tokens"])


def _short(tokens: float) -> str:
    """Return a number of tokens in few letters.

    >>> _short(15e12), _short(1e9)
    ('15T', '1B')
    """
    scale, letter = next((pair for pair in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if tokens >= pair[0]), (1.0, ""))
    return f"{tokens / scale:g}{letter}"


def _table(runs: Mapping[str, Run | None], tokens: float) -> Table:
    """Return a row a machine; one on which nothing fits says so."""
    table = plain_table()
    table.add_column("machine", overflow="fold", min_width=8)
    table.add_column("strategy", overflow="fold", min_width=8)
    columns = ("step", "tok/s", "MFU %", "GiB", *budget_columns())
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, run in runs.items():
        if run is None:
            table.add_row(name, "none fits", *[""] * len(columns))
            continue
        rate, mfu = run.tokens_per_second_per_rank, run.mfu
        table.add_row(
            name,
            run.strategy,
            duration(run.step_time),
            "-" if rate is None else f"{rate:,.0f}",
            "-" if mfu is None else f"{mfu * 100:.1f}",
            f"{(run.needed_memory_bytes or run.peak_memory_bytes) / GIB:.1f}",
            *budget_cells(run.for_tokens(tokens)),
        )
    return table
