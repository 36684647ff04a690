"""What the grade of a submission must say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from minitrain.learn import grade, load_exercise
from minitrain.learn.sandbox import Limits
from minitrain.run.strategy_loading import load_strategy

Wrong = tuple[str, str, str, str]
"""A wrong submission: exercise, source, and patterns of the check that it fails and of the reason."""

_LIMITS = Limits(seconds=60)


def names_of(wrong: Mapping[str, Sequence[str]]) -> list[Any]:
    """Return the names of wrong submissions, to try each; of those that only a budget refuses two in three are slow.

    Such a one runs to its end in every size, and is proven; then so does the reference.
    """
    budgeted = [name for name, (*_, check, _reason) in wrong.items() if check in ("communication", "memory", "time")]
    left_out = {name for place, name in enumerate(budgeted) if place % 3}
    return [pytest.param(name, marks=pytest.mark.slow) if name in left_out else name for name in wrong]


def require_own_reason(wrong: Wrong, folder: Path, limits: Limits = _LIMITS, *, in_process: bool = False) -> None:
    """Require that a submission fails one check of a name, for its own reason; who does not train has no points.

    Args:
        wrong: the submission.
        folder: where it is written to.
        limits: of its process.
        in_process: whether it is run in this process, which is quicker, and judged alike.
    """
    exercise, source, check, reason = wrong
    path = folder / "submission.py"
    path.write_text(source)
    function = load_exercise(exercise).function
    found = grade(load_strategy(f"{path}:{function}")[1] if in_process else path, exercise, limits=limits)
    failures = [failure for failure in found.failures if re.fullmatch(check, failure.name)]
    assert len(failures) == 1, str(found)
    assert re.search(reason, failures[0].message), str(found)
    assert failures[0].hint
    assert found.score < found.max_score
    if failures[0].name in ("runs", "laws", "numerics"):
        assert found.score == 0
