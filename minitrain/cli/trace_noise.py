"""The command `minitrain trace montecarlo`: a saved run under noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli.options import AsJson, Debug
from minitrain.cli.output import print_json, print_lines
from minitrain.cli.trace import RunFile, trace
from minitrain.errors import UsageError

__all__ = ["trace"]  # with all of its commands, as the table in `application` wants it

_MOST_SAMPLES = 10_000_000


@trace.command()
def montecarlo(
    run: RunFile,
    jitter: Annotated[
        list[str] | None,
        typer.Option(
            "--jitter",
            metavar="[KIND=]SIGMA",
            help="Sigma of the lognormal factor on every operation, or on those of a kind: computing, communication, "
            "all_gather, ...; repeat it for more.",
        ),
    ] = None,
    straggler: Annotated[
        str | None,
        typer.Option(
            "--straggler", metavar="P:FACTOR", help="A rank computes FACTOR times as long, with probability P a step."
        ),
    ] = None,
    slowdown: Annotated[
        list[str] | None,
        typer.Option("--slowdown", metavar="RANK=FACTOR", help="This rank always does; repeat it for more."),
    ] = None,
    slow_link: Annotated[
        list[str] | None,
        typer.Option(
            "--slow-link",
            metavar="P:FACTOR[:A-B]",
            help="A rank's link, or the one of ranks A and B, is slow with probability P; repeat it for more.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, max=_MOST_SAMPLES, help="Steps to draw.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="The same seed, the same samples.")] = 0,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="PAGE", help="Draw the run and the distribution as one page.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Time a saved run again under noise: how long a step takes, and which ranks and operations carry the tail."""
    noise = mt.Noise(
        jitter=_jitter(jitter or []),
        straggler=None if straggler is None else _chance("--straggler", straggler),
        slowdown=dict(_slowdown(text) for text in slowdown or []),
        slow_links=[_slow_link(text) for text in slow_link or []],
    )
    found = mt.monte_carlo(mt.load_run(run), noise, samples=samples, seed=seed)
    written = None if page is None else found.write_html(page)
    if as_json:
        print_json(found.summary())
    else:
        print_lines([*str(found).splitlines(), *([] if written is None else [f"wrote {written}"])])


def _jitter(texts: Sequence[str]) -> dict[str, float]:
    """Return sigmas by kind; a number alone is for all that have none of their own."""
    found: dict[str, float] = {}
    for text in texts:
        kind, _, sigma = text.rpartition("=")
        kinds = [kind] if kind else ["computing", "communication"]
        found |= dict.fromkeys(kinds, _number("--jitter", sigma, text, "0.05 or all_gather=0.2"))
    return found


def _slowdown(text: str) -> tuple[int, float]:
    """Return a rank and its factor."""
    rank, _, factor = text.partition("=")
    example = "3=1.5"
    return _rank("--slowdown", rank, text, example), _number("--slowdown", factor, text, example)


def _chance(option: str, text: str) -> tuple[float, float]:
    """Return a probability and a factor."""
    probability, _, factor = text.partition(":")
    return _number(option, probability, text, "0.01:2.0"), _number(option, factor, text, "0.01:2.0")


def _slow_link(text: str) -> mt.SlowLink:
    """Return a link that is slow now and then."""
    option, example = "--slow-link", "0.01:4.0 or 0.01:4.0:0-8"
    chance, _, pair = _cut(text)
    ranks: Any = None
    if pair:
        first, _, second = pair.partition("-")
        ranks = (_rank(option, first, text, example), _rank(option, second, text, example))
    return mt.SlowLink(*_chance(option, chance), pair=ranks)


def _cut(text: str) -> tuple[str, str, str]:
    """Cut a text at its second colon: what is before it, the colon, and the rest."""
    if text.count(":") < 2:
        return text, "", ""
    return text.rpartition(":")


def _number(option: str, text: str, whole: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} takes numbers, as in {example}, got {whole!r}") from None


def _rank(option: str, text: str, whole: str, example: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{option} takes ranks, as in {example}, got {whole!r}")
    return int(text)
