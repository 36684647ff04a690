"""Deadlocks end at once and say who waits for what; what only looks like one goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain.engine.deadlocks import DeadlockDetector
from minitrain.engine.event_loop import RankLoop
from minitrain.errors import DeadlockError
from minitrain.lib import Dist, Model, Weight

Loops = Callable[[int], Callable[[], asyncio.AbstractEventLoop]]


def simulate(program: Any, world_size: int = 2, **parameters: Any) -> mt.Run:
    sizes: Any = {"world_size": world_size, "num_layers": 2, "global_batch_size": 2, "check": False}
    return mt.simulate(program, **{**sizes, **parameters})


async def alone(model: Model) -> None:
    await model.receive(1 - model.rank)


async def in_a_task(model: Model) -> None:
    await asyncio.create_task(alone(model))


async def in_a_gather(model: Model) -> None:
    await asyncio.gather(alone(model), asyncio.gather(alone(model), alone(model)))


async def in_a_task_group(model: Model) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(alone(model))


async def in_wait(model: Model) -> None:
    await asyncio.wait([asyncio.create_task(alone(model))])


async def in_wait_for_the_first(model: Model) -> None:
    await asyncio.wait([asyncio.create_task(alone(model))], return_when=asyncio.FIRST_COMPLETED)


async def in_a_shielded_gather(model: Model) -> None:
    await asyncio.shield(asyncio.shield(asyncio.gather(asyncio.gather(alone(model)), alone(model))))


async def in_a_gather_one_of_which_failed(model: Model) -> None:
    await asyncio.gather(alone(model), model.receive(99), return_exceptions=True)


async def in_wait_for_gathers(model: Model) -> None:
    futures: list[Any] = [asyncio.gather(alone(model)), asyncio.shield(asyncio.create_task(alone(model)))]
    await asyncio.wait(futures)


async def in_wait_one_of_which_failed(model: Model) -> None:
    await asyncio.wait([asyncio.create_task(alone(model)), asyncio.create_task(_fails())])


async def _fails() -> None:
    raise KeyError("mine")


async def in_a_full_buffer(model: Model) -> None:
    for _ in range(2):
        await model.send(1 - model.rank, Weight(0, 2, 0))


async def in_a_launched_receive(model: Model) -> None:
    await model.launch(model.receive(1 - model.rank, tag="late"))


async def in_another_group(model: Model) -> None:
    if model.rank == 0:
        await model.barrier([0, 1])


WAITS = [
    alone,
    in_a_task,
    in_a_gather,
    in_a_task_group,
    in_wait,
    in_wait_for_the_first,
    in_a_shielded_gather,
    in_a_gather_one_of_which_failed,
    in_wait_for_gathers,
    in_wait_one_of_which_failed,
    in_a_full_buffer,
    in_a_launched_receive,
    in_another_group,
]


WITHOUT_SUB_TASKS = [alone, in_a_full_buffer, in_a_launched_receive, in_another_group]


@pytest.mark.parametrize(
    ("wait", "uses_uvloop"), [(wait, False) for wait in WAITS] + [(wait, True) for wait in WITHOUT_SUB_TASKS]
)
def test_ranks_that_wait_for_one_another_end_in_a_deadlock_error(wait: Any, uses_uvloop: bool) -> None:
    async def program(model: Model) -> Model:
        await wait(model)
        return model

    factory = pytest.importorskip("uvloop").new_event_loop if uses_uvloop else None
    with pytest.raises(DeadlockError, match="every unfinished rank waits for another one") as caught:
        simulate(program, loop_factory=factory)
    assert set(caught.value.ranks) <= {0, 1}


@pytest.mark.parametrize("wait", WAITS)
def test_ranks_in_a_running_loop_end_in_a_deadlock_error(wait: Any) -> None:
    async def program(model: Model) -> Model:
        await wait(model)
        return model

    async def main() -> None:
        simulate(program)

    with pytest.raises(DeadlockError, match="every unfinished rank waits for another one"):
        asyncio.run(main())


def test_the_error_names_operation_layer_peers_tag_clock_and_line() -> None:
    async def program(model: Model) -> Model:
        model.load_weights(0)
        if model.rank == 0:
            await model.receive(2, tag=("F", 1))
        elif model.rank == 1:
            await model.all_gather(Weight(1, 2, 0), 1, group=[1, 2])
        elif model.rank == 2:
            for _ in range(2):
                await model.send(3, Weight(1, 2, 0))
        return model

    fixed = mt.FixedPredictor(load_weights=2, send=3)
    with pytest.raises(DeadlockError, match="deadlock: every unfinished rank waits") as caught:
        simulate(program, 4, hardware=fixed)
    text = str(caught.value)
    assert "rank 0 at 2 s: receive from rank 2 with tag ('F', 1) (test_deadlocks.py:" in text
    assert "rank 1 at 2 s: all_gather of layer 1 in group (1, 2) (test_deadlocks.py:" in text
    assert "rank 2 at 5 s: send to rank 3 of layer 1, which has not received the one before" in text
    assert "not waiting, because finished: rank 3" in text
    assert (caught.value.ranks, caught.value.finished) == ((0, 1, 2), (3,))


def test_many_ranks_are_told_in_short() -> None:
    async def program(model: Model) -> Model:
        if model.rank < 20:
            await model.barrier()
        return model

    with pytest.raises(DeadlockError, match=r"\.\.\. and 4 more\n.*finished: ranks 20, 21, .*, \.\.\."):
        simulate(program, 40)


def test_the_end_of_many_ranks_looks_for_tasks_as_often_as_that_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes through the tasks of all ranks: one look a rank took minutes with 16,384 of them."""
    looks = 0

    def counted(detector: DeadlockDetector, tasks: Any = DeadlockDetector.unfinished_tasks) -> Any:
        nonlocal looks
        looks += 1
        return tasks(detector)

    async def program(model: Model) -> Model:
        if model.rank:
            await model.barrier()
        return model

    monkeypatch.setattr(DeadlockDetector, "unfinished_tasks", counted)
    found = []
    for world_size in (2, 40):
        looks = 0
        with pytest.raises(DeadlockError):
            simulate(program, world_size)
        found.append(looks)
    assert 0 < found[0] == found[1]


async def later(rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def sends_after_a_while(model: Model, pause: Any) -> None:
    if model.rank == 0:
        await pause()
        await model.send(1, Weight(0, 2, 0))
    else:
        await model.receive(0)


def in_a_thread() -> asyncio.Future[None]:
    return asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.001)


async def first_of_two(receive: Any, how: str) -> None:
    """Wait until a thread is done, with a receive beside it that must be given up."""
    tasks = [asyncio.create_task(receive), in_a_thread()]
    if how == "wait":
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    else:
        await next(iter(asyncio.as_completed(tasks)))
    tasks[0].cancel()


PAUSES: list[Callable[[], Any]] = [
    lambda: later(50),
    lambda: asyncio.sleep(0.001),
    lambda: asyncio.wait_for(asyncio.sleep(0.001), 10),
    lambda: asyncio.to_thread(int),
    lambda: asyncio.gather(later(20), asyncio.sleep(0.001)),
    lambda: asyncio.wait([asyncio.ensure_future(asyncio.sleep(0.001))]),
    lambda: asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.001),
    lambda: asyncio.wait_for(asyncio.gather(asyncio.sleep(0.001), return_exceptions=True), 10),
    lambda: asyncio.shield(asyncio.sleep(0.001)),
    lambda: asyncio.gather(in_a_thread()),
    lambda: asyncio.gather(later(2), asyncio.gather(in_a_thread(), later(1))),
    lambda: asyncio.shield(asyncio.gather(in_a_thread(), later(1))),
    lambda: asyncio.wait([in_a_thread()]),
    lambda: asyncio.wait([in_a_thread(), asyncio.ensure_future(later(1))], return_when=asyncio.FIRST_EXCEPTION),
    lambda: asyncio.wait([asyncio.gather(in_a_thread())], return_when=asyncio.FIRST_COMPLETED),
]


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("uses_uvloop", [False, True])
def test_a_rank_that_will_act_by_itself_is_no_deadlock(pause: Any, uses_uvloop: bool) -> None:
    async def program(model: Model) -> Model:
        await sends_after_a_while(model, pause)
        return model

    factory = pytest.importorskip("uvloop").new_event_loop if uses_uvloop else None
    assert [event.typ for event in simulate(program, loop_factory=factory).events] == ["send", "recv"]


@pytest.mark.parametrize("how", ["wait", "as_completed"])
@pytest.mark.parametrize("uses_uvloop", [False, True])
def test_a_rank_that_waits_for_a_thread_or_for_another_one_is_no_deadlock(how: str, uses_uvloop: bool) -> None:
    async def program(model: Model) -> Model:
        async def pause() -> None:
            await first_of_two(model.receive(1, tag="never"), how)

        await sends_after_a_while(model, pause)
        return model

    factory = pytest.importorskip("uvloop").new_event_loop if uses_uvloop else None
    assert simulate(program, loop_factory=factory).logs[1][0].typ == "recv"


@pytest.mark.parametrize("wait", [asyncio.gather, asyncio.shield, lambda task: asyncio.wait([task])])
def test_a_rank_that_waits_for_a_task_of_somebody_elses_is_no_deadlock(wait: Any) -> None:
    async def main() -> mt.Run:
        foreign = asyncio.create_task(asyncio.sleep(0.001))

        async def program(model: Model) -> Model:
            await sends_after_a_while(model, lambda: wait(foreign))
            return model

        return await mt.simulate_async(program, world_size=2, num_layers=2, global_batch_size=2, check=False)

    assert asyncio.run(main()).num_events == 2


def test_a_callback_that_is_still_to_run_is_no_deadlock() -> None:
    async def program(model: Model) -> Model:
        loop = asyncio.get_running_loop()

        def sends(rounds: int) -> None:
            if rounds:
                loop.call_soon(sends, rounds - 1)
            else:
                tasks.append(loop.create_task(model.send(1, Weight(0, 2, 0))))

        if model.rank == 0:
            sends(5)
            await model.barrier([0, 1])
        else:
            await model.receive(0)
            await model.barrier([0, 1])
        return model

    tasks: list[asyncio.Task[None]] = []
    assert simulate(program).num_events == 4


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_who_waits_in_a_clean_up_for_one_that_failed_is_let_go(wait: Any, world_size: int) -> None:
    async def program(model: Model) -> Model:
        if model.rank == 1:
            await later(2)
            raise KeyError("mine")
        try:
            await model.barrier()
        finally:
            await wait(model)
        return model

    with pytest.raises(KeyError, match="mine") as caught:
        simulate(program, world_size)
    assert caught.value.__notes__ == [f"on rank 1 of {world_size}, strategy program"]


def test_a_sub_task_that_waits_when_all_have_returned_is_a_deadlock() -> None:
    async def clings(model: Model) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await model.barrier()

    async def program(model: Model) -> Model:
        if model.rank == 0:
            tasks.append(asyncio.create_task(clings(model)))
            await asyncio.sleep(0)
        return model

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(DeadlockError, match="rank 0 at 0 s: barrier"):
        simulate(program)


def test_a_sub_task_that_holds_the_only_missing_send_is_no_deadlock() -> None:
    async def program(model: Model) -> Model:
        gate = asyncio.Event()
        if model.rank == 0:

            async def sender() -> None:
                await gate.wait()
                await model.send(1, Weight(0, 2, 0))

            task = asyncio.create_task(sender())
            asyncio.get_running_loop().call_later(0.001, gate.set)
            await task
        else:
            await model.receive(0)
        return model

    assert simulate(program).num_events == 2


def test_a_task_group_whose_child_failed_is_no_deadlock() -> None:
    async def fails() -> None:
        raise ValueError("mine")

    async def program(model: Model) -> Model:
        async with asyncio.TaskGroup() as group:
            group.create_task(alone(model))
            group.create_task(fails())
        return model

    with pytest.raises(ExceptionGroup, match="unhandled errors in a TaskGroup"):
        simulate(program)


def test_a_gather_whose_child_failed_is_no_deadlock(shuffling: Loops) -> None:
    async def fails() -> None:
        await later(3)
        raise ValueError("mine")

    async def program(model: Model) -> Model:
        await asyncio.gather(alone(model), fails())
        return model

    for seed in range(5):
        with pytest.raises(ValueError, match="mine"):
            simulate(program, loop_factory=shuffling(seed))


def test_deadlocks_are_found_beside_foreign_tasks_that_go_on() -> None:
    async def program(model: Model) -> Model:
        await alone(model)
        return model

    async def main() -> None:
        foreign = asyncio.create_task(asyncio.sleep(3600))
        with pytest.raises(DeadlockError, match="every unfinished rank waits"):
            await mt.simulate_async(program, world_size=2, num_layers=1, global_batch_size=2)
        assert not foreign.done()
        foreign.cancel()

    asyncio.run(main())


def test_an_error_of_the_transport_cannot_be_swallowed() -> None:
    async def program(model: Model) -> Model:
        with contextlib.suppress(DeadlockError):
            await alone(model)
        return model

    with pytest.raises(DeadlockError, match="every unfinished rank waits"):
        simulate(program)


@pytest.mark.parametrize("wait", [alone, in_a_task, in_a_gather, in_a_shielded_gather, in_a_launched_receive])
def test_plain_gather_over_ranks_in_a_loop_of_this_kind_finds_deadlocks_too(wait: Any) -> None:
    async def main() -> None:
        dist = Dist(2)
        await asyncio.gather(*(wait(Model(rank, dist)) for rank in range(2)))

    with asyncio.Runner(loop_factory=RankLoop) as runner, pytest.raises(DeadlockError, match="every unfinished rank"):
        runner.run(main())
