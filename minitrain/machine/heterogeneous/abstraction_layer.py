"""The hardware abstraction layer: one call computes an operation on any backend.

A backend is registered for a class of hardware or under the name of one device. An operation is asked for with the
hardware that is preferred. Where that is not there, or cannot do it, or has died, the next of its fallback chain is
tried; if none can, one error lists what was tried and why it could not. A user's mistake (operands whose shapes do not
fit) is raised at once, without a fallback. What drivers, runtimes and workers raise is a device's failure: RuntimeError
(those of CUDA and XLA are), MemoryError, OSError (a broken connection, a TimeoutError), EOFError. A `LimitedBackend`
makes a TimeoutError of a hang.

Operands may be NumPy's arrays or `Placed` ones, which lie on a backend. They are moved where they are needed, and the
layer counts every byte that moves between backends.

| backend | computes | seconds |
|---|---|---|
| `HostBackend` | by a library of arrays on this machine: NumPy, JAX or torch | measured, until the result is there |
| `SimulatedBackend` | by such a library too | those of a hardware config, as device simulators price them |

A simulated backend has its config's memory and precisions: what the device could not compute is refused. Its numbers
are the host's in the datatype of the operands. Left out: rounding inside a device's matrix units, and a float8 of its
own, which no library here computes with. To add a backend, write a class with the methods of `HardwareBackend`;
`FailingBackend` is an example that wraps one.

A `PlacedArray` takes part in NumPy's protocols (NEP 13 and NEP 18), so that code written for NumPy runs on a backend:
`np.tanh(x) @ weight` asks the layer for a tanh and a matrix multiplication as soon as one operand is placed, and the
result is placed too. What the layer has no operation for (sorting, cumulative sums) is done by NumPy on the host, and
real results are put back. `Place.on_host` counts these by name. `np.asarray` copies an array to the host. Left out:
writing into a part of an array on the device; such a write goes over the host, too.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from minitrain.errors import HardwareConfigError, MinitrainError, UsageError, one_of
from minitrain.machine import SystemConfig, load_config, shipped_configs
from minitrain.machine.devices.calibration import find_backend
from minitrain.machine.devices.operations import ELEMENT_BYTES, Operation, known_datatype
from minitrain.machine.devices.simulator import make_simulator
from minitrain.machine.heterogeneous.operations import (
    LIBRARIES,
    MATRIX_DIMS,
    OPERATIONS,
    ArrayLibrary,
    OperationKind,
    Options,
    Request,
    datatype_named,
    datatype_of,
    flat,
    library_named,
    mapped,
    operation_named,
)
from minitrain.machine.heterogeneous.taxonomy import HardwareCapabilityProfile, HardwareClass, Key, shown_key


class NoBackendError(MinitrainError):
    """No backend could compute an operation; the message lists what was tried."""


class DeviceFailure(MinitrainError):  # noqa: N818 - it is what happened, as in the specification
    """A device has died: what it held is lost, and it computes nothing any more."""


_DEVICE_ERRORS = (RuntimeError, MemoryError, OSError, EOFError)


@contextmanager
def _failures_of(backend: HardwareBackend) -> Iterator[None]:
    """Let errors of a device's driver, runtime or worker be failures of the device.

    Raises:
        DeviceFailure: there was one; it is the cause.
    """
    try:
        yield
    except (MinitrainError, NotImplementedError, RecursionError):
        raise  # not what a device does
    except _DEVICE_ERRORS as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise DeviceFailure(f"{backend.name} has failed with {said:.200}", device=backend.name) from error


Timed = tuple[Any, float]
"""A result, and how long it took, s."""


class HardwareBackend(Protocol):
    """What the abstraction layer asks of a backend.

    The orchestrator calls it from a thread of each device that it serves.

    Attributes:
        name: what messages and counts call it.
        is_priced: whether its seconds are prices, and not measured.
    """

    name: str
    is_priced: bool

    def reason_unavailable(self) -> str | None:
        """Return why it cannot be used on this machine, or None."""

    def reason_unsupported(self, cost: Operation, datatype: str) -> str | None:
        """Return why it cannot compute an operation with a datatype, or None."""

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array in the device's memory."""

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array in the host's memory."""

    def execute(self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation) -> Timed:
        """Return the result of an operation, and how long it took, s.

        Args:
            kind: the operation.
            operands: arrays of the device's own, and plain numbers.
            options: of the operation.
            cost: what it costs.

        Raises:
            DeviceFailure: the device has died.
        """


class HostBackend:
    """A library of arrays on this machine.

    Args:
        library: "numpy", "jax" or "torch", or one of your own.
        clock: what seconds are read from.

    Attributes:
        put: makes an array of the library's.
        get: makes an array of NumPy's.
    """

    is_priced = False

    def __init__(
        self, library: str | ArrayLibrary = "numpy", *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.library = library_named(library) if isinstance(library, str) else library
        self.name = self.library.name
        self.put, self.get = self.library.put, self.library.get
        self._clock = clock

    def reason_unavailable(self) -> str | None:
        """Return that the library is not installed, if it is not."""
        return None if self.library.is_installed else f"{self.name} is not installed"

    def reason_unsupported(self, cost: Operation, datatype: str) -> str | None:  # noqa: ARG002  (a config's rates matter)
        """Return that the library has no such datatype, if it has none."""
        return None if datatype in self.library.datatypes else f"{self.name} does not compute with {datatype}"

    def execute(self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation) -> Timed:  # noqa: ARG002  (it is measured)
        """Return the result, and how long it took until it was there."""
        start = self._clock()
        result = self.library.compute(kind, operands, options)
        return result, self._clock() - start


class SimulatedBackend:
    """A simulated device: it computes on the host, and takes the seconds that its hardware config prices.

    Args:
        device: a hardware config, or what `load_config` loads.
        libraries: what may compute on the host; the first one that has the datatype does.
        fidelity: of the prices, as for `minitrain.devices.make_simulator`.

    Attributes:
        price: how long an operation takes on the device, s; a HardwareConfigError where the config has no rate for it.

    Raises:
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """

    is_priced = True

    def __init__(
        self, device: str | SystemConfig, libraries: Sequence[str] = LIBRARIES, fidelity: str = "default"
    ) -> None:
        self.device = load_config(device)
        self.name = self.device.name
        self.simulator = make_simulator(self.device, fidelity)
        self.price: Callable[[Operation], float] = functools.cache(self.simulator.predict)
        self._libraries = [library_named(name) for name in libraries]

    def reason_unavailable(self) -> str | None:
        """Return None: NumPy is always there."""
        return None

    def reason_unsupported(self, cost: Operation, datatype: str) -> str | None:
        """Return why the device, or every library on the host, cannot do it."""
        if self._library(datatype) is None:
            return f"no library on this machine computes with {datatype}"
        if cost.bytes > self.device.mem1.capacity_bytes:
            return f"{cost.bytes:,.0f} bytes are more than the {self.device.mem1.capacity_bytes:,} that {self.name} has"
        try:
            self.price(cost)
        except HardwareConfigError as error:
            return str(error)
        return None

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array as the host's library has it."""
        return self._of(array).put(array)

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of NumPy's."""
        return self._of(array).get(array)

    def execute(self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation) -> Timed:
        """Return the result by the host, and the device's price."""
        library = self._of(next((each for each in flat(operands) if hasattr(each, "dtype")), None))

        def moved(operand: Any) -> Any:
            is_there = not hasattr(operand, "dtype") or self._of(operand) is library
            return operand if is_there else library.put(self.get(operand))

        return library.compute(kind, [mapped(moved, each) for each in operands], options), self.price(cost)

    def _library(self, datatype: str) -> ArrayLibrary | None:
        """Return the first library that is there and has a datatype."""
        found = (each for each in self._libraries if datatype in each.datatypes and each.is_installed)
        return next(found, None)

    def _of(self, array: Any) -> ArrayLibrary:
        """Return the library that arrays of a datatype are of."""
        return self._library(datatype_of(array)) or self._libraries[0]


class FailingBackend:
    """A backend that dies after some operations, for tests of failures; a death is noticed only by use.

    Args:
        inner: what computes until then.
        after: operations that it still computes.
    """

    def __init__(self, inner: HardwareBackend, after: int) -> None:
        self.inner = inner
        self.after = after
        self.name, self.is_priced, self.put = inner.name, inner.is_priced, inner.put
        self.reason_unavailable, self.reason_unsupported = inner.reason_unavailable, inner.reason_unsupported

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of the inner backend's.

        Raises:
            DeviceFailure: it has died.
        """
        self._require_alive()
        return self.inner.get(array)

    def execute(self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation) -> Timed:
        """Return the inner backend's result.

        Raises:
            DeviceFailure: it has died.
        """
        self._require_alive()
        self.after -= 1
        return self.inner.execute(kind, operands, options, cost)

    def _require_alive(self) -> None:
        if self.after <= 0:
            raise DeviceFailure(f"{self.name} has died, and what it held is lost", device=self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An array that lies on a backend.

    Args:
        backend: where.
        array: the backend's own.
    """

    backend: HardwareBackend
    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.array.shape)

    @property
    def datatype(self) -> str:
        """The name of its datatype."""
        return datatype_of(self.array)

    @property
    def num_bytes(self) -> int:
        """How large it is, bytes."""
        return math.prod(self.shape) * ELEMENT_BYTES[known_datatype(self.datatype)]

    def numpy(self) -> NDArray[Any]:
        """Return its numbers in the host's memory.

        Raises:
            DeviceFailure: its device has died.
        """
        with _failures_of(self.backend):
            return self.backend.get(self.array)


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """An operation that was computed.

    Args:
        op_type: the operation.
        result: where its result lies.
        backend: the name of what computed it.
        seconds: how long it took: measured, or the price of a simulated device.
        is_priced: whether it is a price.
        cost: what it cost: FLOPs and bytes.
        moved_bytes: what was moved to the backend for it.
        refused: what was tried before, with the reason why it could not.
    """

    op_type: str
    result: Placed
    backend: str
    seconds: float
    is_priced: bool
    cost: Operation
    moved_bytes: int
    refused: tuple[tuple[str, str], ...] = ()


class HardwareAbstractionLayer:
    """Backends, and the fallbacks for one that cannot compute an operation.

    Attributes:
        hardware_backends: by class of hardware, or name of a device.
        fallback_chains: what is tried after it, in order.
        executed: how many operations each backend has computed.
        moved_bytes: what was moved to each backend so far.

    Example:
        >>> hal = HardwareAbstractionLayer()
        >>> hal.register_backend(HardwareClass.CPU, HostBackend("numpy"))
        >>> hal.execute_operation("matmul", {"x": np.eye(2), "y": np.ones((2, 1))}, HardwareClass.CPU).ravel()
        array([1., 1.])
    """

    def __init__(self) -> None:
        self.hardware_backends: dict[Key, HardwareBackend] = {}
        self.fallback_chains: dict[Key, list[Key]] = {}
        self.executed: Counter[str] = Counter()
        self.moved_bytes: Counter[str] = Counter()
        self._counting = Lock()

    def register_backend(self, hardware_class: Key, backend_implementation: HardwareBackend) -> None:
        """Register a backend for a class of hardware or one device, in the place of one that was there.

        Raises:
            UsageError: it is no backend; what it lacks is named.
        """
        wanted = ("name", "is_priced", "reason_unavailable", "reason_unsupported", "put", "get", "execute")
        lacking = [name for name in wanted if not hasattr(backend_implementation, name)]
        if lacking:
            raise UsageError(
                f"a backend for {shown_key(hardware_class)} needs {', '.join(wanted)}, and "
                f"{type(backend_implementation).__name__} lacks {', '.join(lacking)}; see HardwareBackend"
            )
        self.hardware_backends[hardware_class] = backend_implementation

    def define_fallback_chain(self, primary_hardware: Key, fallback_sequence: Sequence[Key]) -> None:
        """Set what is tried, in order, where some hardware cannot compute an operation.

        Raises:
            UsageError: the sequence names the hardware itself, or the same twice.
        """
        chain = list(fallback_sequence)
        if primary_hardware in chain or len(set(chain)) < len(chain):
            raise UsageError(
                f"the fallback chain of {shown_key(primary_hardware)} must name others, each once, got "
                f"{', '.join(map(shown_key, chain))}; leave out what is there twice"
            )
        self.fallback_chains[primary_hardware] = chain

    def candidates(self, preferred_hardware: Key | None = None) -> list[Key]:
        """Return what is tried, in order: the preferred hardware and its chain; all that is registered if None."""
        if preferred_hardware is None:
            return list(self.hardware_backends)
        return [preferred_hardware, *self.fallback_chains.get(preferred_hardware, ())]

    def execute_operation(
        self, op_type: str, inputs: Mapping[str, Any], preferred_hardware: Key | None = None
    ) -> NDArray[Any]:
        """Compute an operation on the preferred hardware or what takes its place, and return its numbers.

        Args:
            op_type: its name; `minitrain.heterogeneous.OPERATIONS` has all.
            inputs: its operands and options by name.
            preferred_hardware: a class of hardware, or the name of a device.

        Raises:
            UsageError: there is no such operation, or its operands do not go together.
            NoBackendError: nothing that was tried could compute it.
            DeviceFailure: an operand lay on another device, which has died.
        """
        return self.execute(op_type, inputs, preferred_hardware).result.numpy()

    def execute(self, op_type: str, inputs: Mapping[str, Any], preferred_hardware: Key | None = None) -> Execution:
        """Compute an operation and leave its result where it is; arguments and errors as for `execute_operation`."""
        asked = _request(op_type, inputs)
        refused: list[tuple[str, str]] = []
        for key in self.candidates(preferred_hardware):
            reason = self._refusal(key, asked)
            if reason is None:
                backend = self.hardware_backends[key]
                try:
                    return self._execute(backend, asked, tuple(refused))
                except DeviceFailure as error:
                    if error.device not in (None, backend.name):
                        raise  # an operand is lost, and no other backend has it
                    reason = str(error)
            refused.append((shown_key(key), reason))
        raise _nothing_left(op_type, preferred_hardware, refused)

    def execute_on(self, key: Key, op_type: str, inputs: Mapping[str, Any]) -> Execution:
        """Compute an operation on one backend and no other; arguments and errors as for `execute_operation`.

        Raises:
            DeviceFailure: it has died.
        """
        asked = _request(op_type, inputs)
        reason = self._refusal(key, asked)
        if reason is not None:
            raise _nothing_left(op_type, key, [(shown_key(key), reason)])
        return self._execute(self.hardware_backends[key], asked)

    def backend(self, key: Key) -> HardwareBackend:
        """Return what is registered for a class of hardware or a device.

        Raises:
            UsageError: nothing is.
        """
        found = self.hardware_backends.get(key)
        if found is None:
            known = [shown_key(each) for each in self.hardware_backends]
            raise UsageError(
                f"no backend is registered for {shown_key(key)}; {one_of(shown_key(key), known)}; "
                "or call register_backend"
            )
        return found

    def key_of(self, device: HardwareCapabilityProfile) -> Key:
        """Return under which key the backend of a device is registered: its name, that of its config, or its class.

        Raises:
            NoBackendError: under none of them.
        """
        keys: tuple[Key, ...] = (device.name, device.device.name, device.hardware_class)
        found = [key for key in keys if key in self.hardware_backends]
        if not found:
            raise NoBackendError(
                f"{device.name} has no backend; tried {device.name!r}, {device.device.name!r} and class "
                f"{device.hardware_class.value}; register_backend({device.name!r}, SimulatedBackend(...))",
                device=device.name,
            )
        return found[0]

    def put(self, array: Any, key: Key) -> Placed:
        """Move an array to a backend, and count its bytes; one that lies there is returned as it is."""
        return self._put(_as_array(array), self.backend(key))[0]

    def _refusal(self, key: Key, asked: Request) -> str | None:
        """Return why some hardware cannot compute an operation, or None."""
        backend = self.hardware_backends.get(key)
        if backend is None:
            return "no backend is registered for it"
        return backend.reason_unavailable() or backend.reason_unsupported(asked.cost, asked.datatype)

    def _execute(
        self, backend: HardwareBackend, asked: Request, refused: tuple[tuple[str, str], ...] = ()
    ) -> Execution:
        """Compute an operation on a backend."""
        moved = 0

        def placed(operand: Any) -> Any:
            nonlocal moved
            if _is_number(operand):
                return operand
            there, num_bytes = self._put(operand, backend)
            moved += num_bytes
            return there.array

        operands = [mapped(placed, each) for each in asked.operands]
        with _failures_of(backend):
            result, seconds = backend.execute(asked.kind, operands, asked.options, asked.cost)
        with self._counting:
            self.executed[backend.name] += 1
        lies = Placed(backend, result)
        return Execution(asked.kind.name, lies, backend.name, seconds, backend.is_priced, asked.cost, moved, refused)

    def _put(self, array: Any, backend: HardwareBackend) -> tuple[Placed, int]:
        """Return an array on a backend, and how many bytes were moved for it."""
        if isinstance(array, Placed) and array.backend is backend:
            return array, 0
        array = array.numpy() if isinstance(array, Placed) else array
        with _failures_of(backend):
            placed = Placed(backend, backend.put(array))
        with self._counting:
            self.moved_bytes[backend.name] += array.nbytes
        return placed, int(array.nbytes)


def _nothing_left(op_type: str, preferred: Key | None, refused: Sequence[tuple[str, str]]) -> NoBackendError:
    """Return the one error that lists what was tried."""
    tried = "; ".join(f"{name}: {reason}" for name, reason in refused)
    wanted = "" if preferred is None else f" preferred on {shown_key(preferred)}"
    remedy = "register a backend" if preferred is None else "define_fallback_chain with one that can"
    return NoBackendError(
        f"no backend can compute {op_type}{wanted}; tried {tried or 'none, since none is registered'}; {remedy}",
        op_type=op_type,
        tried=tuple(refused),
    )


def standard_layer() -> HardwareAbstractionLayer:
    """Return a layer with NumPy, JAX and torch, and a simulated backend for every shipped hardware config.

    The class CPU stands for NumPy too, and NumPy is the last fallback of every other.
    """
    hal = HardwareAbstractionLayer()
    for name in LIBRARIES:
        hal.register_backend(name, HostBackend(name))
    hal.register_backend(HardwareClass.CPU, hal.hardware_backends["numpy"])
    for name in shipped_configs():
        hal.register_backend(name, SimulatedBackend(name))
    for key in (*hal.hardware_backends, *HardwareClass):
        if key not in ("numpy", HardwareClass.CPU):
            hal.define_fallback_chain(key, ["numpy"])
    return hal


def _request(op_type: str, inputs: Mapping[str, Any]) -> Request:
    """Return an operation that is asked for, with its operands as arrays."""
    names = operation_named(op_type).operands
    return Request.of(op_type, {name: _as_array(each) if name in names else each for name, each in inputs.items()})


def _is_number(operand: Any) -> bool:
    """Return whether an operand is a plain number, which takes the datatype of what it meets."""
    return isinstance(operand, bool | int | float)


def _as_array(value: Any) -> Any:
    """Return an operand as an array, a list of arrays, a plain number, or a placed array as it is."""
    if isinstance(value, PlacedArray):
        return value.placed
    if isinstance(value, Placed) or _is_number(value):
        return value
    if isinstance(value, list | tuple) and any(hasattr(each, "shape") for each in value):
        return [_as_array(each) for each in value]
    found = np.asarray(value)
    if found.dtype == object:
        raise UsageError(f"an operand must be an array of numbers, got {value!r:.60}; use numpy.array")
    return found


_MADE_ANEW = {"zeros_like": np.zeros, "ones_like": np.ones, "empty_like": np.zeros}
_RENAMED = {"amax": "max", "abs": "absolute"}
_RENAMED |= {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "invert": "logical_not"}


_FACTS: Mapping[str, Callable[[PlacedArray], Any]] = {
    "shape": lambda x: x.shape,
    "ndim": lambda x: x.ndim,
    "result_type": lambda x: x.dtype,
    "iscomplexobj": lambda _: False,
}
"""What functions of NumPy's ask of an array without computing."""


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
        return PlacedArray(self, self.layer.execute(op_type, inputs, self.key).result)

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
    found: dict[str, Place] = {}
    for name in backends:
        find_backend(name)
        if name not in found:
            layer.register_backend(name, HostBackend(name))
            found[name] = Place(layer, name)
    return tuple(found[name] for name in backends)


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
            return self._write_at(ufunc, *inputs)
        if method == "__call__" and op_type in OPERATIONS and not named:
            result = self.place.compute(op_type, **dict(zip(OPERATIONS[op_type].operands, inputs, strict=True)))
        else:
            result = self.place.by_numpy(getattr(ufunc, method), inputs, named)
        return result if out is None else _written(out[0], result)

    def _write_at(self, ufunc: Any, target: Any, *others: Any) -> None:
        """Write into places of an array, over the host."""
        home = _home(target)
        self.place.on_host[f"{ufunc.__name__}.at"] += 1
        ufunc.at(home, *_home(others))
        if isinstance(target, PlacedArray):
            target.placed = self.place.put(home).placed

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Compute any other function of NumPy's."""
        name = _RENAMED.get(func.__name__, func.__name__)
        if name in _FACTS:
            return _FACTS[name](*args)
        if name == "reshape":  # whose shape may be an array
            return args[0].reshape(tuple(map(int, np.atleast_1d(args[1]))))
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
        return math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        """Its datatype, as NumPy's."""
        return datatype_named(self.placed.datatype)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of NumPy's arrays, such as `sum`: the layer's operation of that name, on this array."""
        if name not in ("sum", "mean", "max", "swapaxes"):
            raise AttributeError(f"a PlacedArray has no {name}; np.asarray copies it to the host")
        options = OPERATIONS[name].options
        return lambda *given, **named: self.place.compute(
            name, x=self, **dict(zip(options, given, strict=False)), **named
        )

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """A matrix with rows and columns swapped."""
        return self if self.ndim < MATRIX_DIMS else self.swapaxes(0, 1)

    def reshape(self, *shape: Any) -> Any:
        """Return the same elements in another shape."""
        wanted = shape[0] if len(shape) == 1 else shape
        return self.place.compute("reshape", x=self, shape=(wanted,) if isinstance(wanted, int) else tuple(wanted))

    def view(self, _kind: Any) -> Any:
        """Return the array itself: it is of no kind of NumPy's."""
        return self

    def ravel(self) -> Any:
        """Return all elements in one dimension."""
        return self.reshape(-1)


def _written(target: Any, result: Any) -> Any:
    """Write a result where `out=` or `+=` wants it."""
    if isinstance(target, PlacedArray):
        target.placed = result.placed if isinstance(result, PlacedArray) else target.place.put(result).placed
    else:
        target[...] = _home(result)
    return target


def _home(value: Any) -> Any:
    """Return arguments with all placed arrays in NumPy's memory."""
    if isinstance(value, PlacedArray):
        return value.home()
    if isinstance(value, list | tuple):
        return type(value)(_home(each) for each in value)
    return {name: _home(each) for name, each in value.items()} if isinstance(value, dict) else value
