"""Searches for models with experts: what is left out is worse, and what does not fit is left early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import MinitrainError, UsageError
from minitrain.machine import load_config
from minitrain.search.tuning.bounds import bound_of
from minitrain.search.tuning.problem import TuningProblem, axes_of, candidates

_GIVEN: dict[str, Any] = {"world_size": 4, "global_batch_size": 16, "jobs": 1, "fidelity": "roofline"}
_SPACE = {"pp": [1, 2], "ep": [1, 2], "microbatch_size": [1], "zero": [1]}


def searched(prune: str, **more: Any) -> Any:
    return mt.tune("tiny-moe", strategies="deepseek_like", space=_SPACE, prune=prune, **{**_GIVEN, **more})


def test_recomputation_is_left_out_where_a_layout_fits_without_and_is_never_the_best() -> None:
    few, all_of_them = searched("auto"), searched("none")
    left_out = [row for row in few.rows if row["reason"] == "it fits with less recomputation"]
    assert left_out
    assert few.best.row == all_of_them.best.row
    for row in left_out:
        same = [one for one in all_of_them.rows if (one["pp"], one["ep"]) == (row["pp"], row["ep"])]
        with_it, without = (next(one for one in same if one["recompute"] == how) for how in (row["recompute"], "none"))
        assert with_it["step_time_s"] >= without["step_time_s"]


def test_a_layout_that_does_not_fit_is_left_as_soon_as_that_is_seen() -> None:
    system = load_config("h100_80g_nvl8")
    small = replace(system, mem1=replace(system.mem1, GiB=1e-5, usable_GiB=None))
    (early, whole) = (searched(prune, hardware=small) for prune in ("auto", "none"))
    assert early.counts == whole.counts
    full = [row for row in early.rows if row["status"] == "out of memory"]
    assert full
    assert all(row["step_time_s"] is None and "at least" in row["reason"] for row in full)


def test_experts_are_searched_in_interleaved_pipelines_and_said_in_other_words() -> None:
    found = mt.tune("tiny-moe", world_size=8, global_batch_size=32, strategies="megatron", jobs=1)
    assert {(row["pp"], row["ep"]) for row in found.rows} >= {(1, 1), (1, 8)}
    assert "--num-experts 8" in found.best.words("megatron-lm")
    with pytest.raises(UsageError, match=r"calculon cannot say .*: it has no layers with experts"):
        found.best.words("calculon")


def test_a_pipeline_of_many_layers_with_experts_has_words() -> None:
    model = mt.Transformer(
        num_layers=16,
        hidden_size=64,
        num_heads=8,
        vocab_size=256,
        seq_len=32,
        mlp="swiglu",
        num_experts=8,
        experts_per_token=2,
        ffn_hidden_size=64,
        moe_ffn_hidden_size=64,
    )
    space: dict[str, Any] = {"pp": [2], "ep": [4], "num_chunks": [2], "recompute": ["none"]}
    found = mt.tune(model, world_size=8, global_batch_size=16, strategies="megatron", space=space, jobs=1)
    assert "--expert-model-parallel-size 4" in found.best.words("megatron-lm")


@pytest.mark.ci
@pytest.mark.parametrize("strategy", ["megatron", "deepseek_like", "fsdp"])
def test_bounds_of_layouts_with_experts_are_never_above_what_they_take(strategy: str) -> None:
    problem = TuningProblem("tiny-moe", "h100_80g_nvl8", 8, 32, {}).by(strategy)
    machine = problem.machine
    axes = axes_of(strategy, machine, {"pp": [1, 2], "num_chunks": [1, 2], "microbatch_size": [1, 2]})
    num_bounds = 0
    for candidate in list(candidates(strategy, machine, axes, 1))[::2]:
        bound = bound_of(candidate, machine)
        try:
            run = mt.simulate(strategy, fold=True, check=False, **candidate.parameters)
        except MinitrainError:  # a rule that the bound does not know
            continue
        assert 0 < bound.step_time_s <= run.step_time
        assert 0 < bound.peak_memory_bytes <= run.peak_memory_bytes
        num_bounds += 1
    assert num_bounds >= 4


def test_more_recomputation_of_another_kind_is_no_reason_to_leave_a_layout_out() -> None:
    space: dict[str, Any] = {
        "pp": [1],
        "ep": [4],
        "num_chunks": [1],
        "recompute": ["moe", "layernorm+moe_act", "layernorm+moe"],
    }
    found = mt.tune("tiny-moe", strategies="megatron", space=space, **_GIVEN)
    reasons = {row["recompute"]: row["reason"] for row in found.rows}
    assert reasons["layernorm+moe_act"] != "it fits with less recomputation"
    assert found.best.row["recompute"] == "layernorm+moe_act"
    assert reasons["layernorm+moe"] is not None
