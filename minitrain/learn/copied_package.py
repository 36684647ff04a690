"""Copy the part of minitrain that a strategy needs into the folder of a submission's process.

The copy lacks the shipped strategies, the exercises, the grader and the rooms that no strategy imports. Its modules are
compiled: the process may not write what it compiles, and Python may have been told not to (`PYTHONDONTWRITEBYTECODE`).

Each process has a copy of its own, unless bubblewrap shows it one that it cannot write: hundreds of files to write take
as long as the rest of a process's start.
"""

from __future__ import annotations

import importlib
import marshal
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

from minitrain.files import TemporaryFolder

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
        below[:] = sorted(name for name in below if _is_copied(Path(own, name).as_posix()))
        found[own] = _read(folder, _of_grading(names) if own == "learn" else names)
    configs = folder_of("hw_configs")
    found["hw_configs"] = _read(str(configs), [path.name for path in configs.iterdir() if path.is_file()])
    for empty in ("learn", "strategies"):
        found.setdefault(empty, []).append(_EMPTY)
    compiled = {os.path.join(own, "__pycache__"): [*_compiled(own, files)] for own, files in found.items()}  # noqa: PTH118
    return found | compiled


def _is_copied(folder: str) -> bool:
    """Return whether a folder of minitrain is in the copy."""
    return folder not in _LEFT_OUT and not folder.endswith("__pycache__")


def _read(folder: str, names: Sequence[str]) -> list[_File]:
    """Return name, content and time of change of some files of a folder."""
    paths = [Path(folder, name) for name in sorted(names)]
    return [(path.name, path.read_bytes(), path.stat().st_mtime_ns) for path in paths]


def _of_grading(names: Sequence[str]) -> list[str]:
    """Return which files of this room a submission's process needs."""
    return [name for name in names if name.partition(".")[0] in _OF_GRADING]


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
