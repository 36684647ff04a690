"""What a machine costs: processor, memory, network tiers, and the config that describes them.

Nothing here knows of ranks' state, of strategies or of events: numbers in, seconds out.
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
