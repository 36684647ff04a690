"""Libraries of arrays that compute on this machine, behind one interface: NumPy, JAX and torch.

Each computes operations of `minitrain.heterogeneous.operations` on arrays of its own, which `put` makes of NumPy's and
`get` turns back. JAX computes in double precision where an operand has it, whatever is configured outside. Whether a
library is installed is found out without importing it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from minitrain.devices.backends import cpu_name
from minitrain.errors import UsageError
from minitrain.heterogeneous.operations import OperationKind

Options = Mapping[str, Any]
LIBRARIES = ("numpy", "jax", "torch")


class ArrayLibrary(Protocol):
    """What a backend asks of a library of arrays."""

    name: str
    datatypes: frozenset[str]

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported."""
        ...

    @property
    def device(self) -> str:
        """What it computes on."""
        ...

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array of the library's own."""
        ...

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of NumPy's."""
        ...

    def compute(self, kind: OperationKind, operands: Sequence[Any], options: Options) -> Any:
        """Return the result of an operation when it is there."""
        ...


_REAL = ("float64", "float32", "float16")
_WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")


def half_precision() -> Any:
    """Return NumPy's datatype of bfloat16, which comes with JAX."""
    import ml_dtypes  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - comes with JAX

    return np.dtype(ml_dtypes.bfloat16)


def datatype_named(name: str) -> Any:
    """Return NumPy's datatype of a name.

    Raises:
        UsageError: no library here has numbers of it.
    """
    if name == "bfloat16":
        return half_precision()
    try:
        return np.dtype(name)
    except TypeError:
        known = ", ".join((*_REAL, "bfloat16", *_WHOLE))
        raise UsageError(
            f"no library here has arrays of {name}; use one of {known}, or an ArraySpec where only the price matters",
            datatype=name,
        ) from None


class _NumpyNames:
    """NumPy, with the one function that it lacks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def cast(x: Any, datatype: str) -> Any:
        """Return an array with another datatype."""
        return np.asarray(x).astype(datatype_named(datatype))


@final
class NumpyLibrary:
    """NumPy on the CPU."""

    name = "numpy"
    datatypes = frozenset({*_REAL, *_WHOLE})
    is_installed = True
    _names = _NumpyNames()

    @property
    def device(self) -> str:
        """The processor."""
        return cpu_name()

    def put(self, array: NDArray[Any]) -> Any:
        """Return the array as it is."""
        return array

    def get(self, array: Any) -> NDArray[Any]:
        """Return the array as it is."""
        return np.asarray(array)

    def compute(self, kind: OperationKind, operands: Sequence[Any], options: Options) -> Any:
        """Return the result."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # as the other libraries do
            return np.asarray(kind.compute(self._names, *operands, **options))


class _JaxNames:
    """`jax.numpy`, with the one function that it lacks."""

    def __getattr__(self, name: str) -> Any:
        import jax.numpy as jnp  # noqa: PLC0415 - JAX is heavy

        return getattr(jnp, name)

    @staticmethod
    def cast(x: Any, datatype: str) -> Any:
        """Return an array with another datatype."""
        return x.astype(datatype)


@final
class JaxLibrary:
    """JAX on its default device, one operation at a time."""

    name = "jax"
    datatypes = frozenset({*_REAL, "bfloat16", *_WHOLE})
    _names = _JaxNames()

    @property
    def is_installed(self) -> bool:
        """Whether JAX can be imported."""
        return importlib.util.find_spec("jax") is not None

    @property
    def device(self) -> str:
        """What JAX calls its default device; the processor's name on a CPU."""
        import jax  # noqa: PLC0415 - JAX is heavy

        found = jax.devices()[0]
        return cpu_name() if found.platform == "cpu" else str(found.device_kind)

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array on the default device."""
        import jax  # noqa: PLC0415

        with jax.enable_x64(True):
            return jax.numpy.asarray(array)

    def get(self, array: Any) -> NDArray[Any]:
        """Return a copy in the host's memory."""
        return np.asarray(array)

    def compute(self, kind: OperationKind, operands: Sequence[Any], options: Options) -> Any:
        """Return the result, waited for."""
        import jax  # noqa: PLC0415

        with jax.enable_x64(True):
            wait: Callable[[Any], Any] = jax.block_until_ready
            return wait(kind.compute(self._names, *operands, **options))


class _TorchNames:
    """torch by NumPy's names."""

    _others: ClassVar = {"power": "pow", "not_equal": "ne", "equal": "eq"}

    def __getattr__(self, name: str) -> Any:
        return getattr(_torch(), self._others.get(name, name))

    @staticmethod
    def cast(x: Any, datatype: str) -> Any:
        """Return an array with another datatype."""
        return x.to(getattr(_torch(), datatype))

    @staticmethod
    def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """Return the largest elements along some axes."""
        return _torch().amax(x, dim=() if axis is None else axis, keepdim=keepdims)


def _torch() -> Any:
    import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra

    return torch


@final
class TorchLibrary:
    """torch, eagerly, on a GPU if there is one."""

    name = "torch"
    datatypes = frozenset({*_REAL, "bfloat16", *_WHOLE})
    _names = _TorchNames()

    @property
    def is_installed(self) -> bool:
        """Whether torch can be imported."""
        return importlib.util.find_spec("torch") is not None

    @property
    def _place(self) -> str:
        return "cuda" if _torch().cuda.is_available() else "cpu"

    @property
    def device(self) -> str:
        """The GPU's name, or the processor's."""
        return cpu_name() if self._place == "cpu" else str(_torch().cuda.get_device_name())

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
            return np.asarray(host.view(torch.int16).numpy()).view(half_precision())
        return np.asarray(host.numpy())

    def compute(self, kind: OperationKind, operands: Sequence[Any], options: Options) -> Any:
        """Return the result, waited for; truth values are given to torch by tensors, and numbers by scalars of them."""
        torch = _torch()
        like = next((each for each in operands if torch.is_tensor(each) and each.is_floating_point()), None)
        made = [self._tensor(each, like) for each in operands]
        result = kind.compute(self._names, *made, **{name: _index(value) for name, value in options.items()})
        if self._place == "cuda":
            torch.cuda.synchronize()
        return result

    def _tensor(self, operand: Any, like: Any) -> Any:
        """Return a number as a tensor without dimensions, which changes no datatype."""
        torch = _torch()
        if torch.is_tensor(operand) or isinstance(operand, list | tuple):
            return operand
        datatype = None if like is None else like.dtype
        return torch.as_tensor(operand, dtype=datatype, device=self._place)


def _index(value: Any) -> Any:
    """Return an option as torch takes it: arrays of places as tensors."""
    if isinstance(value, tuple):
        return tuple(map(_index, value))
    return _torch().from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def library_named(name: str) -> ArrayLibrary:
    """Return a library by its name, whether it is installed or not."""
    made: dict[str, type[Any]] = {"numpy": NumpyLibrary, "jax": JaxLibrary, "torch": TorchLibrary}
    found: ArrayLibrary = made[name]()
    return found
