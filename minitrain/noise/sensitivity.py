"""`sensitivity`: what the step time gains or loses if one kind of operation gets quicker or slower.

The step time is the longest path through the recorded operations. Its derivative by the duration of a kind, as a share
of that duration, is the time that the kind takes on the critical path. That holds as long as the path stays the same.
So the step is also timed with each kind quicker and slower by a given share. Only durations change, as in
`minitrain.analysis.what_if`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from minitrain.analysis.labels import duration
from minitrain.analysis.timeline import Bools
from minitrain.errors import UsageError
from minitrain.noise.monte_carlo import require_events
from minitrain.noise.noise import COMMUNICATION, COMPUTING
from minitrain.noise.tail import PathFinder
from minitrain.noise.works import Works, make_works
from minitrain.run.data_frames import data_frame
from minitrain.run.result import Run


@dataclass(frozen=True, slots=True)
class Swing:
    """What one kind of operation is worth.

    Args:
        kind: "computing", "communication", or a type of event.
        derivative_s: growth of the step time by the share by which the kind gets slower: its time on the critical
            path, s.
        quicker_s: the step time with the kind quicker by the change, s.
        slower_s: the step time with the kind slower by the change, s.
    """

    kind: str
    derivative_s: float
    quicker_s: float
    slower_s: float

    @property
    def span_s(self) -> float:
        """How far apart the two step times are, s."""
        return self.slower_s - self.quicker_s


@final
@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What the step time of a run depends on.

    Args:
        strategy: the run's strategy.
        step_time: the step time as recorded, s.
        change: the share by which each kind is made quicker and slower.
        swings: the kinds, the one with the widest span first.
    """

    strategy: str
    step_time: float
    change: float
    swings: tuple[Swing, ...]

    def summary(self) -> dict[str, Any]:
        """Return all figures, ready for JSON."""
        kinds = [asdict(one) for one in self.swings]
        return {"strategy": self.strategy, "step_time_s": self.step_time, "change": self.change, "kinds": kinds}

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row a kind.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame([asdict(one) for one in self.swings])

    def figure(self) -> Any:
        """Return a Plotly figure: a tornado chart, the widest span on top."""
        from minitrain.noise.tornado import tornado  # noqa: PLC0415  (plotly only when somebody looks)

        bars = [(one.kind, one.quicker_s, one.slower_s) for one in self.swings]
        return tornado(self.strategy, self.step_time, self.change, bars)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield a line a kind."""
        yield f"{self.strategy}: step {duration(self.step_time)}; each kind {self.change:.0%} quicker and slower"
        wide = max((len(one.kind) for one in self.swings), default=0)
        for one in self.swings:
            times = f"{duration(one.quicker_s):>9} to {duration(one.slower_s):>9}"
            yield f"  {one.kind:<{wide}}  {times}, {self._share(one):>6.1%} of the critical path"

    def _share(self, one: Swing) -> float:
        return one.derivative_s / self.step_time if self.step_time else 0.0


def sensitivity(run: Run, change: float = 0.1) -> Sensitivity:
    """Return what the step time of a finished run gains and loses by each kind of operation.

    Args:
        run: what `simulate` returned, or `load_run` read; every rank's events are needed.
        change: the share by which each kind is made quicker and slower, above 0 and below 1.

    Raises:
        UsageError: the run has not kept every rank's events, or `change` is outside its rule.
    """
    if (
        isinstance(change, bool)
        or not isinstance(change, int | float)
        or not (0 < change < 1 and math.isfinite(change))
    ):
        raise UsageError(f"change must be a share above 0 and below 1, such as 0.1, got {change!r}")
    require_events(run, "sensitivity")
    works = make_works(run.timeline)
    kinds = _kinds(works)
    chosen = np.stack([members for _, members in kinds], axis=1) if kinds else np.zeros((works.num_works, 0), bool)
    columns = [np.ones((works.num_works, 1)), 1 - change * chosen, 1 + change * chosen]
    steps = works.step_times(works.duration[:, None] * np.concatenate(columns, axis=1)).tolist()
    recorded, quicker, slower = steps[0], steps[1 : 1 + len(kinds)], steps[1 + len(kinds) :]
    names = [name for name, _ in kinds]
    rows = zip(names, _derivatives(works, [members for _, members in kinds]), quicker, slower, strict=True)
    swings = sorted((Swing(*row) for row in rows), key=lambda one: (-one.span_s, -one.derivative_s))
    return Sensitivity(run.strategy, recorded, change, tuple(swings))


def _kinds(works: Works) -> list[tuple[str, Bools]]:
    """Return the kinds that last in a run, and which works belong to each, (num_works,)."""
    line = works.timeline
    typ, computes = line.typ[works.event], line.computes[works.event]
    groups = [(COMPUTING, computes), (COMMUNICATION, ~computes)]
    groups += [(name, typ == code) for code, name in enumerate(line.typs)]
    return [(name, members) for name, members in groups if works.duration[members].any()]


def _derivatives(works: Works, kinds: Sequence[Bools]) -> list[float]:
    """Return the time of each kind on the critical path, s."""
    if not works.num_works:
        return []
    path = PathFinder(works).path(works.duration[:, None])
    return [float(path.seconds[members[path.work]].sum()) for members in kinds]
