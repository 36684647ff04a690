"""Workloads: operations on named arrays, as the manager divides them and the orchestrator executes them.

A `WorkloadProfile` is a graph. Each `WorkloadOperation` has a name, which its result is known by, and reads inputs of
the workload or results of others. Operations stand in an order in which they can be computed. Inputs are arrays, or an
`ArraySpec` where only the price matters. Those in `batch_inputs` have one row a sample, so that a workload has a batch
size and can be priced at another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np

from minitrain.devices.operations import ELEMENT_BYTES, Operation, Program, known_datatype
from minitrain.errors import UsageError, require_count
from minitrain.heterogeneous.backends import datatype_of
from minitrain.heterogeneous.capabilities import PrecisionType
from minitrain.heterogeneous.libraries import datatype_named
from minitrain.heterogeneous.operations import Shape, cost_of, operation_named, result_shape, split_inputs
from minitrain.workloads.field_faults import closest


@final
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


@final
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
        found: dict[str, None] = {}
        for value in self.inputs.values():
            found |= dict.fromkeys([value] if isinstance(value, str) else value if isinstance(value, list) else [])
        return tuple(found)

    def with_arrays(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return operands and options with arrays in the places of their names."""
        found: dict[str, Any] = dict(self.options)
        for operand, value in self.inputs.items():
            if isinstance(value, list):
                found[operand] = [arrays[name] for name in value]
            else:
                found[operand] = arrays[value] if isinstance(value, str) else value
        return found


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

    def __post_init__(self) -> None:
        """Refuse a graph that cannot be computed."""
        object.__setattr__(self, "operations", tuple(self.operations))
        given = {name: each if isinstance(each, ArraySpec) else np.asarray(each) for name, each in self.inputs.items()}
        object.__setattr__(self, "inputs", given)
        self._require_order()
        for names, known in ((self.outputs, self.specs), (self.batch_inputs, self.inputs)):
            for name in names:
                self._require_known(name, known, "the workload names")
        if len({self.inputs[name].shape[0] for name in self.batch_inputs}) > 1:
            sizes = ", ".join(f"{name} {self.inputs[name].shape[0]}" for name in self.batch_inputs)
            raise UsageError(f"batch inputs of {self.workload_id} must have equally many rows, got {sizes}")

    def _require_order(self) -> None:
        """Require that each operation reads what is there before it."""
        known = dict.fromkeys(self.inputs)
        for operation in self.operations:
            for name in operation.reads():
                self._require_known(name, known, f"operation {operation.name} reads")
            if operation.name in known:
                raise UsageError(
                    f"{self.workload_id} has two arrays called {operation.name!r}; give operations names of their own"
                )
            known[operation.name] = None

    def _require_known(self, name: str, known: Mapping[str, Any], who: str) -> None:
        if name not in known:
            raise UsageError(
                f"{who} {name!r}, which no input and no operation before it gives {closest(name, known)}; there are "
                f"{', '.join(known)}",
                name=name,
            )

    @cached_property
    def by_name(self) -> dict[str, WorkloadOperation]:
        """The operations by name."""
        return {operation.name: operation for operation in self.operations}

    @cached_property
    def specs(self) -> dict[str, ArraySpec]:
        """Shape and datatype of all arrays by name, inputs and results."""
        found = {
            name: each if isinstance(each, ArraySpec) else ArraySpec(tuple(each.shape), datatype_of(each))
            for name, each in self.inputs.items()
        }
        for operation in self.operations:
            found[operation.name] = _spec_of(operation, found)
        return found

    @cached_property
    def costs(self) -> dict[str, Operation]:
        """What each operation costs, by name."""
        return {operation.name: self._cost(operation) for operation in self.operations}

    def _cost(self, operation: WorkloadOperation) -> Operation:
        kind = operation_named(operation.op_type)
        operands, _ = split_inputs(kind, operation.with_arrays(self.specs))
        result = self.specs[operation.name]
        shapes = [_shape(each) for each in operands]
        computed_in = _widest([self.specs[name].datatype for name in operation.reads()])
        return cost_of(kind, shapes, result.shape, computed_in)

    @property
    def program(self) -> Program:
        """All operations as device simulators take them."""
        return Program(tuple(self.costs.values()))

    @property
    def wanted(self) -> tuple[str, ...]:
        """The results that are wanted."""
        read = {name for operation in self.operations for name in operation.reads()}
        return self.outputs or tuple(each.name for each in self.operations if each.name not in read)

    @property
    def batch_size(self) -> int:
        """Samples; 1 for a workload without a batch."""
        return int(self.inputs[self.batch_inputs[0]].shape[0]) if self.batch_inputs else 1

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
        given = {
            name: ArraySpec((batch_size, *spec.shape[1:]), spec.datatype) if name in self.batch_inputs else spec
            for name, spec in self._input_specs()
        }
        return self.with_inputs(given)

    def in_precision(self, precision: PrecisionType) -> Self:
        """Return the same workload with its real inputs in another datatype; arrays are converted."""
        return self.with_inputs({name: _cast(each, precision) for name, each in self.inputs.items()})

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return the same operations on other inputs."""
        return replace(self, inputs=inputs)

    def _input_specs(self) -> Iterator[tuple[str, ArraySpec]]:
        return ((name, self.specs[name]) for name in self.inputs)


def dependencies(workload: WorkloadProfile) -> dict[str, list[str]]:
    """Return which operations each operation reads from."""
    names = workload.by_name
    return {each.name: [name for name in each.reads() if name in names] for each in workload.operations}


def _spec_of(operation: WorkloadOperation, known: Mapping[str, ArraySpec]) -> ArraySpec:
    """Return shape and datatype of an operation's result."""
    kind = operation_named(operation.op_type)
    operands, options = split_inputs(kind, operation.with_arrays(known))
    shape = result_shape(kind, [_shape(each) for each in operands], options)
    if kind.gives_truth:
        return ArraySpec(shape, "bool")
    datatypes = [known[name].datatype for name in operation.reads()]
    return ArraySpec(shape, str(options["datatype"]) if operation.op_type == "cast" else _widest(datatypes))


def _shape(operand: Any) -> Any:
    return [each.shape for each in operand] if isinstance(operand, list) else getattr(operand, "shape", ())


def _widest(datatypes: Sequence[str]) -> str:
    """Return the datatype that arrays of some datatypes make together."""
    if len(set(datatypes)) > 1:
        return _promoted([datatype_named(name) for name in datatypes])
    return datatypes[0] if datatypes else "float64"


def _cast(given: Any, precision: PrecisionType) -> Any:
    """Return an input of real numbers in another datatype."""
    if isinstance(given, ArraySpec):
        return replace(given, datatype=precision.value) if "float" in given.datatype else given
    return given.astype(datatype_named(precision.value)) if "float" in datatype_of(given) else given


def _promoted(datatypes: Sequence[Any]) -> str:
    """Return the datatype that NumPy gives the result."""
    promote: Callable[..., Any] = np.result_type
    return str(promote(*datatypes))
