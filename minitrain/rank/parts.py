"""Tensor parallelism: what a rank does with one part of a layer, from load to update.

See `minitrain.tensors.parts` for the algebra. These operations are those of `minitrain.rank.computation`, which comes
here where a weight is a part, after it has checked the laws. `may_forward` and `may_backward` write out the laws of the
usual passes once more, for speed; tests/rank/test_quick_laws.py checks that they accept nothing that `laws` refuses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from minitrain.hardware.price import Price
from minitrain.rank.kept_for_backward import keep, mode_of, price_of_backward
from minitrain.tensors import Activation, ActivationGrad
from minitrain.tensors.index_sets import singleton
from minitrain.tensors.kinds import passage_of
from minitrain.tensors.parts import (
    OptStatePart,
    PartialActivation,
    PartialActivationGrad,
    WeightGradPart,
    WeightPart,
)
from minitrain.workloads.workload import USUAL, PassMode

if TYPE_CHECKING:
    from minitrain.rank.state import RankState

_ALL = frozenset([0])


def load_part(
    model: RankState, layer: int, shard: int, num_shards: int, part: int, num_parts: int
) -> tuple[WeightPart, OptStatePart]:
    """Load one shard of a part of a layer's weight, and make its optimizer state."""
    price = model._runtime_predictor.load(1, num_shards, layer, num_parts)
    weight = WeightPart(layer, model._num_layers, 0, singleton(shard), num_shards, singleton(part), num_parts)
    state = OptStatePart(layer, model._num_layers, 0, singleton(shard), num_shards, singleton(part), num_parts)
    model._account.size(weight)
    model._account.size(state)
    model._enter_once()
    model._record("load_weights", layer, price, frozenset())
    return weight, state


def forward_part(model: RankState, layer: int, inp: Activation, weight: WeightPart, recompute: Any) -> Any:
    """Take an activation through a part of a layer."""
    mode = _mode(inp, weight, recompute)
    model.pass_modes[len(model._rows)] = mode
    model._record(
        "forward", layer, model._runtime_predictor.compute("forward", len(inp.samples), layer, mode), inp.samples
    )
    out = PartialActivation(
        layer + 1, model._num_layers, inp.samples, model._global_batch_size, weight.parts, weight.num_parts
    )
    model._account.size(out)
    keep(model, layer, inp, out, mode)
    if not mode.sequence_parallel:
        passage_of(out).kept_by = inp
    return out


def price_of_loss(model: RankState, inp: Activation) -> Price:
    """Return the price of the loss; where parts of the head have made the output, each has some of the logits."""
    made_in: PassMode = passage_of(inp).made_in or USUAL
    if made_in.num_parts == 1:
        return model._runtime_predictor.compute("loss", len(inp.samples), model._num_layers)
    mode = PassMode("none", made_in.num_parts, sequence_parallel=False)
    model.parts_of_loss = made_in.num_parts
    model.pass_modes[len(model._rows)] = mode
    return model._runtime_predictor.compute("loss", len(inp.samples), model._num_layers, mode)


def backward_part(
    model: RankState, typ: str, layer: int, inp: Activation, grad: ActivationGrad, weight: WeightPart
) -> tuple[WeightGradPart, PartialActivationGrad]:
    """Take a gradient back through a part of a layer; a split backward uses one of the results."""
    price = price_of_backward(model, typ, layer, inp, _mode(inp, weight, "full"))
    model._record(typ, layer, price, inp.samples)
    shard = passage_of(inp).gathered_from
    weight_grad = WeightGradPart(
        layer,
        model._num_layers,
        inp.samples,
        model._global_batch_size,
        _ALL,
        1,
        weight.parts,
        weight.num_parts,
        _ALL if shard is None else shard.shards,
        1 if shard is None else shard.num_shards,
    )
    grad_inp = PartialActivationGrad(
        layer - 1, model._num_layers, grad.samples, model._global_batch_size, weight.parts, weight.num_parts
    )
    model._account.size(weight_grad)
    model._account.size(grad_inp)
    return weight_grad, grad_inp


def update_part(model: RankState, weight: WeightPart, weight_grad: Any, state: Any) -> tuple[WeightPart, OptStatePart]:
    """Take an optimizer step on a part, or on the shards of it that this rank holds."""
    layer, num_parts = weight.layer, weight.num_parts
    price = model._runtime_predictor.update(len(weight.shards), weight.num_shards, layer, num_parts)
    units, state_units = model._account.units_of(weight), model._account.units_of(state)
    model._record("update", layer, price, weight_grad.samples)
    step, parts = weight.step + 1, weight.parts
    updated = WeightPart(layer, weight.layers, step, weight.shards, weight.num_shards, parts, num_parts)
    next_state = OptStatePart(layer, weight.layers, step, state.shards, state.num_shards, parts, num_parts)
    updated._units, next_state._units = units, state_units  # type: ignore[misc]  # slots of the base
    return updated, next_state


def _mode(inp: Activation, weight: WeightPart, recompute: Any) -> PassMode:
    """Return how a part is passed through: along a whole sequence, or one whose shards were gathered for it."""
    return _mode_of_part(recompute, weight.num_parts, passage_of(inp).gathered_from is not None)


@lru_cache(maxsize=256)
def _mode_of_part(recompute: Any, num_parts: int, sequence_parallel: bool) -> PassMode:
    """Return the mode: one object for equal passes, which are many."""
    return PassMode(mode_of(recompute).recompute, num_parts, sequence_parallel)


def may_forward(model: RankState, layer: int, inp: Any, weight: Any) -> bool:
    """Return whether a forward is the usual one of a part, for which the laws hold; others ask `laws.forward`."""
    return bool(
        weight.__class__ is WeightPart
        and inp.__class__ is Activation
        and weight.layer == layer == inp.layer
        and len(weight.shards) == weight.num_shards
        and getattr(weight, "_home", None) is model._account
    )


def may_backward(model: RankState, layer: int, inp: Any, grad: Any, weight: Any) -> bool:
    """Return whether a backward is the usual one of a part, for which the laws hold; others ask `laws.backward`."""
    account = model._account
    return bool(
        may_forward(model, layer, inp, weight)
        and grad.__class__ is ActivationGrad
        and grad.layer == layer
        and (inp.samples is grad.samples or inp.samples == grad.samples)
        and getattr(inp, "_home", None) is account
        and getattr(grad, "_home", None) is account
    )
