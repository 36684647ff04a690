"""The commands `minitrain platform`, tasks that share devices and links, and `minitrain solve`, an inference."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from minitrain.cli.failures import print_error
from minitrain.cli.options import group
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.errors import UsageError
from minitrain.machine.platform import ComputeResult, TransferResult, VirtualHardwarePlatform
from minitrain.machine.platform.scenario import Scenario, TaskFailure
from minitrain.plain_text import printable
from minitrain.run.analysis.labels import duration
from minitrain.view.exports import write_chrome_trace
from minitrain.view.layout import LaneUse, Links, View
from minitrain.view.page import write_html
from minitrain.view.tables import filled_table

platform = group("Simulate tasks that share devices, memories and links.", no_args_is_help=True)

_MOST_LINKS = 12


@platform.callback()
def _group() -> None:
    """Let `run` be a command of its own, also while it is the only one."""


@platform.define()
def run(
    file: Path,
    *,
    detail: str | None = None,
    html: Path | None = None,
    chrome: Path | None = None,
    as_json: bool = False,
) -> None:
    """Simulate the tasks of a file on its hardware, and show when each ended and what was in use.

    Args:
        file (FILE): YAML or JSON: hardware_profile (or hardware) and tasks.
        detail (LEVEL): Level of detail: high or medium; the file's by default.
        html (PAGE): Write a page with the Gantt chart and memory.
        chrome (FILE): Write Chrome Trace Event JSON, for ui.perfetto.dev.
        as_json: Print JSON instead of a table.
    """
    scenario = Scenario.read(file, detail)
    end = scenario.run()
    _write_pictures(scenario.platform, file.stem, end, html, chrome)
    used = {name: share for name, share in scenario.platform.utilization().items() if share}
    if as_json:
        tasks, failed = ([_as_json(one) for one in found] for found in (scenario.platform.results, scenario.failures))
        print_json({"end_s": end, "tasks": tasks, "failed": failed, "utilization": used})
        return
    suffix = f", {len(scenario.failures)} failed" if scenario.failures else ""
    print_lines([f"{len(scenario.platform.results)} tasks{suffix}, {duration(end)}"])
    many = {name for names in scenario.arrivals.values() for name in names}
    singles = [one for one in (*scenario.platform.results, *scenario.failures) if one.task_id not in many]
    if singles:
        print_table(_results_table(singles))
    print_lines(_latency_lines(scenario))
    most = sorted(used.items(), key=lambda item: -item[1])[:_MOST_LINKS]
    shares = ((Text(name), f"{share:.1%}") for name, share in most)
    print_table(filled_table({"device or link": 14, "in use": None}, shares))


def _write_pictures(
    platform: VirtualHardwarePlatform, title: str, end: float, html: Path | None, chrome: Path | None
) -> None:
    """Write what was asked for."""
    logs = {name: log for name, log in platform.logs().items() if log}
    names = ", ".join(f"{number} is {name}" for number, name in enumerate(list(logs)[:16]))
    if html is not None:
        lanes = [LaneUse(lane.name, lane.bytes_per_s, lane.steps) for lane in platform.routes.lanes if lane.steps]
        facts = [f"{duration(end)}", f"rank {names}{' ...' if len(logs) > 16 else ''}"]
        view = View(title, facts, end, bytes_per_element=1, links=Links(lanes, None, end) if lanes else None)
        write_html(html, list(logs.values()), view)
    if chrome is not None:
        write_chrome_trace(chrome, list(logs.values()), 1)


def _results_table(results: Sequence[ComputeResult | TransferResult | TaskFailure]) -> Table:
    """Return one row a task."""
    rows: list[tuple[Any, ...]] = []
    for result in results:
        if isinstance(result, TaskFailure):
            rows.append((Text(result.task_id), "", "", duration(result.end), "", Text(f"failed: {result.reason}")))
            continue
        if isinstance(result, ComputeResult):
            where, start = result.device_id, result.start
            waited = start - result.submitted
            limit = result.bound + (f", waited {duration(waited)} for memory or units" if waited else "")
        else:
            where, start = _ends(result), result.submitted
            limit = "" if result.slowed_by is None else f"{result.slowed_by}, with {', '.join(result.shared_with)}"
        times = (duration(value) for value in (start, result.end, result.end - start))
        rows.append((Text(result.task_id), Text(where), *times, Text(limit)))
    heads = {"task": 8, "where": 10, **dict.fromkeys(("start", "end", "took")), "limited by": 10}
    return filled_table(heads, rows)


def _latency_lines(scenario: Scenario) -> list[str]:
    """Return a line for each kind of task that arrives many times."""
    lines = []
    for name, found in scenario.latencies_s().items():
        line = f"{name}: {len(found):,} of {len(scenario.arrivals[name]):,} ended"
        shares = {f"p{percent}": found[len(found) * percent // 100] for percent in (50, 95, 99)} if found else {}
        lines.append(", ".join([line, *(f"{share} {duration(value)}" for share, value in shares.items())]))
    return lines


def _ends(result: TransferResult) -> str:
    """Return between which endpoints something moved."""
    if result.op == "transfer":
        return " to ".join(result.endpoints)
    return f"{result.op} of {len(result.endpoints)}"


def _as_json(result: ComputeResult | TransferResult | TaskFailure) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__dataclass_fields__}


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
