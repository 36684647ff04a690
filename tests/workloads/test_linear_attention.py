"""Linear attentions: parameters, operations in closed form, what they keep, what they cost, and what is refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.workloads.kernels import Matmul
from minitrain.workloads.shapes import Degrees, LinearCore, Work
from minitrain.workloads.unit import Unit
from minitrain.workloads.unit_kernels import backward_kernels, forward_kernels

PUBLISHED = {
    row["name"]: row["config"]
    for row in json.loads((Path(__file__).parent / "hugging_face.json").read_text())["published"]
}
DELTA = mt.LinearAttention(
    rule="gated_delta", num_heads=4, num_key_heads=2, key_head_dim=16, value_head_dim=16, conv=4, chunk=8
)
HYBRID = mt.Transformer(
    num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128, vocab_size=256, seq_len=64,
    mlp="swiglu", norm="rmsnorm", linear=DELTA, linear_layers=(0, 1, 2),
)  # fmt: skip


def scan_of(unit: Unit) -> LinearCore:
    assert unit.scan is not None
    return unit.scan


def linear_of(name: str, **changes: Any) -> tuple[mt.Transformer, Unit]:
    """Return a published model and the first of its linear attentions."""
    model = mt.Transformer.from_hf(PUBLISHED[name], **changes)
    return model, next(unit for unit in model.units() if unit.scan is not None)


@pytest.mark.parametrize(
    ("name", "every", "rule"),
    [
        ("Qwen3-Next-80B-A3B", 4, "gated_delta"),
        ("Qwen3.5-27B", 4, "gated_delta"),
        ("MiniMax-Text-01", 8, "lightning"),
        ("granite-4.0-h-small", 10, "mamba2"),
        ("Kimi-Linear-48B-A3B", 4, "kimi_delta"),
    ],
)
def test_layers_have_the_mixer_that_their_config_lists(name: str, every: int, rule: str) -> None:
    model, unit = linear_of(name)
    assert model.linear is not None
    assert model.linear.rule == rule
    kinds = [each.kind for each in model.units() if each.kind.endswith("attention")]
    assert len(kinds) == model.num_layers
    assert kinds.count("attention") == -(-model.num_layers // every)
    assert unit.name == "linear_attention 0"


def test_nemotron_h_has_layers_of_one_mixer_or_mlp_each() -> None:
    model, _ = linear_of("Nemotron-H-8B")
    names = [unit.name for unit in model.units()]
    assert names[1:6] == ["linear_attention 0", "mlp 1", "linear_attention 2", "mlp 3", "linear_attention 4"]
    assert (len(names), names[8], names[9]) == (54, "attention 7", "mlp 8")
    sparse, _ = linear_of("Nemotron-3-Nano-30B-A3B")
    assert (sparse.num_shared_experts, sparse.moe_layers[:3], sparse.mlp) == (2, (1, 3, 6), "relu2")
    config = PUBLISHED["Nemotron-H-8B"]
    listed = [{"M": "mamba", "-": "mlp", "*": "attention"}[one] for one in config["hybrid_override_pattern"]]
    del (found := {**config, "layers_block_type": listed})["hybrid_override_pattern"]
    assert mt.Transformer.from_hf(found) == model
    for changes in ({"hybrid_override_pattern": "M-X"}, {"moe_latent_size": 64}):
        with pytest.raises(mt.UsageError, match=f"{next(iter(changes))} must be|layers_block_type must be"):
            mt.Transformer.from_hf({**config, **changes, "num_hidden_layers": 3})


@pytest.mark.parametrize("name", ["Qwen3-Next-80B-A3B", "Llama-4-Maverick", "granite-4.0-h-small"])
@pytest.mark.parametrize("num_layers", [4, 20, 200])
def test_another_number_of_layers_repeats_their_pattern(name: str, num_layers: int) -> None:
    model, lists = mt.Transformer.from_hf(PUBLISHED[name]), ("linear_layers", "window_layers", "moe_layers")
    changed = replace(model, num_layers=num_layers)
    assert changed == mt.Transformer.from_hf(PUBLISHED[name], num_layers=num_layers)
    for each in lists:  # of which the longest period is 10
        assert [*getattr(changed, each)] == [one for one in range(num_layers) if one % 20 in getattr(model, each)]
    if num_layers >= 20:
        assert replace(pickle.loads(pickle.dumps(changed)), num_layers=model.num_layers) == model


def test_layers_without_a_pattern_are_given_with_their_number() -> None:
    model = mt.Transformer.from_hf(PUBLISHED["Nemotron-H-8B"])
    for num_layers in (10, 60):
        given = rf"num_layers \({num_layers}\) must not be changed without linear_layers, without_mixer, without_mlp"
        with pytest.raises(mt.UsageError, match=given) as refused:
            replace(model, num_layers=num_layers)
        assert "faults" not in str(refused.value)
    few = replace(model, num_layers=2, linear_layers=(0,), without_mixer=(1,), without_mlp=(0,))
    assert [unit.kind for unit in few.units()][1:-1] == ["linear_attention", "mlp"]


def test_full_recomputation_keeps_the_input_of_each_layer() -> None:
    work = Work(1, 64)
    alone = replace(HYBRID, linear_layers=(0,), without_mixer=(1, 3), without_mlp=(0, 2))
    assert [unit.name for unit in alone.units()[1:-1]] == ["linear_attention 0", "mlp 1", "attention 2", "mlp 3"]
    assert [unit.saved_bytes(work, "full") for unit in alone.units()[1:-1]] == 4 * [2 * 64 * 64]
    assert [unit.saved_bytes(work, "full") for unit in HYBRID.units()[1:3]] == [2 * 64 * 64, 0]


def test_softmax_attention_is_never_taken_for_what_is_listed_as_linear() -> None:
    dense = {**PUBLISHED["Qwen3-8B"], "layer_types": ["linear_attention"] * 36}
    with pytest.raises(mt.UsageError, match=r"layer_types must be .*full_attention.*since others are not modelled"):
        mt.Transformer.from_hf(dense)
    chunks = {**PUBLISHED["Qwen3-Next-80B-A3B"], "layer_types": ["chunked_attention"] * 48}
    with pytest.raises(mt.UsageError, match="layer_types must be"):
        mt.Transformer.from_hf(chunks)


@pytest.mark.parametrize("causal", [False, True])
def test_a_gated_delta_rule_has_the_operations_of_its_chunks(causal: bool) -> None:
    length, heads, size, chunk = 4096, 32, 128, 64
    scan = scan_of(linear_of("Qwen3-Next-80B-A3B")[1])
    within = (chunk + 1) / 2 if causal else chunk
    # Five products are within a chunk (keys and queries by keys, inverses by keys and values, scores by values)
    assert scan.flop(length, causal=causal) == length * heads * (5 * 2 * within * size + 3 * 2 * size**2)
    assert scan.flop(2 * length, causal=causal) == 2 * scan.flop(length, causal=causal)


def test_mamba_2_has_the_operations_of_state_space_duality() -> None:
    """Dao and Gu (2024), section 6.3: BMM(T/Q, Q, Q, N), BMM(T/Q, Q, Q, P), and twice BMM(T/Q, Q, N, P) of states."""
    scan = scan_of(linear_of("granite-4.0-h-small")[1])
    length, chunk, heads, state, value = 4096, 256, 128, 128, 64
    within = 2 * length * chunk * (state + heads * value)  # one group of queries and keys
    assert scan.flop(length, causal=False) == within + 2 * (2 * length * heads * state * value)
    assert sum(gemm.flop for gemm in scan.gemms(Work(1, length))) == scan.flop(length, causal=False)


@pytest.mark.parametrize(
    ("name", "of_token"),
    [("Qwen3-Next-80B-A3B", 8 * 32 * 128**2), ("granite-4.0-h-micro", 7 * 4096 * 128)],
)
def test_operations_are_about_those_that_megatron_counts(name: str, of_token: int) -> None:
    """`num_floating_point_operations` of Megatron-LM's `training.py`, which leaves chunks out."""
    scan = scan_of(linear_of(name)[1])
    assert scan.flop(4096, causal=True) / 4096 == pytest.approx(of_token, rel=0.15)


def test_a_hybrid_has_the_operations_that_megatron_counts() -> None:
    """`hybrid_flops` of Megatron-LM's `training.py`, of a token of Nemotron-H: all but its estimate of the scan."""
    model, unit = linear_of("Nemotron-H-8B")
    length, hidden, inner, state, groups, heads = 8192, 4096, 8192, 128, 8, 128
    projected = 2 * hidden * (2 * inner + 2 * groups * state + heads) + 2 * inner * hidden
    mamba = projected + scan_of(unit).flop(length, causal=True) / length
    attention = 4 * hidden * (hidden + hidden * 8 / 32 + (length + 1) / 2)
    forward = 24 * mamba + 4 * attention + 24 * 4 * hidden * 21504 + 2 * hidden * 131072
    assert model.flop_per_token(length, causal=True) == 3 * forward


def test_long_sequences_cost_linear_attention_no_more_a_token() -> None:
    hybrid, _ = linear_of("granite-4.0-h-micro")
    usual = replace(hybrid, linear=None, linear_layers=())
    of_scans = [
        sum(unit.forward_flop(length) for unit in hybrid.units() if unit.scan) / length for length in (8192, 131072)
    ]
    assert of_scans[0] == of_scans[1]
    growth = [model.flop_per_token(131072) / model.flop_per_token(8192) for model in (hybrid, usual)]
    assert growth[0] < 0.3 * growth[1]


def test_ranks_have_heads_of_keys_with_their_values() -> None:
    model, unit = linear_of("Qwen3-Next-80B-A3B")
    whole, half = (unit.num_held_parameters(Degrees(tp=tp)) for tp in (1, 2))
    copied = model.hidden_size + 128  # the norm before it, and that of a head
    assert 2 * (half - copied) == whole - copied
    work, part = Work(1, 4096), Work(1, 4096, Degrees(tp=2))
    assert [gemm.flop for gemm in scan_of(unit).gemms(work)] == [2 * gemm.flop for gemm in scan_of(unit).gemms(part)]
    _, mamba = linear_of("granite-4.0-h-small")
    with pytest.raises(mt.UsageError, match=r"num_key_heads \(1\) must be a multiple of tp \(2\)"):
        mamba.num_held_parameters(Degrees(tp=2))


def test_what_is_kept_does_not_grow_faster_than_the_sequence_and_full_recomputation_keeps_an_input() -> None:
    _, unit = linear_of("Qwen3-Next-80B-A3B")
    short, long = (unit.saved_bytes(Work(1, length)) for length in (1024, 8192))
    assert long == 8 * short
    assert unit.saved_bytes(Work(1, 1024), "full") == 2 * 1024 * 2048
    names = {tensor.name for tensor in unit.saved}
    assert not names & {"log-sum-exp", "probabilities"}


def test_kernels_multiply_what_the_chunks_need_and_backward_makes_states_again() -> None:
    model, unit = linear_of("Qwen3-Next-80B-A3B")
    work, flop = Work(1, 4096), scan_of(unit).flop(4096, causal=False)
    weights = 4096 * sum(each.flop_per_token for each in unit.projections)
    forward, backward = (listed(model, unit, work) for listed in (forward_kernels, backward_kernels))
    assert forward.work_flop == weights + flop
    kept = 4096 * 32 * 2 * (64 * 128 + 128 * 128)  # values of a chunk and of the state
    assert backward.work_flop == 2 * (weights + flop) + flop - kept
    assert all(isinstance(kernel, Matmul) or "attention" not in kernel.title for kernel in forward.kernels)


@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("fsdp", {}),
        ("fsdp", {"recompute": "full"}),
        ("megatron", {"tp": 2, "pp": 2, "sequence_parallel": True}),
    ],
)
def test_strategies_train_hybrids(strategy: str, options: dict[str, Any], fidelity: str) -> None:
    given: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "fidelity": fidelity, **options}
    long = replace(HYBRID, seq_len=65536)
    usual = replace(long, linear=None, linear_layers=())
    times = [mt.simulate(strategy, workload=model, **given).step_time for model in (long, usual)]
    assert 0 < times[0] < times[1]


def test_a_gate_of_attention_has_weights_of_its_own_and_keeps_what_it_weighs() -> None:
    gated = replace(HYBRID, output_gate=True)
    assert gated.num_parameters - HYBRID.num_parameters == 64 * 64  # of one attention
    work = Work(1, 64)
    kept = [model.units()[7].saved_bytes(work) for model in (gated, HYBRID)]
    assert kept[0] - kept[1] == 2 * 64 * 2 * 64


def test_no_validated_run_is_like_one_with_other_attention() -> None:
    run = mt.simulate("fsdp", world_size=2, global_batch_size=2, workload=HYBRID, hardware="h100_80g_nvl8")
    assert "no linear-attention model" in run.sureness


def test_the_remedy_of_a_proof_makes_a_model_that_is_proved() -> None:
    usual = mt.models()["tiny"]
    with pytest.raises(mt.UsageError, match=r"linear_layers .* must be \(\).*replace\(model, linear_layers=\(\)\)"):
        mt.prove("ddp", world_size=2, workload=replace(usual, linear=DELTA, linear_layers=(0,)))
    assert mt.prove("ddp", world_size=2, workload=replace(usual, linear=DELTA, linear_layers=())).largest < 1e-9


@pytest.mark.parametrize("strategy", ["ring_attention", "gathered_context"])
def test_a_state_is_not_passed_between_ranks_that_divide_a_sequence(strategy: str) -> None:
    with pytest.raises(mt.UsageError, match=r"linear_attention 0 must have the whole sequence.*whole: zero3"):
        mt.simulate(strategy, world_size=2, global_batch_size=2, workload=HYBRID)
    assert mt.simulate("zero3", world_size=2, global_batch_size=2, workload=HYBRID).step_time > 0  # as it says


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"linear": None, "linear_layers": (), "output_gate": True},
        {"linear": None, "linear_layers": (), "without_mlp": (3,)},
    ],
)
def test_what_real_arrays_cannot_compute_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(mt.UsageError, match="with real arrays"):
        mt.prove("ddp", world_size=2, workload=replace(HYBRID, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "gated"}, 'rule must be "gated_delta" or'),
        ({"num_key_heads": 3}, r"num_heads \(4\) must be a multiple of num_key_heads \(3\); use num_key_heads=4"),
        ({"chunk": 0}, "chunk must be"),
    ],
)
def test_sizes_that_break_their_rules_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        replace(DELTA, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear": None}, "linear_layers .* must not be given without linear; give a LinearAttention"),
        ({"linear_layers": (4,)}, r"linear_layers \(4\) must be below num_layers \(4\)"),
        ({"without_mlp": (3,), "without_mixer": (3,)}, r"must not both have a layer, got \[3\] in both"),
        ({"without_mixer": (0,)}, "linear_layers must have no layer of without_mixer"),
        ({"without_mlp": (9,)}, r"without_mlp \(9\) must be below num_layers"),
        ({"without_mlp": (0,), "prediction_layers": 1}, "prediction_layers must be 0 where layers have"),
        ({"lora": 8}, "lora must not be given with linear attention"),
        ({"output_gate": True, "latent": mt.LatentAttention(kv_rank=8, rope_head_dim=4, nope_head_dim=8,
          value_head_dim=8), "num_kv_heads": 4, "head_dim": 12}, "output_gate .* must not be given with latent"),
    ],
)  # fmt: skip
def test_fields_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        replace(HYBRID, **changes)
