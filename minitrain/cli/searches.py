"""The commands `minitrain sweep`, many configurations in several processes, and `minitrain tune`, the best layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import FAILED, INTERRUPTED, print_error, saying_what_is_kept
from minitrain.cli.generation import Given
from minitrain.cli.options import Count
from minitrain.cli.output import Counted, Progress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.errors import UsageError
from minitrain.plain_text import printable
from minitrain.run.analysis.labels import duration
from minitrain.run.figures import TABLES
from minitrain.run.parameters import OF_TRANSFORMER
from minitrain.run.result import TokenBudget
from minitrain.run.strategy_loading import literal
from minitrain.search.sweeps.batches import Row, succeeded
from minitrain.search.sweeps.own_processes import LostWorkersWarning
from minitrain.search.tuning.findings import described, require_tool, told_apart
from minitrain.search.tuning.search import distinct, options_of
from minitrain.search.tuning.tune import HEAD_ROOM, Tuning
from minitrain.view.tables import budget_cells, budget_columns, filled_table, frameless_table
from minitrain.workloads.transformer import find_model

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
        saying_what_is_kept(lambda: _kept(results, done.num_simulated)),
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


def _kept(results: Path | None, num_new: int | None = None) -> str:
    """Return what is left of a search that was interrupted."""
    if results is None:
        return "nothing was kept; with --results FILE the same command would go on from here"
    rows = "what was simulated is" if num_new is None else f"{num_new} new rows are"
    return f"{rows} kept in {results}; the same command goes on from there"


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


_LAYOUTS_SHOWN = 8


def tune(
    strategy: list[str] | None = None,
    *,
    given: Given,
    precision: str | None = None,
    objective: str = "step_time",
    space: list[str] | None = None,
    head_room: float = HEAD_ROOM,
    min_microbatches: Count = 1,
    prune: str = "auto",
    sampler: str = "exhaustive",
    samples: Count = 200,
    budget: Annotated[float | None, typer.Option(min=0)] = None,
    explain: bool = False,
    words: str | None = None,
    html: Path | None = None,
) -> None:
    """Search the layouts of a model on a machine, and print the best.

    Ctrl-C ends the search and prints what was found by then (exit code 130); with --results the same command goes on
    from there.

    Args:
        strategy (STRATEGY): Those to search; those that suit the model if none.
        given: The shared options.
        precision (NAME,...): bf16, fp16, fp32 or fp8, as for run; several are searched. The model's own by default.
        objective (NAME): step_time, tokens_per_second, tokens_per_dollar or energy.
        space (OPTION=V1,V2,...): The values of an option to search; repeat it for more.
        head_room (SHARE): Share of the devices' memory that must stay free.
        min_microbatches (N): The fewest microbatches of a pipeline.
        prune (HOW): auto, none, front or best: what need not be priced.
        sampler (NAME): exhaustive, or optuna with --samples configurations.
        samples (N): Configurations that optuna tries.
        budget (SECONDS): Begin no configuration after so long.
        explain: Say why the winner wins, and what would change that.
        words (TOOL): Print the winner for megatron-lm, megatron-bridge, torchtitan, deepspeed, fsdp or calculon.
        html (PAGE): Write a page: all configurations, the front, the best.
    """
    if words is not None:
        require_tool(words, None if given.workload is None else find_model(given.workload))
    for_tokens = options.tokens_of(given.tokens, has_model=given.workload is not None)
    options.require_file("--html", html)
    given.precision = None if precision is None else precision.split(",")
    parameters: dict[str, Any] = {
        **options.trained(given),
        **options.of_given(given, "network"),
        **options.pricing(given),
        **options.of_given(given, "world_size"),
        **options.batch_of(given),
    }
    with (
        user_prints_to_stderr(given.as_json),
        options.saying_warnings(LostWorkersWarning),
        Progress() as progress,
        saying_what_is_kept(lambda: _kept(given.results)),
    ):
        found = mt.tune(
            hardware=options.named_hardware(options.at_cost(given.hardware, given)),
            objective=objective,
            strategies=strategy or None,
            space=parse_grid(space or [], "--space"),
            head_room=head_room,
            min_microbatches=min_microbatches,
            prune=prune,
            sampler=sampler,
            num_samples=samples,
            budget_s=budget,
            executor=options.executor_of(given),
            jobs=given.jobs,
            time_limit_s=given.time_limit,
            results=given.results,
            progress=Counted(progress, _how_far_of_layouts),
            words=words,
            **parameters,
        )
        if html is not None:
            progress.say("drawing the best layouts")
            found.write_html(
                html, progress=lambda done, total: progress.say(f"drew {done} of the best {total} layouts")
            )
    if given.as_json:
        print_json(found.rows)
    else:
        _print_layouts(found, for_tokens, explain=explain, words=words)
        print_lines([f"wrote {html}"] if html is not None else [])
    if found.was_ended_by_hand:
        print_error(f"interrupted; {_kept(given.results)}")
        raise typer.Exit(INTERRUPTED)
    if not found.ranked:
        raise typer.Exit(FAILED)


def _how_far_of_layouts(spent_s: float, num_done: int, total: int, best: Row | None) -> str:
    """Say how many configurations are done, and which is the best so far."""
    words = f"{num_done:,} of {total:,} configurations"
    if best is not None:
        words += f", best {duration(best['step_time_s'])} by {best['strategy']} {described(options_of(best))}"
    if 0 < num_done < total:
        words += f", about {in_words(spent_s / num_done * (total - num_done))} left"
    return printable(words)


def _print_layouts(found: Tuning, tokens: float | None, *, explain: bool, words: str | None) -> None:
    """Print the best layouts, why the first one wins, and how other tools call it."""
    if not found.ranked:
        print_lines([f"{found.verdicts()}; {found.nearest()}"])
        return
    shown = distinct(found.ranked)[:_LAYOUTS_SHOWN]
    common, names = told_apart(shown)
    print_lines([f"layouts with {printable(common)}:"] if common else [])
    print_table(_layouts_table(shown, names, tokens))
    print_lines(found.others(shown))
    print_lines([found.verdicts()])
    print_lines([f"{len(found.front)} of them are on the front of time, memory, money and energy"])
    print_lines([f"the best one: {found.best.command}", *found.priced_by()])
    if explain:
        print_lines(["", *str(found.explain()).splitlines()[1:]])
    if words is not None:
        print_lines(["", *_said(found, words)])


def _said(found: Tuning, tool: str) -> list[str]:
    """Return the best layout that a tool has words for, in these; say where that is not the best of all."""
    choice, text = found.best_with_words(tool)
    lines = text.splitlines()
    if choice.row is found.ranked[0]:
        return lines
    step = f"{duration(choice.step_time_s)} instead of {duration(found.best.step_time_s)}"
    return [f"{tool} has no words for the best one; it has them for {choice} ({step}):", *lines]


def _layouts_table(rows: Sequence[Row], names: Sequence[str], tokens: float | None) -> Table:
    """Return the best layouts as a table.

    Args:
        rows: the layouts, the best first.
        names: what tells each apart.
        tokens: what days, dollars and energy are for; None for the dollars of a step.
    """
    shown = [column for column in TABLES["tune"] if tokens is None or not column.gives_way]
    are_several = len({row.get("precision") for row in rows}) > 1
    cells = []
    for row, layout in zip(rows, names, strict=True):
        budget = [] if tokens is None else budget_cells(_budget(row, tokens))
        named = printable(f"{row['precision']}: {layout}" if are_several else layout)
        cells.append([named, *(column.cell(row) for column in shown), *budget])
    heads = (*(column.head for column in shown), *(() if tokens is None else budget_columns()))
    return filled_table({"layout": 20, **dict.fromkeys(heads)}, cells, frameless_table())


def _budget(row: Row, tokens: float) -> TokenBudget | None:
    """Return what so many tokens take in steps of a layout."""
    step_time_s, rate = row["step_time_s"], row["tokens_per_second"]
    num_tokens = None if rate is None else round(rate * step_time_s)
    return TokenBudget.of(tokens, num_tokens, step_time_s, row["dollars"], row["energy_joules"])
