"""The law of samples: integers of the global batch, checked before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

from minitrain.engine.laws import broken
from minitrain.errors import TensorTypeError
from minitrain.files import shown

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
        raise broken(
            model,
            "get_input_activation",
            f"samples must be at most the {model.global_batch_size} of the global batch, got more; give each once",
            0,
        )
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
    return TensorTypeError(
        f"get_input_activation on rank {model._rank}: samples must be integers, got {found}",
        rank=model._rank,
        value=number,
    )


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
    raise broken(
        model,
        "get_input_activation",
        f"samples must lie in 0..{model.global_batch_size - 1} (global_batch_size {model.global_batch_size}), "
        f"got [{', '.join(map(shown, found[:8]))}]",
        0,
        samples=found,
    )
