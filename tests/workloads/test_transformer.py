"""The value: what follows from its fields, which rules they obey, and how its units are cut."""

from __future__ import annotations

import dataclasses
import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.workloads.shapes import Degrees

SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 64, "seq_len": 16}
LATENT = mt.LatentAttention(kv_rank=8, rope_head_dim=2, nope_head_dim=6, value_head_dim=4)


FIELDS = [field.name for field in dataclasses.fields(mt.Transformer)]
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 3), max_size=3),
)


def made(**fields: Any) -> mt.Transformer:
    return mt.Transformer(**{**SIZES, **fields})


def faults_of(**fields: Any) -> tuple[str, ...]:
    with pytest.raises(mt.UsageError, match="the transformer") as caught:
        made(**fields)
    faults: tuple[str, ...] = caught.value.facts["faults"]
    return faults


def test_what_is_not_given_follows_gpt2_with_layernorm() -> None:
    model = made()
    assert (model.ffn_hidden_size, model.num_kv_heads, model.head_dim) == (128, 4, 8)
    assert (model.positions, model.num_positions, model.bias, model.tied_embeddings) == ("learned", 16, True, True)


def test_what_is_not_given_follows_llama_with_rmsnorm() -> None:
    model = made(norm="rmsnorm", mlp="swiglu", ffn_hidden_size=96)
    assert (model.positions, model.bias, model.qkv_bias, model.tied_embeddings) == ("rotary", False, False, False)


def test_the_default_precision_is_mixed_with_gradients_in_single() -> None:
    sizes = made().precision
    assert (sizes.parameter_bytes, sizes.gradient_bytes, sizes.optimizer_bytes, sizes.activation_bytes) == (2, 4, 12, 2)
    assert made(precision="fp32").precision.bytes_per_parameter == 16


def test_a_model_is_a_frozen_value() -> None:
    model = mt.models()["deepseek-v3"]
    assert pickle.loads(pickle.dumps(model)) == model == dataclasses.replace(model)
    assert hash(model) == hash(dataclasses.replace(model))
    with pytest.raises(dataclasses.FrozenInstanceError, match="num_layers"):
        model.num_layers = 3  # type: ignore[misc]
    assert not hasattr(model, "__dict__")


def test_a_field_can_be_replaced() -> None:
    assert dataclasses.replace(mt.models()["llama3-8b"], seq_len=131072).flop_per_token() > 1e11


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": 0}, "num_layers must be an integer of at least 1, got 0; write num_layers=8"),
        ({"vocab_size": True}, "vocab_size must be an integer of at least 1, got True; write vocab_size=8"),
        ({"hidden_size": None}, "hidden_size must be an integer of at least 1, got None; write hidden_size=8"),
        (
            {"num_experts": -1},
            "num_experts must be an integer of at least 0, got -1; write num_experts=8, or 0 for none",
        ),
        ({"bias": 1}, "bias must be True or False, got 1; use one of them"),
        (
            {"mlp": "swigl"},
            'mlp must be "gelu" or "relu" or "relu2" or "swiglu" or "geglu", got "swigl"; did you mean "swiglu"?',
        ),
        ({"norm": 3}, 'norm must be "layernorm" or "rmsnorm", got 3; use one of them'),
        ({"dropout": 1}, "dropout must be a probability in [0, 1), got 1; write dropout=0.1, or 0 for none"),
        (
            {"precision": "bf61"},
            'precision must be "bf16", "fp16", "fp32", "fp8" or a Precision, got "bf61"; did you mean "bf16"?',
        ),
        (
            {"latent": 512},
            "latent must be a LatentAttention, got 512; write latent=mt.LatentAttention(kv_rank=512, ...)",
        ),
        ({"name": 4}, 'name must be a string, got 4; write name="..."'),
        (
            {"num_heads": 5},
            "hidden_size (32) must be a multiple of num_heads (5) where head_dim is not given; use hidden_size=30 or "
            "35, or give head_dim",
        ),
        ({"num_kv_heads": 3}, "num_heads (4) must be a multiple of num_kv_heads (3); use num_kv_heads=2"),
        (
            {"latent": LATENT, "num_kv_heads": 2, "head_dim": 8},
            "num_kv_heads (2) must be num_heads (4) with latent attention, where every head has keys and values of its "
            "own; leave num_kv_heads out",
        ),
        (
            {"latent": LATENT, "head_dim": 9},
            "head_dim (9) must be nope_head_dim + rope_head_dim (8) with latent attention; leave head_dim out",
        ),
        (
            {"num_positions": 8},
            "seq_len (16) must be at most num_positions (8) with learned positions; use num_positions=16 or a shorter "
            "sequence",
        ),
        (
            {"mlp": "swiglu"},
            'ffn_hidden_size must be given with mlp="swiglu", where models differ; Llama 2 rounds 8/3 hidden_size up '
            "to a multiple of 256, here ffn_hidden_size=256",
        ),
        ({"experts_per_token": 2}, "experts_per_token (2) must be 0 in a model without experts; give num_experts"),
        (
            {"num_experts": 8},
            "experts_per_token (0) must be 1 to num_experts (8); use experts_per_token=2",
        ),
        (
            {"num_shared_experts": 1, "moe_layers": [1]},
            "num_shared_experts, moe_layers must not be given in a model without experts; give num_experts",
        ),
        (
            {"num_experts": 8, "experts_per_token": 2, "moe_layers": range(1, 9)},
            "moe_layers (2, 3, 4, 5, ...) must be below num_layers (2); leave those out, or raise num_layers",
        ),
        (
            {"num_experts": 8, "experts_per_token": 2, "moe_layers": [1, 0]},
            "moe_layers must ascend, each layer once, got (1, 0); use sorted(set(...))",
        ),
        (
            {"num_experts": 8, "experts_per_token": 2, "moe_layers": ()},
            "moe_layers must not be empty in a model with experts; leave moe_layers out for all, or num_experts",
        ),
        (
            {"moe_layers": "all"},
            'moe_layers must be a sequence of transformer layers, got "all"; write moe_layers=range(3, 61)',
        ),
    ],
)  # fmt: skip
def test_a_field_that_breaks_its_rule_is_refused_with_a_remedy(fields: dict[str, Any], message: str) -> None:
    assert faults_of(**fields) == (message,)


def test_experts_need_a_size_where_none_follows() -> None:
    faults = faults_of(mlp="swiglu", norm="rmsnorm", num_experts=8, experts_per_token=2)
    assert faults == (
        'moe_ffn_hidden_size must be given with experts and mlp="swiglu"; write moe_ffn_hidden_size=2048',
    )


def test_all_faults_come_in_one_error() -> None:
    with pytest.raises(
        mt.UsageError, match=r"the transformer 'mine' has 3 faults:\n- num_layers .*\n- norm .*\n- num_heads"
    ) as caught:
        made(name="mine", num_layers=-1, norm="rms", num_kv_heads=3)
    assert len(caught.value.facts["faults"]) == 3


def test_a_fault_does_not_bring_others_that_follow_from_it() -> None:
    assert len(faults_of(num_heads=0)) == 1
    assert len(faults_of(hidden_size="32", num_positions=4)) == 2


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
def test_any_fields_make_a_model_or_a_usage_error(fields: dict[str, Any]) -> None:
    with suppress(mt.UsageError):
        model = made(**fields)
        assert model.num_parameters >= model.num_active_parameters > 0


def test_the_sizes_of_latent_attention_and_precision_are_checked_too() -> None:
    with pytest.raises(
        mt.UsageError, match=r"the latent attention has 2 faults:\n- kv_rank .*\n- query_rank must be an integer"
    ):
        mt.LatentAttention(kv_rank=0, rope_head_dim=1, nope_head_dim=1, value_head_dim=1, query_rank=0)
    with pytest.raises(
        mt.UsageError, match=r"the precision has 2 faults:\n- activation_bytes .*\n- datatype must be a string"
    ):
        mt.Precision(activation_bytes=0, datatype=16)  # type: ignore[arg-type]
    with pytest.raises(mt.UsageError, match=r"Degrees has 2 faults:\n- tp must .*\n- sequence_parallel must be True"):
        Degrees(tp=0, sequence_parallel=1)  # type: ignore[arg-type]


def test_units_are_named_in_the_order_of_forward() -> None:
    model = made(num_experts=4, experts_per_token=1, moe_layers=[1])
    assert [unit.name for unit in model.units()] == [
        "embedding",
        "attention 0",
        "mlp 0",
        "attention 1",
        "moe 1",
        "head",
    ]
    assert [unit.output_size for unit in model.units()] == [32, 32, 32, 32, 32, 0]


@pytest.mark.parametrize("name", ["megatron-22b", "llama3.1-405b", "qwen2.5-7b", "deepseek-v3"])
def test_parts_hold_the_whole_and_copies_of_norms_and_biases(name: str) -> None:
    tp, copied = 4, ("norm.weight", "norm.bias", "output.bias", "down.bias", "router", "router.bias", "positions")
    latents = ("query_down", "query_norm.weight", "kv_down", "kv_norm.weight")
    for unit in mt.models()[name].units():
        copies = sum(weight.num_parameters for weight in unit.weights if weight.name in copied + latents)
        held = sum(weight.num_parameters for weight in unit.weights)
        assert tp * unit.num_held_parameters(Degrees(tp=tp)) == held + (tp - 1) * copies


def test_expert_parallelism_divides_experts_alone() -> None:
    moe = mt.models()["mixtral-8x7b"].units()[2]
    experts = 8 * 3 * 4096 * 14336
    assert moe.num_held_parameters(Degrees(ep=4)) == moe.num_parameters - experts + experts // 4


def test_the_vocabulary_is_padded_until_it_divides() -> None:
    embedding, *_, head = mt.models()["gpt2"].units()
    assert embedding.weights[0].part(Degrees(tp=8)) == (6283, 768)
    assert head.weights[-1].part(Degrees(tp=8)) == (768, 6283)


@pytest.mark.parametrize(
    ("name", "degrees", "message"),
    [
        ("llama3-8b", Degrees(tp=16), r"num_kv_heads \(8\) .* of tp \(16\); use tp=8, or a model with num_kv_heads=16"),
        ("gpt2-xl", Degrees(tp=8), r"num_heads \(25\) .* of tp \(8\); use tp=5, or a model with num_heads=32"),
        ("deepseek-v3", Degrees(tp=3), r"num_heads \(128\) must be a multiple of tp \(3\); use tp=2"),
        ("mixtral-8x7b", Degrees(ep=3), r"num_experts \(8\) .* of ep \(3\); use ep=2, or a model with num_experts=9"),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_refused_with_a_degree_that_fits(name: str, degrees: Degrees, message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        [unit.num_held_parameters(degrees) for unit in mt.models()[name].units()]
