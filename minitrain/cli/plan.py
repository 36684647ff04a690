"""The command `minitrain plan`: how a step should run on a cluster of unlike devices."""

from __future__ import annotations

from pathlib import Path

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.generation import Given
from minitrain.cli.output import Progress, print_json, print_lines, user_prints_to_stderr


def plan(
    *,
    hardware: str,
    given: Given,
    strategy: list[str] | None = None,
    precision: list[str] | None = None,
    power_budget: float | None = None,
    all_devices: bool = False,
    out: Path | None = None,
    html: Path | None = None,
) -> None:
    """Find how a step should run on a cluster of unlike devices, and print the plan.

    What else was considered is printed below it: how much slower it is, or why it does not run.

    Args:
        hardware (CLUSTER): A file of a cluster, or a shipped one: two_generations or five_kinds.
        given: The shared options.
        strategy (NAME): One to consider; repeat it for more. Those that suit the model if none.
        precision (NAME): bf16, fp16, fp32 or fp8; repeat it to choose. The model's own if none.
        power_budget (W): What all devices may draw together.
        all_devices: Leave no group of devices out, even if that is faster.
        out (FILE.json): Write the plan as JSON.
        html (PAGE): Write the page of the plan's step.
    """
    options.require_file("--out", out)
    options.require_file("--html", html)
    trained = options.trained(given)
    workload = trained.pop("workload", None)
    with user_prints_to_stderr(given.as_json), Progress() as progress:
        progress.say("simulating layouts")
        found = mt.plan(
            workload,
            hardware,
            **options.batch_of(given),
            strategies=strategy or None,
            precisions=precision or None,
            power_budget_watts=power_budget,
            leave_out=not all_devices,
            **trained,
            **options.pricing(given),
        )
        if out is not None:
            found.save(out)
        if html is not None:
            progress.say("drawing the step")
            found.write_html(html)
    if given.as_json:
        print_json(found.summary())
        return
    print_lines([*found.explain().splitlines(), *(f"wrote {path}" for path in (out, html) if path is not None)])
