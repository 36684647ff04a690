"""Workloads and tasks with the fields that the specification calls enhanced.

`EnhancedWorkloadProfile` adds to a workload its independent parts, its patterns of memory access, and its parallelism.
`EnhancedTestTask` is a workload that is to be done, with its plans and figures on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from minitrain.devices.operations import Operation
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile
from minitrain.heterogeneous.workloads import WorkloadProfile, dependencies


@dataclass(frozen=True)
class EnhancedWorkloadProfile(WorkloadProfile):
    """A workload with the specification's further fields; those that are empty are computed.

    Args:
        decomposable_components: by component, its `operations`, `flops` and `bytes`; those that share nothing but
            inputs.
        data_access_patterns: by input, "once" or "shared" by several operations.
        memory_access_patterns: by operation, "streaming", "blocked" (matrices), or "view".
        parallelism_characteristics: `width`, all FLOPs over those of the longest chain; `batch`, the samples;
            `arithmetic_intensity`, FLOP a byte.
        dependency_graph: by operation, the operations that it reads from.
    """

    decomposable_components: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)
    data_access_patterns: dict[str, str] = field(default_factory=dict, hash=False)
    memory_access_patterns: dict[str, str] = field(default_factory=dict, hash=False)
    parallelism_characteristics: dict[str, float] = field(default_factory=dict, hash=False)
    dependency_graph: dict[str, list[str]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Compute the fields that were not given."""
        super().__post_init__()
        made: dict[str, Callable[[], Any]] = {
            "dependency_graph": lambda: dependencies(self),
            "decomposable_components": lambda: _components(self),
            "data_access_patterns": lambda: {
                name: "shared" if len(readers) > 1 else "once"
                for name, readers in self.consumers().items()
                if name in self.inputs
            },
            "memory_access_patterns": lambda: {name: _pattern(cost) for name, cost in self.costs.items()},
            "parallelism_characteristics": lambda: _parallelism(self),
        }
        for name, make in made.items():
            if not getattr(self, name):
                object.__setattr__(self, name, make())

    @classmethod
    def of(cls, workload: WorkloadProfile) -> Self:
        """Return a workload with all of these fields computed from it."""
        return cls(**{each.name: getattr(workload, each.name) for each in fields(WorkloadProfile)})

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return the same operations on other inputs, with the fields that depend on sizes computed again."""
        given = {each.name: getattr(self, each.name) for each in fields(WorkloadProfile)}
        return type(self)(**{**given, "inputs": inputs})

    def calculate_hardware_compatibility(self, hardware_profile: HardwareCapabilityProfile) -> float:
        """Return how many times a second a device could compute the workload; 0 where it cannot.

        Prices rank devices: a score of features would call an H100 and an A100 equally fit.
        """
        held = sum(spec.num_bytes for spec in self.specs.values())
        if held > hardware_profile.memory_bytes:
            return 0.0
        try:
            return 1 / hardware_profile.simulator.predict(self.program)
        except HardwareConfigError:
            return 0.0


def _pattern(cost: Operation) -> str:
    return "view" if not cost.bytes else "blocked" if cost.kind == "matmul" else "streaming"


def _components(workload: WorkloadProfile) -> dict[str, dict[str, Any]]:
    """Return the groups of operations that read from one another."""
    group: dict[str, list[str]] = {}
    for name, before in dependencies(workload).items():
        merged = [name]
        for other in before:
            merged = group[other] if merged is group[other] else [*group[other], *merged]
            group |= dict.fromkeys(merged, merged)
        group[name] = merged
    found = list({id(names): sorted(names, key=list(workload.by_name).index) for names in group.values()}.values())
    return {
        f"component-{place}": {
            "operations": names,
            "flops": sum(workload.costs[name].flops for name in names),
            "bytes": sum(workload.costs[name].bytes for name in names),
        }
        for place, names in enumerate(found)
    }


def _parallelism(workload: WorkloadProfile) -> dict[str, float]:
    """Return how much of a workload could be done at the same time."""
    chain: dict[str, float] = {}
    for name, before in dependencies(workload).items():
        chain[name] = workload.costs[name].flops + max((chain[other] for other in before), default=0)
    program, longest = workload.program, max(chain.values(), default=0)
    return {
        "width": program.flops / longest if longest else 1.0,
        "batch": float(workload.batch_size),
        "arithmetic_intensity": program.flops / program.bytes if program.bytes else 0.0,
    }


@dataclass
class TestTask:
    """A workload that is to be done.

    Args:
        task_id: what it is called.
        workload: what is to be computed.
    """

    __test__ = False  # pytest takes names like this one for tests

    task_id: str
    workload: WorkloadProfile


@dataclass
class EnhancedTestTask(TestTask):
    """A workload that is to be done, and how.

    Args:
        hardware_context: of the device it was prepared for: its name, class, precision and memory.
        execution_plan: batch size, seconds and what limits it there.
        data_movement_plan: bytes of inputs that go there and of results that come back.
        power_budget: what its devices may draw together, W; None for no limit.
    """

    hardware_context: dict[str, Any] = field(default_factory=dict)
    execution_plan: dict[str, Any] = field(default_factory=dict)
    data_movement_plan: dict[str, Any] = field(default_factory=dict)
    power_budget: float | None = None

    def prepare_for_hardware(self, hardware_profile: HardwareCapabilityProfile) -> None:
        """Fill in context and plans for one device.

        Raises:
            UsageError: the device draws more than the power budget.
            HardwareConfigError: it has no rate for the workload's datatype.
        """
        drawn = hardware_profile.tdp_W
        if self.power_budget is not None and drawn is not None and drawn > self.power_budget:
            raise UsageError(
                f"{hardware_profile.name} draws {drawn:g} W, and the power budget of {self.task_id} is "
                f"{self.power_budget:g} W; use a device that draws less, or a budget of {drawn:g} W",
                power_budget=self.power_budget,
            )
        workload = self.workload
        result = hardware_profile.simulator.simulate(workload.program)
        self.hardware_context = {
            "device": hardware_profile.name,
            "hardware_class": hardware_profile.hardware_class,
            "memory_bytes": hardware_profile.memory_bytes,
            "datatypes": sorted({cost.datatype for cost in workload.costs.values()}),
        }
        self.execution_plan = {
            "operations": list(workload.by_name),
            "batch_size": workload.batch_size,
            "seconds": result.time_seconds,
            "bottleneck": result.bottleneck,
        }
        self.data_movement_plan = {
            "inputs_bytes": sum(workload.specs[name].num_bytes for name in workload.inputs),
            "outputs_bytes": sum(workload.specs[name].num_bytes for name in workload.wanted),
        }
