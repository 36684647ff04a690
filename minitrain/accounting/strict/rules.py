"""The further laws of a strict run: nothing is counted twice, and everything fits together step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from fractions import Fraction
from typing import Any

from minitrain.accounting.strict.genuine import require_genuine
from minitrain.accounting.strict.ledger import Ledger
from minitrain.accounting.strict.written import meets
from minitrain.errors import LawError
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.transport.collectives import describe


def require_pass(ledger: Ledger, op: str, inp: Any, weight: Any, *grads: Any) -> None:
    """Require genuine tensors of one step for a pass through a layer.

    What is no tensor, or of the wrong kind, is left to the operation itself to refuse.
    """
    require_genuine(ledger, op, (inp, *grads, weight))
    if inp.__class__ is Activation and weight.__class__ is Weight and all(g.__class__ is ActivationGrad for g in grads):
        for grad in grads:
            require_step(ledger, op, "the gradient", grad, weight.step)
        require_step(ledger, op, "the input", inp, weight.step)


def require_step(ledger: Ledger, op: str, what: str, value: Any, weight_step: int) -> None:
    """Require that a tensor was computed with weights of the step that it is used with."""
    step = value._origin.step
    if step is not None and step != weight_step:
        raise LawError(
            f"{op} on rank {ledger.rank}: {what} stems from weights of step {step}, got {describe(value)}, and cannot "
            f"be used with weights of step {weight_step}; forward, backward and update take the same weights",
            op=op,
            rank=ledger.rank,
            layer=value.layer,
            steps=(step, weight_step),
        )


def require_update(ledger: Ledger, layer: int, grad: WeightGrad, weight: Weight, opt_state: OptState) -> None:
    """Require the state of exactly the weight's shards, a gradient of its step, and no second update of any part."""
    step = weight.step
    if step != opt_state.step:
        return  # the operation itself refuses that
    if grad._origin.step != step:
        require_step(ledger, "update", "the gradient", grad, step)
    if (weight.num_shards != opt_state.num_shards or weight.shards != opt_state.shards) and (
        _parts(weight) != _parts(opt_state)
    ):
        raise LawError(
            f"update on rank {ledger.rank}: the optimizer state must be of exactly the weight's shards, got "
            f"{describe(opt_state)} for {describe(weight)}; shard both alike",
            op="update",
            rank=ledger.rank,
            layer=layer,
        )
    done = ledger.updated.get((layer, step))
    if done is not None and _overlap(done, weight):
        raise LawError(
            f"update on rank {ledger.rank}: {describe(weight)} was updated already; each shard takes one update a step",
            op="update",
            rank=ledger.rank,
            layer=layer,
        )


def note_update(ledger: Ledger, weight: Weight) -> None:
    """Remember which part of a layer was updated, of which step."""
    done = ledger.updated.setdefault((weight.layer, weight.step), {})
    done.setdefault(weight.num_shards, set()).update(weight.shards)


def _overlap(done: Mapping[int, Set[int]], weight: Weight) -> bool:
    """Return whether shards, as intervals, have a part in common with a weight.

    Args:
        done: the shards, by the number of them that the whole is cut into.
        weight: the weight.
    """
    same = done.get(weight.num_shards)
    if same is not None and not same.isdisjoint(weight.shards):
        return True
    others = {count: shards for count, shards in done.items() if count != weight.num_shards}
    return bool(others) and any(meets(others, shard, weight.num_shards) for shard in weight.shards)


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


def require_reducible(op: str, values: Sequence[WeightGrad], result: WeightGrad, works: Sequence[Any]) -> None:
    """Require that no sample is counted twice in a sum over ranks, and that all stem from one step."""
    if sum([len(value.samples) for value in values]) != len(result.samples):
        sample, first, second = _first_twice([value.samples for value in values], works)
        raise LawError(
            f"{op}: sample {sample} is counted twice in the gradient of layer {result.layer}, brought by {first} and "
            f"by {second}; each sample goes to one rank of the group",
            op=op,
            layer=result.layer,
            sample=sample,
        )
    _require_one_step(op, values, works)


def require_gatherable(op: str, values: Sequence[Any], result: Any, works: Sequence[Any]) -> None:
    """Require that no shard comes twice in a gather, and that gradients stem from one step."""
    if sum([len(value.shards) for value in values]) != len(result.shards):
        shard, first, second = _first_twice([value.shards for value in values], works)
        raise LawError(
            f"{op}: shard {shard} of {result.num_shards} of layer {result.layer} comes twice, from {first} and from "
            f"{second}; each shard comes from one rank of the group",
            op=op,
            layer=result.layer,
            shard=shard,
        )
    _require_one_step(op, values, works)


def _first_twice(brought: Sequence[frozenset[int]], works: Sequence[Any]) -> tuple[int, str, str]:
    """Return the first number that two members bring, and who they are."""
    owner: dict[int, str] = {}
    for numbers, place in zip(brought, _places(works), strict=True):
        twice = [number for number in numbers if number in owner]
        if twice:
            return min(twice), owner[min(twice)], place
        owner.update((number, place) for number in numbers)
    raise AssertionError("nothing comes twice")  # whoever asks has counted


def _places(works: Sequence[Any]) -> list[str]:
    """Return which ranks take part in a collective, and where they called it."""
    return [f"rank {work.rank} ({work.model.line_of(work)})" for work in works]


def _require_one_step(op: str, values: Sequence[Any], works: Sequence[Any]) -> None:
    """Require that what ranks put together stems from weights of one step."""
    steps = [value._origin.step for value in values]
    if steps.count(steps[0]) != len(steps):
        brought = "; ".join(f"{place}: step {step}" for place, step in zip(_places(works), steps, strict=True))
        raise LawError(
            f"{op}: all gradients must stem from weights of the same step, got {brought}",
            op=op,
            layer=values[0].layer,
            steps=steps,
        )
