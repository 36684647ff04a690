"""What a submission's process sends to the grader: one JSON value a line, of which the grader holds one at a time.

The first line, written before the submission is loaded, says which means of isolation are in force. Then comes one
part a case: `{"ranks": [120, 118]}` and as many lines as it says, rank after rank, each a step with the place in the
submission that asked for it: `["ddp.py:12", "forward", 0, [3, 0], [1, 0]]`. Of a run that an error ended, the part
begins with `{"error": {...}}`, which may have "ranks" too, for the steps up to the error.

The bytes come from a process that may send anything. They are limited in number by who reads them, in lines and in
the length of a line here, and a line is parsed when its step is done and not kept.

Errors of a submission's process as plain data, each with the line of the submission that it came through.

It is copied to where the submission runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import linecache
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, overload

from minitrain.errors import attribute_meant
from minitrain.source_lines import place_of

MOST_STEPS = 400_000
"""Steps that all ranks of a case together may have; the longest shipped run has 30 000."""

LONGEST_LINE = 2**18
"""Bytes of a line; a step that names 8,192 samples has 50 KB."""


def encoded(result: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the lines of one case's result."""
    error = {"error": result["error"]} if "error" in result else {}
    if "programs" not in result:
        yield _line(error)
        return
    yield _line({**error, "ranks": [len(steps) for steps in result["programs"]]})
    for steps, places in zip(result["programs"], result["lines"], strict=True):
        for step, place in zip(steps, places, strict=True):
            yield _line([place, *step])


def _line(value: Any) -> bytes:
    """Return a value as a line."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


class _Lines(Sequence[Any]):
    """Values on lines, each parsed whenever it is asked for.

    Args:
        lines: as they came.
        part: what to take of a value.
    """

    def __init__(self, lines: Sequence[bytes], part: Callable[[list[Any]], Any]) -> None:
        self._lines = lines
        self._part = part

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return _Lines(self._lines[index], self._part)
        value = parsed(self._lines[index])
        if not isinstance(value, list):
            raise ValueError("a step is a list")  # noqa: TRY004  (of what came, not of what was passed)
        return self._part(value)


def parsed(line: bytes) -> Any:
    """Return the value of a line.

    Raises:
        ValueError: it is too long, or not JSON.
    """
    if len(line) > LONGEST_LINE:
        raise ValueError(f"a line has {len(line)} bytes, at most {LONGEST_LINE} are allowed")
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("a line is nested too deep") from error


def decoded(data: bytes, most_cases: int) -> tuple[Any, list[dict[str, Any]]]:
    """Return the first line's value and the results of the cases, which may be anything of that form.

    Args:
        data: all that came.
        most_cases: how many results to look for.

    Raises:
        ValueError: it has another form, or ends too early.
    """
    if data.count(b"\n") > (MOST_STEPS + 1) * most_cases + 1:
        raise ValueError(f"there are more than {MOST_STEPS} steps a case")
    lines = data.split(b"\n")
    first = _object(lines[0])
    results: list[dict[str, Any]] = []
    begin = 1
    while begin < len(lines) - 1 and len(results) < most_cases:
        result, begin = _result(lines, begin)
        results.append(result)
    return first, results


def _result(lines: Sequence[bytes], begin: int) -> tuple[dict[str, Any], int]:
    """Return the result that begins at a line, and where the next one does."""
    head = _object(lines[begin])
    begin += 1
    if "ranks" not in head:
        return head, begin
    programs, places = [], []
    for steps in _counts(head["ranks"]):
        if begin + steps >= len(lines):
            raise ValueError("there are fewer steps than announced")
        part = lines[begin : begin + steps]
        programs.append(_Lines(part, lambda value: value[1:]))
        places.append(_Lines(part, lambda value: value[0] if value else None))
        begin += steps
    error = {"error": head["error"]} if "error" in head else {}
    return {**error, "programs": programs, "lines": places}, begin


def _object(line: bytes) -> dict[str, Any]:
    """Return the object on a line."""
    value = parsed(line)
    if not isinstance(value, dict):
        raise ValueError("a part begins with an object")  # noqa: TRY004  (of what came, not of what was passed)
    return value


def _counts(value: Any) -> list[int]:
    """Return the numbers of steps of the ranks."""
    if not (isinstance(value, list) and all(isinstance(count, int) and count >= 0 for count in value)):
        raise ValueError("there must be a number of steps for each rank")
    return value


SUBMISSION = "submission"
"""The folder with the submission and the files that it imports, in the folder of its process."""

_PACKAGE = Path(__file__).parents[1]

_NEVER_AWAITED = re.compile(
    r"coroutine '[\w.<>]*?(?P<name>\w+)' was never awaited.*File \"(?P<file>[^\"]*)\", line (?P<line>\d+)", re.DOTALL
)

_MOST_KEYS = 6
"""Keys of a mapping that are named."""


@contextlib.contextmanager
def noting_what_is_never_awaited() -> Iterator[list[str]]:
    """Provide a list of the calls that were never awaited, instead of Python's warnings about them.

    A call is named where it stands in the submission: the coroutine may be dropped anywhere, also in the engine.
    """
    forgotten: list[str] = []

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        found = _NEVER_AWAITED.match(str(message))
        if found is None:
            otherwise(message, category, filename, lineno, file, line)
        elif not Path(found["file"]).is_relative_to(_PACKAGE):
            forgotten.append(f"{Path(found['file']).name}:{found['line']} calls {found['name']}")

    depth = sys.get_coroutine_origin_tracking_depth()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message="coroutine .* was never awaited", category=RuntimeWarning)
        otherwise: Any = warnings.showwarning
        warnings.showwarning = show
        sys.set_coroutine_origin_tracking_depth(1)
        try:
            yield forgotten
        finally:
            sys.set_coroutine_origin_tracking_depth(depth)


LeftAt = Callable[[Any, Any], str | None]
"""Where in the submission a key last left a store; None if it never did."""


def describe(
    error: BaseException, models: Sequence[Any] = (), left_at: LeftAt = lambda _store, _key: None
) -> dict[str, Any]:
    """Return an error as plain data.

    Args:
        error: what ended the run, or kept it from beginning.
        models: of the ranks that had begun.
        left_at: finds where keys left stores.
    """
    facts = {name: getattr(error, name, None) for name in ("rank", "layer", "op")}
    on_rank = re.search(r"^on rank (\d+) of", "\n".join(map(str, _notes_of(error))), re.MULTILINE)
    if facts["rank"] is None and on_rank and "DeadlockError" not in type(error).__name__:
        facts["rank"] = int(on_rank.group(1))
    rank, lines = facts["rank"], _lines_in_submission(error)
    return {
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "message": _text_of(error, left_at)[:2000] or type(error).__name__,
        "line": lines[0] if lines else None,
        "called_at": ", ".join(lines[1:4]),
        "step": len(models[rank].log) if isinstance(rank, int) and rank < len(models) else None,
        **{name: value if isinstance(value, int | str) else None for name, value in facts.items()},
    }


def _text_of(error: BaseException, left_at: LeftAt) -> str:
    """Return the text of an error; where its class is the submission's, this calls code of the submission."""
    try:
        return str(error) + attribute_meant(error) + _sought(error, left_at)
    except BaseException as second:  # whatever it raises
        return f"its text cannot be had: __str__ raised {type(second).__name__}"


def _sought(error: BaseException, left_at: LeftAt) -> str:
    """Return where the submission sought what does not exist, and which keys or how many items there are, else ""."""
    trace = error.__traceback__ if isinstance(error, KeyError | IndexError) else None
    steps = zip(traceback.walk_tb(trace), traceback.extract_tb(trace), strict=True)
    frame, place = next((step for step in reversed([*steps]) if _is_submission(step[0][0])), (None, None))
    if frame is None or place is None or place.colno is None or place.lineno != place.end_lineno:
        return ""
    line = linecache.getline(place.filename, place.lineno or 0).encode()
    text = line[place.colno : place.end_colno].decode()
    name, kept = _container_of(text, frame[0])
    if isinstance(error, IndexError):
        return f"; `{text}` finds no such item: {name} has {len(kept)}" if isinstance(kept, Sequence) else ""
    if not isinstance(kept, Mapping):
        return f"; `{text}` finds no such key" if text else ""
    keys = ", ".join(f"{key!r:.40}" for key in islice(kept, _MOST_KEYS)) or "no keys"
    more = f" and {len(kept) - _MOST_KEYS} more" if len(kept) > _MOST_KEYS else ""
    place_left = left_at(kept, error.args[0]) if error.args and hasattr(kept, "label") else None
    left = f"; it was taken out at {place_left}" if place_left else ""
    return f"; `{text}` finds no such key: {name} has {keys}{more}{left}"


def _container_of(text: str, frame: FrameType) -> tuple[str, Any]:
    """Return name and value of the mapping or sequence with which an expression begins, None if with none."""
    first, *others = re.match(r"[\w.]*", text).group(0).split(".")  # type: ignore[union-attr]  # it always matches
    name, kept = first, frame.f_locals.get(first)
    for other in others:
        if isinstance(kept, Mapping | Sequence):
            break
        name, kept = f"{name}.{other}", getattr(kept, other, None)
    return name, kept


def _notes_of(error: BaseException) -> Sequence[Any]:
    """Return the notes of an error."""
    notes = getattr(error, "__notes__", ())
    return notes if isinstance(notes, list) else ()


def _lines_in_submission(error: BaseException) -> list[str]:
    """Return the lines of the submission that an error came through, the innermost first."""
    frames = ((frame, number) for frame, number in traceback.walk_tb(error.__traceback__) if _is_submission(frame))
    return [f"{Path(frame.f_code.co_filename).name}:{number}" for frame, number in frames][::-1]


def line_of(frame: FrameType | None) -> str | None:
    """Return the line of the submission that runs in a frame or further out, or that a task of it waits at."""
    innermost: str | None = None
    while frame is not None:
        if _is_submission(frame):
            innermost = innermost or f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return innermost or _waiting_line()


def _waiting_line() -> str | None:
    """Return the line at which a task of the running loop waits."""
    try:
        places = [place_of(task.get_coro()) for task in asyncio.all_tasks()]
    except RuntimeError:  # no loop runs
        return None
    return next((place for place in sorted(places) if ".py:" in place), None)


def _is_submission(frame: FrameType) -> bool:
    """Return whether a frame runs the submission, or a file beside it."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith("minitrain_strategy_") or Path(frame.f_code.co_filename).parent.name == SUBMISSION
