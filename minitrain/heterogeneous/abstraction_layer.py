"""The hardware abstraction layer: one call computes an operation on any backend.

A backend is registered for a class of hardware or under the name of one device. An operation is asked for with the
hardware that is preferred. Where that is not there, or cannot do it, or has died, the next of its fallback chain is
tried; if none can, one error lists what was tried and why it could not. A user's mistake (operands whose shapes do not
fit) is raised at once, without a fallback.

Operands may be NumPy's arrays or `Placed` ones, which lie on a backend. They are moved where they are needed, and the
layer counts every byte that moves between backends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from minitrain.devices.operations import Operation
from minitrain.errors import MinitrainError, UsageError
from minitrain.hardware import shipped_configs
from minitrain.heterogeneous.backends import DeviceFailure, HardwareBackend, HostBackend, SimulatedBackend, datatype_of
from minitrain.heterogeneous.capabilities import HardwareClass, Key, shown_key
from minitrain.heterogeneous.libraries import LIBRARIES
from minitrain.heterogeneous.operations import OperationKind, cost_of, operation_named, result_shape, split_inputs
from minitrain.workloads.field_faults import closest


class NoBackendError(MinitrainError):
    """No backend could compute an operation; the message lists what was tried."""


@final
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
        return int(np.prod(self.shape, dtype=np.int64)) * _element_bytes(self.array)

    def numpy(self) -> NDArray[Any]:
        """Return its numbers in the host's memory.

        Raises:
            DeviceFailure: its device has died.
        """
        return self.backend.get(self.array)


@final
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
                f"{type(backend_implementation).__name__} lacks {', '.join(lacking)}; see HardwareBackend",
                lacking=tuple(lacking),
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
            backend, reason = self._able(key, asked)
            if backend is not None:
                try:
                    return self._execute(backend, asked, tuple(refused))
                except DeviceFailure as error:
                    if error.device not in (None, backend.name):
                        raise  # an operand is lost, and no other backend has it
                    reason = str(error)
            refused.append((shown_key(key), reason))
        raise self._nothing_left(op_type, preferred_hardware, refused)

    def execute_on(self, key: Key, op_type: str, inputs: Mapping[str, Any]) -> Execution:
        """Compute an operation on one backend and no other; arguments and errors as for `execute_operation`.

        Raises:
            DeviceFailure: it has died.
        """
        asked = _request(op_type, inputs)
        backend, reason = self._able(key, asked)
        if backend is None:
            raise self._nothing_left(op_type, key, [(shown_key(key), reason)])
        return self._execute(backend, asked, ())

    def backend(self, key: Key) -> HardwareBackend:
        """Return what is registered for a class of hardware or a device.

        Raises:
            UsageError: nothing is.
        """
        found = self.hardware_backends.get(key)
        if found is None:
            known = [shown_key(each) for each in self.hardware_backends]
            raise UsageError(
                f"no backend is registered for {shown_key(key)} {closest(shown_key(key), known)}; registered are "
                f"{', '.join(known) or 'none'}: call register_backend",
                key=key,
            )
        return found

    def put(self, array: Any, key: Key) -> Placed:
        """Move an array to a backend, and count its bytes; one that lies there is returned as it is."""
        return self._put(_as_array(array), self.backend(key))

    def _able(self, key: Key, asked: _Request) -> tuple[HardwareBackend | None, str]:
        """Return the backend for some hardware if it can compute an operation, else why not."""
        backend = self.hardware_backends.get(key)
        if backend is None:
            return None, "no backend is registered for it"
        reason = backend.reason_unavailable() or backend.reason_unsupported(asked.cost, asked.datatype)
        return (backend, "") if reason is None else (None, reason)

    def _execute(self, backend: HardwareBackend, asked: _Request, refused: tuple[tuple[str, str], ...]) -> Execution:
        """Compute an operation on a backend."""
        before = self.moved_bytes[backend.name]
        placed = [self._placed(each, backend) for each in asked.operands]
        result, seconds = backend.execute(asked.kind, placed, asked.options, asked.cost)
        self.executed[backend.name] += 1
        moved = self.moved_bytes[backend.name] - before
        lies = Placed(backend, result)
        return Execution(asked.kind.name, lies, backend.name, seconds, backend.is_priced, asked.cost, moved, refused)

    def _placed(self, operand: Any, backend: HardwareBackend) -> Any:
        """Return an operand as a backend takes it: its own array, or a plain number."""
        if isinstance(operand, list):
            return [self._placed(each, backend) for each in operand]
        if isinstance(operand, bool | int | float):
            return operand
        return self._put(operand, backend).array

    def _put(self, array: Any, backend: HardwareBackend) -> Placed:
        if isinstance(array, Placed):
            if array.backend is backend:
                return array
            array = array.numpy()
        self.moved_bytes[backend.name] += array.nbytes
        return Placed(backend, backend.put(array))

    def _nothing_left(self, op_type: str, preferred: Key | None, refused: Sequence[tuple[str, str]]) -> NoBackendError:
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
    for key in [*hal.hardware_backends, *(each for each in HardwareClass if each is not HardwareClass.CPU)]:
        if key not in ("numpy", HardwareClass.CPU):
            hal.define_fallback_chain(key, ["numpy"])
    return hal


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """An operation that is asked for: its operands are checked, and its cost is known."""

    kind: OperationKind
    operands: list[Any]
    options: dict[str, Any]
    cost: Operation
    datatype: str


def _request(op_type: str, inputs: Mapping[str, Any]) -> _Request:
    """Return an operation with its operands as arrays, and what it costs."""
    kind = operation_named(op_type)
    given, options = split_inputs(kind, inputs)
    operands = [_as_array(each) for each in given]
    shapes = [_shapes(each) for each in operands]
    datatype = _common_datatype(operands)
    cost = cost_of(kind, shapes, result_shape(kind, shapes, options), datatype)
    return _Request(kind, operands, options, cost, datatype)


def _as_array(value: Any) -> Any:
    """Return an operand as an array, a list of arrays, a plain number, or a placed array as it is."""
    if isinstance(value, Placed | bool | int | float):
        return value
    if isinstance(value, list | tuple) and any(hasattr(each, "shape") for each in value):
        return [_as_array(each) for each in value]
    found = np.asarray(value)
    if found.dtype == object:
        raise UsageError(f"an operand must be an array of numbers, got {value!r:.60}; use numpy.array")
    return found


def _shapes(operand: Any) -> Any:
    """Return the shape of an operand, or those of a list of them."""
    return [_shapes(each) for each in operand] if isinstance(operand, list) else getattr(operand, "shape", ())


def _common_datatype(operands: Sequence[Any]) -> str:
    """Return the datatype that an operation computes with: that of its operand with the largest real numbers."""
    names = [_datatype(each) for each in _flat(operands)]
    real = [name for name in names if "float" in name]
    return max(real or names or ["float64"], key=lambda name: _ORDER.get(name, 0))


_ORDER = {"float64": 4, "float32": 3, "bfloat16": 2, "float16": 1}


def _datatype(operand: Any) -> str:
    return operand.datatype if isinstance(operand, Placed) else datatype_of(operand)


def _flat(operands: Sequence[Any]) -> list[Any]:
    """Return all arrays among operands; plain numbers take the datatype of what they meet."""
    found: list[Any] = []
    for each in operands:
        found.extend(_flat(each) if isinstance(each, list) else [] if isinstance(each, bool | int | float) else [each])
    return found


def _element_bytes(array: Any) -> int:
    size = getattr(array, "itemsize", None)
    return int(array.element_size() if size is None or callable(size) else size)
