"""The virtual hardware platform: devices, memories and links that tasks, transfers and whole runs share.

It is a simulation of its own, on SimPy. It simulates any mix of tasks; `minitrain.whatif.replayed_runs` times finished
runs again where their transfers share its links.

Open `platform` first, then `fair_sharing`.

| module | what it does |
|---|---|
| `profile` | what a platform consists of, and the tasks that are submitted to it, as values or in files |
| `links` | links, those of usual clusters and of a hardware config, and the route between two ends |
| `fair_sharing` | the rate of each flow on shared links, transfers and collectives, events at exact moments |
| `platform` | the platform, and what it did as event logs |
| `scenario` | files of hardware and tasks with arrival times |
"""

from minitrain.machine.platform.links import ClusterLinks as ClusterLinks
from minitrain.machine.platform.links import VirtualNetworkLink as VirtualNetworkLink
from minitrain.machine.platform.platform import VirtualHardwarePlatform as VirtualHardwarePlatform
from minitrain.machine.platform.profile import ComputeResult as ComputeResult
from minitrain.machine.platform.profile import ComputeTask as ComputeTask
from minitrain.machine.platform.profile import HardwareResourceProfile as HardwareResourceProfile
from minitrain.machine.platform.profile import TransferResult as TransferResult
from minitrain.machine.platform.profile import VirtualComputeDevice as VirtualComputeDevice
from minitrain.machine.platform.profile import VirtualMemoryDevice as VirtualMemoryDevice
