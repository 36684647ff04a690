"""How tokens come together in a layer, other than by the usual attention: the sizes of what is there instead.

Multi-head latent attention (DeepSeek-V2 and V3): the sizes of the latents and heads for queries, keys and values.

Linear attention: a head has a state, a matrix of the sizes of its key and value, which each token decays and adds to,
and its query reads. In training a sequence is computed chunk by chunk, and the state passes from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from minitrain.errors import choice_fault, count_fault, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """How queries, keys and values come from latents that all heads share (DeepSeek-AI 2024, section 2.1.1).

    The hidden state is projected down to a latent for queries, to one for keys and values, and to one rotary key that
    all heads share. Both latents are normalised and projected up to the heads. A head's query and key are its part
    without rotation and the rotary part, concatenated. In training the heads' keys and values are made in full.

    Args:
        kv_rank: size of the latent for keys and values.
        rope_head_dim: size of the rotary part of a head's query, and of the shared rotary key.
        nope_head_dim: size of the part without rotation of a head's query and key.
        value_head_dim: size of a head's value.
        query_rank: size of the latent for queries; None projects queries from the hidden state at once.

    Raises:
        UsageError: a size is no integer of at least 1; all faults at once.
    """

    kv_rank: int
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int
    query_rank: int | None = None

    def __post_init__(self) -> None:
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        found = (
            count_fault(name, value, 1, f"{name}=64") for name, value in given if (name, value) != ("query_rank", None)
        )
        faults = [fault for fault in found if fault is not None]
        if faults:
            raise refuse("the latent attention", faults)

    @property
    def key_head_dim(self) -> int:
        """Return the size of a head's query and key: both parts."""
        return self.nope_head_dim + self.rope_head_dim

    @property
    def rotated_tensors(self) -> float:
        """Return how often an element of queries and keys is read or written to rotate them, by one kernel for each.

        Queries' rotary part is rotated where it lies. Keys without rotation, and values, are read; both are written
        (`fused_apply_mla_rope_for_q` and `fused_apply_mla_rope_for_kv` of Megatron-Core's
        `core/fusions/fused_mla_yarn_rope_apply.py`).

        >>> sizes = {"rope_head_dim": 64, "nope_head_dim": 128, "value_head_dim": 128}
        >>> round(LatentAttention(kv_rank=512, **sizes).rotated_tensors, 2)
        1.83
        """
        made = self.nope_head_dim + self.value_head_dim + self.key_head_dim + self.value_head_dim
        return (2 * self.rope_head_dim + made) / (2 * self.key_head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseAttention:
    """Which keys a query of latent attention sees: those that an indexer scores highest (DeepSeek-V3.2, section 2.1).

    The indexer has heads of queries, made of the latent of queries, one head of keys, and a weight of each head, both
    made of the hidden state. It scores all earlier keys. The attention then works on the latents that all heads share:
    the matrices that would make heads' keys and values of them are multiplied to queries and to what attention makes.

    Args:
        num_heads: the indexer's heads.
        head_dim: size of a query and a key of it.
        top_k: keys that a query sees at most.

    Raises:
        UsageError: a size is no integer of at least 1; all faults at once.
    """

    num_heads: int
    head_dim: int
    top_k: int

    def __post_init__(self) -> None:
        found = (count_fault(field.name, getattr(self, field.name), 1, f"{field.name}=64") for field in fields(self))
        faults = [fault for fault in found if fault is not None]
        if faults:
            raise refuse("the sparse attention", faults)


RULES = {"gated_delta": 2, "kimi_delta": 1, "mamba2": 1, "lightning": 0}
"""How a state decays and learns, and how many numbers of a token and head come of the hidden state for that: the gated
delta rule (Yang et al. 2025), the same with a decay for each channel (Kimi Linear, 2025), Mamba-2 (Dao and Gu 2024),
and a fixed decay (MiniMax-01, 2025)."""

_VECTORS = {"gated_delta": 2, "kimi_delta": 1, "mamba2": 3, "lightning": 0}
# Learned numbers of a head: of its decay and its bias, and of what Mamba-2 adds of a value; of Kimi's bias elsewhere.


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """A linear attention, with a gate for what it makes and a norm of that.

    Args:
        rule: how a state decays and learns, a key of `RULES`.
        num_heads: heads, each of which has a state.
        key_head_dim: size of a head's query and key (Mamba-2's state).
        value_head_dim: size of a head's value.
        num_key_heads: heads of queries and of keys (Mamba-2's groups), by which tensor parallelism cuts.
        conv: tokens that a convolution of queries, keys and values sees; 0 for none.
        conv_bias: whether that has biases.
        chunk: tokens that are computed together.

    Raises:
        UsageError: a field is not what it must be; all faults at once.
    """

    rule: str
    num_heads: int
    key_head_dim: int
    value_head_dim: int
    num_key_heads: int
    conv: int = 0
    conv_bias: bool = False
    chunk: int = 64

    def __post_init__(self) -> None:
        sizes = ("num_heads", "key_head_dim", "value_head_dim", "num_key_heads", "conv", "chunk")
        found = [choice_fault("rule", self.rule, tuple(RULES))]
        found += [count_fault(name, getattr(self, name), int(name != "conv"), f"{name}=64") for name in sizes]
        if not any(found) and self.num_heads % self.num_key_heads:
            found.append(
                f"num_heads ({self.num_heads}) must be a multiple of num_key_heads ({self.num_key_heads}); "
                f"use num_key_heads={self.num_heads}"
            )
        faults = [fault for fault in found if fault is not None]
        if faults:
            raise refuse("the linear attention", faults)

    @property
    def has_delta(self) -> bool:
        """Return whether a state is corrected by what it already has for a key."""
        return self.rule.endswith("delta")

    @property
    def is_low_rank(self) -> bool:
        """Return whether gates and decays come by two matrices each, with a head's size between them."""
        return self.rule == "kimi_delta"

    @property
    def key_size(self) -> int:
        """Return the size of all heads' keys."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Return the size of all heads' values."""
        return self.num_heads * self.value_head_dim

    @property
    def mixed_size(self) -> int:
        """Return the size of queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def input_size(self) -> int:
        """Return the size of what one matrix makes of the hidden state: these, the gate, and numbers of each head."""
        gate = 0 if self.is_low_rank else self.value_size
        return self.mixed_size + gate + RULES[self.rule] * self.num_heads

    @property
    def vector_size(self) -> int:
        """Return the learned numbers that decays have."""
        return _VECTORS[self.rule] * self.num_heads + self.is_low_rank * self.key_size

    @property
    def norm_size(self) -> int:
        """Return the weights of the norm: of a head with a delta rule, of all heads without."""
        return self.value_head_dim if self.has_delta else self.value_size

    def low_rank(self) -> Iterator[tuple[str, int, int]]:
        """Yield the pairs of matrices by which gates and decays come: name, size between and size of what they make."""
        if self.is_low_rank:
            yield "decay", self.value_head_dim, self.key_size
            yield "gate", self.value_head_dim, self.value_size
