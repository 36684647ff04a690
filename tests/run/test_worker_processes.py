"""Worker processes: Ctrl-C is left to the process that waits for them, and they end with it."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from minitrain.errors import MinitrainError
from minitrain.run.worker_processes import SparedProcess, WorkerEndedError, WorkerProcesses


def _blocked() -> set[int]:
    return {int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


@pytest.fixture(scope="module")
def processes() -> Iterator[WorkerProcesses]:
    with closing(WorkerProcesses(2, most_calls=20)) as processes:
        yield processes


def test_a_worker_is_born_with_ctrl_c_blocked_and_its_caller_is_not(processes: WorkerProcesses) -> None:
    assert signal.SIGINT in next(processes.map(_within, [_blocked]))
    assert signal.SIGINT not in _blocked()


def _within(function: Callable[[], Any]) -> Any:
    return function()


def test_results_come_in_order_and_an_error_in_its_place(processes: WorkerProcesses) -> None:
    found = processes.map(int, ["1", "2", "x", "4"])
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(ValueError, match="invalid literal") as error:
        next(found)
    assert "in _made" in str(error.value.__cause__)  # where it was raised
    assert list(processes.map(len, ["", "a"])) == [0, 1]


def test_what_cannot_be_sent_is_told(processes: WorkerProcesses) -> None:
    with pytest.raises(AttributeError, match="local object"):
        list(processes.map(lambda _: 1, [1]))
    with pytest.raises(MinitrainError, match="_OddError: 1 and 2"):
        list(processes.map(_fail_oddly, [1]))


class _OddError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def _fail_oddly(number: int) -> None:
    raise _OddError(number, 2)


def test_a_process_that_ends_costs_its_own_call_alone(processes: WorkerProcesses) -> None:
    calls = [(place, (function, place)) for place, function in enumerate([os._exit, abs, abs])]
    outcomes = dict(processes.outcomes(calls))
    assert isinstance(outcomes[0].error, WorkerEndedError)
    assert outcomes[0].is_begun
    assert [outcomes[1].get(), outcomes[2].get()] == [1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_process_that_does_nothing_at_its_limit_is_ended_and_one_with_room_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minitrain.run.worker_processes.LOOK_S", 0.02)
    with closing(WorkerProcesses(1, memory_bytes=2**36)) as processes:
        processes._stuck.after_s = 0.05
        rooms = {"none": 0, "some": 2**22}
        found = dict(processes.outcomes((name, (_works_with, room)) for name, room in rooms.items()))
    assert found["some"].get() == 2**22
    assert isinstance(found["none"].error, WorkerEndedError)
    assert "out of the 65536 MiB that it may take" in str(found["none"].error)


def _works_with(room: int) -> int:
    """Let this process have no more than some bytes, and use its processor for a while."""
    import resource

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + room, 2**36))
    began = time.process_time()
    while time.process_time() < 0.2 + began:
        pass
    return room


def test_those_that_are_there_make_the_calls_where_there_is_no_memory_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(WorkerProcesses(3)) as processes:
        assert list(processes.map(abs, [0])) == [0]
        monkeypatch.setattr(SparedProcess, "start", _without_memory)
        assert list(processes.map(abs, range(5))) == [*range(5)]
    with closing(WorkerProcesses(3)) as processes, pytest.raises(OSError, match="Cannot allocate"):
        list(processes.map(abs, [1]))


def _without_memory(_: SparedProcess) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


PARENT = """
import os
from minitrain.run.worker_processes import WorkerProcesses
from minitrain.search.sweeps.own_processes import OwnProcesses

def work_for_ever():
    print(os.getpid(), flush=True)
    while True:
        pass

if __name__ == "__main__":
    idle, busy = WorkerProcesses(1), OwnProcesses(1)
    ((_, found),) = idle.outcomes([(0, (os.getpid,))])
    print(found.get(), flush=True)  # has nothing more to do
    busy.first_done([busy.submit(work_for_ever)])
"""


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(2)}
        assert len(workers) == 2
        os.kill(parent.pid, signal.SIGKILL)
        assert parent.communicate(timeout=60)[0] == b""  # the pipe ends when nobody holds it any more
