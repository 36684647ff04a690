"""Files: read with a guard, and written whole.

A file that a user names may be a pipe that nobody writes to, a device without an end, a folder, gigabytes, or text that
is no text. Each reader here refuses what it cannot read with an OSError or a ValueError, whose text says what was
expected and what was found; callers put in front of it which file it was, and behind it the remedy.

A file is written under a temporary name, then moved into place, so that no reader sees half of one. What exists and is
no regular file (a pipe, a device such as /dev/stdout) is opened and written to: a move would replace it.

A temporary folder lasts as long as its process. What one that was killed leaves, the next one of its kind removes.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from gzip import GzipFile
from itertools import zip_longest
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

StrPath = str | os.PathLike[str]
"""A path, as text or as an object that stands for one."""
MOST_BYTES = 64 * 2**20
"""Of a file that is read whole, where its reader names no other limit."""

_MOST_DIGITS = 400
"""More digits than any float has; `int` refuses thousands."""

_LONGEST = 40
"""Characters of a found string, and digits of a found integer, in a message."""

_MOST_TOLD = 8
"""Faults of one file: more than anybody mends at once."""


def size_of(path: StrPath, what: str = "file") -> int:
    """Return the bytes of a regular file; others may have no end, or wait for a writer.

    Args:
        path: of the file.
        what: what messages call it.

    Raises:
        OSError: there is no such file.
        ValueError: it is a folder, a device, a pipe or a socket.
    """
    try:
        status = Path(path).stat()
    except ValueError as error:  # a null byte in the path, or half a surrogate pair
        raise ValueError(f"expected a readable {what}, found: {error}") from None
    if S_ISDIR(status.st_mode):
        raise ValueError(f"expected a {what}, found a directory; name the file in it")
    if not S_ISREG(status.st_mode):
        raise ValueError("expected a regular file, found a device, pipe or socket; save it first")
    return status.st_size


def is_file(path: StrPath) -> bool:
    """Return whether a path, whatever it is made of, is that of a regular file."""
    with suppress(OSError, ValueError):  # a name that is too long
        return Path(path).is_file()
    return False


def read_bytes(path: StrPath, what: str = "file", most_bytes: int = MOST_BYTES) -> bytes:
    """Return what a regular file holds; one that is compressed by gzip is unpacked.

    Args:
        path: of the file.
        what: what messages call it.
        most_bytes: of the file, and of what is unpacked.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, too large, or damaged.
    """
    size = size_of(path, what)
    with Path(path).open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            found = (GzipFile(fileobj=file) if packed else file).read(most_bytes + 1) if size <= most_bytes else b""
        except EOFError:
            raise ValueError("expected a whole file, found one that ends early") from None
    if size > most_bytes or len(found) > most_bytes:
        raise ValueError(f"expected a {what} of at most {most_bytes} bytes, found {max(size, len(found))}")
    return found


def read_text(path: StrPath, what: str = "file", most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a regular file, without a byte order mark.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, too large, or not UTF-8.
    """
    return as_text(read_bytes(path, what, most_bytes))


def as_text(raw: bytes) -> str:
    """Return bytes as text, without a byte order mark.

    Raises:
        ValueError: they are not UTF-8.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise ValueError(f"expected UTF-8 text, found {byte}; save the file as UTF-8") from None


def read_json(path: StrPath, kind: Any = Any, *, what: str = "file", most_bytes: int = MOST_BYTES) -> Any:
    """Return the data of a JSON file, in which each key comes once and each number is finite.

    Args:
        path: of the file.
        kind: what the data must be, as type annotations say it, such as `dict[str, Budget]`; see `conforming`.
        what: what messages call the file.
        most_bytes: of the file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, too large, no JSON, nested too deeply, or not of that kind.
    """
    data = parse_json(read_text(path, what, most_bytes))
    require_plain(data)
    return conforming(data, kind)


def require_plain(data: Any) -> None:
    """Require that each key comes once and each number is finite.

    Raises:
        ValueError: that is not so; its text has every fault with its place, up to eight.
    """
    faults = [*_odd_values(data, ())]
    if faults:
        raise _faulty(faults)


def parse_json(text: str | bytes) -> Any:
    """Return the data of a JSON text, its objects remembering which of their keys came twice.

    Raises:
        ValueError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text, object_pairs_hook=json_object, parse_int=whole_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"expected JSON, found a mistake in {where}: {error.msg}") from None
    except RecursionError:
        raise ValueError("expected at most a few levels of nesting, found too many") from None


class JsonObject(dict[str, Any]):
    """A JSON object that remembers which of its keys came twice."""

    repeated: tuple[str, ...] = ()


def json_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Make an object of its pairs; the last of two equal keys wins, as everywhere in JSON."""
    result = JsonObject(pairs)
    if len(result) < len(pairs):
        times = Counter(key for key, _ in pairs)
        result.repeated = tuple(key for key in result if times[key] > 1)
    return result


def whole_number(digits: str) -> float:
    """Read an integer; one with more digits than a float can hold becomes infinite, and so a fault."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _odd_values(value: Any, place: tuple[int | str, ...]) -> Iterator[str]:
    """Yield a fault for each key that came twice, and each number that is none."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{key_path(place)}: expected a finite number, found {value}"
    if isinstance(value, JsonObject):
        for key in value.repeated:
            yield f"{key_path((*place, key))}: expected each key once, found it more than once; remove one"
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield from _odd_values(item, (*place, key))


def conforming(data: Any, kind: Any) -> Any:
    """Return data as a type says: objects as the dataclasses or typed dictionaries that it names.

    Numbers are numbers: neither text nor true and false. A key that nothing knows is a fault.

    Args:
        data: of a file.
        kind: a type annotation, such as `dict[str, Budget]`; its bounds are those of `annotated_types`.

    Raises:
        ValueError: the data is something else; its text has every fault with its place, up to eight.
    """
    if kind is Any:
        return data
    from pydantic import ValidationError  # noqa: PLC0415  (pydantic only where a file is validated)

    try:
        # as JSON, of which objects become dataclasses also where nothing is converted
        return _adapter(kind).validate_json(json.dumps(data), strict=True, extra="forbid")
    except ValidationError as error:
        raise _faulty([_said(fault, kind) for fault in error.errors()]) from None


@cache
def _adapter(kind: Any) -> Any:
    """Return what validates data of a type."""
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(kind)


def _said(fault: Mapping[str, Any], kind: Any) -> str:
    """Say one fault that pydantic found: where, what was expected, and what was found."""
    place = tuple(key for key in fault["loc"] if key != "[key]")
    where = key_path(place) or "the whole"
    if fault["type"].startswith("missing"):
        return f"{where}: expected a value, found nothing"
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _known_keys(kind, place[:-1])
        close = get_close_matches(str(place[-1]), known, 1)
        meant = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        return f"{where}: no such key is known; {meant}"
    expected = str(fault["msg"]).replace("Input should be", "expected")
    return f"{where}: {expected}, found {shown(fault['input'])}"


def _known_keys(kind: Any, place: Iterable[int | str]) -> list[str]:
    """Return the keys that an object at a place in data of a type may have."""
    whole = _adapter(kind).json_schema()
    node = _resolved(whole, whole)
    for key in place:
        inner = node.get("properties", {}).get(key) or node.get("additionalProperties") or node.get("items") or {}
        node = _resolved(whole, inner)
    return list(node.get("properties", ()))


def _resolved(whole: Mapping[str, Any], node: Any) -> Mapping[str, Any]:
    """Return the part of a JSON schema that a reference stands for; of alternatives, the first that is no null."""
    if not isinstance(node, dict):
        return {}
    if "$ref" in node:
        return _resolved(whole, whole["$defs"][node["$ref"].rpartition("/")[2]])
    if "anyOf" in node:
        return _resolved(whole, node["anyOf"][0])
    return node


def _faulty(faults: list[str]) -> ValueError:
    """Return the one error that has the first faults."""
    more = [f"... and {len(faults) - _MOST_TOLD} more"] if len(faults) > _MOST_TOLD else []
    return ValueError("\n".join([*faults[:_MOST_TOLD], *more]))


def key_path(location: tuple[int | str, ...]) -> str:
    """Return a place in a file as people write it.

    >>> key_path(("networks", 0, "ops", "all_reduce", 1))
    'networks[0].ops.all_reduce[1]'
    """
    path = ""
    for found in location:
        key = found if isinstance(found, int) or len(found) <= _LONGEST else found[:_LONGEST] + "..."
        if isinstance(key, str) and key.replace("-", "_").isidentifier():
            path += f".{key}" if path else key
        else:
            path += f"[{json.dumps(key)}]"
    return path


def shown(value: Any) -> str:
    """Return a found value in a few words, as JSON writes it.

    >>> shown([1, None]), shown("x"), shown({"a": 1})
    ('[1, null]', '"x"', 'an object')
    """
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _LONGEST else value[:_LONGEST] + "...")
    if isinstance(value, bool | float) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_LONGEST else "a huge number"
    if isinstance(value, list | tuple):
        return _list_shown(value)
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def _list_shown(values: list[Any] | tuple[Any, ...]) -> str:
    """Write a short flat list in full and count any other."""
    if len(values) > 4 or any(isinstance(value, list | tuple | dict) for value in values):
        return f"a list of {len(values)}"
    return f"[{', '.join(map(shown, values))}]"


MOST_COLUMNS = 1000
"""Columns of a table: each unknown one is compared with all known ones."""


def read_cells(path: StrPath, what: str = "table", needed: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file, each with its line and its cells by the names of the first line.

    A cell that a row lacks is "".

    Args:
        path: of the file.
        what: what messages call it.
        needed: columns that it must have.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, too large, not UTF-8, no CSV, has too many columns, lacks one, names one
            twice, or has a row with more cells than columns.
    """
    try:
        lines = csv.reader(io.StringIO(read_text(path, what), newline=""))
        names = next(lines, [])
        rows = [(lines.line_num, cells) for cells in lines if any(cells)]
    except csv.Error as error:
        raise ValueError(f"expected CSV, found a mistake: {error}") from None
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"expected at most {MOST_COLUMNS} columns, found {len(names)}; leave some out")
    missing = [name for name in needed if name not in names]
    if missing:
        raise ValueError(f"expected the columns {', '.join(needed)}, found none called {', '.join(missing)}")
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise ValueError(f"expected each column once, found {', '.join(twice)} more than once; remove one")
    for line, cells in rows:
        if any(cells[len(names) :]):
            raise ValueError(f"expected {len(names)} cells in line {line}, as columns, found {len(cells)}")
    return [(line, dict(zip_longest(names, cells[: len(names)], fillvalue=""))) for line, cells in rows]


def write_text(path: str | Path, chunks: Iterable[str]) -> Path:
    r"""Write UTF-8 text, compressed if the name ends in ".gz"; the same text gives the same bytes.

    Half a surrogate pair, such as Python makes of a path that is no UTF-8, is written as `\udcff`.

    Args:
        path: where to; its folder is made if it does not exist.
        chunks: the text, piece by piece.

    Returns:
        The path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        if target.suffix == ".gz":
            # a fixed time and no name in the header, and the level at which speed and size balance for JSON
            with temporary.open("wb") as raw, GzipFile("", "wb", 3, raw, mtime=0) as packed:
                for chunk in chunks:
                    packed.write(chunk.encode(errors="backslashreplace"))
        else:
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as text:
                text.writelines(chunks)
    return target


def write_bytes(path: str | Path, chunks: Iterable[bytes]) -> Path:
    """Write bytes, piece by piece, and return the path; its folder is made if it does not exist."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary, temporary.open("wb") as file:
        file.writelines(chunks)
    return target


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Offer a temporary name beside the target; move it into place, or remove it after an error.

    So a file is whole or absent, and what was there stays until the new one is whole: whatever writes files uses this.

    Where the target is a device or a pipe, offer the target itself.

    Raises:
        OSError: the target is a folder.
    """
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not target.is_file():
        yield target
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        if error.filename in (str(temporary), None):  # what a full disk refuses has no name
            error.filename, error.filename2 = str(target), None  # the name that the caller gave
        raise
    finally:
        with suppress(OSError):  # it was moved, or was never there
            temporary.unlink()


_TEMPORARY = ".tmp"


class TemporaryFolder:
    """A folder that lasts as long as this object, or its context; where the process is killed, the next one removes it.

    Who has a folder holds a lock on it, which the system releases however the process ends.

    Args:
        kind: what its name begins with.
        parent: where it is made; where the system keeps temporary files if None.

    Attributes:
        path: the folder.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        _remove_leftovers(kind, parent)
        while True:
            self.path = Path(tempfile.mkdtemp(_TEMPORARY, kind, parent))
            lock = _lock(self.path, waits=True)
            if self.path.is_dir():  # else another process has locked it sooner, and taken it for a leftover
                break
        self._end = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self._end()


def _remove_leftovers(kind: str, parent: Path) -> None:
    """Remove folders of a kind that no process holds."""
    form = re.compile(rf"{re.escape(kind)}[a-z0-9_]{{8}}{re.escape(_TEMPORARY)}")  # as `mkdtemp` names them
    for folder in [path for path in parent.iterdir() if form.fullmatch(path.name)]:
        lock = _lock(folder, waits=False)
        if lock is not None:
            _remove(folder, lock, os.getpid())


def _remove(folder: Path, lock: int | None, owner: int) -> None:
    """Remove a folder and release its lock, unless this is a fork of the process that has it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, *, waits: bool) -> int | None:
    """Lock a folder of one's own, and return the descriptor that holds the lock; None where that cannot be had."""
    if sys.platform == "win32":
        return None
    with suppress(OSError, ImportError):
        import fcntl  # noqa: PLC0415  (Unix only, and not in a browser)
        from os import geteuid  # noqa: PLC0415

        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid != geteuid():
                raise PermissionError
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    return None
