"""Worker processes: Ctrl-C is left to the process that waits for them, and they end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from minitrain.run.worker_processes import SparedProcess, worker_pool


def _blocked() -> set[int]:
    return {int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def test_a_worker_is_born_with_ctrl_c_blocked_and_its_caller_is_not() -> None:
    with worker_pool(1) as pool:
        assert signal.SIGINT in pool.submit(_blocked).result()
    assert signal.SIGINT not in _blocked()


def test_a_pool_makes_its_processes_that_way() -> None:
    with worker_pool(1) as pool:
        pool.submit(_blocked).result()
        assert all(isinstance(each, SparedProcess) for each in pool._processes.values())


PARENT = """
import os
from minitrain.run.worker_processes import worker_pool
from minitrain.search.sweeps.executors.own_processes import OwnProcesses

def work_for_ever():
    print(os.getpid(), flush=True)
    while True:
        pass

if __name__ == "__main__":
    print(worker_pool(1).submit(os.getpid).result(), flush=True)  # has nothing more to do
    OwnProcesses(1).submit(work_for_ever).result()
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
