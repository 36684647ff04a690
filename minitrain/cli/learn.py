"""The commands of `minitrain learn` for learners: exercises, one at a time, graded at once. `teach` has the others.

The commands of `minitrain learn` for teachers: grade a class, verify exercises, package them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from minitrain.cli.failures import FAILED
from minitrain.cli.generation import Group
from minitrain.cli.output import Progress, print_lines, print_table
from minitrain.errors import UsageError
from minitrain.files import read_json, write_text
from minitrain.plain_text import printable

if TYPE_CHECKING:
    from minitrain.learn import Exercise, Grade
    from minitrain.learn.classes import Row


learn = Group("Learn by writing strategies: graded exercises.", {}, no_args_is_help=True)

STATE = ".minitrain-learn.json"

_OWN = "A folder of exercises of your own; the shipped ones by default."
Exercises = Annotated[Path | None, typer.Option(metavar="DIR", help=_OWN)]
Here = Annotated[Path, typer.Option(metavar="DIR", help="Your folder.")]
Which = Annotated[str, typer.Argument(metavar="N", help="An exercise's number or name.")]
What = Annotated[str, typer.Argument(metavar="FILE|N", help="Your file, or an exercise's number.")]
HERE = Path()


def load(name: str, folder: Path | None) -> Exercise:
    """Return an exercise."""
    from minitrain.learn import load_exercise  # noqa: PLC0415  (not for `minitrain --help`)

    return load_exercise(name, folder)


def all_exercises(folder: Path | None) -> list[Exercise]:
    """Return all exercises."""
    from minitrain.learn.exercise import all_exercises as exercises_of  # noqa: PLC0415

    if folder is not None and not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; give one that holds exercises")
    found = exercises_of(folder)
    if folder is not None and not found:
        raise UsageError(f"there is no exercise in {folder}; give a folder whose folders have an exercise.json each")
    return found


def _is_progress(done: Any) -> bool:
    """Return whether an entry of the small file says what a learner has done in an exercise."""
    kinds = {"passed": bool, "best": int | float, "hints": int}
    typed = isinstance(done, dict) and all(isinstance(done.get(name), kind) for name, kind in kinds.items())
    return typed and 0 <= done["best"] <= 100 and done["hints"] >= 0


class State:
    """What a learner has done, in a small file of the folder.

    Args:
        folder: the learner's.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / STATE
        try:
            found = read_json(self.path)
        except (OSError, ValueError):
            found = {}
        known = found.items() if isinstance(found, dict) else ()  # the file may have been edited
        self.exercises: dict[str, dict[str, Any]] = {name: done for name, done in known if _is_progress(done)}

    def of(self, exercise: Exercise) -> dict[str, Any]:
        """Return what is known of an exercise."""
        return self.exercises.setdefault(exercise.name, {"passed": False, "best": 0, "hints": 0})

    def save(self) -> None:
        """Write the file."""
        write_text(self.path, [json.dumps(self.exercises, indent=2), "\n"])


@learn.define("list")
def list_exercises(*, dir: Here = HERE, exercises: Exercises = None) -> None:
    """List the exercises and your progress."""
    state = State(dir)
    table = Table(box=None, header_style="bold")  # by itself: other tables need what simulates
    for column in ("", "exercise", "about", "best"):
        table.add_column(column)
    for exercise in all_exercises(exercises):
        known = state.of(exercise)
        table.add_row("✓" if known["passed"] else "", exercise.name, exercise.title, f"{known['best'] or ''}")
    print_table(table)


@learn.define()
def start(n: Which = "00", *, dir: Here = HERE, exercises: Exercises = None) -> None:
    """Write an exercise's starter and statement into your folder, never over existing work."""
    exercise = load(n, exercises)
    dir.mkdir(parents=True, exist_ok=True)
    path = dir / f"{exercise.name}.py"
    if path.exists():
        print_lines([f"{path} is there already; `minitrain learn reset {exercise.number}` begins again"])
    else:
        write_text(path, [exercise.starter])
        print_lines([f"wrote {path}"])
    statement = path.with_suffix(".md")
    write_text(statement, [_statement(exercise)])
    print_lines(["", *statement.read_text(encoding="utf-8").splitlines()])


_MEMORY = (
    "Memory is that of the fullest rank: what the reference holds, and a little for temporaries. Beside that, no rank",
    "may keep more samples waiting for their backward than the reference does, nor more activations, except for one of",
    "one layer.",
)


_PREDICT = "`minitrain learn predict {} FIGURE=ANSWER ...` says whether you are right, and then why."


def _statement(exercise: Exercise) -> str:
    """Return an exercise's statement with its budgets."""
    if exercise.slowed:
        return exercise.page
    from minitrain.learn.budgets import budget_for  # noqa: PLC0415
    from minitrain.learn.predictions import questions  # noqa: PLC0415

    lines = ["## Budgets", "", "| sizes | step time, ms | memory, GiB | communication, MiB |", "|---|---|---|---|"]
    for case in exercise.public:
        budget = budget_for(exercise, case)
        lines.append(
            f"| {case} | {budget.step_time_s * 1e3:.3f} | {budget.memory_bytes / 2**30:.3f} | "
            f"{budget.communication_bytes / 2**20:.0f} |"
        )
    lines += ["", "Communication is of all ranks, an all_reduce counted twice. There are hidden sizes too."]
    lines += [] if exercise.memory_limit_bytes else ["", *_MEMORY]
    asked = questions(exercise)
    if asked:
        listed = [f"- {line}" for line in asked[1:]]
        lines = ["## Predict first", "", asked[0], "", *listed, "", _PREDICT.format(exercise.number), "", *lines]
    return exercise.page + "\n" + "\n".join(lines) + "\n"


def _file_of(what: str, folder: Path, exercises: Path | None) -> tuple[Path, Exercise]:
    """Return a file and its exercise, from either."""
    from minitrain.learn.submissions import exercise_of  # noqa: PLC0415

    if what.endswith((".py", ".ipynb")):
        path = Path(what)
        if not path.is_file():
            raise UsageError(f"there is no file {path}; `minitrain learn start` writes one")
        found = exercise_of(path, all_exercises(exercises))
        if found is None:
            raise UsageError(
                f"which exercise is {path} for? name it like 02_ddp.py, or its function like the starter's"
            )
        return path, found
    exercise = load(what, exercises)
    path = folder / f"{exercise.name}.py"
    if not path.is_file():
        raise UsageError(f"there is no file {path}; `minitrain learn start {exercise.number}` writes it")
    return path, exercise


def _check(
    path: Path,
    exercise: Exercise,
    folder: Path,
    exercises: Path | None,
    *,
    reloads: bool = False,
    among: Path | None = None,
) -> Grade:
    """Grade a file on the public sizes, print the grade, draw what happened, and note it."""
    from minitrain.learn import grade  # noqa: PLC0415
    from minitrain.learn.picture import write_picture  # noqa: PLC0415

    found = grade(path, exercise, hidden=False, keep_run=True)
    print_lines(str(found).splitlines())
    if exercise.slowed and found.results[0].passed:
        from minitrain.learn.predictions import answers_of, write_runs  # noqa: PLC0415

        both = write_runs(exercise, answers_of(path), path)
        print_lines([f"now compare them: minitrain diff {both[0]} {both[1]} --html {path.with_suffix('.html')}"])
    picture = path.with_suffix(".check.html")
    picture.unlink(missing_ok=True)  # that of the check before
    if write_picture(found, exercise, picture, reloads=reloads):
        print_lines([f"what happened beside what is expected, as far as there is a picture of each: {picture}"])
    if found.output.strip():
        print_lines(["it printed:", *found.output.splitlines()[:20]])
    state = State(folder)
    known = state.of(exercise)
    known["best"] = max(known["best"], found.score)
    known["passed"] = known["passed"] or found.passed
    state.save()
    if found.passed:
        print_lines([*_standing(found, exercise, among), *_next(exercise, state, exercises)])
    return found


def _standing(found: Grade, exercise: Exercise, among: Path | None) -> list[str]:
    """Return the MFU of an open challenge and its place among others, a line each."""
    from minitrain.learn import expected_run  # noqa: PLC0415
    from minitrain.learn.classes import place_among  # noqa: PLC0415

    lines = []
    if exercise.memory_limit_bytes:
        expected = expected_run(exercise)
        limit = "" if expected is None else f"; {expected.mfu:.1%} is enough to pass"
        lines.append(f"MFU {found.leaderboard['mfu']:.1%}{limit}")
    if among is not None:
        place, total = place_among(exercise.name, found.leaderboard, among)
        lines.append(f"place {place} of {total} in {among}, you among them")
    return lines


def _next(exercise: Exercise, state: State, exercises: Path | None) -> list[str]:
    """Return which exercise comes next: the first after this one that is not passed yet."""
    every = all_exercises(exercises)
    later = [
        one for one in every[[one.name for one in every].index(exercise.name) + 1 :] if not state.of(one)["passed"]
    ]
    return [] if not later else [f"next: `minitrain learn start {later[0].number}`, {later[0].title}"]


@learn.define()
def predict(
    n: Which,
    answers: Annotated[list[str] | None, typer.Argument(metavar="[FIGURE=ANSWER]...")] = None,
    *,
    dir: Here = HERE,
    exercises: Exercises = None,
) -> None:
    """Say what you expect before you run anything; why a figure is what it is, is told once you know it.

    Args:
        n: An exercise's number or name.
        answers: Such as bubble=12%; without any, the questions are asked.
        dir: Your folder.
        exercises: A folder of exercises of your own; the shipped ones by default.
    """
    from minitrain.learn.predictions import answered, questions  # noqa: PLC0415

    exercise, given = load(n, exercises), {}
    for text in answers or ():
        name, equals, answer = text.partition("=")
        if not equals:
            raise UsageError(f"an answer is FIGURE=ANSWER, such as bubble=12%, got {text!r}")
        given[name] = answer
    if not given:
        print_lines(questions(exercise) or [f"exercise {exercise.name} asks nothing before it is run"])
        return
    found = [*answered(exercise, given)]
    print_lines(f"{name}: {said}" for name, _, said in found)
    state = State(dir)
    state.of(exercise).setdefault("predicted", {}).update({name: given[name] for name, right, _ in found if right})
    state.save()
    if not all(right for _, right, _ in found):
        raise typer.Exit(FAILED)


@learn.define()
def check(what: What, *, dir: Here = HERE, exercises: Exercises = None, among: Path | None = None) -> None:
    """Check your work on the public sizes.

    Args:
        what: Your file, or an exercise's number.
        dir: Your folder.
        exercises: A folder of exercises of your own; the shipped ones by default.
        among (PLACE): Results of others, as `learn grade --results` keeps them: says your place by MFU.
    """
    path, exercise = _file_of(what, dir, exercises)
    if not _check(path, exercise, dir, exercises, among=among).passed:
        raise typer.Exit(FAILED)


LEAST_BATCH = 64  # samples of a step: with fewer, the loss of single steps says little


@learn.define()
def run(what: What, *, processes: int = 2, steps: int = 100, dir: Here = HERE, exercises: Exercises = None) -> None:
    """Train by your work on real processes: the loss, and what was predicted beside what was measured.

    Args:
        what: Your file, or an exercise's number.
        processes (N): Ranks, each a process.
        steps (N): How many.
        dir: Your folder.
        exercises: A folder of exercises of your own; the shipped ones by default.
    """
    import minitrain as mt  # noqa: PLC0415  (not for `minitrain --help`)
    from minitrain.cli.options import saying_warnings  # noqa: PLC0415
    from minitrain.cli.train import say  # noqa: PLC0415
    from minitrain.training.measured import LossWarning  # noqa: PLC0415

    path, exercise = _file_of(what, dir, exercises)
    if exercise.slowed:
        raise UsageError(
            f"exercise {exercise.number} asks for answers, and there is no strategy to train; "
            f"`minitrain learn check {exercise.number}` compares a step that was measured already"
        )
    case = next((case for case in exercise.public if case.world_size == processes), exercise.public[0])
    batch = case.global_batch_size * -(-LEAST_BATCH // case.global_batch_size)
    sizes = {**case.sizes, "world_size": processes, "global_batch_size": batch}
    with saying_warnings(LossWarning), Progress() as progress:
        progress.say(f"training {path} on {processes} processes")
        found = mt.train(f"{path}:{exercise.function}", **sizes, **case.options, steps=steps)
    assert found.predicted is not None  # it has just been simulated
    say(found, mt.diff(found.predicted, found, names=("predicted", "measured")))


@learn.define()
def watch(
    what: What,
    *,
    dir: Here = HERE,
    exercises: Exercises = None,
    times: Annotated[int | None, typer.Option(hidden=True, help="Checks to make before leaving.")] = None,
) -> None:
    """Check your work whenever you save it, until Ctrl-C; the page of the last check reloads in a browser."""
    path, exercise = _file_of(what, dir, exercises)
    before, made = 0, 0
    while times is None or made < times:
        now = path.stat().st_mtime_ns
        if now != before:
            before, made = now, made + 1
            _check(path, exercise, dir, exercises, reloads=True)
            print_lines([f"watching {path}; Ctrl-C ends it"])
        else:
            time.sleep(0.2)


@learn.define()
def hint(n: Which, *, dir: Here = HERE, exercises: Exercises = None) -> None:
    """Show the next hint, each more direct than the one before."""
    exercise = load(n, exercises)
    state = State(dir)
    known = state.of(exercise)
    known["hints"] = min(known["hints"] + 1, len(exercise.hints))
    state.save()
    shown = exercise.hints[: known["hints"]]
    print_lines([f"{number} of {len(exercise.hints)}: {text}" for number, text in enumerate(shown, 1)])


@learn.define()
def solution(n: Which, *, dir: Here = HERE, exercises: Exercises = None) -> None:
    """Show the reference solution, once you have passed, and write it into a file that runs."""
    exercise = load(n, exercises)
    if not State(dir).of(exercise)["passed"]:
        raise UsageError(f"pass exercise {exercise.number} first: `minitrain learn check {exercise.number}`")
    text, path = exercise.solution, dir / f"{exercise.name}_solution.py"
    is_there = path.exists()
    if not is_there:
        write_text(path, [text])
    print(text, end="")
    print(f"{path} is there already" if is_there else f"wrote {path}", file=sys.stderr)


@learn.define()
def reset(n: Which, *, dir: Here = HERE, exercises: Exercises = None) -> None:
    """Begin an exercise again; your work is kept beside it."""
    exercise = load(n, exercises)
    path = dir / f"{exercise.name}.py"
    if path.exists():
        number = 1
        while (kept := path.with_suffix(f".{number}.py.old")).exists():
            number += 1
        path.rename(kept)
        print_lines([f"kept your work as {kept}"])
    write_text(path, [exercise.starter])
    print_lines([f"wrote {path}"])


Seed = Annotated[str | None, typer.Option(envvar="MINITRAIN_SEED")]
_EVERY_S = 2.0
_ROOMY = 100
"""Characters of a terminal whose tables have room for reasons; in narrower ones, these have lines of their own."""


def _with_seed(exercises: Sequence[Exercise], seed: str | None) -> list[Exercise]:
    """Return exercises, with hidden sizes of the seed if there is one."""
    from minitrain.learn.budgets import with_secret_sizes  # noqa: PLC0415

    return [with_secret_sizes(exercise, seed) for exercise in exercises] if seed else [*exercises]


@learn.define("grade")
def grade_files(
    places: list[str],
    *,
    exercise: str | None = None,
    exercises: Exercises = None,
    form: Annotated[str | None, typer.Option("--format")] = None,
    together: bool = False,
    jobs: Annotated[int | None, typer.Option(min=1)] = None,
    seconds: Annotated[float, typer.Option(min=0.1)] = 20.0,
    isolation: Annotated[str, typer.Option(envvar="MINITRAIN_ISOLATION")] = "required",
    seed: Seed = None,
    results: Path | None = None,
    roster: Path | None = None,
    html: Path | None = None,
) -> None:
    """Grade submissions on public and hidden sizes; the exit code is 0 for full marks everywhere.

    Args:
        places (PLACE): Submissions, folders of them, or patterns such as '*.py'.
        exercise (N): Of all files; else by their names and functions.
        exercises (DIR): A folder of exercises of your own; the shipped ones by default.
        form (FORM): text, table, csv, gradebook (a line a student), json, junit or gradescope; text for one submission,
            table for more by default.
        together: Each folder is one student's; else each entry of it is a submission.
        jobs (N): Submissions at a time; one a core by default.
        seconds (S): Time that a submission may take.
        isolation (HOW): required: by the kernel, or nothing is graded; auto: by all means of this machine; none: a
            process of its own.
        seed (TEXT): A secret of yours, from which the hidden sizes are drawn; those that everybody can read by default.
        results (FILE): Keep each grade in FILE as it is known, and do not grade again what is there unchanged.
        roster (FILE.csv): Print this table of students, as Canvas, Moodle or Gradescope export it, with the scores.
        html (PAGE): Write a page of the class, and what ranks did of each submission graded now, in a folder beside it.
    """
    from minitrain.cli.options import require_file  # noqa: PLC0415
    from minitrain.learn.classes import FORMATS, grade_all, write_class_page  # noqa: PLC0415  (they take time to import)
    from minitrain.learn.sandbox import Limits  # noqa: PLC0415
    from minitrain.learn.submissions import find_submissions  # noqa: PLC0415
    from minitrain.search.sweeps.sweep import read_results, writing  # noqa: PLC0415

    _require_that_no_file_is_an_option(sys.argv)
    if form is not None and form not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}, got {form!r}")
    known = _with_seed([load(exercise, exercises)] if exercise else all_exercises(exercises), seed)
    found = find_submissions(places, known, exercise=known[0] if exercise else None, together=together)
    limits = Limits(seconds=seconds, isolation=isolation)
    require_file("--html", html)
    drawn = html and html.with_name(f"{html.stem}_pictures")
    known_rows = read_results(results) if results else {}
    with Progress() as progress, writing(results) as keep:
        say = _Countdown(progress, len(found))
        rows: Sequence[Row] = grade_all(
            found, limits=limits, workers=jobs, progress=say, known=known_rows, keep=keep, pictures=drawn
        )
    if html is not None:
        print(f"wrote {write_class_page(rows, html)}", file=sys.stderr)
    if roster is not None:
        _print_roster(roster, rows)
    else:
        _print_report(FORMATS[form or ("text" if len(rows) == 1 else "table")](rows), rows)
    if not all(row.passed for row in rows):
        raise typer.Exit(FAILED)


def _require_that_no_file_is_an_option(arguments: Sequence[str]) -> None:
    """Require that a shell has not put the name of somebody's file, such as `--isolation=none`, among the options.

    Raises:
        UsageError: an argument before `--` looks like an option and is a file.
    """
    for argument in arguments[: arguments.index("--") if "--" in arguments else None]:
        if argument.startswith("-") and os.path.lexists(argument):
            raise UsageError(f"{argument} is a file here, and would be an option; write `--` before files, as in -- *")


def _print_report(report: Any, rows: Sequence[Row]) -> None:
    """Print a report; below a table, what kept submissions apart, and which are alike."""
    if not isinstance(report, Table):
        print(report)
    else:
        told = []
        if Console().width < _ROOMY:
            reasons = report.columns.pop().cells
            told = [f"{file}: {why}" for file, why in zip(report.columns[0].cells, reasons, strict=True) if str(why)]
        print_table(report)
        print_lines(told)
        held = Counter(re.sub(r"uid \d+", "a uid of its own", str(row.grade.isolation)) for row in rows if row.grade)
        print_lines(f"isolation of {count}: {words}" for words, count in sorted(held.items()))
        groups = sorted({tuple(sorted((row.file, *row.alike))) for row in rows if row.alike})
        print_lines(f"alike but for names, which proves nothing: {printable(', '.join(names))}" for names in groups)


def _print_roster(path: Path, rows: Sequence[Row]) -> None:
    """Print a table of students with their scores, and say whose are not in it."""
    from minitrain.learn.classes import with_grades  # noqa: PLC0415

    text, lost = with_grades(path, rows)
    print(text)
    for row in rows:
        if row.reason:
            print(f"not graded: {printable(row.file)}: {printable(row.reason)}", file=sys.stderr)
    for name in lost:
        print(f"not in {path}, or more than once: the student of {printable(name)}", file=sys.stderr)


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


@learn.define()
def leaderboard(results: Path, *, out: Path = Path("leaderboard.html")) -> None:
    """Write a page of who is how quick in each exercise, of those who passed every check.

    Args:
        results (PLACE): What `learn grade --results` has kept: a file, or a folder of such files.
        out (FILE.html): The page.
    """
    from minitrain.learn.classes import write_leaderboard  # noqa: PLC0415

    print_lines([f"wrote {write_leaderboard(results, out)}"])


@learn.define()
def verify(folder: Path | None = None) -> None:
    """Verify exercises: reference passes, starter fails, wrong solutions fail for their reason.

    Args:
        folder (DIR): A folder of exercises, or one exercise.
    """
    from minitrain.learn import load_exercise  # noqa: PLC0415
    from minitrain.learn.verify import faults_of  # noqa: PLC0415

    one = folder is not None and (folder / "exercise.json").is_file()
    faulty = False
    for exercise in [load_exercise(folder)] if one and folder else all_exercises(folder):
        faults = faults_of(exercise)
        faulty = faulty or bool(faults)
        print_lines([f"{exercise.name}: ok"] if not faults else [f"{exercise.name}: {fault}" for fault in faults])
    if faulty:
        raise typer.Exit(FAILED)


@learn.define()
def package(
    path: Path | None = None,
    *,
    numbers: Annotated[list[str] | None, typer.Option("--exercise")] = None,
    exercises: Exercises = None,
    students: bool = False,
    requirement: str | None = None,
    python: str = "python3",
    isolation: str = "auto",
    seed: Seed = None,
) -> None:
    """Write an autograder zip for Gradescope, or a wheel for students without references and hidden sizes.

    Args:
        path (PATH): What to write; autograder.zip by default.
        numbers (N): Only these; repeat it.
        exercises (DIR): A folder of exercises of your own; the shipped ones by default.
        students: Write a wheel for students instead, into the folder PATH.
        requirement (REQ): What pip installs there; this minitrain, which is in the zip, by default.
        python (PYTHON): The interpreter there.
        isolation (HOW): auto: by all means of this machine; required: by the kernel, or not at all; none: a process of
            its own.
        seed (TEXT): A secret of yours, from which the hidden sizes are drawn; those that everybody can read by default.
    """
    from minitrain.learn.wheel import students_wheel, write_package  # noqa: PLC0415

    chosen: Sequence[Exercise] = [load(n, exercises) for n in numbers] if numbers else all_exercises(exercises)
    if students:
        print_lines([f"wrote {students_wheel(chosen, path or HERE)}"])
        return
    chosen, path = _with_seed(chosen, seed), path or Path("autograder.zip")
    print_lines([f"wrote {write_package(chosen, path, requirement=requirement, python=python, isolation=isolation)}"])
