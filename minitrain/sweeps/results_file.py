"""The results file of a sweep: JSON Lines to which rows are added, and from which a later sweep continues.

A line is a row with its configuration's key. The last line of a sweep that was killed may be incomplete; it is cut off.
A file that holds anything else is refused and never overwritten. Rows of other sweeps are kept.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from minitrain.errors import UsageError
from minitrain.sweeps.batches import Row

_BEGIN = b'{"key": '


def read_rows(path: Path) -> dict[str, Row]:
    """Return the rows of a results file by key; none where there is no file yet.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no file to keep rows in; name another results file", path=str(path))
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _failed(path, "read", error) from error
    whole, rest = _whole_lines(text)
    rows: dict[str, Row] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            rows[row.pop("key")] = row
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise _no_row(path, number) from error
    if not (rest.startswith(_BEGIN) or _BEGIN.startswith(rest)):
        raise _no_row(path, whole.count(b"\n") + 1)
    return rows


@contextlib.contextmanager
def writing(path: Path | None) -> Iterator[Callable[[str, Row], None]]:
    """Provide a function that adds a row to a results file at once and whole; without a file, it does nothing.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        yield lambda _key, _row: None
        return
    with _opened(path) as file:

        def write(key: str, row: Row) -> None:
            line = json.dumps({"key": key, **row}).encode() + b"\n"
            try:
                num_written = file.write(line)
            except OSError as error:
                raise _failed(path, "written", error) from error
            if num_written < len(line):  # the next sweep cuts the line off
                raise _failed(path, "written", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

        yield write


def _opened(path: Path) -> BinaryIO:
    """Open a results file to append to, without an incomplete last line, and unbuffered, so that a kill loses no row.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        file = path.open("ab", buffering=0)
        whole, rest = _whole_lines(path.read_bytes())
        if rest:
            file.truncate(len(whole))
    except OSError as error:
        raise _failed(path, "written", error) from error
    return cast(BinaryIO, file)


def require_writable(path: Path) -> None:
    """Require that a file can be written, before the sweep that is to fill it begins.

    Raises:
        UsageError: it cannot.
    """
    there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise _failed(path, "written", error) from error
    if not there:
        path.unlink()


def _whole_lines(text: bytes) -> tuple[bytes, bytes]:
    """Return the complete lines of a file, and the incomplete one after them."""
    end = text.rfind(b"\n") + 1
    return text[:end], text[end:]


def _failed(path: Path, what: str, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be {what}: {error.strerror or error}; name another file", path=str(path))


def _no_row(path: Path, number: int) -> UsageError:
    return UsageError(
        f"{path}, line {number}, is no row of a sweep; name another results file", path=str(path), line=number
    )
