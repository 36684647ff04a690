"""What a learner's ranks did beside what the reference's do: a page, or for notebooks HTML without scripts.

Both runs are drawn to one scale, as far as they came: of the reference its timing alone, never its code. The first
operation that differs is framed in both. Bars show what the step needed beside what it may.

What the ranks of a submission did until an error ended their run, for a picture of it.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

from minitrain.errors import MinitrainError, UsageError
from minitrain.files import TemporaryFolder
from minitrain.learn.budgets import Budget, budget_for, run_reference
from minitrain.learn.exercise import Case, CheckResult, Exercise, load_exercise
from minitrain.learn.replay import communication_by_kind, last_clock, replayed
from minitrain.operations import Event
from minitrain.run.analysis.labels import duration
from minitrain.run.rank_tasks import RunProgress, prepare
from minitrain.run.result import Run, load_run
from minitrain.run.simulation import simulate

EXPECTED = "expected"
"""The folder of an exercise with its reference's runs of the public sizes, for where the reference is not there."""

_COLOR = "#d1242f"
_WIDTH, _MARGINS, _LEAST = 1060, 70, 360  # px
_BAR = 'style="display:block;height:11px;width:{share:.1f}%;background:{color}"'
_LIMIT = "position:absolute;left:{share:.1f}%;top:-3px;height:17px;border-left:2px solid currentColor"
_SAID = '<pre style="white-space: pre-wrap">{}</pre>'
_RELOAD = '<meta http-equiv="refresh" content="2">'


class Drawable(Protocol):
    """What a picture needs of a grade: the sizes and the run that it has kept, and the checks that failed."""

    @property
    def drawn_case(self) -> Case | None:
        """The sizes, None where none were kept."""

    @property
    def drawn_run(self) -> Any:
        """Their run, as far as it came; None where nothing is known of it."""

    @property
    def failures(self) -> Sequence[CheckResult]:
        """The checks that failed."""


def write_picture(grade: Drawable, exercise: Exercise, path: Path, *, reloads: bool = False) -> Path | None:
    """Write a page for the first size that failed, or on a pass for the first; None if there is nothing to draw.

    Args:
        grade: a grade that has kept its run, as far as that came.
        exercise: what was asked.
        path: of the page.
        reloads: whether a browser is to load it again every two seconds.
    """
    from minitrain.view.page import run_picture, write_timelines  # noqa: PLC0415  (only where a page is wanted)
    from minitrain.view.run_folder import view_of  # noqa: PLC0415

    runs = _runs(grade, exercise)
    if not runs:
        return None
    marks = _marks(runs)
    views = {name: replace(view_of(run), facts=[_length(run)]) for name, run in runs.items()}
    pictures = []
    for name, run in runs.items():
        with contextlib.suppress(UsageError):  # of a run that was stopped, messages may not find their partners
            pictures.append(run_picture(name, run.step_timeline, views[name], marks.get(name, ())))
    body = (_RELOAD if reloads else "") + _body(grade, exercise, runs)
    return write_timelines(path, pictures, exercise.title, body)


def notebook_picture(grade: Drawable, exercise: Exercise) -> str:
    """Return the same as HTML that a notebook keeps; "" if there is nothing to draw."""
    runs = _runs(grade, exercise)
    longest = max((run.last_clock for run in runs.values()), default=0.0)
    return _body(grade, exercise, runs) + "".join(_figure(*item, longest) for item in runs.items()) if runs else ""


def _runs(grade: Drawable, exercise: Exercise) -> dict[str, Run]:
    """Return the submission's run and the reference's, as far as there are such."""
    case = grade.drawn_case
    if case is None or case.hidden:
        return {}
    runs = {"Yours": grade.drawn_run, "Expected": expected_run(exercise, case)}
    return {name: run for name, run in runs.items() if run is not None}


def expected_run(exercise: str | Exercise, case: Case | None = None) -> Any:
    """Return the reference's run, or what was kept of it; None where neither is there.

    Args:
        exercise: its name or number, or a loaded exercise.
        case: the sizes; the first public ones if None.
    """
    exercise = exercise if isinstance(exercise, Exercise) else load_exercise(exercise)
    case = case or exercise.public[0]
    if exercise.has_reference:
        return run_reference(exercise, case)
    kept = exercise.folder / EXPECTED / f"{_kept_cases(exercise).index(case)}.jsonl"
    return load_run(kept) if kept.is_file() else None


def _body(grade: Drawable, exercise: Exercise, runs: Mapping[str, Run]) -> str:
    """Return sizes, what failed, the bars, and the first operation that differs."""
    assert grade.drawn_case is not None  # there are runs
    lines = [line for result in grade.failures for line in (f"{result.name} failed", *result.lines())]
    said = "\n".join(lines or ["passed every check"])
    parts = [f"<p>{html.escape(str(grade.drawn_case))}</p>", _SAID.format(html.escape(said))]
    if grade.drawn_run is None:
        parts.append("<p>Nothing is known of what your step did before it ended, so there is no picture of it.</p>")
    elif not isinstance(grade.drawn_run, UnfinishedRun):
        parts.append(_bars(grade.drawn_run, runs.get("Expected"), budget_for(exercise, grade.drawn_case)))
    parts.append(f"<p>{html.escape(first_difference(runs))}</p>")
    return "\n".join(parts)


def _bars(run: Run, expected: Run | None, budget: Budget) -> str:
    """Return a bar for each figure of a run, with a line where its limit is."""
    sent = sum(communication_by_kind(run).values())
    rows = [
        ("step with loading", last_clock(run) * 1e3, budget.step_time_s * 1e3, "ms", "at most"),
        ("peak memory", run.peak_memory_bytes / 2**30, budget.memory_bytes / 2**30, "GiB", "at most"),
        ("communication", sent / 2**20, budget.communication_bytes / 2**20, "MiB", "at most"),
    ]
    if expected is not None:
        rows.append(("bubble", run.bubble_fraction * 100, expected.bubble_fraction * 100, "%", "expected"))
        rows.append(("MFU", (run.mfu or 0) * 100, (expected.mfu or 0) * 100, "%", "expected"))
    return f'<table class="lines">{"".join(_bar(*row) for row in rows)}</table>'


def _bar(name: str, value: float, limit: float, unit: str, rule: str) -> str:
    """Return a row with a bar, and a line at the limit."""
    scale = 100 / (max(value, limit) * 1.05 or 1.0)
    over = rule == "at most" and value > limit * (1 + 1e-9)
    bar = _BAR.format(share=value * scale, color=_COLOR if over else "#57a0d3")
    inside = f'<i {bar}></i><i style="{_LIMIT.format(share=limit * scale)}"></i>'
    said = f"{value:.3g} {unit}, {rule} {limit:.3g}"
    return (
        f"<tr><td>{name}</td><td class='bar'><div style='position:relative'>{inside}</div></td>"
        f"<td style='width:15em;text-align:left'>{said}</td></tr>"
    )


Difference = tuple[int, "Event | None", "Event | None"]
"""A rank, its operation, and the reference's in the same place; None where one of them has no more."""


def _first_difference(yours: Run, expected: Run) -> Difference | None:
    """Return the earliest place where a rank does something else than the reference's; None if there is none."""
    found = []
    for rank, logs in enumerate(zip(yours.logs, expected.logs, strict=False)):
        for mine, its in zip_longest(*logs):
            if _what(mine) != _what(its):
                found.append((min(event.time for event in (mine, its) if event is not None), rank, mine, its))
                break
    return min(found, key=lambda each: each[:2])[1:] if found else None


def _what(event: Event | None) -> tuple[Any, ...] | None:
    """Return what an operation does, whenever and with whichever samples it does it."""
    return None if event is None else (event.typ, event.layer, len(event.samples))


def first_difference(runs: Mapping[str, Run]) -> str:
    """Say where the first operation is that differs from the reference's.

    Args:
        runs: "Yours" and "Expected".
    """
    if len(runs) < 2:
        return ""
    found = _first_difference(runs["Yours"], runs["Expected"])
    if found is None:
        return "Every rank does the same operations in the same order as expected."
    rank, mine, its = found
    return f"The first operation that differs is on rank {rank}: {_named(mine)}, where {_named(its)} is expected."


def _named(event: Event | None) -> str:
    """Return an operation in words."""
    if event is None:
        return "nothing more"
    layer = "" if event.layer is None else f" of layer {event.layer}"
    return f"{event.typ}{layer} at {duration(event.time)}"


def _marks(runs: Mapping[str, Run]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return frames around the first operation that differs, in each run that has one."""
    from minitrain.view.page import frame  # noqa: PLC0415  (only where a page is wanted)

    found = _first_difference(*runs.values()) if len(runs) > 1 else None
    if found is None:
        return {}
    rank, *events = found
    said = "the first operation that differs; "
    return {
        name: [frame("1", rank, event.time, event.end, _COLOR, f"{said}{name.lower()}: {_named(event)}")]
        for name, event in zip(runs, events, strict=True)
        if event is not None
    }


def _length(run: Run) -> str:
    """Return how long a run is, in words."""
    if isinstance(run, UnfinishedRun):
        return f"up to the error: {duration(run.last_clock)} with loading"
    return f"step {duration(run.step_time)}"


def _figure(name: str, run: Run, longest: float) -> str:
    """Return the picture of a run, drawn to the scale of the longest one."""
    from minitrain.view.layout import View  # noqa: PLC0415  (only when somebody looks)
    from minitrain.view.svg import svg  # noqa: PLC0415

    title = f"{name}: {_length(run)}, peak memory {run.peak_memory_bytes / 2**30:.3f} GiB"
    width = _MARGINS + (_WIDTH - _MARGINS) * (run.last_clock / longest if longest else 1.0)
    view = View("", (), run.step_end, None, run.bytes_per_element)
    drawing = svg(run.step_timeline, view, max(round(width), _LEAST))
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{drawing}</figure>"


def _kept_cases(exercise: Exercise) -> list[Case]:
    """Return the sizes that learners see: those that are graded, and those of predictions."""
    return [*exercise.public, *([] if exercise.predict is None else [exercise.predict.case])]


def kept_runs(exercise: Exercise) -> Iterator[tuple[str, bytes]]:
    """Yield the reference's runs of the sizes that learners see: their files' names there, and these."""
    with TemporaryFolder("minitrain-picture-") as folder:
        for place, case in enumerate(_kept_cases(exercise)):
            path = folder / f"{place}.jsonl"
            run_reference(exercise, case).save(path)
            yield f"{EXPECTED}/{path.name}", path.read_bytes()


@dataclass(frozen=True, repr=False)
class UnfinishedRun(Run):
    """A run that an error ended: each log goes as far as its rank came.

    What a rank still waited for has no duration.
    """

    loads_alike = True
    """Whether clocks say what the step takes: an error may have ended it while ranks loaded."""

    @cached_property
    def last_clock(self) -> float:
        """The latest end of an operation, s."""
        return self.timeline.last_end


def run_up_to_error(
    exercise: Exercise, case: Case, found: Mapping[str, Any], seconds: float = float("inf")
) -> UnfinishedRun | None:
    """Replay what a submission did until its error, and return the run; None if it did nothing, or nothing is known.

    Args:
        exercise: what was asked.
        case: the sizes.
        found: programs of the ranks, which may be anything.
        seconds: real time that this may take, s.
    """
    programs = found.get("programs")
    if not isinstance(programs, Sequence) or len(programs) != case.world_size:
        return None
    strategy = replayed(programs, exercise.function, seconds)
    parameters: dict[str, Any] = {"hardware": exercise.hardware, **case.sizes}
    seen: list[RunProgress] = []
    with contextlib.suppress(MinitrainError):  # the same error, or another one that follows from the missing steps
        simulate(strategy, watch=seen.append, **parameters)
    run = prepare(strategy, parameters).result(UnfinishedRun, seen[0].models, ())
    return run if run.last_clock > 0 else None
