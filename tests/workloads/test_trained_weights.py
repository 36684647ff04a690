"""Adapters and frozen layers: what is trained, what it costs and holds, and that all lives of a strategy follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import LawError, UsageError
from minitrain.workloads.shapes import Work
from minitrain.workloads.transformer import Transformer

TINY = mt.models()["tiny"]
_WHOLE_AND_ADAPTERS: tuple[dict[str, Any], ...] = ({}, {"lora": 16})
TWO = mt.Lora(rank=2, targets=("key", "down"))


def _of(name: str, **changes: Any) -> Transformer:
    return replace(mt.models()[name], **changes)


@pytest.mark.parametrize(
    ("name", "lora", "trained", "whole"),
    [  # what PEFT's `print_trainable_parameters` says of these models
        ("llama3-8b", mt.Lora(rank=16, targets=("query", "value")), 6_815_744, 8_037_076_992),
        ("llama3-8b", mt.Lora(rank=16), 41_943_040, 8_072_204_288),
        ("llama2-7b", mt.Lora(rank=8, targets=("query", "value")), 4_194_304, 6_742_609_920),
    ],
)
def test_adapters_have_the_parameters_that_peft_counts(name: str, lora: mt.Lora, trained: int, whole: int) -> None:
    model = _of(name, lora=lora)
    assert (model.num_trained_parameters, model.num_parameters) == (trained, whole)


def test_a_frozen_model_does_two_thirds_of_the_work_and_that_of_its_adapters() -> None:
    model, whole = _of("llama3-8b", lora=16), _of("llama3-8b")
    embedding_like = 2 * model.vocab_size * model.hidden_size  # the head's products; the core's have no weights
    core = sum(unit.core.flop(8192, causal=False) for unit in whole.units() if unit.core) / 8192
    products = whole.flop_per_token(8192) / 3 - core
    assert products > embedding_like
    expected = 2 * products + 3 * core + 3 * 2 * model.num_trained_parameters
    assert model.flop_per_token(8192) == pytest.approx(expected, rel=1e-12)


def test_what_lies_below_all_that_is_trained_has_no_backward() -> None:
    run = mt.simulate("ddp", world_size=2, workload="tiny", global_batch_size=4, frozen_layers=1)
    backward = {event.layer: event.duration for event in run.logs[0] if event.typ == "backward"}
    assert [backward[layer] for layer in range(3)] == [0, 0, 0]  # embedding, attention 0, mlp 0
    assert all(backward[layer] > 0 for layer in range(3, 6))
    sums = {event.layer: event.duration for event in run.logs[0] if event.typ == "all_reduce"}
    assert [sums[layer] > 0 for layer in range(6)] == [False] * 3 + [True] * 3
    everything = mt.simulate("ddp", world_size=2, workload="tiny", global_batch_size=4)
    assert run.step_time < everything.step_time


def test_gradients_and_states_are_of_what_is_trained() -> None:
    whole, part = (
        mt.simulate("ddp", world_size=2, workload=model, global_batch_size=2)
        for model in (_of("gpt2"), _of("gpt2", lora=8))
    )
    trained = _of("gpt2", lora=8).num_trained_parameters
    assert part.memory_by_kind is not None
    assert part.memory_by_kind["optimizer"] == 12 * trained
    assert part.peak_memory_bytes < whole.peak_memory_bytes / 2
    sums = [event.size_bytes for event in part.logs[0] if event.typ == "all_reduce"]
    assert sum(sums) == 4 * trained


def test_what_only_frozen_weights_would_need_is_not_kept() -> None:
    work = Work(1, 32)
    models = {"all": TINY, "adapters": replace(TINY, lora=TWO), "frozen": replace(TINY, frozen_layers=1)}
    kept = {name: [unit.saved_bytes(work) for unit in model.units()] for name, model in models.items()}
    tokens, hidden, ffn, element = 32, TINY.hidden_size, TINY.ffn_hidden_size, 2
    of_adapter = tokens * 2 * element
    assert kept["adapters"][1] == kept["all"][1] + of_adapter  # the key's needs the norm's output; flash its own
    assert kept["adapters"][2] == kept["all"][2] - tokens * hidden * element + of_adapter  # gate and up have none
    assert kept["frozen"][:3] == [0, 0, 0]
    assert kept["frozen"][3:] == kept["all"][3:]
    no_down = replace(TINY, lora=mt.Lora(rank=2, targets=("up",))).units()[2].saved_bytes(work)
    assert no_down == kept["all"][2] - tokens * ffn * element + of_adapter


@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
def test_a_step_with_adapters_is_shorter_and_never_shorter_than_its_work(fidelity: str) -> None:
    sizes: dict[str, Any] = {"world_size": 8, "global_batch_size": 8, "workload": "llama3-8b", "fidelity": fidelity}
    whole, part = (mt.simulate("fsdp", **sizes, **what) for what in _WHOLE_AND_ADAPTERS)
    assert whole.step_time * 2 / 3 < part.step_time < whole.step_time
    assert part.mfu is not None
    assert part.mfu < 1


def test_a_checkpoint_has_what_is_trained_alone() -> None:
    sizes: dict[str, Any] = {"world_size": 2, "global_batch_size": 2, "workload": "gpt2"}
    model = _of("gpt2", lora=8)
    num_whole = mt.models()["gpt2"].num_parameters
    for strategy in ("ddp", "fsdp"):
        written = mt.goodput(strategy, **{**sizes, "workload": model}, days=1).checkpoint.size_bytes
        assert written == pytest.approx((2 + 12) * model.num_trained_parameters, rel=1e-3)
        assert mt.goodput(strategy, **sizes, days=1).checkpoint.size_bytes == pytest.approx(14 * num_whole, rel=1e-3)


@pytest.mark.ci
def test_gpt3_gains_by_adapters_what_their_paper_measured() -> None:
    """Hu et al. 2021, section 4.2: 32.5 tokens/s a V100 in full, 43.1 with adapters of queries and values."""
    sizes: dict[str, Any] = {"world_size": 96, "tp": 8, "pp": 12, "global_batch_size": 48, "microbatch_size": 1}
    machine: dict[str, Any] = {"workload": "gpt3-175b", "hardware": "v100_32g_nvl8", "recompute": "full"}
    machine["platform"] = "megatron-2021"
    lora = mt.Lora(rank=4, targets=("query", "value"))
    full, part = (mt.simulate("megatron", **sizes, **machine, lora=each) for each in (None, lora))
    assert full.step_time / part.step_time == pytest.approx(43.1 / 32.5, rel=0.05)


@pytest.mark.few(1)
@pytest.mark.parametrize("what", [{"lora": 4}, {"lora": TWO}, {"frozen_layers": 1}, {"lora": 2, "frozen_layers": 1}])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {}),
        ("zero3", {}),
        ("fsdp", {"tp": 2}),
        ("fsdp", {"tp": 2, "sequence_parallel": True}),
        ("megatron", {"tp": 2, "pp": 2, "sequence_parallel": True}),
        ("megatron", {"pp": 2, "cp": 2, "zero": 1}),
        ("zb_h1", {}),
        ("moe", {"workload": "tiny-moe"}),
        ("diloco", {}),
    ],
)
def test_strategies_train_a_part_of_a_model_as_one_device_does(
    strategy: str, options: dict[str, Any], what: dict[str, Any]
) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "workload": "tiny", **options, **what}
    assert mt.prove(strategy, **sizes).largest_relative < 1e-9


def test_latent_attention_has_adapters_where_its_heads_are_made() -> None:
    sizes = mt.LatentAttention(kv_rank=8, rope_head_dim=4, nope_head_dim=8, value_head_dim=8, query_rank=12)
    model = replace(TINY, latent=sizes, head_dim=12, num_kv_heads=TINY.num_heads, lora=mt.Lora(rank=4))
    names = {weight.name for weight in model.units()[1].weights if weight.is_trained}
    assert names == {f"{name}.lora_{which}" for name in ("query_up", "kv_up", "output") for which in "ab"}
    assert mt.prove("fsdp", tp=2, workload=model, world_size=2, global_batch_size=2).largest_relative < 1e-9


async def forgets_the_sum(model: mt.Model, microbatch_size: int | None = None) -> mt.Model:
    """Take each part's gradient of the adapters that all parts hold for the whole one."""
    del microbatch_size
    group = model.mesh(tp=2).group("tp")
    weights, states, activations, grads, weight_grads = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], states[layer] = model.load_weights(layer, part=group.index, num_parts=2)
    activations[0] = model.get_input_activation(range(model.global_batch_size))
    for layer in layers:
        made = model.forward(layer, activations[layer], weights[layer])
        activations[layer + 1] = await model.all_reduce(made, layer, group=group)
    grads[layers[-1]] = model.loss(activations.pop(model.num_layers))
    for layer in reversed(layers):
        weight_grads[layer], grad = model.backward(layer, activations[layer], grads[layer], weights[layer])
        grads[layer - 1] = await model.all_reduce(grad, layer, group=group) if layer else grad
    for layer in layers:
        weights[layer], states[layer] = model.update(layer, weight_grads[layer], weights[layer], states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


def test_an_adapter_that_all_parts_hold_must_be_summed_over_them() -> None:
    sizes: dict[str, Any] = {"world_size": 2, "global_batch_size": 2, "workload": "tiny"}
    mt.simulate(forgets_the_sum, **sizes)  # nothing to sum without adapters
    with pytest.raises(LawError, match="adapters that all parts of layer 1 hold is a sum over the parts, of which"):
        mt.simulate(forgets_the_sum, **sizes, lora=4)


@pytest.mark.parametrize("options", [{"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"replicas": 2}])
def test_folded_ranks_do_what_all_do(options: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"world_size": 8, "global_batch_size": 8, "workload": "tiny", "lora": 4, **options}
    folded, each = (mt.simulate("fsdp", **sizes, fold=fold) for fold in (True, False))
    assert (folded.step_time, folded.peak_memory_bytes) == (each.step_time, each.peak_memory_bytes)


@pytest.mark.usefixtures("in_this_process")
def test_a_search_keeps_layouts_that_fit_because_little_is_trained() -> None:
    sizes: dict[str, Any] = {"world_size": 1, "global_batch_size": 1, "seq_len": 1024, "jobs": 1}
    whole, part = (mt.tune("llama3-8b", strategies=["fsdp"], **sizes, **what) for what in _WHOLE_AND_ADAPTERS)
    assert "out of memory" in {row["status"] for row in whole.rows}
    assert "out of memory" not in {row["status"] for row in part.rows}


def test_runs_say_what_they_train_and_that_no_published_run_does(tmp_path: Any) -> None:
    command = ["run", "fsdp", "--model", "llama3-8b", "--world-size", "8", "--batch", "8", "--lora", "16"]
    shown = CliRunner().invoke(app, [*command, "--frozen-layers", "2", "--out", str(tmp_path)])
    assert shown.exit_code == 0
    assert "adapters of rank 16 alone, the first 2 layers frozen" in " ".join(shown.stdout.split())
    run = mt.load_run(tmp_path / "fsdp" / "run.jsonl")
    assert run.trained_model is not None
    assert run.trained_model.trained == "adapters of rank 16 alone, the first 2 layers frozen"
    assert "no partly trained Llama-like model" in run.sureness


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": 0}, "lora must be a Lora, or its rank, got 0; write lora=mt.Lora"),
        ({"lora": "16"}, "lora must be a Lora, or its rank"),
        ({"frozen_layers": -1}, "frozen_layers must be an integer of at least 0, got -1"),
        ({"frozen_layers": 3}, r"frozen_layers \(3\) must be at most num_layers \(2\)"),
        ({"lora": 4, "frozen_layers": 2}, "of which there are none; nothing would be trained"),
        ({"lora": mt.Lora(targets=("kv_up",))}, r"lora's targets \(kv_up\) must name matrices of the layers"),
    ],
)
def test_what_would_train_nothing_or_means_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(TINY, **changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 2.5}, "rank must be an integer of at least 1, got 2.5"),
        ({"alpha": -1}, "alpha must be a positive number"),
        ({"targets": "query"}, "targets must be a sequence of names"),
        ({"targets": ("q_proj",)}, 'targets must be "query" or "key" or .*, got "q_proj"'),
    ],
)
def test_adapters_with_faults_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mt.Lora(**fields)
