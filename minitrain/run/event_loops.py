"""Running a coroutine to its end from code that is not async, also inside a running event loop (a notebook)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from minitrain.engine.transport.event_loop import RankLoop

T = TypeVar("T")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run_to_end(start: Callable[[], Coroutine[Any, Any, T]], loop_factory: LoopFactory | None = None) -> T:
    """Run a coroutine in a loop of its own, and return its result.

    A loop that is running here would have to wait for itself; then the new one runs in another thread.

    Args:
        start: makes the coroutine.
        loop_factory: makes the event loop, `RankLoop` by default.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        run = _run_here
    else:
        run = _run_in_thread
    return run(start, loop_factory)


def _run_here(start: Callable[[], Coroutine[Any, Any, T]], loop_factory: LoopFactory | None) -> T:
    """Run a coroutine in a loop of this thread; what leaves the loop (Ctrl-C, SystemExit) cancels it.

    The result is not returned through the task: when Python puts the signal handlers back, it formats the task and its
    result as text twice, and drops the text.
    """
    running: list[asyncio.Task[Any]] = []
    outcome: list[T] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.append(task)
        outcome.append(await start())

    with asyncio.Runner(loop_factory=loop_factory or RankLoop) as runner:
        try:
            runner.run(main())
            return outcome[0]
        except BaseException:
            for task in running:  # to its end, before the runner waits for all tasks, those that never end among them
                if not task.done():
                    task.cancel()
                    _cancel_what_has_not_begun(runner.get_loop())
                    with contextlib.suppress(asyncio.CancelledError):
                        runner.get_loop().run_until_complete(task)
            raise


def _cancel_what_has_not_begun(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that have not begun, so that they never do: a rank may compute for minutes before it waits."""
    for task in asyncio.all_tasks(loop):
        coroutine = task.get_coro()
        if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            task.cancel()


def _run_in_thread(start: Callable[[], Coroutine[Any, Any, T]], loop_factory: LoopFactory | None) -> T:
    """Run a coroutine in a loop of another thread; what interrupts this thread (Ctrl-C) cancels it."""
    outcome: list[T] = []
    errors: list[BaseException] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    waiting = threading.current_thread()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await start()

    def target() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory or (lambda: RankLoop(waiting))) as runner:
                outcome.append(runner.run(main()))
        except BaseException as error:  # raised again in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=target, name="minitrain", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        for loop, task in running:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    for error in errors:
        raise error
    return outcome[0]
