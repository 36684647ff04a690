"""What a submission's process has of minitrain: compiled, the same for all, and gone with the grader."""

from __future__ import annotations

import compileall
import subprocess
import sys
from pathlib import Path

import pytest

from minitrain.learn.isolation import copy_minitrain, shared_copy


def test_nothing_is_left_to_compile(tmp_path: Path) -> None:
    copy_minitrain(tmp_path / "minitrain")
    compiled = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pyc")}
    assert len(compiled) == len([*tmp_path.rglob("*.py")])
    assert compileall.compile_dir(tmp_path, quiet=2)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pyc")} == compiled


def test_what_processes_share_lacks_what_is_secret() -> None:
    folder = shared_copy()
    assert folder == shared_copy()
    assert [*folder.glob("strategies/*.py")] == [folder / "strategies" / "__init__.py"]
    assert not [path for name in ("reference.py", "hidden.json", "grader.py") for path in folder.rglob(name)]


@pytest.mark.ci
def test_what_processes_share_ends_with_their_grader() -> None:
    code = "from minitrain.learn.isolation import shared_copy; print(shared_copy())"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    folder = Path(found.stdout.strip())
    assert folder.parent.name.startswith("minitrain-library-")
    assert not folder.parent.exists()
