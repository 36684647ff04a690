"""Devices of many kinds, by the specification's names: what they can do, what they compute, and what that costs.

Open `abstraction_layer` first: it computes an operation on any backend.

| module | what it does |
|---|---|
| `taxonomy` | what a device is, what it can do, and which ones this machine has |
| `operations` | what the abstraction layer computes, and the libraries of arrays that compute it |
| `abstraction_layer` | backends and fallbacks between them; runs code written for NumPy on one, as `prove` asks |
| `profiler` | what a device reaches, and whether it does what its config claims |
| `workloads` | operations on named arrays, cut by samples, fused, and kept within a memory |
| `workload_manager` | which device computes what, in which batch and precision, and what moves for it |
| `orchestrator` | computes a workload on several devices, also when one dies |
| `timeline` | says when everything of that happens: units, links, power and heat |
"""

from minitrain.machine.heterogeneous.abstraction_layer import (
    DeviceFailure,
    Execution,
    FailingBackend,
    HardwareAbstractionLayer,
    HardwareBackend,
    HostBackend,
    NoBackendError,
    Placed,
    PlacedArray,
    SimulatedBackend,
    place_of,
    standard_layer,
)
from minitrain.machine.heterogeneous.operations import OPERATIONS
from minitrain.machine.heterogeneous.orchestrator import (
    DeviceCoordinator,
    LayerCoordinator,
    LimitedBackend,
    MultiDeviceOrchestrator,
    OrchestratedRun,
    Recovery,
    share_devices,
)
from minitrain.machine.heterogeneous.profiler import Claim, ComprehensiveHardwareProfiler, Suite, VerificationReport
from minitrain.machine.heterogeneous.taxonomy import (
    DetectedDevice,
    EnhancedHardwareDetector,
    EnhancedHardwareTaxonomy,
    HardwareCapabilityProfile,
    HardwareClass,
    HardwareRelationship,
    HardwareTaxonomy,
    PrecisionType,
    profiles_of,
)
from minitrain.machine.heterogeneous.workload_manager import (
    DataMovementOptimizer,
    DataMovementPlan,
    HardwareAwareWorkloadManager,
    HeterogeneousScheduler,
    Move,
    ScheduledTask,
    SynchronizationManager,
)
from minitrain.machine.heterogeneous.workloads import (
    ArraySpec,
    EnhancedTestTask,
    EnhancedWorkloadProfile,
    Fusion,
    FusionRule,
    MemoryPlan,
    TestTask,
    WorkloadOperation,
    WorkloadProfile,
    split_by_samples,
)

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
    "LimitedBackend",
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
    "share_devices",
    "split_by_samples",
    "standard_layer",
]
