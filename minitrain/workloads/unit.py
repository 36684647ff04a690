"""A unit of a transformer: what the engine treats as one layer, between which activations pass.

Counted in FLOPs: matrix multiplications, two a multiplication and addition, as Narayanan et al. (2021) do; not norms,
activation functions, softmax, dropout, residual connections, lookups in tables and the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, final

from minitrain.workloads.degrees import WHOLE, Degrees, Work
from minitrain.workloads.shapes import AttentionCore, Gemm, Projection, Recompute, SavedTensor, WeightShape
from minitrain.workloads.workload import as_recompute, modules_of

Kind = Literal["embedding", "attention", "mlp", "moe", "head"]


@final
@dataclass(frozen=True, slots=True)
class Unit:
    """One unit: the tables of what it holds, multiplies and saves.

    Args:
        kind: "embedding", "attention", "mlp", "moe" or "head".
        layer: the transformer layer that it belongs to; None for embedding and head.
        output_size: elements that it passes on for a token; 0 for the head, which ends in a loss.
        weights: its weights, the norm's included.
        projections: the multiplications of every token with a weight, in the order of forward.
        core: what happens between queries and keys, None but for attention.
        saved: what forward keeps for backward.
    """

    kind: Kind
    layer: int | None
    output_size: int
    weights: tuple[WeightShape, ...]
    projections: tuple[Projection, ...]
    core: AttentionCore | None
    saved: tuple[SavedTensor, ...]

    @property
    def name(self) -> str:
        """Return what figures call it: "embedding", "attention 17", "mlp 17"."""
        return self.kind if self.layer is None else f"{self.kind} {self.layer}"

    @property
    def num_parameters(self) -> int:
        """Return its parameters; a table that two units share counts in the embedding alone."""
        return sum(weight.num_parameters for weight in self.weights if not weight.is_shared)

    @property
    def num_active_parameters(self) -> int:
        """Return the parameters that one token uses: of routed experts, those that it is sent to."""
        return sum(weight.num_active_parameters for weight in self.weights if not weight.is_shared)

    @property
    def num_norm_parameters(self) -> int:
        """Return the parameters of its norms."""
        return sum(weight.num_parameters for weight in self.weights if weight.is_norm)

    def num_held_parameters(self, degrees: Degrees = WHOLE) -> int:
        """Return the parameters that one rank holds, a copy of a shared table included.

        Raises:
            UsageError: heads, columns or experts do not divide by their degree.
        """
        return sum(prod(weight.part(degrees)) for weight in self.weights)

    def gemms(self, work: Work) -> tuple[Gemm, ...]:
        """Return one rank's matrix multiplications, forward: projections, and then the attention core's.

        The core's are full rectangles of queries and keys, as unfused attention computes them; `core.num_pairs` says
        how much of that a kernel needs which leaves out what the mask hides.

        Args:
            work: the rank's samples, their length, and how ranks divide the unit.

        Raises:
            UsageError: heads, columns, experts or the sequence do not divide by their degree.
        """
        projected = tuple(projection.gemm(work) for projection in self.projections)
        return projected if self.core is None else projected + self.core.gemms(work)

    def forward_flop(self, seq_len: int, *, causal: bool = False) -> int:
        """Return the floating-point operations of one sample's forward pass.

        Args:
            seq_len: tokens of the sample.
            causal: whether attention counts only pairs that the causal mask leaves.
        """
        tokens = seq_len * sum(projection.flop_per_token for projection in self.projections)
        return tokens if self.core is None else tokens + self.core.flop(seq_len, causal=causal)

    def is_repeated(self, recompute: Recompute) -> bool:
        """Return whether backward computes all of it again, but for norms and residual connection where they are kept.

        Embedding and head never are.
        """
        if self.layer is None:
            return False
        return recompute == "full" or _WHOLE[self.kind] in modules_of(recompute)

    def repeated_projections(self, recompute: Recompute) -> tuple[Projection, ...]:
        """Return the multiplications with weights that backward computes again."""
        if self.is_repeated(recompute):
            return self.projections
        modules = modules_of(recompute)
        return tuple(
            projection
            for projection in self.projections
            if _module_of_projection(self.kind, projection.name) in modules
        )

    def repeats_core(self, recompute: Recompute) -> bool:
        """Return whether backward computes the attention core again: by itself, only where that frees memory.

        Flash attention has nothing stored that could be saved.
        """
        if self.core is None or self.is_repeated(recompute):
            return self.core is not None
        return not self.core.is_flash and "core_attn" in modules_of(recompute)

    def repeats_norm(self, recompute: Recompute) -> bool:
        """Return whether backward computes the norm before it again."""
        modules = modules_of(recompute)
        own = recompute == "full" or "layernorm" in modules or (self.kind == "attention" and "self_attn" in modules)
        return self.layer is not None and own

    def recomputed_flop(self, seq_len: int, recompute: Recompute, *, causal: bool = False) -> int:
        """Return the floating-point operations that backward repeats for one sample, beside its own.

        Full recomputation repeats forward, of all units but embedding and head. Selective recomputation repeats the
        attention core, unless that is flash attention. Norms and activation functions count for none.
        """
        recompute = as_recompute(recompute)
        flop = seq_len * sum(projection.flop_per_token for projection in self.repeated_projections(recompute))
        if self.core is None or not self.repeats_core(recompute):
            return flop
        return flop + self.core.flop(seq_len, causal=causal)

    def saved_bytes(self, work: Work, recompute: Recompute = "none") -> int:
        """Return the bytes that one rank keeps between forward and backward.

        With "full" the attention keeps the input of the whole transformer layer, from which the MLP's is computed
        again. Where modules are computed again by themselves, each unit keeps its own input.

        Args:
            work: the rank's samples, their length, and how ranks divide the unit.
            recompute: what backward computes again.

        Raises:
            UsageError: heads, columns or the sequence do not divide by their degree, or there is no such `recompute`.

        Source:
            Korthikanti et al. (2022), equations 1 to 6, for 16 bits, unfused attention and dropout.
        """
        recompute = as_recompute(recompute)
        return sum(tensor.num_bytes(work) for tensor in self.saved if tensor.is_kept(recompute))


_WHOLE = {"attention": "self_attn", "mlp": "mlp", "moe": "moe"}
"""The module that is all of a unit, its norm and the residual connection left out."""

_UP = frozenset({"query", "query_up", "kv_up"})


def _module_of_projection(kind: Kind, name: str) -> str | None:
    """Return the module, less than a unit, whose recomputation repeats a multiplication; None for most."""
    if kind == "attention":
        return "mla_up_proj" if name in _UP else None
    return "shared_experts" if name.startswith("shared.") else None
