"""`python -m benchmarks.trials`: commands are killed, lose a process, or lack disk or memory; what is left is counted.

- **kill**: a command is ended by `kill -9` at a random moment. Within five seconds none of the processes that it began
  is alive (Linux: they are found by a variable in their environment, or by their folder's name), and what it left where
  temporary files are is gone after the next command of its kind.
- **loss**: one process of a command is killed at a random moment, as the system does when memory is short. The command
  ends by itself, with all its rows or with one message, and leaves no process.
- **disk**: a command writes to a file system that is full. Each file is whole or absent, and the error is a message.
- **memory**: a command has little address space. Likewise.

Each line says how many of how many trials ended well. Trials are not timed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_MARK = "MINITRAIN_TRIAL"
_ENDED_WITHIN_S = 5.0
_LONGEST_S = 300.0
_ENDLESS = "    while True:\n        await model.barrier()\n"
_SUBMISSION = f"async def ddp(model):\n{_ENDLESS}"
_ANSWER = {"state": {"strategy": "own", "source": f"async def mine(model):\n{_ENDLESS}", "world_size": 2}, "tab": "1"}
_SWEEP = ["sweep", "zero3", "ddp", "--grid", "world_size=64,128,256,512", "--grid", "num_layers=8,16,32,64",
          "--batch", "2048", "--no-fold", "--jobs", "2"]  # fmt: skip
_TUNE = ["tune", "--model", "llama3-8b", "--world-size", "64", "--batch", "256", "--jobs", "2"]
_GRADE = ["learn", "grade", "class", "--isolation", "auto", "--jobs", "2"]
_TRAIN = ["train", "ddp", "--world-size", "2", "--layers", "2", "--batch", "8"]


class Killed(NamedTuple):
    """A command that is killed.

    Args:
        arguments: the command.
        num_processes: how many it has at work; it is killed after that many are there, one time of five before.
        following: a short command of its kind, which removes what this one has left.
    """

    arguments: Sequence[str]
    num_processes: int
    following: Sequence[str] = ()


KILLED: dict[str, Killed] = {
    "sweep": Killed(_SWEEP, 4),
    "tune": Killed(_TUNE, 4),
    "grade": Killed(_GRADE, 6, ["learn", "grade", "class/right/02_ddp.py", "--isolation", "auto"]),
    "train": Killed([*_TRAIN, "--steps", "100000"], 3),
    "validate": Killed(["validate"], 1),
    "explore": Killed(["explore", "--no-open", "--port", "0"], 4, ["explore", "--no-open", "--port", "0"]),
}


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
        right = folder / "class" / "right"
        right.mkdir()
        (right / "02_ddp.py").write_text(Path(__file__).parents[1].joinpath(
            "tests", "learn", "exercises", "submissions", "ddp_as_it_goes.py").read_text())  # fmt: skip

    def begin(self, arguments: Sequence[str], most_bytes: int | None = None) -> subprocess.Popen[str]:
        """Begin a command."""
        limit = ["prlimit", f"--as={most_bytes}"] if most_bytes else []
        return subprocess.Popen(
            [*limit, sys.executable, "-m", "minitrain", *arguments], cwd=self.folder, text=True, start_new_session=True,
            env=os.environ | {_MARK: self.mark, "TMPDIR": str(self.temporary)},
            stdout=(self.folder / "out").open("w"), stderr=(self.folder / "err").open("w"), stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self) -> None:
        """Ask an explorer, once it is there, for what has no end: a strategy of one's own."""
        found = None
        for _ in range(100):
            found = re.search(r"(http://[\d.:]+)/#token=(\S+)", (self.folder / "out").read_text())
            if found:
                break
            time.sleep(0.2)
        assert found, (self.folder / "err").read_text()
        address, token = found.groups()
        headers = {"Origin": address, "Authorization": f"Bearer {token}"}
        asked = urllib.request.Request(f"{address}/ask/evaluate", json.dumps(_ANSWER).encode(), headers)
        with suppress(OSError):
            urllib.request.urlopen(asked, timeout=1.0)

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

    def leftovers(self) -> list[str]:
        """Return the names of the temporary files that are ours."""
        return [path.name for path in self.temporary.iterdir() if path.name.startswith(("minitrain", "."))]

    def errors(self) -> str:
        """Return what the last command wrote to stderr."""
        return (self.folder / "err").read_text()


@contextmanager
def room() -> Iterator[Room]:
    """Make a room."""
    with tempfile.TemporaryDirectory(prefix="trial-") as folder:
        yield Room(Path(folder))


def wait_for(process: subprocess.Popen[str], seconds: float) -> bool:
    """Return whether a process ends within some seconds."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def killed(name: str, source: random.Random, most_s: float) -> tuple[bool, str]:
    """Kill a command after a random time, and run a short one of its kind if anything temporary is left."""
    with room() as here:
        process = here.begin(KILLED[name].arguments)
        if source.random() < 0.8:
            here.wait_for_processes(KILLED[name].num_processes, process)
            if name == "explore":
                here.ask()
        wait_for(process, source.uniform(0.0, most_s))
        count, had_ended = len(here.processes()), process.returncode is not None
        process.kill()
        process.wait()
        all_ended, left = here.is_empty(), here.leftovers()
        if left:
            again = here.begin(KILLED[name].following)
            if name == "explore":
                here.ask()
                again.send_signal(signal.SIGINT)
            wait_for(again, _LONGEST_S)
            again.kill()
            here.is_empty()
        remains = here.leftovers()
        what = "ended before" if had_ended else f"{count} processes, {len(left)} leftovers"
        return all_ended and not remains, f"{what}; {remains or 'nothing'} remains"


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


WRITTEN: dict[str, tuple[Sequence[str], int]] = {
    "package": (["learn", "package", "/full/autograder.zip", "--exercise", "2"], 2_000_000),
    "run": (["run", "ddp", "--world-size", "4", "--layers", "64", "--out", "/full/run"], 8_000_000),
    "sweep": (["sweep", "zero3", "ddp", "--grid", "world_size=2,4", "--layers", "4", "--batch", "8", "--jobs", "1",
               "--results", "/full/rows.jsonl", "--csv", "/full/rows.csv", "--html", "/full/page.html"], 120_000),
    "grade": (["learn", "grade", "class/right/02_ddp.py", "--isolation", "auto", "--results", "/full/grades.jsonl"],
              12_000),
    "tune": (["tune", "--model", "gpt2", "--world-size", "2", "--batch", "8", "--jobs", "1", "--results",
              "/full/rows.jsonl", "--html", "/full/page.html"], 120_000),
    "train": ([*_TRAIN, "--steps", "2", "--out", "/full/run.jsonl", "--html", "/full/page.html", "--checkpoints",
               "/full/checkpoints", "--checkpoint-every", "1"], 5_000_000),
    "validate": (["validate", "--template", "/full/template.csv"], 12_000),
}  # fmt: skip
"""Commands that write, and how many bytes a disk has at most; `explore` writes nothing."""


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


def is_good(room_: Room, code: int, place: Path) -> tuple[bool, str]:
    """Return whether a command that lacked something ended with a message, and with whole files alone."""
    halves = [file.name for file in place.rglob("*") if file.is_file() and not is_whole(file)]
    errors = room_.errors()
    is_told = "Traceback" not in errors and bool(re.search(r"(^|\n)minitrain: ", errors))
    words = "had room" if code == 0 else "was told"
    if halves or (code and not is_told):
        words = f"{halves} {code} {errors[-300:]}"
    return not halves and (code == 0 or is_told), words


def full(name: str, source: random.Random, _most_s: float) -> tuple[bool, str]:
    """Run a command whose folder has room for some bytes alone."""
    arguments, most_bytes = WRITTEN[name]
    with room() as here:
        disk, copy = here.folder / "disk", here.folder / "copy"
        disk.mkdir()
        quoted = shlex.join(argument.replace("/full", str(disk)) for argument in arguments)
        script = (
            f"mount -t tmpfs -o size={source.randrange(4096, most_bytes)} tmpfs {disk} && cd {here.folder} && "
            f"TMPDIR={here.temporary} {sys.executable} -m minitrain {quoted} 2>err >out; code=$?; cp -r {disk} {copy}; "
            f"exit $code"
        )
        done = subprocess.run(["unshare", "--mount", "--map-root-user", "sh", "-c", script], check=False)
        return is_good(here, done.returncode, copy)


def short(name: str, source: random.Random, _most_s: float) -> tuple[bool, str]:
    """Run a command with little address space: more than Python needs to import minitrain, less than the work does."""
    arguments, _ = WRITTEN[name]
    with room() as here:
        place = here.folder / "disk"
        place.mkdir()
        asked = [argument.replace("/full", str(place)) for argument in arguments]
        process = here.begin(asked, source.randrange(250, 1500) * 2**20)
        in_time = wait_for(process, _LONGEST_S)
        process.kill()
        process.wait()
        good, words = is_good(here, process.returncode, place)
        return good and in_time and here.is_empty(), words if in_time else "no end"


Trial = Callable[[str, random.Random, float], tuple[bool, str]]
KINDS: dict[str, tuple[Trial, Sequence[str]]] = {
    "kill": (killed, [*KILLED]),
    "loss": (lost, [*LOST]),
    "disk": (full, [*WRITTEN]),
    "memory": (short, [*WRITTEN]),
}


def count(kind: str, name: str, num_trials: int, source: random.Random, most_s: float) -> bool:
    """Make trials of a command; print how many ended well, and how the others did."""
    outcomes: list[tuple[bool, str]] = []
    while len(outcomes) < num_trials:
        outcomes.append(KINDS[kind][0](name, source, most_s))
        good = sum(is_good for is_good, _ in outcomes)
        print(f"\r{kind} of {name}: {good} of {len(outcomes)}", end="", flush=True)
    print()
    told: dict[str, int] = {}
    for _, words in outcomes:
        told[words] = told.get(words, 0) + 1
    for words, times in sorted(told.items()):
        print(f"  {times} times {words}", flush=True)
    return good == num_trials


def main() -> None:
    """Make the trials that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trials", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[*KINDS], help=f"{', '.join(KINDS)}; all by default")
    parser.add_argument("--trials", type=int, default=50, help="of each command (%(default)s)")
    parser.add_argument("--only", help="one command")
    parser.add_argument("--most-s", type=float, default=6.0, help="until a process is killed (%(default)s)")
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
