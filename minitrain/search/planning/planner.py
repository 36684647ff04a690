"""`plan`: the best layout of a step on a cluster of unlike devices, among those that are made and simulated here.

Candidates are made for every choice of groups (a device may be left out), as replicas with samples by finishing time
and as pipelines with layers by finishing time. They are simulated in the order of their lower bounds, until no bound is
below the best step that fits into memory, or sixty in a row were no better. The shares of the best few are then moved
as long as a simulation says that it helps. So what wins has been simulated, communication and memory included.

Left out: replicas that are pipelines of different cuts, replicas of which some compute again and others do not, parts
of a group, and other orders of the groups than that of the cluster and its reverse.

Why a plan is as it is: datatypes that devices lack, what precisions cost on each, and why no layout runs.

Moving shares as long as a simulation says that it helps, since finishing times are estimates that ignore links.

One move takes as many samples from each replica of a group and gives them to those of another, or moves layers from one
stage to another. All such moves of a size are simulated, and the best is taken if it helps. Moves begin large and get
smaller; the search ends when the smallest does not help, or after forty moves.

`Plan`: how a step runs on a cluster, what it takes there, and what else was considered.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

from minitrain.engine.semantics import Shares
from minitrain.errors import MinitrainError, UsageError, require_count, typed, typed_methods
from minitrain.files import StrPath, write_text
from minitrain.machine import load_config
from minitrain.machine.cluster import Cluster
from minitrain.machine.device_groups import require_positive
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.parameters import MOST, cluster_or_other
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.run.strategy_loading import choose_strategy
from minitrain.search.planning.device_times import DeviceTimes, steps_by_precision
from minitrain.search.planning.layouts import Candidate, in_precision, layouts, subsets
from minitrain.workloads.architecture import Precision
from minitrain.workloads.transformer import find_model
from minitrain.workloads.workload import Recompute, as_recompute

SIMULATED, REFINED = "simulated", "refined"
"""The reasons of candidates that fit into memory."""
_VERDICTS_SHOWN = 8


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


@typed_methods
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

    def save(self, path: StrPath) -> None:
        """Write the plan as JSON: its summary."""
        write_text(Path(path), [json.dumps({"format": "minitrain-plan", **self.summary()}, indent=2), "\n"])

    def write_html(self, path: StrPath, include_plotlyjs: bool | str = True) -> Path:
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
        lines += [f"  {_row_said(verdict, self.step_time)}" for verdict in self.verdicts[:_VERDICTS_SHOWN]]
        rest = len(self.verdicts) - _VERDICTS_SHOWN
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
            lacks = {group: f" (lacks {datatype})" for group, datatype in self.lacking.items()}
            lines.append(f"  left out: {', '.join(group + lacks.get(group, '') for group in self.left_out)}")
        caps = {group.label: group.power_cap_watts for group in self.cluster.devices if group.power_cap_watts}
        if caps:
            lines.append(f"  capped: {', '.join(f'{name} {watts:.4g} W' for name, watts in caps.items())}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Plan {self.strategy} on {self.world_size} ranks: step {duration(self.step_time)}>"

    def _repr_html_(self) -> str:
        """Show the plan in a notebook."""
        return f"<pre>{html.escape(self.explain())}</pre>"


def _row_said(verdict: Verdict, best_s: float) -> str:
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
    runs = ((count, len(list(each))) for count, each in groupby(counts))
    return [f"{number} x {count}" if number > 1 else str(count) for count, number in runs]


_SHOWN = 3  # kinds of reason


def lacking(times: DeviceTimes) -> Mapping[str, str]:
    """Return the datatype that a step needs and devices do not have, by group."""
    found = {group.label: times.lacks(group.label) for group in times.cluster.devices}
    return {label: datatype for label, datatype in found.items() if datatype is not None}


def compared(times_by_precision: Sequence[DeviceTimes], chosen: DeviceTimes) -> Iterator[str]:
    """Yield how each precision's times compare with the plan's, by device; nothing where there is no choice."""
    for times in times_by_precision:
        if times.precision is not None:
            said = [_said(times, chosen, group.label) for group in times.cluster.devices]
            yield f"{times.precision.name}: {', '.join(said)}"


def _said(times: DeviceTimes, chosen: DeviceTimes, group: str) -> str:
    """Say how long a group's device takes for a sample in a precision, as a multiple of that in the plan's."""
    lacks = times.lacks(group)
    if lacks is not None:
        return f"{group} lacks {lacks}"
    mine, other = times.layers(group, 1), chosen.layers(group, 1)
    if mine is None or other is None:
        return f"{group} has it" if mine else f"{group} cannot run it"
    return f"{group} x{sum(mine) / sum(other):.3g}"


def nothing_fits(
    times_by_precision: Sequence[DeviceTimes], verdicts: Sequence[Verdict], batch: int, budget_watts: float | None
) -> UsageError:
    """Return the error for a step that no layout runs, or fits.

    Args:
        times_by_precision: how long devices take, for each precision.
        verdicts: of all layouts, the likeliest first.
        batch: samples of the step.
        budget_watts: what all devices that take part may draw together.
    """
    name = times_by_precision[0].cluster.name
    missing = {group: datatype for times in times_by_precision for group, datatype in lacking(times).items()}
    if not verdicts and missing:
        said = ", ".join(f"{group} lacks {datatype}" for group, datatype in missing.items())
        return UsageError(
            f"no layout of {name} has a precision that all of its devices compute in: {said}; allow another precision, "
            "or leave these devices out"
        )
    if not verdicts and budget_watts is not None:
        return UsageError(
            f"no layout of {name} keeps to {budget_watts:g} W with a batch of {batch} samples; give more than "
            "its devices draw when they are idle, or a larger batch"
        )
    if not verdicts:
        return UsageError(
            f"no layout of {name} divides a batch of {batch} samples; use at least a sample for each device "
            "that takes part, or other strategies",
            global_batch_size=batch,
        )
    reasons: dict[str, str] = {}
    for each in verdicts:
        reasons.setdefault(each.reason, f"{each.candidate}: {each.reason}")
    said = "; ".join([*reasons.values()][:_SHOWN])
    return UsageError(
        f"none of {len(verdicts)} layouts of {name} runs within memory; the first: {said}; "
        "use a smaller model, a smaller batch, or more devices",
        global_batch_size=batch,
    )


Judge = Callable[[Candidate], Verdict]
_MOST_MOVES = 40


def refined(candidate: Candidate, step_time: float, judge: Judge) -> Verdict | None:
    """Return a better candidate with other shares, or None if no move helps.

    Args:
        candidate: the layout to begin with.
        step_time: its simulated step time, s.
        judge: simulates a candidate.
    """
    if candidate.shares is None:
        return None
    best: Verdict | None = None
    fastest, current, left = step_time, candidate, _MOST_MOVES
    size = max(_largest(candidate) // 8, 1)
    while size and left > 0:
        found = None
        for moved in _moves(current, size):
            verdict = judge(moved)
            left -= 1
            if verdict.fitting_s < fastest:
                found, fastest = verdict, verdict.fitting_s
        if found is None:
            size //= 2
        else:
            best, current = found, found.candidate
    return best


def _largest(candidate: Candidate) -> int:
    """Return the largest share."""
    shares = candidate.shares
    assert shares is not None  # nothing is moved without
    return max(shares.layers or shares.samples or [1])


def _moves(candidate: Candidate, size: int) -> Iterator[Candidate]:
    """Yield the candidate with some shares moved from one group of equal owners to another."""
    shares = candidate.shares
    assert shares is not None  # as above
    if shares.layers:
        for counts in _moved(list(shares.layers), [[place] for place in range(len(shares.layers))], size):
            yield replace(candidate, shares=Shares(layers=counts, samples=shares.samples))
    elif shares.samples:
        for counts in _moved(list(shares.samples), _owners(candidate), size):
            yield _with_samples(candidate, counts)


def _owners(candidate: Candidate) -> list[list[int]]:
    """Return the replicas of each group of devices."""
    assert candidate.shares is not None  # as above
    assert candidate.shares.samples is not None
    width = candidate.world_size // len(candidate.shares.samples)
    groups, start = [], 0
    for group in candidate.cluster.devices:
        count = group.count // width
        groups.append(list(range(start, start + count)))
        start += count
    return [group for group in groups if group]


def _moved(counts: list[int], owners: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield counts with so many of each owner of one group given to the owners of another, evenly."""
    for giver in owners:
        for taker in owners:
            if giver is taker or min(counts[place] for place in giver) <= size:
                continue
            changed = list(counts)
            for place in giver:
                changed[place] -= size
            whole, rest = divmod(size * len(giver), len(taker))
            for number, place in enumerate(sorted(taker, key=counts.__getitem__)):  # those with least get the rest
                changed[place] += whole + (number < rest)
            yield changed


def _with_samples(candidate: Candidate, counts: Sequence[int]) -> Candidate:
    """Return the candidate with other samples, in as many microbatches as before, or as large ones."""
    old = candidate.shares
    assert old is not None  # as above
    assert old.samples is not None
    sizes = None
    if old.microbatch_sizes is not None:
        given = list(zip(old.samples, old.microbatch_sizes, strict=True))
        number, *others = sorted({-(-count // size) for count, size in given}, reverse=True)
        if others:  # each replica has microbatches of its own size
            sizes = [min(size, count) for count, (_, size) in zip(counts, given, strict=True)]
        elif min(counts) < number:
            return candidate
        else:
            sizes = [-(-count // number) for count in counts]
    options = dict(candidate.options)
    if "microbatch_size" in options:
        options["microbatch_size"] = max(sizes or counts)
    return replace(candidate, shares=Shares(samples=counts, microbatch_sizes=sizes), options=options)


RECOMPUTATIONS: tuple[Recompute, ...] = ("selective", "full")
"""What backward may compute again where memory is short, the least first."""
_SLACK = 0.97  # bounds are interpolated between simulated sizes
_REFINED = 3  # of the best candidates
_PATIENCE = 60  # simulated steps in a row that are no better, where links hide what bounds say


@typed
def plan(
    workload: Any,
    cluster: Any,
    *,
    global_batch_size: int,
    seq_len: int | None = None,
    num_layers: int | None = None,
    strategies: Sequence[str] | None = None,
    power_budget_watts: float | None = None,
    leave_out: bool = True,
    precisions: Sequence[str | Precision] | None = None,
    **step: Any,
) -> Plan:
    """Find how a step should run on a cluster of unlike devices.

    Args:
        workload: what is trained, as for `simulate`; None for the specified layers.
        cluster: a `mt.Cluster`, a file of one, or a shipped one's name.
        global_batch_size: samples of the step.
        seq_len: tokens of a sample of a transformer; the model's own by default.
        num_layers: layers of the specified workload.
        strategies: those to consider; by default, those that can divide a step unevenly and suit the workload.
        power_budget_watts: what all devices that take part may draw together.
        leave_out: whether groups of devices may take no part, where that is faster.
        precisions: what a transformer may be computed in, such as `["bf16", "fp16"]`. Devices take part in what they
            have natively, and of equally fast ones the first is taken; if None, the model's own, where it has a price.
        step: further parameters of `simulate`, such as `fidelity`. Without `recompute`, the plan chooses what backward
            computes again where memory is short.

    Returns:
        The plan that was simulated to be the fastest within the memory of its devices.

    Raises:
        UsageError: a parameter is outside its rule, or no candidate runs or fits; the message says what was tried.
        StrategyError: there is no strategy of a name.
        HardwareConfigError: the cluster cannot be read, or is invalid.
    """
    found = cluster_or_other(cluster)
    if not isinstance(found, Cluster):
        load_config(found)  # raises the error for an unknown name
        raise UsageError(
            "plan is for a cluster of devices, such as mt.Cluster({'h100_80g_nvl8': 8, 'a100_80g': 8}, between_groups="
            f"mt.Link(12.5e9)) or 'two_generations', got {cluster!r:.80}; for equal devices there is mt.tune"
        )
    require_count("global_batch_size", global_batch_size, most=MOST["global_batch_size"])
    if power_budget_watts is not None:
        require_positive("power_budget_watts", power_budget_watts)
    if strategies is not None and not strategies:
        raise UsageError(f"strategies must be a list of at least one strategy, got {strategies!r}")
    for name in strategies or ():
        choose_strategy(name)  # raises where there is none
    if isinstance(workload, str):
        find_model(workload)  # raises now, since an unknown name would break every layout
    trained = {"workload": workload, "seq_len": seq_len, "num_layers": num_layers}
    step = {name: value for name, value in trained.items() if value is not None} | step
    times_by_precision = _times_by_precision(found, step, precisions)
    if step.get("documents") is not None or getattr(workload, "documents", None) is not None:
        raise UsageError("plan shares samples that cost the same, and packed documents differ; leave documents out")
    parts = list(subsets(found)) if leave_out else [found]
    candidates = layouts(parts, times_by_precision, strategies, global_batch_size, power_budget_watts)
    verdicts = list(_judged(candidates))
    if _best(verdicts) is None:
        raise nothing_fits(times_by_precision, sorted(verdicts, key=_rank), global_batch_size, power_budget_watts)
    verdicts = _with_refined(verdicts)
    winner = _best(verdicts)
    assert winner is not None  # there was one before
    return _plan_of(winner, times_by_precision, verdicts)


def _times_by_precision(cluster: Cluster, step: Mapping[str, Any], precisions: Any) -> list[DeviceTimes]:
    """Return how long the devices of a cluster take, for each precision that a step may be computed in."""
    step = dict(step)
    given = step.pop("recompute", None)
    recompute = as_recompute("none" if given is None else given)
    others = RECOMPUTATIONS if given is None else ()
    return [
        DeviceTimes(cluster, each, precision, recompute, others)
        for precision, each in steps_by_precision(step, precisions, cluster)
    ]


def _judged(candidates: Sequence[Candidate]) -> Iterator[Verdict]:
    """Yield the verdict of each candidate: they are simulated until no bound is below the best that fits."""
    best_s, num_without_gain = inf, 0
    for candidate in candidates:
        if candidate.bound_s * _SLACK >= best_s or num_without_gain >= _PATIENCE:
            why = "bound above the best" if candidate.bound_s * _SLACK >= best_s else "not simulated"
            yield Verdict(candidate, None, f"{why} (at least {duration(candidate.bound_s)})")
            continue
        verdict = judged(candidate)
        if verdict.fitting_s < best_s:
            best_s, num_without_gain = verdict.fitting_s, 0
        else:
            num_without_gain += best_s < inf
        yield verdict


def judged(candidate: Candidate) -> Verdict:
    """Return the verdict of a candidate's simulation."""
    try:
        run = simulated(candidate)
    except MinitrainError as error:
        return Verdict(candidate, None, str(error))
    if run.oom is not None:
        return Verdict(candidate, run.step_time, f"out of memory on rank {run.oom.rank}")
    return Verdict(candidate, run.step_time, SIMULATED)


def simulated(candidate: Candidate) -> Run:
    """Simulate a candidate."""
    shares = {} if candidate.shares is None else {"shares": candidate.shares}
    machine = {"hardware": candidate.cluster, "world_size": candidate.world_size, "fold": True}
    return simulate(candidate.strategy, **{**machine, **candidate.step, **candidate.options, **shares})


def _best(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the fastest that fits."""
    found = min(verdicts, key=lambda each: each.fitting_s, default=None)
    return None if found is None or found.fitting_s == inf else found


def _with_refined(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return verdicts with the shares of the best few moved as long as that helps, the best first."""
    found = sorted(verdicts, key=_rank)
    first: dict[tuple[Any, ...], Verdict] = {}  # of each strategy on each choice of groups
    for verdict in found:
        first.setdefault((verdict.candidate.strategy, verdict.candidate.groups), verdict)
    for verdict in [*first.values()][:_REFINED]:
        if verdict.fitting_s < inf:
            better = refined(verdict.candidate, verdict.fitting_s, judged)
            if better is not None:
                found.append(Verdict(better.candidate, better.step_time, REFINED))
    return sorted(found, key=_rank)


def _rank(verdict: Verdict) -> tuple[float, float]:
    """Return the order of verdicts: those that fit by step time, then the others by bound."""
    return verdict.fitting_s, verdict.candidate.bound_s


def _plan_of(winner: Verdict, times_by_precision: Sequence[DeviceTimes], verdicts: Sequence[Verdict]) -> Plan:
    """Return the winner as a plan."""
    chosen = winner.candidate
    times = next(each for each in times_by_precision if (each.precision and each.precision.name) == chosen.precision)
    return Plan(
        chosen.strategy,
        chosen.options,
        chosen.shares,
        chosen.cluster,
        chosen.world_size,
        chosen.step,
        tuple(group.label for group in times.cluster.devices if group.label not in chosen.groups),
        simulated(chosen),
        verdicts,
        chosen.precision,
        lacking(times),
        tuple(compared(times_by_precision, times)),
    )
