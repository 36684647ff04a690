"""`plan`: the best layout of a step on a cluster of unlike devices, among those that are made and simulated here.

Candidates are made for every choice of groups (a device may be left out), as replicas with samples by finishing time
and as pipelines with layers by finishing time. They are simulated in the order of their lower bounds, until no bound is
below the best step that fits into memory, or sixty in a row were no better. The shares of the best few are then moved
as long as a simulation says that it helps. So what wins has been simulated, communication and memory included.

Left out: replicas that are pipelines of different cuts, parts of a group, and other orders of the groups than that of
the cluster and its reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from minitrain.analysis.labels import duration
from minitrain.errors import MinitrainError, UsageError, require_count
from minitrain.hardware import load_config
from minitrain.hardware.clusters.chosen_cluster import cluster_or_other
from minitrain.hardware.clusters.cluster import Cluster
from minitrain.hardware.clusters.power import require_positive
from minitrain.planning.candidates import DEGREES, Candidate, divisors, pipelines, probably_fits, replicas, subsets
from minitrain.planning.device_times import DeviceTimes
from minitrain.planning.power_budget import within_budget
from minitrain.planning.refinement import refined
from minitrain.planning.result import Plan, Verdict
from minitrain.run.chosen_strategy import choose_strategy
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.workloads.models import find_model

_MICROBATCHES = (1, 2, 4, 8)
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
        step: further parameters of `simulate`, such as `fidelity`.

    Returns:
        The plan that was simulated to be the fastest within the memory of its devices.

    Raises:
        UsageError: a parameter is outside its rule, or no candidate runs or fits; the message says what was tried.
        StrategyError: there is no strategy of a name.
        HardwareConfigError: the cluster cannot be read or believed.
    """
    found = cluster_or_other(cluster)
    if not isinstance(found, Cluster):
        load_config(found)  # a name that nothing has is told before
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
        choose_strategy(name)  # which says so where there is none
    if isinstance(workload, str):
        find_model(workload)  # a name that nothing has breaks every layout
    trained = {"workload": workload, "seq_len": seq_len, "num_layers": num_layers}
    step = {name: value for name, value in trained.items() if value is not None} | step
    step["global_batch_size"] = global_batch_size
    parts = list(subsets(found)) if leave_out else [found]
    verdicts = list(_judged(_candidates(parts, step, strategies, power_budget_watts), step))
    if _best(verdicts) is None:
        raise _nothing_fits(found, verdicts, global_batch_size, power_budget_watts)
    verdicts = _with_refined(verdicts, step)
    winner = _best(verdicts)
    assert winner is not None  # there was one before
    return _plan_of(winner, found, step, verdicts)


Step = Mapping[str, Any]


def _candidates(
    parts: Sequence[Cluster], step: Step, strategies: Sequence[str] | None, budget_watts: float | None
) -> list[Candidate]:
    """Return all candidates on a cluster, which is the first, and its parts; those of the lowest bound first."""
    batch = step["global_batch_size"]
    priced = {name: value for name, value in step.items() if name != "global_batch_size"}
    found: list[Candidate] = []
    whole = DeviceTimes(parts[0], priced)  # of every part whose devices have no other caps
    for part in parts:
        used = part if budget_watts is None else within_budget(part, budget_watts)
        if used is not None:
            times = whole if used is part else DeviceTimes(used, priced)
            found += _layouts(used, times, strategies, batch)
    return sorted(found, key=lambda each: each.bound_s)


def _layouts(cluster: Cluster, times: DeviceTimes, strategies: Sequence[str] | None, batch: int) -> Iterator[Candidate]:
    """Yield the layouts on all devices of a cluster, in its order and in reverse."""
    is_transformer = times.step.get("workload") is not None
    wanted = strategies or (
        ("zero1", "fsdp", "megatron") if is_transformer else ("ddp_overlap", "zero1", "zero3_prefetch", "pp_dp")
    )
    for strategy in wanted:
        degrees = _degrees(cluster) if strategy == "megatron" else [1]
        if strategy != "pp_dp":
            for tp in degrees:
                yield from _replicas(cluster, times, strategy, batch, tp)
        if strategy in ("pp_dp", "megatron"):
            yield from _pipelines(cluster, times, strategy, batch, degrees)


def _replicas(cluster: Cluster, times: DeviceTimes, strategy: str, batch: int, tp: int) -> Iterator[Candidate]:
    """Yield replicas with few microbatches; with more where few are too large for memory, or for what was measured."""
    found = [replicas(cluster, times, strategy, batch, number, tp) for number in _MICROBATCHES]
    number = _MICROBATCHES[-1]
    while not any(each and probably_fits(each, times) for each in found) and 2 * number <= batch:
        number *= 2
        found.append(replicas(cluster, times, strategy, batch, number, tp))
    yield from filter(None, found)


def _pipelines(
    cluster: Cluster, times: DeviceTimes, strategy: str, batch: int, degrees: Sequence[int]
) -> Iterator[Candidate]:
    """Yield pipelines over all devices of a cluster."""
    orders = [cluster] if len(cluster.devices) == 1 else [cluster, _reversed(cluster)]
    for order in orders:
        for tp in degrees:
            for num_replicas in divisors(order.num_devices // tp):
                for size in (each for each in _MICROBATCHES if batch % (num_replicas * each) == 0):
                    yield from _one(pipelines(order, times, strategy, batch, size, num_replicas, tp))


def _reversed(cluster: Cluster) -> Cluster:
    """Return the cluster with its groups in the other order."""
    links = {tuple(pair): link for pair, link in cluster.links.items()}
    return Cluster(cluster.devices[::-1], links=links, name=cluster.name)


def _degrees(cluster: Cluster) -> list[int]:
    """Return the tensor-parallel degrees that fit into every node."""
    smallest = min(group.devices_per_node for group in cluster.devices)
    return [tp for tp in DEGREES if tp <= smallest and all(group.count % tp == 0 for group in cluster.devices)]


def _one(candidate: Candidate | None) -> Iterable[Candidate]:
    return () if candidate is None else (candidate,)


def _judged(candidates: Sequence[Candidate], step: Step) -> Iterator[Verdict]:
    """Yield what becomes of candidates: they are simulated until no bound is below the best that fits."""
    best_s, num_in_vain = float("inf"), 0
    for candidate in candidates:
        if candidate.bound_s * _SLACK >= best_s or num_in_vain >= _PATIENCE:
            why = "bound above the best" if candidate.bound_s * _SLACK >= best_s else "not simulated"
            yield Verdict(candidate, None, f"{why} (at least {duration(candidate.bound_s)})")
            continue
        verdict = judged(candidate, step)
        if verdict.reason == "simulated" and verdict.step_time is not None and verdict.step_time < best_s:
            best_s, num_in_vain = verdict.step_time, 0
        else:
            num_in_vain += best_s < float("inf")
        yield verdict


def judged(candidate: Candidate, step: Step) -> Verdict:
    """Return what a simulation says of a candidate."""
    try:
        run = simulated(candidate, step)
    except MinitrainError as error:
        return Verdict(candidate, None, str(error))
    if run.oom is not None:
        return Verdict(candidate, run.step_time, f"out of memory on rank {run.oom.rank}")
    return Verdict(candidate, run.step_time, "simulated")


def simulated(candidate: Candidate, step: Step, **more: Any) -> Run:
    """Simulate a candidate."""
    shares = {} if candidate.shares is None else {"shares": candidate.shares}
    machine = {"hardware": candidate.cluster, "world_size": candidate.world_size, "fold": True}
    return simulate(candidate.strategy, **{**machine, **step, **candidate.options, **shares, **more})


def _best(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the fastest that fits."""
    fitting = [each for each in verdicts if each.step_time is not None and each.reason in ("simulated", "refined")]
    return min(fitting, key=lambda each: each.step_time or 0.0, default=None)


def _with_refined(verdicts: Sequence[Verdict], step: Step) -> list[Verdict]:
    """Return verdicts with the shares of the best few moved as long as that helps, the best first."""
    found = sorted(verdicts, key=_rank)
    first: dict[tuple[Any, ...], Verdict] = {}  # of each strategy on each choice of groups
    for verdict in found:
        first.setdefault((verdict.candidate.strategy, verdict.candidate.groups), verdict)
    for verdict in [*first.values()][:_REFINED]:
        if verdict.step_time is not None and verdict.reason == "simulated":
            better = refined(verdict.candidate, verdict.step_time, lambda candidate: judged(candidate, step))
            if better is not None:
                found.append(Verdict(better.candidate, better.step_time, "refined"))
    return sorted(found, key=_rank)


def _rank(verdict: Verdict) -> tuple[bool, float, float]:
    """Return the order of verdicts: those that fit by step time, then the others by bound."""
    fits = verdict.reason in ("simulated", "refined")
    return (not fits, (verdict.step_time or 0.0) if fits else 0.0, verdict.candidate.bound_s)


def _plan_of(winner: Verdict, cluster: Cluster, step: Step, verdicts: Sequence[Verdict]) -> Plan:
    """Return the winner as a plan."""
    chosen = winner.candidate
    left_out = tuple(group.label for group in cluster.devices if group.label not in chosen.groups)
    return Plan(
        chosen.strategy,
        chosen.options,
        chosen.shares,
        chosen.cluster,
        chosen.world_size,
        step,
        left_out,
        simulated(chosen, step),
        verdicts,
    )


def _nothing_fits(cluster: Cluster, verdicts: Sequence[Verdict], batch: int, budget_watts: float | None) -> UsageError:
    """Return the error for a step that no candidate runs, or fits."""
    if not verdicts and budget_watts is not None:
        return UsageError(
            f"no layout of {cluster.name} keeps to {budget_watts:g} W with a batch of {batch} samples; give more than "
            "its devices draw when they are idle, or a larger batch",
            power_budget_watts=budget_watts,
        )
    if not verdicts:
        return UsageError(
            f"no layout of {cluster.name} divides a batch of {batch} samples; use at least a sample for each device "
            "that takes part, or other strategies",
            global_batch_size=batch,
        )
    reasons: dict[str, str] = {}
    for each in sorted(verdicts, key=_rank):
        reasons.setdefault(each.reason, f"{each.candidate}: {each.reason}")
    said = "; ".join([*reasons.values()][:3])
    return UsageError(
        f"none of {len(verdicts)} layouts of {cluster.name} runs within memory; the first: {said}; "
        "use a smaller model, recompute='full', a smaller batch, or more devices",
        global_batch_size=batch,
    )
