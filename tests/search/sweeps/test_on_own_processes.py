"""Sweeps in processes of their own: none of their rows is lost with a process."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import MinitrainError
from minitrain.search.sweeps.own_processes import LostWorkersWarning, OwnProcesses
from tests.search.sweeps.own_strategies import SIZES, alone, write_strategies


def test_a_killed_process_loses_no_row_and_is_said_once(tmp_path: Path) -> None:
    strategy, results = f"{write_strategies(tmp_path)}:mine", tmp_path / "rows.jsonl"
    grid: dict[str, list[Any]] = {"world_size": [1, 2], "deadly": [True]}
    with pytest.warns(LostWorkersWarning, match="a worker was lost") as said:
        rows = mt.sweep(strategy, grid, jobs=1, results=results, **SIZES).rows()
    assert len(said) == 1
    assert (tmp_path / "mark").exists()
    assert rows == alone(strategy, grid)
    assert len(results.read_text().splitlines()) == 2


@pytest.mark.ci
def test_what_kills_its_process_twice_is_a_failed_row_of_a_sweep_and_of_a_search(tmp_path: Path) -> None:
    deadly = f"{write_strategies(tmp_path)}:always_deadly"
    with pytest.warns(LostWorkersWarning, match="a worker was lost"):
        rows = mt.sweep(["ddp", deadly], {"world_size": [1, 2]}, jobs=2, **SIZES).rows()
    assert [("WorkerLostError" in str(row["error"])) for row in rows] == [False, False, False, True]
    given: dict[str, Any] = {"world_size": 2, "global_batch_size": 4, "prune": "none"}
    with pytest.warns(LostWorkersWarning, match="a worker was lost") as said:
        found = mt.tune("tiny", strategies=["fsdp", deadly], jobs=2, **given)
    *others, failed = found.rows
    assert others == mt.tune("tiny", strategies="fsdp", jobs=1, **given).rows
    assert failed["reason"].startswith("WorkerLostError: every worker that simulated this was lost")
    assert len(said) == 1


@pytest.mark.filterwarnings("ignore:a worker was lost")
def test_a_process_that_is_lost_while_it_has_nothing_to_do_is_replaced() -> None:
    with closing(OwnProcesses(1)) as workers:
        first = result(workers)
        os.kill(first, signal.SIGKILL)
        assert result(workers) != first


def result(workers: OwnProcesses) -> int:
    (done,) = workers.first_done([workers.submit(os.getpid)])
    return int(done.result())


def test_processes_that_cannot_start_end_a_sweep_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.run.worker_processes._make_calls", _dying)
    with pytest.raises(MinitrainError, match="a script that starts processes needs `if __name__ == '__main__':`"):
        mt.sweep("ddp", {"world_size": [1, 2]}, jobs=2, **SIZES).rows()


def _dying(*_: object) -> None:
    os._exit(3)
