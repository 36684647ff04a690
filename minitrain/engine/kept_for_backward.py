"""What forward keeps for backward, and what backward computes again, where layers differ.

A layer's input stands for all that its forward keeps: from the forward on it has that size, in whatever store it is,
and deleting it frees all of it. So a strategy that keeps inputs until their backward keeps what a framework keeps.

With full recomputation a transformer layer keeps its own input alone. The input of its MLP takes no memory: it is
computed again from that of the attention. It is kept, however, where another rank sent it (a stage that begins with an
MLP), and where forward made it without recomputation. Backward computes again what is missing, and holds it until it is
done; the first half of a split backward leaves it for the second half. Where single modules are computed again, every
unit keeps its own input, and what those modules do not make.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from minitrain.machine.price import Price
from minitrain.operations import UNITS_PER_ELEMENT
from minitrain.tensors.kinds import passage_of
from minitrain.workloads.workload import USUAL, Context, PassMode, Recompute, as_recompute

if TYPE_CHECKING:
    from minitrain.engine.state import RankState
    from minitrain.tensors import Activation

_FULL = PassMode("full")


def mode_of(recompute: Any) -> PassMode:
    """Return how a layer is passed through.

    Raises:
        UsageError: there is no such recomputation.
    """
    return _mode_of(as_recompute(recompute))


@lru_cache(maxsize=256)
def _mode_of(recompute: Recompute) -> PassMode:
    """Return the mode: one object for equal passes."""
    return USUAL if recompute == "none" else PassMode(recompute)


def keep(model: RankState, layer: int, inp: Activation, out: Activation, mode: PassMode) -> None:
    """Let a layer's input stand for what its forward keeps, or the shard of the sequence that it was gathered from."""
    passage_of(out).made_in = mode
    if model._is_uniform:
        return
    keeper = _keeper(model, inp)
    _count_repetition(model, layer, keeper, mode)
    passage_of(keeper).mode = mode
    if layer == model._num_layers - 1:
        _mark_logits(model, keeper, len(inp.samples), mode)
    model._resize(keeper, _kept_units(model, layer, inp, keeper, mode))


def _count_repetition(model: RankState, layer: int, keeper: Any, mode: PassMode) -> None:
    """Count the FLOPs of a forward as recomputed, if the layer went forward with this input before."""
    if passage_of(keeper).mode is not None:
        again, of_all = replace(mode, recompute="full"), mode.context
        if of_all is not None:
            of_all = replace(of_all, keys=frozenset(range(of_all.num_shards)))
        again = with_documents(model, layer, keeper, again, of_all)
        model._recomputed_flop += model._runtime_predictor.workload.recomputed_flop(len(keeper.samples), layer, again)


def keep_before_core(model: RankState, layer: int, inp: Any, mode: PassMode) -> None:
    """Let the input of an attention that is taken in steps stand for what is kept up to the queries."""
    _count_repetition(model, layer, _keeper(model, inp), mode)
    _keep_of_attention(model, layer, inp, mode)


def keep_of_steps(model: RankState, layer: int, inp: Any, out: Any, mode: PassMode) -> None:
    """Let the input of an attention that was taken in steps stand for all that is kept but keys and values."""
    passage_of(out).made_in = mode
    _keep_of_attention(model, layer, inp, mode)


def _keep_of_attention(model: RankState, layer: int, inp: Any, mode: PassMode) -> None:
    """Give the input of an attention the size of what it stands for."""
    keeper = _keeper(model, inp)
    passage_of(inp).mode = passage_of(keeper).mode = mode
    elements = model._runtime_predictor.workload.kept_elements(layer, len(inp.samples), mode)
    model._resize(keeper, int(elements * UNITS_PER_ELEMENT))


def hold_core_again(model: RankState, layer: int, inp: Any, keys_values: Any) -> None:
    """Hold what backward computes again of the core of an attention that is taken in steps, until the step is done.

    Args:
        model: the rank.
        layer: the attention.
        inp: its input.
        keys_values: those that the step has to do with.
    """
    mode = mode_of_forward(inp)
    if mode is None or mode.recompute == "none":
        return
    workload, num_samples = model._runtime_predictor.workload, len(inp.samples)
    share = len(keys_values.sequence.shards) / keys_values.sequence.num_shards
    whole, kept = (workload.kept_elements(layer, num_samples, each) for each in (replace(mode, recompute="none"), mode))
    borrowed = int((whole - kept) * share * UNITS_PER_ELEMENT)
    model._meter.grow(borrowed)
    model._meter.grow(-borrowed)
    context = Context(inp.sequence.shards, inp.sequence.num_shards, frozenset(range(inp.sequence.num_shards)))
    again = with_documents(model, layer, inp, mode, context)
    model._recomputed_flop += workload.recomputed_flop(num_samples, layer, again) * share


def _mark_logits(model: RankState, keeper: Any, num_samples: int, mode: PassMode) -> None:
    """Count the logits apart from the rest that the head keeps, where the workload has any."""
    logits_elements = getattr(model._runtime_predictor.workload, "logits_elements", None)
    if logits_elements is not None:
        model._mark_logits(keeper, int(logits_elements(num_samples, mode) * UNITS_PER_ELEMENT))


def keep_scattered(model: RankState, partial: Any) -> None:
    """Keep less for a layer whose input was whole and whose output is scattered along the sequence: the embedding."""
    inp, mode = passage_of(partial).kept_by, passage_of(partial).made_in
    if inp is not None and not model._is_uniform:
        scattered = replace(mode, sequence_parallel=True)
        passage_of(inp).mode = scattered
        elements = model._runtime_predictor.workload.kept_elements(inp.layer, len(inp.samples), scattered)
        model._resize(inp, int(elements * UNITS_PER_ELEMENT))


def _keeper(model: RankState, inp: Activation) -> Any:
    """Return what stands for what is kept: an input, or the stored shard of the sequence that it was gathered from."""
    shard = passage_of(inp).gathered_from
    return inp if shard is None or getattr(shard, "_home", None) is not model._account else shard


def _kept_units(model: RankState, layer: int, inp: Activation, keeper: Any, mode: PassMode) -> int:
    """Return what a layer's input, or its shard, stands for, in units."""
    workload = model._runtime_predictor.workload
    elements = workload.kept_elements(layer, len(inp.samples), mode)
    if mode.recompute == "full" and not is_made_again(inp):
        shards = passage_of(inp).gathered_from.sequence.num_pieces if mode.sequence_parallel else 1
        elements = max(elements, workload.memory_elements(inp) / shards)
    if mode.sequence_parallel and keeper is inp:  # the whole sequence is kept where a shard would do
        elements += workload.memory_elements(inp) - workload.memory_elements(passage_of(inp).gathered_from)
    return int(elements * UNITS_PER_ELEMENT)


def is_made_again(inp: Activation) -> bool:
    """Return whether an activation can be computed again from the layer before, which keeps its own input for that."""
    made_in: PassMode = passage_of(inp).made_in or USUAL
    return made_in.recompute == "full"


def units_before(model: RankState, layer: int, inp: Activation, mode: PassMode) -> int:
    """Return what the layer before holds again, in units, once it has made an input that was not kept; 0 if it was."""
    if not is_made_again(inp) or not layer:
        return 0
    workload, num_samples = model._runtime_predictor.workload, len(inp.samples)
    modes = replace(mode, recompute="none"), mode
    whole, kept = (workload.kept_elements(layer - 1, num_samples, each) for each in modes)
    return int((whole - kept) * UNITS_PER_ELEMENT)


def price_of_backward(model: RankState, typ: str, layer: int, inp: Activation, unknown: PassMode = _FULL) -> Price:
    """Return the price of a backward, or of half of one, with what it computes again; count what it holds meanwhile.

    Args:
        model: the rank.
        typ: "backward", "backward_input" or "backward_weight".
        layer: the layer.
        inp: its input.
        unknown: how it is passed through if the layer did not go forward on this rank, so that nothing is kept and all
            of it is computed again.
    """
    mode = mode_of_forward(inp) or unknown
    num_samples = len(inp.samples)
    if mode.recompute != "none" and typ != "backward_weight":
        _compute_again(model, typ, layer, inp, mode)
    mode = with_documents(model, layer, inp, mode)
    if mode is USUAL:
        return model._runtime_predictor.compute(typ, num_samples, layer)
    model.pass_modes[len(model._rows)] = mode
    return model._runtime_predictor.compute(typ, num_samples, layer_of_price(model, layer), mode)


def with_documents(model: RankState, layer: int, inp: Any, mode: PassMode, context: Context | None = None) -> PassMode:
    """Return how samples go through a layer, with the pairs that their documents leave to an attention.

    Args:
        model: the rank.
        layer: the layer.
        inp: its input.
        mode: how it goes through.
        context: the shards of queries and keys, where they are not those of the mode.
    """
    if not is_packed(model):
        return mode
    samples, workload = model._samples_with_documents(inp.samples), model._runtime_predictor.workload
    pairs = workload.pairs(layer, samples, context or mode.context, cut=inp.sequence.cut_of)  # type: ignore[attr-defined]  # a transformer's
    return mode if pairs is None else replace(mode, pairs=pairs)


def is_packed(model: RankState) -> bool:
    """Return whether samples consist of documents, each with a length of its own."""
    return getattr(model._runtime_predictor.workload, "is_packed", False)


def layer_of_price(model: RankState, layer: int) -> int:
    """Return the layer by which a price is looked up: the first one for all that are alike, so that they share it."""
    return 0 if model._remembered.may_be_shared else layer


def mode_of_forward(inp: Activation) -> PassMode | None:
    """Return how the layer of an input went forward, if it did on this rank."""
    passage = passage_of(inp)
    known: PassMode | None = passage.mode
    if known is None and passage.gathered_from is not None:
        known = passage_of(passage.gathered_from).mode
    return known


def _compute_again(model: RankState, typ: str, layer: int, inp: Activation, mode: PassMode) -> None:
    """Hold what backward computes again: until it is done, or until the second half of a split one."""
    if model._is_uniform:
        return
    workload, num_samples, keeper = model._runtime_predictor.workload, len(inp.samples), _keeper(model, inp)
    everything = replace(mode, recompute="none")
    whole = int(workload.kept_elements(layer, num_samples, everything) * UNITS_PER_ELEMENT)
    borrowed = max(0, whole - model._account.units_of(keeper))
    if mode.recompute == "full" and not workload.kept_elements(layer, num_samples, mode):
        borrowed += units_before(model, layer, inp, mode)
    model._borrow(borrowed)
    model._recomputed_flop += workload.recomputed_flop(num_samples, layer, with_documents(model, layer, inp, mode))
    if typ == "backward_input":
        model._resize(keeper, max(whole, model._account.units_of(keeper)))
