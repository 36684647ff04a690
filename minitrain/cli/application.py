"""All commands, in the order of `minitrain --help`, which reads this table alone.

The module of a command imports the simulator. So it is imported only when the command is called, or asked for its own
help.

A command whose address space is limited (`ulimit -v`) is the child of a process that tells when it crashes.

Without room for even an exception, Python and its libraries crash, or never come back; see
`minitrain.run.worker_processes`. Then the command has no words left. So a process that takes next to nothing waits for
it, passes on signals and the exit code, ends a command that is stuck, and says in one sentence why.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from minitrain.cli.failures import Commands, say_never_awaited

COMMANDS: Mapping[str, tuple[str, str]] = {
    "compare": ("commands:compare", "Simulate a training step of several strategies, and print which is fastest."),
    "run": ("commands:run", "Simulate a training step of one strategy, and print where each rank's time goes."),
    "strategies": (
        "models:strategies",
        "List the shipped strategies; or show one: its options with their defaults, and the sizes that it needs.",
    ),
    "train": ("train:train", "Train by one strategy on real processes, and print losses and where time goes."),
    "diff": ("train:diff", "Attribute the gap between the step times of two saved runs, and print its parts."),
    "trace": ("trace:trace", "Show, explain and export saved runs."),
    "prove": (
        "commands:prove",
        "Run strategies on real arrays, and compare what they train with what a single device trains.",
    ),
    "explore": ("commands:explore", "Open a local page whose knobs simulate the step again while one drags them."),
    "lab": ("commands:lab", "Write the explorer's page as files for any static host, with Python in the browser."),
    "sweep": (
        "searches:sweep",
        "Simulate every strategy with every combination of a grid, over all cores, and print the fastest.",
    ),
    "tune": ("searches:tune", "Search the layouts of a model on a machine, and print the best."),
    "plan": ("commands:plan", "Find how a step should run on a cluster of unlike devices, and print the plan."),
    "goodput": (
        "commands:goodput",
        "Play days of a training run with failures, checkpoints and restarts, and print how much of them is training.",
    ),
    "learn": ("learn:learn", "Learn by writing strategies: graded exercises."),
    "models": ("models:app", "List and show the models that can be trained."),
    "hw": ("hw:hw", "List, show and check hardware configs."),
    "solve": (
        "platform:solve",
        "Solve how long an inference takes on a device, and say what limits it and what would make it faster or fit.",
    ),
    "platform": ("platform:platform", "Simulate tasks that share devices, memories and links."),
    "validate": ("validate:validate", "Simulate published runs, and print how far each table's predictions are off."),
}
"""Where each command is, as "module:name" of this room, and the beginning of its help."""

CALLED_IN_PYTHON = {"simulate": "run"}
"""Commands by the names of their functions, where these are others."""


class ListedCommands(Commands):
    """The commands of the table, each loaded when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=about) for name, (_, about) in COMMANDS.items()}
        self._lists = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a list of all, one that has a name and the beginning of its help."""
        cmd_name = CALLED_IN_PYTHON.get(cmd_name, cmd_name)
        return super().get_command(ctx, cmd_name) if self._lists or cmd_name not in COMMANDS else loaded(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, which lists the commands."""
        self._lists = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists = False


@cache
def loaded(name: str) -> Any:
    """Return a command with all of its options, or a group of commands."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"minitrain.cli.{module}"), attribute)
    parent = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        from minitrain.cli.options import group  # noqa: PLC0415  (what imports the simulator)

        parent = group("", add_completion=False)
        parent.define(name)(found)
    return typer.main.get_group(parent).commands[name]


app = typer.Typer(
    name="minitrain", cls=ListedCommands, no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


def main() -> None:
    """Run the command line."""
    watch_limited()
    say_never_awaited()
    app()


def _print_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415  (it takes long)

        print(f"minitrain {version('minitrain')}")
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Write a distributed training strategy once; price it, prove it, see it, teach with it."""


_PASSED_ON = ("SIGINT", "SIGTERM")
_CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL")
_SENT_BY_A_PROCESS = 0  # SI_USER; what a terminal sends comes to all of its processes
_STDERR = 2
_ENDED = 1


def watch_limited() -> None:
    """If the address space is limited, and there is room for it, go on in a child of this process, which waits."""
    if sys.platform != "linux":
        return
    import resource  # noqa: PLC0415  (this and what follows a command without a limit does not need)

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    signals = {signal.Signals[name] for name in ("SIGCHLD", *_PASSED_ON)}
    us, before = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with suppress(OSError, MemoryError, ImportError):
        import minitrain.run.worker_processes  # noqa: PLC0415  (once for both)

        if pid := os.fork():
            try:
                code, was_stuck = _waited_for(pid, signals)
                _end_as(code, limit, was_stuck=was_stuck)
            finally:  # whatever it lacks, this is not the command
                os._exit(_ENDED)
        minitrain.run.worker_processes.die_with(us)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _waited_for(pid: int, signals: Collection[int]) -> tuple[int, bool]:
    """Wait for the end of a command; return its exit code, below 0 if a signal ended it, and whether it was stuck."""
    from minitrain.run.worker_processes import LOOK_S, StuckProcesses  # noqa: PLC0415

    stuck, was_stuck = StuckProcesses(), False
    while True:
        news = signal.sigtimedwait(signals, LOOK_S)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), was_stuck
        if news is not None and news.si_signo != signal.SIGCHLD and news.si_code == _SENT_BY_A_PROCESS:
            os.kill(pid, news.si_signo)
        was_stuck = stuck.end(pid) or was_stuck


def _end_as(code: int, limit: int, *, was_stuck: bool) -> NoReturn:
    """End as a command did; with a sentence if it was stuck or crashed."""
    name = signal.Signals(-code).name if code < 0 else ""
    if was_stuck or name in _CRASHES:
        how = "did nothing any more but ask for memory" if was_stuck else f"crashed ({name})"
        text = (
            f"minitrain: the command {how}, as may be where memory is short: a process may take {limit / 2**20:.0f} "
            "MiB of address space here; allow more (`ulimit -v`), or ask for less\n"
        )
        with suppress(OSError):
            os.write(_STDERR, text.encode())
        os._exit(_ENDED)
    if name:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with suppress(OSError):  # SIGKILL needs no more than to be sent
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
