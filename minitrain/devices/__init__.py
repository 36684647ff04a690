"""Device simulators: predict how long a program takes on a device that need not be at hand.

May import: `errors`, `files`, `tensors`, `workloads`, `hardware`. Nothing here knows ranks or events.

Open `simulator` first: it predicts a program from its FLOPs and bytes, as the specification does (fidelity="seed") or
operation by operation (the default). `spec` is what it knows of a device, `operations` the program, `result` the
prediction. `kinds` has a simulator for each kind of device (GPU, TPU, CPU, ASIC), and `occupancy` counts what keeps
them full.
Programs come from JAX functions (`jax_programs`, with `jax_flops`, `jax_linear_algebra` and `fusion`) or torch graphs
(`torch_programs`); `programs` tells them apart.

`calibration` measures the machine at hand (with `backends` and `measuring`) and writes its config; `validation`
compares predictions with it, on `sample_networks` too. `simulating` is simulate of `hw`, and `layer` lets a simulator
price a JAX function as the layer of a training step.
"""

from minitrain.devices.kinds import (
    AsicSimulator,
    CpuSimulator,
    GpuSimulator,
    NvidiaA100Simulator,
    TpuSimulator,
    make_simulator,
)
from minitrain.devices.occupancy import occupancy, wave_efficiency
from minitrain.devices.operations import Analysis, KernelLaunch, MatmulShape, Operation, Program, matmul
from minitrain.devices.result import OperationTime, SimulationResult
from minitrain.devices.simulator import DeviceSimulator
from minitrain.devices.spec import A100_SPEC, DeviceSpec

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
