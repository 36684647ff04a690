"""What is written of a large run by default: some ranks, one of those that do the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.view import run_folder
from minitrain.view.run_folder import CHROME_TRACE, PAGE, RUN_FILE, write_run


def simulated(strategy: str, **changes: Any) -> mt.Run:
    """Return a run of eight ranks."""
    sizes = {"world_size": 8, "num_layers": 16, "global_batch_size": 32}
    return mt.simulate(strategy, **{**sizes, **changes})


def processes(path: Path) -> set[int]:
    """Return the ranks that a Chrome trace shows, by row."""
    return {event["pid"] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"}


@pytest.fixture(autouse=True)
def every_run_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let little be written."""
    monkeypatch.setattr(run_folder, "MOST_WRITTEN", 300)


@pytest.mark.parametrize("strategy", ["zero3", "fsdp", "pp_dp:pp=2", "1f1b"])
def test_a_large_run_is_written_in_part_and_says_so(strategy: str, tmp_path: Path) -> None:
    run = simulated(strategy)
    folder = write_run(run, tmp_path, all_ranks=False)
    assert {path.name for path in folder.iterdir()} == {PAGE, CHROME_TRACE, RUN_FILE}
    assert mt.load_run(folder / RUN_FILE).summary() == run.summary()
    shown = run_folder.excerpt_of(run)
    assert shown is not None
    assert sum(len(run.logs[rank]) for rank in shown.ranks) <= max(300, len(run.logs[0]))
    assert len(processes(folder / CHROME_TRACE)) == len(shown.ranks)
    assert shown.note in (folder / PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize("strategy", ["zero3", "1f1b"])
def test_what_is_shown_of_a_rank_is_what_it_did(strategy: str) -> None:
    run = simulated(strategy)
    shown = run_folder.excerpt_of(run)
    assert shown is not None
    for row, rank in enumerate(shown.ranks):
        of_rank = shown.timeline.time[shown.timeline.rank == row].tolist()
        assert of_rank == [event.time for event in run.logs[rank]][-len(of_rank) :]
        assert f"{rank}" in shown.timeline.rank_names[row]


def test_peers_that_are_not_shown_are_no_row() -> None:
    shown = run_folder.excerpt_of(simulated("1f1b"))
    assert shown is not None
    assert set(shown.timeline.peer.tolist()) <= {-1, *range(len(shown.ranks))}


def test_every_rank_is_written_where_that_is_asked_for(tmp_path: Path) -> None:
    run = simulated("zero3")
    folder = write_run(run, tmp_path, all_ranks=False)
    assert write_run(run, tmp_path) == folder
    assert len(processes(folder / CHROME_TRACE)) == 8
    assert mt.load_run(folder / RUN_FILE).step_time == run.step_time
    whole = (folder / RUN_FILE).stat().st_size
    write_run(run, tmp_path, all_ranks=False)
    assert (folder / RUN_FILE).stat().st_size < whole / 2


def test_there_is_no_log_where_ranks_that_differ_have_too_many_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulated("1f1b")
    folder = write_run(run, tmp_path, all_ranks=False)
    monkeypatch.setattr(run_folder, "MOST_LOGGED", run.num_events - 1)
    write_run(run, tmp_path, all_ranks=False)
    assert not (folder / RUN_FILE).exists()  # that of an earlier run would not belong to the page


def test_a_small_run_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "MOST_WRITTEN", 10**6)
    folder = write_run(simulated("zero3"), tmp_path, all_ranks=False)
    assert {path.name for path in folder.iterdir()} == {PAGE, CHROME_TRACE, RUN_FILE}
