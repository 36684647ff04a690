"""The demand of a pass through a unit: floating-point operations, and bytes read and written.

A matrix multiplication reads both operands and writes its result. Its backward is two of the same work: one for the
gradient of its input, one for that of its weight, which is written in the precision of gradients. Flash attention reads
queries, keys and values and writes its output. It computes only pairs that the causal mask leaves, and in backward the
scores again, which makes five multiplications of forward's two (Dao 2023, "FlashAttention-2", section 3.1.2). Unfused
attention computes all pairs, and its softmax reads scores and writes probabilities. Norm and residual connection read
and write the hidden state five times: the norm once each, the sum two times in and one out.

Left out: activation functions and dropout, which are fused with their neighbours, what a kernel costs to launch,
experts that get more tokens than others, and soft caps of the logits or within flash attention. Keys and values that
several heads of queries share count for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.kernels import FLASH_BACKWARD
from minitrain.workloads.shapes import AttentionCore, Gemm, Work
from minitrain.workloads.unit import Unit, has_second_norm
from minitrain.workloads.workload import Cost

MOVES_OF_NORM, MOVES_OF_RESIDUAL = 2, 3
"""How often a norm and a residual connection read or write the hidden state, forward."""
MOVES_OF_NORM_AND_RESIDUAL = MOVES_OF_NORM + MOVES_OF_RESIDUAL
_MOVES_OF_LOOKUP = 2  # a lookup reads and writes rows
_MOVES_OF_HIDDEN_STATE = {"embedding": _MOVES_OF_LOOKUP, "head": MOVES_OF_NORM}


@final
@dataclass(frozen=True, slots=True)
class Demand:
    """Operations and bytes, which add up.

    Args:
        flop: floating-point operations.
        num_bytes: bytes read and written.
    """

    flop: float = 0
    num_bytes: float = 0

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.flop + other.flop, self.num_bytes + other.num_bytes)

    def times(self, factor: float) -> Demand:
        """Return a multiple."""
        return Demand(self.flop * factor, self.num_bytes * factor)


def pass_cost(model: Architecture, unit: Unit, work: Work, typ: str, recompute: str) -> Cost:
    """Return the cost of a pass through a unit.

    The two halves of a split backward have the cost of a whole one together. What is computed again is part of the
    first.

    Args:
        model: whose unit it is.
        unit: the unit.
        work: the rank's samples, their length, and how ranks divide the unit.
        typ: "forward", "backward", "backward_input" or "backward_weight".
        recompute: what backward computes again.

    Raises:
        UsageError: heads, columns, experts or the sequence do not divide by their degree.
    """
    parts: Iterable[Demand]
    if typ != "forward" and not unit.has_backward:
        parts = ()
    elif typ == "forward":
        parts = _forward(model, unit, work)
    elif typ == "backward_weight":
        parts = _backward_weight(model, unit, work)
    else:
        parts = [*_backward_input(model, unit, work), *_again(model, unit, work, recompute)]
        if typ == "backward":
            parts += _backward_weight(model, unit, work)
    total = sum(parts, Demand())
    return Cost(total.flop, total.num_bytes)


def _forward(model: Architecture, unit: Unit, work: Work) -> Iterator[Demand]:
    for gemm in weight_gemms(unit, work):
        yield gemm_demand(model, gemm, model.precision.parameter_bytes)
    if unit.core is not None:
        yield _core(model, unit.core, work)
    yield hidden_state_demand(model, unit, work)


def _backward_input(model: Architecture, unit: Unit, work: Work) -> Iterator[Demand]:
    for gemm in weight_gemms(unit, work):
        yield gemm_demand(model, gemm, model.precision.parameter_bytes)
    if unit.core is not None:
        forward = _core(model, unit.core, work)
        yield Demand(forward.flop * (FLASH_BACKWARD if unit.core.is_flash else 2), 2 * forward.num_bytes)
    yield hidden_state_demand(model, unit, work).times(2)


def _backward_weight(model: Architecture, unit: Unit, work: Work) -> Iterator[Demand]:
    for gemm in weight_gemms(unit, work):
        if gemm.is_trained:
            yield gemm_demand(model, gemm, model.precision.gradient_bytes)


def gemm_demand(model: Architecture, gemm: Gemm, weight_bytes: int) -> Demand:
    """Return the demand of one of the three multiplications of a weight, which differ in what they read and write."""
    activations = model.precision.activation_bytes * gemm.m * (gemm.k + gemm.n)
    return Demand(gemm.flop, gemm.batch * (activations + weight_bytes * gemm.k * gemm.n))


def _again(model: Architecture, unit: Unit, work: Work, recompute: str) -> Iterator[Demand]:
    """Yield what backward computes again."""
    if recompute == "full" and unit.layer is not None:
        yield from _forward(model, unit, work)
        return
    for projection in unit.repeated_projections(recompute):
        yield gemm_demand(model, projection.gemm(work), model.precision.parameter_bytes)
    if unit.core is not None and unit.repeats_core(recompute):
        yield _core(model, unit.core, work)
    if unit.repeats_norm(recompute):
        yield norm_demand(model, work)


def norm_demand(model: Architecture, work: Work) -> Demand:
    """Return the demand of a norm of the hidden state, forward."""
    elements = MOVES_OF_NORM * work.num_tokens_between * model.hidden_size
    return Demand(0, elements * model.precision.activation_bytes)


def weight_gemms(unit: Unit, work: Work) -> Iterator[Gemm]:
    """Return the multiplications with weights."""
    return (gemm for gemm in unit.gemms(work) if gemm.has_weight)


def _core(model: Architecture, core: AttentionCore, work: Work) -> Demand:
    """Return the demand of the attention core, forward."""
    scores, values = core.gemms(work)
    ends = scores.m * scores.k + scores.n * scores.k + values.n * values.k + values.m * values.n
    element = model.precision.activation_bytes * scores.batch
    if not core.is_flash:
        return Demand(scores.flop + values.flop, element * (ends + 4 * scores.m * scores.n))
    share = core.num_pairs_of(work) / work.seq_len**2
    return Demand((scores.flop + values.flop) * share, element * ends)


def hidden_state_demand(model: Architecture, unit: Unit, work: Work) -> Demand:
    """Return the demand of norm and residual connection, or of a lookup."""
    moves = _MOVES_OF_HIDDEN_STATE.get(unit.kind, MOVES_OF_NORM_AND_RESIDUAL)
    if unit.layer is not None and has_second_norm(model):
        moves += MOVES_OF_NORM
    elements = moves * work.num_tokens_between * model.hidden_size + _moves_around_core(model, unit, work)
    return Demand(0, elements * model.precision.activation_bytes)


def _moves_around_core(model: Architecture, unit: Unit, work: Work) -> int:
    """Return the elements that norms of queries and keys, and a soft cap of unfused scores, read and write."""
    if unit.core is None:
        return 0
    heads = model.num_heads + model.num_kv_heads
    normed = work.num_tokens * heads * model.head_dim // work.degrees.tp if model.qk_norm != "none" else 0
    scores = unit.core.gemms(work)[0]
    capped = scores.batch * scores.m * scores.n if model.score_cap and not unit.core.is_flash else 0
    return MOVES_OF_NORM * (normed + capped)
