"""The command `minitrain tune`: which layout trains a model best on a machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import minitrain as mt
from minitrain.analysis.labels import duration
from minitrain.cli import budget_options
from minitrain.cli import options as given
from minitrain.cli.failures import FAILED
from minitrain.cli.options import pricing
from minitrain.cli.output import Progress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.cli.sweep import Results, in_words, parse_grid
from minitrain.cli.worker_options import Dask, Jobs, Ray, TimeLimit, executor_of, saying_losses
from minitrain.plain_text import printable
from minitrain.run.figures import TABLES
from minitrain.run.result import TokenBudget
from minitrain.trace.tables import budget_cells, budget_columns
from minitrain.tuning.findings import described
from minitrain.tuning.result import Tuning
from minitrain.tuning.search import Row, distinct, options_of
from minitrain.tuning.tune import HEAD_ROOM
from minitrain.tuning.words import require_tool
from minitrain.workloads.models import find_model

SHOWN = 8

Objective = Annotated[
    str,
    typer.Option("--objective", metavar="NAME", help="step_time, tokens_per_second, tokens_per_dollar or energy."),
]
Strategies = Annotated[
    list[str] | None,
    typer.Argument(metavar="[STRATEGY]...", help="Those to search; those that suit the model if none."),
]
Space = Annotated[
    list[str] | None,
    typer.Option("--space", metavar="OPTION=V1,V2,...", help="The values of an option to search; repeat it for more."),
]
Precisions = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="NAME,...",
        help="bf16, fp16, fp32 or fp8, as for run; several are searched. The model's own by default.",
        rich_help_panel=given.MODEL,
    ),
]
HeadRoom = Annotated[
    float, typer.Option("--head-room", metavar="SHARE", help="Share of the devices' memory that must stay free.")
]
MinMicrobatches = Annotated[
    int, typer.Option("--min-microbatches", metavar="N", min=1, help="The fewest microbatches of a pipeline.")
]
Prune = Annotated[
    str, typer.Option("--prune", metavar="HOW", help="auto, none, front or best: what need not be priced.")
]
Sampler = Annotated[
    str, typer.Option("--sampler", metavar="NAME", help="exhaustive, or optuna with --samples configurations.")
]
Samples = Annotated[int, typer.Option("--samples", metavar="N", min=1, help="Configurations that optuna tries.")]
Budget = Annotated[
    float | None, typer.Option("--budget", metavar="SECONDS", min=0, help="Begin no configuration after so long.")
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="PAGE", help="Write a page: all configurations, the front, the best.")
]
Words = Annotated[
    str | None,
    typer.Option(
        "--words",
        metavar="TOOL",
        help="Print the winner for megatron-lm, megatron-bridge, torchtitan, deepspeed, fsdp or calculon.",
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Say why the winner wins, and what would change that.")]


def tune(
    strategy: Strategies = None,
    world_size: given.WorldSize = given.DEFAULT.world_size,
    model: given.TrainedModel = None,
    seq: given.SeqLen = None,
    precision: Precisions = None,
    layers: given.Layers = None,
    batch: given.Batch = given.DEFAULT.global_batch_size,
    hw: given.Hardware = None,
    cost_per_hour: budget_options.CostPerHour = None,
    tokens: budget_options.Tokens = None,
    network: given.Network = None,
    fidelity: given.Fidelity = None,
    platform: given.Platform = None,
    without: given.Without = None,
    prices: given.Prices = None,
    objective: Objective = "step_time",
    space: Space = None,
    head_room: HeadRoom = HEAD_ROOM,
    min_microbatches: MinMicrobatches = 1,
    prune: Prune = "auto",
    sampler: Sampler = "exhaustive",
    samples: Samples = 200,
    budget: Budget = None,
    explain: Explain = False,
    words: Words = None,
    jobs: Jobs = None,
    dask: Dask = None,
    ray: Ray = None,
    time_limit: TimeLimit = None,
    results: Results = None,
    html: Html = None,
    as_json: given.AsJson = False,
    debug: given.Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Search the layouts of a model on a machine, and print the best.

    Ctrl-C ends the search and prints what was found by then; with --results the same command goes on from there.
    """
    if words is not None:
        require_tool(words, None if model is None else find_model(model))
    for_tokens = budget_options.tokens_of(tokens, has_model=model is not None)
    given.require_file("--html", html)
    parameters: dict[str, Any] = {
        **given.trained(model, seq, layers, None if precision is None else precision.split(",")),
        **({} if network is None else {"network": network}),
        **pricing(fidelity, platform, without, prices),
    }
    with user_prints_to_stderr(as_json), saying_losses(), Progress() as progress:
        found = mt.tune(
            hardware=given.named_hardware(budget_options.at_cost(hw, cost_per_hour)),
            world_size=world_size,
            global_batch_size=batch,
            objective=objective,
            strategies=strategy or None,
            space=parse_grid(space or [], "--space"),
            head_room=head_room,
            min_microbatches=min_microbatches,
            prune=prune,
            sampler=sampler,
            num_samples=samples,
            budget_s=budget,
            executor=executor_of(dask, ray, jobs),
            jobs=jobs,
            time_limit_s=time_limit,
            results=results,
            progress=_Live(progress),
            words=words,
            **parameters,
        )
        if html is not None:
            progress.say("drawing the best layouts")
            found.write_html(html)
    if as_json:
        print_json(found.rows)
    else:
        _print(found, for_tokens, explain=explain, words=words)
        print_lines([f"wrote {html}"] if html is not None else [])
    if not found.ranked:
        raise typer.Exit(FAILED)


class _Live:
    """Say how many configurations are done, and which is the best so far.

    Args:
        progress: where to say it.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._start = time.monotonic()
        self._words = ""

    def __call__(self, num_done: int, total: int, best: Row | None) -> None:
        if not self._words:
            self._progress.say(lambda: self._words)
        spent = time.monotonic() - self._start
        words = f"{num_done:,} of {total:,} configurations"
        if best is not None:
            words += f", best {duration(best['step_time_s'])} by {best['strategy']} {described(options_of(best))}"
        if 0 < num_done < total:
            words += f", about {in_words(spent / num_done * (total - num_done))} left"
        self._words = printable(words)


def _print(found: Tuning, tokens: float | None, *, explain: bool, words: str | None) -> None:
    """Print the best layouts, why the first one wins, and how other tools call it."""
    if not found.ranked:
        print_lines([found.verdicts()])
        return
    print_table(_table(found.ranked, tokens))
    print_lines([found.verdicts() + (" (interrupted)" if found.was_interrupted else "")])
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


def _table(rows: Sequence[Row], tokens: float | None) -> Table:
    """Return the best layouts as a table; of layouts with one step time and one memory, the first.

    Args:
        rows: the layouts, the best first.
        tokens: what days, dollars and energy are for; None for the dollars of a step.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("layout", overflow="fold", min_width=20)
    *figures, dollars = TABLES["tune"]
    shown = [*figures, *([dollars] if tokens is None else [])]
    for column in (*(each.head for each in shown), *(() if tokens is None else budget_columns())):
        table.add_column(column, justify="right", no_wrap=True)
    are_several = len({row.get("precision") for row in rows}) > 1
    for row in distinct(rows)[:SHOWN]:
        layout = f"{row['strategy']} {described(options_of(row))}"
        budget = [] if tokens is None else budget_cells(_budget(row, tokens))
        cells = [*(column.cell(row) for column in shown), *budget]
        table.add_row(printable(f"{row['precision']}: {layout}" if are_several else layout), *cells)
    return table


def _budget(row: Row, tokens: float) -> TokenBudget | None:
    """Return what so many tokens take in steps of a layout."""
    step_time_s, rate = row["step_time_s"], row["tokens_per_second"]
    num_tokens = None if rate is None else round(rate * step_time_s)
    return TokenBudget.of(tokens, num_tokens, step_time_s, row["dollars"], row["energy_joules"])
