"""`range` in a user's strategy while its ranks are folded: its ends may differ between ranks, as those of `span` may.

Python's own `range` takes ints alone, and a strategy that says which samples a rank has is most naturally written with
it. So the module of a strategy gets a `range` of its own for the time in which its ranks are folded.

It is a file of its own, since it is the one place that reaches into a module of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minitrain.run.strategy_loading import unwrapped
from minitrain.tensors.index_sets import span


@contextmanager
def ranges_of_every_rank(strategy: Callable[..., Any]) -> Iterator[None]:
    """Let `range` in the module of a strategy stand for the ranges of every rank of a class.

    Args:
        strategy: a user's strategy; shipped ones use `span`.
    """
    names: dict[str, Any] = getattr(unwrapped(strategy), "__globals__", {})
    if "range" in names or f"{names.get('__name__', 'minitrain')}.".startswith("minitrain."):
        yield
        return
    names["range"] = _range
    try:
        yield
    finally:
        names.pop("range", None)


def _range(*ends: Any) -> Sequence[Any]:
    """Return a range whose start and stop may differ between ranks."""
    return span(*ends) if len(ends) == 2 else range(*ends)
