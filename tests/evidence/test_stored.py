"""What is stored of a validation, and what runs say of it."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.evidence import similar_runs
from minitrain.evidence.errors_by_table import tables_folder
from minitrain.evidence.similar_runs import NOTHING_LIKE_IT, Likeness, StoredError, stored_errors, stored_means
from minitrain.evidence.stored import main, stored, worse

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_the_tables_and_what_is_stored() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]["minitrain.evidence"]
    assert "minitrain.evidence" in settings["packages"]
    room = tables_folder().parent
    data = [str(file.relative_to(room)) for file in room.rglob("*") if file.suffix in (".csv", ".json")]
    assert len(data) > 10
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in data)


def test_what_is_stored_is_what_validating_gives() -> None:
    done = mt.validate(["c2", "e2", "b3"])
    found = stored(done)
    means = stored_means()
    for name, mean in found["means"].items():
        assert means[name] == pytest.approx(mean, abs=2e-4), "python -m minitrain.evidence.stored writes it anew"
    ours = [list(vars_of(each)) for each in stored_errors() if each.table == "b3"]
    assert ours == found["errors"]


def vars_of(error: StoredError) -> tuple[Any, ...]:
    return tuple(getattr(error, field.name) for field in fields(error))


def test_a_mean_that_is_worse_by_more_than_half_a_point_is_told() -> None:
    assert worse({"a": 0.049, "b": 0.056}, {"a": 0.045, "b": 0.05}) == ["b: 5.6 %, was 5.0 %"]
    assert worse({}, {"a": 0.01}) == ["a: missing, was 1.0 %"]


SMALL: dict[str, Any] = {"workload": "gpt2", "global_batch_size": 8}
NEAR: dict[str, Any] = {"platform": "nemo-h100", "device": "h100", "kind": "Llama-like"}


def test_a_run_says_how_far_runs_like_it_were_off(tmp_path: Path) -> None:
    run = mt.simulate("megatron", workload="llama3-8b", world_size=64, global_batch_size=64, tp=8)
    assert run.sureness.startswith("+- ")
    assert run.sureness.endswith(" runs of nemo-h100 on H100, Llama-like, tp)")
    assert run.sureness in repr(run)
    assert run.summary()["sureness"] == run.sureness
    run.save(tmp_path / "run.jsonl")
    assert mt.load_run(tmp_path / "run.jsonl").sureness == run.sureness


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"hardware": "gb200_nvl72"}, " (no run of compiled-fsdp-b200 on GB200)"),
        ({}, " (compiled-fsdp on H100: no GPT-like model)"),
        ({"fidelity": "roofline"}, ""),
        ({"platform": "components"}, " (no run of components on H100, GPT-like"),
        ({"platform": mt.Platform(name="mine")}, " (no run of mine on H100)"),
    ],
)
def test_a_run_that_nothing_is_like_says_so_and_why(given: dict[str, Any], why: str) -> None:
    said = mt.simulate("ddp", **SMALL, **given).sureness
    assert said == f"{NOTHING_LIKE_IT}{why}" or (given.get("platform") == "components" and "components" in said)


def test_a_comparison_says_it_once_for_strategies_alike() -> None:
    text = " ".join(repr(mt.compare(["ddp", "zero1", "megatron"], **SMALL)).split())
    assert text.count("nothing like it has been compared") == 1
    assert "how sure, zero1, ddp: " in text
    assert "how sure, megatron: " in text
    assert "priced by what each strategy stands for (" in text
    assert "megatron by kernels, platform nemo-h100" in text


def test_a_run_without_a_model_says_nothing_of_it() -> None:
    run = mt.simulate("ddp")
    assert "compared" not in repr(run)
    assert "sureness" not in run.summary()


def test_likeness_is_platform_device_kind_axes_and_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    near = [StoredError("t", **NEAR, axes="tp", world_size=64, error=0.01 * k) for k in range(10)]
    far = [StoredError("t", **NEAR, axes="tp", world_size=4096, error=0.5)] * 3
    piped = [StoredError("t", **NEAR, axes="pp", world_size=64, error=0.2)] * 5
    monkeypatch.setattr(similar_runs, "stored_errors", lambda: (*near, *far, *piped))
    given = Likeness(
        priced_by="kernels, platform nemo-h100",
        hardware="h100_80g_nvl8",
        kind="Llama-like",
        axes={"tp": 8, "dp": 2},
        world_size=128,
    )
    assert given.how_sure() == "+- 8 % (90 % of 10 runs of nemo-h100 on H100, Llama-like, tp)"
    large = replace(given, world_size=100_000).how_sure()
    assert large == "+- 50 % (90 % of 13 runs of nemo-h100 on H100, Llama-like, tp, at other scales)"
    both = replace(given, axes={"tp": 8, "pp": 2}).how_sure()
    assert both == "+- 50 % (90 % of 18 runs of nemo-h100 on H100, Llama-like, other layouts)"
    none = replace(given, axes={"ep": 8}).how_sure()
    assert none == f"{NOTHING_LIKE_IT} (nemo-h100 on H100, Llama-like: no run with ep)"
    assert replace(given, priced_by="kernels, platform nemo-h100, without waves").how_sure() == NOTHING_LIKE_IT


def test_words_that_the_command_does_not_know_start_no_validation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--chekc"])
    assert "--chekc" in capsys.readouterr().err
