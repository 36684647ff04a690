"""Run files: read back as they were, drawn without running again, and refused with one clear error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError

_SIZES: Any = {"world_size": 2, "num_layers": 4, "global_batch_size": 8}


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _rewrite(path: Path, change: Callable[[list[Any]], None]) -> Path:
    lines = _lines(path)
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _saved(path: Path, **more: Any) -> Path:
    mt.simulate("1f1b", **_SIZES, **more).save(path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_run_with_journals_is_read_back_equal(tmp_path: Path, suffix: str) -> None:
    run = mt.simulate("zero3_prefetch", **_SIZES, memory_by_kind=True)
    path = tmp_path / f"run{suffix}"
    run.save(path)
    read = mt.load_run(path)
    assert read == run
    assert read.memory_journals == run.memory_journals
    assert read.figure().to_json() == run.figure().to_json()


def test_only_a_run_with_journals_needs_the_newer_version(tmp_path: Path) -> None:
    assert _lines(_saved(tmp_path / "a"))[0]["version"] == 1
    newer = _lines(_saved(tmp_path / "b", memory_by_kind=True))
    assert newer[0]["version"] == 2
    assert [line["rank"] for line in newer if isinstance(line, dict) and "changes" in line] == [0, 1]


def test_a_file_of_an_older_writer_is_read(tmp_path: Path) -> None:
    path = _rewrite(_saved(tmp_path / "run"), lambda lines: lines[0].pop("num_events"))
    assert mt.load_run(path).num_events == len(_lines(path)) - 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[0].update(version=4), "of version 4; this minitrain reads 1, 2 and 3"),
        (lambda lines: lines[0].update(format="other"), "not a minitrain-run file, or it is damaged"),
        (lambda lines: lines[0].pop("fields"), "its first line lacks fields"),
        (lambda lines: lines.pop(5), r"it has \d+ of \d+ events"),
        (lambda lines: lines.pop(), "the journals of 1 of 2 ranks"),
        (lambda lines: lines[-1].update(rank=7), r"rank: expected a rank in 0\.\.1, found 7"),
        (lambda lines: lines[-1]["changes"][0].__setitem__(1, 99), "or it is damaged"),
        (lambda lines: lines[1].__setitem__(2, "0"), r'line 2, rank: expected a rank in 0\.\.1, found "0"'),
        (
            lambda lines: lines[1].__setitem__(3, float("nan")),
            "line 2, time: expected 0 or a time in 1e-100..1e200 s, found NaN",
        ),
        (lambda lines: lines.__setitem__(1, 7), "or it is damaged"),
    ],
)
def test_a_damaged_file_gives_one_error_that_says_what_is_wrong(
    tmp_path: Path, change: Callable[[list[Any]], None], message: str
) -> None:
    path = _rewrite(_saved(tmp_path / "run", memory_by_kind=True), change)
    with pytest.raises(UsageError, match=message):
        mt.load_run(path)


def test_what_is_no_run_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for content in (b"", b"no json", b"\xff\xfe\x00", b"[1, 2]"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="not a minitrain-run file, or it is damaged"):
            mt.load_run(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        mt.load_run(tmp_path / "missing")


def test_a_compressed_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path / "run.jsonl.gz")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UsageError, match=r"run\.jsonl\.gz"):
        mt.load_run(path)
    path.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(UsageError, match="its first line does not say so"):
        mt.load_run(path)
