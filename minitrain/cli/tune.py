"""The command `minitrain tune`: which layout trains a model best on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import FAILED
from minitrain.cli.generation import Given
from minitrain.cli.options import Count
from minitrain.cli.output import Counted, Progress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.cli.sweep import in_words, parse_grid
from minitrain.plain_text import printable
from minitrain.run.analysis.labels import duration
from minitrain.run.figures import TABLES
from minitrain.run.result import TokenBudget
from minitrain.search.sweeps.own_processes import LostWorkersWarning
from minitrain.search.tuning.findings import described, require_tool
from minitrain.search.tuning.search import Row, distinct, options_of
from minitrain.search.tuning.tune import HEAD_ROOM, Tuning
from minitrain.view.tables import budget_cells, budget_columns, filled_table, frameless_table
from minitrain.workloads.transformer import find_model

SHOWN = 8


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

    Ctrl-C ends the search and prints what was found by then; with --results the same command goes on from there.

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
    with user_prints_to_stderr(given.as_json), options.saying_warnings(LostWorkersWarning), Progress() as progress:
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
            progress=Counted(progress, _how_far),
            words=words,
            **parameters,
        )
        if html is not None:
            progress.say("drawing the best layouts")
            found.write_html(html)
    if given.as_json:
        print_json(found.rows)
    else:
        _print(found, for_tokens, explain=explain, words=words)
        print_lines([f"wrote {html}"] if html is not None else [])
    if not found.ranked:
        raise typer.Exit(FAILED)


def _how_far(spent_s: float, num_done: int, total: int, best: Row | None) -> str:
    """Say how many configurations are done, and which is the best so far."""
    words = f"{num_done:,} of {total:,} configurations"
    if best is not None:
        words += f", best {duration(best['step_time_s'])} by {best['strategy']} {described(options_of(best))}"
    if 0 < num_done < total:
        words += f", about {in_words(spent_s / num_done * (total - num_done))} left"
    return printable(words)


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
    *figures, dollars = TABLES["tune"]
    shown = [*figures, *([dollars] if tokens is None else [])]
    are_several = len({row.get("precision") for row in rows}) > 1
    cells = []
    for row in distinct(rows)[:SHOWN]:
        layout = f"{row['strategy']} {described(options_of(row))}"
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
