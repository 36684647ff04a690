"""The result of a folded run: figures from one log for each class, and logs of all ranks where somebody reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from minitrain.run.folding.expansion import Expansion, OfEveryRank
from minitrain.run.result import Run

if TYPE_CHECKING:
    from minitrain.operations import Event, MemoryChange
    from minitrain.run.analysis.breakdown import Breakdown
    from minitrain.run.analysis.explanation import Explanation
    from minitrain.run.analysis.timeline import Timeline
    from minitrain.run.folding.attempt import FoldAttempt
    from minitrain.run.folding.model import FoldedModel
    from minitrain.run.ranks_once import Repeated

MOST_DRAWN = 50_000
"""The most events of a run whose ranks are drawn one by one where nobody asked for folding; of more, classes are."""


@dataclass(frozen=True, repr=False, eq=False)
class FoldedRun(Run):
    """A run of which one rank of each class was simulated.

    It equals the run of all ranks. Logs and models are made for the ranks that somebody looks at. Figures are made from
    the classes.

    Args:
        expansion: what makes the logs and models of all ranks, and the models of the classes.
        was_asked_for: whether folding was asked for. Then pictures have a row for each class of ranks.
    """

    expansion: Expansion | None = field(default=None, repr=False, compare=False)
    was_asked_for: bool = field(default=True, repr=False, compare=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        compared = [one.name for one in fields(Run) if one.compare]
        return all(getattr(self, name) == getattr(other, name) for name in compared)

    __hash__ = None  # type: ignore[assignment]  # as that of `Run`, which has lists

    @property
    def _classes(self) -> Sequence[FoldedModel]:
        """The model of each class; none where the run was given other logs, as by `dataclasses.replace`."""
        return self.expansion.classes if self.expansion and isinstance(self.logs, OfEveryRank) else ()

    @property
    def fold(self) -> FoldAttempt:
        """How ranks were folded."""
        assert self.expansion is not None  # every folded run has one
        return self.expansion.attempt

    @property
    def representatives(self) -> Sequence[int]:
        """The lowest rank of each class."""
        return self.fold.representatives()

    @property
    def is_folded(self) -> bool:
        """Whether one rank of each class was simulated for all of them: it was."""
        return True

    @property
    def ranks_of_rows(self) -> Sequence[Sequence[int]]:
        """The ranks of each class."""
        found: list[list[int]] = [[] for _ in self.class_logs]
        if not self._classes:
            return [[rank] for rank in range(self.world_size)]
        for rank, place in enumerate(self.fold.of_every_rank(list(range(len(found))))):
            found[place].append(rank)
        return found

    @property
    def num_ranks_a_class(self) -> int:
        """How many ranks each of the classes has."""
        return self.fold.num_ranks_a_class if self._classes else 1

    @property
    def clocks(self) -> Sequence[float]:
        """When each rank has ended all that it did, s."""
        return self.fold.of_every_rank([model._time for model in self._classes]) if self._classes else super().clocks

    @property
    def class_logs(self) -> Sequence[Sequence[Event]]:
        """The log of the lowest rank of each class."""
        return [model._log for model in self._classes] or self.logs

    @property
    def class_models(self) -> Sequence[Any]:
        """The model of each class."""
        return self._classes or self.models

    @property
    def ranks_of_class_logs(self) -> Sequence[int]:
        """The lowest rank of each class, whose log it is."""
        return self.representatives if self._classes else range(self.world_size)

    def repeated_ranks(self, most_events: int | None = None) -> Sequence[Repeated] | None:
        """Return the ranks that did what the lowest rank of their class did: all others, mostly."""
        if not self._classes:
            return super().repeated_ranks(most_events)
        if most_events is not None and sum(map(len, self.class_logs)) > most_events:
            return None
        assert self.expansion is not None
        found = list(filter(None, map(self.expansion.repeated, range(self.world_size))))
        left = sum(len(model._log) for model in self._classes) * self.num_ranks_a_class
        left -= sum(len(self.class_logs[self.representatives.index(each.like)]) for each in found)
        return found if most_events is None or left <= most_events else None

    @property
    def draws_classes(self) -> bool:
        """Whether pictures have a row a class: where folding was asked for, or every rank would be too many."""
        return self.num_ranks_a_class > 1 and (self.was_asked_for or self.num_events > MOST_DRAWN)

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time, s, one row a rank."""
        parts = super().breakdown
        return replace(parts, ranks=self.fold.of_every_rank(list(parts.ranks))) if self._classes else parts

    @cached_property
    def peak_watts(self) -> float | None:
        """The most that all devices draw together at any moment, W; ranks of a class are busy at the same moments."""
        from minitrain.run.energy import peak_watts  # noqa: PLC0415  (numpy only when somebody looks)

        ranks = self.ranks_of_class_logs
        sheets = [self.sheets[rank] for rank in ranks] if len(self.sheets) > 1 else self.sheets
        of_classes = peak_watts(self.step_timeline_of_classes, sheets)
        return None if of_classes is None else of_classes * self.num_ranks_a_class

    @property
    def drawn(self) -> Timeline:
        """What pictures show: a row a class, which says how many ranks it stands for, or a row a rank."""
        return self.step_timeline_of_classes if self.draws_classes else self.step_timeline

    @cached_property
    def timeline_of_classes(self) -> Timeline:
        """The columns of one log a class, whose peers are classes."""
        import numpy as np  # noqa: PLC0415

        from minitrain.run.analysis.timeline import as_timeline  # noqa: PLC0415

        if not self._classes:
            return self.timeline
        line, size = self._named(as_timeline(self.class_logs), self.representatives), self.num_ranks_a_class
        row_of = np.array([*self.fold.of_every_rank(list(range(len(self._classes)))), -1])  # -1 is no rank: it stays so
        named = line.rank_names or tuple(map(str, self.representatives))
        names = tuple(f"{name} (x {size})" for name in named) if size > 1 else line.rank_names
        peer, waited_for = row_of[line.peer], row_of[line.waited_for]
        return replace(line, peer=peer, waited_for=waited_for, rank_names=names, ranks_a_row=size)

    @cached_property
    def step_timeline_of_classes(self) -> Timeline:
        """The columns of classes that figures of the step are made from."""
        return self._of_step(self.timeline_of_classes) if self._classes else self.step_timeline

    def explain(self) -> Explanation:
        """Return why ranks wait, or classes of them in a large run that was to be folded, and what would help."""
        from minitrain.run.analysis.explanation import Explanation  # noqa: PLC0415

        if not (self._classes and self.was_asked_for and self.num_events > MOST_DRAWN):
            return super().explain()
        journals = self._of_classes(self.memory_journals)
        sizes = self.bytes_per_element, self.step_end
        return Explanation(self.step_timeline_of_classes, *sizes, self.strategy, self.options, journals)

    @property
    def drawn_journals(self) -> Sequence[Sequence[MemoryChange]]:
        """Every change of every store of what is drawn."""
        return self._of_classes(self.memory_journals) if self.draws_classes else self.memory_journals

    def _of_classes(self, journals: Sequence[Any]) -> Sequence[Any]:
        """Return the journal of each class, where journals were kept."""
        return [journals[rank] for rank in self.representatives] if journals else ()
