"""A class: folders and patterns of submissions, odd files among them, and files that a submission imports."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.learn import load_exercise, shipped_exercises
from minitrain.learn.classes import MOST_MEMORY, grade_all, grade_one, key_of
from minitrain.learn.report import as_csv
from minitrain.learn.sandbox import LONGEST_SOURCE, Limits
from minitrain.learn.submissions import find_submissions, imported
from tests.learn.exercises.sources import DDP, changed

OWN = "range(model.rank, model.global_batch_size, model.world_size)"
WITH_HELPER = changed(DDP, (OWN, "share(model)"), before="from helper import share\n")
HELPER = f"from tools.deep import number\n\n\ndef share(model):\n    return {OWN}\n"

Learn = Callable[..., Result]


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files and return their folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A class in which everything was handed in."""
    files: dict[str, str | bytes] = {
        "alice.py": DDP,
        "bob/main.py": WITH_HELPER,
        "bob/helper.py": HELPER,
        "bob/tools/__init__.py": "",
        "bob/tools/deep.py": "number = 1\n",
        "bob/notes.md": "my notes",
        "carol/report.pdf": b"%PDF",
        "essay.txt": "ZeRO is good.",
        "empty.py": "",
        "binary.py": bytes(range(256)),
        "latin.py": "# \xe9\n".encode("latin-1"),
        "huge.py": "#" * (LONGEST_SOURCE + 1),
        "=nothing.py": "x = 1\n",
        ".hidden.py": DDP,
        "__pycache__/a.pyc": b"",
    }
    folder = write(tmp_path / "class", files)
    (folder / "link.py").symlink_to("alice.py")
    (folder / "nowhere.py").symlink_to("/nowhere")
    return folder


REASONS = {
    "=nothing.py": "it is for no exercise",
    "binary.py": "it is no text",
    "carol": "it is for no exercise",
    "empty.py": "it is empty",
    "essay.txt": "it is no Python file: its name ends in .txt",
    "huge.py": "it has more than 1048576 bytes",
    "latin.py": "it is no text",
    "link.py": "it is a link",
    "nowhere.py": "it is a link",
}


def test_odd_files_are_rows_with_their_reason(odd: Path) -> None:
    found = find_submissions([odd], shipped_exercises())
    reasons = {one.name: one.reason for one in found if one.reason}
    assert {name: reasons[name][: len(text)] for name, text in REASONS.items()} == REASONS
    assert [one.name for one in found if not one.reason] == ["alice.py", os.path.join("bob", "main.py")]  # noqa: PTH118
    assert len(found) == len(REASONS) + 2


def test_a_class_is_graded_to_its_end_in_the_order_of_its_files(odd: Path) -> None:
    said: list[int] = []
    submissions = find_submissions([odd], shipped_exercises())
    rows = grade_all(submissions, workers=2, progress=lambda done, _: said.append(done))
    assert [row.file for row in rows] == [one.name for one in submissions]
    assert {row.file: row.score for row in rows if row.score} == {"alice.py": 100, "bob/main.py": 100}
    assert said == [len(rows) - 1, len(rows)]  # the others cannot be graded
    table = [*csv.DictReader(as_csv(rows).splitlines())]
    assert table[0]["file"] == "'=nothing.py"


def test_one_worker_does_the_same(tmp_path: Path) -> None:
    write(tmp_path, {"02_a.py": DDP, "02_b.py": "async def ddp(model):\n    return model\n"})
    rows = grade_all(find_submissions([tmp_path], shipped_exercises()), workers=1)
    assert [(row.file, row.score) for row in rows] == [("02_a.py", 100), ("02_b.py", 0)]
    assert rows[1].failure.startswith("laws: layer 0 has no final weight on any rank")


def test_nobody_imports_the_work_of_somebody_else(tmp_path: Path) -> None:
    write(
        tmp_path, {"alice.py": DDP, "bob.py": "from alice import ddp\n", "carol.py": "import alice\nddp = alice.ddp\n"}
    )
    ddp = load_exercise("02")
    found = find_submissions([tmp_path], shipped_exercises(), exercise=ddp)
    rows = grade_all(found, workers=1)
    assert [row.score for row in rows] == [100, 0, 0]
    assert "No module named 'alice'" in rows[1].failure


def test_a_helper_that_is_imported_is_no_row(tmp_path: Path) -> None:
    write(tmp_path, {"02_mine.py": WITH_HELPER, "helper.py": HELPER, "tools/deep.py": "number = 1\n"})
    (found,) = find_submissions([str(tmp_path / "*.py")], shipped_exercises())
    assert sorted(path.name for path in found.beside) == ["deep.py", "helper.py"]
    (row,) = grade_all([found])
    assert row.score == 100, row.failure


def test_an_error_in_a_helper_is_told_its_line(tmp_path: Path) -> None:
    write(tmp_path, {"02_mine.py": WITH_HELPER, "helper.py": "def share(model):\n    return 1 / 0\n"})
    (row,) = grade_all(find_submissions([tmp_path], shipped_exercises(), together=True))
    assert row.grade is not None
    assert row.grade.failures[0].line == "helper.py:2"


def test_imports_that_go_round_end(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "import b\nimport json\n", "b.py": "import a\nfrom c import *\n", "c.py": "x = (\n"})
    assert [path.name for path in imported(tmp_path / "a.py")] == ["b.py", "c.py"]


def test_a_students_folder_is_one_row_for_each_exercise(tmp_path: Path) -> None:
    write(tmp_path, {"02_ddp.py": DDP, "zero1.py": "async def zero1(model): ...", "test_mine.py": "x = 1\n"})
    found = find_submissions([tmp_path], shipped_exercises(), together=True)
    assert [(one.name, one.exercise and one.exercise.name) for one in found] == [
        ("02_ddp.py", "02_ddp"), ("zero1.py", "03_zero1")]  # fmt: skip


def test_the_exercise_may_be_said(tmp_path: Path) -> None:
    ddp = load_exercise("02")
    write(tmp_path, {"work.py": "x = 1\n"})
    (found,) = find_submissions([tmp_path], shipped_exercises(), exercise=ddp, together=True)
    assert found.exercise == ddp
    (found,) = find_submissions([tmp_path / "work.py"], shipped_exercises(), exercise=ddp)
    assert not found.reason


def test_there_must_be_something_at_a_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*none\*\.py; give submissions, folders of them"):
        find_submissions([tmp_path / "none*.py"], shipped_exercises())


def test_a_grader_that_fails_ends_one_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("minitrain.learn.classes.grade", fails)
    write(tmp_path, {"02_a.py": DDP})
    row = grade_one(find_submissions([tmp_path], shipped_exercises())[0], Limits())
    assert (row.score, row.failure) == (0, "the grader failed: OSError: the disk is full")


def test_a_grader_without_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("minitrain.learn.classes.grade", fails)
    write(tmp_path, {"02_a.py": DDP})
    row = grade_one(find_submissions([tmp_path], shipped_exercises())[0], Limits())
    assert row.failure.startswith(f"judging what it does needs more than {MOST_MEMORY / 2**30:.0f} GiB")


def test_isolation_that_is_not_to_be_had_ends_the_class(tmp_path: Path) -> None:
    write(tmp_path, {"02_a.py": DDP})
    with pytest.raises(UsageError, match="isolation must be one of"):
        grade_all(find_submissions([tmp_path], shipped_exercises()), limits=Limits(isolation="much"))


@pytest.fixture
def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learn:
    """Return what runs `minitrain learn grade` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, ["learn", "grade", *map(str, args)])


def test_grade_prints_a_table_of_a_class(learn: Learn) -> None:
    write(Path("class"), {"02_a.py": DDP, "essay.txt": "text"})
    result = learn("class", "--jobs", "1")
    assert result.exit_code == 1
    assert [word for word in ("02_a.py", "100", "essay.txt", "it is no Python") if word not in result.stdout] == []
    found = json.loads(learn("class", "--format", "json").stdout)
    assert [(one["file"], one["score"]) for one in found] == [("02_a.py", 100), ("essay.txt", 0)]
    assert learn("class/02_a.py").stdout.startswith("02_ddp: 100 of 100 points\n")
    text = learn("class", "--format", "text").stdout
    assert "02_a.py\n02_ddp: 100 of 100" in text
    assert "essay.txt: not graded\n  it is no Python file" in text


def test_grade_uses_the_sizes_of_a_secret(learn: Learn) -> None:
    begin = "    layers = range(model.num_layers)\n"
    known = {(2, 3), (4, 6), (8, 2), (3, 5), (1, 3)}
    only_known = changed(DDP, (begin, f"{begin}    assert (model.world_size, model.num_layers) in {known}\n"))
    write(Path(), {"02_a.py": only_known})
    assert learn("02_a.py").exit_code == 0
    result = learn("02_a.py", "--seed", "a secret")
    assert result.exit_code == 1
    assert "a hidden size" in result.stdout


SLEEPS = DDP + "\nimport time\ntime.sleep(60)\n"


def test_a_killed_process_costs_its_own_submission_alone(tmp_path: Path) -> None:
    write(tmp_path, {"02_a.py": SLEEPS, "02_b.py": DDP, "02_c.py": DDP})
    others, killed = {*multiprocessing.active_children()}, list[int | None]()

    def kill() -> None:
        while not (children := {*multiprocessing.active_children()} - others):
            time.sleep(0.01)
        time.sleep(1.0)  # it may import still; it judges the first submission, whose process sleeps
        for child in children:
            killed.append(child.pid)
            child.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    rows = grade_all(find_submissions([tmp_path], shipped_exercises()), workers=1)
    killer.join()
    assert killed
    assert [(row.score, row.reason) for row in rows[1:]] == [(100, ""), (100, "")]
    assert rows[0].reason == "the process that judged it was killed; the machine may lack memory"


def test_rows_are_kept_as_they_come_and_not_graded_again(learn: Learn, tmp_path: Path) -> None:
    folder = write(tmp_path / "class", {"02_a.py": DDP, "02_b.py": "async def ddp(model):\n    return model\n"})
    asked = ("grade", str(folder), "--format", "json", "--results", str(tmp_path / "rows.jsonl"))
    first = json.loads(learn(*asked[1:]).stdout)
    kept = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(kept) == 2
    kept.sort(key=lambda row: "02_b.py" in row)
    (tmp_path / "rows.jsonl").write_text(kept[0] + "\n" + kept[1][:20])  # killed while it wrote
    (folder / "02_b.py").write_text(DDP)
    write(folder, {"02_c.py": "x = 1\n"})
    second = json.loads(learn(*asked[1:]).stdout)
    done = {row["file"]: row for row in first}
    assert done["02_a.py"] == second[0]  # with the seconds of the first time
    assert [row["score"] for row in second] == [100, 100, 0]


def test_a_grade_is_of_the_exercise_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "02_mine"
    shutil.copytree(load_exercise("02").folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    write(tmp_path, {"ddp.py": DDP})

    def key() -> str:
        (one,) = find_submissions([tmp_path / "ddp.py"], [], exercise=load_exercise(folder))
        return key_of(one, Limits())

    before = key()
    assert key() == before
    data = json.loads((folder / "exercise.json").read_text())
    (folder / "exercise.json").write_text(json.dumps({**data, "forbidden_operations": ["all_reduce"]}))
    assert key() != before


def test_imports_are_found_without_a_parser(tmp_path: Path) -> None:
    names = ["one", "two", "three", "four", "five", "six", "seven"]
    text = (
        "import one.deep as x, two\nfrom three import y\nx = 1; import four\nif x: from five.a import z\n"
        "def f():\n    import \\\n        six\nfrom .seven import w\nimported = 'eight'\n"
    )
    write(tmp_path, {**{f"{name}.py": "x = 1\n" for name in [*names, "eight"]}, "main.py": text})
    assert sorted(path.stem for path in imported(tmp_path / "main.py")) == sorted(names)
    (tmp_path / "main.py").write_text("import " + ".".join("a" * 330_000))  # gigabytes for Python's parser
    assert imported(tmp_path / "main.py") == []
