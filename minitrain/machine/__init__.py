"""What a machine costs: how long it computes, reads memory and communicates. Numbers go in, seconds come out.

May import: `errors`, `files`, `tensors`, `operations`, `workloads`. Nothing here knows of strategies or of the state of
ranks.

Open `predictor` first: it makes the price of an operation out of a workload, a device and a network. `price` says what
a price is, and what every predictor answers. The other files, by what a reader looks for:

| what | files |
|---|---|
| the predictor of a run | `predictor`: by the roofline, by kernels, or by measured layers |
| a device | `device` (roofline, rates of kernels, data sheet); `kernel_device` (single kernels) |
| clusters of unlike devices | `cluster`, made of `device_groups`; `cluster_network` prices what they do together |
| a network | `network` (one tier), `topology` (which carries what), `measured_topology` |
| times that are given | `given_durations`: by hand, or of real steps; `measured_layers` |
| times from a profiler | `profiler_traces` |
| what a framework adds | `platforms` |
| many machines at once | the same formulas, with `columns` in the place of numbers |
| the description of a machine | `config`, which reads and changes it |
| the rules of its keys | `config_format`: keys are fields with a rule |

`devices` prices programs on single devices, `solver` inferences of models on systems, with units. `platform` simulates
tasks that share devices and links, `heterogeneous` computes on devices of many kinds. Users import these four as
`minitrain.devices`, and so on.
"""

from minitrain.machine.config import SystemConfig as SystemConfig
from minitrain.machine.config import load_config as load_config
from minitrain.machine.config import shipped_configs as shipped_configs
from minitrain.machine.device import Memory as Memory
from minitrain.machine.device import Processor as Processor
from minitrain.machine.device import Rate as Rate
from minitrain.machine.network import Network as Network
from minitrain.machine.network import select_tier as select_tier
from minitrain.machine.topology import FlatTopology as FlatTopology
from minitrain.machine.topology import HierarchicalTopology as HierarchicalTopology
from minitrain.machine.topology import Topology as Topology
from minitrain.machine.topology import Transfer as Transfer
