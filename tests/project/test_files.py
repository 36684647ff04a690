"""Writing whole files: nothing is half written, and nothing that is no regular file is replaced. Guarded reading."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pytest
from annotated_types import Ge
from typing_extensions import TypedDict

from minitrain.files import conforming, read_bytes, read_cells, read_json, read_text, write_bytes, write_text


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


class Sizes(TypedDict):
    """What a file of these tests may hold."""

    ranks: Annotated[int, Ge(1)]
    names: NotRequired[list[str]]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="expected a regular file, found a device, pipe or socket; save it first"):
            read_bytes(path)
    with pytest.raises(ValueError, match="expected a plan, found a directory; name the file in it"):
        read_bytes(tmp_path, "plan")


def test_a_file_is_as_large_as_it_may_be_packed_or_not(tmp_path: Path) -> None:
    path = write_text(tmp_path / "text.gz", ["0" * 100])
    assert read_text(path, most_bytes=100) == "0" * 100
    for file in (path, write_text(tmp_path / "text", ["0" * 100])):
        with pytest.raises(ValueError, match="expected a trace of at most 99 bytes, found 100"):
            read_text(file, "trace", 99)
    half = tmp_path / "half.gz"
    half.write_bytes((tmp_path / "text.gz").read_bytes()[:-9])
    with pytest.raises(ValueError, match="a whole file, found one that ends early"):
        read_bytes(half)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"ranks": 1', "expected JSON, found a mistake in line 1, column 12"),
        ('{"ranks": NaN}', "ranks: expected a finite number, found nan"),
        ('{"ranks": 1e999}', "ranks: expected a finite number, found inf"),
        ('{"ranks": 1, "ranks": 2}', "ranks: expected each key once, found it more than once; remove one"),
        ("[" * 100_000, "expected at most a few levels of nesting, found too many"),
        ('{"ranks": true}', "ranks: expected a valid integer, found true"),
        ('{"ranks": "4"}', 'ranks: expected a valid integer, found "4"'),
        ('{"ranks": 0}', "ranks: expected greater than or equal to 1, found 0"),
        ('{"ranks": 1, "name": []}', r"name: no such key is known; did you mean names\?"),
        ('{"ranks": 1, "xyz": []}', "xyz: no such key is known; known are ranks, names"),
        ("{}", "ranks: expected a value, found nothing"),
        ("[]", "the whole: expected an object, found a list of 0|the whole: .* found \\[\\]"),
        ("\ud800", "expected UTF-8 text, found byte"),
    ],
)
def test_data_is_what_its_type_says_or_refused_by_key(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=message):
        read_json(path, Sizes)


def test_the_first_faults_are_told_and_the_others_counted() -> None:
    with pytest.raises(ValueError, match=r"(?s)\[0\].ranks: .*\[7\].ranks: [^\n]*\n\.\.\. and 2 more$"):
        conforming([{"ranks": 0}] * 10, list[Sizes])
    assert conforming([{"ranks": 3}], list[Sizes]) == [{"ranks": 3}]


def test_cells_have_the_names_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('a,b\n1,"2\n3"\n\n4\n')
    wide = tmp_path / "wide.csv"
    wide.write_text(",".join(map(str, range(100_000))))
    with pytest.raises(ValueError, match="expected at most 1000 columns, found 100000; leave some out"):
        read_cells(wide)
    assert read_cells(path) == [(3, {"a": "1", "b": "2\n3"}), (5, {"a": "4", "b": ""})]
    with pytest.raises(ValueError, match="expected the columns a, c, found none called c"):
        read_cells(path, needed=("a", "c"))
