"""The step on one device, whose gradients are autograd's: the same as JAX's, for all that exercises train and more."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.learn.exercise import Case, shipped_exercises
from minitrain.proof import Momentum, Problem, TransformerProblem, problem_of
from minitrain.proof.reference import reference, transformer_reference
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.transformer_workload import find_workload
from tests.proof import jax_reference
from tests.small_transformers import DEEPSEEK_LIKE, GPT_LIKE, LLAMA_LIKE, MIXTRAL_LIKE, MODELS, SWITCH_LIKE

CLOSE = 1e-12
SGD: Any = Momentum()  # its state after the first step is the gradient


def require_judged(problem: Any, num_layers: int, batch: int) -> None:
    """Require the gradient that JAX finds, relative to the largest element of a layer."""
    if isinstance(problem, Problem):
        before = [problem.initial_weight(layer).ravel() for layer in range(num_layers)]
        found = reference(problem, num_layers, batch).states
    else:
        before = [problem.initial_weight(layer) for layer in range(len(problem.units))]
        found = transformer_reference(problem, batch).states
    judged = jax_reference.gradient_of(problem, before, batch)
    for state, grad in zip(found, judged, strict=True):
        assert np.abs(state[0] - grad).max() <= CLOSE * max(np.abs(grad).max(), 1e-3)


def proven_sizes() -> dict[str | None, tuple[int, int]]:
    """Return what exercises prove, by workload: the most layers and samples."""
    found: dict[str | None, tuple[int, int]] = {}
    cases: list[Case] = [case for one in shipped_exercises() for case in (*one.public, *one.hidden) if case.is_proven]
    for case in cases:
        layers, batch = found.get(case.workload, (0, 0))
        found[case.workload] = max(layers, case.num_layers), max(batch, case.global_batch_size)
    return found


@pytest.mark.ci
def test_what_exercises_train_has_the_gradients_that_jax_finds() -> None:
    sizes = proven_sizes()
    assert set(sizes) == {None, "tiny", "tiny-moe"}
    for workload, (num_layers, batch) in sizes.items():
        problem = problem_of(Problem(optimizer=SGD), None if workload is None else find_workload(workload))
        require_judged(problem, num_layers, batch)


@pytest.mark.slow  # JAX compiles each; beside it, the workloads of the exercises
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_kind_of_transformer_has_the_gradients_that_jax_finds(model: Transformer) -> None:
    require_judged(TransformerProblem(model, optimizer=SGD), 0, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "changes", "capacity"),
    [
        (LLAMA_LIKE, {"lora": mt.Lora(rank=2)}, None),
        (GPT_LIKE, {"frozen_layers": 1}, None),
        (MIXTRAL_LIKE, {}, 0.75),
        (SWITCH_LIKE, {}, 1.0),
        (DEEPSEEK_LIKE, {}, 1.25),
    ],
    ids=["lora", "frozen", "capacity-of-two", "capacity-of-one", "capacity-and-bias"],
)
def test_what_is_frozen_or_dropped_has_the_gradients_that_jax_finds(
    model: Transformer, changes: dict[str, Any], capacity: float | None
) -> None:
    changed = dataclasses.replace(model, **changes)
    require_judged(TransformerProblem(changed, optimizer=SGD, capacity_factor=capacity), 0, 2)


def test_a_batch_that_is_computed_in_pieces_is_the_same_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = TransformerProblem(GPT_LIKE, optimizer=SGD)
    whole = transformer_reference(problem, 5)
    transformer_reference.cache_clear()
    monkeypatch.setattr("minitrain.proof.reference._TOKENS", 2 * problem.seq_len)  # three pieces, the last one smaller
    pieces = transformer_reference(problem, 5)
    transformer_reference.cache_clear()
    for one, other in zip(whole.weights, pieces.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_grading_and_proving_need_no_jax(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(jax=None, chex=None); import minitrain as mt; "
        "print(mt.prove('ddp', world_size=2, num_layers=2).largest < 1e-12, "
        "mt.prove('megatron', world_size=2, workload='tiny', tp=2).largest_relative < 1e-9)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path) == "True True\n"
