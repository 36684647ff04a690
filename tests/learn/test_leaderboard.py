"""The leaderboard: one place a student and exercise, of those who passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minitrain.errors import UsageError
from minitrain.learn.classes import places, write_leaderboard
from minitrain.search.sweeps.sweep import writing


def row(student: str, mfu: float, step_time_s: float = 1.0, *, passed: bool = True, **more: Any) -> dict[str, Any]:
    """Return a row as `learn grade --results` keeps it."""
    figures = {"mfu": mfu, "step_time_s": step_time_s, "peak_memory_gib": 1.0} if passed else {}
    return {"student": student, "exercise": "12_challenge", "passed": passed, "leaderboard": figures, **more}


def test_a_student_has_the_place_of_the_best_submission_and_equal_figures_share_one() -> None:
    found = places(
        [row("a", 0.5), row("b", 0.6), row("a", 0.7), row("c", 0.6), row("d", 0.5), row("e", 0, passed=False)]
    )
    assert [(place, name) for place, name, _ in found["12_challenge"]] == [(1, "a"), (2, "b"), (2, "c"), (4, "d")]


def test_of_equal_mfu_the_shorter_step_is_first() -> None:
    found = places([row("slow", 0.5, 2.0), row("quick", 0.5, 1.0)])["12_challenge"]
    assert [name for _, name, _ in found] == ["quick", "slow"]


def write_row(path: Path, each: dict[str, Any]) -> None:
    """Write a row of results."""
    with writing(path) as write:
        write("k", each)


def test_a_folder_of_results_is_one_page(tmp_path: Path) -> None:
    for number, each in enumerate((row("<alice>", 0.5), row("bob", 0.6), row("carol", 0.4, exercise="02_ddp"))):
        write_row(tmp_path / f"{number}.jsonl", each)
    page = write_leaderboard(tmp_path, tmp_path / "board.html").read_text()
    assert page.index("02_ddp") < page.index("12_challenge") < page.index("bob") < page.index("&lt;alice&gt;")
    assert "<alice>" not in page
    assert "<th>who</th><th>place</th>" in page  # a row begins with whose it is, also on a narrow screen


def test_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no results in"):
        write_leaderboard(tmp_path, tmp_path / "board.html")
    write_row(tmp_path / "none.jsonl", row("a", 0, passed=False))
    with pytest.raises(UsageError, match=r"nobody in .* has passed"):
        write_leaderboard(tmp_path, tmp_path / "board.html")
