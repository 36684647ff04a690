"""What a submission's process does to itself before the submission is loaded: it asks the kernel to confine it.

| means | what the kernel then refuses |
|---|---|
| namespaces | other processes, the network and minitrain's own folders are not there; all end with the first process |
| an unprivileged uid | whatever only root may do, where the grader runs as root |
| no capabilities | the same, where the interpreter's own files are readable by root alone |
| Landlock | reading files that are not listed, writing any file, TCP; signals and abstract sockets from ABI 6 on |
| seccomp | system calls that a strategy does not need: processes, sockets, signals, writing |

Each means is used where the kernel has it, and none depends on another one. A process cannot undo any of them. The
module needs the standard library alone, since it is copied to where the submission runs. Sources: the manual pages
landlock(7), seccomp(2), capabilities(7), unshare(2), mount(2) and prctl(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_CLONE_NEWIPC, _CLONE_NEWNS = 0x08000000, 0x00020000
_MS_PRIVATE, _MS_REC = 1 << 18, 1 << 14
_CAPABILITY_VERSION_3 = 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files Landlock knows, by its ABI; later ones know as many as the fifth."""

PROPERTIES: Mapping[str, frozenset[str]] = {
    "files": frozenset({"landlock", "bubblewrap"}),
    "network": frozenset({"seccomp"}),  # a namespace has no network either, but leaves sockets of other kinds
    "signals": frozenset({"seccomp", "namespaces", "bubblewrap", "landlock scopes"}),
    "processes": frozenset({"seccomp", "namespaces", "bubblewrap"}),
}
"""What must hold, and which means hold it. Processes: none is left behind when grading is over."""


def not_held(means: Mapping[str, str]) -> list[str]:
    """Return the properties that none of some means holds."""
    return [name for name, holders in PROPERTIES.items() if holders.isdisjoint(means)]


class Kernel:  # pragma: no cover  (only in a submission's process)
    """System calls that Python's standard library does not offer."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long

    def prctl(self, option: int, *values: Any) -> None:
        """Set a property of this process.

        Raises:
            OSError: the kernel refuses it.
        """
        padded = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in (*values, 0, 0, 0, 0)]
        self._require(self._libc.prctl(option, *padded[:4]))

    def syscall(self, number: int, *values: Any) -> int:
        """Call a system call by its number.

        Raises:
            OSError: the kernel refuses it.
        """
        long = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
        return self._require(self._libc.syscall(ctypes.c_long(number), *long))

    def unshare(self, flags: int) -> None:
        """Leave some namespaces for new ones.

        Raises:
            OSError: the kernel refuses it.
        """
        self._require(self._libc.unshare(flags))

    def mount(self, kind: str | None, where: str, flags: int = 0) -> None:
        """Mount a file system of a kind, or change how one is mounted.

        Raises:
            OSError: the kernel refuses it.
        """
        self._require(
            self._libc.mount(b"none", os.fsencode(where), kind and kind.encode(), ctypes.c_ulong(flags), None)
        )

    def drop_capabilities(self) -> None:
        """Give up all capabilities, for good.

        Raises:
            OSError: the kernel refuses it.
        """
        with contextlib.suppress(OSError):  # an unprivileged process may not, and has none
            for capability in range(64):
                self.prctl(_PR_CAPBSET_DROP, capability)
        header, none = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
        self._require(self._libc.capset(header, none))

    @staticmethod
    def _require(result: int) -> int:
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result


def hold(
    kernel: Kernel, covered: Sequence[str]
) -> dict[str, str]:  # pragma: no cover  (only in a submission's process)
    """Fork: the child goes on, and this process waits for its end, then ends all processes that it left behind.

    Args:
        kernel: the calls.
        covered: folders that are to look empty from now on.

    Returns:
        The means in force, in the child only; the calling process never returns.
    """
    means = {}
    flags = _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWNS | (_CLONE_NEWUSER if os.geteuid() else 0)
    with contextlib.suppress(OSError):
        kernel.unshare(flags)
        means["namespaces"] = "of processes, network, IPC and mounts"
        kernel.mount(None, "/", _MS_REC | _MS_PRIVATE)  # what follows is for this namespace alone
        for folder in covered:
            with contextlib.suppress(OSError):
                kernel.mount("tmpfs", folder)
    with contextlib.suppress(OSError):
        kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        return means
    _await(child)
    raise AssertionError("the process has ended")


def _await(child: int) -> None:  # pragma: no cover  (only in a submission's process)
    """Wait for a process, end all of its descendants, and end as it did."""
    os.closerange(3, 64)  # so that the grader's pipes end with the child
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    _, status = os.waitpid(child, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_descendants()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)  # as shells report a signal


def _end_descendants() -> None:  # pragma: no cover  (only in a submission's process)
    """End the processes that were left behind, which the kernel gives to this one as their nearest subreaper."""
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:  # pragma: no cover  (only in a submission's process)
    """Return the process ids of this process's children."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # a kernel without that file: nothing is left but to wait for them
        return []


def confine(
    kernel: Kernel, plan: Mapping[str, Any], means: Mapping[str, str]
) -> dict[str, str]:  # pragma: no cover  (only in a submission's process)
    """Confine this process for good, by all means that the kernel has.

    Args:
        kernel: the calls.
        plan: what the grader worked out: `uid`, `readable` (paths) and `filter` (a seccomp program), or None for each.
        means: those in force already.

    Returns:
        All means in force, each with a word about it.
    """
    found = dict(means)
    for steps in (
        _privileges(kernel, plan["uid"]),
        _landlock(kernel, plan["readable"]),
        _seccomp(kernel, plan["filter"]),
    ):
        with contextlib.suppress(OSError):
            for name, about in steps:
                found[name] = about
    return found


def _privileges(kernel: Kernel, uid: int | None) -> Iterator[tuple[str, str]]:  # pragma: no cover
    """Give up root's rights, and end when the process that holds this one ends."""
    kernel.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if uid is not None and os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a container may keep its root from becoming anybody else
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            yield "uid", str(uid)
    kernel.drop_capabilities()
    if os.geteuid() == 0:
        yield "capabilities", "none"
    kernel.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _landlock(kernel: Kernel, readable: Sequence[str] | None) -> Iterator[tuple[str, str]]:  # pragma: no cover
    """Allow to read some paths, and no other use of files."""
    if readable is None:
        return
    abi = kernel.syscall(_CREATE_RULESET, None, 0, 1)
    files = (1 << _FILE_RIGHTS.get(abi, 16)) - 1
    attributes = struct.pack("=QQQ", files, 0b11, 0b11)  # files; TCP bind and connect; abstract sockets and signals
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = kernel.syscall(_CREATE_RULESET, attributes, size, 0)
    for path in readable:
        _allow(kernel, rules, path)
    kernel.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)
    yield "landlock", f"ABI {abi}"
    if abi >= 6:
        yield "landlock scopes", "of signals and abstract sockets"


def _allow(kernel: Kernel, rules: int, path: str) -> None:  # pragma: no cover
    """Allow to read a file, or what is in a folder."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # what is not there need not be read
        return
    rights = _READ_FILE | _READ_DIR if Path(path).is_dir() else _READ_FILE
    kernel.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, opened), 0)
    os.close(opened)


def _seccomp(kernel: Kernel, program: str | None) -> Iterator[tuple[str, str]]:  # pragma: no cover
    """Install a filter of system calls."""
    if program is None:
        return
    code = bytes.fromhex(program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    kernel.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header)
    yield "seccomp", "a list of allowed calls"


def kernel_here() -> Kernel | None:
    """Return the kernel's calls, or None where it is no Linux or this Python has no `ctypes`."""
    return Kernel() if sys.platform == "linux" else None
