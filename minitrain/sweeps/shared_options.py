"""Which of a sweep's names go to which of its strategies: an option goes to those that have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from minitrain.run.chosen_strategy import choose_strategy
from minitrain.run.parameters import DEFAULTS
from minitrain.run.strategy_loading import Strategy, takes_option
from minitrain.sweeps.batches import label_of


class SharedOptions:
    """What each strategy of a sweep is given of the names that the sweep has for all.

    Parameters of `simulate` go to all strategies, and so does a name that no strategy knows, whose rows say so.

    Args:
        strategies: those of the sweep, with a label each.
    """

    def __init__(self, strategies: Sequence[str | Strategy]) -> None:
        self._functions = {label_of(strategy): choose_strategy(strategy).function for strategy in strategies}
        self._without: dict[str, dict[str, None]] = {label: {} for label in self._functions}
        self._takers = cache(self._find_takers)

    def _find_takers(self, name: str) -> frozenset[str]:
        """Return the labels of the strategies that a name goes to."""
        if name in DEFAULTS:
            return frozenset(self._functions)
        takers = [label for label, function in self._functions.items() if takes_option(function, name)]
        return frozenset(takers or self._functions)

    def left_out(self, strategy: str | Strategy, names: Iterable[str]) -> list[str]:
        """Return the names among some that are options of other strategies alone, and remember them for `notes`."""
        label = label_of(strategy)
        found = [name for name in names if label not in self._takers(name)]
        self._without[label].update(dict.fromkeys(found))
        return found

    def notes(self) -> list[str]:
        """Return a sentence for each group of options that some strategies do not have."""
        labels: dict[tuple[str, ...], list[str]] = {}
        for label, names in self._without.items():
            if names:
                labels.setdefault(tuple(names), []).append(label)
        return [_note(names, without) for names, without in labels.items()]


def _note(names: Sequence[str], labels: Sequence[str]) -> str:
    """Say which strategies run without which options."""
    have, run = ("has", "runs") if len(labels) == 1 else ("have", "run")
    them = "it" if len(names) == 1 else "them"
    return f"{_listed(labels, 'and')} {have} no option {_listed(names, 'or')}, and {run} once without {them}"


def _listed(words: Sequence[str], last: str) -> str:
    """Return words in a row.

    >>> _listed(["ddp", "zero1", "zero3"], "and")
    'ddp, zero1 and zero3'
    """
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
