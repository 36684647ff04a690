"""`mt.train` and `minitrain train`: it learns, goes on where it was killed, measures, and ends cleanly when wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import minitrain as mt
from minitrain.training.program import record

WRONG = Path(__file__).parent / "wrong_programs.py"
SOON_S = 30.0
"""A limit for tests on machines that do much else; alone, a wrong program ends within 3 s, or 6 where one hangs."""


MARK = "MINITRAIN_TEST"


def marked(mark: str) -> dict[str, str]:
    """Return an environment that the processes of a run inherit, by which they are found."""
    return {**os.environ, MARK: mark}


def left(mark: str) -> list[str]:
    """Return the processes that run with a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


def test_zero3_learns_bytes_and_is_measured() -> None:
    seen: list[int] = []
    run = mt.train("zero3", world_size=2, steps=60, watch=lambda step, _: seen.append(step))
    assert run.losses[0] > 5.4
    assert sum(run.losses[-5:]) / 5 < 3.2
    assert seen == list(range(60))
    assert len(run.step_times) == 60
    assert run.predicted is not None
    rows = [[(event.typ, event.layer, event.samples) for event in log] for log in run.logs]
    assert rows == [[(event.typ, event.layer, event.samples) for event in log] for log in run.predicted.logs]
    assert run.step_time == pytest.approx(sorted(run.step_times[-25:])[12], rel=1e-6)
    for log in run.logs:  # what was not launched is one thing after another
        ends = [event.time + event.duration for event in log]
        assert all(event.time >= end - 1e-6 for event, end in zip(log[1:], ends, strict=False))
    assert min(run.peak_memory_per_rank) > 0
    assert run.summary()["losses"] == list(run.losses)


def test_all_ranks_leave_a_collective_after_the_last_has_come() -> None:
    run = mt.train("ddp", world_size=2, steps=5)
    assert run.predicted is not None
    for events in zip(*run.logs, strict=True):
        if events[0].typ == "all_reduce":
            assert events[0].time == events[1].time
            waits = [event.waited_for for event in events]
            assert waits.count(None) >= 1


def test_a_run_that_was_killed_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    whole = mt.train("zero3", world_size=2, steps=24, checkpoints=tmp_path / "whole", checkpoint_every=5)
    command = [*minitrain(), "train", "zero3", "--world-size", "2", "--steps", "24", "--checkpoint-every", "5"]
    folder = tmp_path / "killed"
    environment = marked(str(tmp_path))
    killed = subprocess.Popen([*command, "--checkpoints", str(folder)], stdout=subprocess.DEVNULL, env=environment)
    try:
        wait_for((folder / "step-00000010" / "minitrain.json").exists)
    finally:
        killed.kill()
        killed.wait()
    again = mt.train("zero3", world_size=2, steps=24, checkpoints=folder, checkpoint_every=5)
    assert again.first_step >= 10 or again.losses == whole.losses
    assert again.losses == whole.losses[again.first_step :]
    wait_for(lambda: not left(str(tmp_path)))


def test_another_strategy_goes_on_from_the_same_checkpoint(tmp_path: Path) -> None:
    mt.train("zero3", world_size=2, steps=4, checkpoints=tmp_path, dtype="float64")
    ddp = mt.train("ddp", world_size=4, steps=8, checkpoints=tmp_path, dtype="float64")
    straight = mt.train("ddp", world_size=1, steps=8, dtype="float64")
    assert ddp.first_step == 4
    assert ddp.losses == pytest.approx(straight.losses[4:], abs=1e-9)


def test_chains_of_launched_collectives_train_the_same() -> None:
    run = mt.train(f"{WRONG}:chained", world_size=4, steps=4, dtype="float64")
    assert run.losses == pytest.approx(mt.train("ddp", world_size=1, steps=4, dtype="float64").losses, abs=1e-12)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    mt.train("ddp", world_size=2, steps=2, checkpoints=tmp_path)
    with pytest.raises(mt.UsageError, match="has 2 steps already; ask for more in all, got 2"):
        mt.train("ddp", world_size=2, steps=2, checkpoints=tmp_path)
    with pytest.raises(mt.UsageError, match=r"is of another run .seed 0 there and 1 here"):
        mt.train("ddp", world_size=2, steps=4, seed=1, checkpoints=tmp_path)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("killed", mt.TrainingError, "rank 1 was killed by SIGKILL"),
        ("exits", mt.TrainingError, "rank 1 ended with exit code 7"),
        ("leaves", mt.TrainingError, "SystemExit"),
        ("raises", KeyError, "oops"),
        ("skips", mt.StrategyError, "its operation 0 is the end of its step, and was load_weights of layer 0"),
        ("meets_first", mt.StrategyError, "its operation 0 is barrier among ranks .0, 1., and was load_weights"),
        ("meets_last", mt.StrategyError, "is barrier among ranks .0, 1., and was the end of its step"),
        ("swaps", mt.StrategyError, r"all_reduce of WeightGrad.layer 0.* and was all_reduce of WeightGrad.layer 3"),
        ("returns_nothing", mt.StrategyError, "must return the model of its rank, got None"),
    ],
)
def test_a_wrong_rank_ends_all_and_is_named(name: str, error: type[Exception], message: str) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=message) as found:
        mt.train(f"{WRONG}:{name}", world_size=2, steps=2)
    assert time.monotonic() - began < SOON_S
    if name == "raises":
        assert any("wrong_programs.py:" in note for note in found.value.__notes__)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sleeps", "rank 1 has done nothing .* after loss of layer 4, the next is backward of layer 3"),
        ("spins", "rank 1 has done nothing .* after loss of layer 4, the next is backward of layer 3"),
        ("sleeps_in_loop", "rank 1 has done nothing .* at its beginning, the next is load_weights of layer 0"),
        ("stops", "rank 1 has not answered"),
    ],
)
def test_a_rank_that_hangs_ends_all_and_is_named(name: str, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(mt.TrainingError, match=message):
        mt.train(f"{WRONG}:{name}", world_size=2, steps=2, patience=2)
    assert time.monotonic() - began < SOON_S


def test_a_rank_may_print_megabytes() -> None:
    said: list[str] = []
    run = mt.train(f"{WRONG}:prints", world_size=2, steps=2, say=said.append)
    assert len(run.losses) == 2
    assert said[-1] == "[rank 1] has printed more than 64 KiB; the rest is left out"
    assert sum(map(len, said)) < 2**17


def test_wrong_programs_are_found_before_a_process_starts() -> None:
    with pytest.raises(mt.DeadlockError):
        mt.train(f"{WRONG}:deadlocks", world_size=2)
    with pytest.raises(mt.CollectiveMismatchError):
        mt.train(f"{WRONG}:mismatches", world_size=2)
    with pytest.raises(mt.UsageError, match=r"several tasks of its own.*use model.launch"):
        mt.train(f"{WRONG}:has_tasks", world_size=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "mpi"}, "backend must be gloo, got 'mpi'"),
        ({"dtype": "int8"}, "dtype must be float32 or float64, got 'int8'"),
        ({"steps": 0}, "steps"),
        ({"data": "/no/such/file"}, "No such file"),
        ({"data": ["short"]}, "at least 64 bytes to learn from, got 5"),
        ({"workload": "dense"}, "real processes train dense layers and transformers"),
    ],
)
def test_bad_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.train("ddp", **given)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_ending_the_launcher_ends_the_ranks(sent: signal.Signals, tmp_path: Path) -> None:
    command = [*minitrain(), "train", "ddp", "--world-size", "2", "--steps", "100000"]
    running = subprocess.Popen(command, env=marked(str(tmp_path)), stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(left(str(tmp_path))) >= 3)  # the command and two ranks
        time.sleep(2)
    finally:
        running.send_signal(sent)
        running.wait(20)
    wait_for(lambda: not left(str(tmp_path)))


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    where = ["--master-addr", "127.0.0.1", "--master-port", "29653"]
    told = ["-m", "minitrain", "train", "zero3", "--steps", "4", "--json"]
    nodes = [
        subprocess.Popen([*command, "--node-rank", str(node), *where, *told], stdout=subprocess.PIPE, cwd=tmp_path)
        for node in range(2)
    ]
    said = [node.communicate(timeout=200)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert json.loads(said[0])["losses"] == list(mt.train("zero3", world_size=2, steps=4).losses)
    assert said[1] == b""


def test_the_command_prints_losses_and_figures(tmp_path: Path) -> None:
    page, log = tmp_path / "page.html", tmp_path / "run.jsonl"
    command = [
        *minitrain(),
        "train",
        "gpipe",
        "--world-size",
        "2",
        "--steps",
        "5",
        "--html",
        str(page),
        "--out",
        str(log),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "gpipe on 2 processes (gloo" in said
    assert "loss 5.8" in said
    assert page.stat().st_size > 10_000
    assert mt.load_run(log).step_time > 0


def test_programs_are_the_same_wherever_they_are_simulated() -> None:
    digests = {record("fsdp", {"world_size": 4, "num_layers": 4}).digest for _ in range(2)}
    assert len(digests) == 1
    assert record("ddp", {"world_size": 4, "num_layers": 4}).digest not in digests


def minitrain() -> list[str]:
    """Return the command line's first words."""
    return [sys.executable, "-m", "minitrain"]


def wait_for(condition: Any, limit_s: float = 60.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
