"""`minitrain learn`: list, start, check, watch, hint, solution, reset, grade, verify, package."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from minitrain.cli import app
from minitrain.cli import learn as learning
from minitrain.cli.learn import STATE
from minitrain.learn import load_exercise
from minitrain.learn.classes import Row
from minitrain.learn.sandbox import Limits
from minitrain.search.sweeps.sweep import writing

SUBMISSIONS = Path(__file__).parents[1] / "learn" / "exercises" / "submissions"
RIGHT = (SUBMISSIONS / "ddp_as_it_goes.py").read_text()

Learn = Callable[..., Result]


@pytest.fixture
def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learn:
    """Return what runs `minitrain learn` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, ["learn", *map(str, args)])


def test_list_shows_all_exercises_and_progress(learn: Learn) -> None:
    assert "02_ddp" in learn("list").stdout
    assert "✓" not in learn("list").stdout
    Path("02_ddp.py").write_text(RIGHT)
    assert learn("check", "2").exit_code == 0
    line = next(line for line in learn("list").stdout.splitlines() if "02_ddp" in line)
    assert "✓" in line
    assert "100" in line


def test_start_writes_the_starter_never_over_work(learn: Learn) -> None:
    result = learn("start", "02", "--dir", "work")
    assert result.exit_code == 0
    assert "wrote work/02_ddp.py" in result.stdout
    assert "# 02 Data parallelism" in result.stdout
    statement = Path("work/02_ddp.md").read_text()
    assert "| 2 ranks, 3 layers, batch 8 |" in statement
    assert "**Stores.**" in statement
    assert "nor more activations" in statement
    path = Path("work/02_ddp.py")
    assert path.read_text() == load_exercise("02").starter
    assert "see 02_ddp.md" in path.read_text()  # which lies beside it
    path.write_text("mine")
    assert "is there already" in learn("start", "02", "--dir", "work").stdout
    assert path.read_text() == "mine"


def test_check_says_what_fails_and_then_that_all_is_well(learn: Learn) -> None:
    learn("start", "2")
    result = learn("check", "2")
    assert result.exit_code == 1
    assert "layer 0 has no final weight on any rank" in result.stdout
    Path("02_ddp.py").write_text("print('hello', flush=True)\n" + RIGHT)
    result = learn("check", "02_ddp.py")
    assert result.exit_code == 0
    assert "02_ddp: 100 of 100 points" in result.stdout
    assert "it printed:\nhello" in result.stdout
    assert json.loads(Path(STATE).read_text())["02_ddp"] == {"passed": True, "best": 100, "hints": 0}


def test_what_is_to_be_checked_must_be_there(learn: Learn) -> None:
    for args, message in (
        (("check", "2"), "there is no file 02_ddp.py; `minitrain learn start 02` writes it"),
        (("check", "none.py"), "there is no file none.py"),
        (("check", "99"), "there is no exercise '99'"),
        (("list", "--exercises", "nowhere"), "there is no folder nowhere"),
    ):
        result = learn(*args)
        assert result.exit_code == 2
        assert message in result.stderr.replace("\n", " ")
    Path("what.py").write_text("")
    assert "which exercise is what.py for?" in learn("check", "what.py").stderr


def test_watch_checks_again_when_the_file_is_saved(learn: Learn, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("02_ddp.py")
    path.write_text("async def ddp(model):\n    return None\n")
    monkeypatch.setattr("minitrain.cli.learn.time", SimpleNamespace(sleep=lambda _: path.write_text(RIGHT)))
    result = learn("watch", "2", "--times", "2")
    assert result.stdout.index(" 0 of 100 points") < result.stdout.index("100 of 100 points")
    assert result.stdout.count("watching 02_ddp.py") == 2


def test_hints_grow_more_direct(learn: Learn) -> None:
    hints = load_exercise("2").hints
    for shown in (1, 2, 3, 3):
        lines = learn("hint", "2").stdout.splitlines()
        assert lines == [f"{number} of 3: {hint}" for number, hint in enumerate(hints[:shown], 1)]


def test_the_solution_is_for_those_who_have_passed(learn: Learn, tmp_path: Path) -> None:
    result = learn("solution", "2")
    assert result.exit_code == 2
    assert "pass exercise 02 first" in result.stderr
    Path(STATE).write_text(json.dumps({name: {"passed": True, "best": 100, "hints": 0} for name in ("02_ddp", "mine")}))
    result = learn("solution", "2")
    assert "async def ddp(model: Model" in result.stdout
    assert result.stderr == "wrote 02_ddp_solution.py\n"
    assert Path("02_ddp_solution.py").read_text() == result.stdout
    assert learn("check", "02_ddp_solution.py").exit_code == 0
    Path("02_ddp_solution.py").write_text("mine")
    assert learn("solution", "2").stderr == "02_ddp_solution.py is there already\n"
    assert Path("02_ddp_solution.py").read_text() == "mine"
    shutil.copytree(load_exercise("2").folder, tmp_path / "own" / "mine")
    (tmp_path / "own" / "mine" / "reference.py").write_text(RIGHT)
    assert learn("solution", "mine", "--exercises", "own").stdout == RIGHT


def test_a_failing_check_draws_what_happened_beside_what_is_expected(learn: Learn) -> None:
    cases = {
        "hoards": (
            RIGHT.replace("        del activations[k]\n", "").replace("grads.pop(k)", "grads[k]"),
            "The first operation that differs is on rank 0: ",
        ),
        "breaks a law": (RIGHT.replace("await model.all_reduce(grads[k], k)", "grads[k]"), "up to the error: "),
        "breaks off": (RIGHT.replace("    return model\n", "    1 / 0\n"), "up to the error: "),
        "does nothing": ("async def ddp(model):\n    1 / 0\n", "so there is no picture of it"),
        "returns nothing": (RIGHT.replace("    return model\n", ""), "up to the error: "),
    }
    for name, (text, words) in cases.items():
        Path("02_ddp.py").write_text(text)
        result = learn("check", "2")
        assert result.stdout.splitlines()[-1].endswith("picture of each: 02_ddp.check.html"), name
        page = Path("02_ddp.check.html").read_text()
        assert ('"name":"Yours"' in page) is (name != "does nothing"), name
        assert '"name":"Expected"' in page
        assert words in page, name
    assert "must return the model of its rank" in page
    Path("02_ddp.py").write_text(RIGHT)
    assert "picture" in learn("check", "2").stdout  # on a pass too, with every figure beside its limit
    page = Path("02_ddp.check.html").read_text()
    assert "passed every check" in page
    assert "http-equiv" not in page
    for name in ("step with loading", "peak memory", "communication", "bubble", "MFU"):
        assert f"<td>{name}</td>" in page
    learn("watch", "2", "--times", "1")
    assert '<meta http-equiv="refresh" content="2">' in Path("02_ddp.check.html").read_text()


def test_reset_keeps_the_work_beside_it(learn: Learn) -> None:
    assert "wrote 02_ddp.py" in learn("reset", "2").stdout
    for number in (1, 2):
        Path("02_ddp.py").write_text(f"work {number}")
        assert f"kept your work as 02_ddp.{number}.py.old" in learn("reset", "2").stdout
        assert Path(f"02_ddp.{number}.py.old").read_text() == f"work {number}"
    assert Path("02_ddp.py").read_text() == load_exercise("2").starter


def test_a_broken_state_file_is_an_empty_one(learn: Learn) -> None:
    Path(STATE).write_text("{")
    assert learn("list").exit_code == 0


def test_grade_exits_with_0_for_full_marks_alone(learn: Learn) -> None:
    Path("ddp.py").write_text(RIGHT)
    assert learn("grade", "ddp.py").exit_code == 0
    result = learn("grade", "ddp.py", "--exercise", "5", "--format", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["exercise"] == "05_zero3"
    result = learn("grade", "ddp.py", "--format", "xml")
    assert result.exit_code == 2
    message = "--format must be one of text, table, csv, gradebook, json, junit, gradescope, got 'xml'"
    assert message in result.stderr.replace("\n", " ")


@pytest.mark.ci
def test_grade_says_how_submissions_are_kept_apart(learn: Learn) -> None:
    Path("ddp.py").write_text(RIGHT)
    assert learn("grade", "ddp.py", "--isolation", "none").stdout.endswith("\n  isolation: none\n")
    result = learn("grade", "ddp.py", "--isolation", "some")
    assert result.exit_code == 2
    assert "isolation must be one of auto, required, none, got 'some'" in result.stderr.replace("\n", " ")


def test_verify_names_the_faults_of_an_exercise(learn: Learn, tmp_path: Path) -> None:
    shutil.copytree(load_exercise("2").folder, tmp_path / "own" / "01_mine")
    assert learn("verify", "own").stdout == "01_mine: ok\n"
    (tmp_path / "own" / "01_mine" / "statement.md").write_text(f"# Mine\n\n```python\n{RIGHT}```\n")
    result = learn("verify", "own/01_mine")
    assert result.exit_code == 1
    assert result.stdout == "01_mine: the starter has 100 points; it must have none\n"


@pytest.mark.parametrize(("asked", "mode"), [(None, "required"), ("auto", "auto")])
def test_others_are_graded_by_the_kernel_or_not_at_all(
    asked: str | None, mode: str, learn: Learn, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def grade_all(_: Any, limits: Limits, **__: Any) -> list[Row]:
        found.append(limits.isolation)
        return []

    monkeypatch.setattr("minitrain.learn.classes.grade_all", grade_all)
    monkeypatch.delenv("MINITRAIN_ISOLATION")
    if asked:
        monkeypatch.setenv("MINITRAIN_ISOLATION", asked)
    Path("02_ddp.py").write_text(RIGHT)
    learn("grade", "02_ddp.py")
    learn("grade", "02_ddp.py", "--isolation", "none")
    assert found == [mode, "none"]


def test_package_writes_a_zip(learn: Learn) -> None:
    assert learn("package", "a.zip", "--exercise", "2", "--isolation", "required").stdout == "wrote a.zip\n"
    with zipfile.ZipFile("a.zip") as archive:
        script = archive.read("run_autograder").decode()
    assert '--isolation "${MINITRAIN_ISOLATION:-required}"' in script
    assert learn("package", "--students", "wheels", "--exercise", "2").stdout.startswith("wrote wheels/minitrain-")
    assert "isolation must be one of" in learn("package", "b.zip", "--isolation", "some").stderr.replace("\n", " ")


def test_a_pass_says_what_is_next_and_ones_place_among_others(learn: Learn) -> None:
    Path("02_ddp.py").write_text(RIGHT)
    figures = {"mfu": 0.99, "step_time_s": 1.0, "peak_memory_gib": 1.0}
    others = {"ahead": figures, "behind": {**figures, "mfu": 0.01}}
    row = {"exercise": "02_ddp", "passed": True}
    with writing(Path("rows.jsonl")) as write:
        for who, known in others.items():
            write(who, {"student": who, **row, "leaderboard": known})
    found = learn("check", "02", "--among", "rows.jsonl").stdout
    assert "place 2 of 3 in rows.jsonl, you among them" in found
    assert "next: `minitrain learn start 03`, ZeRO-1: shard the optimizer state" in found
    assert "MFU" not in found


def test_the_open_challenge_says_its_mfu(monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = load_exercise("12")
    monkeypatch.setattr("minitrain.learn.expected_run", lambda _: SimpleNamespace(mfu=0.5), raising=False)
    lines = learning._standing(SimpleNamespace(leaderboard={"mfu": 0.6}), challenge, None)  # type: ignore[arg-type]
    assert lines == ["MFU 60.0%; 50.0% is enough to pass"]
