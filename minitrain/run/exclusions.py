"""Which parameters of a run exclude each other, and which values `fold` may have.

Folding that is asked for excludes what tells ranks apart. Folding that happens by itself ("auto") excludes nothing: a
run with such a parameter simulates every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError

AUTO = "auto"


def asks_to_fold(fold: Any) -> bool:
    """Return whether a run is to be folded or refused; False where folding is optional ("auto") or off."""
    return fold is True or bool(getattr(fold, "was_asked_for", False))


def require_fold(fold: Any) -> None:
    """Require a value that `fold` may have.

    Raises:
        UsageError: it is another one.
    """
    if not (fold is True or fold is False or fold == AUTO or hasattr(fold, "was_asked_for")):
        raise UsageError(f'fold must be True, False or "auto", got {fold!r:.80}', fold=fold)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A parameter that, with some of its values, does not go together with others.

    Args:
        name: the parameter.
        value: the value that excludes others; any true value if None.
        others: parameters that must not be given beside it.
        spelling: parameter and value as messages name them.
        reason: why, to follow the others' names.
    """

    name: str
    value: Any
    others: tuple[str, ...]
    spelling: str
    reason: str = ""

    def found(self, given: Mapping[str, Any]) -> list[str]:
        """Return the parameters among some given ones that are excluded, in the order of the table."""
        value = given.get(self.name)
        if not (_is_given(self.name, value) if self.value is None else value == self.value):
            return []
        return [name for name in self.others if _is_given(name, given.get(name))]

    def require(self, given: Mapping[str, Any]) -> None:
        """Require that nothing excluded is among some parameters.

        Raises:
            UsageError: something is.
        """
        excluded = self.found(given)
        if excluded:
            raise UsageError(
                f"{self.spelling} does not go with {', '.join(excluded)}{self.reason}; leave one out",
                **{self.name: given[self.name]},
            )


def _is_given(name: str, value: Any) -> bool:
    """Return whether a parameter asks for something."""
    return asks_to_fold(value) if name == "fold" else bool(value)


_NOT_FOR_TOTALS = ("fold", "contention", "strict", "numerics", "memory_by_kind", "observers", "faults")
_TELL_RANKS_APART = ("slowdown", "contention", "strict", "numerics", "observers", "faults")

EXCLUSIONS: Mapping[str, Exclusion] = MappingProxyType(
    {
        "log": Exclusion("log", "summary", _NOT_FOR_TOTALS, 'log="summary"'),
        "faults": Exclusion("faults", None, ("strict", "numerics", "memory_by_kind", "observers"), "faults"),
        "fold": Exclusion("fold", None, _TELL_RANKS_APART, "fold=True", ", which tells ranks apart"),
    }
)
"""What excludes each other, by the parameter that excludes the others."""
