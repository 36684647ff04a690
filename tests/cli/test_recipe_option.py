"""`minitrain run --from FILE` runs what another tool's arguments say, and other options override them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app

TINY = mt.write_recipe(mt.Recipe("megatron", {"microbatch_size": 1, "tp": 2}, mt.models()["tiny"], 4, 8), "megatron-lm")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Return a file of Megatron-LM's options for the tiny model."""
    path = tmp_path / "args.sh"
    path.write_text(TINY)
    return path


def figures(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["run", *arguments, "--no-trace", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_recipe_is_run_as_its_strategy_with_its_options(recipe: Path) -> None:
    options = ("-o", "tp=2", "--microbatch", "1", "--batch", "8", "--model", "tiny", "--world-size", "4")
    assert figures("--from", str(recipe), "--world-size", "4") == figures("megatron", *options)


def test_other_options_override_a_recipe(recipe: Path) -> None:
    changed = ("--world-size", "8", "--batch", "16", "--seq", "16", "-o", "tp=4", "--microbatch", "2")
    run = figures("--from", str(recipe), *changed)
    assert (run["world_size"], run["global_batch_size"], run["seq_len"]) == (8, 16, 16)
    assert {name: run["options"][name] for name in ("tp", "microbatch_size")} == {"tp": 4, "microbatch_size": 2}


def test_what_was_read_is_said(recipe: Path) -> None:
    result = CliRunner().invoke(app, ["run", "--from", str(recipe), "--world-size", "4", "--no-trace"])
    assert "args.sh (megatron-lm) is megatron with tp 2, microbatch 1" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "do not say the world_size; give --world-size"),
        (("megatron", "--world-size", "4"), "run takes either a STRATEGY"),
        (("--world-size", "4", "--model", "tiny", "--layers", "2"), "--layers does not go with --model"),
    ],
)
def test_what_is_missing_or_too_much_is_said(recipe: Path, more: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(app, ["run", "--from", str(recipe), *more, "--no-trace"])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_neither_strategy_nor_recipe_is_an_error() -> None:
    result = CliRunner().invoke(app, ["run"])
    assert (result.exit_code, "run takes either a STRATEGY" in " ".join(result.output.split())) == (2, True)


def test_deepspeeds_configuration_needs_a_model(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}')
    result = CliRunner().invoke(app, ["run", "--from", str(path), "--world-size", "4"])
    assert (result.exit_code, "give --model" in result.output) == (2, True)
    assert figures("--from", str(path), "--world-size", "4", "--model", "tiny")["strategy"] == "fsdp"
