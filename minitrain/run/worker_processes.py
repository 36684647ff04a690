"""Worker processes that leave Ctrl-C to the process that waits for them, and that end when it does.

A terminal sends Ctrl-C to all processes of a command. A worker that is interrupted prints a traceback, also while it
still imports. So SIGINT is blocked before a worker starts, which inherits that, and the process that waits for the
worker ends it.

A process that is killed ends nothing. So each worker watches for the end of the one that started it.

Who waits for workers reads their pipes, and needs no thread. A pool of `concurrent.futures` has two threads; where
there is no memory for the second one, it waits for ever.

A process that has used up the address space that it may take (`ulimit -v`) gets a `MemoryError`, and says so. But
without room for even an exception it may crash, or never come back: CPython 3.11 looks for the handler of an exception
again and again while it lacks the 32 bytes to enter it, and holds the interpreter's lock meanwhile. Nothing within that
process can tell. So who waits for a process looks whether it is stuck so, and ends it.
"""

from __future__ import annotations

import _thread
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

from minitrain.errors import MinitrainError, came_without_memory, lacks_memory, say_ignored

if sys.platform == "linux":
    import resource

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_GRACE_S = 3.0  # in which a worker that is stopped removes its temporary files
_MOST_FAILED_STARTS = 3  # one after the other
_NO_START = (
    "the worker processes end before they can do anything ({}); a script that starts processes needs "
    "`if __name__ == '__main__':`"
)
_LOST = "a worker process ended before its work did ({}); do it again"
_STEP_BYTES = 2**20  # what Python and the C library ask the system for when they need more, at least
_ROOM_BYTES = 2**24  # with less, errors of all kinds come of it

LOOK_S = 1.0
"""How often who waits for a process that may be stuck looks at it."""


def limit_bytes() -> int | None:
    """Return how much address space this process and its children may take; None without a limit."""
    if sys.platform == "linux" and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        return limit
    return None


def why_ended(limit: int | None) -> str:
    """Return what may have ended a process that was to go on, in words.

    Args:
        limit: how much address space it may take, bytes; None without a limit.
    """
    if limit is None:
        return "killed, or out of the machine's own memory?"
    return f"killed, or out of the {limit / 2**20:.0f} MiB that it may take, of which `ulimit -v` may allow more?"


@dataclass(slots=True)
class StuckProcesses:
    """Processes that do nothing but find no memory, as far as one can see from outside.

    Such a one is where its limit is, and works, and has not touched one more page of memory. It may be one that can do
    with what it has; then what it did is lost, as where the system lacks memory.

    Args:
        after_s: processor time after which that is certain enough, s.
    """

    after_s: float = 5.0
    _since: dict[int, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def end(self, pid: int) -> bool:
        """Look at a process, and kill it if it is stuck; return whether it was."""
        with contextlib.suppress(OSError, IndexError, MemoryError):  # it has ended, or is another user's
            if sys.platform == "linux" and (looks := _looks_of(pid)) is not None:
                *same, used = looks
                before, since = self._since.get(pid, ((), 0))
                if before != (*same,):
                    self._since[pid] = (*same,), used
                elif used - since > self.after_s * os.sysconf("SC_CLK_TCK"):
                    os.kill(pid, signal.SIGKILL)
                    return True
        return False


def _looks_of(pid: int) -> tuple[int, ...] | None:
    """Return when a process began, its size, how many pages it has touched, and its ticks; None if it has room."""
    listed = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    faults, major_faults, user_ticks, system_ticks, began, size = (int(listed[k]) for k in (7, 9, 11, 12, 19, 20))
    limit, _ = resource.prlimit(pid, resource.RLIMIT_AS)
    has_room = limit == resource.RLIM_INFINITY or size < limit - _STEP_BYTES
    return None if has_room else (began, size, faults + major_faults, user_ticks + system_ticks)


class WorkerEndedError(MinitrainError):
    """A worker ended before it had done what it was asked for."""


class _TracebackOfWorkerError(Exception):
    """Where an error was raised in its worker: the cause of the error here."""


class Outcome(NamedTuple):
    """What a call has come to.

    Args:
        result: what it returned.
        error: what it raised, or a `WorkerEndedError`; None if it returned.
        is_begun: whether a worker was there to make it.
    """

    result: Any
    error: BaseException | None = None
    is_begun: bool = True

    def get(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class WorkerProcesses:
    """Fresh processes, each of which makes one call at a time.

    They are spawned, not forked: the caller may have threads, and libraries that no fork survives. Each is started
    when there is a call for it. Where there is no memory for one more, those that are there make the calls.

    Args:
        num_processes: how many there are at most.
        memory_bytes: address space of each, where the system can limit it; without a limit if None.
        most_calls: how many calls a process makes before it is replaced; any number if None.
    """

    def __init__(self, num_processes: int, memory_bytes: int | None = None, most_calls: int | None = None) -> None:
        self._num_processes = num_processes
        self._memory_bytes = memory_bytes
        self._most_calls = most_calls
        self._waiting: deque[tuple[Any, bytes]] = deque()
        self._idle: list[_Worker] = []
        self._busy: dict[Any, tuple[_Worker, Any, bytes]] = {}  # by pipe
        self._num_failed_starts = 0
        self._limit = min((limit for limit in (memory_bytes, limit_bytes()) if limit is not None), default=None)
        self._stuck = StuckProcesses()

    def begin(self, key: Any, function: Callable[..., Any], *arguments: Any) -> None:
        """Have a call made as soon as a process is free.

        Args:
            key: what its outcome is known by.
            function: one that can be imported.
            arguments: by position.

        Raises:
            OSError, MemoryError: no process can be started, and none is there.
            TypeError, AttributeError, pickle.PicklingError: the call cannot be sent.
        """
        self._waiting.append((key, pickle.dumps((function, arguments))))
        self._give()

    def _give(self) -> None:
        """Give calls to free processes."""
        while self._waiting and (worker := self._free()) is not None:
            key, call = self._waiting.popleft()
            worker.begin(call)
            self._busy[worker.pipe] = worker, key, call

    def _free(self) -> _Worker | None:
        """Return a process that is free, a new one if need be; None while there are enough, or no memory for more."""
        if self._idle:
            return self._idle.pop()
        if len(self._busy) < self._num_processes:
            try:
                return _Worker(self._memory_bytes)
            except Exception as error:
                if not self._busy or not lacks_memory(error):
                    raise
                self._num_processes = len(self._busy)
        return None

    def next_outcomes(self) -> list[tuple[Any, Outcome]]:
        """Wait for what a process says; return keys and outcomes of calls that are over, none if it says it is ready.

        Raises:
            OSError, MemoryError: no process can be started, and none is there.
        """
        self._give()
        found = []
        for pipe in self._pipes_with_news():
            worker, key, call = self._busy[pipe]
            outcome = worker.outcome(self._limit)
            if outcome is None:
                self._num_failed_starts = 0
                continue
            del self._busy[pipe]
            if not isinstance(outcome.error, WorkerEndedError) and worker.num_calls != self._most_calls:
                self._idle.append(worker)
            else:
                worker.leave()
                worker.join()
            if outcome.is_begun or not self._may_start_again():
                found.append((key, outcome))
            else:
                self._waiting.appendleft((key, call))
        return found

    def _pipes_with_news(self) -> list[Any]:
        """Wait until pipes can be read; where memory is limited, end processes that are stuck."""
        ready: list[Any] = []
        while self._busy and not ready:
            if self._limit is not None:
                for worker, _, _ in self._busy.values():
                    self._stuck.end(worker.process.pid or 0)
            ready = wait(list(self._busy), None if self._limit is None else LOOK_S)
        return ready

    def _may_start_again(self) -> bool:
        """Note that a process ended before it was ready, and return whether its call is to be given to another one."""
        self._num_failed_starts += 1
        if self._busy:  # there may be memory for these, and for no more
            self._num_processes = len(self._busy)
        return bool(self._busy) or self._num_failed_starts < _MOST_FAILED_STARTS

    def outcomes(self, calls: Iterable[tuple[Any, tuple[Any, ...]]]) -> Iterator[tuple[Any, Outcome]]:
        """Make calls, each with its key, and yield keys and outcomes as the calls are over."""
        left = iter(calls)
        following = next(left, None)
        while following is not None or self._busy or self._waiting:
            while following is not None and len(self._busy) + len(self._waiting) < self._num_processes:
                self.begin(following[0], *following[1])
                following = next(left, None)
            yield from self.next_outcomes()

    def map(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield what a function returns for each task, in the order of the tasks; raise what it raises."""
        found: dict[int, Outcome] = {}
        following = 0
        for place, outcome in self.outcomes((place, (function, task)) for place, task in enumerate(tasks)):
            found[place] = outcome
            while following in found:
                yield found.pop(following).get()
                following += 1

    def close(self) -> None:
        """End all processes, those at work too."""
        at_work = [worker for worker, _, _ in self._busy.values()]
        workers = [*self._idle, *at_work]
        self._waiting.clear()
        self._idle.clear()
        self._busy.clear()
        for worker in workers:
            worker.leave()
        for worker in at_work:
            worker.process.terminate()
        for worker in workers:
            worker.join()


class _Worker:
    """A process that makes calls.

    Args:
        memory_bytes: address space that it may have; without a limit if None.

    Attributes:
        pipe: can be read when there is something to know.
        num_calls: how many it has made.
    """

    def __init__(self, memory_bytes: int | None) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.num_calls = 0
        self._is_ready = False
        with theirs:
            self.process = SparedProcess(target=_make_calls, args=(theirs, memory_bytes), daemon=True)
            self.process.start()

    def begin(self, call: bytes) -> None:
        """Send it a call."""
        with contextlib.suppress(OSError):  # it has ended, which is the outcome
            self.pipe.send_bytes(call)

    def outcome(self, limit: int | None) -> Outcome | None:
        """Return what a call has come to; None at the news that the process is ready.

        Args:
            limit: how much address space the process may take, bytes; None without a limit.
        """
        try:
            sent = self.pipe.recv_bytes()
        except (EOFError, OSError):
            text = (_LOST if self._is_ready else _NO_START).format(why_ended(limit))
            return Outcome(None, WorkerEndedError(text), self._is_ready)
        if not self._is_ready:
            self._is_ready = True
            return None
        self.num_calls += 1
        result, error, text = pickle.loads(sent)
        if error is not None:
            error.__cause__ = _TracebackOfWorkerError(text)
        return Outcome(result, error)

    def leave(self) -> None:
        """Tell it that there are no more calls."""
        self.pipe.close()

    def join(self) -> None:
        """Wait for its end, and not for long."""
        self.process.join(_GRACE_S)
        self.process.kill()
        self.process.join()


class _StoppedError(SystemExit):
    """A worker is to end: with what it does, and not without removing its temporary files."""


def _make_calls(pipe: Connection, memory_bytes: int | None) -> None:  # pragma: no cover  (only in a worker)
    """Make the calls that come by a pipe until it is closed."""
    try:
        begin_work(memory_bytes)
        signal.signal(signal.SIGTERM, _stop)
        pipe.send_bytes(b"ready")
        while True:
            pipe.send_bytes(_made(pipe.recv_bytes()))
    except (EOFError, OSError):  # nobody waits any more
        return
    except BaseException as error:
        end_without_memory(error)
        raise


def end_without_memory(error: BaseException) -> None:  # pragma: no cover  (only in a worker)
    """End this process if an error came for want of memory: none is left to say so, and who waits learns of it.

    Near its limit any error may: a module whose library finds no place cannot be compiled, or seems not to be there.
    """
    is_over = True
    with contextlib.suppress(MemoryError, SystemError, OSError):
        limit = limit_bytes()
        is_over = came_without_memory(error) or (limit is not None and _size_bytes() > limit - _ROOM_BYTES)
    if is_over:
        os._exit(1)


def _size_bytes() -> int:
    """Return how much address space this process takes."""
    return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()


def _stop(*_: Any) -> None:  # pragma: no cover  (only in a worker)
    raise _StoppedError


def _made(call: bytes) -> bytes:
    """Make a call, and return its result, its error and where that was raised."""
    try:
        function, arguments = pickle.loads(call)
        return pickle.dumps((function(*arguments), None, ""))
    except _StoppedError:
        raise
    except BaseException as error:  # whatever a strategy raises
        return _of_error(error, traceback.format_exc())


def _of_error(error: BaseException, text: str) -> bytes:
    """Return what is sent of an error; of one that cannot be sent, its words."""
    with contextlib.suppress(Exception):
        sent = pickle.dumps((None, error, text))
        pickle.loads(sent)
        return sent
    return pickle.dumps((None, MinitrainError(f"{type(error).__name__}: {error}"), text))


class SparedProcess(SpawnProcess):
    """A process that starts with SIGINT blocked."""

    def start(self) -> None:
        """Start it."""
        with _interrupts_blocked():
            super().start()


_SPAWN = SpawnContext()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep SIGINT from this thread; one that comes meanwhile is delivered afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows, which has the initializer alone
        yield
        return
    resource_tracker.ensure_running()  # its own start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_work(memory_bytes: int | None = None) -> None:  # pragma: no cover  (only in a worker)
    """Ignore Ctrl-C where signals cannot be blocked, watch for the end of the parent, and limit the memory.

    What Python ignores for want of memory is not said: each call that fails so is.
    """
    if memory_bytes is not None:
        with contextlib.suppress(ImportError, ValueError, OSError):  # not on Windows; a lower limit holds already
            import resource  # noqa: PLC0415

            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    sys.unraisablehook = partial(say_ignored, sys.unraisablehook)
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A `threading.Thread` would count as one that may wake an event loop, so that no deadlock would be found.
        with contextlib.suppress(RuntimeError):  # without memory for it, a worker ends after its call
            _thread.start_new_thread(_end_with_parent, ())


def die_with(parent: int) -> None:
    """Let the system kill this process when the one that started it ends, where it can: also one that is stopped."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _end_with_parent() -> None:  # pragma: no cover  (only in a worker)
    """End this process, whatever it does, when its parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
