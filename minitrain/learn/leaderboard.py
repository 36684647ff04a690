"""A page of who is how quick: for each exercise those who passed every check, from results of `learn grade`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.search.sweeps.sweep import read_rows

_FIGURES = ("mfu", "step_time_s", "peak_memory_gib")

Place = tuple[int, str, Mapping[str, float]]
"""A place, whose it is, and the figures of the exercise's first size."""


def places(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Place]]:
    """Return the places of each exercise: the best MFU first, then the shortest step and the least memory.

    Each student has one place, that of their best submission; equal figures share one.

    Args:
        rows: as `learn grade --results` keeps them, or `--format json` prints them.
    """
    best: dict[str, dict[str, Mapping[str, float]]] = {}
    for row in rows:
        figures = row.get("leaderboard") or {}
        if row.get("passed") and set(_FIGURES) <= set(figures):
            of_exercise = best.setdefault(str(row["exercise"]), {})
            name = str(row.get("student") or row.get("file") or "?")
            if name not in of_exercise or _order(figures) < _order(of_exercise[name]):
                of_exercise[name] = figures
    return {exercise: _placed(of_students) for exercise, of_students in sorted(best.items())}


def _order(figures: Mapping[str, float]) -> tuple[float, float, float]:
    """Return what orders figures, the best first."""
    return -figures["mfu"], figures["step_time_s"], figures["peak_memory_gib"]


def _placed(of_students: Mapping[str, Mapping[str, float]]) -> list[Place]:
    """Return students with their places, in order."""
    ordered = sorted(of_students.items(), key=lambda item: (_order(item[1]), item[0]))
    found: list[Place] = []
    for number, (name, figures) in enumerate(ordered, 1):
        is_equal = found and _order(found[-1][2]) == _order(figures)
        found.append((found[-1][0] if is_equal else number, name, figures))
    return found


def place_among(exercise: str, figures: Mapping[str, float], folder: Path) -> tuple[int, int]:
    """Return the place of somebody's figures in an exercise, and how many are placed with them.

    Args:
        exercise: its name.
        figures: as `Grade.leaderboard` has them.
        folder: results of others, or one file of them.

    Raises:
        UsageError: there are none.
    """
    others = places(rows_of(folder)).get(exercise, [])
    ahead = sum(_order(other) < _order(figures) for _, _, other in others)
    return ahead + 1, len(others) + 1


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file, or of all `*.jsonl` in a folder.

    Raises:
        UsageError: there is none, or one cannot be read.
    """
    paths = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
    if not paths or not all(path.is_file() for path in paths):
        raise UsageError(
            f"there are no results in {folder}; `minitrain learn grade ... --results FILE.jsonl` keeps them"
        )
    return [row for path in paths for row in read_rows(path).values()]


def write_leaderboard(folder: Path, path: Path) -> Path:
    """Write the page, and return its path.

    Args:
        folder: of results, or one file of them.
        path: of the page.

    Raises:
        UsageError: there are no results, or nobody has passed.
    """
    from minitrain.view.page import html_table, write_words  # noqa: PLC0415  (only where a page is wanted)

    found = places(rows_of(folder))
    if not found:
        raise UsageError(f"nobody in {folder} has passed every check of an exercise yet, so there are no places")
    body = ""
    for exercise, placed in found.items():
        rows = [
            {
                "place": str(place),
                "who": name,
                "MFU, %": f"{figures['mfu'] * 100:.1f}",
                "step, ms": f"{figures['step_time_s'] * 1e3:.3f}",
                "peak, GiB": f"{figures['peak_memory_gib']:.3f}",
            }
            for place, name, figures in placed
        ]
        body += f'<h2>{html.escape(exercise)}</h2><div class="wide">{html_table(rows, {})}</div>'
    return write_words(path, "Leaderboard", body)
