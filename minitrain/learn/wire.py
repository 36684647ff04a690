"""What a submission's process sends to the grader: one JSON value a line, of which the grader holds one at a time.

The first line, written before the submission is loaded, says which means of isolation are in force. Then comes one
part a case: `{"ranks": [120, 118]}` and as many lines as it says, rank after rank, each a step with the place in the
submission that asked for it: `["ddp.py:12", "forward", 0, [3, 0], [1, 0]]`. Of a run that an error ended, the part
begins with `{"error": {...}}`, which may have "ranks" too, for the steps up to the error.

The bytes come from a process that may send anything. They are limited in number by who reads them, in lines and in
the length of a line here, and a line is parsed when its step is done and not kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

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
