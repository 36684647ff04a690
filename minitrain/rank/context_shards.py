"""Context parallelism: taking shards of a sequence through layers, for `minitrain.rank.computation`.

See `minitrain.tensors.context`. Where a layer works on each token by itself, a shard goes through it as an activation
does, at its share of the cost. An attention is taken in steps (see `minitrain.rank.attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError
from minitrain.rank import sample_laws
from minitrain.rank.kept_for_backward import keep, layer_of_price, mode_of, price_of_backward
from minitrain.rank.laws import broken
from minitrain.tensors.context import (
    ContextGradShard,
    ContextShard,
    ContextWeightGrad,
    PartialContextGradShard,
    PartialContextShard,
)
from minitrain.tensors.index_sets import ranges
from minitrain.tensors.kinds import passage_of
from minitrain.transport.collectives import describe
from minitrain.workloads.context import NONE, Context
from minitrain.workloads.workload import PassMode

if TYPE_CHECKING:
    from minitrain.rank.state import RankState
    from minitrain.tensors import Weight

_ALL = frozenset([0])


def input_shard(model: RankState, samples: Iterable[int], shards: Iterable[int], num_shards: int) -> ContextShard:
    """Return the model's input for some samples and shards of the sequence."""
    found = require_shards(model, shards, num_shards)
    return ContextShard(
        0,
        model._num_layers,
        sample_laws.input_samples(model, samples),
        model._global_batch_size,
        found,
        num_shards,
    )


def require_shards(model: RankState, shards: Iterable[int], num_shards: Any) -> frozenset[int]:
    """Return some shards of the sequence as a set; require that they exist and that all ranks can have as many."""
    counts = isinstance(num_shards, int) and not isinstance(num_shards, bool) and num_shards >= 1
    try:
        found = frozenset(shards)
    except TypeError:
        found = NONE
    whole = all(isinstance(shard, int) and not isinstance(shard, bool) for shard in found)
    if not counts or not found or not whole or not 0 <= min(found) <= max(found) < num_shards:
        raise broken(
            model,
            "get_input_shard",
            f"shards must be some of 0..num_shards-1, got {shards!r:.80} of {num_shards!r:.80}; for example "
            "shards=[model.rank], num_shards=model.world_size",
            0,
        )
    if num_shards % len(found):
        raise broken(
            model,
            "get_input_shard",
            f"the ranks must have equal shares of the sequence, got {len(found)} shards of {num_shards}; give a rank "
            "one shard of n, or two of 2n",
            0,
        )
    _require_divisible(model, num_shards)
    return found


def _require_divisible(model: RankState, num_shards: int) -> None:
    """Require a workload that knows sequences, of a length that divides; the default layers may be cut in any way.

    Raises:
        UsageError: the workload does not say which layers take tokens one by one, or the length does not divide.
    """
    workload = model._runtime_predictor.workload
    if not hasattr(workload, "has_attention"):
        raise UsageError(
            f"{workload!r:.80} does not say which of its layers take tokens one by one, so its sequences cannot be "
            "cut; train a transformer, or give the workload a method has_attention(layer)"
        )
    seq_len: int = getattr(workload, "seq_len", num_shards)
    below = seq_len - seq_len % num_shards
    if below != seq_len:
        remedy = f"{below} or {below + num_shards}" if below else f"{num_shards}"
        raise UsageError(
            f"seq_len ({seq_len}) must be a multiple of num_shards ({num_shards}), so that all shards of the sequence "
            f"are equal; use seq_len={remedy}",
            seq_len=seq_len,
            num_shards=num_shards,
        )


def mode_of_pass(recompute: Any, inp: Any, weight: Any, keys: frozenset[int] = NONE) -> PassMode:
    """Return how some shards of the sequence go through a layer, or through a step of it."""
    context = Context(inp.shards, inp.num_shards, keys)
    in_pieces = passage_of(inp).gathered_from is not None
    return PassMode(mode_of(recompute).recompute, getattr(weight, "num_parts", 1), in_pieces, context)


def has_attention(model: RankState, layer: int) -> bool:
    """Return whether tokens need one another in a layer."""
    asked: Callable[[int], bool] | None = getattr(model._runtime_predictor.workload, "has_attention", None)
    return asked is not None and asked(layer)  # a workload without attention need not have the method


def _require_tokens_apart(model: RankState, op: str, layer: int, inp: ContextShard) -> None:
    """Require a layer that works on each token by itself."""
    if has_attention(model, layer):
        way = "keys_values, attend and project" if op == "forward" else "the mirrors of its steps"
        raise broken(
            model,
            op,
            f"an attention needs the keys and values of the whole sequence, and inp is {describe(inp)}; take it in "
            f"steps: {way} (see minitrain.tensors.context)",
            layer,
            value=inp,
        )


def forward_shard(model: RankState, layer: int, inp: ContextShard, weight: Weight, recompute: Any) -> Any:
    """Take some shards of a sequence through a layer."""
    _require_tokens_apart(model, "forward", layer, inp)
    mode = mode_of_pass(recompute, inp, weight, frozenset(range(inp.num_shards)))
    record_pass(model, "forward", layer, inp, mode)
    out = output_of(model, layer, inp, weight, mode)
    keep(model, layer, inp, out, mode)
    if mode.num_parts > 1 and not mode.sequence_parallel:
        passage_of(out).kept_by = inp
    return out


def record_pass(model: RankState, typ: str, layer: int, inp: Any, mode: PassMode) -> None:
    """Log a pass of some shards of the sequence."""
    model.pass_modes[len(model._rows)] = mode
    price = model._runtime_predictor.compute(typ, len(inp.samples), layer_of_price(model, layer), mode)
    model._record(typ, layer, price, inp.samples)


def output_of(model: RankState, layer: int, inp: Any, weight: Any, mode: PassMode) -> Any:
    """Return the output of a layer for some shards of the sequence."""
    fields = layer + 1, model._num_layers, inp.samples, model._global_batch_size
    if mode.num_parts == 1:
        out = ContextShard(*fields, inp.shards, inp.num_shards)
    else:
        out = PartialContextShard(*fields, weight.parts, weight.num_parts, inp.shards, inp.num_shards)  # type: ignore[assignment]  # a sum that lacks parts
    model._account.size(out)
    return out


def loss_of_shard(model: RankState, inp: ContextShard, made_in: PassMode | None) -> ContextGradShard:
    """Return the gradient of the loss for some shards of the sequence."""
    num_parts = 1 if made_in is None else made_in.num_parts
    mode = PassMode("none", num_parts, context=(context := Context(inp.shards, inp.num_shards)))
    model.parts_of_loss = num_parts * context.degree
    record_pass(model, "loss", model._num_layers, inp, mode)
    grad = ContextGradShard(
        model._num_layers - 1, model._num_layers, inp.samples, model._global_batch_size, inp.shards, inp.num_shards
    )
    model._account.size(grad)
    return grad


def backward_shard(
    model: RankState, typ: str, layer: int, inp: ContextShard, grad: ContextGradShard, weight: Any
) -> tuple[ContextWeightGrad, Any]:
    """Take a gradient back through a layer for some shards of the sequence; a split backward uses one result."""
    _require_tokens_apart(model, typ, layer, inp)
    require_same_shards(model, typ, layer, inp, grad)
    unknown = mode_of_pass("none" if model._is_uniform else "full", inp, weight)
    price = price_of_backward(model, typ, layer, inp, unknown)
    model._record(typ, layer, price, inp.samples)
    return gradients_of(model, layer, inp, weight)


def require_same_shards(model: RankState, op: str, layer: int, inp: Any, grad: Any) -> None:
    """Require two tensors of the same shards of the sequence."""
    mine, other = ((getattr(value, "shards", _ALL), getattr(value, "num_shards", 1)) for value in (inp, grad))
    if mine != other:
        raise broken(
            model,
            op,
            f"all must be of the same shards of the sequence, got {describe(inp)} and {describe(grad)}",
            layer,
            value=grad,
        )


def gradients_of(model: RankState, layer: int, inp: Any, weight: Any) -> tuple[ContextWeightGrad, Any]:
    """Return the gradients of a layer's weight, which covers some shards of the sequence, and of its input."""
    parts, num_parts = getattr(weight, "parts", _ALL), getattr(weight, "num_parts", 1)
    samples, of_batch = inp.samples, model._global_batch_size
    piece = passage_of(inp).gathered_from
    pieces = (_ALL, 1) if piece is None else (piece.shards, piece.num_shards)
    weight_grad = ContextWeightGrad(
        layer, model._num_layers, samples, of_batch, _ALL, 1, parts, num_parts, inp.shards, inp.num_shards, *pieces
    )
    fields = layer - 1, model._num_layers, samples, of_batch
    if num_parts == 1:
        grad_inp: Any = ContextGradShard(*fields, inp.shards, inp.num_shards)
    else:
        grad_inp = PartialContextGradShard(*fields, parts, num_parts, inp.shards, inp.num_shards)
    model._account.size(weight_grad)
    model._account.size(grad_inp)
    return weight_grad, grad_inp


def missing(held: frozenset[int], needed: Iterable[int]) -> str:
    """Return which shards of those that are needed are not held, in words."""
    return ranges(set(needed) - held)
