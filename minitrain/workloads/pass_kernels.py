"""The kernels of an operation that the engine prices: a pass through a unit, half of one, the loss, an update.

`unit_kernels` lists what a unit runs forward and backward. This file selects what one operation runs of that, and adds
what it computes again. The first half of a split backward is all but the gradients of weights, which are the second.

A workload whose operations can be priced by kernels has the methods of `ListsKernels`.
"""

from __future__ import annotations

from typing import Protocol

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.degrees import Work
from minitrain.workloads.kernels import Kernel, KernelList, Matmul, MemoryPass
from minitrain.workloads.unit import Unit
from minitrain.workloads.unit_kernels import Style, backward_kernels, forward_kernels, repeated_kernels
from minitrain.workloads.workload import PassMode


class ListsKernels(Protocol):
    """A workload that says which kernels an operation runs."""

    def first_like(self, layer: int) -> int:
        """Return the first layer that runs the same kernels."""
        ...

    def pass_kernels(self, typ: str, num_samples: int, layer: int, mode: PassMode, style: Style) -> KernelList:
        """Return the kernels of a forward, loss, backward, backward_input or backward_weight of a layer."""
        ...

    def update_kernels(
        self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int, style: Style
    ) -> KernelList:
        """Return the kernels of an optimizer step on some shards of a layer, or of one of its parts."""
        ...


def pass_kernels(model: Architecture, unit: Unit, work: Work, typ: str, recompute: str, style: Style) -> KernelList:
    """Return the kernels of a pass through a unit.

    Args:
        model: whose unit it is.
        unit: one of its units.
        work: the rank's samples, their length, and how ranks divide the unit.
        typ: "forward", "backward", "backward_input" or "backward_weight".
        recompute: what backward computes again.
        style: how a framework runs it.

    Raises:
        UsageError: heads, columns, experts or the sequence do not divide by their degree.
    """
    if typ == "forward":
        return forward_kernels(model, unit, work, style)
    whole = backward_kernels(model, unit, work, style)
    if typ == "backward_weight":
        return _half(whole, of_weights=True)
    if typ == "backward_input":
        whole = _half(whole, of_weights=False)
    return whole + _again(model, unit, work, recompute, style)


def _again(model: Architecture, unit: Unit, work: Work, recompute: str, style: Style) -> KernelList:
    """Return what backward computes again."""
    if recompute == "full" and unit.layer is not None:
        forward = forward_kernels(model, unit, work, style)
        return _without_last(forward) if style.stops_early and unit.kind == "mlp" else forward
    return repeated_kernels(model, unit, work, recompute, style)


def _without_last(forward: KernelList) -> KernelList:
    """Return an MLP's forward without its last multiplication and the addition of the residual that follows."""
    last = max(place for place, kernel in enumerate(forward.kernels) if isinstance(kernel, Matmul))
    kept = [
        kernel
        for place, kernel in enumerate(forward.kernels)
        if place != last and not (isinstance(kernel, MemoryPass) and "residual" in kernel.name)
    ]
    return KernelList(tuple(kept), forward.num_launches)


def _half(whole: KernelList, *, of_weights: bool) -> KernelList:
    """Return the gradients of weights, or all else, each with its share of the launches."""
    kernels = tuple(kernel for kernel in whole.kernels if _is_of_weights(kernel) is of_weights)
    if not whole.kernels:
        return whole
    num_of_weights = sum(map(_is_of_weights, whole.kernels))
    return KernelList(kernels, num_of_weights if of_weights else whole.num_launches - num_of_weights)


def _is_of_weights(kernel: Kernel) -> bool:
    """Return whether a kernel makes or adds up the gradient of a weight."""
    if isinstance(kernel, Matmul):
        return kernel.kind == "weight_gradient"
    return isinstance(kernel, MemoryPass) and kernel.name == "gradient accumulation"
