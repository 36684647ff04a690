"""How far validated runs like a given one were off: "+- 6 % (90 % of 45 validated A100 runs)".

A validated run is like another if both have devices of one family (A100, H100 ...) and models of one kind (gated MLP or
not), and if their numbers of ranks differ by a factor of at most eight. The stated error is the one that nine in ten of
these runs do not exceed. With fewer than eight such runs, all runs of the device count; with fewer than eight of these,
nothing like it was validated.

The errors come from `stored.json`, which `python -m minitrain.validation.stored` writes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, final

from minitrain.validation.errors_by_table import summarize

NOTHING_LIKE_IT = "nothing like it was validated"
"""What is said of a run that no validated one is like."""

_SCALE = 8
_LEAST = 8


@final
@dataclass(frozen=True, slots=True)
class StoredError:
    """One validated run.

    Args:
        table: the table that it is from.
        device: the family of its device: "a100".
        is_gated: whether its model's MLP is gated, as Llama's.
        world_size: its ranks.
        error: predicted over measured, less one.
    """

    table: str
    device: str
    is_gated: bool
    world_size: int
    error: float


@final
@dataclass(frozen=True, slots=True)
class Sureness:
    """How far a prediction may be off, by validated runs like it.

    Args:
        num_runs: how many there are.
        error: the error that nine in ten of these do not exceed.
        what: what they have in common, in words.
    """

    num_runs: int
    error: float
    what: str

    def __str__(self) -> str:
        """Return it as a run's headline says it."""
        return f"+- {100 * self.error:.0f} % (90 % of {self.num_runs} validated {self.what} runs)"


def how_sure(hardware: str, *, is_gated: bool, world_size: int) -> Sureness | None:
    """Return how far validated runs like one were off; None where nothing like it was validated.

    Args:
        hardware: the name of its hardware config.
        is_gated: whether its model's MLP is gated.
        world_size: its ranks.
    """
    device = family_of(hardware)
    alike = [each for each in stored_errors() if each.device == device]
    near = [
        each for each in alike if each.is_gated == is_gated and 1 / _SCALE <= each.world_size / world_size <= _SCALE
    ]
    kind = "Llama-like" if is_gated else "GPT-like"
    return _sureness(near, f"{device.upper()} {kind}") or _sureness(alike, device.upper())


def family_of(hardware: str) -> str:
    """Return the family of a config's device.

    >>> family_of("h100_80g_nvl8")
    'h100'
    """
    return hardware.partition("_")[0].lower()


def stored_errors() -> tuple[StoredError, ...]:
    """Return the errors of the validated runs."""
    return tuple(StoredError(*values) for values in _stored()["errors"])


def stored_means() -> dict[str, float]:
    """Return the mean error of each table, and of its groups."""
    means: dict[str, float] = _stored()["means"]
    return means


@cache
def _stored() -> dict[str, Any]:
    """Return what the file holds."""
    found: dict[str, Any] = json.loads(
        resources.files("minitrain.validation").joinpath("stored.json").read_text("utf-8")
    )
    return found


def _sureness(found: Sequence[StoredError], what: str) -> Sureness | None:
    """Return the error that nine in ten do not exceed; None where there are too few."""
    if len(found) < _LEAST:
        return None
    summary = summarize([each.error for each in found])
    assert summary is not None  # there are some
    return Sureness(summary.num_runs, summary.p90, what)
