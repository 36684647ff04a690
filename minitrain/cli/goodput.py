"""The command `minitrain goodput`: days of training with failures.

The command `minitrain plan`: how a step should run on a cluster of unlike devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import running
from minitrain.cli.generation import Given
from minitrain.cli.output import Progress, print_json, print_lines, user_prints_to_stderr
from minitrain.errors import UsageError


def goodput(
    strategy: str,
    *,
    given: Given,
    days: float = 30,
    mtbf: list[str] | None = None,
    interval: float | None = None,
    asynchronous: Annotated[bool, typer.Option("--async")] = False,
    samples: Annotated[int, typer.Option(min=1, max=1_000_000)] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Play days of a training run with failures, checkpoints and restarts, and print how much of them is training.

    Args:
        strategy (STRATEGY): A shipped name, a file, or file.py:function.
        given: The shared options.
        days (N): How long the run lasts.
        mtbf ([DEVICE=]HOURS): Mean time between failures of a device; published ones by default. Repeat it for more
            devices.
        interval (SECONDS): Work between checkpoints; Daly's by default.
        asynchronous: Write checkpoints beside the training.
        samples (N): Runs to play.
        seed (N): The same seed, the same samples.
    """
    common = options.strategy_options(given)
    chosen = options.choose_strategies([strategy], common)[0]
    trained = options.trained(given)
    ranks = options.machine(given, trained, given.hardware, by_name=True)
    failures: dict[str, Any] = {"mtbf_hours": mtbf_of(mtbf or ()), "recovery": options.recovery_of(given.recovery)}
    with running():
        found = mt.goodput(
            chosen,
            **ranks,
            **trained,
            **options.batch_of(given),
            days=days,
            **failures,
            checkpoint_interval_s=interval,
            asynchronous=asynchronous,
            samples=samples,
            seed=seed,
            **common,
        )
    if given.as_json:
        print_json(found.summary())
    else:
        print_lines(str(found).splitlines())


def mtbf_of(texts: Sequence[str]) -> float | dict[str, float] | None:
    """Return mean times between failures, hours: one for all devices, or by device; None without any.

    >>> mtbf_of(["h100=50000", "a100=30000"])
    {'h100': 50000.0, 'a100': 30000.0}

    Raises:
        UsageError: a text is none.
    """
    if len(texts) == 1 and "=" not in texts[0]:
        return _hours(texts[0])
    named: dict[str, float] = {}
    for text in texts:
        name, value = options.name_and_value("--mtbf", text, named)
        named[name] = _hours(value)
    return named or None


def _hours(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--mtbf takes hours, as in --mtbf 50000 or --mtbf h100=50000; got {text!r:.80}") from None


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
