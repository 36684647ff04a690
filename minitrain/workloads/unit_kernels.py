"""The kernels of a unit of a transformer: what one rank runs forward, backward and for an update.

`forward_kernels` and `backward_kernels` list those of a whole pass. `pass_kernels` selects what one operation of the
engine runs of them (a pass through a unit, half of one, the loss, an update), and adds what it computes again. The
first half of a split backward is all but weights' gradients. Workloads priced by kernels have `ListsKernels`' methods.

**Passes over memory** run around matrix multiplications, which are the unit's own (`Unit.gemms`). Their bytes follow
from what they read and write: a norm reads and writes each element once forward, and backward reads gradient and input,
writes a gradient, and reads once more for its weight's; dropout with the residual's addition reads two tensors and
writes one and a mask. What Megatron-LM fuses is fused here: bias, dropout and addition; the activation function with
its bias; scale, mask and softmax. Left out: communication; the router's top-k. Multiplications in
eight bits need casts: `minitrain.workloads.casts`.

Source: Korthikanti et al. (2022), section 4, has the tensors, Megatron-LM's fused kernels which of them each reads and
writes. The counts of launches are an estimate: 16 forward and 34 backward a layer, more for unfused attention, experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Protocol

from minitrain.tensors.compressed import Shapes
from minitrain.workloads.architecture import (
    AVERAGE_BYTES,
    MASK_BYTES,
    NARROW_BYTES,
    PRECISIONS,
    STATISTIC_BYTES,
    Architecture,
    Precision,
)
from minitrain.workloads.casts import CASTS_OF_DENSE, CASTS_OF_EXPERT, eight_bit_passes
from minitrain.workloads.kernels import (
    FlashAttention,
    Kernel,
    KernelList,
    Matmul,
    MemoryPass,
    backward_matmuls,
    bucketed_gradients,
    copied_parts,
    copied_unit,
    copies_of_parts,
    dtensor_launches,
    forward_matmul,
    hook_launches,
    index_kernels,
    newton_schulz,
    one_hot_products,
)
from minitrain.workloads.rings import ring_pass
from minitrain.workloads.shapes import ADAPTER, Cut, Gemm, Work
from minitrain.workloads.unit import Unit, has_second_norm
from minitrain.workloads.workload import PassMode, Style, modules_of

_OF_WEIGHTS = ((3, 0), (5, 5))  # read in 16 bits to be rounded, written in eight; read before for the largest element
PERMUTATIONS = ("permutation", "unpermutation")
"""Passes that write the copies of tokens in the order of their experts, and add them up again: a token is read or
written once, and each of its copies (`token_permutation` and `token_unpermutation` of Megatron-Core's
`core/transformer/moe/token_dispatcher.py`). Backward does the inverse of each."""

ADAM_BYTES = 46
"""Bytes of memory traffic of Adam for a parameter, in single precision but for the last: master copy and two moments
read and written (24); the gradient read for its norm, read and written to be clipped, read, and set to zero (20); the
16-bit copy written (2)."""

ADAFACTOR_BYTES = (20 + 4, 4 + 4, 4 + 8 + 2)
"""Those of Adafactor's three passes: as Adam's gradient (20), and read for the squares' sums (4); gradient and master
copy read for root mean squares (8); the gradient read, the master copy read and written, the 16-bit copy (14)."""

_LAUNCHES = {"attention": (8, 17), "mlp": (8, 17), "moe": (35, 20), "embedding": (4, 4), "head": (3, 6)}
_LAUNCHES["linear_attention"] = (18, 34)  # estimated, in no trace: ten are products of chunks and what is between
UNFUSED_ROUTER = (14, 41)
"""Launches more of a router forward where no kernels fuse it, without and with groups of experts: DeepSeek-V3's 72 for
31 (docs/discussions/deepseek-v3-gb200-optimization of github.com/NVIDIA/Megatron-LM, section 2.1.4); 17 for 3 without,
by the same count of `topk_softmax_with_capacity` and of the loss (`core/transformer/moe/moe_utils.py`)."""

_ADAPTER_LAUNCHES = (2, 4)  # of A and of B each: its product, and scaling or sum
_LOSS_LAUNCHES = (5, 4)
UNFUSED_LAUNCHES, FLASH_LAUNCHES = (7, 12), (2, 4)


_LAUNCHES_APART = {"attention": (3, 8), "mlp": (5, 8), "moe": (39, 48), "embedding": (1, 12), "head": (2, 5)}
_LAUNCHES_APART["linear_attention"] = _LAUNCHES["linear_attention"]
_LAUNCHES_OF_GATE, _LAUNCHES_OF_ROTARY, _LAUNCHES_OF_GROUPS = (2, 5), (8, 12), (2, 2)
"""Launches where each operation is a kernel (`Style.apart`), and those that a gated MLP, rotary embeddings (with
queries, keys and values of a matrix each) and fewer keys than queries add: counted in a profiled step."""

_NORM_APART, _ROTARY_APART, _GROUPS_APART = (2.5, 7.0), (12.0, 12.0), (6.5, 6.5)
"""Tensors' worth of time of such kernels, forward and backward: a norm, whose weight's gradient reads both tensors too;
rotary embedding in complex numbers (cast to single precision, product, cast back), whose casts reach half of the
bandwidth; copies of keys and values for each query head, as those. Measured alone on an H100 with PyTorch 2.11."""

_NORM_IN_SINGLE, _ROTARY_BY_HALVES, _LOSS_IN_SINGLE = (18, 46), (10, 15), (22, 34)
"""The same of Hugging Face's transformers, the loss in bytes of a logit: what `LlamaRMSNorm` (cast to single precision,
square, mean, product, cast back, weight), `apply_rotary_pos_emb` (products, a half negated, concatenation, sum) and the
loss of `LlamaForCausalLM` (cast, shifted copy, logarithm of softmax) read and write, and what PyTorch's derivatives of
each do (`models/llama/modeling_llama.py` of version 4.38; later ones spare the copy). A norm's six and ten passes are
also counted in its pull request 48915."""

_LOSS_JITTED = (30, 18)
"""Bytes of a logit of Megatron-Core's own loss, compiled: cast with maximum (6), exponentials with their sum (16) and
quotient (8); gradients with what is subtracted (8) and product (10). Where a graph also sums or scatters, what changes
in place is written to an array of its own and copied back, "an extra read/write pass" (`fusions/fused_cross_entropy.py`
of 2026). Profiled on an H100, the five take 671, 1734, 870, 825 and 1046 us for 3.1e8 logits: 2.8 to 3 TB/s
(`training/profiles` of github.com/BastiaanGroot/ML-Infrastructure-Engineer, 2026)."""

_GATES_APART = (1, 4)
"""Launches of a gate that a kernel of its own activates: that, and in backward it, one product more, and a copy."""

_LAUNCHES_IN_SINGLE, _LAUNCHES_BY_HALVES = (7, 9), (2, 6)
"""Launches that such a norm and such an embedding have more."""

_ROTARY_BY_PYTORCH, _LAUNCHES_BY_PYTORCH = (12, 14), (22, 12)
"""Tensors read and written to rotate queries and keys by products, halves, sums and concatenations, forward and
backward, and launches more than of two kernels (`_apply_rotary_pos_emb_bshd` of Megatron-Core's `rope_utils.py`)."""

_PERMUTED_APART, _PERMUTED_BY_XLA = ((22, 0), (40, 0)), ((12, 2), (14, 3))
"""Tensors of copies of tokens, and of tokens, that are read and written: gathered, cast, weighted in single precision,
cast back, padded by a row, gathered in order, put back, and added up by torchtitan's `MoE`; backward does the inverse,
where a gather's is an addition in any order. Repeated, sorted, put back, cast (`float32_weight_sum`), and summed by
MaxText's `permute` and `unpermute` (`layers/moe.py`), where a sort's backward is a sort; casts change the layout, and
XLA fuses them with nothing (pull requests 1058 and 1578 of github.com/sgl-project/sglang-jax). To sort or put back a
row of 16 bits reads two, which share words of 32 in memory (XLA compiles a gather of rows of 4,096 bytes to copies of
8,192 each for v5p, libtpu 0.0.42)."""

_WEIGHTED_APART = (10, 18)
"""Those of copies that are cast, weighted in single precision and cast back alone, as DeepEP brings them, and backward,
with the weights' gradients (`dispatch_tokens` of torchtitan's `distributed/deepep/deepep.py`)."""

_SOFTMAX, _SOFTMAX_BY_XLA = (2, 3), (4, 5)
"""Tensors of scores that softmax reads and writes, forward and backward: by one kernel, or with a pass for the largest
element and for each sum along a row, with whose results XLA fuses nothing (`jax.nn.softmax`)."""

_LOSS_APART, _LOSS_BY_XLA = (25, 26), (8, 6)
"""Bytes' worth of time of a logit: cast to single precision, logarithm of softmax; zeros, gradient, cast back. Of XLA
the largest, exponentials kept in single precision; gradients of these (`cross_entropy_with_logits` of MaxText)."""


def _adam_apart(precision: Precision, *, by_lists: bool = False) -> int:
    """Return the bytes of AdamW for a parameter as PyTorch has it (`fused=True`), or its default by lists of tensors.

    What it keeps is read and written; the gradient is read, read for its norm, and read and written to be clipped. By
    lists, eight kernels read and write what is kept three times, and the gradient twice (`_multi_tensor_adamw` of
    `torch/optim/adamw.py`, the default of Hugging Face's `Trainer`), as they do by one parameter after another.
    """
    has_copy = precision.optimizer_bytes > 4 * precision.parameter_bytes
    kept = precision.optimizer_bytes + (0 if has_copy else precision.parameter_bytes)
    return 6 * kept + 5 * precision.gradient_bytes if by_lists else 2 * kept + 4 * precision.gradient_bytes


_CLAMP_TENSORS, _CLAMP_LAUNCHES = (8, 10), 3
"""Tensors of a gate's size that clamping reads and writes, forward and backward, beside the fused activation function:
both halves, and their concatenation; two gradients, each with its mask, and their concatenation
(`weighted_bias_quick_geglu_impl` of Megatron-Core's `core/fusions/fused_bias_geglu.py`, whose `chunk`, `clamp` and
`cat` are outside what it compiles)."""

PROBABILITIES, _PROBABILITIES_TENSORS = "gradient of probabilities", 3
"""Pass that makes the gradient of experts' probabilities, which multiply the activation function's result, and the
tensors of a gate's size that it reads: both halves and the gradient, whose products are summed along a row
(`weighted_swiglu_back` of Megatron-Core's `core/fusions/fused_bias_swiglu.py`). `torch.compile` writes both
halves' gradients by another kernel, of twice as many columns (`pointwise_cat` of `torch/_inductor/lowering.py`)."""

_EXPERT_BIAS_TENSORS = (6, 8)
"""Tensors of the experts' results that adding the last bias times probabilities reads and writes: product, sum and
concatenation; the products for the gradients of both factors and their sums, and a concatenation (`_apply_bias` of
`TEGroupedMLP` in Megatron-Core's `core/transformer/moe/experts.py`). The first bias is the multiplication's own."""

_EXPERT_BIAS_LAUNCHES = ((0, 1), (2, 5))
"""Kernels of each expert for its first and its last bias, forward and backward: `_apply_bias` runs them one expert
after another, and each bias's gradient is added to the whole gradient by itself."""


DEFAULT_STYLE = Style()


def forward_kernels(model: Architecture, unit: Unit, work: Work, style: Style = DEFAULT_STYLE) -> KernelList:
    """Return what one rank runs forward.

    Args:
        model: whose unit it is.
        unit: one of its units.
        work: the rank's samples, their length, and how ranks divide the unit.
        style: how a framework runs it.

    Raises:
        UsageError: heads, columns, experts or the sequence do not divide by their degree.
    """
    return _Lister(model, unit, work, style).listed(is_backward=False)


def backward_kernels(model: Architecture, unit: Unit, work: Work, style: Style = DEFAULT_STYLE) -> KernelList:
    """Return what one rank runs backward, without recomputation; as `forward_kernels`."""
    return _Lister(model, unit, work, style).listed(is_backward=True)


def repeated_kernels(
    model: Architecture, unit: Unit, work: Work, recompute: str, style: Style = DEFAULT_STYLE
) -> KernelList:
    """Return what backward computes again of single modules of a unit; arguments as those of `forward_kernels`.

    Launches are a share of forward's, by the number of kernels, and those of experts.

    Args:
        model: whose unit it is.
        unit: one of its units.
        work: the rank's samples, their length, and how ranks divide the unit.
        recompute: what backward computes again, but not "full".
        style: how a framework runs it.
    """
    lister, core = _Lister(model, unit, work, style), KernelList()
    if unit.core is not None and unit.repeats_core(recompute):
        launches = FLASH_LAUNCHES if unit.core.is_flash else UNFUSED_LAUNCHES
        core = KernelList(tuple(lister.core(is_backward=False)), launches[0])
    kernels = tuple(lister.repeated(recompute))
    if not kernels:
        return core
    in_whole = len(lister.listed(is_backward=False).kernels)
    share = -(-lister.usual_launches(is_backward=False) * len(kernels) // in_whole)
    again = KernelList(kernels, *style.captured(share, unit.kind)) + lister.of_experts(recompute)
    if style.stops_early and unit.kind == "mlp" and unit.is_repeated(recompute):
        again = _without_last(again)
    return again + core


def loss_kernels(model: Architecture, head: Unit, work: Work, style: Style = DEFAULT_STYLE) -> KernelList:
    """Return softmax and cross entropy over the rank's part of the vocabulary, forward and backward."""
    lister = _Lister(model, head, work, style)
    passes = tuple(lister.loss(is_backward=is_backward) for is_backward in (False, True))
    return KernelList(passes, sum(_LOSS_LAUNCHES))


def update_kernels(
    num_parameters: int,
    style: Style = DEFAULT_STYLE,
    *,
    num_gradients: int = 0,
    precision: Precision = PRECISIONS["bf16"],
    averages: bool = False,
    matrices: Shapes = (),
    has_factors: bool = False,
    num_launches: int = 1,
) -> KernelList:
    """Return what a step does with gradients and parameters once they are whole.

    Args:
        num_parameters: those of a rank's shards, on which Adam works as one kernel.
        style: how a framework runs it.
        num_gradients: elements of the rank's gradients before they are sharded.
        precision: of weights, gradients and states.
        averages: whether another kernel takes an average of the weights on.
        matrices: what Muon trains of them: Adam's kernel then has the rest.
        has_factors: whether Adafactor trains them.
        num_launches: those of Adam.
    """
    if not num_parameters:
        return KernelList()
    in_matrices = sum(map(prod, matrices))
    by_lists = style.by_parameter or (style.apart and style.hugging_face)
    adam_bytes = _adam_apart(precision, by_lists=by_lists) if style.apart or by_lists else ADAM_BYTES * style.eager
    kernels: list[Kernel] = [MemoryPass("adam", num_parameters - in_matrices, adam_bytes)]
    if has_factors:
        passes = zip(("sums", "norms", "adafactor"), ADAFACTOR_BYTES, strict=True)
        kernels = [MemoryPass(name, num_parameters, size * style.eager) for name, size in passes]
    if matrices:
        kernels += [MemoryPass("muon", in_matrices, ADAM_BYTES - 8), *newton_schulz(matrices)]
    if style.gradient_accesses:
        kernels.append(MemoryPass("gradients", num_gradients, precision.gradient_bytes * style.gradient_accesses))
    if averages:
        kernels.append(MemoryPass("average", num_parameters, 3 * AVERAGE_BYTES))
    return KernelList(tuple(kernels), len(kernels) - 1 + num_launches)


def _added_up(precision: Precision) -> int:
    """Return the bytes that adding an element to a gradient reads and writes."""
    return precision.activation_bytes + 2 * precision.gradient_bytes


@dataclass(frozen=True, slots=True)
class _Lister:
    """Lists the kernels of one unit for one rank's work."""

    model: Architecture
    unit: Unit
    work: Work
    style: Style

    def listed(self, *, is_backward: bool) -> KernelList:
        """Return a whole pass."""
        kernels: list[Kernel] = list(self._passes(is_backward=is_backward))
        for gemm in self._projections():
            kernels += self._products(gemm, is_backward=is_backward)
        if self.unit.kind == "embedding" and self.style.one_hot_embedding:
            kernels.append(self._one_hot(is_backward=is_backward))
        launches = self.usual_launches(is_backward=is_backward)
        if self.style.copies_parts and self.work.degrees.sequence > 1 and self.unit.layer is not None:
            elements, each = self.work.num_tokens * self.model.hidden_size, self.model.precision.activation_bytes
            copies = copies_of_parts(self.style.parts_overlap, self.work.num_samples, is_backward=is_backward)
            kernels.append(copied_parts(elements, each, copies))
            launches += copies
        launches += self._of_hosts(is_backward=is_backward)
        own = sum(prod(weight.part(self.work.degrees)) for weight in self.unit.weights if not weight.is_shared)
        if self.style.hooked and is_backward:
            kernels.append(bucketed_gradients(own, self.style.hooked))
        if self.style.copies_units:
            among, summed_bytes = self.style.copies_units, self.model.precision.gradient_bytes
            kernels.append(copied_unit(own, among, summed_bytes, is_backward=is_backward))
            launches += 2 * len(self.unit.weights) * (1 + is_backward)
        if self.model.gate_clamp is not None and any(each.name.endswith("down") for each in self.unit.projections):
            launches += _CLAMP_LAUNCHES
        launches += self._casts_of_dense(is_backward=is_backward)
        launches += _ADAPTER_LAUNCHES[is_backward] * sum(ADAPTER in each.name for each in self.unit.projections)
        kernels += self.scan(is_backward=is_backward)
        if self.unit.core is not None:
            kernels += self.core(is_backward=is_backward)
            launches += (FLASH_LAUNCHES if self.unit.core.is_flash else UNFUSED_LAUNCHES)[is_backward]
        whole = KernelList(tuple(kernels), *self.style.captured(launches, self.unit.kind))
        return whole + self.of_experts(is_backward=is_backward)

    def _one_hot(self, *, is_backward: bool) -> Matmul:
        """Return the multiplication of one-hot rows, which are never stored, by the table; in backward its gradient."""
        tokens, hidden, datatype = self.work.num_tokens, self.model.hidden_size, self.model.precision.datatype
        cut = Cut("vocab_size", self.model.vocab_size, is_padded=True)
        words = cut.part(self.model.vocab_size, self.work.degrees.tp)
        if is_backward:
            return Matmul(words, hidden, tokens, kind="weight_gradient", datatype=datatype)
        return Matmul(tokens, hidden, words, datatype=datatype)

    def _of_hosts(self, *, is_backward: bool) -> int:
        """Return what the host does beside launches, in launches: what dispatches DTensors, and DeepSpeed's hooks."""
        launches = 0
        if self.style.dtensors and self.work.degrees.tp > 1:
            launches += dtensor_launches(
                sum(not weight.is_norm for weight in self.unit.weights),
                num_norms := int(self.work.degrees.sequence > 1),
                num_norms * (self.unit.core is not None and self.model.qk_norm != "none"),
                is_backward=is_backward,
            )
        if self.style.hooked:
            launches += hook_launches(self.style.hooked, len(self.unit.weights), is_backward=is_backward)
        return launches

    def _of_modules(self, *, is_backward: bool) -> int:
        """Return what a layer's multiplications take longer to launch in Transformer Engine's modules, in launches."""
        num_modules = len(self.unit.projections) if self.unit.layer is not None else 0
        return round((self.style.module_share - 1) * num_modules * (1 + is_backward))

    def usual_launches(self, *, is_backward: bool) -> int:
        """Return the launches of a pass, but for those of experts' multiplications and of the attention core."""
        unit, model = self.unit, self.model
        if not self.style.apart:
            is_unfused = unit.kind == "moe" and not is_backward and not self.style.fused_router
            rotated = self._rotates_apart * _LAUNCHES_BY_PYTORCH[is_backward]
            longer = rotated + self._of_modules(is_backward=is_backward)
            longer += _GATES_APART[is_backward] * (self.style.gates_apart and model.is_gated and unit.kind == "mlp")
            return _LAUNCHES[unit.kind][is_backward] + is_unfused * UNFUSED_ROUTER[model.expert_groups > 1] + longer
        launches = _LAUNCHES_APART[unit.kind][is_backward]
        if unit.kind == "attention":
            launches += _LAUNCHES_OF_ROTARY[is_backward] * (model.positions == "rotary")
            launches += _LAUNCHES_OF_GROUPS[is_backward] * self._copies_groups
            launches += _LAUNCHES_BY_HALVES[is_backward] * self.style.hugging_face
            biases = model.qkv_bias + model.output_bias
        else:
            launches += _LAUNCHES_OF_GATE[is_backward] * (unit.kind == "mlp" and model.is_gated)
            biases = 2 * (unit.kind == "mlp" and model.mlp_bias)
        launches += _LAUNCHES_IN_SINGLE[is_backward] * (self.style.hugging_face and unit.kind != "embedding")
        return launches + is_backward * biases

    @property
    def _copies_groups(self) -> bool:
        """Whether keys and values are copied for each query head: transformers does not for FlashAttention-2's own."""
        takes_groups = self.style.hugging_face and self.style.attention == "flash2"
        return self.style.apart and self.model.num_kv_heads < self.model.num_heads and not takes_groups

    @property
    def _rotates_apart(self) -> bool:
        """Whether no kernel of Megatron-Core rotates queries and keys (`mscale != 1.0`)."""
        has_kernel = self.model.rope_factor == 1 or self.model.latent is not None
        return self.style.casts_apart and self.unit.kind == "attention" and not has_kernel

    def _casts_of_dense(self, *, is_backward: bool) -> int:
        """Return the kernels of casts of the multiplications that every token goes through, all but the router's."""
        if self.unit.layer is None or not self._is_narrow or self.style.apart:  # those are counted with others
            return 0
        dense = sum(not each.num_experts and each.name != "router" for each in self.unit.projections)
        return dense * CASTS_OF_DENSE[self.model.precision.scaling][is_backward]

    @property
    def _is_narrow(self) -> bool:
        """Whether matrices are multiplied in eight bits or fewer."""
        return (self.style.datatype or self.model.precision.weight_datatype) in NARROW_BYTES

    def of_experts(self, recompute: str | None = None, *, is_backward: bool = False) -> KernelList:
        """Return the launches of experts' multiplications, listed elsewhere: all, or those that are computed again.

        A graph has each expert's by itself where all have as many rows; where the host does not know how many, one
        kernel multiplies all.
        """
        again = () if recompute is None else {each.name for each in self.unit.repeated_projections(recompute)}
        gemms = (gemm for gemm in self._projections() if recompute is None or gemm.name in again)
        launches = sum(self._launches_of(gemm, is_backward=is_backward) for gemm in gemms)
        if not self.style.captures_experts:
            return KernelList((), launches)
        return KernelList((), 0, launches * self.style.pads_experts)

    def _launches_of(self, gemm: Gemm, *, is_backward: bool) -> int:
        """Return the launches of a multiplication by itself, which others' layers have in theirs.

        Each expert's is on one of several streams (`nvte_multi_stream_cublas_gemm` of Transformer Engine, to 2.9).
        """
        if not gemm.is_of_experts:
            return 0
        if self.style.apart or self.style.moves_apart:  # one kernel of all experts (`torch._grouped_mm`)
            return 1 + is_backward
        casts = CASTS_OF_EXPERT[self.model.precision.scaling] if self._is_narrow else 0
        casts += _EXPERT_BIAS_LAUNCHES[gemm.name.endswith("down")][is_backward] * self.model.mlp_bias
        return round(self.style.loop_share * gemm.batch * (casts + 1 + (gemm.is_trained and is_backward)))

    def scan(self, *, is_backward: bool) -> Iterator[Kernel]:
        """Yield the products of a linear attention's chunks, if it is one; backward makes states again."""
        scan = self.unit.scan
        for gemm, of_backward in scan.products(self.work, is_backward=is_backward) if scan else ():
            yield from self._products(gemm, is_backward=of_backward)

    def core(self, *, is_backward: bool) -> Iterator[Kernel]:
        """Yield the attention core: one kernel, or two products with softmax and dropout between them."""
        core, work = self.unit.core, self.work
        assert core is not None  # asked by the callers
        if core.is_flash:
            yield from index_kernels(core, work, self.style.attention, is_backward=is_backward)
            flash = self._flash(is_backward=is_backward)
            yield from flash.with_casts(self.model.precision.scaling, self.style.eager)
            if self.style.ring and work.degrees.cp > 1:
                yield ring_pass(flash, self.style.ring)
            return
        for gemm in core.gemms(work):
            yield from self._products(gemm, is_backward=is_backward)
        num_scores = core.gemms(work)[0].batch * work.num_queries * work.seq_len
        if self.model.score_cap:
            yield self._memory("score cap", num_scores, 3 if is_backward else 2)
        yield self._memory("softmax", num_scores, (_SOFTMAX_BY_XLA if self.style.by_xla else _SOFTMAX)[is_backward])
        if self.model.attention_dropout:
            yield self._memory("attention dropout", num_scores, 2, MASK_BYTES)

    def repeated(self, recompute: str) -> Iterator[Kernel]:
        """Yield what backward computes again of single modules, but for the core."""
        unit, again = self.unit, self.unit.repeated_projections(recompute)
        hidden = self.work.num_tokens_between * self.model.hidden_size
        if unit.repeats_norm(recompute):
            yield self._memory("norm", hidden, 2)
        for projection in again:
            yield from self._products(projection.gemm(self.work), is_backward=False)
        if {each.name for each in again} - {"output"} and unit.mixes_tokens:
            yield from self._inner(is_backward=False)
            yield from self.scan(is_backward=False)
        elif unit.core is None:
            yield from self._repeated_activations({each.name for each in again}, modules_of(recompute))
        if again and unit.core is not None and "op" in modules_of(recompute):
            yield self._residual(hidden, is_backward=False)

    def _repeated_activations(self, names: set[str], modules: frozenset[str]) -> Iterator[Kernel]:
        """Yield the activation functions before the last matrices of what is computed again."""
        for gemm in self._projections():
            module = {"experts.down": "moe_act", "down": "mlp_act"}.get(gemm.name)
            by_op = "op" in modules and self.unit.kind == "mlp"
            is_by_itself = (module in modules or by_op) and self.model.mlp != "relu"
            if gemm.name.endswith("down") and (gemm.name in names or is_by_itself):
                yield self._activation(gemm.batch * gemm.m * gemm.k, is_backward=False)

    def _projections(self) -> tuple[Gemm, ...]:
        """Return the multiplications with weights."""
        return tuple(gemm for gemm in self.unit.gemms(self.work) if gemm.has_weight)

    def _products(self, gemm: Gemm, *, is_backward: bool) -> Iterator[Kernel]:
        """Yield a multiplication forward, or the two of its backward pass."""
        is_weight = gemm.has_weight and self.unit.kind != "head" and ADAPTER not in gemm.name
        is_weight = is_weight and not (gemm.name == "router" and self.style.casts_apart)
        precision = self.model.precision
        datatype = self.style.datatype or (precision.weight_datatype if is_weight else None) or precision.datatype
        yield from self._matmuls(gemm, datatype, is_backward=is_backward)
        if is_weight and datatype in NARROW_BYTES:
            is_attention = self.unit.mixes_tokens
            if datatype == "int8" or precision.scaling == "rowwise" or self.style.by_xla:
                size_bytes = _OF_WEIGHTS[precision.scaling != "delayed"][gemm.batch > 1] * self.style.num_gathered
                yield MemoryPass("scaling", gemm.batch * gemm.n * gemm.k, size_bytes * self.style.eager)
            yield from eight_bit_passes(
                gemm,
                self.style,
                precision.scaling,
                self.work.num_tokens_between / self.work.num_tokens,
                is_backward=is_backward,
                is_attention=is_attention,
            )
        if gemm.name.endswith(f"{ADAPTER}b"):  # what the matrix makes is read, and the sum written
            yield self._memory("adapter", gemm.m * (gemm.k if is_backward else gemm.n), 3)

    def _matmuls(self, gemm: Gemm, datatype: str, *, is_backward: bool) -> Iterator[Kernel]:
        """Yield one kernel forward, or the two of backward and the addition to the gradient if it is another."""
        if gemm.is_of_experts and self.style.one_hot_capacity:  # as many rows for each
            num_rows = ceil(gemm.m * self.style.one_hot_capacity)
            gemm = replace(gemm, name=gemm.name.removeprefix("experts."), m=num_rows)
        if gemm.is_of_experts and self.style.by_xla and gemm.name.endswith("gate_up"):
            for name in ("gate", "up"):
                apart = replace(gemm, name=f"experts.{name}", n=gemm.n // 2)
                yield from self._matmuls(apart, datatype, is_backward=is_backward)
            return
        precision = self.model.precision
        element = NARROW_BYTES.get(datatype, precision.activation_bytes)
        datatype = precision.weight_rate if datatype == precision.weight_datatype else datatype
        if not is_backward:
            yield forward_matmul(gemm, datatype, element)
            return
        separate = self.style.separate_gradients and gemm.has_weight and gemm.is_trained
        gradient_bytes = precision.activation_bytes if separate else precision.gradient_bytes
        yield from backward_matmuls(gemm, datatype, element, gradient_bytes)
        if separate:
            yield MemoryPass("gradient accumulation", gemm.batch * gemm.n * gemm.k, _added_up(precision))

    def _flash(self, *, is_backward: bool) -> FlashAttention:
        """Return the attention kernel; of a sequence cut between ranks, queries see the average number of keys."""
        core, work, model = self.unit.core, self.work, self.model
        assert core is not None  # asked by the caller
        tp, chunks = work.degrees.tp, core.num_chunks(work.seq_len)
        num_kv_heads = tp if core.index_heads else model.num_kv_heads  # each rank has the one latent
        return FlashAttention(
            num_samples=work.num_samples * chunks,
            num_queries=-(-work.num_queries // chunks),
            num_keys=-(-work.seq_len // chunks),
            num_heads=Cut("num_heads", core.num_heads).part(core.num_heads, tp),
            num_kv_heads=Cut("num_kv_heads", num_kv_heads).part(num_kv_heads, tp),
            key_dim=core.key_dim,
            value_dim=core.value_dim,
            num_pairs=core.num_pairs_of(work) / chunks,
            longest_row=work.pairs and work.pairs.longest,
            is_backward=is_backward,
            generation=self.style.attention,
            datatype=model.precision.datatype,
            element_bytes=model.precision.activation_bytes,
            has_dropout=model.attention_dropout > 0,
            window=None if core.is_chunked or core.index_heads else core.window,
        )

    def _memory(self, name: str, num_elements: int, tensors: float, more_bytes: float = 0) -> MemoryPass:
        """Return a pass over memory that reads and writes so many tensors, and a few bytes more, for each element."""
        element_bytes = tensors * self.model.precision.activation_bytes + more_bytes
        return MemoryPass(name, num_elements, element_bytes * self.style.eager)

    def _passes(self, *, is_backward: bool) -> Iterator[Kernel]:
        """Yield the passes over memory around the multiplications, and products that send tokens."""
        if self.unit.kind == "embedding":
            yield from self._embedding(is_backward=is_backward)
            return
        hidden = self.work.num_tokens_between * self.model.hidden_size
        norm = _NORM_IN_SINGLE if self.style.hugging_face else _NORM_APART if self.style.apart else (2, 4)
        yield self._memory("norm", hidden, norm[is_backward])
        if self.unit.kind == "head":
            if self.model.logit_cap:
                num_logits = sum(gemm.m * gemm.n for gemm in self._projections())
                yield self._memory("logit cap", num_logits, 3 if is_backward else 2)
            return
        if has_second_norm(self.model):
            yield self._memory("second norm", hidden, 4 if is_backward else 2)
        yield self._residual(hidden, is_backward=is_backward)
        if is_backward:
            yield self._memory("residual gradient", hidden, 3 + 3 * self._num_sums())
            yield from self._bias_gradients(hidden)
        yield from self._inner(is_backward=is_backward)
        if self.unit.kind == "moe":
            yield from self._permutations(hidden, is_backward=is_backward)

    def _permutations(self, hidden: int, *, is_backward: bool) -> Iterator[Kernel]:
        """Yield what puts the copies of tokens into the order of their experts, and back."""
        num_copies, work = self.model.experts_per_token, self.work
        if self.style.one_hot_capacity:
            num_slots = round(work.seq_len * num_copies * self.style.one_hot_capacity)
            rates = self.model.precision.datatype
            yield from one_hot_products(work, self.model.hidden_size, num_slots, rates, is_backward=is_backward)
            return
        if self.style.moves_apart and self.style.dispatcher == "deepep":
            yield self._memory("permutation", hidden, _WEIGHTED_APART[is_backward] * num_copies)
            return
        if self.style.apart or self.style.moves_apart or self.style.by_xla:
            copies, tokens = (_PERMUTED_BY_XLA if self.style.by_xla else _PERMUTED_APART)[is_backward]
            yield self._memory("permutation", hidden, copies * num_copies + tokens)
            return
        yield from (self._memory(name, hidden, num_copies + 1) for name in PERMUTATIONS)

    def _num_sums(self) -> int:
        """Return how many more gradients of a unit's input are added up by kernels of their own."""
        of_unit = 2 * (self.model.positions == "rotary") if self.unit.kind == "attention" else self.model.is_gated
        return of_unit * self.style.apart * (self.unit.scan is None)

    def _bias_gradients(self, hidden: int) -> Iterator[MemoryPass]:
        """Yield the sums over tokens that are biases' gradients; that of an MLP's first bias is fused with others."""
        if self.unit.kind == "attention":
            if self.model.qkv_bias:
                yield self._memory("bias gradient", sum(gemm.m * gemm.n for gemm in self._projections()[:-1]), 1)
            if self.model.output_bias:
                yield self._memory("bias gradient", hidden, 1)
        elif self.model.mlp_bias and self.unit.kind == "mlp":
            yield self._memory("bias gradient", hidden, 1)

    def _residual(self, hidden: int, *, is_backward: bool) -> MemoryPass:
        """Return the addition of the residual, with bias and dropout."""
        if self.model.dropout:
            return self._memory("dropout and residual", hidden, 2 if is_backward else 3, MASK_BYTES)
        return self._memory("residual", hidden, int(not self.style.apart) if is_backward else 3)

    def _inner(self, *, is_backward: bool) -> Iterator[MemoryPass]:
        """Yield rotary embedding and layout copies of attention, or the activation function of an MLP."""
        if self.unit.kind == "attention":
            yield from self._around_core(is_backward=is_backward)
            return
        if self.unit.scan is not None:
            yield from (self._memory(*each) for each in self.unit.scan.passes(self.work, is_backward=is_backward))
            return
        for gemm in self._projections():
            if gemm.name.endswith("down"):
                yield self._activation(gemm.batch * gemm.m * gemm.k, is_backward=is_backward)
            if gemm.name == "experts.down" and is_backward and self.style.casts_apart and self.model.is_gated:
                yield self._memory(PROBABILITIES, gemm.batch * gemm.m * gemm.k, _PROBABILITIES_TENSORS)
            if gemm.name == "experts.down" and self.model.mlp_bias:
                tensors = _EXPERT_BIAS_TENSORS[is_backward]
                yield self._memory("expert bias", gemm.batch * gemm.m * gemm.n, tensors)

    def _around_core(self, *, is_backward: bool) -> Iterator[MemoryPass]:
        """Yield rotary embedding and copies of attention."""
        core, work = self.unit.core, self.work
        assert core is not None  # attention has one
        tokens, heads = work.num_tokens, self.model.num_heads + self.model.num_kv_heads
        size = tokens * heads * self.model.head_dim // work.degrees.tp
        if self.model.qk_norm != "none":
            yield self._memory("query and key norm", size, 4 if is_backward else 2)
        if self.model.positions == "rotary":
            latent = self.model.latent if self.style.casts_apart else None
            fused = latent.rotated_tensors if latent else _ROTARY_BY_PYTORCH[is_backward] if self._rotates_apart else 4
            apart = _ROTARY_BY_HALVES if self.style.hugging_face else _ROTARY_APART
            tensors = apart[is_backward] if self.style.apart else fused
            yield self._memory("rotary embedding", size, tensors)
        of_heads = tokens * self.model.num_heads // work.degrees.tp
        if self._copies_groups:
            copied = of_heads * self.model.head_dim
            yield self._memory("copies of keys and values", copied, _GROUPS_APART[is_backward])
        if self.model.output_gate:
            yield self._memory("output gate", of_heads * core.value_dim, 5 if is_backward else 3)
        if not core.is_flash:
            yield self._memory("layout copy", of_heads * core.value_dim, 2)

    def _activation(self, num_elements: int, *, is_backward: bool) -> MemoryPass:
        """Return the activation function between the matrices of an MLP."""
        if self.model.is_gated:
            clamps = 0 if self.model.gate_clamp is None else _CLAMP_TENSORS[is_backward]
            tensors = (5, 9) if self.style.apart else (5, 13) if self.style.gates_apart else (3, 5)
            return self._memory(self.model.mlp, num_elements, clamps + tensors[is_backward])
        return self._memory(self.model.mlp, num_elements, 2 + is_backward * (1 + self.model.mlp_bias))

    def loss(self, *, is_backward: bool) -> MemoryPass:
        """Return softmax and cross entropy in single precision over the rank's part of the vocabulary."""
        num_logits = sum(gemm.m * gemm.n for gemm in self._projections())
        if self.style.jitted_loss:
            return MemoryPass("loss", num_logits, _LOSS_JITTED[is_backward])
        if self.style.fused_loss:
            return MemoryPass("loss", num_logits, 0 if is_backward else 10)
        usual = (9 * STATISTIC_BYTES + 2, 3 * STATISTIC_BYTES + 2)
        usual = (
            _LOSS_IN_SINGLE
            if self.style.hugging_face
            else _LOSS_APART
            if self.style.apart
            else _LOSS_BY_XLA
            if self.style.by_xla
            else usual
        )
        return MemoryPass("loss", num_logits, usual[is_backward] * self.style.eager)

    def _embedding(self, *, is_backward: bool) -> Iterator[MemoryPass]:
        """Yield the lookup, or the addition to the table's gradient."""
        hidden, precision = self.work.num_tokens_between * self.model.hidden_size, self.model.precision
        more_bytes = 2 * precision.gradient_bytes if is_backward else precision.activation_bytes
        yield self._memory("embedding", hidden, 1, more_bytes)
        if self.model.dropout:
            yield self._memory("embedding dropout", hidden, 2, MASK_BYTES)


class ListsKernels(Protocol):
    """A workload that says which kernels an operation runs."""

    def first_like(self, layer: int) -> int:
        """Return the first layer that runs the same kernels."""

    def pass_kernels(self, typ: str, num_samples: int, layer: int, mode: PassMode, style: Style) -> KernelList:
        """Return the kernels of a forward, loss, backward, backward_input or backward_weight of a layer."""

    def update_kernels(
        self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int, style: Style
    ) -> KernelList:
        """Return the kernels of an optimizer step on some shards of a layer, or of one of its parts."""


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
    if not unit.has_backward:
        return KernelList()
    whole = backward_kernels(model, unit, work, style)
    if typ == "backward_weight":
        return _half(whole, of_weights=True)
    if typ == "backward_input":
        whole = _half(whole, of_weights=False)
    return whole + _again(model, unit, work, recompute, style)


def _again(model: Architecture, unit: Unit, work: Work, recompute: str, style: Style) -> KernelList:
    """Return what backward computes again, from weights that it has gathered."""
    style = replace(style, copies_units=0)
    if recompute == "full" and unit.layer is not None:
        forward = forward_kernels(model, unit, work, style)
        return _without_last(forward) if style.stops_early and unit.kind == "mlp" else forward
    return repeated_kernels(model, unit, work, recompute, style)


def _without_last(forward: KernelList) -> KernelList:
    """Return an MLP's forward without its last multiplication and the addition of the residual that follows."""
    last = max(place for place, kernel in enumerate(forward.kernels) if isinstance(kernel, Matmul))
    kept = (*forward.kernels[:last], *forward.kernels[last + 1 :])
    without = (each for each in kept if not (isinstance(each, MemoryPass) and "residual" in each.name))
    return replace(forward, kernels=tuple(without))


def _half(whole: KernelList, *, of_weights: bool) -> KernelList:
    """Return the gradients of weights, or all else, each with its share of the launches."""
    kernels = tuple(kernel for kernel in whole.kernels if _is_of_weights(kernel) is of_weights)
    of_each = sum(getattr(kernel, "batch", 1) for kernel in whole.kernels if _is_of_weights(kernel))
    num_of_weights = min(of_each, whole.num_launches)  # a graph has all of them in a launch
    in_graph = min(of_each, whole.num_in_graph)
    if of_weights:
        return KernelList(kernels, num_of_weights, in_graph)
    return KernelList(kernels, whole.num_launches - num_of_weights, whole.num_in_graph - in_graph)


def _is_of_weights(kernel: Kernel) -> bool:
    """Return whether a kernel makes or adds up the gradient of a weight."""
    if isinstance(kernel, Matmul):
        return kernel.kind == "weight_gradient"
    return isinstance(kernel, MemoryPass) and kernel.name == "gradient accumulation"
