"""All commands, in the order of `minitrain --help`, which reads this table alone.

The module of a command imports the simulator. So it is imported only when the command is called, or asked for its own
help.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from minitrain.cli.failures import Commands
from minitrain.cli.limited import watch_limited

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
        "prove:prove",
        "Run strategies on real arrays, and compare what they train with what a single device trains.",
    ),
    "explore": ("explore:explore", "Open a local page whose knobs simulate the step again while one drags them."),
    "lab": ("explore:lab", "Write the explorer's page as files for any static host, with Python in the browser."),
    "sweep": (
        "sweep:sweep",
        "Simulate every strategy with every combination of a grid, over all cores, and print the fastest.",
    ),
    "tune": ("tune:tune", "Search the layouts of a model on a machine, and print the best."),
    "plan": ("goodput:plan", "Find how a step should run on a cluster of unlike devices, and print the plan."),
    "goodput": (
        "goodput:goodput",
        "Play days of a training run with failures, checkpoints and restarts, and print how much of them is training.",
    ),
    "learn": ("learn:learn", "Learn by writing strategies: graded exercises."),
    "models": ("models:app", "List and show the models that can be trained."),
    "hw": ("hw:hw", "List, show and check hardware configs."),
    "solve": (
        "solve:solve",
        "Solve how long an inference takes on a device, and say what limits it and what would make it faster or fit.",
    ),
    "platform": ("platform:platform", "Simulate tasks that share devices, memories and links."),
    "validate": ("validate:validate", "Simulate published runs, and print how far each table's predictions are off."),
}
"""Where each command is, as "module:name" of this room, and the beginning of its help."""


class ListedCommands(Commands):
    """The commands of the table, each loaded when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=about) for name, (_, about) in COMMANDS.items()}
        self._lists = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a list of all, one that has a name and the beginning of its help."""
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
    name="minitrain",
    cls=ListedCommands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line."""
    watch_limited()
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
