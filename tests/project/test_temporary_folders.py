"""Temporary folders: each is there as long as its process, and what a killed one left is removed by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from minitrain.files import TemporaryFolder

KIND = "minitrain-test-"
HOLDING = f"""
import sys, time
from pathlib import Path
from minitrain.files import TemporaryFolder
held = TemporaryFolder({KIND!r}, Path(sys.argv[1]))
(held.path / "file").write_text("x")
print(held.path, flush=True)
time.sleep(600)
"""


def test_a_folder_is_there_for_its_context(tmp_path: Path) -> None:
    with TemporaryFolder(KIND, tmp_path) as folder:
        assert folder.parent == tmp_path
        (folder / "below").mkdir()
    assert not [*tmp_path.iterdir()]


def test_a_folder_ends_with_what_holds_it(tmp_path: Path) -> None:
    held = TemporaryFolder(KIND, tmp_path)
    assert held.path.is_dir()
    del held
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    others = [tmp_path / f"{KIND}abcdefgh", tmp_path / f"{KIND}abc.tmp", tmp_path / "mine-abcdefgh.tmp"]
    for other in others:
        other.mkdir()
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip())
    with TemporaryFolder(KIND, tmp_path) as own:
        assert {*tmp_path.iterdir()} == {*others, left, own}  # it is held
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (left / "file").exists()
    with TemporaryFolder(KIND, tmp_path) as own:
        assert {*tmp_path.iterdir()} == {*others, own}


def test_a_link_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    link = tmp_path / f"{KIND}abcdefgh.tmp"
    link.symlink_to(tmp_path / "kept")
    with TemporaryFolder(KIND, tmp_path):
        assert link.is_symlink()
    assert (tmp_path / "kept" / "file").exists()


def test_a_fork_leaves_the_folder_to_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom minitrain.files import TemporaryFolder\n"
        "held = TemporaryFolder('minitrain-test-', Path(sys.argv[1]))\nchild = os.fork()\n"
        "if child:\n    os.waitpid(child, 0)\n    print(held.path.is_dir())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert not [*tmp_path.iterdir()]


def test_many_processes_keep_their_own_folders(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom minitrain.files import TemporaryFolder\n"
        "for _ in range(200):\n    with TemporaryFolder('minitrain-test-', Path(sys.argv[1])) as folder:\n"
        "        assert folder.is_dir()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[1] for process in processes] == [""] * len(processes)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
