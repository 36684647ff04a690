"""A wheel of the minitrain that runs here, without what students should not read: references, hidden sizes, strategies.

The wheel is put together from the files of this installation, be it a checkout or a wheel, so that it needs neither a
build tool nor an index. It is pure Python, so that a wheel is a zip of these files with three more that describe them
(PEP 427). Its version says for whom it is, such as 0.1.0+students.

Gradescope: a zip with minitrain, the exercises, their budgets, and the scripts that set up and run the grader.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

from minitrain.errors import UsageError
from minitrain.files import TemporaryFolder, replacing
from minitrain.learn.budgets import budgets_json
from minitrain.learn.exercise import SHIPPED, Exercise
from minitrain.learn.isolation import require_mode
from minitrain.learn.picture import kept_runs

_PACKAGE = Path(__file__).parent.parent
_NOT_FOR_STUDENTS = re.compile(r"(?m)^Requires-Dist: (plotly|scipy|simpy)[^;\n]*$")
"""What students may do without: figures of Plotly, fits to measurements, the virtual platform."""

_NO_STRATEGIES = (
    '"""The shipped strategies, which solve the exercises, are not in this wheel."""\n\n__all__: list[str] = []\n'
)
_FOR_LEARNERS = ("exercise.json", "statement.md")
_LIKE_SOURCES = (".css", ".csv", ".html", ".js", ".json", ".md", ".py", ".pyi", ".sh", ".typed", ".yaml")
_BEGINNING = (2020, 1, 1, 0, 0, 0)  # the same files give the same wheel


def students_wheel(exercises: Sequence[Exercise], folder: Path) -> Path:
    """Write a wheel for students, and return its path.

    Args:
        exercises: those that are in it, with the budgets of their public sizes.
        folder: where to write it.

    Raises:
        UsageError: minitrain is not installed here, not even from a checkout.
    """
    text, version = _metadata()
    name = f"minitrain-{version}"
    files = {**_sources(), **_exercise_files(exercises), "minitrain/strategies/__init__.py": _NO_STRATEGIES.encode()}
    files[f"{name}.dist-info/METADATA"] = text.encode()
    files[f"{name}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: minitrain\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{name}.dist-info/entry_points.txt"] = b"[console_scripts]\nminitrain = minitrain.cli:main\n"
    record = f"{name}.dist-info/RECORD"
    files[record] = _record(files, record).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-py3-none-any.whl"
    write_zip(path, files)
    return path


def write_zip(path: Path, files: dict[str, bytes], *, programs: Sequence[str] = ()) -> None:
    """Write a zip, the same for the same files.

    Args:
        path: of the zip.
        files: by name.
        programs: those that may be executed.
    """
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, _BEGINNING)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o755 if name in programs else 0o644) << 16
            archive.writestr(info, data)


def _metadata() -> tuple[str, str]:
    """Return the metadata of the wheel and its version, from those of this installation.

    Raises:
        UsageError: there are none.
    """
    try:
        found = distribution("minitrain")
        text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    except ImportError as error:
        raise UsageError("minitrain is not installed here; `pip install -e .` in the checkout makes it so") from error
    version = f"{found.version}+students"
    text = re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1)
    text = re.sub(r"(?m)^Summary: .*$", "Summary: minitrain for students: no shipped strategies, no solutions.", text)
    return _NOT_FOR_STUDENTS.sub(r"\g<0>; extra == 'all'", text).replace(
        "\n\n", "\nProvides-Extra: all\n\n", 1
    ), version


def _sources() -> dict[str, bytes]:
    """Return the files of minitrain but for strategies and exercises, by their names in the wheel."""
    left_out = ("strategies/", "learn/exercises/", "hw_configs/")
    files = {f"minitrain/{name}": data for name, data in files_below(_PACKAGE, left_out)}
    configs = Path(importlib.import_module("minitrain.hw_configs").__path__[0])
    files |= {f"minitrain/hw_configs/{name}": data for name, data in files_below(configs)}
    for name in ("__init__.py", "operations.md"):
        files[f"minitrain/learn/exercises/{name}"] = (SHIPPED / name).read_bytes()
    return files


def files_below(folder: Path, left_out: tuple[str, ...] = ()) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a folder by their paths there, but for some of its entries and what Python leaves."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        name = "/".join(parts)
        if (
            path.is_file()
            and path.suffix in _LIKE_SOURCES
            and not name.startswith(left_out)
            and "__pycache__" not in parts
        ):
            yield name, path.read_bytes()


def _exercise_files(exercises: Sequence[Exercise]) -> dict[str, bytes]:
    """Return what learners may read of some exercises, with the budgets of the public sizes."""
    files = {}
    for exercise in exercises:
        folder = f"minitrain/learn/exercises/{exercise.name}"
        for name in _FOR_LEARNERS:
            files[f"{folder}/{name}"] = (exercise.folder / name).read_bytes()
        files[f"{folder}/budgets.json"] = budgets_json(exercise, exercise.public).encode()
        files |= {f"{folder}/{name}": text for name, text in kept_runs(exercise)}
    return files


def _record(files: dict[str, bytes], own: str) -> str:
    """Return the list of a wheel's files, with their hashes and sizes."""
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return "\n".join([*lines, f"{own},,"]) + "\n"


_SCRIPTS = ("setup.sh", "run_autograder")


def _script(name: str, **values: str) -> str:
    """Return a script of the autograder, with values in the places of their names in braces."""
    text = (Path(__file__).parent / "autograder" / name).with_suffix(".sh").read_text("utf-8")
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def write_package(
    exercises: Sequence[Exercise],
    path: Path,
    *,
    requirement: str | None = None,
    python: str = "python3",
    isolation: str = "auto",
) -> Path:
    """Write an autograder for Gradescope.

    It carries a wheel of this minitrain without references and strategies, so that a submission finds none there.

    Args:
        exercises: what to grade, each with the hidden sizes to use.
        path: of the zip.
        requirement: what pip installs instead of the wheel; None to carry the wheel.
        python: the interpreter there.
        isolation: how submissions are kept apart there: "auto", "required" or "none".

    Returns:
        The path.

    Raises:
        UsageError: there is no such isolation, or minitrain is not installed here.
    """
    require_mode(isolation)
    files: dict[str, bytes] = {}
    if requirement is None:
        with TemporaryFolder("minitrain-package-") as folder:
            wheel = students_wheel((), folder)
            files[wheel.name] = wheel.read_bytes()
            requirement = f"./{wheel.name}"
    scripts = {name: _script(name, requirement=requirement, python=python, isolation=isolation) for name in _SCRIPTS}
    files = {name: text.encode() for name, text in scripts.items()} | files
    for exercise in exercises:
        folder_there = f"exercises/{exercise.name}"
        for name in _FOR_LEARNERS:
            source = exercise.folder / name
            if source.is_file():
                files[f"{folder_there}/{name}"] = source.read_bytes()
        files[f"{folder_there}/hidden.json"] = json.dumps([case.as_dict() for case in exercise.hidden]).encode()
        cases = (*exercise.public, *exercise.hidden)
        if exercise.slowed:
            files |= {f"{folder_there}/{name}": text for name, text in kept_runs(exercise)}
        files[f"{folder_there}/budgets.json"] = budgets_json(exercise, cases).encode()
    write_zip(path, files, programs=_SCRIPTS)
    return path
