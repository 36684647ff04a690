"""The laws of training: what must hold before an operation may happen.

Each function returns, or raises a `LawError` that names rule, values, rank, layer and remedy. An operation calls it
before it logs anything and before any clock moves. The laws hold under `python -O` too, since they are no `assert`s.

Usual calls, for which the laws hold, are known by one quick expression (`is_usual_forward`); both must agree.

The law of samples: integers of the global batch, checked before anything is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

from minitrain.errors import LawError, TensorTypeError, made_a_tensor
from minitrain.files import shown
from minitrain.operations.collectives import describe
from minitrain.operations.computations import COMPUTATIONS
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.fields import OnHost
from minitrain.tensors.index_sets import SequencePart, overlapping_shards, ranges
from minitrain.tensors.kinds import LocalWeight, shard_fault
from minitrain.tensors.placed import (
    COPIES,
    OF_ATTENTION,
    PARTIAL,
    ActivationGradShard,
    ActivationShard,
    TableGrad,
    WeightGradPart,
    WeightPart,
    in_pieces,
)

if TYPE_CHECKING:
    from minitrain.engine.state import RankState

_LONGEST = 80  # characters of what was given instead of samples


def input_samples(model: RankState, samples: Iterable[int]) -> frozenset[int]:
    """Return the samples as a set; require integers of the global batch before anything is made of them."""
    numbers = sample_numbers(model, samples)
    require_inside(model, numbers)
    return frozenset(numbers)


def sample_numbers(model: RankState, samples: Iterable[Any], *others: type) -> Sequence[int]:
    """Return the samples as a range or a list of integers, such as numpy's too; require no more than the batch has.

    Args:
        model: the rank.
        samples: what was given.
        others: types that stand for integers beside those that Python knows as such.
    """
    if isinstance(samples, range):
        return samples
    try:
        several = iter(samples)
    except TypeError as error:
        raise _no_integers(model, samples, samples) from error
    numbers = list(islice(several, model.global_batch_size + 1))  # what is given may have no end
    if set(map(type, numbers)) != {int}:
        numbers = [number if isinstance(number, others) else _integer(model, samples, number) for number in numbers]
    if len(numbers) > model.global_batch_size:
        require_inside(model, [number for number in numbers if isinstance(number, int)])
        rule = f"samples must be at most the {model.global_batch_size} of the global batch, got more; give each once"
        raise broken(model, "get_input_activation", rule, 0)
    return numbers


def _integer(model: RankState, samples: Any, number: Any) -> int:
    """Return one sample as Python's own integer."""
    if isinstance(number, bool):
        raise _no_integers(model, samples, number)
    try:
        return index(number)
    except TypeError as error:
        raise _no_integers(model, samples, number) from error


def _no_integers(model: RankState, samples: Any, number: Any) -> TensorTypeError:
    """Return the error for samples of which one is no integer."""
    found = _text(samples) if isinstance(samples, list | tuple | str) else ""
    if not 0 < len(found) <= _LONGEST:
        found = _text(number)[:_LONGEST] or f"a {type(number).__name__}"
    message = f"get_input_activation on rank {model._rank}: samples must be integers, got {found}"
    return TensorTypeError(message, rank=model._rank, value=number)


def _text(value: Any) -> str:
    """Return the text of a value if there is one: Python refuses that of an integer of 5,000 digits, for example."""
    try:
        return repr(value)
    except Exception:  # a value of the user's may raise anything
        return ""


def require_inside(model: RankState, numbers: Sequence[int]) -> None:
    """Require that all samples are of the global batch; a range is not listed for it."""
    if not numbers:
        return
    ends = (numbers[0], numbers[-1]) if isinstance(numbers, range) else numbers
    if min(ends) >= 0 and max(ends) < model.global_batch_size:
        return
    found = numbers[:: 1 if numbers.step > 0 else -1] if isinstance(numbers, range) else sorted(set(numbers))
    listed = [*map(shown, found)] if len(found) <= 8 else [*map(shown, found[:6]), "...", shown(found[-1])]
    rule = (
        f"samples must lie in 0..{model.global_batch_size - 1} (global_batch_size {model.global_batch_size}), "
        f"got [{', '.join(listed)}]"
    )
    raise broken(model, "get_input_activation", rule, 0, samples=found)


def broken(model: RankState, op: str, rule: str, layer: Any = None, **facts: Any) -> LawError:
    """Return the error for a broken law."""
    names = getattr(model._runtime_predictor.workload, "layer_names", ())
    called = f" (layer {layer} is {names[layer]})" if isinstance(layer, int) and 0 <= layer < len(names) else ""
    return LawError(f"{op} on rank {model._rank}: {rule}{called}", op=op, rank=model._rank, layer=layer, **facts)


def require_kind(model: RankState, op: str, name: str, value: Any, kind: type) -> None:
    """Require a tensor of one kind."""
    if value.__class__ is OnHost:
        rule = (
            f"{name} must be in the device's memory, and the {value.kind.__name__} of layer {value.layer} was "
            "offloaded to the host's; `await model.fetch(...)` brings it back"
        )
        raise broken(model, op, rule, value.layer, value=value)
    if value.__class__ is not kind and not isinstance(value, kind):
        found = f"{describe(value)}{made_a_tensor(value)}"
        message = f"{op} on rank {model._rank}: {name} must be a {kind.__name__}, got {found}"
        raise TensorTypeError(message, op=op, rank=model._rank, value=value)


def require_layer(model: RankState, op: str, name: str, value: Any, expected: int, layer: Any) -> None:
    """Require a tensor of the layer that the operation works on."""
    if value.layer != expected:
        use = f" for layer {layer}" if isinstance(layer, int) else f", {layer}"
        raise broken(model, op, f"{name} must be of layer {expected}{use}, got {describe(value)}", layer, value=value)


def require_whole(model: RankState, op: str, name: str, value: Any) -> None:
    """Require a complete sum over a whole sequence."""
    if value.__class__ in _WHOLE:
        return
    if isinstance(value, PARTIAL):
        missing = ranges(set(range(value.num_parts)) - value.parts)
        rule = (
            f"{name} must be a complete sum, got {describe(value)}; {are(missing)} missing: all_reduce it over the "
            "ranks that hold the parts (or reduce_scatter it, for shards of the sequence)"
        )
        raise broken(model, op, rule, value.layer, value=value)
    if isinstance(value, OF_ATTENTION):
        raise broken(model, op, f"{name} must be what goes from layer to layer, got {describe(value)}", value.layer)
    if in_pieces(value):
        rule = (
            f"{name} must hold the whole sequence, got {describe(value)}; all_gather it over the ranks that hold the "
            "shards"
        )
        raise broken(model, op, rule, value.layer, value=value)


_WHOLE = frozenset({Activation, ActivationGrad})


def are(parts: str) -> str:
    """Return parts as the subject of a sentence: "part 1 is", "parts 1-3 are"."""
    return f"part {parts} is" if parts.isdigit() else f"parts {parts} are"


def require_complete(model: RankState, op: str, weight: Weight) -> None:
    """Require all shards of a weight."""
    if not weight.is_complete():
        rule = f"the weight must be complete, got {describe(weight)}; all_gather it first"
        raise broken(model, op, rule, weight.layer, value=weight)


def require_stored(model: RankState, op: str, name: str, value: Any) -> None:
    """Require a tensor (or an equal one) in one of the rank's stores."""
    if not model.holds(value):
        rule = (
            f"{name} must be in one of the rank's stores, so that its memory counts, got {describe(value)}; "
            "put it in a dict of model.storage(), and take it out after the call"
        )
        raise broken(model, op, rule, value.layer, value=value)


def require_inputs(model: RankState, op: str, layer: int, *values: Any, of_experts: bool = False) -> None:
    """Require what the record of a computation says of its inputs: kinds, layer, whole sums, samples, storage.

    Args:
        model: the rank.
        op: the computation.
        layer: the layer that it works on.
        values: its inputs, in the order of the record.
        of_experts: whether it works on copies of tokens, by a part of the experts.
    """
    record = COMPUTATIONS[op]
    pairs = zip(record.inputs_of_experts if of_experts else record.inputs, values, strict=True)
    given = [(each, value) for each, value in pairs if value is not None or not each.optional]
    for each, value in given:
        require_kind(model, op, each.name, value, each.kind)
    for each, value in given:
        require_layer(model, op, each.name, value, layer, layer)
    whole = _require_tokens if record.family == "experts" else require_whole
    for each, value in given:
        if each.kind in _BETWEEN_LAYERS:
            whole(model, op, each.name, value)
    _require_same_samples(model, op, layer, {each.name: value for each, value in given})
    for each, value in given:
        if each.stored:
            if issubclass(each.kind, Weight):
                require_complete(model, op, value)
            require_stored(model, op, each.name, value)


_BETWEEN_LAYERS = frozenset({Activation, ActivationGrad, ActivationShard, ActivationGradShard})


def _require_tokens(model: RankState, op: str, name: str, value: Any) -> None:
    """Require all or some tokens of whole samples, not copies of tokens that go to experts."""
    if value.__class__ in COPIES:
        kind = Activation if name == "inp" else ActivationGrad
        rule = (
            f"{name} must be the {kind.__name__} of whole samples, got {describe(value)}, copies of tokens; forward "
            "and backward take these with a part of the experts, and combine puts them together"
        )
        raise broken(model, op, rule, value.layer, value=value)
    if value.__class__ not in (ActivationShard, ActivationGradShard):
        require_whole(model, op, name, value)


def _require_same_samples(model: RankState, op: str, layer: int, given: Mapping[str, Any]) -> None:
    """Require an input and a gradient of the same samples, where there are both."""
    inp, grad = given.get("inp"), given.get("grad")
    if inp is not None and grad is not None and inp.samples != grad.samples:
        rule = f"inp and grad must be of the same samples, got {describe(inp)} and {describe(grad)}"
        raise broken(model, op, rule, layer, samples=(inp.samples, grad.samples))


def is_usual_forward(model: RankState, layer: int, inp: Any, weight: Any) -> bool:
    """Return whether a forward is the usual one of a layer or a part of it, for which the laws hold, in less time."""
    try:
        return (
            weight.layer == layer == inp.layer
            and weight._home is model._account
            and len(weight.shards) == weight.num_shards
            and weight.__class__ in _USUAL_WEIGHTS
            and inp.__class__ is Activation
        )
    except AttributeError:  # no tensor, or one that was never in a store
        return False


def is_usual_backward(model: RankState, op: str, layer: int, inp: Any, grad: Any, weight: Any) -> bool:
    """Return the same of a backward, or half of one."""
    account = model._account
    try:
        return (
            inp.layer == layer == grad.layer
            and inp._home is account
            and grad._home is account
            and (inp.samples is grad.samples or inp.samples == grad.samples)
            and inp.__class__ is Activation
            and grad.__class__ is ActivationGrad
            and (op == "backward_weight" if weight is None else is_usual_forward(model, layer, inp, weight))
        )
    except AttributeError:  # as in forward
        return False


_USUAL_WEIGHTS = frozenset([Weight, WeightPart])


def loss(model: RankState, inp: Any) -> None:
    """Require the model's output."""
    require_kind(model, "loss", "inp", inp, Activation)
    require_layer(model, "loss", "inp", inp, model.num_layers, "the model's output")
    require_whole(model, "loss", "inp", inp)


ADD_UP = "add up all microbatches and reduce over the ranks"


def require_all_samples(model: RankState, layer: int, weight_grad: WeightGrad, remedy: str = "") -> None:
    """Require a gradient of the whole batch.

    Args:
        model: the rank.
        layer: which layer.
        weight_grad: the gradient.
        remedy: what else to do; as `update` says it by default.
    """
    if weight_grad.samples != every(model.global_batch_size):
        is_local = model._semantics is not None and not model._semantics.in_turn
        remedy = remedy or ("a step of a replica's own updates model.local_copy(layer, weight)" if is_local else ADD_UP)
        missing = sorted(set(range(model.global_batch_size)) - weight_grad.samples)
        rule = (
            f"the gradient of layer {layer} must cover all {model.global_batch_size} samples, {missing[:8]} "
            f"{'is' if len(missing) == 1 else 'are'} missing ({len(weight_grad.samples)} are there); {remedy}"
        )
        raise broken(model, "update", rule, layer, samples=weight_grad.samples, missing=missing)


@lru_cache(maxsize=256)
def every(count: int) -> frozenset[int]:
    """Return the set of all of so many, the same object each time."""
    return frozenset(range(count))


def update(
    model: RankState,
    layer: int,
    weight_grad: Any,
    weight: Any,
    opt_state: Any,
    require_samples: Callable[[RankState, int, Any], None] = require_all_samples,
) -> None:
    """Require gradient, weight and state of the layer and step, all samples, and matching shards.

    Args:
        model: the rank.
        layer: which layer.
        weight_grad: the gradient.
        weight: what it is a gradient of.
        opt_state: the optimizer's state.
        require_samples: requires the gradient's samples: those of the whole batch, or of a replica's own step.
    """
    require_inputs(model, "update", layer, weight_grad, weight, opt_state)
    if isinstance(weight_grad, TableGrad):
        rule = f"weight_grad must be the gradient of the whole layer, got {describe(weight_grad)}; use with_table"
        raise broken(model, "update", rule, layer, value=weight_grad)
    require_samples(model, layer, weight_grad)
    _require_rows(model, "update", layer, weight.num_shards)
    if weight.step != opt_state.step:
        raise broken(
            model,
            "update",
            f"weight and optimizer state must have seen the same steps, got {describe(weight)} and "
            f"{describe(opt_state)}",
            layer,
        )
    _require_same_part(model, layer, weight_grad, weight, opt_state)
    for name, value in (("weight_grad", weight_grad), ("opt_state", opt_state)):
        if not covers(value, weight):
            raise broken(
                model,
                "update",
                f"{name} must hold the weight's shards, got {describe(value)} for {describe(weight)}",
                layer,
            )


def _require_same_part(model: RankState, layer: int, weight_grad: Any, weight: Any, opt_state: Any) -> None:
    """Require gradient and state of the weight's part, and a gradient that has seen the whole sequence."""
    for name, value in (("weight_grad", weight_grad), ("opt_state", opt_state)):
        if (value.parts, value.num_parts) != (weight.parts, weight.num_parts):
            rule = f"{name} must be of the weight's part, got {describe(value)} for {describe(weight)}"
            raise broken(model, "update", rule, layer)
    if isinstance(weight_grad, WeightGradPart) and weight_grad.sequence.share != 1:
        has_adapters = getattr(model._runtime_predictor.workload, "has_adapters", False)
        raise broken(model, "update", _not_seen(layer, weight_grad.sequence, has_adapters), layer, value=weight_grad)


def _not_seen(layer: int, covered: SequencePart, has_adapters: bool) -> str:
    """Return the rule for a gradient that has not seen the whole sequence, or all parts of what adapters work on."""
    missing = ranges(set(range(covered.num_shards)) - covered.shards)
    if missing:
        return (
            f"the gradient of layer {layer} must cover the whole sequence, shards {missing} of {covered.num_shards} "
            "are missing; reduce it over the ranks that hold them"
        )
    missing = ranges(set(range(covered.num_pieces)) - covered.pieces)
    if has_adapters:
        return (
            f"the gradient of the adapters that all parts of layer {layer} hold is a sum over the parts, of which "
            f"those of {missing} of {covered.num_pieces} are missing; all_reduce the gradient over the ranks that hold "
            "the parts"
        )
    pieces = f"pieces {missing} of {covered.num_pieces} of each shard"
    if covered.num_shards == 1:
        pieces = f"shards {missing} of {covered.num_pieces}"
    return (
        f"the gradient of what all parts of layer {layer} hold (norms, biases) must cover the whole sequence, {pieces} "
        "are missing; all_reduce the gradient over the ranks that hold the parts"
    )


def require_whole_matrices(model: RankState, layer: int, weight: Weight) -> None:
    """Require whole weights for an optimizer that does not work element by element."""
    is_whole = weight.is_complete() and weight.__class__ in (Weight, LocalWeight)
    why_whole = getattr(model._runtime_predictor.workload, "why_whole", None)
    if not is_whole and why_whole is not None and (why := why_whole(layer)):
        rule = f"{why}, got {describe(weight)}; gather gradients and weights, or use adam"
        raise broken(model, "update", rule, layer, value=weight)


def covers(held: WeightGrad | OptState, weight: Weight) -> bool:
    """Return whether a tensor holds every part of the weight, however both are cut into shards."""
    if held.is_complete() or (held.num_shards == weight.num_shards and weight.shards <= held.shards):
        return True
    return all(
        held.shards.issuperset(overlapping_shards(shard, weight.num_shards, held.num_shards)) for shard in weight.shards
    )


def final_weight(model: RankState, layer: int, weight: Any) -> None:
    """Require a weight of the layer."""
    require_kind(model, "set_final_weight", "weight", weight, Weight)
    require_layer(model, "set_final_weight", "weight", weight, layer, layer)


def load(model: RankState, layer: Any, shard: Any, num_shards: Any) -> None:
    """Require a layer of the model and a shard of it."""
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < model.num_layers:
        rule = f"layer must be an int in 0..{model.num_layers - 1}, got {layer!r:.80}"
        raise broken(model, "load_weights", rule, layer)
    are_numbers = isinstance(shard, int | float) and isinstance(num_shards, int | float)
    strange = f"shard must be one of num_shards, both whole numbers, got {shard!r} of {num_shards!r}"
    fault = shard_fault(shard, num_shards) if are_numbers else strange
    if fault:
        raise broken(model, "load_weights", fault, layer)
    _require_rows(model, "load_weights", layer, num_shards)


def part(model: RankState, layer: int, part: Any, num_parts: Any, op: str = "load_weights") -> None:
    """Require one of the parts that a layer can be divided into."""
    are_counts = all(isinstance(value, int) and not isinstance(value, bool) for value in (part, num_parts))
    if not are_counts or not 0 <= part < num_parts:
        raise broken(model, op, f"part must lie in 0..num_parts-1, got part {part!r} of {num_parts!r}", layer)


def _require_rows(model: RankState, op: str, layer: int, num_shards: int) -> None:
    """Require that each shard of a layer holds one of its rows at least."""
    most = model._runtime_predictor.workload.max_shards(layer)
    if num_shards > most:
        rule = (
            f"a layer of {most} rows cannot be cut into {num_shards} shards, each of which needs a row; use at most "
            f"{most} shards, for example within groups of ranks, as hsdp does"
        )
        raise broken(model, op, rule, layer, num_shards=num_shards, max_shards=most)
