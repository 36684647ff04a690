"""Starting the processes of all ranks on this machine, watching them, and ending all of them when one fails.

Each rank is a process of its own with a pipe to this one. A rank that dies closes its pipe, which is noticed at once.
One that does nothing between two operations for too long is noticed by asking. Whatever happens, all processes have
ended when `launch` returns or raises.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import cloudpickle  # type: ignore[import-untyped]

from minitrain.errors import TrainingError
from minitrain.training.program import RankProgram
from minitrain.training.worker import FD, Task

MOST_PRINTED = 2**16
"""Bytes that a rank may print before the rest is left out."""

_ASK_S = 0.5
_GRACE_S = 0.5  # how long other ranks may take to say that they failed too, of which the first cause is looked for


@dataclass(slots=True)
class _Process:
    """The process of one rank.

    Attributes:
        doing: step, operation, and whether the rank is in code of its own, as it said last.
        since: when that was first so, s.
        heard: when it said something last, s.
        has_joined: whether it has met the others.
        failure: why it ended: whether that only follows from another rank's, the error if it could be sent, and text.
    """

    rank: int
    popen: subprocess.Popen[bytes]
    pipe: Connection
    doing: tuple[int, int, bool] = (-1, -1, False)
    since: float = 0.0
    heard: float = 0.0
    failure: tuple[bool, bytes | None, str] | None = None
    has_joined: bool = False
    has_ended: bool = False


def free_port() -> int:
    """Return a port of this machine that nobody listens to."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


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
    processes: list[_Process] = []
    try:
        for task in tasks:
            processes.append(_started(task.rank, say))
        for task, process in zip(tasks, processes, strict=True):
            process.pipe.send(cloudpickle.dumps(task))
        _watch(processes, [task.program for task in tasks], on_message, patience_s)
    finally:
        _end(processes)


def _started(rank: int, say: Callable[[str], None]) -> _Process:
    """Start the process of a rank, whose lines are passed on."""
    ours, theirs = Pipe()
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    environment = {**os.environ, FD: str(theirs.fileno()), "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    popen = subprocess.Popen(
        [sys.executable, "-c", "from minitrain.training.worker import main; main()"],
        env=environment,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for this process
    )
    theirs.close()
    threading.Thread(target=_pass_on, args=(rank, popen, say), daemon=True).start()
    return _Process(rank, popen, ours, since=monotonic(), heard=monotonic())


def _pass_on(rank: int, popen: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """Pass on what a rank prints, as far as anybody can read it."""
    printed = 0
    assert popen.stdout is not None
    for line in popen.stdout:
        if printed < MOST_PRINTED:
            printed += len(line)
            say(f"[rank {rank}] {line[:MOST_PRINTED].decode(errors='replace').rstrip()}")
            if printed >= MOST_PRINTED:
                say(f"[rank {rank}] has printed more than {MOST_PRINTED // 1024} KiB; the rest is left out")


def _watch(
    processes: Sequence[_Process],
    programs: Sequence[RankProgram],
    on_message: Callable[[int, tuple[Any, ...]], None],
    patience_s: float,
) -> None:
    """Take what ranks report until all have ended, and raise why one failed."""
    by_pipe = {process.pipe: process for process in processes}
    failing_since: float | None = None
    asked = 0.0
    while by_pipe:
        for pipe in wait(list(by_pipe), timeout=_ASK_S / 5):
            process = by_pipe[pipe]  # type: ignore[index]  # one of them
            try:
                _take(process, process.pipe.recv(), on_message)
            except (EOFError, OSError):
                del by_pipe[process.pipe]
                process.has_ended = True
                process.popen.wait()
        now = monotonic()
        if any(process.failure or (process.has_ended and process.popen.returncode) for process in processes):
            failing_since = now if failing_since is None else failing_since
            if now - failing_since > _GRACE_S or not by_pipe:
                _raise_first(processes)
        elif now - asked > _ASK_S:
            asked = now
            for process in by_pipe.values():
                _require_life(process, programs[process.rank], patience_s, now)


def _take(process: _Process, message: tuple[Any, ...], on_message: Callable[[int, tuple[Any, ...]], None]) -> None:
    """Take note of what a rank reports."""
    kind, *facts = message
    process.heard = monotonic()
    if kind == "failed":
        _, *failure = facts
        process.failure = (failure[0], failure[1], failure[2])
    elif kind == "doing":
        if (found := (facts[0], facts[1], facts[2])) != process.doing:
            process.doing, process.since = found, process.heard
    else:
        process.has_joined = True
        on_message(process.rank, message)


def _require_life(process: _Process, program: RankProgram, patience_s: float, now: float) -> None:
    """Ask a rank what it does, and require that it goes on."""
    step, row, is_own_code = process.doing
    if row >= 0 and is_own_code and now - process.since > patience_s:
        raise TrainingError(
            f"rank {process.rank} has done nothing for {now - process.since:.0f} s of step {step}: "
            f"{program.between(row)}; end what it waits for in the strategy, or give a larger patience",
            rank=process.rank,
            step=step,
        )
    if process.has_joined and now - process.heard > patience_s:
        raise TrainingError(
            f"rank {process.rank} has not answered for {now - process.heard:.0f} s in step {max(step, 0)}: its "
            "process is stopped, or in code that lets nothing else run; give a larger patience if it computes",
            rank=process.rank,
            step=step,
        )
    with suppress(OSError):  # it has ended, which its pipe will tell
        process.pipe.send("?")


def _raise_first(processes: Sequence[_Process]) -> NoReturn:
    """Raise the error of the rank that failed first, as far as that can be told: others only lost it."""
    died = [process for process in processes if process.has_ended and not process.failure and process.popen.returncode]
    own = [process for process in processes if process.failure and not process.failure[0]]
    if own:
        _raise_own(own[0])
    if died:
        code = died[0].popen.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise TrainingError(
            f"rank {died[0].rank} {how} in step {max(died[0].doing[0], 0)}; all other ranks were ended",
            rank=died[0].rank,
        )
    _raise_own(next(process for process in processes if process.failure))


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


def _end(processes: Sequence[_Process]) -> None:
    """End what still runs."""
    left = [process.popen for process in processes if process.popen.poll() is None]
    for popen in left:
        popen.terminate()
    for popen in left:
        try:
            popen.wait(0.3)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
    for process in processes:
        process.pipe.close()
        if process.popen.stdout is not None and process.popen.poll() is not None:
            process.popen.stdout.close()
