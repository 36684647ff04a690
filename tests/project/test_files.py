"""Writing whole files: nothing is half written, and nothing that is no regular file is replaced."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minitrain.files import write_bytes, write_text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(("write", "chunks"), [(write_text, ["a", "é"]), (write_bytes, [b"a", "é".encode()])])
def test_a_pipe_is_written_to_and_stays_a_pipe(write: Callable[..., Path], chunks: list[Any], tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert write(pipe, chunks) == pipe
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(10)
    assert read == ["aé".encode()]
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_file_that_exists_is_replaced(tmp_path: Path) -> None:
    write_text(tmp_path / "file", ["old"])
    write_text(tmp_path / "file", ["new"])
    assert (tmp_path / "file").read_text() == "new"


def test_an_error_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    def failing() -> Any:
        yield "half"
        raise OSError(28, "No space left on device")

    write_text(tmp_path / "file", ["whole"])
    with pytest.raises(OSError, match="No space left"):
        write_text(tmp_path / "file", failing())
    assert (tmp_path / "file").read_text() == "whole"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(("write", "chunk"), [(write_text, "a"), (write_bytes, b"a")])
def test_an_error_names_the_file_and_not_the_temporary_one(
    write: Callable[..., Path], chunk: Any, tmp_path: Path
) -> None:
    target = tmp_path / ("x" * 250)  # beside which a longer name has no place
    with pytest.raises(OSError, match="too long") as found:
        write(target, [chunk])
    assert found.value.filename == str(target)
