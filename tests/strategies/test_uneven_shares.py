"""Uneven shares: one strategy serves equal and unequal ranks, and a batch that is weighted wrongly proves nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import LawError, ProofError, UsageError
from minitrain.proof.problem import Flat

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 16}
BY_SAMPLES = ["ddp", "ddp_overlap", "zero1", "zero2", "zero3", "zero3_prefetch", "fsdp", "hsdp"]
ON_A_MESH = ["pp_dp", "pp_zero1", "pp_zero3", "megatron"]


def samples_of(run: mt.Run, rank: int) -> set[int]:
    """Return the samples that a rank takes forward."""
    return {sample for event in run.logs[rank] if event.typ == "forward" for sample in event.samples}


@pytest.mark.parametrize("strategy", BY_SAMPLES)
def test_data_parallel_strategies_train_right_with_uneven_samples(strategy: str) -> None:
    proof = mt.prove(strategy, **SIZES, shares=[7, 5, 3, 1] if strategy in ("ddp", "zero1") else [6, 5, 3, 2])
    assert proof.largest < 1e-12
    assert len(samples_of(proof.run, 0)) > len(samples_of(proof.run, 3))


@pytest.mark.parametrize("strategy", ON_A_MESH)
def test_pipelines_train_right_with_uneven_samples_and_stages(strategy: str) -> None:
    shares = mt.Shares(samples=[10, 6], layers=[3, 1])
    proof = mt.prove(strategy, **SIZES, shares=shares, pp=2, microbatch_size=2)
    assert proof.largest < 1e-12
    assert [len(samples_of(proof.run, rank)) for rank in range(4)] == [10, 6, 10, 6]
    layers = [{event.layer for event in log if event.typ == "forward"} for log in proof.run.logs]
    assert layers == [{0, 1, 2}, {0, 1, 2}, {3}, {3}]


@pytest.mark.parametrize("strategy", ["gpipe", "1f1b", "zb_h1"])
def test_pipelines_take_the_stages_that_the_run_gives(strategy: str) -> None:
    run = mt.simulate(strategy, **(SIZES | {"world_size": 2}), shares=mt.Shares(layers=[3, 1]), strict=True)
    option = mt.simulate(strategy, **(SIZES | {"world_size": 2}), layers_per_stage=[3, 1])
    assert [list(log) for log in run.logs] == [list(log) for log in option.logs]


@pytest.mark.parametrize("strategy", [*BY_SAMPLES, *ON_A_MESH])
def test_equal_shares_give_the_log_of_no_shares(strategy: str) -> None:
    options: Any = {"pp": 2} if strategy in ON_A_MESH else {}
    samples, layers = ([8, 8], [2, 2]) if options else ([4] * 4, None)
    given = mt.simulate(strategy, **SIZES, **options, microbatch_size=3, shares=mt.Shares(samples, layers))
    plain = mt.simulate(strategy, **SIZES, **options, microbatch_size=3)
    assert [list(log) for log in given.logs] == [list(log) for log in plain.logs]


def test_replicas_that_communicate_in_each_microbatch_take_as_many() -> None:
    run = mt.simulate("zero3", **SIZES, shares=[6, 5, 3, 2], microbatch_size=3)
    passes = [[len(e.samples) for e in log if e.typ == "forward" and e.layer == 0] for log in run.logs]
    assert passes == [[3, 3], [2, 3], [1, 2], [1, 1]]
    with pytest.raises(UsageError, match=r"microbatches, 3 here.*smallest share has 2.*microbatch_size of at least 3"):
        mt.simulate("zero3", **SIZES, shares=[6, 5, 3, 2], microbatch_size=2)


def test_each_replica_may_have_microbatches_of_its_own_size() -> None:
    run = mt.simulate("ddp", **SIZES, shares=mt.Shares([6, 6, 2, 2], microbatch_sizes=[6, 3, 2, 1]))
    passes = [[len(e.samples) for e in log if e.typ == "forward" and e.layer == 0] for log in run.logs]
    assert passes == [[6], [3, 3], [2], [1, 1]]


async def divided_by_its_model(model: mt.Model, scale: bool = False) -> mt.Model:
    """Train data parallel; with `scale`, average the means of the ranks, wrong where they differ in samples."""
    weights, states, activations, grad_activations, grads = model.storage()
    for layer in range(model.num_layers):
        weights[layer], states[layer] = model.load_weights(layer)
    for samples in model.microbatches(2):
        activations[0] = model.get_input_activation(samples)
        for layer in range(model.num_layers):
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        grad_activations[model.num_layers - 1] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(range(model.num_layers)):
            new, grad_activations[layer - 1] = model.backward(
                layer, activations[layer], grad_activations[layer], weights[layer]
            )
            grads[layer] = grads[layer] + new if layer in grads else new
        grad_activations.clear()
    for layer in range(model.num_layers):
        if scale:
            own = model.world_size * len(model.samples_of_rank()) / model.global_batch_size
            grads[layer]._content = Flat(grads[layer]._content.values / own)  # type: ignore[misc,attr-defined]  # numerics put it there
        grads[layer] = await model.all_reduce(grads[layer], layer)
        weights[layer], states[layer] = model.update(layer, grads[layer], weights[layer], states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


def test_one_strategy_of_a_users_own_serves_equal_and_uneven_shares() -> None:
    scaled = partial(divided_by_its_model, scale=True)
    assert mt.prove(scaled, **SIZES, strict=False).largest < 1e-12  # equal: no difference
    with pytest.raises(ProofError, match="differs from single-device training"):
        mt.prove(scaled, **SIZES, shares=[9, 4, 2, 1], strict=False)


async def overlapping(model: mt.Model) -> mt.Model:
    """Take one sample more than the rank's share, which the next rank takes too."""
    samples, weights = model.samples_of_rank(), model.weights
    samples = range(samples[0], min(samples[-1] + 2, model.global_batch_size))
    weights[0], state = model.load_weights(0)
    model.activations[0] = model.get_input_activation(samples)
    model.activations[1] = model.forward(0, model.activations[0], weights[0])
    model.grad_activations[0] = model.loss(model.activations.pop(1))
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], weights[0])
    weights[0], _ = model.update(0, await model.all_reduce(grad, 0), weights[0], state)
    model.set_final_weight(0, weights[0])
    return model


def test_a_sample_that_counts_twice_does_not_pass_the_proof() -> None:
    with pytest.raises(LawError, match=r"sample 5 is counted twice.*each sample goes to one rank"):
        mt.prove(overlapping, world_size=2, num_layers=1, global_batch_size=8, shares=[5, 3])


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([8, 8], r"shares are of 2 replicas, and 4 share the batch in this strategy; give 4 shares"),
        ([8, 4, 2, 1], r"samples of shares must add up to global_batch_size \(16\), and \[8, 4, 2, 1\] add up to 15"),
        ([16, 0, 0, 0], r"samples of shares must be whole numbers of at least 1, got \[16, 0, 0, 0\]"),
        ("equal", r"shares must be samples of each replica or a mt.Shares, got 'equal'"),
    ],
)
def test_shares_that_make_no_step_are_refused(shares: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mt.simulate("ddp", **SIZES, shares=shares)


def test_shares_say_what_they_are_and_what_is_wrong_with_them() -> None:
    assert str(mt.Shares([3, 1], [20, 12])) == "samples 3, 1; layers 20, 12"
    with pytest.raises(UsageError, match="shares must say samples, layers or microbatch_sizes"):
        mt.Shares()
    with pytest.raises(UsageError, match="must be of the same replicas, got 2 and 1"):
        mt.Shares([3, 1], microbatch_sizes=[2])
    with pytest.raises(UsageError, match=r"layers of shares must add up to num_layers \(32\), and \[20, 10\]"):
        mt.simulate("gpipe", world_size=2, shares=mt.Shares(layers=[20, 10]))
    with pytest.raises(UsageError, match=r"layers of shares must be 4 counts of at least 1 that add up"):
        mt.simulate("gpipe", **SIZES, shares=mt.Shares(layers=[3, 1]))


def test_shares_that_a_strategy_does_not_ask_for_are_not_ignored() -> None:
    with pytest.raises(UsageError, match="moe has not asked for the samples of shares"):
        mt.simulate("moe", **SIZES, shares=[6, 5, 3, 2])
    with pytest.raises(UsageError, match="ddp has not asked for the layers of shares"):
        mt.simulate("ddp", **SIZES, shares=mt.Shares([6, 5, 3, 2], [2, 2]))


def test_a_batch_is_as_large_as_its_shares_where_nobody_says() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, shares=[5, 2])
    assert run.global_batch_size == 7
