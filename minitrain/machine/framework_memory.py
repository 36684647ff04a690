"""What a framework allocates that no tensor of a strategy stands for, and what it does without: `HABITS`.

A run counts each unit's new gradient in the precision of its total, logits in single precision, and no temporaries of
the update. Frameworks differ, and a `minitrain.machine.platforms.Platform` names the habits of its own (`memory`):

| habits | a new gradient | bytes of a logit at the loss | beside tensors, and in the update |
|---|---|---|---|
| "" | a unit's, as the run counts it | 12 | nothing |
| "megatron" | a weight's in 16 bits | 6 | nothing |
| "fused" | is added to its total by the multiplication | 6 | nothing |
| "megatron local" | likewise | 6 | as "eager", and what flash attention returns before it is rearranged |
| "transformer engine" | likewise | 6 | an array of each shape of weight, in 16 bits |
| "deepspeed" | a weight's in 16 bits | 6 | gradients in single precision, by themselves and in one array |
| "deepspeed zero" | a weight's in 16 bits | 6 | a bucket, and two arrays of the rank's share of gradients |
| "deepspeed bf16" | all of a microbatch in 16 bits, kept | 6 | a bucket in single precision |
| "eager" | a unit's | 12 | activated gates, keys and values of each head, experts' inputs in single precision |
| "eager norms" | a unit's | 12 | as "eager", and norms' inputs in single precision, and normed ones |
| "hugging face" | a unit's | 12 | likewise; of DeepSpeed: weights used again soon, a bucket, gradients cast |
| "trainer" | a unit's | 12 | likewise; roots of second moments in the update |
| "... ddp" | a unit's | 12 | as those, and an array of each gradient |
| "liger", "trainer liger", "fsdp2 liger" | as without | a chunk's 2 | gradients of the head and its input |
| "loss in chunks" | a unit's | 4 | nothing |
| "fsdp2" | a unit's in 16 bits, and in single precision while they are reduced | 4 | no shards of weights in 16 bits |
| "fsdp2 eager loss" | likewise | 12, of parts 16 | likewise |
| "fsdp2 bf16 loss", "fsdp2 gathered logits" | likewise | 8; of all parts' logits | likewise |
| "fsdp2 eager" | likewise | 12, of parts 16 | likewise; as "eager" |
| "fsdp2 eager norms" | likewise | 12, of parts 16 | likewise; as "eager norms" |
| "fsdp2 trainer" | likewise | 12, of parts 16 | likewise; as "trainer" |
| "torchtitan" | of shards as "fsdp2", else as "" | | |
| "internevo zero" | a unit's | 12 | buckets, four copies of the rank's gradients, AdamW's temporaries |
| "internevo fsdp" | a unit's | 12 | two copies of the rank's gradients, AdamW's temporaries |
| "nanotron" | all of a microbatch in 16 bits, until its backward ends | 8 | activated gates, collectives' arrays |
| "nanotron ddp" | likewise | 8 | likewise, and an array of each gradient in 16 bits |
| "nanotron zero" | likewise | 8 | as "nanotron"; shards of weights, and two arrays of all weights, in 16 bits |

With a loss in one kernel (`fused_loss`) gradients are put over logits, which stay in 16 bits; but for habits "" and
those of FSDP2, whose names say it. A `jitted_loss` takes 10 bytes of a logit; gates that are apart are kept.

Sources:
- **fused**: `gradient_accumulation_fusion` of Megatron-Core's `tensor_parallel/layers.py`, where the head's backward
  returns an empty array in 16 bits instead of its gradient;
- **loss**: `calculate_logits_max` of its `tensor_parallel/cross_entropy.py` casts logits to single precision, and takes
  maximum, exponentials and gradients in place; compiled, both of these are written to an array of their own before they
  are copied back ("a full logits-sized transient allocation", says its `fusions/fused_cross_entropy.py` of 2026);
- **local**: `FlashSelfAttention` of Megatron-LM's `megatron/model/transformer.py` (2023) rearranges what the kernel
  returns and keeps into an array of its own, and `swiglu` there is no kernel;
- **shapes**: `get_dummy_wgrad` of Transformer Engine's `pytorch/module/base.py` (from 2.3) gives autograd an array for
  each gradient that was fused, and keeps one of each shape;
- **deepspeed**: `reduce_gradients` of DeepSpeed's `runtime/zero/stage_1_and_2.py` makes a bucket of 5e8 elements, and
  `step` flattens the gradients of the rank's share and casts them; without ZeRO `step` of
  `runtime/fp16/fused_optimizer.py` casts each gradient, and flattens these; pipelines leave gradients in 16 bits to
  `clear_lp_grads` of the next backward (`runtime/bf16_optimizer.py`), and sum totals through `allreduce_bucket`; they
  keep a stage's outputs for `_exec_backward_pass` (`runtime/pipe/engine.py`); `_prepare_fp32_grad_for_sub_group` of
  `runtime/zero/stage3.py` flattens and casts 1e9 gradients at once (`sub_group_size`), `grad_partitions_flat_buffer`
  is there for good, and `__params_to_release` of `partitioned_param_coordinator.py` leaves weights whole that are used
  again within 1e9 (`stage3_max_reuse_distance`): at the loss the last half of those;
- **fsdp2**: torchtitan's `apply_fsdp` (`models/llama3/infra/parallelize.py`) shards weights in single precision, which
  `foreach_all_gather` of PyTorch's `fsdp/_fully_shard/_fsdp_collectives.py` casts into what it sends; `foreach_reduce`
  copies a unit's gradients into one array in single precision, which is there until the next unit's is reduced. The
  first arrays are of a stream for gathers, sums of gradients of one for reductions: what a stream has freed serves no
  other, so that both are reserved beside the most that computing takes. `run_train.sh` sets expandable segments, which
  leave no block too small but for the loss: there what a layer's forward has made and not kept is free, and smaller
  than logits. Compiled, as it is since April 2025 (pull request 1033), the loss takes logits and gradients in 16 bits.
  Before, `log_softmax` and its backward have three arrays in single precision, and of parts
  `_nll_loss_and_log_softmax_backward` (`tensor/parallel/loss.py`) four; and a block of logits in 16 bits has been
  freed. `ColwiseParallel` gathers the head's input, which autograd keeps. Eager, it keeps what `silu` and `repeat_kv`
  of `models/llama3/model/model.py` make, and inputs of experts before they are weighted (`models/moe/moe.py`);
- **bf16 loss**: cross entropy of logits in 16 bits keeps their logarithms so, and its backward makes two gradients; of
  a head that is `ColwiseParallel(output_layouts=Replicate())` (KempnerForge's `distributed/tensor_parallel.py`), each
  part has all logits;
- **norms**: `LlamaRMSNorm` of Hugging Face's `models/llama/modeling_llama.py` and `RMSNorm` of torchtune's
  `modules/rms_norm.py` cast their input to single precision, which autograd keeps in its place, and multiply what is
  normed, in 16 bits again, by the weight;
- **trainer**: Hugging Face's Trainer takes `torch.optim.AdamW` by default (`adamw_torch`), whose lists of tensors
  (`_multi_tensor_adamw` of PyTorch's `optim/adamw.py`) have the roots of all second moments at once;
- **ddp**: PyTorch's `DistributedDataParallel` copies gradients into buckets of its own, unless
  `gradient_as_bucket_view` is set (`initialize_buckets` of its `reducer.cpp`);
- **liger**: `fused_linear_cross_entropy_forward` of Liger's `ops/fused_linear_cross_entropy.py`, which its patches for
  Hugging Face's models bring, makes no more logits at once than the head's input has elements, rounded up to a power of
  2 of tokens, and puts their gradients over them; the gradients of the head and its input are made in forward;
- **loss in chunks**: `CEWithChunkedOutputLoss` of torchtune's `modules/loss/ce_chunked_output_loss.py` casts an eighth
  of the logits at a time to single precision, so that there are logits and their gradients in 16 bits;
- **internevo**: `_reduce_grads_by_rank` of InternEvo's `solver/optimizer/hybrid_zero_optim.py` flattens buckets of 2^29
  elements, of which two are in flight, `compute_norm` takes single-precision copies of all gradients, `_step` flattens
  and casts; `FSDPadaptOptimizer` copies and casts without flattening. PyTorch's AdamW makes the root of the second
  moment and the denominator;
- **nanotron**: `FP32GradientAccumulator.backward` of its `optim/gradient_accumulator.py` adds gradients to their totals
  once all are there; without ZeRO `_init_model` of `trainer.py` puts the model into PyTorch's
  `DistributedDataParallel`, whose buckets are arrays of their own (`initialize_buckets` of its `reducer.cpp`);
  `GLUActivation` of `models/llama.py` makes the activated gate an operation of its own, so that autograd keeps it, and
  `_ShardedCrossEntropy` of `parallel/tensor_parallel/functional.py` makes exponentials of logits in single precision,
  once those in 16 bits are gone; parts gather a multiplication's input into one array (`MemoryBuffer`);
  `all_gather_coalesced` of `distributed.py` flattens weights by rank, and PyTorch's `all_gather` gathers into an array
  of its own; `train` empties the allocator's cache before the first step;
- **late**: what a collective reads is free for others once the host sees it ended (`recordStream` of PyTorch's
  `ProcessGroupNCCL.cpp`). The host is a stage's forward ahead of the device, so that there is each layer's sum over
  parts before it was scattered.

Arrays as large as all gradients fit into no block that activations have left, nor into one another. So what the update
takes from the driver is replayed with the caching allocator's rules, and comes on top of what forward and backward
have. nanotron's are smaller, so that what these have left is replayed first. Left out: other releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from minitrain.machine.caching_allocator import UNLIMITED, AllocatorSettings, Block, CachingAllocator
from minitrain.workloads.shapes import SavedTensor, Work
from minitrain.workloads.workload import KernelHabits, PassMode, Recompute

LOGIT_BYTES = 4
"""Bytes that a run counts for a logit: the head keeps it in single precision."""

_HALF, _SINGLE = 2, 4
_JITTED_BYTES, _USUAL = _HALF + _SINGLE + _SINGLE, KernelHabits()
_DEEPSPEED_BUCKET, _DEEPSPEED_GROUP = 500_000_000, 1_000_000_000
"""Elements of DeepSpeed's `reduce_bucket_size` and `MEMORY_OPT_ALLREDUCE_SIZE`; of its `sub_group_size` and
`stage3_max_reuse_distance`."""
_INTERNEVO_BUCKET = 2**29
"""Elements of InternEvo's `reduce_bucket_size`, 512 * 1024 * 1024 in its shipped configs."""


class _Update:
    """The arrays of an update in an allocator that has the rank's gradients."""

    def __init__(
        self,
        sizes: Sequence[int],
        gradient_bytes: int,
        num_shards: int = 1,
        moment_bytes: int = 4,
        left: Iterable[int] = (),
    ) -> None:
        self.sizes, self.num_shards, self.moment_bytes = sizes, num_shards, moment_bytes
        self._allocator = CachingAllocator(UNLIMITED, AllocatorSettings())
        self.gradients = self.take(gradient_bytes * size for size in sizes)
        self.free(self.take(left))
        self._before = self._allocator.peak_allocated_bytes, self._allocator.peak_reserved_bytes

    def take(self, sizes: Iterable[int]) -> list[Block]:
        """Allocate arrays of so many bytes."""
        return [self._allocator.allocate(size) for size in sizes if size]

    def free(self, arrays: Iterable[Block]) -> None:
        """Free arrays."""
        for block in arrays:
            self._allocator.free(block)

    @property
    def taken(self) -> tuple[int, int]:
        """Return what was allocated and what was reserved at most beyond the gradients, bytes."""
        after = self._allocator.peak_allocated_bytes, self._allocator.peak_reserved_bytes
        return after[0] - self._before[0], after[1] - self._before[1]


def _cast_and_flatten(update: _Update) -> None:
    """Cast each gradient to single precision, and flatten these."""
    update.take(_SINGLE * size for size in update.sizes)
    update.take([_SINGLE * sum(update.sizes)])


def _flatten_and_cast(update: _Update) -> None:
    """Sum gradients through a bucket, flatten those of the rank's share, and cast them to single precision."""
    update.take([_HALF * _DEEPSPEED_BUCKET])
    update.take([_HALF * sum(update.sizes)])
    update.take([_SINGLE * sum(update.sizes)])


def _take_roots(update: _Update) -> None:
    """Take the roots of all second moments."""
    update.take(update.moment_bytes * size for size in update.sizes)


def _sum_in_single(update: _Update) -> None:
    """Sum gradients, which are in single precision, through a bucket."""
    update.take([_SINGLE * _DEEPSPEED_BUCKET])


def _cast_in_groups(update: _Update) -> None:
    """Sum gradients through a bucket, flatten those of a group of the rank's share, and cast these."""
    group = min(sum(update.sizes), _DEEPSPEED_GROUP)
    update.take([_HALF * _DEEPSPEED_BUCKET, _HALF * group, _SINGLE * group])


def _flatten_and_step(update: _Update) -> None:
    """Sum gradients in buckets, take their norm, flatten and cast them, and take AdamW's step."""
    total = sum(update.sizes)
    update.free(update.take([_HALF * min(_INTERNEVO_BUCKET, total)] * 2))
    update.free(update.take(_SINGLE * size for size in update.sizes))
    flat = update.take([_HALF * total])
    update.free(update.gradients)
    update.take([_SINGLE * total])
    update.free(flat)
    update.take([_SINGLE * total] * 2)


def _step_by_units(update: _Update) -> None:
    """Take the norm of gradients, cast them, and take AdamW's step, array by array."""
    update.free(update.take(_SINGLE * size for size in update.sizes))
    for _ in range(3):
        update.take(_SINGLE * size for size in update.sizes)


def _gather_weights(update: _Update) -> None:
    """Flatten the rank's new shards of weights and what is gathered of each rank, and gather into one array."""
    shard = _HALF * sum(update.sizes)
    update.take([shard] * (1 + update.num_shards))
    update.take([shard * update.num_shards])


@dataclass(frozen=True, slots=True)
class Habits:
    """How a framework allocates.

    Args:
        new_gradient: what there is of gradients before they are in their totals: a "unit"'s, a "weight"'s in 16 bits,
            "all" of a microbatch's in 16 bits, a unit's that are "reduced" into shards, or "none".
        logit_bytes: the most bytes of a logit at the loss.
        parts_logit_bytes: the same where parts share it, if it is more.
        gathers_logits: whether each part has the logits of all.
        of_shards: whether that holds of weights in shards alone, and others are as counted.
        expands: whether SwiGLU keeps the activated gate, attention keys and values of each head, and experts their
            inputs in single precision.
        keeps_activated: whether that holds of activated gates alone.
        casts_norms: whether norms keep their input in single precision instead, and what they multiply by their weight.
        keeps_context: whether flash attention keeps its result beside the input of the projection behind it.
        keeps_shapes: whether there is an array in 16 bits for each shape of a weight.
        keeps_gradients: whether there are all gradients of a microbatch in 16 bits beside their totals.
        keeps_outputs: whether a stage keeps what it has sent of each microbatch until its backward.
        keeps_gates: whether SwiGLU keeps the activated gate, parts keep the array that they gather into, collectives
            beside compute keep what they read, and the update uses what backward has left; and whether the allocator's
            cache is emptied once weights, totals and states are there, so that these reserve no more than they are.
        reuses: whether shards stay gathered at the loss whose layers are soon used again.
        linear_loss: whether head and loss are one operation on some tokens after others.
        update: what the update allocates; None for nothing.
    """

    new_gradient: Literal["unit", "weight", "all", "reduced", "none"] = "unit"
    logit_bytes: int = 12
    parts_logit_bytes: int = 0
    gathers_logits: bool = False
    of_shards: bool = False
    expands: bool = False
    keeps_activated: bool = False
    casts_norms: bool = False
    keeps_context: bool = False
    keeps_shapes: bool = False
    keeps_gradients: bool = False
    keeps_outputs: bool = False
    keeps_gates: bool = False
    reuses: bool = False
    linear_loss: bool = False
    update: Callable[[_Update], None] | None = None


HABITS: Mapping[str, Habits] = MappingProxyType(
    {
        "": Habits(),
        "megatron": Habits("weight", 6),
        "fused": Habits("none", 6),
        "megatron local": Habits("none", 6, expands=True, keeps_context=True),
        "transformer engine": Habits("none", 6, keeps_shapes=True),
        "deepspeed": Habits("weight", 6, keeps_outputs=True, update=_cast_and_flatten),
        "deepspeed zero": Habits("weight", 6, keeps_outputs=True, update=_flatten_and_cast),
        "deepspeed bf16": Habits("none", 6, keeps_gradients=True, keeps_outputs=True, update=_sum_in_single),
        "eager": Habits(expands=True),
        "eager norms": Habits(expands=True, casts_norms=True),
        "hugging face": Habits(expands=True, casts_norms=True, reuses=True, update=_cast_in_groups),
        "trainer": Habits(expands=True, casts_norms=True, update=_take_roots),
        "eager ddp": Habits(expands=True, keeps_gradients=True),
        "eager norms ddp": Habits(expands=True, casts_norms=True, keeps_gradients=True),
        "trainer ddp": Habits(expands=True, casts_norms=True, keeps_gradients=True, update=_take_roots),
        "liger": Habits(linear_loss=True, reuses=True, update=_cast_in_groups),
        "trainer liger": Habits(linear_loss=True, update=_take_roots),
        "trainer liger ddp": Habits(linear_loss=True, keeps_gradients=True, update=_take_roots),
        "fsdp2 liger": Habits("reduced", linear_loss=True, update=_take_roots),
        "loss in chunks": Habits(logit_bytes=4),
        "fsdp2": Habits("reduced", 4),
        "fsdp2 eager loss": Habits("reduced", 12, 16),
        "fsdp2 bf16 loss": Habits("reduced", 8),
        "fsdp2 gathered logits": Habits("reduced", 8, gathers_logits=True),
        "fsdp2 eager": Habits("reduced", 12, 16, expands=True),
        "fsdp2 eager norms": Habits("reduced", 12, 16, expands=True, casts_norms=True),
        "fsdp2 trainer": Habits("reduced", 12, 16, expands=True, casts_norms=True, update=_take_roots),
        "torchtitan": Habits("reduced", 4, of_shards=True),
        "internevo zero": Habits(update=_flatten_and_step),
        "internevo fsdp": Habits(update=_step_by_units),
        "nanotron": Habits("all", 8, keeps_gates=True),
        "nanotron ddp": Habits("all", 8, keeps_gradients=True, keeps_gates=True),
        "nanotron zero": Habits("all", 8, keeps_gates=True, update=_gather_weights),
    }
)
"""The habits by the name that a platform has for them."""


def habit_in(name: str, zero: int, num_replicas: int) -> str:
    """Return the habit that a framework has in a layout, in which it has another optimizer or wrapper.

    >>> habit_in("nanotron", 1, 8), habit_in("eager", 3, 8), habit_in("eager", 0, 8)
    ('nanotron zero', 'fsdp2 eager', 'eager ddp')
    """
    if name == "nanotron" and num_replicas > 1 and zero:
        return "nanotron zero"
    if name == "deepspeed zero" and zero == 0:
        return "deepspeed"
    if zero == 0 and num_replicas > 1 and f"{name} ddp" in HABITS:
        return f"{name} ddp"
    return _OF_SHARDS.get(name, name) if zero >= 2 else name


_OF_SHARDS = {
    "torchtitan": "fsdp2",
    "eager": "fsdp2 eager",
    "eager norms": "fsdp2 eager norms",
    "trainer": "fsdp2 trainer",
    "trainer liger": "fsdp2 liger",
    "internevo zero": "internevo fsdp",
}
"""The habits of those that allocate otherwise where gradients are shards."""


@dataclass(frozen=True, slots=True)
class HeldWeight:
    """A weight of a rank, or a layer's experts, in bytes: whole, its whole gradient, and the state that is held.

    A shard is gathered before it is used.
    """

    layer: int
    weight_bytes: float
    gradient_bytes: float
    state_bytes: float
    is_shard: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What is known of a rank of a run of a transformer.

    Args:
        workload: what is trained.
        weights: what the rank computes with of it.
        num_parts: parts of a layer.
        num_samples: samples of a microbatch.
        context: the shards of a sequence that it takes through the whole network; None for all of it.
        num_logits: logits of a microbatch on this rank; 0 where it has no head.
        peak_bytes: the most that its tensors take.
        at_loss_bytes: the most that they take when a loss begins; 0 where there is none.
        full_at_loss_bytes: the same, with the totals of all gradients, which some frameworks allocate at first.
        full_forward_bytes: likewise the most in a forward, but for the head's.
        at_update_bytes: what they take when the update begins; 0 where there is none.
        is_scattered: whether activations between layers are shards of the sequence.
        is_single: whether a step has one microbatch.
        num_in_flight: the most microbatches of which a layer keeps what backward needs.
        recompute: what backward computes again.
        experts: how copies of tokens go through the rank's experts, a `minitrain.workloads.expert_layers.ExpertPass`;
            None where they do not travel.
    """

    workload: Any
    weights: Sequence[HeldWeight]
    num_parts: int
    num_samples: int
    num_logits: float
    peak_bytes: float
    at_loss_bytes: float
    full_at_loss_bytes: float
    full_forward_bytes: float
    at_update_bytes: float
    context: Any = None
    is_scattered: bool = False
    is_single: bool = False
    num_in_flight: float = 1.0
    recompute: Recompute = "none"
    experts: Any = None

    @property
    def is_sharded(self) -> bool:
        """Return whether weights lie in shards."""
        return any(each.is_shard for each in self.weights)

    @property
    def work(self) -> Any:
        """Return what the rank does in a pass."""
        mode = PassMode(num_parts=self.num_parts, sequence_parallel=self.is_scattered, context=self.context)
        return self.workload.work(self.num_samples, mode)

    def num_bytes(self, saved: SavedTensor) -> float:
        """Return what a saved tensor takes on the rank, bytes; of experts, by the copies that have travelled to it."""
        if self.experts is None or not saved.name.startswith("expert "):
            return float(saved.num_bytes(self.work))
        copies_of_token = self.workload.model.experts_per_token
        return float(self.experts.num_copies * saved.num_bytes(Work(1, 1)) / copies_of_token)

    def saved(self, layer: int) -> list[SavedTensor]:
        """Return what a layer keeps for backward, but for logits."""
        return [
            each for each in self.workload.units[layer].saved if each.is_kept(self.recompute) and each.name != "logits"
        ]


@dataclass(frozen=True, slots=True)
class Fullest:
    """A device at its fullest, in bytes.

    Args:
        held_bytes: tensors.
        temporary_bytes: what the loss or a backward takes beside them.
        kept_bytes: what the framework keeps beside tensors.
        update_bytes: what the update allocates at most.
        update_reserved_bytes: what it takes from the driver.
        late_bytes: blocks that were freed and that collectives still read, which come from the driver.
        lasting_bytes: what is in blocks that are never freed, so that nothing is reserved for it.
    """

    held_bytes: float
    temporary_bytes: float = 0.0
    kept_bytes: float = 0.0
    update_bytes: float = 0.0
    update_reserved_bytes: float = 0.0
    late_bytes: float = 0.0
    lasting_bytes: float = 0.0


def fullest_moments(place: Place, memory: str, kernels: KernelHabits = _USUAL) -> Fullest:
    """Return what a rank's device holds when it is fullest, as a framework allocates.

    Args:
        place: the rank.
        memory: the name of the framework's habits.
        kernels: what its kernels are.
    """
    habits = HABITS[memory if place.at_update_bytes else ""]  # who does not train holds tensors alone
    logit_bytes = _JITTED_BYTES if kernels.jitted_loss else habits.logit_bytes
    habits = replace(habits, keeps_activated=kernels.gates_apart or habits.expands, logit_bytes=logit_bytes)
    if habits.new_gradient == "reduced" and (place.is_sharded or not habits.of_shards) and place.weights:
        return _in_streams(place, habits)
    moments: Iterable[tuple[float, float]]
    if habits.linear_loss and place.num_logits:
        moments = _without_logits(place, habits)
    elif habits.new_gradient in ("unit", "reduced"):
        of_loss = habits if habits.new_gradient == "unit" else HABITS[""]
        beside = (of_loss.logit_bytes - LOGIT_BYTES) * place.num_logits
        at_loss = (place.at_loss_bytes, beside + _used_again(place, habits))
        moments = [(place.peak_bytes, 0.0), *([at_loss] if place.num_logits else [])]
    elif habits.new_gradient == "all":
        moments = _until_its_end(place, habits)
    else:
        moments = _as_allocated(place, habits, kernels.fused_loss and not kernels.jitted_loss)
    held, temporary = max(moments, key=sum)
    kept = _kept(place, habits)
    found = Fullest(held, temporary, kept, lasting_bytes=_lasting(place) + kept)
    if habits.keeps_gates and place.is_scattered:
        whole, kinds = _sum_over_parts(place), [place.workload.units[each.layer].kind for each in place.weights]
        late = whole * sum(kind in ("attention", "mlp") for kind in kinds)
        found = replace(found, kept_bytes=kept + whole, late_bytes=late)
    if habits.update is None or not place.weights:
        return found
    allocated, reserved = _taken_by_update(place, habits)
    return replace(found, update_bytes=allocated, update_reserved_bytes=reserved)


def _lasting(place: Place) -> float:
    """Return the bytes of states, weights and totals of gradients, or of their shards, which are never freed."""
    return _whole_or_not(place)[1]


def _whole_or_not(place: Place) -> tuple[bool, float]:
    """Return whether a rank has whole totals of gradients, and the bytes of what is never freed.

    Weights that replicas gather early are in shards at a step's end alone: then its update begins with whole ones.
    """
    sizes, whole, shards = place.workload.model.precision, 0.0, 0.0
    for each in place.weights:
        of_states = each.weight_bytes * sizes.optimizer_bytes / sizes.parameter_bytes
        share = each.state_bytes / of_states if each.is_shard and of_states else 1.0
        whole += each.state_bytes + each.weight_bytes + each.gradient_bytes
        shards += each.state_bytes + share * (each.weight_bytes + each.gradient_bytes)
    is_whole = 2 * place.at_update_bytes > whole + shards or not place.is_sharded
    return is_whole, whole if is_whole else shards


def _kept(place: Place, habits: Habits) -> float:
    """Return the bytes that a framework keeps beside tensors."""
    kept = float(_HALF * sum(_matrices(place))) if habits.keeps_shapes else 0.0
    if habits.keeps_gradients:
        kept = sum(each.gradient_bytes for each in place.weights)
        if habits.new_gradient != "unit":  # those of a microbatch
            kept *= _HALF / place.workload.gradient_bytes
    if habits.keeps_activated:
        kept += place.num_in_flight * sum(_expanded(place, habits, each.layer) for each in place.weights)
    if habits.keeps_context:
        kept += place.num_in_flight * sum(_context(place, each.layer) for each in place.weights)
    if habits.keeps_outputs and not place.num_logits:  # the last stage sends nothing
        kept += place.num_in_flight * _sum_over_parts(place)
    return kept


def _in_streams(place: Place, habits: Habits) -> Fullest:
    """Return what a rank holds whose units are gathered and reduced in streams of their own."""
    sizes = place.workload.model.precision
    elements = sum(each.state_bytes for each in place.weights) / sizes.optimizer_bytes  # of the shards
    summed = sizes.gradient_bytes * elements
    if not place.is_sharded and elements < sum(_units_of(place)):
        in_halves, moments = 0.0, [(*each, 0.0) for each in _of_stage(place, habits)]
    else:
        in_halves = _HALF * elements if sizes.optimizer_bytes > sizes.parameter_bytes + _HALF else 0.0  # else no copies
        moments = [
            (held - in_halves, beside, 0.0 if place.is_single and not has_sums else summed)
            for held, beside, has_sums in _of_units(place, habits)
        ]
    held, temporary, _ = max(moments, key=lambda each: each[0] + each[1])
    largest = _HALF * max(_units_of(place))
    gathered = largest + largest * elements / sum(_units_of(place))
    computing = max(held + beside - sums for held, beside, sums in moments)
    reserved = computing + summed + gathered + _free_at_loss(place, habits)
    most = held + temporary
    roots = _moment_bytes(place) * elements if habits.update is _take_roots else 0.0
    return Fullest(
        held,
        temporary,
        update_bytes=roots - in_halves,  # what is counted when the update begins, and is not there
        late_bytes=max(reserved - most, 0.0),
        lasting_bytes=most,
    )


def _of_stage(place: Place, habits: Habits) -> Iterator[tuple[float, float]]:
    """Yield moments of a stage whose weights are gathered once, and whose whole gradients are reduced at the end."""
    units, logits, kinds = _units_of(place), place.num_logits, place.workload.units
    block, layers = max(units), [each.layer for each in place.weights]
    again = max(_made_again(place, habits, layer) + _inner_gradients(place, layer) for layer in layers)
    new = max((each.gradient_bytes for each in place.weights if kinds[each.layer].kind != "embedding"), default=0.0)
    kept = place.num_in_flight * sum(_expanded(place, habits, layer) for layer in layers) if habits.expands else 0.0
    yield place.peak_bytes - new - LOGIT_BYTES * logits + kept, _HALF * block + again
    if logits:
        at_most = habits.logit_bytes if place.num_parts == 1 else max(habits.logit_bytes, habits.parts_logit_bytes)
        before = place.at_loss_bytes - LOGIT_BYTES * logits + kept
        yield before, at_most * logits
        yield before, _HALF * (logits + units[-1]) + _input_gradients(place)
    yield place.at_update_bytes, _SINGLE * block


def _of_units(place: Place, habits: Habits) -> Iterator[tuple[float, float, bool]]:
    """Yield moments: tensors, what is beside them, and whether there are the sums of gradients for certain.

    They are: the loss, the head's backward and its reduction, the last layer's backward, the first one's, and the
    reduction of the embedding's gradient.
    """
    units, logits = _units_of(place), place.num_logits
    first, head, block = units[0], units[-1], max(units[1:-1], default=units[0])
    layers = [each.layer for each in place.weights]
    again = max(_made_again(place, habits, layer) + _inner_gradients(place, layer) for layer in layers)
    cast = 0.0 if place.is_sharded else _HALF  # of a lone rank, which gathers nothing, but casts
    if logits:
        kept = sum(_expanded(place, habits, layer) for layer in layers) if habits.expands else 0.0
        kept += _sum_over_parts(place) if place.is_scattered else 0.0  # the head's input, which parts have gathered
        before = place.at_loss_bytes - LOGIT_BYTES * logits + kept + cast * head
        at_most = habits.logit_bytes if place.num_parts == 1 else max(habits.logit_bytes, habits.parts_logit_bytes)
        at_most *= place.num_parts if habits.gathers_logits else 1
        if habits.linear_loss:
            yield before, _linear_loss_bytes(place), False
        else:
            yield before, at_most * logits, False
            yield before, _HALF * (logits + head) + _input_gradients(place), False
        yield before, (_HALF + _SINGLE) * head, False
        yield before, (_SINGLE - _HALF) * head + (_HALF + cast) * block + again, False
    later = place.workload.model.precision.gradient_bytes * _held_share(place) * (first + block)
    yield place.at_update_bytes - later, (_HALF + _HALF + _SINGLE) * block + again, True
    yield place.at_update_bytes, (_HALF + _SINGLE) * first, True


def _expanded(place: Place, habits: Habits, layer: int) -> float:
    """Return the bytes of what eager operations keep beside: of gates, experts' inputs, grouped heads and norms."""
    found, model = 0.0, place.workload.model
    saved = {each.name: place.num_bytes(each) for each in place.saved(layer)}
    for name, size in saved.items():
        if name.endswith("activation factor"):
            found += size  # the activated gate
        elif name == "expert inputs" and habits.expands:
            found += size / model.precision.saved_bytes * _SINGLE  # of which the gradients of tokens' weights are made
    if "keys" in saved and "values" in saved and habits.expands:
        found += (model.num_heads / model.num_kv_heads - 1) * (saved["keys"] + saved["values"])
    if habits.casts_norms and model.norm == "rmsnorm" and not saved.keys().isdisjoint(_NORMED):
        found += saved["norm input"] / model.precision.activation_bytes * _SINGLE
    return found


_NORMED = ("projection input", "mlp input", "head input")
"""What norms make, which is kept where they are not computed again."""


def _context(place: Place, layer: int) -> float:
    """Return the bytes of what a layer's flash attention returns, where that is kept."""
    core = place.workload.units[layer].core
    named = (each for each in place.saved(layer) if each.name == "output projection input")
    return sum(map(place.num_bytes, named)) if core is not None and core.is_flash else 0.0


def _held_share(place: Place) -> float:
    """Return which share of the weights is the rank's."""
    elements = sum(each.state_bytes for each in place.weights) / place.workload.model.precision.optimizer_bytes
    return float(elements / sum(_units_of(place)))


def _units_of(place: Place) -> list[float]:
    """Return the elements of the units that are gathered at once: embedding, layers, head."""
    found: list[float] = []
    for each in sorted(place.weights, key=lambda each: each.layer):
        size = each.weight_bytes / place.workload.model.precision.parameter_bytes
        if place.workload.units[each.layer].kind in ("mlp", "moe") and found:
            found[-1] += size
        else:
            found.append(size)
    return found


def _made_again(place: Place, habits: Habits, layer: int) -> float:
    """Return the bytes that a layer's forward makes and does not keep, which its backward makes again."""
    every, kept = (replace(place, recompute=again).saved(layer) for again in ("none", place.recompute))
    found = float(sum(place.num_bytes(each) for each in every if each not in kept))
    if habits.expands:
        found += _expanded(replace(place, recompute="none"), habits, layer) - _expanded(place, habits, layer)
    return found + (_sum_over_parts(place) if place.is_scattered else 0.0)


def _free_at_loss(place: Place, habits: Habits) -> float:
    """Return the bytes of free blocks at the loss: what a layer's forward has left, and an eager loss of logits."""
    left = max(_made_again(place, habits, each.layer) for each in place.weights)
    return left + (_HALF * place.num_logits if habits.logit_bytes > _SINGLE else 0.0)


def _as_allocated(place: Place, habits: Habits, fused_loss: bool) -> Iterator[tuple[float, float]]:
    """Yield moments in which gradients are added to their totals as multiplications make them.

    The peak of a run has the gradient of a unit, of the largest one but the embedding, whose backward comes last. Where
    there is a head it may have logits too, and a total of its own of a table that it shares with the embedding, for
    which a framework has one. A framework has all totals in the first forward, a run those of layers whose backward
    has begun.
    """
    units, logits, sizes = place.workload.units, place.num_logits, place.workload.model.precision
    largest = max((each.gradient_bytes for each in place.weights if units[each.layer].kind != "embedding"), default=0.0)
    new = _HALF * max(_matrices(place), default=0) if habits.new_gradient == "weight" else 0.0
    in_backward = new + max((_inner_gradients(place, each.layer) for each in place.weights), default=0.0)
    layers = {each.layer for each in place.weights}
    shared = place.workload.table_layers if layers.issuperset(place.workload.table_layers) else ()
    of_table = min((each.gradient_bytes for each in place.weights if each.layer in shared), default=0.0)
    is_whole = _whole_or_not(place)[0]
    yield place.peak_bytes - of_table - largest - LOGIT_BYTES * logits, in_backward
    yield (place.full_forward_bytes if is_whole else 0.0), 0.0
    if logits:
        at_most = _HALF if fused_loss else habits.logit_bytes
        head = max(each.weight_bytes for each in place.weights if units[each.layer].kind == "head")
        before = (place.full_at_loss_bytes if is_whole else place.at_loss_bytes) - LOGIT_BYTES * logits
        yield before + min(at_most, LOGIT_BYTES) * logits, max(at_most - LOGIT_BYTES, 0) * logits
        yield before, _HALF * (logits + head / sizes.parameter_bytes) + _input_gradients(place)
        yield before, in_backward


def _without_logits(place: Place, habits: Habits) -> Iterator[tuple[float, float]]:
    """Yield moments of a run whose peak has logits, which there are none of: the loss, the last layer's backward."""
    before = place.at_loss_bytes - LOGIT_BYTES * place.num_logits + _used_again(place, habits)
    again = max(_made_again(place, habits, each.layer) + _inner_gradients(place, each.layer) for each in place.weights)
    largest = max(each.gradient_bytes for each in place.weights if each.layer)
    yield before, _linear_loss_bytes(place)
    yield before, largest + again
    yield place.at_update_bytes, 0.0


def _used_again(place: Place, habits: Habits) -> float:
    """Return the bytes of layers before the head that are whole at the loss, as backward uses them soon.

    Beside them is an array for the gradients of the rank's shards, which a step of several microbatches has in its
    totals. It is never freed.
    """
    if not habits.reuses or not place.is_sharded:
        return 0.0
    units = _units_of(place)
    again = max(min(_DEEPSPEED_GROUP / 2, sum(units)) - units[-1], 0.0)
    return _HALF * (again + place.is_single * _held_share(place) * sum(units))


def _linear_loss_bytes(place: Place) -> float:
    """Return what head and loss have beside the head's input, if they take some tokens after others, bytes."""
    model, tokens = place.workload.model, place.work.num_tokens
    chunk = 2 ** math.ceil(math.log2(tokens / math.ceil(model.vocab_size / model.hidden_size)))
    head = max(each.weight_bytes for each in place.weights if place.workload.units[each.layer].kind == "head")
    return float(_HALF * (chunk * place.num_logits / tokens + tokens * model.hidden_size) + head)


def _until_its_end(place: Place, habits: Habits) -> Iterator[tuple[float, float]]:
    """Yield moments in which a microbatch's gradients are there until its backward ends, and activations no more."""
    units, logits, sizes = place.workload.units, place.num_logits, place.workload.model.precision
    gates = {each.layer: _activated_gates(place, each.layer) for each in place.weights}
    in_flight = place.num_in_flight * sum(gates.values())
    if logits:
        before = place.full_at_loss_bytes + in_flight - LOGIT_BYTES * logits
        yield before + LOGIT_BYTES * logits, (habits.logit_bytes - LOGIT_BYTES) * logits
    largest = max((each.gradient_bytes for each in place.weights if units[each.layer].kind != "embedding"), default=0.0)
    held = place.peak_bytes + in_flight - largest - LOGIT_BYTES * logits
    for weight in sorted(place.weights, key=lambda each: each.layer, reverse=True):
        held += _HALF * weight.weight_bytes / sizes.parameter_bytes
        yield held, _inner_gradients(place, weight.layer)
        held -= gates[weight.layer] + sum(place.num_bytes(each) for each in place.saved(weight.layer))


def _activated_gates(place: Place, layer: int) -> float:
    """Return the bytes of the activated gate of a microbatch, where it is kept."""
    return float(sum(place.num_bytes(each) for each in place.saved(layer) if each.name == "activation factor"))


def _sum_over_parts(place: Place) -> float:
    """Return the bytes of the input that parts gather, or of the sum that they scatter."""
    model = place.workload.model
    return float(place.work.num_tokens * model.hidden_size * model.precision.activation_bytes)


def _left_by_backward(place: Place) -> Iterator[int]:
    """Yield the bytes of the blocks that activations and logits have left."""
    yield from [round(LOGIT_BYTES * place.num_logits)] * 2
    for each in place.weights:
        sizes = [round(place.num_bytes(saved)) for saved in place.saved(each.layer)]
        gate = round(_activated_gates(place, each.layer))
        yield from ([2 * gate] if gate else []) * round(place.num_in_flight)  # both inputs of the activation function
        for size in sizes:
            yield from [size] * round(place.num_in_flight)


def _inner_gradients(place: Place, layer: int) -> float:
    """Return the bytes of the gradient of an activation function's inputs, and what the multiplication before has."""
    unit, named = place.workload.units[layer], ("activation input", "activation factor")
    found = sum(place.num_bytes(each) for each in unit.saved if each.name.endswith(named))
    return found + (_input_gradients(place) if unit.kind == "mlp" else 0.0)


def _input_gradients(place: Place) -> float:
    """Return what a multiplication that parts share has beside its result's gradient in backward, bytes.

    That is its input's gradient, which parts have whole, and with sequence parallelism the input, which is gathered
    again, and the shard of the gradient's sum.
    """
    whole = _sum_over_parts(place)
    return whole * (2 + 1 / place.num_parts) if place.is_scattered else whole


def _matrices(place: Place) -> Iterator[int]:
    """Yield the elements of each shape of matrix between embedding and head; of one expert where there are several."""
    yield from (k * n for k, n in _shapes(place))


def _shapes(place: Place) -> set[tuple[int, int]]:
    """Return the shapes of the matrices of these layers, but for routers."""
    found = set()
    for each in place.weights:
        for projection in place.workload.units[each.layer].projections:
            sizes = {"k": projection.k, "n": projection.n}
            if projection.cut is not None:
                parts = _parts_of_expert(place) if projection.name.startswith("experts.") else place.num_parts
                sizes[projection.cut_dim] = projection.cut.part(sizes[projection.cut_dim], parts)
            if projection.name not in ("router", "logits"):
                found.add((sizes["k"], sizes["n"]))
    return found


def _parts_of_expert(place: Place) -> int:
    """Return the ranks that share an expert: those of a layer, or as many more as there are than experts."""
    if place.experts is None:
        return place.num_parts
    return max(int(place.experts.num_parts) // int(place.workload.model.num_experts), 1)


def _taken_by_update(place: Place, habits: Habits) -> tuple[int, int]:
    """Return what an update allocates and what it takes from the driver beside what there is, bytes."""
    model = place.workload.model
    sizes = [round(each.state_bytes / model.state_bytes) for each in place.weights]
    whole = sum(each.weight_bytes for each in place.weights) / model.precision.parameter_bytes
    num_shards, left = round(whole / max(sum(sizes), 1)), _left_by_backward(place) if habits.keeps_gates else ()
    assert habits.update is not None  # who asks has looked
    fixed = model.precision.gradient_bytes, num_shards, _moment_bytes(place)
    alone, after = (_Update(sizes, *fixed, left=blocks) for blocks in ((), left))
    habits.update(alone)
    habits.update(after)
    return alone.taken[0], after.taken[1]


def _moment_bytes(place: Place) -> int:
    """Return the bytes of an element of the roots of second moments: of halves in 16 bits, of quarters none at all."""
    sizes = place.workload.model.precision
    if sizes.optimizer_bytes <= sizes.parameter_bytes + _HALF:
        return int(sizes.optimizer_bytes // 2)
    return _SINGLE if sizes.optimizer_bytes >= 2 * _SINGLE else 0
