"""Fragments that meet in turn (Streaming DiLoCo): what a wrong strategy is told, and what the shipped one takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import MinitrainError
from minitrain.proof.layers import DenseLayers

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 2, "global_batch_size": 16}
STREAMING: dict[str, Any] = {"local_steps": 4, "fragments": 2, "overlap": 1, "mixing": 0.5}

SOURCE = """
import minitrain as mt


@mt.local_steps("local_steps", outer=mt.Nesterov(0.7, 0.9), fragments=2, overlap=1, mixing=0.5)
async def mine(model, local_steps=4):
    weights, states, activations, grad_activations, grads = model.storage()
    layers, sent = range(model.num_layers), {}
    for k in layers:
        weights[k], states[k] = model.load_weights(k)
    for k in layers:
        states["outer", k] = model.load_outer_state(k, weights[k])
        weights["local", k] = model.local_copy(k, weights[k])
    for step in range(1, local_steps + 1):
        samples = model.samples_of_rank(local_steps * model.world_size, (step - 1) * model.world_size + model.rank)
        activations[0] = model.get_input_activation(samples)
        for k in layers:
            activations[k + 1] = model.forward(k, activations[k], weights["local", k])
        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for k in reversed(layers):
            grads[k], grad_activations[k - 1] = model.backward(
                k, activations[k], grad_activations[k], weights["local", k]
            )
        del activations[0], grad_activations[-1]
        for k in layers:
            weights["local", k], states[k] = model.update(k, grads.pop(k), weights["local", k], states[k])
        for k in layers:
            if step == 2 * k + 1:
                grads["sent"] = model.outer_gradient(k, weights[k], weights["local", k])
                sent[k] = model.launch(model.all_reduce(grads.pop("sent"), k))
            if step == 2 * k + 2:
                grads["sent"] = await sent.pop(k)
                weights[k], states["outer", k] = model.outer_update(
                    k, grads.pop("sent"), weights[k], states["outer", k]
                )
                weights["local", k] = model.mix(k, weights[k], weights["local", k])
    for k in layers:
        model.set_final_weight(k, weights["local", k])
        model.set_final_weight(k, weights[k])
    return model
"""


def mine(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Write the strategy with some changes, and return how it is named."""
    text = SOURCE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / "mine.py"
    path.write_text(text)
    return f"{path}:mine"


def test_the_strategy_of_the_wrong_ones_is_right(tmp_path: Path) -> None:
    proof = mt.prove(mine(tmp_path), **SIZES)
    assert proof.largest < 1e-12
    assert "4 replicas with 4 steps of their own, 2 fragments in turn" in str(proof)
    assert mt.simulate("diloco", **SIZES, **STREAMING).step_time == proof.run.step_time


_MIX = 'weights["local", k] = model.mix(k, weights[k], weights["local", k])'
REFUSED = {
    "a fragment is sent late": (
        "step == 2 * k + 1:",
        "step == 2 * k + 2:",
        "layer 0 is sent after 1 of a replica's own steps, .*; send it then",
    ),
    "a fragment meets late": ("step == 2 * k + 2:", "step == 2 * k + 3:", "layer 0 must meet after 2 steps"),
    "a fragment meets early": (
        "            if step == 2 * k + 2:",
        "            if step == 2 * k + 1:",
        "layer 0 meets once, after 2 steps of a replica's own",
    ),
    "a fragment meets twice": (_MIX, f"{_MIX}; {_MIX}", "which has met"),
    "a fragment never meets": (_MIX, "pass", "which has not; mix it with the common weight first"),
    "replicas forget their own weights": (
        _MIX,
        'weights["local", k] = model.local_copy(k, weights[k])',
        "must be the common one, whole or in shards, as it was loaded",
    ),
    "own weights are not handed on": (
        'model.set_final_weight(k, weights["local", k])',
        "pass",
        "replicas go on with their own weights",
    ),
    "the own weight of a step before": (
        'model.set_final_weight(k, weights["local", k])',
        "model.set_final_weight(k, model.local_copy(k, model.load_weights(k)[0]))",
        "goes on with its own weight after 4 steps",
    ),
    "replicas do not sum": ("model.all_reduce(grads.pop", "model.broadcast(grads.pop", "broadcast|cover the 4 samples"),
    "the outer step is left out": (
        'weights[k], states["outer", k] = model.outer_update(\n                    k, grads.pop("sent"), weights[k], '
        'states["outer", k]\n                )',
        "del grads['sent']",
        "must be the common one that outer_update has returned",
    ),
    "nothing of it is declared": (", fragments=2, overlap=1, mixing=0.5", "", "replicas meet after 4 steps"),
    "mixtures that are not declared": (
        "                weights[k], states",
        '                model.mix(k, weights[k], weights["local", k])\n                weights[k], states',
        "must be the common one that outer_update has returned",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_wrong_version_is_refused_by_name(tmp_path: Path, wrong: str) -> None:
    old, new, message = REFUSED[wrong]
    with pytest.raises(MinitrainError, match=message):
        mt.simulate(mine(tmp_path, (old, new)), **SIZES)


@pytest.mark.parametrize("kept", [0.0, 0.25])
def test_another_mixture_than_is_declared_is_disproved(monkeypatch: pytest.MonkeyPatch, kept: float) -> None:
    def wrong(_: Any, done: Any, weight: Any, local: Any) -> Any:
        values = kept * local.values + (1 - kept) * weight.values
        return type(weight)(values, weight.part)

    monkeypatch.setattr(DenseLayers, "mix", wrong)
    with pytest.raises(mt.ProofError, match="differs"):
        mt.prove("diloco", **SIZES, **STREAMING)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({}, {"local_steps": 4, "fragments": 4, "mixing": 0.5, "num_layers": 5}),
        ({}, {"local_steps": 4, "overlap": 3}),
        ({"global_batch_size": 24}, {"local_steps": 6, "fragments": 2, "overlap": 2, "mixing": 0.9, "replicas": 2}),
        ({}, {**STREAMING, "replicas": 2, "compression": "int4"}),
        ({}, {**STREAMING, "compression": "powersgd:1"}),
        ({"workload": "tiny", "num_layers": None}, STREAMING),
    ],
)
def test_fragments_are_proven(sizes: dict[str, Any], options: dict[str, Any]) -> None:
    given = {name: size for name, size in {**SIZES, **sizes, **options}.items() if size is not None}
    proof = mt.prove("diloco", **given)
    assert proof.largest_relative < 1e-9


def test_what_meets_in_one_turn_meets_as_in_diloco() -> None:
    """One fragment without overlap, of which nothing is kept, is no streaming."""
    options: dict[str, Any] = {"fragments": 1, "overlap": 0, "mixing": 0.0}
    assert mt.simulate("diloco", **SIZES, **options).logs == mt.simulate("diloco", **SIZES).logs


def test_messages_are_hidden_by_steps_and_come_in_turns() -> None:
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 4, "global_batch_size": 16}
    units = mt.FixedPredictor(forward=1, backward=2, all_reduce=5)
    ways: dict[str, dict[str, Any]] = {
        "at once": {},
        "in turn": {"fragments": 4},
        "beside": {"fragments": 4, "overlap": 1},
    }
    sizes |= {"hardware": units, "local_steps": 8}
    sent = {name: mt.simulate("diloco", **sizes, **options) for name, options in ways.items()}
    steps = 8 * 4 * 3
    assert [run.step_time for run in sent.values()] == [steps + 20, steps + 20, steps]
    starts = [event.time for event in sent["beside"].logs[0] if event.typ == "all_reduce"]
    assert starts == [12, 36, 60, 84]  # one step before each second one's end


def test_streaming_folds() -> None:
    sizes: dict[str, Any] = {"num_layers": 4, "replicas": 4, **STREAMING}
    folded, each = (
        mt.simulate("diloco", world_size=16, global_batch_size=64, fold=fold, **sizes) for fold in (True, False)
    )
    assert folded.is_folded
    assert folded == each
    sizes["replicas"] = 16
    many = mt.simulate("diloco", world_size=4096, global_batch_size=4096 * 4, steps=100, **sizes)
    assert many.is_folded
    assert many.steps is not None
    assert many.steps.period == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fragments": 3}, "3 fragments of 2 layers in 4 local steps"),
        ({"fragments": 4}, "fragments must be at most the layers"),
        ({"fragments": 2, "overlap": 2}, "overlap must be less than the 2 steps between two meetings"),
        ({"overlap": -1}, "overlap must be an integer of at least 0"),
        ({"fragments": 0}, "fragments must be an integer of at least 1"),
        ({"mixing": 1.0}, r"mixing must be in 0..1 \(without 1"),
        ({"mixing": "half"}, r"mixing must be in 0..1"),
    ],
)
def test_fragments_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.StrategyError, match=message):
        mt.simulate("diloco", **{**SIZES, "local_steps": 4, **options})
