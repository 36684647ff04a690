"""What forward keeps for backward, what backward computes again, and what both cost."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model
from minitrain.machine.predictor import RuntimePredictor
from minitrain.tensors import Activation, ActivationGrad
from minitrain.workloads.transformer_workload import TransformerWorkload
from minitrain.workloads.workload import RECOMPUTE, PassMode, Recompute

A, S, H, B, V = 4, 32, 64, 3, 96
GPT = mt.Transformer(
    num_layers=3, hidden_size=H, num_heads=A, vocab_size=V, seq_len=S, dropout=0.1, attention="unfused"
)
LAYERS = len(GPT.units())
KEPT: dict[Recompute, Any] = {
    "none": S * B * H * (34 + Fraction(5 * A * S, H)),
    "selective": S * B * H * 34,
    "full": S * B * H * 2,
}  # Korthikanti et al. (2022), table 2, for one device
ENDS = S * B * H + 4 * S * B * H * (1 + Fraction(V, H))  # the embedding's mask, and the head; section 4.3


def model_of(transformer: mt.Transformer = GPT, **more: Any) -> Model:
    workload = TransformerWorkload(transformer)
    return Model(0, None, workload.num_layers, B, runtime_predictor=RuntimePredictor(1, workload=workload), **more)


def load(model: Model) -> None:
    for layer in range(model.num_layers):
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer)


def go_forward(model: Model, recompute: Recompute | None = None) -> None:
    model.activations[0] = model.get_input_activation(range(B))
    for layer in range(model.num_layers):
        model.activations[layer + 1] = model.forward(
            layer, model.activations[layer], model.weights[layer], recompute=recompute
        )


def go_back(model: Model) -> None:
    last = model.num_layers - 1
    model.grad_activations[last] = model.loss(model.activations.pop(model.num_layers))
    for layer in reversed(range(model.num_layers)):
        _, model.grad_activations[layer - 1] = model.backward(
            layer, model.activations[layer], model.grad_activations[layer], model.weights[layer]
        )
        del model.activations[layer], model.grad_activations[layer]


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_activations_hold_to_the_byte_what_korthikanti_says(recompute: Recompute) -> None:
    model = model_of()
    load(model)
    before = model.memory()
    go_forward(model, recompute)
    assert model.memory() - before == GPT.num_layers * KEPT[recompute] + ENDS


def test_nothing_is_kept_twice_and_all_is_freed() -> None:
    model = model_of(memory_by_kind=True)
    load(model)
    before = model.memory()
    go_forward(model)
    kept = model.memory() - before
    model.forward(1, model.activations[1], model.weights[1])
    assert model.memory() - before == kept
    go_back(model)
    assert model.memory() == before  # the gradients of the weights were not stored
    journalled: dict[str, float] = {}
    for change in model.memory_journal:
        journalled[change.kind] = journalled.get(change.kind, 0) + change.elements
    in_stores = {"weights": before / 7, "opt_states": before * 6 / 7, "activations": 0, "grad_activations": 0}
    assert journalled == {**in_stores, "logits": 0}


@pytest.mark.parametrize(("recompute", "parts"), [("none", 3), ("selective", 3), ("full", 4)])
def test_a_step_executes_what_narayanan_says(recompute: Recompute, parts: int) -> None:
    run = mt.simulate("single", world_size=1, workload=GPT, global_batch_size=B, recompute=recompute)
    layers, head = 24 * B * S * GPT.num_layers * H**2 * (1 + Fraction(S, 6 * H)), 6 * B * S * H * V
    assert run.useful_flop == 3 * layers + head
    assert run.trained_model is not None
    again = {3: 0, 4: layers}[parts] if recompute != "selective" else 4 * B * S * S * H * GPT.num_layers
    assert run.trained_model.recomputed_flop == again
    if recompute == "full":  # equation 3
        full = 96 * B * S * GPT.num_layers * H**2 * (1 + Fraction(S, 6 * H) + Fraction(V, 16 * GPT.num_layers * H))
        assert run.useful_flop + again == full
    assert run.mfu is not None
    assert run.hfu == pytest.approx(run.mfu * (1 + again / run.useful_flop))


def test_a_backward_costs_what_it_computes_again() -> None:
    predictor = RuntimePredictor(1, workload=TransformerWorkload(mt.models()["megatron-22b"]))
    for layer in (1, 2):
        kept = predictor.workload.compute_cost("backward", B, layer)
        again = predictor.workload.compute_cost("backward", B, layer, PassMode("full"))
        forward = predictor.workload.compute_cost("forward", B, layer)
        assert again.work_flop == kept.work_flop + forward.work_flop
        assert predictor.compute("backward", B, layer, PassMode("full")).seconds == predictor.get_processing_time(
            again.work_flop, again.traffic_bytes
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", sorted(set(mt.strategies()) - {"single"}))
def test_every_strategy_trades_time_for_memory(strategy: str) -> None:
    runs = [
        mt.simulate(strategy, world_size=4, workload="gpt2", seq_len=256, global_batch_size=16, recompute=recompute)
        for recompute in RECOMPUTE
    ]
    computing = [sum(run.breakdown.computing) for run in runs]
    assert computing[0] < computing[1] < computing[2]
    peaks = [run.peak_memory for run in runs]
    assert peaks == sorted(peaks, reverse=True)
    flops = {run.trained_model.recomputed_flop for run in runs if run.trained_model}
    units = mt.models()["gpt2"].units()
    assert flops == {16 * sum(unit.recomputed_flop(256, recompute) for unit in units) for recompute in RECOMPUTE}


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", ["ddp", "1f1b", "zb_h1", "zbv", "zero3"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_strict_folded_and_summary_runs_agree(strategy: str, recompute: Recompute) -> None:
    sizes: dict[str, Any] = {"workload": "gpt2", "seq_len": 64, "global_batch_size": 8, "recompute": recompute}
    plain = mt.simulate(strategy, world_size=4, **sizes)
    assert mt.simulate(strategy, world_size=4, fold=True, **sizes).summary() == plain.summary()
    assert mt.simulate(strategy, world_size=4, log="summary", **sizes).summary() == plain.summary()
    strict = mt.simulate(strategy, world_size=4, strict=True, **sizes)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]
    assert strict.trained_model == plain.trained_model
    journalled = mt.simulate(strategy, world_size=4, memory_by_kind=True, **sizes)
    assert journalled.peak_memory_per_rank == plain.peak_memory_per_rank


def test_an_mlp_keeps_its_input_where_that_cannot_be_made_again() -> None:
    model = model_of()
    load(model)
    samples = frozenset(range(B))
    model.activations[2] = Activation(2, LAYERS, samples, B)  # as received from the rank before
    model.forward(2, model.activations[2], model.weights[2], recompute="full")
    assert model.memory_by_store()["activations"] == 2 * S * B * H
    model.activations[1] = Activation(1, LAYERS, samples, B)
    model.activations[2] = model.forward(1, model.activations[1], model.weights[1], recompute="full")
    model.forward(2, model.activations[2], model.weights[2], recompute="full")
    assert model.memory_by_store()["activations"] == 2 * S * B * H  # the attention's input alone


def test_backward_holds_what_it_computes_again_until_it_is_done() -> None:
    peaks = {}
    kinds: tuple[Recompute, ...] = ("none", "full")
    for recompute in kinds:
        model = model_of()
        load(model)
        before = model.memory()
        go_forward(model, recompute)
        held = model.memory() - before
        peak_forward = model.peak_memory - before
        go_back(model)
        peaks[recompute] = model.peak_memory - before
        assert peak_forward == held
    inputs_of_others, mask, gradient = (GPT.num_layers - 1) * KEPT["full"], S * B * H, 2 * S * B * H
    assert peaks["full"] == inputs_of_others + KEPT["none"] + mask + gradient


def test_the_second_half_of_a_backward_finds_what_the_first_has_computed_again() -> None:
    model = model_of()
    load(model)
    go_forward(model, "full")
    inp = model.activations[1]
    model.grad_activations[1] = grad = ActivationGrad(1, LAYERS, inp.samples, B)
    others = model.memory_by_store()["activations"] - KEPT["full"]
    model.backward_input(1, inp, grad, model.weights[1])
    attention = GPT.units()[1].saved_bytes(TransformerWorkload(GPT).work(B, PassMode()))
    assert model.memory_by_store()["activations"] == others + attention
    model.backward_weight(1, inp, grad)
    del model.activations[1]
    assert model.memory_by_store()["activations"] == others


def test_recompute_must_be_one_of_three() -> None:
    with pytest.raises(mt.UsageError, match=r'recompute must be "none" or "selective" or "full", got .all.'):
        mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2, recompute="all")
    model = model_of()
    load(model)
    with pytest.raises(mt.UsageError, match=r"recompute must be .* got 3"):
        model.forward(0, model.get_input_activation([0]), model.weights[0], recompute=3)  # type: ignore[arg-type]


def test_layers_that_are_alike_keep_their_input_alone() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 8}
    plain, full = mt.simulate("ddp", **sizes), mt.simulate("ddp", recompute="full", **sizes)
    assert full.summary() == plain.summary() | {"options": {"recompute": "full"}}
