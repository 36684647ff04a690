"""Real arrays that tensors carry: they change no log, and follow every operation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.proof import Adam, Momentum, Problem
from minitrain.proof.problem import Flat, held
from minitrain.tensors import Tensor, Weight, WeightGrad

SMALL: dict[str, Any] = {"num_layers": 2, "global_batch_size": 4}


def values(tensor: Any) -> Any:
    """Return a tensor's numbers."""
    return tensor._content.values


def run_one(program: Callable[[Any], Any], world_size: int = 1, **options: Any) -> mt.Run:
    """Run a program on models with numerics."""

    async def strategy(model: Any) -> Any:
        result = program(model)
        if result is not None:
            await result
        return model

    return mt.simulate(strategy, world_size=world_size, numerics="numpy", check=False, **{**SMALL, **options})


@pytest.mark.parametrize("name", ["zero3_prefetch", "zb_h1", "pp_hsdp", "zbv"])
def test_numbers_change_no_log(name: str) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
    assert mt.simulate(name, numerics="numpy", **sizes).logs == mt.simulate(name, **sizes).logs


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    first, again, other = Problem(), Problem(), Problem(seed=1)
    assert np.array_equal(first.inputs(4), again.inputs(4))
    assert not np.array_equal(first.inputs(4), other.inputs(4))
    assert not np.array_equal(first.inputs(4), first.targets(4))


def test_a_larger_batch_begins_with_the_samples_of_a_smaller_one() -> None:
    assert np.array_equal(Problem().inputs(9)[:4], Problem().inputs(4))


def test_numerics_must_be_a_problem_or_numpy() -> None:
    with pytest.raises(mt.UsageError, match=r'numerics must be None, "numpy" or a .*Problem, got \'torch\''):
        mt.simulate("ddp", numerics="torch")


def test_equality_repr_and_copies_know_nothing_of_numbers() -> None:
    def program(model: Any) -> None:
        weight, _ = model.load_weights(0)
        assert weight == Weight(0, 2, 0)
        assert repr(weight) == repr(Weight(0, 2, 0))
        assert not hasattr(copy.copy(weight), "_content")

    run_one(program)


@given(size=st.integers(1, 40), outer=st.integers(1, 6), inner=st.integers(1, 6))
def test_shards_part_the_elements_and_finer_ones_part_coarser_ones(size: int, outer: int, inner: int) -> None:
    parts = [held([shard], outer, size) for shard in range(outer)]
    assert np.sum(parts, axis=0).tolist() == [1] * size
    for shard, part in enumerate(parts):
        assert np.array_equal(held(range(shard * inner, (shard + 1) * inner), outer * inner, size), part)


@given(count=st.integers(1, 5), order=st.randoms(use_true_random=False))
def test_shards_combine_to_the_whole_in_any_order(count: int, order: Any) -> None:
    whole = Flat(np.arange(10.0))
    shards = [whole.shard(index, count) for index in range(count)]
    order.shuffle(shards)
    total = shards[0]
    for shard in shards[1:]:
        total = total.combine(shard)
    assert np.array_equal(total.values, whole.values)


@pytest.mark.parametrize("optimizer", [Adam(), Momentum()])
@pytest.mark.parametrize("num_shards", [1, 3, 4, 7])
def test_a_step_on_shards_is_a_shard_of_the_step(optimizer: Any, num_shards: int) -> None:
    weight, grad, *moments = np.random.default_rng(0).random((2 + optimizer.num_moments, 16))
    whole = optimizer.step(weight, grad, np.stack(moments), 3)
    for shard in range(num_shards):
        pieces = [Flat(part).shard(shard, num_shards).values for part in (weight, grad, np.stack(moments))]
        for got, want in zip(optimizer.step(*pieces, 3), whole, strict=True):
            assert np.array_equal(got, Flat(want).shard(shard, num_shards).values, equal_nan=True)


def test_tensor_operations_carry_the_numbers() -> None:
    def program(model: Any) -> None:
        weight, state = model.load_weights(0)
        for tensor in (weight, state):
            halves = [tensor.shard(index, 2) for index in range(2)]
            assert np.isnan(values(halves[0])).sum() * 2 == values(tensor).size
            assert np.array_equal(values(halves[1].combine(halves[0])), values(tensor))

    run_one(program)


def gradient(model: Any, samples: Any) -> WeightGrad:
    """Return the gradient of a one-layer model for some samples."""
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.activations[0] = model.get_input_activation(samples)
    model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    return grad  # type: ignore[no-any-return]


def test_gradients_of_microbatches_sum_to_that_of_the_batch() -> None:
    def program(model: Any) -> None:
        total = gradient(model, [0, 3]) + gradient(model, [1, 2])
        np.testing.assert_allclose(values(total), values(gradient(model, range(4))), rtol=1e-12)

    run_one(program, num_layers=1)


def test_the_gradient_is_that_of_a_difference_quotient() -> None:
    def loss(problem: Problem, weight: Any) -> float:
        outputs = np.tanh(problem.inputs(4)) @ weight
        return float(np.mean(np.sum((outputs - problem.targets(4)) ** 2, axis=1) / 2))

    def program(model: Any) -> None:
        found = values(gradient(model, range(4))).reshape(8, 8)[2, 5]
        step = np.zeros((8, 8))
        step[2, 5] = 1e-6
        weight = Problem().initial_weight(0)
        quotient = (loss(Problem(), weight + step) - loss(Problem(), weight - step)) / 2e-6
        assert found == pytest.approx(quotient, rel=1e-7)

    run_one(program, num_layers=1)


def test_split_backwards_compute_what_the_whole_one_does() -> None:
    def program(model: Any) -> None:
        whole = gradient(model, range(4))
        act, act_grad = model.activations[0], model.grad_activations[0]
        assert np.array_equal(values(model.backward_weight(0, act, act_grad)), values(whole))
        _, grad_inp = model.backward(0, act, act_grad, model.weights[0])
        assert np.array_equal(values(model.backward_input(0, act, act_grad, model.weights[0])), values(grad_inp))

    run_one(program, num_layers=1)


def test_every_collective_carries_the_numbers() -> None:
    grads: dict[int, Any] = {}

    async def program(model: Any) -> None:
        grad = grads[model.rank] = gradient(model, [model.rank])
        other = gradient(model, [model.rank + 2])
        total = values(await model.all_reduce(grad, 0))
        assert np.array_equal(total, values(grads[0]) + values(grads[1]))
        shard, _ = await model.reduce_scatter([grad, other], 0)
        assert np.array_equal(values(shard), Flat(total).shard(model.rank, 2).values, equal_nan=True)
        assert np.array_equal(values(await model.all_gather(shard, 0)), total)
        assert np.array_equal(values(await model.broadcast(grad, 1)), values(grads[1]))
        swapped = await model.all_to_all([grad, [other]])
        mine = [values(item) for item in (swapped if model.rank == 0 else [item[0] for item in swapped])]
        assert np.array_equal(mine[0 if model.rank == 0 else 1], values([grad, other][model.rank]))
        await model.barrier()
        if model.rank == 0:
            await model.send(1, grad)
        else:
            assert np.array_equal(values(await model.receive(0)), values(grads[0]))

    run_one(program, world_size=2, num_layers=1)


def test_a_group_of_one_keeps_its_numbers() -> None:
    async def program(model: Any) -> None:
        grad = gradient(model, range(4))
        before = values(grad)
        for operation in (model.all_reduce, model.reduce_scatter, model.all_gather):
            assert np.array_equal(values(await operation(grad, 0, group=[model.rank])), before)

    run_one(program, world_size=2, num_layers=1)


def forge_backward(model: Any) -> None:
    """Use a gradient made by hand."""
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.update(0, WeightGrad(0, 2, frozenset(range(4)), 4), model.weights[0], model.opt_states[0])


def forge_final(model: Any) -> None:
    """Hand in a weight made by hand."""
    model.set_final_weight(0, Weight(0, 2, 1))


def forge_sum(model: Any) -> None:
    """Add a gradient made by hand to a real one."""
    grad = gradient(model, [0]) + WeightGrad(0, 1, frozenset([1, 2, 3]), 4)
    model.update(0, grad, model.weights[0], model.opt_states[0])


async def forge_collective(model: Any) -> None:
    """Reduce a gradient made by hand."""
    await model.all_reduce(WeightGrad(0, 2, frozenset([model.rank]), 4), 0)


async def forge_message(model: Any) -> None:
    """Send a gradient made by hand."""
    if model.rank == 0:
        await model.send(1, WeightGrad(0, 2, frozenset([0]), 4))
    else:
        await model.receive(0)


@pytest.mark.parametrize(
    ("program", "world_size", "message"),
    [
        (forge_backward, 1, r"^update on rank 0: WeightGrad\(layer 0, .*was made by hand, no operation"),
        (forge_final, 1, "^set_final_weight on rank 0: Weight.*was made by hand"),
        (forge_collective, 2, "^all_reduce on rank 0: WeightGrad.*was made by hand"),
        (forge_message, 2, "^a message on rank 1: WeightGrad.*was made by hand"),
    ],
)
def test_tensors_made_by_hand_are_refused(program: Any, world_size: int, message: str) -> None:
    with pytest.raises(mt.LawError, match=message):
        run_one(program, world_size)


def test_a_sum_with_a_gradient_made_by_hand_is_made_by_hand() -> None:
    with pytest.raises(mt.LawError, match=r"^update on rank 0: WeightGrad.*was made by hand"):
        run_one(forge_sum, num_layers=1)


def test_what_is_no_tensor_breaks_the_law_it_always_broke() -> None:
    with pytest.raises(mt.LawError, match=r"^forward on rank 0: weight must be a Weight, got int"):
        run_one(lambda model: model.forward(0, model.get_input_activation([0]), 3))


def test_shards_of_a_layer_may_be_updated_one_after_the_other() -> None:
    def program(model: Any) -> None:
        grad = gradient(model, range(4))
        for index in range(2):
            weight, _ = model.load_weights(0, index, 2)
            shard, model.opt_states[0] = model.update(0, grad, weight, model.opt_states[0].shard(index, 2))
            model.weights[index] = shard
            model.opt_states[0] = model.load_weights(0)[1]
        assert not np.isnan(model.final_states[0].values).any()
        model.set_final_weight(0, model.weights[0].combine(model.weights[1]))

    run_one(program, num_layers=1)


def test_other_tensors_carry_nothing() -> None:
    assert not hasattr(mt.simulate("ddp", world_size=2, **SMALL).models[0].final_weights[0], "_content")
    assert "_content" in Tensor.__slots__
