"""Sweeps: every configuration once, failures kept, and nothing lost by a kill."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.portions import succeeded

SIZES: dict[str, Any] = {"num_layers": 4, "global_batch_size": 8}
GRID = {"world_size": [1, 2, 4], "microbatch_size": [1, 2]}


class Counting(Executor):
    """An executor that works at once, in this thread, and counts; it may refuse after a number of portions."""

    def __init__(self, most: int = 10**9) -> None:
        self.num_configurations = 0
        self.most = most

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        (portion,) = arguments
        if self.num_configurations >= self.most:
            raise KeyboardInterrupt
        self.num_configurations += len(portion)
        future: Future[Any] = Future()
        future.set_result(function(portion))
        return future


def _sweep(executor: Executor | None = None, **more: Any) -> mt.Sweep:
    return mt.sweep(["ddp", "zero3"], GRID, executor or Counting(), **SIZES, **more)


def test_rows_are_those_of_single_runs_in_the_order_of_the_grid() -> None:
    rows = _sweep().rows()
    assert [(row["world_size"], row["microbatch_size"], row["strategy"]) for row in rows] == [
        (world_size, size, name) for world_size in (1, 2, 4) for size in (1, 2) for name in ("ddp", "zero3")
    ]
    alone = mt.simulate("zero3", world_size=4, microbatch_size=2, **SIZES).summary()
    assert {name: rows[-1][name] for name in alone if name != "options"} == {
        name: value for name, value in alone.items() if name != "options"
    }
    assert rows[-1]["status"] == "ok"


def test_processes_and_threads_give_the_same_rows() -> None:
    expected = _sweep().rows()
    assert mt.sweep(["ddp", "zero3"], GRID, **SIZES).rows() == expected
    with ThreadPoolExecutor(1) as threads:
        assert _sweep(threads).rows() == expected


def test_nothing_runs_before_rows_are_asked_for() -> None:
    counting = Counting()
    made = _sweep(counting)
    assert counting.num_configurations == 0
    assert made.total == 12
    next(iter(made))
    assert 0 < counting.num_configurations < 12


def test_an_endless_grid_is_taken_as_it_is_needed() -> None:
    def endless() -> Iterator[dict[str, Any]]:
        world_size = 1
        while True:
            yield {"world_size": world_size, "num_layers": 1, "global_batch_size": world_size}
            world_size += 1

    made = mt.sweep("ddp", endless(), Counting())
    assert made.total is None
    assert len({row["world_size"] for row, _ in zip(made, range(5), strict=False)}) == 5


def test_progress_counts_rows() -> None:
    seen: list[tuple[int, int | None]] = []
    _sweep(progress=lambda done, total: seen.append((done, total))).rows()
    assert seen == [(done, 12) for done in range(1, 13)]


async def broken(model: mt.Model) -> mt.Model:
    """Update without a gradient of all samples."""
    model.weights[0], _ = model.load_weights(0)
    model.forward(1, model.get_input_activation([0]), model.weights[0])
    return model


def test_failures_stay_with_their_reason() -> None:
    rows = mt.sweep(["gpipe", broken], {"num_layers": [3]}, Counting(), world_size=2, global_batch_size=4).rows()
    assert [row["status"] for row in rows] == ["failed", "failed"]
    assert "must be a multiple of world_size" in rows[0]["error"]
    assert rows[1]["error"].startswith("LawError")
    assert rows[0]["step_time_s"] is None


def test_out_of_memory_is_a_status_of_its_own() -> None:
    rows = mt.sweep("ddp", {"strict_memory": [False, True]}, Counting(), global_batch_size=4096).rows()
    assert [row["status"] for row in rows] == ["oom", "oom"]
    assert rows[0]["step_time_s"] > 0
    assert "out of memory" in rows[0]["out_of_memory"]
    assert "OutOfMemoryError" in rows[1]["error"]


def test_a_wrong_hardware_is_a_failed_row() -> None:
    (row,) = mt.sweep("ddp", {"hardware": ["abacus"]}, Counting()).rows()
    assert row["status"] == "failed"
    assert "abacus" in row["error"]


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_sweep_goes_on_where_a_kill_ended_it(tmp_path: Path, most: int) -> None:
    results = tmp_path / "results.jsonl"
    with pytest.raises(KeyboardInterrupt):
        _sweep(Counting(most), results=results).rows()
    num_finished = len(results.read_text().splitlines()) if results.exists() else 0
    with results.open("a") as file:
        file.write('{"key": "torn')
    counting = Counting()
    rows = _sweep(counting, results=results).rows()
    assert counting.num_configurations == 12 - num_finished
    assert rows == _sweep().rows()
    assert len({json.loads(line)["key"] for line in results.read_text().splitlines()}) == 12
    again = Counting()
    assert _sweep(again, results=results).rows() == rows
    assert again.num_configurations == 0


def test_a_torn_first_line_is_cut_off(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text('{"key"')
    assert len(_sweep(results=results).rows()) == 12


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("dear diary\n")
    with pytest.raises(mt.UsageError, match="line 1, is no row of a sweep"):
        _sweep(results=other)


def test_a_configuration_that_stands_twice_in_the_grid_is_done_once() -> None:
    counting = Counting()
    assert len(mt.sweep("ddp", {"world_size": [2, 2]}, counting, **SIZES).rows()) == 1
    assert counting.num_configurations == 1


@pytest.mark.parametrize("values", [[], 8, "8"])
def test_an_axis_that_is_no_list_is_refused(values: Any) -> None:
    with pytest.raises(mt.UsageError, match="must be a list of at least one value"):
        mt.sweep("ddp", {"world_size": values})


def test_the_table_has_every_row(tmp_path: Path) -> None:
    path = _sweep().write_csv(tmp_path / "table.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert float(rows[0]["step_time_s"]) == _sweep().rows()[0]["step_time_s"]


def test_what_cannot_be_sent_is_said() -> None:
    async def local(model: mt.Model) -> mt.Model:
        return model

    with pytest.raises(mt.UsageError, match="give strategies by name"):
        mt.sweep(local, {"world_size": [1]}).rows()


def test_a_dead_worker_is_said(tmp_path: Path) -> None:
    deadly = tmp_path / "deadly.py"
    deadly.write_text("import os\nasync def die(model):\n    os._exit(3)\n")
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        pytest.raises(mt.MinitrainError, match="a worker of the sweep died"),
    ):
        mt.sweep(f"{deadly}:die", {"world_size": [1]}, pool).rows()


def test_the_fastest_come_first() -> None:
    times = [row["step_time_s"] for row in succeeded(_sweep().rows())]
    assert times == sorted(times)


def _command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["sweep", *arguments])


def test_the_command_prints_the_fastest_and_counts(tmp_path: Path) -> None:
    table, results = tmp_path / "t.csv", tmp_path / "r.jsonl"
    files = ("--csv", str(table), "--results", str(results))
    shown = _command("ddp", "gpipe", "-g", "layers=3,4", "-g", "world_size=2", "--network", "flat", *files)
    assert shown.exit_code == 0, shown.output
    assert "4 configurations: 3 ok, 0 out of memory, 1 failed" in shown.output
    assert "the first failure: gpipe: StrategyError" in shown.output
    assert len(table.read_text().splitlines()) == 5
    assert len(results.read_text().splitlines()) == 4


def test_the_command_prints_json() -> None:
    rows = json.loads(_command("ddp", "-g", "world_size=1,2", "--layers", "2", "--json").stdout)
    assert [row["world_size"] for row in rows] == [1, 2]


def test_the_command_fails_if_everything_does() -> None:
    shown = _command("gpipe", "-g", "layers=3")
    assert shown.exit_code == 1
    assert "0 ok" in shown.output


@pytest.mark.parametrize("grid", [("world_size",), ("a b=1",), ("layers=1,",), ("layers=1", "num_layers=2")])
def test_the_command_refuses_a_grid_that_is_none(grid: tuple[str, ...]) -> None:
    shown = _command("ddp", *(part for text in grid for part in ("-g", text)))
    assert shown.exit_code == 2
    assert "--grid" in shown.stderr
