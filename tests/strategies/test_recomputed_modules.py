"""Single modules that backward computes again: what is kept, held and repeated, in closed form, and in what order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import minitrain as mt
from minitrain.tensors import Activation, ActivationGrad
from minitrain.workloads.architecture import PRECISIONS
from minitrain.workloads.shapes import Degrees, Work
from tests.strategies.test_moe import MODEL, MOE_LAYERS, H, K, S, exchanges, train

DEEPSEEK = mt.models()["deepseek-v3"]
HIDDEN, LATENTS, HEADS, EXPERTS = 7168, 1536 + 512, 128, 8
QUERY, VALUE, COLUMNS = 192, 128, 2048  # of a head; of an expert


def kept(kind: str, recompute: str, precision: str = "bf16") -> int:
    """Return the bytes of a token that a unit of DeepSeek-V3 keeps."""
    units = replace(DEEPSEEK, precision=PRECISIONS[precision]).units()
    unit = next(unit for unit in reversed(units) if unit.kind == kind)
    return unit.saved_bytes(Work(1, 1), recompute)


def test_an_attention_of_latents_keeps_what_is_counted_by_hand() -> None:
    inputs, latents = 2 * (HIDDEN + HIDDEN), 2 * 2 * LATENTS  # before and after their norms
    heads = 2 * HEADS * (2 * QUERY + VALUE)
    core = 4 * HEADS + 2 * HEADS * VALUE
    assert kept("attention", "none") == inputs + latents + heads + core == 201_216
    assert kept("attention", "layernorm") == 2 * HIDDEN + latents + heads + core
    assert kept("attention", "mla_up_proj") == inputs + latents // 2 + core
    assert kept("attention", "layernorm+mla_up_proj") == 2 * HIDDEN + latents // 2 + core == 51_712
    assert kept("attention", "self_attn") == kept("attention", "full") == 2 * HIDDEN


def test_experts_keep_what_is_counted_by_hand() -> None:
    inputs, router, copies = 2 * (HIDDEN + HIDDEN), 4 * 256, 2 * EXPERTS * HIDDEN
    swiglu, down, shared = 2 * EXPERTS * 2 * COLUMNS, 2 * EXPERTS * COLUMNS, 2 * 3 * COLUMNS
    assert kept("moe", "none") == inputs + router + copies + swiglu + down + shared == 254_976
    assert kept("moe", "layernorm+moe_act") == 2 * HIDDEN + router + copies + swiglu + shared == 207_872
    assert kept("moe", "shared_experts") == inputs + router + copies + swiglu + down
    assert kept("moe", "moe") == inputs
    assert kept("moe", "moe+layernorm") == 2 * HIDDEN
    assert kept("moe", "full") == 0  # made again from the attention's input


def test_eight_bits_keep_the_inputs_of_matrices_in_eight() -> None:
    attention = 2 * HIDDEN + 2 * LATENTS + 4 * HEADS + 2 * HEADS * VALUE  # norms, and what flash attention needs
    assert kept("attention", "layernorm+mla_up_proj", "fp8") == attention + HEADS * VALUE
    experts = 2 * HIDDEN + 4 * 256 + EXPERTS * HIDDEN + 2 * EXPERTS * 2 * COLUMNS
    assert kept("moe", "layernorm+moe_act", "fp8") == experts + 2 * 2 * COLUMNS + COLUMNS
    assert kept("mlp", "none", "fp8") == 2 * HIDDEN + HIDDEN + 2 * 2 * 18432 + 18432
    assert kept("mlp", "mlp") == 2 * (HIDDEN + HIDDEN)


def test_parts_keep_their_heads_and_shards() -> None:
    attention = next(unit for unit in DEEPSEEK.units() if unit.kind == "attention")
    work = Work(1, 2, Degrees(tp=2, sequence_parallel=True))
    assert attention.saved_bytes(work, "layernorm+mla_up_proj") == 51_712


NESTED = (
    "none",
    "layernorm",
    "layernorm+moe_act",
    "layernorm+moe_act+shared_experts",
    "layernorm+moe_act+shared_experts+mlp",
    "layernorm+moe_act+shared_experts+mlp+moe",
    "layernorm+moe_act+shared_experts+mlp+moe+self_attn",
    "full",
)
LATENT = replace(
    MODEL,
    num_kv_heads=8,
    head_dim=24,
    latent=mt.LatentAttention(kv_rank=32, rope_head_dim=8, nope_head_dim=16, value_head_dim=16, query_rank=48),
)


@pytest.mark.few(1)
@pytest.mark.parametrize("fidelity", ["roofline", pytest.param("kernels", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [{}, {"ep": 4}, pytest.param({"tp": 2, "ep": 4, "sequence_parallel": True}, marks=pytest.mark.slow)],
    ids=str,
)
def test_more_recomputation_holds_no_more_and_takes_no_less(options: dict[str, Any], fidelity: str) -> None:
    sizes: dict[str, Any] = {"seq_len": 2048, "global_batch_size": 128, "pp": 4, "layers_per_stage": [2] * 4, **options}
    runs = [train("megatron", 16, fidelity=fidelity, recompute=recompute, **sizes) for recompute in NESTED]
    for less, more in pairwise(runs):
        assert more.peak_memory <= less.peak_memory
        assert more.step_time >= less.step_time
    assert runs[-1].peak_memory < runs[0].peak_memory
    assert runs[-1].step_time > runs[0].step_time


@pytest.mark.few(6)
@pytest.mark.parametrize("recompute", [*NESTED[:-1], "mla_up_proj", "layernorm+mla_up_proj+moe_act"])
@pytest.mark.parametrize("ep", [1, 4])
def test_a_rank_holds_what_its_units_keep(recompute: str, ep: int) -> None:
    run = train("megatron", ep=ep, global_batch_size=8, recompute=recompute, workload=LATENT, fold=False)
    at_loss = next(event for event in run.logs[0] if event.typ == "loss")
    states = sum(18 * unit.num_held_parameters(Degrees(ep=ep)) for unit in LATENT.units())
    gradients = sum(4 * unit.num_held_parameters(Degrees(ep=ep)) for unit in LATENT.units())
    units = sum(unit.saved_bytes(Work(1, S), recompute) for unit in LATENT.units())
    assert at_loss.memory == states - gradients + units


@pytest.mark.parametrize(("recompute", "times"), [("moe_act", 4), ("moe", 6), ("full", 6)])
def test_tokens_travel_again_with_all_of_a_layer(recompute: str, times: int) -> None:
    run = train("megatron", ep=4, recompute=recompute)
    assert exchanges(run) == {S * K * H * 2: times * MOE_LAYERS * 2}
    assert run.trained_model is not None
    assert run.trained_model.routed_copies == train("megatron", ep=4).trained_model.routed_copies  # type: ignore[union-attr]  # it has one


@pytest.mark.parametrize("recompute", ["shared_experts", "moe", "mla_up_proj", "self_attn+mlp", "full"])
@pytest.mark.parametrize("ep", [1, 4])
def test_what_is_repeated_is_counted(recompute: str, ep: int) -> None:
    run = train("megatron", ep=ep, recompute=recompute, workload=LATENT)
    assert run.trained_model is not None
    expected = 16 * sum(unit.recomputed_flop(S, recompute) for unit in LATENT.units())
    assert run.trained_model.recomputed_flop == expected > 0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "recompute",
    [
        "layernorm+mla_up_proj+moe_act+shared_experts",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("layernorm+moe", "full")),
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        {"ep": 4},
        {"ep": 2, "pp": 2, "schedule": "zb_h1"},
        {"tp": 2, "ep": 4, "sequence_parallel": True, "zero": 1},
        {"ep": 4, "pp": 2, "schedule": "dualpipe_v"},
    ],
    ids=str,
)
def test_all_ways_to_run_agree(options: dict[str, Any], recompute: str) -> None:
    sizes: dict[str, Any] = {"global_batch_size": 32, "workload": LATENT, "recompute": recompute, **options}
    plain = train("megatron", fold=False, **sizes)
    assert train("megatron", fold=True, **sizes).summary() == plain.summary()
    assert train("megatron", log="summary", **sizes).summary() == plain.summary()
    strict = train("megatron", strict=True, **sizes)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]


@pytest.mark.parametrize("strategy", ["moe", "deepseek_like"])
def test_strategies_that_send_tokens_once_recompute_the_rest(strategy: str) -> None:
    runs = [
        train(strategy, ep=4, recompute=recompute, global_batch_size=32)
        for recompute in ("none", "layernorm+moe_act", "layernorm+moe_act+moe")
    ]
    assert runs[1].peak_memory < runs[0].peak_memory
    assert runs[2].peak_memory == runs[1].peak_memory
    assert exchanges(runs[2]) == exchanges(runs[0])


def test_all_of_a_layer_must_be_taken_again_before_its_backward() -> None:
    async def forgetful(model: mt.Model) -> mt.Model:
        model.weights[4], _ = model.load_router(4)
        model.weights["experts"], _ = model.load_experts(4)
        model.activations[4] = Activation(4, model.num_layers, frozenset([0]), 1)
        model.activations["tokens"] = model.route(4, model.activations[4], model.weights[4], 1, recompute="moe")
        made = model.forward(4, model.activations["tokens"], model.weights["experts"], recompute="moe")
        model.activations["made"] = made
        model.activations[5] = model.combine(4, model.activations[4], made, model.weights[4])
        model.grad_activations[4] = ActivationGrad(4, model.num_layers, frozenset([0]), 1)
        model.backward_combine(4, model.activations[4], made, model.grad_activations[4])
        return model

    with pytest.raises(mt.LawError, match="take route, the experts and combine again"):
        mt.simulate(forgetful, world_size=1, workload=MODEL, global_batch_size=1)
