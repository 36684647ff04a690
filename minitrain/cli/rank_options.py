"""The options of `run` and `compare` for how many ranks there are and who takes how much, where ranks may be unlike."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from minitrain.cli.options import DEFAULT, MODEL, batch_option, world_size_option
from minitrain.errors import UsageError

Ranks = Annotated[
    int | None,
    world_size_option("Number of ranks; of a cluster, a rank for each device by default.", str(DEFAULT.world_size)),
]
Shares = Annotated[
    str | None,
    typer.Option(
        "--shares",
        metavar="N,...",
        help="Samples of each replica instead of equal ones; --batch is then their sum.",
        rich_help_panel=MODEL,
    ),
]
Batch = Annotated[int | None, batch_option(str(DEFAULT.global_batch_size))]


def batch_of(batch: int | None, shares: str | None) -> dict[str, Any]:
    """Return the samples of the step and of its replicas, as arguments of `simulate`.

    >>> batch_of(None, "12,4")
    {'shares': (12, 4), 'global_batch_size': 16}

    Raises:
        UsageError: the shares are no whole numbers, or add up to another batch.
    """
    if shares is None:
        return {"global_batch_size": DEFAULT.global_batch_size if batch is None else batch}
    parts = [part.strip() for part in shares.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--shares takes the samples of each replica, as in --shares 12,4; got {shares!r:.80}")
    samples = tuple(map(int, parts))
    if batch not in (None, sum(samples)):
        raise UsageError(f"--shares add up to {sum(samples)}, and --batch is {batch}; leave --batch out")
    return {"shares": samples, "global_batch_size": sum(samples)}
