"""Running a coroutine to its end from code that is not async, also inside a running event loop (a notebook).

What a run asks of Python's interpreter while it goes on, and gives back: the cycle collector, and other threads.

A run makes many objects that live until its end, and few reference cycles. With the thresholds of a fresh interpreter,
the collector traverses all events and tensors again and again, which is a third of the time of a large run.

A strict run counts a tensor until it is freed. A thread that samples stacks (the profiler of Dask's workers) keeps the
frames that it sees, and what their variables hold, as long as it likes, so that a peak would depend on chance. Python
tells audit hooks when a thread asks for the frames of others. It then waits until the event loop of each strict run has
a moment, where no strategy is on the stack.

Interning the memory figures of a large run: events with equal figures share one int.

Every event notes how much memory its rank holds, as an int of its own, which is a third of the event's size. A rank's
memory goes up and down by the same sizes, so few of these figures differ. A run of many operations therefore goes over
its new events from time to time and replaces equal figures by one object. A small run never does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from minitrain.engine.event_loop import RankLoop
from minitrain.errors import UsageError
from minitrain.operations import MEMORY, STRIDE

if TYPE_CHECKING:
    from minitrain.engine.model import Model

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
    return run(start, None if loop_factory is None else partial(_made_by, loop_factory))


def _made_by(loop_factory: LoopFactory) -> asyncio.AbstractEventLoop:
    """Return the event loop that a factory makes."""
    loop: Any = loop_factory()
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise UsageError(f"loop_factory must make an event loop of asyncio, got {loop!r:.80}")
    return loop


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


RARELY = (1_000_000, 50, 1000)
"""Thresholds of the collector during a run."""

_MOST_UNTRAVERSED = 2_000_000
_ASK_AGAIN_AFTER = 100  # runs beside objects that somebody else has frozen

_FRAMES = frozenset({"sys._current_frames", "sys._current_exceptions"})
"""Audit events of whoever asks for the frames of other threads."""

_LONGEST_WAIT_S = 5.0  # after which frames are given nevertheless: a strategy may compute for ever
_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05  # of a run, for who waits for several
_working: dict[int, None] = {}  # threads in which ranks of strict runs are at work
_asking: dict[object, None] = {}  # who waits for frames
_guards = False

_lock = threading.Lock()
_before: list[
    tuple[int, tuple[int, int, int]]
] = []  # collections and thresholds when each present run began, in any thread
_untraversed = 0  # objects that became old since the last full collection here
_runs_beside_frozen = 0  # how many more runs assume that somebody else has frozen objects


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cycle collector run rarely; the last of several runs at once restores its thresholds."""
    with _lock:
        _before.append((gc.get_count()[1], gc.get_threshold()))
        gc.set_threshold(*RARELY)
    is_done = False
    try:
        yield
        is_done = True  # after an error, cycles through its traceback are left to the collector
    finally:
        with _lock:
            middle_aged, thresholds = _before.pop()
            if not _before:
                if is_done:
                    _age_garbage(middle_aged)
                gc.set_threshold(*thresholds)


def _age_garbage(middle_aged: int) -> None:
    """Move what a run leaves behind into the oldest generation, which is traversed least often.

    Otherwise, the collector would traverse it as soon as new objects are made. A finished run has hardly any reference
    cycles, so it is freed when it is dropped. The collector's own count of old objects does not include those that are
    moved this way. They are counted here instead, and many of them bring about a full collection.

    Args:
        middle_aged: collections of the youngest generation since one of the middle generation, when the run began.
    """
    global _untraversed, _runs_beside_frozen  # noqa: PLW0603  (there is one collector)
    if _runs_beside_frozen:
        _runs_beside_frozen -= 1
        return
    if gc.get_freeze_count():  # objects that somebody else has frozen would be unfrozen
        _runs_beside_frozen = _ASK_AGAIN_AFTER  # Python counts them one by one: 10 ms for a million
        return
    young, collections, _ = gc.get_count()
    _untraversed += young + max(0, collections - middle_aged) * RARELY[0]
    gc.freeze()
    gc.unfreeze()
    if _untraversed > _MOST_UNTRAVERSED:
        _untraversed = 0
        gc.collect()


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Give other threads the frames of this one only while its event loop has a moment, where that tells when."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    if not isinstance(loop, RankLoop):
        yield
        return
    _guard_beside_threads()
    watcher = _Moments(thread)
    loop.watchers[watcher] = None
    _working[thread] = None
    try:
        yield
    finally:
        _working.pop(thread, None)  # another run of this thread may have ended before
        del loop.watchers[watcher]


class _Moments:
    """Lets a strict run pause for threads that wait for frames.

    Args:
        thread: that of the run.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def look(self, now_s: float) -> float:
        """Let whoever waits now have the frames."""
        _guard_beside_threads()
        waiting = set(_asking)
        if waiting:
            _working.pop(self._thread, None)
            until = time.monotonic() + _LONGEST_PAUSE_S
            while time.monotonic() < until and not waiting.isdisjoint(_asking):
                time.sleep(_PAUSE_S)
            _working[self._thread] = None
        return now_s + _LONGEST_PAUSE_S

    def rest(self, *, beside_old_threads: bool) -> bool:  # noqa: ARG002  (a watcher's)
        """Begin nothing."""
        return False


def _guard_beside_threads() -> None:
    """Guard the frames where other threads are; the hook stays for ever, and makes later runs some percent slower."""
    global _guards  # noqa: PLW0603
    if not _guards and threading.active_count() > 1:
        sys.addaudithook(_guard_frames)
        _guards = True


def _guard_frames(event: str, _: object) -> None:
    """Let a thread wait that asks for the frames of others, while ranks of strict runs are at work."""
    if event not in _FRAMES or not _working or threading.get_ident() in _working:
        return
    until, mine = time.monotonic() + _LONGEST_WAIT_S, object()
    _asking[mine] = None
    # nothing is called from the last look at `_working` until the frames are taken, so no other thread comes between
    while time.monotonic() < until and _working:
        time.sleep(_PAUSE_S)
    del _asking[mine]


class SharedSizes:
    """Lets events with the same memory figure share one int.

    Args:
        logs: the logs of all ranks, each with its `rows`.
    """

    __slots__ = ("_logs", "_seen")

    def __init__(self, logs: Iterable[Any]) -> None:
        self._logs = list(logs)
        self._seen = [0] * len(self._logs)

    def share(self) -> None:
        """Go over the events since the last time."""
        shared: dict[int, int] = {}  # new each time: if all figures differed, it would only grow
        for place, log in enumerate(self._logs):
            rows = log._rows
            column = slice(self._seen[place] + MEMORY, None, STRIDE)
            rows[column] = [shared.setdefault(units, units) for units in rows[column]]
            self._seen[place] = len(rows)


@contextlib.contextmanager
def sharing_sizes(models: Sequence[Model]) -> Iterator[None]:
    """Go over the events of some ranks from time to time while they run."""
    detector = models[0].dist.detector
    detector.housekeeping = SharedSizes(model._log for model in models).share
    try:
        yield
    finally:
        detector.housekeeping = None  # it would keep the logs alive
