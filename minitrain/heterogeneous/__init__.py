"""Devices of many kinds, by the specification's names: what they can do, what they compute, and what that costs.

May import: the rooms up to `platform`. Open `abstraction_layer` first: it computes an operation on any backend.

| module | what it does |
|---|---|
| `capabilities`, `taxonomy`, `detection` | what a device is, what it can do, and which ones this machine has |
| `operations`, `libraries`, `backends` | what the abstraction layer computes, and what computes it |
| `placed_array` | runs code written for NumPy on a backend; `prove` computes with JAX or torch by it |
| `benchmark_suite`, `profiler` | what a device reaches, and whether it does what its config claims |
| `workloads`, `enhanced_workloads` | operations on named arrays |
| `workload_manager` | divides a workload over devices, and fits it to each |
| `list_scheduling`, `sample_shares`, `memory_plans`, `fusion_rules` | what the manager decides by |
| `scheduler` | gives whole tasks to devices |
| `orchestrator`, `workload_execution` | compute a workload on several devices, also when one dies |
| `data_movement`, `step_timeline` | which arrays move, and when everything happens on shared links |
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
from minitrain.heterogeneous.benchmark_suite import Suite
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, HardwareClass, PrecisionType, profiles_of
from minitrain.heterogeneous.data_movement import DataMovementOptimizer, DataMovementPlan, Move, SynchronizationManager
from minitrain.heterogeneous.detection import DetectedDevice, EnhancedHardwareDetector
from minitrain.heterogeneous.enhanced_workloads import EnhancedTestTask, EnhancedWorkloadProfile, TestTask
from minitrain.heterogeneous.fusion_rules import Fusion, FusionRule
from minitrain.heterogeneous.memory_plans import MemoryPlan
from minitrain.heterogeneous.operations import OPERATIONS
from minitrain.heterogeneous.orchestrator import MultiDeviceOrchestrator, OrchestratedRun
from minitrain.heterogeneous.placed_array import PlacedArray, place_of
from minitrain.heterogeneous.profiler import Claim, ComprehensiveHardwareProfiler, VerificationReport
from minitrain.heterogeneous.sample_shares import split_by_samples
from minitrain.heterogeneous.scheduler import HeterogeneousScheduler, ScheduledTask
from minitrain.heterogeneous.taxonomy import EnhancedHardwareTaxonomy, HardwareRelationship, HardwareTaxonomy
from minitrain.heterogeneous.workload_execution import DeviceCoordinator, LayerCoordinator, Recovery
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
