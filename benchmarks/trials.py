"""`python -m benchmarks.trials`: commands are killed at random moments, or their disk is full; what is left is counted.

- **kill**: a command with worker processes is ended by `kill -9` after a random time. Within five seconds, none of the
  processes that it began may be alive (Linux: they are found by a variable in their environment).
- **disk**: a command writes to a file system that is full. The file is whole, or not there, and the error is one line.

Each line says how many of how many trials ended well. Trials are not timed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_MARK = "MINITRAIN_TRIAL"
_ENDED_WITHIN_S = 5.0
_SUBMISSION = "async def ddp(model):\n    while True:\n        await model.barrier()\n"

KILLED: dict[str, Sequence[str]] = {
    "sweep": ["sweep", "zero3", "ddp", "--grid", "world_size=64,128,256,512", "--grid", "num_layers=8,16,32,64",
              "--batch", "2048", "--no-fold", "--jobs", "2"],
    "tune": ["tune", "--model", "llama3-8b", "--world-size", "256", "--batch", "1024", "--jobs", "2"],
    "grade": ["learn", "grade", "class", "--isolation", "auto", "--jobs", "2"],
    "train": ["train", "ddp", "--world-size", "2", "--layers", "2", "--batch", "8", "--steps", "100000"],
    "validate": ["validate"],
    "explore": ["explore", "--no-open", "--port", "0"],
}  # fmt: skip
"""The commands that begin processes or take long, by name."""


def alive(mark: str) -> list[int]:
    """Return the processes whose environment has a mark."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(folder.name)] if state != "Z" else []
    return found


def killed(arguments: Sequence[str], source: random.Random, most_s: float) -> tuple[bool, int]:
    """Kill a command after a random time.

    Returns:
        Whether all that it began ended in time, and how many processes there were when it was killed.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "class")
        own.mkdir()
        for student in range(6):
            (own / f"02_ddp_{student}.py").write_text(_SUBMISSION)
        command = [sys.executable, "-m", "minitrain", *arguments]
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | {_MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            process.wait(source.uniform(0.5, most_s))
        count = len(alive(mark))
        process.send_signal(signal.SIGKILL)
        process.wait()
        until = time.monotonic() + _ENDED_WITHIN_S
        while alive(mark) and time.monotonic() < until:
            time.sleep(0.1)
        left = alive(mark)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left, count


WRITTEN: dict[str, tuple[Sequence[str], str]] = {
    "package": (["learn", "package", "/full/autograder.zip", "--exercise", "2"], "autograder.zip"),
    "run": (["run", "ddp", "--world-size", "4", "--layers", "64", "--out", "/full/run"], "run"),
    "export": (["run", "zero3", "--world-size", "64", "--no-fold", "--out", "/full/run"], "run"),
}
"""Commands that write, and what they write."""


def full(arguments: Sequence[str], name: str, free_bytes: int) -> bool:
    """Run a command whose folder has room for some bytes alone, and return whether its output is whole or absent."""
    quoted = " ".join(argument.replace("/full", "$ROOM") for argument in arguments)
    with tempfile.TemporaryDirectory() as folder:
        script = (
            f"mount -t tmpfs -o size={free_bytes} tmpfs {folder} && export ROOM={folder} && "
            f"{sys.executable} -m minitrain {quoted}; code=$?; echo FILES; find {folder} -type f; exit $code"
        )
        done = subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", script], capture_output=True, text=True, check=False
        )
    files = done.stdout.partition("FILES\n")[2].split()
    if done.returncode == 0:
        return any(name in file for file in files)
    return not files and "Traceback" not in done.stderr and "minitrain: " in done.stderr


def count(what: str, num_trials: int, trial: Callable[[], bool]) -> bool:
    """Make trials and print how many ended well."""
    good = sum(trial() for _ in range(num_trials))
    print(f"{what}: {good} of {num_trials}", flush=True)
    return good == num_trials


def main() -> None:
    """Make the trials that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trials", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["kill", "disk"], help="kill, disk; both by default")
    parser.add_argument("--trials", type=int, default=50, help="of each command (%(default)s)")
    parser.add_argument("--only", help="one command")
    parser.add_argument("--most-s", type=float, default=6.0, help="until a command is killed (%(default)s)")
    asked = parser.parse_args()
    source, is_good = random.Random(0), True
    for name, arguments in KILLED.items() if "kill" in asked.kinds else ():
        if asked.only in (None, name):
            processes: list[int] = []

            def trial(arguments: Sequence[str] = arguments, processes: list[int] = processes) -> bool:
                ended, number = killed(arguments, source, asked.most_s)
                processes.append(number)
                return ended

            is_good &= count(f"kill -9 of {name}, all its processes end", asked.trials, trial)
            print(f"  up to {max(processes)} processes when it was killed")
    for name, (arguments, written) in WRITTEN.items() if "disk" in asked.kinds else ():
        if asked.only in (None, name):
            sizes = iter(range(4096, 40_000 * (asked.trials + 1), 40_000))
            is_good &= count(
                f"full disk under {name}, whole or absent",
                asked.trials,
                lambda arguments=arguments, written=written, sizes=sizes: full(arguments, written, next(sizes)),  # type: ignore[misc]
            )
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
