"""The command `minitrain sweep`: many configurations, in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import FAILED, print_error, saying_what_is_kept
from minitrain.cli.generation import Given
from minitrain.cli.output import Counted, Progress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.errors import UsageError
from minitrain.plain_text import printable
from minitrain.run.figures import TABLES
from minitrain.run.parameters import OF_TRANSFORMER
from minitrain.run.strategy_loading import literal
from minitrain.search.sweeps.batches import Row, succeeded
from minitrain.search.sweeps.own_processes import LostWorkersWarning
from minitrain.search.sweeps.sweep import Sweep
from minitrain.view.tables import filled_table, frameless_table

SHOWN = 10
_LONG_NAMES = {flag.removeprefix("--"): name for name, (option, _) in options.SHARED.items() for flag in option.flags}


def sweep(
    strategy: list[str],
    *,
    given: Given,
    grid: Annotated[list[str], typer.Option("--grid", "-g")],
    csv: Path | None = None,
    html: Path | None = None,
) -> None:
    """Simulate every strategy with every combination of a grid, over all cores, and print the fastest.

    Names of the grid are those of `mt.simulate`, or of an option: world_size, layers, batch, hw, microbatch ...
    A configuration that fails stays, with its reason; exit code 1 only if all do.

    Args:
        strategy (STRATEGY): Names, or path.py:function.
        given: The shared options.
        grid (NAME=V1,V2,...): Values of a parameter or option; repeat it for more.
        csv (FILE): Write all rows as a table.
        html (PAGE): Write all rows as a page: table, scatter, parallel coordinates.
    """
    axes = parse_grid(grid)
    trained = options.of_given(given, "num_layers", *OF_TRANSFORMER) if "workload" in axes else options.trained(given)
    fixed: dict[str, Any] = {
        "world_size": options.DEFAULT.world_size if given.world_size is None else given.world_size,
        **trained,
        **options.batch_of(given),
        "hardware": options.named_hardware(given.hardware),
        **({"strict": True} if given.strict else {}),  # a column of the rows only where it was asked for
        **options.checking(given),
        **options.of_given(given, "network"),
        **options.pricing(given),
        **options.strategy_options(given),
    }
    options.require_file("--csv", csv)
    options.require_file("--html", html)
    results, as_json = given.results, given.as_json
    where: dict[str, Any] = {
        "executor": options.executor_of(given),
        "jobs": given.jobs,
        "time_limit_s": given.time_limit,
    }
    with (
        user_prints_to_stderr(as_json),
        options.saying_warnings(LostWorkersWarning),
        Progress() as progress,
        saying_what_is_kept(lambda: _kept(done, results)),
    ):
        tell = Counted(progress, lambda spent_s, *news: _how_far(spent_s, done.num_simulated, *news))
        done = mt.sweep(strategy, axes, results=results, progress=tell, **where, **fixed)
        if csv is not None:
            done.write_csv(csv)
        rows = done.rows()
        if html is not None:
            progress.say("drawing the fastest runs")
            done.write_html(html)
    if as_json:
        print_json(rows)
        for note in done.notes:
            print_error(note)
    else:
        _print(rows, list(axes))
        print_lines(done.notes)
        print_lines([f"wrote {html}"] if html is not None else [])
    if not succeeded(rows) and all(row["status"] == "failed" for row in rows):
        raise typer.Exit(FAILED)


def parse_grid(texts: Sequence[str], option: str = "--grid") -> dict[str, list[Any]]:
    """Return the values by parameter; each is a Python literal, or else text.

    Args:
        texts: what was given.
        option: which option it was given to.

    Raises:
        UsageError: one is of another form, or names what another one names.

    >>> parse_grid(["world_size=8,64", "hw=h100_80g_nvl8"])
    {'world_size': [8, 64], 'hardware': ['h100_80g_nvl8']}
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = _LONG_NAMES.get(name.strip(), name.strip())
        if not equals or not name.isidentifier() or not all(map(str.strip, values.split(","))):
            raise UsageError(f"{option} takes name=value,value,..., got {text!r}")
        if name in axes:
            raise UsageError(f"{option}: {name} is given twice")
        axes[name] = [literal(value.strip()) for value in values.split(",")]
    return axes


def _how_far(spent_s: float, num_simulated: int, num_done: int, total: int | None) -> str:
    """Say how many configurations are done, and about how long the others take, by those that were simulated."""
    words = f"{num_done} of {'?' if total is None else total} configurations"
    if total is None or not num_simulated > 0 or num_done >= total:
        return words
    return f"{words}, about {in_words(spent_s / num_simulated * (total - num_done))} left"


def in_words(seconds: float) -> str:
    """Return a time to wait in words, no more exact than such a guess is.

    >>> in_words(0.2), in_words(89), in_words(1000), in_words(9000)
    ('1 s', '89 s', '17 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _kept(done: Sweep, results: Path | None) -> str:
    """Return what is left of a sweep that was interrupted."""
    if results is None:
        return "nothing was kept; with --results FILE the same sweep would go on from here"
    return f"{done.num_simulated} new rows are kept in {results}; the same command goes on from there"


def _print(rows: Sequence[Row], axes: Sequence[str]) -> None:
    """Print the fastest rows, and how many there are of each kind."""
    best = succeeded(rows)
    shown = TABLES["sweep"]
    cells = (
        [
            *map(printable, (row["strategy"], *("-" if row[axis] is None else str(row[axis]) for axis in axes))),
            *(column.cell(row) for column in shown),
        ]
        for row in best[:SHOWN]
    )
    heads = dict.fromkeys((*axes, *(column.head for column in shown)))
    table = filled_table({"strategy": 8, **heads}, cells, frameless_table())
    if best:
        print_table(table)
    out_of_memory = sum(row["status"] == "oom" for row in rows)
    failures = [row for row in rows if row["status"] == "failed"]
    counted = f"{len(rows)} configuration{'s' if len(rows) > 1 else ''}"
    print_lines([f"{counted}: {len(best)} ok, {out_of_memory} out of memory, {len(failures)} failed"])
    if failures:
        print_lines([f"the first failure: {failures[0]['strategy']}: {failures[0]['error']}"])
