"""Parts of layers, partial sums and shards of sequences: what adds, what combines, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.lib import Model
from minitrain.tensors import Activation, ActivationGrad, Weight, WeightGrad, clone
from minitrain.tensors.index_sets import SequencePart
from minitrain.tensors.kinds import altered
from minitrain.tensors.placed import (
    ActivationGradShard,
    ActivationShard,
    OptStatePart,
    PartialActivation,
    PartialActivationGrad,
    WeightGradPart,
    WeightPart,
    piece_of,
)

SAMPLES = frozenset(range(4))
WHOLE = {PartialActivation: Activation, PartialActivationGrad: ActivationGrad}
CUT = {ActivationShard: Activation, ActivationGradShard: ActivationGrad}


def partial(kind: Any, *parts: int, of: int = 4, layer: int = 3) -> Any:
    return kind(layer, 8, SAMPLES, 8, frozenset(parts), of)


@given(order=st.permutations(range(4)), kind=st.sampled_from(sorted(WHOLE, key=str)))
def test_a_sum_is_complete_with_its_last_part_and_not_before(order: list[int], kind: Any) -> None:
    total = partial(kind, order[0])
    for part in order[1:]:
        assert type(total) is kind
        total = total + partial(kind, part)
    assert type(total) is WHOLE[kind]
    assert total == WHOLE[kind](3, 8, SAMPLES, 8)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_part_is_added_once(kind: Any) -> None:
    with pytest.raises(mt.LawError, match=r"part 1 of 4 is in both \(layer 3\); add each part once"):
        partial(kind, 0, 1) + partial(kind, 1, 2)


@pytest.mark.parametrize("kind", WHOLE)
def test_parts_of_different_layers_or_divisions_do_not_add(kind: Any) -> None:
    with pytest.raises(mt.LawError, match="layer must be equal, got 3 and 4"):
        partial(kind, 0) + partial(kind, 1, layer=4)
    with pytest.raises(mt.LawError, match="num_parts must be equal, got 4 and 2"):
        partial(kind, 0) + partial(kind, 1, of=2)
    with pytest.raises(mt.LawError, match=f"both must be {kind.__name__}"):
        partial(kind, 0) + WHOLE[kind](3, 8, SAMPLES, 8)


@pytest.mark.parametrize("kind", CUT)
@given(count=st.integers(1, 6), data=st.data())
def test_shards_of_a_sequence_make_the_whole_again(kind: Any, count: int, data: st.DataObject) -> None:
    whole: Any = CUT[kind](3, 8, SAMPLES, 8)
    shards = [piece_of(whole, shard, count) for shard in data.draw(st.permutations(range(count)))]
    assert sum(shard.memory() for shard in shards) == pytest.approx(whole.memory(), abs=count)
    total = shards[0]
    for shard in shards[1:]:
        total = total.combine(shard)
    assert total == whole


def test_only_complete_activations_are_cut_along_the_sequence() -> None:
    with pytest.raises(mt.LawError, match="only a complete activation or gradient is cut along the sequence"):
        piece_of(partial(PartialActivation, 0), 0, 2)
    with pytest.raises(mt.LawError, match=r"shard must lie in 0..num_shards-1, got shard 2 of 2"):
        piece_of(Activation(0, 1, SAMPLES, 8), 2, 2)


def test_parts_of_a_weight_combine_shards_of_the_same_part_alone() -> None:
    first = WeightPart(1, 2, 0, frozenset([0]), 2, frozenset([3]), 4)
    assert first.combine(altered(first, shards=frozenset([1]))).is_complete()
    other = WeightPart(1, 2, 0, frozenset([1]), 2, frozenset([2]), 4)
    with pytest.raises(mt.LawError, match="parts must be equal"):
        first.combine(other)
    whole = WeightPart(1, 2, 0, parts=frozenset([3]), num_parts=4)
    assert whole.shard(1, 2) == altered(first, shards=frozenset([1]))
    state = OptStatePart(1, 2, 0, parts=frozenset([3]), num_parts=4)
    assert state.shard(0, 2) == altered(state, num_shards=2)
    assert whole.memory() * 4 == Weight(1, 2, 0).memory()


def test_gradients_add_over_samples_within_a_part() -> None:
    def grad(*samples: int, part: int = 1, seen: int = 0) -> WeightGradPart:
        return WeightGradPart(
            1, 2, frozenset(samples), 4, parts=frozenset([part]), num_parts=2,
            sequence=SequencePart(pieces=frozenset([seen]), num_pieces=2),
        )  # fmt: skip

    total = grad(0) + grad(1, 2)
    assert (total.samples, total.parts, total.sequence.share) == (frozenset(range(3)), frozenset([1]), Fraction(1, 2))
    with pytest.raises(mt.LawError, match="parts must be equal"):
        grad(0) + grad(1, part=0)
    with pytest.raises(mt.LawError, match="sequence must be equal"):
        grad(0) + grad(1, seen=1)
    with pytest.raises(mt.LawError, match="both must be WeightGradPart"):
        grad(0) + WeightGrad(1, 2, frozenset([1]), 4)
    assert clone(total) == total
    assert clone(total) is not total


def test_gradients_of_sequences_that_were_cut_add_to_others_once_they_cover_all_shards() -> None:
    def of_shards(*shards: int, samples: Iterable[int] = (0,), num_shards: int = 4) -> WeightGradPart:
        sequence = SequencePart(shards=frozenset(shards), num_shards=num_shards)
        return WeightGradPart(1, 2, frozenset(samples), 8, sequence=sequence)

    whole = WeightGrad(1, 2, frozenset([1, 2]), 8)
    complete = of_shards(0, 2) + of_shards(1, 3)
    for total in (whole + complete, complete + whole, whole + of_shards(0, 1, num_shards=2)):
        assert total == WeightGrad(1, 2, frozenset([0, 1, 2]), 8)
    assert complete + of_shards(0, 1, samples=[3], num_shards=2) == WeightGrad(1, 2, frozenset([0, 3]), 8)
    lacks = r"of whole sequences \(samples 1-2\), the other lacks shards 1,3 of 4 of its own \(samples 0, layer 1\)"
    for first, second in ((whole, of_shards(0, 2)), (of_shards(0, 2), whole)):
        with pytest.raises(mt.LawError, match=lacks):
            first + second
    with pytest.raises(mt.LawError, match="sequence must be equal"):
        of_shards(0) + of_shards(0, num_shards=2, samples=[1])


Program = Callable[[Model, Any], Any]


def fails(program: Program, world_size: int = 2, **sizes: Any) -> pytest.ExceptionInfo[mt.MinitrainError]:
    """Run a program of a tensor-parallel group and return how it fails."""

    async def strategy(model: Model) -> Model:
        model.weights[1], model.opt_states[1] = model.load_weights(1, part=model.rank, num_parts=world_size)
        model.activations[1] = Activation(1, model.num_layers, SAMPLES, 4)
        await program(model, model.forward(1, model.activations[1], model.weights[1]))
        return model

    usual: dict[str, Any] = {"num_layers": 4, "global_batch_size": 4, "check": False}
    with pytest.raises(mt.MinitrainError) as caught:
        mt.simulate(strategy, world_size=world_size, **usual | sizes)
    return caught


def load_next(model: Model) -> None:
    model.weights[2], model.opt_states[2] = model.load_weights(2, part=model.rank, num_parts=model.world_size)


async def goes_on_with_a_partial_sum(model: Model, out: Any) -> None:
    load_next(model)
    model.forward(2, out, model.weights[2])


async def goes_on_with_a_shard(model: Model, out: Any) -> None:
    load_next(model)
    model.forward(2, await model.reduce_scatter(out, 2), model.weights[2])


async def adds_a_part_twice(model: Model, out: Any) -> None:
    await model.all_reduce(PartialActivation(2, 4, SAMPLES, 4, frozenset([0]), 2), 2)


async def mixes_layers(model: Model, out: Any) -> None:
    out.layer += model.rank
    await model.all_reduce(out, 2)


async def takes_a_loss_of_some_logits(model: Model, out: Any) -> None:
    model.loss(PartialActivation(4, 4, SAMPLES, 4, frozenset([0]), 2))


async def goes_back_with_a_partial_gradient(model: Model, out: Any) -> None:
    model.grad_activations[1] = PartialActivationGrad(1, 4, SAMPLES, 4, frozenset([0]), 2)
    model.backward(1, model.activations[1], model.grad_activations[1], model.weights[1])


async def scatters_a_sum_that_lacks_a_part(model: Model, out: Any) -> None:
    await model.reduce_scatter(PartialActivation(2, 4, SAMPLES, 4, frozenset([model.rank]), 3), 2)


async def updates_with_another_part(model: Model, out: Any) -> None:
    grad = WeightGradPart(1, 4, SAMPLES, 4, parts=frozenset([1 - model.rank]), num_parts=2)
    model.update(1, grad, model.weights[1], model.opt_states[1])


async def updates_norms_that_saw_a_shard(model: Model, out: Any) -> None:
    parts = frozenset([model.rank])
    seen = SequencePart(pieces=parts, num_pieces=2)
    grad = WeightGradPart(1, 4, SAMPLES, 4, parts=parts, num_parts=2, sequence=seen)
    model.update(1, grad, model.weights[1], model.opt_states[1])


async def sums_norms_that_saw_everything(model: Model, out: Any) -> None:
    await model.all_reduce(WeightGradPart(1, 4, SAMPLES, 4, parts=frozenset([model.rank]), num_parts=2), 1)


async def gathers_what_is_whole(model: Model, out: Any) -> None:
    await model.all_gather(model.activations[1], 1)


async def loads_a_part_that_does_not_exist(model: Model, out: Any) -> None:
    model.load_weights(2, part=2, num_parts=2)


MISTAKES: list[tuple[Program, str]] = [
    (goes_on_with_a_partial_sum, r"forward on rank 0: inp must be a complete sum, got PartialActivation\(layer 2, .* "
     r"parts \{0\} of 2\); part 1 is missing: all_reduce it over the ranks that hold the parts"),
    (goes_on_with_a_shard, r"inp must hold the whole sequence, got ActivationShard\(layer 2, .* shards \{0\} of 2\); "
     "all_gather it over the ranks that hold the shards"),
    (adds_a_part_twice, "all ranks of all_reduce must bring different parts of one sum, so that each is added once; "
     r"ranks 0, 1: PartialActivation\(layer 2, samples .*, parts \{0\} of 2\)"),
    (mixes_layers, "all ranks of all_reduce must bring the same kind of tensor with the same layer, samples"),
    (takes_a_loss_of_some_logits, "loss on rank 0: inp must be a complete sum, .* part 1 is missing"),
    (goes_back_with_a_partial_gradient, "backward on rank 0: grad must be a complete sum, .* part 1 is missing"),
    (scatters_a_sum_that_lacks_a_part, "all ranks of reduce_scatter must together bring every part; 2 is missing"),
    (updates_with_another_part, r"weight_grad must be of the weight's part, got .*\{1\} of 2\) for .*parts \{0\}"),
    (updates_norms_that_saw_a_shard, r"the gradient of what all parts of layer 1 hold \(norms, biases\) must cover the "
     "whole sequence, shards 1 of 2 are missing; all_reduce the gradient over the ranks that hold the parts"),
    (sums_norms_that_saw_everything, "parts that have seen all of it have nothing to add"),
    (gathers_what_is_whole, "all_gather needs values that combine"),
    (loads_a_part_that_does_not_exist, r"part must lie in 0..num_parts-1, got part 2 of 2"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_with_parts_ends_in_its_own_law(program: Program, message: str) -> None:
    assert fails(program).match(message)


def test_heads_that_do_not_divide_name_a_number_that_does() -> None:
    with pytest.raises(mt.UsageError, match=r"num_heads \(25\) must be a multiple of tp \(2\); use tp=1"):
        mt.simulate("megatron", tp=2, world_size=2, workload="gpt2-xl", global_batch_size=2)


def test_final_weights_must_have_every_part() -> None:
    async def forgets_a_part(model: Model) -> Model:
        weight, state = model.load_weights(0, part=0, num_parts=2)
        model.weights[0], model.opt_states[0] = weight, state
        grad = WeightGradPart(0, 1, frozenset([0]), 1, parts=frozenset([0]), num_parts=2)
        model.weights[0], model.opt_states[0] = model.update(0, grad, weight, state)
        model.set_final_weight(0, model.weights[0])
        return model

    with pytest.raises(mt.LawError, match="the final weight of layer 0 is incomplete: part 1 of 2 is on no rank"):
        mt.simulate(forgets_a_part, world_size=1, num_layers=1, global_batch_size=1)
