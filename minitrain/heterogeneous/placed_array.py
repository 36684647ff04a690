"""Arrays that lie on a backend and compute there: code written for NumPy runs on a backend, operation by operation.

A `PlacedArray` takes part in NumPy's protocols (NEP 13 and NEP 18): `np.tanh(x) @ weight` asks the abstraction layer
for a tanh and a matrix multiplication as soon as one operand is placed, and the result is placed too. What the layer
has no operation for (sorting, cumulative sums) is done by NumPy on the host, and real results are put back.
`Place.on_host` counts these by name.

`np.asarray` copies an array to the host. Left out: writing into a part of an array on the device; such a write goes
over the host, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from minitrain.devices.backends import find_backend
from minitrain.errors import UsageError
from minitrain.heterogeneous.abstraction_layer import HardwareAbstractionLayer, Placed
from minitrain.heterogeneous.backends import HostBackend
from minitrain.heterogeneous.libraries import datatype_named
from minitrain.heterogeneous.operations import OPERATIONS

_MADE_ANEW = {"zeros_like": np.zeros, "ones_like": np.ones, "empty_like": np.zeros}
_RENAMED = {"amax": "max", "abs": "absolute", "bitwise_and": "logical_and", "bitwise_or": "logical_or"}
_RENAMED |= {"invert": "logical_not"}


@final
class Place:
    """Where arrays are placed: a backend of an abstraction layer.

    Args:
        layer: whose backend.
        key: under which it is registered.

    Attributes:
        on_host: what NumPy did on the host instead, by name.
    """

    def __init__(self, layer: HardwareAbstractionLayer, key: str) -> None:
        self.layer = layer
        self.key = key
        self.on_host: Counter[str] = Counter()

    def put(self, array: Any) -> Any:
        """Return an array of real numbers placed, any other as it is."""
        found = np.asarray(array)
        return PlacedArray(self, self.layer.put(found, self.key)) if found.dtype.kind == "f" else array

    def compute(self, op_type: str, **inputs: Any) -> PlacedArray:
        """Return the result of an operation of the layer."""
        found = {name: _operand(value) for name, value in inputs.items()}
        return PlacedArray(self, self.layer.execute(op_type, found, self.key).result)

    def by_numpy(self, function: Callable[..., Any], args: Any, named: Mapping[str, Any]) -> Any:
        """Compute with NumPy on the host, and place the result again if it is real."""
        self.on_host[function.__name__] += 1
        found = function(*_home(args), **_home(dict(named)))
        if isinstance(found, list | tuple):
            return type(found)(self.put(each) for each in found)
        return self.put(found) if isinstance(found, np.ndarray) else found


def place_of(backend: str) -> Place:
    """Return a place on a library of this machine, in a layer of its own; errors as for `places_of`."""
    return places_of([backend])[0]


def places_of(backends: Sequence[str]) -> tuple[Place, ...]:
    """Return places on libraries of this machine, in one layer, which counts what moves between them.

    Raises:
        UsageError: there is no such library, or it is not installed, or none is named.
    """
    if not backends:
        raise UsageError('backend must name one library at least, got none; use "numpy", "jax" or "torch"')
    layer = HardwareAbstractionLayer()
    for name in backends:
        find_backend(name)
        if name not in layer.hardware_backends:
            layer.register_backend(name, HostBackend(name))
    found = {name: Place(layer, name) for name in backends}
    return tuple(found[name] for name in backends)


@final
class PlacedArray(NDArrayOperatorsMixin):
    """An array that lies on a backend, for code that is written for NumPy's.

    Args:
        place: where.
        placed: what lies there.
    """

    __slots__ = ("place", "placed")

    def __init__(self, place: Place, placed: Placed) -> None:
        self.place = place
        self.placed = placed

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self.place.on_host["asarray"] += 1
        return np.array(self.placed.numpy(), dtype=dtype)

    def home(self) -> NDArray[Any]:
        """Return a copy in NumPy's memory."""
        return np.array(self.placed.numpy())

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Compute an elementwise operation or a matrix multiplication where this array lies."""
        op_type = _RENAMED.get(ufunc.__name__, ufunc.__name__)
        if method == "at":
            return self._write_at(ufunc, inputs)
        if method == "__call__" and op_type in OPERATIONS and not named:
            result = self.place.compute(op_type, **dict(zip(OPERATIONS[op_type].operands, inputs, strict=True)))
        else:
            result = self.place.by_numpy(getattr(ufunc, method), inputs, named)
        return result if out is None else _written(out[0], result)

    def _write_at(self, ufunc: Any, inputs: tuple[Any, ...]) -> None:
        """Write into places of an array, over the host."""
        target, *others = inputs
        home = _home(target)
        self.place.on_host[f"{ufunc.__name__}.at"] += 1
        ufunc.at(home, *_home(others))
        if isinstance(target, PlacedArray):
            target.placed = self.place.put(home).placed

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Compute any other function of NumPy's."""
        name = _RENAMED.get(func.__name__, func.__name__)
        if name in _MADE_ANEW:
            return self.place.put(_MADE_ANEW[name](args[0].shape))
        kind = OPERATIONS.get(name)
        if kind is None or kwargs.keys() - {*kind.operands, *kind.options}:
            return self.place.by_numpy(func, args, kwargs)
        return self.place.compute(name, **dict(zip((*kind.operands, *kind.options), args, strict=False)), **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.place.compute("take", x=self, index=_home(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        home = self.home()
        home[_home(index)] = _home(value)
        self.place.on_host["setitem"] += 1
        self.placed = self.place.put(home).placed

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def __float__(self) -> float:
        return float(self.home())

    def __bool__(self) -> bool:
        return bool(self.home())

    def __repr__(self) -> str:
        return f"PlacedArray({self.placed.backend.name}, {self.home()!r})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.placed.shape

    @property
    def ndim(self) -> int:
        """Its dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Its elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> Any:
        """Its datatype, as NumPy's."""
        return datatype_named(self.placed.datatype)

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """A matrix with rows and columns swapped."""
        return self if self.ndim < 2 else self.swapaxes(0, 1)

    def reshape(self, *shape: Any) -> Any:
        """Return the same elements in another shape."""
        wanted = shape[0] if len(shape) == 1 else shape
        return self.place.compute("reshape", x=self, shape=(wanted,) if isinstance(wanted, int) else tuple(wanted))

    def ravel(self) -> Any:
        """Return all elements in one dimension."""
        return self.reshape(-1)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """Return the array with two dimensions swapped."""
        return self.place.compute("swapaxes", x=self, axis1=axis1, axis2=axis2)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Return sums along some dimensions."""
        return self.place.compute("sum", x=self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Return means along some dimensions."""
        return self.place.compute("mean", x=self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Return the largest elements along some dimensions."""
        return self.place.compute("max", x=self, axis=axis, keepdims=keepdims)


def _written(target: Any, result: Any) -> Any:
    """Write a result where `out=` or `+=` wants it."""
    if isinstance(target, PlacedArray):
        target.placed = result.placed if isinstance(result, PlacedArray) else target.place.put(result).placed
    else:
        target[...] = _home(result)
    return target


def _operand(value: Any) -> Any:
    """Return an operand as the layer takes it."""
    if isinstance(value, PlacedArray):
        return value.placed
    if isinstance(value, list | tuple) and any(isinstance(each, PlacedArray) for each in value):
        return [_operand(each) for each in value]
    return value


def _home(value: Any) -> Any:
    """Return arguments with all placed arrays in NumPy's memory."""
    if isinstance(value, PlacedArray):
        return value.home()
    if isinstance(value, list | tuple):
        return type(value)(_home(each) for each in value)
    return {name: _home(each) for name, each in value.items()} if isinstance(value, dict) else value
