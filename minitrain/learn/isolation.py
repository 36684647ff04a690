"""How a submission's process is kept apart from the machine: what the grader asks for, and what came of it.

`auto` uses all that the machine offers, `required` refuses to grade where the kernel does not hold a submission in
every respect, and `none` leaves it at a process of its own with limits of time and memory. `python -m
minitrain.learn` says what this machine offers. docs/teach.md says what each means protects.

**System calls**: a seccomp program, compiled by libseccomp. `system_calls.json` has those that Python, numpy and an
event loop need, and `_limited` those that are allowed with some arguments. Any other call fails: those that the file
calls refused with "operation not permitted", which reads best, and the rest with "function not implemented", so that a
C library that tries a newer call first goes on with the older one.

**Files** that may be read: Python's own, the system's libraries, and the packages that a strategy needs. Landlock and
bubblewrap allow whole folders. Where something that must not be read lies below one (packages below the standard
library, say), the folder is opened up: its entries are allowed one by one, and that one is left out.

**The copy of minitrain** in the process's folder lacks the shipped strategies, the exercises, the grader and the rooms
that no strategy imports. Its modules are compiled: the process may not write what it compiles, and Python may have been
told not to (`PYTHONDONTWRITEBYTECODE`). Each process has a copy of its own, unless bubblewrap shows it one that it
cannot write: hundreds of files to write take as long as the rest of a process's start.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import marshal
import os
import re
import shutil
import site
import stat
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.files import TemporaryFolder, read_json
from minitrain.learn.confinement import PROPERTIES, not_held

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
    reads = readable(tuple(secrets))
    uid = None
    if os.geteuid() == 0 and reachable([str(home.parent)], alone=wrapped) and _open_to_all(tuple(reads), wrapped):
        with suppress(OSError):  # a user namespace may know no such uid
            os.chown(home, 0, _FIRST_UID + os.getpid() % _UIDS)
            home.chmod(0o750)
            uid = _FIRST_UID + os.getpid() % _UIDS
    paths = [*reads, str(home)]
    covered = [path for path in (*secrets, Path("/proc")) if not any(Path(own).is_relative_to(path) for own in paths)]
    return {"wrapped": wrapped, "uid": uid, "readable": paths, "covered": [*map(str, covered)], "filter": program()}


@lru_cache(maxsize=64)
def _open_to_all(paths: tuple[str, ...], alone: bool) -> bool:
    """Return whether an unprivileged user can read some paths and Python's own, which stays the same."""
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
    whole, empty, back = mounts(tuple(secrets), interpreter)
    back = [*back, str(home)]
    command = [path, *_UNSHARED]
    for link in (Path("/lib"), Path("/lib64")):
        if link.is_symlink():
            command += ["--symlink", str(link.readlink()), str(link)]
    above = {parent for shown in (*whole, *back) for parent in Path(shown).parents if parent != Path("/")}
    for folder in sorted(str(parent) for parent in above if not any(map(parent.is_relative_to, whole))):
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


_CALLS = read_json(Path(__file__).with_name("system_calls.json"))
"""Allowed are those that read, compute, wait, or write to what is open already."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | 0o20000000  # the last one makes files without a name
_FCNTL = (0, 1, 2, 3, 4, 1030)  # duplicate; descriptor and file flags; neither owners of signals nor locks
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, how wide; bytes waiting; flags
_AF_UNIX = 1


def _limited(kit: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the calls that are allowed with some arguments."""

    def is_(place: int, value: int) -> Any:
        return kit.Arg(place, kit.EQ, value)

    return [
        ("open", (kit.Arg(1, kit.MASKED_EQ, _WRITING, 0),)),
        ("openat", (kit.Arg(2, kit.MASKED_EQ, _WRITING, 0),)),
        ("socketpair", (is_(0, _AF_UNIX),)),  # an event loop wakes itself up through one
        ("sendto", (is_(4, 0),)),  # to nobody by name
        ("prlimit64", (is_(0, 0), is_(2, 0))),  # reads the process's own limits
        *(("fcntl", (is_(1, command),)) for command in _FCNTL),
        *(("ioctl", (is_(1, command),)) for command in _IOCTL),
    ]


def binding() -> Any | None:
    """Return libseccomp's Python binding, or None where it or the library is not installed."""
    for name in ("seccomp", "pyseccomp"):  # the library's own, and a package on PyPI with the same interface
        try:
            return importlib.import_module(name)
        except (ImportError, RuntimeError, OSError):
            continue
    return None


@lru_cache(maxsize=1)
def program() -> str | None:
    """Return the seccomp program in hexadecimal, or None where libseccomp is not installed."""
    kit = binding()
    if kit is None:
        return None
    rules = kit.SyscallFilter(kit.ERRNO(errno.ENOSYS))
    for name in _CALLS["refused"]:
        _add(rules, kit.ERRNO(errno.EPERM), name)
    for name in _CALLS["allowed"]:
        _add(rules, kit.ALLOW, name)
    for name, arguments in _limited(kit):
        _add(rules, kit.ALLOW, name, *arguments)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read().hex()


def _add(rules: Any, action: Any, name: str, *arguments: Any) -> None:
    """Add a rule, unless this architecture or libseccomp knows no such call."""
    try:
        rules.add_rule(action, name, *arguments)
    except (OSError, ValueError, RuntimeError):
        return


PACKAGES = (
    "numpy", "numpy.libs", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection",
)  # fmt: skip
"""What a submission may import beside the standard library and minitrain: numpy, and what minitrain's configs need."""

_NO_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "idlelib", "turtledemo", "ensurepip"})
_LIBRARIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


@lru_cache(maxsize=1)
def packages() -> dict[str, Path]:
    """Return where the packages are that a submission may import, by name, as far as they are installed."""
    found: dict[str, Path] = {}
    for name in PACKAGES:
        path = Path(found["numpy"].parent, name) if name == "numpy.libs" and "numpy" in found else _location(name)
        if path is not None and path.exists():
            found[name] = path.resolve()
    return found


def _location(name: str) -> Path | None:
    """Return the folder or file of a package or module."""
    spec = importlib.util.find_spec(name) if "." not in name else None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def python_folders() -> list[Path]:
    """Return the folders of the standard library."""
    paths = [sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED") or ""]
    return _unique(Path(path) for path in paths if path and Path(path).is_dir())


def library_folders() -> list[Path]:
    """Return the folders of the system's shared libraries, and of those that this process has loaded for Python."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or "no-such-folder"
    own = {sysconfig.get_config_var("LIBDIR") or "", *_folders_of_loaded("libc.so", "libpython", "ld-")}
    paths = [*(f"{folder}/{multiarch}" for folder in ("/lib", "/usr/lib")), *own, *_LIBRARIES]
    return _unique(Path(path) for path in paths if path and Path(path).is_dir())


def _folders_of_loaded(*names: str) -> set[str]:
    """Return the folders of loaded libraries whose names begin like one of some."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return set()
    return {
        folder for folder, name in re.findall(r" (/[^\n]*)/([^/\n]+)$", maps, re.MULTILINE) if name.startswith(names)
    }


def _unique(paths: Iterable[Path]) -> list[Path]:
    """Return paths as they really are, each once, in their order."""
    return list(dict.fromkeys(path.resolve() for path in paths))


@lru_cache(maxsize=64)
def readable(secrets: tuple[Path, ...]) -> list[str]:
    """Return the paths that a submission's process may read, beside its own folder: the same while a process grades.

    Args:
        secrets: what it may not read, even where it lies below one of them.
    """
    hidden = _unique([*secrets, *package_folders()])
    found = [Path("/etc/ld.so.cache")]
    for folder in python_folders():
        found += _opened_up(folder, [*hidden, *(folder / name for name in _NO_LIBRARY)])
    own_or_system = (*_LIBRARIES, sysconfig.get_config_var("LIBDIR"))
    for folder in library_folders():
        may_hold_packages = str(folder) in own_or_system or any(folder.glob("python*"))  # not allowed as a whole
        objects = (path.resolve() for path in folder.iterdir() if ".so" in path.suffixes and path.is_file())
        found += objects if may_hold_packages else _opened_up(folder, hidden)
    allowed = [path for path in found if not any(path.is_relative_to(secret) for secret in hidden)]
    return sorted({str(path) for path in (*allowed, *packages().values())})


def _opened_up(path: Path, secrets: Sequence[Path]) -> Iterator[Path]:
    """Yield a path, or what lies below it, so that none of it is or holds a secret."""
    if path in secrets:
        return
    if not any(secret.is_relative_to(path) for secret in secrets):
        yield path
        return
    for entry in path.iterdir():
        if not entry.is_symlink():
            yield from _opened_up(entry, secrets)


@lru_cache(maxsize=64)
def mounts(secrets: tuple[Path, ...], *own: Path) -> tuple[list[str], list[str], list[str]]:
    """Return what a mount namespace shows: folders as a whole, folders to be emptied below them, and what comes back.

    Args:
        secrets: what must not be read.
        own: further paths to show.
    """
    system = (Path("/etc/ld.so.cache"), Path("/etc/alternatives"))  # the latter: links between libraries on Debian
    whole = [path for path in (*python_folders(), *library_folders(), *system) if path.exists()]
    outer = [path for path in whole if not any(path != other and path.is_relative_to(other) for other in whole)]
    found = [*_unique([*secrets, *package_folders()]), *(path for folder in whole for path in _packages_below(folder))]
    empty = {str(path) for path in found if path.is_dir() and any(path.is_relative_to(other) for other in outer)}
    return [str(path) for path in outer], sorted(empty), [str(path) for path in (*packages().values(), *own)]


def _packages_below(folder: Path) -> Iterator[Path]:
    """Yield the folders of installed packages below a folder of libraries."""
    for pattern in ("*-packages", "python*/*-packages"):
        yield from (path for path in folder.glob(pattern) if path.name in _NO_LIBRARY)


def package_folders() -> list[Path]:
    """Return the folders of installed packages, which a submission sees only what it needs of."""
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    paths += [path for path in sys.path if Path(path).name in _NO_LIBRARY]
    return _unique(map(Path, paths))


def reachable(paths: Iterable[str], *, alone: bool) -> bool:
    """Return whether an unprivileged user can read some paths.

    Args:
        paths: what to read.
        alone: whether only the paths count and not the folders above them, which a mount namespace replaces.
    """
    existing = [Path(path) for path in paths if Path(path).exists()]
    above = set() if alone else {parent for path in existing for parent in path.parents}
    return all(_open_to_others(path) for path in existing) and all(
        parent.stat().st_mode & stat.S_IXOTH for parent in above
    )


def _open_to_others(path: Path) -> bool:
    """Return whether others may read a file, or list and enter a folder."""
    wanted = stat.S_IROTH | stat.S_IXOTH if path.is_dir() else stat.S_IROTH
    return path.stat().st_mode & wanted == wanted


PACKAGE = Path(__file__).parent.parent
_LEFT_OUT = (
    *("strategies", "hw_configs", "learn/exercises", "proof", "cli", "view", "training", "whatif", "evidence"),
    *("explorer", "machine/devices", "machine/solver", "machine/platform", "machine/heterogeneous"),
    *("search/planning", "search/sweeps", "search/tuning"),
)
_OF_GRADING = ("recorder", "worker", "confinement", "wire")
_EMPTY = ("__init__.py", b'"""Empty here."""\n\n__all__: list[str] = []\n', 0)
_LOW_32_BITS = 2**32 - 1

_File = tuple[str, bytes, int]
"""Name, content and when it changed, ns."""


def shared_copy() -> Path:
    """Return a copy that all processes of this grader may read, and none may write; it is removed with the grader."""
    return _shared_copy_of(os.getpid()).path / "minitrain"


@cache
def _shared_copy_of(_grader: int) -> TemporaryFolder:
    """Return the folder with the copy of a grader's process; one that it forks makes its own."""
    folder = TemporaryFolder("minitrain-library-")
    copy_minitrain(folder.path / "minitrain")
    folder.path.chmod(0o755)  # a submission's process may have another uid
    return folder


def copy_minitrain(package: Path) -> None:
    """Write the copy into a folder, which is made."""
    for folder, files in _library().items():
        (package / folder).mkdir(parents=True)
        for name, content, changed_ns in files:
            copied = package / folder / name
            copied.write_bytes(content)
            os.utime(copied, ns=(changed_ns, changed_ns))  # else Python compiles the module again


@cache
def _library() -> Mapping[str, Sequence[_File]]:
    """Return the files of minitrain's copy by folder, read and compiled once, since a class has many submissions."""
    found: dict[str, list[_File]] = {}
    for folder, below, names in os.walk(PACKAGE):
        own = os.path.relpath(folder, PACKAGE)
        left_out = (*_LEFT_OUT, Path(own, "__pycache__").as_posix())
        below[:] = sorted(name for name in below if Path(own, name).as_posix() not in left_out)
        of_grading = [name for name in names if name.partition(".")[0] in _OF_GRADING]
        found[own] = _read(folder, of_grading if own == "learn" else names)
    configs = folder_of("hw_configs")
    found["hw_configs"] = _read(str(configs), [path.name for path in configs.iterdir() if path.is_file()])
    for empty in ("learn", "strategies"):
        found.setdefault(empty, []).append(_EMPTY)
    compiled = {os.path.join(own, "__pycache__"): [*_compiled(own, files)] for own, files in found.items()}  # noqa: PTH118
    return found | compiled


def _read(folder: str, names: Sequence[str]) -> list[_File]:
    """Return name, content and time of change of some files of a folder."""
    paths = [Path(folder, name) for name in sorted(names)]
    return [(path.name, path.read_bytes(), path.stat().st_mtime_ns) for path in paths]


def _compiled(folder: str, files: Sequence[_File]) -> Iterator[_File]:
    """Yield the compiled modules of a folder, as Python would keep them: what it has kept, or else made here."""
    for name, source, changed_ns in files:
        if name.endswith(".py"):
            kept = Path(cache_from_source(str(PACKAGE / folder / name), optimization=""))
            head = MAGIC_NUMBER + struct.pack("<3I", 0, changed_ns // 10**9 & _LOW_32_BITS, len(source))
            known = kept.read_bytes() if kept.is_file() else b""
            if not known.startswith(head):
                known = head + marshal.dumps(compile(source, name, "exec", dont_inherit=True, optimize=0))
            yield kept.name, known, changed_ns


def folder_of(name: str) -> Path:
    """Return where a part of minitrain is, which depends on how it is installed."""
    return Path(importlib.import_module(f"minitrain.{name}").__path__[0])
