"""Transformers under every strategy that exists: their costs, sizes, stages, names and figures."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.machine.config import SPECIFIED
from minitrain.machine.predictor import RuntimePredictor
from minitrain.machine.price import RankPredictors
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.view.bars import make_bars
from minitrain.view.layout import View
from minitrain.view.timeline import timeline_data
from minitrain.workloads.transformer_workload import TransformerWorkload, find_workload
from minitrain.workloads.workload import PassMode

COUNT = st.integers(1, 6)
TINY = mt.models()["tiny"]


def simulate(strategy: Any, world_size: int = 4, **parameters: Any) -> mt.Run:
    usual: dict[str, Any] = {"workload": "tiny", "global_batch_size": 8}
    return mt.simulate(strategy, world_size=world_size, **usual | parameters)


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", sorted(mt.strategies()))
def test_every_strategy_trains_a_transformer_as_it_is(strategy: str) -> None:
    world_size, sizes = 1 if strategy == "single" else 4, {"workload": "gpt2", "seq_len": 128}
    run = simulate(strategy, world_size, **sizes)
    strict = simulate(strategy, world_size, strict=True, **sizes)
    assert run.num_layers == 26
    assert [list(log) for log in strict.logs] == [list(log) for log in run.logs]
    assert simulate(strategy, world_size, fold=True, **sizes).summary() == run.summary()
    alone = {"contention": False, **sizes}  # totals are not timed again
    assert (
        simulate(strategy, world_size, log="summary", **alone).summary()
        == simulate(strategy, world_size, **alone).summary()
    )


@settings(max_examples=30, deadline=None)
@given(layers=COUNT, heads=COUNT, size=COUNT, length=st.integers(1, 40), samples=COUNT, vocabulary=st.integers(1, 99))
def test_the_work_of_a_step_is_that_of_narayanan(
    layers: int, heads: int, size: int, length: int, samples: int, vocabulary: int
) -> None:
    h, s, b, v = heads * size, length, samples, vocabulary
    model = mt.Transformer(
        num_layers=layers, hidden_size=h, num_heads=heads, vocab_size=v, seq_len=s, attention="unfused"
    )
    workload = TransformerWorkload(model)

    def step(mode: PassMode) -> float:
        passes = [(typ, layer) for typ in ("forward", "backward") for layer in range(workload.num_layers)]
        return sum(workload.compute_cost(typ, b, layer, mode).work_flop for typ, layer in passes)

    full = 96 * b * s * layers * h * h * (1 + Fraction(s, 6 * h) + Fraction(v, 16 * layers * h))
    assert step(PassMode("full")) == full
    kept = 72 * b * s * layers * h * h * (1 + Fraction(s, 6 * h) + Fraction(v, 12 * layers * h))
    assert step(PassMode()) == workload.training_flop(b, workload.num_layers) == kept


@pytest.mark.parametrize("model", ["gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_the_halves_of_a_backward_ask_for_what_the_whole_asks_for(model: str) -> None:
    workload = TransformerWorkload(mt.models()[model])
    for layer in range(workload.num_layers):
        whole, first, second = (
            workload.compute_cost(typ, 3, layer) for typ in ("backward", "backward_input", "backward_weight")
        )
        assert first.work_flop + second.work_flop == whole.work_flop
        assert first.traffic_bytes + second.traffic_bytes == whole.traffic_bytes


def test_flash_attention_computes_what_the_mask_leaves_and_the_scores_twice() -> None:
    model = mt.Transformer(num_layers=1, hidden_size=64, num_heads=4, vocab_size=8, seq_len=32)
    workload = TransformerWorkload(model)
    projections, pairs = 2 * 32 * 4 * 64 * 64, 2 * 2 * 64 * 32 * 33 // 2
    assert workload.compute_cost("forward", 1, 1).work_flop == projections + pairs
    assert workload.compute_cost("backward", 1, 1).work_flop == 2 * projections + 2.5 * pairs


def test_a_parameter_holds_2_bytes_its_gradient_4_and_its_state_12() -> None:
    workload, none = find_workload("llama3-8b"), frozenset[int]()
    for layer in range(66):
        held = TransformerWorkload(mt.models()["llama3-8b"]).units[layer].num_held_parameters()
        assert workload.memory_elements(Weight(layer, 66, 0)) == 2 * held
        assert workload.memory_elements(WeightGrad(layer, 66, none, 8)) == 4 * held
        assert workload.memory_elements(OptState(layer, 66, 0)) == 12 * held
        assert workload.memory_elements(OptState(layer, 66, 0, frozenset([1]), 8)) == 12 * held / 8
        assert workload.message_bytes(Weight(layer, 66, 0, frozenset([1]), 8)) == 2 * held


def test_activations_are_as_large_as_what_the_layer_before_passes_on() -> None:
    workload, samples = find_workload(TINY, 16), frozenset(range(3))
    hidden = 3 * 16 * 64 * 2
    sizes = [workload.memory_elements(Activation(layer, 6, samples, 8)) for layer in range(7)]
    assert sizes == [0, hidden, hidden, hidden, hidden, hidden, 0]
    sizes = [workload.memory_elements(ActivationGrad(layer, 6, samples, 8)) for layer in range(-1, 6)]
    assert sizes == [0, hidden, hidden, hidden, hidden, hidden, 0]


def test_num_layers_follows_from_the_model_and_cannot_be_given_too() -> None:
    assert simulate("ddp").num_layers == len(TINY.units()) == 6
    for given_layers in (6, 32):
        with pytest.raises(mt.UsageError, match=rf"num_layers \({given_layers}\) does not go with a workload .* 6 lay"):
            simulate("ddp", num_layers=given_layers)


def test_seq_len_is_that_of_the_run_and_goes_with_a_transformer_alone() -> None:
    run = simulate("ddp", seq_len=16)
    assert run.useful_flop == 8 * 16 * TINY.flop_per_token(16)
    assert run.tokens_per_second == 8 * 16 / run.step_time
    with pytest.raises(mt.UsageError, match=r'seq_len \(16\) is for transformers, .* workload="llama3-8b"'):
        mt.simulate("ddp", seq_len=16)
    with pytest.raises(mt.UsageError, match=r"seq_len \(2048\) must be at most num_positions \(1024\) of gpt2"):
        simulate("ddp", workload="gpt2", seq_len=2048)
    with pytest.raises(mt.UsageError, match="seq_len must be an integer of at least 1, got 0"):
        simulate("ddp", seq_len=0)


def test_a_model_is_found_by_name_by_value_and_beside_a_predictor() -> None:
    by_name = simulate("zero3")
    assert simulate("zero3", workload=TINY).summary() == by_name.summary()
    by_name = simulate("zero3", hardware=SPECIFIED, fidelity="roofline")
    assert simulate("zero3", hardware=RuntimePredictor(4)).step_time == by_name.step_time
    machines = RankPredictors([RuntimePredictor(4) for _ in range(4)])
    assert simulate("zero3", hardware=machines).step_time == by_name.step_time
    units = simulate("zero3", hardware=mt.FixedPredictor(forward=1))
    assert units.step_time == 6 * 1.0  # one microbatch, six layers
    assert units.peak_memory_per_rank == by_name.peak_memory_per_rank
    with pytest.raises(mt.UsageError, match='there is no model "tinny"; did you mean "tiny"'):
        simulate("ddp", workload="tinny")


def test_figures_and_messages_name_the_units(tmp_path: Path) -> None:
    run = simulate("1f1b", 2, memory_by_kind=True)
    run.save(tmp_path / "run.jsonl")
    again = mt.load_run(tmp_path / "run.jsonl")
    assert again.trained_model == run.trained_model
    assert again.summary() == run.summary() | {"options": {}}
    assert "attention 0" in str(again.figure().to_dict())
    bars = make_bars(run.timeline, run.last_clock)
    assert timeline_data(bars, View(), run.explain())["layers"] == [unit.name for unit in TINY.units()]
    trace = json.loads(run.write_chrome_trace(tmp_path / "trace.json").read_text(encoding="utf-8"))
    named = {event["args"].get("layer_name") for event in trace["traceEvents"] if event["ph"] == "X"}
    assert {"embedding", "attention 0", "mlp 0", "attention 1", "mlp 1", "head"} <= named
    assert "attention 0" in run.explain().timeline.layer_names


async def forgets_a_sample(model: mt.Model) -> mt.Model:
    """Update with the gradient of half the batch."""
    model.weights[1], state = model.load_weights(1)
    x = model.get_input_activation(range(4))
    model.activations[1] = Activation(1, model.num_layers, x.samples, 8)
    model.grad_activations[1] = ActivationGrad(1, model.num_layers, x.samples, 8)
    grad, _ = model.backward(1, model.activations[1], model.grad_activations[1], model.weights[1])
    model.update(1, grad, model.weights[1], state)
    return model


def test_a_broken_law_names_the_unit() -> None:
    with pytest.raises(mt.LawError, match=r"must cover all 8 samples.* \(layer 1 is attention 0\)"):
        simulate(forgets_a_sample, 1)


@pytest.mark.usefixtures("in_this_process")
def test_a_comparison_and_a_sweep_share_the_model() -> None:
    comparison = mt.compare(["ddp", "gpipe", "hsdp"], workload="tiny", world_size=4, shard_size=3, global_batch_size=8)
    for row in comparison.summary():
        assert "shard_size" in str(row["error"])
        assert (row["model"], row["seq_len"], row["num_layers"]) == ("tiny", 32, 6)
    rows = mt.sweep("zero3", {"seq_len": [16, 32]}, workload="tiny", world_size=4, global_batch_size=8).rows()
    assert [row["tokens_per_second"] for row in rows] == [
        simulate("zero3", seq_len=length).tokens_per_second for length in (16, 32)
    ]
