"""What keeps a submission apart: escapes are stopped by the kernel, honest imports work, the report tells no secrets.

The escapes need a kernel with Landlock and seccomp, or bubblewrap; where there is none they are skipped, and say so.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.learn import Grade, grade, isolation, load_exercise, sandbox
from minitrain.learn.classes import Row, as_gradescope, as_json, as_junit, as_text
from minitrain.learn.confinement import PROPERTIES, not_held
from minitrain.learn.isolation import Isolation, from_worker
from minitrain.learn.sandbox import Limits
from tests.learn.exercises.sources import DDP, RIGHT

REFERENCE = load_exercise("02").folder / "reference.py"
STRATEGY = Path(mt.strategies()["ddp"].__code__.co_filename)

OFF = """
import __main__, gc, os, sys
__main__.REFUSED = ()
__main__.Guard.__call__ = lambda *_: None
__main__.Guard._open = __main__.Guard._require_readable = lambda *_: None
for name in ("posix", "_posixsubprocess", "subprocess"):
    sys.modules.pop(name, None)
import posix
os.fork = posix.fork
os.system = posix.system
"""
"""Takes the audit hook out of the way, so that an escape meets the kernel alone."""


@pytest.fixture(scope="module")
def held() -> Isolation:
    """What this machine offers; skips the test where the kernel does not hold a submission."""
    right = grade(RIGHT, "02", hidden=False)
    assert right.passed, str(right)  # a process that cannot even start is a failure, not a reason to skip
    found = right.isolation
    if found.open:
        pytest.skip(f"the kernel does not hold {', '.join(found.open)} here ({found})")
    return found


Attempt = Callable[[str], Grade]


MEANS = ("all means", "without bubblewrap", "without bubblewrap and uid")


def leave(means: str, patch: pytest.MonkeyPatch) -> None:
    """Take away the means that are not among some."""
    if means != "all means":
        patch.setattr(isolation, "bubblewrap", lambda: None)
    if means.endswith("uid"):
        patch.setattr(isolation, "reachable", lambda *_, **__: False)


@pytest.fixture(params=MEANS)
def attempt(request: Any, held: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Return what grades a right submission that first tries an escape, and says how that went."""
    leave(request.param, monkeypatch)

    def run(code: str) -> Grade:
        path = tmp_path / "02_ddp.py"
        path.write_text(f"{OFF}\n{trying(code, '')}\nsys.stdout.flush()\n{DDP}")
        return grade(path, "02", hidden=False, limits=Limits(isolation="required"))

    return run


def left_behind() -> list[str]:
    """Return the command lines of grading's processes that are there still; the kernel needs a moment to end them."""
    end = time.monotonic() + 5
    while (found := _of_grading()) and time.monotonic() < end:
        os.sched_yield()
    return found


def _of_grading() -> list[str]:
    """Return the command lines of grading's processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [line for line in lines if "minitrain-grading-" in line]


CALL = """
import ctypes, socket, fcntl, resource, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(number, *values):
    found = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(v) if isinstance(v, int) else v for v in values])
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
"""
"""System calls by their numbers on x86-64, which no Python module stands between."""

NOT_THERE = {errno.ENOENT, errno.EACCES}
"""By namespaces and bubblewrap, or by Landlock."""
REFUSED = {errno.EPERM, errno.ENOSYS}
"""By seccomp."""

GRADER = os.getpid()

ESCAPES: dict[str, tuple[set[int], dict[str, str]]] = {
    "reads what it may not": (
        NOT_THERE,
        {
            "the reference, the guard patched": f"open({str(REFERENCE)!r})",
            "a shipped strategy": f"open({str(STRATEGY)!r})",
            "a strategy as a history file": f"import readline; readline.read_history_file({str(STRATEGY)!r})",
            "the reference, the guard found by the garbage collector": (
                f"for found in gc.get_objects():\n    if type(found).__name__ == 'Guard':\n"
                f"        found._readable = ['/']\nopen({str(REFERENCE)!r})"
            ),
            "the reference by /proc/self/root": f"open('/proc/self/root{REFERENCE}')",
            "the reference by an open descriptor": (
                "os.open('.', 0)\nreached, refused = [], None\nfor folder in range(64):\n"
                f"    try: reached.append(os.open('../' * 40 + {str(REFERENCE)!r}[1:], 0, dir_fd=folder))\n"
                "    except NotADirectoryError: pass\n"
                f"    except OSError as error: refused = refused if error.errno == {errno.EBADF} else error\n"
                "if not reached: raise refused"
            ),
            "the size of the reference": f"os.stat({str(REFERENCE)!r})",
            "the names of the exercises": f"os.listdir({str(REFERENCE.parents[1])!r})",
            "the environment of the grader": f"open('/proc/{GRADER}/environ', 'rb')",
        },
    ),
    "writes files": (
        REFUSED,
        {
            "a file": "open('/tmp/minitrain-escape', 'w')",
            "a named pipe": "os.mkfifo('/tmp/minitrain-pipe')",
            "a file in /dev/shm": "os.open('/dev/shm/minitrain', os.O_CREAT | os.O_RDWR)",
            "a file without a name": "os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
            "its own copy of minitrain": "open(__main__.__file__, 'a')",
            "a file's mode": "os.chmod(__main__.__file__, 0o777)",
            "the terminal": "open('/dev/tty', 'w')",
            "typing into the terminal": "fcntl.ioctl(0, 0x5412, b'x')",
        },
    ),
    "reaches the grader": (
        REFUSED,
        {
            "kills it": "os.kill(os.getppid(), 9)",
            "kills it by a file descriptor": (
                "import signal\nsignal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGKILL)"
            ),
            "a signal by SIGIO": (
                "a, b = socket.socketpair()\nfcntl.fcntl(a, fcntl.F_SETOWN, os.getppid())\n"
                "fcntl.fcntl(a, 10, 9)\nfcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC)\nb.send(b'x')"
            ),
            "its memory": f"open('/proc/{GRADER}/mem', 'r+b')",
            "ptrace": f"call(101, 16, {GRADER}, 0, 0)",
            "its limits": f"resource.prlimit({GRADER}, resource.RLIMIT_CPU, (-1, -1))",
            "its priority": f"os.setpriority(os.PRIO_PROCESS, {GRADER}, 19)",
        },
    ),
    "starts something": (
        REFUSED,
        {
            "a shell command": "if libc.system(b'true'): raise OSError(ctypes.get_errno(), 'no shell')",
            "a process that outlives grading": (
                "import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)"
            ),
            "a fork": "if os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(60)",
            "a raw clone": "call(56, 17, 0, 0, 0, 0) or os._exit(0)",
            "a raw clone3": "b = (ctypes.c_ulong * 11)()\nb[4] = 17\ncall(435, b, 88) or os._exit(0)",
            "a program in memory": "os.execve(os.memfd_create('x'), ['x'], {})",
            "a new session": "os.setsid()",
            "a thread": "threading.Thread(target=print).start()",
        },
    ),
    "leaves the process by a socket": (
        REFUSED,
        {
            "listens": "server = socket.socket()\nserver.bind(('0.0.0.0', 0))\nserver.listen()",
            "an abstract socket": "socket.socket(socket.AF_UNIX).bind('\\0minitrain')",
            "a vsock": "socket.socket(40, 1)",
        },
    ),
    "takes rights": (
        REFUSED,
        {
            "root again": "os.setuid(0)",
            "capabilities again": "call(126, bytes.fromhex('2205082000000000'), b'\\xff' * 24)",
            "a user namespace": "call(272, 0x10000000)",
            "a mount": "call(165, b'none', b'/tmp', b'tmpfs', 0, 0)",
            "higher limits": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        },
    ),
    "calls that a strategy needs not": (
        REFUSED,
        {
            "the password file by openat2": "call(437, -100, b'/etc/passwd', ctypes.create_string_buffer(24), 24)",
            "a file by io_uring": "call(425, 8, ctypes.create_string_buffer(200))",
            "shared memory that stays": "call(29, 4711, 4096, 0o1600)",
            "a message queue that stays": "call(68, 4712, 0o1600)",
            "a kernel key": "call(248, b'user', b'minitrain', b'x', 1, -3)",
            "bpf": "call(321, 0, ctypes.create_string_buffer(128), 128)",
            "a watch on files": "call(254, call(294, 0), b'/tmp', 0xFFF)",
        },
    ),
}
"""Attempts to do what the key names, by class, and the numbers of the kernel's errors that stop them."""

READS = {f"reads what it may not: {what}": code for what, code in ESCAPES["reads what it may not"][1].items()}
ALL = {
    f"{kind}: {what}": (stops, code)
    for kind, (stops, escapes) in ESCAPES.items()
    for what, code in escapes.items()
    if "call(" not in code or os.uname().machine == "x86_64"  # whose numbers they are
}


def stopped(said: str, by: set[int]) -> bool:
    """Return whether the kernel stopped an attempt, by an error of some numbers; a mistake of the attempt is none."""
    number, _, error = said.removeprefix("stopped:").partition("|")
    threads = error == 'RuntimeError("can\'t start new thread")'  # as Python says it, without the number
    return said.startswith("stopped:") and (number in {str(value) for value in by} or threads)


def trying(code: str, what: str) -> str:
    """Return the lines that try something, and say how that went."""
    return (
        f"try:\n{textwrap.indent(code, '    ')}\nexcept BaseException as error:\n"
        f"    print({what!r}, f'stopped:{{getattr(error, \"errno\", None)}}', repr(error), sep='|')\n"
        f"else:\n    print({what!r}, 'ESCAPED', sep='|')"
    )


def tried(escapes: Mapping[str, str], means: str, path: Path, mode: str = "required") -> dict[str, str]:
    """Try escapes one after the other in one process, before a right submission, and return how each went."""
    lines = [trying(code, what) for what, code in escapes.items()]
    path.write_text("\n".join([OFF, CALL, *lines, "sys.stdout.flush()", DDP]))
    with pytest.MonkeyPatch.context() as patch:
        leave(means, patch)
        found = grade(path, "02", hidden=False, limits=Limits(isolation=mode))
    assert found.passed, str(found)
    assert not left_behind()
    return dict(line.split("|", 1) for line in found.output.splitlines())


@pytest.fixture(scope="module", params=MEANS)
def attempts(request: Any, held: Isolation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Try all escapes, and return how each went."""
    codes = {what: code for what, (_, code) in ALL.items()}
    return tried(codes, request.param, tmp_path_factory.mktemp("attempts") / "02_ddp.py")


@pytest.mark.few(8)
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's means are Linux's")
@pytest.mark.parametrize("what", ALL)
def test_the_kernel_stops_an_escape(what: str, attempts: dict[str, str]) -> None:
    assert stopped(attempts[what], ALL[what][0]), attempts[what]


@pytest.mark.skipif(sys.platform != "linux", reason="what is read are files of Linux")
def test_what_is_not_there_is_there_without_isolation(tmp_path: Path) -> None:
    assert set(tried(READS, "all means", tmp_path / "02_ddp.py", "none").values()) == {"ESCAPED"}


def test_a_mistake_in_an_attempt_is_no_refusal() -> None:
    for said in ("ESCAPED", "stopped:None|NameError(\"name 'o' is not defined\")", "stopped:22|OSError(22, 'Invalid')"):
        assert not stopped(said, NOT_THERE | REFUSED)
    assert stopped("stopped:1|PermissionError(1, 'Operation not permitted')", REFUSED)


def test_the_list_of_escapes_is_long_enough() -> None:
    assert sum(len(escapes) for _, escapes in ESCAPES.values()) >= 40


@pytest.mark.few(1)
def test_a_file_outside_is_not_removed(attempt: Attempt, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here")
    assert stopped(attempt(f"os.remove({str(victim)!r})").output.strip("|\n"), REFUSED)
    assert victim.read_text() == "here"


@pytest.mark.few(1)
def test_no_datagram_leaves_the_process(attempt: Attempt) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.2)
        code = (
            f"import socket\nsocket.socket(2, 2).sendmsg([b'hello'], [], 0, ('127.0.0.1', {server.getsockname()[1]}))"
        )
        assert stopped(attempt(code).output.strip("|\n"), REFUSED)
        with pytest.raises(TimeoutError, match="timed out"):
            server.recv(9)


@pytest.mark.few(1)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other processors have no second set of system calls")
def test_calls_of_another_instruction_set_end_the_process(attempt: Attempt) -> None:
    code = (
        "import ctypes, mmap\npage = mmap.mmap(-1, 4096, prot=7)\npage.write(bytes.fromhex('b814000000cd80c3'))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"
    )
    found = attempt(code)  # getpid by int 0x80
    assert not found.output
    assert found.failures[0].message.startswith("its process ended before the run was over, with exit code 159")


# ---- what is in force ------------------------------------------------------------------------------------------------


def weakened(monkeypatch: pytest.MonkeyPatch, *replacements: tuple[str, str]) -> None:
    """Take means away: no bubblewrap, no seccomp, and what is replaced in the process's own code."""
    stage = sandbox._stage

    def staged(home: Path, file: Path, beside: Sequence[Path], *, own_copy: bool) -> Path:
        path = stage(home, file, beside, own_copy=own_copy)
        module = home / "minitrain" / "learn" / "confinement.py"
        text = module.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        module.write_text(text)
        return path

    monkeypatch.setattr(sandbox, "_stage", staged)
    monkeypatch.setattr(isolation, "bubblewrap", lambda: None)
    monkeypatch.setattr(isolation, "program", lambda: None)


NO_NAMESPACES = ("        kernel.unshare(flags)\n", "        raise OSError\n")
NO_LANDLOCK = ("    if readable is None:\n        return\n", "    return\n")


def test_required_isolation_refuses_to_grade_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weakened(monkeypatch, NO_NAMESPACES, NO_LANDLOCK)
    path = tmp_path / "02_ddp.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{DDP}")
    with pytest.raises(mt.UsageError, match=r"the kernel must hold a submission's files, network, signals, processes"):
        grade(path, "02", limits=Limits(isolation="required"))
    assert not (tmp_path / "ran").exists()
    found = grade(path, "02", hidden=False)
    assert found.isolation.open == ("files", "network", "signals", "processes")
    assert "the kernel does not hold: files, network, signals, processes" in as_text([Row("", found)]) or os.geteuid()


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's means are Linux's")
@pytest.mark.parametrize("means", [(), (NO_NAMESPACES,)], ids=["PID namespace", "subreaper"])
def test_processes_end_with_the_submission(
    means: tuple[tuple[str, str], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weakened(monkeypatch, *means, NO_LANDLOCK)
    path = tmp_path / "02_ddp.py"
    path.write_text(
        f"{OFF}\nif posix.fork() == 0:\n    os.setsid()\n    if posix.fork() == 0:\n"
        f"        import time; time.sleep(60)\n"
        f"    os._exit(0)\nprint('forked', flush=True)\n{DDP}"
    )
    found = grade(path, "02", hidden=False)
    if "forked" not in found.output:
        pytest.skip("this user may start no process anyway")
    assert found.passed, str(found)
    assert not left_behind()


def test_no_isolation_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "02_ddp.py"
    path.write_text(DDP)
    found = grade(path, "02", hidden=False, limits=Limits(isolation="none"))
    assert found.passed
    assert str(found.isolation) == "none"
    with pytest.raises(mt.UsageError, match="isolation must be one of auto, required, none, got 'much'"):
        grade(path, "02", limits=Limits(isolation="much"))


def test_every_report_says_what_was_in_force() -> None:
    means = {"landlock": "ABI 7", "seccomp": "a list of allowed calls", "uid": "61200"}
    row = Row("", Grade("02_ddp", [], 0.0, isolation=Isolation("auto", means, ("signals",))))
    text = "Landlock (ABI 7), seccomp, uid 61200; the kernel does not hold: signals"
    assert f"\n  isolation: {text}" in as_text([row])
    assert json.loads(as_json([row]))[0]["isolation"] == {"mode": "auto", "means": means, "open": ["signals"]}
    assert f'<property name="isolation" value="{text}" />' in as_junit([row])
    assert json.loads(as_gradescope([row]))["extra_data"]["isolation"] == {"02_ddp": text}
    assert str(mt.grade(mt.strategies()["ddp"], "02", hidden=False).isolation) == "none"


def test_a_process_reports_whatever_it_likes_and_is_not_believed() -> None:
    assert from_worker("auto", None).open == tuple(PROPERTIES)
    assert from_worker("auto", {"landlock": 7}).means == {"landlock": "7"}
    assert not_held({"landlock": "", "seccomp": ""}) == []


@pytest.mark.ci
def test_the_means_of_this_machine_can_be_asked_for() -> None:
    found = subprocess.run([sys.executable, "-m", "minitrain.learn"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("isolation: ")
    assert [line.partition(":")[0].strip() for line in found.stdout.splitlines()[1:]] == [*PROPERTIES]


# ---- honest submissions ----------------------------------------------------------------------------------------------

IMPORTS = ("math", "dataclasses", "functools", "itertools", "typing", "collections", "heapq", "json", "numpy.random")


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["auto", "none"])
def test_honest_imports_simply_work(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "02_ddp.py"
    imports = "\n".join(f"import {name}" for name in IMPORTS)
    path.write_text(
        f"import numpy as np\nimport minitrain as mt\n{imports}\nprint(np.linalg.inv(np.eye(2))[0, 0])\n{DDP}"
    )
    found = grade(path, "02", limits=Limits(isolation=mode))
    assert found.score == 100, str(found)
    assert found.output == "1.0\n"


def test_a_link_to_another_file_is_no_submission(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    path = tmp_path / "own" / "02_ddp.py"
    path.symlink_to(REFERENCE)
    with pytest.raises(mt.UsageError, match="a link to another one is not graded"):
        grade(path, "02")
    path.unlink()
    path.write_text("#" * (2**20 + 1))
    with pytest.raises(mt.UsageError, match="has more than 1048576 bytes"):
        grade(path, "02")


# ---- the report ------------------------------------------------------------------------------------------------------


def graded(tmp_path: Path, before: str, **more: Any) -> Grade:
    """Return the grade of a right submission that does something of its own when it runs."""
    path = tmp_path / "02_ddp.py"
    begin = "    layers = range(model.num_layers)\n"
    assert begin in DDP
    path.write_text(DDP.replace(begin, begin + textwrap.indent(before, "    ") + "\n"))
    return grade(path, "02", **more)


def test_hidden_sizes_are_not_shown_whatever_a_submission_prints(tmp_path: Path) -> None:
    hidden = {case.world_size for case in load_exercise("02").hidden}
    public = {case.world_size for case in load_exercise("02").public}
    found = graded(tmp_path, "print('ranks:', model.world_size, flush=True)")
    assert found.passed
    assert {int(line.split()[1]) for line in found.output.splitlines()} == public
    for code in (
        f"if model.world_size in {hidden - public}: raise ValueError(f'ranks: {{model.world_size}}')",
        f"if model.world_size in {hidden - public}: raise type(f'Ranks{{model.world_size}}', (Exception,), {{}})",
        f"if model.world_size in {hidden - public}: import os; os._exit(model.world_size)",
    ):
        failure = graded(tmp_path, code).failures[0]
        assert {failure.rank, failure.layer, failure.step, failure.line, failure.got} == {None}
        shown = re.sub(r"it may use \d+ s and \d+ GiB for all of them", "", " ".join(failure.lines()))
        assert not any(character.isdigit() for character in shown), failure.lines()  # but of limits, which all have


def test_terminal_escapes_do_not_reach_the_report(tmp_path: Path) -> None:
    found = graded(
        tmp_path, "print('\\x1b[2Jgone\\u202e')\nraise ValueError('\\x1b]0;title\\x07\\x9b31m')", hidden=False
    )
    text = str(found) + found.output
    assert all(character.isprintable() or character == "\n" for character in text), repr(text)
    assert r"\x1b[2Jgone\u202e" in found.output
    assert r"ValueError: \x1b]0;title\x07\x9b31m" in found.failures[0].message


def test_no_folder_of_the_grader_stands_in_a_frame_of_the_process(tmp_path: Path) -> None:
    code = (
        "import sys\nframe, seen = sys._getframe(), ''\n"
        "while frame:\n    seen, frame = seen + repr(frame.f_locals), frame.f_back\n"
        f"print({str(Path(mt.__file__).parent)!r} in seen, '02_ddp.py' in seen)"
    )
    assert {*graded(tmp_path, code, hidden=False).output.splitlines()} == {"False True"}


def test_an_error_without_text_is_reported_nevertheless(tmp_path: Path) -> None:
    code = "class Mute(Exception):\n    def __str__(self): raise RuntimeError\nraise Mute"
    failure = graded(tmp_path, code, hidden=False).failures[0]
    assert failure.message == "Mute: its text cannot be had: __str__ raised RuntimeError"


def test_many_samples_that_are_none_make_a_short_message(tmp_path: Path) -> None:
    failure = graded(tmp_path, "model.get_input_activation({f's{i}' for i in range(2048)})", hidden=False).failures[0]
    assert "samples must be integers, got 's" in failure.message
    assert len(failure.message) < 200


def test_a_thread_that_does_not_begin_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.learn.sandbox._thread.start_new_thread", lambda *_: 0)  # as without memory
    reader = sandbox._Reader(io.BytesIO(b"said"), 4)
    reader.join(0.01)
    assert not reader._kept


def test_no_process_stays_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            started.append(self)

    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("minitrain.learn.sandbox.subprocess.Popen", Noted)
    monkeypatch.setattr("minitrain.learn.sandbox._thread.start_new_thread", refused)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        grade(RIGHT, "02", limits=Limits(isolation="none"))
    assert [process.returncode is not None for process in started] == [True]


def test_messages_name_the_submission_by_its_own_path(tmp_path: Path) -> None:
    path = tmp_path / "02_ddp.py"
    path.write_text("async def ddp(model)\n")
    failure = grade(path, "02").failures[0]
    assert f"the strategy file {path} cannot be loaded: SyntaxError" in failure.message
    assert not failure.size  # no size has to do with that
    assert "`python" in failure.hint
