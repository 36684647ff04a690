"""Groups and meshes, and the collectives that work on them: matching, buckets, prices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import CollectiveMismatchError, LawError, TensorTypeError, UsageError
from minitrain.learn import load_exercise
from minitrain.lib import Activation, Dist, Model, RuntimePredictor, Weight, WeightGrad
from minitrain.machine.config import SPECIFIED

Ranks = Callable[..., list[Any]]


def model_of(rank: int, world_size: int) -> Model:
    return Model(rank, Dist(world_size), 4, 8)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_mesh_numbers_ranks_with_the_last_axis_fastest(pp: int, dp: int, tp: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, pp * dp * tp - 1))
    mesh = model_of(rank, pp * dp * tp).mesh(pp=pp, dp=dp, tp=tp)
    at = {axis: mesh.coord(axis) for axis in ("pp", "dp", "tp")}
    assert rank == (at["pp"] * dp + at["dp"]) * tp + at["tp"]
    assert [mesh.size(axis) for axis in at] == [pp, dp, tp]
    for axis, coord in at.items():
        group = mesh.group(axis)
        assert (group.size, group.index, group.ranks[group.index]) == (mesh.size(axis), coord, rank)
        assert mesh.peer(axis, 1, wrap=True) == group.ranks[(coord + 1) % group.size]
        assert mesh.peer(axis, 1) == (None if coord == group.size - 1 else group.ranks[coord + 1])
        assert mesh.peer(axis, -1) == (None if coord == 0 else group.ranks[coord - 1])
    assert mesh.group("pp", "dp", "tp").ranks == tuple(range(pp * dp * tp))
    assert mesh.group("pp", "tp").size == pp * tp
    assert mesh.group().ranks == (rank,)


def test_the_meshes_of_the_documentation_are_as_it_says() -> None:
    mesh = model_of(5, 8).mesh(pp=4, dp=2)
    assert (mesh.coord("pp"), mesh.coord("dp"), mesh.peer("pp", 1), mesh.group("dp").ranks) == (2, 1, 7, (4, 5))
    assert repr(mesh) == "Mesh(pp=4, dp=2, rank=5)"
    assert repr(mesh.group("dp")) == "Group(ranks=(4, 5), index=1)"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"pp": 3, "dp": 2}, r"must be world_size \(8\), got pp=3 x dp=2 = 6"),
        ({}, r"must be world_size \(8\), got no axes = 1"),
        ({"pp": 0}, "axis pp of a mesh must be an integer of at least 1, got 0"),
        ({"pp": 8.0}, r"axis pp of a mesh must be an integer of at least 1, got 8\.0"),
        ({"pp": True}, "axis pp of a mesh must be an integer of at least 1, got True"),
    ],
)
def test_the_axes_of_a_mesh_must_fill_the_world(axes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model_of(0, 8).mesh(**axes)


@pytest.mark.parametrize("ask", ["size", "coord", "group"])
def test_an_axis_that_the_mesh_has_not_is_refused(ask: str) -> None:
    mesh = model_of(0, 8).mesh(pp=4, dp=2)
    with pytest.raises(UsageError, match="the mesh has no axis 'tp'; its axes are pp, dp"):
        getattr(mesh, ask)("tp")


def test_a_group_is_sorted_free_of_duplicates_and_contains_the_rank() -> None:
    group = model_of(2, 8).group([5, 2, 0, 5])
    assert (group.ranks, group.size, group.index) == ((0, 2, 5), 3, 1)
    with pytest.raises(UsageError, match=r"rank 2 is not in the group \(0, 5\)"):
        model_of(2, 8).group([0, 5])
    with pytest.raises(UsageError, match=r"a group needs ranks of 0\.\.7, at least one; got \[2, 8\]"):
        model_of(2, 8).group([2, 8])


def test_collectives_are_matched_and_sharded_per_group(run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        mesh = model.mesh(pp=2, dp=2)
        grad = WeightGrad(0, 2, frozenset([model.rank]), 4)
        for _ in range(model.rank):
            model.load_weights(0)
        pair = await model.reduce_scatter(grad, 0, group=mesh.group("dp"))
        every = await model.all_reduce(grad, 0)
        column = await model.all_reduce(grad, 0, group=[model.rank % 2, model.rank % 2 + 2])
        return pair, every, column, model.log[-3:]

    for rank, (pair, every, column, events) in enumerate(run_ranks(4, program)):
        row = rank // 2 * 2
        assert (pair.samples, pair.shards, pair.num_shards) == (frozenset([row, row + 1]), frozenset([rank % 2]), 2)
        assert (every.samples, column.samples) == (frozenset(range(4)), frozenset([rank % 2, rank % 2 + 2]))
        assert [event.group for event in events] == [(row, row + 1), None, (rank % 2, rank % 2 + 2)]
        assert events[0].waited_for == (None if rank % 2 else rank + 1)


def test_a_gather_in_a_proper_subgroup_may_be_partial(run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        weight = Weight(0, 2, 0).shard(model.rank, 4)
        return await model.all_gather(weight, 0, group=[model.rank // 2 * 2, model.rank // 2 * 2 + 1])

    assert [sorted(weight.shards) for weight in run_ranks(4, program)] == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_a_ring_of_messages_takes_its_closed_form_and_each_rank_sends_the_least(num_ranks: int) -> None:
    ring = load_exercise("19").reference
    run = mt.simulate(ring, world_size=num_ranks, num_layers=1, global_batch_size=num_ranks, hardware=SPECIFIED)
    network = RuntimePredictor(num_ranks).network
    shard_bytes = 2 * 4096**2 // num_ranks
    for log in run.logs:
        sent, came = ([event for event in log if event.typ == typ] for typ in ("send", "recv"))
        assert [event.size_bytes for event in sent] == [shard_bytes] * (2 * (num_ranks - 1))
        step_s = network.time("p2p", shard_bytes, 2)
        assert came[-1].end - sent[0].time == pytest.approx(2 * (num_ranks - 1) * step_s, rel=1e-12)


def test_a_bucket_pays_its_bytes_together_and_one_latency(run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        weights = [Weight(layer, 2, 0).shard(model.rank, 4) for layer in range(3)]
        gathered = await model.all_gather(weights, 7)
        await model.all_gather(tuple(weights), 7)
        return gathered, model.log[0], model.log[1]

    network = RuntimePredictor(4).network
    for gathered, event, as_tuple in run_ranks(4, program):
        assert gathered == [Weight(layer, 2, 0, frozenset(range(4)), 4) for layer in range(3)]
        assert (event.layer, event.size_bytes) == (7, 3 * 2 * 4096**2)
        assert event.duration == as_tuple.duration == network.time("all_gather", 3 * 2 * 4096**2, 4)


def test_results_of_a_bucket_are_objects_of_their_own(run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        sent = [Weight(0, 2, 0), Weight(1, 2, 0)]
        return await model.broadcast(sent if model.rank == 1 else None, 1)

    first, second, third = run_ranks(3, program)
    assert first == second == third == [Weight(0, 2, 0), Weight(1, 2, 0)]
    assert len({id(weight) for bucket in (first, second, third) for weight in bucket}) == 6


def test_an_empty_bucket_is_a_bucket(run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        return await model.all_reduce([], 0)

    assert run_ranks(2, program) == [[], []]


def test_broadcast_all_to_all_and_barrier_are_priced_as_documented(run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        weight = Weight(0, 2, 0)
        got = await model.broadcast(weight if model.rank == 2 else None, 2, 0)
        acts = [Activation(0, 2, frozenset([model.rank]), 4) for _ in range(4)]
        exchanged = await model.all_to_all(acts, 1)
        await model.barrier()
        return got, exchanged, [(event.typ, event.layer, event.duration) for event in model.log]

    network = RuntimePredictor(4).network
    act_bytes = 4 * 2 * 4096 * 1024
    p2p_bytes_per_s = network.bandwidth * 1e9 * network.efficiency
    for got, exchanged, events in run_ranks(4, program):
        assert got == Weight(0, 2, 0)
        assert [sorted(act.samples) for act in exchanged] == [[0], [1], [2], [3]]
        assert events[0] == ("broadcast", 0, network.time("all_gather", 2 * 4096**2, 4))
        assert events[1][:2] == ("all_to_all", 1)
        assert events[1][2] == pytest.approx(network.latency + 3 / 4 * act_bytes / p2p_bytes_per_s, rel=1e-12)
        assert events[2] == ("barrier", None, network.latency)


def test_everybody_leaves_a_barrier_when_the_last_has_come(run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        for _ in range(model.rank):
            model.load_weights(0)
        before = model.time
        await model.barrier(model.mesh(pp=2, dp=2).group("dp"))
        return before, model.time

    (_, first), (second, second_end), _, (fourth, fourth_end) = run_ranks(4, program)
    assert first == second_end == second + RuntimePredictor(4).network.latency
    assert fourth_end == fourth + RuntimePredictor(4).network.latency


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier"])
def test_a_collective_of_one_rank_returns_its_input_and_lasts_0(op: str, run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        value: Any = WeightGrad(0, 2, frozenset([1]), 4)
        if op == "barrier":
            await model.barrier([model.rank])
            return None, model.log[0]
        if op == "broadcast":
            return await model.broadcast(value, model.rank, 0, group=[model.rank]), model.log[0]
        if op == "all_to_all":
            return (await model.all_to_all([value], 0, group=[model.rank]))[0], model.log[0]
        return await getattr(model, op)(value, 0, group=[model.rank]), model.log[0]

    for result, event in run_ranks(2, program):
        assert result == (None if op == "barrier" else WeightGrad(0, 2, frozenset([1]), 4))
        assert (event.typ, event.duration) == (op, 0)


def refused(run_ranks: Ranks, program: Any, world_size: int = 2) -> None:
    async def with_clean_log(model: Model) -> None:
        try:
            await program(model)
        finally:
            assert (len(model.log), model.time) == (0, 0)

    run_ranks(world_size, with_clean_log)


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("value", [3, None, "text", [3], [Weight(0, 1, 0), None]])
def test_only_tensors_can_be_communicated_and_nothing_is_logged_before(op: str, value: Any, run_ranks: Ranks) -> None:
    with pytest.raises(TensorTypeError, match=r"can be communicated, got|needs a tensor, got|needs tensors, got"):
        refused(run_ranks, lambda model: getattr(model, op)(value, 0))


@pytest.mark.parametrize("value", [3, None, [Weight(0, 1, 0)]])
def test_only_a_tensor_can_be_sent_and_nothing_is_logged_before(value: Any, run_ranks: Ranks) -> None:
    with pytest.raises(TensorTypeError, match="can be communicated, got"):
        refused(run_ranks, lambda model: model.send(1 - model.rank, value))


@pytest.mark.parametrize("peer", [-1, 0, 2, None, 1.0])
def test_a_message_needs_another_rank_and_nothing_is_logged_before(peer: Any, run_ranks: Ranks) -> None:
    async def program(model: Model) -> None:
        if model.rank == 0:
            weight = Weight(0, 1, 0)
            for operation in (model.send(peer, weight), model.receive(peer)):
                with pytest.raises(UsageError, match=r"must be a rank of 0\.\.1, got|cannot send to itself"):
                    await operation

    refused(run_ranks, program)


def test_a_broadcast_needs_a_source_of_the_group_that_brings_a_tensor(run_ranks: Ranks) -> None:
    with pytest.raises(UsageError, match=r"source of a broadcast must be in the group \(0, 1\), got 5"):
        refused(run_ranks, lambda model: model.broadcast(Weight(0, 1, 0), 5))
    with pytest.raises(UsageError, match="source of a broadcast must be in the group"):
        refused(run_ranks, lambda model: model.broadcast(Weight(0, 1, 0), 1 - model.rank, group=[model.rank]))
    with pytest.raises(TensorTypeError, match="broadcast on rank 1 needs a tensor, got None"):
        refused(run_ranks, lambda model: model.broadcast(None, 1))


def test_a_broadcast_in_a_world_of_one_returns_its_input(run_ranks: Ranks) -> None:
    async def program(model: Model) -> Any:
        return await model.broadcast(Weight(0, 2, 0), 0)

    assert run_ranks(1, program) == [Weight(0, 2, 0)]


def test_broadcasts_from_different_sources_are_a_mismatch() -> None:
    async def program(model: Model) -> Model:
        await model.broadcast(Weight(0, 1, 0), model.rank)
        return model

    with pytest.raises(CollectiveMismatchError, match=r"rank 0: broadcast from rank 0 .*; rank 1: broadcast from"):
        mt.simulate(program, world_size=2, num_layers=1, global_batch_size=2)


def test_all_to_all_needs_a_tensor_for_each_rank() -> None:
    async def program(model: Model) -> Model:
        await model.all_to_all([Weight(0, 1, 0)] * (1 + model.rank))
        return model

    with pytest.raises(LawError, match="needs one tensor for each of the 2 ranks, rank 0 brought 1"):
        mt.simulate(program, world_size=2, num_layers=1, global_batch_size=2)


def test_groups_along_any_axes_are_those_of_their_coordinates() -> None:
    """A range where the members lie evenly, a list where they do not: the same ranks, in the same one group."""
    sizes = {"pp": 2, "dp": 3, "tp": 4}
    dist = Dist(24)
    for rank in range(24):
        model = Model(rank, dist, 2, 1)
        mesh = model.mesh(**sizes)
        for count in range(4):
            for axes in itertools.combinations(sizes, count):
                others = set(sizes) - set(axes)
                expected = [
                    other
                    for other in range(24)
                    if all(Model(other, dist, 2, 1).mesh(**sizes).coord(axis) == mesh.coord(axis) for axis in others)
                ]
                assert mesh.group(*axes).ranks == tuple(expected)
                assert mesh.group(*axes).communicator is model.group(expected).communicator
