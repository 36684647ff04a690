"""The profiler's benchmark suite: operations through the abstraction layer, timed and compared with NumPy's results.

Each datatype has three series: square matrix multiplications, scalings of arrays of many sizes (which some level of the
memory hierarchy limits), and a scaling of one element, whose time is dispatch alone. Seconds are those of the layer:
measured for backends that compute on this machine, prices for simulated ones. A sample is one call. A benchmark's time
is the median of its samples, and its noise their interquartile range over the median.

Results are compared with NumPy's in double precision. The numbers have random signs, so that a backend that is quick
because it computes something else has large errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from minitrain.devices.measuring import Measured
from minitrain.devices.operations import ELEMENT_BYTES
from minitrain.errors import MinitrainError
from minitrain.heterogeneous.abstraction_layer import HardwareAbstractionLayer
from minitrain.heterogeneous.backends import datatype_of
from minitrain.heterogeneous.capabilities import Key
from minitrain.heterogeneous.libraries import datatype_named

_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_ALLOWED_ROUNDOFFS = 8.0


@final
@dataclass(frozen=True, slots=True)
class Rung:
    """One benchmark.

    Args:
        op_type: what was computed.
        datatype: in what.
        size: rows of the matrices, or elements of the array.
        flops: of a call.
        num_bytes: read and written by a call.
        measured: the samples, s.
        error: largest difference from NumPy's result, as a share of the largest element that could be.
        allowed_error: what rounding in this datatype explains.
    """

    op_type: str
    datatype: str
    size: int
    flops: float
    num_bytes: float
    measured: Measured
    error: float
    allowed_error: float

    @property
    def flop_per_s(self) -> float:
        """The rate of arithmetic, FLOP/s."""
        return self.flops / self.measured.median_s

    @property
    def bytes_per_s(self) -> float:
        """The rate of traffic, bytes/s."""
        return self.num_bytes / self.measured.median_s

    @property
    def is_right(self) -> bool:
        """Whether the result is NumPy's, up to rounding."""
        return self.error <= self.allowed_error


@final
@dataclass(frozen=True, slots=True)
class Suite:
    """What is benchmarked.

    Args:
        matmul_sizes: rows of square matrices.
        stream_elements: elements of arrays that are scaled.
        num_samples: calls of each, after one that warms up.
        seed: of the numbers.
    """

    matmul_sizes: tuple[int, ...] = (64, 256, 512)
    stream_elements: tuple[int, ...] = (2**12, 2**16, 2**20, 2**22)
    num_samples: int = 5
    seed: int = 0


def run_suite(
    hal: HardwareAbstractionLayer, key: Key, datatypes: Sequence[str], suite: Suite, capacity_bytes: int
) -> tuple[dict[str, list[Rung]], dict[str, str]]:
    """Benchmark a backend.

    Args:
        hal: whose backend.
        key: under which it is registered.
        datatypes: what to compute in.
        suite: what to compute.
        capacity_bytes: of the device's memory; what does not fit is left out.

    Returns:
        By datatype, the rungs; and by datatype that the backend refused, why.
    """
    found: dict[str, list[Rung]] = {}
    refused: dict[str, str] = {}
    for datatype in datatypes:
        try:
            found[datatype] = _rungs(hal, key, datatype, _fitting(suite, ELEMENT_BYTES[datatype], capacity_bytes))
        except MinitrainError as error:
            refused[datatype] = str(error)
    return found, refused


def _fitting(suite: Suite, element_bytes: int, capacity_bytes: int) -> Suite:
    """Return what of a suite fits into a memory, three arrays a rung, but at least the smallest of each."""
    sizes = [size for size in suite.matmul_sizes if 3 * size**2 * element_bytes <= capacity_bytes]
    elements = [size for size in suite.stream_elements if 3 * size * element_bytes <= capacity_bytes]
    return replace(
        suite,
        matmul_sizes=tuple(sizes) or suite.matmul_sizes[:1],
        stream_elements=tuple(elements) or suite.stream_elements[:1],
    )


def _rungs(hal: HardwareAbstractionLayer, key: Key, datatype: str, suite: Suite) -> list[Rung]:
    """Return all rungs of a datatype."""
    random = np.random.default_rng(suite.seed)
    rungs = []
    for size in suite.matmul_sizes:
        x, y = (_signs(random, (size, size), datatype) for _ in range(2))
        rungs.append(_rung(hal, key, "matmul", {"x": x, "y": y}, suite.num_samples))
    for size in (1, *suite.stream_elements):
        x = _signs(random, (size,), datatype)
        rungs.append(_rung(hal, key, "multiply", {"x": x, "y": 1.5}, suite.num_samples))
    return rungs


def _signs(random: np.random.Generator, shape: tuple[int, ...], datatype: str) -> NDArray[Any]:
    """Return random numbers from 1/2 to 1 with random signs."""
    numbers = random.uniform(0.5, 1, shape) * random.choice([-1, 1], shape)
    return np.asarray(numbers.astype(datatype_named(datatype)))


def _rung(hal: HardwareAbstractionLayer, key: Key, op_type: str, inputs: Mapping[str, Any], num_samples: int) -> Rung:
    """Return one rung: operands lie on the backend before it is timed."""
    placed = {name: hal.put(value, key) if hasattr(value, "shape") else value for name, value in inputs.items()}
    first = hal.execute_on(key, op_type, placed)
    samples = tuple(hal.execute_on(key, op_type, placed).seconds for _ in range(num_samples))
    x = inputs["x"]
    datatype = datatype_of(x)
    error = _error(op_type, inputs, first.result.numpy())
    allowed = _ALLOWED_ROUNDOFFS * _ROUNDOFF[datatype] * (math.sqrt(x.shape[-1]) if op_type == "matmul" else 1.0)
    return Rung(op_type, datatype, x.shape[0], first.cost.flops, first.cost.bytes, Measured(samples), error, allowed)


def _error(op_type: str, inputs: Mapping[str, Any], got: NDArray[Any]) -> float:
    """Return the largest difference from NumPy's result, relative to the root of what is summed."""
    x, y = (np.asarray(inputs[name], dtype=np.float64) for name in ("x", "y"))
    expected = x @ y if op_type == "matmul" else x * y
    if got.shape != expected.shape:
        return math.inf
    scale = math.sqrt(x.shape[-1]) if op_type == "matmul" else 1.0
    difference = float(np.max(np.abs(np.asarray(got, dtype=np.float64) - expected)))
    return difference / scale if math.isfinite(difference) else math.inf
