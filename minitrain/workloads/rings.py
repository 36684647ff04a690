"""What PyTorch's ring attention copies, merges and sends, where ranks share each sequence.

Queries see one block of keys and values after the other. After each, what they got is merged in single precision with
what they had; backward adds up gradients in single precision too, of which those of keys and values travel on to the
next rank, a step behind, and come home after the last step, when nothing hides them.

- "gathered" is `context_parallel` of PyTorch as torchtitan runs it: keys and values are repeated for all heads of
  queries (`repeat_kv` of its `Attention`), made contiguous and concatenated, and gathered at once
  (`_RotateMethod.ALL_GATHER`), beside the first block alone. `torch.compile` fuses what merges and adds;
  "gathered eager" has one kernel for each operation.
- "ring" is `zigzag_ring_flash_attn` of ring-flash-attention, which OLMo-core takes: keys and values have their own
  heads, and go on to the next rank beside each block.

Each block has an equal part of the pairs ("zigzag" shares). A merge of half of the queries is taken for one of all,
which the last rank has.

Source: `_templated_ring_attention` and `_templated_ring_attention_backward` of PyTorch 2.9's
`torch/distributed/tensor/experimental/_attention.py`; `ring_flash_attn/zigzag_ring_flash_attn.py` and `utils.py` of
github.com/zhuzilin/ring-flash-attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from minitrain.workloads.kernels import FlashAttention, KernelList, MemoryPass


class _Ring(NamedTuple):
    """How a library goes round: bytes an element that it reads and writes, by what for."""

    gathers: bool
    copied: int  # of keys and values before they are sent
    merged: int  # of what queries got, in each step but the first
    added: int  # of a gradient of keys or values, in each step
    added_to_queries: int = 10  # read in 16 bits, and read and written in single precision


RINGS = {
    "gathered": _Ring(True, 8, 10, 10),
    "gathered eager": _Ring(True, 8, 38, 18),
    "ring": _Ring(False, 0, 38, 10),
}
"""By `Platform.ring`. A merge reads 16 bits, and reads and writes 32; as single operations it casts (6), subtracts
(12), multiplies (8) and subtracts (12). A gradient is concatenated (8) by an operation of its own where nothing fuses
it."""


def ring_pass(core: FlashAttention, ring: str) -> MemoryPass:
    """Return what merges and copies read and write beside an attention whose keys are of several ranks."""
    way, num_ranks = RINGS[ring], core.num_keys // core.num_queries
    queries, own = _num_elements(core, core.num_heads), _num_elements(core, _num_heads_sent(core, ring))
    per_key = way.copied + core.is_backward * num_ranks * way.added
    per_query = num_ranks * way.added_to_queries if core.is_backward else (num_ranks - 1) * way.merged
    return MemoryPass("ring", queries, per_query + 2 * per_key * own / queries)


def exposed_seconds(work: KernelList, ring: str, device: Any, topology: Any, model: Any) -> float:
    """Return the time of exchanges of a pass that no block of an attention hides, s.

    Args:
        work: the kernels of the pass.
        ring: a key of `RINGS`.
        device: the `KernelDevice` that runs them.
        topology: what prices transfers.
        model: the transformer, of which a rank has some heads: its next one in the ring is as far away as it has parts.
    """
    way, total = RINGS[ring], 0.0
    for core in (kernel for kernel in work.kernels if isinstance(kernel, FlashAttention)):
        num_ranks, num_parts = core.num_keys // core.num_queries, model.num_heads // core.num_heads
        block_s = device.kernel_seconds(core) / num_ranks
        sent_bytes = 2 * _num_elements(core, _num_heads_sent(core, ring)) * core.element_bytes
        gradient_bytes = core.is_backward * 4 / core.element_bytes * sent_bytes
        beside_bytes = gradient_bytes + (0 if way.gathers else sent_bytes)
        if way.gathers:
            ranks = range(0, num_ranks * num_parts, num_parts)
            gathered_s = topology.collective("all_gather", num_ranks * sent_bytes, ranks).seconds
            total += max(0.0, gathered_s - block_s)
        if beside_bytes:
            total += (num_ranks - 1) * max(0.0, topology.p2p(beside_bytes, 0, num_parts).seconds - block_s)
        if gradient_bytes:
            total += topology.p2p(gradient_bytes, 0, num_parts).seconds
    return total


def _num_heads_sent(core: FlashAttention, ring: str) -> int:
    return core.num_heads if RINGS[ring].gathers else core.num_kv_heads


def _num_elements(core: FlashAttention, num_heads: int) -> int:
    return core.num_samples * core.num_queries * num_heads * core.key_dim
