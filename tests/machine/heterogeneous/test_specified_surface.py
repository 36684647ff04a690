"""The classes are called as the specification's own code calls them: names, parameters, defaults and attributes."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

import minitrain.machine.heterogeneous as ht

SIGNATURES = {
    "EnhancedHardwareTaxonomy.register_capability": ("capability_id", "properties"),
    "EnhancedHardwareTaxonomy.define_hardware_hierarchy": ("parent_class", "child_class", "inheritance_factor"),
    "EnhancedHardwareTaxonomy.get_inherited_capabilities": ("hardware_profile",),
    "HardwareAbstractionLayer.register_backend": ("hardware_class", "backend_implementation"),
    "HardwareAbstractionLayer.define_fallback_chain": ("primary_hardware", "fallback_sequence"),
    "HardwareAbstractionLayer.execute_operation": ("op_type", "inputs", "preferred_hardware"),
    "ComprehensiveHardwareProfiler.run_benchmark_suite": ("hardware_profile",),
    "ComprehensiveHardwareProfiler.generate_hardware_fingerprint": ("hardware_profile",),
    "ComprehensiveHardwareProfiler.model_resource_utilization": ("hardware_profile", "workload_profile"),
    "HardwareAwareWorkloadManager.__init__": ("hal", "taxonomy"),
    "HardwareAwareWorkloadManager.decompose_workload": ("workload", "available_hardware"),
    "HardwareAwareWorkloadManager.optimize_batch_size": ("workload", "hardware"),
    "HardwareAwareWorkloadManager.select_precision": ("workload", "hardware"),
    "MultiDeviceOrchestrator.__init__": ("workload_manager",),
    "MultiDeviceOrchestrator.register_device_coordinator": ("hardware_class", "coordinator"),
    "MultiDeviceOrchestrator.execute_multi_device_workload": ("workload", "device_mapping"),
    "MultiDeviceOrchestrator.optimize_data_movement": ("operation_graph", "device_mapping"),
    "EnhancedWorkloadProfile.calculate_hardware_compatibility": ("hardware_profile",),
    "EnhancedTestTask.prepare_for_hardware": ("hardware_profile",),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_methods_take_what_the_specification_gives_them(name: str) -> None:
    kind, _, method = name.partition(".")
    found = [*inspect.signature(getattr(getattr(ht, kind), method)).parameters.values()][1:]
    wanted = SIGNATURES[name]
    assert tuple(parameter.name for parameter in found[: len(wanted)]) == wanted
    assert all(parameter.default is not parameter.empty for parameter in found[len(wanted) :])


def test_dataclasses_have_the_specified_fields_with_empty_defaults() -> None:
    patterns = ("decomposable_components", "data_access_patterns", "memory_access_patterns")
    profile = {*patterns, "parallelism_characteristics", "dependency_graph"}
    assert profile <= {each.name for each in fields(ht.EnhancedWorkloadProfile)}
    task = ("hardware_context", "execution_plan", "data_movement_plan", "power_budget")
    assert tuple(each.name for each in fields(ht.EnhancedTestTask))[-4:] == task
    assert issubclass(ht.EnhancedWorkloadProfile, ht.WorkloadProfile)
    assert issubclass(ht.EnhancedTestTask, ht.TestTask)
    assert issubclass(ht.EnhancedHardwareTaxonomy, ht.HardwareTaxonomy)


def test_the_specifications_classes_are_made_as_it_makes_them() -> None:
    taxonomy = ht.EnhancedHardwareTaxonomy()
    hal = ht.HardwareAbstractionLayer()
    for empty in (taxonomy.capabilities_registry, taxonomy.hardware_hierarchies, taxonomy.hardware_relationships):
        assert empty == {}
    assert (hal.hardware_backends, hal.fallback_chains) == ({}, {})
    profiler = ht.ComprehensiveHardwareProfiler(ht.EnhancedHardwareDetector("xeon_8480plus"))
    assert (profiler.benchmark_results, profiler.hardware_fingerprints, profiler.resource_models) == ({}, {}, {})
    manager = ht.HardwareAwareWorkloadManager(hal, taxonomy)
    assert manager.operation_fusion_rules
    assert manager.memory_optimization_strategies
    orchestrator = ht.MultiDeviceOrchestrator(manager)
    assert orchestrator.device_coordinators == {}
    assert isinstance(orchestrator.data_movement_optimizer, ht.DataMovementOptimizer)
    assert isinstance(orchestrator.sync_manager, ht.SynchronizationManager)
