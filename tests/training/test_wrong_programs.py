"""Whatever a rank does wrong, all end soon, it is named, and nothing is left: no process, port or shared memory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import minitrain as mt
from minitrain.training import launcher, ranks
from minitrain.training.launcher import meeting_place
from minitrain.training.measured import LossWarning
from tests.training.processes import MARK, left, marked, minitrain, wait_for

WRONG = Path(__file__).parent / "wrong_programs.py"
MINE = str(os.getpid())
"""The mark of processes that these tests have started."""
SOON_S = 90.0
"""A limit for tests on machines that do much else; alone, a wrong program ends within 2 s, or 5 where one hangs."""

DIFFERS = "rank [01] does something else than in the simulation: its operation"
IDLE = "rank 1 has done nothing .* after loss of layer 4, the next is backward of layer 3"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Require that a run ends soon, and that nothing is left of it."""
    met: list[str] = []

    @contextmanager
    def noted() -> Iterator[str]:
        with meeting_place() as address:
            met.append(address)
            yield address

    monkeypatch.setattr(ranks, "meeting_place", noted)
    monkeypatch.setenv(MARK, MINE)
    shared, began = {*Path("/dev/shm").iterdir()}, time.monotonic()
    yield
    assert time.monotonic() - began < SOON_S
    ours = {str(parent.popen.pid) for parent in launcher._PARENTS.values()}
    wait_for(lambda: {*left(MINE)} <= ours, limit_s=5.0)  # what has forked them is just ending
    assert not [path for path in {*Path("/dev/shm").iterdir()} - shared if "torch" in path.name or "gloo" in path.name]
    for address in met:
        host, _, port = address.rpartition(":")
        with socket.socket() as caller:
            assert caller.connect_ex((host, int(port))) != 0


SLOW = pytest.mark.slow  # another way to the same end is tried beside it


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("killed", mt.TrainingError, "rank 1 was killed by SIGKILL"),
        ("forker_killed", mt.TrainingError, "ended with the process that forks ranks, which was killed"),
        pytest.param("aborts", mt.TrainingError, "rank 1 was killed by SIGABRT", marks=SLOW),
        pytest.param("reads_nowhere", mt.TrainingError, "rank 1 was killed by SIGSEGV", marks=SLOW),
        pytest.param(
            "closes_sockets", mt.TrainingError, "rank 1 (was killed by SIGABRT|ended with exit code 1)", marks=SLOW
        ),
        pytest.param("leaves_child", mt.TrainingError, "rank 1 was killed by SIGKILL", marks=SLOW),
        ("exits", mt.TrainingError, "rank 1 ended with exit code 7"),
        pytest.param("exits_early", mt.TrainingError, "rank 1 ended with exit code 0 in step 0", marks=SLOW),
        ("leaves", mt.TrainingError, r"on rank 1 of a real run, step 0:(.|\n)*SystemExit"),
        ("stops", mt.TrainingError, "rank 1 was stopped by a signal in step 0"),
        ("raises", KeyError, "oops"),
        pytest.param("asks", EOFError, "EOF when reading a line", marks=SLOW),
        pytest.param("recurses", RecursionError, "maximum recursion depth", marks=SLOW),
        pytest.param("fills_memory", RuntimeError, "can't allocate memory", marks=SLOW),
        pytest.param("ends_torch", ValueError, "process group has not been initialized", marks=SLOW),
        ("skips", mt.StrategyError, "its operation 0 is the end of its step, and was load_weights of layer 0"),
        ("meets_first", mt.StrategyError, "its operation 0 is barrier among ranks .0, 1., and was load_weights"),
        pytest.param(
            "meets_last", mt.StrategyError, "is barrier among ranks .0, 1., and was the end of its step", marks=SLOW
        ),
        ("swaps", mt.StrategyError, r"all_reduce of WeightGrad.layer 0.* and was all_reduce of WeightGrad.layer 3"),
        pytest.param("misses_collective", mt.StrategyError, DIFFERS, marks=SLOW),
        pytest.param("repeats_collective", mt.StrategyError, DIFFERS, marks=SLOW),
        pytest.param("by_chance", mt.StrategyError, DIFFERS, marks=SLOW),
        ("by_clock", mt.StrategyError, DIFFERS),
        ("wrong_peer", mt.StrategyError, "0 is send of .* to rank 1 with tag 'a', and was send of .* to rank 0"),
        pytest.param(
            "crossed_sends", mt.StrategyError, "0 is send .* with tag 'b', and was send of .* with tag 'a'", marks=SLOW
        ),
        pytest.param(
            "wrong_tag", mt.StrategyError, "0 is send .* with tag 'b', and was send of .* with tag 'a'", marks=SLOW
        ),
        pytest.param(
            "sends_more",
            mt.StrategyError,
            "1 is send .* with tag 'b', and was recv from rank 0 with tag 'a'",
            marks=SLOW,
        ),
        ("receives_more", mt.StrategyError, "2 is recv from rank 0 with tag 'b', and was load_weights of layer 0"),
        ("sends_other", mt.StrategyError, r"send of .*\{32..47\}.* and was send of .*\{32..63\}"),
        ("returns_nothing", mt.StrategyError, "must return the model of its rank, got None"),
    ],
)
def test_a_wrong_rank_ends_all_and_is_named(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as found:
        mt.train(f"{WRONG}:{name}", world_size=2, steps=2)
    if error in (KeyError, EOFError, RecursionError):
        assert any("wrong_programs.py:" in note for note in found.value.__notes__)
        assert "on rank 1 of a real run, step 0" in found.value.__notes__


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sleeps", IDLE),
        pytest.param("spins", IDLE, marks=SLOW),
        pytest.param("waits_for_lock", IDLE, marks=SLOW),
        pytest.param("waits_for_child", IDLE, marks=SLOW),
        pytest.param(
            "sleeps_in_loop",
            "rank 1 has done nothing .* at its beginning, the next is load_weights of layer 0",
            marks=SLOW,
        ),
        ("lets_nothing_run", "rank 1 has not answered for"),
    ],
)
def test_a_rank_that_hangs_ends_all_and_is_named(name: str, message: str) -> None:
    with pytest.raises(mt.TrainingError, match=message):
        mt.train(f"{WRONG}:{name}", world_size=2, steps=2, patience=2)


@pytest.mark.ci
def test_a_rank_may_print_megabytes() -> None:
    said: list[str] = []
    run = mt.train(f"{WRONG}:prints", world_size=2, steps=2, say=said.append)
    assert len(run.losses) == 2
    assert said[-1] == "[rank 1] has printed more than 64 KiB; the rest is left out"
    assert sum(map(len, said)) < 2**17


@pytest.mark.ci
def test_a_rank_may_read_a_file_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"order.txt"):
        mt.train(f"{WRONG}:reads_file", world_size=2, steps=2)
    Path("order.txt").write_text("0 2 3")
    assert len(mt.train(f"{WRONG}:reads_file", world_size=2, steps=2).losses) == 2


@pytest.mark.ci
def test_a_step_begins_with_what_the_one_before_has_handed_in() -> None:
    assert len(mt.train(f"{WRONG}:hands_in_less", world_size=2, steps=1).losses) == 1
    with pytest.raises(mt.LawError, match="hands in less than it loads: no layer 0 on rank 1; hand in what is loaded"):
        mt.train(f"{WRONG}:hands_in_less", world_size=2, steps=2)


@pytest.mark.ci
def test_losses_that_are_no_numbers_are_said_once() -> None:
    with pytest.warns(LossWarning, match="the loss of step 1 is nan") as said:
        mt.train(f"{WRONG}:diverges", world_size=2, steps=4)
    assert len(said) == 1


def test_wrong_programs_are_found_before_a_process_starts() -> None:
    with pytest.raises(mt.DeadlockError):
        mt.train(f"{WRONG}:deadlocks", world_size=2)
    with pytest.raises(mt.CollectiveMismatchError):
        mt.train(f"{WRONG}:mismatches", world_size=2)


@pytest.mark.ci
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=SLOW), signal.SIGINT])
def test_ending_the_launcher_ends_the_ranks(sent: signal.Signals, tmp_path: Path) -> None:
    command = [*minitrain(), "train", "ddp", "--world-size", "2", "--steps", "100000"]
    running = subprocess.Popen(command, env=marked(str(tmp_path / "x")), stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(left(str(tmp_path / "x"))) >= 5)  # the command, what forks, and two ranks
        time.sleep(2)
    finally:
        running.send_signal(sent)
        running.wait(20)
    wait_for(lambda: not left(str(tmp_path / "x")))
