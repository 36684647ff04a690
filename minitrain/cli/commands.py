"""The commands `minitrain compare` and `run`.

`minitrain compare --hw A,B,C`: the same model and batch on several machines, a row each, at equal tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table

import minitrain as mt
from minitrain.cli import budget_options, fault_options, recipe_option
from minitrain.cli import options as given
from minitrain.cli import rank_options as ranks_given
from minitrain.cli.failures import FAILED, RunFailedError, message_of, print_error, running, saying_what_is_kept
from minitrain.cli.options import Traces, folding, machine, pricing, wanted_traces
from minitrain.cli.output import RunsInProgress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.run.comparison import DEFAULT_STRATEGIES, Comparison, FailedRun
from minitrain.run.figures import TABLES, FiguresOf
from minitrain.run.result import Run
from minitrain.run.strategy_loading import ChosenStrategy
from minitrain.trace.run_folder import (
    PAGE,
    RUN_FILE,
    conditions,
    network_and_prices,
    sizes,
    title_of,
    write_comparison,
    write_run,
)
from minitrain.trace.tables import (
    budget_cells,
    budget_columns,
    comparison_notes,
    comparison_table,
    plain_table,
    ranks_table,
    run_table,
)

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
    columns = (*(column.head for column in TABLES["machines"]), *budget_columns())
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, run in runs.items():
        if run is None:
            table.add_row(name, "none fits", *[""] * len(columns))
            continue
        figures = [column.cell(FiguresOf(run)) for column in TABLES["machines"]]
        table.add_row(name, run.strategy, *figures, *budget_cells(run.for_tokens(tokens)))
    return table


TRACES = Path("traces")
_MANY_RANKS = 64  # of fewer, nobody waits
_STRATEGY = (
    "a strategy's name (see `minitrain strategies`), path.py, path.py:function or the CSV of a schedule, with options "
    "as in pp_dp:pp=4"
)


def compare(
    strategy: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STRATEGY",
            help=f"Each {_STRATEGY}.",
            show_default=" ".join(DEFAULT_STRATEGIES),
        ),
    ] = None,
    world_size: ranks_given.Ranks = None,
    model: given.TrainedModel = None,
    seq: given.SeqLen = None,
    precision: given.Precision = None,
    layers: given.Layers = None,
    batch: ranks_given.Batch = None,
    shares: ranks_given.Shares = None,
    microbatch: given.Microbatch = None,
    option: given.Options = None,
    hw: given.Hardware = None,
    cost_per_hour: budget_options.CostPerHour = None,
    tokens: budget_options.Tokens = None,
    network: given.Network = None,
    fidelity: given.Fidelity = None,
    platform: given.Platform = None,
    without: given.Without = None,
    prices: given.Prices = None,
    durations: given.Durations = None,
    strict: given.Strict = given.DEFAULT.strict,
    strict_memory: given.StrictMemory = given.DEFAULT.strict_memory,
    log: given.Log = given.DEFAULT.log,
    fold: given.Fold = None,
    as_json: given.AsJson = False,
    out: given.Out = TRACES,
    trace: given.WriteTraces = None,
    shared_script: given.SharedScript = False,
    debug: given.Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Simulate a training step of several strategies, and print which is fastest.

    Pages, Chrome traces and event logs are written into traces/ unless --no-trace is given. With several machines
    (--hw A,B,C) the quickest strategy of each is printed, a row a machine, and no traces are written.
    """
    for_tokens = budget_options.tokens_of(tokens, has_model=model is not None)
    with user_prints_to_stderr(as_json), RunsInProgress() as progress, saying_what_is_kept(progress.kept):
        traces = wanted_traces(trace, log, strict=strict, fold=fold)
        common = given.strategy_options(option or (), microbatch)
        trained = given.trained(model, seq, layers, precision)
        priced_by = pricing(fidelity, platform, without, prices)
        parameters = {
            **trained,
            **ranks_given.batch_of(batch, shares),
            "strict": strict,
            "strict_memory": strict_memory,
            "memory_by_kind": traces is Traces.ALL,
            "log": log,
            "fold": folding(fold),
            **common,
        }
        chosen = given.choose_strategies(strategy or DEFAULT_STRATEGIES, common)

        def compared(name: str | None) -> Comparison:
            """Simulate the strategies on one machine."""
            hardware = budget_options.at_cost(name, cost_per_hour)
            of_machine = machine(world_size, hardware, network, durations, priced_by, trained)
            with running():
                return mt.compare(
                    chosen, progress=progress.simulating, watch=progress.watch, **of_machine, **parameters
                )

        machines = budget_options.machines_of(hw)
        if len(machines) > 1:
            found = {str(name): compared(name) for name in machines}
        else:
            if traces is not Traces.NONE:
                given.require_folder(out)
            comparison = compared(hw)
            pages = {"shared_script": shared_script, "pages_alone": traces is Traces.PAGES, "all_ranks": bool(trace)}
            write = functools.partial(write_comparison, comparison, out, **pages)
            written = [] if traces is Traces.NONE else _written(write, out, progress)
    if len(machines) > 1:
        print_machines(found, for_tokens, as_json=as_json)
        return
    if as_json:
        print_json([with_budget(run, for_tokens) for run in comparison.runs.values()])
    else:
        _print_comparison(comparison, written, for_tokens)
    _tell_of_earlier_runs(out, written or [], to_stderr=as_json)
    for failure in comparison.failed:
        print_error(f"{failure.strategy} failed: {message_of(failure.error)}")
    if comparison.failed or written is None:
        raise typer.Exit(FAILED)


def run(
    strategy: Annotated[
        str | None, typer.Argument(metavar="[STRATEGY]", help=f"{_STRATEGY.capitalize()}.", show_default=False)
    ] = None,
    from_file: recipe_option.From = None,
    world_size: ranks_given.Ranks = None,
    model: given.TrainedModel = None,
    seq: given.SeqLen = None,
    precision: given.Precision = None,
    layers: given.Layers = None,
    batch: ranks_given.Batch = None,
    shares: ranks_given.Shares = None,
    microbatch: given.Microbatch = None,
    option: given.Options = None,
    hw: given.Hardware = None,
    cost_per_hour: budget_options.CostPerHour = None,
    tokens: budget_options.Tokens = None,
    network: given.Network = None,
    fidelity: given.Fidelity = None,
    platform: given.Platform = None,
    without: given.Without = None,
    prices: given.Prices = None,
    durations: given.Durations = None,
    fault: fault_options.Faults = None,
    recovery: fault_options.Recoveries = None,
    strict: given.Strict = given.DEFAULT.strict,
    strict_memory: given.StrictMemory = given.DEFAULT.strict_memory,
    log: given.Log = given.DEFAULT.log,
    fold: given.Fold = None,
    as_json: given.AsJson = False,
    out: given.Out = TRACES,
    trace: given.WriteTraces = None,
    debug: given.Debug = False,  # noqa: ARG001
) -> None:
    """Simulate a training step of one strategy, and print where each rank's time goes.

    Its page, Chrome trace and event log are written into traces/NAME/ unless --no-trace is given; with --fold, its page
    alone, into traces/NAME-folded/, unless --trace is given. Of a run of more than 50,000 events, page and Chrome trace
    show some ranks, and the log has those that did the same once; --trace writes every rank.
    """
    with user_prints_to_stderr(as_json), RunsInProgress() as progress, saying_what_is_kept(progress.kept):
        traces = wanted_traces(trace, log, strict=strict, fold=fold)
        asked = given.strategy_options(option or (), microbatch)
        told = recipe_option.told(
            from_file, strategy, world_size, (model, seq, layers, precision), (batch, shares), asked
        )
        for_tokens = budget_options.tokens_of(tokens, has_model="workload" in told.trained)
        priced_by = pricing(fidelity, platform, without, prices)
        hardware = budget_options.at_cost(hw, cost_per_hour)
        parameters = {
            **machine(told.world_size, hardware, network, durations, priced_by, told.trained, by_name=bool(fault)),
            **told.trained,
            **told.batch,
            "strict": strict,
            "strict_memory": strict_memory,
            "memory_by_kind": traces is Traces.ALL and not fault,
            "log": log,
            "fold": folding(fold),
            **fault_options.disturbance(fault or (), recovery or ()),
            **told.options,
        }
        chosen = given.choose_strategies([told.strategy], told.options)[0]
        if traces is not Traces.NONE:
            given.require_folder(out)
        simulate = _simulated_for_excerpt if traces is Traces.ALL and not trace else _simulated
        result = simulate(chosen, parameters, progress)
        written: Sequence[Path] | None = []
        if traces is not Traces.NONE and isinstance(result, Run):
            pages = {"page_alone": traces is Traces.PAGES, "all_ranks": bool(trace)}
            write = functools.partial(_write_one, result, out, **pages)
            written = _written(write, out, progress)
    if as_json:
        print_json(with_budget(result, for_tokens))
    if isinstance(result, FailedRun):
        raise RunFailedError from result.error
    if not as_json:
        print_lines(told.lines)
        _print_run(result, written, for_tokens, page_alone=traces is Traces.PAGES, all_ranks=bool(trace))
    if written is None:
        raise typer.Exit(FAILED)


def _simulated(chosen: ChosenStrategy, parameters: Mapping[str, Any], progress: RunsInProgress) -> Run | FailedRun:
    """Return a run, or its failure."""
    progress.simulating(chosen.label)
    try:
        with running():
            return mt.simulate(chosen, watch=progress.watch, **parameters)
    except RunFailedError as failure:
        cause = cast(Exception, failure.__cause__)  # even a SystemExit is reported like other errors
        return FailedRun(chosen.name, {**parameters, **chosen.options}, cause)


def _simulated_for_excerpt(
    chosen: ChosenStrategy, parameters: Mapping[str, Any], progress: RunsInProgress
) -> Run | FailedRun:
    """Return a run, with journals of memory only where every rank of it will be written.

    Ranks that keep no journals can fold, which is most of the time of a large run. One of many ranks and few events is
    simulated once more.
    """
    if parameters["memory_by_kind"] and (parameters["world_size"] or 0) >= _MANY_RANKS:
        result = _simulated(chosen, {**parameters, "memory_by_kind": False}, progress)
        if isinstance(result, FailedRun) or _shows_some_ranks(result):
            return result
    return _simulated(chosen, parameters, progress)


def _write_one(run: Run, out: Path, *, page_alone: bool, all_ranks: bool) -> Sequence[Path]:
    """Write the traces of a run."""
    return [write_run(run, out, page_alone=page_alone, all_ranks=all_ranks)]


def _tell_of_earlier_runs(out: Path, written: Sequence[Path], *, to_stderr: bool) -> None:
    """Say which runs of the traces' folder are not of the comparison that was written into it."""
    runs = sorted(path.parent for path in out.glob(f"*/{RUN_FILE}")) if written else []
    others = [path.name for path in runs if path not in written]
    if others:
        it = "a run that is" if len(others) == 1 else f"{len(others)} runs that are"
        words = f"{out} also holds {it} not of this comparison: {', '.join(others)}"
        print_error(words) if to_stderr else print_lines([words])


def _written(write: Callable[[], Sequence[Path]], out: Path, progress: RunsInProgress) -> Sequence[Path] | None:
    """Return what was written, or None if that failed, with a message on stderr."""
    progress.writing(out)
    try:
        return write()
    except OSError as error:
        print_error(f"the traces cannot be written: {message_of(error)}")
        return None


def _print_comparison(comparison: Comparison, written: Sequence[Path] | None, tokens: float | None) -> None:
    """Print the table, which strategies ran out of memory, and where the pictures are."""
    table = comparison_table(comparison, tokens)
    table.title = table.caption = None  # a title would be wrapped at the table's width; failures go to stderr
    print_lines([title_of(comparison)])
    print_table(table)
    failed = len(comparison.failed)
    print_lines(comparison_notes(comparison)[failed:])
    if written:
        print_lines([f"wrote {written[0]} and a folder for each strategy beside it"])


def _print_run(
    result: Run, written: Sequence[Path] | None, tokens: float | None, *, page_alone: bool, all_ranks: bool
) -> None:
    """Print a run's figures, where each rank's time goes, and where the pictures are."""
    print_lines([f"{result.strategy}: {conditions(result)}"])
    print_lines(result.notes)
    print_table(run_table(result, tokens))
    print_table(ranks_table(result))
    if written and page_alone:
        rows = ", which has a row for each class of ranks that do the same" if result.draws_classes else ""
        print_lines([f"wrote {written[0] / PAGE}{rows}"])
    elif written and not (written[0] / RUN_FILE).exists():
        print_lines([f"wrote {written[0]}: page and Chrome trace of some ranks; --trace writes every rank and the log"])
    elif written and not all_ranks and _shows_some_ranks(result):
        once = "page and Chrome trace of some ranks, log with ranks that did the same once; --trace writes every rank"
        print_lines([f"wrote {written[0]}: {once}", _why(written[0])])
    elif written:
        print_lines([f"wrote {written[0]}", _why(written[0])])


def _shows_some_ranks(result: Run) -> bool:
    """Return whether pictures of a run show some ranks by default."""
    from minitrain.trace.excerpt import MOST_WRITTEN  # noqa: PLC0415  (numpy only when somebody draws)

    return result.num_events > MOST_WRITTEN


def _why(folder: Path) -> str:
    """Return how one learns why ranks wait."""
    return f"why ranks wait, and what would help: minitrain trace explain {folder / RUN_FILE}"
