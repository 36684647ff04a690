"""Layers as published models have them: windows by turns, soft caps, sinks, norms in other places; what each costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.view.run_folder import conditions
from minitrain.workloads.kernels import FlashAttention, KernelList, MemoryPass
from minitrain.workloads.pass_costs import pass_cost
from minitrain.workloads.shapes import Work, norm_weights
from minitrain.workloads.transformer_workload import TransformerWorkload
from minitrain.workloads.unit_kernels import backward_kernels, forward_kernels, loss_kernels
from minitrain.workloads.workload import Style

CONFIGS = {
    row["config"]["_name_or_path"]: row["config"]
    for row in json.loads((Path(__file__).parent / "hugging_face.json").read_text())["configs"]
    if "_name_or_path" in row["config"]
}
# Billions of parameters, all and of a token, as the model cards and papers round them.
CARDS = {
    "Qwen/Qwen3-8B": (8.2, None),
    "Qwen/Qwen3-30B-A3B": (30.5, 3.3),
    "Qwen/Qwen3-235B-A22B": (235, 22),
    "google/gemma-2-9b": (9.24, None),
    "google/gemma-2-27b": (27.2, None),
    "openai/gpt-oss-20b": (20.9, None),  # arXiv:2508.10925, table 1; its active 3.6 leaves the embedding out
    "openai/gpt-oss-120b": (116.8, None),
    "allenai/OLMo-2-0325-32B": (32.2, None),
    "microsoft/phi-4": (14.7, None),
    "mistralai/Mistral-Nemo-Base-2407": (12.2, None),
    "deepseek-ai/DeepSeek-V2": (236, 21),
    "deepseek-ai/DeepSeek-V2-Lite": (15.7, 2.4),
    "nvidia/Nemotron-4-340B-Base": (341, None),
}
SIZES: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 128, "vocab_size": 256,
    "seq_len": 32, "mlp": "swiglu", "norm": "rmsnorm",
}  # fmt: skip
PLAIN = mt.Transformer(**SIZES)


def read(name: str, **changes: Any) -> mt.Transformer:
    return mt.Transformer.from_hf(CONFIGS[name], **changes)


def first(model: mt.Transformer, place: int = 1) -> KernelList:
    """Return the forward kernels of a unit, by default the first attention."""
    return forward_kernels(model, model.units()[place], Work(1, model.seq_len))


def num_bytes(kernels: KernelList, name: str) -> float:
    return sum(
        each.num_elements * each.element_bytes
        for each in kernels.kernels
        if isinstance(each, MemoryPass) and each.name == name
    )


@pytest.mark.parametrize(("name", "billions"), CARDS.items())
def test_published_models_are_as_large_as_their_cards_say(name: str, billions: tuple[float, float | None]) -> None:
    model, (total, active) = read(name), billions
    digits = 1 if total < 100 or total != int(total) else 0
    assert model.num_parameters / 1e9 == pytest.approx(total, abs=0.51 * 10**-digits)
    if active is not None:
        assert model.num_active_parameters / 1e9 == pytest.approx(active, abs=0.51 if active > 20 else 0.31)


def test_windows_by_turns_are_counted_layer_by_layer() -> None:
    gemma = read("google/gemma-2-9b", seq_len=8192)
    assert gemma.window_layers == tuple(range(0, 42, 2))
    pairs = 21 * 8192 * 4096 + 21 * 8192**2
    all_full = replace(gemma, window=None, window_layers=())
    difference = (all_full.flop_per_token() - gemma.flop_per_token()) * 8192
    assert difference == 3 * 4 * 16 * 256 * (42 * 8192**2 - pairs)
    cores = [kernel for place in (1, 3) for kernel in first(gemma, place).kernels if isinstance(kernel, FlashAttention)]
    assert cores[0].num_pairs == 4096 * 4097 // 2 + 4096 * 4096
    assert cores[1].num_pairs == 8192 * 8193 // 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("google/gemma-3-1b-pt", [layer for layer in range(26) if (layer + 1) % 6]),
        ("openai/gpt-oss-20b", [*range(0, 24, 2)]),
        ("microsoft/Phi-3-mini-4k-instruct", [*range(32)]),
        ("small/qwen2-windows", [2, 3]),
        ("Qwen/Qwen3-8B", []),
    ],
)
def test_layers_have_the_windows_that_their_family_gives_them(name: str, expected: list[int]) -> None:
    assert [*read(name).window_layers] == expected
    config = {key: value for key, value in CONFIGS[name].items() if key != "layer_types"}
    assert [*mt.Transformer.from_hf(config).window_layers] == expected


def test_gemma_3_with_its_vision_tower_is_its_language_model() -> None:
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024, "vocab_size": 262144,
    }  # fmt: skip
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    model = mt.Transformer.from_hf(config)
    assert model.num_parameters == 3_880_099_328  # keras-hub's gemma3_4b_text
    assert "its vision tower" in model.taken_as
    with pytest.raises(mt.UsageError, match=r"hidden_activation must be .*got \"silu\""):
        mt.Transformer.from_hf({**config, "text_config": {**text, "hidden_activation": "silu"}})


def test_a_config_allows_long_sequences_and_asks_for_none() -> None:
    assert (read("openai/gpt-oss-20b").seq_len, read("openai/gpt-oss-20b").max_seq_len) == (8192, 131072)
    assert (read("allenai/OLMo-2-1124-7B").seq_len, read("allenai/OLMo-2-1124-7B").max_seq_len) == (4096, None)
    small = {**CONFIGS["small/granite-bias"], "max_position_embeddings": 16384}
    run = mt.simulate("ddp", world_size=2, global_batch_size=2, workload=mt.Transformer.from_hf(small))
    assert "8192 tokens a sample (its config allows 16384)" in conditions(run)


def test_a_norm_behind_takes_the_place_of_one_before() -> None:
    behind = replace(PLAIN, norm_placement="post")
    assert (behind.num_parameters, first(behind)) == (PLAIN.num_parameters, first(PLAIN))


def test_a_second_norm_costs_weights_time_and_memory() -> None:
    both = replace(PLAIN, norm_placement="both")
    work = Work(1, 32)
    assert both.num_parameters - PLAIN.num_parameters == 2 * 2 * 64
    assert num_bytes(first(both), "second norm") == 2 * 2 * 32 * 64
    for place in (1, 2):
        ours, others = both.units()[place], PLAIN.units()[place]
        assert ours.saved_bytes(work) - others.saved_bytes(work) == 2 * 32 * 64
        costs = [pass_cost(model, model.units()[place], work, "forward", "none") for model in (both, PLAIN)]
        assert costs[0].traffic_bytes - costs[1].traffic_bytes == 2 * 2 * 32 * 64


@pytest.mark.parametrize(("qk_norm", "weights"), [("head", 2 * 16), ("whole", (4 + 2) * 16)])
def test_norms_of_queries_and_keys_pass_over_both(qk_norm: str, weights: int) -> None:
    normed = replace(PLAIN, qk_norm=qk_norm)
    assert normed.num_parameters - PLAIN.num_parameters == 2 * weights
    assert num_bytes(first(normed), "query and key norm") == 2 * 2 * 32 * (4 + 2) * 16
    saved = [model.units()[1].saved_bytes(Work(1, 32)) for model in (normed, PLAIN)]
    assert saved[0] - saved[1] == 2 * 32 * (4 + 2) * 16


def test_soft_caps_are_passes_over_what_they_cap() -> None:
    capped = replace(PLAIN, score_cap=50.0, logit_cap=30.0, attention="unfused")
    assert num_bytes(first(capped), "score cap") == 2 * 2 * 4 * 32**2
    assert num_bytes(first(capped, -1), "logit cap") == 2 * 2 * 32 * 256
    assert not num_bytes(first(replace(capped, attention="flash")), "score cap")


def test_a_sink_is_a_parameter_of_each_head() -> None:
    assert replace(PLAIN, sinks=True).num_parameters - PLAIN.num_parameters == 2 * 4


def test_clamped_gates_are_passes_over_both_halves_and_kept_twice() -> None:
    clamped = replace(PLAIN, gate_clamp=7.0)
    for kernels, plain, more in ((forward_kernels, 3, 8), (backward_kernels, 5, 10)):
        found = [kernels(model, model.units()[2], Work(1, 32)) for model in (PLAIN, clamped)]
        assert [num_bytes(each, "swiglu") for each in found] == [plain * 2 * 32 * 128, (plain + more) * 2 * 32 * 128]
        assert found[1].num_launches - found[0].num_launches == 3
    saved = [model.units()[2].saved_bytes(Work(1, 32)) for model in (PLAIN, clamped)]
    assert saved[1] - saved[0] == 2 * 2 * 32 * 128


def test_last_biases_of_experts_are_added_by_one_expert_after_another() -> None:
    experts: dict[str, Any] = {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 64}
    plain = mt.Transformer(**SIZES, **experts)
    for kernels, tensors, launches in ((forward_kernels, 6, 2), (backward_kernels, 8, 1 + 5)):
        models = (plain, replace(plain, mlp_bias=True))
        found = [kernels(model, model.units()[2], Work(1, 32)) for model in models]
        assert num_bytes(found[1], "expert bias") == tensors * 2 * 32 * 2 * 64  # copies of tokens x hidden size
        assert found[1].traffic_bytes - found[0].traffic_bytes == num_bytes(found[1], "expert bias")
        assert found[1].num_launches - found[0].num_launches == launches * 4


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_shipped_gpt_oss_is_what_its_config_says(name: str) -> None:
    shipped = mt.models()[name]
    assert replace(read(f"openai/{name}"), source=shipped.source) == shipped


def test_gated_gelu_costs_what_swiglu_costs() -> None:
    geglu = replace(PLAIN, mlp="geglu")
    assert (geglu.num_parameters, geglu.flop_per_token()) == (PLAIN.num_parameters, PLAIN.flop_per_token())
    assert geglu.units()[2].saved_bytes(Work(1, 32)) == PLAIN.units()[2].saved_bytes(Work(1, 32))


@pytest.mark.few(4)
@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("megatron", {"tp": 2, "pp": 2, "sequence_parallel": True}),
        ("fsdp", {}),
        ("moe", {"ep": 2}),
        ("ring_attention", {}),
    ],
)
def test_strategies_train_such_layers(strategy: str, options: dict[str, Any], fidelity: str) -> None:
    of_experts = {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 64}
    experts: dict[str, Any] = of_experts if strategy == "moe" else {}
    model = mt.Transformer(
        **{**SIZES, "mlp": "geglu"}, **experts, norm_placement="both", qk_norm="head", sinks=True, score_cap=50.0,
        logit_cap=30.0, window=8, window_layers=[0],
    )  # fmt: skip
    runs = [
        mt.simulate(strategy, world_size=4, global_batch_size=8, workload=one, fidelity=fidelity, **options)
        for one in (model, mt.Transformer(**SIZES, **experts))
    ]
    assert runs[0].step_time > runs[1].step_time


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_placement": "both"}, {"qk_norm": "head"}, {"sinks": True}, {"score_cap": 5.0}, {"logit_cap": 5.0},
        {"gate_clamp": 7.0}, {"prediction_layers": 1}, {"mlp": "geglu"}, {"window": 8, "window_layers": (0,)},
        {"window": 8, "chunked_windows": True},
    ],
)  # fmt: skip
def test_what_real_arrays_cannot_compute_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(mt.UsageError, match="with real arrays"):
        mt.prove("ddp", world_size=2, workload=replace(mt.models()["tiny"], **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_layers": [0]}, r"window_layers .* must not be given without a window; give window=4096"),
        ({"window": 8, "window_layers": [7]}, r"window_layers \(7\) must be below num_layers \(2\)"),
        ({"chunked_windows": True}, r"chunked_windows \(True\) must not be given without a window; give window=8192"),
        ({"score_cap": 0}, "score_cap must be a positive number, got 0; write score_cap=50"),
        ({"gate_clamp": 7.0, "mlp": "gelu"}, r"gate_clamp \(7\) must not be given for mlp='gelu'.*; leave it out"),
        ({"rope_share": 1.5}, r"rope_share must be at most 1, got 1.5"),
        ({"taken_as": "rope"}, "taken_as must be a sequence of strings"),
        ({"norm_placement": "before"}, 'norm_placement must be "pre" or "post" or "both"'),
    ],
)
def test_fields_that_break_their_rules_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.Transformer(**{**SIZES, **changes})


def test_windows_side_by_side_are_shorter_sequences() -> None:
    chunked = replace(PLAIN, seq_len=1024, window=256, chunked_windows=True)
    core = chunked.units()[1].core
    assert core is not None
    assert [core.num_pairs(length, causal=True) for length in (256, 512, 600)] == [32896, 65792, 69708]
    assert core.num_pairs(600, causal=False) == 2 * 256**2 + 88**2
    work = Work(num_samples=2, seq_len=1024)
    (cut,) = (each for each in forward_kernels(chunked, chunked.units()[1], work).kernels if hasattr(each, "num_pairs"))
    short = replace(PLAIN, seq_len=256)
    (own,) = (
        each
        for each in forward_kernels(short, short.units()[1], Work(num_samples=8, seq_len=256)).kernels
        if hasattr(each, "num_pairs")
    )
    assert cut == own


def test_ranks_that_divide_a_sequence_cannot_have_windows_side_by_side() -> None:
    chunked = replace(PLAIN, window=8, chunked_windows=True)
    with pytest.raises(mt.UsageError, match=r"seq_len \(32\) must be at most the window \(8\).*shorter .*zero3"):
        mt.simulate("ring_attention", world_size=2, global_batch_size=2, workload=chunked)


def test_a_layer_that_predicts_a_further_token_has_a_matrix_more_and_the_head_again() -> None:
    experts: dict[str, Any] = {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 64, "moe_layers": [1]}
    plain = mt.Transformer(**SIZES, **experts)
    further = replace(plain, prediction_layers=1)
    units = further.units()
    assert [unit.name for unit in units[-3:]] == ["attention 2", "moe 2", "head"]
    hidden, last = plain.hidden_size, plain.units()[-3:-1]
    assert further.num_parameters - plain.num_parameters == sum(
        unit.num_parameters for unit in last
    ) + 2 * hidden * hidden + 3 * sum(
        weight.num_parameters for weight in norm_weights(hidden, has_bias=plain.norm_bias)
    )
    more = sum(unit.training_flop(32) for unit in last) + 3 * 32 * (2 * 2 * hidden * hidden)
    head = plain.units()[-1]
    assert further.flop_per_token(32) - plain.flop_per_token(32) == pytest.approx((more + head.training_flop(32)) / 32)
    loss, losses = (loss_kernels(model, model.units()[-1], Work(1, 32)) for model in (plain, further))
    assert losses.traffic_bytes == 2 * loss.traffic_bytes
    assert units[-1].num_parameters == head.num_parameters
    workloads = [TransformerWorkload(model) for model in (plain, further)]
    longer = [mt.simulate("single", workload=each, hardware="h100_80g_nvl8", world_size=1) for each in workloads]
    assert longer[0].step_time < longer[1].step_time
    assert longer[0].peak_memory_bytes < longer[1].peak_memory_bytes


@pytest.mark.parametrize(("scaling", "casts"), [("delayed", (0, 0)), ("current", (3, 3)), ("mx", (3, 5))])
def test_multiplications_in_eight_bits_have_their_casts_launched_but_for_routers(
    scaling: str, casts: tuple[int, int]
) -> None:
    experts: dict[str, Any] = {
        "num_experts": 4,
        "experts_per_token": 2,
        "moe_ffn_hidden_size": 64,
        "num_shared_experts": 1,
    }
    wide = mt.Transformer(**SIZES, **experts)
    narrow = replace(wide, precision=replace(wide.precision, weight_datatype="float8", scaling=scaling))
    for place, dense in ((0, 0), (1, 2), (-1, 0)):  # embedding, attention, head
        for kernels, each in zip((forward_kernels, backward_kernels), casts, strict=True):
            found = [kernels(model, model.units()[place], Work(1, 32)).num_launches for model in (wide, narrow)]
            assert found[1] - found[0] == dense * each
    captured = [
        forward_kernels(m, m.units()[1], Work(1, 32), Style(captures=True)).num_launches for m in (wide, narrow)
    ]
    assert captured == [1, 1]
