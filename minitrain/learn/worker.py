"""The submission's process: it runs the submission on recording models, and sends back what it did.

Started by `minitrain.learn.sandbox` as a script, on a copy of minitrain without strategies, exercises, numerics and
the rest of grading. Before the submission is loaded, `confinement` has the kernel confine the process, and an audit
hook is installed. The hook refuses what a strategy does not need with a message that a person understands. It is an
explanation and no protection: Python code can reach and replace Python objects, so only the kernel's refusals hold.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pickle
import signal
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any

REFUSED = (
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.kill",
    "os.killpg", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.chdir", "subprocess.", "ctypes.", "shutil.", "tempfile.", "pty.",
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostby", "socket.sendto", "signal.pthread_kill",
    "resource.", "mmap.", "webbrowser.", "ftplib.", "http.", "urllib.", "smtplib.", "sqlite3.", "winreg.",
)  # fmt: skip
"""Audit events, by how they begin."""

_BATCH = 2**16

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class RefusedError(PermissionError):
    """The submission asked for something that no strategy needs."""


class Guard:
    """An audit hook that refuses what no strategy needs, with a message that says so.

    Args:
        readable: folders whose files may be read.
        refused: folders, perhaps inside of them, whose files may not.
    """

    def __init__(self, readable: list[str], refused: list[str]) -> None:
        self._readable = readable
        self._refused = refused

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Refuse an event by raising."""
        if event == "open":
            self._open(*args)
        elif event in ("os.listdir", "os.scandir"):
            self._require_readable(args[0] or ".")
        elif event.startswith(REFUSED):
            raise RefusedError(f"a submission may not do {event}")

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        """Refuse files to write, and those of other folders."""
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & _WRITING):
            raise RefusedError(f"a submission may not write {path!r}")
        if isinstance(path, str | bytes | os.PathLike):
            self._require_readable(path)

    def _require_readable(self, path: Any) -> None:
        """Refuse a path outside of the readable folders."""
        real = os.path.realpath(os.fsdecode(path))
        if _within(real, self._refused) or not _within(real, self._readable):
            raise RefusedError(f"a submission may not read {real}")


def _within(path: str, folders: list[str]) -> bool:
    """Return whether a path is in one of some folders."""
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def readable_folders(*own: str) -> list[str]:
    """Return the folders of Python itself, of installed packages, and one's own."""
    paths = {os.path.realpath(path) for path in (*sysconfig.get_paths().values(), *own) if path}
    return sorted(path for path in paths if path != os.path.realpath(sysconfig.get_path("data")))


MOST_STEPS_DRAWN = 20_000
"""Steps of all ranks before an error; of more, nobody would see anything in a picture."""


def run_case(function: Any, case: Mapping[str, Any]) -> dict[str, Any]:
    """Run the submission with some sizes, and return its programs, or what went wrong."""
    from minitrain.learn.recorder import Recorder  # noqa: PLC0415
    from minitrain.learn.wire import describe, noting_what_is_never_awaited  # noqa: PLC0415
    from minitrain.run.simulation import simulate  # noqa: PLC0415  (of the copy, once it is first on the path)

    recorder = Recorder()
    with noting_what_is_never_awaited() as forgotten:
        try:
            simulate(
                function,
                strict=True,
                observers=[recorder],
                hardware=case["hardware"],
                **case["sizes"],
                **case["options"],
            )
        except BaseException as error:  # whatever it is, it is the submission's
            told = describe(error, recorder.models, recorder.left_at) | {"never_awaited": next(iter(forgotten), None)}
            ended = {"error": told, **_programs_up_to_error(recorder)}
        else:
            return {"programs": recorder.programs, "lines": recorder.lines}
        if "coroutine" in told["message"]:
            del recorder  # whose models hold the error, which holds the coroutine
            gc.collect()  # so that it is not taken for one of the next run
    return ended


def _programs_up_to_error(recorder: Any) -> dict[str, Any]:
    """Return what the ranks did until an error, for a picture of it; nothing if that is too much to be drawn."""
    programs = {"programs": recorder.programs, "lines": recorder.lines}
    return programs if 0 < sum(map(len, programs["programs"])) <= MOST_STEPS_DRAWN else {}


def limit(seconds: float, memory_bytes: int) -> None:  # pragma: no cover  (only in a submission's process)
    """Limit this process, for good."""
    import resource  # noqa: PLC0415  (Unix only)

    for what, most in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(what, (most, most))


class Deadline:
    """What happens when a submission's time is over: it sends the grader the line that runs, and the process ends.

    The grader ends the process itself a moment later, whatever a submission does about this.

    Args:
        seconds: the time that it has.
        until: when it is over, by the clock that both processes read, s.
        result: descriptor of the grader.

    Attributes:
        holds: whether the submission runs now, so that a message fits between those of its cases.
    """

    def __init__(self, seconds: float, until: float, result: int) -> None:
        self.seconds = seconds
        self.until = until
        self.result = result
        self.holds = False

    def set(self) -> None:  # pragma: no cover  (only in a submission's process)
        """Set the timer, by a system call that is refused once the process is confined."""
        signal.signal(signal.SIGALRM, self.is_over)
        signal.setitimer(signal.ITIMER_REAL, max(0.01, self.until - time.monotonic()))

    def is_over(self, _signal: int, frame: FrameType | None) -> None:  # pragma: no cover
        """Send the grader an error with the line that runs, and end."""
        if self.holds:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            _send(os.write, self.result, json.dumps({"error": self.error(_wire().line_of(frame))}).encode() + b"\n")
            os._exit(0)

    def error(self, line: str | None) -> dict[str, Any]:
        """Return the error of a submission that needs too long."""
        message = f"it was stopped after {self.seconds:g} s; does it wait or loop for ever?"
        return {"kinds": ["TimeoutError", "MinitrainError"], "message": message, "line": line}


def _wire() -> Any:  # pragma: no cover  (only in a submission's process)
    """Return the module `wire`, which is not on the path before `main`."""
    return importlib.import_module("minitrain.learn.wire")


def disarm() -> None:  # pragma: no cover  (only in a submission's process)
    """Take away the ways to start a process that raise no audit event."""
    import _posixsubprocess  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    def refuse(*_: Any) -> None:
        raise RefusedError("a submission may not start a process")

    _posixsubprocess.fork_exec = refuse  # type: ignore[assignment]  # on purpose
    subprocess._fork_exec = refuse  # type: ignore[attr-defined]
    os.fork = os.forkpty = refuse  # type: ignore[assignment]


def prepare(config: str) -> tuple[Callable[[str], Any], Any]:  # pragma: no cover  (only in a submission's process)
    """Import all that a run needs, from the copy of minitrain.

    Args:
        config: the hardware config that the grader has read, pickled, in hexadecimal; empty where nothing is run.

    Returns:
        What loads a strategy, and the config.
    """
    parts = ("run.simulation", "run.strict.observer", "learn.recorder", "learn.wire")
    for name in parts:
        importlib.import_module(f"minitrain.{name}")
    system = pickle.loads(bytes.fromhex(config)) if config else None  # of the grader, before the submission is loaded
    if system is not None:
        importlib.import_module("minitrain.run.parameters").make_predictor(system, 1)
    loading: Any = importlib.import_module("minitrain.run.strategy_loading")
    return lambda text: loading.load_strategy(text)[1], system


def run_all(
    load: Callable[[str], Any], system: Any, job: Mapping[str, Any], deadline: Deadline
) -> Iterator[dict[str, Any]]:  # pragma: no cover  (only in a submission's process)
    """Load the submission and run it with all sizes, up to the first that fails."""
    deadline.holds = True
    try:
        function = load(f"{job['file']}:{job['function']}")
    except BaseException as error:  # also what its top level raises
        deadline.holds = False
        yield {"error": {**_wire().describe(error), "of_loading": True}}
        return
    for case in job["cases"]:
        deadline.holds = True
        result = run_case(function, {**case, "hardware": system})
        deadline.holds = False
        yield result
        if "error" in result:
            return


def isolate(
    job: Mapping[str, Any], prepared: Callable[[], Any], deadline: Deadline
) -> tuple[Any, dict[str, str]]:  # pragma: no cover  (only in a submission's process)
    """Confine this process between preparing a run and loading the submission.

    Returns:
        What was prepared, and the means of isolation in force.
    """
    confinement: Any = importlib.import_module("minitrain.learn.confinement")
    kernel = confinement.kernel_here() if job["readable"] is not None else None
    means: dict[str, str] = {}
    if kernel is not None:
        means = {"bubblewrap": "a mount namespace"} if job["wrapped"] else confinement.hold(kernel, job["covered"])
    ready = prepared()
    disarm()
    deadline.set()
    limit(job["seconds"], job["memory_bytes"])
    return ready, means if kernel is None else confinement.confine(kernel, job, means)


def main() -> None:  # pragma: no cover  (only in a submission's process)
    """Read a job from stdin, run it, and write its results to the job's descriptor."""
    job = json.loads(sys.stdin.read())
    sys.path[:0] = [job["home"], os.path.join(job["home"], "packages")]  # noqa: PTH118  (before the path is prepared)
    sys.path.append(os.path.dirname(job["file"]))  # noqa: PTH120  (last: it shadows nothing)
    deadline = Deadline(job["seconds"], job["until"], job["result"])
    (load, system), means = isolate(job, partial(prepare, job["config"]), deadline)
    wire: Any = importlib.import_module("minitrain.learn.wire")
    send = partial(_send, os.write, job["result"])
    send(json.dumps({"isolation": means}).encode() + b"\n")
    confinement: Any = importlib.import_module("minitrain.learn.confinement")
    if job["required"] and confinement.not_held(means):
        return
    sys.addaudithook(Guard(readable_folders(job["home"], *job["packages"]), job["refused"]))
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited")  # a hint reports it
    job = {name: job[name] for name in ("file", "function", "cases")}  # a submission can read this frame
    for result in run_all(load, system, job, deadline):
        for part in batched(wire.encoded(result)):
            send(part)


def batched(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines together, some thousand bytes at a time."""
    parts: list[bytes] = []
    size = 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size >= _BATCH:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


def _send(write: Callable[[int, Any], int], where: int, data: bytes) -> None:  # pragma: no cover
    """Write all bytes."""
    rest = memoryview(data)
    while rest:
        rest = rest[write(where, rest) :]


if __name__ == "__main__":  # pragma: no cover
    main()
