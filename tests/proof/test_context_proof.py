"""Attention whose sequence is cut between ranks computes the gradients of one device, however keys and values move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.lib import Model

WINDOWED = mt.Transformer(
    num_layers=1, hidden_size=32, ffn_hidden_size=48, num_heads=4, num_kv_heads=2, vocab_size=40, seq_len=24, window=7,
    mlp="swiglu", norm="rmsnorm", positions="rotary", bias=False,
)  # fmt: skip
GPT = mt.Transformer(
    num_layers=1, hidden_size=32, num_heads=4, vocab_size=40, seq_len=24, attention="unfused", tied_embeddings=False
)

SIZES: list[dict[str, Any]] = [
    {"world_size": 2},
    {"world_size": 3, "workload": WINDOWED},
    {"world_size": 4, "balanced": False},
    {"world_size": 4, "cp": 2, "microbatch_size": 1},
    {"world_size": 4, "cp": 2, "tp": 2},
    {"world_size": 6, "cp": 3, "workload": GPT, "global_batch_size": 6, "microbatch_size": 2},
    {"world_size": 4, "recompute": "full", "workload": WINDOWED},
    {"world_size": 4, "cp": 2, "tp": 2, "recompute": "selective", "workload": GPT, "balanced": False},
    {"world_size": 8, "cp": 4, "tp": 2, "microbatch_size": 1},
    {"world_size": 2, "cp": 1},
]


@pytest.mark.few(2)
@pytest.mark.parametrize("options", SIZES, ids=lambda options: ", ".join(f"{k}={v!s:.9}" for k, v in options.items()))
@pytest.mark.parametrize("name", ["ring_attention", "gathered_context"])
def test_a_cut_sequence_trains_as_a_whole_one_does(name: str, options: dict[str, Any]) -> None:
    proof = mt.prove(name, **{"workload": "tiny", "global_batch_size": 4, **options})
    assert proof.largest < 1e-9


def test_a_block_that_is_merged_with_the_wrong_weight_is_found() -> None:
    """Merge two blocks by the mean of what they gave, as if each had half of the attention."""

    async def averages(model: Model) -> mt.StrategyModel:
        attended: Any = type(model).attend

        def half(*given: Any) -> Any:
            made = attended(model, *given)
            found = made._content
            made._content = type(found)(found.output, np.zeros_like(found.log_sum_exp))
            return made

        model.attend = half  # type: ignore[assignment,method-assign]
        return await mt.strategies()["ring_attention"](model)

    with pytest.raises(mt.ProofError, match="differs from single-device training"):
        mt.prove(averages, workload="tiny", global_batch_size=2, world_size=2)


def test_keys_and_values_may_be_made_again_for_the_way_back() -> None:
    async def makes_them_again(model: Model) -> mt.StrategyModel:
        project: Any = type(model).backward_project

        def after_making_them(layer: int, x: Any, grad: Any, weight: Any) -> Any:
            model.keys_values(layer, x, weight)
            return project(model, layer, x, grad, weight)

        model.backward_project = after_making_them  # type: ignore[assignment,method-assign]
        return await mt.strategies()["ring_attention"](model)

    assert mt.prove(makes_them_again, workload="tiny", global_batch_size=2, world_size=2).largest < 1e-9
