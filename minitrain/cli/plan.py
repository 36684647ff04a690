"""The command `minitrain plan`: how a step should run on a cluster of unlike devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import minitrain as mt
from minitrain.cli import options as given
from minitrain.cli.options import pricing
from minitrain.cli.output import Progress, print_json, print_lines, user_prints_to_stderr

Cluster = Annotated[
    str,
    typer.Option(
        "--hw", metavar="CLUSTER", help="A file of a cluster, or a shipped one: two_generations or five_kinds."
    ),
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy", metavar="NAME", help="One to consider; repeat it for more. Those that suit the model if none."
    ),
]
Precisions = Annotated[
    list[str] | None,
    typer.Option(
        "--precision", metavar="NAME", help="bf16, fp16, fp32 or fp8; repeat it to choose. The model's own if none."
    ),
]
Watts = Annotated[float | None, typer.Option("--power-budget", metavar="W", help="What all devices may draw together.")]
All = Annotated[bool, typer.Option("--all-devices", help="Leave no group of devices out, even if that is faster.")]
Saved = Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Write the plan as JSON.")]
Page = Annotated[Path | None, typer.Option("--html", metavar="PAGE", help="Write the page of the plan's step.")]


def plan(
    hw: Cluster,
    model: given.TrainedModel = None,
    seq: given.SeqLen = None,
    layers: given.Layers = None,
    batch: given.Batch = given.DEFAULT.global_batch_size,
    strategy: Strategies = None,
    precision: Precisions = None,
    power_budget: Watts = None,
    all_devices: All = False,
    fidelity: given.Fidelity = None,
    platform: given.Platform = None,
    out: Saved = None,
    html: Page = None,
    as_json: given.AsJson = False,
    debug: given.Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Find how a step should run on a cluster of unlike devices, and print the plan.

    What else was considered is printed below it: how much slower it is, or why it does not run.
    """
    given.require_file("--out", out)
    given.require_file("--html", html)
    trained = given.trained(model, seq, layers)
    workload = trained.pop("workload", None)
    with user_prints_to_stderr(as_json), Progress() as progress:
        progress.say("simulating layouts")
        found = mt.plan(
            workload,
            hw,
            global_batch_size=batch,
            strategies=strategy or None,
            precisions=precision or None,
            power_budget_watts=power_budget,
            leave_out=not all_devices,
            **trained,
            **pricing(fidelity, platform, None, None),
        )
        if out is not None:
            found.save(out)
        if html is not None:
            progress.say("drawing the step")
            found.write_html(html)
    if as_json:
        print_json(found.summary())
        return
    print_lines([*found.explain().splitlines(), *(f"wrote {path}" for path in (out, html) if path is not None)])
