"""Launched communication: it starts at once, runs beside compute, and its memory counts until it is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import StrategyError, TensorTypeError
from minitrain.lib import Activation, Model, Weight, WeightGrad
from minitrain.run.analysis.retiming import make_graph, steps_without
from minitrain.run.analysis.timeline import as_timeline

Ranks = Callable[..., list[Any]]
Loops = Callable[[int], Callable[[], asyncio.AbstractEventLoop]]
H2, SAMPLE = 4096**2, 4096 * 1024
UNITS = mt.FixedPredictor(
    load_weights=1, forward=2, all_gather=3, all_reduce=4, reduce_scatter=3, send=5, recv=6, broadcast=3
)


def simulate(program: Any, world_size: int = 2, **parameters: Any) -> mt.Run:
    sizes: Any = {"world_size": world_size, "num_layers": 4, "global_batch_size": 4, "hardware": UNITS, "check": False}
    return mt.simulate(program, **{**sizes, **parameters})


def times(run: mt.Run, rank: int = 0) -> list[tuple[str, float, float]]:
    return [(event.typ, event.time, event.end) for event in run.logs[rank]]


async def overlap(model: Model) -> Model:
    """Gather the next layer's weight while the present one computes."""
    weights, _, activations, *_ = model.storage()
    weights[0], _ = model.load_weights(0)
    shard = model.load_weights(1, model.rank, 2)[0]
    activations[0] = model.get_input_activation([0])
    work = model.launch(model.all_gather(shard, 1))
    activations[1] = model.forward(0, activations[0], weights[0])
    weights[1] = await work
    model.forward(1, activations[1], weights[1])
    return model


def test_launched_communication_runs_beside_compute() -> None:
    run = simulate(overlap)
    assert times(run) == [
        ("load_weights", 0, 1),
        ("load_weights", 1, 2),
        ("all_gather", 2, 5),
        ("forward", 2, 4),
        ("forward", 5, 7),
    ]
    gather = run.logs[0][2]
    assert (gather.stream, gather.launched, gather.awaited, gather.size_bytes) == ("comm", 2, 4, 2 * H2)
    assert run.breakdown.overlapped.tolist() == [2, 2]
    assert run.step_time == 5  # from the end of loading
    assert run.exposed_comm_fraction == 1 / 5


def test_awaiting_at_once_is_the_same_as_not_launching() -> None:
    async def blocking(model: Model) -> Model:
        await model.all_reduce(WeightGrad(0, 4, frozenset([0]), 4), 0)
        return model

    async def launched(model: Model) -> Model:
        await model.launch(model.all_reduce(WeightGrad(0, 4, frozenset([0]), 4), 0))
        return model

    assert times(simulate(blocking)) == times(simulate(launched)) == [("all_reduce", 0, 4)]


def test_operations_of_one_group_run_one_after_the_other_and_groups_beside_each_other() -> None:
    async def program(model: Model) -> Model:
        grad = WeightGrad(0, 4, frozenset([0]), 4)
        whole = [model.launch(model.all_reduce(grad, 0)) for _ in range(2)]
        pair = model.launch(model.all_reduce(grad, 0, group=[0, 1] if model.rank < 2 else [2, 3]))
        for work in (pair, *whole):
            await work
        return model

    assert times(simulate(program, 4)) == [("all_reduce", 0, 4), ("all_reduce", 4, 8), ("all_reduce", 0, 4)]


def test_a_launched_collective_starts_when_the_last_rank_has_launched_it() -> None:
    async def program(model: Model) -> Model:
        for _ in range(3 * model.rank):
            model.load_weights(0)
        work = model.launch(model.all_reduce(WeightGrad(0, 4, frozenset([0]), 4), 0))
        model.load_weights(1)
        await work
        return model

    run = simulate(program)
    assert times(run, 0) == [("all_reduce", 3, 7), ("load_weights", 0, 1)]
    assert [log[-2].waited_for for log in run.logs] == [1, None]


def test_sends_go_out_beside_compute_and_never_wait_for_the_receiver() -> None:
    async def program(model: Model) -> Model:
        if model.rank == 0:
            works = [model.launch(model.send(1, model.get_input_activation([n]))) for n in range(3)]
            model.load_weights(0)
            for work in works:
                await work
        else:
            receives = [model.launch(model.receive(0)) for _ in range(3)]
            model.load_weights(0)
            assert [sorted((await work).samples) for work in receives] == [[0], [1], [2]]
        return model

    run = simulate(program)
    assert times(run, 0) == [("send", 0, 5), ("send", 5, 10), ("send", 10, 15), ("load_weights", 0, 1)]
    assert times(run, 1) == [("recv", 0, 6), ("recv", 6, 12), ("recv", 12, 18), ("load_weights", 0, 1)]
    assert [(event.stream, event.peer) for event in run.logs[1][:3]] == [("recv", 0)] * 3


def test_tagged_messages_may_be_received_in_another_order() -> None:
    async def program(model: Model) -> Model:
        if model.rank == 0:
            for tag in ("a", ("b", 1), 3):
                await model.send(1, model.get_input_activation([0, 1]), tag=tag)
        else:
            for tag in (3, "a", ("b", 1)):
                await model.receive(0, tag=tag)
        return model

    run = simulate(program)
    assert [event.tag for event in run.logs[1]] == [3, "a", ("b", 1)]
    assert [event.time for event in run.logs[1]] == [10, 16, 22]


def test_memory_in_flight_counts_from_launch_to_await() -> None:
    async def program(model: Model) -> Model:
        shard = Weight(0, 4, 0).shard(model.rank, 2)
        work = model.launch(model.all_gather(shard, 0))
        model.load_weights(1)
        held = model.memory()
        await work
        model.load_weights(2)
        assert held == (1.5 * H2 if model.rank or held > H2 else held)
        return model

    run = simulate(program)
    assert [event.memory for event in run.logs[0]] == [0, 1.5 * H2, 0]
    assert run.peak_memory_per_rank == [1.5 * H2] * 2


def test_a_stored_tensor_in_flight_counts_once() -> None:
    async def program(model: Model) -> Model:
        grads = model.grad_weights
        grads[0] = WeightGrad(0, 4, frozenset([0]), 4)
        work = model.launch(model.all_reduce(grads[0], 0))
        model.load_weights(1)
        grads[0] = await work
        model.load_weights(2)
        return model

    assert [event.memory for event in simulate(program).logs[0]] == [H2, H2, H2]


def test_a_tensor_freed_while_it_is_in_flight_still_counts() -> None:
    async def program(model: Model) -> Model:
        grads = model.grad_weights
        grads[0] = WeightGrad(0, 4, frozenset([0]), 4)
        work = model.launch(model.all_reduce(grads[0], 0))
        del grads[0]
        model.load_weights(1)
        grads[0] = await work
        model.load_weights(2)
        return model

    assert [event.memory for event in simulate(program).logs[0]] == [H2, H2, H2]


def test_what_a_lone_rank_gathers_is_what_it_has_and_counts_once() -> None:
    async def program(model: Model) -> Model:
        model.weights[0] = Weight(0, 4, 0)
        work = model.launch(model.all_gather(model.weights[0], 0))
        model.load_weights(1)
        await work
        return model

    assert [event.memory for event in simulate(program, 1).logs[0]] == [H2, H2]


def test_a_receive_of_unknown_size_counts_from_its_launch(shuffling: Loops) -> None:
    async def program(model: Model) -> Model:
        if model.rank == 1:
            work = model.launch(model.receive(0))
            for layer in range(3):
                model.load_weights(layer)
            await work
            model.load_weights(3)
        else:
            await model.send(1, model.get_input_activation([0, 1, 2]))
        return model

    for seed in range(6):
        run = simulate(program, loop_factory=shuffling(seed))
        assert [event.memory for event in run.logs[1]] == [0, *[3 * SAMPLE] * 3, 0]
        assert run.peak_memory_per_rank[1] == 3 * SAMPLE


@given(st.integers(0, 1000))
def test_logs_do_not_depend_on_the_order_of_tasks(shuffling: Loops, seed: int) -> None:
    async def program(model: Model) -> Model:
        left, right = (model.rank - 1) % 3, (model.rank + 1) % 3
        works = [model.launch(model.receive(left)), model.launch(model.receive(left, tag="t"))]
        for _ in range(model.rank):
            model.load_weights(0)
        works.append(model.launch(model.send(right, model.get_input_activation(range(1 + model.rank)), tag="t")))
        works.append(model.launch(model.send(right, model.get_input_activation([0]))))
        works.append(model.launch(model.all_reduce(WeightGrad(0, 4, frozenset([0]), 4), 0)))
        model.load_weights(1)
        for work in reversed(works):
            await work
            model.load_weights(2)
        return model

    plain, shuffled = simulate(program, 3), simulate(program, 3, loop_factory=shuffling(seed))
    assert [list(log) for log in plain.logs] == [list(log) for log in shuffled.logs]
    assert plain.peak_memory_per_rank == shuffled.peak_memory_per_rank


def test_the_log_is_in_program_order_and_says_when_work_was_awaited() -> None:
    async def program(model: Model) -> Model:
        works = [model.launch(model.all_reduce(WeightGrad(n, 4, frozenset([0]), 4), n)) for n in range(2)]
        model.load_weights(0)
        await works[1]
        model.load_weights(1)
        await works[0]
        assert (await works[0]).layer == 0
        return model

    events = simulate(program).logs[0]
    assert [(event.typ, event.layer) for event in events] == [
        ("all_reduce", 0),
        ("all_reduce", 1),
        ("load_weights", 0),
        ("load_weights", 1),
    ]
    assert [event.awaited for event in events] == [4, 3, None, None]
    assert events[3].time == 8


def test_barriers_can_be_launched_one_after_the_other() -> None:
    async def program(model: Model) -> Model:
        works = [model.launch(model.barrier()) for _ in range(3)]
        for work in works:
            await work
        return model

    assert [event.typ for event in simulate(program).logs[1]] == ["barrier"] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda model: 7,
        lambda model: asyncio.sleep(0),
        lambda model: model.dist.all_reduce(0, 1, 0),
        lambda model: Model().barrier(),
        lambda model: model.barrier,
    ],
)
def test_only_one_communication_of_the_model_itself_can_be_launched(make: Any) -> None:
    async def program(model: Model) -> Model:
        with pytest.raises(StrategyError, match="launch on rank 0 takes one communication of the same model that nob"):
            model.launch(make(model))
        assert len(model.log) == 0
        return model

    simulate(program, 1)


def test_a_launch_that_breaks_a_law_leaves_nothing_behind() -> None:
    async def program(model: Model) -> Model:
        value: Any = 7
        with pytest.raises(TensorTypeError, match="can be communicated, got int"):
            model.launch(model.all_reduce(value, 0))
        assert (len(model.log), model.memory()) == (0, 0)
        await model.barrier()
        return model

    simulate(program)


def test_a_launched_send_holds_what_it_took_out_of_a_store() -> None:
    async def program(model: Model) -> Model:
        if model.rank == 0:
            model.activations[0] = Activation(0, 4, frozenset([0]), 4)
            work = model.launch(model.send(1, model.activations.pop(0)))
            model.load_weights(0)
            await work
            model.load_weights(1)
        else:
            await model.receive(0)
        return model

    assert [event.memory for event in simulate(program).logs[0]] == [0, SAMPLE, 0]


def sends_to_all(*, has_gather: bool = False) -> Callable[[Model], Any]:
    """Return a program whose rank 0 launches a message to each other rank, of its own tensor or of what a sum makes."""

    async def program(model: Model) -> Model:
        weights, states, activations, *_ = model.storage()
        if model.rank:
            if model.rank == 1 and has_gather:
                await model.all_gather(model.load_weights(0, 1, 2)[0], 0, group=(0, 1))
            await model.receive(0)
            return model
        activations[0] = model.get_input_activation(range(4))
        works: list[Any] = []
        for dest in range(1, model.world_size):
            value: Any = activations[0]
            if dest == 2 and has_gather:  # nobody knows yet what is sent
                weights[0], states[0] = model.load_weights(0, 0, 2)
                value = model.launch(model.all_gather(weights[0], 0, group=(0, 1)))
            works.append(model.launch(model.send(dest, value)))
        for work in works:
            await work
        return model

    return program


def test_messages_to_many_ranks_leave_one_after_the_other() -> None:
    run = simulate(sends_to_all(), world_size=4)
    sends = [event for event in run.logs[0] if event.typ == "send"]
    assert [(event.launched, event.time, event.end) for event in sends] == [(0, 0, 5), (0, 5, 10), (0, 10, 15)]
    assert [event.after for event in sends] == [(), (0,), (1,)]
    assert [run.logs[rank][0].time for rank in (1, 2, 3)] == [0, 5, 10]


def test_a_message_waits_for_one_before_it_that_is_not_made_yet(shuffling: Loops) -> None:
    found = simulate(sends_to_all(has_gather=True), world_size=4)
    sends = [event for event in found.logs[0] if event.typ == "send"]
    # loaded at 1 and gathered until 4, but the first message leaves until 5
    assert [(event.launched, event.time, event.end) for event in sends] == [(0, 0, 5), (1, 5, 10), (1, 10, 15)]
    for seed in range(4):
        again = simulate(sends_to_all(has_gather=True), world_size=4, loop_factory=shuffling(seed))
        assert [[*log] for log in again.logs] == [[*log] for log in found.logs]


def test_awaited_messages_need_not_wait() -> None:
    async def program(model: Model) -> Model:
        if model.rank:
            await model.receive(0)
            return model
        for dest in (1, 2):
            await model.launch(model.send(dest, model.get_input_activation([dest])))
        await model.send(3, model.get_input_activation([3]))
        return model

    run = simulate(program, world_size=4)
    assert [(event.time, event.after) for event in run.logs[0]] == [(0, ()), (5, ()), (10, ())]


def test_each_tier_of_the_network_has_an_interface_of_its_own() -> None:
    async def program(model: Model) -> Model:
        _, _, activations, *_ = model.storage()
        if model.rank not in {0, 1, 8}:
            return model
        if model.rank:
            await model.receive(0)
            return model
        activations[0] = model.get_input_activation(range(4))
        for work in [model.launch(model.send(dest, activations[0])) for dest in (1, 8)]:
            await work
        return model

    sends = simulate(program, world_size=16, hardware="h100_80g_nvl8", network="hierarchical").logs[0]
    assert [(event.time, event.after) for event in sends] == [(0, ()), (0, ())]
    assert sends[0].end != sends[1].end
    flat = simulate(program, world_size=16, hardware="h100_80g_nvl8", network="flat").logs[0]
    assert flat[1].time == flat[0].end


def test_arrivals_from_many_ranks_share_links_where_that_is_asked_for() -> None:
    async def program(model: Model, launched: bool = True) -> Model:
        if model.rank:
            await model.send(0, model.get_input_activation(range(64)))
        elif launched:
            for work in [model.launch(model.receive(source)) for source in range(1, model.world_size)]:
                await work
        else:
            for source in range(1, model.world_size):
                await model.receive(source)
        return model

    sizes: Any = {"world_size": 8, "num_layers": 2, "global_batch_size": 64, "check": False}
    one = mt.simulate(program, **{**sizes, "world_size": 2}).step_time
    beside, in_turn = (mt.simulate(program, options={"launched": launched}, **sizes) for launched in (True, False))
    assert beside.step_time == one  # what comes first is not known when the first of them ends
    assert in_turn.step_time == pytest.approx(7 * one, rel=1e-12)
    exact = mt.simulate(program, contention="exact", **sizes)
    assert exact.step_time == pytest.approx(7 * one, rel=0.01)  # but for latency, which is not shared


def test_all_ways_to_time_a_run_know_the_interface(tmp_path: Any) -> None:
    sizes: Any = {"world_size": 4, "num_layers": 4, "global_batch_size": 4, "check": False}
    run = mt.simulate(sends_to_all(), **sizes)
    slow = mt.simulate(sends_to_all(), slowdown={0: 2.0}, **sizes)
    priced = mt.price(sends_to_all(), vary={"slowdown": [{0: 1.0}, {0: 2.0}]}, **sizes)
    assert priced.step_time.tolist() == pytest.approx([run.step_time, slow.step_time], rel=1e-12)
    assert steps_without(make_graph(as_timeline(run.logs)), [()]) == pytest.approx([run.step_time], rel=1e-12)
    assert mt.simulate(sends_to_all(), contention=True, **sizes).step_time == pytest.approx(run.step_time, rel=1e-12)
    run.save(tmp_path / "run.jsonl")
    again = mt.load_run(tmp_path / "run.jsonl")
    assert [[*log] for log in again.logs] == [[*log] for log in run.logs]
