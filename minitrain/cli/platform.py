"""The command `minitrain platform run`: hardware and tasks of a file, simulated and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from minitrain.cli.options import group
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.machine.platform import ComputeResult, TransferResult, VirtualHardwarePlatform
from minitrain.machine.platform.scenario import Scenario, TaskFailure
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
