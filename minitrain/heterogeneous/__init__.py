"""Devices of many kinds in one place, by the specification's names: what they can do, compute and cost.

Open `abstraction_layer` first: it computes an operation on whatever backend is there.

- `capabilities`, `taxonomy`, `detection`: what a device is, what it can do, and which ones this machine has.
- `operations`, `libraries`, `backends`: what the abstraction layer computes, and by what. `placed_array` lets code
  written for NumPy run on a backend, which is how `prove` computes with JAX or torch.
- `benchmarks`, `profiler`: what a device reaches, and whether it does what its config claims.
- `workloads`, `enhanced_workloads`: operations on named arrays. `workload_manager` divides them over devices, with
  `list_scheduling`, `sample_shares`, `memory_plans` and `fusion_rules`; `scheduler` gives whole tasks to devices.
- `orchestrator` computes them there, with `orchestration` (what lies where, and what a failure changes),
  `data_movement` and `steps` (when all that is, on shared links).

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
from minitrain.heterogeneous.benchmarks import Suite
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, HardwareClass, PrecisionType, profiles_of
from minitrain.heterogeneous.data_movement import DataMovementOptimizer, DataMovementPlan, Move, SynchronizationManager
from minitrain.heterogeneous.detection import DetectedDevice, EnhancedHardwareDetector
from minitrain.heterogeneous.enhanced_workloads import EnhancedTestTask, EnhancedWorkloadProfile, TestTask
from minitrain.heterogeneous.fusion_rules import Fusion, FusionRule
from minitrain.heterogeneous.memory_plans import MemoryPlan
from minitrain.heterogeneous.operations import OPERATIONS
from minitrain.heterogeneous.orchestration import DeviceCoordinator, LayerCoordinator, Recovery
from minitrain.heterogeneous.orchestrator import MultiDeviceOrchestrator, OrchestratedRun
from minitrain.heterogeneous.placed_array import PlacedArray, place_of
from minitrain.heterogeneous.profiler import Claim, ComprehensiveHardwareProfiler, VerificationReport
from minitrain.heterogeneous.sample_shares import split_by_samples
from minitrain.heterogeneous.scheduler import HeterogeneousScheduler, ScheduledTask
from minitrain.heterogeneous.taxonomy import EnhancedHardwareTaxonomy, HardwareRelationship, HardwareTaxonomy
from minitrain.heterogeneous.workload_manager import HardwareAwareWorkloadManager
from minitrain.heterogeneous.workloads import ArraySpec, WorkloadOperation, WorkloadProfile

__all__ = [
    "OPERATIONS",
    "ArraySpec",
    "Claim",
    "ComprehensiveHardwareProfiler",
    "DataMovementOptimizer",
    "DataMovementPlan",
    "DetectedDevice",
    "DeviceCoordinator",
    "DeviceFailure",
    "EnhancedHardwareDetector",
    "EnhancedHardwareTaxonomy",
    "EnhancedTestTask",
    "EnhancedWorkloadProfile",
    "Execution",
    "FailingBackend",
    "Fusion",
    "FusionRule",
    "HardwareAbstractionLayer",
    "HardwareAwareWorkloadManager",
    "HardwareBackend",
    "HardwareCapabilityProfile",
    "HardwareClass",
    "HardwareRelationship",
    "HardwareTaxonomy",
    "HeterogeneousScheduler",
    "HostBackend",
    "LayerCoordinator",
    "MemoryPlan",
    "Move",
    "MultiDeviceOrchestrator",
    "NoBackendError",
    "OrchestratedRun",
    "Placed",
    "PlacedArray",
    "PrecisionType",
    "Recovery",
    "ScheduledTask",
    "SimulatedBackend",
    "Suite",
    "SynchronizationManager",
    "TestTask",
    "VerificationReport",
    "WorkloadOperation",
    "WorkloadProfile",
    "place_of",
    "profiles_of",
    "split_by_samples",
    "standard_layer",
]
