"""`plan`: the best layout of a step on a cluster of unlike devices, among those that are made and simulated here.

Candidates are made for every choice of groups (a device may be left out), as replicas with samples by finishing time
and as pipelines with layers by finishing time. They are simulated in the order of their lower bounds, until no bound is
below the best step that fits into memory, or sixty in a row were no better. The shares of the best few are then moved
as long as a simulation says that it helps. So what wins has been simulated, communication and memory included.

Left out: replicas that are pipelines of different cuts, replicas of which some compute again and others do not, parts
of a group, and other orders of the groups than that of the cluster and its reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from minitrain.analysis.labels import duration
from minitrain.errors import MinitrainError, UsageError, require_count
from minitrain.hardware import load_config
from minitrain.hardware.clusters.chosen_cluster import cluster_or_other
from minitrain.hardware.clusters.cluster import Cluster
from minitrain.hardware.clusters.power import require_positive
from minitrain.planning.candidates import Candidate, subsets
from minitrain.planning.device_times import DeviceTimes
from minitrain.planning.layouts import layouts
from minitrain.planning.precisions import steps_by_precision
from minitrain.planning.reasons import compared, lacking, nothing_fits
from minitrain.planning.refinement import refined
from minitrain.planning.result import REFINED, SIMULATED, Plan, Verdict
from minitrain.run.chosen_strategy import choose_strategy
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.workloads.models import find_model
from minitrain.workloads.precision import Precision
from minitrain.workloads.workload import Recompute, as_recompute

RECOMPUTATIONS: tuple[Recompute, ...] = ("selective", "full")
"""What backward may compute again where memory is short, the least first."""
_SLACK = 0.97  # bounds are interpolated between simulated sizes
_REFINED = 3  # of the best candidates
_PATIENCE = 60  # simulated steps in a row that are no better, where links hide what bounds say


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
    require_count("global_batch_size", global_batch_size)
    if power_budget_watts is not None:
        require_positive("power_budget_watts", power_budget_watts)
    if isinstance(strategies, str) or (strategies is not None and not strategies):
        raise UsageError(f"strategies must be a list of at least one strategy, got {strategies!r}")
    for name in strategies or ():
        choose_strategy(name)  # raises where there is none
    if isinstance(workload, str):
        find_model(workload)  # raises now, since an unknown name would break every layout
    trained = {"workload": workload, "seq_len": seq_len, "num_layers": num_layers}
    step = {name: value for name, value in trained.items() if value is not None} | step
    times_by_precision = _times_by_precision(found, step, precisions)
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
