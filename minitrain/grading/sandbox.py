"""Running a submission in a process of its own, with limits of time and memory.

Its Python gets a copy of minitrain that lacks the shipped strategies, the exercises and the grader; what the process
prints is captured; the whole process group is killed when time is over.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitrain.grading.exercise import Case

_PACKAGE = Path(__file__).parent.parent
_LEFT_OUT = ("strategies", "exercises", "numerics", "cli", "trace", "hw_configs", "__pycache__")
_OF_GRADING = ("recorder.py", "worker.py")
MOST_OUTPUT = 64 * 2**20
"""Bytes that a submission's program may have."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a submission may use.

    Args:
        seconds: wall and CPU time of the whole process.
        memory_bytes: address space.
    """

    seconds: float = 20.0
    memory_bytes: int = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back from a submission's process.

    Args:
        results: one a case, as far as it came: programs and lines, or an error.
        failure: why there are not more, or None.
        output: what it printed.
        seconds: how long it took.
    """

    results: Sequence[dict[str, Any]]
    failure: str | None
    output: str
    seconds: float


@contextlib.contextmanager
def submitted(file: Path, function: str, cases: Sequence[Case], hardware: str, limits: Limits) -> Iterator[_Process]:
    """Run a submission while the caller does something else; `outcome` waits for its end."""
    with tempfile.TemporaryDirectory(prefix="minitrain-grading-") as folder:
        home = Path(folder)
        _stage(home)
        process = _Process(home, file, function, cases, hardware, limits)
        try:
            yield process
        finally:
            process.kill()


def _stage(home: Path) -> None:
    """Copy what a strategy needs of minitrain."""
    package = home / "minitrain"
    shutil.copytree(_PACKAGE, package, ignore=shutil.ignore_patterns(*_LEFT_OUT, "grading"))
    (package / "grading").mkdir()
    for name in _OF_GRADING:
        shutil.copy(_PACKAGE / "grading" / name, package / "grading" / name)
    for name in ("grading", "strategies"):
        (package / name).mkdir(exist_ok=True)
        (package / name / "__init__.py").write_text('"""Empty here."""\n\n__all__: list[str] = []\n')
    shutil.copytree(_folder_of("hw_configs"), package / "hw_configs", ignore=shutil.ignore_patterns("__pycache__"))


def _folder_of(name: str) -> Path:
    """Return where a part of minitrain is, which depends on how it is installed."""
    return Path(importlib.import_module(f"minitrain.{name}").__path__[0])


def _refused() -> list[str]:
    """Return the folders that a submission must not read: minitrain itself, wherever it is installed."""
    return [os.path.realpath(path) for path in (_PACKAGE, _folder_of("strategies"))]


class _Process:
    """A submission's process."""

    def __init__(
        self, home: Path, file: Path, function: str, cases: Sequence[Case], hardware: str, limits: Limits
    ) -> None:
        self.limits = limits
        self.began = time.monotonic()
        read, write = os.pipe()
        job = {
            "home": str(home),
            "file": str(file.resolve()),
            "function": function,
            "cases": [{"sizes": case.sizes, "options": dict(case.options), "hardware": hardware} for case in cases],
            "refused": _refused(),
            "result": write,
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(home / "minitrain" / "grading" / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
            cwd=home,
            env={"PATH": os.defpath, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        os.close(write)
        self._readers = [_Reader(os.fdopen(read, "rb"), MOST_OUTPUT), _Reader(self.process.stdout, 2**16)]
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(job).encode())
            self.process.stdin.close()

    def outcome(self) -> Outcome:
        """Wait for the process to end, or end it, and return what it brought."""
        failure = None
        try:
            code = self.process.wait(max(0.0, self.began + self.limits.seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            failure = f"it was stopped after {self.limits.seconds:g} s; does it wait or loop for ever?"
        self.kill()
        results, output = (reader.text() for reader in self._readers)
        found: list[dict[str, Any]] = []
        try:
            found = json.loads(results)
            if not (isinstance(found, list) and all(isinstance(result, dict) for result in found)):
                raise ValueError("one object a case")  # noqa: TRY301  (as if it could not be read)
        except (ValueError, RecursionError):
            found, failure = [], failure or _why(code)
        return Outcome(found, failure, output, time.monotonic() - self.began)

    def kill(self) -> None:
        """End the process and all that it may have started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _why(code: int) -> str:
    """Return why a process ended without a result."""
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "it was stopped: it used more time or memory than it may"
    return f"its process ended before the run was over, with exit code {code}; a strategy returns its model"


class _Reader(threading.Thread):
    """Reads a pipe to its end, keeping no more than it should, so that the writer never waits."""

    def __init__(self, pipe: Any, most: int) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._most = most
        self._parts: list[bytes] = []
        self.start()

    def run(self) -> None:
        """Read."""
        room = self._most
        with self._pipe:
            while part := self._pipe.read1(2**16):
                self._parts.append(part[:room])
                room = max(0, room - len(part))

    def text(self) -> str:
        """Return what was read."""
        self.join(timeout=5)
        return b"".join(self._parts).decode(errors="replace")
