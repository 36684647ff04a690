"""Running a submission in a process of its own, apart from everything else and with limits of time and memory.

The process gets a folder with the submission and a copy of minitrain that lacks the shipped strategies, the exercises
and the grader. How it is kept apart is the subject of `isolation`; what it prints is captured; it ends, with whatever
it started, when time is over.

The names that learning platforms give to collected files: whose a file is, and what its author called it.

| platform | what `helper.py` of Alice Smith is called |
|---|---|
| Canvas | `smithalice_4711_99012_helper.py`; late and once more, `smithalice_LATE_4711_99012_helper-1.py` |
| Moodle | `Alice Smith_4711_assignsubmission_file_helper.py`, or `helper.py` in such a folder |
| Blackboard | `Exercise 2_asmith_attempt_2026-11-26-10-00-00_helper.py` |
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.files import TemporaryFolder
from minitrain.learn.exercise import Case
from minitrain.learn.isolation import (
    HERE,
    PACKAGE,
    Isolation,
    command_for,
    copy_minitrain,
    folder_of,
    from_worker,
    packages,
    plan_for,
    require_mode,
)
from minitrain.learn.notebook import code_of
from minitrain.learn.wire import SUBMISSION, decoded
from minitrain.machine import load_config
from minitrain.plain_text import printable

MOST_OUTPUT = 32 * 2**20
"""Bytes that a submission's programs may have."""

LONGEST_SOURCE = 2**20
"""Bytes of a submission."""

LONGEST_NOTEBOOK = 2**24
"""Bytes of a notebook, whose pictures are no source."""

NOTEBOOK = ".ipynb"

MOST_PRINTED = 2**16
"""Bytes that are kept of what it prints."""

_GRACE_S = 1.0
"""After its time is over, a submission's process may say at which line it is."""

_KILLED = (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a submission may use.

    Args:
        seconds: wall and CPU time of the process, and of the grader's own runs of what it did.
        memory_bytes: address space of the process.
        isolation: how it is kept apart: "auto" by all means of this machine, "required" by the kernel in every
            respect or not at all, "none" by a process of its own alone.

    Raises:
        UsageError: there is no such isolation.
    """

    seconds: float = 20.0
    memory_bytes: int = 2 * 2**30
    isolation: str = "auto"

    def __post_init__(self) -> None:
        require_mode(self.isolation)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back from a submission's process.

    Args:
        results: one a case, as far as it came: programs and lines, or an error.
        failure: why there are not more, or None.
        output: what it printed.
        seconds: how long it took.
        isolation: what kept it apart.
    """

    results: Sequence[dict[str, Any]]
    failure: str | None
    output: str
    seconds: float
    isolation: Isolation = HERE


@contextlib.contextmanager
def submitted(
    file: Path,
    function: str,
    cases: Sequence[Case],
    hardware: str,
    limits: Limits,
    secrets: Sequence[Path] = (),
    beside: Sequence[Path] = (),
) -> Iterator[_Process]:
    """Run a submission while the caller does something else; `outcome` waits for its end.

    Args:
        file: the submission.
        function: its name there.
        cases: sizes to run it with, one after the other.
        hardware: config that it is priced on.
        limits: of the process.
        secrets: folders that it must not read, beside minitrain itself.
        beside: files of the submission's folder that it may import.

    Raises:
        UsageError: there is no such isolation.
    """
    with TemporaryFolder("minitrain-grading-") as home:
        refused = [*_refused(), *(path.resolve() for path in secrets)]
        command = command_for(limits.isolation, home, refused)
        staged = _stage(home, file, beside, own_copy=not command)
        job = {
            "home": str(home),
            "file": str(staged),
            "function": function,
            "cases": [{"sizes": case.sizes, "options": dict(case.options)} for case in cases],
            "config": pickle.dumps(load_config(hardware)).hex() if cases else "",  # read here: its schema takes long
            "packages": [str(path) for path in packages().values()],
            "refused": [str(path) for path in refused],
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
            "required": limits.isolation == "required",
        }
        process = _Process(command, home, limits, len(cases), {str(staged): str(file.resolve())})
        try:
            # the process starts already, and waits for this plan, which takes a moment to work out
            process.tell(job | plan_for(limits.isolation, home, refused, wrapped=bool(command)))
            yield process
        finally:
            process.end()


def probe() -> Isolation:
    """Return the isolation that a submission would have here, by running one that is empty."""
    with TemporaryFolder("minitrain-probe-") as folder:
        file = folder / "empty.py"
        file.write_text("")
        with submitted(file, "nothing", [], "", Limits()) as process:
            return process.outcome().isolation


def source_of(file: Path) -> bytes:
    """Return a submission's text; of a notebook, what its cells define.

    Raises:
        UsageError: it is no file of its own folder, too long for one, or no notebook.
    """
    if not file.resolve().is_relative_to(file.parent.resolve()):
        raise UsageError(f"{file} must be a file of its own folder; a link to another one is not graded")
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is a folder, a pipe or a device; a submission is a file")
    longest = LONGEST_NOTEBOOK if file.suffix == NOTEBOOK else LONGEST_SOURCE
    try:
        with file.open("rb") as opened:
            text = opened.read(longest + 1)
    except (FileNotFoundError, PermissionError) as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    if len(text) <= longest and file.suffix == NOTEBOOK:
        try:
            text = code_of(text)
        except ValueError as error:
            raise UsageError(f"{file} is no notebook: {error}") from error
        longest = LONGEST_SOURCE
    if len(text) > longest:
        raise UsageError(f"{file} has more than {longest} bytes; a submission is source text")
    return text


def _stage(home: Path, file: Path, beside: Sequence[Path], *, own_copy: bool) -> Path:
    """Copy the submission, and what it needs of minitrain where that is not mounted, and return where the former is."""
    copy_minitrain(home / "minitrain") if own_copy else (home / "minitrain").mkdir()
    (home / "packages").mkdir()
    for name, path in packages().items():
        (home / "packages" / (f"{name}{path.suffix}" if path.is_file() else name)).symlink_to(path)
    for path in (*beside, file):
        own = own_name(path.name) if path is not file else path.name  # a helper is imported by its author's name
        staged = (home / SUBMISSION / path.relative_to(file.parent).with_name(own)).with_suffix(".py")
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(source_of(path))
    return staged


def _refused() -> list[Path]:
    """Return the folders of the installed minitrain, which a submission must not read."""
    return [path.resolve() for path in (PACKAGE, folder_of("strategies"))]


class _Process:
    """A submission's process.

    Args:
        command: what goes before the interpreter.
        home: its folder.
        limits: what it may use.
        most: how many cases it has.
        names: paths to replace in its messages, by what.
    """

    def __init__(self, command: Sequence[str], home: Path, limits: Limits, most: int, names: Mapping[str, str]) -> None:
        self.limits = limits
        self.most = most
        self.names = names
        self.began = time.monotonic()
        read, write = os.pipe()
        worker = home / "minitrain" / "learn" / "worker.py"
        interpreter = os.path.realpath(sys.executable)
        self.process = subprocess.Popen(
            [*command, interpreter, "-I", "-B", "-S", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
            cwd=home,
            env={"PATH": os.defpath, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        os.close(write)
        self._result = write
        pipes = [(os.fdopen(read, "rb"), MOST_OUTPUT), (self.process.stdout, MOST_PRINTED)]
        try:
            self._readers = [_Reader(*pipe) for pipe in pipes]
        except RuntimeError:  # no thread can be started
            self.end()
            for pipe in (*(pipe for pipe, _ in pipes), self.process.stdin):
                pipe.close()  # type: ignore[union-attr]  # all are there
            raise

    def tell(self, job: Mapping[str, Any]) -> None:
        """Send the process its job, for which it waits."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps({**job, "result": self._result, "until": self.began + self.limits.seconds}).encode())

    def outcome(self) -> Outcome:
        """Wait for the process to end, or end it, and return what it brought.

        Raises:
            UsageError: isolation is required, and the kernel does not hold the process in every respect.
            OSError: the process ended before it came to the submission.
        """
        failure, code = None, 0
        until = self.began + self.limits.seconds + _GRACE_S
        self._readers[0].join(max(0.0, until - time.monotonic()))  # returns at once when it ends; `wait` polls
        try:
            code = self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            failure = f"it was stopped after {self.limits.seconds:g} s; does it wait or loop for ever?"
        self.end()
        data, printed = (reader.data() for reader in self._readers)
        found: list[dict[str, Any]] = []
        first: Any = {}
        with contextlib.suppress(ValueError):
            first = decoded(data.partition(b"\n")[0] + b"\n", 0)[0]
        isolation = from_worker(self.limits.isolation, first.get("isolation"))
        if "isolation" not in first:  # which is written before a submission can do anything
            how = f"it took more than {self.limits.seconds:g} s" if failure else f"it ended with exit code {code}"
            raise OSError(errno.ENOMEM, f"a process did not come as far as the submission, {how}")
        try:
            found = decoded(data, self.most)[1]
            if not found and self.most:
                raise ValueError("one result a case")  # noqa: TRY301  (as if it could not be read)
        except ValueError:
            found, failure = [], failure or _why(code)
        if failure:
            found = []
        seconds = time.monotonic() - self.began
        return Outcome(
            [self._renamed(result) for result in found],
            failure,
            printable(printed.decode(errors="replace")),
            seconds,
            isolation,
        )

    def _renamed(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result whose message names the submission by its own path."""
        error = result.get("error")
        if isinstance(error, dict):
            for staged, own in self.names.items():
                error["message"] = str(error.get("message")).replace(staged, own)
        return result

    def end(self) -> None:
        """End the process and all that it may have started."""
        for what, seconds in (
            (self.process.terminate, 1.0),
            (partial(os.killpg, self.process.pid, signal.SIGKILL), None),
        ):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                what()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)


def _why(code: int) -> str:
    """Return why a process ended without a result."""
    if code in _KILLED:
        return "it was stopped: it used more time or memory than it may"
    return f"its process ended before the run was over, with exit code {code}; a strategy returns its model"


class _Reader:
    """Reads a pipe to its end, keeping no more than it should, so that the writer never waits.

    Its thread is waited for as long as is said, and not for its begin, as `threading` does: for ever without memory.
    """

    def __init__(self, pipe: Any, most: int) -> None:
        self._pipe = pipe
        self._most = most
        self._kept = bytearray()
        self._reading = _thread.allocate_lock()
        self._reading.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        """Read."""
        try:
            with self._pipe:
                while part := self._pipe.read1(2**16):
                    self._kept += part[: self._most - len(self._kept)]
        finally:
            self._reading.release()

    def join(self, seconds: float) -> None:
        """Wait for the end, and not for longer than some seconds."""
        if self._reading.acquire(timeout=seconds):
            self._reading.release()

    def data(self) -> bytes:
        """Return what was read."""
        self.join(5)
        return bytes(self._kept)


_FORMS = (
    re.compile(r"(?P<student>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_(?P<name>.+?)(?:-\d+)?(?P<ending>\.\w+)?"),
    re.compile(r"(?P<student>.+?)_\d+_assignsubmission_(?:file|onlinetext)_*(?P<name>.*?)(?P<ending>\.\w+)?"),
    re.compile(r".+?_(?P<student>[^_]+)_attempt_[\d-]+_(?P<name>.+?)(?P<ending>\.\w+)?"),
)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file or folder as a platform has named it.

    Args:
        student: whose it is; on Canvas with the number that rosters have, as two students may have one name.
        name: what its author called it; "" for a folder that the platform has made.
    """

    student: str
    name: str


def upload_of(name: str) -> Upload | None:
    """Return what a platform's name of a file says, None if it is no such name.

    >>> upload_of("smithalice_LATE_4711_99012_02_ddp-1.py")
    Upload(student='smithalice_4711', name='02_ddp.py')
    >>> upload_of("02_ddp.py") is None
    True
    """
    match = next((match for form in _FORMS if (match := form.fullmatch(name))), None)
    if match is None:
        return None
    number = match.groupdict().get("number")
    return Upload(match["student"] + (f"_{number}" if number else ""), match["name"] + (match["ending"] or ""))


def own_name(name: str) -> str:
    """Return what the author of a file called it, whatever a platform has made of it."""
    upload = upload_of(name)
    return name if upload is None else upload.name or name
