"""Sweeps on Dask: the rows of one process, with strategies of one's own, and none lost with a worker."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dask
import pytest
from distributed import Client, KilledWorker, LocalCluster
from distributed.nanny import WorkerProcess
from distributed.utils import get_mp_context
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.search.sweeps.executors import DaskWorkers
from minitrain.search.sweeps.own_processes import LostWorkersWarning
from tests.search.sweeps.own_strategies import GRID, SIZES, alone, write_strategies

_FEW_STARTS = {
    "distributed.scheduler.allowed-failures": 1,
    "distributed.worker.multiprocessing-method": "forkserver",  # spawned, each takes a second to import all
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    local: Any = LocalCluster  # it has no types
    connected: Any = Client
    context: Any = get_mp_context
    with dask.config.set(_FEW_STARTS):
        context().set_forkserver_preload(["distributed", "minitrain.search.sweeps.batches", "minitrain.run.simulation"])
        with (
            local(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
            connected(cluster) as client,
        ):
            yield client


def _executor(client: Any) -> Any:
    return client.get_executor()


def _address(client: Client) -> str:
    scheduler: Any = client.scheduler
    return str(scheduler.address)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    # Dask's nanny replaces no worker that is lost before it has seen it begin
    return write_strategies(tmp_path, lives_s=0.5)


def test_a_client_its_executor_and_its_address_give_the_rows_of_one_process(client: Client) -> None:
    expected = alone(["ddp", "zero3"], GRID)
    seen: list[tuple[int, int | None]] = []
    for executor in (client, _executor(client), _address(client)):
        made = mt.sweep(["ddp", "zero3"], GRID, executor, progress=lambda *counts: seen.append(counts), **SIZES)
        assert made.rows() == expected
    assert seen == [(done, 12) for done in range(1, 13)] * 3


def test_files_of_strategies_are_sent_with_those_beside_them(client: Client, file: Path) -> None:
    grid = {"world_size": [1, 2, 4]}
    rows = mt.sweep(f"{file}:mine", grid, client, **SIZES).rows()
    assert rows == alone(f"{file}:mine", grid)
    assert rows[2]["error"] == f"ValueError: 42 in {file}"


def test_functions_of_modules_that_are_not_installed_are_sent(client: Client) -> None:
    assert mt.sweep(failing, {"world_size": [1, 2]}, client, **SIZES).rows() == alone(failing, {"world_size": [1, 2]})


def test_the_profiler_of_workers_changes_no_strict_peak(client: Client) -> None:
    sizes: Any = {"num_layers": 50, "global_batch_size": 2, "strict": True, "check": False}
    rows = mt.sweep(lingering, {"world_size": [1, 2]}, client, **sizes).rows()
    assert [row["peak_memory_elements"] for row in rows] == [2 * 4096**2] * 2


async def lingering(model: mt.Model) -> mt.Model:
    """Hold two tensors at a time, in a function in which other threads have their turn."""

    def hold(layer: int) -> None:
        weight, _ = model.load_weights(layer)
        time.sleep(1e-3)
        del weight

    for layer in range(model.num_layers):
        hold(layer)
        await model.barrier()
    return model


async def failing(model: mt.Model) -> mt.Model:
    raise ValueError(f"{model.world_size} {helper()}")


def helper() -> str:
    return "helped"


def test_a_killed_worker_loses_no_row_and_is_said_once(client: Client, file: Path, tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"world_size": [1, 2], "deadly": [True]}
    results = tmp_path / "rows.jsonl"
    with pytest.warns(LostWorkersWarning, match="a worker was lost") as said:
        rows = mt.sweep(f"{file}:mine", grid, client, results=results, **SIZES).rows()
    assert len(said) == 1
    assert (tmp_path / "mark").exists()
    assert rows == alone(f"{file}:mine", grid)
    assert len(results.read_text().splitlines()) == 2


def test_a_configuration_that_kills_every_worker_is_a_failed_row(client: Client, file: Path) -> None:
    with pytest.warns(LostWorkersWarning, match="a worker was lost"):
        rows = mt.sweep(f"{file}:always_deadly", {"world_size": [1, 2]}, client, **SIZES).rows()
    assert "WorkerLostError: every worker that simulated this was lost" in rows[1]["error"]
    assert "WorkerLostError" not in str(rows[0]["error"])


def test_restarted_workers_lose_no_row(
    client: Client, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill: Any = WorkerProcess.kill  # it waits 4 s for the worker that waits
    monkeypatch.setattr(WorkerProcess, "kill", lambda process, **_: kill(process, timeout=0.5))
    made = mt.sweep(f"{file}:waiting", {"world_size": [1, 2]}, client, **SIZES)
    rows = iter(made)
    next(rows)
    client.restart()
    (tmp_path / "go").touch()
    with pytest.warns(LostWorkersWarning, match="were restarted; what was under way is done again") as said:
        list(rows)
    assert len(said) == 1
    assert made.rows() == alone(f"{file}:waiting", {"world_size": [1, 2]})


class _Restarting:
    """A client whose first answer is that all was restarted, and whose second that two workers ended."""

    status = "running"

    def __init__(self, last_worker: str) -> None:
        worker: Any = SimpleNamespace(address=last_worker)
        self._answers: list[Any] = [_cancelled(), KilledWorker("call", worker, 1), 42]

    def nthreads(self) -> dict[str, int]:
        return {"tcp://a:1": 1, "tcp://b:1": 1}

    def get_events(self, _topic: str) -> list[Any]:
        return []

    def submit(self, *_call: Any, **_options: Any) -> Any:
        return _Answer(self._answers.pop(0))


class _Answer:
    """A handle that is done."""

    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome

    def add_done_callback(self, callback: Callable[[_Answer], None]) -> None:
        callback(self)

    def cancelled(self) -> bool:
        return isinstance(self._outcome, CancelledError)

    def result(self) -> Any:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def _cancelled() -> BaseException:
    error: Any = CancelledError("call")
    error.reason = "scheduler-restart"
    return cast("BaseException", error)


@pytest.mark.parametrize(("last_worker", "is_lost"), [("tcp://b:1", False), ("tcp://new:1", True)])
def test_what_a_restart_ends_late_is_no_loss(last_worker: str, is_lost: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        workers = DaskWorkers(_Restarting(last_worker), [])
        assert workers.submit(int).result(timeout=5) == 42
        workers.close()
    said = [str(warning.message) for warning in caught]
    assert ["restarted" in text for text in said] == [True, False][: 1 + is_lost], said


@pytest.mark.ci
def test_a_search_on_dask_finds_what_one_process_finds(client: Client, file: Path) -> None:
    given: dict[str, Any] = {"world_size": 2, "global_batch_size": 4, "prune": "none"}
    strategies = ["fsdp", f"{file}:mine"]
    expected = mt.tune("tiny", strategies=strategies, jobs=1, **given).rows
    with pytest.warns(LostWorkersWarning, match="a worker was lost"):
        found = mt.tune("tiny", strategies=[*strategies, f"{file}:always_deadly"], executor=client, **given)
    *rows, deadly = found.rows
    assert rows == expected
    assert deadly["reason"].startswith("WorkerLostError: every worker that simulated this was lost")


def test_the_commands_run_on_dask(client: Client) -> None:
    command = ["sweep", "ddp", "-g", "world_size=1,2", "--layers", "2", "--dask", _address(client), "--json"]
    rows = json.loads(CliRunner().invoke(app, command).stdout)
    assert [row["world_size"] for row in rows] == [1, 2]
    search = ["tune", "fsdp", "--model", "tiny", "--world-size", "2", "--batch", "4", "--dask", _address(client)]
    assert CliRunner().invoke(app, search).exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dask", "tcp://a:1", "--ray", "auto"], "--dask and --ray say where to run; give one of them"),
        (["--ray", "auto", "--jobs", "2"], "--ray and --jobs say where to run; give one of them"),
        (["--dask", "host:8786"], "--dask takes the address of a scheduler, such as tcp://host:8786, got 'host:8786'"),
        (["--time-limit", "0"], "time_limit_s must be a positive number of seconds"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], message: str) -> None:
    shown = CliRunner().invoke(app, ["sweep", "ddp", "-g", "world_size=1", *options])
    assert (shown.exit_code, message in shown.stderr) == (2, True)


def test_an_address_where_nobody_answers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.search.sweeps.executors._CONNECT_S", 0.2)
    with pytest.raises(UsageError, match=r"^no Dask scheduler answers at tcp://127.0.0.1:9; start one"):
        mt.sweep("ddp", {"world_size": [1]}, "tcp://127.0.0.1:9").rows()


def test_a_missing_extra_is_said_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r'`pip install "minitrain\[dask\]"` installs it'):
        mt.sweep("ddp", {"world_size": [1]}, "tcp://127.0.0.1:9").rows()


@pytest.mark.parametrize("executor", ["127.0.0.1:8786", 8, object])
def test_what_is_no_executor_is_refused_before_anything_runs(executor: Any) -> None:
    with pytest.raises(UsageError, match=r"executor must be a concurrent.futures executor, a dask"):
        mt.sweep("ddp", {"world_size": [1]}, executor)
