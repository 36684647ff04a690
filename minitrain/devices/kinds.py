"""Kinds of device, by what keeps them full: GPUs, TPUs, CPUs and other accelerators.

| kind | what a matrix multiplication loses |
|---|---|
| GPU | the last wave of tiles, and occupancy where the launch of a kernel is known |
| TPU | filling and draining of systolic arrays, and dimensions that are no multiples of theirs |
| CPU | cores without work, and lanes of vectors that stay empty |
| ASIC | as a TPU where the config has `features.systolic_array`, else nothing |

A convolution counts as the matrix multiplication that it amounts to. Left out: tensor-memory traffic on a TPU, turbo
clocks of a CPU, and what a compiler makes of small loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from minitrain.devices.occupancy import (
    RESERVED_SMEM_BYTES,
    occupancy,
    systolic_efficiency,
    vector_efficiency,
    wave_efficiency,
)
from minitrain.devices.operations import Analysis, MatmulShape, Operation
from minitrain.devices.simulator import DeviceSimulator
from minitrain.devices.spec import A100_SPEC, SPECS, DeviceSpec
from minitrain.hardware import SystemConfig, load_config
from minitrain.hardware.data_sheet import UnitLimits
from minitrain.hardware.device import Rows, efficiency_at
from minitrain.hardware.kernel_device import TILES
from minitrain.hardware.kernel_rates import KernelRates

_TILE_EFFICIENCY: Rows = KernelRates(0, 0, 0, 0, {}, {}).tile_efficiency
_AMPERE = 8.0  # from this compute capability on a block reserves shared memory
_BITS = 8


class GpuSimulator(DeviceSimulator):
    """A GPU: tiles on multiprocessors, in waves.

    Args:
        spec: the device.
        fidelity: "default" or "seed".
        sm_count: multiprocessors; those of the spec's config if None.
        limits: of one multiprocessor; those of the spec's config if None.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        fidelity: str = "default",
        *,
        sm_count: int | None = None,
        limits: UnitLimits | None = None,
    ) -> None:
        super().__init__(spec, fidelity)
        sheet = None if self._device is None else self._device.sheet
        self.sm_count = sm_count or (sheet.num_units if sheet else None)
        self.limits = limits or (sheet.limits if sheet else None)
        capability = sheet.features.get("compute_capability", _AMPERE) if sheet else _AMPERE
        self.reserved_smem_bytes = RESERVED_SMEM_BYTES if float(str(capability)) >= _AMPERE else 0

    def knows_fullness(self, operation: Operation) -> bool:
        """Return whether tiles can be counted."""
        return operation.shape is not None and self.sm_count is not None

    def fullness(self, operation: Operation) -> float:
        """Return occupancy times waves: the best over all sizes of tile, of which small ones are less efficient.

        Raises:
            UsageError: no block of the operation's launch fits on a multiprocessor.
        """
        return self.model_occupancy(operation) * self._waves(operation.shape)

    def model_occupancy(self, analysis: Analysis | Operation) -> float:
        """Return the occupancy of an operation whose launch is known; 1 otherwise, as the specification has it."""
        launch = analysis.launch if isinstance(analysis, Operation) else None
        return (
            1.0 if launch is None or self.limits is None else occupancy(launch, self.limits, self.reserved_smem_bytes)
        )

    def _waves(self, shape: MatmulShape | None) -> float:
        """Return how full waves of tiles are."""
        units = self.sm_count
        if shape is None or units is None:
            return 1.0
        return max(
            wave_efficiency(shape.m, shape.n, units, tile, shape.batch)
            * efficiency_at(_TILE_EFFICIENCY, tile[0] * tile[1], 1)
            for tile in TILES
        )


class NvidiaA100Simulator(GpuSimulator):
    """The specification's A100, with its literal numbers.

    Args:
        fidelity: "default" or "seed".

    Example:
        >>> from minitrain.devices import matmul
        >>> NvidiaA100Simulator().simulate(matmul(2048, 2048, 2048), fidelity="seed").time_ms
        0.9338800684635898
    """

    def __init__(self, fidelity: str = "default") -> None:
        super().__init__(A100_SPEC, fidelity, sm_count=108, limits=UnitLimits(64, 32, 65536, 164 * 1024))


class TpuSimulator(DeviceSimulator):
    """A TPU, or another accelerator: systolic arrays that fill and drain."""

    def knows_fullness(self, operation: Operation) -> bool:
        """Return whether the arrays are known."""
        return operation.shape is not None and self._array() is not None

    def fullness(self, operation: Operation) -> float:
        """Return the share of the arrays' cycles that multiply."""
        array = self._array()
        if operation.shape is None or array is None:
            return 1.0
        return systolic_efficiency(operation.shape, array, self._num_units())

    def _array(self) -> tuple[int, int] | None:
        """Return rows and columns of one array, if the config says so."""
        found = None if self._device is None else self._device.sheet.features.get("systolic_array")
        if not isinstance(found, tuple) or len(found) != 2:
            return None
        return int(found[0]), int(found[1])


class AsicSimulator(TpuSimulator):
    """Any other accelerator: systolic arrays where the config has them, else a roofline."""


class CpuSimulator(DeviceSimulator):
    """A CPU: cores with vector units. Its rows by size say what small operations lose beside that."""

    def fullness(self, operation: Operation) -> float:
        """Return the share of cores and lanes that work."""
        sheet = None if self._device is None else self._device.sheet
        bits = sheet.features.get("vector_bits") if sheet else None
        if operation.shape is None or not isinstance(bits, int | float):
            return 1.0
        lanes = max(1, int(bits) // (_BITS * operation.element_bytes))
        return vector_efficiency(operation.shape, self._num_units(), lanes)


SIMULATORS: Mapping[str, type[DeviceSimulator]] = MappingProxyType(
    {"gpu": GpuSimulator, "tpu": TpuSimulator, "cpu": CpuSimulator, "asic": AsicSimulator, "mcu": CpuSimulator}
)
"""The simulator of each class of device."""


def make_simulator(
    device: str | SystemConfig | DeviceSpec | DeviceSimulator, fidelity: str = "default"
) -> DeviceSimulator:
    """Return the simulator for a device.

    Args:
        device: a hardware config's name, path or value, a named spec ("NVIDIA A100"), a `DeviceSpec`, or a simulator,
            which is returned as it is.
        fidelity: "default" or "seed".

    Raises:
        HardwareConfigError: the config cannot be found or read, or is invalid.
        UsageError: it is none of these, or there is no such fidelity.
    """
    if isinstance(device, DeviceSimulator):
        return device
    if device == A100_SPEC.name or (isinstance(device, DeviceSpec) and device == A100_SPEC):
        return NvidiaA100Simulator(fidelity)
    if isinstance(device, str) and device in SPECS:
        return DeviceSimulator(SPECS[device], fidelity)
    spec = device if isinstance(device, DeviceSpec) else DeviceSpec.from_device(load_config(device))
    sheet = None if spec.device is None else spec.device.sheet
    kind = SIMULATORS.get(sheet.device_class or "", DeviceSimulator) if sheet else DeviceSimulator
    return kind(spec, fidelity)
