"""Days, dollars and energy for so many tokens, of one run, of layouts, and of several machines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.cli.generation import Given
from minitrain.cli.options import at_cost, tokens_of
from minitrain.run.result import TokenBudget
from minitrain.view.tables import budget_cells

SMALL = ("--model", "tiny", "--world-size", "4", "--batch", "8")
QUIET = ("--no-trace",)
SPACE = ("tp=1,2", "pp=1", "num_chunks=1", "microbatch=1", "overlap_parts=False", "recompute=none")
TUNE = ("tune", "megatron", *SMALL, "--jobs", "1", *(word for axis in SPACE for word in ("--space", axis)))


def printed(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result.stdout


def as_json(*arguments: str) -> Any:
    return json.loads(printed(*arguments, "--json"))


def test_a_budget_is_the_steps_that_so_many_tokens_take() -> None:
    run = mt.simulate("fsdp", world_size=4, global_batch_size=8, workload="tiny", hardware="h100_80g_nvl8")
    budget = run.for_tokens(1e9)
    steps = 1e9 / (8 * 32)
    assert budget is not None
    for tokens in (-1, float("nan"), float("inf")):
        with pytest.raises(mt.UsageError, match=r"^tokens must be a positive number, got"):
            run.for_tokens(tokens)
    assert run.dollars is not None
    assert run.energy_joules is not None
    assert budget.days == pytest.approx(steps * run.step_time / 86400)
    assert budget.dollars == pytest.approx(steps * run.dollars)
    assert budget.megawatt_hours == pytest.approx(steps * run.energy_joules / 3.6e9)
    assert TokenBudget.of(1e9, None, 1.0, 1.0, 1.0) is None


def test_what_a_config_does_not_say_is_none() -> None:
    budget = TokenBudget.of(1e6, 10, 1.0, None, None)
    assert budget is not None
    assert budget.summary() == {"tokens": 1e6, "days": 1e5 / 86400, "dollars": None, "megawatt_hours": None}


def test_run_and_compare_print_it() -> None:
    run = mt.simulate("fsdp", world_size=4, global_batch_size=8, workload="tiny", hardware="h100_80g_nvl8")
    budget = run.for_tokens(15e12)
    assert budget is not None
    days, dollars, energy = budget_cells(budget)
    words = " ".join(printed("run", "fsdp", *SMALL, "--tokens", "15T", *QUIET).split())
    assert f"15T tokens {days} days, {dollars} USD, {energy} MWh of the devices" in words
    table = printed("compare", "fsdp", "zero3", *SMALL, "--tokens", "15T", *QUIET)
    assert all(figure in table for figure in (days, dollars, energy))
    assert all(column in table for column in ("days", "USD", "MWh"))
    (summary,) = as_json("compare", "fsdp", *SMALL, "--tokens", "15T", *QUIET)
    assert summary["for_tokens"] == budget.summary()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_price_of_ones_own_takes_the_place_of_the_configs(command: str) -> None:
    options = (command, "fsdp", *SMALL, "--tokens", "1T", *QUIET)
    usual, other = (as_json(*options, *more) for more in ((), ("--cost-per-hour", "29.9")))
    usual, other = (found[0] if isinstance(found, list) else found for found in (usual, other))
    assert other["for_tokens"]["dollars"] == pytest.approx(10 * usual["for_tokens"]["dollars"])
    assert other["step_time_s"] == usual["step_time_s"]


def test_layouts_are_listed_with_it() -> None:
    dear, usual = as_json(*TUNE, "--cost-per-hour", "29.9"), as_json(*TUNE)
    assert dear[0]["dollars"] == pytest.approx(10 * usual[0]["dollars"])
    common, header, *_ = printed(*TUNE, "--tokens", "1T").splitlines()
    assert common.startswith("layouts with ")
    assert header.split()[-3:] == ["days", "USD", "MWh"]


def test_machines_stand_in_a_row_each_at_equal_tokens() -> None:
    machines = ("a100_80g", "h100_80g_nvl8")
    table = printed("compare", "fsdp", "zero3", *SMALL, "--hw", ",".join(machines), "--tokens", "15T", *QUIET)
    for name in machines:
        runs = [
            mt.simulate(strategy, world_size=4, global_batch_size=8, workload="tiny", hardware=name)
            for strategy in ("fsdp", "zero3")
        ]
        best = min(runs, key=lambda run: run.step_time)
        (line,) = (line for line in table.splitlines() if line.split()[:1] == [name])
        assert best.strategy in line
        assert f"{name}: priced by {best.priced_by}" in table
        assert line.split()[-3:] == budget_cells(best.for_tokens(15e12))
    assert "for 15T tokens" in table
    found = as_json("compare", "fsdp", "zero3", *SMALL, "--hw", ",".join(machines), *QUIET)
    assert [run["hardware"] for run in found] == ["a100_80g"] * 2 + ["h100_80g_nvl8"] * 2
    assert {run["for_tokens"]["tokens"] for run in found} == {1e9}


def test_a_machine_on_which_nothing_fits_says_so() -> None:
    options = ("--model", "llama3-8b", "--world-size", "2", "--batch", "2", "--hw", "a100_40g,h200_141g_nvl8")
    table = printed("compare", "ddp", *options, *QUIET, code=1)
    assert "a100_40g" in table
    assert "none fits" in table


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--tokens", "many", "--model", "tiny"), "--tokens takes a number with K, M, B or T, as in 15T; got 'many'"),
        (("--tokens", "0", "--model", "tiny"), "--tokens takes a number"),
        (("--tokens", "1T"), "--tokens is for transformers; give --model too"),
    ],
)
def test_what_cannot_be_asked_is_refused(more: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(app, ["run", "ddp", *more, *QUIET])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_letters_scale_a_number() -> None:
    assert [tokens_of(text, has_model=True) for text in ("20", "3k", "1.5B")] == [20, 3000, 1.5e9]


def test_a_cluster_has_prices_of_its_own() -> None:
    with pytest.raises(mt.UsageError, match="--cost-per-hour is for one kind of device"):
        at_cost("two_generations", Given(cost_per_hour=2.0))
