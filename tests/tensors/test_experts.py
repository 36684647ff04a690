"""Layers whose experts are shared: what adds, what goes where, and which mistakes end in which law."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.lib import Model
from minitrain.operations.collectives import perform
from minitrain.tensors import Activation, ActivationGrad, WeightGrad, clone
from minitrain.tensors.expert_load import ExpertLoad, expert_load
from minitrain.tensors.placed import (
    ExpertGrad,
    ExpertOptState,
    ExpertOutputs,
    ExpertOutputsGrad,
    ExpertWeight,
    RoutedTokens,
    RoutedTokensGrad,
    RouterGrad,
    turned_into,
)

LAYER = 2  # of tiny-moe: embedding, attention 0, moe 0, ...
SAMPLES = frozenset(range(4))


# ---- how copies fall on parts ----------------------------------------------------------------------------------------


@given(num_experts=st.integers(1, 8), num_parts=st.integers(1, 4), data=st.data())
def test_every_copy_goes_to_a_part_or_is_dropped(num_experts: int, num_parts: int, data: st.DataObject) -> None:
    amounts = data.draw(st.lists(st.integers(0, 5), min_size=num_experts * num_parts, max_size=num_experts * num_parts))
    imbalance = data.draw(st.floats(1, num_experts * num_parts)) if not sum(amounts) else tuple(amounts)
    capacity = data.draw(st.none() | st.floats(0.125, 4))
    load = expert_load(num_experts * num_parts, num_parts, imbalance, capacity)
    assert load.share(frozenset(range(num_parts))) + load.dropped == 1
    assert 0 <= load.dropped < 1
    assert load.busiest == max(load.share(frozenset([part])) for part in range(num_parts))


def test_a_factor_is_what_the_busiest_expert_gets_of_the_mean() -> None:
    load = expert_load(8, 8, imbalance=3)
    assert load.shares[0] == Fraction(3, 8)
    assert set(load.shares[1:]) == {Fraction(5, 56)}
    assert expert_load(8, 4, imbalance=1) == ExpertLoad(4)


def test_a_histogram_is_what_each_expert_gets() -> None:
    assert expert_load(4, 2, imbalance=(3, 1, 4, 0)).shares == ()  # the parts get the same
    assert expert_load(4, 2, imbalance=(3, 1, 2, 2), capacity_factor=1.25).dropped == Fraction(1, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"imbalance": 9}, r"imbalance must lie in 1..8, the number of experts, .* got 9"),
        ({"imbalance": 0.5}, r"imbalance must lie in 1..8"),
        ({"imbalance": (1, 2)}, r"a number of at least 0 for each of the 8 experts, got \(1, 2\)"),
        ({"imbalance": (0,) * 8}, r"for each of the 8 experts"),
        ({"capacity_factor": 0}, r"capacity_factor must be a number above 0, .* got 0; use 1.25"),
        ({"capacity_factor": float("nan")}, r"capacity_factor must be a number above 0"),
    ],
)
def test_loads_outside_their_rules_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        expert_load(8, 2, **arguments)


# ---- the tensors' algebra --------------------------------------------------------------------------------------------


def copies(kind: Any, *samples: int, parts: tuple[int, ...] = (0, 1), own: tuple[int, ...] = ()) -> Any:
    sets = frozenset(samples), 8, frozenset(parts), 2, frozenset(own or samples)
    return kind(LAYER, 6, *sets, ExpertLoad(2))


@pytest.mark.parametrize("kind", [RoutedTokens, ExpertOutputsGrad])
def test_an_exchange_takes_each_copy_to_its_part_and_back(kind: Any) -> None:
    sent = [copies(kind, 0, 1), copies(kind, 2, 3)]
    arrived = perform("all_to_all", sent, (0, 1), None, whole=True)
    assert [(value.samples, value.parts) for value in arrived] == [(SAMPLES, {0}), (SAMPLES, {1})]
    made = ExpertOutputs if kind is RoutedTokens else RoutedTokensGrad
    back = perform("all_to_all", [turned_into(made, value) for value in arrived], (0, 1), None, whole=True)
    assert back == [turned_into(made, value) for value in sent]


def test_gradients_of_one_part_add_over_samples_and_others_do_not() -> None:
    def grad(*samples: int, part: int = 1) -> ExpertGrad:
        return ExpertGrad(LAYER, 6, frozenset(samples), 8, parts=frozenset([part]), num_parts=2)

    total = grad(0) + grad(1, 2)
    assert (total.samples, total.parts, total.__class__) == (frozenset(range(3)), frozenset([1]), ExpertGrad)
    with pytest.raises(mt.LawError, match="parts must be equal"):
        grad(0) + grad(1, part=0)
    router = RouterGrad(LAYER, 6, frozenset([0]), 8)
    assert (router + RouterGrad(LAYER, 6, frozenset([1]), 8)).samples == {0, 1}
    with pytest.raises(mt.LawError, match="both must be RouterGrad"):
        router + WeightGrad(LAYER, 6, frozenset([1]), 8)
    assert clone(total) == total
    assert clone(total) is not total


def test_pieces_are_cut_into_shards_and_put_together_again() -> None:
    whole = ExpertWeight(LAYER, 6, 0, parts=frozenset([1]), num_parts=2)
    first, second = whole.shard(0, 2), whole.shard(1, 2)
    assert first.combine(second).is_complete()
    assert first.__class__ is ExpertWeight
    other = ExpertWeight(LAYER, 6, 0, frozenset([1]), 2, frozenset([0]), 2)
    with pytest.raises(mt.LawError, match="parts must be equal"):
        first.combine(other)
    assert perform("all_gather", [first, second], (0, 1), None, whole=True)[1] == first.combine(second)
    states = [ExpertOptState(LAYER, 6, 0, frozenset([shard]), 2, frozenset([1]), 2) for shard in range(2)]
    assert perform("all_gather", states, (0, 1), None, whole=True)[0].is_complete()
    grads = [ExpertGrad(LAYER, 6, frozenset([rank]), 2, parts=frozenset([1]), num_parts=2) for rank in range(2)]
    scattered = perform("reduce_scatter", grads, (0, 1), None, whole=True)
    assert [(grad.samples, grad.shards, grad.parts) for grad in scattered] == [({0, 1}, {0}, {1}), ({0, 1}, {1}, {1})]


# ---- mistakes --------------------------------------------------------------------------------------------------------

Program = Callable[[Model, Any], Any]


def fails(program: Program, world_size: int = 2, **sizes: Any) -> pytest.ExceptionInfo[mt.MinitrainError]:
    """Run a program of two ranks that share experts, up to the routed tokens, and return how it fails."""

    async def strategy(model: Model) -> Model:
        mine = range(2 * model.rank, 2 * model.rank + 2)
        model.weights[LAYER], model.opt_states[LAYER] = model.load_router(LAYER)
        model.weights["experts"], model.opt_states["experts"] = model.load_experts(
            LAYER, part=model.rank, num_parts=world_size
        )
        model.activations[LAYER] = Activation(LAYER, model.num_layers, frozenset(mine), 4)
        model.activations["tokens"] = model.route(LAYER, model.activations[LAYER], model.weights[LAYER], world_size)
        await program(model, model.activations["tokens"])
        return model

    usual: dict[str, Any] = {"workload": "tiny-moe", "global_batch_size": 4, "check": False}
    with pytest.raises(mt.MinitrainError) as caught:
        mt.simulate(strategy, world_size=world_size, **usual | sizes)
    return caught


async def through_experts(model: Model, tokens: Any) -> None:
    """Take tokens to the experts and through them, and store what they stand for and what is made of them."""
    model.activations["tokens"] = await model.all_to_all(tokens, LAYER)
    model.activations["made"] = model.forward(LAYER, model.activations["tokens"], model.weights["experts"])


async def backward_to_experts(model: Model, tokens: Any) -> ExpertGrad:
    """Go on until the gradient of this rank's experts."""
    await through_experts(model, tokens)
    model.activations["back"] = await model.all_to_all(model.activations["made"], LAYER)
    model.combine(LAYER, model.activations[LAYER], model.activations["back"], model.weights[LAYER])
    inp = model.activations[LAYER]
    model.grad_activations[LAYER] = ActivationGrad(LAYER, model.num_layers, inp.samples, 4)
    model.grad_activations["made"] = model.backward_combine(
        LAYER, inp, model.activations["back"], model.grad_activations[LAYER]
    )
    model.grad_activations["made"] = await model.all_to_all(model.grad_activations["made"], LAYER)
    grad, model.grad_activations["tokens"] = model.backward(
        LAYER, model.activations["tokens"], model.grad_activations["made"], model.weights["experts"]
    )
    return grad  # type: ignore[return-value]  # of experts


async def forgets_to_send_tokens(model: Model, tokens: Any) -> None:
    model.forward(LAYER, tokens, model.weights["experts"])


async def does_not_return_tokens(model: Model, tokens: Any) -> None:
    await through_experts(model, tokens)
    model.combine(LAYER, model.activations[LAYER], model.activations["made"], model.weights[LAYER])


async def combines_what_no_expert_has_seen(model: Model, tokens: Any) -> None:
    model.combine(LAYER, model.activations[LAYER], tokens, model.weights[LAYER])


async def does_not_return_gradients(model: Model, tokens: Any) -> None:
    await backward_to_experts(model, tokens)
    model.backward_route(
        LAYER,
        model.activations[LAYER],
        model.grad_activations[LAYER],
        model.grad_activations["tokens"],
        model.weights[LAYER],
    )


async def gives_experts_whole_samples(model: Model, tokens: Any) -> None:
    model.forward(LAYER, model.activations[LAYER], model.weights["experts"])


async def goes_forward_with_the_router(model: Model, tokens: Any) -> None:
    model.forward(LAYER, model.activations[LAYER], model.weights[LAYER])


async def does_not_divide_the_experts(model: Model, tokens: Any) -> None:
    model.activations["tokens"] = await model.all_to_all(tokens, LAYER)
    model.weights["experts"], _ = model.load_experts(LAYER)
    model.forward(LAYER, model.activations["tokens"], model.weights["experts"])


async def loads_a_part_twice(model: Model, tokens: Any) -> None:
    model.activations["tokens"] = await model.all_to_all(tokens, LAYER)
    model.weights["experts"], _ = model.load_experts(LAYER, part=0, num_parts=2)
    model.forward(LAYER, model.activations["tokens"], model.weights["experts"])


async def does_not_sum_the_routers_gradient(model: Model, tokens: Any) -> None:
    mine = RouterGrad(LAYER, model.num_layers, model.activations[LAYER].samples, 4)
    model.update(LAYER, mine, model.weights[LAYER], model.opt_states[LAYER])


async def reduces_experts_over_those_of_other_parts(model: Model, tokens: Any) -> None:
    await model.all_reduce(await backward_to_experts(model, tokens), LAYER)


async def updates_experts_with_the_routers_gradient(model: Model, tokens: Any) -> None:
    grad = RouterGrad(LAYER, model.num_layers, SAMPLES, 4)
    model.update(LAYER, grad, model.weights["experts"], model.opt_states["experts"])


async def updates_the_router_with_a_whole_layers_gradient(model: Model, tokens: Any) -> None:
    grad = WeightGrad(LAYER, model.num_layers, SAMPLES, 4)
    model.update(LAYER, grad, model.weights[LAYER], model.opt_states[LAYER])


async def exceeds_the_capacity(model: Model, tokens: Any) -> None:
    router, inp = model.weights[LAYER], model.activations[LAYER]
    model.route(LAYER, inp, router, 2, imbalance=2, capacity_factor=1.5, drop_tokens=False)


async def sends_the_same_samples(model: Model, tokens: Any) -> None:
    await model.all_to_all(clone(copies(RoutedTokens, 0, 1)), LAYER)


async def exchanges_among_too_few(model: Model, tokens: Any) -> None:
    model.activations["more"] = model.route(LAYER, model.activations[LAYER], model.weights[LAYER], 4)
    await model.all_to_all(model.activations["more"], LAYER)


async def sends_some_back_and_some_there(model: Model, tokens: Any) -> None:
    await model.all_to_all(copies(RoutedTokens, 0, parts=(0, 1) if model.rank else (0,)), LAYER)


async def exchanges_a_weight(model: Model, tokens: Any) -> None:
    await model.all_to_all(model.weights[LAYER], LAYER)


async def exchanges_tokens_with_a_list(model: Model, tokens: Any) -> None:
    await model.all_to_all(tokens if model.rank else [model.weights[LAYER]] * 2, LAYER)


async def routes_where_no_experts_are(model: Model, tokens: Any) -> None:
    model.load_router(1)


async def loads_a_part_that_does_not_exist(model: Model, tokens: Any) -> None:
    model.load_experts(LAYER, part=2, num_parts=2)


async def divides_what_does_not_divide(model: Model, tokens: Any) -> None:
    model.load_experts(LAYER, part=0, num_parts=3)


async def goes_on_with_tokens(model: Model, tokens: Any) -> None:
    model.weights[3], _ = model.load_weights(3)
    model.forward(3, tokens, model.weights[3])


async def combines_other_samples(model: Model, tokens: Any) -> None:
    outputs = copies(ExpertOutputs, 0, 1, 2, 3)
    model.combine(LAYER, model.activations[LAYER], outputs, model.weights[LAYER])


async def goes_back_with_gradients_of_other_parts(model: Model, tokens: Any) -> None:
    await through_experts(model, tokens)
    model.grad_activations["made"] = copies(ExpertOutputsGrad, 0, 1, 2, 3, parts=(1 - model.rank,))
    model.backward(LAYER, model.activations["tokens"], model.grad_activations["made"], model.weights["experts"])


MISTAKES: list[tuple[Program, str]] = [
    (forgets_to_send_tokens, r"forward on rank 0: inp must be the copies for the weight's part of the experts, got "
     r"RoutedTokens\(layer 2, samples \{0, 1\}, parts \{0, 1\} of 2\) for ExpertWeight\(.*\{0\} of 2\); all_to_all "
     r"them over the ranks that hold the parts \(layer 2 is moe 0\)"),
    (does_not_return_tokens, r"combine on rank 0: outputs must come from all parts of the experts, got "
     r"ExpertOutputs\(.* parts \{0\} of 2\); part 1 is missing: all_to_all them back"),
    (combines_what_no_expert_has_seen, "combine on rank 0: outputs must be a ExpertOutputs, got RoutedTokens"),
    (does_not_return_gradients, r"backward_route on rank 0: tokens_grad must come from all parts of the experts, got "
     r"RoutedTokensGrad\(.*; part 1 is missing: all_to_all them back"),
    (gives_experts_whole_samples, r"experts must be given copies of tokens, got Activation\(.*; route it, and "
     "all_to_all"),
    (goes_forward_with_the_router, r"must be of a whole layer, or a part of experts, got RouterWeight\(.*; it goes "
     "through route and combine"),
    (does_not_divide_the_experts, r"got RoutedTokens\(.* parts \{0\} of 2\) for ExpertWeight\(.*parts \{0\} of 1\); "
     "each part gets the copies that are for it, and the numbers of parts must agree"),
    (loads_a_part_twice, r"on rank 1: inp must be the copies for the weight's part .* parts \{1\} of 2\) for "
     r"ExpertWeight\(.*parts \{0\} of 2\)"),
    (does_not_sum_the_routers_gradient, r"the gradient of layer 2 must cover all 4 samples, \[2, 3\] are missing .*; "
     "add up all microbatches and reduce over the ranks"),
    (reduces_experts_over_those_of_other_parts, "all ranks of all_reduce must bring gradients of one part of the "
     "experts: those of different parts have nothing to add, and hold the samples of all ranks that exchange tokens "
     r"already; reduce them over the ranks that hold the same part; rank 0: ExpertGrad\(.*parts \{0\} of 2"),
    (updates_experts_with_the_routers_gradient, r"weight_grad must be of the weight's part, got RouterGrad\(.* for "
     r"ExpertWeight\("),
    (updates_the_router_with_a_whole_layers_gradient, r"weight_grad must be a RouterGrad, got WeightGrad\(layer 2"),
    (exceeds_the_capacity, "experts take at most 1.5 times the mean, and 0.0625 of all copies are over that; raise "
     "capacity_factor, balance the router, or let tokens be dropped"),
    (sends_the_same_samples, "all ranks of all_to_all must bring copies of different samples, or different parts of "
     "all of them; ranks 0, 1: Routed"),
    (exchanges_among_too_few, r"must be as many as there are parts of the experts \(4\), which are 2"),
    (sends_some_back_and_some_there, "must bring copies for all parts of the experts, or for another part each"),
    (exchanges_a_weight, "all_to_all on rank 0 needs a list of one tensor for each rank, or copies of tokens for "
     "experts, got RouterWeight"),
    (exchanges_tokens_with_a_list, "must bring copies of tokens, or a list of one tensor a rank each"),
    (routes_where_no_experts_are, r"load_router on rank 0: layer 1 must have experts; layers with experts are 2,4: use "
     r"load_weights and forward for the others \(model.has_experts says which\) \(layer 1 is attention 0\)"),
    (loads_a_part_that_does_not_exist, "load_experts on rank 0: part must lie in 0..num_parts-1, got part 2 of 2"),
    (divides_what_does_not_divide, r"num_experts \(8\) must be a multiple of ep \(3\); use ep=2"),
    (goes_on_with_tokens, "forward on rank 0: weight must be a ExpertWeight, got Weight"),
    (combines_other_samples, r"outputs must be of the samples of inp \(0-1\), got ExpertOutputs\("),
    (goes_back_with_gradients_of_other_parts, "grad must be of the same part of the experts as inp"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_with_experts_ends_in_its_own_law(program: Program, message: str) -> None:
    assert fails(program).match(message)


def test_experts_that_do_not_divide_name_a_number_that_does() -> None:
    with pytest.raises(mt.UsageError, match=r"num_experts \(8\) must be a multiple of ep \(3\); use ep=2"):
        mt.simulate("moe", workload="mixtral-8x7b", world_size=3, global_batch_size=3, ep=3)


async def hands_in(model: Model, *, router: bool, part: int | None) -> None:
    """Update one layer and hand in some of it."""
    samples = frozenset([0])
    weight, state = model.load_router(LAYER)
    if router:
        model.set_final_weight(LAYER, model.update(LAYER, RouterGrad(LAYER, 6, samples, 1), weight, state)[0])
    if part is not None:
        experts, state_of_experts = model.load_experts(LAYER, part=part, num_parts=2)
        grad = ExpertGrad(LAYER, 6, samples, 1, parts=frozenset([part]), num_parts=2)
        model.set_final_weight(LAYER, model.update(LAYER, grad, experts, state_of_experts)[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"router": True, "part": None}, "final weight of layer 2 is incomplete: its experts are on no rank"),
        ({"router": True, "part": 0}, "the final weight of layer 2 is incomplete: part 1 of 2 is on no rank"),
        ({"router": False, "part": 0}, "layer 2 has no final weight on any rank"),
    ],
)
def test_final_weights_must_have_both_pieces_and_every_part(given: dict[str, Any], message: str) -> None:
    async def strategy(model: Model) -> Model:
        for layer in (0, 1):
            weight, state = model.load_weights(layer)
            grad = WeightGrad(layer, 6, frozenset([0]), 1)
            model.set_final_weight(layer, model.update(layer, grad, weight, state)[0])
        await hands_in(model, **given)
        return model

    with pytest.raises(mt.LawError, match=message):
        mt.simulate(strategy, workload="tiny-moe", world_size=1, global_batch_size=1)


def test_a_layer_is_whole_on_all_ranks_or_in_pieces_on_all() -> None:
    async def strategy(model: Model) -> Model:
        for layer in range(3):
            weight, state = model.load_weights(layer)
            if layer < LAYER or model.rank:
                grad: Any = WeightGrad(layer, 6, frozenset([0]), 1)
            else:
                weight, state = model.load_router(layer)
                grad = RouterGrad(layer, 6, frozenset([0]), 1)
            model.set_final_weight(layer, model.update(layer, grad, weight, state)[0])
        return model

    with pytest.raises(mt.LawError, match=r"of layer 2 must be whole on all ranks, .* got RouterWeight\(.*, Weight\("):
        mt.simulate(strategy, workload="tiny-moe", world_size=2, global_batch_size=1)


def test_tokens_that_nobody_sends_end_in_a_deadlock_that_names_the_exchange() -> None:
    async def strategy(model: Model) -> Model:
        model.weights[LAYER], _ = model.load_router(LAYER)
        model.activations[LAYER] = Activation(LAYER, 6, frozenset([model.rank]), 2)
        tokens = model.route(LAYER, model.activations[LAYER], model.weights[LAYER], 2)
        if model.rank == 0:
            await model.all_to_all(tokens, LAYER)
        else:
            await model.receive(0, tag="tokens")
        return model

    with pytest.raises(mt.DeadlockError, match=r"rank 0 .*all_to_all of layer 2") as caught:
        mt.simulate(strategy, workload="tiny-moe", world_size=2, global_batch_size=2, check=False)
    assert "rank 1" in str(caught.value)
