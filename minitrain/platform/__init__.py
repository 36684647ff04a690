"""The virtual hardware platform: devices, memories and links that tasks, transfers and whole runs share.

It is a simulation of its own, on SimPy. It simulates any mix of tasks, and it times finished runs again where their
transfers share links.

May import: the rooms up to `run`. Open `platform` first, then `fair_sharing`.

| module | what it does |
|---|---|
| `profile`, `devices`, `links`, `topologies`, `routes` | what a platform consists of, and the route between two ends |
| `platform`, `tasks`, `model_params` | the platform, and the tasks that are submitted to it |
| `scenario`, `logs` | a file of hardware and tasks, and what a platform did as event logs |
| `transfers`, `collective_steps` | put transfers and collectives on the links |
| `fair_sharing`, `timers` | the rate of each flow on shared links, and events at exact moments |
| `replayed_runs`, `retimed_run` | finished runs on shared links: the call, and one run of it |
| `rank_routes`, `cluster_links` | the links that a run's transfers take, and those of a hardware config |
"""

from minitrain.platform.cluster_links import ClusterLinks
from minitrain.platform.devices import VirtualComputeDevice, VirtualMemoryDevice
from minitrain.platform.links import VirtualNetworkLink
from minitrain.platform.platform import VirtualHardwarePlatform
from minitrain.platform.profile import HardwareResourceProfile
from minitrain.platform.tasks import ComputeResult, ComputeTask, TransferResult

__all__ = [
    "ClusterLinks",
    "ComputeResult",
    "ComputeTask",
    "HardwareResourceProfile",
    "TransferResult",
    "VirtualComputeDevice",
    "VirtualHardwarePlatform",
    "VirtualMemoryDevice",
    "VirtualNetworkLink",
]
