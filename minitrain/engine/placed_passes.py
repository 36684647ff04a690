"""Passes that are not the usual ones: of parts of layers and shards of sequences, and where layers differ.

The operations of `minitrain.engine.computation` come here after they have checked their laws, unless a table has their
price (`minitrain.engine.state`). The tables are filled here, where the workload says that all layers are alike. A new
feature of layers or of tensors belongs here: there it costs nothing to those who do not use it.

*Parts and shards* (`minitrain.tensors.placed`): where a layer works on each token by itself, a shard goes through it as
an activation does, at its share of the cost; an attention is taken in steps (`minitrain.engine.computation`).

*What forward keeps for backward*, where layers differ: a layer's input stands for all that its forward keeps. From the
forward on it has that size, in whatever store it is, and deleting it frees all of it. So a strategy that keeps inputs
until their backward keeps what a framework keeps.

*Recomputation*: with all of it, a transformer layer keeps its own input alone. The input of its MLP takes no memory: it
is computed again from that of the attention. It is kept, however, where another rank sent it (a stage that begins with
an MLP), and where forward made it without recomputation. Backward computes again what is missing, and holds it until it
is done; the first half of a split backward leaves it for the second half. Where single modules are computed again,
every unit keeps its own input, and what those modules do not make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from minitrain.engine import laws
from minitrain.engine.laws import broken
from minitrain.errors import UsageError, choice_fault
from minitrain.machine.price import Price
from minitrain.operations import UNITS_PER_ELEMENT
from minitrain.operations.collectives import describe
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.index_sets import SequencePart, ranges, singleton
from minitrain.tensors.kinds import altered, passage_of
from minitrain.tensors.placed import (
    ActivationGradShard,
    ActivationShard,
    OptStatePart,
    PartialActivation,
    PartialActivationGrad,
    WeightGradPart,
    WeightPart,
    in_context,
)
from minitrain.workloads.documents import CUTS, Documents, pairs_of
from minitrain.workloads.workload import NONE, USUAL, Context, PassMode, Recompute, as_recompute

if TYPE_CHECKING:
    from minitrain.engine.state import RankState


_ALL = frozenset([0])


def load_part(
    model: RankState, layer: int, shard: int, num_shards: int, part: int, num_parts: int
) -> tuple[WeightPart, OptStatePart]:
    """Load one shard of a part of a layer's weight, and make its optimizer state."""
    fields = layer, model._num_layers, 0, singleton(shard), num_shards, singleton(part), num_parts
    weight = WeightPart(*fields)
    _note_table(model, weight)
    model._record_load(weight)
    return model._sized(weight), model._sized(OptStatePart(*fields))


def _note_table(model: RankState, weight: Weight) -> None:
    """Let a table count once from now on, where the rank loads embedding and head alike, whose table it is."""
    layers: tuple[int, ...] = getattr(model._runtime_predictor.workload, "table_layers", ())
    if weight.layer not in layers:
        return
    division = weight.shards, weight.num_shards, weight.parts, weight.num_parts
    (other,) = {*layers} - {weight.layer}
    if model._tables.get(other) == division:
        model._sizes = model._runtime_predictor.workload.with_one_table(in_shards=weight.num_shards > 1)  # type: ignore[attr-defined]  # it has a table
        model._account.measure = model._meter.measure = model._sizes.memory_elements
        tensors: list[Any] = [*model.weights.values(), *model.opt_states.values()]
        for tensor in tensors:
            if tensor.layer in layers:  # a head that was loaded first counted with its table
                model._resize(tensor, int(model._sizes.memory_elements(tensor) * UNITS_PER_ELEMENT))
    model._tables = {**model._tables, weight.layer: division}


def input_shard(
    model: RankState, samples: Iterable[int], shards: Iterable[int], num_shards: int, cut: str
) -> ActivationShard:
    """Return the model's input for some samples and shards of the sequence."""
    found = _require_shards(model, shards, num_shards)
    cut_of = _require_cut(model, cut) if is_packed(model) and num_shards > 1 else CUTS[0]  # each is one document
    part = SequencePart(found, num_shards, cut_of=cut_of)
    of_batch = laws.input_samples(model, samples), model._global_batch_size
    return ActivationShard(0, model._num_layers, *of_batch, part)


def _documents_of(model: RankState, num_shards: int = 1) -> tuple[Documents, int]:
    """Return the documents of samples, each of one where none are packed, and the samples' length."""
    workload: Any = model._runtime_predictor.workload
    seq_len = getattr(workload, "seq_len", num_shards)
    return workload.model.documents if is_packed(model) else Documents((seq_len,)), seq_len


def lengths_of(model: RankState, sample: int) -> tuple[int, ...]:
    """Return the tokens of the documents of a sample."""
    documents, seq_len = _documents_of(model)
    return documents.of_sample(sample, seq_len)


def count_pairs(model: RankState, samples: Iterable[int], shards: Iterable[int], num_shards: int, cut: str) -> int:
    """Return the pairs of queries of some shards with the keys that they see."""
    found = sorted(_require_shards(model, shards, num_shards))
    documents, seq_len = _documents_of(model, num_shards)
    return int(pairs_of(documents, samples, seq_len, num_shards, _require_cut(model, cut), None)[found].sum())


def _require_cut(model: RankState, cut: str) -> str:
    """Require that a sequence can be cut so."""
    fault = choice_fault("cut", cut, CUTS)
    if fault:
        raise broken(model, "get_input_shard", fault, 0)
    return cut


def _require_shards(model: RankState, shards: Iterable[int], num_shards: Any) -> frozenset[int]:
    """Return some shards of the sequence as a set; require that they exist and that all ranks can have as many."""
    counts = isinstance(num_shards, int) and not isinstance(num_shards, bool) and num_shards >= 1
    try:
        found = frozenset(shards)
    except TypeError:
        found = NONE
    whole = all(isinstance(shard, int) and not isinstance(shard, bool) for shard in found)
    if not counts or not found or not whole or not 0 <= min(found) <= max(found) < num_shards:
        rule = (
            f"shards must be some of 0..num_shards-1, got {shards!r:.80} of {num_shards!r:.80}; for example "
            "shards=[model.rank], num_shards=model.world_size"
        )
        raise broken(model, "get_input_shard", rule, 0)
    if num_shards % len(found):
        rule = (
            f"the ranks must have equal shares of the sequence, got {len(found)} shards of {num_shards}; give a rank "
            "one shard of n, or two of 2n"
        )
        raise broken(model, "get_input_shard", rule, 0)
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
        message = (
            f"seq_len ({seq_len}) must be a multiple of num_shards ({num_shards}), so that all shards of the sequence "
            f"are equal; use seq_len={remedy}"
        )
        raise UsageError(message, seq_len=seq_len)


def mode_of_pass(recompute: Any, inp: Any, weight: Any, keys: frozenset[int] = NONE) -> PassMode:
    """Return how an input goes through a layer, or through a step of it."""
    context = Context(inp.sequence.shards, inp.sequence.num_shards, keys) if in_context(inp) else None
    num_parts = 1 if weight is None else weight.num_parts
    return _mode(mode_of(recompute).recompute, num_parts, passage_of(inp).gathered_from is not None, context)


@lru_cache(maxsize=256)
def _mode(recompute: Any, num_parts: int, sequence_parallel: bool, context: Context | None) -> PassMode:
    """Return the mode: one object for equal passes, which are many."""
    return PassMode(recompute, num_parts, sequence_parallel, context)


def has_attention(model: RankState, layer: int) -> bool:
    """Return whether tokens need one another in a layer."""
    asked: Callable[[int], bool] | None = getattr(model._runtime_predictor.workload, "has_attention", None)
    return asked is not None and asked(layer)  # a workload without attention need not have the method


def _require_tokens_apart(model: RankState, op: str, layer: int, inp: Any, grad: Any = None) -> None:
    """Require a layer that works on each token by itself, where the input is of some shards of the sequence."""
    if grad is not None:
        require_same_shards(model, op, layer, inp, grad)
    if in_context(inp) and has_attention(model, layer):
        way = "keys_values, attend and project" if op == "forward" else "the mirrors of its steps"
        rule = (
            f"an attention needs the keys and values of the whole sequence, and inp is {describe(inp)}; take it in "
            f"steps: {way} (see minitrain.tensors.placed)"
        )
        raise broken(model, op, rule, layer, value=inp)


def require_same_shards(model: RankState, op: str, layer: int, inp: Any, grad: Any) -> None:
    """Require two tensors of the same shards of the sequence."""
    if inp.sequence != grad.sequence:
        rule = f"all must be of the same shards of the sequence, got {describe(inp)} and {describe(grad)}"
        raise broken(model, op, rule, layer, value=grad)


def forward_placed(model: RankState, layer: int, inp: Any, weight: Weight, recompute: Any) -> Any:
    """Take an activation through a part of a layer, or some shards of a sequence through a layer."""
    _require_tokens_apart(model, "forward", layer, inp)
    mode = mode_of_pass(recompute, inp, weight, laws.every(inp.sequence.num_shards))
    record_pass(model, "forward", layer, inp, mode)
    out = output_of(model, layer, inp, weight)
    keep(model, layer, inp, out, mode)
    if mode.num_parts > 1 and not mode.sequence_parallel:
        passage_of(out).kept_by = inp
    return out


def record_pass(model: RankState, typ: str, layer: int, inp: Any, mode: PassMode) -> None:
    """Log a pass that is not the usual one."""
    mode = with_documents(model, layer, inp, mode)
    model.pass_modes[len(model._rows)] = mode
    price = model._runtime_predictor.compute(typ, len(inp.samples), layer_of_price(model, layer), mode)
    model._record(typ, layer, price, inp.samples)


def output_of(model: RankState, layer: int, inp: Any, weight: Weight) -> Any:
    """Return the output of a layer, or of a part of it, for an input."""
    fields = layer + 1, model._num_layers, inp.samples, model._global_batch_size
    if weight.num_parts == 1:
        return model._sized(ActivationShard(*fields, inp.sequence))
    return model._sized(PartialActivation(*fields, weight.parts, weight.num_parts, inp.sequence))


def price_of_loss(model: RankState, inp: Activation) -> Price:
    """Return the price of the loss, of which this rank may have some logits or some shards of the sequence."""
    made_in: PassMode = passage_of(inp).made_in or USUAL
    num_samples, layer = len(inp.samples), model._num_layers
    if made_in.num_parts == 1 and not in_context(inp):
        return model._runtime_predictor.compute("loss", num_samples, layer)
    context = Context(inp.sequence.shards, inp.sequence.num_shards) if in_context(inp) else None
    mode = PassMode("none", made_in.num_parts, sequence_parallel=False, context=context)
    model.parts_of_loss = made_in.num_parts * (1 if context is None else context.degree)
    model.pass_modes[len(model._rows)] = mode
    return model._runtime_predictor.compute("loss", num_samples, layer_of_price(model, layer), mode)


def backward_placed(
    model: RankState, typ: str, layer: int, inp: Any, grad: ActivationGrad, weight: Any
) -> tuple[WeightGradPart, Any]:
    """Take a gradient back through a part of a layer, or for some shards of a sequence; half of it uses one result."""
    _require_tokens_apart(model, typ, layer, inp, grad)
    unknown = mode_of_pass("none" if model._is_uniform and in_context(inp) else "full", inp, weight)
    price = price_of_backward(model, typ, layer, inp, unknown)
    model._record(typ, layer, price, inp.samples)
    return gradients_of(model, layer, inp, weight)


def gradients_of(model: RankState, layer: int, inp: Any, weight: Any) -> tuple[WeightGradPart, Any]:
    """Return the gradients of a layer's weight, which covers the input's part of the sequence, and of its input."""
    parts, num_parts = (_ALL, 1) if weight is None else (weight.parts, weight.num_parts)
    piece = passage_of(inp).gathered_from
    covered = inp.sequence if piece is None else piece.sequence
    fields = model._num_layers, inp.samples, model._global_batch_size
    weight_grad = WeightGradPart(layer, *fields, _ALL, 1, parts, num_parts, covered)
    if piece is None and num_parts > 1 and _has_common_adapters(model, weight_grad):
        weight_grad.sequence = covered.with_pieces(parts, num_parts)  # each part's gradient of them is one of a sum
    if num_parts == 1:
        grad_inp: Any = ActivationGradShard(layer - 1, *fields, inp.sequence)
    else:
        grad_inp = PartialActivationGrad(layer - 1, *fields, parts, num_parts, inp.sequence)
    return model._sized(weight_grad), model._sized(grad_inp)


def _has_common_adapters(model: RankState, weight_grad: WeightGradPart) -> bool:
    """Return whether all parts of a layer hold the same adapters, which each takes all tokens through."""
    workload: Any = model._runtime_predictor.workload
    return getattr(workload, "has_adapters", False) and workload.common_bytes(weight_grad) > 0


def update_part(model: RankState, weight: WeightPart, weight_grad: Any, state: OptState) -> tuple[Any, Any]:
    """Take an optimizer step on a part, or on the shards of it that this rank holds."""
    laws.require_whole_matrices(model, weight.layer, weight)
    price = model._runtime_predictor.update(
        len(weight.shards), weight.num_shards, weight.layer, *model._division(weight)
    )
    model._record("update", weight.layer, price, weight_grad.samples)
    return stepped(model, weight), stepped(model, state)


def stepped(model: RankState, tensor: Any) -> Any:
    """Return a weight, or its optimizer state, after one more update: of the same size."""
    found = altered(tensor, step=tensor.step + 1)
    found._units = model._account.units_of(tensor)
    return found


def missing(held: frozenset[int], needed: Iterable[int]) -> str:
    """Return which shards of those that are needed are not held, in words."""
    return ranges(set(needed) - held)


def load(model: RankState, layer: int, shard: int, num_shards: int) -> tuple[Weight, OptState]:
    """Load one shard of a layer's weight, and make its optimizer state."""
    weight = Weight(layer, model._num_layers, 0, singleton(shard), num_shards)
    opt_state = OptState(layer, model._num_layers, 0, singleton(shard), num_shards)
    _note_table(model, weight)
    price = model._record_load(weight)
    units = model._account.size(weight), model._account.size(opt_state)
    if model._remembered.may_be_shared and model._entry is None:
        model._remembered.loads[num_shards] = (price, *units)
    return weight, opt_state


def forward(model: RankState, layer: int, inp: Activation, recompute: Recompute | None) -> Activation:
    """Take an activation through a layer."""
    mode = with_documents(model, layer, inp, USUAL)
    if mode is not USUAL:
        model.pass_modes[len(model._rows)] = mode
    price = model._runtime_predictor.compute("forward", len(inp.samples), layer, *(() if mode is USUAL else (mode,)))
    model._record("forward", layer, price, inp.samples)
    out = Activation(layer + 1, model._num_layers, inp.samples, model._global_batch_size)
    if model._remembered.may_be_shared:
        model._remembered.forwards[len(inp.samples)] = price
    if model._is_uniform:
        out._units = model._account.units_of(inp)  # type: ignore[misc]  # a slot of the base
    else:
        model._account.size(out)
        keep(model, layer, inp, out, mode_of(recompute or model._recompute))
    return out


def backward(model: RankState, layer: int, inp: Activation, grad: ActivationGrad) -> tuple[WeightGrad, ActivationGrad]:
    """Take a gradient back through a layer."""
    price = _pass_back(model, "backward", layer, inp)
    weight_grad, grad_inp = _weight_grad(model, layer, inp), _grad_inp(model, layer, grad)
    if model._remembered.may_be_shared:
        model._remembered.backwards[len(inp.samples)] = price, weight_grad._units
    return weight_grad, grad_inp


def backward_input(model: RankState, layer: int, inp: Activation, grad: ActivationGrad) -> ActivationGrad:
    """Take a gradient back to a layer's input alone."""
    price = _pass_back(model, "backward_input", layer, inp)
    if model._remembered.may_be_shared:
        model._remembered.backward_inputs[len(inp.samples)] = price
    return _grad_inp(model, layer, grad)


def backward_weight(model: RankState, layer: int, inp: Activation) -> WeightGrad:
    """Return the gradient of a layer's weight."""
    price = _pass_back(model, "backward_weight", layer, inp)
    weight_grad = _weight_grad(model, layer, inp)
    if model._remembered.may_be_shared:
        model._remembered.backward_weights[len(inp.samples)] = price, weight_grad._units
    return weight_grad


def price_of_update(model: RankState, layer: int, weight: Weight) -> Price:
    """Return the price of an optimizer step on the shards of a weight."""
    laws.require_whole_matrices(model, layer, weight)
    num_held, num_shards = len(weight.shards), weight.num_shards
    price = model._runtime_predictor.update(num_held, num_shards, layer, *model._division(weight))
    if model._remembered.may_be_shared:
        model._remembered.updates[num_held, num_shards] = price
    return price


def _pass_back(model: RankState, typ: str, layer: int, inp: Activation) -> Price:
    """Record a backward, or half of one, and return its price."""
    if model._is_uniform:
        price = model._runtime_predictor.compute(typ, len(inp.samples), layer)
    else:
        price = price_of_backward(model, typ, layer, inp)
    model._record(typ, layer, price, inp.samples)
    return price


def _weight_grad(model: RankState, layer: int, inp: Activation) -> WeightGrad:
    """Return the gradient of a layer's weight, with its size."""
    return model._sized(WeightGrad(layer, model._num_layers, inp.samples, model._global_batch_size))


def _grad_inp(model: RankState, layer: int, grad: ActivationGrad) -> ActivationGrad:
    """Return the gradient of a layer's input, with its size: where layers are alike, that of the output's gradient."""
    grad_inp = ActivationGrad(layer - 1, model._num_layers, grad.samples, model._global_batch_size)
    if model._is_uniform:
        grad_inp._units = model._account.units_of(grad)  # type: ignore[misc]  # a slot of the base
    else:
        model._account.size(grad_inp)
    return grad_inp


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


@lru_cache(maxsize=256)
def _keeping_all(mode: PassMode) -> PassMode:
    """Return a mode without recomputation."""
    return replace(mode, recompute="none")


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
    whole, kept = (workload.kept_elements(layer, num_samples, each) for each in (_keeping_all(mode), mode))
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
    modes = _keeping_all(mode), mode
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
    everything = _keeping_all(mode)
    whole = int(workload.kept_elements(layer, num_samples, everything) * UNITS_PER_ELEMENT)
    borrowed = max(0, whole - model._account.units_of(keeper))
    if mode.recompute == "full" and not workload.kept_elements(layer, num_samples, mode):
        borrowed += units_before(model, layer, inp, mode)
    model._borrow(borrowed)
    model._recomputed_flop += workload.recomputed_flop(num_samples, layer, with_documents(model, layer, inp, mode))
    if typ == "backward_input":
        model._resize(keeper, max(whole, model._account.units_of(keeper)))
