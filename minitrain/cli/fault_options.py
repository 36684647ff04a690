"""The command `minitrain goodput`: days of training with failures; and the options of `run` for devices that die."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli import options as given
from minitrain.cli import rank_options as ranks_given
from minitrain.cli.failures import running
from minitrain.cli.options import machine, name_and_value
from minitrain.cli.output import print_json, print_lines
from minitrain.errors import UsageError
from minitrain.run.strategy_loading import did_you_mean

_PANEL = "Failures"
_MOST_SAMPLES = 1_000_000

Recoveries = Annotated[
    list[str] | None,
    typer.Option(
        "--recovery",
        metavar="NAME=VALUE",
        help="What happens after a failure: spares=1, elastic=true, detection_s=30, restart_s, repair_s, ...; repeat "
        "it for more.",
        rich_help_panel=_PANEL,
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="RANK@SECONDS",
        help="A device dies so long after the step's beginning; repeat it for more.",
        rich_help_panel=_PANEL,
    ),
]


def goodput(
    strategy: Annotated[str, typer.Argument(metavar="STRATEGY", help="A shipped name, a file, or file.py:function.")],
    world_size: ranks_given.Ranks = None,
    model: given.TrainedModel = None,
    seq: given.SeqLen = None,
    precision: given.Precision = None,
    layers: given.Layers = None,
    batch: ranks_given.Batch = None,
    microbatch: given.Microbatch = None,
    option: given.Options = None,
    hw: given.Hardware = None,
    network: given.Network = None,
    days: Annotated[
        float, typer.Option("--days", metavar="N", help="How long the run lasts.", rich_help_panel=_PANEL)
    ] = 30,
    mtbf: Annotated[
        list[str] | None,
        typer.Option(
            "--mtbf",
            metavar="[DEVICE=]HOURS",
            help="Mean time between failures of a device; published ones by default. Repeat it for more devices.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval", metavar="SECONDS", help="Work between checkpoints; Daly's by default.", rich_help_panel=_PANEL
        ),
    ] = None,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Write checkpoints beside the training.", rich_help_panel=_PANEL)
    ] = False,
    recovery: Recoveries = None,
    samples: Annotated[
        int,
        typer.Option("--samples", metavar="N", min=1, max=_MOST_SAMPLES, help="Runs to play.", rich_help_panel=_PANEL),
    ] = 200,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="The same seed, the same samples.", rich_help_panel=_PANEL)
    ] = 0,
    as_json: given.AsJson = False,
    debug: given.Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Play days of a training run with failures, checkpoints and restarts, and print how much of them is training."""
    common = given.strategy_options(option or (), microbatch)
    chosen = given.choose_strategies([strategy], common)[0]
    ranks = machine(world_size, hw, network, None, {}, {}, by_name=True)
    failures: dict[str, Any] = {"mtbf_hours": mtbf_of(mtbf or ()), "recovery": recovery_of(recovery or ())}
    with running():
        found = mt.goodput(
            chosen,
            **ranks,
            **given.trained(model, seq, layers, precision),
            **ranks_given.batch_of(batch, None),
            days=days,
            **failures,
            checkpoint_interval_s=interval,
            asynchronous=asynchronous,
            samples=samples,
            seed=seed,
            **common,
        )
    if as_json:
        print_json(found.summary())
    else:
        print_lines(str(found).splitlines())


def faults_of(texts: Sequence[str]) -> list[mt.Fault]:
    """Return the faults that options name.

    >>> faults_of(["5@0.02"])
    [Fault(rank=5, at_s=0.02)]

    Raises:
        UsageError: a text is none.
    """
    found = []
    for text in texts:
        rank, _, seconds = text.partition("@")
        try:
            found.append(mt.Fault(int(rank), float(seconds)))
        except ValueError:
            raise UsageError(f"--fault takes RANK@SECONDS, as in --fault 5@0.02; got {text!r:.80}") from None
    return found


def disturbance(faults: Sequence[str], recovery: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `simulate` for devices that die.

    Raises:
        UsageError: an option is outside its rule.
    """
    found = {"faults": faults_of(faults), "recovery": recovery_of(recovery)}
    return {name: value for name, value in found.items() if value}


def recovery_of(texts: Sequence[str]) -> mt.Recovery | None:
    """Return what happens after a failure, as options say it; None without any.

    >>> recovery_of(["spares=2", "elastic=true"]).spares
    2

    Raises:
        UsageError: there is no such name, or a value is outside its rule.
    """
    named: dict[str, Any] = {}
    kinds = {each.name: each.type for each in fields(mt.Recovery)}
    for text in texts:
        name, value = name_and_value("--recovery", text, named)
        if name not in kinds:
            hint = did_you_mean(name, kinds) or f"; use one of {', '.join(kinds)}"
            raise UsageError(f"--recovery: there is no {name}{hint}")
        named[name] = _value_of(name, value, str(kinds[name]))
    return mt.Recovery(**named) if named else None


def _value_of(name: str, value: str, kind: str) -> Any:
    """Return the value of a field as its kind."""
    try:
        if kind == "bool":
            return {"true": True, "false": False}[value.lower()]
        return int(value) if kind == "int" else float(value)
    except (KeyError, ValueError):
        wanted = {"bool": "true or false", "int": "a whole number"}.get(kind, "a number")
        raise UsageError(f"--recovery: {name} takes {wanted}, got {value!r:.80}") from None


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
        name, value = name_and_value("--mtbf", text, named)
        named[name] = _hours(value)
    return named or None


def _hours(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--mtbf takes hours, as in --mtbf 50000 or --mtbf h100=50000; got {text!r:.80}") from None
