"""Steps whose gradients are of older weights: what is declared, what a wrong strategy is told, and what 2BW takes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import MinitrainError, ProofError, UsageError

SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 4, "global_batch_size": 16, "num_steps": 4}
SOURCE = (
    Path(inspect.getfile(inspect.unwrap(mt.strategies()["pipedream_2bw"])))
    .read_text()
    .replace("from ._", "from minitrain.strategies._")
    .replace("async def pipedream_2bw", "async def mine")
)


def mine(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Write the shipped strategy with some changes, and return how it is named."""
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
    assert "trains 4 layers as 4 steps with gradients of weights 1 step old do on one device" in str(proof)
    assert any("computes something else than one update" in note for note in proof.run.notes)


_OLD = "        weights[layer] = weights.pop((layer, num_steps - 1))"
REFUSED: dict[str, Any] = {
    "no declaration": (('@mt.delayed_steps("num_steps", delay=1, alike=True)\n', ""), "declare @mt.local_steps"),
    "an option that is none": (('"num_steps", delay', '"steps", delay'), "takes no such option"),
    "a step is left out": (
        ("        weights.pop((layer, num_steps - 1))\n        weights[layer] = weights.pop((layer, num_steps))", _OLD),
        "must have seen all 4 steps that the strategy declares",
    ),
    "a version too old": (
        ("return max(0, i // per_step - 1)", "return max(0, i // per_step - 2)"),
        ("        weights.pop((layer, step - 1), None)\n", ""),
        "the gradient of step 2 must be of weights of step 1, as the strategy declares",
    ),
    "a microbatch of the next step": (
        ("(i + 1) % per_step == 0:", "i and i % per_step == 0:"),
        ("update(i // per_step)", "update((i - 1) // per_step)"),
        "step 0 takes samples of 0..3, got",
    ),
    "a microbatch is left out": (("(i + 1) % per_step == 0:", "(i + 2) % per_step == 0:"), "a step takes 4 samples"),
    "an outer step": (
        ("model.set_final_weight(layer, weights[layer])", "_outer(model, layer, weights)"),
        (
            "@mt.delayed_steps",
            "def _outer(model, layer, weights):\n    weight, _ = model.load_weights(layer)\n"
            "    model.outer_gradient(layer, weight, weights[layer])\n\n\n@mt.delayed_steps",
        ),
        "have no outer step; hand in the last weights",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_steps_are_refused_by_name(case: str, tmp_path: Path) -> None:
    *changes, message = REFUSED[case]
    with pytest.raises(MinitrainError) as told:
        mt.simulate(mine(tmp_path, *changes), strict=True, **SIZES)
    assert message in str(told.value)


def test_backward_through_other_weights_than_forward_is_refused_or_disproved(tmp_path: Path) -> None:
    newest = "weights[max(key for key in weights if key[0] == layer)]"
    old = "grad_activations[layer], weights[layer, version(i)]"
    strategy = mine(tmp_path, (old, f"grad_activations[layer], {newest}"))
    with pytest.raises(MinitrainError, match="forward, backward and update take the same weights"):
        mt.simulate(strategy, strict=True, **SIZES)
    with pytest.raises(ProofError):
        mt.prove(strategy, strict=False, **SIZES)


def test_fresh_gradients_are_no_old_ones(tmp_path: Path) -> None:
    """On one rank the newest weights are there in time; a strategy that declares old ones must not use them."""
    strategy = mine(tmp_path, ("return max(0, i // per_step - 1)", "return i // per_step"))
    sizes = {**SIZES, "world_size": 1}
    with pytest.raises(MinitrainError, match=r"must be of weights of step 0, as the strategy declares, got .* step 1"):
        mt.simulate(strategy, strict=True, **sizes)
    with pytest.raises(ProofError):
        mt.prove(strategy, strict=False, **sizes)


@pytest.mark.parametrize(("p", "m", "n"), [(1, 1, 3), (2, 2, 4), (4, 4, 3), (4, 7, 5), (3, 8, 1)])
def test_a_round_fills_and_drains_once(p: int, m: int, n: int) -> None:
    """Narayanan et al. 2021, section 3.1: no flush between steps, so that n steps take n m + p - 1 microbatches."""
    units = mt.FixedPredictor(forward=1, backward=2)
    sizes: dict[str, Any] = {"world_size": p, "num_layers": p, "hardware": units}
    run = mt.simulate("pipedream_2bw", num_steps=n, global_batch_size=n * m, microbatch_size=1, **sizes)
    assert run.step_time == pytest.approx((n * m + p - 1) * 3)
    flushed = mt.simulate("1f1b", global_batch_size=m, microbatch_size=1, **sizes)
    assert flushed.step_time == pytest.approx((m + p - 1) * 3)


def test_two_versions_of_the_weights_are_held_and_no_more() -> None:
    """The paper's section 3.1: double-buffered weights, beside what 1F1B with a flush holds."""
    sizes: dict[str, Any] = {"world_size": 4, "workload": "gpt2", "platform": "components"}
    flushed = mt.simulate("1f1b", global_batch_size=8, **sizes).memory_by_kind
    assert flushed is not None
    for steps, versions in ((1, 1), (3, 2), (8, 2)):
        held = mt.simulate("pipedream_2bw", num_steps=steps, global_batch_size=8 * steps, **sizes).memory_by_kind
        assert held is not None
        assert held["weights"] == versions * flushed["weights"]
        for kind in ("activations", "optimizer"):
            assert held[kind] == flushed[kind]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "sizes",
    [
        {"world_size": 4, "pp": 2, "num_layers": 4, "global_batch_size": 24, "num_steps": 3},
        {"world_size": 6, "pp": 3, "num_layers": 6, "global_batch_size": 72, "num_steps": 3, "microbatch_size": 2},
        {"world_size": 4, "pp": 1, "num_layers": 3, "global_batch_size": 16, "num_steps": 4},
        {"world_size": 4, "pp": 2, "workload": "tiny", "global_batch_size": 16, "num_steps": 2},
    ],
)
def test_replicas_of_a_pipeline_sum_the_gradients_of_each_step(sizes: dict[str, Any]) -> None:
    assert mt.prove("pipedream_2bw", **sizes).largest_relative < 1e-9


def test_replicas_fold() -> None:
    sizes: dict[str, Any] = {"pp": 4, "num_layers": 8, "num_steps": 3}
    folded, each = (
        mt.simulate("pipedream_2bw", world_size=16, global_batch_size=96, fold=fold, **sizes) for fold in (True, False)
    )
    assert (folded.step_time, folded.peak_memory_per_rank) == (each.step_time, each.peak_memory_per_rank)
    many = mt.simulate("pipedream_2bw", world_size=4096, global_batch_size=4096 * 3, **sizes)
    assert many.is_folded


def test_steps_that_cannot_be_declared_or_taken_are_refused() -> None:
    for delay in (0, -1, True, 1.5):
        with pytest.raises(UsageError, match="delay must be an integer of at least 1"):
            mt.delayed_steps(4, delay=delay)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(mt.StrategyError, match="takes 3 steps: global_batch_size must be a multiple of 3, the"):
        mt.simulate("pipedream_2bw", **{**SIZES, "num_steps": 3})
    with pytest.raises(mt.StrategyError, match="at least a microbatch for each of 2 stages"):
        mt.simulate("pipedream_2bw", microbatch_size=4, **SIZES)
    with pytest.raises(mt.StrategyError, match="num_steps must be an integer of at least 1"):
        mt.simulate("pipedream_2bw", **{**SIZES, "num_steps": 0})
