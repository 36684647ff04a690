"""`python -m benchmarks.trials`: commands are ended, lose a process, or lack disk or memory; what is left is counted.

- **kill**: a command is ended by `kill -9` while its processes are at work, as what they have computed or printed
  shows. Within five seconds none of them is alive, and what it left where temporary files are is gone after the next
  command of its kind. Where a process is still there and has had less than a second of a processor, as on a loaded
  machine, its end is waited for, and said.
- **interrupt**: likewise, by Ctrl-C, which leaves nothing temporary either.
- **loss**: one process of a command is killed at a random moment, as the system does when memory is short. The command
  ends by itself, with all its rows or with one message, and leaves no process.
- **disk**: a command writes to a file system that is full, half of the times its temporary files too. Each file is
  whole or absent, and the error is a message. To be started as `unshare --mount python -m benchmarks.trials disk`.
- **memory**: a command and each of its processes may take a random part of the address space that the command takes
  otherwise beyond its imports, or in half of the trials of what its hungriest process takes. Likewise. An explorer is
  asked for a step that is large, and then for a small one: each answer is whole or ends in one error, and the server
  answers on.

The last two begin with what a command imports already there, which takes half of the time, and a trial that had room
does not count. Each line says how many of how many trials ended well. Trials are not timed.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import gzip
import http.client
import json
import os
import random
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

_MARK = "MINITRAIN_TRIAL"
_ENDED_WITHIN_S = 5.0
_STARVED_S = 1.0  # of a processor; who had less in five seconds was kept from ending by other work
_LONGEST_S = 300.0
_MOST_WITH_ROOM = 5  # trials for each that is asked for, after which no more are tried
_M_ARENA_MAX = -8  # of glibc's malloc.h
_ENDLESS = "    while True:\n        await model.barrier()\n"
_SUBMISSION = f"async def ddp(model):\n{_ENDLESS}"
_TOLD = """from minitrain.strategies import ddp as shipped
async def ddp(model, microbatch_size=None):
    print("begun", flush=True)
    return await shipped(model, microbatch_size)
"""
_ANSWER = {"state": {"strategy": "own", "source": f"async def mine(model):\n{_ENDLESS}", "world_size": 2}, "tab": "1"}
_RIGHT = Path(__file__).parents[1] / "tests" / "learn" / "exercises" / "submissions" / "ddp_as_it_goes.py"
_LARGE = {"state": {"strategy": "own", "source": _RIGHT.read_text(), "world_size": 128,
                    "num_layers": 96, "global_batch_size": 128}, "tab": "1"}  # fmt: skip
_SMALL = {"state": {"strategy": "ddp", "world_size": 2, "num_layers": 2, "global_batch_size": 2}, "tab": "1"}
_SWEEP = ["sweep", "zero3", "ddp", "--grid", "world_size=64,128,256,512", "--grid", "num_layers=8,16,32,64",
          "--batch", "2048", "--no-fold", "--jobs", "2"]  # fmt: skip
_TUNE = ["tune", "--model", "llama3-8b", "--world-size", "64", "--batch", "256", "--jobs", "2"]
_GRADE = ["learn", "grade", "class", "--isolation", "auto", "--jobs", "2"]
_TRAIN = ["train", "ddp", "--world-size", "2", "--layers", "2", "--batch", "8"]


class Killed(NamedTuple):
    """A command that is killed.

    Args:
        arguments: the command.
        worker: a pattern of the command lines of its processes.
        num_workers: how many of them are at work when it is killed.
        worked_s: processor time after which a process is at work, s: more than it needs to start.
        printed: a pattern of what must have been printed too.
        following: a short command of its kind, which removes what this one has left.
    """

    arguments: Sequence[str]
    worker: str = "spawn_main"
    num_workers: int = 2
    worked_s: float = 1.0
    printed: str = ""
    following: Sequence[str] = ()


_EXPLORE = ["explore", "--no-open", "--port", "0"]
KILLED: dict[str, Killed] = {
    "sweep": Killed(_SWEEP),
    "tune": Killed(_TUNE),
    "grade": Killed(_GRADE, "minitrain-grading-", 1, 0.2, "", ["learn", "grade", "02_ddp.py"]),
    "train": Killed(["train", "told.py:ddp", *_TRAIN[2:], "--steps", "100000"], "fork_launches", 4, 0.0,
                    r"\[rank 1\] begun"),
    "validate": Killed(["validate", "--jobs", "2"]),
    "explore": Killed(_EXPLORE, "spawn_main", 1, 1.5, "", _EXPLORE),
}  # fmt: skip


class Process(NamedTuple):
    """A process, as the system lists it.

    Args:
        pid: its number.
        parent: that of the one that started it.
        began: when, in ticks: numbers are used again.
        is_ended: whether it has ended, and nobody has asked how.
        used_s: processor time, s.
    """

    pid: int
    parent: int
    began: int
    is_ended: bool
    used_s: float

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return what the system says of a process, None if there is none."""
        with suppress(OSError):
            state, parent, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used_s = (int(others[9]) + int(others[10])) / os.sysconf("SC_CLK_TCK")
            return cls(pid, int(parent), int(others[17]), state in "ZX", used_s)
        return None

    def now(self) -> Process | None:
        """Return this process as it is now, None if it has ended."""
        found = Process.of(self.pid)
        return found if found and found.began == self.began and not found.is_ended else None


def below(pid: int) -> list[Process]:
    """Return the processes that a process has started, and those that these have."""
    listed = [Process.of(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()]
    processes = [process for process in listed if process and not process.is_ended]
    found, looked_at = [], [pid]
    while looked_at:
        parent = looked_at.pop()
        children = [process for process in processes if process.parent == parent]
        found += children
        looked_at += [process.pid for process in children]
    return found


def alive(mark: str, folder: str) -> list[int]:
    """Return the processes whose environment has a mark, or whose command names a folder."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and int(process.name) != os.getpid():
                marked = f"{_MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0")
                marked = marked or folder.encode() in (process / "cmdline").read_bytes()
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(process.name)] if marked and state != "Z" else []
    return found


class Room:
    """A folder with a class in it, where a command runs with a place for temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        folder.chmod(0o755)  # a submission's process may have another uid
        for student in range(6):
            own = folder / "class" / f"student{student}"
            own.mkdir(parents=True)
            (own / "02_ddp.py").write_text(_SUBMISSION)
        (folder / "told.py").write_text(_TOLD)
        (folder / "02_ddp.py").write_text("async def ddp(model):\n    return model\n")
        right = folder / "class" / "right"
        right.mkdir()
        (right / "02_ddp.py").write_text(_RIGHT.read_text())

    def begin(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """Begin a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "minitrain", *arguments], cwd=self.folder, text=True, start_new_session=True,
            env=os.environ | {_MARK: self.mark, "TMPDIR": str(self.temporary)},
            stdout=(self.folder / "out").open("w"), stderr=(self.folder / "err").open("w"), stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def run(
        self,
        arguments: Sequence[str],
        prepare: Callable[[], object] = lambda: None,
        watch: Callable[[int], object] = lambda _: None,
    ) -> int | None:
        """Run a command in a fork of this process, which may have imported what it needs.

        Args:
            arguments: the command.
            prepare: what is done first, in the fork.
            watch: called with the number of the fork again and again.

        Returns:
            Its exit status; None if it did not end.
        """
        self.answers: list[list[dict[str, Any]]] = []
        pid = os.fork()
        if not pid:
            self._become(arguments, prepare)
        until = time.monotonic() + _LONGEST_S
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            watch(pid)
            time.sleep(0.02)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None

    def _become(self, arguments: Sequence[str], prepare: Callable[[], object]) -> None:
        """Be the command `python -m minitrain`, and end."""
        code = 1
        try:
            os.setsid()
            os.chdir(self.folder)
            os.environ |= {_MARK: self.mark, "TMPDIR": str(self.temporary)}
            tempfile.tempdir = None  # as TMPDIR says
            for descriptor, name in ((0, os.devnull), (1, "out"), (2, "err")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
            sys.argv = ["minitrain", *arguments]
            sys.modules["__main__"] = types.ModuleType("__main__")  # of which workers would import this one
            prepare()
            runpy.run_module("minitrain", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:  # as Python ends, without what this process was doing
            for end in (threading.__dict__["_shutdown"], atexit.__dict__["_run_exitfuncs"], sys.stdout.flush):
                with suppress(BaseException):
                    end()
            os._exit(code)

    def ask(self) -> None:
        """Ask an explorer, once it is there, for what has no end: a strategy of one's own."""
        for _ in range(100):
            if (self.folder / "out").read_text():
                break
            time.sleep(0.2)
        self.asking = self.asked(_ANSWER)  # who does not listen stops the work

    def asked(self, question: Mapping[str, Any]) -> http.client.HTTPConnection:
        """Return a connection to an explorer that has been asked a question."""
        found = re.search(r"(http://[\d.:]+)/#token=(\S+)", (self.folder / "out").read_text())
        assert found, self.errors()
        address, token = found.groups()
        asking = http.client.HTTPConnection(address.removeprefix("http://"), timeout=_LONGEST_S)
        headers = {"Origin": address, "Authorization": f"Bearer {token}"}
        asking.request("POST", "/ask/evaluate", json.dumps(question).encode(), headers)
        return asking

    def ask_all(self, pid: int) -> None:
        """Ask an explorer that is there for a large step and a small one, and end it."""
        out = self.folder / "out"
        if not self.answers and out.is_file() and out.read_text().endswith("\n"):
            for question in (_LARGE, _SMALL):
                lines = self.asked(question).getresponse().read().splitlines()
                self.answers.append([json.loads(line) for line in lines])
            os.kill(pid, signal.SIGINT)

    def wait_for_processes(self, count: int, process: subprocess.Popen[str]) -> None:
        """Wait until some processes are there, or the command has ended."""
        until = time.monotonic() + _LONGEST_S
        while len(self.processes()) < count and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """Return the processes of this room."""
        return alive(self.mark, str(self.folder))

    def is_empty(self) -> bool:
        """Return whether all processes end in time; those that do not are killed."""
        until = time.monotonic() + _ENDED_WITHIN_S
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def ends_in_time(self, started: Sequence[Process]) -> tuple[bool, str]:
        """Return whether all processes end in time or had no processor, and how; those that do not are killed."""
        since = time.monotonic()
        while (left := self.left_of(started)) and time.monotonic() < since + _ENDED_WITHIN_S:
            time.sleep(0.05)
        before = {process.pid: process.used_s for process in started}
        used_s = [now.used_s - before.get(now.pid, now.used_s) for now in left]
        is_starved = bool(left) and max(used_s) < _STARVED_S
        while is_starved and (left := self.left_of(started)) and time.monotonic() < since + _LONGEST_S / 5:
            time.sleep(0.05)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        late = f", after {max(used_s):.1f} s of a processor" if used_s else ""
        return not left, late + (f", {len(left)} stay" if left else "")

    def left_of(self, started: Sequence[Process]) -> list[Process]:
        """Return those of some processes that are alive, and others of this room."""
        pids = {process.pid for process in started}
        others = [Process.of(pid) for pid in self.processes() if pid not in pids]
        return [now for process in [*started, *others] if process and (now := process.now())]

    def leftovers(self) -> list[str]:
        """Return the names of the temporary files that are ours."""
        return [path.name for path in self.temporary.iterdir() if path.name.startswith(("minitrain", "."))]

    def errors(self) -> str:
        """Return what the last command wrote to stderr."""
        return (self.folder / "err").read_text()

    def printed(self) -> str:
        """Return all that the last command wrote."""
        return (self.folder / "out").read_text() + self.errors()


@contextmanager
def room() -> Iterator[Room]:
    """Make a room."""
    folder = Path(tempfile.mkdtemp(prefix="trial-"))
    try:
        yield Room(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(process: subprocess.Popen[str], seconds: float) -> bool:
    """Return whether a process ends within some seconds."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def at_work(killed: Killed, process: subprocess.Popen[str], here: Room) -> list[Process]:
    """Wait until as many processes of a command are at work as should be; return all that it has started."""
    until = time.monotonic() + _LONGEST_S
    while process.poll() is None and time.monotonic() < until:
        started = below(process.pid)
        workers = 0
        for one in started:
            with suppress(OSError):
                line = Path(f"/proc/{one.pid}/cmdline").read_text(errors="replace")
                workers += bool(re.search(killed.worker, line)) and one.used_s >= killed.worked_s
        if workers >= killed.num_workers and re.search(killed.printed, here.printed()):
            return started
        time.sleep(0.02)
    return []


def ended(name: str, source: random.Random, most_s: float, how: signal.Signals) -> tuple[bool, str]:
    """End a command when it is at work; if it is killed and has left anything, run a short one of its kind."""
    with room() as here:
        process = here.begin(KILLED[name].arguments)
        if name == "explore":
            here.ask()
        if not at_work(KILLED[name], process, here):
            process.kill()
            return False, f"never at work: {here.printed()[-300:]}"
        wait_for(process, source.uniform(0.0, most_s))
        started, had_ended = below(process.pid), process.returncode is not None
        own = Process.of(process.pid)
        (os.kill if how == signal.SIGKILL else os.killpg)(process.pid, how)  # Ctrl-C comes to all of a terminal's
        all_ended, late = here.ends_in_time([*started, *([own] if own else [])])
        process.wait()
        left = here.leftovers()
        if left and how == signal.SIGKILL:
            again = here.begin(KILLED[name].following)
            if name == "explore":
                here.ask()  # its answer has a folder of its own, which is no leftover of the first
                until = time.monotonic() + _LONGEST_S / 10
                while {*left} & {*here.leftovers()} and time.monotonic() < until:
                    time.sleep(0.05)
                again.send_signal(signal.SIGINT)
            wait_for(again, _LONGEST_S)
            again.kill()
            here.is_empty()
        remains = [name for name in here.leftovers() if name in left]
        what = "ended before" if had_ended else f"{len(started)} processes, {len(left)} leftovers{late}"
        return all_ended and not remains and not had_ended, f"{what}; {remains or 'nothing'} remains"


LOST: dict[str, tuple[Sequence[str], str]] = {
    "sweep": (["sweep", "zero3", "ddp", "--grid", "world_size=64,128", "--grid", "num_layers=8,32", "--batch", "512",
               "--no-fold", "--jobs", "2", "--json"], r'(?s)(.*"strategy"){8}'),
    "tune": (["tune", "--model", "gpt2", "--world-size", "2", "--batch", "8", "--jobs", "2", "--json"],
             r"(?s)\s*[\[{].*[\]}]"),
    "grade": ([*_GRADE, "--format", "csv"], r"(?s)(.*student\d,){6}|(.*\w+/02_ddp.py){7}"),
    "train": ([*_TRAIN, "--steps", "3000"], r"(?s).*step"),
}  # fmt: skip
"""Commands with processes, and what they print where all went well."""


def lost(name: str, source: random.Random, most_s: float) -> tuple[bool, str]:
    """Kill one process that a command began, and wait for the command's end."""
    arguments, printed = LOST[name]
    with room() as here:
        process = here.begin(arguments)
        here.wait_for_processes(2, process)
        wait_for(process, source.uniform(0.0, most_s))
        others = [pid for pid in here.processes() if pid != process.pid]
        victim = source.choice(others) if others else 0
        if victim:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        in_time = wait_for(process, _LONGEST_S)
        process.kill()
        process.wait()
        output, errors = (here.folder / "out").read_text(), here.errors()
        has_all = bool(re.match(printed, output))
        is_told = "minitrain: " in errors and "Traceback" not in errors
        good = here.is_empty() and in_time and (has_all or is_told)
        words = (
            "all rows" if has_all else errors[errors.find("minitrain: ") :][:120] if is_told else f"{output} {errors}"
        )
        return good, ("" if victim else "none to kill, ") + (words if in_time else "no end")


WRITTEN: dict[str, Sequence[str]] = {
    "package": ["learn", "package", "/full/autograder.zip", "--exercise", "2"],
    "run": ["run", "ddp", "--world-size", "8", "--layers", "96", "--out", "/full/run"],
    "sweep": ["sweep", "zero3", "ddp", "--grid", "world_size=2,4", "--layers", "4", "--batch", "8", "--jobs", "2",
              "--results", "/full/rows.jsonl", "--csv", "/full/rows.csv", "--html", "/full/page.html"],
    "grade": ["learn", "grade", "class/right/02_ddp.py", "--isolation", "auto", "--results", "/full/grades.jsonl"],
    "tune": ["tune", "--model", "gpt2", "--world-size", "2", "--batch", "8", "--jobs", "2", "--results",
             "/full/rows.jsonl", "--html", "/full/page.html"],
    "train": [*_TRAIN, "--steps", "2", "--out", "/full/run.jsonl", "--html", "/full/page.html", "--checkpoints",
              "/full/checkpoints", "--checkpoint-every", "1"],
    "validate": ["validate", "c2", "--jobs", "2", "--html", "/full/page.html"],
}  # fmt: skip
RUN: dict[str, Sequence[str]] = WRITTEN | {"explore": _EXPLORE}
"""Commands that lack memory; `explore` writes nothing."""


def is_whole(path: Path) -> bool:
    """Return whether a file has an end, by its kind."""
    if path.suffix == ".distcp" or path.name == ".metadata":
        return path.with_name("minitrain.json").is_file()  # without which a checkpoint does not count
    if ".zip" in path.suffixes:
        return zipfile.is_zipfile(path) and zipfile.ZipFile(path).testzip() is None
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ".html" in path.suffixes:
        return raw.rstrip().endswith(b"</html>")
    if ".csv" in path.suffixes:
        return raw.endswith(b"\n")
    texts = raw.splitlines() if ".jsonl" in path.suffixes else [raw]
    with suppress(ValueError):
        return not [json.loads(text) for text in texts if not isinstance(json.loads(text), dict | list)]
    return path.name in ("rows.jsonl", "grades.jsonl") and not raw.endswith(b"\n")  # a journal: its last line is cut


def is_good(here: Room, code: int | None, place: Path) -> tuple[bool, str]:
    """Return whether a command that lacked something ended with a message, and with whole files alone."""
    halves = [file.name for file in place.rglob("*") if file.is_file() and not is_whole(file)]
    errors = here.errors()
    is_told = "Traceback" not in errors and bool(re.search(_TOLD_SO, here.printed()))
    good = not halves and (code == 0 or (code is not None and is_told)) and here.is_empty()
    words = _ROOM if code == 0 else "was told"
    if here.answers:
        last = [answer[-1] for answer in here.answers]
        found = ["error" not in each for each in last]
        good = len(found) == 2 and "Traceback" not in errors and here.is_empty()
        good = good and all("error" not in each or each["fields"] or each.get("stopped") for each in last)
        words = _ROOM if all(found) else f"answered: large {found[0]}, small {found[1]}"
        errors += json.dumps(last)[:1000]
    return good, words if good else f"{halves} {code} {errors[-1500:]} {here.printed()[-200:]}"


class Need(NamedTuple):
    """What a command takes where it has all.

    Args:
        disk_bytes: of the files that it writes.
        memory_bytes: of address space, beyond that of the imports.
        hungriest_bytes: address space of the process below it that takes most, 0 if there is none.
    """

    disk_bytes: int
    memory_bytes: int
    hungriest_bytes: int


_ROOM = "had room"
_TOLD_SO = r"minitrain: |  the grader lacks|the first failure: .*the system gives no more memory"


_NEEDS: dict[str, Need] = {}


def need(name: str) -> Need:
    """Return what a command takes; import what it imports, so that its forks have that."""
    if name not in _NEEDS:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)  # else each thread takes address space that it can do without
        threading.stack_size(2**18)
        import_all(name)
        with room() as here:
            place = here.folder / "disk"
            place.mkdir()
            own, others = [0], [0]

            def watch(pid: int) -> None:
                own.append(status_bytes("VmPeak", pid))
                others.extend(status_bytes("VmPeak", process.pid) for process in below(pid))
                if name == "explore":
                    here.ask_all(pid)

            code = here.run([part.replace("/full", str(place)) for part in RUN[name]], watch=watch)
            assert code == 0 or here.answers, here.printed()
            sizes = [file.stat().st_size for file in place.rglob("*") if file.is_file()]
            took = max(2**18, max(own) - status_bytes("VmSize"))
            _NEEDS[name] = Need(sum(sizes) + 4096 * len(sizes), took, max(others))
            print(f"{name} takes {_NEEDS[name]}", flush=True)
    return _NEEDS[name]


def import_all(name: str) -> None:
    """Import all that a command imports."""
    with room() as here:
        modules = here.folder / "modules"

        def prepare() -> None:
            exit_ = os._exit
            os._exit = lambda status: (modules.write_text("\n".join(sys.modules)), exit_(status))[1]

        watch = here.ask_all if name == "explore" else lambda _: None
        here.run([part.replace("/full", str(here.folder)) for part in RUN[name]], prepare, watch)
        for module in modules.read_text().splitlines():
            with suppress(Exception):
                import_module(module)


def status_bytes(field: str, pid: int | str = "self") -> int:
    """Return a size of a process that the system tells, 0 if it has ended."""
    with suppress(OSError):
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


def full(name: str, source: random.Random, _most_s: float) -> tuple[bool, str]:
    """Run a command whose folder has room for a part of what it writes."""
    most_bytes = need(name).disk_bytes
    with room() as here:
        disk = here.folder / "disk"
        disk.mkdir(mode=0o755)
        size = source.randrange(4096, most_bytes)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", disk], check=True)
        try:
            if source.random() < 0.5:
                here.temporary = disk / "temporary"
                here.temporary.mkdir()
            code = here.run([part.replace("/full", str(disk)) for part in WRITTEN[name]])
            return is_good(here, code, disk)
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


def short(name: str, source: random.Random, _most_s: float) -> tuple[bool, str]:
    """Run a command with a part of the address space that it takes."""
    _, more_bytes, hungriest_bytes = need(name)
    with room() as here:
        place = here.folder / "disk"
        place.mkdir()
        least = status_bytes("VmSize")  # with less, Python itself does not live
        most = source.choice([least + more_bytes, max(least + more_bytes, hungriest_bytes)])
        limit = source.randrange(
            min(least, int(0.9 * hungriest_bytes) or least), most
        )  # so that processes lack some too

        def prepare() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        watch = here.ask_all if name == "explore" else lambda _: None
        code = here.run([part.replace("/full", str(place)) for part in RUN[name]], prepare, watch)
        return is_good(here, code, place)


Trial = Callable[[str, random.Random, float], tuple[bool, str]]
KINDS: dict[str, tuple[Trial, Sequence[str]]] = {
    "kill": (partial(ended, how=signal.SIGKILL), [*KILLED]),
    "interrupt": (partial(ended, how=signal.SIGINT), [*KILLED]),
    "loss": (lost, [*LOST]),
    "disk": (full, [*WRITTEN]),
    "memory": (short, [*RUN]),
}


def count(kind: str, name: str, num_trials: int, source: random.Random, most_s: float) -> bool:
    """Make trials of a command; print how many ended well, and how the others did."""
    outcomes: list[tuple[bool, str]] = []
    num_with_room = good = 0
    while len(outcomes) < num_trials and num_with_room < _MOST_WITH_ROOM * num_trials:
        outcome = KINDS[kind][0](name, source, most_s)
        if outcome == (True, _ROOM):
            num_with_room += 1
            continue
        outcomes.append(outcome)
        good = sum(is_good for is_good, _ in outcomes)
        print(f"\r{kind} of {name}: {good} of {len(outcomes)}", end="", flush=True)
        if not outcome[0]:
            print(f"\n  bad: {outcome[1]}", flush=True)
    print(f"; {num_with_room} more had room" if num_with_room else "", flush=True)
    for words, times in Counter(words for is_good, words in outcomes if is_good).most_common():
        print(f"  {times} times {words}", flush=True)
    return good == num_trials == len(outcomes)


def main() -> None:
    """Make the trials that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trials", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[*KINDS], help=f"{', '.join(KINDS)}; all by default")
    parser.add_argument("--trials", type=int, default=50, help="of each command (%(default)s)")
    parser.add_argument("--only", help="one command")
    parser.add_argument("--most-s", type=float, default=1.0, help="until a process is killed (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is random (%(default)s)")
    asked = parser.parse_args()
    source, is_all_good = random.Random(asked.seed), True
    for kind in asked.kinds:
        for name in KINDS[kind][1]:
            if asked.only in (None, name):
                is_all_good &= count(kind, name, asked.trials, source, asked.most_s)
    sys.exit(not is_all_good)


if __name__ == "__main__":
    main()
