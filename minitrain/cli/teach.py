"""The commands of `minitrain learn` for teachers: grade a class, verify exercises, package them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from minitrain.cli.failures import FAILED, Debug
from minitrain.cli.learn import HERE, Exercises, all_exercises, learn, load
from minitrain.cli.output import Progress, print_lines, print_table
from minitrain.errors import UsageError

__all__ = ["learn"]

if TYPE_CHECKING:
    from minitrain.grading import Exercise
    from minitrain.grading.classes import Row

Isolated = Annotated[
    str,
    typer.Option(
        "--isolation",
        metavar="HOW",
        help="auto: by all means of this machine; required: by the kernel, or not at all; none: a process of its own.",
    ),
]


Seed = Annotated[
    str | None,
    typer.Option(
        "--seed",
        metavar="TEXT",
        envvar="MINITRAIN_SEED",
        help="A secret of yours, from which the hidden sizes are drawn.",
        show_default="those that everybody can read",
    ),
]
_EVERY_S = 2.0


def _with_seed(exercises: Sequence[Exercise], seed: str | None) -> list[Exercise]:
    """Return exercises, with hidden sizes of the seed if there is one."""
    from minitrain.grading.secret_sizes import with_secret_sizes  # noqa: PLC0415

    return [with_secret_sizes(exercise, seed) for exercise in exercises] if seed else [*exercises]


@learn.command("grade")
def grade_files(
    places: Annotated[
        list[str], typer.Argument(metavar="PLACE...", help="Submissions, folders of them, or patterns such as '*.py'.")
    ],
    exercise: Annotated[
        str | None, typer.Option("--exercise", metavar="N", help="Of all files; else by their names and functions.")
    ] = None,
    exercises: Exercises = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORM",
            help="text, table, csv, json, junit or gradescope.",
            show_default="text for one submission, table for more",
        ),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Each folder is one student's; else each entry of it is a submission.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Submissions at a time.", show_default="one a core")
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", min=0.1, help="Time that a submission may take.")] = 20.0,
    isolation: Isolated = "auto",
    seed: Seed = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Grade submissions on public and hidden sizes; the exit code is 0 for full marks everywhere."""
    from minitrain.grading.classes import grade_all  # noqa: PLC0415
    from minitrain.grading.report import FORMATS  # noqa: PLC0415
    from minitrain.grading.sandbox import Limits  # noqa: PLC0415
    from minitrain.grading.submissions import find_submissions  # noqa: PLC0415

    if form is not None and form not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}, got {form!r}")
    known = _with_seed([load(exercise, exercises)] if exercise else all_exercises(exercises), seed)
    found = find_submissions(places, known, exercise=known[0] if exercise else None, together=together)
    limits = Limits(seconds=seconds, isolation=isolation)
    with Progress() as progress:
        say = _Countdown(progress, len(found))
        rows: Sequence[Row] = grade_all(found, limits=limits, workers=jobs, progress=say)
    report = FORMATS[form or ("text" if len(rows) == 1 else "table")](rows)
    print_table(report) if isinstance(report, Table) else print(report)
    if not all(row.passed for row in rows):
        raise typer.Exit(FAILED)


class _Countdown:
    """Says how many submissions are graded, and how long the rest will take, every few seconds.

    Args:
        progress: where to say it.
        total: how many there are.
    """

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._said_s = 0.0
        if total > 1:
            progress.say(f"grading {total} submissions")

    def __call__(self, done: int, seconds: float) -> None:
        """Say it after a submission, unless it was said a moment ago."""
        if self._total > 1 and (done == self._total or seconds - self._said_s >= _EVERY_S):
            self._said_s = seconds
            left = seconds / done * (self._total - done)
            self._progress.say(f"graded {done} of {self._total}; about {left:.0f} s left")


@learn.command()
def verify(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A folder of exercises, or one exercise.")
    ] = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Verify exercises: reference passes, starter fails, wrong solutions fail for their reason."""
    from minitrain.grading import load_exercise  # noqa: PLC0415
    from minitrain.grading.verify import faults_of  # noqa: PLC0415

    one = folder is not None and (folder / "exercise.json").is_file()
    faulty = False
    for exercise in [load_exercise(folder)] if one and folder else all_exercises(folder):
        faults = faults_of(exercise)
        faulty = faulty or bool(faults)
        print_lines([f"{exercise.name}: ok"] if not faults else [f"{exercise.name}: {fault}" for fault in faults])
    if faulty:
        raise typer.Exit(FAILED)


@learn.command()
def package(
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="What to write.", show_default="autograder.zip")
    ] = None,
    numbers: Annotated[list[str] | None, typer.Option("--exercise", metavar="N", help="Only these; repeat it.")] = None,
    exercises: Exercises = None,
    students: Annotated[
        bool, typer.Option("--students", help="Write a wheel for students instead, into the folder PATH.")
    ] = False,
    requirement: Annotated[
        str | None,
        typer.Option(
            metavar="REQ", help="What pip installs there.", show_default="this minitrain, which is in the zip"
        ),
    ] = None,
    python: Annotated[str, typer.Option(metavar="PYTHON", help="The interpreter there.")] = "python3",
    isolation: Isolated = "auto",
    seed: Seed = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Write an autograder zip for Gradescope, or a wheel for students without references and hidden sizes."""
    from minitrain.grading.package import write_package  # noqa: PLC0415
    from minitrain.grading.wheel import students_wheel  # noqa: PLC0415

    chosen: Sequence[Exercise] = [load(n, exercises) for n in numbers] if numbers else all_exercises(exercises)
    if students:
        print_lines([f"wrote {students_wheel(chosen, path or HERE)}"])
        return
    chosen, path = _with_seed(chosen, seed), path or Path("autograder.zip")
    print_lines([f"wrote {write_package(chosen, path, requirement=requirement, python=python, isolation=isolation)}"])
