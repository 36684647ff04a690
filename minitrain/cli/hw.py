"""The commands `minitrain hw list`, `show` and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from minitrain.cli.failures import USAGE, print_error
from minitrain.cli.options import AsJson, Debug
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.errors import HardwareConfigError
from minitrain.hardware import SystemConfig, load_config, shipped_configs
from minitrain.hardware.config_files import is_bare, parse, read_file, shipped_names, shipped_text
from minitrain.hardware.figures import Figure, figures, sources_of
from minitrain.plain_text import printable
from minitrain.trace.tables import plain_table

hw = typer.Typer(no_args_is_help=True, help="List, show and check hardware configs.")

Name = Annotated[str, typer.Argument(metavar="CONFIG", help="A shipped config's name or a file.")]


@hw.command("list")
def list_configs(as_json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001  (`failures` reads it)
    """List the shipped hardware configs."""
    if as_json:
        print_json(shipped_configs())
    else:
        print_table(_configs_table([load_config(name) for name in shipped_configs()]))


@hw.command()
def show(config: Name, as_json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001
    """Show every figure of one hardware config, with its unit and its source; with --json, the config itself."""
    system = load_config(config)
    if as_json:
        print_json(_raw(config))
        return
    print_lines([system.name])
    print_table(_figures_table(figures(_raw(config), sources_of(system.name) if _is_shipped(config) else {})))


def _is_shipped(config: str) -> bool:
    """Whether a name is that of a shipped config."""
    return is_bare(config) and config.removesuffix(".json") in shipped_names()


def _raw(config: str) -> Any:
    """Return the data in the file of a valid config."""
    name = config.removesuffix(".json")
    text = shipped_text(name) if _is_shipped(config) else read_file(config)
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
            print_error(str(error))
            faulty = True
        else:
            print_lines([f"{config}: ok"])
    if faulty:
        raise typer.Exit(USAGE)


def _configs_table(systems: Sequence[SystemConfig]) -> Table:
    """Return one row a hardware config."""
    table = plain_table()
    table.add_column("\nname", overflow="fold", min_width=15)
    for column in ("float16\nTFLOP/s", "HBM\nGiB", "HBM\nGB/s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("network\nGB/s (ranks)", overflow="fold")
    for system in systems:
        rate = system.matrix.get("float16")
        tiers = ", ".join(f"{tier.bandwidth:g} ({tier.size})" for tier in system.networks)
        peak = "-" if rate is None else f"{rate.tflops:g}"
        table.add_row(Text(system.name), peak, f"{system.mem1.GiB:g}", f"{system.mem1.GBps:g}", tiers)
    return table


def _figures_table(found: Sequence[Figure]) -> Table:
    """Return a row for each figure of a config."""
    table = plain_table()
    has_sources = any(figure.source for figure in found)
    for column in ("key path", "figure", *(["source"] if has_sources else [])):
        table.add_column(column, overflow="fold")
    for figure in found:
        cells = (figure.path, figure.text, *([figure.source] if has_sources else []))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
