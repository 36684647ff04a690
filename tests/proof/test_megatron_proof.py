"""Every way in which `megatron` divides a model computes what one device does, in any order of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import minitrain as mt
from minitrain import schedules
from tests.small_transformers import DEEPSEEK_LIKE, LLAMA_LIKE, MIXTRAL_LIKE, QWEN_LIKE

STAGES = [1, 2, 2, 1]
DENSE: list[dict[str, Any]] = [
    {"world_size": 8, "cp": 2, "tp": 2, "pp": 2},
    {"world_size": 8, "cp": 2, "tp": 2, "pp": 2, "cp_comm_type": "all_gather", "recompute": "full"},
    {"world_size": 8, "cp": 2, "tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1, "recompute": "full"},
    {"world_size": 8, "cp": 2, "tp": 2, "sequence_parallel": True, "zero": 2, "cp_comm_type": "all_gather"},
    {"world_size": 4, "cp": 2, "pp": 2, "recompute": "full", "schedule": "zb_h1"},
    {"world_size": 4, "cp": 2, "pp": 2, "schedule": "zbv", "layers_per_stage": STAGES},
    {"world_size": 8, "tp": 2, "pp": 2, "schedule": "zb_h1", "zero": 2},
    {"world_size": 8, "tp": 2, "pp": 2, "sequence_parallel": True, "schedule": "zb_h1", "zero": 3},
    {"world_size": 8, "tp": 2, "zero": 3, "shard_size": 2, "sequence_parallel": True},
    {"world_size": 8, "cp": 2, "zero": 1, "shard_size": 2},
    {"world_size": 4, "cp": 2, "tp": 2, "sequence_parallel": True, "recompute": "self_attn"},
    {"world_size": 4, "tp": 2, "pp": 2, "sequence_parallel": True, "recompute": "mlp+core_attn"},
]
EXPERTS: list[dict[str, Any]] = [
    {"world_size": 8, "pp": 2, "ep": 2, "zero": 1},
    {"world_size": 8, "pp": 2, "ep": 4, "schedule": "dualpipe_v"},
    {"world_size": 8, "ep": 2, "zero": 3, "shard_size": 4},
    {"world_size": 4, "pp": 2, "ep": 2, "schedule": "zb_h1"},
    {"world_size": 4, "tp": 2, "ep": 4, "sequence_parallel": True, "zero": 1},
    {"world_size": 8, "tp": 2, "ep": 4, "pp": 2, "sequence_parallel": True, "schedule": "zb_h1"},
    {"world_size": 8, "tp": 2, "ep": 2, "zero": 3, "sequence_parallel": True, "pp": 2, "schedule": "dualpipe_v"},
    {"world_size": 8, "pp": 2, "ep": 4, "zero": 1, "recompute": "full"},
    {"world_size": 4, "tp": 2, "ep": 4, "sequence_parallel": True, "recompute": "moe+layernorm+mla_up_proj"},
    {"world_size": 8, "pp": 2, "ep": 4, "schedule": "dualpipe_v", "recompute": "moe_act+shared_experts+layernorm"},
]


def by_turns(first: mt.Transformer, second: mt.Transformer, divisions: Sequence[dict[str, Any]]) -> list[Any]:
    """Return both models in all divisions, of which one in two is slow: each model, and each division once, is not."""
    return [
        pytest.param(model, options, id=f"{model.name}-{options}", marks=pytest.mark.slow if turn % 2 else ())
        for place, options in enumerate(divisions)
        for turn, model in enumerate((first, second), start=place)
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize(("workload", "options"), by_turns(LLAMA_LIKE, QWEN_LIKE, DENSE))
def test_a_dense_model_trains_as_on_one_device(workload: mt.Transformer, options: dict[str, Any]) -> None:
    proof = mt.prove("megatron", workload=workload, global_batch_size=8, microbatch_size=1, **options)
    assert proof.largest_relative < 1e-9


@pytest.mark.few(1)
@pytest.mark.parametrize(("workload", "options"), by_turns(MIXTRAL_LIKE, DEEPSEEK_LIKE, EXPERTS))
def test_a_model_with_experts_trains_as_on_one_device(workload: mt.Transformer, options: dict[str, Any]) -> None:
    stages: dict[str, Any] = {"layers_per_stage": STAGES} if options.get("schedule") == "dualpipe_v" else {}
    proof = mt.prove("megatron", workload=workload, global_batch_size=16, microbatch_size=1, **options, **stages)
    assert proof.largest_relative < 1e-9


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{"cp": 2, "ep": 2}, {"cp": 2, "ep": 4, "tp": 2, "sequence_parallel": True}])
def test_experts_train_on_tokens_of_shared_sequences(options: dict[str, Any]) -> None:
    proof = mt.prove("megatron", workload=MIXTRAL_LIKE, world_size=8, global_batch_size=8, zero=1, **options)
    assert proof.largest_relative < 1e-9


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{"tp": 2}, {"cp": 2}, {"tp": 2, "cp": 2}], ids=str)
def test_an_order_of_ones_own_trains_a_divided_model(options: dict[str, Any]) -> None:
    strategy = mt.from_schedule(schedules.zbv(2, 4))
    world_size = 2 * options.get("tp", 1) * options.get("cp", 1)
    sizes: dict[str, Any] = {"world_size": world_size, "global_batch_size": 4, "layers_per_stage": STAGES}
    assert mt.prove(strategy, workload=LLAMA_LIKE, **sizes, **options).largest_relative < 1e-9
