"""Failures as they come: errors of memory and of runtimes, a killed worker process, and a worker that hangs."""

from __future__ import annotations

import pickle
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np
import pytest

from minitrain.errors import MinitrainError
from minitrain.machine.heterogeneous import (
    DeviceFailure,
    HardwareAbstractionLayer,
    HostBackend,
    LimitedBackend,
    NoBackendError,
    SimulatedBackend,
)
from tests.machine.heterogeneous.test_orchestrator import ROUND_ROBIN, WORKLOAD, by_numpy, layer, orchestrator

WORKER = """
import pickle, sys, time
import numpy as np
while True:
    name, operands = pickle.load(sys.stdin.buffer)
    if name == "hang":
        time.sleep(3600)
    if name == "gelu":
        x = operands[0]
        found = (x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2).astype(x.dtype)
    else:
        found = getattr(np, name)(*operands)
    pickle.dump(found, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class WorkerBackend:
    """A backend whose arithmetic a process of its own does; it waits for each result for a limited time.

    Args:
        name: of the device.
        worker: the process.
        patience_s: how long it waits.
        breaks: called before each operation, with the number of those before.
    """

    is_priced = False

    def __init__(self, name: str, worker: subprocess.Popen[bytes], patience_s: float = 30, breaks: Any = None) -> None:
        self.name, self.worker, self.patience_s, self.breaks, self.done = name, worker, patience_s, breaks, 0

    def reason_unavailable(self) -> str | None:
        return None

    def reason_unsupported(self, cost: Any, datatype: str) -> str | None:
        return None

    def put(self, array: Any) -> Any:
        return array

    def get(self, array: Any) -> Any:
        self.ask("positive", [array[:0]])  # what a dead process held is lost
        return array

    def execute(self, kind: Any, operands: Sequence[Any], options: Any, cost: Any) -> Any:
        if self.breaks is not None:
            self.breaks(self)
        self.done += 1
        return self.ask(kind.name, operands), 0.0

    def ask(self, name: str, operands: Sequence[Any]) -> Any:
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        pickle.dump((name, operands), self.worker.stdin)
        self.worker.stdin.flush()
        if not select.select([self.worker.stdout], [], [], self.patience_s)[0]:
            raise TimeoutError(f"no answer in {self.patience_s:g} s")
        return pickle.load(self.worker.stdout)


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=pipe, stdout=pipe, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def killed(backend: WorkerBackend) -> None:
    if backend.done == 1:
        backend.worker.kill()
        backend.worker.wait()


def hangs(backend: WorkerBackend) -> None:
    if backend.done == 1:
        backend.patience_s = 0.05
        pickle.dump(("hang", []), backend.worker.stdin)  # type: ignore[arg-type]  # it is a pipe


def allocates_too_much(backend: WorkerBackend) -> None:
    if backend.done == 1:
        np.empty(1 << 50)


def exhausts_xla(backend: WorkerBackend) -> None:
    import jax.numpy as jnp

    if backend.done == 1:
        jnp.zeros(1 << 50, jnp.int8).block_until_ready()


CAUSES = {
    killed: "BrokenPipeError",
    hangs: "TimeoutError: no answer in 0.05 s",
    allocates_too_much: "MemoryError: Unable to allocate",
    exhausts_xla: "RESOURCE_EXHAUSTED",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("breaks", CAUSES, ids=lambda breaks: breaks.__name__)
def test_the_layer_falls_back_and_says_what_happened(breaks: Any) -> None:
    with worker() as process:
        hal = HardwareAbstractionLayer()
        hal.register_backend("worker", WorkerBackend("worker", process, breaks=breaks))
        hal.register_backend("numpy", HostBackend("numpy"))
        hal.define_fallback_chain("worker", ["numpy"])
        x = np.ones((2, 2), np.float32)
        well, failed = (hal.execute("matmul", {"x": x, "y": x}, "worker") for _ in range(2))
        assert (well.backend, well.refused, failed.backend) == ("worker", (), "numpy")
        np.testing.assert_array_equal(failed.result.numpy(), x @ x)
        ((name, reason),) = failed.refused
        assert name == "worker"
        assert "worker has failed with" in reason
        assert CAUSES[breaks] in reason


@pytest.mark.few(1)
@pytest.mark.parametrize("breaks", [killed, hangs], ids=lambda breaks: breaks.__name__)
def test_the_orchestrator_moves_the_work_of_a_worker_that_fails(breaks: Any) -> None:
    with worker() as process:
        hal = layer()
        hal.register_backend("a100_80g", WorkerBackend("a100_80g", process, breaks=breaks))
        run = orchestrator(hal).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN)
    np.testing.assert_allclose(run.outputs["sum3"], by_numpy(WORKLOAD)["sum3"], rtol=2e-4, atol=2e-5)
    (recovery,) = run.recoveries
    assert recovery.device == "a100_80g"
    assert recovery.found_by in {name for names in recovery.moved_to.values() for name in names}


class Hangs:
    """A backend as another, whose calls never return from some operation on."""

    def __init__(self, inner: Any, after: int) -> None:
        self.inner, self.after, self.asked = inner, after, 0
        self.name, self.is_priced, self.put = inner.name, inner.is_priced, inner.put
        self.reason_unavailable, self.reason_unsupported = inner.reason_unavailable, inner.reason_unsupported
        self.get = inner.get

    def execute(self, *given: Any) -> Any:
        self.asked += 1
        if self.asked > self.after:
            Event().wait()
        return self.inner.execute(*given)


@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_a_shipped_backend_that_hangs_is_left_in_time(library: str) -> None:
    hal, hangs = HardwareAbstractionLayer(), Hangs(HostBackend(library), after=1)
    limited = LimitedBackend(hangs, limit_s=30)
    hal.register_backend("device", limited)
    hal.register_backend("numpy", HostBackend("numpy"))
    hal.define_fallback_chain("device", ["numpy"])
    x = np.ones((2, 2), np.float32)
    assert hal.execute("matmul", {"x": x, "y": x}, "device").refused == ()
    limited.limit_s = 0.05
    for reason in ("no answer in 0.05 s", "it has not answered before"):
        failed = hal.execute("matmul", {"x": x, "y": x}, "device")
        assert failed.backend == "numpy"
        assert reason in failed.refused[0][1]
        np.testing.assert_array_equal(failed.result.numpy(), x @ x)
    assert hangs.asked == 2  # and never again


def test_the_orchestrator_moves_the_work_of_a_device_that_hangs() -> None:
    hal = layer()
    limited = LimitedBackend(Hangs(SimulatedBackend("a100_80g"), after=1), limit_s=1)
    hal.register_backend("a100_80g", limited)
    run = orchestrator(hal).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN)
    np.testing.assert_allclose(run.outputs["sum3"], by_numpy(WORKLOAD)["sum3"], rtol=2e-4, atol=2e-5)
    assert [recovery.device for recovery in run.recoveries] == ["a100_80g"]


def test_a_limited_backend_hands_on_what_its_device_says() -> None:
    def late() -> None:
        raise TimeoutError("the device's own")

    limited = LimitedBackend(HostBackend("numpy"), limit_s=30)
    with pytest.raises(TimeoutError, match="the device's own"):
        limited._in_time(late)
    with pytest.raises(MinitrainError, match="limit_s is how many seconds a call may take, above 0, got 0"):
        LimitedBackend(HostBackend("numpy"), limit_s=0)


def test_an_array_that_a_device_cannot_take_is_its_failure_too() -> None:
    full = HostBackend("numpy")
    full.put = lambda array: np.empty(1 << 50, array.dtype)  # more than there can be
    hal = layer()
    hal.register_backend("t4", full)
    run = orchestrator(hal).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN)
    assert [recovery.device for recovery in run.recoveries] == ["t4"]
    moves = [step for step in run.steps if step.kind == "move" and step.device == "t4"]
    assert moves == []  # nothing ever came there


def test_a_mistake_of_the_caller_is_no_failure_of_a_device() -> None:
    hal = HardwareAbstractionLayer()
    for name in ("jax", "numpy"):
        hal.register_backend(name, HostBackend(name))
    x = np.ones((2, 3), np.float32)
    with pytest.raises(MinitrainError, match="matmul") as caught:
        hal.execute("matmul", {"x": x, "y": x}, "jax")
    assert not isinstance(caught.value, DeviceFailure | NoBackendError)
