"""The commands `minitrain compare`, `run` and `strategies`; the others are added from their modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

import minitrain as mt
from minitrain.cli import options as given
from minitrain.cli.failures import FAILED, Commands, message_of, print_error, running
from minitrain.cli.hw import hw
from minitrain.cli.learn import learn
from minitrain.cli.models import app as models
from minitrain.cli.output import Progress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.cli.sweep import sweep
from minitrain.cli.trace import trace as saved_runs
from minitrain.run.comparison import DEFAULT_STRATEGIES, Comparison
from minitrain.run.result import Run
from minitrain.trace.run_folder import conditions, title_of, write_comparison, write_run
from minitrain.trace.tables import comparison_notes, comparison_table, facts_table, ranks_table, run_table

app = typer.Typer(
    name="minitrain",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(hw, name="hw")
app.add_typer(learn, name="learn")
app.add_typer(models, name="models")
app.command()(sweep)
app.add_typer(saved_runs, name="trace")

TRACES = Path("traces")
_STRATEGY = "a strategy's name (see `minitrain strategies`) or path.py:function"


def main() -> None:
    """Run the command line."""
    app()


def _print_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        print(f"minitrain {version('minitrain')}")
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Write a distributed training strategy once; price it, prove it, see it, teach with it."""


@app.command()
def compare(
    strategy: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STRATEGY",
            help=f"Each {_STRATEGY}.",
            show_default=" ".join(DEFAULT_STRATEGIES),
        ),
    ] = None,
    world_size: given.WorldSize = given.DEFAULT.world_size,
    model: given.TrainedModel = None,
    seq: given.SeqLen = None,
    layers: given.Layers = None,
    batch: given.Batch = given.DEFAULT.global_batch_size,
    microbatch: given.Microbatch = None,
    option: given.Options = None,
    hw: given.Hardware = None,
    network: given.Network = None,
    durations: given.Durations = None,
    strict: given.Strict = given.DEFAULT.strict,
    strict_memory: given.StrictMemory = given.DEFAULT.strict_memory,
    log: given.Log = given.DEFAULT.log,
    as_json: given.AsJson = False,
    out: given.Out = TRACES,
    trace: given.WriteTraces = None,
    debug: given.Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Simulate a training step of several strategies, and print which is fastest.

    Pages, Chrome traces and event logs are written into traces/ unless --no-trace is given.
    """
    with user_prints_to_stderr(as_json), Progress() as progress:
        traced = given.writes_traces(trace, log, strict=strict)
        chosen = given.strategy_options(option or (), microbatch)
        trained = given.trained(model, seq, layers)
        priced = given.priced(world_size, hw, network, durations)
        functions = given.load_strategies(strategy or DEFAULT_STRATEGIES, chosen)
        given.require_folder(out)
        with running():
            comparison = mt.compare(
                functions,
                progress=lambda name: progress.say(f"simulating {name}"),
                world_size=world_size,
                **trained,
                global_batch_size=batch,
                hardware=priced,
                strict=strict,
                strict_memory=strict_memory,
                memory_by_kind=traced,
                log=log,
                **chosen,
            )
        progress.say("writing traces")
        written = _written(lambda: write_comparison(comparison, out)) if traced else []
    if as_json:
        print_json(comparison.summary())
    else:
        _print_comparison(comparison, written)
    for failure in comparison.failed:
        print_error(f"{failure.strategy} failed: {message_of(failure.error)}")
    if comparison.failed or written is None:
        raise typer.Exit(FAILED)


@app.command()
def run(
    strategy: Annotated[str, typer.Argument(metavar="STRATEGY", help=f"{_STRATEGY.capitalize()}.")],
    world_size: given.WorldSize = given.DEFAULT.world_size,
    model: given.TrainedModel = None,
    seq: given.SeqLen = None,
    layers: given.Layers = None,
    batch: given.Batch = given.DEFAULT.global_batch_size,
    microbatch: given.Microbatch = None,
    option: given.Options = None,
    hw: given.Hardware = None,
    network: given.Network = None,
    durations: given.Durations = None,
    strict: given.Strict = given.DEFAULT.strict,
    strict_memory: given.StrictMemory = given.DEFAULT.strict_memory,
    log: given.Log = given.DEFAULT.log,
    as_json: given.AsJson = False,
    out: given.Out = TRACES,
    trace: given.WriteTraces = None,
    debug: given.Debug = False,  # noqa: ARG001
) -> None:
    """Simulate a training step of one strategy, and print where each rank's time goes.

    Its page, Chrome trace and event log are written into traces/NAME/ unless --no-trace is given.
    """
    with user_prints_to_stderr(as_json), Progress() as progress:
        traced = given.writes_traces(trace, log, strict=strict)
        chosen = given.strategy_options(option or (), microbatch)
        trained = given.trained(model, seq, layers)
        priced = given.priced(world_size, hw, network, durations)
        function = given.load_strategies([strategy], chosen)[0]
        given.require_folder(out)
        progress.say(f"simulating {strategy}")
        with running():
            result = mt.simulate(
                function,
                world_size=world_size,
                **trained,
                global_batch_size=batch,
                hardware=priced,
                strict=strict,
                strict_memory=strict_memory,
                memory_by_kind=traced,
                log=log,
                **chosen,
            )
        progress.say("writing traces")
        written = _written(lambda: [write_run(result, out)]) if traced else []
    if as_json:
        print_json(result.summary())
    else:
        _print_run(result, written)
    if written is None:
        raise typer.Exit(FAILED)


@app.command()
def strategies(as_json: given.AsJson = False, debug: given.Debug = False) -> None:  # noqa: ARG001
    """List the shipped strategies."""
    docs = {name: _first_line(inspect.getmodule(function)) for name, function in mt.strategies().items()}
    if as_json:
        print_json([{"strategy": name, "description": doc} for name, doc in docs.items()])
    else:
        table = facts_table(docs)
        table.columns[0].style = "bold"
        print_table(table)


def _first_line(documented: object) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _written(write: Callable[[], Sequence[Path]]) -> Sequence[Path] | None:
    """Return what was written, or None if that failed, with a message on stderr."""
    try:
        return write()
    except OSError as error:
        print_error(f"the traces cannot be written: {message_of(error)}")
        return None


def _print_comparison(comparison: Comparison, written: Sequence[Path] | None) -> None:
    """Print the table, which strategies ran out of memory, and where the pictures are."""
    table = comparison_table(comparison)
    table.title = table.caption = None  # a title would be wrapped at the table's width; failures go to stderr
    print_lines([title_of(comparison)])
    print_table(table)
    failed = len(comparison.failed)
    print_lines(comparison_notes(comparison)[failed:])
    if written:
        print_lines([f"wrote {written[0]} and a folder for each strategy beside it"])


def _print_run(result: Run, written: Sequence[Path] | None) -> None:
    """Print a run's figures, where each rank's time goes, and where the pictures are."""
    print_lines([f"{result.strategy}: {conditions(result)}"])
    print_table(run_table(result))
    print_table(ranks_table(result))
    if written:
        print_lines([f"wrote {written[0]}"])
