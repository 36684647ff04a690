"""Sweeps: every configuration once, failures kept, and nothing lost by a kill."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.cli.output import Counted
from minitrain.cli.searches import _how_far
from minitrain.engine.model import Model
from minitrain.errors import UsageError
from minitrain.search.sweeps import sweep as results
from minitrain.search.sweeps.batches import succeeded
from minitrain.search.sweeps.own_processes import OwnProcesses
from minitrain.tensors import Weight

SIZES: dict[str, Any] = {"num_layers": 4, "global_batch_size": 8}
GRID = {"world_size": [1, 2, 4], "microbatch_size": [1, 2]}


@pytest.fixture(scope="module")
def processes() -> Iterator[OwnProcesses]:
    with closing(OwnProcesses(2)) as workers:
        yield workers


@pytest.fixture
def _on_shared_processes(processes: OwnProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands use processes that begin and end with the module."""
    monkeypatch.setattr(processes, "close", lambda: None)
    monkeypatch.setattr("minitrain.search.sweeps.executors.OwnProcesses", lambda _: processes)


class Counting(Executor):
    """An executor that works at once, in this thread, and counts; it may refuse after a number of configurations."""

    num_at_once = 4

    def __init__(self, most: int = 10**9) -> None:
        self.num_configurations = 0
        self.most = most

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        (batch,) = arguments
        if self.num_configurations >= self.most:
            raise KeyboardInterrupt
        self.num_configurations += len(batch)
        future: Future[Any] = Future()
        future.set_result(function(batch))
        return future

    def close(self) -> None:
        """End nothing."""


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


@pytest.mark.ci
def test_processes_and_threads_give_the_same_rows() -> None:
    expected = _sweep().rows()
    assert mt.sweep(["ddp", "zero3"], GRID, **SIZES).rows() == expected
    with ThreadPoolExecutor(1) as threads:
        assert _sweep(threads).rows() == expected


@pytest.mark.parametrize(
    ("grid", "more", "message"),
    [
        ({"wrold_size": [1, 2]}, {}, r"^wrold_size is neither a parameter .* ddp or zero3; did you mean world_size\?$"),
        ([{"world_size": 1}, {"microbatch": 1}], {}, r"^microbatch is neither .*; did you mean microbatch_size\?$"),
        ({"world_size": [1]}, {"qqq": 1}, r"^qqq is neither .*; use one of microbatch_size, recompute, world_size"),
    ],
)
def test_a_name_that_nobody_knows_ends_a_sweep_before_it_begins(grid: Any, more: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mt.sweep(["ddp", "zero3"], grid, Counting(), **more)


def test_an_option_goes_to_those_that_have_it_and_the_others_run_once_without_it(tmp_path: Path) -> None:
    counting = Counting()
    grid = {"pp": [1, 2, 4], "world_size": [4, 8]}
    made = mt.sweep(["ddp", "pp_dp"], grid, counting, microbatch_size=1, **SIZES)
    assert made.notes == ["ddp has no option pp, and runs once without it"]
    rows = made.rows()
    assert [row["status"] for row in rows] == ["ok"] * 8
    assert made.total == len(rows) == counting.num_configurations
    assert [(row["world_size"], row["pp"]) for row in rows if row["strategy"] == "ddp"] == [(4, None), (8, None)]
    assert len({json.dumps(list(row)) for row in rows}) == 2  # the same keys, in the order in which they are given
    page = made.write_html(tmp_path / "page.html", pictures=0).read_text()
    assert "<p>ddp has no option pp, and runs once without it.</p>" in page
    assert "no option pp" in made._repr_html_()
    assert "None" not in made._repr_html_()


def test_configurations_one_by_one_give_an_option_to_those_that_have_it() -> None:
    listed = [{"pp": 1, "world_size": 4}, {"world_size": 4, "pp": 2}, {"world_size": 8}]
    made = mt.sweep(["ddp", "pp_dp"], listed, Counting(), **SIZES)
    assert made.total == len(made.rows()) == 5
    endless = mt.sweep(["ddp", "pp_dp"], iter(listed), Counting(), **SIZES)
    assert endless.rows() == made.rows()
    assert endless.notes == made.notes == ["ddp has no option pp, and runs once without it"]


def test_a_note_joins_strategies_that_lack_the_same_options() -> None:
    made = mt.sweep(["ddp", "zero3", "pp_dp"], {"pp": [1, 2]}, Counting(), layers_per_stage=None, **SIZES)
    assert made.notes == ["ddp and zero3 have no option pp or layers_per_stage, and run once without them"]


def test_an_iterator_s_unknown_name_is_a_failed_row() -> None:
    (row,) = mt.sweep("ddp", iter([{"world_size": 1, "qqq": 2}]), Counting(), **SIZES).rows()
    assert (row["status"], "qqq" in row["error"]) == ("failed", True)


def test_a_sweep_with_a_results_file_goes_on_where_options_are_left_out(tmp_path: Path) -> None:
    given: dict[str, Any] = {"results": tmp_path / "rows.jsonl", "world_size": 4, **SIZES}
    first = mt.sweep(["ddp", "pp_dp"], {"pp": [1, 2]}, Counting(), **given).rows()
    again = mt.sweep(["ddp", "pp_dp"], {"pp": [1, 2, 4]}, counting := Counting(), **given)
    assert again.rows()[:3] == first
    assert counting.num_configurations == 1


def test_the_command_says_which_strategies_run_without_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.search.sweeps.executors.OwnProcesses", lambda *_: Counting())
    command = ["sweep", "ddp", "pp_dp", "--grid", "pp=1,2", "--layers", "4", "--batch", "8"]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "100"})
    *rows, counts, note = result.stdout.splitlines()[1:]
    assert sorted(row.split()[:2] for row in rows) == [["ddp", "-"], ["pp_dp", "1"], ["pp_dp", "2"]]
    assert (counts, note) == (
        "3 configurations: 3 ok, 0 out of memory, 0 failed",
        "ddp has no option pp, and runs once without it",
    )
    as_json = CliRunner().invoke(app, [*command, "--json"])
    assert [row["pp"] for row in json.loads(as_json.stdout)] == [None, 1, 2]
    assert "minitrain: ddp has no option pp, and runs once without it" in as_json.stderr


def test_what_lacked_memory_says_so_and_is_done_again(tmp_path: Path) -> None:
    lacking = [True]

    async def greedy(model: Model) -> Model:
        if lacking:
            raise MemoryError
        return await mt.strategies()["single"](model)

    given: dict[str, Any] = {"results": tmp_path / "rows.jsonl", **SIZES}
    (row,) = mt.sweep(greedy, {"world_size": [1]}, Counting(), **given).rows()
    assert (row["status"], row["error"][:46]) == ("failed", "MemoryError: the system gives no more memory, ")
    lacking.clear()
    (row,) = mt.sweep(greedy, {"world_size": [1]}, Counting(), **given).rows()
    assert row["status"] == "ok"


def test_a_strategy_may_have_options_of_its_own() -> None:
    rows = mt.sweep(["pp_dp:pp=2", "pp_dp:pp=4"], {"world_size": [4, 8]}, Counting(), **SIZES).rows()
    assert [(row["strategy"], row["pp"], row["world_size"]) for row in rows] == [
        (f"pp_dp:pp={pp}", pp, world_size) for world_size in (4, 8) for pp in (2, 4)
    ]
    assert rows[0]["step_time_s"] == mt.simulate("pp_dp", world_size=4, pp=2, **SIZES).step_time


def test_jobs_are_the_processes_of_the_sweep_s_own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def pool(num_processes: int, *_: Any) -> Executor:
        asked.append(num_processes)
        return Counting()

    monkeypatch.setattr("minitrain.search.sweeps.executors.OwnProcesses", pool)
    assert mt.sweep("ddp", {"world_size": [1, 2]}, jobs=3, **SIZES).rows()
    assert asked == [3]
    with pytest.raises(UsageError, match="give it or executor, not both"):
        mt.sweep("ddp", {"world_size": [1]}, Counting(), jobs=2)
    with pytest.raises(UsageError, match="jobs must be an integer of at least 1, got 0"):
        mt.sweep("ddp", {"world_size": [1]}, jobs=0)


def test_the_page_holds_every_row_and_the_pictures_of_the_fastest(tmp_path: Path) -> None:
    made = mt.sweep(["ddp", "single"], {"world_size": [1, 2, 4]}, Counting(), **SIZES)
    page = made.write_html(tmp_path / "page.html", pictures=2).read_text()
    data = json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])
    strategies = data["options"]["strategy"]
    assert [strategies["kinds"][code] for code in strategies["codes"]] == ["ddp", "single"] * 3
    assert data["columns"][:3] == ["strategy", "world_size", "step ms"]
    steps = [data["figures"]["step ms"][row] for row in data["named"]]
    assert steps[:4] == sorted(steps[:4])
    assert steps[4:] == [None, None]
    assert sorted(data["drawn"]) == ["0", "1"]
    assert data["drawn"]["0"]["picture"]["data"]["rows"]
    assert data["commands"][0] == "minitrain run ddp --layers 4 --batch 8 --world-size 4"
    assert [data["options"]["status"]["kinds"][code] for code in data["options"]["status"]["codes"]].count(
        "failed"
    ) == 2
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_page_cannot_be_broken_by_names(tmp_path: Path) -> None:
    made = mt.sweep("ddp", [{"world_size": 1, "microbatch_size": "</script><script>alert(1)"}], Counting(), **SIZES)
    assert "<script>alert" not in made.write_html(tmp_path / "page.html").read_text()


def test_what_is_left_of_a_sweep_is_guessed_from_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    clock = iter([0.0, 10.0, 10.0, 10.0])
    monkeypatch.setattr("minitrain.cli.output.time.monotonic", lambda: next(clock))
    progress: Any = SimpleNamespace(say=said.append)
    remaining = Counted(progress, lambda spent_s, *news: _how_far(spent_s, 5, *news))
    remaining(15, 30)
    assert said[0]() == "15 of 30 configurations, about 30 s left"
    remaining(30, 30)
    assert (len(said), said[0]()) == (1, "30 of 30 configurations")
    remaining(31, None)
    assert said[0]() == "31 of ? configurations"


def test_ctrl_c_says_which_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.search.sweeps.executors.OwnProcesses", lambda *_: Counting(most=2))
    command = ["sweep", "ddp", "--grid", "world_size=1,2,4,8,16", "--layers", "2"]
    result = CliRunner().invoke(app, [*command, "--results", str(tmp_path / "rows.jsonl")])
    num_rows = len((tmp_path / "rows.jsonl").read_text().splitlines())
    assert result.exit_code == 130
    assert f"minitrain: interrupted; {num_rows} new rows are kept in {tmp_path}" in result.stderr
    assert "nothing was kept; with --results FILE" in CliRunner().invoke(app, command).stderr


@pytest.mark.usefixtures("_on_shared_processes")
def test_the_command_prints_rates_and_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = ["sweep", "ddp", "--grid", "world_size=1,2", "--layers", "2", "--jobs", "1", "--html", str(page)]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "100"})
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["strategy", "world_size", "step", "ms", "peak", "GiB", "samples/s", "MFU", "%"]
    run = mt.simulate("ddp", world_size=2, num_layers=2)
    assert rows[0].split()[4:] == [f"{64 / run.step_time:,.0f}", f"{run.mfu * 100:.1f}"]  # type: ignore[operator]
    assert rows[-1] == f"wrote {page}"
    assert page.read_text().startswith("<!doctype html>")


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


async def overwriting(model: mt.Model) -> mt.Model:
    """Train, and hand in a weight that was made by hand."""
    await mt.strategies()["ddp"](model)
    model.set_final_weight(0, Weight(0, model.num_layers, 1))
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


@pytest.mark.few(1)
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
    with pytest.raises(mt.UsageError, match="line 1, is no row of results"):
        _sweep(results=other)


@pytest.mark.parametrize(("old", "new"), [("0", "1"), ('"step_time_s": ', '"step_time_s": -'), ("checksum", "sum")])
def test_a_row_that_was_changed_is_refused(tmp_path: Path, old: str, new: str) -> None:
    results = tmp_path / "results.jsonl"
    _sweep(results=results).rows()
    *lines, last = results.read_text().splitlines(keepends=True)
    results.write_text("".join([*lines, last.replace(old, new, 1)]))
    with pytest.raises(mt.UsageError, match="line 12, is no row of results as it was written; remove the line, or"):
        _sweep(results=results)


@pytest.mark.parametrize("text", ["dear diary", "x", '{"name": 1', "{} "])
def test_a_text_without_a_last_newline_is_no_torn_row(tmp_path: Path, text: str) -> None:
    other = tmp_path / "notes.txt"
    other.write_text(text)
    with pytest.raises(mt.UsageError, match="line 1, is no row of results"):
        _sweep(results=other)
    assert other.read_text() == text


def test_nothing_is_cut_off_before_rows_are_asked_for(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text('{"key": "to')
    made = _sweep(results=results)
    assert results.read_text() == '{"key": "to'
    made.rows()
    assert len(results.read_text().splitlines()) == 12


def test_rows_of_another_grid_stay_in_the_file(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    mt.sweep("zero1", {"world_size": [2]}, Counting(), results=results, **SIZES).rows()
    before = results.read_text()
    assert len(_sweep(results=results).rows()) == 12
    assert results.read_text().startswith(before)
    assert len(results.read_text().splitlines()) == 13


@pytest.mark.parametrize("place", [".", "there.txt/rows", "missing/rows"])
def test_a_place_where_no_file_can_be_is_found_out_before_anything_runs(tmp_path: Path, place: str) -> None:
    (tmp_path / "there.txt").touch()
    counting = Counting()
    with pytest.raises(mt.UsageError, match=r"cannot be (read|written)|is no file"):
        _sweep(counting, results=tmp_path / place).rows()
    with pytest.raises(mt.UsageError, match="cannot be written"):
        _sweep(counting).write_csv(tmp_path / place)
    assert counting.num_configurations == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is writable to root")
def test_a_folder_that_is_read_only_is_found_out_before_anything_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    counting = Counting()
    with pytest.raises(mt.UsageError, match="cannot be written: Permission denied"):
        _sweep(counting, results=tmp_path / "results.jsonl").rows()
    assert counting.num_configurations == 0


def test_a_full_disk_is_said_and_loses_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"

    class Full(io.FileIO):
        def write(self, line: Any, /) -> int:
            return super().write(line[:20] if self.tell() > 1000 else line)

    monkeypatch.setattr(results, "_opened", lambda path: Full(path, "ab"))
    with pytest.raises(mt.UsageError, match="cannot be written: No space left"):
        _sweep(results=path).rows()
    monkeypatch.undo()
    num_whole = path.read_text().count("\n")
    counting = Counting()
    assert len(_sweep(counting, results=path).rows()) == 12
    assert counting.num_configurations == 12 - num_whole < 12


def test_a_table_that_cannot_be_made_leaves_no_file_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _sweep(Counting(1)).write_csv(tmp_path / "table.csv")
    assert not list(tmp_path.iterdir())


def test_what_breaks_a_strict_rule_is_a_failed_row() -> None:
    rows = mt.sweep(["ddp", overwriting], {"strict": [False, True]}, Counting(), world_size=1, **SIZES).rows()
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "failed"]
    assert "LawError" in rows[3]["error"]
    assert rows[0]["held_outside_bytes"] is None
    assert rows[2]["held_outside_bytes"] > 0


def test_folded_sweeps_are_not_strict() -> None:
    with pytest.raises(mt.UsageError, match="fold=True does not go with strict"):
        mt.sweep("ddp", GRID, fold=True, strict=True)
    rows = mt.sweep("ddp", {"strict": [False, True]}, Counting(), fold=True).rows()
    assert [row["status"] for row in rows] == ["ok", "failed"]
    assert "fold=True does not go with strict" in rows[1]["error"]


def test_an_executor_within_a_running_loop_works() -> None:
    async def notebook() -> list[dict[str, Any]]:
        return _sweep().rows()

    assert asyncio.run(notebook()) == _sweep().rows()


def test_a_configuration_that_stands_twice_in_the_grid_is_done_once() -> None:
    counting = Counting()
    assert len(mt.sweep("ddp", {"world_size": [2, 2]}, counting, **SIZES).rows()) == 1
    assert counting.num_configurations == 1


def test_what_comes_twice_is_counted_once() -> None:
    seen: list[tuple[int, int | None]] = []
    made = mt.sweep(
        ["ddp", "ddp"], {"world_size": [2, 2]}, Counting(), progress=lambda *counts: seen.append(counts), **SIZES
    )
    assert made.total == 1
    assert len(made.rows()) == 1
    assert seen == [(1, 1)]


def test_one_and_true_are_two_values() -> None:
    rows = mt.sweep("ddp", {"world_size": [1, True]}, Counting(), **SIZES).rows()
    assert [row["status"] for row in rows] == ["ok", "failed"]


@pytest.mark.parametrize("values", [np.array([1, 2]), (1, 2), range(1, 3), [np.int64(1), 2]], ids=str)
def test_an_axis_may_be_any_sequence_of_numbers(values: Any, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    rows = mt.sweep("ddp", {"world_size": values}, Counting(), results=results, **SIZES).rows()
    assert [row["world_size"] for row in rows] == [1, 2]
    assert mt.sweep("ddp", [{"world_size": np.int64(2)}], Counting(0), results=results, **SIZES).rows() == rows[1:]


@pytest.mark.parametrize("value", ["8", None, 1.5, [1, 2], object(), lambda: 8], ids=lambda value: type(value).__name__)
def test_a_value_of_the_wrong_type_is_a_failed_row(value: Any, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    grid = {"world_size": [value, 2], "num_layers": [1]}
    wrong, right = mt.sweep("ddp", grid, Counting(), global_batch_size=2, results=results).rows()
    assert wrong["error"].startswith("UsageError: world_size must be an integer of at least 1")
    assert (wrong["status"], right["status"]) == ("failed", "ok")
    assert len(results.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "must vary at least one parameter"),
        ([], "must hold at least one configuration"),
        (None, r"grid must be of type Mapping"),
        ("world_size=8", "a dict of lists, or an iterable of dicts"),
        ({"strategy": ["ddp"]}, "give a list of strategies"),
        ({8: [1]}, "must have names, got 8"),
        ({"world_size": {1, 2}}, "world_size must be a list of at least one value"),
    ],
)
def test_a_grid_that_is_none_is_refused_at_once(grid: Any, message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.sweep("ddp", grid)


@pytest.mark.parametrize("grid", [[{"world_size": 1}, 8], iter([{"world_size": 1}, 8])], ids=["list", "iterator"])
def test_a_configuration_that_is_none_is_named(grid: Any) -> None:
    with pytest.raises(mt.UsageError, match="configuration 1 of the grid must be a dict of parameters, got 8"):
        mt.sweep("ddp", grid, Counting(), **SIZES).rows()


@pytest.mark.parametrize(("strategies", "message"), [("ddpp", "did you mean ddp"), (8, "must be an async function")])
def test_a_strategy_that_is_none_is_refused_at_once(strategies: Any, message: str) -> None:
    for given in (strategies, ["zero3", strategies]):
        with pytest.raises(mt.StrategyError, match=message):
            mt.sweep(given, GRID)
    with pytest.raises(mt.UsageError, match="at least one strategy"):
        mt.sweep([], GRID)


def _meeting(times: int) -> Any:
    async def strategy(model: mt.Model) -> mt.Model:
        for _ in range(times):
            await model.barrier()
        return model

    return strategy


def test_two_strategies_of_one_name_are_not_taken_for_one() -> None:
    with pytest.raises(mt.UsageError, match=r"two strategies are called \S*test_sweep:_meeting.<locals>.strategy"):
        mt.sweep([_meeting(1), _meeting(2)], GRID)


def test_partials_are_told_apart_by_their_arguments() -> None:
    zero3 = mt.strategies()["zero3"]
    halves = [partial(zero3, microbatch_size=size) for size in (1, 2)]
    rows = mt.sweep(halves, {"world_size": [2]}, Counting(), **SIZES).rows()
    assert [row["strategy"] for row in rows] == ["zero3", "zero3"]
    assert rows[0]["num_events"] > rows[1]["num_events"]


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


@pytest.mark.usefixtures("_on_shared_processes")
def test_the_command_prints_the_fastest_and_counts(tmp_path: Path) -> None:
    table, results = tmp_path / "t.csv", tmp_path / "r.jsonl"
    files = ("--csv", str(table), "--results", str(results))
    shown = _command("ddp", "gpipe", "-g", "layers=3,4", "-g", "world_size=2", "--network", "flat", *files)
    assert shown.exit_code == 0, shown.output
    assert "4 configurations: 3 ok, 0 out of memory, 1 failed" in shown.output
    assert "the first failure: gpipe: StrategyError" in shown.output
    assert len(table.read_text().splitlines()) == 5
    assert len(results.read_text().splitlines()) == 4


@pytest.mark.ci
def test_the_command_prints_json() -> None:
    rows = json.loads(_command("ddp", "-g", "world_size=1,2", "--layers", "2", "--json").stdout)
    assert [row["world_size"] for row in rows] == [1, 2]


@pytest.mark.usefixtures("_on_shared_processes")
def test_the_command_fails_if_everything_does() -> None:
    shown = _command("gpipe", "-g", "layers=3")
    assert shown.exit_code == 1
    assert "0 ok" in shown.output


@pytest.mark.usefixtures("_on_shared_processes")
def test_the_command_is_strict_if_asked() -> None:
    row, *_ = json.loads(_command("ddp", "-g", "world_size=1", "--layers", "2", "--strict", "--json").stdout)
    assert row["strict"] is True
    assert row["held_outside_bytes"] > 0
    shown = _command("ddp", "-g", "world_size=1", "--strict", "--fold")
    assert shown.exit_code == 2
    assert shown.stderr.count("fold=True does not go with strict") == 1


def test_the_command_finds_out_first_whether_files_can_be_written(tmp_path: Path) -> None:
    for option in ("--results", "--csv"):
        shown = _command("ddp", "-g", "world_size=1", option, str(tmp_path / "missing" / "file"))
        assert shown.exit_code == 2
        assert "cannot be written: No such file or directory; name another file" in shown.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("grid", [("world_size",), ("a b=1",), ("layers=1,",), ("layers=1", "num_layers=2")])
def test_the_command_refuses_a_grid_that_is_none(grid: tuple[str, ...]) -> None:
    shown = _command("ddp", *(part for text in grid for part in ("-g", text)))
    assert shown.exit_code == 2
    assert "--grid" in shown.stderr
