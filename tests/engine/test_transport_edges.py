"""Rare ways to use the transport: shared work, mixed calls, Ctrl-C, cancellation, memory that overflows in flight."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.engine.event_loop import RankLoop
from minitrain.errors import DeadlockError, OutOfMemoryError
from minitrain.lib import Activation, Dist, Model, Weight, WeightGrad

Loops = Callable[[int], Callable[[], asyncio.AbstractEventLoop]]
SAMPLE_BYTES = 2 * 4096 * 1024


def simulate(program: Any, **parameters: Any) -> mt.Run:
    sizes: Any = {"world_size": 2, "num_layers": 2, "global_batch_size": 256, "check": False}
    return mt.simulate(program, **{**sizes, **parameters})


def test_several_tasks_may_await_the_same_work() -> None:
    async def program(model: Model) -> Model:
        work = model.launch(model.all_reduce(WeightGrad(0, 2, frozenset([model.rank]), 4), 0))

        async def result() -> Any:
            return await work

        grads = await asyncio.gather(result(), result(), result())
        assert [sorted(grad.samples) for grad in grads] == [[0, 1]] * 3
        assert model.time == model.log[0].end
        return model

    simulate(program)


def test_cancelling_one_of_several_that_await_a_work_spares_the_others() -> None:
    async def program(model: Model) -> Model:
        work = model.launch(model.all_reduce(WeightGrad(0, 2, frozenset([model.rank]), 4), 0))

        async def result() -> Any:
            return await work

        tasks = [asyncio.create_task(result()) for _ in range(2)]
        if model.rank == 0:
            await asyncio.sleep(0)
            assert tasks[0].cancel()
            tasks[0].cancel()
        results: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(results[1].samples) == [0, 1]
        assert isinstance(results[0], asyncio.CancelledError) or model.rank
        return model

    async def late(model: Model) -> Model:
        for _ in range(5 * model.rank):
            await asyncio.sleep(0)
        return await program(model)

    simulate(late)


def test_a_work_can_be_awaited_again_after_a_cancelled_await() -> None:
    async def program(model: Model) -> Model:
        if model.rank == 0:
            work = model.launch(model.receive(1))

            async def result() -> Any:
                return await work

            task = asyncio.create_task(result())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert sorted((await work).samples) == [0]
        else:
            for _ in range(5):
                await asyncio.sleep(0)
            await model.send(0, model.get_input_activation([0]))
        return model

    simulate(program)


def test_a_receive_that_was_given_up_does_not_hold_back_those_after_it() -> None:
    async def program(model: Model) -> Model:
        if model.rank == 0:
            task = asyncio.create_task(model.receive(1))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert sorted((await model.receive(1)).samples) == [0]
        else:
            for _ in range(5):
                await asyncio.sleep(0)
            await model.send(0, model.get_input_activation([0]))
        return model

    simulate(program)


def test_ranks_may_call_a_collective_through_dist_and_model_at_once() -> None:
    async def program(model: Model) -> Model:
        model.load_weights(0)
        grad = WeightGrad(0, 2, frozenset([model.rank]), 4)
        if model.rank == 0:
            total, time = await model.dist.all_reduce(0, grad, 5.0)
            assert time == 5
        else:
            total = await model.all_reduce(grad, 0)
            assert model.log[-1].time == 5
        assert sorted(total.samples) == [0, 1]
        return model

    simulate(program)


def test_values_of_different_kinds_are_told_by_kind() -> None:
    async def program(model: Model) -> Model:
        value: Any = Weight(0, 2, 0) if model.rank else Activation(0, 2, frozenset([1]), 4)
        await model.all_gather(value if model.rank else Weight(0, 2, 0), 0)
        await model.all_gather(Weight(0, 2, 0) if model.rank == 0 else Activation(0, 2, frozenset([1]), 4), 0)
        return model

    with pytest.raises(mt.CollectiveMismatchError, match=r"rank 0: Weight\(.*; rank 1: Activation\(layer 0, samples"):
        simulate(program)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_while_ranks_are_woken_ends_the_run_as_itself(error: type[BaseException]) -> None:
    async def program(model: Model) -> Model:
        await model.barrier()
        if model.rank == 0:
            raise error
        await model.barrier()
        return model

    with pytest.raises(error):
        simulate(program, world_size=4)


def test_a_wait_in_a_task_without_a_line_of_its_own_is_told_so() -> None:
    async def program(model: Model) -> Model:
        await asyncio.create_task(model.receive(1 - model.rank))
        return model

    with pytest.raises(DeadlockError, match=r"receive from rank 1 \(.*task.*\)"):
        simulate(program)


def test_the_queue_tells_how_many_messages_lie_in_it() -> None:
    async def main() -> None:
        dist = Dist(2, p2p_buffer=None)
        for number in range(3):
            await dist.send(0, 1, number)
        assert {key: len(channel) for key, channel in dist.queue.items()} == {(0, 1): 3}

    asyncio.run(main())


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Return the path of an H100 whose memory holds 100 samples."""
    raw = json.loads(resources.files("minitrain.hw_configs").joinpath("h100_80g_nvl8.json").read_text())
    raw["mem1"]["GiB"] = 100 * SAMPLE_BYTES / 2**30
    path = tmp_path / "small.json"
    path.write_text(json.dumps(raw))
    return str(path)


async def receives_much(model: Model) -> Model:
    if model.rank == 0:
        await model.send(1, model.get_input_activation(range(101)))
        return model
    work = model.launch(model.receive(0))
    for layer in (0, 1):
        model.load_weights(layer)
    await work
    return model


async def launches_much(model: Model) -> Model:
    if model.rank == 0:
        await model.launch(model.send(1, model.get_input_activation(range(101))))
    else:
        await model.receive(0)
    return model


def test_memory_in_flight_can_exceed_the_device(small: str, shuffling: Loops) -> None:
    for program, rank in ((receives_much, 1), (launches_much, 0)):
        for seed in range(4):
            run = simulate(program, hardware=small, loop_factory=shuffling(seed))
            assert run.oom is not None
            assert (run.oom.rank, run.oom.held_bytes["in_flight"]) == (rank, 101 * SAMPLE_BYTES)


def test_strict_memory_names_the_rank_that_overflows_in_flight(small: str) -> None:
    for program, rank in ((receives_much, 1), (launches_much, 0)):
        with pytest.raises(OutOfMemoryError, match=f"out of memory on rank {rank} at"):
            simulate(program, hardware=small, strict_memory=True)


def test_strict_memory_ends_the_run_whoever_sent_what_was_too_much(small: str) -> None:
    async def program(model: Model) -> Model:
        if model.rank == 0:
            for _ in range(5):
                await asyncio.sleep(0)
            with contextlib.suppress(OutOfMemoryError):
                await model.send(1, model.get_input_activation(range(101)))
        else:
            await model.launch(model.receive(0))
        return model

    with pytest.raises(OutOfMemoryError, match="out of memory on rank 1 at") as caught:
        simulate(program, hardware=small, strict_memory=True)
    assert not hasattr(caught.value, "__notes__")


async def receives_a_little_too_much(model: Model) -> Model:
    if model.rank == 0:
        for _ in range(3):
            await asyncio.sleep(0)
        await model.send(1, model.get_input_activation(range(60)))
        return model
    work = model.launch(model.receive(0))
    for place in range(4):
        model.load_weights(0)
        await asyncio.sleep(0)
        model.activations[place] = model.get_input_activation(range(14))
    await work
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize(("program", "place"), [(receives_much, 0), (receives_a_little_too_much, 3)])
def test_the_moment_of_the_overflow_does_not_depend_on_the_order_of_tasks(
    program: Any, place: int, small: str, shuffling: Loops
) -> None:
    moments = set()
    for seed in range(20):
        parameters: Any = {"hardware": small, "loop_factory": shuffling(seed)}
        runs = [simulate(program, log=log, **parameters) for log in ("summary", "full")]
        moments |= {(run.oom.rank, run.oom.time) for run in runs if run.oom is not None}
    assert moments == {(1, runs[1].logs[1][place].end if place else 0)}


def test_a_transport_serves_one_loop_after_the_other() -> None:
    dist = Dist(2)
    models = [Model(rank, dist, 2, 4) for rank in range(2)]

    async def meets(model: Model, wait_s: float) -> None:
        if model.rank == 0:
            await asyncio.sleep(wait_s)
        await model.barrier()

    async def everybody(wait_s: float) -> None:
        await asyncio.gather(*(meets(model, wait_s) for model in models))

    asyncio.run(everybody(0.06))  # ends while the look-out for deadlocks takes a rest
    asyncio.run(everybody(0))
    assert [len(model.log) for model in models] == [2, 2]

    async def misses() -> None:
        await asyncio.gather(models[0].barrier(), models[1].receive(0))

    asyncio.run(everybody(0.06))
    with (
        asyncio.Runner(loop_factory=RankLoop) as runner,
        pytest.raises(DeadlockError, match="every unfinished rank waits"),
    ):
        runner.run(misses())


@pytest.mark.parametrize("how", ["plain", "strict", "summary"])
def test_a_receive_that_is_given_up_lets_those_behind_it_go_on(how: str) -> None:
    async def program(model: Model) -> Model:
        if model.rank == 1:
            await model.send(0, model.get_input_activation([0]), tag="b")
            await model.receive(0, tag="go")
            return model
        first = asyncio.create_task(model.receive(1, tag="a"))
        second = asyncio.create_task(model.receive(1, tag="b"))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        got = await second
        assert got.samples == {0}
        await model.send(1, got, tag="go")
        return model

    simulate(program, strict=how == "strict", log="summary" if how == "summary" else "full")


def test_a_message_whose_receiver_was_cancelled_meanwhile_is_told() -> None:
    async def program(model: Model) -> Model:
        if model.rank == 0:
            receivers.append(asyncio.create_task(model.receive(1)))
            await asyncio.sleep(0)
            await model.barrier()
            with pytest.raises(asyncio.CancelledError):
                await receivers[0]
        else:
            await model.barrier()
            await model.send(0, model.get_input_activation([3]))
            receivers[0].cancel()  # it has its message, and has not gone on yet
        return model

    receivers: list[asyncio.Task[Any]] = []
    with pytest.raises(mt.MinitrainError, match=r"1 message was sent and never received.*rank 1 sent Activation"):
        simulate(program)


def test_a_batch_is_whole_for_models_of_its_size_alone() -> None:
    dist = Dist(1)
    samples = frozenset(range(4))
    for size in (4, 8):
        model = Model(0, dist, 1, size)
        weight, opt_state = model.load_weights(0)
        grad = WeightGrad(0, 1, samples, size)
        if size == 4:
            assert model.update(0, grad, weight, opt_state)[0].step == 1
        else:
            with pytest.raises(AssertionError, match="must cover all 8 samples"):
                model.update(0, grad, weight, opt_state)


@pytest.mark.parametrize("ranks", [[0.0, 1.0], "01", [0, "a"], [None]], ids=str)
def test_a_group_is_made_of_integers(ranks: Any) -> None:
    async def program(model: Model) -> Model:
        model.group(ranks)
        return model

    with pytest.raises(mt.UsageError, match="ranks, which are integers"):
        simulate(program)


def test_a_group_may_come_from_numpy_and_its_run_be_read_again(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")

    async def program(model: Model) -> Model:
        await model.barrier(group=numpy.arange(1 + model.rank // 2, 1 + model.rank // 2 + 2) - 1 + model.rank // 2)
        return model

    run = simulate(program, world_size=4)
    run.save(tmp_path / "run.json.gz")
    assert mt.load_run(tmp_path / "run.json.gz").events == run.events


def test_runs_beside_each_other_leave_the_loop_its_errors(caplog: pytest.LogCaptureFixture) -> None:
    async def sleeps(model: Model, seconds: float) -> Model:
        await asyncio.sleep(seconds)
        return model

    async def fails() -> None:
        raise ValueError("of the caller's own")

    async def main() -> None:
        sizes: Any = {"world_size": 1, "num_layers": 1, "global_batch_size": 1, "check": False}
        await asyncio.gather(
            *(mt.simulate_async(sleeps, options={"seconds": seconds}, **sizes) for seconds in (0.01, 0.03))
        )
        task = asyncio.create_task(fails())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        gc.collect()

    asyncio.run(main())
    assert "exception was never retrieved" in caplog.text


def test_runs_beside_each_other_are_given_their_own_lost_errors() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("lost")

    async def loses(model: Model, with_others: bool) -> Model:
        sub_task = asyncio.gather(fails(), fails()) if with_others else asyncio.create_task(fails())
        for _ in range(5):
            await asyncio.sleep(0)
        assert sub_task.done()
        return model

    async def sleeps(model: Model) -> Model:
        await asyncio.sleep(0.01)
        gc.collect()
        return model

    async def main(with_others: bool) -> None:
        sizes: Any = {"world_size": 2, "num_layers": 1, "global_batch_size": 1, "check": False}
        lossy = mt.simulate_async(loses, options={"with_others": with_others}, **sizes)
        others = [mt.simulate_async(sleeps, **sizes) for _ in range(2)]
        before, error, after = await asyncio.gather(others[0], lossy, others[1], return_exceptions=True)
        assert isinstance(before, mt.Run)
        assert isinstance(after, mt.Run)
        assert isinstance(error, ValueError)
        assert error.__notes__ == ["in a sub-task of rank 0 of 2, strategy loses, that nobody awaited"]
        assert asyncio.get_running_loop().get_exception_handler() is None

    for with_others in (False, True):
        asyncio.run(main(with_others))


def test_both_bubbles_are_told() -> None:
    fixed = mt.FixedPredictor(forward=1, backward=2)
    sizes: Any = {"world_size": 4, "num_layers": 4, "global_batch_size": 8, "microbatch_size": 1}
    run = mt.simulate("1f1b", hardware=fixed, **sizes)
    assert run.makespan_bubble == (4 - 1) * (1 + 2)
    assert run.span_bubble == (4 - 1) * (1 + 2)
