"""Sparse attention with an indexer, as DeepSeek-V3.2 has it: parameters, operations, memory, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.workloads.kernels import FlashAttention
from minitrain.workloads.shapes import AttentionCore, Degrees, Work
from minitrain.workloads.unit_kernels import backward_kernels, forward_kernels

CONFIG: dict[str, Any] = next(
    row["config"]
    for row in json.loads((Path(__file__).parent / "hugging_face.json").read_text())["published"]
    if row["name"] == "DeepSeek-V3.2"
)
SPARSE = mt.Transformer.from_hf(CONFIG, seq_len=32768)
DENSE = replace(SPARSE, sparse=None)
LENGTH, CHOSEN = 32768, 2048
PAIRS = LENGTH * (LENGTH + 1) // 2
CHOSEN_PAIRS = CHOSEN * (CHOSEN + 1) // 2 + (LENGTH - CHOSEN) * CHOSEN
SMALL = mt.Transformer(
    num_layers=2, hidden_size=64, num_heads=4, ffn_hidden_size=128, vocab_size=256, seq_len=64, mlp="swiglu",
    norm="rmsnorm", latent=mt.LatentAttention(kv_rank=16, rope_head_dim=4, nope_head_dim=8, value_head_dim=8,
    query_rank=16), sparse=mt.SparseAttention(num_heads=2, head_dim=8, top_k=16),
)  # fmt: skip

WITHOUT_EXPERTS: dict[str, Any] = {
    "experts_per_token": 0, "num_shared_experts": 0, "moe_layers": (), "router_bias": False, "expert_groups": 1,
    "groups_per_token": 1,
}  # fmt: skip


def core_of(model: mt.Transformer) -> AttentionCore:
    core = model.units()[1].core
    assert core is not None
    return core


def test_an_indexer_has_queries_of_latents_one_key_and_weights_of_its_heads() -> None:
    of_layer = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128
    assert SPARSE.num_parameters - DENSE.num_parameters == 61 * of_layer


def test_the_attention_multiplies_chosen_keys_and_the_indexer_all() -> None:
    attended = 2 * 128 * (576 + 512) * CHOSEN_PAIRS  # on latents of 512 and rotary keys of 64
    indexed = 2 * 64 * 128
    assert core_of(SPARSE).flop(LENGTH, causal=True) == attended + indexed * PAIRS
    projected = LENGTH * 2 * (1536 * 64 * 128 + 7168 * (128 + 64))
    unit, usual = SPARSE.units()[1], DENSE.units()[1]
    more = unit.forward_flop(LENGTH, causal=True) - usual.forward_flop(LENGTH, causal=True)
    assert more == attended + indexed * PAIRS + projected - 2 * 128 * (192 + 128) * PAIRS
    trained = unit.training_flop(LENGTH, causal=True) - 3 * unit.forward_flop(LENGTH, causal=True)
    assert trained == -2 * indexed * (PAIRS - CHOSEN_PAIRS)  # keys that are not chosen have no gradient


def test_long_sequences_cost_less_than_dense_attention_and_short_ones_more() -> None:
    ratios = [
        SPARSE.flop_per_token(length, causal=True) / DENSE.flop_per_token(length, causal=True)
        for length in (2048, 32768, 131072)
    ]
    assert ratios[0] > 1 > ratios[1] > ratios[2]


def test_kernels_are_the_indexers_and_the_attentions() -> None:
    work = Work(1, LENGTH, Degrees(tp=8))
    found = {}
    for name, listed in (("forward", forward_kernels), ("backward", backward_kernels)):
        kernels = listed(SPARSE, SPARSE.units()[1], work).kernels
        found[name] = [(each.num_heads, each.num_kv_heads, each.num_pairs) for each in kernels
                       if isinstance(each, FlashAttention)]  # fmt: skip
    # Every rank has all heads of the indexer, and some of the attention's.
    assert found["forward"] == [(64, 1, PAIRS), (16, 1, CHOSEN_PAIRS)]
    assert found["backward"] == [(64, 1, CHOSEN_PAIRS), (16, 1, CHOSEN_PAIRS)]
    choice = next(each for each in forward_kernels(SPARSE, SPARSE.units()[1], work).kernels if "choice" in each.title)
    assert choice.traffic_bytes == 8 * PAIRS


def test_what_is_kept_are_queries_of_latents_and_places_of_keys() -> None:
    sparse, dense = (model.units()[1].saved_bytes(Work(1, LENGTH)) / LENGTH for model in (SPARSE, DENSE))
    queries, output, keys = 2 * 128 * 576, 2 * 128 * 512, 2 * 576 - 2 * 128 * (192 + 128)
    indexer = 2 * (65 * 128 + 64) + 8 * 2048
    assert sparse - dense == queries + output + keys + indexer


@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
@pytest.mark.parametrize("options", [{}, {"recompute": "full"}])
def test_strategies_train_it(options: dict[str, Any], fidelity: str) -> None:
    given: dict[str, Any] = {"world_size": 2, "global_batch_size": 2, "fidelity": fidelity, **options}
    long = mt.Transformer.from_hf({**CONFIG, "num_hidden_layers": 1}, seq_len=131072, num_experts=0, **WITHOUT_EXPERTS)
    times = [mt.simulate("fsdp", workload=model, **given).step_time for model in (long, replace(long, sparse=None))]
    assert 0 < times[0] < times[1]


def test_ranks_that_divide_a_sequence_are_refused() -> None:
    with pytest.raises(mt.UsageError, match=r"sparse attention must have the whole sequence.*zero3"):
        mt.simulate("ring_attention", world_size=2, global_batch_size=2, workload=SMALL)
    with pytest.raises(mt.UsageError, match="with real arrays"):
        mt.prove("ddp", world_size=2, workload=SMALL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": None}, "sparse must not be given without latents of queries"),
        ({"window": 8}, "window must be left out with sparse attention"),
        ({"attention": "unfused"}, "attention must be left out with sparse attention"),
    ],
)
def test_what_contradicts_it_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        replace(SMALL, **changes)
    with pytest.raises(mt.UsageError, match="top_k must be"):
        mt.SparseAttention(num_heads=1, head_dim=1, top_k=0)


def test_layers_without_an_indexer_are_refused() -> None:
    for key in ("layer_types", "indexer_types"):
        with pytest.raises(mt.UsageError, match=f"{key} must be"):
            mt.Transformer.from_hf({**CONFIG, key: ["shared"] * 61})
