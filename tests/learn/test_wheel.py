"""What is handed out installs itself where nothing of ours is: the wheel for students, and the Gradescope zip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from minitrain.learn import load_exercise
from minitrain.learn.budgets import with_secret_sizes
from minitrain.learn.wheel import students_wheel, write_package
from tests.learn.exercises.sources import DDP

NOT_NEEDED = ("chex", "jax", "plotly", "scipy", "simpy", "torch")
"""What neither students nor graders need."""


def empty_environment(folder: Path) -> Path:
    """Make an environment with what minitrain depends on and nothing of minitrain, and return its interpreter.

    An index may not be reachable here, so the dependencies are those of this environment, each by a link.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    there = Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())
    for folder_here in dict.fromkeys(path for path in sys.path if Path(path).name == "site-packages"):
        for path in Path(folder_here).iterdir():
            left_out = path.name.startswith(("minitrain", "__editable__", *NOT_NEEDED)) or path.suffix == ".pth"
            if not left_out and not (there / path.name).exists():
                (there / path.name).symlink_to(path)
    found = subprocess.run([python, "-c", "import minitrain"], check=False, capture_output=True, text=True, cwd=folder)
    assert "No module named 'minitrain'" in found.stderr
    return python


def install(wheel: Path, python: Path) -> None:
    """Install a wheel as pip does, from the pip of this environment."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True, capture_output=True)


def learn(python: Path, folder: Path, *words: str) -> tuple[str, str]:
    """Run `minitrain learn` in another environment, and return what it printed on stdout and stderr."""
    found = subprocess.run(
        [python, "-m", "minitrain", "learn", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
    )
    return found.stdout, found.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="links and shell scripts")
@pytest.mark.slow
def test_students_check_their_work_with_a_wheel_without_references(tmp_path: Path) -> None:
    wheel = students_wheel([load_exercise("02"), load_exercise("08")], tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in names if name.endswith(("exercises/reference.py", "hidden.json", "ddp.py"))]
    assert not [name for name in names if "/exercises/" in name and name.endswith("reference.py")]
    python = empty_environment(tmp_path / "venv")
    install(wheel, python)
    work = tmp_path / "work"
    work.mkdir()
    assert "wrote 02_ddp.py" in learn(python, work, "start", "02")[0]
    (work / "02_ddp.py").write_text(DDP)
    assert "02_ddp: 100 of 100 points" in learn(python, work, "check", "02")[0]
    assert "02_ddp: 100 of 100 points" in learn(python, work, "grade", "02_ddp.py")[0]  # of the public sizes
    assert "is not part of this installation; ask your teacher" in learn(python, work, "solution", "02")[1]
    code = "import runpy, sys; sys.argv = ['minitrain', 'compare', '--world-size', '2']; runpy.run_module('minitrain')"
    compared = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=work).stdout
    assert "★  ddp" in compared  # what this folder has
    assert (work / "traces" / "ddp" / "index.html").is_file()
    hoards = DDP.replace("        del activations[k]\n", "").replace("grads.pop(k)", "grads[k]")
    (work / "02_ddp.py").write_text(hoards)
    assert "failed  memory" in learn(python, work, "check", "02")[0]
    page = (work / "02_ddp.check.html").read_text()
    assert '"name":"Yours"' in page
    assert '"name":"Expected"' in page  # its timing is there, its code is not


def test_the_same_files_give_the_same_wheel(tmp_path: Path) -> None:
    first, second = (students_wheel([load_exercise("02")], tmp_path / name).read_bytes() for name in "ab")
    assert first == second


@pytest.mark.ci
@pytest.mark.skipif(sys.platform == "win32", reason="links and shell scripts")
def test_the_gradescope_zip_works_where_nothing_of_ours_is(tmp_path: Path) -> None:
    exercise = with_secret_sizes(load_exercise("02"), "a secret")
    package = write_package([exercise], tmp_path / "autograder.zip")
    source = tmp_path / "autograder" / "source"  # as Gradescope lays it out: the zip there, the script above it
    with zipfile.ZipFile(package) as archive:
        archive.extractall(source)
        hidden = json.loads(archive.read("exercises/02_ddp/hidden.json"))
    assert hidden == [case.as_dict() for case in exercise.hidden]
    (wheel,) = source.glob("*.whl")
    assert f"pip install -q --no-compile ./{wheel.name}\n" in (source / "setup.sh").read_text()
    subprocess.run(["bash", "-n", source / "setup.sh"], check=True)
    install(wheel, empty_environment(source / "venv"))
    script = source.parent / "run_autograder"
    (source / "run_autograder").rename(script)
    work = tmp_path / "autograder" / "submission"
    work.mkdir()
    share = "range(model.rank, model.global_batch_size, model.world_size)"
    (work / "ddp.py").write_text("from helper import share\n" + DDP.replace(share, "share(model)"))
    (work / "helper.py").write_text(f"def share(model):\n    return {share}\n")
    results = tmp_path / "results.json"
    environment = {"PATH": os.environ["PATH"], "MINITRAIN_SUBMISSION": str(work), "MINITRAIN_RESULTS": str(results)}
    subprocess.run(["bash", script], check=True, cwd=tmp_path, env=environment)
    found = json.loads(results.read_text())
    assert (found["score"], [test["status"] for test in found["tests"]]) == (100, ["passed"] * 6)
