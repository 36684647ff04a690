"""The command line as a process: decoys, signals, pipes, and how soon it starts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MINITRAIN = (sys.executable, "-c", "from minitrain.cli import main; main()")
POISON = "raise SystemExit('a folder of the working directory was imported')\n"


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "COLUMNS": "80", "NO_COLOR": "1", **variables}
    return subprocess.run(
        [*MINITRAIN, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.ci
def test_folders_of_the_working_directory_never_shadow_the_shipped_ones(tmp_path: Path) -> None:
    for decoy in ("strategies", "hw_configs", "minitrain"):
        (tmp_path / decoy).mkdir()
        for name in ("__init__.py", "ddp.py", "cli.py"):
            (tmp_path / decoy / name).write_text(POISON)
        (tmp_path / decoy / "h100_80g_nvl8.json").write_text("{}")
    (tmp_path / "h100_80g_nvl8.json").write_text("{}")
    (tmp_path / "ddp").mkdir()
    result = run(tmp_path, "compare", "--json", "--layers", "8")
    assert result.returncode == 0, result.stderr
    assert [run["error"] for run in json.loads(result.stdout)] == [None] * 6
    assert (tmp_path / "traces" / "compare.html").is_file()


@pytest.mark.ci
def test_a_terminal_without_unicode_gets_a_table_all_the_same(tmp_path: Path) -> None:
    result = run(tmp_path, "compare", "ddp", "--layers", "1", "--no-trace", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "|* |ddp" in result.stdout
    assert "loading them takes 655.4 us" in result.stdout


FORGETFUL = """
async def forgetful(model):
    weights = model.storage()[0]
    weights[0], _ = model.load_weights(0)
    {}
    return model
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "model.broadcast(weights[0], 0)",
            "minitrain: broadcast was called and never awaited (forgetful.py:5); write `await` before the call",
        ),
        (
            "weights[0] = model.broadcast(weights[0], 0)",
            "minitrain: only tensors can be held in a store, got coroutine; `await` it, and use what that returns",
        ),
    ],
)
def test_a_forgotten_await_is_said_in_one_line(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "forgetful.py").write_text(FORGETFUL.format(line))
    result = run(tmp_path, "run", "forgetful.py", "--world-size", "2", "--layers", "1", "--no-trace")
    assert said in result.stderr
    assert "RuntimeWarning" not in result.stderr
    assert "tracemalloc" not in result.stderr


def test_help_starts_quickly(tmp_path: Path) -> None:
    start = os.times()
    assert run(tmp_path, "--help").returncode == 0
    end = os.times()
    took_s = end.children_user + end.children_system - start.children_user - start.children_system
    assert took_s < 1  # of processor time, as the machine may be busy; 0.2 s on an idle one


def test_help_loads_neither_numpy_nor_plotly(tmp_path: Path) -> None:
    code = "import sys, minitrain.cli; print(sorted({'numpy', 'plotly', 'pydantic', 'jax'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


LIMITED = ("sh", "-c", 'ulimit -v 4000000; exec "$0" "$@"')
"""What lets a command take no more than so many KiB of address space."""


@contextlib.contextmanager
def started(folder: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Start a command whose strategy says when it is at work."""
    source = "import time\nasync def slow(model):\n    print('working', flush=True)\n    time.sleep(60)\n"
    (folder / "slow.py").write_text(source)
    command = [*prefix, *MINITRAIN, "run", "slow.py:slow", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        yield process
        process.kill()


@pytest.mark.few(1)
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("prefix", [(), LIMITED])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_it_with_one_line_130_and_no_files(
    tmp_path: Path, prefix: tuple[str, ...], sent: signal.Signals
) -> None:
    with started(tmp_path, prefix=prefix) as process:
        process.send_signal(sent)
        stdout, stderr = process.communicate(timeout=20)
        said = stderr.replace("simulating slow\n", "")
        assert (process.returncode, stdout, said) == (130, "", "minitrain: interrupted; nothing was kept\n")
    assert not (tmp_path / "traces").exists()


CRASHED = "minitrain: the command crashed (SIGABRT), as may be where memory is short: a process may take 3906 MiB"
ENDS = {
    "os.abort()": (1, CRASHED),
    "sys.exit(7)": (7, ""),
    "os.kill(os.getpid(), 15)": (-15, ""),
    "os.kill(os.getppid(), 9)": (-9, ""),
    "print(os.getppid(), flush=True); time.sleep(60)": (-15, ""),
}


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of address space")
@pytest.mark.parametrize("code", ENDS)
def test_a_command_with_limited_memory_ends_as_ever_or_in_one_sentence(code: str) -> None:
    watched = f"import os, sys, time; from minitrain.cli.application import watch_limited; watch_limited(); {code}"
    command = [*LIMITED, sys.executable, "-c", watched]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        if code.startswith("print"):
            assert process.stdout is not None
            assert process.stdout.readline() == f"{process.pid}\n"
            process.terminate()
        _, said = process.communicate(timeout=60)  # nobody holds the pipes any more
    assert (process.returncode, said[: len(CRASHED)]) == ENDS[code]
    assert said.count("\n") <= 1


@pytest.mark.few(1)
@pytest.mark.skipif(os.name != "posix", reason="needs a pipe that closes")
@pytest.mark.parametrize("arguments", [("hw", "list"), ("hw", "list", "--json")])
def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [*MINITRAIN, *arguments], cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert process.stderr == ""


@pytest.mark.few(1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("hw", "list"), ("strategies", "--json")])
def test_a_full_disk_is_one_message(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*MINITRAIN, *arguments], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert result.stderr == "minitrain: the output cannot be written: No space left on device\n"
