"""The commands about one step: `run`, `compare`, `prove`, `goodput`, `plan`, `explore` and `lab`.

`compare` takes several strategies, or one strategy on several machines. `explore` and `lab` give the page whose knobs
simulate the step again.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import FAILED, RunFailedError, print_error, report, running, saying_what_is_kept
from minitrain.cli.generation import Given
from minitrain.cli.options import Traces, machine, tokens_of, wanted_traces
from minitrain.cli.output import (
    Progress,
    RunsInProgress,
    print_json,
    print_lanes,
    print_lines,
    print_table,
    user_prints_to_stderr,
)
from minitrain.errors import UsageError, message_of, text_of
from minitrain.learn.explorer.notebook import require_server
from minitrain.run.analysis.labels import in_letters
from minitrain.run.figures import TABLES, FiguresOf
from minitrain.run.parameters import MODEL, OF_TRANSFORMER, OUTPUT
from minitrain.run.result import Run
from minitrain.run.simulation import DEFAULT_STRATEGIES, Comparison, FailedRun
from minitrain.run.strategy_loading import ChosenStrategy, file_in, split_options, strategies_of_folder
from minitrain.search.tuning.findings import described
from minitrain.view import tables
from minitrain.view.run_folder import (
    MOST_WRITTEN,
    PAGE,
    RUN_FILE,
    conditions,
    network_and_prices,
    sizes,
    title_of,
    write_comparison,
    write_run,
)
from minitrain.workloads.exchange.reading import read_recipe
from minitrain.workloads.transformer import find_model

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
    print_lines(
        [f"the quickest strategy that fits each machine; days, dollars and energy for {in_letters(tokens)} tokens"]
    )


def _table(runs: Mapping[str, Run | None], tokens: float) -> Table:
    """Return a row a machine; one on which nothing fits says so."""
    columns = TABLES["machines"]
    heads = (*(column.head for column in columns), *tables.budget_columns())
    rows = [
        [name, "none fits", *[""] * len(heads)]
        if run is None
        else [
            name,
            run.strategy,
            *(column.cell(FiguresOf(run)) for column in columns),
            *tables.budget_cells(run.for_tokens(tokens)),
        ]
        for name, run in runs.items()
    ]
    return tables.filled_table({"machine": 8, "strategy": 8, **dict.fromkeys(heads)}, rows)


_MANY_RANKS = 64  # of fewer, nobody waits
_LOOKS_EVERY_S = 0.2  # for files that were saved


def compare(strategy: list[str] | None = None, *, given: Given, shared_script: bool = False) -> None:  # noqa: ARG001  (of no more use)
    """Simulate a training step of several strategies, and print which is fastest.

    Pages, Chrome traces and event logs are written into traces/ unless --no-trace is given. With several machines
    (--hw A,B,C) the quickest strategy of each is printed, a row a machine, and no traces are written.

    Args:
        strategy (STRATEGY): Each a strategy's name (see `minitrain strategies`), path.py, path.py:function or the CSV
            of a schedule, with options as in pp_dp:pp=4; ddp, zero1, zero2, zero3, gpipe and 1f1b by default. Where
            none are shipped, in the wheel for students, your own of this folder.
        given: The shared options.
        shared_script: No longer of use: pages of runs have no script to share, and are small.
    """
    for_tokens = tokens_of(given.tokens, has_model=given.workload is not None)
    with user_prints_to_stderr(given.as_json), RunsInProgress() as progress, saying_what_is_kept(progress.kept):
        traces = wanted_traces(given)
        common = options.strategy_options(given)
        trained = options.trained(given)
        parameters = {**trained, **options.batch_of(given), **_followed(given, traces), **common}
        chosen = options.choose_strategies(strategy or _usual_strategies(), common)

        def compared(name: str | None) -> Comparison:
            """Simulate the strategies on one machine."""
            of_machine = machine(given, trained, options.at_cost(name, given))
            with running():
                return mt.compare(
                    chosen, progress=progress.simulating, watch=progress.watch, **of_machine, **parameters
                )

        machines = options.machines_of(given.hardware)
        if len(machines) > 1:
            found = {str(name): compared(name) for name in machines}
        else:
            out = _folder(given, traces)
            comparison = compared(given.hardware)
            pages = {"pages_alone": traces is Traces.PAGES, "all_ranks": bool(given.trace)}
            write = functools.partial(write_comparison, comparison, out, **pages)
            written = [] if traces is Traces.NONE else _written(write, out, progress)
    if len(machines) > 1:
        print_machines(found, for_tokens, as_json=given.as_json)
        return
    if given.as_json:
        print_json([with_budget(run, for_tokens) for run in comparison.runs.values()])
    else:
        _print_comparison(comparison, written, for_tokens)
    _tell_of_earlier_runs(out, written or [], to_stderr=given.as_json)
    for failure in comparison.failed:
        print_error(f"{failure.strategy} failed: {message_of(failure.error)}")
    if comparison.failed or written is None:
        raise typer.Exit(FAILED)


def _usual_strategies() -> Sequence[str]:
    """Return what is compared where nothing is named: the shipped strategies of the card, or those of this folder.

    Raises:
        UsageError: there are neither.
    """
    if mt.strategies():
        return DEFAULT_STRATEGIES
    found = strategies_of_folder(Path())
    if not found:
        raise UsageError(
            "this is the minitrain for students, which ships no strategies, and this folder has none of yours; "
            "`minitrain learn start 02` begins one"
        )
    return found


def run(
    strategy: str | None = None,
    *,
    from_file: Annotated[Path | None, typer.Option("--from", rich_help_panel=MODEL)] = None,
    given: Given,
    in_terminal: Annotated[bool, typer.Option("--ascii", rich_help_panel=OUTPUT)] = False,
    again: Annotated[bool, typer.Option("--watch", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Simulate a training step of one strategy, and print where each rank's time goes.

    Its page, Chrome trace and event log are written into traces/NAME/ unless --no-trace is given; with --fold, its page
    alone, into traces/NAME-folded/, unless --trace is given. Of a run of more than 50,000 events, page and Chrome trace
    show some ranks, and the log has those that did the same once; --trace writes every rank.

    Args:
        strategy (STRATEGY): A strategy's name (see `minitrain strategies`), path.py, path.py:function or the CSV of a
            schedule, with options as in pp_dp:pp=4.
        given: The shared options.
        from_file (FILE): Read model, ranks, batch and layout from Megatron-LM's arguments, Megatron Bridge's YAML,
            torchtitan's TOML, DeepSpeed's JSON or Accelerate's YAML, instead of STRATEGY and its options; other options
            override the file.
        in_terminal: Draw what the ranks do in the terminal, a row for each class of ranks that do the same; on a
            terminal --no-trace draws it too.
        again: Draw it again whenever the strategy's file, or one beside it, is saved, and write no traces.
    """
    if again:
        _watched(strategy, lambda: _run_once(strategy, from_file, _drawn(given), draws=True))
    else:
        _run_once(strategy, from_file, given, draws=_draws(given, in_terminal=in_terminal))


def _draws(given: Given, *, in_terminal: bool) -> bool:
    """Return whether a run is drawn in the terminal: where that is asked for, or no page is wanted on one.

    Raises:
        UsageError: it keeps no events.
    """
    keeps_events = given.log != "summary"
    if in_terminal and not keeps_events:
        raise UsageError("--ascii needs every event, but --log summary keeps totals; leave one out")
    on_terminal = given.trace is False and not given.as_json and Console().is_terminal
    return in_terminal or (on_terminal and keeps_events)


def _run_once(strategy: str | None, from_file: Path | None, given: Given, *, draws: bool) -> None:
    """Simulate, print and write a run; draw it in the terminal too if wanted."""
    with user_prints_to_stderr(given.as_json), RunsInProgress() as progress, saying_what_is_kept(progress.kept):
        traces = wanted_traces(given)
        told = _told(from_file, strategy, given)
        for_tokens = tokens_of(given.tokens, has_model="workload" in told.trained)
        disturbance = {"faults": options.faults_of(given.faults), "recovery": options.recovery_of(given.recovery)}
        given.world_size = told.world_size
        by_name = bool(given.faults)
        parameters = {
            **machine(given, told.trained, options.at_cost(given.hardware, given), by_name=by_name),
            **told.trained,
            **told.batch,
            **_followed(given, traces),
            **{name: value for name, value in disturbance.items() if value},
            **told.options,
        }
        if given.faults:
            parameters["memory_by_kind"] = False
        chosen = options.choose_strategies([told.strategy], told.options)[0]
        out = _folder(given, traces)
        all_ranks = bool(given.trace)
        simulate = _simulated_for_excerpt if traces is Traces.ALL and not all_ranks else _simulated
        result = simulate(chosen, parameters, progress)
        written: Sequence[Path] | None = []
        page_alone = traces is Traces.PAGES
        if traces is not Traces.NONE and isinstance(result, Run):
            written = _written(
                lambda: [write_run(result, out, page_alone=page_alone, all_ranks=all_ranks)], out, progress
            )
    if given.as_json:
        print_json(with_budget(result, for_tokens))
    if isinstance(result, FailedRun):
        raise RunFailedError from result.error
    if not given.as_json:
        print_lines(told.lines)
        _print_run(result, written, for_tokens, page_alone=page_alone, all_ranks=all_ranks)
        if draws:
            print_lanes(result)
    if written is None:
        raise typer.Exit(FAILED)


def _drawn(given: Given) -> Given:
    """Return the options of a run that is drawn in the terminal; it may change them."""
    return Given(**{**vars(given), "trace": given.trace or False})


def _watched(strategy: str | None, run_once: Callable[[], None]) -> None:
    """Run a strategy of one's own, and again whenever its folder's Python files have changed, until Ctrl-C.

    Raises:
        UsageError: it has no file.
    """
    file = file_in(split_options(strategy or "")[0])
    if file is None:
        raise UsageError(f"--watch is for a strategy of your own, path.py or path.py:function, got {strategy!r}")
    seen: dict[Path, int] = {}
    while True:
        if (found := _saved(file)) == seen:
            time.sleep(_LOOKS_EVERY_S)
            continue
        seen = found
        try:
            run_once()
        except typer.Exit:
            pass  # it has said why
        except Exception as error:
            report(error, debug=False)
        print_lines([f"watching {file}; Ctrl-C ends it"])


def _saved(file: Path) -> dict[Path, int]:
    """Return when a file and the Python files beside it were saved last, ns; a moment without a file is possible."""
    found: dict[Path, int] = {}
    for path in {file, *file.parent.glob("*.py")}:
        with contextlib.suppress(OSError):
            found[path] = path.stat().st_mtime_ns
    return found


def _followed(given: Given, traces: Traces) -> dict[str, Any]:
    """Return what is kept of ranks and required of them, as arguments of `simulate`."""
    log = options.DEFAULT.log if given.log is None else given.log
    return {"strict": given.strict, "memory_by_kind": traces is Traces.ALL, "log": log, **options.checking(given)}


def _folder(given: Given, traces: Traces) -> Path:
    """Return the folder of traces; it must be one, or become one, where some are to be written."""
    out = Path("traces") if given.out is None else given.out
    if traces is not Traces.NONE:
        options.require_folder(out)
    return out


@dataclass(frozen=True, slots=True)
class Told:
    """What is to be run, as `--from` and the other options say together.

    Args:
        strategy: its name.
        world_size: ranks; None where nothing says how many.
        trained: what is trained, as arguments of `simulate`.
        batch: samples, as arguments of `simulate`.
        options: those of the strategy.
        lines: what a reader is to know of a recipe.
    """

    strategy: str
    world_size: int | None
    trained: Mapping[str, Any]
    batch: Mapping[str, Any]
    options: Mapping[str, Any]
    lines: tuple[str, ...] = ()


def _told(file: Path | None, strategy: str | None, given: Given) -> Told:
    """Return what is to be run.

    Args:
        file: a recipe, or None.
        strategy: a strategy, or None where a recipe says it.
        given: the other options, which override a recipe.

    Raises:
        UsageError: both or none of strategy and recipe are given, or the recipe cannot be read or lacks something.
    """
    asked = options.strategy_options(given)
    if (file is None) == (strategy is None):
        raise UsageError(
            "run takes either a STRATEGY (see `minitrain strategies`) or --from with a recipe of another tool"
        )
    if file is None:
        assert strategy is not None  # as above
        return Told(strategy, given.world_size, options.trained(given), options.batch_of(given), asked)
    recipe = read_recipe(file)
    trained: Mapping[str, Any] = {}
    if given.workload is not None or given.num_layers is not None:
        trained = options.trained(given)
    elif recipe.model is not None:
        trained = {"workload": recipe.model, **options.of_given(given, *OF_TRANSFORMER)}
    size = options.batch_of(given) if options.of_given(given, "global_batch_size", "shares") else {}
    changes = {**options.of_given(given, "world_size"), **size}
    found = recipe.keywords(**{"workload": trained.get("workload"), **changes} if trained else changes)
    counts = {"global_batch_size": found["global_batch_size"], **size}
    layout = described(recipe.options)
    read = f"{file} ({recipe.tool}) is {recipe.strategy}{' with ' + layout if layout else ''}"
    merged = {**recipe.options, **asked}
    return Told(recipe.strategy, found["world_size"], trained, counts, merged, (read, *recipe.notes))


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
    table = tables.comparison_table(comparison, tokens)
    table.title = table.caption = None  # a title would be wrapped at the table's width; failures go to stderr
    print_lines([title_of(comparison)])
    print_table(table)
    failed = len(comparison.failed)
    print_lines(tables.comparison_notes(comparison)[failed:])
    if written:
        print_lines([f"wrote {written[0]} and a folder for each strategy beside it"])


def _print_run(
    result: Run, written: Sequence[Path] | None, tokens: float | None, *, page_alone: bool, all_ranks: bool
) -> None:
    """Print a run's figures, where each rank's time goes, and where the pictures are."""
    print_lines([f"{result.strategy}: {conditions(result)}"])
    print_lines(result.notes)
    print_table(tables.run_table(result, tokens))
    print_table(tables.ranks_table(result))
    if written and page_alone:
        rows = ", which has a row for each class of ranks that do the same" if result.draws_classes else ""
        print_lines([f"wrote {written[0] / PAGE}{rows}; --trace writes every rank, and the log that diff reads"])
    elif written and not (written[0] / RUN_FILE).exists():
        print_lines([f"wrote {written[0]}: page and Chrome trace of some ranks; --trace writes every rank and the log"])
    elif written and not all_ranks and _shows_some_ranks(result):
        once = "page and Chrome trace of some ranks, log with ranks that did the same once; --trace writes every rank"
        print_lines([f"wrote {written[0]}: {once}", _why(written[0])])
    elif written:
        print_lines([f"wrote {written[0]}", _why(written[0])])


def _shows_some_ranks(result: Run) -> bool:
    """Return whether pictures of a run show some ranks by default."""
    return result.num_events > MOST_WRITTEN


def _why(folder: Path) -> str:
    """Return how one learns why ranks wait."""
    return f"why ranks wait, and what would help: minitrain trace explain {folder / RUN_FILE}"


def explore(
    *,
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0,
    open_page: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> None:
    """Open a local page whose knobs simulate the step again while one drags them.

    It is served on the loopback address alone, until Ctrl-C; the address that is printed holds a token.

    Args:
        port (N): Where; any that is free if 0.
        open_page: Open it in a browser.
    """
    require_server()
    from minitrain.learn.explorer.server import serve  # noqa: PLC0415  (an extra)

    serve(port, lambda address: print_lines([address]), opens=open_page)


def lab(folder: Annotated[Path, typer.Argument(help="Where to write it.", file_okay=False)]) -> None:
    """Write the explorer's page as files for any static host, with Python in the browser.

    Building it takes npm and pip, which fetch Pyodide and a few wheels; the files ask nothing of another host.
    """
    from minitrain.learn.explorer.lab import build_lab  # noqa: PLC0415  (what writes pages)

    files = build_lab(folder)
    size = sum(path.stat().st_size for path in files) / 2**20
    address = "http://127.0.0.1:8000/"
    print_lines(
        [
            f"wrote {len(files)} files, {size:.1f} MiB, into {folder}",
            f"python -m http.server -d {folder}  # then {address}",
        ]
    )


WORLD_SIZE, BATCH = 8, 16  # those of `mt.prove`; a test compares them
LAYERS = 8  # where no model is given, as for `mt.prove`


def prove(
    strategy: list[str],
    *,
    given: Given,
    workload: str | None = None,
    num_layers: int | None = None,
    global_batch_size: int = BATCH,
    strict: Annotated[bool, typer.Option("--strict/--no-strict", rich_help_panel=MODEL)] = True,
    backend: Annotated[list[str] | None, typer.Option(rich_help_panel=MODEL)] = None,
) -> None:
    """Run strategies on real arrays, and compare what they train with what a single device trains.

    Exit code 1 if a strategy fails, or trains something else.

    Args:
        strategy (STRATEGY): Names, path.py or path.py:function; each may have options.
        given: The shared options.
        workload: A small transformer, such as tiny, or a Hugging Face config.json of one, instead of equal layers.
        num_layers: Layers of the model; 8, or those of --model, by default.
        global_batch_size: Samples of the step, over all ranks.
        strict: Accept only what operations gave, or compare the numbers alone, which is faster.
        backend (LIBRARY): What computes: numpy, jax or torch; of several, ranks take turns. NumPy directly by default.
    """
    given.workload, given.num_layers = workload, num_layers
    as_json = given.as_json
    with user_prints_to_stderr(as_json), Progress() as progress, saying_what_is_kept(lambda: "nothing is proven"):
        common = options.strategy_options(given)
        trained = options.trained(given, LAYERS)
        world_size = WORLD_SIZE if given.world_size is None else given.world_size
        sizes = {"world_size": world_size, "num_layers": _num_layers(trained), "global_batch_size": global_batch_size}
        named = {} if workload is None else {"model": workload}
        ranks: dict[str, Any] = {"world_size": world_size, "global_batch_size": global_batch_size, "strict": strict}
        ranks |= {"backend": backend} if backend else {}
        outcomes: list[dict[str, Any]] = []
        for chosen in options.choose_strategies(strategy, common):
            progress.say(f"proving {chosen.label}")
            outcome = _outcome(chosen, {**ranks, **trained, **common})
            outcomes.append({"strategy": chosen.label, **named, **sizes, **outcome})
            if not as_json and outcome["proven"]:
                print_lines([outcome["text"]])
    if as_json:
        print_json([{name: value for name, value in outcome.items() if name != "text"} for outcome in outcomes])
    for outcome in outcomes:
        if not outcome["proven"]:
            print_error(f"{outcome['strategy']} is not proven: {outcome['text']}")
    if not all(outcome["proven"] for outcome in outcomes):
        raise typer.Exit(FAILED)


def _num_layers(trained: dict[str, Any]) -> int:
    """Return the layers of what is trained."""
    return len(find_model(trained["workload"]).units()) if "workload" in trained else int(trained["num_layers"])


def _outcome(chosen: ChosenStrategy, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return whether a strategy is proven, the largest differences, and what to say."""
    try:
        proof = mt.prove(chosen, **parameters)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a strategy may raise anything, even SystemExit
        words = f"{type(error).__name__}: {text_of(error)}"
        return {**_differences(None), "error": words, "text": message_of(error)}
    text = f"{chosen.label}{str(proof).removeprefix(chosen.name)}"
    return {**_differences(proof), "error": None, "text": text}


def _differences(proof: mt.Proof | None) -> dict[str, Any]:
    """Return whether there is a proof, and what it has found."""
    return {
        "proven": proof is not None,
        "largest_difference": None if proof is None else proof.largest,
        "largest_relative_difference": None if proof is None else proof.largest_relative,
    }


def goodput(
    strategy: str,
    *,
    given: Given,
    days: float = 30,
    mtbf: list[str] | None = None,
    interval: float | None = None,
    asynchronous: Annotated[bool, typer.Option("--async")] = False,
    samples: Annotated[int, typer.Option(min=1, max=1_000_000)] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Play days of a training run with failures, checkpoints and restarts, and print how much of them is training.

    Args:
        strategy (STRATEGY): A shipped name, a file, or file.py:function.
        given: The shared options.
        days (N): How long the run lasts.
        mtbf ([DEVICE=]HOURS): Mean time between failures of a device; published ones by default. Repeat it for more
            devices.
        interval (SECONDS): Work between checkpoints; Daly's by default.
        asynchronous: Write checkpoints beside the training.
        samples (N): Runs to play.
        seed (N): The same seed, the same samples.
    """
    common = options.strategy_options(given)
    chosen = options.choose_strategies([strategy], common)[0]
    trained = options.trained(given)
    ranks = options.machine(given, trained, given.hardware, by_name=True)
    failures: dict[str, Any] = {"mtbf_hours": mtbf_of(mtbf or ()), "recovery": options.recovery_of(given.recovery)}
    with running():
        found = mt.goodput(
            chosen,
            **ranks,
            **trained,
            **options.batch_of(given),
            days=days,
            **failures,
            checkpoint_interval_s=interval,
            asynchronous=asynchronous,
            samples=samples,
            seed=seed,
            **common,
        )
    if given.as_json:
        print_json(found.summary())
    else:
        print_lines(str(found).splitlines())


def mtbf_of(texts: Sequence[str]) -> float | dict[str, float] | None:
    """Return mean times between failures, hours: one for all devices, or by device; None without any.

    >>> mtbf_of(["h100=50000", "a100=30000"])
    {'h100': 50000.0, 'a100': 30000.0}

    Raises:
        UsageError: a text is none.
    """
    if len(texts) == 1 and "=" not in texts[0]:
        return _hours(texts[0])
    named: dict[str, float] = {}
    for text in texts:
        name, value = options.name_and_value("--mtbf", text, named)
        named[name] = _hours(value)
    return named or None


def _hours(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--mtbf takes hours, as in --mtbf 50000 or --mtbf h100=50000; got {text!r:.80}") from None


def plan(
    *,
    hardware: str,
    given: Given,
    strategy: list[str] | None = None,
    precision: list[str] | None = None,
    power_budget: float | None = None,
    all_devices: bool = False,
    out: Path | None = None,
    html: Path | None = None,
) -> None:
    """Find how a step should run on a cluster of unlike devices, and print the plan.

    What else was considered is printed below it: how much slower it is, or why it does not run.

    Args:
        hardware (CLUSTER): A file of a cluster, or a shipped one: two_generations or five_kinds.
        given: The shared options.
        strategy (NAME): One to consider; repeat it for more. Those that suit the model if none.
        precision (NAME): bf16, fp16, fp32 or fp8; repeat it to choose. The model's own if none.
        power_budget (W): What all devices may draw together.
        all_devices: Leave no group of devices out, even if that is faster.
        out (FILE.json): Write the plan as JSON.
        html (PAGE): Write the page of the plan's step.
    """
    options.require_file("--out", out)
    options.require_file("--html", html)
    trained = options.trained(given)
    workload = trained.pop("workload", None)
    with user_prints_to_stderr(given.as_json), Progress() as progress:
        progress.say("simulating layouts")
        found = mt.plan(
            workload,
            hardware,
            **options.batch_of(given),
            strategies=strategy or None,
            precisions=precision or None,
            power_budget_watts=power_budget,
            leave_out=not all_devices,
            **trained,
            **options.pricing(given),
        )
        if out is not None:
            found.save(out)
        if html is not None:
            progress.say("drawing the step")
            found.write_html(html)
    if given.as_json:
        print_json(found.summary())
        return
    print_lines([*found.explain().splitlines(), *(f"wrote {path}" for path in (out, html) if path is not None)])
