"""Commands that pages and tables print give the figures beside them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from benchmarks.published import Published
from minitrain.cli import app
from minitrain.run.parameters import DEFAULTS, OPTIONS, command_of
from minitrain.search.tuning.search import distinct

SEARCH = ["--world-size", "16", "--batch", "32", "--model", "tiny", "--jobs", "1"]
SPACE = ["--space", "tp=2", "--space", "num_chunks=1,2", "--space", "microbatch_size=1"]
PRICING = [
    [],
    ["--fidelity", "kernels"],
    ["--fidelity", "kernels", "--seq", "64", "--without", "launches", "--hw", "a100_80g"],
    ["--network", "flat", "--hw", "gb200_nvl72"],
    ["--precision", "fp8"],
]


def invoked(words: list[str]) -> str:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    return result.stdout


def step_time(command: str) -> Any:
    name, *words = shlex.split(command)
    assert name == "minitrain"
    return json.loads(invoked([*words, "--json", "--no-trace"]))["step_time_s"]


@pytest.mark.few(1)
@pytest.mark.parametrize("pricing", PRICING, ids=" ".join)
def test_the_command_of_a_search_gives_its_step(pricing: list[str]) -> None:
    given = ["tune", "megatron", *SEARCH, *SPACE, *pricing]
    (command,) = re.findall(r"the best one: (minitrain run .*)", invoked(given))
    best = next(iter(sorted(json.loads(invoked([*given, "--json"])), key=lambda row: row["step_time_s"] or 1e9)))
    assert step_time(command) == best["step_time_s"]


def test_the_command_of_a_published_row_gives_its_figure_in_eight_bits_too() -> None:
    found = {}
    for precision in ("bf16", "fp8"):
        options = {"tp": 2, "pp": 2, "zero": 1}
        case = Published("llama2-7b", "h100_80g_nvl8", 8, 4096, 8, 1, 1.0, "none", "megatron", options, precision)
        found[precision] = step_time(case.command.removesuffix(" --no-trace"))
        assert case.predict() == pytest.approx(8 * 4096 / found[precision] / 8, rel=1e-12)
    assert found["fp8"] < found["bf16"]


def test_the_commands_of_a_search_s_page_give_the_steps_of_its_rows(tmp_path: Path) -> None:
    found = mt.tune("tiny", world_size=8, global_batch_size=16, space={"tp": [1, 2]}, fidelity="kernels", jobs=1)
    page = found.write_html(tmp_path / "page.html").read_text(encoding="utf-8")
    for row in distinct(found.ranked)[:3]:
        command = found.choice(row).command
        assert json.dumps(command)[1:-1] in page
        assert step_time(command) == row["step_time_s"]


def test_the_commands_of_a_sweep_s_page_give_the_steps_of_its_rows(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    given = ["--model", "tiny", "--fidelity", "kernels", "--batch", "16", "--jobs", "1"]
    rows = json.loads(invoked(["sweep", "ddp", "fsdp", "-g", "world_size=4,16", *given, "--html", str(page), "--json"]))
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))
    found = json.loads(data)
    wanted = [rows[row]["step_time_s"] for row in found["named"]]
    assert len(wanted) == 4
    assert [step_time(command) for command in found["commands"]] == wanted == sorted(wanted)


def test_what_no_command_can_say_is_said() -> None:
    for name, value in (("placement", [0, 1]), ("hardware", object()), ("slowdown", {0: 2.0})):
        assert command_of("ddp", {name: value}).startswith(f"# in Python only: {name} has no option")


def test_every_parameter_with_an_option_is_one_of_simulate() -> None:
    assert OPTIONS.keys() <= DEFAULTS.keys()
