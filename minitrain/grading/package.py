"""Gradescope: a zip with the exercises, their budgets, and the scripts that set up and run the grader."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from minitrain.grading.budgets import budget_for
from minitrain.grading.exercise import Exercise
from minitrain.grading.isolation import require_mode

_SETUP = """#!/usr/bin/env bash
set -e
python3 -m pip install -q {requirement}
"""

_RUN = """#!/usr/bin/env bash
cd "$(dirname "$0")"
SUBMISSION="${{MINITRAIN_SUBMISSION:-/autograder/submission}}"
RESULTS="${{MINITRAIN_RESULTS:-/autograder/results/results.json}}"
{python} -m minitrain learn grade "$SUBMISSION"/*.py --exercises exercises --format gradescope \\
    --isolation "${{MINITRAIN_ISOLATION:-{isolation}}}" > "$RESULTS" 2> errors.txt
if [ ! -s "$RESULTS" ]; then
    {python} -c 'import json, sys; print(json.dumps(dict(score=0, output=sys.stdin.read())))' < errors.txt > "$RESULTS"
fi
"""


def write_package(
    exercises: Sequence[Exercise],
    path: Path,
    *,
    requirement: str | None = None,
    python: str = "python3",
    isolation: str = "auto",
) -> Path:
    """Write an autograder for Gradescope.

    Args:
        exercises: what to grade.
        path: of the zip.
        requirement: what pip installs; this version of minitrain if None.
        python: the interpreter to run.
        isolation: how submissions are kept apart there: "auto", "required" or "none".

    Returns:
        The path.

    Raises:
        UsageError: there is no such isolation.
    """
    require_mode(isolation)
    files = {
        "setup.sh": _SETUP.format(requirement=requirement or f"minitrain=={version('minitrain')}"),
        "run_autograder": _RUN.format(python=python, isolation=isolation),
    }
    for exercise in exercises:
        folder = f"exercises/{exercise.name}"
        for name in ("exercise.json", "hidden.json", "statement.md", "starter.py"):
            source = exercise.folder / name
            if source.is_file():
                files[f"{folder}/{name}"] = source.read_text(encoding="utf-8")
        files[f"{folder}/budgets.json"] = budgets_json(exercise)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same files give the same zip
            info.external_attr = (0o755 if "/" not in name else 0o644) << 16
            archive.writestr(info, text)
    return path


def budgets_json(exercise: Exercise) -> str:
    """Return the budgets of all sizes, for where the reference is not there."""
    budgets = {case.key: asdict(budget_for(exercise, case)) for case in (*exercise.public, *exercise.hidden)}
    return json.dumps(budgets, indent=2)
