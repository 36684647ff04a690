"""Cutting a workload by samples: every device computes all operations for its share of the batch.

That gives the same numbers where each row of a result comes from the same row of the batch alone. `rows_kept` goes
through the operations and refuses those that mix rows (a mean over the batch, a product with the batch as its right
side), even where shapes would fit. What does not depend on the batch is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile
from minitrain.heterogeneous.data_movement import DeviceMapping
from minitrain.heterogeneous.operations import MATRIX_DIMS
from minitrain.heterogeneous.workloads import ArraySpec, WorkloadOperation, WorkloadProfile

Shape = tuple[int, ...]


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
    _require_shares(workload, shares, working)
    kept = rows_kept(workload)
    first = max(working, key=lambda device: shares[device.name])
    placed = [(operation, first) for operation in workload.operations if operation.name not in kept]
    inputs = {name: given for name, given in workload.inputs.items() if name not in workload.batch_inputs}
    stop = 0
    for device in working:
        start, stop = stop, stop + shares[device.name]
        inputs |= {_of(name, device): _rows(workload.inputs[name], start, stop) for name in workload.batch_inputs}
        placed += [(_renamed(each, kept, device), device) for each in workload.operations if each.name in kept]
    for name in (each for each in workload.wanted if each in kept):
        pieces = [_of(name, device) for device in working]
        placed.append((WorkloadOperation(name, "concatenate", {"arrays": pieces}), first))
    operations = tuple(operation for operation, _ in placed)
    cut = WorkloadProfile(workload.workload_id, operations, inputs, workload.wanted, precisions=workload.precisions)
    return cut, {operation.name: device for operation, device in placed}


def rows_kept(workload: WorkloadProfile) -> frozenset[str]:
    """Return the arrays whose first dimension is the batch, each row made of the same row of the batch.

    Raises:
        UsageError: an operation mixes rows; it is named.
    """
    found = set(workload.batch_inputs)
    for operation in workload.operations:
        by_row = [name for name in operation.reads() if name in found]
        if by_row:
            if not _keeps(operation, found, workload):
                raise UsageError(
                    f"{workload.workload_id} cannot be cut by samples, since {operation.name} ({operation.op_type}) "
                    f"mixes the rows of {', '.join(by_row)}; divide it by operations: decompose_workload",
                    operation=operation.name,
                )
            found.add(operation.name)
    return frozenset(found)


def _keeps(operation: WorkloadOperation, by_row: set[str], workload: WorkloadProfile) -> bool:
    """Return whether each row of a result comes from the same rows of its operands alone."""
    rule = _RULES.get(operation.op_type, _elementwise)
    return rule(operation, by_row, workload)


def _elementwise(operation: WorkloadOperation, by_row: set[str], workload: WorkloadProfile) -> bool:
    """All operands of rows have as many dimensions as the result, and no other reaches over the batch."""
    result = workload.specs[operation.name].shape
    for name in operation.reads():
        shape = workload.specs[name].shape
        if name in by_row and len(shape) != len(result):
            return False
        if name not in by_row and len(shape) == len(result) and shape[0] != 1:
            return False
    return True


def _product(operation: WorkloadOperation, by_row: set[str], workload: WorkloadProfile) -> bool:
    x, y = (workload.specs[operation.inputs[name]].shape for name in ("x", "y"))
    if operation.inputs["y"] in by_row:
        return operation.inputs["x"] in by_row and len(x) == len(y) > MATRIX_DIMS  # a matrix for each sample
    return len(x) >= MATRIX_DIMS and (len(y) <= MATRIX_DIMS or len(y) < len(x))


def _other_axes(operation: WorkloadOperation, by_row: set[str], workload: WorkloadProfile) -> bool:  # noqa: ARG001
    """The axes that are summed or looked along are stated, and the batch is none of them."""
    dims = len(workload.specs[operation.reads()[0]].shape)
    axis = operation.options.get("axis", -1 if operation.op_type in ("softmax", "layernorm") else None)
    axes = [axis] if isinstance(axis, int) else axis
    return axes is not None and all(each % dims for each in axes)


def _joined(operation: WorkloadOperation, by_row: set[str], workload: WorkloadProfile) -> bool:
    dims = len(workload.specs[operation.name].shape)
    return all(name in by_row for name in operation.reads()) and operation.options.get("axis", 0) % dims != 0


def _reshaped(operation: WorkloadOperation, by_row: set[str], workload: WorkloadProfile) -> bool:  # noqa: ARG001
    wanted = operation.options["shape"]
    row = math.prod(workload.specs[operation.reads()[0]].shape[1:])
    return not isinstance(wanted, int) and wanted[0] == -1 and math.prod(wanted[1:]) == row


def _swapped(operation: WorkloadOperation, by_row: set[str], workload: WorkloadProfile) -> bool:  # noqa: ARG001
    dims = len(workload.specs[operation.reads()[0]].shape)
    return all(operation.options[name] % dims for name in ("axis1", "axis2"))


def _taken(operation: WorkloadOperation, by_row: set[str], workload: WorkloadProfile) -> bool:  # noqa: ARG001
    index = operation.options["index"]
    return isinstance(index, tuple) and index[:1] == (slice(None),)


_RULES: Mapping[str, Callable[[WorkloadOperation, set[str], WorkloadProfile], bool]] = MappingProxyType(
    {
        "matmul": _product,
        "sum": _other_axes,
        "mean": _other_axes,
        "max": _other_axes,
        "softmax": _other_axes,
        "layernorm": _other_axes,
        "concatenate": _joined,
        "stack": _joined,
        "reshape": _reshaped,
        "swapaxes": _swapped,
        "take": _taken,
    }
)


def _require_shares(
    workload: WorkloadProfile, shares: Mapping[str, int], working: Sequence[HardwareCapabilityProfile]
) -> None:
    """Require shares of devices that there are, which make the batch."""
    total = sum(shares[device.name] for device in working)
    if not workload.batch_inputs or total != workload.batch_size or min(shares.values(), default=0) < 0:
        raise UsageError(
            f"shares must add up to the batch of {workload.workload_id} ({workload.batch_size}) over the devices "
            f"given, got {total} of {dict(shares)}; use share_samples",
            shares=dict(shares),
        )


def _of(name: str, device: HardwareCapabilityProfile) -> str:
    return f"{name}@{device.name}"


def _rows(given: Any, start: int, stop: int) -> Any:
    """Return some rows of an input."""
    if isinstance(given, ArraySpec):
        return ArraySpec((stop - start, *given.shape[1:]), given.datatype)
    return given[start:stop]


def _renamed(
    operation: WorkloadOperation, kept: frozenset[str], device: HardwareCapabilityProfile
) -> WorkloadOperation:
    """Return an operation on a device's own rows."""

    def own(value: Any) -> Any:
        if isinstance(value, list):
            return [own(each) for each in value]
        return _of(value, device) if isinstance(value, str) and value in kept else value

    inputs = {operand: own(value) for operand, value in operation.inputs.items()}
    return replace(operation, name=_of(operation.name, device), inputs=inputs)
