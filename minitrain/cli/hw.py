"""The commands `minitrain hw list`, `show` and `check`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from minitrain.cli.failures import USAGE, complain
from minitrain.cli.options import AsJson, Debug
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.errors import HardwareConfigError
from minitrain.hardware import load_config, shipped_configs
from minitrain.hardware.config_files import is_bare, parse, read_file, shipped_names, shipped_text
from minitrain.trace.tables import hardware_table, system_table

hw = typer.Typer(no_args_is_help=True, help="List, show and check hardware configs.")

Name = Annotated[str, typer.Argument(metavar="CONFIG", help="A shipped config's name or a file.")]


@hw.command("list")
def list_configs(as_json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001  (`failures` reads it)
    """List the shipped hardware configs."""
    if as_json:
        print_json(shipped_configs())
    else:
        print_table(hardware_table([load_config(name) for name in shipped_configs()]))


@hw.command()
def show(config: Name, as_json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001
    """Show the figures of one hardware config; with --json, all of it."""
    system = load_config(config)
    if as_json:
        print_json(_raw(config))
        return
    print_lines([system.name])
    print_table(system_table(system))


def _raw(config: str) -> Any:
    """Return the data of a valid config as its file has it."""
    name = config.removesuffix(".json")
    text = shipped_text(name) if is_bare(config) and name in shipped_names() else read_file(config)
    return parse(text, config)


@hw.command()
def check(
    configs: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG", help="Configs to check; all shipped ones if none is given."),
    ] = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Check hardware configs, and say every fault of each by its key path."""
    faulty = False
    for config in configs or shipped_configs():
        try:
            load_config(config)
        except HardwareConfigError as error:
            complain(str(error))
            faulty = True
        else:
            print_lines([f"{config}: ok"])
    if faulty:
        raise typer.Exit(USAGE)
