"""`minitrain models` and `minitrain models show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})
    return result.exit_code, result.stdout, result.stderr


def test_models_lists_every_shipped_model() -> None:
    code, stdout, _ = invoke("models")
    assert code == 0
    assert [name for name in mt.models() if f" {name} " not in stdout] == []


@pytest.mark.few(4)
@pytest.mark.parametrize("model", mt.models().values(), ids=lambda model: model.name)
def test_show_says_a_models_parameters(model: mt.Transformer) -> None:
    code, stdout, _ = invoke("models", "show", model.name)
    assert code == 0
    assert f"{model.num_parameters:,}" in stdout


def test_json_is_all_that_is_printed() -> None:
    assert [entry["name"] for entry in json.loads(invoke("models", "--json")[1])] == list(mt.models())
    assert json.loads(invoke("models", "show", "tiny", "--json")[1])["num_parameters"] == 106_816


def test_an_unknown_model_is_a_usage_error_that_names_the_one_meant() -> None:
    code, stdout, stderr = invoke("models", "show", "lama3-8b")
    assert (code, stdout) == (2, "")
    assert 'did you mean "llama3-8b"?' in stderr


def test_show_counts_the_layers_that_have_one_half_alone(tmp_path: Path) -> None:
    published = json.loads(Path("tests/workloads/hugging_face.json").read_text())["published"]
    config = next(entry["config"] for entry in published if entry["name"] == "Nemotron-3-Nano-30B-A3B")
    path = tmp_path / "nano.json"
    path.write_text(json.dumps(config))
    said = " ".join(invoke("models", "show", str(path))[1].split())
    assert "52 transformer layers, hidden size 2688, 29 with attention alone, 23 with an MLP alone" in said
    assert "in 23 of 29 layers mamba2 instead" in said
    assert "in 23 transformer layers ends" in said  # no dense MLP is in the others
