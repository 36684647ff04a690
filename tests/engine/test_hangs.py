"""Programs that would go on or wait for ever: they end, or somebody is told who waits where."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import minitrain as mt
from minitrain.engine import deadlocks
from minitrain.errors import DeadlockError
from minitrain.lib import Dist, Model
from tests.engine.test_waiting_programs import PROGRAMS, program_of

Program = Callable[[Model], Any]


def simulate(program: Program, world_size: int = 2, **parameters: Any) -> mt.Run:
    async def strategy(model: Model) -> Model:
        await program(model)
        return model

    sizes: Any = {"world_size": world_size, "num_layers": 2, "global_batch_size": 2, "check": False}
    return mt.simulate(strategy, **sizes, **parameters)


async def alone(model: Model) -> None:
    await model.receive(1 - model.rank)


async def tries_for_ever(model: Model) -> None:
    while True:
        with contextlib.suppress(Exception):
            await model.receive(1 - model.rank)


async def tries_a_collective_for_ever(model: Model) -> None:
    while True:
        try:
            if model.rank:
                await model.barrier()
            else:
                await alone(model)
        except Exception:
            continue


async def sends_for_ever(model: Model) -> None:
    while True:
        with contextlib.suppress(Exception):
            await model.send(1 - model.rank, model.load_weights(0)[0])


async def tries_in_a_sub_task(model: Model) -> None:
    task = asyncio.create_task(tries_for_ever(model))
    with contextlib.suppress(Exception):
        await model.receive(1 - model.rank, tag="other")
    await task


async def swallows_cancellation(model: Model) -> None:
    while True:
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await model.receive(1 - model.rank)


async def tries_in_new_groups(model: Model) -> None:
    """TaskGroups lose a cancellation that comes together with an error of a child."""
    while True:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(alone(model))
                group.create_task(model.receive(1 - model.rank, tag="other"))


async def tries_in_new_tasks(model: Model) -> None:
    async def again() -> None:
        try:
            await alone(model)
        except BaseException:
            tasks.append(asyncio.create_task(again()))

    tasks = [asyncio.create_task(again())]
    await model.receive(1 - model.rank, tag="other")


@pytest.mark.parametrize(
    "program",
    [
        tries_in_new_groups,
        tries_in_new_tasks,
        tries_for_ever,
        tries_a_collective_for_ever,
        sends_for_ever,
        tries_in_a_sub_task,
        swallows_cancellation,
    ],
)
def test_who_goes_on_after_the_verdict_is_ended_with_it(program: Program) -> None:
    with pytest.raises(DeadlockError, match="every unfinished rank waits for another one"):
        simulate(program)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python's own words for it
def test_who_swallows_everything_is_abandoned() -> None:
    async def program(model: Model) -> None:
        while True:
            try:
                await model.receive(1 - model.rank)
            except BaseException:
                continue

    with pytest.raises(DeadlockError, match="every unfinished rank waits for another one"):
        simulate(program)
    gc.collect()


def test_who_goes_on_after_a_mismatch_is_ended_with_it() -> None:
    async def program(model: Model) -> None:
        while True:
            with contextlib.suppress(Exception):
                await (model.barrier() if model.rank else model.all_gather(model.load_weights(0)[0], 0))

    with pytest.raises(mt.CollectiveMismatchError, match="must start the same collectives"):
        simulate(program)


def test_who_goes_on_after_another_rank_has_failed_is_ended_too() -> None:
    async def program(model: Model) -> None:
        if model.rank:
            await asyncio.sleep(0)
            raise KeyError("mine")
        await swallows_cancellation(model)

    with pytest.raises(KeyError, match="mine"):
        simulate(program)


async def waits_for_an_event(model: Model) -> None:
    await asyncio.Event().wait()


async def waits_for_a_queue(model: Model) -> None:
    await asyncio.Queue[int]().get()


async def waits_for_a_lock(model: Model) -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    await lock.acquire()


async def waits_for_a_future(model: Model) -> None:
    await asyncio.get_running_loop().create_future()


async def waits_in_a_sub_task(model: Model) -> None:
    await asyncio.create_task(waits_for_an_event(model))


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (waits_for_an_event, "Event.wait"),
        (waits_for_a_queue, "Queue.get"),
        (waits_for_a_lock, "Lock.acquire"),
        (waits_for_a_future, "a future"),
        (waits_in_a_sub_task, "Event.wait"),
    ],
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_that_all_wait_for_their_own_things_are_a_deadlock(program: Program, what: str, world_size: int) -> None:
    with pytest.raises(DeadlockError, match=rf"nobody can give: ranks? 0 \({what}, test_hangs\.py:\d+\)"):
        simulate(program, world_size)


def test_ranks_that_wait_for_each_others_tasks_are_a_deadlock() -> None:
    tasks: dict[int, Any] = {}

    async def program(model: Model) -> None:
        tasks[model.rank] = asyncio.current_task()
        await asyncio.sleep(0)
        await asyncio.wait([tasks[1 - model.rank]])

    with pytest.raises(DeadlockError, match="every unfinished rank waits for another one"):
        simulate(program)


async def awaits_itself(model: Model) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def other(place: int) -> None:
        await tasks[place]

    tasks += [asyncio.ensure_future(other(place)) for place in (1, 2, 0)]
    await tasks[0]


def test_tasks_that_await_one_another_are_a_deadlock() -> None:
    """Not even asyncio can cancel them: `Task.cancel` goes round until Python's stack is full."""
    with pytest.raises(
        DeadlockError, match=r"waiting for something of their own .*: ranks 0 \(.*test_hangs.py:\d+\), 1"
    ):
        simulate(awaits_itself)


async def leaves_a_receive(model: Model) -> None:
    asyncio.ensure_future(alone(model))  # noqa: RUF006  (that is the mistake)
    await asyncio.sleep(0)


async def leaves_a_collective(model: Model) -> None:
    if model.rank:
        asyncio.ensure_future(model.barrier())  # noqa: RUF006
        await asyncio.sleep(0)


async def leaves_a_generator(model: Model) -> None:
    async def numbers() -> Any:
        try:
            yield 1
        finally:
            await alone(model)

    async for _ in numbers():
        break


@pytest.mark.parametrize(
    ("program", "kind", "lines"),
    [
        (
            leaves_a_receive,
            mt.StrategyError,
            r"rank 0 at 0 s: receive from rank 1 .*\n.*rank 1 at 0 s: receive from rank 0",
        ),
        (leaves_a_collective, mt.StrategyError, r"rank 1 at 0 s: barrier"),
        (
            leaves_a_generator,
            DeadlockError,
            r"rank 0 at 0 s: receive from rank 1 .*\n.*rank 1 at 0 s: receive from rank 0",
        ),
    ],
)
def test_ranks_that_return_before_their_tasks_name_what_these_wait_for(
    program: Program, kind: type[Exception], lines: str
) -> None:
    with pytest.raises(kind, match=lines):
        simulate(program)


def test_an_event_that_a_timer_sets_is_no_deadlock() -> None:
    async def program(model: Model) -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, event.set)
        await event.wait()

    assert simulate(program).num_events == 0


def test_a_sub_task_that_swallows_its_cancellation_and_waits_for_ever_is_a_deadlock() -> None:
    async def clings(model: Model) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await waits_for_an_event(model)

    async def program(model: Model) -> None:
        tasks.append(asyncio.create_task(clings(model)))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(DeadlockError, match=r"a sub-task waits .*: rank 0 \(Event\.wait, test_hangs\.py:\d+\)"):
        simulate(program, 1)
    tasks.clear()


@pytest.mark.parametrize(
    ("how", "place"),
    [
        (alone, r"test_hangs\.py:\d+"),
        (lambda model: asyncio.create_task(model.receive(1 - model.rank)), r"a task that test_hangs\.py:\d+ awaits"),
        (lambda model: asyncio.gather(model.receive(1 - model.rank)), r"a task that test_hangs\.py:\d+ awaits"),
        (lambda model: asyncio.gather(alone(model), asyncio.sleep(0)), r"test_hangs\.py:\d+"),
    ],
)
def test_waits_in_sub_tasks_show_their_line(how: Any, place: str) -> None:
    async def program(model: Model) -> None:
        await how(model)

    with pytest.raises(DeadlockError, match=rf"rank 1 at 0 s: receive from rank 0 \({place}\)"):
        simulate(program)


async def with_a_far_timer(model: Model) -> None:
    async with asyncio.timeout(3600):
        await alone(model)


async def with_wait_for(model: Model) -> None:
    await asyncio.wait_for(alone(model), 3600)


async def beside_a_sub_task_that_polls(model: Model) -> None:
    async def polls() -> None:
        while True:
            await asyncio.sleep(0)

    task = asyncio.create_task(polls())
    await alone(model)
    await task


async def with_short_time_limits(model: Model) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(alone(model), 0.001)


async def beside_a_sub_task_that_swallows_cancellation(model: Model) -> None:
    async def clings() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    task = asyncio.create_task(clings())
    await alone(model)
    await task


@pytest.fixture
def interrupted_at_a_report(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a report come soon, and Ctrl-C follow it, which shells have their background processes ignore."""
    report = deadlocks.DeadlockDetector.report

    def report_and_interrupt(self: Any, what: str) -> None:
        report(self, what)
        if self.num_reports == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(deadlocks, "FIRST_REPORT_S", 0.02)
    monkeypatch.setattr(deadlocks.DeadlockDetector, "report", report_and_interrupt)
    monkeypatch.setattr("minitrain.run.rank_tasks.INTERRUPTED_S", 0.02)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupted_at_a_report")
@pytest.mark.parametrize("handler", [signal.default_int_handler, "as the command line"])
@pytest.mark.parametrize(
    "program",
    [
        with_a_far_timer,
        with_wait_for,
        beside_a_sub_task_that_polls,
        beside_a_sub_task_that_swallows_cancellation,
    ],
)
def test_long_waits_are_told_and_ctrl_c_ends_them(program: Program, handler: Any, capsys: Any) -> None:
    def at_once(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler if callable(handler) else at_once)
    with pytest.raises(KeyboardInterrupt):
        simulate(program)
    told = capsys.readouterr().err
    first, again = told.split("minitrain: interrupted while ")
    assert first.startswith("minitrain: still waiting: nothing has happened for 0 s of real time\n")
    for listing in (first, again):
        for rank in (0, 1):
            line = rf"  rank {rank} at 0 s: receive from rank {1 - rank} \(test_hangs\.py:\d+\)\n"
            assert re.search(line, listing), told


async def in_a_gather(model: Model) -> None:
    await asyncio.gather(alone(model), alone(model))


async def in_a_task_group(model: Model) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(alone(model))


def in_plain_gather(program: Program) -> None:
    async def main() -> None:
        dist = Dist(2)
        await asyncio.gather(*(program(Model(rank, dist)) for rank in range(2)))

    asyncio.run(main())


def on_uvloop(program: Program) -> None:
    simulate(program, loop_factory=pytest.importorskip("uvloop").new_event_loop)


@pytest.mark.usefixtures("interrupted_at_a_report")
@pytest.mark.parametrize("drive", [in_plain_gather, on_uvloop])
@pytest.mark.parametrize("program", [in_a_gather, in_a_task_group, with_a_far_timer])
def test_loops_of_others_are_told_who_waits_for_what(drive: Any, program: Program, capsys: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        drive(program)
    told = capsys.readouterr().err
    for rank in (0, 1):
        assert re.search(rf"  rank {rank} at 0 s: receive from rank {1 - rank} \(test_hangs\.py:\d+\)\n", told), told


def in_a_notebook(program: Program) -> None:
    """Simulate in a loop in which others go on, as a kernel's does."""

    async def others() -> None:
        while True:
            await asyncio.sleep(0.01)

    async def main() -> None:
        going_on = asyncio.create_task(others())
        try:
            await mt.simulate_async(program, world_size=2, num_layers=1, global_batch_size=2, check=False)
        finally:
            going_on.cancel()

    asyncio.run(main())


@pytest.mark.usefixtures("interrupted_at_a_report")
@pytest.mark.parametrize("drive", [in_a_notebook, on_uvloop])
@pytest.mark.parametrize("name", [(kind, name) for kind, named in PROGRAMS.items() for name in named])
@pytest.mark.one_in(7)
def test_loops_of_others_end_in_the_verdict_or_are_told_who_waits(
    drive: Any, name: tuple[str, str], capsys: Any
) -> None:
    error, words, lines = PROGRAMS[name[0]][name[1]]
    with pytest.raises((error, KeyboardInterrupt)) as found:
        drive(program_of(lines))
    told = capsys.readouterr().err
    if found.type is KeyboardInterrupt:
        assert all(re.search(rf"  rank {rank}\b.*:\d", told) for rank in (0, 1)), told
    else:
        assert re.search(words, str(found.value))


def test_a_loop_that_is_not_of_asyncio_is_refused() -> None:
    with pytest.raises(mt.UsageError, match=r"none runs here .Trio has a loop of its own.; call simulate, in a thread"):
        mt.simulate_async("ddp", world_size=2).send(None)


async def sends(model: Model, after_s: float = 0) -> None:
    await asyncio.sleep(after_s)
    await model.send(1 - model.rank, model.load_weights(0)[0])


async def by_a_timer(model: Model, tasks: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, lambda: tasks.append(loop.create_task(sends(model))))


async def by_a_task(model: Model, tasks: list[Any]) -> None:
    tasks.append(asyncio.create_task(sends(model, 0.02)))


async def by_a_thread(model: Model, tasks: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    threading.Timer(0.02, lambda: tasks.append(asyncio.run_coroutine_threadsafe(sends(model), loop))).start()


async def by_itself(model: Model, tasks: list[Any]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.02):
            await model.receive(1 - model.rank, tag="never sent")  # what one sends first must not end the other's wait
    await sends(model)


@pytest.mark.parametrize("wakes", [by_a_timer, by_a_task, by_a_thread, by_itself])
@pytest.mark.parametrize("loop", ["minitrain", "asyncio", "uvloop"])
def test_ranks_that_wait_beside_what_will_act_are_not_accused(wakes: Any, loop: str) -> None:
    async def program(model: Model) -> Model:
        await wakes(model, tasks)
        await model.receive(1 - model.rank)
        return model

    tasks: list[Any] = []
    sizes: Any = {"world_size": 2, "num_layers": 2, "global_batch_size": 2, "check": False}
    if loop == "minitrain":
        run = mt.simulate(program, **sizes)
    else:
        factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            run = runner.run(mt.simulate_async(program, **sizes))
    assert [event.typ for event in run.events].count("send") == 2


def test_a_deadlock_after_a_call_in_an_executor_is_found() -> None:
    """The idle worker that stays does not count as a thread that may wake the loop."""

    async def program(model: Model) -> None:
        await asyncio.to_thread(int)
        await waits_for_an_event(model)

    with pytest.raises(DeadlockError, match=r"nobody can give: ranks 0 \(Event\.wait"):
        simulate(program)


def test_an_open_file_and_a_signal_handler_are_waited_for() -> None:
    async def program(model: Model) -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        if model.rank:
            here, there = socket.socketpair()
            here.setblocking(False)
            threading.Timer(0.02, lambda: there.send(b"x")).start()
            assert await loop.sock_recv(here, 1) == b"x"
            here.close()
            there.close()
        else:
            loop.add_signal_handler(signal.SIGUSR1, event.set)
            os.kill(os.getpid(), signal.SIGUSR1)
            await event.wait()
            loop.remove_signal_handler(signal.SIGUSR1)

    assert simulate(program).num_events == 0


@pytest.mark.usefixtures("interrupted_at_a_report")
@pytest.mark.no_cover
def test_waits_that_are_only_tried_again_are_told_too(capsys: Any) -> None:
    """Whether a rank waits at the moment of the list is left to chance."""
    with pytest.raises(KeyboardInterrupt):
        simulate(with_short_time_limits)
    assert "minitrain: still waiting: nothing has happened" in capsys.readouterr().err


def test_a_long_wait_is_told_once_and_then_rarely(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    async def program(model: Model) -> None:
        if model.rank:
            await asyncio.sleep(0.2)
            await model.send(0, model.load_weights(0)[0])
        else:
            await model.receive(1)

    monkeypatch.setattr(deadlocks, "FIRST_REPORT_S", 0.05)
    assert simulate(program).num_events == 3
    told = capsys.readouterr().err
    assert told.count("still waiting") == 1
    assert re.search(r"rank 0 at 0 s: receive from rank 1 .*\n  rank 1: sleep, test_hangs\.py:\d+\n", told)


def test_ranks_that_compute_are_not_told_to_wait(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    async def program(model: Model) -> None:
        end = asyncio.get_running_loop().time() + 0.15
        while asyncio.get_running_loop().time() < end:
            model.load_weights(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(deadlocks, "FIRST_REPORT_S", 0.01)
    simulate(program)
    assert capsys.readouterr().err == ""
