"""The command `minitrain goodput`: days of training with failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import running
from minitrain.cli.generation import Given
from minitrain.cli.output import print_json, print_lines
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
