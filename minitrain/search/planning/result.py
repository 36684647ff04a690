"""`Plan`: how a step runs on a cluster, what it takes there, and what else was considered."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, final

from minitrain.engine.shares import Shares
from minitrain.errors import UsageError
from minitrain.files import read_json, write_text
from minitrain.machine.clusters.cluster import Cluster
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.search.planning.device_times import steps_by_precision
from minitrain.search.planning.layouts import Candidate, in_precision

SIMULATED, REFINED = "simulated", "refined"
"""The reasons of candidates that fit into memory."""
_SHOWN = 8
_FORMAT = "minitrain-plan"
_NEEDED = ("strategy", "options", "world_size", "groups", "power_caps_watts", "samples", "layers", "microbatch_sizes")


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a candidate.

    Args:
        candidate: the layout.
        step_time: simulated, s; None where it was not, or did not run.
        reason: why it did not win: "simulated", "refined", "bound above the best", "out of memory on rank 3", or a
            message.
    """

    candidate: Candidate
    step_time: float | None
    reason: str

    @property
    def fitting_s(self) -> float:
        """The simulated step time of what fits into memory, s; infinity for all others."""
        return self.step_time if self.step_time is not None and self.reason in (SIMULATED, REFINED) else inf


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """A layout of a step on a cluster. It may be given as `shares` to `simulate`.

    Args:
        strategy: the strategy's name.
        options: its own options.
        shares: who takes how much.
        cluster: the devices that take part, with their caps.
        world_size: how many ranks.
        step: what is trained, as arguments of `simulate`.
        left_out: groups of the cluster that take no part.
        run: the simulated step.
        verdicts: the outcome of every candidate, the best first.
        precision: what is computed in, where `plan` had a choice.
        lacking: by group, the datatype of the step that its devices do not have.
        precisions: how the times of each precision compare, by device, in words.
    """

    strategy: str
    options: Mapping[str, Any]
    shares: Shares | None
    cluster: Cluster
    world_size: int
    step: Mapping[str, Any]
    left_out: tuple[str, ...]
    run: Run = field(repr=False)
    verdicts: Sequence[Verdict] = field(default=(), repr=False)
    precision: str | None = None
    lacking: Mapping[str, str] = field(default_factory=dict)
    precisions: Sequence[str] = field(default=(), repr=False)

    @property
    def step_time(self) -> float:
        """The simulated step time, s."""
        return self.run.step_time

    def arguments(self) -> dict[str, Any]:
        """Return what `simulate` takes beside the strategy."""
        shares = {} if self.shares is None else {"shares": self.shares}
        return {"hardware": self.cluster, "world_size": self.world_size, **self.step, **self.options, **shares}

    def simulate(self, **more: Any) -> Run:
        """Simulate the plan's step, with further parameters of `simulate`."""
        return simulate(self.strategy, **{**self.arguments(), **more})

    def summary(self) -> dict[str, Any]:
        """Return the plan and its figures, ready for JSON."""
        return {
            "strategy": self.strategy,
            "options": {
                name: list(value) if isinstance(value, tuple) else value for name, value in self.options.items()
            },
            "precision": self.precision,
            "world_size": self.world_size,
            "groups": [group.label for group in self.cluster.devices],
            "left_out": list(self.left_out),
            "samples": self.shares and self.shares.samples and list(self.shares.samples),
            "layers": self.shares and self.shares.layers and list(self.shares.layers),
            "microbatch_sizes": self.shares and self.shares.microbatch_sizes and list(self.shares.microbatch_sizes),
            "power_caps_watts": {group.label: group.power_cap_watts for group in self.cluster.devices},
            "step_time_s": self.step_time,
            "mfu": self.run.mfu,
            "priced_by": self.run.priced_by,
            "sureness": self.run.sureness,
            "num_considered": len(self.verdicts),
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON, for `saved_plan` with the same cluster and step."""
        write_text(Path(path), [json.dumps({"format": _FORMAT, **self.summary()}, indent=2), "\n"])

    def write_html(self, path: str | PathLike[str], include_plotlyjs: bool | str = True) -> Path:
        """Write the page of the simulated step; see `Run.write_html`."""
        return self.simulate(fold=False).write_html(path, include_plotlyjs)

    def figure(self) -> Any:
        """Return the picture of the simulated step; see `Run.figure`."""
        return self.simulate(fold=False).figure()

    def explain(self) -> str:
        """Say why this plan: what else was simulated, and what it would have taken."""
        sure = [f"  how sure: {self.run.sureness}", *(f"  {note}" for note in self.run.notes)]
        lines = [str(self), *(sure if self.run.trained_model else ()), ""]
        if self.precisions:
            lines += [f"a sample's time in each precision, beside {self.precision}:"]
            lines += [*(f"  {each}" for each in self.precisions), ""]
        lines += ["considered:"]
        lines += [f"  {_said(verdict, self.step_time)}" for verdict in self.verdicts[:_SHOWN]]
        rest = len(self.verdicts) - _SHOWN
        return "\n".join([*lines, *([f"  and {rest} more"] if rest > 0 else [])])

    def __str__(self) -> str:
        """Say it in words."""
        own = ", ".join(f"{name}={value}" for name, value in self.options.items())
        memory = f"peak {(self.run.needed_memory_bytes or self.run.peak_memory_bytes) / GIB:.4g} GiB"
        how = f"{in_precision(self.precision)}{f' ({own})' if own else ''}"
        head = f"{self.strategy}{how} on {self.world_size} ranks: step {duration(self.step_time)}"
        mfu = "" if self.run.mfu is None else f", MFU {self.run.mfu:.1%}"
        lines = [f"{head}{mfu}, {memory}"]
        for each in self.run.by_device_kind:
            share = "" if each.work_fraction is None else f"{each.work_fraction:.1%} of the work, "
            ranks = f"{len(each.kind.ranks)} rank{'s' if len(each.kind.ranks) > 1 else ''}"
            lines.append(f"  {each.kind.name} ({ranks}): {share}idle {each.idle_fraction:.1%}")
        if self.shares is not None:
            lines.append(f"  {_in_runs(self.shares)}")
        if self.left_out:
            lines.append(f"  left out: {', '.join(map(self._why_left_out, self.left_out))}")
        caps = {group.label: group.power_cap_watts for group in self.cluster.devices if group.power_cap_watts}
        if caps:
            lines.append(f"  capped: {', '.join(f'{name} {watts:.4g} W' for name, watts in caps.items())}")
        return "\n".join(lines)

    def _why_left_out(self, group: str) -> str:
        """Return the name of a group, with the datatype that it lacks."""
        return f"{group} (lacks {self.lacking[group]})" if group in self.lacking else group

    def __repr__(self) -> str:
        return f"<Plan {self.strategy} on {self.world_size} ranks: step {duration(self.step_time)}>"

    def _repr_html_(self) -> str:
        """Show the plan in a notebook."""
        return f"<pre>{html.escape(self.explain())}</pre>"


def saved_plan(path: str | PathLike[str], cluster: Cluster, precisions: Any = None, **step: Any) -> Run:
    """Simulate a plan that `Plan.save` wrote.

    Args:
        path: the file.
        cluster: the cluster that the plan was made for.
        precisions: those that the plan could choose from; needed where one has no name of its own.
        step: what is trained, as for `plan`.

    Raises:
        UsageError: the file cannot be read, or is none of a plan.
    """
    found = _read(path)
    used = cluster.part(found["groups"])
    for name, watts in found["power_caps_watts"].items():
        used = used.changed(name, power_cap_watts=watts)
    name = found.get("precision")
    choices = steps_by_precision(step, precisions or (None if name is None else [name]), cluster)
    trained = next((each for precision, each in choices if (precision and precision.name) == name), step)
    given = {name: found[name] for name in ("samples", "layers", "microbatch_sizes") if found[name]}
    shares = Shares(**given) if given else None
    return simulate(
        found["strategy"], hardware=used, world_size=found["world_size"], shares=shares, **trained, **found["options"]
    )


def _read(path: str | PathLike[str]) -> Mapping[str, Any]:
    """Return what a file says of a plan."""
    try:
        found = read_json(Path(path), what="plan")
    except (OSError, ValueError) as error:
        raise UsageError(f"the plan {path} cannot be read: {error}; write it with plan.save()") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise UsageError(f'{path} is no plan: its "format" must be "{_FORMAT}"; write it with plan.save()')
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise UsageError(f"{path} is no whole plan: it lacks {', '.join(missing)}; write it with plan.save()")
    return found


def _said(verdict: Verdict, best_s: float) -> str:
    """Say the outcome of a candidate."""
    if verdict.step_time is None:
        return f"{verdict.candidate}: {verdict.reason}"
    took = duration(verdict.step_time) + _than_the_best(verdict.step_time / best_s)
    return f"{verdict.candidate}: {took}{'' if verdict.reason == SIMULATED else f' ({verdict.reason})'}"


def _than_the_best(ratio: float) -> str:
    """Say how much longer a step takes than the best one.

    >>> _than_the_best(1.021), _than_the_best(54.2)
    (', 2.1% slower', ', 54.2 times as long')
    """
    if ratio >= 2:
        return f", {ratio:.1f} times as long"
    return f", {ratio - 1:.1%} slower" if ratio > 1 else ""


def _in_runs(shares: Shares) -> str:
    """Say shares, equal neighbours as one.

    >>> _in_runs(Shares(samples=[46, 46, 18]))
    'samples 2 x 46, 18'
    """
    parts = []
    for name in ("samples", "layers"):
        counts = getattr(shares, name)
        if counts:
            parts.append(f"{name} {', '.join(_runs_of(counts))}")
    return "; ".join(parts)


def _runs_of(counts: Sequence[int]) -> list[str]:
    """Return counts, equal neighbours as "2 x 46"."""
    found: list[list[int]] = []
    for count in counts:
        if found and found[-1][1] == count:
            found[-1][0] += 1
        else:
            found.append([1, count])
    return [f"{number} x {count}" if number > 1 else str(count) for number, count in found]
