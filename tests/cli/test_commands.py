"""The command line when all goes well: what it prints, and what it writes."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import minitrain as mt
from minitrain.cli import app
from minitrain.cli.commands import BATCH, LAYERS, WORLD_SIZE
from minitrain.cli.generation import Given
from minitrain.cli.options import parse_durations, strategy_options
from minitrain.cli.output import print_table
from minitrain.machine import shipped_configs
from minitrain.machine.config import SPECIFIED
from minitrain.run.simulation import DEFAULT_STRATEGIES
from minitrain.view.tables import filled_table

SMALL = ("--world-size", "4", "--layers", "4", "--batch", "8")
KEYS = {"strategy", "step_time_s", "peak_memory_bytes", "mfu", "bubble_fraction", "exposed_comm_fraction", "num_events"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, in 80 columns, without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def minitrain(*arguments: str) -> Result:
    """Run a command that must succeed and say nothing on stderr."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result


def printed_json(*arguments: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(minitrain(*arguments, "--json").stdout)


def files(folder: str) -> list[str]:
    """Return all files below a folder, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_compare_prints_one_json_object_a_strategy_in_the_order_given() -> None:
    runs = printed_json("compare", *SMALL, "--no-trace")
    assert [run["strategy"] for run in runs] == list(DEFAULT_STRATEGIES)
    assert all(run.keys() >= KEYS for run in runs)
    assert [run["error"] for run in runs] == [None] * 6


def test_run_is_found_by_the_name_that_it_has_in_python_too() -> None:
    assert printed_json("simulate", "ddp", *SMALL, "--no-trace") == printed_json("run", "ddp", *SMALL, "--no-trace")


def test_compare_prints_the_figures_of_simulate() -> None:
    run = printed_json("compare", "zero3", *SMALL, "--no-trace")[0]
    same = mt.simulate("zero3", world_size=4, num_layers=4, global_batch_size=8)
    assert run == same.summary()


def test_compare_sorts_by_step_time_and_marks_the_winner() -> None:
    lines = minitrain("compare", "1f1b", "zero3", "ddp", *SMALL, "--no-trace", "--hw", SPECIFIED).stdout.splitlines()
    rows = [line.split() for line in lines if line.split() and line.split()[-1].replace(".", "").isdigit()]
    assert rows[0][:2] == ["★", "ddp"]
    assert sorted(rows[1:], key=lambda row: float(row[1])) == rows[1:]


def test_compare_shows_who_ran_out_of_memory_and_makes_nobody_of_them_the_winner() -> None:
    result = minitrain("compare", "ddp", "zero3", "--batch", "4096", "--layers", "40", "--no-trace")
    assert result.stdout.count("OOM") == 2
    assert "★" not in result.stdout
    assert "zero3: out of memory on rank 0 at " in result.stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_table_fits_the_terminal_and_cuts_no_figure(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = minitrain("compare", "ddp", "1f1b", "--batch", "4096", "--no-trace", "--hw", SPECIFIED).stdout.splitlines()
    table = lines[: next(number for number, line in enumerate(lines) if "out of memory" in line)]
    assert max(map(len, table)) <= columns
    assert "…" not in "".join(table)
    assert [line.split()[2:4] for line in table if line.split()[1:2] == ["1190.773"]] == [["138.03", "OOM"]]


def test_a_long_name_is_folded_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    name = "a_name_" + "that_is_long_" * 5
    Path("mine.py").write_text(f"async def {name}(model):\n    return model\n")
    result = CliRunner().invoke(app, ["compare", f"mine.py:{name}", "ddp", *SMALL, "--no-trace"])
    cells = [line[:40].strip() for line in result.stdout.splitlines()]
    assert name in "".join(cell.split()[0] for cell in cells if cell)


def test_compare_writes_a_folder_a_strategy_and_a_page_of_all() -> None:
    result = minitrain("compare", "ddp", "1f1b", *SMALL)
    each = ["index.html", "run.jsonl", "trace.json"]
    assert files("traces") == sorted(["compare.html", *(f"{name}/{file}" for name in ("ddp", "1f1b") for file in each)])
    assert "wrote traces/compare.html" in result.stdout
    assert 'href="ddp/index.html"' in Path("traces/compare.html").read_text()


def test_pages_are_small_and_need_no_shared_script() -> None:
    minitrain("compare", "ddp", "zero1", *SMALL, "--shared-script")
    assert not list(Path("traces").rglob("*.js"))
    assert all(page.stat().st_size < 300_000 for page in Path("traces").rglob("*.html"))


def test_run_says_how_to_learn_why_ranks_wait() -> None:
    told = minitrain("run", "gpipe", *SMALL).stdout
    assert told.endswith("minitrain trace explain traces/gpipe/run.jsonl\n")
    assert "trace explain" not in minitrain("run", "gpipe", *SMALL, "--no-trace").stdout


def test_run_writes_what_can_be_read_again() -> None:
    minitrain("run", "zero1", *SMALL, "--out", "here/and/there")
    assert files("here") == [f"and/there/zero1/{name}" for name in ("index.html", "run.jsonl", "trace.json")]
    assert mt.load_run("here/and/there/zero1/run.jsonl").summary() == printed_json("run", "zero1", *SMALL)
    assert json.loads(Path("here/and/there/zero1/trace.json").read_text())["traceEvents"]


def test_no_trace_writes_nothing() -> None:
    minitrain("run", "ddp", *SMALL, "--no-trace")
    assert files(".") == []


@pytest.mark.parametrize("command", ["run", "compare"])
def test_totals_alone_print_the_same_and_write_nothing(command: str) -> None:
    arguments = (command, "zero1", *SMALL)
    assert printed_json(*arguments, "--log", "summary") == printed_json(*arguments, "--no-trace")
    table = minitrain(*arguments, "--log", "summary", "--no-trace").stdout
    assert table == minitrain(*arguments, "--no-trace").stdout
    assert files(".") == []


def test_a_second_run_takes_the_place_of_the_first() -> None:
    minitrain("run", "ddp", *SMALL)
    minitrain("run", "ddp", "--world-size", "2", *SMALL[2:])
    assert mt.load_run("traces/ddp/run.jsonl").world_size == 2


def test_the_same_strategy_twice_gets_two_folders() -> None:
    minitrain("compare", "ddp", "ddp", *SMALL)
    assert {name.partition("/")[0] for name in files("traces")} == {"compare.html", "ddp", "ddp-2"}


def test_run_prints_where_the_time_of_each_rank_goes() -> None:
    lines = minitrain("run", "gpipe", *SMALL, "--no-trace").stdout.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] in (["0"], ["1-2"], ["3"])]
    step_ms = float(next(line for line in lines if line.startswith("step time")).split()[2])
    assert [sum(map(float, row[1:4])) for row in rows] == pytest.approx([step_ms] * 3, abs=2e-3)


def _ranks_shown(*command: str) -> list[str]:
    lines = minitrain("run", *command, "--no-trace").stdout.splitlines()
    return [line.split()[0] for line in lines if len(line.split()) == 5][2:]


def test_run_shows_the_first_and_last_of_many_different_ranks() -> None:
    ranks = _ranks_shown("1f1b", "--world-size", "32", "--layers", "32", "--batch", "32")
    assert ranks == [*map(str, range(8)), "...", *map(str, range(24, 32))]


@pytest.mark.parametrize("fold", [[], ["--fold"]])
def test_run_shows_neighbours_with_equal_figures_in_one_row(fold: list[str]) -> None:
    assert _ranks_shown("ddp", "--world-size", "32", "--layers", "1", *fold) == ["0-31"]


def test_run_says_what_filled_the_memory() -> None:
    result = minitrain("run", "ddp", "--batch", "8192", "--no-trace")
    assert "out of memory          on rank 0 at" in result.stdout


def test_durations_by_hand_need_no_hardware() -> None:
    arguments = ["1f1b", *SMALL, "--microbatch", "1", "--durations", "forward=1,backward=2", "--no-trace"]
    run = printed_json("run", *arguments)
    assert run["step_time_s"] == (8 + 4 - 1) * (1 + 2)
    assert run["mfu"] is None
    assert "33.000 s" in minitrain("run", *arguments).stdout


def test_the_network_can_be_hierarchical() -> None:
    flat, tiers = (
        printed_json("run", "1f1b", "--world-size", "16", "--network", kind, "--no-trace")["step_time_s"]
        for kind in ("flat", "hierarchical")
    )
    assert tiers < flat  # most stages send within their node


def test_a_strategy_from_a_file_gets_its_options() -> None:
    Path("mine.py").write_text(
        "from minitrain.strategies import ddp\n"
        "async def mine(model, microbatch_size=None, *, order, depth=1):\n"
        "    print(microbatch_size, repr(order), repr(depth))\n"
        "    return await ddp(model)\n"
    )
    arguments = ["mine.py:mine", *SMALL, "--microbatch", "2", "--option", "order=a=b", "-o", "depth=[1, None]"]
    result = minitrain("run", *arguments, "--no-trace")
    assert "2 'a=b' [1, None]" in result.stdout


def test_a_strategy_takes_options_that_the_others_do_not_have() -> None:
    runs = printed_json("compare", "ddp", "pp_dp:pp=4", "pp_dp", *SMALL, "--no-trace")
    assert [run["strategy"] for run in runs] == ["ddp", "pp_dp:pp=4", "pp_dp"]
    assert [run["options"] for run in runs] == [{}, {"pp": 4}, {}]
    alone = mt.simulate("pp_dp", world_size=4, num_layers=4, global_batch_size=8, pp=4)
    assert runs[1]["step_time_s"] == alone.step_time != runs[2]["step_time_s"]


def test_options_of_one_strategy_join_those_of_all_and_name_its_folder() -> None:
    minitrain("compare", "gpipe", "pp_dp:pp=4", *SMALL, "--microbatch", "1")
    assert mt.load_run("traces/pp_dp-pp-4/run.jsonl").options == {"microbatch_size": 1, "pp": 4}


def test_a_file_with_one_strategy_needs_no_name() -> None:
    Path("mine.py").write_text(
        "from minitrain.strategies import ddp\n"
        "async def helper(model, layer):\n    pass\n"
        "async def mine(model, depth=1):\n    print(depth)\n    return await ddp(model)\n"
    )
    result = minitrain("run", "mine.py:depth=7", *SMALL, "--no-trace")
    assert result.stdout.startswith("7\n7\n7\n7\nmine: 4 ranks")


def test_what_a_strategy_prints_goes_to_stderr_under_json() -> None:
    Path("mine.py").write_text(
        "from minitrain.strategies import ddp\nprint('loaded')\n"
        "async def mine(model):\n    print('working')\n    return await ddp(model)\n"
    )
    result = minitrain("compare", "mine.py:mine", *SMALL, "--json", "--no-trace")
    assert len(json.loads(result.stdout)) == 1
    assert result.stderr.split() == ["loaded", *["working"] * 4]


def test_names_with_brackets_are_no_markup() -> None:
    Path("[red].json").write_text(json.dumps(printed_json("hw", "show", "a100_80g")))
    result = minitrain("compare", "ddp", *SMALL, "--hw", "[red].json", "--no-trace")
    assert "batch 8, [red]" in result.stdout


def test_hw_list_names_every_shipped_config() -> None:
    assert printed_json("hw", "list") == shipped_configs()
    listing = minitrain("hw", "list").stdout
    assert all(name in listing for name in shipped_configs())
    assert "clusters of unlike devices: five_kinds, two_generations" in listing
    assert "clouds' machines: p4d.24xlarge" in listing


def test_hw_show_prints_a_config_that_loads_again() -> None:
    Path("copy.json").write_text(minitrain("hw", "show", "h100_80g_nvl8.json", "--json").stdout)
    assert "989.4 TFLOP/s" in minitrain("hw", "show", "copy.json").stdout
    minitrain("hw", "show", "./copy.json", "--json")
    assert minitrain("hw", "check", "copy.json").stdout == "copy.json: ok\n"


def test_hw_check_checks_all_shipped_configs() -> None:
    assert minitrain("hw", "check").stdout.splitlines() == [f"{name}: ok" for name in shipped_configs()]


def test_strategies_lists_every_shipped_one_with_what_it_is() -> None:
    listed = {row["strategy"]: row["description"] for row in printed_json("strategies")}
    assert list(listed) == list(mt.strategies())
    assert all(listed.values())
    assert "1F1B (PipeDream-Flush" in minitrain("strategies").stdout


@pytest.mark.few(16)
@pytest.mark.parametrize("name", mt.strategies())
def test_a_strategy_shows_every_option_with_default_and_meaning(name: str) -> None:
    shown = printed_json("strategies", name)
    parameters = list(inspect.signature(mt.strategies()[name]).parameters.values())[1:]
    assert [(option["name"], option["default"]) for option in shown["options"]] == [
        (parameter.name, json.loads(json.dumps(parameter.default))) for parameter in parameters
    ]
    assert all(option["meaning"] for option in shown["options"])
    text = minitrain("strategies", name).stdout
    assert all(parameter.name in text for parameter in parameters)


@pytest.mark.few(24)
@pytest.mark.parametrize("name", mt.strategies())
@pytest.mark.parametrize("sizes", [(4, 5, 8), (4, 8, 7), (3, 6, 6), (5, 40, 40)])
def test_the_rules_that_a_strategy_shows_name_what_its_errors_refuse(name: str, sizes: tuple[int, int, int]) -> None:
    run = mt.compare(name, world_size=sizes[0], num_layers=sizes[1], global_batch_size=sizes[2]).runs[name]
    refused = str(run.error).partition(" ")[0] if isinstance(run, mt.FailedRun) else ""
    assert refused in json.dumps(printed_json("strategies", name)) or refused == "num_microbatches"


def test_the_example_that_a_strategy_shows_runs() -> None:
    example = minitrain("strategies", "fsdp").stdout.splitlines()[-1].removeprefix("such as: minitrain ").split()
    sizes = ("--world-size", "2", "--layers", "2", "--batch", "2", "--no-trace")
    assert minitrain(*example, *sizes).exit_code == 0
    doc = "'Train.\\n\\nArgs:\\n    order: \"up\" or None.\\n'"
    Path("one.py").write_text(f"async def mine(model, *, order=None):\n    {doc}\n")
    assert minitrain("strategies", "one.py").stdout.endswith("mine:order=up\n")


def test_a_file_shows_its_strategies_or_its_only_one() -> None:
    one = "async def mine(model, *, depth, order='a'):\n    'Train.\\n\\nArgs:\\n    depth: how deep.\\n'\n"
    Path("one.py").write_text(one)
    Path("two.py").write_text(one + "async def other(model): 'Do nothing.'\n")
    shown = printed_json("strategies", "one.py")
    assert shown["options"][0] == {"name": "depth", "default": None, "is_required": True, "meaning": "how deep."}
    assert "required" in minitrain("strategies", "one.py:mine").stdout
    assert [row["strategy"] for row in printed_json("strategies", "two.py")] == ["mine", "other"]
    assert "It has no options." in minitrain("strategies", "two.py:other").stdout
    Path("bare.py").write_text("async def bare(model): return model\n")
    assert "It has no docstring that says what it needs." in minitrain("strategies", "bare.py").stdout


def test_prove_proves_strategies_with_their_options() -> None:
    arguments = ["prove", "zero3", "gpipe:microbatch_size=1", "--world-size", "2", "--layers", "2", "--batch", "4"]
    lines = minitrain(*arguments).stdout.splitlines()
    assert [line.partition(" trains 2 layers as one device does")[0] for line in lines] == [
        "zero3 on 2 ranks",
        "gpipe:microbatch_size=1 on 2 ranks",
    ]
    outcomes = printed_json(*arguments)
    assert [(outcome["proven"], outcome["error"]) for outcome in outcomes] == [(True, None)] * 2
    assert max(outcome["largest_difference"] for outcome in outcomes) < 1e-12


def test_prove_has_the_default_sizes_of_python() -> None:
    sizes = {name: known.default for name, known in inspect.signature(mt.prove).parameters.items()}
    assert (sizes["world_size"], sizes["global_batch_size"], sizes["strict"]) == (WORLD_SIZE, BATCH, True)
    assert mt.prove("single", world_size=1, global_batch_size=1).run.num_layers == LAYERS


def test_prove_computes_a_small_transformer_in_parts() -> None:
    arguments = ["prove", "megatron", "--model", "tiny", "--seq", "8", "--world-size", "4", "--option", "tp=2"]
    (line,) = minitrain(*arguments).stdout.splitlines()
    assert line.startswith("megatron on 4 ranks trains tiny as one device does: the largest relative difference is ")
    (outcome,) = printed_json(*arguments)
    assert (outcome["model"], outcome["num_layers"], outcome["proven"]) == ("tiny", 6, True)
    assert outcome["largest_relative_difference"] < 1e-9


def test_prove_says_which_models_it_can_compute() -> None:
    result = CliRunner().invoke(app, ["prove", "ddp", "--model", "llama3-8b"])
    assert result.exit_code == 1
    assert "num_parameters (8,030,261,248) must be at most 2,097,152" in result.stderr
    assert 'use workload="tiny"' in result.stderr


@pytest.mark.parametrize(("command", "more"), [("run", []), ("compare", ["traces/compare.html"])])
def test_folding_gives_the_same_figures_and_writes_pages_alone(command: str, more: list[str]) -> None:
    assert printed_json(command, "zero3", *SMALL, "--fold") == printed_json(command, "zero3", *SMALL, "--no-trace")
    assert files(".") == [*more, "traces/zero3-folded/index.html"]


def test_a_comparison_tells_of_the_runs_of_an_earlier_one() -> None:
    first = minitrain("compare", "ddp", "zero1", "gpipe", *SMALL).stdout
    assert "also holds" not in first
    second = minitrain("compare", "ddp", "zero3", *SMALL).stdout.splitlines()
    assert second[-1] == "traces also holds 2 runs that are not of this comparison: gpipe, zero1"
    assert "also holds" in minitrain("compare", "ddp", *SMALL, "--json").stderr
    assert "also holds" not in minitrain("compare", "ddp", *SMALL, "--no-trace").output


@pytest.mark.parametrize("arguments", [("run", "ddp"), ("compare", "ddp", "zero1")])
def test_without_traces_nothing_is_said_of_them(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("minitrain.cli.output.Progress.say", lambda _, words: said.append(str(words)))
    Path("traces").write_text("no folder")
    output = minitrain(*arguments, *SMALL, "--no-trace").output
    assert "trace" not in " ".join([output, *said])


@pytest.mark.few(2)
@pytest.mark.parametrize("columns", [30, 40, 60])
@pytest.mark.parametrize("command", ["compare ddp 1f1b --no-trace", "run ddp --no-trace", "models", "hw list"])
def test_a_narrow_terminal_gets_every_column_below_one_another(
    columns: int, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = set(minitrain(*command.split()).stdout.split())
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = minitrain(*command.split()).stdout
    assert "…" not in narrow
    if command != "hw list":  # whose list of tiers folds within a cell
        assert {word for word in words if word.replace(".", "").isdigit()} <= set(narrow.split())
    assert {"GB/s", "TFLOP/s", "GiB"} & words <= set(narrow.split())


@pytest.mark.parametrize("columns", [40, 60, 70])
def test_no_column_is_so_narrow_that_it_breaks_a_word(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    cells = ["1.2 ms", "backward of linear_attention", "longer kernels", "each microbatch"]
    print_table(filled_table({"gap": None, "operation": 13, "cause": 8, "per": 6}, [cells]))
    assert {word for cell in cells for word in cell.split()} <= {*capsys.readouterr().out.split()}


def test_a_terminal_without_columns_gets_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert "A step begins when the weights are there" in minitrain("compare", "ddp", "--no-trace").stdout


def test_version_is_the_package_s() -> None:
    assert minitrain("--version").stdout.startswith("minitrain 0.")


def _options(*texts: str) -> Given:
    return Given(option=[*texts], microbatch_size=None)


def test_durations_and_options_are_parsed_with_blanks() -> None:
    assert parse_durations(" forward = 1 , send=0.5") == {"forward": 1.0, "send": 0.5}
    assert strategy_options(_options(" a = 1")) == {"a": 1}
    assert strategy_options(_options("a=1if", "b='x'", "c=" + "(" * 500)) == {"a": "1if", "b": "x", "c": "(" * 500}
