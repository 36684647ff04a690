"""Atomic writes of files: under a temporary name, then moved into place, so that no reader sees half of one.

What exists and is no regular file (a pipe, a device such as /dev/stdout) is opened and written to: a move would replace
it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from gzip import GzipFile
from pathlib import Path


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
    with _replacing(target) as temporary:
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
    with _replacing(target) as temporary, temporary.open("wb") as file:
        file.writelines(chunks)
    return target


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Offer a temporary name beside the target; move it into place, or remove it after an error.

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
        if error.filename == str(temporary):
            error.filename, error.filename2 = str(target), None  # the name that the caller gave
        raise
    finally:
        with suppress(OSError):  # it was moved, or was never there
            temporary.unlink()
