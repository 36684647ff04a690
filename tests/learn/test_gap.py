"""A gap is explained by the attribution, each name has another one, and answers are read and never run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.learn import Exercise, grade, load_exercise
from minitrain.learn.classes import grade_all
from minitrain.learn.exercise import all_exercises
from minitrain.learn.picture import kept_runs
from minitrain.learn.predictions import judged, runs_of, slowed_for
from minitrain.learn.submissions import find_submissions

GAP = load_exercise("gap")
FORMS = {(False, False): ("kind",), (True, False): ("kind on a rank",), (False, True): ("kind of a layer", "operation")}


def right(name: str) -> dict[str, Any]:
    """Return the answers of a name, by the attribution alone: nothing of the exercise but its two runs is looked at."""
    predicted, measured = runs_of(GAP, name)
    found = mt.diff(predicted, measured).explanation
    assert found is not None
    form = next(words for words in FORMS.values() if found.form in words)
    operation = found.what.removeprefix("one ").split()[0]
    rank = found.ranks[0] if form == FORMS[True, False] else None
    layer = found.layers[0] if form == FORMS[False, True] else None
    return {
        "name": name,
        "step_time_ms": predicted.step_time * 1e3,
        "operation": operation,
        "rank": rank,
        "layer": layer,
    }


def written(path: Path, answers: dict[str, Any]) -> Path:
    path.write_text("".join(f"{name} = {value!r}  # mine\n" for name, value in answers.items()))
    return path


@pytest.mark.parametrize(
    "names", [range(2), pytest.param(range(2, 40), marks=[pytest.mark.slow, pytest.mark.no_cover])]
)
def test_the_attribution_alone_answers_right(names: range) -> None:
    for number in names:
        found = mt.grade(right(f"student {number}"), "gap")
        assert found.score == found.max_score == 100, (number, str(found))


def test_names_have_gaps_of_their_own_which_stay() -> None:
    all_slowed = [slowed_for(GAP, f"student {number}") for number in range(60)]
    assert len({one[:3] for one in all_slowed}) > 20
    assert {one.operation for one in all_slowed} == set(GAP.slowed)
    assert {(one.rank is None, one.layer is None) for one in all_slowed} == {(True, True), (False, True), (True, False)}
    first, again = (runs_of(GAP, "ada")[1] for _ in range(2))
    assert first.logs == again.logs
    assert slowed_for(GAP, " Ada") == slowed_for(GAP, "ada")


@pytest.mark.parametrize(
    ("change", "check", "reason"),
    [
        ({"name": " "}, "predicted", "name must be yours, as text, got ' '"),
        ({"step_time_ms": None}, "predicted", "step_time_ms must be a number, got None"),
        ({"step_time_ms": float("nan")}, "predicted", "does not take nan ms"),
        ({"step_time_ms": 1.0}, "predicted", "the simulated step does not take 1 ms, to 2%"),
        ({"operation": "update"}, "operation", "another than 'update'"),
        ({"rank": 3, "layer": 7}, "place", "is not slow where the answers say: rank 3, layer 7"),
    ],
)
def test_a_wrong_answer_fails_its_check(change: dict[str, Any], check: str, reason: str) -> None:
    slow = slowed_for(GAP, "ada")
    answers = {
        "name": "ada",
        "step_time_ms": 5.395,
        "operation": slow.operation,
        "rank": slow.rank,
        "layer": slow.layer,
    }
    assert mt.grade(answers, "gap").passed
    (failure,) = mt.grade({**answers, **change}, "gap").failures
    assert failure.name == check
    assert reason in failure.message


@pytest.mark.ci
def test_files_of_answers_are_read_and_not_run(tmp_path: Path) -> None:
    slow = slowed_for(GAP, "ada")
    answers = {"name": "ada", "step_time_ms": 5.4, "operation": slow.operation, "rank": slow.rank, "layer": slow.layer}
    right, marker = tmp_path / "right", tmp_path / "marker"
    right.mkdir()
    written(right / "gap.py", answers)
    for student, text in (
        ("runs", f"open({str(marker)!r}, 'w')\nname = open({str(marker)!r}, 'w').name\n"),
        ("broken", "name = \n"),
        ("long", "x = 1\n" * 5000),
        ("starter", GAP.starter),
    ):
        (tmp_path / student).mkdir()
        (tmp_path / student / "gap.py").write_text(text)
    rows = {row.student: row for row in grade_all(find_submissions([tmp_path], all_exercises()), workers=1)}
    assert not marker.exists()
    assert {student: row.score for student, row in rows.items()} == {
        "right": 100, "runs": 0, "broken": 0, "long": 0, "starter": 0
    }  # fmt: skip
    assert "answers are constants of Python" in rows["broken"].failure
    assert "more than 10000 characters" in rows["long"].failure


def test_without_the_reference_a_kept_run_tells_the_same(tmp_path: Path) -> None:
    folder = shutil.copytree(GAP.folder, tmp_path / "gap")
    for name, text in kept_runs(GAP):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)
    (folder / "reference.py").unlink()
    without: Exercise = load_exercise(folder)
    assert runs_of(without, "ada")[1].step_time == pytest.approx(runs_of(GAP, "ada")[1].step_time, rel=1e-12)
    slow = slowed_for(without, "ada")
    answers = {"name": "ada", "step_time_ms": 5.4, "operation": slow.operation, "rank": slow.rank, "layer": slow.layer}
    assert all(result.passed for result in judged(without, answers))


def test_a_check_writes_both_runs_once_the_prediction_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    invoke = CliRunner().invoke
    assert "# Explain the gap" in invoke(app, ["learn", "start", "gap"]).stdout
    assert invoke(app, ["learn", "check", "gap"]).exit_code == 1
    assert not Path("gap.measured.jsonl").exists()
    Path("gap.py").write_text(GAP.starter.replace('name = ""', 'name = "ada"').replace("0.0", "5.4"))
    found = invoke(app, ["learn", "check", "gap"]).stdout
    assert "minitrain diff gap.predicted.jsonl gap.measured.jsonl --html gap.html" in found
    assert "Mostly: " in invoke(app, ["diff", "gap.predicted.jsonl", "gap.measured.jsonl"]).stdout


def test_a_strategy_is_no_answer_and_answers_are_no_strategy() -> None:
    with pytest.raises(UsageError, match="exercise gap asks for answers; give them by name, or a file"):
        grade(mt.strategies()["zero3"], "gap")
    with pytest.raises(UsageError, match="exercise 02_ddp asks for a strategy; give a function or a file"):
        grade({"name": "ada"}, "02")


def test_there_is_no_strategy_to_train_and_the_message_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "gap.py").write_text(GAP.starter)
    result = CliRunner().invoke(app, ["learn", "run", "gap", "--dir", str(tmp_path)])
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "exercise gap asks for answers, and there is no strategy to train" in said
    assert "`minitrain learn check gap` compares a step that was measured already" in said
