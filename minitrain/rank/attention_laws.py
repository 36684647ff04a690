"""The laws of an attention that is computed in steps: what each step requires; see `minitrain.rank.laws`.

What a step of a causal attention needs follows from the mask. Queries must have seen all keys up to the last query, and
the gradient of keys must cover all queries from the first key on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minitrain.errors import LawError
from minitrain.operations.collectives import describe
from minitrain.rank import laws
from minitrain.rank.kept_for_backward import mode_of_forward as known_mode
from minitrain.rank.laws import broken, require_kind
from minitrain.rank.placed_passes import has_attention, missing, require_same_shards
from minitrain.tensors import ActivationGrad
from minitrain.tensors.placed import (
    ActivationShard,
    Attended,
)
from minitrain.workloads.workload import PassMode, modules_of, takes_again

if TYPE_CHECKING:
    from minitrain.rank.state import RankState


def require_step(model: RankState, op: str, layer: int, inp: Any, *others: Any) -> None:
    """Require an attention, and what the record of its step says of the inputs."""
    require_kind(model, op, "inp", inp, ActivationShard)
    if not has_attention(model, layer):
        laws.require_layer(model, op, "inp", inp, layer, layer)
        raise broken(model, op, f"layer {layer} is no attention; take it by forward and backward", layer)
    laws.require_inputs(model, op, layer, inp, *others)


def recomputation(model: RankState, layer: int, recompute: str) -> None:
    """Require that keys and values are kept as they travel, or made again by all steps of the attention."""
    if "mla_up_proj" in modules_of(recompute):
        raise broken(
            model,
            "keys_values",
            "the projections up from the latents are not computed again by themselves where a sequence is cut between "
            f'ranks, whose keys and values travel; use "self_attn" or "full", got recompute={recompute!r}',
            layer,
        )


def mode_of_forward(model: RankState, op: str, layer: int, inp: Any) -> PassMode:
    """Return how an input's queries were made.

    Raises:
        LawError: they were not made.
    """
    mode = known_mode(inp)
    if mode is None:
        raise broken(
            model,
            op,
            f"the queries of {describe(inp)} have not been made; call keys_values of the same input first",
            layer,
            value=inp,
        )
    return mode


def mode_of_backward(model: RankState, op: str, layer: int, inp: Any) -> PassMode:
    """Return how an input's queries were made, for a step of backward.

    Raises:
        LawError: they were not made, or nothing of them was kept.
    """
    mode = mode_of_forward(model, op, layer, inp)
    if takes_again(mode.recompute, "self_attn"):
        raise broken(
            model,
            op,
            f"{describe(inp)} is all that was kept of this attention; take keys_values, attend and project again, with "
            'recompute="none", before its backward',
            layer,
            value=inp,
        )
    return mode


def attend(model: RankState, op: str, layer: int, inp: Any, keys_values: Any, *grad: Any) -> None:
    """Require queries, and keys and values of the same samples, cut alike."""
    require_step(model, op, layer, inp, *grad, keys_values)
    mode = mode_of_forward(model, op, layer, inp)
    if keys_values.samples != inp.samples or keys_values.sequence.cut != inp.sequence.cut:
        raise broken(
            model,
            op,
            "queries and keys must be of the same samples, whose sequence is cut alike, got "
            f"{describe(inp)} and {describe(keys_values)}",
            layer,
            value=keys_values,
        )
    if keys_values.num_parts != mode.num_parts:
        raise broken(
            model,
            op,
            f"queries and keys must be of the same part of the heads, got {describe(keys_values)} for queries of a "
            f"part of {mode.num_parts}",
            layer,
            value=keys_values,
        )


def project(model: RankState, layer: int, inp: Any, weight: Any, attended: Any) -> None:
    """Require what the input's queries got from all keys up to the last of them."""
    require_step(model, "project", layer, inp, weight, attended)
    mode_of_forward(model, "project", layer, inp)
    _require_of_input(model, "project", "attended", layer, inp, weight, attended)
    lacking = missing(attended.keys, range(max(inp.sequence.shards) + 1))
    if lacking:
        raise _lacks(model, "project", layer, attended, f"keys of {_shards(lacking, inp)}", "attend them too")


def backward_project(model: RankState, layer: int, inp: Any, grad: Any, weight: Any) -> None:
    """Require input, output gradient and complete weight of an attention, in storage, for the same shards."""
    require_step(model, "backward_project", layer, inp, grad, weight)
    mode_of_backward(model, "backward_project", layer, inp)
    require_same_shards(model, "backward_project", layer, inp, grad)


def backward_attend(model: RankState, layer: int, inp: Any, grad: Any, keys_values: Any) -> None:
    """Require the gradient of what the input's queries got, and keys and values as for `attend`."""
    attend(model, "backward_attend", layer, inp, keys_values, grad)
    mode_of_backward(model, "backward_attend", layer, inp)
    require_same_shards(model, "backward_attend", layer, inp, grad)


def backward_keys_values(
    model: RankState, layer: int, inp: Any, weight: Any, grad_queries: Any, grad_keys_values: Any
) -> None:
    """Require the gradients of the input's queries, keys and values, over all keys and queries that there are."""
    op = "backward_keys_values"
    require_step(model, op, layer, inp, weight, grad_queries, grad_keys_values)
    mode_of_backward(model, op, layer, inp)
    _require_of_input(model, op, "grad_queries", layer, inp, weight, grad_queries)
    _require_of_input(model, op, "grad_keys_values", layer, inp, weight, grad_keys_values)
    lacking = missing(grad_queries.keys, range(max(inp.sequence.shards) + 1))
    if lacking:
        raise _lacks(model, op, layer, grad_queries, f"keys of {_shards(lacking, inp)}", "backward_attend them too")
    lacking = missing(grad_keys_values.queries, range(min(inp.sequence.shards), inp.sequence.num_shards))
    if lacking:
        remedy = "add what other ranks have: reduce_scatter it, or let it travel round the ring"
        raise _lacks(model, op, layer, grad_keys_values, f"queries of {_shards(lacking, inp)}", remedy)


def _require_of_input(model: RankState, op: str, name: str, layer: int, inp: Any, weight: Any, value: Any) -> None:
    """Require a tensor within an attention that is of the input's samples and shards, and of the weight's part."""
    require_same_shards(model, op, layer, inp, value)
    same_part = (value.parts, value.num_parts) == (weight.parts, weight.num_parts)
    if value.samples != inp.samples or not same_part:
        raise broken(
            model,
            op,
            f"{name} must be of the input's samples and of the weight's part, got {describe(value)} for "
            f"{describe(inp)} and {describe(weight)}",
            layer,
            value=value,
        )


def _lacks(model: RankState, op: str, layer: int, value: ActivationGrad | Attended, what: str, remedy: str) -> LawError:
    """Return the error for a sum that is not complete."""
    return broken(model, op, f"{describe(value)} lacks {what}; {remedy}", layer, value=value)


def _shards(found: str, inp: Any) -> str:
    """Return shards in words."""
    return f"{'shard' if found.isdigit() else 'shards'} {found} of {inp.sequence.num_shards}"
