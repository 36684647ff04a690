"""Every shipped strategy is proven: real arrays, compared with an independent step on one device."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain import schedules
from minitrain.lib import Dist
from minitrain.proof import Adam, Momentum, Problem
from minitrain.proof.proof import compare_with_reference

DATA_PARALLEL = ["ddp", "ddp_overlap", "zero1", "zero2", "zero3", "zero3_prefetch", "hsdp", "fsdp"]
PIPELINES = ["gpipe", "1f1b", "zb_h1", "interleaved_1f1b"]
ON_A_MESH = ["pp_dp", "pp_zero1", "pp_zero3", "pp_hsdp"]
SCHEDULED = ["looped_bfs", "interleaved_zero_bubble", "zb_h2", "zbv", "dualpipe_v", "chimera"]
IN_CONTEXT = ["ring_attention", "gathered_context", "packed_context_parallel"]
WITH_WHOLE_LAYERS = ["megatron", "moe", "deepseek_like"]  # tp=1, ep=1: dense layers have no parts
DIVIDED = [*WITH_WHOLE_LAYERS, *IN_CONTEXT]  # and whole sequences, cp=1
LOCAL = ["local_sgd", "diloco"]
DELAYED = ["pipedream_2bw", "powersgd_ddp"]
ALL = ["single", *DATA_PARALLEL, *LOCAL, *DELAYED, *PIPELINES, *ON_A_MESH, *DIVIDED, *SCHEDULED]
GENERATORS = [name for name, each in vars(schedules).items() if isfunction(each) and name != "validate"]

Sizes = dict[str, Any]


def case(world_size: int, num_layers: int, batch: int, **options: Any) -> Sizes:
    """Return sizes and options."""
    return {"world_size": world_size, "num_layers": num_layers, "global_batch_size": batch, **options}


def cases_of_rounds(name: str) -> list[Sizes]:
    """Return sizes for a strategy that takes several steps, which its last number counts."""
    micros = (None, 1)
    if name in DELAYED:
        rounds = [(1, 3, 12, 3), (2, 6, 12, 3), (4, 8, 24, 2), (3, 6, 36, 4)]
        return [case(*size[:3], num_steps=size[3], microbatch_size=micro) for size in rounds for micro in micros]
    rounds = [(1, 3, 12, 2), (2, 5, 12, 3), (4, 3, 24, 1), (4, 2, 32, 4)]
    found = [case(*size[:3], local_steps=size[3], microbatch_size=micro) for size in rounds for micro in micros]
    return [*found, case(8, 2, 48, replicas=2, local_steps=3), case(6, 2, 24, replicas=3, microbatch_size=1)]


def cases_of(name: str) -> list[Sizes]:
    """Return sizes for a strategy: more and fewer layers than ranks, uneven microbatches, its own options."""
    if name == "single":
        return [case(1, layers, 12, microbatch_size=size) for layers in (1, 5) for size in (None, 1, 5)]
    if name in (*DATA_PARALLEL, *IN_CONTEXT):
        extra: list[Sizes] = {
            "ddp_overlap": [case(4, 5, 12, bucket_size=2)],
            "zero3_prefetch": [case(4, 6, 24, lookahead=3, microbatch_size=2)],
            "fsdp": [case(8, 3, 24, replicas=2, microbatch_size=2), case(6, 3, 12, reshard_after_forward=False)],
            "hsdp": [case(8, 3, 24, shard_size=2, microbatch_size=2), case(6, 3, 12, shard_size=3)],
        }.get(name, [])
        sizes = [(1, 3, 12), (2, 5, 12), (3, 2, 12), (4, 3, 24), (5, 7, 40), (8, 3, 48)]
        whole = {"cp": 1} if name in IN_CONTEXT else {}
        return extra + [
            case(*size, microbatch_size=micro, **whole)
            for size in sizes
            for micro in (None, 1, 5)
            if micro is None or micro <= size[2] // size[0]
        ]
    if name in (*DELAYED, *LOCAL):
        return cases_of_rounds(name)
    if name in PIPELINES:
        chunks = {"num_chunks": 2} if name == "interleaved_1f1b" else {}
        sizes = [(1, 2, 4), (2, 4, 12), (3, 6, 12), (4, 8, 24), (4, 16, 8)]
        micros = (None, 1) if chunks else (None, 1, 2, 5)
        return [
            case(*size, microbatch_size=micro, **chunks)
            for size in sizes
            for micro in micros
            if micro is None or micro < size[2]
        ]
    if name in ON_A_MESH:
        if name == "pp_hsdp":
            return [
                case(8, 4, 24, pp=2, shard_size=size, microbatch_size=micro) for size in (1, 2, 4) for micro in (3, 2)
            ]
        pipes = [(2, 4, 12, 2), (4, 4, 24, 2), (6, 6, 24, 3), (8, 8, 16, 4), (4, 2, 8, 1)]
        return [case(*size[:3], pp=size[3], microbatch_size=micro) for size in pipes for micro in (None, 1)]
    if name in WITH_WHOLE_LAYERS:
        return divided_cases_of(name)
    pipes = [(2, 4, 8, 2), (4, 8, 16, 4), (4, 8, 16, 2), (8, 8, 32, 2)]
    return [case(*size[:3], pp=size[3], zero=zero) for size in pipes for zero in range(4 if size[0] > size[3] else 1)]


def divided_cases_of(name: str) -> list[Sizes]:
    """Return sizes for a strategy that divides layers which can be divided."""
    if name == "moe":
        sizes = [(2, 5, 12, 1), (4, 3, 24, 2), (8, 3, 48, 4)]
        return [case(*size[:3], ep=size[3], zero=zero, microbatch_size=2) for size in sizes for zero in (0, 1)]
    if name == "deepseek_like":
        sizes = [(2, 4, 8, 1), (4, 8, 16, 2), (8, 8, 32, 2)]
        return [case(*size[:3], pp=2, ep=size[3], zero=zero) for size in sizes for zero in (0, 1)]
    pipes = [(2, 4, 12, 1), (4, 4, 24, 2), (6, 6, 36, 3), (8, 8, 16, 4)]
    return [case(*size[:3], pp=size[3], zero=zero) for size in pipes for zero in (0, 1)]


CASES = [(name, sizes) for name in ALL for sizes in cases_of(name)]


def test_the_zoo_is_proven_whole() -> None:
    assert sorted(ALL) == sorted(mt.strategies())
    assert len(CASES) > 200


@pytest.mark.few(2)
@pytest.mark.parametrize("which", [slice(0, None, 2), pytest.param(slice(1, None, 2), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_every_strategy_trains_as_one_device_does(name: str, which: slice) -> None:
    for sizes in cases_of(name)[which]:
        assert mt.prove(name, **sizes).largest < 1e-12, sizes


@pytest.mark.few(8)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "problem", [Problem(width=11, seed=5, optimizer=Momentum()), Problem(optimizer=Adam(rate=1.0))]
)
def test_the_proof_holds_for_other_widths_seeds_and_optimizers(name: str, problem: Problem) -> None:
    sizes = cases_of(name)[-1]
    bound = 1e-9 if name == "powersgd_ddp" else 1e-11  # errors that are fed back carry rounding from step to step
    assert mt.prove(name, numerics=problem, **sizes).largest < bound


@pytest.mark.few(2)
@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(
    ("ranks", "zero"),
    [
        pytest.param(ranks, zero, marks=() if zero == {1: 1, 2: 3, 3: 0, 4: 2}[ranks] else pytest.mark.slow)
        for ranks in (1, 2, 3, 4)
        for zero in (0, 1, 2, 3)
    ],
)
def test_every_schedule_trains_as_one_device_does(name: str, ranks: int, zero: int) -> None:
    microbatches = 2 * ranks
    ranks *= 2 if name == "chimera" else 1
    chunks = 1 if name in ("gpipe", "one_f_one_b", "zb_1p", "zb_2p", "zb_h1", "zb_h2") else 2
    schedule = getattr(schedules, name)(ranks, microbatches, chunks)
    strategy = mt.from_schedule(schedule)
    sizes = {"world_size": 2 * ranks, "num_layers": 2 * schedule.num_stages, "global_batch_size": 4 * microbatches}
    assert mt.prove(strategy, zero=zero, **sizes).largest < 1e-12


@settings(max_examples=40)
@given(
    name=st.sampled_from([*DATA_PARALLEL, "gpipe", "1f1b", "zb_h1", "pp_dp", "pp_zero3"]),
    world=st.integers(1, 6),
    layers=st.integers(1, 12),
    batch=st.integers(1, 24),
    size=st.none() | st.integers(1, 6),
)
def test_any_sizes_train_as_one_device_does_or_are_refused(
    name: str, world: int, layers: int, batch: int, size: int | None
) -> None:
    try:
        proof = mt.prove(name, world_size=world, num_layers=layers, global_batch_size=batch, microbatch_size=size)
    except mt.StrategyError:
        return
    assert proof.largest < 1e-12


def test_a_proof_says_what_it_has_proven() -> None:
    proof = mt.prove("ddp", world_size=2, num_layers=3, global_batch_size=8)
    assert repr(proof) == f"<Proof: {proof}>"
    assert str(proof).startswith("ddp on 2 ranks trains 3 layers as one device does: the largest difference is ")
    assert set(proof.differences) == {0, 1, 2}
    assert proof.largest == max(proof.differences.values())
    assert proof.run.world_size == 2


async def train(
    model: Any,
    share: Any = lambda model: range(model.rank, model.global_batch_size, model.world_size),
    change: Any = lambda model, layer, grad: grad,
    hand_in: Any = lambda model, layer: True,
) -> Any:
    """Train data parallel, with errors to be made."""
    weights, opt_states, activations, act_grads, grads = model.storage()
    layers = range(model.num_layers)
    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)
    activations[0] = model.get_input_activation(share(model))
    for k in layers:
        activations[k + 1] = model.forward(k, activations[k], weights[k])
    act_grads[0] = model.loss(activations.pop(model.num_layers))
    for k in reversed(layers):
        grads[k], act_grads[0] = model.backward(k, activations[k], act_grads[0], weights[k])
        grads[k] = await model.all_reduce(change(model, k, grads[k]), k)
        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], opt_states[k])
        if hand_in(model, k):
            model.set_final_weight(k, weights[k])
    return model


async def all_samples_everywhere(model: Any) -> Any:
    """Sum the whole batch on every rank."""
    return await train(model, share=lambda model: range(model.global_batch_size))


async def one_gradient_twice(model: Any) -> Any:
    """Add layer 1's gradient to itself on rank 1."""
    return await train(model, change=lambda model, k, grad: grad + grad if (model.rank, k) == (1, 1) else grad)


@pytest.mark.parametrize(
    ("strategy", "layer"), [(all_samples_everywhere, 0), (one_gradient_twice, 1)], ids=["batch", "gradient"]
)
@pytest.mark.parametrize("optimizer", [Adam(), Momentum()])
def test_samples_counted_twice_are_found_with_layer_and_rank(strategy: Any, layer: int, optimizer: Any) -> None:
    sizes: Sizes = {"world_size": 2, "num_layers": 3, "global_batch_size": 8}
    with pytest.raises(mt.LawError, match="counted twice"):
        mt.prove(strategy, **sizes)
    differs = (
        rf"^layer {layer} on rank 0 differs .*by up to [\d.e-]+: \d+ of 64 elements of its weight differ, the first"
    )
    with pytest.raises(mt.ProofError, match=differs) as caught:
        mt.prove(strategy, numerics=Problem(optimizer=optimizer), strict=False, **sizes)
    assert (caught.value.layer, caught.value.rank) == (layer, 0)
    assert caught.value.difference > 1e-6


async def without_numbers(model: Any) -> Any:
    """Do all right."""
    return await train(model)


async def without_last_layer(model: Any) -> Any:
    """Hand in all but the last layer."""
    return await train(model, hand_in=lambda model, k: k < model.num_layers - 1)


def test_what_was_not_handed_in_is_not_proven() -> None:
    sizes: Sizes = {"world_size": 2, "num_layers": 3, "global_batch_size": 8}
    with pytest.raises(mt.LawError, match="layer 2 has no final weight on any rank"):
        mt.prove(without_last_layer, **sizes)
    with pytest.raises(mt.ProofError, match="the final weight of layer 2 is not whole over all ranks"):
        mt.prove(without_last_layer, check=False, **sizes)


def test_a_run_without_numbers_cannot_be_compared() -> None:
    run = mt.simulate(without_numbers, world_size=2, num_layers=3, global_batch_size=8)
    with pytest.raises(mt.StrategyError, match="the run of without_numbers has no numbers; simulate it with numerics"):
        compare_with_reference(run, Problem())


def test_a_model_of_no_samples_on_some_rank_still_trains() -> None:
    async def lopsided(model: Any) -> Any:
        return await train(model, share=lambda model: range(model.global_batch_size) if model.rank == 0 else [])

    assert mt.prove(lopsided, world_size=3, num_layers=2, global_batch_size=4).largest < 1e-12


async def by_a_global_dict(model: Any) -> Any:
    """Sum gradients through a dict that all ranks share."""

    async def passes_on(model: Any, k: int, grad: Any) -> Any:
        GRADIENTS[k, model.rank] = grad
        await model.barrier()
        total = GRADIENTS[k, 0]
        for rank in range(1, model.world_size):
            total = total + GRADIENTS[k, rank]
        return total

    return await summing(model, passes_on)


async def by_a_world_of_its_own(model: Any) -> Any:
    """Train everything once more in a world of one rank, whose operations no log shows."""
    nested = type(model)(0, Dist(1), model.num_layers, model.global_batch_size)

    async def itself(model: Any, k: int, grad: Any) -> Any:
        return grad

    await summing(nested, itself)
    for k, weight in nested.final_weights.items():
        model.set_final_weight(k, weight)
    return model


async def summing(model: Any, total_of: Any) -> Any:
    """Train with gradients that are summed in another way than by the operations of a model."""
    weights, opt_states, activations, act_grads, grads = model.storage()
    layers = range(model.num_layers)
    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)
    activations[0] = model.get_input_activation(range(model.rank, model.global_batch_size, model.world_size))
    for k in layers:
        activations[k + 1] = model.forward(k, activations[k], weights[k])
    act_grads[0] = model.loss(activations.pop(model.num_layers))
    for k in reversed(layers):
        grads[k], act_grads[0] = model.backward(k, activations[k], act_grads[0], weights[k])
        total = await total_of(model, k, grads[k])
        weights[k], opt_states[k] = model.update(k, total, weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model


GRADIENTS: dict[Any, Any] = {}


@pytest.mark.parametrize("strategy", [by_a_global_dict, by_a_world_of_its_own])
def test_numbers_that_took_no_operation_are_no_proof(strategy: Any) -> None:
    sizes: Any = {"world_size": 2, "num_layers": 2, "global_batch_size": 4}
    with pytest.raises(mt.LawError, match=r"belongs to rank \d|did not come out of an operation of this run"):
        mt.prove(strategy, **sizes)
    assert mt.prove(strategy, strict=False, **sizes).largest < 1e-12  # the numbers alone are right


def test_more_ranks_than_can_compute_are_refused_at_once() -> None:
    with pytest.raises(mt.UsageError, match=r"world_size \(1000000\) must be at most 65536 with real arrays"):
        mt.prove("ddp", world_size=10**6, global_batch_size=10**6)
