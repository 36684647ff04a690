"""Sweeps on Ray: the rows of one process, with strategies of one's own, and none lost with a worker."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.search.sweeps.own_processes import LostWorkersWarning
from tests.search.sweeps.own_strategies import GRID, SIZES, alone, write_strategies

pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Ray forks to start its processes


@pytest.fixture(scope="module")
def ray() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the home folder
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield ray
        ray.shutdown()


@pytest.mark.ci
def test_ray_and_its_address_give_the_rows_of_one_process(ray: ModuleType) -> None:
    expected = alone(["ddp", "zero3"], GRID)
    for executor in (ray, "ray", "ray:auto"):
        assert mt.sweep(["ddp", "zero3"], GRID, executor, **SIZES).rows() == expected
    assert ray.is_initialized()


def test_files_and_functions_of_strategies_are_sent(ray: ModuleType, tmp_path: Path) -> None:
    strategies: list[Any] = [f"{write_strategies(tmp_path)}:mine", failing]
    grid = {"world_size": [1, 4]}
    assert mt.sweep(strategies, grid, ray, **SIZES).rows() == alone(strategies, grid)


async def failing(model: mt.Model) -> mt.Model:
    raise ValueError(f"{model.world_size} {helper()}")


def helper() -> str:
    return "helped"


def test_a_killed_worker_loses_no_row_and_is_said_once(ray: ModuleType, tmp_path: Path) -> None:
    strategy = f"{write_strategies(tmp_path)}:mine"
    grid: dict[str, list[Any]] = {"world_size": [1, 2], "deadly": [True]}
    with pytest.warns(LostWorkersWarning, match="a worker was lost") as said:
        rows = mt.sweep(strategy, grid, ray, **SIZES).rows()
    assert len(said) == 1
    assert (tmp_path / "mark").exists()
    assert rows == alone(strategy, grid)


def test_a_configuration_that_kills_every_worker_is_a_failed_row(ray: ModuleType, tmp_path: Path) -> None:
    made = mt.sweep(f"{write_strategies(tmp_path)}:always_deadly", {"world_size": [1, 2]}, ray, **SIZES)
    with pytest.warns(LostWorkersWarning, match="a worker was lost"):
        rows = made.rows()
    assert "WorkerLostError: every worker that simulated this was lost" in rows[1]["error"]
    assert "WorkerLostError" not in str(rows[0]["error"])


@pytest.mark.ci
def test_a_search_on_ray_finds_what_one_process_finds(ray: ModuleType, tmp_path: Path) -> None:
    given: dict[str, Any] = {"world_size": 2, "global_batch_size": 4, "prune": "none"}
    strategies = ["megatron", "fsdp", f"{write_strategies(tmp_path)}:mine"]
    expected = mt.tune("tiny", strategies=strategies, jobs=1, **given).rows
    found = mt.tune("tiny", strategies=strategies, executor=ray, **given)
    assert {row["strategy"] for row in found.rows if row["step_time_s"]} >= {"megatron", "fsdp"}
    assert found.rows == expected


@pytest.mark.ci
def test_a_missing_extra_is_said_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r'^Ray is not installed; `pip install "minitrain\[ray\]"` installs it'):
        mt.sweep("ddp", {"world_size": [1]}, "ray").rows()
