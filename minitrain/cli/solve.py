"""The command `minitrain solve`: how long an inference takes on a device, and which wall it hits."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from minitrain.cli.failures import print_error
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.errors import UsageError
from minitrain.plain_text import printable
from minitrain.view.tables import filled_table


def solve(
    model: str,
    system: str,
    *,
    batch_size: str = "1",
    precision: str = "fp16",
    efficiency: Annotated[float, typer.Option()] = 0.5,
    devices: str = "1",
    as_json: bool = False,
) -> None:
    """Solve how long an inference takes on a device, and say what limits it and what would make it faster or fit.

    Where anything is a list, a table of all combinations is printed.

    Args:
        model (MODEL,...): Presets of the solver such as ResNet50, shipped models, or Hugging Face config.json files.
        system (SYSTEM,...): Presets of the solver such as A100, or hardware configs, one device of each.
        batch_size (N,...): Inferences at a time.
        precision (NAME,...): Datatypes of the weights: fp16, bf16, fp8, int8 and others
        efficiency (SHARE): Share of the peak rate that is reached.
        devices (N,...): How many such devices share the model.
        as_json: Print JSON instead of text: an array with one object a combination.
    """
    from minitrain.machine.solver.engine import SolveTable  # noqa: PLC0415  (pint is an extra)
    from minitrain.machine.solver.engine import solve as solved  # noqa: PLC0415  (as above)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table: SolveTable = solved(
            _names("MODEL", model),
            _names("SYSTEM", system),
            batch_size=_counts("--batch-size", batch_size),
            precision=_names("--precision", precision),
            efficiency=efficiency,
            num_devices=_counts("--devices", devices),
        )
    for said in dict.fromkeys(str(each.message) for each in caught):
        print_error(f"note: {said}")
    rows = table.rows
    if as_json:
        print_json([asdict(row) for row in rows])
    elif len(rows) == 1:
        print_lines(str(table[0].explain()).splitlines())
    else:
        heads, *cells = table.cells
        widths = dict.fromkeys(("model", "system", "precision", "bottleneck"), 5)
        columns = {head.replace("_", "\n", 1): widths.get(head) for head in heads}
        print_table(filled_table(columns, [[Text(printable(cell)) for cell in line] for line in cells]))


def _names(option: str, given: str) -> list[str]:
    """Return what a list with commas names."""
    found = [each.strip() for each in given.split(",")]
    if not all(found):
        raise UsageError(f"{option} must name something between commas, got {given!r}")
    return found


def _counts(option: str, given: str) -> list[int]:
    """Return the whole numbers of a list with commas."""
    found = _names(option, given)
    if not all(each.isdecimal() for each in found):
        raise UsageError(f"{option} must be whole numbers >= 1 with commas between them, got {given!r}")
    return [int(each) for each in found]
