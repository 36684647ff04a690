"""Expert parallelism: what a rank does with layers whose experts are divided among ranks (route, experts, combine).

See `minitrain.tensors.placed` for the tensors. In the order of a step:

| forward | | backward | |
|---|---|---|---|
| `route` | copies of my tokens, for all parts | `backward_combine` | gradients of what experts made of them |
| `all_to_all` | to the parts | `all_to_all` | to the parts |
| `forward` | my experts, the tokens of all | `backward` | my experts' gradients, and those of the tokens |
| `all_to_all` | back | `all_to_all` | back |
| `combine` | shared experts, weighted sum, residual | `backward_route` | the router's gradients, and the input's |

The layer's input stands for what router and shared experts keep, and the copies that arrived for what the experts keep.
The strategy stores what experts have made until `backward_combine`; once combined it takes no memory, since routers'
probabilities are multiplied in before the last matrix (see `minitrain.workloads.unit`).

Backward computes norms, activation functions and shared experts again by itself, where it is to. All of a layer
(`recompute` "moe" or "full") is the strategy's to take again, since tokens travel again: it frees the copies after
`combine`, and before `backward_combine` it takes the five steps of forward again, with `recompute="none"`.

What must hold before an operation on a layer with experts may happen is in the functions called `_law_of_...`; see
`minitrain.engine.laws`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from minitrain.engine import laws
from minitrain.engine.laws import broken, require_kind
from minitrain.engine.placed_passes import is_made_again, mode_of, stepped, units_before
from minitrain.engine.state import RankState
from minitrain.errors import LawError
from minitrain.operations import UNITS_PER_ELEMENT
from minitrain.operations.collectives import describe
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight
from minitrain.tensors.expert_load import ExpertLoad, as_imbalance, expert_load
from minitrain.tensors.index_sets import ranges, singleton
from minitrain.tensors.kinds import altered, passage_of
from minitrain.tensors.placed import (
    ExpertGrad,
    ExpertOptState,
    ExpertOutputs,
    ExpertOutputsGrad,
    ExpertWeight,
    RoutedTokens,
    RoutedTokensGrad,
    RouterGrad,
    RouterOptState,
    RouterWeight,
    turned_into,
)
from minitrain.workloads.expert_layers import ROUTER, ExpertLayers, ExpertPass, Piece, division_of
from minitrain.workloads.shapes import Cut
from minitrain.workloads.workload import USUAL, Context, PassMode, Recompute, takes_again


class ExpertComputation(RankState):
    """The operations of a rank on layers with experts, beside `forward` and `backward` of its part of them."""

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer has experts that can be divided among ranks."""
        return _has_experts(self, layer)

    def load_router(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[RouterWeight, RouterOptState]:
        """Load what every rank holds of a layer with experts: norm, router and shared experts.

        Args:
            layer: which layer.
            shard: which shard of it.
            num_shards: number of shards that it is cut into.

        Raises:
            LawError: the layer has no experts, or there is no such shard.
        """
        _law_of_load(self, "load_router", layer, shard, num_shards)
        sizes = layer, self._num_layers, 0, singleton(shard), num_shards
        return self._loaded(ROUTER, RouterWeight(*sizes), RouterOptState(*sizes))  # type: ignore[return-value]  # as given

    def load_experts(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[ExpertWeight, ExpertOptState]:
        """Load one part of a layer's experts, or a shard of that part.

        Args:
            layer: which layer.
            shard: which shard of the part.
            num_shards: number of shards that the part is cut into.
            part: which part: experts part x n to (part + 1) x n - 1, n to a part.
            num_parts: number of parts that the experts are divided into.

        Raises:
            LawError: the layer has no experts, or there is no such shard or part.
            UsageError: the experts do not divide by the parts.
        """
        _law_of_load(self, "load_experts", layer, shard, num_shards)
        laws.part(self, layer, part, num_parts, "load_experts")
        _require_divides(self, num_parts)
        fields = layer, self._num_layers, 0, singleton(shard), num_shards, singleton(part), num_parts
        piece = Piece("experts", num_parts)
        return self._loaded(piece, ExpertWeight(*fields), ExpertOptState(*fields))  # type: ignore[return-value]  # as given

    def _loaded(self, piece: Piece, weight: Weight, state: OptState) -> tuple[Weight, OptState]:
        """Log a load, and return weight and state with their sizes."""
        self._record_load(self._sized(weight), piece)
        return weight, self._sized(state)

    def route(
        self,
        layer: int,
        inp: Activation,
        weight: Weight,
        num_parts: int,
        *,
        imbalance: float | str | Sequence[float] = 1,
        capacity_factor: float | None = None,
        drop_tokens: bool = True,
        recompute: Recompute | None = None,
    ) -> RoutedTokens:
        """Choose experts for each token, and return copies of the tokens for all parts of the experts.

        Args:
            layer: which layer.
            inp: its input, or shards of it along the sequence; it stands for what router and norm keep from now on.
            weight: the complete router piece, from a store.
            num_parts: number of parts that the experts are divided into.
            imbalance: how many times the mean the busiest expert gets; or a number for each expert, to which its tokens
                are proportional; or a file with these on a line for each layer with experts, or on one for all. Experts
                get the same by default.
            capacity_factor: how many times the mean an expert takes at most; None for all.
            drop_tokens: whether the rest is dropped (it passes by the experts); else it is an error.
            recompute: what backward computes again, as for `forward`; `model.recompute` if None.

        Raises:
            LawError: something is of another layer, incomplete, or not in a store; or an expert would have to take more
                than its capacity, where nothing may be dropped.
            UsageError: imbalance or capacity are outside their rules, or experts do not divide by the parts.
        """
        _require_pass(self, "route", layer, inp, weight)
        laws.part(self, layer, 0, num_parts, "route")
        _require_divides(self, num_parts)
        experts = _experts_of(self)
        loads = as_imbalance(imbalance, layer, experts.layers)
        load = expert_load(experts.num_experts, num_parts, loads, capacity_factor)
        _law_of_capacity(self, layer, load, capacity_factor, drop_tokens=drop_tokens)
        samples, sequence = inp.samples, inp.sequence
        mode = _mode_around(sequence.share.denominator, mode_of(recompute or self._recompute).recompute)
        is_again = self._note_repetition(layer, inp, mode)
        self._record_around("route", layer, inp)
        of_batch = layer, self._num_layers, samples, self._global_batch_size
        parts = laws.every(num_parts), num_parts
        tokens = self._sized(RoutedTokens(*of_batch, *parts, samples, load, sequence, sequence))
        passage_of(inp).mode = mode
        self._keep_for_router(layer, inp, combined=False)
        if not is_again:
            self._routed_copies += experts.num_copies(len(samples), sequence.share)
            if load.dropped:
                self._dropped_copies += experts.num_copies(len(samples), load.dropped * sequence.share)
        return tokens

    def _note_repetition(self, layer: int, inp: Activation, mode: PassMode) -> bool:
        """Count what is routed again, and what the layer before holds again for that; return whether it is."""
        passage = passage_of(inp)
        if passage.mode is None:
            return False
        again = replace(mode, recompute="full")
        self._recomputed_flop += self._runtime_predictor.workload.recomputed_flop(len(inp.samples), layer, again)
        if passage.mode.recompute == "full" and mode.recompute != "full":
            passage.made_before = units_before(self, layer, inp, passage.made_in)
        return True

    def combine(self, layer: int, inp: Activation, outputs: Activation, weight: Weight) -> Activation:
        """Add up what experts have made of each token, by the router's probabilities, with shared experts and residual.

        Args:
            layer: which layer.
            inp: the layer's input, which stands for what shared experts keep from now on.
            outputs: what all parts of the experts have made of the samples' tokens.
            weight: the complete router piece, from a store.

        Returns:
            The input of layer + 1, for the same samples and shards of the sequence.

        Raises:
            LawError: outputs of a part are missing, or something is of another layer, of other samples, incomplete, or
                not in a store.
        """
        _require_pass(self, "combine", layer, inp, outputs, weight)
        _require_all_parts(self, "combine", "outputs", outputs, inp)
        self._record_around("combine", layer, inp)
        out = self._sized(altered(inp, layer=layer + 1))
        passage_of(out).made_in = passage_of(inp).mode
        self._keep_for_router(layer, inp, combined=True)
        self._resize(outputs, 0)
        return out

    def backward_combine(
        self, layer: int, inp: Activation, outputs: Activation, grad: ActivationGrad
    ) -> ExpertOutputsGrad:
        """Take a gradient back to what the experts have made of the samples' tokens.

        Args:
            layer: which layer.
            inp: the layer's input, from a store.
            outputs: what was combined, from a store.
            grad: gradient of the layer's output, from a store.

        Raises:
            LawError: something is of another layer, of other samples, incomplete, or not in a store.
        """
        _law_of_backward_combine(self, layer, inp, outputs, grad)
        self._record_around("backward_combine", layer, inp)
        return self._sized(turned_into(ExpertOutputsGrad, outputs))

    def backward_route(
        self, layer: int, inp: Activation, grad: ActivationGrad, tokens_grad: ActivationGrad, weight: Weight
    ) -> tuple[RouterGrad, ActivationGrad]:
        """Take gradients back through shared experts, router and norm.

        Args:
            layer: which layer.
            inp: the layer's input, from a store.
            grad: gradient of the layer's output, from a store.
            tokens_grad: gradients of the copies of the samples' tokens, from all parts of the experts.
            weight: the complete router piece, from a store.

        Returns:
            The gradient of the router piece, and that of the layer's input (an `ActivationGrad` of layer - 1).

        Raises:
            LawError: gradients of a part are missing, or something is of another layer, of other samples, incomplete,
                or not in a store.
        """
        _require_pass(self, "backward_route", layer, inp, grad, tokens_grad, weight)
        _require_same_part(self, "backward_route", "inp and grad", inp.sequence, grad.sequence, layer)
        _require_all_parts(self, "backward_route", "tokens_grad", tokens_grad, inp)
        self._compute_again_around(layer, inp)
        self._record_around("backward_route", layer, inp)
        of_batch = layer, self._num_layers, inp.samples, self._global_batch_size
        weight_grad = RouterGrad(*of_batch, sequence=inp.sequence)
        return self._sized(weight_grad), self._sized(altered(grad, layer=layer - 1))

    def _record_around(self, typ: str, layer: int, inp: Activation) -> None:
        """Log a pass that goes before the experts or after them."""
        mode = self._mode_after_route(inp) if typ == "backward_route" else _mode_of_tokens(inp)
        if mode is not USUAL:
            self.pass_modes[len(self._rows)] = mode
        self._record(typ, layer, self._runtime_predictor.compute(typ, len(inp.samples), layer, mode), inp.samples)

    def _mode_after_route(self, inp: Activation) -> PassMode:
        """Return how the tokens of an input were routed, if they were on this rank."""
        return passage_of(inp).mode or _mode_of_tokens(inp)

    def _keep_for_router(self, layer: int, inp: Activation, *, combined: bool) -> None:
        """Let the layer's input stand for what is kept beside the copies of tokens."""
        passage, num_parts = passage_of(inp), inp.sequence.share.denominator
        recompute = passage.mode.recompute
        experts, num_samples = _experts_of(self), len(inp.samples)
        kept = experts.kept_by_router(layer, num_samples, num_parts, recompute, combined=combined)
        if recompute == "full" and not is_made_again(inp):
            kept = max(kept, int(self._runtime_predictor.workload.memory_elements(inp)))
        self._resize(inp, kept * UNITS_PER_ELEMENT + passage.made_before)

    def _compute_again_around(self, layer: int, inp: Activation) -> None:
        """Hold what backward computes again of norm and shared experts, until it is done."""
        mode, experts = self._mode_after_route(inp), _experts_of(self)
        if mode.recompute == "none":
            return
        sizes = layer, len(inp.samples), inp.sequence.share.denominator
        whole, kept = (experts.kept_by_router(*sizes, each, combined=True) for each in ("none", mode.recompute))
        self._borrow((whole - kept) * UNITS_PER_ELEMENT)
        self._recomputed_flop += self._runtime_predictor.workload.recomputed_flop(len(inp.samples), layer, mode)


def forward_experts(model: RankState, layer: int, tokens: Any, weight: Any, recompute: Recompute) -> Any:
    """Take copies of tokens through a part of a layer's experts; they stand for what the experts keep."""
    _law_of_forward(model, layer, tokens, weight)
    mode = _mode(model, tokens, mode_of(recompute).recompute)
    passage_of(tokens).mode = mode
    _record(model, "forward", layer, tokens, mode)
    outputs = model._sized(turned_into(ExpertOutputs, tokens))
    kept = _experts_of(model).kept_by_experts(layer, mode.num_copies, mode.recompute)
    model._resize(tokens, kept * UNITS_PER_ELEMENT)
    return outputs


def backward_experts(
    model: RankState, typ: str, layer: int, tokens: Any, grad: Any, weight: Any = None
) -> tuple[ExpertGrad, RoutedTokensGrad]:
    """Take gradients back through a part of a layer's experts; a split backward uses one of the results."""
    _law_of_backward(model, typ, layer, tokens, grad, weight)
    mode = passage_of(tokens).mode or _mode(model, tokens)
    if typ != "backward_weight":
        _compute_experts_again(model, typ, layer, tokens, mode)
    _record(model, typ, layer, tokens, mode)
    weight_grad = ExpertGrad(
        layer,
        model._num_layers,
        tokens.samples,
        model._global_batch_size,
        parts=tokens.parts,
        num_parts=tokens.num_parts,
        sequence=tokens.sequence,
    )
    return model._sized(weight_grad), model._sized(turned_into(RoutedTokensGrad, tokens))


def update_piece(model: RankState, weight: Any, weight_grad: Any, state: Any) -> tuple[Any, Any]:
    """Take an optimizer step on a piece of a layer with experts, or on the shards of it that this rank holds."""
    law_of_update(model, weight, weight_grad, state)
    laws.require_whole_matrices(model, weight.layer, weight)
    layer, division = weight.layer, division_of(weight)
    price = model._runtime_predictor.update(len(weight.shards), weight.num_shards, layer, division)  # type: ignore[arg-type]  # as workloads take it
    model._record("update", layer, price, weight_grad.samples)
    return stepped(model, weight), stepped(model, state)


def _compute_experts_again(model: RankState, typ: str, layer: int, tokens: Any, mode: ExpertPass) -> None:
    """Hold what backward computes again of experts: until it is done, or until the second half of a split one."""
    if mode.recompute == "none":
        return
    experts = _experts_of(model)
    whole, kept = (experts.kept_by_experts(layer, mode.num_copies, each) for each in ("none", mode.recompute))
    model._borrow((whole - kept) * UNITS_PER_ELEMENT)
    if typ == "backward_input":
        model._resize(tokens, whole * UNITS_PER_ELEMENT)


def _mode(model: RankState, tokens: Any, recompute: Recompute = "none") -> ExpertPass:
    """Return how copies of tokens go through a part of the experts."""
    return ExpertPass(recompute, tokens.num_parts, num_copies=_experts_of(model).held_copies(tokens))


def _record(model: RankState, typ: str, layer: int, tokens: Any, mode: ExpertPass) -> None:
    """Log a pass through a part of the experts."""
    model.pass_modes[len(model._rows)] = mode
    model._record(typ, layer, model._runtime_predictor.compute(typ, len(tokens.samples), layer, mode), tokens.samples)


def _experts_of(model: RankState) -> ExpertLayers:
    """Return what the workload says of layers with experts."""
    experts = _experts_or_none(model)
    assert experts is not None  # a law has required it
    return experts


def _mode_of_tokens(inp: Activation) -> PassMode:
    """Return how the tokens of an input pass by the experts, with nothing computed again."""
    return _mode_around(inp.sequence.share.denominator, "none")


@lru_cache(maxsize=256)
def _mode_around(num_parts: int, recompute: Recompute) -> PassMode:
    """Return how some of a sequence's tokens, one of so many parts, pass by the experts: each by itself."""
    if num_parts == 1:
        return mode_of(recompute)
    return PassMode(recompute, context=Context(frozenset([0]), num_parts))


_OF_PIECE: Mapping[type[Any], tuple[type, type]] = MappingProxyType(
    {
        ExpertWeight: (ExpertGrad, ExpertOptState),
        RouterWeight: (RouterGrad, RouterOptState),
    }
)


def _experts_or_none(model: RankState) -> ExpertLayers | None:
    """Return the part of the workload that describes layers with experts; None if it has none."""
    experts: ExpertLayers | None = getattr(model._runtime_predictor.workload, "experts", None)
    return experts


def _has_experts(model: RankState, layer: int) -> bool:
    """Return whether the workload knows experts of a layer."""
    experts = _experts_or_none(model)
    return experts is not None and layer in experts.layers


def _law_of_load(model: RankState, op: str, layer: Any, shard: Any, num_shards: Any) -> None:
    """Require a layer with experts, and a shard."""
    laws.load(model, layer, shard, num_shards)
    _require_experts(model, op, layer)


def _require_experts(model: RankState, op: str, layer: int) -> None:
    """Require a layer with experts."""
    if _has_experts(model, layer):
        return
    experts = _experts_or_none(model)
    known = ranges(experts.layers) if experts is not None and experts.layers else "none"
    rule = (
        f"layer {layer} must have experts; layers with experts are {known}: use load_weights and forward for the "
        "others (model.has_experts says which)"
    )
    raise broken(model, op, rule, layer)


def _require_divides(model: RankState, num_parts: int) -> None:
    """Require equally many experts in each part; a UsageError names a number that divides."""
    experts = _experts_or_none(model)
    assert experts is not None  # `_require_experts` came before
    Cut("num_experts", experts.num_experts).part(experts.num_experts, num_parts, "ep")


def _require_pass(model: RankState, op: str, layer: int, *inputs: Any) -> None:
    """Require a layer with experts, and what the record of a pass around them says of its inputs."""
    _require_experts(model, op, layer)
    laws.require_inputs(model, op, layer, *inputs)


def _law_of_capacity(
    model: RankState, layer: int, load: ExpertLoad, factor: float | None, *, drop_tokens: bool
) -> None:
    """Require that what is over the experts' capacity may be dropped, if anything is."""
    if load.dropped and not drop_tokens:
        rule = (
            f"experts take at most {factor} times the mean, and {float(load.dropped):.3g} of all copies are over that; "
            "raise capacity_factor, balance the router, or let tokens be dropped (drop_tokens=True)"
        )
        raise broken(model, "route", rule, layer, dropped=load.dropped)


def _require_all_parts(model: RankState, op: str, name: str, value: Any, inp: Any) -> None:
    """Require copies of tokens from all parts of the experts, for the tokens of the layer's input."""
    samples: frozenset[int] = inp.samples
    if len(value.parts) != value.num_parts:
        missing = ranges(set(range(value.num_parts)) - value.parts)
        rule = (
            f"{name} must come from all parts of the experts, got {describe(value)}; {laws.are(missing)} missing: "
            "all_to_all them back over the ranks that hold the parts"
        )
        raise broken(model, op, rule, value.layer, value=value)
    if value.samples != samples:
        rule = f"{name} must be of the samples of inp ({ranges(samples)}), got {describe(value)}"
        raise broken(model, op, rule, value.layer, samples=(samples, value.samples))
    _require_same_part(model, op, f"{name} and inp", value.sequence, inp.sequence, value.layer)


def _require_same_part(model: RankState, op: str, names: str, one: Any, other: Any, layer: int) -> None:
    """Require two parts of sequences to be the same."""
    if one != other:
        raise broken(model, op, f"{names} must be of the same part of the sequence, got {one} and {other}", layer)


def _law_of_backward_combine(model: RankState, layer: int, inp: Any, outputs: Any, grad: Any) -> None:
    """Require input, outputs and gradient of the layer, in storage, for the same samples."""
    op = "backward_combine"
    _require_pass(model, op, layer, inp, outputs, grad)
    _require_all_parts(model, op, "outputs", outputs, inp)
    _require_same_part(model, op, "inp and grad", inp.sequence, grad.sequence, layer)
    mode = passage_of(inp).mode
    if mode is not None and takes_again(mode.recompute, "moe"):
        rule = (
            f"{describe(inp)} is all that was kept of this layer; take route, the experts and combine again, with "
            'recompute="none", before its backward'
        )
        raise broken(model, op, rule, layer, value=inp)


def _law_of_forward(model: RankState, layer: int, tokens: Any, weight: Any) -> None:
    """Require copies of tokens for the part of the experts that the weight is, in storage, both of the layer."""
    op = "forward"
    if isinstance(weight, RouterWeight):
        raise _router_does_not_pass(model, op, layer, weight)
    if isinstance(weight, ExpertWeight) and type(tokens) is Activation:
        rule = (
            f"experts must be given copies of tokens, got {describe(tokens)}; route it, and all_to_all the copies over "
            "the ranks that hold the parts"
        )
        raise broken(model, op, rule, layer, value=tokens)
    laws.require_inputs(model, op, layer, tokens, weight, of_experts=True)
    _require_of_part(model, op, "inp", tokens, weight)


def _router_does_not_pass(model: RankState, op: str, layer: int, weight: Any) -> LawError:
    """Return the error for a router piece where a layer's weight is needed."""
    around = "route and combine" if op == "forward" else "backward_combine and backward_route"
    rule = (
        f"the weight must be of a whole layer, or a part of experts, got {describe(weight)}; it goes through {around}"
    )
    return broken(model, op, rule, layer, value=weight)


def _require_of_part(model: RankState, op: str, name: str, copies: Any, weight: Any) -> None:
    """Require copies of tokens for exactly the part that a weight is."""
    if copies.num_parts == weight.num_parts and copies.parts == weight.parts:
        return
    remedy = (
        "all_to_all them over the ranks that hold the parts"
        if len(copies.parts) == copies.num_parts
        else "each part gets the copies that are for it, and the numbers of parts must agree"
    )
    rule = (
        f"{name} must be the copies for the weight's part of the experts, got {describe(copies)} for "
        f"{describe(weight)}; {remedy}"
    )
    raise broken(model, op, rule, copies.layer, value=copies)


def _law_of_backward(model: RankState, op: str, layer: int, tokens: Any, grad: Any, weight: Any) -> None:
    """Require copies of tokens, the gradients of what was made of them, and the part of the experts, in storage."""
    if isinstance(weight, RouterWeight):
        raise _router_does_not_pass(model, op, layer, weight)
    laws.require_inputs(model, op, layer, tokens, grad, weight, of_experts=True)
    if grad.parts != tokens.parts or grad.num_parts != tokens.num_parts:
        rule = (
            f"grad must be of the same part of the experts as inp, got {describe(grad)} for {describe(tokens)}; "
            "all_to_all it over the ranks that hold the parts"
        )
        raise broken(model, op, rule, layer, value=grad)
    if op != "backward_weight":
        _require_of_part(model, op, "inp", tokens, weight)
    elif len(tokens.parts) != 1:
        raise broken(model, op, f"inp must be copies for one part of the experts, got {describe(tokens)}", layer)


def law_of_update(model: RankState, weight: Any, weight_grad: Any, state: Any) -> None:
    """Require gradient and state of the same piece as the weight; the laws of every update are checked before."""
    kinds = _OF_PIECE.get(type(weight))
    if kinds is None:
        rule = (
            f"weight, gradient and state must be of the same piece of the layer, got {describe(weight)}, "
            f"{describe(weight_grad)} and {describe(state)}"
        )
        raise broken(model, "update", rule, weight.layer)
    for name, value, kind in zip(("weight_grad", "opt_state"), (weight_grad, state), kinds, strict=True):
        require_kind(model, "update", name, value, kind)
    if weight_grad.sequence.share != 1:
        rule = (
            f"the gradient must cover the whole sequence, got {weight_grad.sequence.share} of it; reduce it over the "
            "ranks that have the others"
        )
        raise broken(model, "update", rule, weight.layer)
