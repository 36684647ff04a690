"""Ranks that did the same are written once, and read as they were; what a damaged file says of them is refused."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError

SIZES: dict[str, Any] = {"world_size": 16, "num_layers": 16, "global_batch_size": 32}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero3": {},
    "fsdp": {"reshard_after_forward": False},
    "hsdp": {"shard_size": 4},
    "1f1b": {},
    "pp_dp": {"pp": 4, "microbatch_size": 1},
    "interleaved_1f1b": {"pp": 4},
    "ring_attention": {"cp": 4},
    "moe": {},
}


def saved(run: mt.Run, path: Path) -> tuple[mt.Run, list[Any]]:
    """Write a run with ranks that did the same once, and return what is read, and the lines of the file."""
    run.save(path, every_rank=False)
    return mt.load_run(path), [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.few(3)
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("strategy", LAYOUTS)
def test_what_is_read_is_what_every_rank_did(strategy: str, fold: bool, tmp_path: Path) -> None:
    run = mt.simulate(strategy, **SIZES, **LAYOUTS[strategy], fold=fold)
    found, lines = saved(run, tmp_path / "run.jsonl")
    for log, wanted in zip(found.logs, run.logs, strict=True):
        assert list(log) == list(wanted)
    assert found.summary() == run.summary()
    assert found == run
    header, repeated = lines[0], [line for line in lines[1:] if isinstance(line, dict)]
    written = {line[2] for line in lines[1:] if isinstance(line, list)}
    assert written | {line["rank"] for line in repeated} == set(range(16))
    assert header["version"] == (3 if repeated else 1)


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp", "hsdp"])
def test_folding_and_comparing_rows_find_the_same_ranks(strategy: str) -> None:
    runs = [mt.simulate(strategy, **SIZES, fold=fold) for fold in (True, False)]
    folded, full = (run.repeated_ranks() for run in runs)
    assert folded == full
    assert full is not None
    assert [(each.rank, each.like) for each in full] == [(rank, 0) for rank in range(1, 16)]


def test_stages_of_a_pipeline_are_written_one_by_one_and_their_replicas_once() -> None:
    run = mt.simulate("pp_dp", **SIZES, pp=4, fold=False)
    repeated = run.repeated_ranks()
    assert repeated is not None
    assert len(repeated) == 12
    assert run.repeated_ranks(most_events=10) is None


def test_a_file_of_many_ranks_is_as_small_as_that_of_one(tmp_path: Path) -> None:
    one, many = (mt.simulate("zero3", **{**SIZES, "world_size": n, "global_batch_size": n}) for n in (16, 1024))
    for name, run in (("one", one), ("many", many)):
        run.save(tmp_path / name, every_rank=False)
    assert (tmp_path / "many").stat().st_size < 3 * (tmp_path / "one").stat().st_size + 200 * 1024


def test_a_run_with_journals_is_written_without_them(tmp_path: Path) -> None:
    run = mt.simulate("zero3", **SIZES, memory_by_kind=True)
    found, _ = saved(run, tmp_path / "run.jsonl")
    assert run.memory_journals
    assert not found.memory_journals
    assert found.step_time == run.step_time


def test_what_was_read_is_a_log_like_others(tmp_path: Path) -> None:
    run = mt.simulate("zero3", **SIZES)
    found, _ = saved(run, tmp_path / "run.jsonl")
    log = found.logs[5]
    assert (log[-1], log[1:3], len(log)) == (run.logs[5][-1], run.logs[5][1:3], len(run.logs[5]))
    assert repr(log) == repr(list(log))
    assert copy.deepcopy(log) == pickle.loads(pickle.dumps(log)) == log
    assert log != [*log, log[0]]
    with pytest.raises(UsageError, match="a log is for reading"):
        log.append(None)  # type: ignore[attr-defined]
    found.save(tmp_path / "whole.jsonl")
    assert mt.load_run(tmp_path / "whole.jsonl") == run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line.update(rank=0), "rank: expected a rank in 0..15 without events, found 0"),
        (lambda line: line.update(rank=16), "rank: expected a rank in 0..15 without events, found 16"),
        (lambda line: line.update(like=3), "like: expected a rank with events of its own, found 3"),
        (lambda line: line.update(like=[]), "like: expected a rank with events of its own"),
        (lambda line: line.pop("samples"), "samples: expected a list, found nothing"),
        (lambda line: line["samples"].pop(), "samples: expected 3, as rank 0 has them, found 2"),
        (lambda line: line["samples"].append([[3, 99]]), "expected ascending ranges"),
        (lambda line: line.update(partners=[7, 8]), r"partners: expected \[group, peer, waited for\], found 7"),
        (lambda line: line["partners"].clear(), "partners: expected 1, as rank 0 has them, found 0"),
        (lambda line: line["partners"][0].__setitem__(1, 3), "partners: expected null, found 3"),
        (lambda line: line["partners"][0].__setitem__(0, [[0, 2]]), "expected a group where the other rank has one"),
    ],
)
def test_a_damaged_line_of_a_repeated_rank_is_refused(
    change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    _, lines = saved(mt.simulate("zero3", **SIZES), path)
    change(lines[-1])
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    with pytest.raises(UsageError, match=message):
        mt.load_run(path)


def test_partners_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    _, lines = saved(mt.simulate("hsdp", **SIZES, shard_size=4), path)
    place = next(place for place, each in enumerate(lines[-1]["partners"]) if each[0] is not None)
    lines[-1]["partners"][place][0] = [[0, 4]]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    with pytest.raises(UsageError, match="expected a group of rank 15, found one without it"):
        mt.load_run(path)
