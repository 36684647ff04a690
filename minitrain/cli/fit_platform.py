"""The command `minitrain hw fit-platform`: one's own measured runs become a platform for `run` and `tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from minitrain.cli.options import AsJson, Debug
from minitrain.cli.output import Progress, print_json, print_lines, print_table
from minitrain.cli.worker_options import Jobs
from minitrain.plain_text import printable
from minitrain.trace.tables import plain_table

if TYPE_CHECKING:
    from minitrain.validation.fitting import FittedPlatform


def fit_platform(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS.csv", help="Measured runs, in the columns of docs/accuracy.md.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What the platform is called.")] = "mine",
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="NAME", help="The platform to begin with; that of the framework by default."),
    ] = None,
    numbers: Annotated[
        str | None,
        typer.Option("--numbers", metavar="NAME,...", help="The numbers that may be fitted, such as clock,eager."),
    ] = None,
    jobs: Jobs = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.json", help="The file to write; NAME.json by default.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Fit a platform to measured runs, for `--platform FILE.json` of run, compare and tune.

    Only numbers that predict runs better which were left out are fitted. The errors of these say how sure a prediction
    is that the platform makes.
    """
    from minitrain.validation.fitting import NUMBERS, fit_platform  # noqa: PLC0415  (only for this command)

    wanted = NUMBERS if numbers is None else [each.strip() for each in numbers.split(",") if each.strip()]
    with Progress() as progress:
        done = 0

        def tell(num: int, _: int) -> None:
            nonlocal done
            done = num
            if num == 1:
                progress.say(lambda: f"{done} steps simulated")

        fitted = fit_platform(runs, name=name, start=start, numbers=wanted, jobs=jobs, progress=tell)
    written = fitted.platform.write(out or Path(f"{name}.json"))
    if as_json:
        print_json({**_summary(fitted), "file": str(written)})
        return
    print_table(_numbers_table(fitted))
    print_lines(_lines(fitted, written))


def _summary(fitted: FittedPlatform) -> dict[str, object]:
    """Return a fit as plain values."""
    return {
        "platform": fitted.platform.name,
        "numbers": fitted.platform.numbers(),
        "intervals": fitted.intervals,
        "mean_error_before": fitted.before,
        "mean_error": fitted.after,
        "mean_error_left_out": fitted.left_out,
        "fitted_error": fitted.platform.fitted_error,
        "rows": list(fitted.rows),
        "skipped": [{"table": each.table, "row_id": each.row_id, "reason": each.reason} for each in fitted.skipped],
    }


def _numbers_table(fitted: FittedPlatform) -> Table:
    """Return a row for each number of the platform."""
    table = plain_table()
    for column, width in (("number", 17), ("value", 9), ("nine in ten resampled", 14)):
        table.add_column(column, overflow="fold", min_width=width)
    for name, value in fitted.platform.numbers().items():
        interval = fitted.intervals.get(name)
        between = "" if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"
        shown = f"{value:.3g}" if isinstance(value, float) else str(value)
        table.add_row(Text(name), Text(printable(shown)), between)
    return table


def _lines(fitted: FittedPlatform, written: Path) -> list[str]:
    """Return how good the fit is, and how it is used."""
    platform = fitted.platform
    skipped = [f"{len(fitted.skipped)} rows were not simulated: {fitted.skipped[0].reason}"] if fitted.skipped else []
    return [
        f"{printable(platform.fitted_on)}",
        f"mean error {fitted.before:.1%} before, {fitted.after:.1%} fitted, {fitted.left_out:.1%} of runs left out",
        *(printable(line) for line in skipped),
        f"wrote {printable(str(written))}; use it by --platform {printable(str(written))}",
    ]
