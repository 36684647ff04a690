"""The step begins when the weights are there: no figure of it counts loading, which has one of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model
from minitrain.machine.config import SystemConfig, load_config
from minitrain.run.result import Run

_SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 32}
_UNALIKE: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "workload": "gpt2", "fidelity": "roofline"}
_FIGURES = ("step_time", "load_time", "mfu", "bubble_fraction", "exposed_comm_fraction", "energy_joules", "dollars")
_FIGURES_OF_SPANS = ("span_bubble", "makespan_bubble")


def _with_free_loads(hardware: str) -> SystemConfig:
    """Return a device whose host sends at once."""
    config = load_config(hardware)
    return replace(config, mem2=replace(config.mem2, GBps=1e30))


def _require_equal(left: Run, right: Run) -> None:
    for name in (*_FIGURES, *_FIGURES_OF_SPANS):
        assert getattr(left, name) == getattr(right, name), name


def _require_near(left: Run, right: Run, names: tuple[str, ...] = _FIGURES) -> None:
    for name in names:
        assert getattr(left, name) == pytest.approx(getattr(right, name), rel=1e-9, abs=1e-12), name


@pytest.mark.few(1)
@pytest.mark.parametrize("hardware", ["v100_32g_nvl8", "a100_80g", "h200_141g_nvl8", "b200_192g_nvl8"])
def test_the_winner_is_that_of_free_loads(hardware: str) -> None:
    sizes: dict[str, Any] = {"world_size": 8, "num_layers": 32, "global_batch_size": 64}
    given = mt.compare(["ddp", "zero3", "gpipe"], hardware=hardware, **sizes)
    free = mt.compare(["ddp", "zero3", "gpipe"], hardware=_with_free_loads(hardware), **sizes)
    assert [run.strategy for run in given.succeeded] == [run.strategy for run in free.succeeded]
    for run, other in zip(given.succeeded, free.succeeded, strict=True):
        assert run.step_time == pytest.approx(other.step_time, rel=1e-9)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", sorted({*mt.strategies()} - {"single"}))
@pytest.mark.parametrize("sizes", [_SIZES, _UNALIKE], ids=["alike", "transformer"])
def test_a_step_takes_what_it_takes_where_loading_is_free(name: str, sizes: dict[str, Any]) -> None:
    run = mt.simulate(name, hardware="a100_80g", **sizes)
    free = mt.simulate(name, hardware=_with_free_loads("a100_80g"), **sizes)
    _require_near(run, free, ("step_time", "mfu", "bubble_fraction", "exposed_comm_fraction", *_FIGURES_OF_SPANS))
    assert run.load_time > 1e3 * free.load_time > 0
    assert run.last_clock <= run.load_time + run.step_time * (1 + 1e-9)


def test_stages_of_unequal_size_load_for_unequal_times() -> None:
    run = mt.simulate("gpipe", hardware="a100_80g", **_UNALIKE)
    assert not run.loads_alike
    assert run.load_time == max(run.timeline.load_ends)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["ddp", "zero3", "zero3_prefetch", "1f1b", "pp_dp", "fsdp", "ddp_overlap"])
@pytest.mark.parametrize("sizes", [_SIZES, _UNALIKE], ids=["alike", "transformer"])
def test_all_ways_to_simulate_agree(name: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    run = mt.simulate(name, hardware="a100_80g", **sizes)
    for other in (
        mt.simulate(name, hardware="a100_80g", fold=True, **sizes),
        mt.simulate(name, hardware="a100_80g", log="summary", **sizes),
    ):
        if run.loads_alike:
            _require_equal(run, other)
        _require_near(run, other)
    run.save(tmp_path / "run.jsonl")
    saved = mt.load_run(tmp_path / "run.jsonl")
    _require_near(run, saved, tuple(one for one in _FIGURES if one not in ("energy_joules", "dollars")))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["ddp", "zero3", "1f1b", "zero3_prefetch"])
@pytest.mark.parametrize("sizes", [_SIZES, _UNALIKE], ids=["alike", "transformer"])
def test_prices_of_machines_agree_with_their_runs(name: str, sizes: dict[str, Any]) -> None:
    machines = ["a100_80g", "h100_80g_nvl8", "v100_32g_nvl8"]
    priced = mt.price(name, machines, **sizes)
    for place, hardware in enumerate(machines):
        run = mt.simulate(name, hardware=hardware, **sizes)
        for figure in ("step_time", "load_time", "mfu", "bubble_fraction", "exposed_comm_fraction"):
            assert getattr(priced, figure)[place] == pytest.approx(getattr(run, figure), rel=1e-12, abs=1e-14)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["ddp", "1f1b", "zero3_prefetch"])
@pytest.mark.parametrize("sizes", [_SIZES, _UNALIKE], ids=["alike", "transformer"])
def test_noise_explanations_and_faults_count_from_the_end_of_loading(name: str, sizes: dict[str, Any]) -> None:
    run = mt.simulate(name, hardware="a100_80g", **sizes)
    noisy = mt.monte_carlo(run, mt.Noise(jitter=0.0), samples=2)
    assert noisy.step_times.tolist() == pytest.approx([run.step_time] * 2, rel=1e-9)
    assert mt.sensitivity(run).step_time == pytest.approx(run.step_time, rel=1e-9)
    data = run.explain().data()
    assert data["step_time_s"] == pytest.approx(run.step_time, rel=1e-12)
    assert "load_weights" not in data["critical_path"]["by_type_s"] | data["step_time_if_free_s"]
    path = data["critical_path"]
    assert path["computing_s"] + path["communication_s"] + path["waiting_s"] == pytest.approx(run.step_time, rel=1e-9)
    late = mt.simulate(name, hardware="a100_80g", faults=[mt.Fault(rank=0, at_s=2 * run.last_clock)], **sizes)
    if run.loads_alike:
        assert late.step_time == pytest.approx(run.step_time, rel=1e-12)


async def _loads_late(model: Model) -> Model:
    """Load a layer only when it is needed."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    activations[0] = model.get_input_activation(frozenset(range(model.global_batch_size)))
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
    for layer in reversed(layers):
        grad_weights[layer], grad_activations[layer - 1] = model.backward(
            layer, activations[layer], grad_activations[layer], weights[layer]
        )
        del activations[layer], grad_activations[layer]
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


def test_a_load_in_mid_step_is_paid_for() -> None:
    sizes: dict[str, Any] = {"world_size": 1, "num_layers": 4, "global_batch_size": 8, "hardware": "a100_80g"}
    late, early = mt.simulate(_loads_late, **sizes), mt.simulate("single", **sizes)
    one = early.load_time / 4
    assert late.load_time == pytest.approx(one)
    assert late.step_time == pytest.approx(early.step_time + 3 * one)


def test_kernels_load_for_free_and_runs_have_one_step() -> None:
    run = mt.simulate(
        "ddp", workload="tiny", world_size=2, global_batch_size=4, hardware="h100_80g_nvl8", fidelity="kernels"
    )
    assert run.load_time == 0
    assert run.step_times == [run.step_time] == [run.last_clock]
    assert run.summary()["load_time_s"] == 0
