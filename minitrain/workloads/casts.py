"""Casts and transpositions around multiplications in eight bits.

Hopper's matrix units take eight-bit operands in one order alone. So backward needs the input of each multiplication,
and the gradient of its result, transposed. Norms and activation functions write both in eight bits themselves, but for
activation functions that are kernels of another library (`casts_apart`), whose results are cast as an attention's are.
What is left is

| what | forward | backward |
|---|---|---|
| input of what columns divide (queries, keys, values; up), whole | | transposed |
| gradient of what rows divide (output; down), whole | | transposed |
| input of the output projection | cast and transposed | |
| gradient of queries, keys and values | | cast and transposed |
| input of experts' multiplications, gradient of their result | cast and transposed | cast and transposed |

That is so where a tensor's scaling factor is that of steps before ("delayed"). A factor of the tensor itself
("current") makes norms and activation functions write 16 bits and find the largest element, after which the tensor is
read to be cast; others are read once more for it. With factors of blocks ("blockwise", on Hopper) a tensor is read
once, and where Blackwell's matrix units scale ("mx") activation functions write eight bits again, in both orders.
Four bits ("nvfp4") have a largest element too, and a rotation before they are rounded. Blackwell's matrix units take
either order, so that there nothing is transposed.

A factor of each row ("rowwise", of torchao) is one of each column for gradients of weights (`rowwise_passes`).
Left out: scaling factors' history; weights, whose copies are made once a step, but for MaxText's and those with a
factor of each row: rounded where they are multiplied, forward and for the input's gradient (AQT, torchao, Qwix), by
each core that gathers them. Where a recipe says "fixed", Qwix needs no largest elements, and gathers experts rounded.

Source: `LayerNormLinear` and `Linear` of github.com/NVIDIA/TransformerEngine (1.x): `fp8_cast_transpose_fused`,
`fp8_transpose` of the gathered input and of the gathered gradient; `force_unfused_kernel` of its
`csrc/extensions/normalization.cpp` (2.x); `create_hp_tensor_with_amax` (2.7, pull requests 2004 and 2013);
`non_tn_fp8_gemm_supported` of `csrc/extensions/util.cpp`; `GroupedLinear`, which casts all that it is given;
`docs/examples/gemm_profiling` (2.16), whose casts on B300 take 5.1, 4.0 and 5.9 bytes an element of current, MX and
NVFP4 scaling at 6.28 TB/s and Megatron's 1.15; `MLP` of Megatron-Core's `core/transformer/mlp.py`, whose activation
functions are PyTorch's own fusions, not Transformer Engine's (`use_te_activation_func`); `dot_general` of
github.com/google/aqt (2024), with `config_v3` of MaxText's `layers/quantizations.py`; `matmul_with_hp_or_float8_args`
of github.com/pytorch/ao's `torchao/float8/float8_linear.py` (0.13), compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from minitrain.workloads.kernels import MemoryPass
from minitrain.workloads.shapes import Gemm
from minitrain.workloads.workload import Style

_CAST_BYTES, _TRANSPOSED_BYTES = 4, 2  # read in 16 bits, written in eight, and written in eight transposed

_SCALING_BYTES: Mapping[str, tuple[int, int, int, int]] = {
    "delayed": (0, 0, 0, 0),
    "current": (4, 6, 4, 2),
    "current, in one order": (3, 5, 3, 2),
    "blockwise": (4, 4, 4, 0),
    "mx": (4, 4, 0, 0),
    "nvfp4": (6, 6, 2, 2),
    "rowwise": (0, 0, 0, 4),
}
"""Bytes more of an element that a norm makes, that a norm takes back, that an activation function makes or takes back,
and that is cast anyway, by where scaling factors come from."""


def eight_bit_passes(
    gemm: Gemm, style: Style, scaling: str, share: float, *, is_backward: bool, is_attention: bool
) -> Iterator[MemoryPass]:
    """Yield the casts and transpositions of a multiplication in eight bits, forward or backward.

    Args:
        gemm: the multiplication, forward.
        style: how a framework runs it, and whether the device needs transpositions.
        scaling: where scaling factors come from, a key of `_SCALING_BYTES`.
        share: of the tokens between layers that this rank casts: below 1 where they are gathered in eight bits.
        is_backward: which pass.
        is_attention: whether it is one of an attention's.
    """
    is_divided_by_rows = gemm.name == "output" or gemm.name.endswith("down")
    inputs, outputs = gemm.batch * gemm.m * gemm.k, gemm.batch * gemm.m * gemm.n
    is_between = is_divided_by_rows == is_backward  # its input, or the gradient of its result, lies between layers
    is_of_experts = gemm.name.startswith("experts.")
    if scaling == "rowwise" and not is_of_experts:
        is_alone = share < 1 if is_between else is_attention
        yield from rowwise_passes(gemm, style.eager, is_backward=is_backward, is_alone=is_alone)
        return
    one_order = not style.transposes and scaling in ("delayed", "current")
    *at_layer, within, cast = _SCALING_BYTES["current, in one order" if one_order and scaling == "current" else scaling]
    eager, cast_bytes = style.eager, _CAST_BYTES - one_order
    within = cast_bytes + cast if style.casts_apart else within
    more = share * at_layer[is_backward] if is_between else cast if is_attention else within
    more = cast_bytes + cast if is_of_experts else more
    if more:
        yield MemoryPass("scaling", outputs if is_backward else inputs, more * eager)
    if is_of_experts:
        return
    if not is_backward:
        if is_attention and is_divided_by_rows:
            yield MemoryPass("cast", inputs, cast_bytes * eager)
        return
    if style.transposes and scaling not in ("mx", "nvfp4"):
        yield MemoryPass("transposition", outputs if is_divided_by_rows else inputs, _TRANSPOSED_BYTES * eager)
    if is_attention and not is_divided_by_rows:
        yield MemoryPass("cast", outputs, cast_bytes * eager)


def rowwise_passes(gemm: Gemm, eager: float, *, is_backward: bool, is_alone: bool) -> Iterator[MemoryPass]:
    """Yield the casts of a multiplication in eight bits with a factor of each row, as torchao has them compiled.

    An operand is cast by rows for its product, and by columns for the gradient of the weight, whose largest elements
    no other kernel finds. Backward's products are scaled by kernels of their own (`addmm_float8_unwrapped` of
    torchao's `float8/float8_ops.py`): the weight's gradient, and that which attention's core takes; others' are scaled
    where they are read.

    Args:
        gemm: the multiplication, forward.
        eager: factor on the traffic.
        is_backward: which pass.
        is_alone: whether no kernel before finds the rows' largest elements: of what was gathered, or the core made.
    """
    inputs, outputs = gemm.batch * gemm.m * gemm.k, gemm.batch * gemm.m * gemm.n
    by_rows, by_columns = 5 if is_alone else 3, 5  # 16 bits read twice or once, eight written
    yield MemoryPass("scaling", outputs if is_backward else inputs, eager * (by_rows + is_backward * by_columns))
    if is_backward:
        yield MemoryPass("scaling", inputs, eager * (by_columns + 4 * (gemm.name == "output")))
        yield MemoryPass("scaling", gemm.batch * gemm.n * gemm.k, eager * 4)


CASTS_OF_EXPERT: Mapping[str, int] = MappingProxyType(
    {"delayed": 0, "current": 3, "blockwise": 1, "mx": 1, "nvfp4": 2, "rowwise": 2}
)
"""Kernels that write one expert's tokens in eight bits, by where scaling factors come from: a largest element, a factor
and a cast where it is the tensor's own; a largest element and a cast of four bits. With those of steps before, all
experts' tokens are cast by one kernel (`multi_tensor_quantize_impl` of Transformer Engine's
`csrc/extensions/cast.cpp`)."""

CASTS_OF_DENSE: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"delayed": (0, 0), "current": (3, 3), "blockwise": (1, 1), "mx": (3, 5), "nvfp4": (4, 6), "rowwise": (2, 2)}
)
"""Kernels beside a layer's own multiplication in eight bits, forward and backward, by where scaling factors come from:
those that write its input, or its result's gradient, as `CASTS_OF_EXPERT` has them; with factors of a matrix unit's
blocks, two that reorder both operands' before each product (`swizzle_scales_for_gemm` in `gemm` of Transformer Engine's
`pytorch/csrc/extensions/gemm.cpp`). Those of steps before are written by the kernel of the norm or of the activation
function."""
