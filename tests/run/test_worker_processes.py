"""Worker processes: Ctrl-C is left to the process that waits for them."""

import signal

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
