"""Copy the part of minitrain that a strategy needs into the folder of a submission's process.

The copy lacks the shipped strategies, the exercises, the grader and the rooms that no strategy imports. Each process
has one of its own.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
_LEFT_OUT = (
    *("strategies", "exercises", "numerics", "cli", "trace", "hw_configs", "devices", "solver"),
    *("faults", "heterogeneous", "noise", "planning", "platform", "sweeps", "tuning", "validation", "vector"),
)
_OF_GRADING = (
    *("recorder", "recorded_program", "recorded_attention", "expert_steps"),
    *("worker", "confinement", "wire", "error_reports"),
)


def copy_minitrain(package: Path) -> None:
    """Write the copy into a folder, which is made."""
    for folder, files in _library().items():
        (package / folder).mkdir(parents=True)
        for name, text, changed_ns in files:
            copied = package / folder / name
            copied.write_bytes(text)
            os.utime(copied, ns=(changed_ns, changed_ns))  # else Python compiles the module again


@cache
def _library() -> Mapping[str, Sequence[tuple[str, bytes, int]]]:
    """Return the files of minitrain's copy by folder: name, content and when it changed, ns.

    They are read once, since a class has many submissions. Compiled modules are among them, which spares half of the
    start.
    """
    found: dict[str, list[tuple[str, bytes, int]]] = {}
    for folder, below, names in os.walk(PACKAGE):
        own = os.path.relpath(folder, PACKAGE)
        below[:] = sorted({*below}.difference(_LEFT_OUT))
        found[own] = _read(folder, _of_grading(names) if "grading" in Path(own).parts else names)
    configs = folder_of("hw_configs")
    found["hw_configs"] = _read(str(configs), [path.name for path in configs.iterdir() if path.is_file()])
    for empty in ("grading", "strategies"):
        found.setdefault(empty, []).append(("__init__.py", b'"""Empty here."""\n\n__all__: list[str] = []\n', 0))
    return found


def _read(folder: str, names: Sequence[str]) -> list[tuple[str, bytes, int]]:
    """Return name, content and time of change of some files of a folder."""
    paths = [Path(folder, name) for name in sorted(names) if not name.rpartition(".")[2].isdigit()]  # being compiled
    return [(path.name, path.read_bytes(), path.stat().st_mtime_ns) for path in paths]


def _of_grading(names: Sequence[str]) -> list[str]:
    """Return which files of this room, and of its compiled modules, a submission's process needs."""
    return [name for name in names if name.partition(".")[0] in _OF_GRADING]


def folder_of(name: str) -> Path:
    """Return where a part of minitrain is, which depends on how it is installed."""
    return Path(importlib.import_module(f"minitrain.{name}").__path__[0])
