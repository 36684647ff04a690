"""Device simulators: predict how long a program takes on a device that need not be at hand.

Nothing here knows ranks or events.

Open `simulator` first: it predicts a program from its FLOPs and bytes, as the specification does (fidelity="seed") or
operation by operation (the default), for each kind of device (GPU, TPU, CPU, ASIC); a training step is priced by
machine/device.py.

| module | what it does |
|---|---|
| `device_spec` | what it knows of a device |
| `operations` | programs as lists of operations, and how full each keeps the units of a device |
| `jax_programs`, `torch_programs` | a JAX function, or a graph of torch, as a program |
| `layer` | a JAX function as the layer of a training step |
| `calibration` | measures the machine at hand and writes its config |
| `evidence` | compares predictions with the machine at hand, on networks too |
"""

from minitrain.machine.devices.device_spec import A100_SPEC, DeviceSpec
from minitrain.machine.devices.operations import (
    Analysis,
    KernelLaunch,
    MatmulShape,
    Operation,
    Program,
    matmul,
    occupancy,
    wave_efficiency,
)
from minitrain.machine.devices.simulator import (
    AsicSimulator,
    CpuSimulator,
    DeviceSimulator,
    GpuSimulator,
    NvidiaA100Simulator,
    OperationTime,
    SimulationResult,
    TpuSimulator,
    make_simulator,
)

__all__ = [
    "A100_SPEC",
    "Analysis",
    "AsicSimulator",
    "CpuSimulator",
    "DeviceSimulator",
    "DeviceSpec",
    "GpuSimulator",
    "KernelLaunch",
    "MatmulShape",
    "NvidiaA100Simulator",
    "Operation",
    "OperationTime",
    "Program",
    "SimulationResult",
    "TpuSimulator",
    "make_simulator",
    "matmul",
    "occupancy",
    "wave_efficiency",
]
