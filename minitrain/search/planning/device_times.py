"""How long each kind of device takes for a part of a step: from simulated steps of one device, or one part of a layer.

Each figure is that of a small run on a device of the cluster, with the cluster's own prices, caps and measured layers,
so that a plan is priced as a whole run is.

In which precision a step may be computed, and which devices have it natively.

A device has a precision if each of its datatypes has a price: by kernels, a rate of its matrix units, and of the vector
units for float32; with `fidelity="roofline"`, a rate of its matrix units. Configs give bfloat16 and float16 one rate,
so that a device has bfloat16 unless its config's features say that it has not. Emulation has no price here, so that a
device takes no part in a plan of a precision that it lacks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from minitrain.errors import MinitrainError, UsageError
from minitrain.machine.cluster import Cluster
from minitrain.machine.communication_buffers import Communication
from minitrain.machine.config import SystemConfig
from minitrain.machine.platforms import MEGATRON, TORCHTITAN
from minitrain.operations import PASSES
from minitrain.run.device_memory import DeviceMemory, workspace_bytes_of
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.workloads.architecture import PRECISIONS, Precision, precision_fault
from minitrain.workloads.transformer import find_model
from minitrain.workloads.workload import PassMode, Recompute

Step = Mapping[str, Any]


def steps_by_precision(step: Step, precisions: Any, cluster: Cluster) -> list[tuple[Precision | None, Step]]:
    """Return a step in each precision that it may be computed in; as it is if precisions is None.

    Args:
        step: what is trained, as arguments of `simulate`.
        precisions: names, or `Precision`; of equally fast ones, the first is taken.
        cluster: what it is trained on.

    Raises:
        UsageError: one is no precision, the workload is no transformer, or prices are of one precision alone.
    """
    if precisions is None:
        return [(None, step)]
    if not precisions:
        known = ", ".join(f'"{name}"' for name in PRECISIONS)
        raise UsageError(f"precisions must be a list of at least one of {known}, got {precisions!r:.80}")
    allowed = [_precision(each) for each in precisions]
    names = [each.name for each in allowed]
    if len(set(names)) < len(names):
        raise UsageError(f"precisions must have names of their own, got {', '.join(names)}; name each another")
    _require_priced(step, allowed, cluster)
    model = find_model(step["workload"])
    return [(each, {**step, "workload": replace(model, precision=each)}) for each in allowed]


def _precision(given: Any) -> Precision:
    """Return a precision by its name, or as it is."""
    fault = precision_fault(given)
    if fault is not None:
        raise UsageError(f"precisions: {fault}")
    return given if isinstance(given, Precision) else PRECISIONS[given]


def _require_priced(step: Step, precisions: Sequence[Precision], cluster: Cluster) -> None:
    """Require that prices differ by precision."""
    workload = step.get("workload")
    if workload is None or hasattr(workload, "compute_cost"):
        raise UsageError(
            "precisions are for transformers, and the workload has one of its own; leave precisions out, or give a "
            'model such as "llama3-8b"'
        )
    if step.get("prices") is not None or any(group.prices is not None for group in cluster.devices):
        raise UsageError(
            "precisions cannot be chosen by measured layers, which were measured in one of them; leave precisions out"
        )
    narrow = next((each for each in precisions if each.weight_datatype is not None), None)
    if narrow is not None and step.get("fidelity") == "roofline":
        raise UsageError(
            f"precision {narrow.name} multiplies weights in {narrow.weight_datatype}, which prices of kernels alone "
            'know; leave fidelity="roofline" out, or the precision'
        )


def datatype_lacking(system: SystemConfig, precision: Precision) -> str | None:
    """Return the datatype of a precision that a config says its device has not; None if it says nothing of the kind.

    >>> from minitrain.machine import load_config
    >>> datatype_lacking(load_config("v100_32g_nvl8"), PRECISIONS["bf16"])
    'bfloat16'
    """
    if precision.name == "bf16" and system.sheet.features.get("bfloat16") is False:
        return "bfloat16"
    narrow = precision.weight_datatype
    return None if narrow is None or narrow in system.matrix else narrow


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """How long the devices of a cluster take for parts of a step.

    Args:
        cluster: the devices.
        step: what is trained, as arguments of `simulate`.
        precision: what devices must have natively; any that has a price if None.
        recompute: what backward computes again.
        recomputations: what it may compute again instead where memory is short, the least first.
        framework: that of the strategies whose parts of a step these are.
    """

    cluster: Cluster
    step: Mapping[str, Any]
    precision: Precision | None = None
    recompute: Recompute = "none"
    recomputations: Sequence[Recompute] = ()
    framework: str | None = MEGATRON
    _runs: dict[tuple[str | None, str, int, int], Run | None] = field(default_factory=dict)
    _layers: dict[tuple[str | None, str, int, int], list[float] | None] = field(default_factory=dict)
    _lacking: dict[str, str] = field(default_factory=dict)
    _others: dict[tuple[str | None, Recompute], DeviceTimes] = field(default_factory=dict)

    def run(self, group: str, num_samples: int, tp: int = 1) -> Run | None:
        """Return a step of so many samples on one device of a group, or on one tensor-parallel group of them.

        None if the devices cannot run it, as where a precision is not theirs.
        """
        key = self.framework, group, num_samples, tp
        if key not in self._runs:
            self._runs[key] = self._simulated(group, num_samples, tp)
        return self._runs[key]

    def _simulated(self, group: str, num_samples: int, tp: int) -> Run | None:
        lacking = self.precision and datatype_lacking(self.cluster.group(group).system, self.precision)
        if lacking:
            self._lacking[group] = lacking
            return None
        node = first_node(self.cluster, group)
        machine: dict[str, Any] = {"hardware": self.cluster, "placement": [node] * tp, "world_size": tp, "fold": False}
        workload = self.step.get("workload")
        is_transformer = not (workload is None or hasattr(workload, "compute_cost"))
        is_megatron = tp > 1 or (is_transformer and self.framework != TORCHTITAN)
        how: dict[str, Any] = {"tp": tp, "microbatch_size": num_samples} if is_megatron else {}
        try:
            return simulate(
                "megatron" if is_megatron else "single",
                **machine,
                **self.step,
                global_batch_size=num_samples,
                recompute=self.recompute,
                check=False,
                **how,
            )
        except MinitrainError as error:
            if error.datatype is not None:
                self._lacking[group] = error.datatype
            return None

    def lacks(self, group: str) -> str | None:
        """Return the datatype that a step needs and a group's devices do not have; None if they have all."""
        return self._lacking.get(group) if self.run(group, 1) is None else None

    def recomputing(self) -> list[DeviceTimes]:
        """Return the times with more and more recomputation, as far as that keeps fewer activations for backward."""
        least, found = self._kept_elements(self.recompute), []
        for mode in self.recomputations:
            kept = self._kept_elements(mode)
            if kept < least:
                least = kept
                key = self.framework, mode
                if key not in self._others:
                    step = self.cluster, self.step, self.precision
                    self._others[key] = DeviceTimes(*step, recompute=mode, framework=self.framework)
                found.append(self._others[key])
        return found

    def _kept_elements(self, recompute: Recompute) -> float:
        """Return what all layers keep of a sample for backward, elements; 0 where no device can run it."""
        run = next((run for each in self.cluster.devices if (run := self.run(each.label, 1)) is not None), None)
        if run is None:
            return 0.0
        workload, mode = run.models[0].runtime_predictor.workload, PassMode(recompute)
        return sum(workload.kept_elements(layer, 1, mode) for layer in range(run.num_layers))

    def layers(self, group: str, num_samples: int, tp: int = 1) -> list[float] | None:
        """Return how long a group's device takes for a microbatch of each layer, forward and backward, s."""
        key = self.framework, group, num_samples, tp
        if key not in self._layers:
            self._layers[key] = self._read_layers(group, num_samples, tp)
        return self._layers[key]

    def _read_layers(self, group: str, num_samples: int, tp: int) -> list[float] | None:
        """Read the events of a step for `layers`."""
        run = self.run(group, num_samples, tp)
        if run is None:
            return None
        found = [0.0] * run.num_layers
        for event in run.logs[0]:
            if (
                event.layer is not None
                and (event.typ in PASSES or event.stream != "compute")
                and event.layer < len(found)
            ):
                found[event.layer] += event.duration
        return found

    def held_bytes(
        self, group: str, num_samples: int, tp: int = 1
    ) -> tuple[list[float], list[float], list[float]] | None:
        """Return what each layer holds, bytes: weights and gradients, optimizer states, a microbatch's activations."""
        run = self.run(group, num_samples, tp)
        if run is None:
            return None
        model = run.models[0]
        workload, mode = model.runtime_predictor.workload, PassMode(self.recompute)
        layers, size = range(run.num_layers), run.bytes_per_element
        weights = [2 * workload.memory_elements(model.weights[layer]) * size for layer in layers]
        states = [workload.memory_elements(model.opt_states[layer]) * size for layer in layers]
        kept = [workload.kept_elements(layer, num_samples, mode) * size / tp for layer in layers]
        return weights, states, kept

    def capacity_bytes(self, group: str) -> float:
        """Return what tensors may take of the memory of a group's devices.

        Of a transformer's, that is what is left beside context, workspace and the buffers of a node's ranks.
        """
        memory, run = self.cluster.group(group).system.mem_hbm, self.run(group, 1)
        if run is None or run.needed_memory_bytes is None:
            return float(memory.capacity_bytes)
        workspace_bytes = workspace_bytes_of(run.models[0].runtime_predictor)
        system = self.cluster.group(group).system
        node = min(tier.size for tier in system.networks)
        kept = Communication(node, 0, [range(node)]).buffer_bytes(system)
        beside = DeviceMemory(rank=0, peak_bytes=0, held_bytes=0, workspace_bytes=workspace_bytes, buffer_bytes=kept)
        return max(0.0, memory.usable_bytes - beside.beside_bytes)

    def samples(self, group: str, most: int, tp: int = 1) -> Callable[[int], float] | None:
        """Return how long a group's device takes for a microbatch of so many samples, s.

        Powers of two are simulated, and sizes between them are interpolated. Beyond the largest size that can be
        simulated (measured layers have one), the time is infinite. None where not even one sample can be simulated.
        """
        counts = [1]
        while counts[-1] < most:
            counts.append(min(2 * counts[-1], most))
        known: list[float] = []
        for count in counts:
            layers = self.layers(group, count, tp)
            if layers is None:
                break
            known.append(max([sum(layers), *known[-1:]]))
        if not known:
            return None
        known += [inf] * (len(counts) - len(known))

        def seconds(num_samples: int) -> float:
            place = bisect_left(counts, num_samples)
            if counts[place] == num_samples:
                return known[place]
            if known[place] == inf:
                return inf
            low, high = counts[place - 1], counts[place]
            return known[place - 1] + (known[place] - known[place - 1]) * (num_samples - low) / (high - low)

        return seconds


def first_node(cluster: Cluster, group: str) -> int:
    """Return the number of a group's first node in the cluster."""
    first = 0
    for each in cluster.devices:
        if each.label == group:
            return first
        first += each.num_nodes
    raise AssertionError(group)
