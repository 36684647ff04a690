"""Starting the processes of all ranks on this machine, watching them, and ending all of them when one fails.

Each rank is a process of its own with a pipe to this one. All are forked from one, which imports torch once for all and
says which rank has died or is stopped (SIGSTOP). One that does nothing between two operations for too long is noticed
by asking; how long that is grows with the machine's load, and time in which this process was not given a core does not
count. Whatever happens, all processes have ended when `launch` returns or raises, with those that they have started.
What ranks print is read beside what they report: a thread might wait for ever to begin where memory is short.
"""

from __future__ import annotations

import _thread
import atexit
import io
import marshal
import os
import pickle
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from time import monotonic
from types import CodeType
from typing import IO, Any, NoReturn

import cloudpickle  # type: ignore[import-untyped]
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented

from minitrain.errors import TrainingError
from minitrain.run.strategy_loading import strategy_packages
from minitrain.training.program import RankProgram
from minitrain.training.worker import Doing, Task

MOST_PRINTED = 2**16
"""Bytes that a rank may print before the rest is left out; as many as a pipe holds."""

_PARENT = "from minitrain.training.worker import fork_launches; fork_launches({pipe}, {parent})"
_READ_BY_IMPORTS = re.compile("PYTHON|TORCH|CUDA|NCCL|MKL|BLAS|OMP|THREADS|MALLOC|^LD_|^PATH$|^HOME$")
_ASK_S = 0.5
_MOST_LOADED = 4.0  # a busy machine makes the limit of silence this many times longer at most
_DONE = b"done"
_RUNS = count()  # under torchrun: each rank takes part in the same ones
_GRACE_S = 0.5  # how long other ranks may take to say that they failed too, of which the first cause is looked for


class _Printed:
    """What a rank prints, which is passed on line by line as far as anybody can read it.

    Args:
        rank: that prints.
        pipe: where it comes from.
        say: takes its lines.

    Attributes:
        is_over: whether nothing more will come.
    """

    def __init__(self, rank: int, pipe: IO[bytes], say: Callable[[str], None]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.is_over = False
        self._rank = rank
        self._pipe = pipe
        self._say = say
        self._begun = b""  # of a line
        self._num_bytes = 0

    def fileno(self) -> int:
        """Return what can be waited for."""
        return self._pipe.fileno()

    def take(self) -> None:
        """Pass on what has come, and keep the beginning of a line."""
        try:
            data = os.read(self.fileno(), MOST_PRINTED)
        except BlockingIOError:
            return
        self.is_over = not data
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) >= MOST_PRINTED:
            lines, self._begun = [*lines, self._begun], b""
        for line in lines:
            self._pass_on(line)

    def _pass_on(self, line: bytes) -> None:
        """Pass on a line, if there were not too many."""
        if self._num_bytes >= MOST_PRINTED:
            return
        self._num_bytes += len(line) + 1
        self._say(f"[rank {self._rank}] {line.decode(errors='replace').rstrip()}")
        if self._num_bytes >= MOST_PRINTED:
            self._say(f"[rank {self._rank}] has printed more than {MOST_PRINTED // 1024} KiB; the rest is left out")

    def close(self) -> None:
        """Pass on what was printed last."""
        self.take()
        if self._begun:
            self._pass_on(self._begun)
        self._pipe.close()


@dataclass(slots=True)
class _Process:
    """The process of one rank.

    Args:
        rank: which.
        pipe: what it reports comes from.
        printed: what it prints.

    Attributes:
        status: how it has ended or is stopped, as `os.waitpid` tells; None while it runs.
        doing: step, operation, and whether the rank is in code of its own, as it said last.
        same_s: how long that has been so, s.
        silent_s: how long it has said nothing, s.
        has_joined: whether it has met the others.
        failure: why it ended: whether that only follows from another rank's, the error if it could be sent, and text.
        is_done: whether it has taken all steps.
        has_ended: whether its pipe is closed.
    """

    rank: int
    pipe: Connection
    printed: _Printed
    status: int | None = None
    doing: tuple[int, int, bool] = (-1, -1, False)
    same_s: float = 0.0
    silent_s: float = 0.0
    failure: tuple[bool, bytes | None, str] | None = None
    has_joined: bool = False
    is_done: bool = False
    has_ended: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether it said so, or died."""
        return self.failure is not None or self.has_died

    @property
    def has_died(self) -> bool:
        """Whether it ended before its last step, without saying why."""
        return self.has_ended and not self.is_done and self.failure is None

    @property
    def is_stopped(self) -> bool:
        """Whether its process is stopped by a signal."""
        return self.status is not None and os.WIFSTOPPED(self.status)


@dataclass(slots=True)
class _Parent:
    """A process that has imported torch, which takes seconds, and forks the processes of ranks; it ends when idle.

    Args:
        popen: the process.
        pipe: takes what to start.
        lock: is held while that is sent.
    """

    popen: subprocess.Popen[bytes]
    pipe: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, descriptors: Sequence[int]) -> None:
        """Have it start ranks, whose parent tells its process id in the first of some pipes.

        Raises:
            OSError: it has ended.
        """
        with self.lock:
            self.pipe.send((len(descriptors), _environment(), str(Path.cwd())))
            for descriptor in descriptors:
                send_handle(self.pipe, descriptor, self.popen.pid)


_PARENTS: dict[Any, _Parent] = {}
"""Those that are there, by what an import depends on: the path, and the environment variables that it reads."""


def _environment() -> dict[str, str]:
    """Return the environment of ranks that begin now."""
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}


def _parent() -> _Parent:
    """Return a process to fork ranks from, a new one if need be."""
    environment = _environment()
    key = (*((name, value) for name, value in sorted(environment.items()) if _READ_BY_IMPORTS.search(name)),)
    for known, parent in [*_PARENTS.items()]:
        if parent.popen.poll() is not None:
            parent.pipe.close()
            del _PARENTS[known]
    if key not in _PARENTS:
        ours, theirs = Pipe()
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, "-c", _PARENT.format(pipe=theirs.fileno(), parent=os.getpid())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process
            )
        _PARENTS[key] = _Parent(popen, ours)
    return _PARENTS[key]


@atexit.register
def end_parents() -> None:
    """End the processes that ranks are forked from; the next launch starts a new one."""
    while _PARENTS:
        _, parent = _PARENTS.popitem()
        parent.pipe.close()
        parent.popen.kill()  # it may still import torch, for seconds, and no rank of its runs any more
        parent.popen.wait()


class _Ranks:
    """The processes of all ranks.

    Args:
        ranks: those to start.
        say: takes lines that they print.

    Raises:
        TrainingError: the process that they are forked from has ended.
    """

    def __init__(self, ranks: Sequence[int], say: Callable[[str], None]) -> None:
        self.processes = []
        self._news, tell = Pipe(duplex=False)
        theirs = [tell]
        for rank in ranks:
            ours, its = Pipe()
            printed, out = os.pipe()
            self.processes.append(_Process(rank, ours, _Printed(rank, os.fdopen(printed, "rb", 0), say)))
            theirs += its, Connection(out, readable=False)
        parent = _parent()
        try:
            parent.begin([end.fileno() for end in theirs])
        except OSError:  # it has just ended, since it was idle
            parent.popen.wait()
            parent = _parent()
            parent.begin([end.fileno() for end in theirs])
        finally:
            for end in theirs:
                end.close()
        try:
            self._pid = self._news.recv()
            self._is_over = False
        except EOFError:
            raise TrainingError(
                f"the process that ranks are forked from ended with exit code {parent.popen.wait()}; does "
                "`python -c 'import minitrain.training.worker'` work?"
            ) from None
        except BaseException:  # Ctrl-C; ranks end when their pipes do
            for process in self.processes:
                process.pipe.close()
            raise

    def take_news(self) -> None:
        """Take note of who has died or is stopped."""
        try:
            while not self._is_over and self._news.poll():
                place, status = self._news.recv()
                self.processes[place].status = status
        except (EOFError, OSError):
            self._is_over = True

    def end_of(self, process: _Process) -> str:
        """Return how a process has ended that has said nothing, in words."""
        end = monotonic() + _GRACE_S
        while process.status is None and not self._is_over and (left_s := end - monotonic()) > 0:
            wait([self._news], timeout=left_s)
            self.take_news()
        if process.status is None and self._is_over:
            return (
                "ended with the process that forks ranks, which was killed (by the system itself where memory is full)"
            )
        if process.status is None:
            return "has closed its connection to this process"
        if (code := os.waitstatus_to_exitcode(process.status)) == -signal.SIGKILL:
            return "was killed by SIGKILL (by the system itself where memory is full)"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """End what still runs: the ranks, and what they have started."""
        self.take_news()
        if not self._is_over:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
                os.kill(self._pid, signal.SIGCONT)  # if it is stopped
        while not self._is_over:
            wait([self._news])
            self.take_news()
        self._news.close()
        for process in self.processes:
            process.pipe.close()
            process.printed.close()


@contextmanager
def meeting_place() -> Iterator[str]:
    """Yield the address where ranks on this machine meet, at a port that the system has chosen."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        yield f"127.0.0.1:{store.port}"
    finally:
        del store  # which closes the port


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # which has no types
    """Keeps the file names of code, by which a rank's errors say where they are, and which cloudpickle drops."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled: code as Python itself writes it, since ranks are of the same Python."""
        return (marshal.loads, (marshal.dumps(obj),)) if isinstance(obj, CodeType) else super().reducer_override(obj)


def _pickled(task: Task) -> bytes:
    """Return a task as bytes: of a strategy's file and those beside it by value, since ranks have no such modules."""
    buffer, packages = io.BytesIO(), strategy_packages()
    for package in packages:
        cloudpickle.register_pickle_by_value(package)
    try:
        _Pickler(buffer).dump(task)
    finally:
        for package in packages:
            cloudpickle.unregister_pickle_by_value(package)
    return buffer.getvalue()


def launch(
    tasks: Sequence[Task],
    on_message: Callable[[int, tuple[Any, ...]], None],
    say: Callable[[str], None],
    patience_s: float,
) -> None:
    """Run the ranks, each as a process, until all have ended.

    Args:
        tasks: what each rank does.
        on_message: takes what ranks report, by rank.
        say: takes lines that ranks print.
        patience_s: how long a rank may do nothing of its program, s.

    Raises:
        TrainingError: a rank died, or did nothing for too long.
        Exception: the error of the rank that failed first.
    """
    ranks = _Ranks([task.rank for task in tasks], say)
    try:
        for task, process in zip(tasks, ranks.processes, strict=True):
            with suppress(OSError):  # it has ended, which its pipe will tell
                process.pipe.send(_pickled(task))
        _watch(ranks, [task.program for task in tasks], on_message, patience_s)
    finally:
        ranks.end()


def _watch(
    ranks: _Ranks,
    programs: Sequence[RankProgram],
    on_message: Callable[[int, tuple[Any, ...]], None],
    patience_s: float,
) -> None:
    """Take what ranks report until all have ended, and raise why one failed."""
    processes = ranks.processes
    failed: list[_Process] = []  # in the order in which that was known
    failing_since, asked = 0.0, monotonic()
    while left := [process for process in processes if not process.has_ended]:
        _take_what_comes(processes, on_message)
        ranks.take_news()
        now = monotonic()
        if not failed and now - asked > _ASK_S:
            passed_s, asked = min(now - asked, 2 * _ASK_S), now  # more, and this process itself was kept waiting
            limit_s = _limit_s(patience_s)
            for process in left:
                _require_life(process, programs[process.rank], passed_s, limit_s)
        for process in processes:
            if process.has_failed and process not in failed:
                failing_since = failing_since or now
                failed.append(process)
        if failed and (now - failing_since > _GRACE_S or all(process.has_ended for process in processes)):
            _raise_first(failed, ranks)


def _take_what_comes(processes: Sequence[_Process], on_message: Callable[[int, tuple[Any, ...]], None]) -> None:
    """Take what ranks report and print, if anything comes before they are to be asked."""
    coming: dict[Any, _Process] = {process.pipe: process for process in processes if not process.has_ended}
    coming |= {process.printed: process for process in processes if not process.printed.is_over}
    for ready in wait([*coming], timeout=_ASK_S / 5):
        if isinstance(ready, _Printed):
            ready.take()
        else:
            _take(coming[ready], on_message)


def _take(process: _Process, on_message: Callable[[int, tuple[Any, ...]], None]) -> None:
    """Take note of what a rank reports, or that it has closed its pipe."""
    try:
        kind, *facts = message = process.pipe.recv()
    except (EOFError, OSError):
        process.has_ended = True
        return
    process.silent_s = 0.0
    if kind == "failed":
        _, *failure = facts
        process.failure = (failure[0], failure[1], failure[2])
    elif kind == "doing":
        if (found := (facts[0], facts[1], facts[2])) != process.doing:
            process.doing, process.same_s = found, 0.0
    else:
        process.has_joined = True
        process.is_done |= kind == "end"
        on_message(process.rank, message)


def _require_life(process: _Process, program: RankProgram, passed_s: float, limit_s: float) -> None:
    """Ask a rank what it does, and require that it goes on."""
    if process.status is not None and not process.is_stopped and not process.pipe.poll():
        process.has_ended = True  # what it has started holds its pipe open
        return
    process.same_s += passed_s
    process.silent_s += passed_s
    step, row, is_own_code = process.doing
    if process.is_stopped:
        message = (
            f"rank {process.rank} was stopped by a signal in step {max(step, 0)}, and cannot go on; run again, and let "
            "nothing send SIGSTOP to its process"
        )
        raise TrainingError(message, rank=process.rank, step=step)
    if row >= 0 and is_own_code and process.same_s > limit_s:
        raise _idle(program, step, row, process.same_s)
    if process.has_joined and process.silent_s > limit_s:
        message = (
            f"rank {process.rank} has not answered for {process.silent_s:.0f} s in step {max(step, 0)}: it is in code "
            "that lets nothing else run; give a larger patience if it computes"
        )
        raise TrainingError(message, rank=process.rank, step=step)
    with suppress(OSError):  # it has ended, which its pipe will tell
        process.pipe.send("?")


def _limit_s(patience_s: float) -> float:
    """Return how long a rank may do nothing, s: longer where the machine is busy."""
    return patience_s * min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), _MOST_LOADED)


def _idle(program: RankProgram, step: int, row: int, seconds: float) -> TrainingError:
    """Return the error of a rank that does nothing."""
    message = (
        f"rank {program.rank} has done nothing for {seconds:.0f} s of step {step}: {program.between(row)}; end what it "
        "waits for in the strategy, or give a larger patience"
    )
    return TrainingError(message, rank=program.rank, step=step)


def watch_itself(program: RankProgram, world_size: int, doing: Doing, patience_s: float) -> threading.Event:
    """Let this process, which torchrun has started, end when its rank does nothing for too long, or the next is silent.

    torchrun ends the others. Each rank tells the one before it that it lives, through the store where all meet.

    Args:
        program: what the rank does.
        world_size: number of ranks.
        doing: what it is about.
        patience_s: how long it may do nothing of its program, s.

    Returns:
        What must be set once it has taken all steps.
    """
    ended, run, place = threading.Event(), next(_RUNS), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    life = _Life(TCPStore(*place, is_master=False), f"minitrain/{run}", program.rank, world_size)
    life.tell()
    _thread.start_new_thread(_watch_it, (program, doing, life, patience_s, ended))  # does not wait for its begin
    return ended


def _watch_it(program: RankProgram, doing: Doing, life: _Life, patience_s: float, ended: threading.Event) -> None:
    """Watch a rank, and the next one, until it has taken all steps."""
    known, since = doing.answer(), monotonic()
    while not ended.wait(_ASK_S):
        limit_s = _limit_s(patience_s)
        step, row, is_own_code = found = doing.answer()
        if found != known:
            known, since = found, monotonic()
        elif row >= 0 and is_own_code and monotonic() - since > limit_s:
            _end_here(str(_idle(program, step, row, monotonic() - since)))
        life.tell()
        if (silent_s := life.silent_s()) > limit_s:
            _end_here(f"{life.last_words(silent_s)} in step {max(step, 0)}")
    life.end()


@dataclass(slots=True)
class _Life:
    """What ranks of torchrun tell one another: that they live.

    Args:
        store: where all meet.
        name: of the run there.
        rank: this rank.
        world_size: number of ranks.

    Attributes:
        beat: how often it has told so.
        heard: what the next one has told last.
        heard_at: when.
    """

    store: Any
    name: str
    rank: int
    world_size: int
    beat: int = 0
    heard: bytes = b""
    heard_at: float = field(default_factory=monotonic)

    def tell(self) -> None:
        """Tell it."""
        self.beat += 1
        told = f"{self.beat} {os.getppid()} {os.getpid()} {platform.node()}"
        self.store.set(f"{self.name}/{self.rank}", told)

    def end(self) -> None:
        """Tell that nothing more will come."""
        self.store.set(f"{self.name}/{self.rank}", _DONE)

    def silent_s(self) -> float:
        """Return for how long the next rank has told nothing, s; 0 before it has begun, and when it is done."""
        key = f"{self.name}/{(self.rank + 1) % self.world_size}"
        now = self.store.get(key) if self.store.check([key]) else b""
        if now != self.heard or now in (b"", _DONE):
            self.heard, self.heard_at = now, monotonic()
        return monotonic() - self.heard_at

    def last_words(self, silent_s: float) -> str:
        """Return in words why the next rank is silent; one that is stopped here is killed.

        torchrun, which has started it, would wait for it for half a minute.
        """
        _, parent, pid, node = self.heard.decode().split(" ", 3)
        rank = (self.rank + 1) % self.world_size
        if node == platform.node() and int(parent) == os.getppid():
            with suppress(OSError, IndexError):
                if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T":
                    os.kill(int(pid), signal.SIGKILL)
                    return f"rank {rank} was stopped by a signal"
        return (
            f"rank {rank} has not answered for {silent_s:.0f} s: it is stopped, or in code that lets nothing else run,"
        )


def _end_here(text: str) -> NoReturn:
    """Say why, and end this process."""
    print(f"minitrain: {text}", file=sys.stderr, flush=True)
    os._exit(1)


def _raise_first(failed: Sequence[_Process], ranks: _Ranks) -> NoReturn:
    """Raise the error of the rank that failed first, as far as that can be told: others only lost it.

    Args:
        failed: those that have, in the order in which that was known.
        ranks: the processes of all.
    """
    for process in failed:
        if process.failure and not process.failure[0]:
            _raise_own(process)
    for process in failed:
        if process.has_died:
            raise TrainingError(
                f"rank {process.rank} {ranks.end_of(process)} in step {max(process.doing[0], 0)}; all other ranks "
                "were ended",
                rank=process.rank,
            )
    _raise_own(failed[0])


def _raise_own(process: _Process) -> NoReturn:
    """Raise the error of a rank."""
    assert process.failure is not None
    _, sent, text = process.failure
    note = f"on rank {process.rank} of a real run, step {max(process.doing[0], 0)}"
    if sent is not None:
        error: BaseException = pickle.loads(sent)
        if isinstance(error, Exception):
            error.add_note(note)
            raise error
    raise TrainingError(f"{note}:\n{text}", rank=process.rank)
