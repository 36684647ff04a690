"""For pytest: a marker an exercise, so that `pytest -m exercise_02` grades one of them.

Add `pytest_plugins = ["minitrain.learn.pytest_plugin"]` to the `conftest.py` of your tests. It is a file of its own,
since pytest loads a plugin by its module.
"""

from __future__ import annotations

from typing import Any

from minitrain.learn.exercise import shipped_exercises


def pytest_configure(config: Any) -> None:
    """Register the markers `exercise_00`, `exercise_01`, ..."""
    for exercise in shipped_exercises():
        config.addinivalue_line("markers", f"exercise_{exercise.number}: {exercise.title}")
