"""The command `minitrain sweep`: many configurations, in several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import minitrain as mt
from minitrain.analysis.labels import GIB
from minitrain.cli import options as given
from minitrain.cli.failures import FAILED
from minitrain.cli.output import Progress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.errors import UsageError
from minitrain.plain_text import printable
from minitrain.sweeps.batches import Row, succeeded

SHOWN = 10
_LONG_NAMES = {
    "layers": "num_layers",
    "batch": "global_batch_size",
    "hw": "hardware",
    "microbatch": "microbatch_size",
    "model": "workload",
    "seq": "seq_len",
}

Axes = Annotated[
    list[str],
    typer.Option("--grid", "-g", metavar="NAME=V1,V2,...", help="Values of a parameter or option; repeat it for more."),
]
Results = Annotated[
    Path | None,
    typer.Option("--results", metavar="FILE", help="JSON Lines file to write rows into, and to go on from."),
]
Fold = Annotated[bool, typer.Option("--fold", help="Simulate ranks that do the same once.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write all rows as a table.")]


def sweep(
    strategy: Annotated[list[str], typer.Argument(metavar="STRATEGY", help="Names, or path.py:function.")],
    grid: Axes,
    world_size: given.WorldSize = given.DEFAULT.world_size,
    model: given.TrainedModel = None,
    seq: given.SeqLen = None,
    layers: given.Layers = None,
    batch: given.Batch = given.DEFAULT.global_batch_size,
    microbatch: given.Microbatch = None,
    option: given.Options = None,
    hw: given.Hardware = None,
    network: given.Network = None,
    strict: given.Strict = given.DEFAULT.strict,
    strict_memory: given.StrictMemory = given.DEFAULT.strict_memory,
    fold: Fold = given.DEFAULT.fold,
    results: Results = None,
    csv: Csv = None,
    as_json: given.AsJson = False,
    debug: given.Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Simulate every strategy with every combination of a grid, over all cores, and print the fastest.

    Names of the grid are those of `mt.simulate`, or of an option: world_size, layers, batch, hw, microbatch ...
    A configuration that fails stays, with its reason; exit code 1 only if all do.
    """
    axes = parse_grid(grid)
    fixed: dict[str, Any] = {
        "world_size": world_size,
        **_trained(model, seq, layers, axes),
        "global_batch_size": batch,
        "hardware": hw or given.DEFAULT.hardware,
        **({"strict": True} if strict else {}),  # a column of the rows only where it was asked for
        "strict_memory": strict_memory,
        "fold": fold,
        **({} if network is None else {"network": network}),
        **given.strategy_options(option or (), microbatch),
    }
    with user_prints_to_stderr(as_json), Progress() as progress:
        done = mt.sweep(
            strategy,
            axes,
            results=results,
            progress=lambda num, total: progress.say(f"{num} of {total} configurations"),
            **fixed,
        )
        if csv is not None:
            done.write_csv(csv)
        rows = done.rows()
    if as_json:
        print_json(rows)
    else:
        _print(rows, list(axes))
    if not succeeded(rows) and all(row["status"] == "failed" for row in rows):
        raise typer.Exit(FAILED)


def _trained(model: str | None, seq_len: int | None, layers: int | None, axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all configurations train, where the grid does not say."""
    if "workload" in axes:
        return {name: value for name, value in (("num_layers", layers), ("seq_len", seq_len)) if value is not None}
    if model is not None and "seq_len" in axes and seq_len is None:
        return {"workload": model}
    return {name: value for name, value in given.trained(model, seq_len, layers).items() if value is not None}


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values by parameter; each is a Python literal, or else text.

    >>> parse_grid(["world_size=8,64", "hw=h100_80g_nvl8"])
    {'world_size': [8, 64], 'hardware': ['h100_80g_nvl8']}
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = _LONG_NAMES.get(name.strip(), name.strip())
        if not equals or not name.isidentifier() or not all(map(str.strip, values.split(","))):
            raise UsageError(f"--grid takes name=value,value,..., got {text!r}")
        if name in axes:
            raise UsageError(f"--grid: {name} is given twice")
        axes[name] = [given.literal(value.strip()) for value in values.split(",")]
    return axes


def _print(rows: Sequence[Row], axes: Sequence[str]) -> None:
    """Print the fastest rows, and how many there are of each kind."""
    best = succeeded(rows)
    table = Table(box=None, pad_edge=False)
    for column in ("strategy", *axes, "step ms", "peak GiB"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for row in best[:SHOWN]:
        figures = (f"{row['step_time_s'] * 1e3:.3f}", f"{row['peak_memory_bytes'] / GIB:.2f}")
        table.add_row(*map(printable, (row["strategy"], *(str(row[axis]) for axis in axes))), *figures)
    if best:
        print_table(table)
    out_of_memory = sum(row["status"] == "oom" for row in rows)
    failures = [row for row in rows if row["status"] == "failed"]
    print_lines([f"{len(rows)} configurations: {len(best)} ok, {out_of_memory} out of memory, {len(failures)} failed"])
    if failures:
        print_lines([f"the first failure: {failures[0]['strategy']}: {failures[0]['error']}"])
