"""Floating-point operations of JAX's primitives, counted as XLA counts them before it optimises.

An elementwise operation costs one FLOP an element of its result, whatever its datatype. Exponentials and their like are
counted apart by XLA, as transcendentals, and cost none here. A multiplication and its addition are two FLOPs. Padding
of a convolution costs none, and neither does what moves data. What XLA leaves to libraries it does not count:
`jax_linear_algebra` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from minitrain.devices.jax_linear_algebra import LIBRARY_RULES
from minitrain.devices.operations import MatmulShape

TRANSCENDENTAL = frozenset({
    "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "tan", "sqrt", "rsqrt", "cbrt", "pow",
    "erf", "erfc", "erf_inv", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma",
    "digamma"
})  # fmt: skip
"""Counted apart from FLOPs by XLA."""

DATA_MOVEMENT = frozenset({
    "broadcast_in_dim", "broadcast", "reshape", "squeeze", "expand_dims", "transpose", "concatenate", "pad",
    "slice", "dynamic_slice", "dynamic_update_slice", "rev", "iota", "copy", "copy_p",
    "bitcast_convert_type", "stop_gradient", "split", "device_put", "optimization_barrier", "sharding_constraint",
    "reduce_precision", "create_token", "pvary", "layout_constraint", "random_wrap", "random_unwrap", "random_seed",
    "mesh_cast", "name"
})  # fmt: skip
"""Move data and compute nothing."""

_THREEFRY_FLOP = 124  # integer operations an element: 20 rounds of add, rotate and xor, and five key injections


def flops_of(eqn: Any) -> float:
    """Return the floating-point operations of a primitive that holds no program of its own.

    Args:
        eqn: an equation of a jaxpr.
    """
    name = eqn.primitive.name
    if name in _RULES:
        return _RULES[name](eqn)
    if name in DATA_MOVEMENT or name in TRANSCENDENTAL:
        return 0.0
    if name.startswith(("reduce_window", "select_and")):
        return _window(eqn)
    if name.startswith(("reduce_", "arg")):
        return _reduction(eqn)
    if name.startswith("scatter"):
        return 0.0 if name == "scatter" else float(_size(eqn.invars[2]))
    return float(sum(map(_size, eqn.outvars)))


def matmul_shape(eqn: Any) -> MatmulShape | None:
    """Return the matrix multiplication that a product or a convolution amounts to; None for anything else."""
    name = eqn.primitive.name
    if name == "dot_general":
        return _dot_shape(eqn)
    if name == "ragged_dot_general":
        return _ragged_shape(eqn)
    return _convolution_shape(eqn) if name == "conv_general_dilated" else None


def _size(var: Any) -> int:
    """Return the number of elements of a value."""
    return math.prod(getattr(var.aval, "shape", ()))


def _dot_shape(eqn: Any) -> MatmulShape:
    """Return batch, free and contracting dimensions as a matrix multiplication."""
    return _product_shape(eqn, eqn.params["dimension_numbers"], ())


def _ragged_shape(eqn: Any) -> MatmulShape:
    """Return a product of groups of rows, each with its own matrix: every row meets one of them."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    return _product_shape(eqn, numbers.dot_dimension_numbers, tuple(numbers.rhs_group_dimensions))


def _product_shape(eqn: Any, numbers: Any, groups: tuple[int, ...]) -> MatmulShape:
    """Return the shape of a product, `groups` being dimensions of the right side of which each row meets one place."""
    (left_sum, right_sum), (left_batch, right_batch) = numbers
    left, right = (var.aval.shape for var in eqn.invars[:2])
    return MatmulShape(
        m=math.prod(size for dim, size in enumerate(left) if dim not in (*left_sum, *left_batch)),
        n=math.prod(size for dim, size in enumerate(right) if dim not in (*right_sum, *right_batch, *groups)),
        k=math.prod(left[dim] for dim in left_sum),
        batch=math.prod(left[dim] for dim in left_batch),
    )


def _product(eqn: Any) -> float:
    """Return two FLOPs for each multiplication and its addition."""
    shape = matmul_shape(eqn)
    return 2.0 * shape.batch * shape.m * shape.n * shape.k if shape else 0.0


def _convolution(eqn: Any) -> float:
    """Return two FLOPs for each product of an input, not of padding, with an element of the kernel."""
    left, right = (var.aval.shape for var in eqn.invars[:2])
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    result = eqn.outvars[0].aval.shape
    positions = 1
    for place, dim in enumerate(out[2:]):
        positions *= _valid_positions(
            size=left[lhs[2 + place]],
            kernel=right[rhs[2 + place]],
            result=result[dim],
            stride=params["window_strides"][place],
            low=params["padding"][place][0],
            lhs_dilation=params["lhs_dilation"][place],
            rhs_dilation=params["rhs_dilation"][place],
        )
    batch = left[lhs[0]] // params["batch_group_count"]
    return float(2 * right[rhs[1]] * right[rhs[0]] * batch * positions)


def _valid_positions(
    *, size: int, kernel: int, result: int, stride: int, low: int, lhs_dilation: int, rhs_dilation: int
) -> int:
    """Return how many pairs of a place in the result and one in the kernel meet an input along a dimension."""
    dilated = (size - 1) * lhs_dilation + 1
    return sum(
        0 <= (at := place * stride - low + tap * rhs_dilation) < dilated and at % lhs_dilation == 0
        for place in range(result)
        for tap in range(kernel)
    )


def _convolution_shape(eqn: Any) -> MatmulShape:
    """Return a convolution as a matrix multiplication: places of the result by channels, summed over the kernel."""
    right, numbers = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"]
    result, out, rhs = eqn.outvars[0].aval.shape, numbers.out_spec, numbers.rhs_spec
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    places = math.prod(result[dim] for dim in out[2:]) * result[out[0]]
    taps = math.prod(right[dim] for dim in rhs[1:])
    return MatmulShape(m=places, n=max(1, result[out[1]] // groups), k=taps, batch=groups)


def _reduction(eqn: Any) -> float:
    """Return one FLOP for each element that joins another."""
    return float(_size(eqn.invars[0]) - _size(eqn.outvars[0]))


def _window(eqn: Any) -> float:
    """Return one FLOP for each element that joins another in its window."""
    window = math.prod(eqn.params.get("window_dimensions", (1,)))
    if eqn.primitive.name.startswith("select_and"):  # the gradient of a maximum: a choice in each window, and a sum
        return float(_size(eqn.invars[0]) * window)
    return float(_size(eqn.outvars[0]) * max(1, window - 1))


def _integer_pow(eqn: Any) -> float:
    """Return the multiplications of repeated squaring, and a division for a negative power."""
    power = abs(eqn.params["y"])
    multiplications = max(0, power.bit_length() - 1) + max(0, power.bit_count() - 1)
    return float(_size(eqn.outvars[0]) * (multiplications + (eqn.params["y"] < 0)))


def _sort(eqn: Any) -> float:
    size = _size(eqn.invars[0])
    return float(size * max(1, math.ceil(math.log2(max(2, size)))))


def _threefry(eqn: Any) -> float:
    return float(_THREEFRY_FLOP * sum(map(_size, eqn.outvars)))


def _gather(eqn: Any) -> float:
    """Return the cost of filling up where indices lie outside: three comparisons an index, a choice an element."""
    if "FILL" not in str(eqn.params.get("mode")):
        return 0.0
    return float(_size(eqn.outvars[0]) + 3 * _size(eqn.invars[1]))


_RULES: Mapping[str, Callable[[Any], float]] = MappingProxyType(
    {
        "dot_general": _product,
        "conv_general_dilated": _convolution,
        "integer_pow": _integer_pow,
        "gather": _gather,
        "sort": _sort,
        "threefry2x32": _threefry,
        "random_bits": _threefry,
        "ragged_dot_general": _product,
        **LIBRARY_RULES,
    }
)
