"""The command line when something is wrong: one message on stderr, the right exit code, and no file left behind."""

import json
import os
import threading
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

import minitrain as mt
from minitrain.cli import app
from minitrain.cli.output import Progress, RunsInProgress
from minitrain.engine.model import Model
from minitrain.errors import came_without_memory, message_of, say_ignored
from minitrain.run.rank_tasks import RunProgress
from minitrain.run.result import Run

MINE = """
import asyncio, sys
async def mute(model): pass
async def boom(model): raise ValueError("a fault of its own")
async def leave(model): sys.exit(3)
async def cancel(model): raise asyncio.CancelledError
async def interrupt(model): raise KeyboardInterrupt
async def recurse(model): return await recurse(model)
async def lost(model):
    if model.rank == 0: await model.send(1, model.get_input_activation([0]))
    return model
async def stuck(model):
    await model.receive((model.rank + 1) % model.world_size)
    return model
async def lazy(model): return model
async def group(model): raise ExceptionGroup("several", [KeyError("first"), ValueError("other")])
async def two(model, other): return model
async def none(): return model
def plain(model): return model
number = 3
"""

USAGE = [
    ("compare nope", "there is no strategy 'nope'; use one of chimera, ddp"),
    ("run zero33", "there is no strategy 'zero33'; did you mean zero3?"),
    (
        "run mine.py",
        "mine.py has 10 strategies, mute, boom, leave, cancel, interrupt, recurse, lost, stuck, lazy, group",
    ),
    ("run mine", "there is no strategy 'mine'; did you mean mine.py? use one of"),
    ("run empty.py", "empty.py has no strategy, an async function of one argument: `async def mine(model): ...`"),
    ("run missing.py", "there is no strategy file missing.py; give path.py:function"),
    ("run pp_dp:pp", "there is no strategy 'pp_dp:pp'"),
    ("run pp_dp:pp=", "options of one strategy are written name:option=value,option=value, each once; got 'pp_dp:pp='"),
    ("run pp_dp:pp=2,pp=4", "options of one strategy are written name:option=value,option=value, each once; got"),
    (
        "run pp_dp:ppp=4",
        "minitrain: the strategy pp_dp does not take ppp=4; did you mean pp? `minitrain strategies pp_dp` lists its "
        "options\n",
    ),
    (
        "run pp_dp:world_size=4",
        "world_size in pp_dp:world_size=4 is no option of a strategy, but a parameter of the run",
    ),
    ("run pp_dp:pp=4 -o pp=2", "pp is given twice: in pp_dp:pp=4, and as pp=2 for all; leave one out"),
    ("compare ddp pp_dp -o pp=4", "lists its options; an option for one strategy is written pp_dp:pp=4"),
    ("compare ddp gpipe --option worldsize=2", "does not take worldsize=2; did you mean world_size?"),
    ("run missing.py:f", "there is no strategy file missing.py"),
    ("run folder.py:f", "there is no strategy file folder.py"),
    ("run broken.py:f", "the strategy file broken.py cannot be loaded: SyntaxError: "),
    ("run raises.py:f", "the strategy file raises.py cannot be loaded: ZeroDivisionError: division by zero"),
    ("run exits.py:f", "the strategy file exits.py cannot be loaded: SystemExit: 0"),
    ("run latin.py:f", "the strategy file latin.py cannot be loaded: SyntaxError: "),
    ("run mine.py:absent", "mine.py has no function 'absent'; its async functions are mute, boom, "),
    ("run mine.py:plain", "a strategy must be an async function, `async def plain(model): ...`, got <function"),
    ("run mine.py:number", "a strategy must be an async function, `async def number(model): ...`, got 3"),
    ("run mine.py:two", "the strategy two needs other; give other=..."),
    ("run mine.py:two:others=1", "does not take others=1; did you mean other? its options are other"),
    ("run mine.py:none", "none must take one argument, the model of a rank: `async def none(model): ...`"),
    ("run mine.py:lazy --microbatch 2", "lazy does not take microbatch_size=2; its options are none"),
    ("run ddp --option depth=2", "ddp does not take depth=2; `minitrain strategies ddp` lists its options"),
    ("run ddp --option depth", "--option takes name=value, got 'depth'"),
    ("run ddp --option =2", "--option takes name=value, got '=2'"),
    ("run ddp --option depth=", "--option takes name=value, got 'depth='"),
    ("run ddp --option a=1 --option a=2", "--option: a is given twice"),
    ("run ddp --option microbatch_size=1 --microbatch 1", "--option: microbatch_size is given twice"),
    ("run ddp --option world_size=2", "--option: world_size is no option of a strategy; use --world-size"),
    ("run ddp --option check=False", "--option: check is no option of a strategy; it is set in Python only"),
    ("run ddp --durations forward", "--durations takes name=value, got 'forward'"),
    (
        "run ddp --durations forward=fast",
        "forward must last a number of seconds of at least 0, got 'fast'",
    ),
    ("run ddp --durations forward=nan", "forward must last a number of seconds of at least 0, got 'nan'"),
    ("run ddp --durations forward=-1", "forward must last a number of seconds of at least 0, got '-1'"),
    ("run ddp --durations forward=inf", "forward must last a number of seconds of at least 0, got 'inf'"),
    ("run ddp --durations forward=1,forward=2", "--durations: forward is given twice"),
    ("run ddp --durations rest=1", "there is no event type 'rest'; use load_weights, forward"),
    ("run ddp --durations forward=1 --hw a100_80g", "give it or --hw, not both"),
    ("run ddp --durations forward=1 --network flat", "give it or --network, not both"),
    ("run ddp --log none", "--log must be full or summary, got 'none'"),
    ("compare ddp --log summary --trace", "--trace needs every event, but --log summary keeps totals; leave one out"),
    ("run ddp --log summary --strict", "--strict needs every event, but --log summary keeps totals; leave one out"),
    (
        "run ddp --fold --strict",
        "--strict needs every rank, but --fold simulates ranks that do the same once; leave one",
    ),
    ("compare --fold --log summary", "--fold does not go with --log summary; leave one out"),
    ("run ddp --network ring", 'network must be "auto", "flat" or "hierarchical", got \'ring\''),
    ("run ddp --hw h100", "expected the name of a shipped config or of a file, found no such thing; did you mean"),
    ("run ddp --hw ./missing.json", "./missing.json: expected a config file, found no such file"),
    ("run ddp --hw folder.py", "folder.py: expected a config file, found a directory"),
    ("run ddp --hw broken.py", "broken.py: expected JSON, found a mistake in line 1, column 1"),
    ("run ddp --hw latin.py", "latin.py: expected UTF-8 text, found byte 0xe9 at offset 5"),
    ("run ddp --hw large.json", "large.json: expected a config file of at most 1000000 bytes, found 100000000"),
    ("run ddp --hw deep.json", "deep.json: expected at most a few levels of nesting"),
    ("run ddp --hw twice.json", "mem1: expected each key once, found it more than once"),
    ("run ddp --world-size 0", "'--world-size': "),
    ("run ddp --world-size -3", "'--world-size': "),
    ("run ddp --world-size 1.5", "'--world-size': "),
    ("run ddp --world-size 99999999999999999999", "'--world-size': "),
    ("run ddp --world-size 2000000 --hw a100_80g", "world_size (2000000) must fit into a tier of the network"),
    ("run ddp --layers x", "'--layers': "),
    ("run ddp --layers four", "got 'four'; see `minitrain run --help`"),
    ("run ddp --layers 0", "got '0'; see `minitrain run --help`"),
    ("run ddp --hw=", '"": expected the name of a shipped config or of a file'),
    ("run ddp --recovery spares=1", "recovery is for runs with faults, and none are given"),
    ("goodput ddp --days inf", "--days must be a finite number, got inf"),
    ("run ddp --cost-per-hour inf", "--cost-per-hour must be a finite number, got inf"),
    ("train ddp --patience nan", "--patience must be a finite number, got nan"),
    ("train ddp --patience 0", "patience must be a positive number of seconds, got 0.0"),
    ("tune --budget inf", "--budget must be a finite number, got inf"),
    ("learn grade mine.py --seconds inf", "--seconds must be a finite number, got inf"),
    ("goodput ddp --days -1", "days must be a positive number, got -1.0"),
    ("learn list --exercises folder.py", "there is no exercise in folder.py; give a folder whose folders have an"),
    (
        "learn verify folder.py",
        "there is no exercise in folder.py; give a folder whose folders have an exercise.json each",
    ),
    ("learn grade empty.py --isolation maybe", "isolation must be one of auto, required, none, got 'maybe'"),
    ("sweep ddp -g world_size=2 --html folder.py", "--html must be a file, but folder.py is a folder; name a file"),
    ("tune --html mine.py/page.html", "--html cannot be written into mine.py; name a file in a folder of yours"),
    (
        "validate --table twice.json",
        "twice.json: expected rows, found none; give a CSV file whose first line names the",
    ),
    ("validate c2 --layers missing.csv", "the table of layers missing.csv cannot be read: "),
    ("validate c2 --layers mine.py", "the table of layers mine.py cannot be read: expected the columns microbatch"),
    ("platform run twice.json", "in twice.json, mem1: expected each key once"),
    ("run ddp --batch nan", "'--batch': "),
    ("run ddp --microbatch 0", "'--microbatch': "),
    ("run ddp --out mine.py", "--out must be a folder, but mine.py is none"),
    ("run ddp --out mine.py/traces", "--out must be a folder, but mine.py is none"),
    ("run", "run takes either a STRATEGY (see `minitrain strategies`) or --from with a recipe"),
    ("run ddp gpipe", "(gpipe); see `minitrain run --help`"),
    ("compare --colour", "see `minitrain compare --help`"),
    ("--colour", "--colour; see `minitrain --help`"),
    ("xyzzy", "'xyzzy'; see `minitrain --help`"),
    ("hw show", "'CONFIG'; see `minitrain hw show --help`"),
    ("hw show nope", '"nope": expected the name of a shipped config'),
    ("run ddp --hw two_generation", 'did you mean "two_generations"? shipped are'),
    ("comparee", "No such command 'comparee'. Did you mean 'compare'? See `minitrain --help`"),
    ("hw validate two_generations", "expected the config of one kind of device, found a cluster of several; use one"),
    ("hw check nope", '"nope": expected the name of a shipped config'),
    ("hw calibrate --out .", "--out must be a file, but . is a folder; name a file in it"),
]

FAILED = [
    ("run mine.py:mute", "the strategy mute must return the model of its rank, got None on rank 0"),
    ("run mine.py:boom", "mine.py, line 4 (on rank 0 of 8, strategy boom)"),
    ("run mine.py:leave", "SystemExit: 3, in "),
    ("run mine.py:group", "minitrain: KeyError: 'first' (on rank 0 of 8, strategy group)"),
    ("run mine.py:cancel", "CancelledError"),
    ("run mine.py:recurse", "RecursionError: maximum recursion depth exceeded"),
    ("run mine.py:lost", "1 message was sent and never received"),
    ("run mine.py:stuck", "deadlock: every unfinished rank waits for another one"),
    ("run mine.py:lazy", "layer 0 has no final weight on any rank"),
    ("run single", "world_size (8) must be 1 for single; use 1"),
    ("run gpipe --layers 30", "num_layers (30) must be a multiple of world_size (8) for gpipe; use 24 or 32"),
    ("run ddp --microbatch 9", "microbatch_size must be an integer of 1..8 for ddp, got 9"),
    ("run ddp --batch 8192 --strict-memory", "out of memory on rank 0 at "),
    ("train mine.py:mute --world-size 2", "the strategy mute must return the model of its rank, got None on rank 0"),
    ("compare mine.py:boom", "boom failed: ValueError: a fault of its own, in "),
]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of bad files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    Path("folder.py").mkdir()
    Path("mine.py").write_text(MINE)
    Path("broken.py").write_text("def f(:\n")
    Path("raises.py").write_text("1 / 0\n")
    Path("exits.py").write_text("raise SystemExit(0)\n")
    Path("empty.py").write_text("async def helper(model, layer): ...\nasync def _hidden(model): ...\n")
    Path("latin.py").write_bytes("name é".encode("latin-1"))
    Path("deep.json").write_text("[" * 100_000)
    Path("twice.json").write_text('{"mem1": 1, "mem1": 2}')
    with Path("large.json").open("wb") as large:
        large.truncate(100_000_000)


def invoke(command: str) -> Result:
    """Run a command and require that it leaves no file behind, complete or not."""
    before = sorted(Path().rglob("*"))
    result = CliRunner().invoke(app, command.split())
    left = [path for path in Path().rglob("*") if path not in before and "__pycache__" not in path.parts]
    assert left == []
    return result


@pytest.mark.few(16)
@pytest.mark.parametrize(("command", "message"), USAGE, ids=[command for command, _ in USAGE])
def test_nonsense_ends_with_one_message_and_exit_code_2(command: str, message: str) -> None:
    result = invoke(command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("minitrain: ")
    assert result.stderr.count("minitrain: ") == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("command", "message"), FAILED, ids=[command for command, _ in FAILED])
def test_a_failed_run_ends_with_one_message_and_exit_code_1(command: str, message: str) -> None:
    if command.startswith("train"):
        pytest.importorskip("torch")
    result = invoke(command)
    assert result.exit_code == 1
    assert result.stderr.startswith("minitrain: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run mine.py:interrupt", "interrupted; nothing was kept"),
        ("compare ddp mine.py:interrupt", "interrupted; nothing was kept"),
        ("prove mine.py:interrupt", "interrupted; nothing is proven"),
    ],
)
def test_ctrl_c_says_what_is_kept(command: str, message: str) -> None:
    result = invoke(command)
    assert (result.exit_code, result.output) == (130, f"minitrain: {message}\n")


def test_a_fault_of_minitrain_s_own_is_not_said_to_be_in_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.cli.options.choose_strategies", partial(int, "x"))
    result = invoke("prove ddp")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("minitrain: TypeError: ")
    assert "typer" not in result.stderr
    assert "click" not in result.stderr


def test_ctrl_c_while_traces_are_written_says_that_some_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "write_chrome_trace", interrupted)
    result = CliRunner().invoke(app, ["run", "ddp", "--layers", "2"])
    assert result.exit_code == 130
    assert result.output == "minitrain: interrupted; every file in traces is whole, but some may be missing\n"


def test_a_failed_run_prints_its_object_with_the_error() -> None:
    result = invoke("run mine.py:boom --json --layers 4")
    assert result.exit_code == 1
    failed = json.loads(result.stdout)
    good = json.loads(invoke("run ddp --json --layers 4 --no-trace").stdout)
    assert failed.keys() == good.keys()
    assert failed["error"] == "ValueError: a fault of its own"
    same = ("world_size", "num_layers", "global_batch_size", "hardware", "network")
    assert [failed[name] for name in same] == [good[name] for name in same]
    assert "a fault of its own" in result.stderr


def test_a_strategy_that_leaves_or_trains_wrongly_is_not_proven() -> None:
    result = invoke("prove ddp mine.py:leave mine.py:lazy --world-size 2 --layers 2 --batch 4 --json")
    assert result.exit_code == 1
    assert [outcome["proven"] for outcome in json.loads(result.stdout)] == [True, False, False]
    assert "leave is not proven: SystemExit: 3" in result.stderr
    assert "lazy is not proven: " in result.stderr


def test_debug_shows_where_an_error_comes_from() -> None:
    result = invoke("run mine.py:boom --debug")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("minitrain: ValueError: a fault of its own")


@pytest.mark.parametrize("command", ["", "hw"])
def test_without_a_command_there_is_help(command: str) -> None:
    result = invoke(command)
    assert "Usage: minitrain" in result.output
    assert "minitrain: " not in result.stderr


def test_compare_goes_on_after_a_failure_and_says_so_in_table_json_and_exit_code() -> None:
    table = invoke("compare ddp gpipe mine.py:boom --layers 6 --no-trace")
    assert table.exit_code == 1
    assert table.stdout.count("failed") == 2
    assert "★  ddp" in table.stdout
    assert [line.partition(":")[2].split()[0] for line in table.stderr.splitlines()] == ["gpipe", "boom"]
    runs = json.loads(invoke("compare ddp gpipe mine.py:boom --layers 6 --no-trace --json").stdout)
    assert [run["error"] is None for run in runs] == [True, False, False]
    assert runs[2]["error"] == "ValueError: a fault of its own"


def test_compare_shows_strict_memory_as_oom() -> None:
    result = invoke("compare ddp zero3 --batch 8192 --strict-memory --no-trace")
    assert result.exit_code == 1
    assert result.stdout.count("OOM") == 2
    assert result.stderr.count("failed: out of memory on rank ") == 2


def test_hw_check_says_every_fault_of_every_file() -> None:
    result = invoke("hw check twice.json h100_80g_nvl8 broken.py")
    assert result.exit_code == 2
    assert result.stdout == "h100_80g_nvl8: ok\n"
    assert [line.split(":")[0] for line in result.stderr.splitlines() if line.startswith("minitrain")] == [
        "minitrain"
    ] * 2
    assert "twice.json: processor" not in result.stderr
    assert "twice.json: matrix: expected" in result.stderr


@pytest.mark.parametrize("failing", ["write_html", "write_chrome_trace", "save"])
def test_a_failure_to_write_leaves_no_partial_file_and_prints_the_figures(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(run: object, path: Path, *others: object) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Run, failing, full)
    result = CliRunner().invoke(app, ["run", "ddp", "--layers", "2", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["strategy"] == "ddp"
    assert result.stderr.startswith("minitrain: the traces cannot be written: ")
    assert list(Path("traces").rglob("*")) == []


@pytest.mark.skipif(os.name != "posix", reason="needs /proc")
def test_a_folder_that_cannot_be_made_is_one_message() -> None:
    result = CliRunner().invoke(app, ["run", "ddp", "--layers", "2", "--out", "/proc/nowhere"])
    assert result.exit_code == 1
    said = "/proc/nowhere: No such file or directory; check the path, or name another one"
    assert result.stderr == f"minitrain: the traces cannot be written: {said}\n"


def test_a_fault_of_minitrain_itself_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.cli.commands.tables.comparison_table", lambda *_: 1 / 0)
    result = invoke("compare ddp --layers 1 --no-trace")
    assert result.exit_code == 1
    assert result.stderr == "minitrain: ZeroDivisionError: division by zero, in " + result.stderr.partition(", in ")[2]


def test_messages_tell_kind_place_and_notes() -> None:
    error = ValueError("no")
    error.add_note("on rank 3")
    assert message_of(error) == "ValueError: no (on rank 3)"
    assert message_of(KeyError()) == "KeyError"
    misspelt = AttributeError("no allreduce", name="allreduce", obj=mt.lib.Model())
    assert message_of(misspelt) == "AttributeError: no allreduce; did you mean 'all_reduce'?"
    assert (
        message_of(FileNotFoundError(2, "No such file", "x")) == "x: No such file; check the path, or name another one"
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_silent_at_first_and_then_says_what_goes_on(terminal: bool) -> None:
    console = Console(record=True, force_terminal=terminal, width=80, file=Path("log").open("w"))  # noqa: SIM115
    with console.file, Progress(console) as progress:
        progress.say("simulating ddp")
        console.file.flush()
        assert Path("log").read_text() == ""
        progress._show()  # as its thread does in time
        progress.say("simulating gpipe")
        console.print("")
        console.file.flush()
        said = Path("log").read_text()
    assert "simulating gpipe" in said


@pytest.mark.parametrize("terminal", [True, False])
def test_words_that_change_are_asked_for_again(terminal: bool) -> None:
    console = Console(force_terminal=terminal, width=80, file=Path("log").open("w"))  # noqa: SIM115
    model = SimpleNamespace(_log=[], dist=SimpleNamespace(detector=SimpleNamespace(finished_ranks=set())))
    with console.file:
        with RunsInProgress(console) as progress:
            progress.simulating("ddp")
            progress.watch(RunProgress([model]))  # type: ignore[list-item]  # all that is read of a model
            for num_events in (0, 1234, 0):
                model._log += range(num_events)
                progress._show()
        console.file.flush()
        said = Path("log").read_text()
    assert "simulating ddp: 0 of 1 ranks done, 1,234 events so far" in said
    assert terminal or said.splitlines() == ["simulating ddp", "simulating ddp: 0 of 1 ranks done, 1,234 events so far"]


def test_a_deadlock_is_found_while_progress_is_shown() -> None:
    async def waits(model: Model) -> Model:
        while "simulating" not in Path("log").read_text():
            pass  # as long as the thread of the progress needs
        await model.receive(1 - model.rank)
        return model

    with Path("log").open("w", buffering=1) as log, Progress(Console(file=log), patience_s=0.0) as progress:
        progress.say("simulating")
        with pytest.raises(mt.DeadlockError, match="rank 0"):
            mt.simulate(waits, world_size=2, num_layers=1, global_batch_size=2)


def test_a_command_without_memory_for_its_words_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise MemoryError

    monkeypatch.setattr("minitrain.cli.failures.report", fails)
    with pytest.raises(SystemExit, match="1"):
        app(["run", "ddp", "--world-size", "0"])
    assert (
        capfd.readouterr().err
        == "minitrain: the system gives no more memory, or no more threads; ask for less, or for fewer processes\n"
    )


def test_nothing_is_said_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", fails)
    said = StringIO()
    with Progress(Console(file=said), patience_s=0.0) as progress:
        progress.say("simulating ddp")
    assert said.getvalue() == ""


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (typer.Abort(), 130, ""),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 1, ""),
        (
            OSError(28, "No space left on device"),
            1,
            "minitrain: the output cannot be written: No space left on device\n",
        ),
    ],
)
def test_whatever_ends_a_command_early_is_no_traceback(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(table: object) -> None:
        raise error

    monkeypatch.setattr("minitrain.cli.models.print_table", interrupted)
    result = CliRunner().invoke(app, ["strategies"])
    assert (result.exit_code, result.stderr) == (code, message)


def test_a_command_runs_outside_of_the_main_thread_too() -> None:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(CliRunner().invoke(app, ["hw", "list"])))
    thread.start()
    thread.join()
    assert results[0].exit_code == 0


def test_what_python_ignores_for_want_of_memory_is_left_to_the_one_message() -> None:
    told: list[Any] = []
    for kind in (MemoryError, ValueError):
        say_ignored(told.append, SimpleNamespace(exc_type=kind))
    assert [one.exc_type for one in told] == [ValueError]


def test_an_error_of_python_while_it_handles_the_lack_of_memory_is_one_of_memory() -> None:
    broken = SystemError("returned NULL without setting an exception")
    assert not came_without_memory(broken)
    broken.__context__ = ValueError()
    broken.__context__.__context__ = MemoryError()
    assert came_without_memory(broken)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "nothing was kept; with --checkpoints FOLDER the same command would go on from the newest one"),
        (("--checkpoints", "c"), "whole checkpoints are kept in c; the same command goes on from the newest one"),
        (("--checkpoints", "d"), "no checkpoint was whole yet in d"),
    ],
)
def test_ctrl_c_says_what_is_left_of_a_training(
    more: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    Path("c/step-1").mkdir(parents=True)
    Path("c/step-1/minitrain.json").touch()
    monkeypatch.setattr("minitrain.cli.train.mt.train", interrupted)
    result = CliRunner().invoke(app, ["train", "ddp", *more])
    assert (result.exit_code, result.output) == (130, f"minitrain: interrupted; {said}\n")
