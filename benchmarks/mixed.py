"""`python -m benchmarks.mixed`: what plans for unlike devices are worth, measured against two simple ways to divide.

- Equal shares over the accelerators, the host's processor left out: the fastest of several strategies.
- Shares by peak: samples in proportion to the FLOP/s of the data sheets, likewise.
- The sum of what the devices do alone, each with the whole batch and without communication.

Everything is simulated with communication and memory; what does not fit does not count. Idle is the share of the step
in which an accelerator neither computes nor communicates, the mean over all accelerators of the cluster; one that a
plan leaves out is idle all the time.

The bound of a figure is what devices could do that never wait: with rates r of n devices, equal shares take
sum(r) / (n min(r)) times as long as the best division, and no plan saves more than that.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import minitrain as mt
from minitrain.evidence.errors_by_table import tables_folder
from minitrain.machine.device import Unit
from minitrain.workloads.architecture import PRECISIONS
from minitrain.workloads.transformer import Transformer

LIKE, UNLIKE = mt.Link(2.86e9, 5e-5), mt.Link(0.115e9, 5e-5)  # of a node of the measured cluster


@dataclass(frozen=True)
class Mix:
    """A cluster and a step on it.

    Args:
        cluster: the devices.
        step: what is trained.
        simple: strategies and options that are tried with simple shares.
        tp: devices of a replica.
        host: the group that is no accelerator.
        peak: the datatype and unit whose rate of the data sheet is a device's peak.
        keeps_all: whether a plan that leaves no group out is made too.
    """

    cluster: mt.Cluster
    step: Mapping[str, Any]
    simple: Sequence[tuple[str, Mapping[str, Any]]]
    tp: int = 1
    host: str | None = None
    peak: tuple[str, Unit] = ("float16", "matrix")
    keeps_all: bool = False

    @property
    def accelerators(self) -> mt.Cluster:
        """The cluster without its host's processor."""
        names = [group.label for group in self.cluster.devices if group.label != self.host]
        return self.cluster if self.host is None else self.cluster.part(names)


REPLICAS: Sequence[tuple[str, Mapping[str, Any]]] = [(name, {}) for name in ("ddp_overlap", "zero1", "zero3_prefetch")]


def five_kinds() -> Mix:
    """Return 4 H100, 4 A100, 8 L40S, a TPU v5p and a host's processor."""
    step = {"num_layers": 32, "global_batch_size": 1024}
    return Mix(mt.Cluster.load("five_kinds"), step, REPLICAS, host="cpu", keeps_all=True)


def two_kinds() -> Mix:
    """Return two nodes of two generations on a fast link."""
    link = mt.Link(200e9, 1e-5)
    cluster = mt.Cluster({"h100_80g_nvl8": 8, "a100_80g": 8}, between_groups=link, name="two_kinds")
    return Mix(cluster, {"num_layers": 32, "global_batch_size": 1024}, REPLICAS)


def measured() -> Mix:
    """Return the six nodes of the run N6_D3 of Strati et al. (2025), with the measured times of OPT-350M's layers."""
    names = {"rtx_3090": ("RTX-3090", 8), "titan_rtx": ("Titan-RTX", 16), "rtx_2080ti": ("RTX-2080", 24)}
    groups = []
    for kind, (gpu, count) in names.items():
        layers = mt.MeasuredLayers.read(tables_folder() / "n1.csv", gpu=gpu, model="OPT-350", includes_transfers=True)
        groups.append(mt.Devices(kind, count, per_node=8, between_nodes=LIKE, prices=layers))
    shape: dict[str, Any] = {
        "num_layers": 24,
        "hidden_size": 1024,
        "num_heads": 16,
        "vocab_size": 50272,
        "seq_len": 2048,
    }
    model = Transformer(precision=PRECISIONS["fp32"], attention="unfused", name="opt-350m", **shape)
    cluster = mt.Cluster(groups, between_groups=UNLIKE, name="measured")
    simple = [("megatron", {"tp": 8, "microbatch_size": size}) for size in (1, 2, 4, 8)]
    return Mix(cluster, {"workload": model, "global_batch_size": 288}, simple, tp=8, peak=("float32", "vector"))


def shares_of(rates: Sequence[float], batch: int) -> list[int]:
    """Return whole samples in proportion to rates, at least one each; the largest remainders are rounded up.

    >>> shares_of([1, 1, 2], 9)
    [2, 2, 5]
    """
    whole = sum(map(Fraction, rates))
    exact = [Fraction(rate) / whole * batch for rate in rates]
    counts = [max(int(each), 1) for each in exact]
    for place in sorted(range(len(rates)), key=lambda place: counts[place] - exact[place])[: batch - sum(counts)]:
        counts[place] += 1
    return counts


def divided(mix: Mix, rates: Sequence[float]) -> mt.Run:
    """Return the fastest step that fits with samples in proportion to the rates of the accelerators."""
    samples = shares_of(rates, mix.step["global_batch_size"])
    runs = [
        mt.simulate(name, hardware=mix.accelerators, shares=mt.Shares(samples=samples), fold=True, **mix.step, **how)
        for name, how in mix.simple
    ]
    return min((run for run in runs if run.oom is None), key=lambda run: run.step_time)


def rates_alone(mix: Mix) -> dict[str, float]:
    """Return the samples a second that one device of each group trains with the whole batch to itself.

    Where replicas are several devices, it is the part of a device of that node which trains alone.
    """
    found = {}
    for group in mix.cluster.devices:
        alone = mt.Cluster([group], name=group.label).changed(group.label, count=mix.tp)
        names = ["megatron"] if mix.tp > 1 else ["zero1"]
        plan = mt.plan(mix.step.get("workload"), alone, strategies=names, **_rest(mix.step))
        found[group.label] = mix.step["global_batch_size"] / plan.step_time / mix.tp
    return found


def _rest(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step without its workload."""
    return {name: value for name, value in step.items() if name != "workload"}


def idle(mix: Mix, run: mt.Run) -> float:
    """Return the idle share of the accelerators."""
    known = {each.kind.name: each.idle_fraction for each in run.by_device_kind}
    groups = mix.accelerators.devices
    return sum(known.get(each.label, 1.0) * each.count for each in groups) / mix.accelerators.num_devices


def row(mix: Mix) -> dict[str, Any]:
    """Return all figures of a mix."""
    groups, batch = mix.accelerators.devices, mix.step["global_batch_size"]
    replicas = [group for group in groups for _ in range(group.count // mix.tp)]
    equal = divided(mix, [1.0] * len(replicas))
    datatype, unit = mix.peak
    peak = divided(mix, [group.system.processor.peak(datatype, unit=unit) for group in replicas])
    begin = time.process_time()
    plan = mt.plan(mix.step.get("workload"), mix.cluster, **_rest(mix.step))
    seconds = time.process_time() - begin
    alone = rates_alone(mix)
    total = sum(alone[group.label] * group.count for group in mix.cluster.devices)
    least = min(alone[group.label] for group in groups)
    among = sum(alone[group.label] * group.count for group in groups)
    return {
        "mix": mix.cluster.name,
        "plan": str(plan),
        "planning_cpu_s": seconds,
        "step_s": {"plan": plan.step_time, "equal": equal.step_time, "peak": peak.step_time},
        "strategy": {"plan": plan.strategy, "equal": equal.strategy, "peak": peak.strategy},
        "idle": {"plan": idle(mix, plan.run), "equal": idle(mix, equal), "peak": idle(mix, peak)},
        "kinds": len(plan.cluster.devices),
        "alone_per_s": alone,
        "throughput_of_sum": batch / plan.step_time / total,
        "best_s": batch / among,
        "bound_of_saving": 1 - mix.accelerators.num_devices * least / among,
        "all": _kept(mix, equal, total) if mix.keeps_all else None,
    }


def _kept(mix: Mix, equal: mt.Run, total: float) -> dict[str, Any]:
    """Return the figures of the plan that leaves no group out."""
    plan = mt.plan(mix.step.get("workload"), mix.cluster, leave_out=False, **_rest(mix.step))
    return {
        "step_s": plan.step_time,
        "kinds": len(plan.cluster.devices),
        "saved": 1 - plan.step_time / equal.step_time,
        "idle": idle(mix, plan.run),
        "throughput_of_sum": mix.step["global_batch_size"] / plan.step_time / total,
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures of a mix in words, beside what is asked for."""
    steps, idles, names = found["step_s"], found["idle"], found["strategy"]
    yield f"{found['mix']} (planned in {found['planning_cpu_s']:.1f} s of processor time)"
    yield from (f"  {line}" for line in found["plan"].splitlines())
    for other in ("equal", "peak"):
        yield (
            f"  against shares {'that are equal' if other == 'equal' else 'by peak'} ({names[other]}, "
            f"{steps[other]:.4g} s, idle {idles[other]:.1%}): step {_lower(steps, other)} (asked: 30 % lower), "
            f"idle {idles['plan']:.1%}, {_lower(idles, other)} (asked: 25 % lower); "
            f"devices that never wait would save {1 - found['best_s'] / steps[other]:.1%}"
        )
    yield f"  of equal shares that only compute, no plan saves more than {found['bound_of_saving']:.1%}"
    rates = ", ".join(f"{name} {rate:.4g}" for name, rate in found["alone_per_s"].items())
    yield f"  throughput / sum of what devices do alone: {found['throughput_of_sum']:.3f} (asked: 0.95)"
    yield f"  samples/s alone: {rates}"
    kept = found["all"]
    yield f"  kinds in one run: {found['kinds']}"
    if kept is not None:
        yield (
            f"  with no group left out: {kept['kinds']} kinds, step {kept['step_s']:.4g} s, {kept['saved']:.1%} lower "
            f"than equal shares, idle {kept['idle']:.1%}, throughput {kept['throughput_of_sum']:.3f} of the sum"
        )


def _lower(figures: Mapping[str, float], other: str) -> str:
    """Say how much lower a plan's figure is."""
    change = figures["plan"] / figures[other] - 1 if figures[other] else 0.0
    return f"{abs(change):.1%} {'lower' if change <= 0 else 'higher'}"


def short() -> Mix:
    """Return a mix that is quickly planned: whether the benchmark runs, not what plans are worth."""
    cluster = mt.Cluster({"h100_80g_nvl8": 1, "a100_80g": 1}, between_groups=mt.Link(200e9, 1e-5), name="short")
    return Mix(cluster, {"num_layers": 2, "global_batch_size": 32}, REPLICAS[1:2], keeps_all=True)


MIXES = {"five_kinds": five_kinds, "two_kinds": two_kinds, "measured": measured}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures of all mixes, or of one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixed", description=__doc__)
    parser.add_argument("--mix", choices=MIXES, help="one of them alone")
    parser.add_argument("--short", action="store_true", help="a small mix in their place, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON, one array")
    asked = parser.parse_args(arguments)
    wanted = [short] if asked.short else [make for name, make in MIXES.items() if asked.mix in (None, name)]
    found = []
    for make in wanted:
        found.append(row(make()))
        if not asked.json:
            print(*lines(found[-1]), sep="\n", flush=True)
    if asked.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
