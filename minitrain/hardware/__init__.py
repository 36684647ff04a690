"""What a machine costs: how long it computes, reads memory and communicates. Numbers go in, seconds come out.

May import: `errors`, `files`, `source_lines`, `operations`, `workloads`, and the names of types from `events`. Nothing
here knows of strategies or of the state of ranks.

Open `predictor` first: it makes the price of an operation out of a workload, a device and a network. `price` says what
a price is, and what every predictor answers. The other files, by what a reader looks for:

| what | files |
|---|---|
| the predictor of a run | `chosen_predictor` makes it, by a `pricing`; `kernel_predictor` prices by kernels |
| a device | `device` (roofline); `kernel_device` (single kernels), by `kernel_rates` or `derived_rates` |
| a network | `network` (one tier), `topology` (which carries what), `rank_placement` |
| how collectives go | `collective_algorithms` (words, and NCCL's rule), `two_level_collectives` |
| transfers by size | `measured_topology`, by a `transfer_curve` |
| times that are given | `fixed_durations`; `measured_layers` with `layer_predictor` |
| times from a profiler | `profiler_traces` with `trace_layers`, `trace_launches` and `trace_ranges` |
| what a framework adds | `platforms` |
| several machines at once | `many_predictors`, by `per_machine` numbers |
| the formulas of `device`, `topology` and `kernel_device` for these | `roofline_fleet`, `kernel_fleet` |
| the description of a machine | `config`, with its `data_sheet`; `config_variation` changes figures |
| its file | `config_files`, `yaml_files`, `profile_files` read it |
| its rules | `config_schema`, `data_sheet_schema`, `config_leaves`; `config_faults` words what is wrong |
| what `minitrain hw` shows of it | `overview`, `figures` |
| how often devices fail | `reliability` |

`clusters` has clusters of unlike devices.
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
