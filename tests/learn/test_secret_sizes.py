"""Sizes drawn from a secret: the same for the same secret, and refused where there is nothing to draw from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minitrain.errors import UsageError
from minitrain.learn import load_exercise
from minitrain.learn.budgets import with_secret_sizes


def test_a_secret_always_gives_the_same_sizes() -> None:
    exercise = load_exercise("08")
    first, again, other = (with_secret_sizes(exercise, secret).hidden for secret in ("a", "a", "b"))
    assert first == again != other


def test_without_a_reference_nothing_is_drawn(tmp_path: Path) -> None:
    exercise = replace(load_exercise("02"), folder=tmp_path)
    with pytest.raises(UsageError, match="cannot be drawn where its reference is not there"):
        with_secret_sizes(exercise, "a")


def test_sizes_that_leave_no_choice_are_refused() -> None:
    exercise = load_exercise("02")
    with pytest.raises(UsageError, match="no 1 further sizes were found for 02_ddp"):
        with_secret_sizes(replace(exercise, public=exercise.public[:1], hidden=[exercise.public[0]]), "a")
