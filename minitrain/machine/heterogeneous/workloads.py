"""Workloads: operations on named arrays, and the ways to cut, fuse and fit them.

A `WorkloadProfile` is a graph. Each `WorkloadOperation` has a name, which its result is known by, and reads inputs of
the workload or results of others. Operations stand in an order in which they can be computed. Inputs are arrays, or an
`ArraySpec` where only the price matters. Those in `batch_inputs` have one row a sample, so that a workload has a batch
size and can be priced at another. `EnhancedWorkloadProfile` adds its independent parts, its patterns of memory access
and its parallelism. `EnhancedTestTask` is a workload that is to be done, with its plans and figures on a device.

`split_by_samples` lets every device compute all operations for its share of the batch. That gives the same numbers
where each row of a result comes from the same row of the batch alone. `rows_kept` goes through the operations and
refuses those that mix rows (a mean over the batch, a product with the batch as its right side), even where shapes would
fit. What does not depend on the batch is computed once.

A `MemoryPlan` keeps a workload within a device's memory: keep all, free after the last use, or cut the batch.

A `FusionRule` is a sequence of kinds of operation. Where operations of these kinds follow one another, each the only
reader of the one before, they become one operation, whose result is that of the last, and intermediate results never
move. What else they read must be there before the first of them begins: inputs, or what that one waits for. It computes
the same steps in the same order, so that its numbers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from minitrain.errors import HardwareConfigError, UsageError, one_of, require_count, typed
from minitrain.machine.devices.operations import ELEMENT_BYTES, Operation, Program, known_datatype
from minitrain.machine.heterogeneous.operations import (
    OPERATIONS,
    OperationKind,
    Request,
    Shape,
    datatype_named,
    datatype_of,
    flat,
    mapped,
    operation_named,
)
from minitrain.machine.heterogeneous.taxonomy import HardwareCapabilityProfile, HardwareClass, PrecisionType

DeviceMapping = Mapping[str, HardwareCapabilityProfile]
"""The device of each operation, by the operation's name."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array without its numbers.

    Args:
        shape: its sizes.
        datatype: of its elements.
    """

    shape: Shape
    datatype: str = "float32"

    @property
    def num_bytes(self) -> int:
        """How large it is, bytes."""
        return math.prod(self.shape) * ELEMENT_BYTES[known_datatype(self.datatype)]


@dataclass(frozen=True, slots=True)
class WorkloadOperation:
    """One operation of a workload.

    Args:
        name: of it, and of its result.
        op_type: what is computed, as in `minitrain.heterogeneous.OPERATIONS`.
        inputs: by operand the name of an array, a list of such names, or a plain number.
        options: of the operation.
    """

    name: str
    op_type: str
    inputs: Mapping[str, Any] = field(hash=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def reads(self) -> tuple[str, ...]:
        """Return the names of the arrays that it reads, each once."""
        return tuple(dict.fromkeys(each for each in flat(self.inputs.values()) if isinstance(each, str)))

    def with_arrays(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return operands and options with arrays in the places of their names."""
        return {**self.options, **self._inputs_with(arrays)}

    def with_names(self, new: Mapping[str, str]) -> WorkloadOperation:
        """Return the same operation with other names for some arrays, its own result among them."""
        return replace(self, name=new.get(self.name, self.name), inputs=self._inputs_with(new))

    def _inputs_with(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return its operands with arrays, where they are given, in the places of their names."""

        def given(each: Any) -> Any:
            return arrays.get(each, each) if isinstance(each, str) else each

        return {operand: mapped(given, value) for operand, value in self.inputs.items()}


@typed
@dataclass(frozen=True)
class WorkloadProfile:
    """Operations on named arrays.

    Args:
        workload_id: what it is called.
        operations: in an order in which they can be computed.
        inputs: arrays by name, or their `ArraySpec`.
        outputs: the results that are wanted; those that no operation reads if empty.
        batch_inputs: inputs whose first dimension is the batch.
        precisions: what it may be computed in; that of its inputs if empty.
        requires: capabilities of the taxonomy that a device must have, with the least strength in (0, 1].

    Raises:
        UsageError: an operation reads what is not there before it, two have one name, or shapes do not go together.

    Example:
        >>> double = WorkloadOperation("double", "add", {"x": "a", "y": "a"})
        >>> WorkloadProfile("twice", (double,), {"a": ArraySpec((4, 8))}).specs["double"].shape
        (4, 8)
    """

    workload_id: str
    operations: tuple[WorkloadOperation, ...]
    inputs: Mapping[str, Any] = field(hash=False)
    outputs: tuple[str, ...] = ()
    batch_inputs: tuple[str, ...] = ()
    precisions: tuple[PrecisionType, ...] = ()
    requires: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse a graph that cannot be computed."""
        object.__setattr__(self, "operations", tuple(self.operations))
        given = {name: each if isinstance(each, ArraySpec) else np.asarray(each) for name, each in self.inputs.items()}
        object.__setattr__(self, "inputs", given)
        known = dict.fromkeys(self.inputs)
        for operation in self.operations:
            _require_known(operation.reads(), known, f"operation {operation.name} reads")
            if operation.name in known:
                raise UsageError(
                    f"{self.workload_id} has two arrays called {operation.name!r}; give operations names of their own"
                )
            known[operation.name] = None
        _require_known(self.outputs, self.specs, "the workload names")
        _require_known(self.batch_inputs, self.inputs, "the workload names")
        if len({self.inputs[name].shape[0] for name in self.batch_inputs}) > 1:
            sizes = ", ".join(f"{name} {self.inputs[name].shape[0]}" for name in self.batch_inputs)
            raise UsageError(f"batch inputs of {self.workload_id} must have equally many rows, got {sizes}")

    @cached_property
    def by_name(self) -> dict[str, WorkloadOperation]:
        """The operations by name."""
        return {operation.name: operation for operation in self.operations}

    @cached_property
    def specs(self) -> dict[str, ArraySpec]:
        """Shape and datatype of all arrays by name, inputs and results."""
        return self._worked_out[0]

    @cached_property
    def requests(self) -> dict[str, Request]:
        """What each operation asks for, by name; shapes stand for arrays."""
        return self._worked_out[1]

    @cached_property
    def costs(self) -> dict[str, Operation]:
        """What each operation costs, by name."""
        return {name: asked.cost for name, asked in self.requests.items()}

    @cached_property
    def _worked_out(self) -> tuple[dict[str, ArraySpec], dict[str, Request]]:
        specs = {
            name: each if isinstance(each, ArraySpec) else ArraySpec(tuple(each.shape), datatype_of(each))
            for name, each in self.inputs.items()
        }
        requests: dict[str, Request] = {}
        for operation in self.operations:
            asked = requests[operation.name] = Request.of(operation.op_type, operation.with_arrays(specs))
            specs[operation.name] = ArraySpec(asked.shape, asked.result_datatype)
        return specs, requests

    @property
    def program(self) -> Program:
        """All operations as device simulators take them."""
        return Program(tuple(self.costs.values()))

    @property
    def wanted(self) -> tuple[str, ...]:
        """The results that are wanted."""
        read = {name for operation in self.operations for name in operation.reads()}
        return self.outputs or tuple(name for name in self.by_name if name not in read)

    @property
    def batch_size(self) -> int:
        """Samples; 1 for a workload without a batch."""
        return int(self.inputs[self.batch_inputs[0]].shape[0]) if self.batch_inputs else 1

    def num_bytes(self, *names: str) -> int:
        """Return how large some of its arrays are together, bytes."""
        return sum(self.specs[name].num_bytes for name in names)

    def consumers(self) -> dict[str, list[str]]:
        """Return which operations read each array."""
        found: dict[str, list[str]] = {name: [] for name in self.specs}
        for operation in self.operations:
            for name in operation.reads():
                found[name].append(operation.name)
        return found

    def at_batch(self, batch_size: int) -> Self:
        """Return the same workload for another number of samples, without numbers.

        Raises:
            UsageError: it has no batch inputs, or an operation is tied to the batch size.
        """
        require_count("batch_size", batch_size)
        if not self.batch_inputs:
            raise UsageError(
                f"{self.workload_id} has no batch; name the inputs with a row a sample as batch_inputs=(...)"
            )
        given = {name: self.specs[name] for name in self.inputs}
        for name in self.batch_inputs:
            given[name] = replace(given[name], shape=(batch_size, *given[name].shape[1:]))
        return self.with_inputs(given)

    def in_precision(self, precision: PrecisionType) -> Self:
        """Return the same workload with its real inputs in another datatype; arrays are converted."""
        given = dict(self.inputs)
        for name in (name for name in given if "float" in self.specs[name].datatype):
            if isinstance(given[name], ArraySpec):
                given[name] = replace(given[name], datatype=precision.value)
            else:
                given[name] = given[name].astype(datatype_named(precision.value))
        return self.with_inputs(given)

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return the same operations on other inputs."""
        return replace(self, inputs=inputs)


def _require_known(names: Iterable[str], known: Mapping[str, Any], who: str) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{who} {name!r}, which no input and no operation before it gives; {one_of(name, known)}")


def dependencies(workload: WorkloadProfile) -> dict[str, list[str]]:
    """Return which operations each operation waits for: those it reads from, and those of its `dependency_graph`."""
    names, more = workload.by_name, getattr(workload, "dependency_graph", {})
    return {
        each.name: list(dict.fromkeys([*(name for name in each.reads() if name in names), *more.get(each.name, ())]))
        for each in workload.operations
    }


def _waits_for_others(workload: WorkloadProfile) -> set[str]:
    """Return the operations that wait for some whose results they do not read."""
    names = workload.by_name
    return {name for name, before in dependencies(workload).items() if set(before) - set(names[name].reads())}


class _Completed(dict[str, Any]):
    """A field of which some entries were given and the others computed, which change with the rest of a workload."""

    def __init__(self, entries: Any, given: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(entries)
        self.given = dict(given)


@typed
@dataclass(frozen=True)
class EnhancedWorkloadProfile(WorkloadProfile):
    """A workload with the specification's further fields. What is not given of them is computed; what is given decides.

    Args:
        decomposable_components: by component, its `operations`, `flops` and `bytes`; those that share nothing but
            inputs. The operations of a component that is given stay together on one device; its figures are computed.
        data_access_patterns: by input, "once" or "shared" by several operations. One that is given as "kept" is
            never freed on a device that it came to.
        memory_access_patterns: by operation, "streaming", "blocked" (matrices), or "view". One that is given as
            "view" moves no bytes.
        parallelism_characteristics: `width`, all FLOPs over those of the longest chain; `batch`, the samples;
            `arithmetic_intensity`, FLOP a byte. A `width` that is given is the most devices that compute it, rounded
            up; a `batch` that is given is the most that `optimize_batch_size` chooses.
        dependency_graph: by operation, the operations that it waits for; those it reads from are added.

    Raises:
        UsageError: an operation of the graph is unknown, or waits for one that is not before it; or what is given
            decides nothing.
    """

    decomposable_components: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)
    data_access_patterns: dict[str, str] = field(default_factory=dict, hash=False)
    memory_access_patterns: dict[str, str] = field(default_factory=dict, hash=False)
    parallelism_characteristics: dict[str, float] = field(default_factory=dict, hash=False)
    dependency_graph: dict[str, list[str]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Compute what was not given."""
        super().__post_init__()
        _require_known(self.dependency_graph, self.by_name, "the dependency graph names")
        order = list(self.by_name)
        for name, before in self.dependency_graph.items():
            _require_known(
                before, dict.fromkeys(order[: order.index(name)]), f"in the dependency graph, {name} waits for"
            )
        object.__setattr__(self, "dependency_graph", dependencies(self))
        readers = self.consumers()
        accesses = {name: "shared" if len(readers[name]) > 1 else "once" for name in self.inputs}
        self._complete("data_access_patterns", accesses, {"kept"})
        patterns = {name: _pattern(asked.cost) for name, asked in self.requests.items()}
        self._complete("memory_access_patterns", patterns, {"view"})
        self._complete("parallelism_characteristics", _parallelism(self))
        for name, most in given_of(self, "parallelism_characteristics").items():
            if name == "arithmetic_intensity" or not most >= 1:
                raise UsageError(
                    f"parallelism_characteristics of {self.workload_id} may say width and batch, each at least 1, got "
                    f"{name} {most}; leave it out, and it is computed"
                )
        own = _figures(self, given_of(self, "decomposable_components"))
        object.__setattr__(self, "decomposable_components", _Completed(own or _components(self), own))

    @cached_property
    def costs(self) -> dict[str, Operation]:
        """What each operation costs, by name; one that is said to be a view moves nothing."""
        views = given_of(self, "memory_access_patterns")
        return {
            name: replace(asked.cost, bytes=0.0) if name in views else asked.cost
            for name, asked in self.requests.items()
        }

    def _complete(self, name: str, computed: Mapping[str, Any], allowed: Iterable[str] = ()) -> None:
        """Fill a field up with what is computed, and note what was given instead.

        Raises:
            UsageError: an entry is not one of those that are computed, or what is given of it decides nothing.
        """
        own = {key: value for key, value in given_of(self, name).items() if value != computed.get(key)}
        _require_known(own, computed, f"{name} names")
        for key, value in own.items():
            if allowed and value not in allowed:
                raise UsageError(
                    f"{name} of {self.workload_id} may say {', '.join(allowed)} of {key}, which is "
                    f"{computed[key]!r} otherwise, got {value!r}; leave it out, and it is computed"
                )
        object.__setattr__(self, name, _Completed({**computed, **own}, own))

    @classmethod
    def of(cls, workload: WorkloadProfile) -> Self:
        """Return a workload with all of these fields computed from it; what operations wait for stays."""
        given = {each.name: getattr(workload, each.name) for each in fields(WorkloadProfile)}
        return cls(**given, dependency_graph=dependencies(workload))

    def calculate_hardware_compatibility(self, hardware_profile: HardwareCapabilityProfile) -> float:
        """Return how many times a second a device could compute the workload; 0 where it cannot.

        Prices rank devices: a score of features would call an H100 and an A100 equally fit.
        """
        computes = all(hardware_profile.computes(cost.datatype) for cost in self.costs.values())
        if not computes or self.num_bytes(*self.specs) > hardware_profile.memory_bytes:
            return 0.0
        try:
            return 1 / hardware_profile.simulator.predict(self.program)
        except HardwareConfigError:
            return 0.0


def given_of(workload: WorkloadProfile, name: str) -> dict[str, Any]:
    """Return what was given of a field of `EnhancedWorkloadProfile`; nothing for other workloads."""
    field_of = getattr(workload, name, {})
    return field_of.given if isinstance(field_of, _Completed) else dict(field_of)


def kept(workload: WorkloadProfile) -> set[str]:
    """Return the arrays that stay where they are when nothing reads them any more."""
    return {*workload.wanted, *given_of(workload, "data_access_patterns")}


def _figures(workload: WorkloadProfile, components: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return components with their FLOPs and bytes.

    Raises:
        UsageError: an operation is unknown, or in two components.
    """
    named = [name for component in components.values() for name in component["operations"]]
    _require_known(named, workload.by_name, "decomposable_components names")
    twice = [name for name in workload.by_name if named.count(name) > 1]
    if twice:
        raise UsageError(
            f"decomposable_components of {workload.workload_id} must not share operations, and {twice[0]} is in two; "
            "leave it in one"
        )
    return {
        place: {
            **component,
            "flops": sum(workload.costs[name].flops for name in component["operations"]),
            "bytes": sum(workload.costs[name].bytes for name in component["operations"]),
        }
        for place, component in components.items()
    }


def _pattern(cost: Operation) -> str:
    return "view" if not cost.bytes else "blocked" if cost.kind == "matmul" else "streaming"


def _components(workload: WorkloadProfile) -> dict[str, dict[str, Any]]:
    """Return the groups of operations that read from one another, in the order of their first operations."""
    order = list(workload.by_name)
    groups: list[set[str]] = []
    for name, before in dependencies(workload).items():
        apart = [group for group in groups if group.isdisjoint(before)]
        together = [group for group in groups if not group.isdisjoint(before)]
        groups = [*apart, {name}.union(*together)]
    found = sorted((sorted(group, key=order.index) for group in groups), key=lambda names: order.index(names[0]))
    return _figures(workload, {f"component-{place}": {"operations": names} for place, names in enumerate(found)})


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
            UsageError: the device draws more than the power budget, or its config does not say what it draws.
            HardwareConfigError: it has no rate for the workload's datatype.
        """
        drawn = hardware_profile.tdp_W
        if self.power_budget is not None and drawn is None:
            raise UsageError(
                f"{self.task_id} has a power budget, and the config of {hardware_profile.name} has no power; add "
                "power: {tdp_W, idle_W}, or leave out the budget"
            )
        if self.power_budget is not None and drawn is not None and drawn > self.power_budget:
            raise UsageError(
                f"{hardware_profile.name} draws {drawn:g} W, and the power budget of {self.task_id} is "
                f"{self.power_budget:g} W; use a device that draws less, or a budget of {drawn:g} W"
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
            "inputs_bytes": workload.num_bytes(*workload.inputs),
            "outputs_bytes": workload.num_bytes(*workload.wanted),
        }


@typed
def split_by_samples(
    workload: WorkloadProfile, shares: Mapping[str, int], devices: Sequence[HardwareCapabilityProfile]
) -> tuple[WorkloadProfile, DeviceMapping]:
    """Return a workload in which each device has its own operations, and the device of each.

    Args:
        workload: one with a batch.
        shares: samples of each device, as `HardwareAwareWorkloadManager.share_samples` gives them; they add up to the
            batch.
        devices: those devices.

    Returns:
        The workload, whose results that are wanted are joined again under their names, and the mapping.

    Raises:
        UsageError: the shares are not those of the batch, or an operation mixes samples.
    """
    working = [device for device in devices if shares.get(device.name, 0)]
    total = sum(shares[device.name] for device in working)
    if not workload.batch_inputs or total != workload.batch_size or min(shares.values(), default=0) < 0:
        raise UsageError(
            f"shares must add up to the batch of {workload.workload_id} ({workload.batch_size}) over the devices "
            f"given, got {total} of {dict(shares)}; use share_samples",
            shares=dict(shares),
        )
    waiting = sorted(_waits_for_others(workload))
    if waiting:
        raise UsageError(
            f"{workload.workload_id} cannot be cut by samples, since {waiting[0]} waits for operations that it "
            "does not read from; divide it by operations: decompose_workload"
        )
    by_row = rows_kept(workload)
    first = max(working, key=lambda device: shares[device.name])
    placed = [(operation, first) for operation in workload.operations if operation.name not in by_row]
    inputs = {name: given for name, given in workload.inputs.items() if name not in workload.batch_inputs}
    stop, accesses, patterns = 0, dict[str, str](), dict[str, str]()
    for device in working:
        start, stop = stop, stop + shares[device.name]
        own = {name: f"{name}@{device.name}" for name in by_row}
        for name, said in (("data_access_patterns", accesses), ("memory_access_patterns", patterns)):
            said |= {own.get(key, key): value for key, value in given_of(workload, name).items()}
        inputs |= {own[name]: _rows(workload.inputs[name], start, stop) for name in workload.batch_inputs}
        placed += [(each.with_names(own), device) for each in workload.operations if each.name in by_row]
    for name in (each for each in workload.wanted if each in by_row):
        pieces = [f"{name}@{device.name}" for device in working]
        placed.append((WorkloadOperation(name, "concatenate", {"arrays": pieces}), first))
    operations = tuple(operation for operation, _ in placed)
    cut = WorkloadProfile(
        workload.workload_id, operations, inputs, workload.wanted, (), workload.precisions, workload.requires
    )
    if accesses or patterns:
        enhanced = EnhancedWorkloadProfile.of(cut)
        cut = replace(enhanced, data_access_patterns=accesses, memory_access_patterns=patterns)
    return cut, {operation.name: device for operation, device in placed}


def rows_kept(workload: WorkloadProfile) -> frozenset[str]:
    """Return the arrays whose first dimension is the batch, each row made of the same row of the batch.

    Raises:
        UsageError: an operation mixes rows; it is named.
    """
    found = set(workload.batch_inputs)
    for operation in workload.operations:
        kind = OPERATIONS[operation.op_type]
        has_rows = [each in found for each in flat(operation.inputs[name] for name in kind.operands)]
        if any(has_rows):
            if not kind.keeps_rows(workload.requests[operation.name], has_rows):
                by_row = ", ".join(name for name in operation.reads() if name in found)
                raise UsageError(
                    f"{workload.workload_id} cannot be cut by samples, since {operation.name} ({operation.op_type}) "
                    f"mixes the rows of {by_row}; divide it by operations: decompose_workload"
                )
            found.add(operation.name)
    return frozenset(found)


def _rows(given: Any, start: int, stop: int) -> Any:
    """Return some rows of an input."""
    if isinstance(given, ArraySpec):
        return replace(given, shape=(stop - start, *given.shape[1:]))
    return given[start:stop]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a workload stays within a device's memory.

    Args:
        strategy: the name of what made the plan.
        peak_bytes: the most that it holds at a time, inputs included.
        num_microbatches: into how many pieces of the batch it is cut.
        freed_after: by operation, the arrays that are freed after it.
    """

    strategy: str
    peak_bytes: int
    num_microbatches: int = 1
    freed_after: Mapping[str, tuple[str, ...]] | None = None


MemoryStrategy = Callable[[WorkloadProfile, int], MemoryPlan | None]
"""Makes a plan for a workload within so many bytes, or None where it has none."""


def keep_all(workload: WorkloadProfile, capacity_bytes: int) -> MemoryPlan:  # noqa: ARG001  (the form of strategies)
    """Keep everything until the end."""
    return MemoryPlan("keep_all", workload.num_bytes(*workload.specs))


def free_after_last_use(workload: WorkloadProfile, capacity_bytes: int) -> MemoryPlan:  # noqa: ARG001  (as above)
    """Free an array once no later operation reads it, unless it is a wanted result or said to be kept."""
    last = {name: readers[-1] for name, readers in workload.consumers().items() if readers}
    stay, held = kept(workload), workload.num_bytes(*workload.inputs)
    peak, freed = held, dict[str, tuple[str, ...]]()
    for operation in workload.by_name:
        held += workload.num_bytes(operation)
        peak = max(peak, held)
        gone = tuple(name for name, reader in last.items() if reader == operation and name not in stay)
        held -= workload.num_bytes(*gone)
        freed |= {operation: gone} if gone else {}
    return MemoryPlan("free_after_last_use", peak, freed_after=freed)


def microbatches(workload: WorkloadProfile, capacity_bytes: int) -> MemoryPlan | None:
    """Cut the batch into twice as many pieces until one fits; what has no batch cannot be cut."""
    if not workload.batch_inputs:
        return None
    count = 1
    while count < 2 * workload.batch_size:
        piece = free_after_last_use(workload.at_batch(-(-workload.batch_size // count)), capacity_bytes)
        if piece.peak_bytes <= capacity_bytes:
            return replace(piece, strategy="microbatches", num_microbatches=count)
        count *= 2
    return None


MEMORY_STRATEGIES: Mapping[str, MemoryStrategy] = MappingProxyType(
    {"keep_all": keep_all, "free_after_last_use": free_after_last_use, "microbatches": microbatches}
)
"""All of them, in the order in which they are tried."""


@typed
@dataclass(frozen=True, slots=True)
class FusionRule:
    """Kinds of operation that become one where they follow one another.

    Args:
        name: of the rule.
        pattern: two kinds or more; "*" stands for any elementwise one.
        hardware: the classes that can fuse so; all if empty.
    """

    name: str
    pattern: tuple[str, ...]
    hardware: frozenset[HardwareClass] = frozenset()

    def __post_init__(self) -> None:
        """Refuse a pattern that fuses nothing."""
        if not self.pattern[1:]:
            raise UsageError(f"fusion rule {self.name!r} needs two kinds of operation or more, got {self.pattern!r}")
        for kind in self.pattern:
            if kind != "*":
                operation_named(kind)

    def serves(self, hardware_class: HardwareClass) -> bool:
        """Return whether a class of hardware can fuse so."""
        return not self.hardware or hardware_class in self.hardware

    def fits(self, kinds: Sequence[OperationKind]) -> bool:
        """Return whether operations of some kinds, one after the other, are what it fuses."""
        return len(kinds) == len(self.pattern) and all(
            wanted == kind.name or (wanted == "*" and kind.is_elementwise)
            for wanted, kind in zip(self.pattern, kinds, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Fusion:
    """Operations of a workload that a device runs as one.

    Args:
        rule: what allows it.
        operations: their names, in order.
        cost: of all of them together.
        saved_bytes: what need not move any more.
    """

    rule: str
    operations: tuple[str, ...]
    cost: Operation
    saved_bytes: float


DEFAULT_RULES = (
    FusionRule("matmul_epilogue", ("matmul", "*"), frozenset({HardwareClass.GPU, HardwareClass.TPU})),
    FusionRule("elementwise", ("*", "*")),
)
"""What compilers do: an elementwise operation behind a matrix multiplication, and elementwise ones together."""


def fusions(
    workload: WorkloadProfile,
    rules: Sequence[FusionRule],
    hardware_class: HardwareClass,
    operations: Iterable[str] | None = None,
) -> list[Fusion]:
    """Return what a class of hardware fuses: the longest chains that the rules allow, each operation in one at most.

    Rules are tried in order. `operations` are those that one device computes; all if None.
    """
    serving = [rule for rule in rules if rule.serves(hardware_class)]
    follower = _followers(workload, workload.by_name if operations is None else set(operations))
    found: list[Fusion] = []
    for operation in workload.by_name:
        chain, used = [operation], list[str]()
        match = _longer(workload, chain, serving, follower)
        while match is not None:
            used.append(match[0])
            chain += match[1]
            match = _longer(workload, chain, serving, follower)
        if used:
            found.append(_fused(workload, used[0], chain))
            follower = {name: other for name, other in follower.items() if not {name, other} & set(chain)}
    return found


def _followers(workload: WorkloadProfile, operations: Collection[str]) -> dict[str, str]:
    """Return the operation that may be fused behind each of some, where there is one.

    It alone reads the other, and waits for nothing that the other does not wait for.
    """
    readers, waits = workload.consumers(), dependencies(workload)
    before: dict[str, set[str]] = {}
    for name, others in waits.items():
        before[name] = set(others).union(*(before[other] for other in others))
    given = given_of(workload, "decomposable_components").items()
    component = {name: place for place, each in given for name in each["operations"]}
    only = {name: readers[name][0] for name in operations if len(readers[name]) == 1 and name not in workload.outputs}
    return {
        name: other
        for name, other in only.items()
        if other in operations
        and component.get(name) == component.get(other)
        and set(waits[other]) - {name} <= before[name]
    }


def _longer(
    workload: WorkloadProfile, chain: list[str], rules: Sequence[FusionRule], follower: Mapping[str, str]
) -> tuple[str, list[str]] | None:
    """Return the first rule whose pattern begins with a chain's last operation, and what it adds to the chain."""
    for rule in rules:
        names = chain[-1:]
        while len(names) < len(rule.pattern) and names[-1] in follower:
            names.append(follower[names[-1]])
        if rule.fits([OPERATIONS[workload.by_name[name].op_type] for name in names]):
            return rule.name, names[1:]
    return None


def _fused(workload: WorkloadProfile, rule: str, chain: Sequence[str]) -> Fusion:
    """Return a chain as one operation: what lies between its links is neither written nor read, and all else is."""
    costs = [workload.costs[name] for name in chain]
    read = [each for name in chain for each in flat(workload.by_name[name].inputs.values())]
    saved = sum(workload.num_bytes(name) * (1 + read.count(name)) for name in chain[:-1])
    outside = workload.num_bytes(*({each for each in read if isinstance(each, str)} - {*chain}), chain[-1])
    first = next((cost for cost in costs if cost.kind == "matmul"), costs[0])
    cost = replace(
        first,
        name="+".join(workload.by_name[name].op_type for name in chain),
        flops=sum(each.flops for each in costs),
        bytes=max(outside, sum(each.bytes for each in costs) - saved),
    )
    return Fusion(rule, tuple(chain), cost, saved)
