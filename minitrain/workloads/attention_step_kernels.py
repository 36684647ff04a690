"""The kernels of an attention that is computed in steps; `attention_steps` describes the steps.

The steps around the core run the kernels that an undivided attention runs there. Of the multiplications, all but the
output projection belong to `keys_values`. Of the passes over memory, the residual connection and the gradients of
biases belong to `project`. The core is one kernel over the keys that the queries see where attention is flash.
Otherwise it is the products and the softmax of each shard of queries with each shard of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.context import Context
from minitrain.workloads.degrees import Cut, Work
from minitrain.workloads.kernels import (
    FlashAttention,
    Kernel,
    KernelList,
    Matmul,
    MemoryPass,
    backward_matmuls,
    forward_matmul,
)
from minitrain.workloads.shapes import Gemm
from minitrain.workloads.unit import Unit
from minitrain.workloads.unit_kernels import (
    FLASH_LAUNCHES,
    UNFUSED_LAUNCHES,
    Style,
    backward_kernels,
    forward_kernels,
    repeated_kernels,
)
from minitrain.workloads.workload import PassMode

_AFTER_CORE = frozenset({"residual", "dropout and residual", "residual gradient", "bias gradient", "second norm"})
_OF_CORE = frozenset({"softmax", "attention dropout", "gradient accumulation"})  # the last is listed with its product
_LAUNCHES_AFTER = 3  # the output projection, its bias and dropout, and the residual connection; twice in backward


def step_kernels(model: Architecture, unit: Unit, work: Work, typ: str, mode: PassMode, style: Style) -> KernelList:
    """Return what one rank runs in one step of an attention.

    Args:
        model: whose unit it is.
        unit: the attention.
        work: the rank's samples, their length, and how ranks divide the unit.
        typ: which step.
        mode: the shards of queries and of keys, and what backward computes again.
        style: how a framework runs it.

    Raises:
        UsageError: heads or the sequence do not divide by their degree.
    """
    is_backward = typ.startswith("backward")
    if not typ.endswith("attend"):
        found = _around_core(model, unit, work, style, is_after=typ.endswith("project"), is_backward=is_backward)
        is_normed_again = typ == "backward_keys_values" and unit.repeats_norm(mode.recompute)
        return found + repeated_kernels(model, unit, work, "layernorm", style) if is_normed_again else found
    assert mode.context is not None  # steps are of some shards
    found = _core(model, unit, work, mode.context, style, is_backward=is_backward)
    assert unit.core is not None  # an attention has one
    if is_backward and unit.repeats_core(mode.recompute) and not unit.core.is_flash:
        found = found + _core(model, unit, work, mode.context, style, is_backward=False)
    return found


def _around_core(
    model: Architecture, unit: Unit, work: Work, style: Style, *, is_after: bool, is_backward: bool
) -> KernelList:
    """Return the kernels before or after the core."""
    assert unit.core is not None  # as above
    listed = backward_kernels if is_backward else forward_kernels
    as_flash = replace(unit, core=replace(unit.core, is_flash=True))
    projections = tuple(each for each in unit.projections if (each.name == "output") == is_after)
    products = listed(model, replace(as_flash, projections=projections), work, style).kernels
    everything = listed(model, as_flash, work, style)
    kernels = [kernel for kernel in products if _is_product(kernel)]
    for kernel in everything.kernels:
        if isinstance(kernel, MemoryPass) and not _is_product(kernel) and (kernel.name in _AFTER_CORE) == is_after:
            kernels.append(kernel)
    launches = everything.num_launches - FLASH_LAUNCHES[is_backward]
    after = _LAUNCHES_AFTER * (2 if is_backward else 1)
    return KernelList(tuple(kernels), after if is_after else launches - after)


def _is_product(kernel: Kernel) -> bool:
    """Return whether a kernel is a multiplication with a weight, or adds up its gradient."""
    return isinstance(kernel, Matmul) or (isinstance(kernel, MemoryPass) and kernel.name in _OF_CORE)


def _core(
    model: Architecture, unit: Unit, work: Work, context: Context, style: Style, *, is_backward: bool
) -> KernelList:
    """Return the kernels of the core, of the queries and keys that see one another; nothing where none do."""
    core = unit.core
    assert core is not None  # as above
    shard_len = Cut("seq_len", work.seq_len).part(work.seq_len, context.num_shards, "num_shards")
    seen = list(context.seen(shard_len, core.window))
    if not seen:
        return KernelList()
    if not core.is_flash:
        blocks = [
            kernel for _ in seen for kernel in _block(model, unit, work, shard_len, style, is_backward=is_backward)
        ]
        return KernelList(tuple(blocks), len(seen) * UNFUSED_LAUNCHES[is_backward])
    listed = backward_kernels if is_backward else forward_kernels
    (whole,) = (kernel for kernel in listed(model, unit, work, style).kernels if isinstance(kernel, FlashAttention))
    flash = replace(
        whole,
        num_queries=shard_len * len({query for query, _, _ in seen}),
        num_keys=shard_len * len({key for _, key, _ in seen}),
        num_pairs=sum(pairs for _, _, pairs in seen),
    )
    return KernelList((flash,), FLASH_LAUNCHES[is_backward])


def _block(
    model: Architecture, unit: Unit, work: Work, shard_len: int, style: Style, *, is_backward: bool
) -> Iterator[Kernel]:
    """Yield the kernels of unfused attention for one shard of queries and one of keys."""
    core, element = unit.core, model.precision.activation_bytes
    assert core is not None  # as above
    batch = work.num_samples * Cut("num_heads", core.num_heads).part(core.num_heads, work.degrees.tp)
    for gemm in (
        Gemm("scores", shard_len, shard_len, core.key_dim, batch, has_weight=False),
        Gemm("values", shard_len, core.value_dim, shard_len, batch, has_weight=False),
    ):
        if is_backward:
            yield from backward_matmuls(gemm, model.precision.datatype, element, element)
        else:
            yield forward_matmul(gemm, model.precision.datatype, element)
    if model.score_cap:
        yield MemoryPass("score cap", batch * shard_len**2, (3 if is_backward else 2) * element * style.eager)
    yield MemoryPass("softmax", batch * shard_len**2, (3 if is_backward else 2) * element * style.eager)
