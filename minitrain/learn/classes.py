"""Grading a class: many submissions at once, on all cores; each becomes a row, and the rows become files and pages.

- `grade_all` grades submissions side by side, and returns their rows in the same order.
- `as_...` write grades as text, a table, CSV, a gradebook, JSON, JUnit XML, or Gradescope's `results.json`.
- `with_grades` puts grades into the table of students that a learning platform has exported: Canvas, Moodle,
  Gradescope, or any CSV. Columns, order and other rows stay, so that the platform takes the table back. An exercise has
  the column that begins with its name, or a new one. A student is found by a cell, or by two neighbouring cells (first
  and last name), whatever the case, the order and the signs between; else by a number of at least four digits in the
  name, as platforms put into the names of files that they collect; else by the name without its numbers.
- `write_leaderboard` makes a page of who is how quick: for each exercise those who passed every check.
- `write_class_page` makes a page of all marks: students by exercises, how they spread, and what fails first.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import html
import io
import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree

from minitrain.errors import UsageError
from minitrain.files import StrPath, read_text
from minitrain.learn.exercise import DESCRIPTIONS, CheckResult, one_line
from minitrain.learn.grader import Grade, grade
from minitrain.learn.isolation import Isolation
from minitrain.learn.sandbox import Limits, source_of
from minitrain.learn.submissions import Submission, alike
from minitrain.plain_text import printable, spreadsheet_cell
from minitrain.run.worker_processes import WorkerEndedError, WorkerProcesses, limit_bytes
from minitrain.search.sweeps.sweep import read_results

if TYPE_CHECKING:
    from rich.table import Table


MOST_MEMORY = 8 * 2**30
"""Address space of a process that judges submissions, bytes."""

_LACKS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN)
_RECYCLED_AFTER = 50
"""Submissions that one such process judges, since judging leaves some MB of compiled functions behind."""
_KILLED = "the process that judged it was killed; the machine may lack memory"


@dataclass(frozen=True, slots=True)
class Row:
    """A submission and its grade.

    Args:
        file: what the submission is called; "" where there is but one, which needs no name.
        grade: its grade; None if it could not be graded.
        reason: why it could not be graded.
        student: whose it is; "" where nobody knows.
        alike: submissions of others that are the same but for names, comments and blanks: a hint to look, never a mark.
        picture: a page with what its ranks did, where one was asked for and there is something to draw.
    """

    file: str
    grade: Grade | None = None
    reason: str = ""
    student: str = ""
    alike: Sequence[str] = ()
    picture: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row, ready for JSON; pictures of a run that failed are not in it."""
        common = {
            "student": self.student or None,
            "file": self.file,
            "exercise": self.exercise or None,
            "score": self.score,
            "max_score": self.max_score,
            "alike": list(self.alike),
        }
        if self.grade is None:
            return {**common, "passed": False, "seconds": 0.0, "checks": [], "error": self.reason}
        grade = self.grade
        return {
            **common,
            "passed": grade.passed,
            "seconds": grade.seconds,
            "first_failure": self.failure or None,
            "checks": [{**result.as_dict(), "points": grade.points(result)} for result in grade.results],
            "leaderboard": dict(grade.leaderboard),
            "output": grade.output,
            "isolation": grade.isolation.as_dict(),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Row:
        """Return the row that `as_dict` made data of."""
        if "error" in data:
            return cls(data["file"], reason=data["error"])
        checks = [{name: value for name, value in check.items() if name != "points"} for check in data["checks"]]
        results = [CheckResult(**check) for check in checks]
        isolation = Isolation(**data["isolation"])
        grade = Grade(data["exercise"], results, data["seconds"], data["output"], data["leaderboard"], isolation)
        return cls(data["file"], grade)

    @property
    def exercise(self) -> str:
        """The exercise's name, "" if it is for none."""
        return self.grade.exercise if self.grade else ""

    @property
    def score(self) -> int:
        """Points; 0 for what could not be graded."""
        return self.grade.score if self.grade else 0

    @property
    def max_score(self) -> int:
        """Points of a perfect submission."""
        return Grade("", (), 0.0).max_score

    @property
    def seconds(self) -> float:
        """How long it took, s."""
        return self.grade.seconds if self.grade else 0.0

    @property
    def passed(self) -> bool:
        """Whether it was graded and every check passed."""
        return self.grade is not None and self.grade.passed

    @property
    def failure(self) -> str:
        """The first failure in one line: which check, what, and where; "" if all passed."""
        if self.grade is None:
            return one_line(self.reason)
        if not self.grade.failures:
            return ""
        first = self.grade.failures[0]
        where = f" ({first.where()})" if first.where() else ""
        told = one_line(f"{first.name}: {first.message}{where}")
        return re.sub(rf"(?<!\S)/\S*/(?={re.escape(Path(self.file).name)})", "", told) if self.file else told


def grade_all(
    submissions: Sequence[Submission],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    progress: Callable[[int, float], None] | None = None,
    known: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    keep: Callable[[str, dict[str, Any]], None] = lambda _key, _row: None,
    pictures: Path | None = None,
) -> list[Row]:
    """Grade submissions side by side, and return their rows in the same order.

    Args:
        submissions: what was handed in.
        limits: of each submission's processes.
        workers: how many are graded at a time; one for each core if None.
        progress: called after each with how many are done, and the seconds so far.
        known: rows of an earlier grading as `Row.as_dict` has them, by `key_of`; they are not graded again.
        keep: called with key and row of each submission as it is done.
        pictures: a folder for the picture of each; those of known rows are there if they were asked for then.

    Raises:
        UsageError: they cannot be graded at all, since the required isolation is not to be had, for one.
    """
    limits, rows = limits or Limits(), [Row(one.name, reason=one.reason, student=one.student) for one in submissions]
    began, todo = time.monotonic(), {}
    keys = ["" if one.reason else key_of(one, limits) for one in submissions]
    drawn = [pictures / f"{key}.html" if pictures and key else None for key in keys]
    for place, (key, one) in enumerate(zip(keys, submissions, strict=True)):
        if key in known:
            rows[place] = replace(Row.of(known[key]), file=one.name, student=one.student)
        elif key:
            todo[place] = grade_one, one, limits, drawn[place]
    num_done = len(submissions) - len(todo)
    for done, (place, row) in enumerate(_graded(todo, workers or os.cpu_count() or 1), num_done + 1):
        rows[place] = replace(row, student=submissions[place].student)
        keep(keys[place], rows[place].as_dict())
        if progress is not None:
            progress(done, time.monotonic() - began)
    others = alike(submissions)
    there = [path if path and path.is_file() else None for path in drawn]
    return [
        replace(row, alike=tuple(others.get(row.file, ())), picture=path) for row, path in zip(rows, there, strict=True)
    ]


def key_of(submission: Submission, limits: Limits) -> str:
    """Return what a grade depends on, as a digest: its files, the exercise with its budgets, and the limits."""
    exercise = submission.exercise
    assert exercise is not None  # those without have a reason
    sizes = [case.key for case in (*exercise.public, *exercise.hidden)]
    digest = hashlib.sha256(json.dumps([exercise.name, sizes, asdict(limits)]).encode())
    graded_by = [exercise.folder / name for name in ("exercise.json", "reference.py", "budgets.json")]
    for path in (*filter(Path.is_file, graded_by), submission.path, *submission.beside):
        digest.update(hashlib.sha256(source_of(path)).digest())
    return digest.hexdigest()[:32]


def _graded(todo: Mapping[int, tuple[Any, ...]], workers: int) -> Iterator[tuple[int, Row]]:
    """Yield places and rows as they are done.

    What a submission did is judged in a process that may need more time or memory than there is. Then only its own row
    is lost: each process judges one submission after the other.
    """
    with contextlib.closing(WorkerProcesses(workers, MOST_MEMORY, _RECYCLED_AFTER)) as processes:
        for place, outcome in processes.outcomes(todo.items()):
            is_lost = isinstance(outcome.error, WorkerEndedError) and outcome.is_begun
            yield place, Row(todo[place][1].name, reason=_KILLED) if is_lost else outcome.get()


def grade_one(submission: Submission, limits: Limits, picture: Path | None = None) -> Row:
    """Grade a submission, whatever comes of it.

    Args:
        submission: what was handed in.
        limits: of its processes.
        picture: a page for what its ranks did, if there is something to draw.

    Raises:
        UsageError: nothing can be graded so.
    """
    assert submission.exercise is not None  # those without have a reason
    try:
        keep_run = picture is not None
        found = grade(submission.path, submission.exercise, limits=limits, beside=submission.beside, keep_run=keep_run)
        if picture is not None:
            from minitrain.learn.picture import write_picture  # noqa: PLC0415  (only where somebody looks)

            write_picture(found, submission.exercise, picture)
            # What was drawn need not go from process to process.
            found = replace(found, drawn_run=None, drawn_case=None, asked=None)
    except UsageError:
        raise
    except MemoryError:
        most = limit_bytes() or MOST_MEMORY
        reason = f"judging what it does needs more than {most / 2**30:.3g} GiB; it may hold thousands of tensors"
        return Row(submission.name, reason=reason)
    except Exception as error:  # one row of many
        if isinstance(error, OSError) and error.errno in _LACKS:
            return Row(submission.name, reason=f"the grader lacks disk or memory: {error.strerror}; grade it again")
        return Row(submission.name, reason=f"the grader failed: {type(error).__name__}: {error}")
    return Row(submission.name, found)


_NUMBER = re.compile(r"\d{4,}")


def with_grades(path: StrPath, rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Return a table of students with a class's scores, and the submissions whose student is not in it, or not once.

    Of several submissions of a student to an exercise, the best counts.

    Args:
        path: the table, a CSV file whose first line names the columns.
        rows: the class.

    Raises:
        UsageError: there is no such table.
    """
    lines = _lines_of(path)
    places: defaultdict[str, set[int]] = defaultdict(set)
    for number, cells in enumerate(lines[1:], 1):
        for key in _keys_of(cells):
            places[key].add(number)
    best: defaultdict[str, dict[int, int]] = defaultdict(dict)  # by exercise and line
    lost = []
    for row in (row for row in rows if row.exercise):
        found = _found(row.student, places)
        if len(found) == 1:
            (line,) = found
            best[row.exercise][line] = max(row.score, best[row.exercise].get(line, 0))
        else:
            lost.append(row.file)
    for exercise, score_by_line in sorted(best.items()):
        column = _column(lines, exercise)
        for line, score in score_by_line.items():
            lines[line][column] = str(score)
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(lines)
    return written.getvalue().rstrip("\n"), lost


def _lines_of(path: StrPath) -> list[list[str]]:
    """Return the lines of a table of students.

    Raises:
        UsageError: there is none.
    """
    try:
        lines = list(csv.reader(io.StringIO(read_text(path, "table of students").lstrip("\ufeff"))))
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"cannot read the table of students {path}: {error}; give a CSV file in UTF-8") from error
    if len(lines) < 2:
        raise UsageError(f"the table of students {path} has no students; its first line names the columns")
    return lines


def _keys_of(cells: Sequence[str]) -> Iterator[str]:
    """Yield what a student may be called."""
    for cell in cells:
        yield from _spellings(cell)
    for pair in pairwise(cells):
        yield from _spellings(" ".join(pair))


def _spellings(text: str) -> tuple[str, str]:
    """Return letters and digits alone, and the words in the order of the alphabet."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return "".join(words), " ".join(sorted(words))


def _found(student: str, places: dict[str, set[int]]) -> set[int]:
    """Return the lines that may be a student's."""
    keys = (_spellings(student), _NUMBER.findall(student), _spellings(_NUMBER.sub(" ", student)))
    found = ({line for key in some if key for line in places.get(key, ())} for some in keys)
    return next(filter(None, found), set())


def _column(lines: list[list[str]], exercise: str) -> int:
    """Return the column of an exercise, which is made if there is none; all lines reach it then."""
    heads = lines[0]
    column = next((place for place, head in enumerate(heads) if head.startswith(exercise)), len(heads))
    for cells in lines:
        cells.extend([""] * (column + 1 - len(cells)))
    heads[column] = heads[column] or exercise
    return column


_FIGURES = ("mfu", "step_time_s", "peak_memory_gib")

Place = tuple[int, str, Mapping[str, float]]
"""A place, whose it is, and the figures of the exercise's first size."""


def places(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Place]]:
    """Return the places of each exercise: the best MFU first, then the shortest step and the least memory.

    Each student has one place, that of their best submission; equal figures share one.

    Args:
        rows: as `learn grade --results` keeps them, or `--format json` prints them.
    """
    best: dict[str, dict[str, Mapping[str, float]]] = {}
    for row in rows:
        figures = row.get("leaderboard") or {}
        if row.get("passed") and set(_FIGURES) <= set(figures):
            of_exercise = best.setdefault(str(row["exercise"]), {})
            name = str(row.get("student") or row.get("file") or "?")
            if name not in of_exercise or _order(figures) < _order(of_exercise[name]):
                of_exercise[name] = figures
    return {exercise: _placed(of_students) for exercise, of_students in sorted(best.items())}


def _order(figures: Mapping[str, float]) -> tuple[float, float, float]:
    """Return what orders figures, the best first."""
    return -figures["mfu"], figures["step_time_s"], figures["peak_memory_gib"]


def _placed(of_students: Mapping[str, Mapping[str, float]]) -> list[Place]:
    """Return students with their places, in order."""
    ordered = sorted(of_students.items(), key=lambda item: (_order(item[1]), item[0]))
    found: list[Place] = []
    for number, (name, figures) in enumerate(ordered, 1):
        is_equal = found and _order(found[-1][2]) == _order(figures)
        found.append((found[-1][0] if is_equal else number, name, figures))
    return found


def place_among(exercise: str, figures: Mapping[str, float], folder: Path) -> tuple[int, int]:
    """Return the place of somebody's figures in an exercise, and how many are placed with them.

    Args:
        exercise: its name.
        figures: as `Grade.leaderboard` has them.
        folder: results of others, or one file of them.

    Raises:
        UsageError: there are none.
    """
    others = places(rows_of(folder)).get(exercise, [])
    ahead = sum(_order(other) < _order(figures) for _, _, other in others)
    return ahead + 1, len(others) + 1


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file, or of all `*.jsonl` in a folder.

    Raises:
        UsageError: there is none, or one cannot be read.
    """
    paths = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
    if not paths or not all(path.is_file() for path in paths):
        raise UsageError(
            f"there are no results in {folder}; `minitrain learn grade ... --results FILE.jsonl` keeps them"
        )
    return [row for path in paths for row in read_results(path).values()]


def write_leaderboard(folder: Path, path: Path) -> Path:
    """Write the page, and return its path.

    Args:
        folder: of results, or one file of them.
        path: of the page.

    Raises:
        UsageError: there are no results, or nobody has passed.
    """
    from minitrain.view.page import html_table, write_words  # noqa: PLC0415  (only where a page is wanted)

    found = places(rows_of(folder))
    if not found:
        raise UsageError(f"nobody in {folder} has passed every check of an exercise yet, so there are no places")
    body = ""
    for exercise, placed in found.items():
        rows = [
            {
                "who": name,
                "place": str(place),
                "MFU, %": f"{figures['mfu'] * 100:.1f}",
                "step, ms": f"{figures['step_time_s'] * 1e3:.3f}",
                "peak, GiB": f"{figures['peak_memory_gib']:.3f}",
            }
            for place, name, figures in placed
        ]
        body += f'<h2>{html.escape(exercise)}</h2><div class="wide">{html_table(rows, {})}</div>'
    return write_words(path, "Leaderboard", body)


_BINS = (0, 1, 20, 40, 60, 80, 100)
_BAR = '<rect x="{x}" y="{y:.1f}" width="12" height="{height:.1f}"><title>{title}</title></rect>'
_STYLE = """<style>.class td{min-width:0!important;padding:3px 7px}.class .why{text-align:left;white-space:normal}
.class a{color:inherit}.class rect{fill:#57a0d3}.class th{padding:3px 7px}</style>"""


def write_class_page(rows: Sequence[Row], path: Path) -> Path:
    """Write a page of a class: students by exercises, how marks spread, what fails first, and what was not graded.

    Args:
        rows: the class; marks lead to the pictures that they have.
        path: of the page.
    """
    from minitrain.view.page import write_words  # noqa: PLC0415  (only where a page is wanted)

    best, odd = _best_rows(rows), [row for row in rows if row.grade is None]
    exercises = sorted({exercise for of_student in best.values() for exercise in of_student})
    counts = {"student": len(best), "exercise": len(exercises), "submission": len(rows)}
    facts = [f"{number} {what}{'' if number == 1 else 's'}" for what, number in counts.items()]
    heads = ["student", *exercises, "total"]
    lines = [
        [
            html.escape(student),
            *(_mark(of_student.get(name), path) for name in exercises),
            str(sum(row.score for row in of_student.values())),
        ]
        for student, of_student in sorted(best.items())
    ]
    marks = {name: [found[name].score for found in best.values() if name in found] for name in exercises}
    spread = [
        [
            html.escape(name),
            *(f"{figure:.0f}" for figure in (len(scores), scores.count(100), mean(scores), median(scores))),
            _histogram(scores),
            _first_failures([of_student.get(name) for of_student in best.values()]),
        ]
        for name, scores in marks.items()
    ]
    body = _STYLE + _table(["exercise", "handed in", "full marks", "mean", "median", "spread", "fails first"], spread)
    body += "<h2>Marks: the best of each student; a mark leads to its picture</h2>" + _table(heads, lines)
    if odd:
        told = [[html.escape(one_line(row.file)), f'<div class="why">{html.escape(row.failure)}</div>'] for row in odd]
        body += "<h2>Not graded</h2>" + _table(["file", "reason"], told)
    return write_words(path, "Marks of a class", body, [*facts, f"{len(odd)} not graded"])


def _best_rows(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Return for each student the best submission to each exercise; none of what could not be graded."""
    best: dict[str, dict[str, Row]] = {}
    for row in rows:
        of_student = best.setdefault(row.student or row.file, {})
        if row.grade and (row.exercise not in of_student or row.score > of_student[row.exercise].score):
            of_student[row.exercise] = row
    return best


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return cells of HTML as a table."""
    from minitrain.view.explanation_panel import table  # noqa: PLC0415  (only where a page is wanted)

    return f'<div class="wide">{table("class", list(map(html.escape, heads)), lines)}</div>'


def _mark(row: Row | None, page: Path) -> str:
    """Return a mark, the redder the lower, with what failed first; it leads to its picture."""
    if row is None:
        return "<td></td>"
    mark = f"{row.score}"
    if row.picture is not None:
        mark = f'<a href="{quote(os.path.relpath(row.picture, page.parent))}">{mark}</a>'
    color = f"color-mix(in srgb, #2da44e {row.score}%, #d1242f)"
    said = html.escape(row.failure or "passed every check")
    return f'<td style="background:color-mix(in srgb, {color} 25%, transparent)" title="{said}">{mark}</td>'


def _histogram(scores: Sequence[int]) -> str:
    """Return bars: how many have no marks, fewer than 20, 40 ..., and full marks."""
    ends = (*_BINS[1:], 101)
    counts = [sum(first <= score < end for score in scores) for first, end in zip(_BINS, ends, strict=True)]
    bars = (
        _BAR.format(x=15 * place, y=24 * (1 - count / max(counts)), height=24 * count / max(counts), title=title)
        for place, (count, first, end) in enumerate(zip(counts, _BINS, ends, strict=True))
        for title in [f"{count} have {first if end - first == 1 else f'{first} to {end - 1}'}"]
    )
    return f'<svg width="105" height="25" role="img" style="border-bottom:1px solid">{"".join(bars)}</svg>'


def _first_failures(rows: Sequence[Row | None]) -> str:
    """Return which checks fail first, the most frequent one first."""
    failed = Counter(row.grade.failures[0].name for row in rows if row and row.grade and row.grade.failures)
    return f'<td style="white-space:nowrap">{", ".join(f"{name} {count}" for name, count in failed.most_common())}</td>'


_COLUMNS = ("student", "file", "exercise", "score", "max_score", "seconds", "first_failure", "isolation", "alike")


def as_text(rows: Sequence[Row]) -> str:
    """Return grades for a person, check by check, each with what kept the submission apart."""
    return "\n".join(_text(row, named=len(rows) > 1) for row in rows)


def _text(row: Row, *, named: bool) -> str:
    """Return one grade for a person."""
    if row.grade is None:
        return f"{one_line(row.file)}: not graded\n  {one_line(row.reason)}"
    name = f"{one_line(row.file)}\n" if named and row.file else ""
    return f"{name}{row.grade}\n  isolation: {row.grade.isolation}"


def as_table(rows: Sequence[Row]) -> Table:
    """Return one line a submission, for a terminal."""
    from rich.table import Table  # noqa: PLC0415  (rich only when somebody looks)
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, header_style="bold")
    for name in ("file", "exercise"):
        table.add_column(name, overflow="fold")
    for name in ("score", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("first failure", overflow="fold", ratio=1)
    for row in rows:
        score = f"{row.score}" if row.grade else "-"
        failure = row.failure.partition("; ")[0]  # what to do is for who wrote it
        cells = (one_line(row.file), row.exercise or "-", score, f"{row.seconds:.1f}", failure)
        table.add_row(*map(Text, cells))
    return table


def as_csv(rows: Sequence[Row]) -> str:
    """Return one line a submission, for a spreadsheet, which is kept from computing what students wrote."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        figures = row.score, row.max_score, f"{row.seconds:.3f}"
        said = row.failure, str(row.grade.isolation) if row.grade else "", " ".join(row.alike)
        facts = (row.student, row.file, row.exercise, *figures, *said)
        writer.writerow([_cell(fact) for fact in facts])
    return written.getvalue().rstrip("\n")


def as_gradebook(rows: Sequence[Row]) -> str:
    """Return one line a student, with the best score of each exercise, as CSV; what was not handed in is empty."""
    best = {student: {name: row.score for name, row in found.items()} for student, found in _best_rows(rows).items()}
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.grade is None:
            reasons.setdefault(row.student or row.file, []).append(f"{Path(row.file).name}: {row.failure}")
    exercises = sorted({exercise for scores in best.values() for exercise in scores})
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["student", *exercises, "total", "not_graded"])
    for student, scores in sorted(best.items()):
        cells = [scores.get(exercise, "") for exercise in exercises]
        not_graded = _cell("; ".join(reasons.get(student, ())))
        writer.writerow([_cell(student), *cells, sum(scores.values()), not_graded])
    return written.getvalue().rstrip("\n")


def _cell(fact: Any) -> Any:
    """Return what a spreadsheet shows as it is."""
    return spreadsheet_cell(printable(fact)) if isinstance(fact, str) else fact


def as_json(rows: Sequence[Row]) -> str:
    """Return grades for a program: an array with one object a submission."""
    return json.dumps([row.as_dict() for row in rows], indent=2)


def as_junit(rows: Sequence[Row]) -> str:
    """Return grades as JUnit XML: one suite a submission, one case a check."""
    root = ElementTree.Element("testsuites")
    for row in rows:
        results = row.grade.results if row.grade else ()
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=printable(": ".join(part for part in (row.file, row.exercise) if part)),
            tests=str(len(results) or 1),
            failures=str(sum(result.status == "failed" for result in results)),
            errors=str(int(row.grade is None)),
            skipped=str(sum(result.status == "skipped" for result in results)),
            time=f"{row.seconds:.3f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        facts = {"file": row.file, "score": str(row.score), "max_score": str(row.max_score)}
        facts |= {"isolation": str(row.grade.isolation)} if row.grade else {}
        for name, value in facts.items():
            ElementTree.SubElement(properties, "property", name=name, value=printable(value))
        for result in results:
            _junit_case(suite, row, result)
        if row.grade is None:
            case = ElementTree.SubElement(suite, "testcase", classname=printable(row.file), name="submission")
            ElementTree.SubElement(case, "error", message=printable(row.reason))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _junit_case(suite: ElementTree.Element, row: Row, result: CheckResult) -> None:
    """Add one check to a suite."""
    case = ElementTree.SubElement(suite, "testcase", classname=printable(row.file or row.exercise), name=result.name)
    if result.status == "failed":
        failure = ElementTree.SubElement(case, "failure", message=printable(result.message))
        failure.text = printable("\n".join(result.lines()))
    elif result.status == "skipped":
        ElementTree.SubElement(case, "skipped")


def as_gradescope(rows: Sequence[Row]) -> str:
    """Return the submissions of one student as Gradescope's `results.json`."""
    grades = [row.grade for row in rows if row.grade is not None]
    odd = [one_line(f"{row.file}: {row.reason}") for row in rows if row.grade is None]
    return json.dumps(
        {
            "score": sum(grade.score for grade in grades),
            "execution_time": round(sum(grade.seconds for grade in grades), 3),
            "output": "\n".join([*odd, *(grade.output for grade in grades if grade.output)])[:2000],
            "extra_data": {"isolation": {grade.exercise: str(grade.isolation) for grade in grades}},
            "tests": [test for grade in grades for test in _gradescope_tests(grade)],
            "leaderboard": [row for grade in grades for row in _leaderboard(grade)],
        },
        indent=2,
    )


def _gradescope_tests(grade: Grade) -> list[dict[str, Any]]:
    """Return one test a check; one that gives no points is not shown as passed."""
    return [
        {
            "name": f"{grade.exercise}: {DESCRIPTIONS[result.name]}",
            "score": grade.points(result),
            "max_score": grade.points_of(result.name),
            "status": "passed" if grade.points(result) else "failed",
            "output": "\n".join(result.lines()) or _outcome(grade, result),
            "visibility": "visible",
        }
        for result in grade.results
    ]


def _outcome(grade: Grade, result: CheckResult) -> str:
    """Return what became of a check, in a word, or why it passed in vain."""
    in_vain = result.passed and not grade.points(result)
    return "passed, but without points: what does not train right has none" if in_vain else result.status


def _leaderboard(grade: Grade) -> list[dict[str, Any]]:
    """Return what a submission is compared by, the best first; Gradescope's columns need names that differ."""
    orders = {"mfu": "desc", "step_time_s": "asc", "peak_memory_gib": "asc"}
    return [
        {"name": f"{grade.exercise}: {name}", "value": value, "order": orders[name]}
        for name, value in grade.leaderboard.items()
    ]


FORMATS: Mapping[str, Callable[[Sequence[Row]], Any]] = {
    "text": as_text,
    "table": as_table,
    "csv": as_csv,
    "gradebook": as_gradebook,
    "json": as_json,
    "junit": as_junit,
    "gradescope": as_gradescope,
}
