"""Calibration: a config that predicts its own rungs, notes that survive being stopped, and backends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.devices import Operation, make_simulator, matmul
from minitrain.devices.calibration import (
    JaxBackend,
    Kernel,
    Measured,
    Notebook,
    NumpyBackend,
    calibrate,
    calls_a_sample,
    config_of,
    find_backend,
    noisiest,
    relative_iqr,
    rungs,
    sample,
    sample_between,
    steadied,
)
from minitrain.errors import UsageError
from minitrain.hardware import load_config

DISPATCH_S = 1e-12


class Ticking:
    """A clock that kernels move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def kernel(self, seconds: float) -> Kernel:
        def run() -> None:
            self.now += seconds

        return run


def truth(rung: Any) -> float:
    """A machine of 1 TFLOP/s for matrices, half of it for vectors, and 10 TB/s."""
    kind = rung.name.split()[0]
    rate = {"matmul": rung.flops / 1e12, "polynomial": rung.flops / 5e11, "stream": rung.bytes / 1e13, "nothing": 0.0}
    return DISPATCH_S + float(rate[kind])


def calibrated() -> dict[str, Any]:
    ladder = rungs()
    return config_of(NumpyBackend(), ladder, {rung.name: Measured((truth(rung),) * 3) for rung in ladder})


def test_a_calibrated_config_predicts_what_was_measured() -> None:
    simulator = make_simulator(load_config(calibrated()))
    for rung in rungs():
        kind, _, size = rung.name.partition(" ")
        if kind == "matmul":
            assert simulator.predict(matmul(int(size), int(size), int(size))) == pytest.approx(truth(rung))
        if kind in ("stream", "polynomial"):
            flops = rung.flops if kind == "polynomial" else 0
            byte_count = rung.bytes if kind == "stream" else 0
            assert simulator.predict(Operation(kind, flops, byte_count)) == pytest.approx(truth(rung))


def test_a_calibrated_config_says_how_noisy_it_was_and_what_is_assumed() -> None:
    config = calibrated()
    assert set(config["measured"]["rungs"]) == {rung.name for rung in rungs()}
    assert {"mem2", "networks"} <= set(config["measured"]["assumed"])
    assert config["dispatch_s"] == DISPATCH_S
    assert config["matrix"]["float32"]["tflops"] == pytest.approx(1)
    noisy = {"measured": {"rungs": {"a": {"noise": 0.1}, "b": {"noise": 0.5}}}}
    assert list(noisiest(noisy)) == [("b", 0.5), ("a", 0.1)]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_this_machine_can_be_calibrated(backend: str, tmp_path: Path) -> None:
    seen: list[str] = []
    config = calibrate(backend, num_samples=1, largest=0.2, progress=lambda done, total, name: seen.append(name))
    assert set(seen) == {rung.name for rung in rungs(0.2)}
    (tmp_path / "mine.json").write_text(json.dumps(config))
    assert mt.hw.simulate(matmul(64, 64, 64), device=tmp_path / "mine.json").time_seconds > 0


def test_a_moment_that_slows_everything_changes_no_rung() -> None:
    notebook = Notebook()
    for name in ("matmul 64", "matmul 90"):
        notebook.note(name, [[1.0, 0.5], [1.0, 0.5], [3.0, 1.5]])
    assert steadied("matmul 64", notebook.values).samples_s == (1.0, 1.0, 1.0)


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
    path = tmp_path / "notes.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        Notebook(path, {"backend": "numpy"})


def test_short_kernels_are_called_until_a_sample_is_long_enough() -> None:
    clock = Ticking()
    assert sample_between(clock.kernel(2.0), 2, clock.kernel(1.0), 3, clock) == (2.0, 1.0)
    assert calls_a_sample(clock.kernel(2**-13), clock) == 8
    assert calls_a_sample(clock.kernel(1.0), clock) == 1
    assert calls_a_sample(clock.kernel(0.0), clock) == 1000
    assert sample(clock.kernel(1e-5), 100, clock) == pytest.approx(1e-5)


def test_noise_is_the_interquartile_range_over_the_median() -> None:
    assert Measured((1.0, 2.0, 3.0, 4.0, 5.0)).noise == pytest.approx(2 / 3)
    assert Measured((1.0, 1.0, 9.0)).median_s == 1
    assert relative_iqr([3.0]) == 0
    assert relative_iqr([0.0, 0.0]) == 0


@pytest.mark.parametrize("make", [NumpyBackend, JaxBackend])
def test_backends_run_every_kind_of_kernel(make: Callable[[], Any]) -> None:
    backend = make()
    for kernel in (backend.matmul(8), backend.stream(64), backend.polynomial(64, 3), backend.nothing()):
        kernel()
    assert backend.is_cpu
    assert backend.device
    backend.compiled(lambda x: x, 1.0)()


def test_unknown_and_missing_backends_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="backend must be one of jax, numpy, torch, got 'cupy'"):
        find_backend("cupy")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="backend 'torch' needs torch, which is not installed; use another one"):
        find_backend("torch")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_samples": 0}, "num_samples must be an integer of at least 1, got 0"),
        ({"largest": 0}, r"largest is a share of the ladders in \(0, 1\], got 0"),
        ({"backend": None}, "backend must be one of jax, numpy, torch, got None"),
    ],
)
def test_calibrations_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        calibrate(**{"backend": "numpy", **given})
