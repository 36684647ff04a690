"""Calibration: a config that predicts its own rungs, notes that survive being stopped, and backends."""

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine import load_config
from minitrain.machine.devices import Operation, make_simulator, matmul
from minitrain.machine.devices import calibration as calibrating
from minitrain.machine.devices.calibration import Backend, Measured, Notebook, NumpyBackend, calibrate, rungs

DISPATCH_S = 1e-12


class Ticking:
    """A clock that kernels move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def kernel(self, seconds: float) -> calibrating.Kernel:
        def run() -> None:
            self.now += seconds

        return run


def truth(rung: Any) -> float:
    """A machine of 1 TFLOP/s for matrices, half of it for vectors, and 10 TB/s."""
    rate = {"matmul": rung.flops / 1e12, "polynomial": rung.flops / 5e11, "stream": rung.bytes / 1e13, "nothing": 0.0}
    return DISPATCH_S + float(rate[rung.name.split()[0]])


def calibrated() -> dict[str, Any]:
    measured = {rung.name: Measured((truth(rung),) * 3) for rung in rungs()}
    return calibrating.config_of(NumpyBackend(), rungs(), measured)


def test_a_calibrated_config_predicts_what_was_measured() -> None:
    simulator = make_simulator(load_config(calibrated()))
    for rung in rungs()[1:]:
        kind, _, size = rung.name.partition(" ")
        same = {
            "matmul": lambda n=int(size): matmul(n, n, n),
            "stream": lambda n=rung.bytes: Operation("stream", 0, n),
            "polynomial": lambda n=rung.flops: Operation("polynomial", n, 0),
        }
        assert simulator.predict(same[kind]()) == pytest.approx(truth(rung))


def test_a_calibrated_config_says_how_noisy_it_was_and_what_is_assumed() -> None:
    config = calibrated()
    assert set(config["measured"]["rungs"]) == {rung.name for rung in rungs()}
    assert {"mem2", "networks"} <= set(config["measured"]["assumed"])
    assert config["dispatch_s"] == DISPATCH_S
    noisy = {"measured": {"rungs": {"a": {"noise": 0.1}, "b": {"noise": 0.5}}}}
    assert list(calibrating.noisiest(noisy)) == [("b", 0.5), ("a", 0.1)]


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["numpy", "jax", pytest.param("torch", marks=pytest.mark.torch)])
def test_this_machine_can_be_calibrated(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    seen: list[str] = []
    config = calibrate(backend, num_samples=1, largest=0.2, progress=lambda done, total, name: seen.append(name))
    fused = backend != "torch"  # which shows no arithmetic without traffic
    assert set(seen) == {rung.name for rung in rungs(0.2) if fused or not rung.name.startswith("polynomial")}
    (tmp_path / "mine.json").write_text(json.dumps(config))
    assert mt.hw.simulate(matmul(64, 64, 64), device=tmp_path / "mine.json").time_seconds > 0


class Paced(Backend):
    """A backend of a machine with caches: 100 GB/s up to 64 MB, 10 GB/s beyond, and others that only slow it down."""

    name, device, is_cpu = "paced", "none", True

    def __init__(self, seed: int) -> None:
        self.now, self.random = 0.0, random.Random(seed)

    def clock(self, limit: Any = "compute") -> calibrating.Clock:
        return lambda: self.now

    def ones(self, *shape: int) -> int:
        return math.prod(shape)

    def takes(self, seconds: float) -> calibrating.Kernel:
        def run() -> None:
            self.now += seconds * self.random.choice((1, 1, 1.3, 5))

        return run

    def compiled(self, function: Any, *arguments: Any) -> calibrating.Kernel:
        return self.takes(1e-6)

    def matmul(self, size: int) -> calibrating.Kernel:
        return self.takes(1e-6 + 2 * size**3 / 1e11)

    def polynomial(self, num_bytes: int, degree: int) -> calibrating.Kernel:
        return self.takes(1e-6 + num_bytes / (1e11 if num_bytes < 2**26 else 1e10))


def test_rates_of_a_busy_machine_are_the_same_on_ten_detections() -> None:
    found = [calibrating.measure_rates(Paced(seed), 2**29) for seed in range(10)]
    assert [each["mem1"]["GBps"] for each in found] == pytest.approx([10.0] * 10, rel=1e-3)
    assert [each["matrix"]["float32"]["tflops"] for each in found] == pytest.approx([0.1] * 10, rel=0.03)
    spreads = [each["measured"]["rungs"][f"stream {2**29}"]["noise"] for each in found]
    assert all(0 <= spread < 5 for spread in spreads)
    assert max(spreads) > 0.1


def test_one_core_is_timed_by_the_processor_s_time_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {NumpyBackend().clock("memory")} == {time.process_time}  # NumPy makes passes with one thread
    for cores, clock in ((1, time.process_time), (2, time.perf_counter)):
        monkeypatch.setattr(calibrating, "num_cpus", lambda cores=cores: cores)
        assert NumpyBackend().clock() is clock
    config = calibrate("numpy", num_samples=1, largest=0.2)
    assert config["measured"]["clock"] == "wall"


def test_a_moment_that_slows_everything_changes_no_rung() -> None:
    samples = [(1.0, 0.5), (1.0, 0.5), (3.0, 1.5)]
    assert calibrating.steadied("matmul 64", {"matmul 64": samples, "matmul 90": samples}).samples_s == (1.0, 1.0, 1.0)


def test_stopping_loses_nothing_measured(tmp_path: Path) -> None:
    notes, seen = tmp_path / "notes.json", list[str]()

    def stop(done: int, total: int, name: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate("numpy", notes=notes, num_samples=1, largest=0.2, progress=stop)
    kept = json.loads(notes.read_text())["measured"]
    assert len(kept) == 3
    calibrate("numpy", notes=notes, num_samples=1, largest=0.2, progress=lambda done, total, name: seen.append(name))
    assert not set(kept) & set(seen)
    assert json.loads(notes.read_text())["measured"].items() >= kept.items()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged or holds no measurements; remove it to begin again"),
        ('{"about": {"backend": "x"}, "measured": {}}', "holds measurements of .*'x'.*, not of"),
        ("[]", "is damaged or holds no measurements"),
    ],
)
def test_notes_of_something_else_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "notes.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        Notebook(tmp_path / "notes.json", {"backend": "numpy"})


def test_short_kernels_are_called_until_a_sample_is_long_enough() -> None:
    clock = Ticking()
    assert calibrating.sample_between(clock.kernel(2.0), 2, clock.kernel(1.0), 3, clock) == (2.0, 1.0)
    calls = {seconds: calibrating.calls_a_sample(clock.kernel(seconds), clock) for seconds in (2**-13, 1.0, 0.0)}
    assert calls == {2**-13: 8, 1.0: 1, 0.0: 1000}


def test_noise_is_the_interquartile_range_over_the_median() -> None:
    assert Measured((1.0, 2.0, 3.0, 4.0, 5.0)).noise == pytest.approx(2 / 3)
    assert [Measured(samples).noise for samples in ((3.0,), (0.0, 0.0))] == [0, 0]


def test_what_cannot_be_calibrated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="num_samples must be an integer of at least 1, got 0"):
        calibrate("numpy", num_samples=0)
    with pytest.raises(UsageError, match=r"largest is a share of the ladders in \(0, 1\], got 0"):
        calibrate("numpy", largest=0)
    with pytest.raises(UsageError, match="backend must be one of jax, numpy, torch, got 'cupy'"):
        calibrate("cupy")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="backend 'torch' needs torch, which is not installed; use another one"):
        calibrate("torch")
