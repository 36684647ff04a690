"""The commands `minitrain hw list`, `show`, `check`, `calibrate` and `validate`; others are added."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from minitrain.cli.failures import FAILED, USAGE, print_error
from minitrain.cli.fit_platform import fit_platform
from minitrain.cli.layers import layers_from_trace
from minitrain.cli.options import AsJson, Debug
from minitrain.cli.output import Progress, print_json, print_lines, print_table
from minitrain.errors import HardwareConfigError
from minitrain.files import write_text
from minitrain.hardware import SystemConfig, load_config, shipped_configs
from minitrain.hardware.clusters.cluster import Cluster
from minitrain.hardware.clusters.cluster_files import names_cluster
from minitrain.hardware.config_faults import every_fault
from minitrain.hardware.config_files import is_shipped, parse, read_file, shipped_clusters, shipped_text
from minitrain.hardware.figures import Figure, figures, sources_of
from minitrain.hardware.overview import OverviewLine, counted, overview, title
from minitrain.plain_text import printable
from minitrain.trace.tables import plain_table

hw = typer.Typer(no_args_is_help=True, help="List, show and check hardware configs.")

hw.command("layers-from-trace")(layers_from_trace)
hw.command("fit-platform")(fit_platform)

Name = Annotated[str, typer.Argument(metavar="CONFIG", help="A shipped config's name or a file.")]


@hw.command("list")
def list_configs(as_json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001  (`failures` reads it)
    """List the shipped hardware configs."""
    if as_json:
        print_json(shipped_configs())
    else:
        print_table(_configs_table([load_config(name) for name in shipped_configs()]))
        clusters = shipped_clusters()  # learners' packages have none
        print_lines([f"clusters of unlike devices: {', '.join(clusters)}"] if clusters else [])


@hw.command()
def show(
    config: Name,
    sources: Annotated[bool, typer.Option("--sources", help="Every figure, by key path, with its source.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Show one hardware config in short; with --sources every figure and where it comes from, with --json the file."""
    if names_cluster(config):
        cluster = Cluster.load(config)
        print_json(cluster.data()) if as_json else print_lines(cluster.lines())
        return
    system, data = load_config(config), _raw(config)
    if as_json:
        print_json(data)
        return
    found = figures(data, sources_of(system.name) if is_shipped(config) else {})
    if sources:
        print_lines([system.name])
        print_table(_figures_table(found))
        return
    print_lines([title(system)])
    print_table(_overview_table(overview(system, found)))
    print_lines(_rest(config, found, data))


def _rest(config: str, found: Sequence[Figure], data: Mapping[str, Any]) -> list[str]:
    """Return what an overview leaves out, and how to see it."""
    from minitrain.devices.calibration import noisiest  # noqa: PLC0415 - only for what calibrate wrote

    noises = list(noisiest(data)) if "measured" in data else []
    measured = [f"Measured here; noise, interquartile range over median: {_noise(noises)}."] if noises else []
    kinds = counted(found)
    counts = f"{len(found)} figures in all{f': {kinds}' if kinds else ''}."
    return [*measured, counts, f"`minitrain hw show {printable(config)} --sources` lists each of them."]


def _raw(config: str) -> Any:
    """Return the data in the file of a valid config."""
    name = config.removesuffix(".json")
    text = shipped_text(name) if is_shipped(config) else read_file(config)
    return parse(text, config)


@hw.command()
def check(
    configs: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG", help="Configs to check; all shipped ones if none is given."),
    ] = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Check hardware configs and clusters, and say every fault of each by its key path."""
    faulty = False
    for config in configs or shipped_configs():
        try:
            Cluster.load(config) if names_cluster(config) else load_config(config)
        except HardwareConfigError as error:
            print_error("\n".join(every_fault(error.path, error.faults)))
            faulty = True
        else:
            print_lines([f"{config}: ok"])
    if faulty:
        raise typer.Exit(USAGE)


@hw.command()
def calibrate(
    out: Annotated[Path, typer.Option("--out", help="The config to write.")] = Path("this_machine.json"),
    backend: Annotated[str, typer.Option(help="What to measure with: jax, numpy or torch.")] = "jax",
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Measure this machine and write a hardware config with what it reached.

    What was measured is kept beside the config until it is complete: after Ctrl-C, the same command goes on.
    """
    from minitrain.devices.calibration import calibrate as measured  # noqa: PLC0415 - JAX is heavy
    from minitrain.devices.calibration import noisiest  # noqa: PLC0415

    notes = out.with_name(f"{out.stem}.measurements.json")
    try:
        with Progress() as progress:
            config = measured(backend, notes=notes, progress=_teller(progress, "measuring"))
    except KeyboardInterrupt:
        print_error(f"stopped; what was measured is in {notes}, and the same command goes on from there")
        raise
    write_text(out, [json.dumps(config, indent=1), "\n"])
    notes.unlink(missing_ok=True)
    print_lines(
        [f"{out}: {_reached(config)}", f"noise, interquartile range over median: {_noise(list(noisiest(config)))}"]
    )


def _reached(config: Mapping[str, Any]) -> str:
    """Return the best rates of a calibrated config."""
    rates = [f"{unit} {config[unit]['float32']['tflops'] * 1e3:.4g} GFLOP/s" for unit in ("matrix", "vector")]
    others = (f"memory {config['mem1']['GBps']:.4g} GB/s", f"dispatch {config['dispatch_s'] * 1e6:.3g} us")
    return ", ".join((*rates, *others))


def _noise(noises: Sequence[tuple[str, float]]) -> str:
    """Return how noisy measurements were."""
    median = statistics.median(noise for _, noise in noises)
    name, most = noises[0]
    return f"{median:.1%} in the middle, {most:.1%} at most ({name})"


@hw.command()
def validate(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="What `minitrain hw calibrate` wrote.")],
    phase: Annotated[str, typer.Option(help="synthetic, models or all.")] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each case.")] = 7,
    as_json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Compare predictions for a config with this machine, and judge them: pass, fail or inconclusive."""
    from minitrain.devices.validation import validate as validated  # noqa: PLC0415 - JAX is heavy

    load_config(config)  # before anything is measured
    if "measured" not in _raw(config):
        print_error(f"{config} was not measured here: errors tell how far this machine is from it; see hw calibrate")
    with Progress() as progress:
        report = validated(config, phase=phase, num_rounds=rounds, progress=_teller(progress, "comparing"))
    if as_json:
        print_json(report.as_json())
    else:
        print_lines(str(report).splitlines())
    if report.verdict == "fail":
        raise typer.Exit(FAILED)


def _teller(progress: Progress, doing: str) -> Callable[[int, int, str], None]:
    """Return a function that shows how far a measurement is."""
    return lambda done, total, name: progress.say(f"{doing} {name} ({done + 1} of {total})")


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
        table.add_row(Text(system.name), peak, _in_short(system.mem1.GiB), _in_short(system.mem1.GBps), tiers)
    return table


def _in_short(amount: float) -> str:
    """Return an amount in whole numbers from 10 on, and a tiny one as less than 1."""
    if amount < 0.1:
        return "<1"
    return f"{amount:.0f}" if amount >= 10 else f"{amount:g}"


def _overview_table(lines: Sequence[OverviewLine]) -> Table:
    """Return a row for each line of an overview."""
    table = plain_table()
    has_kinds = any(line.kinds for line in lines)
    for column, width in {"what": 16, "figure": 36, **({"source": 12} if has_kinds else {})}.items():
        table.add_column(column, overflow="fold", min_width=width)
    for line in lines:
        cells = (line.what, line.text, *([line.kinds] if has_kinds else []))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _figures_table(found: Sequence[Figure]) -> Table:
    """Return a row for each figure of a config."""
    table = plain_table()
    has_sources = any(figure.source for figure in found)
    for column, width in {"key path": 24, "figure": 18, **({"source": 28} if has_sources else {})}.items():
        table.add_column(column, overflow="fold", min_width=width)
    for figure in found:
        cells = (figure.path, figure.text, *([figure.source] if has_sources else []))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
