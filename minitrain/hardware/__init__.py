"""What a machine costs: how long it computes, reads memory and communicates. Numbers go in, seconds come out.

May import: `errors`, `source_lines`, `workloads`, and the names of types from `events`. Nothing here knows of
strategies or of the state of ranks.

Open `predictor` first: it makes the price of an operation out of a workload, a device and a network. `price` says what
a price is, and what every predictor answers. `device` is a processor with its memory. `network` is one tier of a
network, and `topology` says which tier carries what. `fixed_durations` is the predictor for durations given by hand.
`kernel_device` and `measured_topology` price single kernels and transfers by what was measured. `many_predictors`
answers for several machines at once, by `PerMachine` numbers; `roofline_fleet` is its quick part. `config` loads the
description of a machine: `config_files` reads it, `config_schema` validates it, and `config_faults` words what is wrong
with it.
"""

from minitrain.hardware.config import SystemConfig, load_config, shipped_configs
from minitrain.hardware.device import Memory, Processor, Rate
from minitrain.hardware.network import Network, select_tier
from minitrain.hardware.topology import FlatTopology, HierarchicalTopology, Topology, Transfer

__all__ = [
    "FlatTopology",
    "HierarchicalTopology",
    "Memory",
    "Network",
    "Processor",
    "Rate",
    "SystemConfig",
    "Topology",
    "Transfer",
    "load_config",
    "select_tier",
    "shipped_configs",
]
