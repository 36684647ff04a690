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

from minitrain.machine.heterogeneous.abstraction_layer import DeviceFailure as DeviceFailure
from minitrain.machine.heterogeneous.abstraction_layer import Execution as Execution
from minitrain.machine.heterogeneous.abstraction_layer import FailingBackend as FailingBackend
from minitrain.machine.heterogeneous.abstraction_layer import HardwareAbstractionLayer as HardwareAbstractionLayer
from minitrain.machine.heterogeneous.abstraction_layer import HardwareBackend as HardwareBackend
from minitrain.machine.heterogeneous.abstraction_layer import HostBackend as HostBackend
from minitrain.machine.heterogeneous.abstraction_layer import NoBackendError as NoBackendError
from minitrain.machine.heterogeneous.abstraction_layer import Placed as Placed
from minitrain.machine.heterogeneous.abstraction_layer import PlacedArray as PlacedArray
from minitrain.machine.heterogeneous.abstraction_layer import SimulatedBackend as SimulatedBackend
from minitrain.machine.heterogeneous.abstraction_layer import place_of as place_of
from minitrain.machine.heterogeneous.abstraction_layer import standard_layer as standard_layer
from minitrain.machine.heterogeneous.operations import OPERATIONS as OPERATIONS
from minitrain.machine.heterogeneous.orchestrator import DeviceCoordinator as DeviceCoordinator
from minitrain.machine.heterogeneous.orchestrator import LayerCoordinator as LayerCoordinator
from minitrain.machine.heterogeneous.orchestrator import LimitedBackend as LimitedBackend
from minitrain.machine.heterogeneous.orchestrator import MultiDeviceOrchestrator as MultiDeviceOrchestrator
from minitrain.machine.heterogeneous.orchestrator import OrchestratedRun as OrchestratedRun
from minitrain.machine.heterogeneous.orchestrator import Recovery as Recovery
from minitrain.machine.heterogeneous.orchestrator import share_devices as share_devices
from minitrain.machine.heterogeneous.profiler import Claim as Claim
from minitrain.machine.heterogeneous.profiler import ComprehensiveHardwareProfiler as ComprehensiveHardwareProfiler
from minitrain.machine.heterogeneous.profiler import Suite as Suite
from minitrain.machine.heterogeneous.profiler import VerificationReport as VerificationReport
from minitrain.machine.heterogeneous.taxonomy import DetectedDevice as DetectedDevice
from minitrain.machine.heterogeneous.taxonomy import EnhancedHardwareDetector as EnhancedHardwareDetector
from minitrain.machine.heterogeneous.taxonomy import EnhancedHardwareTaxonomy as EnhancedHardwareTaxonomy
from minitrain.machine.heterogeneous.taxonomy import HardwareCapabilityProfile as HardwareCapabilityProfile
from minitrain.machine.heterogeneous.taxonomy import HardwareClass as HardwareClass
from minitrain.machine.heterogeneous.taxonomy import HardwareRelationship as HardwareRelationship
from minitrain.machine.heterogeneous.taxonomy import HardwareTaxonomy as HardwareTaxonomy
from minitrain.machine.heterogeneous.taxonomy import PrecisionType as PrecisionType
from minitrain.machine.heterogeneous.taxonomy import profiles_of as profiles_of
from minitrain.machine.heterogeneous.workload_manager import DataMovementOptimizer as DataMovementOptimizer
from minitrain.machine.heterogeneous.workload_manager import DataMovementPlan as DataMovementPlan
from minitrain.machine.heterogeneous.workload_manager import (
    HardwareAwareWorkloadManager as HardwareAwareWorkloadManager,
)
from minitrain.machine.heterogeneous.workload_manager import HeterogeneousScheduler as HeterogeneousScheduler
from minitrain.machine.heterogeneous.workload_manager import Move as Move
from minitrain.machine.heterogeneous.workload_manager import ScheduledTask as ScheduledTask
from minitrain.machine.heterogeneous.workload_manager import SynchronizationManager as SynchronizationManager
from minitrain.machine.heterogeneous.workloads import ArraySpec as ArraySpec
from minitrain.machine.heterogeneous.workloads import EnhancedTestTask as EnhancedTestTask
from minitrain.machine.heterogeneous.workloads import EnhancedWorkloadProfile as EnhancedWorkloadProfile
from minitrain.machine.heterogeneous.workloads import Fusion as Fusion
from minitrain.machine.heterogeneous.workloads import FusionRule as FusionRule
from minitrain.machine.heterogeneous.workloads import MemoryPlan as MemoryPlan
from minitrain.machine.heterogeneous.workloads import TestTask as TestTask
from minitrain.machine.heterogeneous.workloads import WorkloadOperation as WorkloadOperation
from minitrain.machine.heterogeneous.workloads import WorkloadProfile as WorkloadProfile
from minitrain.machine.heterogeneous.workloads import split_by_samples as split_by_samples
