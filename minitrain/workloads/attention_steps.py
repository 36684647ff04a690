"""Costs and sizes of an attention that is computed in steps, since keys and values come from several ranks.

Forward has three: `keys_values` (norm, and the multiplications that make queries, keys and values), `attend` (the core,
of the rank's queries and some keys) and `project` (output projection and residual connection). Backward has their
mirrors: `backward_project`, `backward_attend` and `backward_keys_values`. Over all ranks and all keys they have the
operations of an undivided attention. The bytes are more, since queries are read again for every block of keys.

The core is counted by area (see `context`): a block whose keys all come later than the queries costs nothing. Flash
attention computes the pairs that the causal mask leaves; unfused attention computes all pairs of two shards if it
computes any. Adding the results of two blocks costs nothing here: it is fused with the core, as in published kernels.

Keys and values are tensors of their own: what is on the wire is as large as what is kept, which is less than the
queries where heads are grouped. A layer's input stands for all else that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.context import Context
from minitrain.workloads.degrees import Cut, Work
from minitrain.workloads.kernels import FLASH_BACKWARD
from minitrain.workloads.precision import STATISTIC_BYTES
from minitrain.workloads.shapes import Gemm, SavedTensor
from minitrain.workloads.unit import Unit
from minitrain.workloads.unit_costs import (
    MOVES_OF_NORM,
    MOVES_OF_NORM_AND_RESIDUAL,
    MOVES_OF_RESIDUAL,
    Demand,
    gemm_demand,
    hidden_state_demand,
    norm_demand,
    weight_gemms,
)
from minitrain.workloads.workload import Cost, PassMode

STEPS = frozenset({"keys_values", "attend", "project", "backward_project", "backward_attend", "backward_keys_values"})
"""The steps of an attention, as events name them."""

_KEYS_AND_VALUES = frozenset({"keys", "values"})
_OUTPUT = "output"
# Their shares of `hidden_state_demand`.
_NORM, _RESIDUAL = (moves / MOVES_OF_NORM_AND_RESIDUAL for moves in (MOVES_OF_NORM, MOVES_OF_RESIDUAL))


def step_cost(model: Architecture, unit: Unit, work: Work, typ: str, mode: PassMode) -> Cost:
    """Return the cost of one step of an attention.

    Args:
        model: whose unit it is.
        unit: the attention.
        work: the rank's samples, their length, and how ranks divide the unit.
        typ: which step.
        mode: the shards of queries and of keys, and what backward computes again.

    Raises:
        UsageError: heads or the sequence do not divide by their degree.
    """
    if typ in ("attend", "backward_attend"):
        found = _core(model, unit, work, mode.context)
        if typ == "backward_attend":
            found = _core_backward(found, unit, mode)
        return Cost(found.flop, found.num_bytes)
    total = sum(_around_core(model, unit, work, typ), Demand())
    if typ == "backward_keys_values" and unit.repeats_norm(mode.recompute):
        total += norm_demand(model, work)
    return Cost(total.flop, total.num_bytes)


def _around_core(model: Architecture, unit: Unit, work: Work, typ: str) -> Iterator[Demand]:
    """Yield the demand of the steps before and after the core."""
    is_after = typ.endswith("project")
    is_backward = typ.startswith("backward")
    for gemm in weight_gemms(unit, work):
        if (gemm.name == _OUTPUT) == is_after:
            yield from _multiplications(model, gemm, is_backward=is_backward)
    share = _RESIDUAL if is_after else _NORM
    yield hidden_state_demand(model, unit, work).times(share * (2 if is_backward else 1))


def _multiplications(model: Architecture, gemm: Gemm, *, is_backward: bool) -> Iterator[Demand]:
    """Yield a multiplication forward, or the two of backward."""
    yield gemm_demand(model, gemm, model.precision.parameter_bytes)
    if is_backward:
        yield gemm_demand(model, gemm, model.precision.gradient_bytes)


def _core(model: Architecture, unit: Unit, work: Work, context: Context | None) -> Demand:
    """Return the core forward, of some queries and keys."""
    core = unit.core
    assert core is not None  # an attention has one
    assert context is not None  # steps are of some shards
    shard_len = Cut("seq_len", work.seq_len).part(work.seq_len, context.num_shards, "num_shards")
    seen = list(context.seen(shard_len, core.window))
    num_pairs = sum(pairs if core.is_flash else shard_len**2 for _, _, pairs in seen)
    num_queries, num_keys = (shard_len * len({pair[side] for pair in seen}) for side in (0, 1))
    num_heads = work.num_samples * Cut("num_heads", core.num_heads).part(core.num_heads, work.degrees.tp)
    sizes = core.key_dim + core.value_dim
    ends = sizes * (num_queries + num_keys) + (0 if core.is_flash else 4 * num_pairs)
    return Demand(2 * sizes * num_pairs * num_heads, model.precision.activation_bytes * num_heads * ends)


def _core_backward(forward: Demand, unit: Unit, mode: PassMode) -> Demand:
    """Return the core backward, with what is computed again of it."""
    core = unit.core
    assert core is not None  # an attention has one
    if core.is_flash:
        return Demand(forward.flop * FLASH_BACKWARD, 2 * forward.num_bytes)
    return forward.times(3 if unit.repeats_core(mode.recompute) else 2)


def keys_values_bytes(unit: Unit, work: Work) -> int:
    """Return the bytes of one rank's keys and values.

    Args:
        unit: the attention.
        work: the rank's samples, their length, and how ranks divide the unit.
    """
    return sum(tensor.num_bytes(work) for tensor in unit.saved if tensor.name in _KEYS_AND_VALUES)


def queries_bytes(unit: Unit, work: Work) -> int:
    """Return the bytes of one rank's queries, or of their gradient; see `keys_values_bytes`."""
    return sum(tensor.num_bytes(work) for tensor in unit.saved if tensor.name == "queries")


def attended_bytes(model: Architecture, unit: Unit, work: Work) -> int:
    """Return the bytes of what one rank's queries have got, without the log-sum-exp; see `keys_values_bytes`."""
    core = unit.core
    assert core is not None  # an attention has one
    heads = Cut("num_heads", core.num_heads)
    size = heads.part(core.num_heads * core.value_dim, work.degrees.tp)
    return work.num_tokens * size * model.precision.activation_bytes


def log_sum_exp_bytes(unit: Unit, work: Work) -> int:
    """Return the bytes of the log-sum-exp of one rank's queries, in single precision; see `keys_values_bytes`."""
    core = unit.core
    assert core is not None  # an attention has one
    return work.num_tokens * STATISTIC_BYTES * Cut("num_heads", core.num_heads).part(core.num_heads, work.degrees.tp)


def kept_bytes(unit: Unit, work: Work, mode: PassMode) -> int:
    """Return the bytes that the input of an attention stands for, which its keys and values do not.

    Before the queries have seen any keys, these are what precedes the core.
    """
    kept = [tensor for tensor in unit.saved if tensor.is_kept(mode.recompute) and tensor.name not in _KEYS_AND_VALUES]
    if mode.context is not None and not mode.context.keys:
        kept = list(_before_core(kept))
    return sum(tensor.num_bytes(work) for tensor in kept)


def _before_core(kept: list[SavedTensor]) -> Iterator[SavedTensor]:
    """Yield what is kept up to the queries."""
    for tensor in kept:
        yield tensor
        if tensor.name == "queries":
            return
