"""How far validated runs like a given one were off: "+- 6 % (90 % of 45 runs of nemo-h100 on H100, Llama-like, tp pp)".

A validated run is like another if it had the same platform, a device of the same family (A100, H100 ...), a model of
the same kind (GPT-like, Llama-like, mixture of experts) and the same axes of parallelism beside replicas. Those whose
numbers of ranks differ by a factor of at most eight are taken; with fewer than five of them, those of any size; with
fewer than five of these, those with other axes, if together they used each of the run's axes. Otherwise nothing like it
has been compared, and what is lacking is said. The stated error is the one that nine in ten of these runs do not
exceed.

The errors come from `stored.json`, which `python -m minitrain.evidence.stored` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from minitrain.evidence.errors_by_table import summarize

NOTHING_LIKE_IT = "nothing like it has been compared"
"""What is said of a run that no validated one is like."""

AXES = ("tp", "pp", "cp", "ep")
"""The axes of parallelism by which runs are told apart."""

_SCALE = 8
_LEAST = 5
_PLATFORM = re.compile(r"kernels, platform ([^,;]+)(, with contention)?")
_FITTED = re.compile(r"(.+) \(fitted to (\+- \d+ %)\)")  # `minitrain.machine.platforms.Platform.title`


@dataclass(frozen=True, slots=True)
class StoredError:
    """One validated run.

    Args:
        table: the table that it is from.
        platform: the platform that it was priced by; "components" for none.
        device: the family of its device: "a100".
        kind: of its model: "Llama-like".
        axes: those of its layout that are in `AXES`, with blanks between: "tp pp".
        world_size: its ranks.
        error: predicted over measured, less one.
    """

    table: str
    platform: str
    device: str
    kind: str
    axes: str
    world_size: int
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """What a run is compared by.

    Args:
        priced_by: what priced its operations, in words.
        hardware: the name of its hardware config.
        kind: of its model, as `Architecture.kind` has it; "" where it is no transformer.
        axes: sizes by name of the axes of its mesh.
        world_size: its ranks.
    """

    priced_by: str
    hardware: str
    kind: str
    axes: Mapping[str, int]
    world_size: int

    def how_sure(self) -> str:
        """Return how far validated runs like it were off, in words."""
        found = _PLATFORM.fullmatch(self.priced_by)
        if found is None or not self.kind:
            return NOTHING_LIKE_IT
        if fitted := _FITTED.fullmatch(found[1]):
            return f"{fitted[2]} (90 % of the runs that {fitted[1]} was fitted to, each left out in turn)"
        platform, device, axes = found[1], family_of(self.hardware), axes_of(self.axes)
        runs = [each for each in stored_errors() if (each.platform, each.device) == (platform, device)]
        if not runs:
            return f"{NOTHING_LIKE_IT} (no run of {platform} on {device.upper()})"
        runs = [each for each in runs if each.kind == self.kind]
        if not runs:
            return f"{NOTHING_LIKE_IT} ({platform} on {device.upper()}: no {self.kind} model)"
        alike = [each for each in runs if each.axes == axes]
        near = [each for each in alike if 1 / _SCALE <= each.world_size / self.world_size <= _SCALE]
        of = f"{platform} on {device.upper()}, {self.kind}"
        used = {axis for each in runs for axis in each.axes.split()}
        return (
            _stated(near, f"{of}{f', {axes}' if axes else ''}")
            or _stated(alike, f"{of}{f', {axes}' if axes else ''}, at other scales")
            or (_stated(runs, f"{of}, other layouts") if used.issuperset(axes.split()) else "")
            or f"{NOTHING_LIKE_IT} ({of}: no run with {axes or 'replicas alone'})"
        )


def axes_of(sizes: Mapping[str, int]) -> str:
    """Return which of `AXES` a layout uses, with blanks between.

    >>> axes_of({"tp": 8, "pp": 1, "dp": 2, "cp": 2})
    'tp cp'
    """
    return " ".join(axis for axis in AXES if sizes.get(axis, 1) > 1)


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
    found: dict[str, Any] = json.loads(resources.files("minitrain.evidence").joinpath("stored.json").read_text("utf-8"))
    return found


def _stated(found: Sequence[StoredError], what: str) -> str:
    """Return the error that nine in ten do not exceed, in words; "" where there are too few."""
    if len(found) < _LEAST:
        return ""
    summary = summarize([each.error for each in found])
    assert summary is not None  # there are some
    return f"+- {100 * summary.p90:.0f} % (90 % of {summary.num_runs} runs of {what})"
