"""What is stored of a validation, and what runs say of it."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.validation import similar_runs
from minitrain.validation.similar_runs import NOTHING_LIKE_IT, StoredError, how_sure, stored_errors, stored_means
from minitrain.validation.stored import stored, worse
from minitrain.validation.tables_of_package import tables_folder

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_the_tables_and_what_is_stored() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]["minitrain.validation"]
    assert "minitrain.validation" in settings["packages"]
    room = tables_folder().parent
    data = [str(file.relative_to(room)) for file in room.rglob("*") if file.suffix in (".csv", ".json")]
    assert len(data) > 10
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in data)


def test_what_is_stored_is_what_validating_gives() -> None:
    found = stored(mt.validate(["c2", "e2", "b3"]))
    means = stored_means()
    for name, mean in found["means"].items():
        assert means[name] == pytest.approx(mean, abs=2e-4), "python -m minitrain.validation.stored writes it anew"
    ours = [list(vars_of(each)) for each in stored_errors() if each.table == "b3"]
    assert ours == found["errors"]


def vars_of(error: StoredError) -> tuple[Any, ...]:
    return error.table, error.device, error.is_gated, error.world_size, error.error


def test_a_mean_that_is_worse_by_more_than_half_a_point_is_told() -> None:
    assert worse({"a": 0.049, "b": 0.056}, {"a": 0.045, "b": 0.05}) == ["b: 5.6 %, was 5.0 %"]
    assert worse({}, {"a": 0.01}) == ["a: missing, was 1.0 %"]


def test_a_run_says_how_far_runs_like_it_were_off() -> None:
    run = mt.simulate("ddp", workload="gpt2", global_batch_size=8, hardware="a100_80g", fidelity="kernels")
    assert run.sureness.startswith("+- ")
    assert "validated A100 GPT-like runs" in run.sureness
    assert run.sureness in repr(run)


def test_a_run_that_nothing_is_like_says_so() -> None:
    run = mt.simulate("ddp", workload="gpt2", global_batch_size=8, hardware="b200_192g_nvl8", fidelity="kernels")
    assert run.sureness == NOTHING_LIKE_IT


def test_a_run_at_the_roofline_says_nothing_of_it() -> None:
    run = mt.simulate("ddp", workload="gpt2", global_batch_size=8)
    assert "validated" not in repr(run)


def test_likeness_is_device_then_kind_and_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    near = [StoredError("t", "a100", is_gated=True, world_size=64, error=0.01 * k) for k in range(10)]
    far = [StoredError("t", "a100", is_gated=False, world_size=4096, error=0.5)] * 8
    monkeypatch.setattr(similar_runs, "stored_errors", lambda: (*near, *far))
    found = how_sure("a100_80g", is_gated=True, world_size=128)
    assert found is not None
    assert (found.num_runs, found.error) == (10, 0.08)
    assert str(found) == "+- 8 % (90 % of 10 validated A100 Llama-like runs)"
    beyond = how_sure("a100_40g", is_gated=True, world_size=4096)
    assert beyond is not None
    assert (beyond.num_runs, beyond.error) == (18, 0.5)
    assert how_sure("h100_80g_nvl8", is_gated=True, world_size=64) is None
