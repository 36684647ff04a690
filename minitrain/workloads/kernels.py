"""The work of one kernel, as data: a matrix multiplication, an attention core, or a pass over memory.

A workload lists kernels; a device prices them (`hardware.kernel_device`). Each says its floating-point operations and
its bytes, with no more said of hardware than which generation of attention kernel runs.

Left out: caches (operands are counted as read once), and kernels that are fused across these three kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from minitrain.tensors.compressed import Shapes
from minitrain.workloads.architecture import STATISTIC_BYTES
from minitrain.workloads.shapes import AttentionCore, Gemm, Work
from minitrain.workloads.workload import PassMode, cost_of_weight_pass, multiplications, traffic_of

Operand = Literal["forward", "input_gradient", "weight_gradient"]
"""What a matrix multiplication makes."""

EIGHT_BIT_CORES = ("cudnn_fp8", "cudnn_mxfp8")
"""Attention's kernels in eight bits, with a factor for each tensor, or for each block of it."""

_CORE_BYTES: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "delayed": ((7, 3), (3, 5)),
    "current": ((9, 0), (5, 0)),
    "mx": ((4, 0), (4, 0)),
}
"""Bytes of an element of what they take and of what they make, forward and backward. Queries, keys and values are
concatenated (4) before they are searched for their largest element (2) and cast (3); with factors of blocks they are
read once, and written in two orders. With factors of steps before results are made in eight bits, and cast back (3);
gradients of queries, keys and values are concatenated (2) before that."""

FLASH_BACKWARD = 2.5
"""FLOPs of a flash-attention backward pass over those of its forward: five products instead of two (Dao 2023)."""


@dataclass(frozen=True, slots=True)
class Matmul:
    """A batch of equal matrix multiplications (m x k) times (k x n), as one kernel.

    Args:
        m: rows of the result.
        n: columns of the result.
        k: the dimension that is summed over.
        batch: how many.
        kind: what it makes. A weight's gradient has the tokens in `k`, the others have them in `m`.
        datatype: key of the hardware config's rates.
        element_bytes: bytes of an element of either operand.
        result_bytes: bytes read and written for an element of the result; 8 where it is added up in single precision.
        is_grouped: whether the batch is that of experts, which differ in their tokens: `m` is their mean, or `k` of a
            weight's gradient.

    Example:
        >>> Matmul(4096, 1536, 5120).work_flop
        64424509440
    """

    m: int
    n: int
    k: int
    batch: int = 1
    kind: Operand = "forward"
    datatype: str = "float16"
    element_bytes: float = 2
    result_bytes: int = 2
    is_grouped: bool = False

    @property
    def title(self) -> str:
        """What pages call it."""
        times = f"{self.batch} x " if self.batch > 1 else ""
        made = "" if self.kind == "forward" else f" ({self.kind.replace('_', ' ')})"
        return f"matmul {times}{self.m} x {self.n} x {self.k}{made}"

    @property
    def work_flop(self) -> int:
        """Return the floating-point operations, two for a multiplication and its addition."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def traffic_bytes(self) -> float:
        """Return the bytes of both operands and of the result."""
        operands = self.element_bytes * self.k * (self.m + self.n)
        return self.batch * (operands + self.result_bytes * self.m * self.n)

    @property
    def row_sizes(self) -> tuple[int, int]:
        """Return the lengths of rows in memory, whose alignment counts: all dimensions but that of the tokens."""
        return (self.m, self.n) if self.kind == "weight_gradient" else (self.n, self.k)


@dataclass(frozen=True, slots=True)
class FlashAttention:
    """The attention core as one kernel, which stores no scores.

    Args:
        num_samples: sequences.
        num_queries: queries of a sequence.
        num_keys: keys of a sequence.
        num_heads: query heads.
        num_kv_heads: heads of keys and values.
        key_dim: size of a head's query and key.
        value_dim: size of a head's value.
        num_pairs: pairs of a query and a key that the mask leaves, for one head of one sequence: the mean
            where sequences differ.
        is_backward: whether it is the backward pass.
        generation: which kernel: "flash1", "flash2", "flash3", "cudnn", or in eight bits "cudnn_fp8" or
            "cudnn_mxfp8", as the hardware config has them.
        datatype: key of the hardware config's rates.
        element_bytes: bytes of an element.
        has_dropout: whether probabilities are dropped, for which the kernel makes a random number each.
        longest_row: keys that a query sees at most, where that is known to be fewer than all.
        window: keys that a query sees at most by a sliding window; None for all.
    """

    num_samples: int
    num_queries: int
    num_keys: int
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    num_pairs: float
    is_backward: bool = False
    generation: str = "flash2"
    datatype: str = "float16"
    element_bytes: int = 2
    has_dropout: bool = False
    longest_row: int | None = None
    window: int | None = None

    @property
    def title(self) -> str:
        """What pages call it."""
        return f"{self.generation} attention{' backward' if self.is_backward else ''}"

    @property
    def work_flop(self) -> float:
        """Return the floating-point operations of the pairs that the mask leaves."""
        return self.num_samples * self.num_heads * self.num_pairs * self._pair_flop

    def flop_in_blocks(self, size: int, masked: float = 1.0) -> float:
        """Return the same where a block of queries and keys is computed whole if the mask leaves any of its pairs.

        Args:
            size: queries, and keys, of a block.
            masked: as how many blocks one counts that the mask cuts: the last of each row, and of a window the first.
        """
        size = min(size, self.num_keys)
        most = (self.num_keys if self.window is None else min(self.window, self.num_keys)) - 1
        num_blocks = -(-self.num_keys // size)
        reach = min(num_blocks, 1 + -(-most // size))
        num_cut = num_blocks + (0 if self.window is None else max(0, num_blocks - reach + 1))
        whole = _triangle(num_blocks, reach) + (masked - 1) * num_cut
        return self.work_flop * whole * size**2 / _triangle(self.num_keys, most + 1)

    def num_blocks(self, size: int) -> float:
        """Return the blocks of so many queries and keys that are computed, of all heads and samples."""
        return self.flop_in_blocks(size) / (self._pair_flop * min(size, self.num_keys) ** 2)

    @property
    def num_rows(self) -> int:
        """Return the queries of all heads and samples."""
        return self.num_samples * self.num_heads * self.num_queries

    def without_window(self) -> FlashAttention:
        """Return the kernel where queries see all keys before them."""
        if self.window is None:
            return self
        seen = _triangle(self.num_keys, min(self.window, self.num_keys))
        return replace(self, window=None, num_pairs=self.num_pairs * _triangle(self.num_keys, self.num_keys) / seen)

    @property
    def num_random(self) -> float:
        """Return the random numbers that dropout takes: one a pair, made once more in backward."""
        return self.num_samples * self.num_heads * self.num_pairs if self.has_dropout else 0

    @property
    def traffic_bytes(self) -> int:
        """Return the bytes of queries, keys, values and result; with their gradients in the backward pass."""
        sizes = self.key_dim + self.value_dim
        once = self.num_samples * sizes * (self.num_queries * self.num_heads + self.num_keys * self.num_kv_heads)
        return self.element_bytes * once * (2 if self.is_backward else 1)

    @property
    def rate_datatype(self) -> str:
        """Return the key of the rates that its share is of: in eight bits where the kernel computes so."""
        return "float8" if self.generation in EIGHT_BIT_CORES else self.datatype

    def with_casts(self, scaling: str, eager: float) -> Iterator[Kernel]:
        """Yield the kernel, and in eight bits the casts around it, since its neighbours read and write 16 bits.

        Args:
            scaling: where the scaling factors of multiplications come from; attention's do so if from steps before.
            eager: factor on the traffic of passes over memory.

        Source: `FusedAttnFunc` and `combine_and_quantize` of Transformer Engine's
        `pytorch/attention/dot_product_attention` (2.8, `fp8_dpa`).
        """
        yield self
        if self.generation not in EIGHT_BIT_CORES:
            return
        num_rows, keys = self.num_samples * self.num_queries, self.key_dim + self.value_dim
        inputs = num_rows * (self.num_heads * self.key_dim + self.num_kv_heads * keys)
        outputs = num_rows * self.num_heads * self.value_dim
        of_tensors = "delayed" if scaling == "delayed" else "current"
        taken, made = _CORE_BYTES["mx" if self.generation == "cudnn_mxfp8" else of_tensors][self.is_backward]
        read, written = (outputs, inputs) if self.is_backward else (inputs, outputs)
        yield MemoryPass("attention cast", read * taken + written * made, eager)

    @property
    def row_flop(self) -> float:
        """Return the floating-point operations of one query of one head that sees as many keys as any."""
        return min(self.num_keys, self.longest_row or self.num_keys) * self._pair_flop

    @property
    def _pair_flop(self) -> float:
        return 2 * (self.key_dim + self.value_dim) * (FLASH_BACKWARD if self.is_backward else 1)


def _triangle(length: int, reach: int) -> int:
    """Return the pairs of queries and keys of a causal sequence whose queries see so many at most, with themselves."""
    return reach * (reach + 1) // 2 + (length - reach) * reach


@dataclass(frozen=True, slots=True)
class MemoryPass:
    """A kernel that is limited by the memory: a norm, an activation function, dropout, an optimizer step.

    Args:
        name: what it does.
        num_elements: elements that it works on.
        element_bytes: bytes read and written for each of them.
    """

    name: str
    num_elements: int
    element_bytes: float

    @property
    def title(self) -> str:
        """What pages call it."""
        return self.name

    @property
    def work_flop(self) -> int:
        """Return 0: its arithmetic hides behind its traffic, and counts for no utilisation."""
        return 0

    @property
    def traffic_bytes(self) -> float:
        """Return the bytes read and written."""
        return self.num_elements * self.element_bytes


Kernel = Matmul | FlashAttention | MemoryPass


@dataclass(frozen=True, slots=True)
class KernelList:
    """The kernels of one pass of a layer, in order.

    Args:
        kernels: what runs.
        num_launches: how many kernels a framework launches for them: more than are listed, since copies, casts and
            reductions of biases' gradients are too small to be listed by themselves.
        num_in_graph: how many kernels a replayed graph runs, which the host launches together; listed or not.
    """

    kernels: tuple[Kernel, ...] = ()
    num_launches: int = 0
    num_in_graph: int = 0

    def __add__(self, other: KernelList) -> KernelList:
        """Return both, one after the other."""
        in_graph = self.num_in_graph + other.num_in_graph
        return KernelList(self.kernels + other.kernels, self.num_launches + other.num_launches, in_graph)

    def without(self, left_out: Collection[str]) -> KernelList:
        """Return them without the passes over memory of some terms of an ablation: "loss", "update", "elementwise"."""
        terms = {"loss": "loss", **dict.fromkeys(("adam", "gradients", "update"), "update")}
        kept = (
            k for k in self.kernels if not isinstance(k, MemoryPass) or terms.get(k.name, "elementwise") not in left_out
        )
        return replace(self, kernels=tuple(kept))

    @property
    def num_unlisted(self) -> int:
        """Return how many kernels of a graph are too small to be listed."""
        return max(0, self.num_in_graph - len(self.kernels))

    @property
    def work_flop(self) -> float:
        """Return the floating-point operations of all."""
        return sum(kernel.work_flop for kernel in self.kernels)

    @property
    def traffic_bytes(self) -> float:
        """Return the bytes read and written by all."""
        return sum(kernel.traffic_bytes for kernel in self.kernels)


def forward_matmul(gemm: Gemm, datatype: str = "float16", element_bytes: float = 2) -> Matmul:
    """Return the kernel of a unit's matrix multiplication."""
    return Matmul(gemm.m, gemm.n, gemm.k, gemm.batch, "forward", datatype, element_bytes, 2, gemm.is_of_experts)


def backward_matmuls(
    gemm: Gemm, datatype: str = "float16", element_bytes: float = 2, gradient_bytes: int = 4
) -> tuple[Matmul, ...]:
    """Return the kernels of a multiplication's backward pass: the left operand's gradient, and the right one's.

    The latter is left out where it is the gradient of a weight that is not trained.

    Args:
        gemm: the multiplication, forward.
        datatype: key of the hardware config's rates.
        element_bytes: bytes of an element of the operands.
        gradient_bytes: bytes of an element of a weight's gradient; one that is added up in single precision (4) is
            read and written.

    Example:
        >>> first, second = backward_matmuls(Gemm("up", m=4096, n=1536, k=5120))
        >>> (first.m, first.n, first.k), (second.m, second.n, second.k)
        ((4096, 5120, 1536), (1536, 5120, 4096))
    """
    groups = gemm.is_of_experts
    left = Matmul(gemm.m, gemm.k, gemm.n, gemm.batch, "input_gradient", datatype, element_bytes, 2, groups)
    if not gemm.is_trained:
        return (left,)
    kind: Operand = "weight_gradient" if gemm.has_weight else "input_gradient"
    adds_up = gemm.has_weight and gradient_bytes > 2
    result_bytes = 2 * gradient_bytes if adds_up else 2
    return left, Matmul(gemm.n, gemm.k, gemm.m, gemm.batch, kind, datatype, element_bytes, result_bytes, groups)


def one_hot_products(
    work: Work, hidden_size: int, num_slots: int, datatype: str, *, is_backward: bool
) -> tuple[Matmul, ...]:
    """Return the products of a sequence's tokens with one-hot matrices, into the slots of experts and back.

    Backward has three: the gradients of the tokens, of what experts made, and of the weights by which that is added up
    (`dense_matmul` of MaxText's `layers/moe.py` with a capacity: `BSM,BSEC->EBCM` and `EBCM,BSEC->BSM`).
    """
    dispatch = Gemm("dispatch", hidden_size, num_slots, work.seq_len, work.num_samples, is_trained=False)
    combine = Gemm("combine", work.seq_len, hidden_size, num_slots, work.num_samples, has_weight=False)
    if not is_backward:
        return forward_matmul(dispatch, datatype), forward_matmul(combine, datatype)
    return *backward_matmuls(dispatch, datatype), *backward_matmuls(combine, datatype)


def index_kernels(core: AttentionCore, work: Work, generation: str, *, is_backward: bool) -> Iterator[Kernel]:
    """Yield an indexer's scores and the choice of keys by them; in backward the gradients of those that were chosen.

    Scores are summed over heads before they are written, in single precision, and read to choose (`fp8_mqa_logits` of
    github.com/deepseek-ai/DeepGEMM).
    """
    if not core.index_heads:
        return
    share = work.num_queries / work.seq_len
    pairs = (core if is_backward else replace(core, window=None)).num_pairs(work.seq_len, causal=True) * share
    sizes = (work.num_samples, work.num_queries, work.seq_len, core.index_heads, 1, core.index_dim, 0, pairs)
    yield FlashAttention(*sizes, is_backward, generation)
    if not is_backward:
        yield MemoryPass("choice of keys", int(work.num_samples * pairs), 2 * STATISTIC_BYTES)


_STEPS = 5


def newton_schulz(matrices: Shapes) -> tuple[Matmul, ...]:
    """Return the multiplications that orthogonalise the momentum of some matrices, in five steps, in bfloat16.

    With X of m rows and n >= m columns, a step is A = X X^T, B = b A + c A^2 and a X + B X.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """
    found = []
    for shape in matrices:
        m, n, batch = min(shape[-2:]), max(shape[-2:]), _STEPS * prod(shape[:-2])
        found += [Matmul(m, m, n, batch), Matmul(m, m, m, batch), Matmul(m, n, m, batch)]
    return tuple(found)


COPIES_OF_PARTS = (2, 3)
"""Copies of a whole activation that PyTorch makes around collectives along the sequence, which is no tensor's first
dimension: forward gathers and scatters, backward gathers twice (`torch.cat(torch.chunk(...))` in `all_gather_tensor`
and `reduce_scatter_tensor` of `torch/distributed/_functional_collectives.py`, which DTensor calls)."""


def copies_of_parts(overlap: str, num_samples: int, *, is_backward: bool) -> int:
    """Return the copies of a whole activation around a unit's collectives along the sequence.

    In pieces, a multiplication reads and writes rows where they are. In backward a sum is still scattered alone, and
    what is gathered lies by places of the sequence, not by samples, so that both operands of a weight's gradient are
    copied where there are several (`unflatten` of `_fused_all_gather_matmul_impl` in PyTorch's
    `torch/distributed/_symmetric_memory`).

    >>> copies_of_parts("pieces", 1, is_backward=True), copies_of_parts("pieces", 4, is_backward=True)
    (1, 3)
    """
    if overlap != "pieces":
        return COPIES_OF_PARTS[is_backward]
    return is_backward * (3 if num_samples > 1 else 1)


def copied_parts(num_elements: int, element_bytes: int, num_copies: int) -> MemoryPass:
    """Return the pass of some copies around a unit, whose activation has so many elements."""
    return MemoryPass("parts", num_elements, 2 * num_copies * element_bytes)


_LAUNCH_S = 13.48e-6
"""An x86 host's launch, s, in which such times are counted (`minitrain.machine.kernel_device.EAGER_LAUNCH_S`)."""

DTENSOR_LAUNCHES = 90e-6 / _LAUNCH_S
"""Launches that PyTorch could make while it dispatches an operation on DTensors whose sharding it has seen before:
90 us (`expected_dispatch_time` of its `test/distributed/tensor/test_dtensor_dispatch_overhead.py`, of PyTorch 2.9)."""

_OF_MATRIX, _OF_NORM, _OF_HEADS = (4, 9), (7, 19), (22, 44)


def dtensor_launches(num_matrices: int, num_norms: int, num_head_norms: int, *, is_backward: bool) -> int:
    """Return what a pass of a unit takes to be dispatched on DTensors, in launches.

    Operations are those of PyTorch 2.13, counted by a `TorchDispatchMode` around a layer that is parallelized as
    torchtitan does: of a matrix forward `t`, `view`, `mm` and `_unsafe_view`.

    Args:
        num_matrices: weights that are divided.
        num_norms: norms of sequences that are divided.
        num_head_norms: norms of queries and keys, whose rotary embedding is on DTensors then too.
        is_backward: which pass.

    >>> dtensor_launches(4, 1, 0, is_backward=False)
    154
    """
    counts = zip((num_matrices, num_norms, num_head_norms), (_OF_MATRIX, _OF_NORM, _OF_HEADS), strict=True)
    return round(DTENSOR_LAUNCHES * sum(count * each[is_backward] for count, each in counts))


_ADAM_OPERATIONS = 8


def adam_launches(num_tensors: int, num_dtensors: int, launch_factor: float = 1.0) -> int:
    """Return what AdamW takes on one parameter after another (`foreach=False`), in launches.

    Operations are those of `_single_tensor_adamw` in PyTorch's `torch/optim/adamw.py`: decay, `lerp_`, `mul_`,
    `addcmul_`, `sqrt`, division, `add_` and `addcdiv_`.

    Args:
        num_tensors: parameters that are plain tensors.
        num_dtensors: those that are DTensors.
        launch_factor: time of a launch of the model over that of the optimizer's.

    >>> adam_launches(4, 0), adam_launches(0, 4)
    (32, 214)
    """
    return round(_ADAM_OPERATIONS * (num_tensors + DTENSOR_LAUNCHES * num_dtensors) / launch_factor)


_HOOKS = {2: (0.0, 59e-6), 3: (370e-6, 325e-6)}
"""What the host takes for DeepSpeed's hooks, forward and backward, for each weight, s, by stage of ZeRO: of a gradient
that joins its bucket; of a module's weights that are fetched, put together and released. Measured as time of one core:
DeepSpeed 0.19.8 on a layer like Llama's of eight ranks' shares, whose collectives do nothing, less that without it."""


def hook_launches(stage: int, num_weights: int, *, is_backward: bool) -> int:
    """Return what a pass of a unit takes for the hooks of a stage of ZeRO, in launches.

    >>> hook_launches(3, 5, is_backward=False), hook_launches(2, 5, is_backward=False)
    (137, 0)
    """
    return round(num_weights * _HOOKS[stage][is_backward] / _LAUNCH_S)


def bucketed_gradients(num_parameters: int, stage: int) -> MemoryPass:
    """Return the passes in which DeepSpeed copies a unit's gradients in 16 bits into a bucket, and divides them.

    They are those of `__add_grad_to_ipg_bucket` and of `reduce_scatter_coalesced`, which copies them once more, by rank
    (`runtime/zero/stage3.py`, `runtime/comm/coalesced_collectives.py`); of stage 2 `average_tensor` divides them.
    """
    return MemoryPass("bucket", num_parameters, 12 if stage == 3 else 8)


def copied_unit(num_parameters: int, num_ranks: int, summed_bytes: int, *, is_backward: bool) -> MemoryPass:
    """Return the pass in which FSDP2 casts and copies a unit's weights (PyTorch 2.11's `_fsdp_collectives.py`).

    A shard is read, and written in 16 bits (6); all is copied (4). Gradients are read, and written to be summed.
    """
    share = 1 / num_ranks
    of_gradients = is_backward * (2 + summed_bytes * (1 + 2 * share))
    return MemoryPass("unit", num_parameters, 4 + 6 * share + of_gradients)


def kernels_of_weight_pass(workload: Any, typ: str, layer: int, mode: PassMode, datatype: str) -> KernelList:
    """Return the kernels of the same: a pass through memory, and multiplications by factors before it."""
    if mode.packing is None:
        return KernelList((MemoryPass(typ, int(cost_of_weight_pass(workload, typ, layer, mode).traffic_bytes), 1),), 1)
    element_bytes: int = workload.gradient_bytes
    products = [
        Matmul(m, n, k, batch, datatype=datatype, element_bytes=element_bytes, result_bytes=element_bytes)
        for m, n, k, batch in multiplications(workload, typ, layer, mode.packing)
    ]
    rest = MemoryPass(typ, traffic_of(workload, typ, layer, mode.packing), 1)
    return KernelList((*products, rest), len(products) + 1)
