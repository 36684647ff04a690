"""The virtual hardware platform: devices, memories and links that tasks, transfers and whole runs share.

A SimPy simulation of its own. It lets people simulate any mix of tasks, and it times finished runs again where their
transfers meet on a link. Open `platform` first, then `fair_sharing`.

- `profile`, `devices`, `links`: what a platform consists of. `routes` finds ways, `topologies` makes links.
- `platform`, `tasks`, `model_params`: what is asked of it. `transfers` and `collective_steps` put it on the links.
- `fair_sharing`: what each flow gets of the links that it shares. `clock` keeps moments exact.
- `replaying`, `replay`: finished runs on shared links. `wiring` says what their transfers put on links, `cluster_links`
  makes those of a hardware config.

May import: rooms up to `run`.
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
