"""Mistakes with shards of a sequence and the steps of an attention: each ends in its own law, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import MinitrainError
from minitrain.lib import Model
from minitrain.operations import EVENT_TYPES
from minitrain.tensors import Activation, ActivationGrad, clone
from minitrain.tensors.index_sets import SequencePart
from minitrain.tensors.kinds import altered
from minitrain.tensors.placed import PLACED_KINDS, ActivationShard, Attended, KeysValues, KeysValuesGrad, WeightGradPart
from minitrain.workloads.pass_costs import STEPS

Program = Callable[[Model], Any]
SAMPLES = frozenset([0])
ATTENTION, MLP = 1, 2


def fails(program: Program, **options: Any) -> pytest.ExceptionInfo[MinitrainError]:
    """Run a program on ranks that have embedding, attention and input of it, and return how it fails."""

    async def strategy(model: Model) -> Model:
        for layer in range(model.num_layers):
            model.weights[layer], model.opt_states[layer] = model.load_weights(layer)
        shards = [model.rank, 3 - model.rank]
        model.activations[0] = model.get_input_shard(SAMPLES, shards, 4)
        model.activations[ATTENTION] = model.forward(0, model.activations[0], model.weights[0])
        await program(model)
        return model

    sizes: dict[str, Any] = {"world_size": 2, "workload": "tiny", "global_batch_size": 1, "check": False}
    with pytest.raises(MinitrainError) as caught:
        mt.simulate(strategy, **sizes | options)
    return caught


def x_of(model: Model) -> Any:
    return model.activations[ATTENTION]


def own(model: Model) -> KeysValues:
    model.activations["own"] = model.keys_values(ATTENTION, x_of(model), model.weights[ATTENTION])
    found: Any = model.activations["own"]
    return found  # type: ignore[no-any-return]


async def everything(model: Model) -> Any:
    model.activations["all"] = await model.all_gather(own(model), ATTENTION)
    return model.activations["all"]


async def to_backward(model: Model) -> tuple[Any, Any]:
    """Take the attention forward, and its backward up to the gradients of queries, keys and values."""
    attended = model.attend(ATTENTION, x_of(model), await everything(model))
    model.activations[MLP] = model.project(ATTENTION, x_of(model), model.weights[ATTENTION], attended)
    out: Any = model.activations[MLP]
    grad = mt_grad(out)
    model.grad_activations[ATTENTION] = grad
    back = model.backward_project(ATTENTION, x_of(model), grad, model.weights[ATTENTION])
    return model.backward_attend(ATTENTION, x_of(model), back, model.activations["all"])


def mt_grad(out: Any) -> Any:
    """Return the gradient of an output, made by hand."""
    from minitrain.tensors.placed import ActivationGradShard

    return ActivationGradShard(out.layer - 1, out.layers, out.samples, out.total_samples, out.sequence)


async def takes_an_attention_as_any_layer(model: Model) -> None:
    model.forward(ATTENTION, x_of(model), model.weights[ATTENTION])


async def takes_an_mlp_in_steps(model: Model) -> None:
    model.activations[MLP] = ActivationShard(MLP, 6, SAMPLES, 1, SequencePart(frozenset([0, 3]), 4))
    model.keys_values(MLP, model.activations[MLP], model.weights[MLP])


async def attends_before_queries_are_made(model: Model) -> None:
    model.activations["all"] = KeysValues(ATTENTION, 6, SAMPLES, 1, SequencePart(frozenset(range(4)), 4))
    model.attend(ATTENTION, x_of(model), model.activations["all"])


async def stops_a_hop_too_early(model: Model) -> None:
    attended = model.attend(ATTENTION, x_of(model), own(model))
    model.project(ATTENTION, x_of(model), model.weights[ATTENTION], attended)


async def merges_a_block_twice(model: Model) -> None:
    block = own(model)
    model.attend(ATTENTION, x_of(model), block) + model.attend(ATTENTION, x_of(model), block)


async def splits_queries_and_keys_differently(model: Model) -> None:
    own(model)
    model.activations["other"] = KeysValues(ATTENTION, 6, SAMPLES, 1, SequencePart(frozenset([model.rank]), 2))
    model.attend(ATTENTION, x_of(model), model.activations["other"])


async def mixes_keys_of_layers(model: Model) -> None:
    block = own(model)
    block.layer = 3
    model.attend(ATTENTION, x_of(model), block)


async def keeps_keys_outside_the_stores(model: Model) -> None:
    own(model)
    model.attend(ATTENTION, x_of(model), KeysValues(ATTENTION, 6, SAMPLES, 1, SequencePart(frozenset([1, 2]), 4)))


async def attends_to_an_activation(model: Model) -> None:
    own(model)
    model.attend(ATTENTION, x_of(model), x_of(model))


async def goes_on_with_keys(model: Model) -> None:
    model.activations["all"] = await everything(model)
    model.activations["all"].layer = MLP
    model.forward(MLP, model.activations["all"], model.weights[MLP])


async def keeps_gradients_of_keys_to_itself(model: Model) -> None:
    queries, keys = await to_backward(model)
    mine = altered(keys, sequence=x_of(model).sequence)
    model.backward_keys_values(ATTENTION, x_of(model), model.weights[ATTENTION], queries, mine)


async def takes_the_gradient_of_all_keys(model: Model) -> None:
    queries, keys = await to_backward(model)
    total = await model.all_reduce(keys, ATTENTION)
    model.backward_keys_values(ATTENTION, x_of(model), model.weights[ATTENTION], queries, total)


async def adds_gradients_of_the_same_queries(model: Model) -> None:
    _, keys = await to_backward(model)
    keys.queries = frozenset([0, 3])
    await model.all_reduce(keys, ATTENTION)


async def updates_without_the_other_shards(model: Model) -> None:
    grad = WeightGradPart(0, 6, SAMPLES, 1, sequence=SequencePart(frozenset([0, 3]), 4))
    model.update(0, grad, model.weights[0], model.opt_states[0])


async def adds_replicas_as_if_they_were_shards(model: Model) -> None:
    seen = SequencePart(frozenset([model.rank, 3 - model.rank]), 4)
    grad = WeightGradPart(0, 6, frozenset([model.rank]), 2, sequence=seen)
    await model.all_reduce(grad, 0)


async def goes_back_through_what_was_not_kept(model: Model) -> None:
    model.recompute = "full"
    attended = model.attend(ATTENTION, x_of(model), await everything(model))
    model.activations[MLP] = model.project(ATTENTION, x_of(model), model.weights[ATTENTION], attended)
    model.grad_activations[ATTENTION] = mt_grad(model.activations[MLP])
    model.backward_project(ATTENTION, x_of(model), model.grad_activations[ATTENTION], model.weights[ATTENTION])


async def takes_unequal_shares(model: Model) -> None:
    model.get_input_shard(SAMPLES, [0, 1, 2], 4)


async def takes_a_shard_that_does_not_exist(model: Model) -> None:
    model.get_input_shard(SAMPLES, [4], 4)


async def gathers_activations(model: Model) -> None:
    await model.all_gather(x_of(model), ATTENTION)


async def waits_for_a_block_that_nobody_sends(model: Model) -> None:
    if model.rank:
        await model.receive(0, tag=("block", ATTENTION))


MISTAKES: list[tuple[Program, str]] = [
    (takes_an_attention_as_any_layer, r"forward on rank 0: an attention needs the keys and values of the whole "
     r"sequence, and inp is ActivationShard\(layer 1, samples \{0\}, shards \{0, 3\} of 4\); take it in steps: "
     r"keys_values, attend and project .*\(layer 1 is attention 0\)"),
    (takes_an_mlp_in_steps, r"keys_values on rank 0: layer 2 is no attention; take it by forward and backward"),
    (attends_before_queries_are_made, "attend on rank 0: the queries of .* have not been made; call keys_values of the "
     "same input first"),
    (stops_a_hop_too_early, r"project on rank 0: Attended\(.*keys \{0, 3\} of 4\) lacks keys of shards 1-2 of 4; "
     "attend them too"),
    (merges_a_block_twice, r"sums over keys: shard 0,3 of 4 is in both \(layer 1\); add what comes of each shard once"),
    (splits_queries_and_keys_differently, "queries and keys must be of the same samples, whose sequence is cut alike, "
     r"got ActivationShard\(.*of 4\) and KeysValues\(.*shards \{0\} of 2"),
    (mixes_keys_of_layers, r"keys_values must be of layer 1 for layer 1, got KeysValues\(layer 3"),
    (keeps_keys_outside_the_stores, "keys_values must be in one of the rank's stores, so that its memory counts"),
    (attends_to_an_activation, r"keys_values must be a KeysValues, got ActivationShard\(layer 1"),
    (goes_on_with_keys, r"inp must be what goes from layer to layer, got KeysValues\(layer 2"),
    (keeps_gradients_of_keys_to_itself, r"KeysValuesGrad\(.*queries \{0, 3\} of 4\) lacks queries of shards 1-2 of 4; "
     "add what other ranks have: reduce_scatter it, or let it travel round the ring"),
    (takes_the_gradient_of_all_keys, r"all must be of the same shards of the sequence, got ActivationShard\("
     r".*\{0, 3\} of 4\) and KeysValuesGrad"),
    (adds_gradients_of_the_same_queries, "all ranks of all_reduce must bring sums over different queries, so that each "
     "is added once"),
    (updates_without_the_other_shards, "the gradient of layer 0 must cover the whole sequence, shards 1-2 of 4 are "
     "missing; reduce it over the ranks that hold them"),
    (adds_replicas_as_if_they_were_shards, "all ranks of all_reduce must bring gradients of the same shards of the "
     "sequence, or of the same samples in different shards, so that each sample is added once in each shard"),
    (goes_back_through_what_was_not_kept, "is all that was kept of this attention; take keys_values, attend and "
     'project again, with recompute="none", before its backward'),
    (takes_unequal_shares, "the ranks must have equal shares of the sequence, got 3 shards of 4; give a rank one "
     "shard of n, or two of 2n"),
    (takes_a_shard_that_does_not_exist, r"shards must be some of 0..num_shards-1, got \[4\] of 4"),
    (gathers_activations, "all_gather needs values that combine"),
    (waits_for_a_block_that_nobody_sends, r"rank 1 at .*: receive from rank 0 with tag \('block', 1\)"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_with_a_cut_sequence_ends_in_its_own_law(program: Program, message: str) -> None:
    assert fails(program).match(message)


@pytest.mark.parametrize("program", [program for program, _ in MISTAKES], ids=lambda value: value.__name__)
def test_a_mistake_fails_in_a_strict_run_too(program: Program) -> None:
    fails(program, strict=True)


def test_events_and_workloads_name_the_same_steps() -> None:
    assert set(EVENT_TYPES) >= STEPS


def test_gradients_of_keys_come_home_by_a_reduce_scatter() -> None:
    async def strategy(model: Model) -> Model:
        shards = frozenset([model.rank, 3 - model.rank])
        grad = KeysValuesGrad(ATTENTION, 6, SAMPLES, 1, SequencePart(frozenset(range(4)), 4), queries=shards)
        home = await model.reduce_scatter(grad, ATTENTION)
        assert (home.sequence.shards, home.queries) == (shards, frozenset(range(4)))
        return model

    mt.simulate(strategy, world_size=2, workload="tiny", global_batch_size=1, check=False)


def test_gradients_cover_samples_and_shards_in_any_order() -> None:
    def grad(samples: set[int], shards: set[int]) -> WeightGradPart:
        return WeightGradPart(0, 1, frozenset(samples), 2, sequence=SequencePart(frozenset(shards), 2))

    over_samples = (grad({0}, {0}) + grad({1}, {0})) + (grad({0}, {1}) + grad({1}, {1}))
    over_shards = (grad({0}, {0}) + grad({0}, {1})) + (grad({1}, {0}) + grad({1}, {1}))
    assert over_samples == over_shards == grad({0, 1}, {0, 1})
    with pytest.raises(mt.LawError, match="sums over the sequence: shard 0 of 2 is in both"):
        grad({0}, {0}) + grad({0}, {0})
    with pytest.raises(mt.LawError, match="sequence must be equal"):
        grad({0}, {0}) + grad({1}, {1})


@pytest.mark.parametrize("kind", [kind for kind in PLACED_KINDS if "sequence" in kind.__dataclass_fields__])
def test_tensors_of_a_cut_sequence_copy_and_have_their_share_of_the_size(kind: Any) -> None:
    names = kind.__dataclass_fields__
    layers = {"layer": 1, "layers": 2, "samples": frozenset([0]), "total_samples": 1}
    tensor = kind(**layers, sequence=SequencePart(frozenset([1]), 4))
    assert clone(tensor) == tensor
    assert set(names) >= {*layers, "sequence"}
    whole = kind(**layers, sequence=SequencePart(frozenset(range(4)), 4))
    assert (4 if issubclass(kind, Activation | ActivationGrad) else 1) * tensor.memory() == whole.memory() > 0


def test_what_queries_got_adds_in_any_order() -> None:
    blocks = [Attended(1, 2, SAMPLES, 1, SequencePart(num_shards=3), keys=frozenset([key])) for key in range(3)]
    assert blocks[0] + blocks[1] + blocks[2] == blocks[2] + (blocks[1] + blocks[0])
    with pytest.raises(mt.LawError, match="sequence must be equal"):
        blocks[0] + Attended(1, 2, SAMPLES, 1, SequencePart(frozenset([1]), 3), keys=frozenset([1]))
