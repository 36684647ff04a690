"""Hidden sizes of a teacher's own secret: legal, the same for the same secret, and fair to right submissions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from minitrain.learn import Exercise, grade, load_exercise, shipped_exercises
from minitrain.learn.budgets import with_secret_sizes
from minitrain.learn.verify import faults_of
from minitrain.run.strategy_loading import load_strategy
from tests.learn.exercises.sources import SUBMISSIONS
from tests.learn.exercises.test_corpus import HANDWRITTEN, SHIPPED

EXERCISES = shipped_exercises()


@pytest.mark.few(1)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
@pytest.mark.one_in(8)
def test_drawn_sizes_are_legal_and_new(exercise: Exercise) -> None:
    found = with_secret_sizes(exercise, "one")
    keys = [case.key for case in found.hidden]
    assert len({*keys, *(case.key for case in (*exercise.public, *exercise.hidden))}) == len(keys) + len(
        exercise.public
    ) + len(exercise.hidden)
    assert all(case.hidden for case in found.hidden)
    first, *others = found.hidden
    assert faults_of(replace(found, public=[replace(first, hidden=False)], hidden=others)) == []
    assert any(case.world_size > 1 for case in found.hidden) or exercise.number in ("00", "01", "21")


@cache
def drawn(number: str) -> Exercise:
    """Return an exercise with hidden sizes of a secret, which are drawn once for all of its submissions."""
    return with_secret_sizes(load_exercise(number), "x")


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in (*list(HANDWRITTEN)[3:], *list(SHIPPED)[3:])]
"""With the sizes of their exercises they are graded in test_corpus.py."""


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*list(HANDWRITTEN)[:3], *list(SHIPPED)[:3], *OTHERS])
def test_right_submissions_keep_full_marks_with_drawn_sizes(name: str) -> None:
    number = HANDWRITTEN.get(name) or SHIPPED[name]
    exercise = drawn(number)
    given = (
        f"{SUBMISSIONS / name}.py:{exercise.function}"
        if name in HANDWRITTEN
        else {"one_f_one_b": "1f1b"}.get(name, name)
    )
    found = grade(load_strategy(given)[1], exercise)
    assert found.passed, str(found)
