"""Finding submissions: files, folders of files, one folder a student; and the files that a submission imports.

Whatever lies there becomes a row of the report: what cannot be graded has a reason instead of a grade, so that one odd
file does not end a class.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minitrain.errors import UsageError
from minitrain.learn.exercise import Exercise
from minitrain.learn.sandbox import NOTEBOOK, own_name, source_of, upload_of

_IMPORT = re.compile(r"(?:^|[;:])[ \t]*(?:from[ \t]+\.*[ \t]*(\w+)|import[ \t]+([^\n;#]+))", re.MULTILINE)
_PATTERN = frozenset("*?[")
_SOURCES = (".py", NOTEBOOK)
_REMARKS = re.compile(r'''"""[^"]*(?:"{1,2}[^"]+)*"""|#[^\n]*''')
_WORDS = re.compile(r"\w+|[^\w\s]")
_MOST_NAMED = 3
MOST_BESIDE = 100
"""Files that a submission may import from its own folder."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One row of a class.

    Args:
        name: what the report calls it: its path, from the folder that was given.
        path: the file, or the folder, that was handed in.
        exercise: what it is for; None where there is a reason not to grade it.
        reason: why it cannot be graded; "" if it can.
        beside: files of its own folder that it imports.
        student: whose it is: the name of a student's folder, or of a file that is not named by its exercise; else "".
    """

    name: str
    path: Path
    exercise: Exercise | None = None
    reason: str = ""
    beside: Sequence[Path] = ()
    student: str = ""


def find_submissions(
    places: Sequence[str | Path],
    exercises: Sequence[Exercise],
    *,
    exercise: Exercise | None = None,
    together: bool = False,
) -> list[Submission]:
    """Return the submissions of some files, folders and patterns.

    Args:
        places: a file is a submission. Of a folder, each file is one, and each folder in it is that of one student,
            with one submission for each exercise. A pattern such as `class/*.py` stands for what it matches. Where
            there are several folders, names begin with theirs.
        exercises: what they may be for.
        exercise: what all of them are for, if that is known; else names and functions tell.
        together: each folder given is that of one student.

    Raises:
        UsageError: there is nothing at a place, or in all of them.
    """
    finder = _Finder([exercise] if exercise else exercises, exercise)
    paths = [path for place in places for path in _expanded(str(place))]
    named = len(paths) > 1
    found = [submission for path in paths for submission in finder.at(path, together, named=named)]
    if not found:
        raise UsageError(
            f"there is nothing to grade in {', '.join(map(str, paths))}; give submissions, or their folders"
        )
    helpers = {path.resolve() for submission in found for path in submission.beside}
    return [one for one in found if not (one.reason and one.path.resolve() in helpers)]


def _expanded(place: str) -> list[Path]:
    """Return the paths that a place stands for.

    Raises:
        UsageError: there are none.
    """
    path = Path(place)
    if path.exists() or path.is_symlink():
        return [path]
    found = sorted(glob.glob(place)) if _PATTERN & set(place) else []  # noqa: PTH207  (a pattern may be absolute)
    if not found:
        raise UsageError(f"there is no file {place}; give submissions, folders of them, or a pattern such as '*.py'")
    return [Path(name) for name in found]


class _Finder:
    """Looks for submissions.

    Args:
        exercises: what they may be for.
        known: what all are for, or None.
    """

    def __init__(self, exercises: Sequence[Exercise], known: Exercise | None) -> None:
        self._exercises = exercises
        self._known = known

    def at(self, path: Path, together: bool, *, named: bool = False) -> Iterator[Submission]:
        """Yield the submissions of a file or a folder, whose name theirs begin with where it is one of several."""
        root = path.parent if named else path
        if not path.is_dir() or path.is_symlink():
            yield self._file(path, str(path), path.parent.name)
        elif together:
            yield from self._student(path, root)
        else:
            for entry in sorted(path.iterdir()):
                if _hidden(entry, path):  # what editors and Python leave there
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    yield from self._student(entry, root)
                else:
                    yield self._file(entry, str(entry.relative_to(root)), path.name if named else "")

    def _file(self, path: Path, name: str, folder: str) -> Submission:
        """Return the submission of a file that lies among those of others, none of which it may import."""
        upload = upload_of(path.name)
        student = upload.student if upload else folder if self._is_named_by_exercise(path) else path.stem
        reason = _why_not(path)
        if reason:
            return Submission(name, path, reason=reason, student=student)
        found = self._known or exercise_of(path, self._exercises)
        if found is None:
            return Submission(name, path, reason=self._nothing(), student=student)
        beside = [other for other in imported(path) if exercise_of(other, self._exercises) is None]
        return Submission(name, path, found, beside=beside, student=student)

    def _is_named_by_exercise(self, path: Path) -> bool:
        """Return whether a file's name says what it is for, and nothing else."""
        stem = Path(own_name(path.name)).stem
        return any(stem in (exercise.name, exercise.function) for exercise in self._exercises)

    def _student(self, folder: Path, root: Path) -> Iterator[Submission]:
        """Yield the submissions of a student's folder, one for each file that is for an exercise.

        A file that is named by an exercise and cannot be graded is one too, with its reason; without any other, so is
        each that cannot be graded.
        """
        upload = upload_of(folder.name)
        student = upload.student if upload else folder.name
        paths = (path for path in sorted(folder.rglob("*")) if not path.is_dir() and not _hidden(path, folder))
        files = {path: _why_not(path) for path in paths}
        graded = [path for path, reason in files.items() if not reason]
        found = [(path, exercise) for path in graded if (exercise := exercise_of(path, self._exercises)) is not None]
        if not found and self._known and len(graded) == 1:
            found = [(graded[0], self._known)]
        for path, exercise in found:
            yield Submission(str(path.relative_to(root)), path, exercise, beside=imported(path), student=student)
        failed = [
            Submission(str(path.relative_to(root)), path, reason=reason, student=student)
            for path, reason in files.items()
            if reason and (self._is_named_by_exercise(path) or (not found and path.suffix in _SOURCES))
        ]
        yield from failed
        if not found and not failed:
            name = folder.name if folder == root else str(folder.relative_to(root))
            others = ", ".join(path.name for path in [*files][:_MOST_NAMED]) or "nothing"
            yield Submission(name, folder, reason=f"{self._nothing()}; it has {others}", student=student)

    def _nothing(self) -> str:
        """Return that nothing is there for an exercise."""
        first = self._exercises[0]
        if self._known:
            return f"it has no {first.name}.py, no function {first.function}, and no single file of another name"
        return (
            f"it is for no exercise: neither its name (such as {first.name}.py) nor a function in it (such as "
            f"`async def {first.function}(model)`) tells one; --exercise does"
        )


def fingerprint(source: bytes) -> str:
    """Return a digest that stays the same where names, comments, docstrings and blanks change.

    Names are numbered in the order in which they come; keywords and attributes stay. Sources are read as words, not by
    Python's parser, see `imported`.
    """
    text = _REMARKS.sub("", source.decode(errors="replace"))
    numbers: dict[str, int] = {}
    words = []
    before = ""
    for word in _WORDS.findall(text):
        is_name = word.isidentifier() and not keyword.iskeyword(word) and before != "."
        words.append(f"_{numbers.setdefault(word, len(numbers))}" if is_name else word)
        before = word
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def alike(submissions: Sequence[Submission]) -> dict[str, list[str]]:
    """Return which submissions of others are the same but for names, comments and blanks, by submission.

    It is a hint to look, and no proof: of a short exercise two honest solutions may be alike. What is still the starter
    is not told.
    """
    groups: dict[tuple[str, str], list[Submission]] = {}
    for one in submissions:
        if one.exercise is not None and not one.reason and not one.exercise.slowed:  # answers are alike
            key = fingerprint(source_of(one.path))
            if key != fingerprint(one.exercise.starter.encode()):
                groups.setdefault((one.exercise.name, key), []).append(one)
    return {
        one.name: [other.name for other in group if other is not one and other.student != one.student]
        for group in groups.values()
        for one in group
    }


def _hidden(path: Path, folder: Path) -> bool:
    """Return whether a path in a folder is nobody's work."""
    return any(part.startswith(".") or part in ("__pycache__", "__MACOSX") for part in path.relative_to(folder).parts)


def _why_not(path: Path) -> str:
    """Return why a path cannot be graded, "" if it can."""
    if path.is_symlink():
        return "it is a link; a submission is a file of its own"
    if path.suffix not in _SOURCES:
        return f"it is no Python file: its name ends in {path.suffix or 'nothing'}, not in .py or {NOTEBOOK}"
    try:
        source = source_of(path)
    except UsageError as error:
        return f"it {str(error).removeprefix(str(path)).strip()}"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if not source.strip():
        return "it is empty" if path.suffix != NOTEBOOK else "no cell of it has definitions alone"
    if b"\0" in source:
        return "it is no text"
    try:
        source.decode()
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        return f"it is no text in UTF-8, which Python reads, at line {line}; save it as UTF-8"
    return ""


def exercise_of(path: Path, exercises: Sequence[Exercise]) -> Exercise | None:
    """Return the exercise that a file is for, by its name or by the function that it defines."""
    text, stem = source_of(path).decode(errors="replace"), Path(own_name(path.name)).stem
    for exercise in exercises:
        if stem in (exercise.name, exercise.function) or stem.startswith(f"{exercise.number}_"):
            return exercise
    for form in ("async def {}(", "\ndef {}("):
        defined = [exercise for exercise in exercises if form.format(exercise.function) in f"\n{text}"]
        if defined:
            return defined[0]
    return None


def imported(path: Path) -> list[Path]:
    """Return the files of a file's own folder that it imports, and those that these import in turn.

    Imports are read, not run: what is imported under a name that is put together is not found. They are found as words
    of a line, since Python's own parser may need gigabytes, or minutes, for a file of 1 MB.
    """
    folder, waiting = path.parent, [path]
    found: dict[Path, None] = {}
    while waiting and len(found) < MOST_BESIDE:
        for name in _imported_names(waiting.pop()):
            for file in _files_of(folder, name) or _renamed(path, name):
                if file not in found and file.resolve() != path.resolve() and not _why_not(file):
                    found[file] = None
                    waiting.append(file)
    return [*found][:MOST_BESIDE]


def _imported_names(path: Path) -> set[str]:
    """Return the first parts of the names of the modules that a file imports."""
    with contextlib.suppress(OSError, UsageError):
        text = source_of(path).decode(errors="replace").replace("\\\n", " ")
        lists = [module or names for module, names in _IMPORT.findall(text)]
        return {name.strip().partition(".")[0].partition(" ")[0] for names in lists for name in names.split(",")}
    return set()


def _renamed(path: Path, name: str) -> list[Path]:
    """Return the file of a module as a learning platform has renamed it, beside a file of the same student."""
    own = upload_of(path.name)
    uploads = ((other, upload_of(other.name)) for other in sorted(path.parent.glob(f"*{name}*.py"))) if own else ()
    return [other for other, upload in uploads if own and upload and upload == replace(own, name=f"{name}.py")][:1]


def _files_of(folder: Path, name: str) -> list[Path]:
    """Return the files of a module or package of a folder."""
    module, package = folder / f"{name}.py", folder / name
    if module.is_file():
        return [module]
    inside = package.is_dir() and not package.is_symlink()
    return sorted(package.rglob("*.py")) if inside else []
