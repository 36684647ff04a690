"""Typical mistakes of learners: the check that fails says what is wrong, and leads to the cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minitrain.learn import Exercise, grade, load_exercise, shipped_exercises
from minitrain.learn.budgets import why_all_wait
from minitrain.run.strategy_loading import load_strategy
from tests.learn.exercises.mistakes import MISTAKES
from tests.learn.exercises.statements import (
    PAGE,
    SENTENCES,
    TOLD,
    corpus,
    is_broken,
    may_demand,
    page,
    plain,
    table,
)

SLOW = {name for name, mistake in MISTAKES.items() if mistake.exercise == "12"}


def function_of(exercise: Exercise, path: Path) -> object:
    """Return the function of a file, which is run in this process: nothing here is hostile."""
    return load_strategy(f"{path}:{exercise.function}")[1]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MISTAKES]
)
@pytest.mark.one_in(3)
def test_a_mistake_is_told_with_what_leads_to_it(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    exercise, path = load_exercise(mistake.exercise), tmp_path / "mine.py"
    path.write_text(mistake.source)
    found = grade(function_of(exercise, path), exercise, hidden=mistake.hidden)  # type: ignore[arg-type]
    assert found.score < found.max_score
    (failure,) = (failure for failure in found.failures if failure.name == mistake.check)
    assert re.search(mistake.reason, failure.message), str(found)
    assert re.search(mistake.lead, "\n".join((failure.hint, *failure.cause, *failure.held, *failure.lines())))


def test_a_step_that_takes_too_long_names_the_line_where_its_time_goes(tmp_path: Path) -> None:
    source, path = MISTAKES["a_send_ends_before_the_receive_begins"].source, tmp_path / "mine.py"
    path.write_text(source)
    exercise = load_exercise("19")
    (failure,) = grade(function_of(exercise, path), exercise, hidden=False).failures  # type: ignore[arg-type]
    line = 1 + source[: source.index("await model.receive(")].count("\n")
    assert re.search(
        rf"more than the reference's of: recv \(layers 0-2, rank 0, at mine.py:{line}\) ", failure.cause[0]
    )


@pytest.mark.parametrize("exercise", shipped_exercises(), ids=lambda exercise: exercise.name)
def test_the_first_message_of_a_starter_leads_to_the_first_step(exercise: Exercise, tmp_path: Path) -> None:
    begun = tmp_path / "starter.py"
    begun.write_text(exercise.starter)
    function = function_of(exercise, begun)
    (failure,) = grade(function, exercise, hidden=False).failures  # type: ignore[arg-type]
    loads = "load_weights" in exercise.starter
    wanted = "get_input_activation" if loads else "load_weights"
    assert failure.message.startswith(f"no rank has called {wanted} yet, which is the next thing to write: `")


def test_a_collective_that_one_rank_makes_alone_is_named_with_its_layer() -> None:
    ranks = [0, 1]
    both = [["all_reduce", [0, 0], 3, ranks, None, False], ["await", 0, []]]
    alone = [*both, ["all_reduce", [0, 1], 2, ranks, None, False]]
    found = why_all_wait([alone, both], [["a.py:1", None, "a.py:9"], ["a.py:1", None]])
    assert found == [
        "rank 0 waits in all_reduce of layer 2 (a.py:9), its collective number 2 of ranks 0-1: rank 1 has called 1, "
        "and rank 1 has ended",
        "rank 0 does one that rank 1 does not: all_reduce of layer 2 (a.py:9)",
    ]


def test_a_message_that_went_to_another_rank_is_named() -> None:
    sender = [["send", [0, 0], 2, None, False], ["await", 0, []], ["receive", 2, None, False]]
    others = [["receive", 1, None, False]], [["receive", 0, None, False]]
    found = why_all_wait([others[0], sender, others[1]], [["a.py:3"], ["a.py:1", None, "a.py:2"], ["a.py:3"]])
    assert found[0] == (
        "rank 0 waits in receive from rank 1 (a.py:3), and rank 1 has sent 0 of the 1 messages that this takes, but "
        "did send to rank 2 (a.py:1); rank 1 waits in receive from rank 2 (a.py:2)"
    )


@pytest.mark.parametrize("number", SENTENCES)
def test_what_a_statement_demands_stands_there_and_has_a_submission_that_breaks_it(number: str) -> None:
    exercise, known = load_exercise(number), corpus()
    for sentence, names in SENTENCES[number].items():
        assert sentence in plain(exercise.statement)
        assert names
        assert {known[name][0] for name in names.split()} == {number}
    unbroken = [each for each in may_demand(exercise.statement) if not is_broken(each, number)]
    assert tuple(unbroken) == TOLD.get(number, ())  # only what demands nothing
    assert not any(re.search(r"\bmust\b", sentence) for sentence in unbroken)


def test_every_statement_is_in_the_page_of_demands_which_is_as_the_tests_have_it() -> None:
    assert [*SENTENCES] == [exercise.number for exercise in shipped_exercises()]
    assert PAGE.read_text(encoding="utf-8") == page()
    row = "| 20 | No rank may call `all_reduce`. | `a_collective_chooses` | laws |"
    assert row in table().splitlines()
