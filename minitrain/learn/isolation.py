"""How a submission's process is kept apart: what the grader asks for, and what came of it.

`auto` uses all that the machine offers, `required` refuses to grade where the kernel does not hold a submission in
every respect, and `none` leaves it at a process of its own with limits of time and memory. `python -m
minitrain.learn` says what this machine offers. docs/teach.md says what each means protects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.files import TemporaryFolder
from minitrain.learn.confinement import PROPERTIES, not_held
from minitrain.learn.copied_package import shared_copy
from minitrain.learn.readable import mounts, python_folders, reachable, readable
from minitrain.learn.syscalls import program

MODES = ("auto", "required", "none")

_NAMES: Mapping[str, str] = {
    "bubblewrap": "bubblewrap",
    "landlock": "Landlock",
    "seccomp": "seccomp",
    "namespaces": "namespaces",
    "uid": "uid",
    "capabilities": "no capabilities",
}
_FIRST_UID, _UIDS = 61184, 4336  # systemd's range for users without a name
_REMEDY = "install libseccomp and bubblewrap on Linux 5.13 or later, or grade in a container with --isolation auto"


@dataclass(frozen=True, slots=True)
class Isolation:
    """What kept a submission's process apart.

    Args:
        mode: what was asked for: "auto", "required" or "none".
        means: in force, each with a word about it, such as `{"landlock": "ABI 7"}`.
        open: what the kernel did not hold, of "files", "network", "signals" and "processes".
    """

    mode: str
    means: Mapping[str, str] = field(default_factory=dict)
    open: Sequence[str] = tuple(PROPERTIES)

    def __str__(self) -> str:
        named = [self._named(name) for name in _NAMES if name in self.means]
        if not named and not self.open:
            return "nothing of it is run"
        if not named:
            return "none" if self.mode == "none" else "none: this machine offers no means"
        return ", ".join(named) + (f"; the kernel does not hold: {', '.join(self.open)}" if self.open else "")

    def held_by(self, name: str) -> list[str]:
        """Return which of the means in force hold a property, such as "files"."""
        return [_NAMES.get(holder, "Landlock scopes") for holder in sorted(PROPERTIES[name]) if holder in self.means]

    def _named(self, name: str) -> str:
        """Return one of the means in words."""
        about = self.means[name]
        return f"uid {about}" if name == "uid" else _NAMES[name] + (f" ({about})" if name == "landlock" else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {"mode": self.mode, "means": dict(self.means), "open": list(self.open)}


HERE = Isolation("none", {}, tuple(PROPERTIES))
"""A function of one's own runs in the grader's process."""

NOTHING_RUNS = Isolation("none", {}, ())
"""Answers are read."""


def require_mode(mode: str) -> str:
    """Return a mode.

    Raises:
        UsageError: there is no such mode.
    """
    if mode not in MODES:
        raise UsageError(f"isolation must be one of {', '.join(MODES)}, got {mode!r}")
    return mode


def from_worker(mode: str, means: Any) -> Isolation:
    """Return the isolation that a submission's process reported before it loaded the submission.

    Raises:
        UsageError: isolation is required, and it is not complete.
    """
    known = {str(name): str(about) for name, about in means.items()} if isinstance(means, dict) else {}
    found = Isolation(mode, known, tuple(not_held(known)))
    if mode == "required" and found.open:
        raise UsageError(
            f"--isolation required: the kernel must hold a submission's {', '.join(PROPERTIES)}, here it does not hold "
            f"{', '.join(found.open)} (in force: {found if known else 'nothing'}); {_REMEDY}"
        )
    return found


def command_for(mode: str, home: Path, secrets: Sequence[Path]) -> list[str]:
    """Return what goes before the interpreter of a submission's process: bubblewrap, or nothing.

    Args:
        mode: one of `MODES`.
        home: the process's own folder; bubblewrap shows a copy of minitrain in its folder of that name.
        secrets: folders that it must not read.

    Raises:
        UsageError: there is no such mode.
    """
    wanted = require_mode(mode) != "none" and sys.platform == "linux"
    return wrapped(home, secrets, shared_copy()) if wanted and bubblewrap() and _wraps(tuple(secrets)) else []


def plan_for(mode: str, home: Path, secrets: Sequence[Path], *, wrapped: bool) -> dict[str, Any]:
    """Return what a submission's process needs to know to confine itself; it may be sent after the process started.

    Args:
        mode: one of `MODES`.
        home: the process's own folder; it is given to the uid of the process, if that is to have one.
        secrets: folders that it must not read.
        wrapped: whether bubblewrap starts it.

    Returns:
        `wrapped`, `uid` (None to keep it), `readable` (paths for Landlock; None for no isolation), `covered` (folders
        that are to look empty) and `filter` (the seccomp program in hexadecimal, or None).
    """
    if mode == "none" or sys.platform != "linux":
        return {"wrapped": False, "uid": None, "readable": None, "covered": [], "filter": None}
    reads = _readable(tuple(secrets))
    uid = None
    if os.geteuid() == 0 and reachable([str(home.parent)], alone=wrapped) and _open_to_all(tuple(reads), wrapped):
        with suppress(OSError):  # a user namespace may know no such uid
            os.chown(home, 0, _FIRST_UID + os.getpid() % _UIDS)
            home.chmod(0o750)
            uid = _FIRST_UID + os.getpid() % _UIDS
    paths = [*reads, str(home)]
    covered = [path for path in (*secrets, Path("/proc")) if not any(_is_within(own, path) for own in paths)]
    return {"wrapped": wrapped, "uid": uid, "readable": paths, "covered": [*map(str, covered)], "filter": program()}


def _is_within(path: str, folder: Path) -> bool:
    """Return whether a path is a folder, or lies below it."""
    return path == str(folder) or path.startswith(f"{folder}{os.sep}")


@lru_cache(maxsize=64)
def _readable(secrets: tuple[Path, ...]) -> list[str]:
    """Return the readable paths, which stay the same while a process grades."""
    return readable(secrets)


@lru_cache(maxsize=64)
def _open_to_all(paths: tuple[str, ...], alone: bool) -> bool:
    """Return whether an unprivileged user can read some paths and Python's own, which stays the same likewise."""
    return reachable([*paths, *map(str, python_folders())], alone=alone)


@lru_cache(maxsize=1)
def bubblewrap() -> str | None:
    """Return where bubblewrap is, if it is installed."""
    return shutil.which("bwrap")


@lru_cache(maxsize=64)
def _wraps(secrets: tuple[Path, ...]) -> bool:
    """Return whether Python starts in bubblewrap here, which a container may forbid."""
    with TemporaryFolder("minitrain-probe-") as home:
        command = [*wrapped(home, secrets), os.path.realpath(sys.executable), "-I", "-S", "-c", ""]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


_UNSHARED = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent")


def wrapped(home: Path, secrets: Sequence[Path], library: Path | None = None) -> list[str]:
    """Return the bubblewrap command that shows a process what it may read, and nothing else.

    Args:
        home: the process's own folder.
        secrets: folders that it must not read.
        library: what it sees as the folder `minitrain` in its own; None to show that as it is.
    """
    path = bubblewrap()
    assert path is not None
    interpreter = Path(sys.executable).resolve()
    whole, empty, back = _mounts(tuple(secrets), interpreter)
    back = [*back, str(home)]
    command = [path, *_UNSHARED]
    for link in (Path("/lib"), Path("/lib64")):
        if link.is_symlink():
            command += ["--symlink", str(link.readlink()), str(link)]
    above = {str(parent) for shown in (*whole, *back) for parent in Path(shown).parents if _not_below(parent, whole)}
    for folder in sorted(above - {"/"}):
        command += ["--perms", "0755", "--dir", folder]  # else root alone may pass through it
    for shown in whole:
        command += ["--ro-bind", shown, shown]
    for covered in empty:
        command += ["--tmpfs", covered]
    for shown in back:
        command += ["--ro-bind", shown, shown]
    if library is not None:
        command += ["--ro-bind", str(library), str(home / "minitrain")]
    return [*command, "--chdir", str(home), "--"]


@lru_cache(maxsize=64)
def _mounts(secrets: tuple[Path, ...], interpreter: Path) -> tuple[list[str], list[str], list[str]]:
    """Return what bubblewrap shows to every submission, which stays the same while a process grades."""
    return mounts(secrets, interpreter)


def _not_below(path: Path, folders: Sequence[str]) -> bool:
    """Return whether a path is neither one of some folders nor below one."""
    return not any(path.is_relative_to(folder) for folder in folders)
