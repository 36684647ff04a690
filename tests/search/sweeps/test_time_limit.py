"""A time limit for a configuration: what hangs is a failed row, and nothing else is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.search.sweeps.batches import Batch, run_batch
from tests.search.sweeps.test_sweep import Counting

ROOT = Path(__file__).parents[3]
SIZES: dict[str, Any] = {"num_layers": 2, "global_batch_size": 4}


async def hanging(model: mt.Model, how: str = "loop") -> mt.Model:
    """Hang with two ranks."""
    while model.world_size == 2:
        if how == "sleep":
            time.sleep(60)
        elif how == "catch":
            _catch_once()
            how = "loop"
    return model


def _catch_once() -> None:
    try:
        while True:
            pass
    except BaseException:  # as careless code does
        pass


def _rows(executor: Any, how: str, **more: Any) -> list[dict[str, Any]]:
    return mt.sweep(hanging, {"world_size": [1, 2, 4]}, executor, how=how, time_limit_s=0.3, **SIZES, **more).rows()  # type: ignore[call-arg]  # an option of its own


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["loop", "sleep", "catch"])
def test_what_hangs_in_the_main_thread_is_a_failed_row(how: str) -> None:
    rows = _rows(Counting(), how)
    assert rows[1]["error"].startswith("TimeLimitError: the simulation did not end within time_limit_s=0.3; give it")
    assert [(row["status"], "TimeLimitError" in row["error"]) for row in rows] == [
        ("failed", False),  # it trains nothing
        ("failed", True),
        ("failed", False),
    ]


_ROW_OF_A_THREAD = """
import os
from concurrent.futures import ThreadPoolExecutor
from tests.search.sweeps.test_time_limit import _rows
with ThreadPoolExecutor(1) as threads:
    print(_rows(threads, "loop")[1]["error"], flush=True)
os._exit(0)
"""


@pytest.mark.ci
def test_what_hangs_in_another_thread_is_a_failed_row() -> None:
    """In a process of its own: a thread that is not interrupted would keep the tests from ending."""
    done = subprocess.run(
        [sys.executable, "-c", _ROW_OF_A_THREAD], check=False, capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert "TimeLimitError" in done.stdout, done.stderr


def test_a_limit_may_be_longer_than_timers_take() -> None:
    (row,) = mt.sweep("ddp", {"world_size": [2]}, time_limit_s=1e30, **SIZES).rows()
    assert row["error"] is None


def test_rows_within_a_limit_are_those_without_one() -> None:
    grid: dict[str, list[Any]] = {"world_size": [1, 2], "hardware": ["h100_80g_nvl8", "h200_141g_nvl8", "default"]}
    without = mt.sweep("ddp", grid, Counting(), **SIZES).rows()
    assert mt.sweep("ddp", grid, Counting(), time_limit_s=60, **SIZES).rows() == without
    together: Batch = [
        (str(place), ("ddp", {"world_size": 1, "hardware": name, **SIZES}))
        for place, name in enumerate(grid["hardware"])
    ]
    assert run_batch(together, 60)[1] == run_batch(together)[1]


def test_a_longer_limit_tries_again_what_ended_at_a_shorter_one(tmp_path: Path) -> None:
    results = tmp_path / "rows.jsonl"
    _rows(Counting(), "loop", results=results)
    grid = {"world_size": [1, 2, 4]}
    for limit, num_again in ((0.2, 0), (0.4, 1)):
        counting = Counting()
        mt.sweep(hanging, grid, counting, how="loop", results=results, time_limit_s=limit, **SIZES).rows()  # type: ignore[call-arg]
        assert counting.num_configurations == num_again


def test_a_search_goes_on_after_what_hangs() -> None:
    found = mt.tune("tiny", world_size=2, global_batch_size=4, strategies=[hanging, "fsdp"], jobs=1, time_limit_s=0.3)
    failed = [row for row in found.rows if row["status"] == "failed"]
    assert [row["reason"].partition(":")[0] for row in failed] == ["TimeLimitError"]
    assert found.best.strategy == "fsdp"


@pytest.mark.parametrize("limit", [0, -1, "5", True, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(UsageError, match=r"^time_limit_s must be a positive number of seconds, got"):
        mt.sweep("ddp", {"world_size": [1]}, time_limit_s=limit)
