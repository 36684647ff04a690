"""Which system calls a submission's process may make: a seccomp program, compiled by libseccomp.

Python, numpy and an event loop need the calls of `ALLOWED`, and those of `_limited` with some arguments. Any other
call fails: those of `_REFUSED` with "operation not permitted", which reads best, and the rest with "function not
implemented", so that a C library that tries a newer call first goes on with the older one.
"""

from __future__ import annotations

import errno
import importlib
import os
import tempfile
from functools import lru_cache
from typing import Any

ALLOWED = (
    "access", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "close", "close_range", "dup", "dup2",
    "dup3", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd2",
    "exit", "exit_group", "faccessat", "faccessat2", "fstat", "futex", "getcpu", "getcwd", "getdents", "getdents64",
    "getegid", "geteuid", "getgid", "getgroups", "getpeername", "getpgrp", "getpid", "getppid", "getrandom",
    "getresgid", "getresuid", "getrlimit", "getrusage", "getsockname", "getsockopt", "gettid", "gettimeofday",
    "getuid", "lseek", "lstat", "madvise", "membarrier", "mmap", "mprotect", "mremap", "munmap", "nanosleep",
    "newfstatat", "pipe", "pipe2", "poll", "ppoll", "pread64", "preadv", "pselect6", "read", "readlink",
    "readlinkat", "readv", "recvfrom", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask",
    "rt_sigreturn", "sched_getaffinity", "sched_yield", "select", "set_robust_list", "set_tid_address", "shutdown",
    "sigaltstack", "stat", "statx", "sysinfo", "time", "times", "umask", "uname", "write", "writev",
)  # fmt: skip
"""Calls that read, compute, wait, or write to what is open already."""

_REFUSED = (
    "accept", "accept4", "bind", "chdir", "chmod", "chown", "clone", "connect", "execve", "execveat", "fchmod",
    "fchmodat", "fchown", "fchownat", "fork", "ftruncate", "kill", "lchown", "link", "linkat", "listen", "mkdir",
    "mkdirat", "mknod", "mknodat", "mq_open", "msgget", "pidfd_open", "pidfd_send_signal", "process_vm_readv",
    "process_vm_writev", "ptrace", "rename", "renameat", "renameat2", "rmdir", "rt_sigqueueinfo",
    "rt_tgsigqueueinfo", "semget", "sendmmsg", "sendmsg", "setpriority", "setrlimit", "setsid", "shmget", "socket",
    "symlink", "symlinkat", "tgkill", "tkill", "truncate", "unlink", "unlinkat", "utimensat", "vfork",
)  # fmt: skip

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | 0o20000000  # the last one makes files without a name
_FCNTL = (0, 1, 2, 3, 4, 1030)  # duplicate; descriptor and file flags; neither owners of signals nor locks
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, how wide; bytes waiting; flags
_AF_UNIX = 1


def _limited(kit: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the calls that are allowed with some arguments."""

    def is_(place: int, value: int) -> Any:
        return kit.Arg(place, kit.EQ, value)

    return [
        ("open", (kit.Arg(1, kit.MASKED_EQ, _WRITING, 0),)),
        ("openat", (kit.Arg(2, kit.MASKED_EQ, _WRITING, 0),)),
        ("socketpair", (is_(0, _AF_UNIX),)),  # an event loop wakes itself up through one
        ("sendto", (is_(4, 0),)),  # to nobody by name
        ("prlimit64", (is_(0, 0), is_(2, 0))),  # reads the process's own limits
        *(("fcntl", (is_(1, command),)) for command in _FCNTL),
        *(("ioctl", (is_(1, command),)) for command in _IOCTL),
    ]


def binding() -> Any | None:
    """Return libseccomp's Python binding, or None where it or the library is not installed."""
    for name in ("seccomp", "pyseccomp"):  # the library's own, and a package on PyPI with the same interface
        try:
            return importlib.import_module(name)
        except (ImportError, RuntimeError, OSError):
            continue
    return None


@lru_cache(maxsize=1)
def program() -> str | None:
    """Return the seccomp program in hexadecimal, or None where libseccomp is not installed."""
    kit = binding()
    if kit is None:
        return None
    rules = kit.SyscallFilter(kit.ERRNO(errno.ENOSYS))
    for name in _REFUSED:
        _add(rules, kit.ERRNO(errno.EPERM), name)
    for name in ALLOWED:
        _add(rules, kit.ALLOW, name)
    for name, arguments in _limited(kit):
        _add(rules, kit.ALLOW, name, *arguments)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read().hex()


def _add(rules: Any, action: Any, name: str, *arguments: Any) -> None:
    """Add a rule, unless this architecture or libseccomp knows no such call."""
    try:
        rules.add_rule(action, name, *arguments)
    except (OSError, ValueError, RuntimeError):
        return
