"""What a machine costs: processor, memory, network tiers, and the config that describes them.

Numbers go in, seconds come out. Nothing here knows of the state of ranks or of strategies, and of events only the names
of their types.
"""

from minitrain.hardware.config import SystemConfig, load_config, shipped_configs
from minitrain.hardware.memory import Memory
from minitrain.hardware.network import Network, select_tier
from minitrain.hardware.processor import Processor, Rate
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
