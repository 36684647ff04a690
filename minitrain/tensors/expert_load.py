"""How copies of tokens fall on the parts of a layer's experts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError, is_number


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Which shares of all copies of tokens go to the parts of a layer's experts.

    Args:
        num_parts: parts that the experts are divided into.
        shares: the share that each part gets; () where all get the same.
        dropped: the share that no expert takes.
    """

    num_parts: int
    shares: tuple[Fraction, ...] = ()
    dropped: Fraction = Fraction(0)

    def share(self, parts: frozenset[int]) -> Fraction:
        """Return the share that some parts get together."""
        if not self.shares:
            return (1 - self.dropped) * Fraction(len(parts), self.num_parts)
        return sum((self.shares[part] for part in parts), Fraction(0))

    @property
    def busiest(self) -> Fraction:
        """The share of the part that gets most."""
        return max(self.shares) if self.shares else (1 - self.dropped) / self.num_parts


@lru_cache(maxsize=256)
def expert_load(
    num_experts: int, num_parts: int, imbalance: float | tuple[float, ...] = 1, capacity_factor: float | None = None
) -> ExpertLoad:
    """Return how copies of tokens fall on parts of experts, each of which has `num_experts` / `num_parts` neighbours.

    Args:
        num_experts: experts of the layer.
        num_parts: parts, a divisor of them.
        imbalance: how many times the mean the busiest expert (the first one) gets, the others sharing the rest; or a
            number for each expert, to which its tokens are proportional.
        capacity_factor: how many times the mean an expert takes at most, the rest being dropped; None for all.

    Raises:
        UsageError: a number is outside its rule.

    >>> expert_load(4, 2, imbalance=2).shares
    (Fraction(2, 3), Fraction(1, 3))
    >>> expert_load(4, 2, imbalance=2, capacity_factor=1).dropped
    Fraction(1, 4)
    """
    sent = _by_expert(num_experts, imbalance)
    if capacity_factor is not None:
        taken = [min(share, _capacity(capacity_factor) / num_experts) for share in sent]
    else:
        taken = sent
    size = num_experts // num_parts
    shares = tuple(sum(taken[part * size : (part + 1) * size], Fraction(0)) for part in range(num_parts))
    return ExpertLoad(num_parts, shares if len(set(shares)) > 1 else (), 1 - sum(shares, Fraction(0)))


def _by_expert(num_experts: int, imbalance: Any) -> list[Fraction]:
    """Return the share of all copies that each expert is sent."""
    if isinstance(imbalance, tuple):
        if len(imbalance) != num_experts or not all(map(is_number, imbalance)) or not sum(imbalance):
            raise UsageError(
                f"imbalance must be a factor, or a number of at least 0 for each of the {num_experts} experts, got "
                f"{imbalance!r:.80}"
            )
        amounts = [_exactly(amount) for amount in imbalance]
        return [amount / sum(amounts) for amount in amounts]
    if not is_number(imbalance) or not 1 <= imbalance <= num_experts:
        raise UsageError(
            f"imbalance must lie in 1..{num_experts}, the number of experts, since the busiest expert gets so many "
            f"times the mean; got {imbalance!r:.80}"
        )
    first = _exactly(imbalance) / num_experts
    return [first, *[(1 - first) / max(num_experts - 1, 1)] * (num_experts - 1)]


def _capacity(factor: Any) -> Fraction:
    """Return a capacity factor, once it is one."""
    if not is_number(factor) or not factor:
        raise UsageError(
            f"capacity_factor must be a number above 0, or None for experts that take all tokens, got {factor!r:.80}; "
            "use 1.25"
        )
    return _exactly(factor)


def _exactly(value: float) -> Fraction:
    """Return the number that a float shows: 1.3 as 13/10."""
    return Fraction(str(value))


def as_imbalance(
    imbalance: float | str | Sequence[float], layer: int = 0, layers: Collection[int] = (0,)
) -> float | tuple[float, ...]:
    """Return a factor as it is, and the numbers of a sequence or a file as a tuple, which is hashable.

    Args:
        imbalance: a factor, a number for each expert, or the path of a file with these on a line for each layer.
        layer: for which layer.
        layers: those that have experts.

    Raises:
        UsageError: the file cannot be read, or has another number of lines.
    """
    given: Any = imbalance  # text is a sequence, too
    if not isinstance(given, str):
        return tuple(given) if isinstance(given, Sequence) else given  # `_by_expert` judges it
    rows = _loads_in(given, _version_of(given))
    if len(rows) not in (1, len(layers)):
        raise UsageError(
            f"{imbalance} must have the loads of experts on a line for each of {len(layers)} layers that have them, or "
            f"on one for all, found {len(rows)} lines"
        )
    return rows[sorted(layers).index(layer) if len(rows) > 1 else 0]


def _version_of(path: str) -> tuple[int, int]:
    """Return what changes when a file does; a file that is not there is told when it is read."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return 0, 0
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=16)
def _loads_in(path: str, _version: tuple[int, int]) -> tuple[tuple[float, ...], ...]:
    """Return the numbers of each line of a file."""
    from minitrain.files import read_text  # noqa: PLC0415 - only where a file is read

    try:
        text = read_text(path, "file with the loads of experts")
        rows = (line.replace(",", " ").split() for line in text.splitlines())
        return tuple(tuple(map(_number, row)) for row in rows if row)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the loads of experts in {path}: {error}; write the tokens that each expert gets on a line "
            "for each layer, such as 812,790,1033,409"
        ) from None


def _number(word: str) -> float:
    """Return the number that a word of a file is."""
    from minitrain.files import shown  # noqa: PLC0415 - as above

    try:
        return float(word)
    except ValueError:
        raise ValueError(f"expected numbers, found {shown(word)}") from None
