"""Hidden sizes that only a teacher knows: drawn from a secret, and legal for the exercise.

The hidden sizes of the shipped exercises can be read by everybody. A teacher's secret draws others, always the same for
the same secret: each figure between the smallest and the largest of the exercise's known sizes, until the reference
trains with it and keeps its own budgets. Where all known sizes have at least as many microbatches as ranks, those that
are drawn have too. At most one of them has a single rank, unless all known ones do.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minitrain.errors import MinitrainError, UsageError
from minitrain.learn.budgets import budget_for
from minitrain.learn.exercise import Case, Exercise

_MOST_TRIES = 20_000


def with_secret_sizes(exercise: Exercise, secret: str) -> Exercise:
    """Return an exercise with other hidden sizes, as many as it has.

    Args:
        exercise: with its reference.
        secret: any text; one that cannot be guessed.

    Raises:
        UsageError: there is no reference, or nothing legal is found.
    """
    if exercise.slowed:
        return exercise  # which has no hidden sizes
    if not exercise.has_reference:
        raise UsageError(f"hidden sizes of {exercise.name} cannot be drawn where its reference is not there")
    wanted = len(exercise.hidden) or 3
    dice = random.Random(f"{secret}\n{exercise.name}")  # of text: the same on every machine
    known = [case for case in (*exercise.public, *exercise.hidden) if case.is_proven]
    drawn: dict[str, Case] = {}
    for _ in range(_MOST_TRIES):
        case = _draw(dice, known)
        if _is_new(case, known, drawn.values()) and _is_legal(exercise, case, known):
            drawn[case.key] = case
            if len(drawn) == wanted:
                return replace(exercise, hidden=[*drawn.values()])
    raise UsageError(f"no {wanted} further sizes were found for {exercise.name}; give it hidden sizes that differ more")


def _is_new(case: Case, known: Sequence[Case], drawn: Collection[Case]) -> bool:
    """Return whether sizes test something that others do not: not the same, and not a single rank once more."""
    alone = case.world_size == 1 < max(other.world_size for other in known)
    return all(case.key != other.key and not (alone and other.world_size == 1) for other in drawn) and all(
        case.key != other.key for other in known
    )


def _draw(dice: random.Random, known: Sequence[Case]) -> Case:
    """Return sizes between those that are known."""
    sizes = {name: _between(dice, [case.numbers[name] for case in known]) for name in known[0].numbers}
    options: dict[str, Any] = {}
    for name in sorted({name for case in known for name in case.options}):
        values = [case.options[name] for case in known if name in case.options]
        if len(values) == len(known) or dice.random() < len(values) / len(known):
            options[name] = _between(dice, values)
    return Case(**sizes, options=options, hidden=True, workload=known[0].workload)


def _between(dice: random.Random, values: Sequence[Any]) -> Any:
    """Return a number between some others, or one of some values that are no numbers."""
    if all(type(value) is int for value in values):
        return dice.randint(min(values), max(values))
    return dice.choice(values)


def _is_legal(exercise: Exercise, case: Case, known: Sequence[Case]) -> bool:
    """Return whether the reference trains with some sizes, within what it may need."""
    fills = [_fills_ranks(other.numbers, other.options) for other in (*known, case)]
    if all(fills[:-1]) and not fills[-1]:
        return False
    try:
        budget = budget_for(exercise, case)
    except (MinitrainError, ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return exercise.memory_limit_bytes is None or budget.reference_memory_bytes <= exercise.memory_limit_bytes


def _fills_ranks(sizes: Mapping[str, int], options: Mapping[str, Any]) -> bool:
    """Return whether there are at least as many microbatches as ranks."""
    return int(sizes["global_batch_size"]) >= int(sizes["world_size"]) * int(options.get("microbatch_size", 1))
