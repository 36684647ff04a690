"""Muon for matrices and Adam for the rest: memory and work in closed form, proofs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.proof import arithmetic
from minitrain.workloads.kernels import newton_schulz
from minitrain.workloads.transformer_workload import find_workload

TINY: dict[str, Any] = {"world_size": 2, "global_batch_size": 4}


def muon(name: str) -> mt.Transformer:
    """Return a model that Muon trains."""
    return replace(mt.models()[name], optimizer="muon")


def test_a_matrix_has_one_moment() -> None:
    sizes: dict[str, Any] = {"world_size": 2, "global_batch_size": 2}
    held = []
    for model in (mt.models()["gpt2"], muon("gpt2")):
        kinds = mt.simulate("ddp", workload=model, **sizes).memory_by_kind
        assert kinds is not None
        held.append(kinds["optimizer"])
    assert held[0] - held[1] == 4 * 12 * (4 * 768**2 + 2 * 768 * 3072)


def test_an_update_multiplies_as_the_iteration_does() -> None:
    """Jordan et al. 2024: at most 6 n m^2 operations for each of five steps, which is reached by squares."""
    assert sum(kernel.work_flop for kernel in newton_schulz(((64, 96),))) == 5 * (4 * 64**2 * 96 + 2 * 64**3)
    assert sum(kernel.work_flop for kernel in newton_schulz(((64, 64),))) == 5 * 6 * 64**3
    assert newton_schulz(((3, 96, 64),))[1].batch == 15
    layer = 1
    costs = [find_workload(model).update_cost(1, 1, layer) for model in (mt.models()["gpt2"], muon("gpt2"))]
    assert costs[1].work_flop - costs[0].work_flop == 4 * 5 * 6 * 768**3


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {}),
        ("1f1b", {}),
        ("ddp", {"workload": muon("tiny-moe")}),
        ("diloco", {}),
        ("pipedream_2bw", {"num_steps": 2}),
        pytest.param("powersgd_ddp", {"num_steps": 2, "ema": 0.9}, marks=pytest.mark.slow),
    ],
)
def test_muon_is_that_of_one_device(strategy: str, options: dict[str, Any]) -> None:
    """The reference has singular values where ranks iterate."""
    assert mt.prove(strategy, **{"workload": muon("tiny"), **TINY, **options}).largest_relative < 1e-9


@pytest.mark.ci
def test_another_step_of_matrices_is_disproved(monkeypatch: pytest.MonkeyPatch) -> None:
    right = arithmetic.orthogonalised
    monkeypatch.setattr(arithmetic, "orthogonalised", lambda matrices: 0.98 * right(matrices))
    with pytest.raises(mt.ProofError, match="differs from single-device training: its"):
        mt.prove("ddp", workload=muon("tiny"), **TINY)


def test_singular_values_come_near_one() -> None:
    drawn = np.random.default_rng(0).standard_normal((3, 24, 40))
    for matrices in (drawn, drawn.swapaxes(-1, -2)):
        values = np.linalg.svd(arithmetic.orthogonalised(matrices), compute_uv=False)
        assert 0.6 < values.min() < values.max() < 1.3


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("zero1", {}), ("fsdp", {}), ("fsdp", {"tp": 2}), ("moe", {"workload": muon("tiny-moe"), "ep": 2})],
)
def test_shards_and_parts_of_matrices_are_refused_by_name(strategy: str, options: dict[str, Any]) -> None:
    with pytest.raises(mt.LawError, match="muon orthogonalises whole matrices, got"):
        mt.simulate(strategy, **{"workload": muon("tiny"), **TINY, **options})


def test_what_muon_does_not_train_is_refused() -> None:
    whats: list[dict[str, Any]] = [{"lora": 2}, {"frozen_layers": 1}]
    for what in whats:
        with pytest.raises(mt.UsageError, match='optimizer must be "adam" with adapters or frozen layers'):
            replace(muon("tiny"), **what)
    with pytest.raises(mt.UsageError, match="optimizer must be"):
        replace(mt.models()["tiny"], optimizer="lion")
    with pytest.raises(mt.UsageError, match="optimizer and backend must be left out"):
        mt.prove("ddp", workload=muon("tiny"), backend="torch", **TINY)
