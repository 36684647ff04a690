"""The laws of layers whose experts are divided among ranks: what must hold before an operation on them may happen.

As those of `minitrain.rank.laws`, each function returns, or raises a `LawError` that names rule, values, rank, layer
and remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minitrain.errors import LawError
from minitrain.operations.collectives import describe
from minitrain.rank import laws
from minitrain.rank.laws import broken, require_kind
from minitrain.tensors import Activation
from minitrain.tensors.expert_load import ExpertLoad
from minitrain.tensors.index_sets import ranges
from minitrain.tensors.kinds import passage_of
from minitrain.tensors.placed import (
    ExpertGrad,
    ExpertOptState,
    ExpertWeight,
    RouterGrad,
    RouterOptState,
    RouterWeight,
)
from minitrain.workloads.degrees import Cut
from minitrain.workloads.workload import takes_again

if TYPE_CHECKING:
    from minitrain.rank.state import RankState
    from minitrain.workloads.expert_layers import ExpertLayers

_OF_PIECE: Mapping[type[Any], tuple[type, type]] = MappingProxyType(
    {ExpertWeight: (ExpertGrad, ExpertOptState), RouterWeight: (RouterGrad, RouterOptState)}
)


def experts_of(model: RankState) -> ExpertLayers | None:
    """Return the part of the workload that describes layers with experts; None if it has none."""
    experts: ExpertLayers | None = getattr(model._runtime_predictor.workload, "experts", None)
    return experts


def has_experts(model: RankState, layer: int) -> bool:
    """Return whether the workload knows experts of a layer."""
    experts = experts_of(model)
    return experts is not None and layer in experts.layers


def load(model: RankState, op: str, layer: Any, shard: Any, num_shards: Any) -> None:
    """Require a layer with experts, and a shard."""
    laws.load(model, layer, shard, num_shards)
    _require_experts(model, op, layer)


def _require_experts(model: RankState, op: str, layer: int) -> None:
    """Require a layer with experts."""
    if has_experts(model, layer):
        return
    experts = experts_of(model)
    known = ranges(experts.layers) if experts is not None and experts.layers else "none"
    raise broken(
        model,
        op,
        f"layer {layer} must have experts; layers with experts are {known}: use load_weights and forward for the "
        "others (model.has_experts says which)",
        layer,
    )


def part(model: RankState, layer: int, part: Any, num_parts: Any) -> None:
    """Require one of the parts that the experts can be divided into."""
    laws.part(model, layer, part, num_parts, "load_experts")
    _require_divides(model, num_parts)


def _require_divides(model: RankState, num_parts: int) -> None:
    """Require equally many experts in each part; a UsageError names a number that divides."""
    experts = experts_of(model)
    assert experts is not None  # `_require_experts` came before
    Cut("num_experts", experts.num_experts).part(experts.num_experts, num_parts, "ep")


def _require_pass(model: RankState, op: str, layer: int, *inputs: Any) -> None:
    """Require a layer with experts, and what the record of a pass around them says of its inputs."""
    _require_experts(model, op, layer)
    laws.require_inputs(model, op, layer, *inputs)


def route(model: RankState, layer: int, inp: Any, weight: Any, num_parts: Any) -> None:
    """Require a whole input and the complete router piece, in storage, both of the layer."""
    _require_pass(model, "route", layer, inp, weight)
    laws.part(model, layer, 0, num_parts, "route")
    _require_divides(model, num_parts)


def capacity(model: RankState, layer: int, load: ExpertLoad, factor: float | None, *, drop_tokens: bool) -> None:
    """Require that what is over the experts' capacity may be dropped, if anything is."""
    if load.dropped and not drop_tokens:
        raise broken(
            model,
            "route",
            f"experts take at most {factor} times the mean, and {float(load.dropped):.3g} of all copies are over that; "
            "raise capacity_factor, balance the router, or let tokens be dropped (drop_tokens=True)",
            layer,
            dropped=load.dropped,
        )


def _require_all_parts(model: RankState, op: str, name: str, value: Any, inp: Any) -> None:
    """Require copies of tokens from all parts of the experts, for the tokens of the layer's input."""
    samples: frozenset[int] = inp.samples
    if len(value.parts) != value.num_parts:
        missing = ranges(set(range(value.num_parts)) - value.parts)
        raise broken(
            model,
            op,
            f"{name} must come from all parts of the experts, got {describe(value)}; {laws.are(missing)} missing: "
            "all_to_all them back over the ranks that hold the parts",
            value.layer,
            value=value,
        )
    if value.samples != samples:
        raise broken(
            model,
            op,
            f"{name} must be of the samples of inp ({ranges(samples)}), got {describe(value)}",
            value.layer,
            samples=(samples, value.samples),
        )
    _require_same_part(model, op, f"{name} and inp", value.sequence, inp.sequence, value.layer)


def _require_same_part(model: RankState, op: str, names: str, one: Any, other: Any, layer: int) -> None:
    """Require two parts of sequences to be the same."""
    if one != other:
        raise broken(model, op, f"{names} must be of the same part of the sequence, got {one} and {other}", layer)


def combine(model: RankState, layer: int, inp: Any, outputs: Any, weight: Any) -> None:
    """Require input, outputs of all parts and the router piece of the layer, for the same samples."""
    _require_pass(model, "combine", layer, inp, outputs, weight)
    _require_all_parts(model, "combine", "outputs", outputs, inp)


def backward_combine(model: RankState, layer: int, inp: Any, outputs: Any, grad: Any) -> None:
    """Require input, outputs and gradient of the layer, in storage, for the same samples."""
    op = "backward_combine"
    _require_pass(model, op, layer, inp, outputs, grad)
    _require_all_parts(model, op, "outputs", outputs, inp)
    _require_same_part(model, op, "inp and grad", inp.sequence, grad.sequence, layer)
    mode = passage_of(inp).mode
    if mode is not None and takes_again(mode.recompute, "moe"):
        raise broken(
            model,
            op,
            f"{describe(inp)} is all that was kept of this layer; take route, the experts and combine again, with "
            'recompute="none", before its backward',
            layer,
            value=inp,
        )


def backward_route(model: RankState, layer: int, inp: Any, grad: Any, tokens_grad: Any, weight: Any) -> None:
    """Require input, gradients and the router piece of the layer, in storage, for the same samples."""
    _require_pass(model, "backward_route", layer, inp, grad, tokens_grad, weight)
    _require_same_part(model, "backward_route", "inp and grad", inp.sequence, grad.sequence, layer)
    _require_all_parts(model, "backward_route", "tokens_grad", tokens_grad, inp)


def forward(model: RankState, layer: int, tokens: Any, weight: Any) -> None:
    """Require copies of tokens for the part of the experts that the weight is, in storage, both of the layer."""
    op = "forward"
    if isinstance(weight, RouterWeight):
        raise _router_does_not_pass(model, op, layer, weight)
    if isinstance(weight, ExpertWeight) and type(tokens) is Activation:
        raise broken(
            model,
            op,
            f"experts must be given copies of tokens, got {describe(tokens)}; route it, and all_to_all the copies over "
            "the ranks that hold the parts",
            layer,
            value=tokens,
        )
    laws.require_inputs(model, op, layer, tokens, weight, of_experts=True)
    _require_of_part(model, op, "inp", tokens, weight)


def _router_does_not_pass(model: RankState, op: str, layer: int, weight: Any) -> LawError:
    """Return the error for a router piece where a layer's weight is needed."""
    around = "route and combine" if op == "forward" else "backward_combine and backward_route"
    return broken(
        model,
        op,
        f"the weight must be of a whole layer, or a part of experts, got {describe(weight)}; it goes through {around}",
        layer,
        value=weight,
    )


def _require_of_part(model: RankState, op: str, name: str, copies: Any, weight: Any) -> None:
    """Require copies of tokens for exactly the part that a weight is."""
    if copies.num_parts == weight.num_parts and copies.parts == weight.parts:
        return
    remedy = (
        "all_to_all them over the ranks that hold the parts"
        if len(copies.parts) == copies.num_parts
        else "each part gets the copies that are for it, and the numbers of parts must agree"
    )
    raise broken(
        model,
        op,
        f"{name} must be the copies for the weight's part of the experts, got {describe(copies)} for "
        f"{describe(weight)}; {remedy}",
        copies.layer,
        value=copies,
    )


def backward(model: RankState, op: str, layer: int, tokens: Any, grad: Any, weight: Any) -> None:
    """Require copies of tokens, the gradients of what was made of them, and the part of the experts, in storage."""
    if isinstance(weight, RouterWeight):
        raise _router_does_not_pass(model, op, layer, weight)
    laws.require_inputs(model, op, layer, tokens, grad, weight, of_experts=True)
    if grad.parts != tokens.parts or grad.num_parts != tokens.num_parts:
        raise broken(
            model,
            op,
            f"grad must be of the same part of the experts as inp, got {describe(grad)} for {describe(tokens)}; "
            "all_to_all it over the ranks that hold the parts",
            layer,
            value=grad,
        )
    if op != "backward_weight":
        _require_of_part(model, op, "inp", tokens, weight)
    elif len(tokens.parts) != 1:
        raise broken(model, op, f"inp must be copies for one part of the experts, got {describe(tokens)}", layer)


def update(model: RankState, weight: Any, weight_grad: Any, state: Any) -> None:
    """Require gradient and state of the same piece as the weight; the laws of every update are checked before."""
    kinds = _OF_PIECE.get(type(weight))
    if kinds is None:
        raise broken(
            model,
            "update",
            f"weight, gradient and state must be of the same piece of the layer, got {describe(weight)}, "
            f"{describe(weight_grad)} and {describe(state)}",
            weight.layer,
        )
    for name, value, kind in zip(("weight_grad", "opt_state"), (weight_grad, state), kinds, strict=True):
        require_kind(model, "update", name, value, kind)
    if weight_grad.sequence.share != 1:
        raise broken(
            model,
            "update",
            f"the gradient must cover the whole sequence, got {weight_grad.sequence.share} of it; reduce it over the "
            "ranks that have the others",
            weight.layer,
        )
