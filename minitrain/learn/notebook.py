"""Notebooks, one an exercise, generated from the exercise's own files: `python -m minitrain.learn.notebook DIR`.

And back: what of a notebook is handed in as a submission (`code_of`).

They run from top to bottom, in Jupyter and in Colab, also before anything is solved: a failed check is printed, not
raised. Where minitrain is missing, their first cell installs `--install REQUIREMENT`: a repository, such as
`git+https://host/owner/minitrain`, or a wheel's address. Without, it is the checkout that the notebooks lie in.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.files import parse_json, write_text
from minitrain.learn.exercise import Exercise, shipped_exercises

_DEFINES = re.compile(
    r"""(import|from|def|async\s+def|class)\b | [@#)\]}] | ("{3}|'{3}).+\2\s*$ | [A-Za-z_]\w*(:[^=(]+)?\s*=[^=(]*$""",
    re.VERBOSE,
)
"""How lines begin at the left margin of a cell that only imports, defines and names constants."""

_SETUP = """try:
    import minitrain as mt
except ImportError:  # install the checkout, the wheel or the repository
    %pip install -q "{requirement}"
    import minitrain as mt"""
_CHECKOUT = ".."
"""Where minitrain is, seen from the shipped notebooks."""

_SEE = """# What the reference does with the first of the sizes that are graded.
from minitrain.learn import expected_run

run = expected_run("{name}")
print(f"{{run.step_time * 1e3:.3f}} ms, {{run.peak_memory_bytes / 2**30:.3f}} GiB, MFU {{run.mfu:.1%}}")
run"""

_GRADE = 'grade = mt.grade({function}, "{name}")\ngrade'


def notebook_of(exercise: Exercise, requirement: str = _CHECKOUT) -> dict[str, Any]:
    """Return an exercise's notebook, as nbformat 4.5 has it.

    Args:
        exercise: the exercise.
        requirement: what its first cell installs where minitrain is missing.
    """
    cells = [
        ("markdown", exercise.page.strip()),
        ("code", _SETUP.format(requirement=requirement)),
        *(("code", cell) for cell in [_predict(exercise)] if cell),
        ("code", _SEE.format(name=exercise.name)),
        ("markdown", "## Your turn\n\nWrite it here; run the cell, and the next one, as often as you like."),
        ("code", exercise.starter.strip().replace(f"see {exercise.name}.md", "see above")),
        ("code", _GRADE.format(function=exercise.function, name=exercise.name)),
        *(("markdown", _folded(number, hint)) for number, hint in enumerate(exercise.hints, 1)),
    ]
    return {
        "cells": [_cell(f"{exercise.number}-{place}", kind, text) for place, (kind, text) in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _predict(exercise: Exercise) -> str:
    """Return a cell of questions with empty answers; "" where nothing is asked."""
    if exercise.predict is None:
        return ""
    answers = "".join(f', {name}=""' for name in exercise.predict.because)
    call = f'predict("{exercise.name}"{answers})'
    return f"# Predict first: write your answers, with their units.\nfrom minitrain.learn import predict\n\n{call}"


def _folded(number: int, hint: str) -> str:
    """Return a hint that opens on a click."""
    return f"<details><summary>Hint {number}</summary>\n\n{hint}\n\n</details>"


def _cell(name: str, kind: str, text: str) -> dict[str, Any]:
    """Return a cell."""
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": f"cell-{name}",
        "metadata": {},
        "source": text.splitlines(keepends=True),
    }
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


def as_text(notebook: dict[str, Any]) -> str:
    """Return a notebook as its file has it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def code_of(notebook: bytes) -> bytes:
    """Return what a notebook defines: its cells of imports, functions, classes and constants, as a module.

    Cells that do something (a run, a plot, a check) are left out, as are commands of the notebook (`%`, `!`).

    Raises:
        ValueError: it is no notebook.
    """
    found = parse_json(notebook.decode("utf-8-sig"))
    cells = found.get("cells") if isinstance(found, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it has no cells")  # noqa: TRY004  (of a file, not of an argument)
    pieces = []
    for number, cell in enumerate(cells, 1):
        source = cell.get("source") if isinstance(cell, dict) and cell.get("cell_type") == "code" else None
        text = "".join(map(str, source)) if isinstance(source, list) else source
        if not isinstance(text, str):
            continue
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(("%", "!"))]
        margin = [line for line in lines if line and not line[0].isspace()]
        if margin and all(map(_DEFINES.match, margin)):
            pieces.append("\n".join([f"# cell {number}", *lines, ""]))
    return "\n".join(pieces).encode()


def write_notebooks(
    folder: Path, exercises: Iterable[Exercise] | None = None, requirement: str = _CHECKOUT
) -> list[Path]:
    """Write one notebook an exercise, and return their paths.

    Args:
        folder: where to write them.
        exercises: the shipped ones if None.
        requirement: what their first cell installs where minitrain is missing.

    Raises:
        UsageError: the requirement has characters that would end the command.
    """
    if not requirement.isprintable() or set(requirement) & set("\"'`$\\"):
        raise UsageError(f"a requirement is an address, a path or a name, got {requirement!r}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for exercise in exercises or shipped_exercises():
        paths.append(folder / f"{exercise.name}.ipynb")
        write_text(paths[-1], [as_text(notebook_of(exercise, requirement))])
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the notebooks that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m minitrain.learn.notebook", description="Write the notebooks.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--install", default=_CHECKOUT, metavar="REQUIREMENT", help="a repository or a wheel, for pip")
    given = parser.parse_args(arguments)
    write_notebooks(given.folder, requirement=given.install)


if __name__ == "__main__":  # pragma: no cover
    main()
