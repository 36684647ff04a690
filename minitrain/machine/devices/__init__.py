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

from minitrain.machine.devices.device_spec import A100_SPEC as A100_SPEC
from minitrain.machine.devices.device_spec import DeviceSpec as DeviceSpec
from minitrain.machine.devices.operations import Analysis as Analysis
from minitrain.machine.devices.operations import KernelLaunch as KernelLaunch
from minitrain.machine.devices.operations import MatmulShape as MatmulShape
from minitrain.machine.devices.operations import Operation as Operation
from minitrain.machine.devices.operations import Program as Program
from minitrain.machine.devices.operations import matmul as matmul
from minitrain.machine.devices.operations import occupancy as occupancy
from minitrain.machine.devices.operations import wave_efficiency as wave_efficiency
from minitrain.machine.devices.simulator import AsicSimulator as AsicSimulator
from minitrain.machine.devices.simulator import CpuSimulator as CpuSimulator
from minitrain.machine.devices.simulator import DeviceSimulator as DeviceSimulator
from minitrain.machine.devices.simulator import GpuSimulator as GpuSimulator
from minitrain.machine.devices.simulator import NvidiaA100Simulator as NvidiaA100Simulator
from minitrain.machine.devices.simulator import OperationTime as OperationTime
from minitrain.machine.devices.simulator import SimulationResult as SimulationResult
from minitrain.machine.devices.simulator import TpuSimulator as TpuSimulator
from minitrain.machine.devices.simulator import make_simulator as make_simulator
