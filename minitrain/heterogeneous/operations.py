"""The operations that backends compute: by name, with their operands, the shape of their result, and what they cost.

An operation is written once, over a library of arrays that is given to it (`xp`: NumPy, `jax.numpy`, or torch by the
same names), so that all backends compute the same. Names and operands are NumPy's where NumPy has the function, with
operands called x and y. The cost of an operation is an operation of `minitrain.devices`: a matrix multiplication as
there, 1 FLOP for each element of any other, and each operand and the result moved once. A view (a reshape, a slice)
costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import numpy as np

from minitrain.devices.operations import ELEMENT_BYTES, MatmulShape, Operation, known_datatype
from minitrain.errors import UsageError
from minitrain.workloads.field_faults import closest

Shape = tuple[int, ...]
MATRIX_DIMS = 2
"""Dimensions of an array that is one matrix."""
_GELU = math.sqrt(2 / math.pi), 0.044715


@final
@dataclass(frozen=True, slots=True)
class OperationKind:
    """An operation that backends know.

    Args:
        name: what it is asked for by.
        operands: its arrays, by name and in order; one whose name ends in "s" is a sequence of arrays.
        compute: makes the result of a library, the operands and the options.
        shape: makes the shape of the result of those of the operands and the options.
        options: what else it takes.
        is_view: whether it moves nothing.
        gives_truth: whether the result is of truth values.
    """

    name: str
    operands: tuple[str, ...]
    compute: Callable[..., Any]
    shape: Callable[..., Shape]
    options: tuple[str, ...] = ()
    is_view: bool = False
    gives_truth: bool = False


def _broadcast(*shapes: Shape, **_: Any) -> Shape:
    return np.broadcast_shapes(*shapes)


def _same(x: Shape, *_: Any, **__: Any) -> Shape:
    return x


def _matmul_shape(x: Shape, y: Shape) -> Shape:
    if not x or not y or x[-1] != y[-2 if len(y) > 1 else 0]:
        raise ValueError(f"shapes {x} and {y} do not multiply")
    rows = x[-2:-1] if len(x) > 1 else ()
    columns = y[-1:] if len(y) > 1 else ()
    return (*np.broadcast_shapes(x[:-2], y[:-2]), *rows, *columns)


def _reduced(x: Shape, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Shape:
    axes = range(len(x)) if axis is None else [axis] if isinstance(axis, int) else axis
    gone = {each % len(x) for each in axes} if x else set()
    sizes = ((1 if place in gone else size) for place, size in enumerate(x) if keepdims or place not in gone)
    return tuple(sizes)


def _reshaped(x: Shape, shape: int | Sequence[int]) -> Shape:
    wanted = [shape] if isinstance(shape, int) else list(shape)
    if -1 in wanted:
        known = math.prod(size for size in wanted if size != -1)
        wanted[wanted.index(-1)] = math.prod(x) // known if known else 0
    if math.prod(wanted) != math.prod(x):
        raise ValueError(f"shape {x} does not become {tuple(wanted)}")
    return tuple(wanted)


def _swapped(x: Shape, axis1: int, axis2: int) -> Shape:
    sizes = list(x)
    sizes[axis1], sizes[axis2] = sizes[axis2], sizes[axis1]
    return tuple(sizes)


def _joined(arrays: Sequence[Shape], axis: int = 0) -> Shape:
    sizes = list(arrays[0])
    sizes[axis] = sum(each[axis] for each in arrays)
    return tuple(sizes)


def _stacked(arrays: Sequence[Shape], axis: int = 0) -> Shape:
    place = axis % (len(arrays[0]) + 1)
    return (*arrays[0][:place], len(arrays), *arrays[0][place:])


def _indexed(x: Shape, index: Any) -> Shape:
    return tuple(np.broadcast_to(np.int8(0), x)[index].shape)


def _softmax(xp: Any, x: Any, axis: int = -1) -> Any:
    weights = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return weights / xp.sum(weights, axis=axis, keepdims=True)


def _gelu(xp: Any, x: Any) -> Any:
    return x * (1 + xp.tanh(_GELU[0] * (x + _GELU[1] * x**3))) / 2


def _layernorm(xp: Any, x: Any, epsilon: float = 1e-5) -> Any:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(centred**2, axis=-1, keepdims=True) + epsilon)


def _reshape(xp: Any, x: Any, shape: Any) -> Any:
    return xp.reshape(x, shape)


def _swapaxes(xp: Any, x: Any, axis1: int, axis2: int) -> Any:
    return xp.swapaxes(x, axis1, axis2)


def _along(name: str) -> Callable[..., Any]:
    """Return an operation on a sequence of arrays; libraries call the axis by different names."""

    def compute(xp: Any, arrays: Sequence[Any], axis: int = 0) -> Any:
        return getattr(xp, name)(arrays, axis)

    return compute


def _of_library(name: str) -> Callable[..., Any]:
    """Return an operation that every library has by its name."""

    def compute(xp: Any, *operands: Any, **options: Any) -> Any:
        return getattr(xp, name)(*operands, **options)

    return compute


_ONE = ("negative", "exp", "log", "tanh", "sqrt", "sin", "cos", "absolute", "square", "sign", "reciprocal")
_TWO = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "logaddexp")
_TESTS_OF_ONE = ("isnan", "isfinite", "logical_not")
_COMPARISONS = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")
_TESTS_OF_TWO = (*_COMPARISONS, "logical_and", "logical_or")


def _kinds() -> Iterator[OperationKind]:
    """Yield all operations."""
    for name in (*_ONE, *_TESTS_OF_ONE):
        yield OperationKind(name, ("x",), _of_library(name), _same, gives_truth=name in _TESTS_OF_ONE)
    for name in (*_TWO, *_TESTS_OF_TWO):
        yield OperationKind(name, ("x", "y"), _of_library(name), _broadcast, gives_truth=name in _TESTS_OF_TWO)
    yield OperationKind("matmul", ("x", "y"), _of_library("matmul"), _matmul_shape)
    for name in ("sum", "mean", "max"):
        yield OperationKind(name, ("x",), _of_library(name), _reduced, ("axis", "keepdims"))
    yield OperationKind("relu", ("x",), lambda xp, x: xp.maximum(x, xp.zeros_like(x)), _same)
    yield OperationKind("gelu", ("x",), _gelu, _same)
    yield OperationKind("softmax", ("x",), _softmax, _same, ("axis",))
    yield OperationKind("layernorm", ("x",), _layernorm, _same, ("epsilon",))
    yield OperationKind("where", ("condition", "x", "y"), _of_library("where"), _broadcast)
    yield OperationKind("concatenate", ("arrays",), _along("concatenate"), _joined, ("axis",))
    yield OperationKind("stack", ("arrays",), _along("stack"), _stacked, ("axis",))
    yield OperationKind("reshape", ("x",), _reshape, _reshaped, ("shape",), is_view=True)
    yield OperationKind("swapaxes", ("x",), _swapaxes, _swapped, ("axis1", "axis2"), is_view=True)
    yield OperationKind("take", ("x",), lambda _, x, index: x[index], _indexed, ("index",), is_view=True)
    yield OperationKind("cast", ("x",), lambda xp, x, datatype: xp.cast(x, datatype), _same, ("datatype",))


OPERATIONS: Mapping[str, OperationKind] = MappingProxyType({kind.name: kind for kind in _kinds()})
"""All operations by name."""


def operation_named(op_type: str) -> OperationKind:
    """Return an operation by its name.

    Raises:
        UsageError: there is none.
    """
    if op_type not in OPERATIONS:
        raise UsageError(
            f"there is no operation {op_type!r} {closest(op_type, OPERATIONS)}; use one of {', '.join(OPERATIONS)}",
            op_type=op_type,
        )
    return OPERATIONS[op_type]


def split_inputs(kind: OperationKind, inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the operands of an operation in order, and its options.

    Raises:
        UsageError: an operand is missing, or a name is not the operation's.
    """
    missing = [name for name in kind.operands if name not in inputs]
    unknown = [name for name in inputs if name not in (*kind.operands, *kind.options)]
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"does not take {', '.join(unknown)}"
        options = f", and may have {', '.join(kind.options)}" if kind.options else ""
        raise UsageError(
            f"{kind.name} takes {', '.join(kind.operands)}{options}; what was given {wrong}", op_type=kind.name
        )
    options_given = {name: value for name, value in inputs.items() if name in kind.options}
    return [inputs[name] for name in kind.operands], options_given


def result_shape(kind: OperationKind, shapes: Sequence[Any], options: Mapping[str, Any]) -> Shape:
    """Return the shape of an operation's result.

    Args:
        kind: the operation.
        shapes: of its operands; a list of shapes for a sequence of arrays.
        options: of the operation.

    Raises:
        UsageError: the shapes do not go together.

    >>> result_shape(OPERATIONS["matmul"], [(4, 8), (8, 2)], {})
    (4, 2)
    """
    try:
        return tuple(int(size) for size in kind.shape(*shapes, **options))
    except (ValueError, IndexError, TypeError) as error:
        raise UsageError(
            f"{kind.name} cannot take arrays of shapes {', '.join(map(str, shapes))}: {error}; check the operands",
            op_type=kind.name,
        ) from None


def cost_of(kind: OperationKind, shapes: Sequence[Any], shape: Shape, datatype: str) -> Operation:
    """Return what an operation costs, as device simulators take it.

    Args:
        kind: the operation.
        shapes: of its operands.
        shape: of its result.
        datatype: of what it computes with.

    >>> cost = cost_of(OPERATIONS["matmul"], [(4, 8), (8, 2)], (4, 2), "float32")
    >>> cost.flops, cost.bytes
    (128, 224)
    """
    datatype = known_datatype(datatype)
    size, flat = ELEMENT_BYTES[datatype], list(_flat(shapes))
    if kind.is_view:
        return Operation(kind.name, 0, 0, datatype)
    moved = size * (sum(map(math.prod, flat)) + math.prod(shape))
    if kind.name == "matmul":
        product = _product(flat[0], flat[1], shape)
        name = f"matmul {product.m}x{product.k}x{product.n}"
        return Operation(name, 2 * math.prod(shape) * product.k, moved, datatype, "matmul", shape=product)
    return Operation(kind.name, max(math.prod(shape), max(map(math.prod, flat), default=0)), moved, datatype)


def _product(x: Shape, y: Shape, shape: Shape) -> MatmulShape:
    """Return the matrices that are multiplied; a batch of rows that meet one matrix are the rows of one product."""
    columns = y[-1] if len(y) > 1 else 1
    rows = x[-2] if len(x) > 1 else 1
    if len(y) <= MATRIX_DIMS:
        rows = math.prod(x[:-1])
    return MatmulShape(rows, columns, x[-1], math.prod(shape) // (rows * columns) if rows * columns else 1)


def _flat(shapes: Sequence[Any]) -> Iterator[Shape]:
    """Yield the shapes of all arrays, those of sequences one by one."""
    for each in shapes:
        if each and not isinstance(each[0], int | np.integer):
            yield from each
        else:
            yield each
