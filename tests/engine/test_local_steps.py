"""Local steps: what is declared, what a wrong strategy is told, and what the right ones take and hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import MinitrainError
from minitrain.tensors import HIDDEN_SIZE

WEIGHT = HIDDEN_SIZE**2
SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 2, "global_batch_size": 16}

SOURCE = """
import minitrain as mt


@mt.local_steps("local_steps", outer=mt.Nesterov(0.7, 0.9))
async def mine(model, local_steps=2):
    weights, states, activations, grad_activations, grads = model.storage()
    layers = range(model.num_layers)
    for k in layers:
        weights[k], states[k] = model.load_weights(k)
        states["outer", k] = model.load_outer_state(k, weights[k])
        weights["local", k] = model.local_copy(k, weights[k])
    for step in range(local_steps):
        samples = model.samples_of_rank(local_steps * model.world_size, step * model.world_size + model.rank)
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
        grads[k] = model.outer_gradient(k, weights[k], weights["local", k])
        del weights["local", k]
        grads[k] = await model.all_reduce(grads[k], k)
        weights[k], states["outer", k] = model.outer_update(k, grads.pop(k), weights[k], states["outer", k])
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
    strategy = mine(tmp_path)
    assert mt.prove(strategy, **SIZES).largest < 1e-12
    assert "4 replicas with 2 steps of their own" in str(mt.prove(strategy, **SIZES))
    own, shipped = mt.simulate(strategy, **SIZES), mt.simulate("diloco", **SIZES)
    assert own.peak_memory >= shipped.peak_memory
    assert own.useful_flop == shipped.useful_flop


REFUSED = {
    "no declaration": ('@mt.local_steps("local_steps", outer=mt.Nesterov(0.7, 0.9))\n', "", "declare @mt.local_steps"),
    "an option that is none": ('"local_steps", outer', '"steps", outer', "takes no such option"),
    "the outer step is left out": (
        'weights[k], states["outer", k] = model.outer_update(k, grads.pop(k), weights[k], states["outer", k])',
        "del grads[k]",
        "must have met",
    ),
    "the momentum is forgotten": (
        'weights[k], states["outer", k] = model.outer_update(k, grads.pop(k), weights[k], states["outer", k])',
        "weights[k] = model.outer_update(k, grads.pop(k), weights[k])",
        "needs its momentum",
    ),
    "a momentum that is not declared": ("outer=mt.Nesterov(0.7, 0.9)", "outer=mt.Nesterov(1.0, 0.0)", "no momentum"),
    "replicas never meet": ("grads[k] = await model.all_reduce(grads[k], k)", "pass", "samples, .* are missing"),
    "one step too few": ("range(local_steps)", "range(local_steps - 1)", "replicas meet after 2 steps"),
    "one step too many": (
        "range(local_steps)",
        "range(local_steps + 1)",
        r"samples_of_rank|takes 2 steps of its own|must lie in",
    ),
    "the same samples twice": (
        "step * model.world_size + model.rank)",
        "model.rank)",
        "local step 1 takes samples of 8..15",
    ),
    "another replica's samples too": (
        'grads.pop(k), weights["local", k], states[k])',
        'await model.all_reduce(grads.pop(k), k), weights["local", k], states[k])',
        "sum its gradients over the",
    ),
    "half of the share": (
        "get_input_activation(samples)",
        "get_input_activation(list(samples)[:1])",
        "takes 2 samples",
    ),
    "the common weight is updated": (
        'weights["local", k], states[k] = model.update(k, grads.pop(k), weights["local", k], states[k])',
        "weights[k], states[k] = model.update(k, grads.pop(k), weights[k], states[k])",
        "must cover all 16 samples, .* updates model.local_copy",
    ),
    "a copy of a copy": (
        'weights["local", k] = model.local_copy(k, weights[k])',
        'weights["a", k] = model.local_copy(k, weights[k]); weights["local", k] = model.local_copy(k, weights["a", k])',
        "must be the common one",
    ),
    "the inner state for the outer step": (
        'weights[k], states["outer", k])\n        model.set',
        "weights[k], states[k])\n        model.set",
        "must be a OuterState",
    ),
    "the outer state for an inner step": (
        'weights["local", k], states[k])',
        'weights["local", k], states["outer", k])',
        "needs its own state|same steps",
    ),
    "the local weight handed in": (
        "model.set_final_weight(k, weights[k])",
        "model.set_final_weight(k, model.local_copy(k, weights[k]))",
        "must be the common one",
    ),
    "the drift of the common weight": (
        'model.outer_gradient(k, weights[k], weights["local", k])',
        "model.outer_gradient(k, weights[k], weights[k])",
        "must be a LocalWeight",
    ),
    "forward of another version": (
        'activations[k + 1] = model.forward(k, activations[k], weights["local", k])',
        "activations[k + 1] = model.forward(k, activations[k], weights[k])",
        "stems from weights of step 0",
    ),
    "the outer gradient of an earlier step": (
        'weights["local", k], states[k] = model.update(k, grads.pop(k), weights["local", k], states[k])',
        'old = weights["local", k]; _, states[k] = model.update(k, grads.pop(k), old, states[k])',
        "was overwritten|stems from|same steps",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_wrong_version_is_refused_by_name(tmp_path: Path, wrong: str) -> None:
    old, new, message = REFUSED[wrong]
    with pytest.raises(MinitrainError, match=message):
        mt.prove(mine(tmp_path, (old, new)), **SIZES)


DISPROVED = {
    "another replica's share in the second step": (
        "step * model.world_size + model.rank)",
        "step * model.world_size + (model.rank + step) % model.world_size)",
    ),
    "the steps in another order": (
        "step * model.world_size + model.rank)",
        "step * model.world_size + (model.world_size - 1 - model.rank if step else model.rank))",
    ),
}


@pytest.mark.parametrize("wrong", DISPROVED)
def test_a_wrong_version_that_laws_cannot_see_is_disproved(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(mt.ProofError, match=r"differs|element"):
        mt.prove(mine(tmp_path, DISPROVED[wrong]), **SIZES)


@pytest.mark.parametrize("name", ["local_sgd", "diloco"])
def test_a_round_communicates_as_much_as_one_step(name: str) -> None:
    run, ddp = mt.simulate(name, local_steps=8, **{**SIZES, "global_batch_size": 64}), mt.simulate("ddp", **SIZES)
    bytes_of = [sum(event.size_bytes for event in each.logs[0] if event.typ == "all_reduce") for each in (run, ddp)]
    assert bytes_of[0] == bytes_of[1] > 0
    assert len([e for e in run.logs[0] if e.typ == "update"]) == 8 * len([e for e in ddp.logs[0] if e.typ == "update"])


def test_the_common_weight_and_its_momentum_are_held_beside_the_replicas_own() -> None:
    held = {name: mt.simulate(name, microbatch_size=1, **SIZES).peak_memory for name in ("ddp", "local_sgd", "diloco")}
    assert held["local_sgd"] - held["ddp"] == 2 * WEIGHT  # a second copy of two layers' weights
    assert held["diloco"] - held["local_sgd"] == 2 * WEIGHT  # and a momentum


def test_replicas_of_several_ranks_reduce_within_them() -> None:
    run = mt.simulate("diloco", replicas=2, **SIZES)
    groups = {event.group for event in run.logs[0] if event.typ == "all_reduce"}
    assert groups == {(0, 1), (0, 2)}


@pytest.mark.parametrize(("batch", "options"), [(12, {}), (16, {"local_steps": 3}), (16, {"replicas": 3})])
def test_sizes_that_do_not_divide(batch: int, options: dict[str, Any]) -> None:
    with pytest.raises(MinitrainError, match="must be a multiple of"):
        mt.simulate("diloco", **{**SIZES, "global_batch_size": batch, **options})


@pytest.mark.parametrize("arguments", [(0.0, 0.9), (0.7, 1.0), (-1.0, 0.5), (float("nan"), 0.5)])
def test_an_outer_optimizer_that_is_none(arguments: tuple[float, float]) -> None:
    with pytest.raises(mt.UsageError, match="an outer optimizer needs a rate above 0"):
        mt.Nesterov(*arguments)


@pytest.mark.parametrize("fold", [True, False])
def test_rounds_follow_one_another(fold: bool) -> None:
    run = mt.simulate("diloco", steps=500, world_size=64, num_layers=2, global_batch_size=256, fold=fold)
    assert len(run.step_times) == 500
    assert run.steps is not None
    assert run.steps.period == 1


def test_folded_rounds_equal_those_of_all_ranks() -> None:
    sizes: dict[str, Any] = {"world_size": 64, "num_layers": 3, "global_batch_size": 256}
    more: list[dict[str, Any]] = [{}, {"replicas": 8}]
    for options in more:
        folded, full = (mt.simulate("diloco", fold=fold, **sizes, **options) for fold in (True, False))
        assert folded.is_folded
        assert folded == full


def test_seldom_meetings_pay_over_a_slow_network() -> None:
    """Between nodes, DDP communicates at each step; DiLoCo once in eight."""
    sizes: dict[str, Any] = {"world_size": 16, "num_layers": 8, "hardware": "h100_80g_nvl8"}
    ddp = mt.simulate("ddp", global_batch_size=16, **sizes)
    diloco = mt.simulate("diloco", replicas=2, local_steps=8, global_batch_size=128, **sizes)
    assert diloco.step_time < 8 * ddp.step_time


def test_runs_that_compute_something_else_say_so() -> None:
    found = mt.compare(["ddp", "diloco"], **SIZES)
    notes = {run.strategy: [note for note in run.notes if "computes something else" in note] for run in found.succeeded}
    assert notes == {
        "ddp": [],
        "diloco": [
            "diloco: a step is a round of 2 local steps of 4 replicas; it computes something else than one update"
        ],
    }


@pytest.mark.parametrize("workload", ["specified", "dense", "rows:256", "tiny", "tiny-moe"])
def test_every_workload_has_a_price_for_passes_through_weights(workload: str) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "global_batch_size": 16}
    sizes |= {} if workload == "specified" else {"workload": workload}
    sizes |= {} if "tiny" in workload else {"num_layers": 2}
    run = mt.simulate("diloco", replicas=2, **sizes)
    for typ in ("local_copy", "outer_gradient", "outer_update"):
        assert run.by_type[typ].seconds > 0
