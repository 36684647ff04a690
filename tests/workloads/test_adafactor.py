"""Adafactor: memory and work in closed form, the step against PyTorch's, proofs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.proof import arithmetic
from minitrain.proof.arithmetic import Adafactor
from minitrain.workloads.transformer_workload import ADAFACTOR_FLOP, find_workload
from minitrain.workloads.unit_kernels import ADAM_BYTES, DEFAULT_STYLE, update_kernels

TINY: dict[str, Any] = {"world_size": 2, "global_batch_size": 4}
SHAPES = ((5, 7), (3, 4, 6), (9,), (1, 8))


def adafactor(name: str) -> mt.Transformer:
    """Return a model that Adafactor trains."""
    return replace(mt.models()[name], optimizer="adafactor")


def test_a_matrix_has_sums_of_rows_and_columns_beside_its_master_copy() -> None:
    model = adafactor("gpt2")
    kinds = mt.simulate("ddp", workload=model, world_size=2, global_batch_size=2).memory_by_kind
    layer = 4 * (2 * 768) + 2 * (768 + 3072)  # query, key, value, output; up, down
    vectors = 4 * 768 + 2 * 768 + 3072 + 768 + 2 * 768  # biases of six matrices, two norms
    tables, norm = (50257 + 768) + (1024 + 768), 2 * 768  # the head has the embedding's table
    held = 12 * (layer + vectors) + tables + norm
    assert kinds is not None
    assert kinds["optimizer"] == 4 * model.num_parameters + 4 * held


def test_an_update_reads_the_gradient_three_times() -> None:
    costs = [find_workload(model).update_cost(1, 1, 1) for model in (mt.models()["gpt2"], adafactor("gpt2"))]
    elements = 4 * 768**2 + 4 * 768 + 2 * 768
    assert costs[1].work_flop == ADAFACTOR_FLOP * elements
    assert costs[0].traffic_bytes - costs[1].traffic_bytes == (4 + 24 + 2 - 3 * 4 - 3 * 4 - 2) * elements
    passes = update_kernels(1000, DEFAULT_STYLE, has_factors=True).kernels
    assert [kernel.name for kernel in passes] == ["sums", "norms", "adafactor"]  # type: ignore[union-attr]  # all are passes
    assert sum(kernel.traffic_bytes for kernel in passes) == 1000 * ADAM_BYTES  # three reads for two moments


def test_steps_are_pytorchs() -> None:
    """It has means in the place of sums, and a least second moment in the place of one that is added to squares."""
    torch = pytest.importorskip("torch")
    from minitrain.training.layers import take_step

    drawn, first = np.random.default_rng(0), np.cumsum([0, *map(prod, SHAPES)])
    rule = Adafactor(weights=tuple(zip(first[:-1].tolist(), SHAPES, strict=True)))
    weight = drawn.standard_normal(first[-1])
    theirs = [torch.tensor(weight[a:b].reshape(shape)) for (a, b), shape in zip(pairwise(first), SHAPES, strict=True)]
    optimizer = torch.optim.Adafactor([each.requires_grad_() for each in theirs], lr=1e-2, weight_decay=0.0)
    ours, state = torch.tensor(weight), torch.zeros(1, weight.size, dtype=torch.float64)
    moments = np.zeros((1, weight.size))
    for count in range(1, 5):
        grad = drawn.standard_normal(weight.size)
        weight, moments = rule.step(weight, grad, moments, count)
        take_step(rule, ours, torch.tensor(grad), state, count)
        for each, (a, b) in zip(theirs, pairwise(first), strict=True):
            each.grad = torch.tensor(grad[a:b]).view_as(each)
        optimizer.step()
    found = np.concatenate([each.detach().numpy().ravel() for each in theirs])
    assert weight == pytest.approx(found, rel=1e-12)
    assert ours.numpy() == pytest.approx(weight, rel=1e-12)
    assert state.numpy() == pytest.approx(moments, rel=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {}),
        ("1f1b", {"workload": adafactor("tiny-moe"), "ema": 0.9}),
        ("diloco", {"local_steps": 2}),
        ("pipedream_2bw", {"num_steps": 2}),
    ],
)
def test_adafactor_is_that_of_one_device(strategy: str, options: dict[str, Any]) -> None:
    assert mt.prove(strategy, **{"workload": adafactor("tiny"), **TINY, **options}).largest_relative < 1e-9


def test_other_factors_are_disproved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "_is_factored", lambda _: False)
    with pytest.raises(mt.ProofError, match="differs from single-device training: its"):
        mt.prove("ddp", workload=adafactor("tiny"), **TINY)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("zero1", {}), ("fsdp", {}), ("fsdp", {"tp": 2}), ("moe", {"workload": adafactor("tiny-moe"), "ep": 2})],
)
def test_shards_and_parts_of_factors_are_refused_by_name(strategy: str, options: dict[str, Any]) -> None:
    message = "adafactor has second moments of whole rows and columns, and steps by the size of whole weights, got"
    with pytest.raises(mt.LawError, match=message):
        mt.simulate(strategy, **{"workload": adafactor("tiny"), **TINY, **options})


def test_what_adafactor_does_not_train_is_refused() -> None:
    with pytest.raises(mt.UsageError, match='optimizer must be "adam" with adapters or frozen layers, got "adafactor"'):
        replace(adafactor("tiny"), lora=mt.Lora(rank=2))
    with pytest.raises(mt.UsageError, match="for a model that Adafactor trains"):
        mt.prove("ddp", workload=adafactor("tiny"), backend="torch", **TINY)
