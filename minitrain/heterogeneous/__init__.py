"""Devices of many kinds in one place, by the specification's names: what they can do, compute and cost.

Open `abstraction_layer` first: it computes an operation on whatever backend is there.

- `capabilities`, `taxonomy`, `detection`: what a device is, what it can do, and which ones this machine has.
- `operations`, `libraries`, `backends`: what the abstraction layer computes, by what. `placed_array` lets code written
  for NumPy run on a backend, which is how `mt.prove` computes with JAX or torch.

May import: rooms up to `platform`.
"""

from minitrain.heterogeneous.abstraction_layer import (
    Execution,
    HardwareAbstractionLayer,
    NoBackendError,
    Placed,
    standard_layer,
)
from minitrain.heterogeneous.backends import (
    DeviceFailure,
    FailingBackend,
    HardwareBackend,
    HostBackend,
    SimulatedBackend,
)
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, HardwareClass, PrecisionType
from minitrain.heterogeneous.detection import DetectedDevice, EnhancedHardwareDetector
from minitrain.heterogeneous.operations import OPERATIONS
from minitrain.heterogeneous.placed_array import PlacedArray, place_of
from minitrain.heterogeneous.taxonomy import EnhancedHardwareTaxonomy, HardwareRelationship, HardwareTaxonomy

__all__ = [
    "OPERATIONS",
    "DetectedDevice",
    "DeviceFailure",
    "EnhancedHardwareDetector",
    "EnhancedHardwareTaxonomy",
    "Execution",
    "FailingBackend",
    "HardwareAbstractionLayer",
    "HardwareBackend",
    "HardwareCapabilityProfile",
    "HardwareClass",
    "HardwareRelationship",
    "HardwareTaxonomy",
    "HostBackend",
    "NoBackendError",
    "Placed",
    "PlacedArray",
    "PrecisionType",
    "SimulatedBackend",
    "place_of",
    "standard_layer",
]
