"""The operations that backends compute, and the libraries of arrays that compute them on this machine.

An operation is one record, an `OperationKind`: its operands, what it computes, the shape of its result, and whether it
keeps samples apart. It is written once, over a library of arrays that is given to it (`xp`: NumPy, `jax.numpy`, or
torch by the same names), so that all backends compute the same. Names and operands are NumPy's where NumPy has the
function, with operands called x and y. The cost of an operation is an operation of `minitrain.devices`: a
matrix multiplication as there, 1 FLOP for each element of any other, and each operand and the result moved once. A view
(a reshape, a slice) costs nothing.

Libraries have one interface, `ArrayLibrary`: `put` makes their arrays of NumPy's, and `get` turns these back. JAX
computes in double precision where an operand has it, whatever is configured outside. Whether a library is installed is
found out without importing it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import UsageError, one_of
from minitrain.machine.devices.operations import ELEMENT_BYTES, MatmulShape, Operation, known_datatype

Shape = tuple[int, ...]
Options = Mapping[str, Any]
MATRIX_DIMS = 2
"""Dimensions of an array that is one matrix."""

RowRule = Callable[["Request", Sequence[bool]], bool]
"""Says whether each row of an operation's result comes from the same rows of its operands alone, so that samples may be
divided; the second argument says which operands have a row a sample."""

_GELU = math.sqrt(2 / math.pi), 0.044715


def _rows_of_elements(asked: Request, has_rows: Sequence[bool]) -> bool:
    """Operands of rows have as many dimensions as the result, and no other reaches over the batch."""
    dims = len(asked.shape)
    return all(
        len(shape) == dims if own else len(shape) < dims or shape[:1] in ((), (1,))
        for shape, own in zip(asked.shapes, has_rows, strict=True)
    )


def _rows_of_matmul(asked: Request, has_rows: Sequence[bool]) -> bool:
    x, y = asked.shapes
    if has_rows[1]:
        return has_rows[0] and len(x) == len(y) > MATRIX_DIMS  # a matrix for each sample
    return len(x) >= MATRIX_DIMS and (len(y) <= MATRIX_DIMS or len(y) < len(x))


def _rows_along(default: int | None) -> RowRule:
    """The axes that are summed or looked along are known, and the batch is none of them."""

    def rule(asked: Request, has_rows: Sequence[bool]) -> bool:  # noqa: ARG001  (the form of rules)
        axis = asked.options.get("axis", default)
        axes = [axis] if isinstance(axis, int) else axis
        return axes is not None and all(each % len(asked.shapes[0]) for each in axes)

    return rule


def _rows_of_joined(asked: Request, has_rows: Sequence[bool]) -> bool:
    return all(has_rows) and asked.options.get("axis", 0) % len(asked.shape) != 0


def _rows_of_reshaped(asked: Request, has_rows: Sequence[bool]) -> bool:  # noqa: ARG001  (as above)
    wanted = asked.options["shape"]
    return not isinstance(wanted, int) and wanted[0] == -1 and math.prod(wanted[1:]) == math.prod(asked.shapes[0][1:])


def _rows_of_swapped(asked: Request, has_rows: Sequence[bool]) -> bool:  # noqa: ARG001  (as above)
    return all(asked.options[name] % len(asked.shapes[0]) for name in ("axis1", "axis2"))


def _rows_of_taken(asked: Request, has_rows: Sequence[bool]) -> bool:  # noqa: ARG001  (as above)
    return isinstance(asked.options["index"], tuple) and asked.options["index"][:1] == (slice(None),)


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
        keeps_rows: whether samples stay apart in it.
    """

    name: str
    operands: tuple[str, ...]
    compute: Callable[..., Any]
    shape: Callable[..., Shape]
    options: tuple[str, ...] = ()
    is_view: bool = False
    gives_truth: bool = False
    keeps_rows: RowRule = _rows_of_elements

    @property
    def is_elementwise(self) -> bool:
        """Whether it computes each element by itself."""
        return not self.options and self.keeps_rows is _rows_of_elements


def _broadcast(*shapes: Shape) -> Shape:
    return np.broadcast_shapes(*shapes)


def _same(x: Shape, **_: Any) -> Shape:
    return x


def _matmul_shape(x: Shape, y: Shape) -> Shape:
    if not x or not y or x[-1] != y[-2 if len(y) > 1 else 0]:
        raise ValueError(f"shapes {x} and {y} do not multiply")
    return (*np.broadcast_shapes(x[:-2], y[:-2]), *x[-2:-1], *(y[-1:] if len(y) > 1 else ()))


def _reduced(x: Shape, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Shape:
    axes = range(len(x)) if axis is None else [axis] if isinstance(axis, int) else axis
    gone = {each % len(x) for each in axes} if x else set()
    return tuple(1 if place in gone else size for place, size in enumerate(x) if keepdims or place not in gone)


def _joined(arrays: Sequence[Shape], axis: int = 0) -> Shape:
    sizes = list(arrays[0])
    sizes[axis] = sum(each[axis] for each in arrays)
    return tuple(sizes)


def _stacked(arrays: Sequence[Shape], axis: int = 0) -> Shape:
    place = axis % (len(arrays[0]) + 1)
    return (*arrays[0][:place], len(arrays), *arrays[0][place:])


def _softmax(xp: Any, x: Any, axis: int = -1) -> Any:
    weights = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return weights / xp.sum(weights, axis=axis, keepdims=True)


def _gelu(xp: Any, x: Any) -> Any:
    return x * (1 + xp.tanh(_GELU[0] * (x + _GELU[1] * x**3))) / 2


def _layernorm(xp: Any, x: Any, epsilon: float = 1e-5) -> Any:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(centred**2, axis=-1, keepdims=True) + epsilon)


def _of_library(
    name: str, operands: tuple[str, ...], shape: Callable[..., Shape] = _broadcast, **more: Any
) -> OperationKind:
    """Return an operation that every library has by its name."""

    def compute(xp: Any, *given: Any, **options: Any) -> Any:
        return getattr(xp, name)(*given, **options)

    return OperationKind(name, operands, compute, shape, **more)


def _of_sequence(name: str, shape: Callable[..., Shape]) -> OperationKind:
    """Return an operation on a sequence of arrays; libraries call its axis by different names."""

    def compute(xp: Any, arrays: Sequence[Any], axis: int = 0) -> Any:
        return getattr(xp, name)(arrays, axis)

    return OperationKind(name, ("arrays",), compute, shape, ("axis",), keeps_rows=_rows_of_joined)


def _view(name: str, options: tuple[str, ...], keeps_rows: RowRule, compute: Callable[..., Any]) -> OperationKind:
    """Return an operation that moves nothing; its result has the shape that NumPy gives a view of nothing."""

    def shape(x: Shape, **given: Any) -> Shape:
        return tuple(compute(np, np.broadcast_to(np.int8(0), x), **given).shape)

    return OperationKind(name, ("x",), compute, shape, options, is_view=True, keeps_rows=keeps_rows)


_ONE = ("negative", "exp", "log", "tanh", "sqrt", "sin", "cos", "absolute", "square", "sign", "reciprocal")
_TWO = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "logaddexp")
_TESTS_OF_ONE = ("isnan", "isfinite", "logical_not")
_COMPARISONS = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")
_TESTS_OF_TWO = (*_COMPARISONS, "logical_and", "logical_or")
_REDUCTIONS = ("sum", "mean", "max")
_KINDS = (
    *(_of_library(name, ("x",), gives_truth=name in _TESTS_OF_ONE) for name in (*_ONE, *_TESTS_OF_ONE)),
    *(_of_library(name, ("x", "y"), gives_truth=name in _TESTS_OF_TWO) for name in (*_TWO, *_TESTS_OF_TWO)),
    _of_library("matmul", ("x", "y"), _matmul_shape, keeps_rows=_rows_of_matmul),
    *(
        _of_library(name, ("x",), _reduced, options=("axis", "keepdims"), keeps_rows=_rows_along(None))
        for name in _REDUCTIONS
    ),
    OperationKind("relu", ("x",), lambda xp, x: xp.maximum(x, xp.zeros_like(x)), _same),
    OperationKind("gelu", ("x",), _gelu, _same),
    OperationKind("softmax", ("x",), _softmax, _same, ("axis",), keeps_rows=_rows_along(-1)),
    OperationKind("layernorm", ("x",), _layernorm, _same, ("epsilon",), keeps_rows=_rows_along(-1)),
    _of_library("where", ("condition", "x", "y")),
    _of_sequence("concatenate", _joined),
    _of_sequence("stack", _stacked),
    _view("reshape", ("shape",), _rows_of_reshaped, lambda xp, x, shape: xp.reshape(x, shape)),
    _view("swapaxes", ("axis1", "axis2"), _rows_of_swapped, lambda xp, x, axis1, axis2: xp.swapaxes(x, axis1, axis2)),
    _view("take", ("index",), _rows_of_taken, lambda _, x, index: x[index]),
    OperationKind(
        "cast", ("x",), lambda xp, x, datatype: xp.asarray(x, dtype=datatype_named(datatype)), _same, ("datatype",)
    ),
)

OPERATIONS: Mapping[str, OperationKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""All operations by name."""


def operation_named(op_type: str) -> OperationKind:
    """Return an operation by its name.

    Raises:
        UsageError: there is none.
    """
    if op_type not in OPERATIONS:
        raise UsageError(f"there is no operation {op_type!r}; {one_of(op_type, OPERATIONS)}")
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
        raise UsageError(f"{kind.name} takes {', '.join(kind.operands)}{options}; what was given {wrong}")
    options_given = {name: value for name, value in inputs.items() if name in kind.options}
    return [inputs[name] for name in kind.operands], options_given


def result_shape(kind: OperationKind, shapes: Sequence[Any], options: Options) -> Shape:
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
            f"{kind.name} cannot take arrays of shapes {', '.join(map(str, shapes))}: {error}; check the operands"
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
    if kind.is_view:
        return Operation(kind.name, 0, 0, datatype)
    sizes = [math.prod(each) for each in flat(shapes)]
    moved = ELEMENT_BYTES[datatype] * (sum(sizes) + math.prod(shape))
    if kind.name == "matmul":
        product = _product(shapes[0], shapes[1], shape)
        name = f"matmul {product.m}x{product.k}x{product.n}"
        return Operation(name, 2 * math.prod(shape) * product.k, moved, datatype, "matmul", shape=product)
    return Operation(kind.name, max([math.prod(shape), *sizes]), moved, datatype)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """An operation that is asked for, on operands that go together.

    Args:
        kind: the operation.
        operands: in order: arrays or what stands for them, lists of such, and plain numbers.
        options: of the operation.
        datatype: what it computes with, which is what those of its arrays make together.
        shapes: of its operands, those of lists one by one; () for a number.
        shape: of its result.
        cost: what it costs.
    """

    kind: OperationKind
    operands: list[Any]
    options: dict[str, Any]
    datatype: str
    shapes: list[Shape]
    shape: Shape
    cost: Operation

    @classmethod
    def of(cls, op_type: str, inputs: Mapping[str, Any]) -> Request:
        """Return an operation on operands and options by name.

        Raises:
            UsageError: there is no such operation, or its operands do not go together.
        """
        kind = operation_named(op_type)
        operands, options = split_inputs(kind, inputs)
        shapes = [mapped(lambda each: getattr(each, "shape", ()), operand) for operand in operands]
        names = sorted({datatype_of(each) for each in flat(operands) if hasattr(each, "shape")})
        promote: Callable[..., Any] = np.result_type
        datatype = str(promote(*map(datatype_named, names))) if len(names) > 1 else (names or ["float64"])[0]
        shape = result_shape(kind, shapes, options)
        cost = cost_of(kind, shapes, shape, datatype)
        return cls(kind, operands, options, datatype, list(flat(shapes)), shape, cost)

    @property
    def result_datatype(self) -> str:
        """The datatype of its result."""
        return "bool" if self.kind.gives_truth else str(self.options.get("datatype", self.datatype))


def _product(x: Shape, y: Shape, shape: Shape) -> MatmulShape:
    """Return the matrices that are multiplied; a batch of rows that meet one matrix are the rows of one product."""
    columns = y[-1] if len(y) > 1 else 1
    rows = math.prod(x[:-1] if len(y) <= MATRIX_DIMS else x[-2:-1])
    return MatmulShape(rows, columns, x[-1], math.prod(shape) // (rows * columns) if rows * columns else 1)


def mapped(function: Callable[[Any], Any], operand: Any) -> Any:
    """Return an operand with a function applied to it, or to each of a list of arrays."""
    return [mapped(function, each) for each in operand] if isinstance(operand, list) else function(operand)


def flat(operands: Iterable[Any]) -> Iterator[Any]:
    """Yield operands one by one, also those of lists."""
    for each in operands:
        yield from flat(each) if isinstance(each, list) else [each]


class ArrayLibrary(Protocol):
    """What a backend asks of a library of arrays."""

    name: str
    datatypes: frozenset[str]

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(self.name) is not None

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array of the library's own."""
        return array

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of NumPy's."""
        return np.asarray(array)

    def compute(self, kind: OperationKind, operands: Sequence[Any], options: Options) -> Any:
        """Return the result of an operation when it is there."""


_REAL = ("float64", "float32", "float16")
_WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")


def datatype_named(name: str) -> Any:
    """Return NumPy's datatype of a name.

    Raises:
        UsageError: no library here has numbers of it.
    """
    if name == "bfloat16":
        import ml_dtypes  # type: ignore[import-untyped, unused-ignore]  # noqa: F401, PLC0415 - gives NumPy this datatype

    try:
        return np.dtype(name)
    except TypeError:
        known = ", ".join((*_REAL, "bfloat16", *_WHOLE))
        raise UsageError(
            f"no library here has arrays of {name}; use one of {known}, or an ArraySpec where only the price matters"
        ) from None


def datatype_of(value: Any) -> str:
    """Return the name of an array's datatype, or float64 for a plain number.

    >>> datatype_of(np.zeros(2, np.float32)), datatype_of(1.5)
    ('float32', 'float64')
    """
    found = getattr(value, "datatype", None) or getattr(value, "dtype", "float64")
    return str(found).rpartition(".")[2]


class NumpyLibrary(ArrayLibrary):
    """NumPy on the CPU."""

    name = "numpy"
    datatypes = frozenset({*_REAL, *_WHOLE})

    def compute(self, kind: OperationKind, operands: Sequence[Any], options: Options) -> Any:
        """Return the result."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # as the other libraries do
            return np.asarray(kind.compute(np, *operands, **options))


class JaxLibrary(ArrayLibrary):
    """JAX on its default device, one operation at a time."""

    name = "jax"
    datatypes = frozenset({*_REAL, "bfloat16", *_WHOLE})

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array on the default device."""
        import jax  # noqa: PLC0415

        with jax.enable_x64(True):
            return jax.numpy.asarray(array)

    def compute(self, kind: OperationKind, operands: Sequence[Any], options: Options) -> Any:
        """Return the result, waited for."""
        import jax  # noqa: PLC0415

        with jax.enable_x64(True):
            wait: Callable[[Any], Any] = jax.block_until_ready
            return wait(kind.compute(jax.numpy, *operands, **options))


def _torch() -> Any:
    import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra

    return torch


class _TorchNames:
    """torch by NumPy's names."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_torch(), {"power": "pow", "not_equal": "ne", "equal": "eq"}.get(name, name))

    def asarray(self, x: Any, dtype: Any) -> Any:
        """Return an array with another datatype."""
        return x.to(getattr(_torch(), dtype.name))

    def max(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """Return the largest elements along some axes."""
        return _torch().amax(x, dim=() if axis is None else axis, keepdim=keepdims)


class TorchLibrary(ArrayLibrary):
    """torch, eagerly, on a GPU if there is one."""

    name = "torch"
    datatypes = frozenset({*_REAL, "bfloat16", *_WHOLE})

    @property
    def _place(self) -> str:
        return "cuda" if _torch().cuda.is_available() else "cpu"

    def put(self, array: NDArray[Any]) -> Any:
        """Return a tensor; torch reads bfloat16 from NumPy as bits."""
        torch = _torch()
        owned = np.array(array)  # torch warns about arrays that must not be written to
        if owned.dtype.name == "bfloat16":
            return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16).to(self._place)
        return torch.from_numpy(owned).to(self._place)

    def get(self, array: Any) -> NDArray[Any]:
        """Return a copy in the host's memory."""
        torch, host = _torch(), array.detach().cpu()
        if host.dtype == torch.bfloat16:
            return np.asarray(host.view(torch.int16).numpy()).view(datatype_named("bfloat16"))
        return np.asarray(host.numpy())

    def compute(self, kind: OperationKind, operands: Sequence[Any], options: Options) -> Any:
        """Return the result, waited for; numbers are given to torch as tensors without dimensions.

        Those take the datatype of a real operand, so that they change none.
        """
        torch = _torch()
        real = next((each for each in flat(operands) if torch.is_tensor(each) and each.is_floating_point()), None)
        datatype = None if real is None else real.dtype

        def tensor(operand: Any) -> Any:
            is_tensor = torch.is_tensor(operand)
            return operand if is_tensor else torch.as_tensor(operand, dtype=datatype, device=self._place)

        made = [mapped(tensor, each) for each in operands]
        result = kind.compute(_TorchNames(), *made, **{name: _index(value) for name, value in options.items()})
        if self._place == "cuda":
            torch.cuda.synchronize()
        return result


def _index(value: Any) -> Any:
    """Return an option as torch takes it: arrays of places as tensors."""
    if isinstance(value, tuple):
        return tuple(map(_index, value))
    return _torch().from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


_LIBRARIES: Mapping[str, type[ArrayLibrary]] = {
    library.name: library for library in (NumpyLibrary, JaxLibrary, TorchLibrary)
}
LIBRARIES = tuple(_LIBRARIES)
"""The names of all libraries."""


def library_named(name: str) -> ArrayLibrary:
    """Return a library by its name, whether it is installed or not."""
    return _LIBRARIES[name]()
