"""Notebooks, one an exercise, generated from the exercise's own files: `python -m minitrain.grading.notebook DIR`.

They run from top to bottom, in Jupyter and in Colab, also before anything is solved: a failed check is printed, not
raised.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minitrain.grading.exercise import Exercise, shipped_exercises

_SETUP = """try:
    import minitrain as mt
except ImportError:  # in Colab
    %pip install -q minitrain
    import minitrain as mt"""

_SEE = """# What the reference does with the first of the sizes that are graded.
run = mt.simulate(
    {reference!r},
    {sizes},
)
print(f"{{run.step_time * 1e3:.3f}} ms, {{run.peak_memory_bytes / 2**30:.3f}} GiB, MFU {{run.mfu:.1%}}")
run.figure()"""

_GRADE = 'print(mt.grade({function}, "{name}"))'

SHOWN = {
    "00": "single", "01": "single", "02": "ddp", "03": "zero1", "04": "zero2", "05": "zero3", "06": "gpipe",
    "07": "gpipe", "08": "1f1b", "09": "zero3_prefetch", "10": "pp_dp", "11": "interleaved_1f1b", "12": "zero3",
}  # fmt: skip
"""Which shipped strategy an exercise's notebook draws, by the exercise's number."""


def notebook_of(exercise: Exercise) -> dict[str, Any]:
    """Return an exercise's notebook, as nbformat 4.5 has it."""
    case = exercise.public[0]
    options: dict[str, Any] = dict(case.options)
    if exercise.number == "06":
        options["microbatch_size"] = case.global_batch_size
    sizes = ", ".join(f"{name}={value!r}" for name, value in {**case.sizes, **options}.items())
    cells = [
        ("markdown", exercise.page.strip()),
        ("code", _SETUP),
        ("code", _SEE.format(reference=SHOWN[exercise.number], sizes=sizes)),
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


def write_notebooks(folder: Path, exercises: Iterable[Exercise] | None = None) -> list[Path]:
    """Write one notebook an exercise, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for exercise in exercises or shipped_exercises():
        paths.append(folder / f"{exercise.name}.ipynb")
        paths[-1].write_text(as_text(notebook_of(exercise)), encoding="utf-8")
    return paths


if __name__ == "__main__":  # pragma: no cover
    write_notebooks(Path(sys.argv[1]))
