"""A page that shows a learner what the ranks did beside what they should do, for the size that failed."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from minitrain.files import write_text
from minitrain.learn.budgets import run_reference
from minitrain.learn.exercise import Case, Exercise
from minitrain.learn.grader import Grade
from minitrain.learn.unfinished import UnfinishedRun
from minitrain.run.analysis.labels import duration

if TYPE_CHECKING:
    from minitrain.run.result import Run

_WIDTH, _MARGINS, _LEAST = 1060, 70, 360
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ font: 15px system-ui, sans-serif; margin: 2em auto; max-width: 1080px; padding: 0 1em }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid #8b949e; padding-left: 1em }}
figure {{ margin: 1.5em 0; overflow-x: auto }}
figcaption {{ font-weight: 600 }}
</style>
<h1>{title}</h1>
{parts}
</html>
"""


def write_picture(grade: Grade, exercise: Exercise, path: Path) -> Path | None:
    """Write a page for the first size that failed, and return its path; None if there is nothing to draw.

    Args:
        grade: a grade with the run that failed, as far as that came.
        exercise: what was asked.
        path: of the page.
    """
    case = grade.failed_case
    if case is None or case.hidden:
        return None
    runs = {"Yours": grade.failed_run, "Expected": _expected(exercise, case)}
    drawn = {name: run for name, run in runs.items() if run is not None}
    if not drawn:
        return None
    longest = max(run.last_clock for run in drawn.values())
    parts = [f"<p>{html.escape(str(case))}</p>", _words(grade), *(_figure(*item, longest) for item in drawn.items())]
    if grade.failed_run is None:
        parts.insert(2, "<p>Nothing is known of what your step did before it ended, so there is no picture of it.</p>")
    return write_text(path, [_PAGE.format(title=html.escape(exercise.title), parts="\n".join(parts))])


def _expected(exercise: Exercise, case: Case) -> Run | None:
    """Return the reference's run, None where the reference is not there."""
    return run_reference(exercise, case) if exercise.has_reference else None


def _words(grade: Grade) -> str:
    """Return what failed."""
    lines = [line for result in grade.failures for line in (f"{result.name} failed", *result.lines())]
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def _length(run: Run) -> str:
    """Return how long a run is, in words."""
    if isinstance(run, UnfinishedRun):
        return f", up to the error: {duration(run.step_time)}"
    return f": step {duration(run.step_time)}"


def _figure(name: str, run: Run, longest: float) -> str:
    """Return the picture of a run, drawn to the scale of the longest one."""
    from minitrain.view.layout import View  # noqa: PLC0415  (only when something failed)
    from minitrain.view.svg import svg  # noqa: PLC0415

    title = f"{name}{_length(run)}, peak memory {run.peak_memory_bytes / 2**30:.3f} GiB"
    width = _MARGINS + (_WIDTH - _MARGINS) * (run.last_clock / longest if longest else 1.0)
    view = View("", (), run.step_end, None, run.bytes_per_element)
    drawing = svg(run.step_timeline, view, max(round(width), _LEAST))
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{drawing}</figure>"
