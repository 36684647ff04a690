"""A class: folders and patterns of submissions, odd files among them, and files that a submission imports."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.learn import Grade, load_exercise, shipped_exercises
from minitrain.learn.classes import (
    MOST_MEMORY,
    Row,
    as_csv,
    as_table,
    grade_all,
    grade_one,
    key_of,
    write_class_page,
)
from minitrain.learn.exercise import CHECKS, CheckResult
from minitrain.learn.isolation import Isolation
from minitrain.learn.sandbox import LONGEST_SOURCE, Limits, own_name, upload_of
from minitrain.learn.submissions import find_submissions, fingerprint, imported
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
    os.mkfifo(folder / "pipe.py")
    return folder


REASONS = {
    "=nothing.py": "it is for no exercise",
    "binary.py": "it is no text",
    "carol": "it is for no exercise",
    "empty.py": "it is empty",
    "essay.txt": "it is no Python file: its name ends in .txt",
    "huge.py": "it has more than 1048576 bytes",
    "latin.py": "it is no text in UTF-8, which Python reads, at line 1; save it as UTF-8",
    "link.py": "it is a link",
    "nowhere.py": "it is a link",
    "pipe.py": "it is a folder, a pipe or a device",
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
    assert {row["student"]: row["score"] for row in table if row["score"] != "0"} == {"alice": "100", "bob": "100"}


@pytest.mark.ci
def test_one_worker_does_the_same(tmp_path: Path) -> None:
    write(tmp_path, {"02_a.py": DDP, "02_b.py": "async def ddp(model):\n    return model\n"})
    rows = grade_all(find_submissions([tmp_path], shipped_exercises()), workers=1)
    assert [(row.file, row.score) for row in rows] == [("02_a.py", 100), ("02_b.py", 0)]
    assert rows[1].failure.startswith("laws: no rank has called load_weights yet")


@pytest.mark.ci
def test_nobody_imports_the_work_of_somebody_else(tmp_path: Path) -> None:
    write(
        tmp_path, {"alice.py": DDP, "bob.py": "from alice import ddp\n", "carol.py": "import alice\nddp = alice.ddp\n"}
    )
    ddp = load_exercise("02")
    found = find_submissions([tmp_path], shipped_exercises(), exercise=ddp)
    rows = grade_all(found, workers=1)
    assert [row.score for row in rows] == [100, 0, 0]
    assert "No module named 'alice'" in rows[1].failure


@pytest.mark.ci
def test_a_helper_that_is_imported_is_no_row(tmp_path: Path) -> None:
    write(tmp_path, {"02_mine.py": WITH_HELPER, "helper.py": HELPER, "tools/deep.py": "number = 1\n"})
    (found,) = find_submissions([str(tmp_path / "*.py")], shipped_exercises())
    assert sorted(path.name for path in found.beside) == ["deep.py", "helper.py"]
    (row,) = grade_all([found])
    assert row.score == 100, row.failure


@pytest.mark.ci
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


def test_names_and_students_are_kept_where_several_folders_are_given(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"s05/02_ddp.py": DDP, "s06/02_ddp.py": DDP, "s06/deep/zero1.py": "async def zero1(m): ...", "al.py": DDP},
    )
    folders = [tmp_path / "s05", tmp_path / "s06"]
    found = find_submissions([*folders, tmp_path / "al.py"], shipped_exercises(), exercise=None)
    named = [(one.name, one.student) for one in found]
    assert named == [
        ("s05/02_ddp.py", "s05"),
        ("s06/02_ddp.py", "s06"),
        ("s06/deep/zero1.py", "deep"),
        (str(tmp_path / "al.py"), "al"),
    ]
    together = find_submissions(folders, shipped_exercises(), together=True)
    assert [(one.name, one.student) for one in together] == [
        ("s05/02_ddp.py", "s05"), ("s06/02_ddp.py", "s06"), ("s06/deep/zero1.py", "s06")
    ]  # fmt: skip
    assert [one.name for one in find_submissions(folders[:1], shipped_exercises())] == ["02_ddp.py"]
    (whole, *_) = find_submissions([tmp_path], shipped_exercises())
    assert (whole.name, whole.student) == ("al.py", "al")


def notebook(*cells: str, **more: object) -> str:
    """Return a notebook with some cells of code, and one of text."""
    code = [{"cell_type": "code", "source": text.splitlines(keepends=True), "outputs": []} for text in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "import os"}, *code], "nbformat": 4, **more})


@pytest.mark.ci
def test_a_notebook_is_graded_by_what_its_cells_define(tmp_path: Path) -> None:
    begin = "from minitrain.lib import Model\n"
    cells = [
        "%pip install minitrain\nSTEP = 1",
        "try:\n    import minitrain as mt\nexcept ImportError:\n    raise",
        DDP if begin in DDP else begin + DDP,
        "run = mt.simulate(ddp, world_size=2)\nrun.figure()",
        "raise SystemExit('a cell that does something')",
    ]
    write(tmp_path, {"bob/02_ddp.ipynb": notebook(*cells), "carol.ipynb": notebook(*cells)})
    found = find_submissions([tmp_path], shipped_exercises())
    assert [(one.name, one.student, one.reason) for one in found] == [
        ("bob/02_ddp.ipynb", "bob", ""), ("carol.ipynb", "carol", "")
    ]  # fmt: skip
    (row,) = grade_all(found[:1], workers=1)
    assert (row.score, row.student) == (100, "bob"), row.failure


def test_each_file_of_a_student_that_cannot_be_graded_has_its_reason(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "a/02_ddp.ipynb": notebook("print(1)"),
        "b/02_ddp.ipynb": "{}",
        "c/02_ddp.ipynb": "no json",
        "d/02_ddp.zip": b"PK",
        "e/02_ddp.py": "",
        "e/03_zero1.py": DDP,
        "f/mine.py": "# \xe9".encode("latin-1"),
        "g/essay.txt": "text",
        "h/readme": "",
        "h/main.py": DDP,
        "i/02_ddp.ipynb": notebook("async def ddp(model):\n    return model", padding="x" * 2**24),
    }
    found = find_submissions([write(tmp_path, files)], shipped_exercises())
    (tmp_path / "k" / "dir.py").mkdir(parents=True)
    reasons = {one.name: one.reason for one in found}
    assert {name: reasons[name][: len(reason)] for name, reason in UNGRADED.items()} == UNGRADED
    assert set(reasons) == {*UNGRADED, "e/03_zero1.py", "h/main.py"}
    assert [reasons["e/03_zero1.py"], reasons["h/main.py"]] == ["", ""]
    assert reasons["g"].endswith("; it has essay.txt")
    said = find_submissions([tmp_path / "f"], shipped_exercises(), exercise=load_exercise("02"), together=True)
    assert [one.reason for one in said] == [reasons["f/mine.py"]]
    (empty,) = find_submissions([tmp_path / "k"], shipped_exercises(), exercise=load_exercise("02"))
    assert empty.reason == "it has no 02_ddp.py, no function ddp, and no single file of another name; it has nothing"
    with pytest.raises(UsageError, match=r"there is nothing to grade in .*dir\.py; give submissions, or their folders"):
        find_submissions([tmp_path / "k" / "dir.py"], shipped_exercises())


UNGRADED = {
    "a/02_ddp.ipynb": "no cell of it has definitions alone",
    "b/02_ddp.ipynb": "it is no notebook: it has no cells",
    "c/02_ddp.ipynb": "it is no notebook: expected JSON",
    "d/02_ddp.zip": "it is no Python file: its name ends in .zip, not in .py or .ipynb",
    "e/02_ddp.py": "it is empty",
    "f/mine.py": "it is no text in UTF-8",
    "g": "it is for no exercise",
    "i/02_ddp.ipynb": "it has more than 16777216 bytes",
}


@pytest.mark.ci
def test_what_is_alike_but_for_names_is_told_and_costs_nothing(learn: Learn, tmp_path: Path) -> None:
    renamed = re.sub(r"\bmodel\b", "my_model", DDP).replace('"""', '"""I wrote this. ', 1)
    copies = {"class/al/02_ddp.py": DDP, "class/bo/ddp.py": f"# mine\n{renamed}", "class/al/ddp.py": DDP}
    other = changed(DDP, ("    return model\n", "    model.status()\n    return model\n"))
    starter = load_exercise("02").starter
    write(Path(), {**copies, "class/cy/ddp.py": other, "class/di/ddp.py": starter, "class/ed/ddp.py": starter})
    found = {row["file"]: row for row in json.loads(learn("class", "--format", "json").stdout)}
    assert {name: row["alike"] for name, row in found.items()} == {
        "al/02_ddp.py": ["bo/ddp.py"],
        "al/ddp.py": ["bo/ddp.py"],
        "bo/ddp.py": ["al/02_ddp.py", "al/ddp.py"],
        "cy/ddp.py": [],
        "di/ddp.py": [],
        "ed/ddp.py": [],
    }
    assert found["bo/ddp.py"]["score"] == 100, found["bo/ddp.py"]


@pytest.mark.few(2)
@pytest.mark.parametrize("piece", ['"""', '"', '""" "', "#", "a", "\\", "'"])
def test_hostile_sources_are_compared_at_once(piece: str) -> None:
    began = time.process_time()
    assert fingerprint(piece.encode() * (2**20 // len(piece)))
    assert time.process_time() - began < 2


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


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (OSError("odd"), "the grader failed: OSError: odd"),
        (OSError(28, "No space left"), "the grader lacks disk or memory: No space left; grade it again"),
    ],
)
def test_a_grader_that_fails_ends_one_row_alone(
    error: OSError, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("minitrain.learn.classes.grade", fails)
    write(tmp_path, {"02_a.py": DDP})
    row = grade_one(find_submissions([tmp_path], shipped_exercises())[0], Limits())
    assert (row.score, row.failure) == (0, failure)


@pytest.mark.skipif(not Path("/bin/false").exists(), reason="needs a program that ends at once")
def test_a_process_that_does_not_come_as_far_as_the_submission_is_no_fault_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    write(tmp_path, {"02_a.py": DDP})
    row = grade_one(find_submissions([tmp_path], shipped_exercises())[0], Limits(isolation="none"))
    assert row.failure == (
        "the grader lacks disk or memory: a process did not come as far as the submission, it ended with exit code 1; "
        "grade it again"
    )


def test_a_grader_without_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("minitrain.learn.classes.grade", fails)
    write(tmp_path, {"02_a.py": DDP})
    row = grade_one(find_submissions([tmp_path], shipped_exercises())[0], Limits())
    assert row.failure.startswith(f"judging what it does needs more than {MOST_MEMORY / 2**30:.0f} GiB")


def test_rows_name_a_file_without_the_graders_folders_and_a_table_says_what_fails_without_the_remedy(
    tmp_path: Path,
) -> None:
    write(
        tmp_path, {"alice/02_ddp.py": "def ddp(model)\n", "bob/02_ddp.py": DDP.replace("await model.all_reduce", "(")}
    )
    write(tmp_path, {"carol/02_ddp.py": DDP.replace("    return model", "    return None")})
    rows = grade_all(find_submissions([tmp_path], shipped_exercises()), limits=Limits(isolation="none"), workers=1)
    assert rows[0].failure.startswith("runs: the strategy file 02_ddp.py cannot be loaded: SyntaxError")
    assert str(tmp_path) not in as_csv(rows)
    assert "; end it with `return model`" in rows[2].failure
    (*_, told) = as_table(rows).columns[-1].cells
    assert str(told) == rows[2].failure.partition("; ")[0]


def test_isolation_that_is_not_to_be_had_ends_the_class(tmp_path: Path) -> None:
    write(tmp_path, {"02_a.py": DDP})
    with pytest.raises(UsageError, match="isolation must be one of"):
        grade_all(find_submissions([tmp_path], shipped_exercises()), limits=Limits(isolation="much"))


@pytest.fixture
def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learn:
    """Return what runs `minitrain learn grade` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, ["learn", "grade", *map(str, args)])


@pytest.mark.ci
def test_grade_prints_a_table_of_a_class(learn: Learn) -> None:
    write(Path("class"), {"02_a.py": DDP, "essay.txt": "text"})
    kept = ("--results", "rows.jsonl")  # graded once
    result = learn("class", "--jobs", "1", "--html", "marks.html", *kept)
    assert result.exit_code == 1
    page = Path("marks.html").read_text()
    (picture,) = re.findall(r'<a href="(marks_pictures/\w+.html)">100</a>', page)
    assert '"name":"Expected"' in Path(picture).read_text()
    assert "essay.txt" in page
    assert result.stderr.endswith("wrote marks.html\n")
    assert [word for word in ("02_a.py", "100", "essay.txt", "it is no Python") if word not in result.stdout] == []
    found = json.loads(learn("class", "--format", "json", *kept).stdout)
    assert [(one["file"], one["score"]) for one in found] == [("02_a.py", 100), ("essay.txt", 0)]
    assert learn("class/02_a.py").stdout.startswith("02_ddp: 100 of 100 points\n")
    text = learn("class", "--format", "text", *kept).stdout
    assert "02_a.py\n02_ddp: 100 of 100" in text
    assert "essay.txt: not graded\n  it is no Python file" in text


def test_a_page_of_a_class_has_the_best_marks_of_each_student_and_how_they_spread(tmp_path: Path) -> None:
    def row(student: str, failed: str = "", exercise: str = "02_ddp", **more: Any) -> Row:
        checks = [
            CheckResult(name, "failed" if name == failed else "passed", "<no>" if failed else "") for name in CHECKS
        ]
        return Row(f"{student}/{exercise}.py", Grade(exercise, checks, 0.1), student=student, **more)

    rows = [row("<bob>", "laws"), row("<bob>", "memory"), row("alice", picture=tmp_path / "class #1" / "a.html")]
    rows += [row("alice", exercise="05_zero3"), Row("essay.txt", reason="it is no Python file", student="carol")]
    page = write_class_page(rows, tmp_path / "marks.html").read_text()
    assert [*re.findall(r"<tr><td>(&lt;bob&gt;|alice|carol)</td>.*?<td>(\d+)</td></tr>", page)] == [
        ("&lt;bob&gt;", "80"),
        ("alice", "200"),
        ("carol", "0"),
    ]
    assert '<a href="class%20%231/a.html">100</a>' in page
    spread = page[page.index("<td>02_ddp") : page.index("<td>05_zero3")]
    assert spread.startswith("<td>02_ddp</td><td>2</td><td>1</td><td>90</td><td>90</td>")
    assert re.findall(r"<title>(.*?)</title>", spread)[-3:] == ["0 have 60 to 79", "1 have 80 to 99", "1 have 100"]
    assert ">memory 1</td>" in spread
    assert "<td>essay.txt</td>" in page
    assert "<no>" not in page
    assert "<bob>" not in page


@pytest.mark.parametrize(("width", "parted"), [(60, True), (120, False)])
def test_reasons_have_lines_of_their_own_in_a_narrow_terminal(
    learn: Learn, monkeypatch: pytest.MonkeyPatch, width: int, *, parted: bool
) -> None:
    write(Path("class"), {"a_long_name_of_a_file.txt": "text", "essay.txt": "text"})
    monkeypatch.setenv("COLUMNS", f"{width}")
    lines = learn("class").stdout.splitlines()
    assert len(lines) == (5 if parted else 3)
    assert any(line.split()[:2] == ["a_long_name_of_a_file.txt", "-"] for line in lines)
    assert ("essay.txt: it is no Python file" in lines[-1]) is parted


@pytest.mark.slow
def test_grade_uses_the_sizes_of_a_secret(learn: Learn) -> None:
    begin = "    layers = range(model.num_layers)\n"
    known = {(2, 3), (4, 6), (8, 2), (3, 5), (1, 3)}
    only_known = changed(DDP, (begin, f"{begin}    assert (model.world_size, model.num_layers) in {known}\n"))
    write(Path(), {"02_a.py": only_known})
    assert learn("02_a.py").exit_code == 0
    result = learn("02_a.py", "--seed", "a secret")
    assert result.exit_code == 1
    assert "a hidden size" in result.stdout


def test_a_table_says_what_kept_submissions_apart(learn: Learn, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [Isolation("auto"), *(Isolation("auto", {"seccomp": "", "uid": uid}, ()) for uid in ("1", "2"))]
    rows = [Row(f"{place}.py", Grade("02_ddp", [], 0.0, isolation=one)) for place, one in enumerate(held)]
    monkeypatch.setattr("minitrain.learn.classes.grade_all", lambda *_, **__: rows)
    write(Path(), {"02_a.py": DDP})
    *_, none, all_of_them = learn("02_a.py").stdout.splitlines()
    assert none == "isolation of 1: none: this machine offers no means"
    assert all_of_them == "isolation of 2: seccomp, a uid of its own"


def test_a_file_whose_name_is_an_option_is_none(learn: Learn, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path(), {"--isolation=none": DDP, "02_a.py": DDP})
    arguments = ["--isolation=none", "02_a.py"]  # as a shell makes of *
    monkeypatch.setattr("sys.argv", ["minitrain", "learn", "grade", *arguments])
    assert "--isolation=none is a file here" in " ".join(learn(*arguments).stderr.split())
    monkeypatch.setattr("sys.argv", ["minitrain", "learn", "grade", "--", *arguments])
    monkeypatch.setattr("minitrain.learn.classes.grade_all", lambda found, **_: [Row(one.name) for one in found])
    assert learn("--format", "csv", "--", *arguments).stdout.splitlines()[1].startswith(",'--isolation=none,")


SLEEPS = DDP + "\nimport time\ntime.sleep(60)\n"


@pytest.mark.ci
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


@pytest.mark.ci
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
    assert second[0] == {**done["02_a.py"], "alike": ["02_b.py"]}  # with the seconds of the first time
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


NAMES = {  # of a file or folder as a platform has it, what its author called it, and the student
    "smithalice_4711_99012_02_ddp.py": ("02_ddp.py", "smithalice_4711"),
    "smithalice_LATE_4711_99012_helper-1.py": ("helper.py", "smithalice_4711"),
    "Alice Smith_4711_assignsubmission_file_helper.py": ("helper.py", "Alice Smith"),
    "Alice Smith_4711_assignsubmission_file_": ("Alice Smith_4711_assignsubmission_file_", "Alice Smith"),
    "Exercise 2_asmith_attempt_2026-11-26-10-00-00_my_ddp.py": ("my_ddp.py", "asmith"),
    "02_ddp.py": ("02_ddp.py", ""),
    "my_solution_3.py": ("my_solution_3.py", ""),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_platform_makes_of_a_name_is_read(name: str) -> None:
    own, student = NAMES[name]
    upload = upload_of(name)
    assert (own_name(name), upload.student if upload else "") == (own, student)


def test_a_helper_that_a_platform_has_renamed_is_found_beside_those_of_others(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    for student in ("ann_1111", "bob_2222"):
        files |= {f"{student}_9001_02_ddp.py": WITH_HELPER, f"{student}_9002_helper.py": HELPER}
    write(tmp_path, {**files, "Eve_3333_assignsubmission_file_/ddp.py": DDP})
    found = find_submissions([tmp_path], shipped_exercises())
    assert [one.student for one in found] == ["Eve", "ann_1111", "bob_2222"]
    assert [[path.name for path in one.beside] for one in found[1:]] == [
        ["ann_1111_9002_helper.py"],
        ["bob_2222_9002_helper.py"],
    ]
