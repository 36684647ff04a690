"""Finding submissions: files, folders of files, one folder a student; and the files that a submission imports.

Whatever lies there becomes a row of the report: what cannot be graded has a reason instead of a grade, so that one odd
file does not end a class.
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minitrain.errors import UsageError
from minitrain.learn.exercise import Exercise
from minitrain.learn.sandbox import LONGEST_SOURCE, source_of

_IMPORT = re.compile(r"(?:^|[;:])[ \t]*(?:from[ \t]+\.*[ \t]*(\w+)|import[ \t]+([^\n;#]+))", re.MULTILINE)
_PATTERN = frozenset("*?[")
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
    """

    name: str
    path: Path
    exercise: Exercise | None = None
    reason: str = ""
    beside: Sequence[Path] = ()


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
            with one submission for each exercise. A pattern such as `class/*.py` stands for what it matches.
        exercises: what they may be for.
        exercise: what all of them are for, if that is known; else names and functions tell.
        together: each folder given is that of one student.

    Raises:
        UsageError: there is nothing at a place.
    """
    finder = _Finder([exercise] if exercise else exercises, exercise)
    found = [
        submission for place in places for path in _expanded(str(place)) for submission in finder.at(path, together)
    ]
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

    def at(self, path: Path, together: bool) -> Iterator[Submission]:
        """Yield the submissions of a file or a folder."""
        if not path.is_dir() or path.is_symlink():
            yield self._file(path, str(path))
        elif together:
            yield from self._student(path, path)
        else:
            for entry in _entries(path):
                if entry.is_dir() and not entry.is_symlink():
                    yield from self._student(entry, path)
                else:
                    yield self._file(entry, entry.name)

    def _file(self, path: Path, name: str) -> Submission:
        """Return the submission of a file that lies among those of others, none of which it may import."""
        reason = _why_not(path)
        if reason:
            return Submission(name, path, reason=reason)
        found = self._known or exercise_of(path, self._exercises)
        if found is None:
            return Submission(name, path, reason=self._nothing())
        beside = [other for other in imported(path) if exercise_of(other, self._exercises) is None]
        return Submission(name, path, found, beside=beside)

    def _student(self, folder: Path, root: Path) -> Iterator[Submission]:
        """Yield the submissions of a student's folder, one for each file that is for an exercise."""
        files = [path for path in sorted(folder.rglob("*.py")) if not _hidden(path, folder) and not _why_not(path)]
        found = [(path, exercise) for path in files if (exercise := exercise_of(path, self._exercises)) is not None]
        if not found and self._known and len(files) == 1:
            found = [(files[0], self._known)]
        for path, exercise in found:
            yield Submission(str(path.relative_to(root)), path, exercise, beside=imported(path))
        if not found:
            name = folder.name if folder == root else str(folder.relative_to(root))
            yield Submission(name, folder, reason=self._nothing())

    def _nothing(self) -> str:
        """Return that nothing is there for an exercise."""
        first = self._exercises[0]
        return (
            f"it is for no exercise: neither its name (such as {first.name}.py) nor a function in it (such as "
            f"`async def {first.function}(model)`) tells one; --exercise does"
        )


def _entries(folder: Path) -> list[Path]:
    """Return what was handed in in a folder, without what editors and Python leave there."""
    return [path for path in sorted(folder.iterdir()) if not _hidden(path, folder)]


def _hidden(path: Path, folder: Path) -> bool:
    """Return whether a path in a folder is nobody's work."""
    return any(part.startswith(".") or part in ("__pycache__", "__MACOSX") for part in path.relative_to(folder).parts)


def _why_not(path: Path) -> str:
    """Return why a path cannot be graded, "" if it can."""
    if path.is_symlink():
        return "it is a link; a submission is a file of its own"
    if path.suffix != ".py":
        return f"it is no Python file: its name ends in {path.suffix or 'nothing'}, not in .py"
    try:
        source = source_of(path)
    except UsageError:
        return f"it has more than {LONGEST_SOURCE} bytes; a submission is source text"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if not source.strip():
        return "it is empty"
    return "it is no text" if b"\0" in source or not _is_text(source) else ""


def _is_text(source: bytes) -> bool:
    """Return whether bytes are text."""
    try:
        source.decode()
    except UnicodeDecodeError:
        return False
    return True


def exercise_of(path: Path, exercises: Sequence[Exercise]) -> Exercise | None:
    """Return the exercise that a file is for, by its name or by the function that it defines."""
    text = source_of(path).decode(errors="replace")
    for exercise in exercises:
        if path.stem in (exercise.name, exercise.function) or path.stem.startswith(f"{exercise.number}_"):
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
            for file in _files_of(folder, name):
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


def _files_of(folder: Path, name: str) -> list[Path]:
    """Return the files of a module or package of a folder."""
    module, package = folder / f"{name}.py", folder / name
    if module.is_file():
        return [module]
    inside = package.is_dir() and not package.is_symlink()
    return sorted(package.rglob("*.py")) if inside else []
