"""Gradescope: a zip with minitrain, the exercises, their budgets, and the scripts that set up and run the grader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from minitrain.files import TemporaryFolder
from minitrain.learn.budgets import budgets_json
from minitrain.learn.exercise import Exercise
from minitrain.learn.isolation import require_mode
from minitrain.learn.picture import kept_runs
from minitrain.learn.wheel import students_wheel, write_zip

_SETUP = """#!/usr/bin/env bash
# Installs the grader. It needs Python 3.11 or later (Gradescope: the image of Ubuntu 24.04), and a package index for
# what grading needs: numpy, autograd, pydantic, rich and typer, under 100 MB in all.
set -e
cd "$(dirname "$0")"
PYTHON="${{MINITRAIN_PYTHON:-{python}}}"
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq && apt-get install -yqq python3-venv libseccomp2 bubblewrap || true  # the latter two isolate
fi
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "minitrain needs Python 3.11 or later; choose an image that has it, such as Ubuntu 24.04" >&2
    exit 1
fi
"$PYTHON" -m venv venv
venv/bin/python -m pip install -q --no-compile {requirement}
"""

_RUN = """#!/usr/bin/env bash
cd "$(dirname "$0")"
[ -d exercises ] || cd source  # Gradescope unpacks the zip there, and puts this script above it
PYTHON="$PWD/venv/bin/python"
[ -x "$PYTHON" ] || PYTHON="${{MINITRAIN_PYTHON:-{python}}}"
SUBMISSION="${{MINITRAIN_SUBMISSION:-/autograder/submission}}"
RESULTS="${{MINITRAIN_RESULTS:-/autograder/results/results.json}}"
ERRORS="$(mktemp)"
"$PYTHON" -m minitrain learn grade "$SUBMISSION" --together --exercises exercises --format gradescope \\
    --isolation "${{MINITRAIN_ISOLATION:-{isolation}}}" > "$RESULTS" 2> "$ERRORS"
if [ ! -s "$RESULTS" ]; then
    "$PYTHON" -c 'import json, sys; print(json.dumps(dict(score=0, output=sys.stdin.read())))' < "$ERRORS" > "$RESULTS"
fi
"""

_SCRIPTS = ("setup.sh", "run_autograder")


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
    scripts = {
        "setup.sh": _SETUP.format(requirement=requirement, python=python),
        "run_autograder": _RUN.format(python=python, isolation=isolation),
    }
    files = {name: text.encode() for name, text in scripts.items()} | files
    for exercise in exercises:
        folder_there = f"exercises/{exercise.name}"
        for name in ("exercise.json", "statement.md", "starter.py"):
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
