"""The further laws of a strict run: only valid tensors, nothing counted twice, everything of one step.

A tensor is valid if it came out of an operation of its rank, was not altered, and was not overwritten since. `observer`
checks this by an expression of its own first, which holds for every valid tensor that owns its buffer. Where that does
not hold, it asks the functions here, which know the other valid cases and the message for every invalid one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from fractions import Fraction
from itertools import product
from operator import attrgetter
from typing import Any, Protocol

from minitrain.errors import LawError
from minitrain.operations import UPDATE_ON_HOST
from minitrain.operations.collectives import describe
from minitrain.source_lines import present_place
from minitrain.tensors import FIELDS, KINDS, Activation, ActivationGrad, OptState, Sharded, Weight, WeightGrad
from minitrain.tensors.compressed import CompressedGrad
from minitrain.tensors.fields import copy_to_device
from minitrain.tensors.index_sets import overlaps_any
from minitrain.tensors.kinds import LocalWeight
from minitrain.tensors.placed import COPIES, WeightGradPart, in_pieces, num_summed

Fields = tuple[Any, ...]
Members = Sequence[tuple[Any, Any]]
"""The operations of the ranks that take part in a collective, each with the line where it was called."""


class Ledger(Protocol):
    """The part of a rank's ledger that is read here.

    Attributes:
        rank: whose it is.
        copied: the tensors that launched offloads copy, which nobody has awaited, by row.
        unawaited: the results of launched operations that nobody has awaited, by `id`.
        updated: the shards that were updated, by the number of shards, by layer and step.
    """

    rank: int
    copied: dict[int, Any]
    unawaited: set[int]
    updated: dict[tuple[int, int], dict[int, set[int]]]


_WHOLE_GRADS = frozenset({WeightGrad, WeightGradPart})


def require_valid(ledger: Ledger, op: str, values: Iterable[Any], *, whatever_version: bool = False) -> None:
    """Require that tensors came out of operations of this rank, unaltered, and were not overwritten since.

    What is no tensor at all is left to the operation itself to refuse.
    """
    for value in values:
        fields_of = FIELDS.get(value.__class__)
        origin = getattr(value, "_origin", None)
        if fields_of is not None and origin is not None:
            fields = fields_of(value)
            if (origin.usable_by is ledger and origin.fields == fields) or origin.is_valid(
                ledger, fields, whatever_version
            ):
                continue
            fault = origin.why_invalid(ledger, value)
        elif isinstance(value, KINDS):
            fault = (
                "did not come out of an operation of this run: it was made by hand, by copy or by dataclasses.replace, "
                "or before the run, or came through the transport behind the model's back, and is used at "
                f"{present_place()}; only what operations give can be used"
            )
        else:
            continue
        rule = f"{op} on rank {ledger.rank}: {describe(value)} {fault}"
        raise LawError(rule, op=op, rank=ledger.rank, layer=value.layer, value=value)


def alteration(value: Any, fields: Fields, line: object) -> str:
    """Return in words which fields of a tensor are not what they were when it was made."""
    present = FIELDS[type(value)](value)
    names = [name for name, _ in zip(type(value).__dataclass_fields__, present, strict=True)]
    changed = [
        f"{name} was {_brief(before)} when it was made at {line} and is {_brief(now)} now"
        for name, before, now in zip(names, fields, present, strict=True)
        if before != now
    ]
    return f"was altered: {', '.join(changed)}; tensors are made by operations alone"


def _brief(value: Any) -> str:
    """Return a field's value in words."""
    return str(sorted(value)[:8]) if isinstance(value, frozenset) else repr(value)


def different_steps(rank: int, op: str, first: Any, second: Any) -> LawError:
    """Return the error for two tensors that were computed with weights of different steps."""
    rule = (
        f"{op} on rank {rank}: both must stem from weights of the same step, got {describe(first)} of step "
        f"{first._origin.step} and {describe(second)} of step {second._origin.step}"
    )
    return LawError(rule, op=op, rank=rank, layer=first.layer)


def counted_twice(rank: int, first: Any, second: Any) -> LawError:
    """Return the error for a sum of two gradients that counts samples twice."""
    twice = first.samples & second.samples
    shown = ", ".join(map(str, sorted(twice)[:8])) + (", ..." if len(twice) > 8 else "")
    rule = (
        f"+ on rank {rank}: {f'sample {shown} is' if len(twice) == 1 else f'samples {shown} are'} counted twice in "
        f"the gradient of layer {first.layer}, got {describe(first)} and {describe(second)}; add each sample's "
        "gradient once"
    )
    return LawError(rule, op="+", rank=rank, layer=first.layer, samples=twice)


def require_awaited(ledger: Ledger, op: str, given: Iterable[Any]) -> None:
    """Require that no tensor is the result of a launched operation which may not have ended yet."""
    for value in given:
        if id(value) in ledger.unawaited:
            rule = (
                f"{op} on rank {ledger.rank}: {describe(value)} is the result of a launched operation that nobody has "
                "awaited; await that for its result, which is there from its end on"
            )
            raise LawError(rule, op=op, rank=ledger.rank, layer=value.layer, value=value)


def require_usable(ledger: Ledger, op: str, given: Iterable[Any], delay: int = 0) -> int | None:
    """Require valid tensors of one step for an operation that a rank does alone, and return that step.

    What is no tensor is left to the operation itself to refuse, and so are an optimizer state and a weight of different
    steps.

    Args:
        ledger: the rank's.
        op: the operation.
        given: what it is given.
        delay: how many steps old the weights are that the gradient of an update is of, as the strategy declares.
    """
    tensors = [value for value in given if isinstance(value, KINDS)]
    require_valid(ledger, op, tensors)
    stepped = [value for value in tensors if value._origin.step is not None and not isinstance(value, OptState)]
    if op in ("outer_gradient", "mix"):  # of two weights, of which one has seen steps of its own
        stepped = [value for value in stepped if value.__class__ is not LocalWeight]
    source: Any = next((value for value in stepped if isinstance(value, Weight)), stepped[-1] if stepped else None)
    if op == "update" and delay and isinstance(source, Weight):
        _require_delay(ledger, stepped, source, delay)
        return source.step
    for value in sorted(stepped, key=_is_grad, reverse=True) if source is not None else ():
        if value._origin.step != source._origin.step:
            raise _of_another_step(ledger, op, value, source._origin.step)
    return None if source is None else source._origin.step


def _require_delay(ledger: Ledger, stepped: Iterable[Any], weight: Weight, delay: int) -> None:
    """Require a gradient of the weights that were the newest some steps ago, or of the first."""
    for value in filter(_is_grad, stepped):
        wanted, found = max(0, weight.step - delay), value._origin.step
        if found != wanted:
            rule = (
                f"update on rank {ledger.rank}: the gradient of step {weight.step} must be of weights of step "
                f"{wanted}, as the strategy declares, got {describe(value)} of weights of step {found}; take its "
                "samples forward and backward through those"
            )
            raise LawError(rule, op="update", rank=ledger.rank, layer=weight.layer, steps=(found, wanted))


def _is_grad(value: Any) -> bool:
    """Return whether a tensor is a gradient."""
    return isinstance(value, ActivationGrad | WeightGrad)


def _of_another_step(ledger: Ledger, op: str, value: Any, step: int) -> LawError:
    """Return the error for a tensor that was computed with weights of another step than it is used with."""
    what = (
        "the gradient"
        if _is_grad(value)
        else "the input"
        if value.__class__ is Activation
        else f"a {type(value).__name__}"
    )
    rule = (
        f"{op} on rank {ledger.rank}: {what} stems from weights of step {value._origin.step}, got {describe(value)}, "
        f"and cannot be used with weights of step {step}; forward, backward and update take the same weights"
    )
    return LawError(rule, op=op, rank=ledger.rank, layer=value.layer, steps=(value._origin.step, step))


def require_update(ledger: Ledger, layer: int, grad: Any, weight: Any, opt_state: Any) -> None:
    """Require the state of exactly the weight's shards, and no second update of any part; of whole layers alone."""
    if not (grad.__class__ in _WHOLE_GRADS and weight.__class__ is Weight and opt_state.__class__ is OptState):
        return
    if weight.step != opt_state.step:
        return  # the operation itself refuses that
    if (weight.num_shards != opt_state.num_shards or weight.shards != opt_state.shards) and (
        _parts(weight) != _parts(opt_state)
    ):
        rule = (
            f"update on rank {ledger.rank}: the optimizer state must be of exactly the weight's shards, got "
            f"{describe(opt_state)} for {describe(weight)}; shard both alike"
        )
        raise LawError(rule, op="update", rank=ledger.rank, layer=layer)
    done = ledger.updated.get((layer, weight.step))
    if done is not None and _overlap(done, weight):
        rule = (
            f"update on rank {ledger.rank}: {describe(weight)} was updated already; each shard takes one update a step"
        )
        raise LawError(rule, op="update", rank=ledger.rank, layer=layer)


def require_update_on_host(ledger: Ledger, given: Sequence[Any]) -> None:
    """Require of what lies in host memory what an update on the device needs, and remember it."""
    grad, weight, state = map(copy_to_device, given)
    grad._origin = given[0]._origin
    if grad._origin.step != weight.step:
        raise _of_another_step(ledger, UPDATE_ON_HOST, grad, weight.step)
    require_update(ledger, weight.layer, grad, weight, state)
    note_update(ledger, weight)


def require_copied(ledger: Ledger, given: Iterable[Any]) -> None:
    """Require that no launched offload copies what an update overwrites: the copy would have numbers of two steps."""
    copied = {id(value._origin.buffer) for value in ledger.copied.values()}
    for value in given if copied else ():
        if isinstance(value, Weight | OptState) and id(value._origin.buffer) in copied:
            rule = (
                f"update on rank {ledger.rank}: {describe(value)} is being copied to the host by a launched offload, "
                "and the update works in place, so that the copy would have numbers of two steps; await it before"
            )
            raise LawError(rule, op="update", rank=ledger.rank, layer=value.layer, value=value)


def note_update(ledger: Ledger, weight: Weight) -> None:
    """Remember which part of a layer was updated, of which step."""
    done = ledger.updated.setdefault((weight.layer, weight.step), {})
    done.setdefault(weight.num_shards, set()).update(weight.shards)


def _overlap(done: Mapping[int, Set[int]], weight: Weight) -> bool:
    """Return whether shards have a part in common with a weight.

    Args:
        done: the shards, by the number of them that the whole is cut into.
        weight: the weight.
    """
    same = done.get(weight.num_shards)
    if same is not None and not same.isdisjoint(weight.shards):
        return True
    others = {count: shards for count, shards in done.items() if count != weight.num_shards}
    return bool(others) and any(overlaps_any(shard, weight.num_shards, others) for shard in weight.shards)


def _parts(tensor: Weight | OptState) -> list[tuple[Fraction, Fraction]]:
    """Return the parts of the whole that a tensor holds, those that touch joined, in order."""
    joined: list[tuple[Fraction, Fraction]] = []
    for shard in sorted(tensor.shards):
        start, end = Fraction(shard, tensor.num_shards), Fraction(shard + 1, tensor.num_shards)
        if joined and joined[-1][1] >= start:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def require_reducible(op: str, values: Sequence[WeightGrad], result: WeightGrad, members: Members) -> None:
    """Require that no sample is counted twice in a sum over ranks, and that all stem from one step.

    Sums over the parts of a layer are of the same samples; that no part is counted twice is a law of every run.
    """
    of_one_part = values[0].parts == values[-1].parts
    if of_one_part and sum(map(num_summed, values)) != num_summed(result):
        found, first, second = _first_twice([_added(value) for value in values], members)
        sample = found[0] if isinstance(found, tuple) else found
        rule = (
            f"{op}: sample {sample} is counted twice in the gradient of layer {result.layer}, brought by {first} and "
            f"by {second}; each sample goes to one rank of the group"
        )
        raise LawError(rule, op=op, layer=result.layer, sample=sample)
    _require_one_step(op, values, members)


def _added(value: Any) -> Set[Any]:
    """Return what a gradient adds up: samples, or each sample in each shard of the sequence."""
    if isinstance(value, WeightGradPart):
        return set(product(value.samples, value.sequence.shards))
    samples: frozenset[int] = value.samples
    return samples


def require_gatherable(op: str, values: Sequence[Any], result: Any, members: Members) -> None:
    """Require that no shard comes twice in a gather, and that gradients stem from one step."""
    first_value = values[0]
    if isinstance(first_value, Sharded):
        held, num_shards = attrgetter("shards"), first_value.num_shards
    elif in_pieces(first_value):
        held, num_shards = attrgetter("sequence.pieces"), first_value.sequence.num_pieces
    else:
        held, num_shards = attrgetter("sequence.shards"), first_value.sequence.num_shards
    num_gathered = num_shards if in_pieces(first_value) and not in_pieces(result) else len(held(result))
    if sum(map(len, map(held, values))) != num_gathered and not isinstance(first_value, CompressedGrad):
        shard, first, second = _first_twice(list(map(held, values)), members)
        rule = (
            f"{op}: shard {shard} of {num_shards} of layer {result.layer} comes twice, from {first} and from "
            f"{second}; each shard comes from one rank of the group"
        )
        raise LawError(rule, op=op, layer=result.layer, shard=shard)
    _require_one_step(op, values, members)


def require_exchangeable(op: str, values: Sequence[Any], members: Members) -> None:
    """Require that copies of tokens which ranks exchange stem from one step."""
    if values[0].__class__ in COPIES:
        _require_one_step(op, values, members)


def _first_twice(brought: Sequence[Set[Any]], members: Members) -> tuple[Any, str, str]:
    """Return the first number that two members bring, and who they are."""
    owner: dict[Any, str] = {}
    for numbers, place in zip(brought, _places(members), strict=True):
        twice = [number for number in numbers if number in owner]
        if twice:
            return min(twice), owner[min(twice)], place
        owner.update((number, place) for number in numbers)
    raise AssertionError("nothing comes twice")  # whoever asks has counted


def _places(members: Members) -> list[str]:
    """Return which ranks take part in a collective, and where they called it."""
    return [f"rank {operation.rank} ({line})" for operation, line in members]


def _require_one_step(op: str, values: Sequence[Any], members: Members) -> None:
    """Require that what ranks put together stems from weights of one step."""
    steps = [value._origin.step for value in values]
    if steps.count(steps[0]) != len(steps):
        brought = "; ".join(f"{place}: step {step}" for place, step in zip(_places(members), steps, strict=True))
        rule = f"{op}: all gradients must stem from weights of the same step, got {brought}"
        raise LawError(rule, op=op, layer=values[0].layer, steps=steps)


def require_final_weights(ledger: Ledger, weights: Mapping[int, Weight]) -> None:
    """Require that every final weight of a rank is one that was handed in for its layer, as it was then.

    Raises:
        LawError: one is not.
    """
    for layer, weight in weights.items():
        origin: Any = getattr(weight, "_origin", None)
        if getattr(origin, "ledger", None) is not ledger or origin.buffer is not None:
            rule = (
                f"the final weight of layer {layer} on rank {ledger.rank} was not handed in there, got "
                f"{describe(weight)}; call model.set_final_weight"
            )
            raise LawError(rule, rank=ledger.rank, layer=layer)
        if FIELDS[type(weight)](weight) != origin.fields or weight.layer != layer:
            rule = (
                f"the final weight of layer {layer} on rank {ledger.rank} was altered after it was handed in "
                f"(made at {origin.line}), got {describe(weight)}"
            )
            raise LawError(rule, rank=ledger.rank, layer=layer)
