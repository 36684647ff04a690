"""The abstraction layer: the same numbers on all backends, fallbacks, moves that are counted, and one error."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine import shipped_configs
from minitrain.machine.devices import make_simulator, matmul
from minitrain.machine.heterogeneous import (
    OPERATIONS,
    DeviceFailure,
    FailingBackend,
    HardwareAbstractionLayer,
    HardwareClass,
    HostBackend,
    NoBackendError,
    SimulatedBackend,
    standard_layer,
)
from minitrain.machine.heterogeneous.operations import datatype_named, result_shape

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.standard_normal((4, 6)), RANDOM.standard_normal((6, 3))
SPECIAL: dict[str, dict[str, Any]] = {
    "matmul": {"x": X, "y": Y},
    "where": {"condition": X > 0, "x": X, "y": float("nan")},
    "concatenate": {"arrays": [X, X], "axis": 1},
    "stack": {"arrays": [X, X], "axis": 1},
    "reshape": {"x": X, "shape": (2, -1)},
    "swapaxes": {"x": X, "axis1": 0, "axis2": 1},
    "take": {"x": X, "index": (slice(None), np.array([1, 3]))},
    "cast": {"x": X, "datatype": "float32"},
    "sum": {"x": X, "axis": (0, 1)},
    "mean": {"x": X, "axis": -1, "keepdims": True},
    "max": {"x": X, "axis": 1},
    "log": {"x": np.abs(X)},
    "sqrt": {"x": np.abs(X)},
    "power": {"x": X, "y": 2},
}


def inputs_of(op_type: str) -> dict[str, Any]:
    """Return operands that every operation can be tried on."""
    return SPECIAL.get(op_type) or dict(zip(OPERATIONS[op_type].operands, (X, X[0]), strict=False))


@pytest.fixture(scope="module")
def hal() -> HardwareAbstractionLayer:
    return standard_layer()


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=needs_torch)])
def test_backends_agree_on_every_operation(hal: HardwareAbstractionLayer, backend: str) -> None:
    for op_type in OPERATIONS:
        expected = hal.execute(op_type, inputs_of(op_type), "numpy").result.numpy()
        found = hal.execute(op_type, inputs_of(op_type), backend)
        assert found.backend == backend
        np.testing.assert_allclose(found.result.numpy(), expected, rtol=1e-12, atol=1e-15, err_msg=op_type)
        assert found.result.numpy().dtype == expected.dtype, op_type


@pytest.mark.parametrize("op_type", OPERATIONS)
def test_the_shape_that_prices_are_made_of_is_that_of_the_result(hal: HardwareAbstractionLayer, op_type: str) -> None:
    kind, inputs = OPERATIONS[op_type], inputs_of(op_type)
    shapes = [
        [each.shape for each in inputs[name]] if isinstance(inputs[name], list) else np.shape(inputs[name])
        for name in kind.operands
    ]
    options = {name: value for name, value in inputs.items() if name in kind.options}
    assert result_shape(kind, shapes, options) == hal.execute_operation(op_type, inputs, "numpy").shape


def test_every_shipped_config_computes_on_the_host_and_costs_what_it_says(hal: HardwareAbstractionLayer) -> None:
    x, y = X.astype(np.float32), Y.astype(np.float32)
    for name in shipped_configs():
        found = hal.execute("matmul", {"x": x, "y": y}, name)
        np.testing.assert_array_equal(found.result.numpy(), x @ y)
        assert (found.backend, found.is_priced, found.refused) == (name, True, ())
        assert found.seconds == make_simulator(name).predict(matmul(4, 6, 3))


def test_a_result_stays_where_it_is_and_only_moves_are_counted() -> None:
    hal = HardwareAbstractionLayer()
    for name in ("a100_80g", "t4"):
        hal.register_backend(name, SimulatedBackend(name))
    x = np.ones((16, 16), np.float32)
    first = hal.execute("matmul", {"x": x, "y": x}, "a100_80g")
    again = hal.execute("add", {"x": first.result, "y": first.result}, "a100_80g")
    there = hal.execute("relu", {"x": again.result}, "t4")
    assert [each.moved_bytes for each in (first, again, there)] == [2 * x.nbytes, 0, x.nbytes]
    assert hal.moved_bytes == {"a100_80g": 2 * x.nbytes, "t4": x.nbytes}


def test_what_a_device_cannot_compute_is_done_by_the_next_that_there_is(hal: HardwareAbstractionLayer) -> None:
    found = hal.execute("add", {"x": X, "y": X}, "h100_80g_nvl8")
    ((name, reason),) = found.refused
    assert (found.backend, name) == ("numpy", "h100_80g_nvl8")
    assert "no rate for float64" in reason
    unasked = HardwareAbstractionLayer()
    unasked.register_backend("a100_80g", SimulatedBackend("a100_80g"))
    unasked.register_backend("numpy", HostBackend("numpy"))
    assert unasked.execute("tanh", {"x": X}).backend == "numpy"
    assert unasked.execute("tanh", {"x": X.astype(np.float32)}).backend == "a100_80g"


def test_a_class_without_a_backend_falls_back_in_order() -> None:
    hal = HardwareAbstractionLayer()
    hal.register_backend(HardwareClass.CPU, HostBackend("numpy"))
    hal.register_backend(HardwareClass.TPU, FailingBackend(HostBackend("numpy"), after=1))
    hal.define_fallback_chain(HardwareClass.NPU, [HardwareClass.GPU, HardwareClass.TPU, HardwareClass.CPU])
    found = [hal.execute("tanh", {"x": X}, HardwareClass.NPU) for _ in range(2)]
    assert [len(each.refused) for each in found] == [2, 3]  # the TPU has died in between
    assert found[1].refused[2] == ("class tpu", "numpy has died, and what it held is lost")
    np.testing.assert_array_equal(found[1].result.numpy(), np.tanh(X))


def test_one_error_lists_everything_that_was_tried() -> None:
    hal = HardwareAbstractionLayer()
    hal.register_backend(HardwareClass.GPU, SimulatedBackend("a100_80g"))
    hal.register_backend("dead", FailingBackend(HostBackend("numpy"), after=0))
    hal.define_fallback_chain(HardwareClass.GPU, ["dead", HardwareClass.TPU])
    with pytest.raises(NoBackendError) as caught:
        hal.execute_operation("matmul", {"x": X, "y": Y}, HardwareClass.GPU)
    said = str(caught.value)
    assert said.startswith("no backend can compute matmul preferred on class gpu; tried class gpu: config a100_80g has")
    assert "dead: numpy has died" in said
    assert "class tpu: no backend is registered for it" in said
    assert [name for name, _ in caught.value.tried] == ["class gpu", "dead", "class tpu"]


def test_an_operand_that_a_dead_device_held_is_lost_whoever_computes() -> None:
    hal = HardwareAbstractionLayer()
    hal.register_backend("a100_80g", FailingBackend(SimulatedBackend("a100_80g"), after=1))
    hal.register_backend("numpy", HostBackend("numpy"))
    made = hal.execute("tanh", {"x": X.astype(np.float32)}, "a100_80g").result
    with pytest.raises(DeviceFailure, match="a100_80g has died, and what it held is lost"):
        hal.execute("tanh", {"x": made}, "numpy")


@pytest.mark.parametrize(
    ("op_type", "inputs", "message"),
    [
        ("matmult", {"x": X}, "no operation 'matmult'; did you mean \"matmul\""),
        ("matmul", {"x": X}, "matmul takes x, y; what was given lacks y"),
        ("tanh", {"x": X, "axis": 1}, "tanh takes x; what was given does not take axis"),
        ("matmul", {"x": X, "y": X}, r"matmul cannot take arrays of shapes \(4, 6\), \(4, 6\)"),
        ("reshape", {"x": X, "shape": (5, 5)}, "reshape cannot take arrays"),
        ("tanh", {"x": ["a", None]}, "an operand must be an array of numbers"),
    ],
)
def test_a_users_mistake_is_raised_at_once_and_by_no_fallback_made_good(
    hal: HardwareAbstractionLayer, op_type: str, inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(mt.UsageError, match=message):
        hal.execute(op_type, inputs, "jax")


def test_a_device_without_room_and_a_library_that_is_not_installed_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    hal = HardwareAbstractionLayer()
    hal.register_backend("esp32", SimulatedBackend("esp32"))
    hal.register_backend("torch", HostBackend("torch"))
    with pytest.raises(NoBackendError, match="800,000 bytes are more than the 532,480 that esp32 has"):
        hal.execute("tanh", {"x": np.ones(100_000, np.float32)}, "esp32")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoBackendError, match="torch: torch is not installed"):
        hal.execute("tanh", {"x": X}, "torch")


def test_what_cannot_be_registered_is_refused(hal: HardwareAbstractionLayer) -> None:
    with pytest.raises(mt.UsageError, match=r"a backend for class gpu needs .* and str lacks name"):
        hal.register_backend(HardwareClass.GPU, "cuda")  # type: ignore[arg-type]
    with pytest.raises(mt.UsageError, match="must name others, each once, got class gpu"):
        hal.define_fallback_chain(HardwareClass.GPU, [HardwareClass.GPU])
    with pytest.raises(mt.UsageError, match="no backend is registered for numpi; did you mean"):
        hal.put(X, "numpi")


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=needs_torch), "a100_80g"])
def test_half_precision_survives_the_way_there_and_back(hal: HardwareAbstractionLayer, backend: str) -> None:
    x = X.astype(datatype_named("bfloat16"))
    found = hal.execute("multiply", {"x": x, "y": 2.0}, backend)
    assert (found.backend, found.result.datatype, found.result.num_bytes) == (backend, "bfloat16", 2 * X.size)
    np.testing.assert_array_equal(found.result.numpy().astype(float), 2 * x.astype(float))
