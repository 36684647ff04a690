"""Chains of launched operations: one is given the result of another that nobody has awaited."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import CollectiveMismatchError, DeadlockError, LawError, StrategyError, TensorTypeError
from minitrain.lib import Model, Weight, WeightGrad
from minitrain.run.analysis.retiming import critical_path, make_graph, retimed_events
from minitrain.run.analysis.timeline import as_timeline, timeline_of_events
from minitrain.view.exports import _dependencies, chrome_trace
from tests.folded_runs import require_identical

Loops = Callable[[int], Callable[[], asyncio.AbstractEventLoop]]
H2 = 4096**2
SECONDS = {"load_weights": 1.0, "forward": 2.0, "backward": 2.5, "all_gather": 3.25, "all_reduce": 4.0} | {
    "reduce_scatter": 3.0,
    "send": 5.0,
    "recv": 6.0,
}
UNITS = mt.FixedPredictor(**SECONDS)
SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 4, "hardware": UNITS, "check": False}


def simulate(program: Any, **parameters: Any) -> mt.Run:
    return mt.simulate(program, **{**SIZES, **parameters})


def results_of(run: mt.Run) -> list[Any]:
    models: list[Any] = list(run.models)
    return [model.result for model in models]


def gradient(model: Any, layer: int = 0) -> WeightGrad:
    return WeightGrad(layer, 4, frozenset([model.rank]), 4)


def logs_of(run: mt.Run) -> list[list[Any]]:
    return [list(log) for log in run.logs]


def compute(model: Any, seconds: int) -> None:
    for _ in range(seconds):
        model.load_weights(0)


async def hierarchical(model: Any) -> Any:
    """Sum a gradient over a 2 x 2 mesh in three launched operations; rank r launches them at r s."""
    mesh = model.mesh(outer=2, inner=2)
    compute(model, model.rank)
    shard = model.launch(model.reduce_scatter(gradient(model), 0, group=mesh.group("inner")))
    total = model.launch(model.all_reduce(shard, 0, group=mesh.group("outer")))
    whole = model.launch(model.all_gather(total, 0, group=mesh.group("inner")))
    assert model.time == model.rank  # nothing has blocked
    compute(model, 1)
    model.result = await whole
    return model


def test_each_operation_of_a_chain_begins_when_the_one_before_it_has_ended_on_all_ranks_of_its_group() -> None:
    run = simulate(hierarchical)
    times = {(event.rank, event.typ): (event.time, event.end) for event in run.events if event.typ != "load_weights"}
    for rank in range(4):
        last = rank | 1  # the last of the pair that scatters: ranks 1 and 3 come at 1 s and 3 s
        assert times[rank, "reduce_scatter"] == (last, last + 3)
        assert times[rank, "all_reduce"] == (6, 10)  # ranks 2 and 3 have their shards at 6 s
        assert times[rank, "all_gather"] == (10, 13.25)
    assert [model.time for model in run.models] == [13.25] * 4
    assert results_of(run) == [WeightGrad(0, 4, frozenset(range(4)), 4, frozenset([0, 1]), 2)] * 4


def test_the_log_says_what_an_operation_was_given_when_it_was_launched_and_for_whom_it_waited() -> None:
    events = [event for event in simulate(hierarchical).logs[0] if event.stream == "comm"]
    assert [event.after for event in events] == [(), (0,), (1,)]
    assert [event.launched for event in events] == [0, 0, 0]
    assert [event.waited_for for event in events] == [1, 2, None]
    assert [event.awaited for event in events] == [4, 4, 4]


def test_a_chain_counts_what_it_was_given_and_its_result_until_its_end_is_awaited() -> None:
    memory = [event.memory / H2 for event in simulate(hierarchical).logs[0]]
    assert memory == [0, 1, 1, 2]  # the gradient, which reductions work in, and the gathered one

    async def after(model: Any) -> Any:
        await hierarchical(model)
        model.load_weights(0)
        return model

    assert simulate(after).logs[0][-1].memory == 0


def test_a_result_that_is_awaited_between_counts_for_what_was_given_it() -> None:
    async def program(model: Any) -> Any:
        shard = model.launch(model.reduce_scatter(gradient(model), 0))
        whole = model.launch(model.all_gather(shard, 0))
        compute(model, 1)
        await shard
        compute(model, 1)
        await whole
        compute(model, 1)
        return model

    log = simulate(program).logs[0]
    assert [event.memory / H2 for event in log] == [0, 1, 2, 1.25, 0]
    assert [(event.time, event.end) for event in log[:2]] == [(0, 3), (3, 6.25)]


def test_one_group_keeps_the_order_of_launches_though_a_later_operation_could_begin_earlier() -> None:
    async def program(model: Any) -> Any:
        pair = [model.rank & 2, model.rank | 1]
        slow = model.launch(model.all_reduce(gradient(model), 0))
        chained = model.launch(model.all_reduce(slow, 0, group=pair))
        free = model.launch(model.all_reduce(gradient(model), 1, group=pair))
        await free
        await chained
        return model

    assert [(event.time, event.end) for event in simulate(program).logs[3]] == [(0, 4), (4, 8), (8, 12)]


def test_a_lone_rank_gets_what_it_gave_as_its_turn_comes() -> None:
    async def program(model: Any) -> Any:
        compute(model, model.rank)
        summed = model.launch(model.all_reduce(gradient(model), 0))
        alone = model.launch(model.all_gather(summed, 0, group=[model.rank]))
        compute(model, 1)
        assert len((await alone).samples) == 4
        return model

    run = simulate(program)
    assert [log[-2].time for log in run.logs] == [7] * 4
    assert [log[-1].memory for log in run.logs] == [H2] * 4


def test_buckets_and_results_of_several_operations_can_be_given() -> None:
    async def program(model: Any) -> Any:
        first = model.launch(model.reduce_scatter([gradient(model, 0), gradient(model, 1)], 0))
        second = model.launch(model.reduce_scatter(gradient(model, 2), 2))
        both = model.launch(model.all_gather(first, 0))
        mixed = model.launch(model.all_gather([second, Weight(3, 4, 0).shard(model.rank, 4)], 2))
        assert [len(grad.shards) for grad in await both] == [4, 4]
        assert [tensor.layer for tensor in await mixed] == [2, 3]
        return model

    assert [event.after for event in simulate(program).logs[0]] == [(), (), (0,), (1,)]


def test_messages_hand_on_what_comes_without_blocking() -> None:
    async def program(model: Any) -> Any:
        after, before = (model.rank + 1) % 4, (model.rank - 1) % 4
        coming = model.get_input_activation([model.rank])
        works: list[Any] = []
        for hop in range(3):
            works.append(model.launch(model.send(after, coming, tag=hop)))
            coming = model.launch(model.receive(before, tag=hop))
        assert model.time == 0
        model.result = sorted((await coming).samples)
        for work in works:
            await work
        return model

    run = simulate(program)
    assert results_of(run) == [[1], [2], [3], [0]]
    sends = [event for event in run.logs[0] if event.typ == "send"]
    assert [(event.time, event.after, event.layer) for event in sends] == [(0, (), 0), (6, (1,), 0), (12, (3,), 0)]


def test_a_broadcast_begins_on_all_ranks_when_its_root_has_what_it_was_given() -> None:
    async def program(model: Any) -> Any:
        compute(model, model.rank)
        summed = model.launch(model.all_reduce(gradient(model), 0))
        model.result = await model.launch(model.broadcast(summed, 0, 0))
        return model

    run = simulate(program)
    assert [log[-1].time for log in run.logs] == [7] * 4
    assert {len(result.samples) for result in results_of(run)} == {4}


def test_an_operation_that_is_not_launched_may_be_given_a_launched_one() -> None:
    async def program(model: Any) -> Any:
        shard = model.launch(model.reduce_scatter(gradient(model), 0))
        model.result = await model.all_gather(shard, 0)
        return model

    run = simulate(program)
    assert [model.time for model in run.models] == [6.25] * 4
    assert run.logs[0][0].awaited == 2


# ---- random chains ---------------------------------------------------------------------------------------------------

_PATHS = (
    [("reduce_scatter", "b"), ("all_reduce", "a"), ("all_gather", "b")],
    [("reduce_scatter", "a"), ("all_reduce", "b"), ("all_gather", "a")],
    [("all_reduce", "a"), ("all_reduce", "b")],
    [("reduce_scatter", "ab"), ("all_gather", "ab")],
)
_RING = [("ring", "ab")]
Steps = Sequence[tuple[Any, ...]]


def random_steps(seed: int, *, with_ring: bool = True, skewed: bool = True) -> Steps:
    """Return steps of all ranks: layers go backward, each begins a chain, and links and awaits come in any order."""
    rng = random.Random(seed)
    chains = [rng.choice((*_PATHS, _RING) if with_ring else _PATHS) for _ in range(4)]
    layers = [3, 2, 1, 0]
    open_chains: list[list[int]] = []
    steps: list[tuple[Any, ...]] = []
    while layers or open_chains:
        kind = rng.choice(["backward"] * bool(layers) + ["link"] * 2 * bool(open_chains) + ["compute"] * skewed)
        if kind == "backward":
            open_chains.append([layers.pop(0), 0])
            steps.append(("backward", open_chains[-1][0], rng.random() < 0.5))
        elif kind == "compute":
            steps.append(("compute", [rng.randrange(2) for _ in range(4)]))
        else:
            chosen = rng.choice(open_chains)
            layer, place = chosen
            if place < len(chains[layer]):
                steps.append(("link", layer, *chains[layer][place]))
                chosen[1] += 1
                if rng.random() < 0.15:
                    steps.append(("look", layer))
            else:
                steps.append(("end", layer))
                open_chains.remove(chosen)
    return steps


def go_forward(model: Any) -> None:
    """Take this rank's sample through all layers, as far as the loss."""
    weights, opt_states, activations, act_grads, _ = model.storage()
    for k in range(4):
        weights[k], opt_states[k] = model.load_weights(k)
    activations[0] = model.get_input_activation(mt.span(model.rank, model.rank + 1))
    for k in range(4):
        activations[k + 1] = model.forward(k, activations[k], weights[k])
    act_grads["here"] = model.loss(activations.pop(4))


class Walk:
    """What one rank does in these steps.

    Args:
        model: the rank.
        chained: whether links take results that were not awaited; if not, each is awaited at once.
    """

    def __init__(self, model: Any, *, chained: bool) -> None:
        self.model, self.chained = model, chained
        self.mesh = model.mesh(a=2, b=2)
        self.values: dict[int, Any] = {}  # of each chain that has begun: a tensor, or the last launched operation
        self.looked: dict[int, Any] = {}
        self.sends: list[Any] = []

    async def backward(self, layer: int, is_stored: bool) -> None:
        weights, _, activations, act_grads, grads = self.model.storage()
        self.values[layer], act_grads["here"] = self.model.backward(
            layer, activations[layer], act_grads["here"], weights[layer]
        )
        del activations[layer]
        if is_stored:
            grads[layer] = self.values[layer]

    async def compute(self, seconds: Sequence[int]) -> None:
        compute(self.model, seconds[self.model.rank])

    async def look(self, layer: int) -> None:
        self.looked[layer] = await self.values[layer]

    async def end(self, layer: int) -> None:
        self.model.grad_weights[layer] = await self.values.pop(layer)
        self.looked.pop(layer, None)

    async def link(self, layer: int, op: str, axes: str) -> None:
        model, value = self.model, self.values[layer]
        if op == "ring":
            self.sends.append(model.launch(model.send((model.rank + 1) % 4, value)))
            self.values[layer] = model.launch(model.receive((model.rank - 1) % 4))
        else:
            self.values[layer] = model.launch(getattr(model, op)(value, layer, group=self.mesh.group(*axes)))
        self.looked.pop(layer, None)
        if not self.chained:
            await self.look(layer)


def strategy_of(steps: Steps, *, chained: bool = True) -> Any:
    """Return the strategy that takes these steps."""

    async def strategy(model: Any) -> Any:
        walk = Walk(model, chained=chained)
        go_forward(model)
        for kind, *what in steps:
            await getattr(walk, kind)(*what)
        for send in walk.sends:
            await send
        return model

    return strategy


class Scheduler:
    """The times of the same steps by the rules alone: streams, members of groups, messages, what was given before."""

    def __init__(self, steps: Steps) -> None:
        self.free: dict[Any, float] = {}
        self.clock = [4 * SECONDS["load_weights"] + 4 * SECONDS["forward"]] * 4
        self.ready = [dict[int, float]() for _ in range(4)]  # when the last link of each chain has ended
        self.sent = [0.0] * 4
        for kind, *what in steps:
            getattr(self, f"_{kind}")(*what)
        for rank in range(4):
            self.clock[rank] = max(self.clock[rank], self.sent[rank])

    def _backward(self, layer: int, _: bool) -> None:
        for rank in range(4):
            self.clock[rank] += SECONDS["backward"]
            self.ready[rank][layer] = 0.0

    def _compute(self, seconds: Sequence[int]) -> None:
        self.clock = [clock + more for clock, more in zip(self.clock, seconds, strict=True)]

    def _look(self, layer: int) -> None:
        self.clock = [max(clock, ready[layer]) for clock, ready in zip(self.clock, self.ready, strict=True)]

    _end = _look

    def _on(self, stream: Any, begin: float, typ: str) -> tuple[float, float]:
        begin = max(begin, self.free.get(stream, 0.0))
        self.free[stream] = begin + SECONDS[typ]
        return begin, self.free[stream]

    def _link(self, layer: int, op: str, axes: str) -> None:
        given = [max(clock, ready[layer]) for clock, ready in zip(self.clock, self.ready, strict=True)]
        if op == "ring":
            sent = [self._on(("send", rank), given[rank], "send") for rank in range(4)]
            for rank in range(4):
                self.sent[rank] = max(self.sent[rank], sent[rank][1])
                message = max(self.clock[rank], sent[rank - 1][0])
                _, self.ready[rank][layer] = self._on(("recv", rank), message, "recv")
            return
        groups: dict[str, list[tuple[int, ...]]] = {"a": [(0, 2), (1, 3)], "b": [(0, 1), (2, 3)], "ab": [(0, 1, 2, 3)]}
        for ranks in groups[axes]:
            _, end = self._on(ranks, max(given[rank] for rank in ranks), op)
            for rank in ranks:
                self.ready[rank][layer] = end


SEEDS = st.integers(0, 10**6)


@given(SEEDS)
def test_random_chains_have_the_clocks_of_the_rules_and_the_results_of_awaiting_each_link(seed: int) -> None:
    steps = random_steps(seed)
    run, awaited = simulate(strategy_of(steps)), simulate(strategy_of(steps, chained=False))
    assert [model.time for model in run.models] == Scheduler(steps).clock
    assert run.step_time <= awaited.step_time
    for model, other in zip(run.models, awaited.models, strict=True):
        assert dict(model.grad_weights) == dict(other.grad_weights)
        assert model.memory() == other.memory()


def test_a_chain_without_computing_beside_it_has_the_times_of_awaiting_each_link() -> None:
    for path in _PATHS:
        steps = [("backward", 3, False), *[("link", 3, *link) for link in path], ("end", 3)]
        run, awaited = simulate(strategy_of(steps)), simulate(strategy_of(steps, chained=False))
        times = [[(event.typ, event.time, event.end) for event in one.events] for one in (run, awaited)]
        assert times[0] == times[1]


@given(SEEDS)
def test_random_chains_do_not_depend_on_the_order_of_tasks(shuffling: Loops, seed: int) -> None:
    program = strategy_of(random_steps(seed))
    for strict in (False, True):
        plain, shuffled = (
            simulate(program, strict=strict),
            simulate(program, strict=strict, loop_factory=shuffling(seed)),
        )
        assert logs_of(plain) == logs_of(shuffled)
        assert plain.peak_memory_per_rank == shuffled.peak_memory_per_rank


@given(SEEDS)
def test_random_chains_are_the_same_run_strict_and_in_numbers(seed: int) -> None:
    steps = random_steps(seed)
    run = simulate(strategy_of(steps))
    numeric, awaited = (
        simulate(strategy_of(steps, chained=chained), strict=True, numerics="numpy") for chained in (True, False)
    )
    timed = [[(event.typ, event.time, event.end) for event in one.events] for one in (run, numeric)]
    assert timed[0] == timed[1]
    for model, other in zip(numeric.models, awaited.models, strict=True):
        for layer, grad in model.grad_weights.items():
            mine, theirs = (tensor._content.values for tensor in (grad, other.grad_weights[layer]))  # type: ignore[attr-defined]
            assert np.array_equal(mine, theirs)


@given(SEEDS)
def test_random_chains_fold(seed: int) -> None:
    require_identical(strategy_of(random_steps(seed, with_ring=False, skewed=False)), **SIZES)


@given(SEEDS)
def test_the_graph_of_random_chains_gives_their_times_and_no_step_of_the_critical_path_waits(seed: int) -> None:
    run = simulate(strategy_of(random_steps(seed)))
    for timeline in (as_timeline(run.logs), timeline_of_events(logs_of(run))):
        graph = make_graph(timeline)
        assert np.array_equal(retimed_events(graph, timeline.duration)[1], timeline.time)
        path = critical_path(graph)
        assert not path.wait.any()
        assert sum(path.seconds().values()) == pytest.approx(timeline.step_time)


@given(SEEDS)
def test_random_chains_are_timed_again_and_kept_as_totals_to_the_same_clocks(seed: int) -> None:
    program = strategy_of(random_steps(seed))
    run, timed_again, totals = (simulate(program, **how) for how in ({}, {"contention": True}, {"log": "summary"}))
    same = [[replace(event, waited_for=None) for event in one.events] for one in (run, timed_again)]
    assert same[0] == same[1]
    assert totals.step_time == run.step_time
    assert totals.peak_memory_per_rank == run.peak_memory_per_rank
    assert totals.by_type == run.by_type


# ---- where logs go ---------------------------------------------------------------------------------------------------


def test_the_critical_path_goes_through_a_chain_to_the_rank_that_came_last() -> None:
    timeline = as_timeline(simulate(hierarchical).logs)
    steps = critical_path(make_graph(timeline)).event
    path = [(int(timeline.rank[one]), timeline.typs[timeline.typ[one]]) for one in steps.tolist()]
    assert path == [(2, "reduce_scatter"), (0, "all_reduce"), (0, "all_gather")]


def test_a_trace_has_an_arrow_from_each_operation_to_what_was_given_its_result() -> None:
    events = chrome_trace(simulate(hierarchical).logs)["traceEvents"]
    arrows = [event for event in events if event.get("cat") == "chain"]
    assert [arrow["ph"] for arrow in arrows] == ["s", "f"] * 8
    given_to = {event["name"]: event["args"].get("given_result_of") for event in events if event["ph"] == "X"}
    assert (given_to["all_reduce"], given_to["all_gather"]) == ("reduce_scatter", "all_reduce")


def test_an_execution_trace_lets_an_operation_depend_on_what_made_its_input() -> None:
    found = dict(_dependencies(as_timeline(simulate(hierarchical).logs), 0))
    assert found == {0: [], 1: [0], 2: [0, 1], 3: []}


def test_a_saved_run_keeps_chains(tmp_path: Path) -> None:
    run = simulate(hierarchical)
    path = tmp_path / "run.jsonl"
    run.save(path)
    assert mt.load_run(path) == run
    lines = path.read_text().splitlines()
    place = next(place for place, line in enumerate(lines) if '"all_reduce"' in line and place)
    values = json.loads(lines[place])
    values[-1] = [7]
    path.write_text("\n".join([*lines[:place], json.dumps(values), *lines[place + 1 :]]) + "\n")
    with pytest.raises(mt.UsageError, match="after: expected a list of the rank's communications so far, found"):
        mt.load_run(path)


# ---- what goes wrong -------------------------------------------------------------------------------------------------


async def crossed(model: Any) -> Any:
    """Let each rank wait for a group whose collective waits for another rank's chain."""
    first, second = {0: ([0, 2], [0, 1]), 1: ([0, 1], [1, 2]), 2: ([1, 2], [0, 2])}[model.rank]
    before = model.launch(model.all_reduce(gradient(model), 0, group=first))
    await model.launch(model.all_reduce(before, 0, group=second))
    return model


def test_chains_whose_orders_cross_are_a_deadlock_that_names_what_each_rank_waits_for() -> None:
    expected = r"rank 0 at 0 s: all_reduce of layer 0 in group \(0, 1\), behind the launched all_reduce of layer 0"
    with pytest.raises(DeadlockError, match=expected) as caught:
        simulate(crossed, world_size=3)
    assert caught.value.facts["ranks"] == (0, 1, 2)


def test_an_operation_behind_a_chain_says_so_in_a_deadlock() -> None:
    async def program(model: Any) -> Any:
        if model.rank == 1:
            return model
        summed = model.launch(model.all_reduce(gradient(model), 0))
        chained = model.launch(model.all_gather(summed, 1, group=[0, 2]))
        await model.all_reduce(gradient(model), 2, group=[0, 2])
        await chained
        return model

    expected = (
        r"all_reduce of layer 2 in group \(0, 2\), behind the launched all_reduce of layer 0 \(.*\n.*\n.*finished: ra"
    )
    with pytest.raises(DeadlockError, match=expected):
        simulate(program, world_size=3)


def test_ranks_that_launch_chains_in_another_order_are_told() -> None:
    async def program(model: Any) -> Any:
        summed = model.launch(model.all_reduce(gradient(model), 0))
        calls: list[Callable[[], Any]] = [
            lambda: model.all_gather(summed, 1),
            lambda: model.all_reduce(gradient(model), 2),
        ]
        for work in [model.launch(call()) for call in (calls if model.rank else calls[::-1])]:
            await work
        return model

    with pytest.raises(CollectiveMismatchError, match="must start the same collectives in the same order; rank 0: all"):
        simulate(program)


def test_results_that_do_not_belong_together_end_the_run_once_they_are_there() -> None:
    async def program(model: Any) -> Any:
        if model.rank == 0:
            await model.send(1, gradient(model))
            await model.send(2, model.get_input_activation([0]))
        elif model.rank < 3:
            await model.launch(model.all_reduce(model.launch(model.receive(0)), 0, group=[1, 2]))
        return model

    with pytest.raises(CollectiveMismatchError, match=r"rank 1: WeightGrad.*test_chains.py:\d+\); rank 2: Activation"):
        simulate(program)


def test_the_last_operation_of_a_chain_is_the_one_to_await() -> None:
    async def program(model: Any) -> Any:
        model.launch(model.all_gather(model.launch(model.reduce_scatter(gradient(model), 0)), 0))
        return model

    with pytest.raises(StrategyError, match="rank 0 launched all_gather and never awaited it"):
        simulate(program)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda model: model.barrier(),
            "all_reduce on rank 0 needs a tensor, got the launched barrier, which gives",
        ),
        (lambda model: model.offload(gradient(model)), "got the launched offload, which gives none; await it"),
    ],
    ids=["barrier", "offload"],
)
def test_what_gives_no_tensor_cannot_be_given(make: Any, message: str) -> None:
    async def program(model: Any) -> Any:
        await model.all_reduce(model.launch(make(model)), 0)
        return model

    with pytest.raises(TensorTypeError, match=message):
        simulate(program, hardware="h100_80g_nvl8")


def test_a_launched_operation_of_another_rank_cannot_be_given() -> None:
    works: dict[int, Any] = {}

    async def program(model: Any) -> Any:
        works[model.rank] = model.launch(model.all_reduce(gradient(model), 0))
        await model.barrier()
        await model.all_reduce(works[(model.rank + 1) % 4], 0)
        return model

    with pytest.raises(TensorTypeError, match=r"all_reduce on rank . got the launched all_reduce of rank .; give it"):
        simulate(program)


def test_computing_and_host_memory_take_tensors_alone() -> None:
    async def offloads(model: Any) -> Any:
        await model.offload(model.launch(model.all_reduce(gradient(model), 0)))
        return model

    async def computes(model: Any) -> Any:
        weight, _ = model.load_weights(0, model.rank, 4)
        model.forward(0, model.get_input_activation([0]), model.launch(model.all_gather(weight, 0)))
        return model

    with pytest.raises(TensorTypeError, match=r"offload on rank 0 takes a tensor, got Launched .*give it `await work`"):
        simulate(offloads, hardware="h100_80g_nvl8")
    with pytest.raises(TensorTypeError, match="weight must be a Weight, got Launched"):
        simulate(computes)


def test_in_a_strict_run_a_reduction_overwrites_the_result_that_it_was_given() -> None:
    async def program(model: Any) -> Any:
        mesh = model.mesh(outer=2, inner=2)
        go_forward(model)
        grad, _ = model.backward(3, model.activations[3], model.grad_activations["here"], model.weights[3])
        shard = model.launch(model.reduce_scatter(grad, 3, group=mesh.group("inner")))
        total = model.launch(model.all_reduce(shard, 3, group=mesh.group("outer")))
        early = await shard
        await model.all_gather(early, 3, group=mesh.group("inner"))
        await total
        return model

    with pytest.raises(LawError, match=r"was overwritten by all_reduce at test_chains\.py"):
        simulate(program, strict=True)


def test_a_rank_that_fails_ends_the_chains_of_others() -> None:
    async def program(model: Any) -> Any:
        summed = model.launch(model.all_reduce(gradient(model), 0))
        chained = model.launch(model.all_gather(summed, 1))
        if model.rank == 2:
            raise ValueError("no more")
        await chained
        return model

    with pytest.raises(ValueError, match="no more"):
        simulate(program)


def test_a_chain_goes_on_though_a_task_that_awaited_it_was_cancelled() -> None:
    async def result_of(work: Any) -> Any:
        return await work

    async def program(model: Any) -> Any:
        compute(model, model.rank)
        summed = model.launch(model.all_reduce(gradient(model), 0))
        chained = model.launch(model.all_reduce(summed, 0))
        task = asyncio.create_task(result_of(chained))
        await asyncio.sleep(0)
        task.cancel()
        await summed
        await chained
        return model

    assert [model.time for model in simulate(program).models] == [11] * 4


def test_a_chain_may_have_thousands_of_links() -> None:
    async def program(model: Model) -> Model:
        work: Any = gradient(model)
        for _ in range(3000):
            work = model.launch(model.all_reduce(work, 0))
        await work
        return model

    assert simulate(program, world_size=2).models[0].time == 12000
