"""Multi-head latent attention (DeepSeek-V2 and V3): the sizes of the latents and heads for queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import final

from minitrain.workloads.field_faults import count_fault, refuse


@final
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
