"""The result of a folded run: one log for each class, and the figures of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from minitrain.errors import UsageError
from minitrain.run.result import Run

if TYPE_CHECKING:
    from minitrain.analysis.breakdown import Breakdown
    from minitrain.analysis.timeline import Timeline
    from minitrain.folding.attempt import FoldAttempt


@dataclass(frozen=True, repr=False)
class FoldedRun(Run):
    """A run whose `logs` and `models` hold one for each class of ranks, in the order of their lowest ranks.

    Its figures are those of all ranks: `world_size`, `peak_memory_per_rank`, `breakdown` and `num_events` count all.

    Args:
        fold: how ranks were folded (the last attempt).
        representatives: the lowest rank of each class.
    """

    fold: FoldAttempt | None = field(default=None, repr=False, compare=False)
    representatives: Sequence[int] = ()

    @property
    def is_folded(self) -> bool:
        """Whether there is a log for each class of ranks that do the same: there is."""
        return True

    @property
    def num_ranks_a_class(self) -> int:
        """How many ranks each log stands for."""
        assert self.fold is not None
        return self.fold.num_ranks_a_class

    @property
    def _ranks_of_logs(self) -> Sequence[int]:
        """The lowest rank of each class, whose log it is."""
        return self.representatives

    @property
    def num_events(self) -> int:
        """Number of events of all ranks."""
        return super().num_events * self.num_ranks_a_class

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time, s, one row a rank."""
        import numpy as np  # noqa: PLC0415  (only when somebody looks)

        from minitrain.analysis.breakdown import breakdown  # noqa: PLC0415

        assert self.fold is not None
        parts = breakdown(self._trace, self.step_time)
        ranks = np.array(self.fold.of_every_rank(list(range(len(self.logs)))))
        names = ("computing", "exposed", "overlapped", "waiting")
        return replace(parts, **{name: getattr(parts, name)[ranks] for name in names})

    @cached_property
    def peak_watts(self) -> float | None:
        """The most that all devices draw together at any moment, W; ranks of a class are busy at the same moments."""
        from minitrain.run.energy import peak_watts  # noqa: PLC0415  (numpy only when somebody looks)

        sheets = [self.sheets[rank] for rank in self.representatives] if len(self.sheets) > 1 else self.sheets
        of_classes = peak_watts(self.timeline, sheets)
        return None if of_classes is None else of_classes * self.num_ranks_a_class

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"a folded run holds one log a class and cannot be {what}; simulate without fold=True")

    def save(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: files hold a log a rank."""
        self._refuse("saved")

    @cached_property
    def drawn(self) -> Timeline:
        """What pictures show: a row a class, which says how many ranks it stands for."""
        import numpy as np  # noqa: PLC0415  (only when somebody looks)

        assert self.fold is not None
        rows = self.fold.of_every_rank(list(range(len(self.logs))))
        row_of = np.array([*rows, -1])  # -1 is no rank, and stays so
        line, size = self.timeline, self.num_ranks_a_class
        named = line.rank_names or tuple(map(str, self.representatives))
        names = tuple(f"{name} (x {size})" for name in named) if size > 1 else line.rank_names
        return replace(line, peer=row_of[line.peer], waited_for=row_of[line.waited_for], rank_names=names)

    def write_chrome_trace(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a trace has every rank."""
        self._refuse("written as a trace")

    def to_pandas(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a table of events holds every rank's."""
        self._refuse("turned into a table of events")

    def _mime_bundle(self) -> dict[str, Any]:
        """Return no picture: it would show every rank."""
        return {}

    def explain(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: who waits for whom is read from every rank."""
        self._refuse("explained")
