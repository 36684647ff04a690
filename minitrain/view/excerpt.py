"""Some ranks of a large run, whose pictures and Chrome trace stay small: of ranks that do the same, one.

Of all ranks (or classes of ranks that do the same) those are shown that are spread evenly, the first and the last among
them, as many as have `MOST_WRITTEN` events together. What they did with other ranks is there, without an arrow to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from minitrain.run.analysis.timeline import Timeline, as_timeline
from minitrain.tensors.index_sets import ranges
from minitrain.view.chrome import write_chrome_trace
from minitrain.view.layout import View
from minitrain.view.page import write_html

if TYPE_CHECKING:
    from minitrain.run.result import Run

MOST_WRITTEN = 50_000
"""The most events of a run of which every rank is written by default: some 25 MB of files, in a few seconds."""
MOST_LOGGED = 150_000
"""The most events of a log by default, where ranks that did the same are written once: some 15 MB, in two seconds."""


@final
@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown of a large run.

    Args:
        timeline: the events of the chosen ranks, a row each.
        ranks: which these are.
        places: the place of each among the logs of classes.
        note: what is shown and what is not, in words.
    """

    timeline: Timeline
    ranks: Sequence[int]
    places: Sequence[int]
    note: str

    def write(self, page: Path, chrome_trace: Path, view: View, include_plotlyjs: bool | str) -> None:
        """Write a page and a Chrome trace.

        Args:
            page: where the page goes.
            chrome_trace: where the trace goes.
            view: words and units of the run.
            include_plotlyjs: as for `minitrain.view.page.write_html`.
        """
        rows = [view.ranks_of_rows[place] for place in self.places] if view.ranks_of_rows else [[r] for r in self.ranks]
        drawn = replace(view, facts=[*view.facts, self.note], ranks_of_rows=rows)
        write_html(page, self.timeline, drawn, include_plotlyjs)
        write_chrome_trace(chrome_trace, self.timeline, view.bytes_per_element)


def picture_of_first_ranks(run: Run, view: View, most_events: int = 3000) -> str:
    """Return an SVG of a run, of as many ranks of a large one as it can show; nothing where one has too many events.

    Args:
        run: the run.
        view: its words and units.
        most_events: how many events may be drawn.
    """
    from minitrain.view.svg import svg  # noqa: PLC0415

    if run.drawn.num_events <= most_events:
        return svg(run.drawn, view)
    ends = accumulate(len(log) for log in run.logs)
    num_ranks = sum(1 for _ in takewhile(lambda end: end <= most_events, ends))  # others are not looked at
    if not num_ranks:
        return ""
    title = f"{view.title}: {'rank 0' if num_ranks == 1 else f'the first {num_ranks} ranks'}"
    return svg(as_timeline(run.logs[:num_ranks]), replace(view, title=title))


def excerpt_of(run: Run) -> Excerpt | None:
    """Return what is to be shown of a run; None where that is all of it."""
    if run.num_events <= MOST_WRITTEN:
        return None
    logs, of_logs, size = run.class_logs, run.ranks_of_class_logs, run.num_ranks_a_class
    places = _spread([len(log) for log in logs])
    ranks = [of_logs[place] for place in places]
    row_of = np.full(len(of_logs) + 1, -1)  # the last place is of no rank
    row_of[places] = np.arange(len(places))
    class_of = np.array([*_classes(run), -1])
    line = run._named(as_timeline([logs[place] for place in places]), ranks)
    names = line.rank_names or tuple(map(str, ranks))
    line = replace(
        line,
        peer=row_of[class_of[line.peer]],
        waited_for=row_of[class_of[line.waited_for]],
        rank_names=tuple(f"{name} (x {size})" for name in names) if size > 1 else names,
        ranks_a_row=size,
    )
    return Excerpt(run._of_step(line), ranks, places, _words(run, ranks))


def _classes(run: Any) -> Sequence[int]:
    """Return the place of each rank's log among those of classes."""
    count = len(run.class_logs)
    if count == run.world_size:
        return range(count)
    found: Sequence[int] = run.fold.of_every_rank(list(range(count)))
    return found


def _spread(lengths: Sequence[int]) -> list[int]:
    """Return places that are spread evenly over logs of some lengths, as many as may be written; one at least."""
    choices = (
        np.unique(np.linspace(0, len(lengths) - 1, num).round().astype(int)) for num in range(1, len(lengths) + 1)
    )
    fitting = takewhile(lambda places: sum(lengths[place] for place in places) <= MOST_WRITTEN, choices)
    best = max(fitting, key=len, default=np.zeros(1, dtype=int))
    return [int(place) for place in best]


def _words(run: Run, ranks: Sequence[int]) -> str:
    """Return what is shown of a run."""
    alike = f" of {run.num_ranks_a_class} ranks each that do the same" if run.num_ranks_a_class > 1 else ""
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"
    classes = f", one of each of {len(run.class_logs)} classes{alike}" if len(ranks) == len(run.class_logs) else alike
    return f"shown: {which} of {run.world_size}{classes}"
