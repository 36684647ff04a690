"""Backends of the hardware abstraction layer: what computes an operation, and how long that took.

| backend | computes | seconds |
|---|---|---|
| `HostBackend` | by a library of arrays on this machine: NumPy, JAX or torch | measured, until the result is there |
| `SimulatedBackend` | by such a library too | those of a hardware config, as device simulators price them |

A simulated backend has its config's memory and precisions: what it holds is counted, and what the device could not
compute is refused. Its numbers are the host's in the datatype of the operands. Left out: rounding inside a device's
matrix units, and a float8 of its own, which no library here computes with.

To add a backend, write a class with the methods of `HardwareBackend`; `FailingBackend` is an example that wraps one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from minitrain.devices.kinds import make_simulator
from minitrain.devices.operations import Operation
from minitrain.errors import HardwareConfigError, MinitrainError
from minitrain.hardware import SystemConfig, load_config
from minitrain.heterogeneous.capabilities import HardwareClass
from minitrain.heterogeneous.libraries import LIBRARIES, ArrayLibrary, Options, library_named
from minitrain.heterogeneous.operations import OperationKind

Clock = Callable[[], float]


class DeviceFailure(MinitrainError):  # noqa: N818 - it is what happened, as in the specification
    """A device has died: what it held is lost, and it computes nothing any more."""


class HardwareBackend(Protocol):
    """What the abstraction layer asks of a backend."""

    @property
    def name(self) -> str:
        """What messages and counts call it."""
        ...

    @property
    def hardware_class(self) -> HardwareClass:
        """What kind of device it is."""
        ...

    @property
    def is_priced(self) -> bool:
        """Whether its seconds are prices, and not measured."""
        ...

    def reason_unavailable(self) -> str | None:
        """Return why it cannot be used on this machine, or None."""
        ...

    def reason_unsupported(self, cost: Operation, datatype: str) -> str | None:
        """Return why it cannot compute an operation with a datatype, or None."""
        ...

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array in the device's memory."""
        ...

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array in the host's memory."""
        ...

    def execute(
        self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation
    ) -> tuple[Any, float]:
        """Return the result of an operation, and how long it took, s.

        Args:
            kind: the operation.
            operands: arrays of the device's own, and plain numbers.
            options: of the operation.
            cost: what it costs.

        Raises:
            DeviceFailure: the device has died.
        """
        ...


@final
class HostBackend:
    """A library of arrays on this machine.

    Args:
        library: "numpy", "jax" or "torch", or one of your own.
        clock: what seconds are read from.
    """

    is_priced = False

    def __init__(self, library: str | ArrayLibrary = "numpy", *, clock: Clock = time.perf_counter) -> None:
        self.library = library_named(library) if isinstance(library, str) else library
        self.name = self.library.name
        self._clock = clock

    @property
    def hardware_class(self) -> HardwareClass:
        """A CPU, unless the library has found something else."""
        if self.name == "numpy" or self.reason_unavailable() is not None:
            return HardwareClass.CPU
        is_host = self.library.device == library_named("numpy").device
        return HardwareClass.CPU if is_host else HardwareClass.GPU

    def reason_unavailable(self) -> str | None:
        """Return that the library is not installed, if it is not."""
        return None if self.library.is_installed else f"{self.name} is not installed"

    def reason_unsupported(self, cost: Operation, datatype: str) -> str | None:  # noqa: ARG002  (a config's rates matter)
        """Return that the library has no such datatype, if it has none."""
        return None if datatype in self.library.datatypes else f"{self.name} does not compute with {datatype}"

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array of the library's."""
        return self.library.put(array)

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of NumPy's."""
        return self.library.get(array)

    def execute(
        self,
        kind: OperationKind,
        operands: Sequence[Any],
        options: Options,
        cost: Operation,  # noqa: ARG002  (what is measured needs none)
    ) -> tuple[Any, float]:
        """Return the result, and how long it took until it was there."""
        start = self._clock()
        result = self.library.compute(kind, operands, options)
        return result, self._clock() - start


@final
class SimulatedBackend:
    """A simulated device: it computes on the host, and takes the seconds that its hardware config prices.

    Args:
        device: a hardware config, or what `load_config` loads.
        libraries: what may compute on the host; the first one that has the datatype does.
        fidelity: of the prices, as for `minitrain.devices.make_simulator`.

    Raises:
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """

    is_priced = True

    def __init__(
        self, device: str | SystemConfig, libraries: Sequence[str] = LIBRARIES, fidelity: str = "default"
    ) -> None:
        self.device = load_config(device)
        self.name = self.device.name
        self.hardware_class = HardwareClass(self.device.sheet.device_class or "asic")
        self.simulator = make_simulator(self.device, fidelity)
        self._libraries = [library_named(name) for name in libraries]
        self._prices: dict[Operation, float] = {}

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

    def price(self, cost: Operation) -> float:
        """Return how long an operation takes on the device, s.

        Raises:
            HardwareConfigError: the config has no rate for it.
        """
        found = self._prices.get(cost)
        if found is None:
            found = self._prices[cost] = self.simulator.predict(cost)
        return found

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array as the host's library has it."""
        return self._of(array).put(array)

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of NumPy's."""
        return self._of(array).get(array)

    def execute(
        self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation
    ) -> tuple[Any, float]:
        """Return the result by the host, and the device's price."""
        library = self._of(next((each for each in _arrays(operands)), np.zeros(())))
        return library.compute(kind, [self._moved(each, library) for each in operands], options), self.price(cost)

    def _moved(self, operand: Any, library: ArrayLibrary) -> Any:
        """Return an operand as a library's array, whichever it was computed by."""
        if isinstance(operand, list | tuple):
            return [self._moved(each, library) for each in operand]
        if not hasattr(operand, "dtype") or self._of(operand) is library:
            return operand
        return library.put(self._of(operand).get(operand))

    def _library(self, datatype: str) -> ArrayLibrary | None:
        """Return the first library that is there and has a datatype."""
        found = (each for each in self._libraries if datatype in each.datatypes and each.is_installed)
        return next(found, None)

    def _of(self, array: Any) -> ArrayLibrary:
        """Return the library that arrays of a datatype are of."""
        return self._library(datatype_of(array)) or self._libraries[0]


@final
class FailingBackend:
    """A backend that dies after some operations, for tests of failures.

    Args:
        inner: what computes until then.
        after: operations that it still computes.
    """

    def __init__(self, inner: HardwareBackend, after: int) -> None:
        self.inner = inner
        self.after = after
        self.name = inner.name
        self.hardware_class = inner.hardware_class
        self.is_priced = inner.is_priced

    def reason_unavailable(self) -> str | None:
        """Return the inner backend's answer: a death is noticed only by use."""
        return self.inner.reason_unavailable()

    def reason_unsupported(self, cost: Operation, datatype: str) -> str | None:
        """Return the inner backend's answer."""
        return self.inner.reason_unsupported(cost, datatype)

    def put(self, array: NDArray[Any]) -> Any:
        """Return the inner backend's array."""
        return self.inner.put(array)

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of the inner backend's.

        Raises:
            DeviceFailure: it has died.
        """
        self._require_alive()
        return self.inner.get(array)

    def execute(
        self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation
    ) -> tuple[Any, float]:
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


def datatype_of(value: Any) -> str:
    """Return the name of an array's datatype, or float64 for a plain number.

    >>> datatype_of(np.zeros(2, np.float32)), datatype_of(1.5)
    ('float32', 'float64')
    """
    found = getattr(value, "dtype", None)
    return "float64" if found is None else str(found).rpartition(".")[2]


def _arrays(operands: Sequence[Any]) -> Sequence[Any]:
    """Return the arrays among operands, those of sequences one by one."""
    found: list[Any] = []
    for each in operands:
        found.extend(_arrays(each) if isinstance(each, list | tuple) else [each] if hasattr(each, "dtype") else [])
    return found
