"""Bytes kept for backward: Korthikanti et al. (2022), table 2 and section 4.3, exactly, and what differs from GPT."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.workloads.shapes import WHOLE, Degrees, Work
from minitrain.workloads.transformer_workload import TransformerWorkload
from minitrain.workloads.workload import Recompute

COUNT = st.integers(1, 6)


def gpt(heads: int, size: int, length: int, **fields: Any) -> mt.Transformer:
    """Return the paper's model: 16 bits, dropout, scores stored."""
    usual = {"dropout": 0.1, "attention": "unfused", "num_layers": 1, "vocab_size": 64, **fields}
    return mt.Transformer(hidden_size=heads * size, num_heads=heads, seq_len=length, **usual)


def layer_bytes(model: mt.Transformer, work: Work, recompute: Recompute = "none") -> int:
    """Return what the units of transformer layer 0 keep."""
    return sum(unit.saved_bytes(work, recompute) for unit in model.units() if unit.layer == 0)


@settings(max_examples=80, deadline=None)
@given(tp=COUNT, heads_a_rank=COUNT, size=COUNT, length_a_rank=st.integers(1, 50), samples=COUNT)
def test_a_transformer_layer_keeps_what_korthikanti_says(
    tp: int, heads_a_rank: int, size: int, length_a_rank: int, samples: int
) -> None:
    a, s, h, b, t = heads_a_rank * tp, length_a_rank * tp, heads_a_rank * tp * size, samples, tp
    model = gpt(a, size, s)
    alone, divided = Work(b, s), Work(b, s, Degrees(tp=t))
    along_the_sequence = Work(b, s, Degrees(tp=t, sequence_parallel=True))
    assert layer_bytes(model, alone) == s * b * h * (34 + Fraction(5 * a * s, h))
    assert layer_bytes(model, divided) == s * b * h * (10 + Fraction(24, t) + Fraction(5 * a * s, h * t))
    assert layer_bytes(model, along_the_sequence) == Fraction(s * b * h, t) * (34 + Fraction(5 * a * s, h))
    assert layer_bytes(model, along_the_sequence, "selective") == Fraction(34 * s * b * h, t)
    assert layer_bytes(model, divided, "selective") == s * b * h * (10 + Fraction(24, t))
    assert layer_bytes(model, alone, "full") == layer_bytes(model, divided, "full") == 2 * s * b * h


@settings(max_examples=40, deadline=None)
@given(tp=COUNT, heads_a_rank=COUNT, size=COUNT, length_a_rank=st.integers(1, 50), samples=COUNT)
def test_the_ends_keep_what_korthikanti_says(
    tp: int, heads_a_rank: int, size: int, length_a_rank: int, samples: int
) -> None:
    s, h, b, t = length_a_rank * tp, heads_a_rank * tp * size, samples, tp
    model = gpt(heads_a_rank * tp, size, s, vocab_size=12 * tp)
    work = Work(b, s, Degrees(tp=t, sequence_parallel=True))
    embedding, *_, head = model.units()
    for recompute in ("none", "selective", "full"):
        assert embedding.saved_bytes(work, recompute) == Fraction(s * b * h, t)
        assert head.saved_bytes(work, recompute) == Fraction(4 * s * b * h, t) * (1 + Fraction(12 * t, h))


def test_gpt3s_layer_keeps_2_86_gb_a_sample_without_parallelism() -> None:
    model = mt.models()["megatron-175b"]
    assert layer_bytes(model, Work(1, 2048)) == 2048 * (34 * 12288 + 5 * 96 * 2048)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_attention_and_mlp_share_the_layers_bytes(precision: str) -> None:
    model = gpt(4, 8, 16, precision=precision)
    _, attention, mlp, _ = model.units()
    token = 16 * 32
    assert attention.saved_bytes(Work(1, 16)) == token * 13 + 5 * 4 * 16**2
    assert mlp.saved_bytes(Work(1, 16)) == token * 21


def test_without_dropout_no_masks_are_kept() -> None:
    model = gpt(4, 8, 16, dropout=0)
    assert layer_bytes(model, Work(1, 16)) == 32 * 16 * 32 + 2 * 4 * 16**2


def test_flash_attention_keeps_a_sum_a_query_and_nothing_more_can_be_selected() -> None:
    model = gpt(4, 8, 16, attention="flash")
    assert layer_bytes(model, Work(1, 16)) == layer_bytes(model, Work(1, 16), "selective") == 34 * 16 * 32 + 4 * 4 * 16


def test_single_precision_doubles_all_but_masks() -> None:
    model = gpt(4, 8, 16, precision="fp32")
    masks = 16 * 32 * 2 + 4 * 16**2
    assert layer_bytes(model, Work(1, 16)) - masks == 2 * (layer_bytes(gpt(4, 8, 16), Work(1, 16)) - masks)


def test_grouped_keys_and_swiglu_keep_what_they_have() -> None:
    model = mt.models()["llama3-8b"]
    h, kv, f, heads = 4096, 1024, 14336, 32
    attention = 2 * (h + h + h + 2 * kv + h) + 4 * heads
    mlp = 2 * (h + h + 2 * f + f)
    assert layer_bytes(model, Work(3, 8192)) == 3 * 8192 * (attention + mlp)


def test_relu_keeps_its_output_alone() -> None:
    assert layer_bytes(gpt(4, 8, 16, mlp="relu"), Work(1, 16)) == layer_bytes(gpt(4, 8, 16), Work(1, 16)) - 8 * 16 * 32


def test_latent_attention_keeps_latents_and_the_keys_and_values_of_all_heads() -> None:
    _, attention, *_ = mt.models()["deepseek-v3"].units()
    latents, queries_and_keys, values = 2 * 1536 + 2 * 512, 2 * 128 * 192, 2 * 128 * 128
    token = 2 * (7168 + 7168 + latents + queries_and_keys + values) + 4 * 128
    assert attention.saved_bytes(Work(1, 4096)) == 4096 * token


def test_experts_keep_a_copy_a_token_and_expert() -> None:
    _, _, moe, *_ = mt.models()["mixtral-8x7b"].units()
    h, f = 4096, 14336
    token = 2 * (h + h) + 4 * 8 + 2 * 2 * (h + 2 * f + f)  # what comes back from them is not kept
    assert moe.saved_bytes(Work(1, 64)) == 64 * token
    assert moe.saved_bytes(Work(1, 64), "full") == 0


def test_context_parallelism_divides_what_is_kept() -> None:
    model = mt.models()["llama3-8b"]
    assert 4 * layer_bytes(model, Work(1, 8192, Degrees(cp=4))) == layer_bytes(model, Work(1, 8192))


def test_a_sequence_that_does_not_divide_is_refused() -> None:
    with pytest.raises(
        mt.UsageError, match=r"seq_len \(6\) must be a multiple of cp x tp \(4\); use cp x tp=3, or .* seq_len=8"
    ):
        layer_bytes(gpt(4, 8, 6), Work(1, 6, Degrees(tp=4, sequence_parallel=True)))


def test_checkpoints_of_single_operations_keep_every_other_product() -> None:
    """Of Llama 3 8B: input, queries, values, attention's result and statistics, gate, and what the MLP makes."""
    model = mt.models()["llama3-8b"]
    workload = TransformerWorkload(model)
    unit_bytes = {unit.kind: unit.saved_bytes(Work(1, 8192, WHOLE), "op") for unit in workload.units}
    hidden, columns, heads = 4096, 14336, 32
    assert unit_bytes["attention"] == 8192 * (2 * (hidden + hidden + 1024 + hidden) + 4 * heads)
    assert unit_bytes["mlp"] == 8192 * 2 * (hidden + columns)


def test_all_parts_of_a_layer_by_maxtexts_names_are_the_whole_layer() -> None:
    every = "layernorm+mlp+qkv_proj+context+out_proj"
    sizes: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 256,
        "num_heads": 4,
        "vocab_size": 64,
        "seq_len": 32,
        "ffn_hidden_size": 768,
    }
    model = mt.Transformer(**sizes, attention="flash", mlp="swiglu", norm="rmsnorm")
    attention, mlp = TransformerWorkload(model).units[1:3]
    for unit in (attention, mlp):
        work = Work(2, model.seq_len, WHOLE)
        assert unit.saved_bytes(work, every) == unit.saved_bytes(work, "full")
        assert unit.recomputed_flop(model.seq_len, every) == unit.recomputed_flop(model.seq_len, "full")
    assert 3 * mlp.recomputed_flop(model.seq_len, "mlp_up") == mlp.recomputed_flop(model.seq_len, "mlp")
    assert mlp.saved_bytes(work, "none") - mlp.saved_bytes(work, "mlp_up") == 2 * 2 * model.seq_len * 768
    core = attention.recomputed_flop(model.seq_len, "context")
    assert attention.recomputed_flop(model.seq_len, "qkv_proj") == 3 * attention.recomputed_flop(
        model.seq_len, "out_proj"
    )
    assert core == attention.recomputed_flop(model.seq_len, "flash_attn")
