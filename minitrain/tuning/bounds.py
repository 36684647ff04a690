"""Lower bounds of a step's time and memory, before it is priced: no configuration that could win is pruned by them.

A place of a pipeline is busy with the passes of all its microbatches, one after the other. FSDP computes every layer
for every microbatch, and holds its shards of the model's states beside all that forward keeps of one microbatch. Any
other strategy has the model's FLOPs to do, at no more than the devices' peak rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from minitrain.analysis.timeline import Floats
from minitrain.errors import MinitrainError, UsageError
from minitrain.tensors import Activation
from minitrain.tuning.layouts import END_FIGURES, Columns, Pipeline
from minitrain.tuning.orders import BACKWARD, FORWARD
from minitrain.tuning.problem import Machine
from minitrain.tuning.space import Candidate
from minitrain.workloads.workload import PassMode

_ROUNDING = 1 - 1e-9
"""Sums in another order may be larger in their last digits."""


@final
@dataclass(frozen=True, slots=True)
class Bound:
    """The least that a configuration takes.

    Args:
        step_time_s: s.
        peak_memory_bytes: of the fullest rank, bytes.
        busy_s: computing or communicating, over all ranks, s.
    """

    step_time_s: float = 0.0
    peak_memory_bytes: float = 0.0
    busy_s: float = 0.0


def least_times(columns: Columns) -> tuple[Floats, Floats]:
    """Return the least step time of each layout, and the least time that its ranks are busy, s, (num_layouts,) each."""
    places = [_busy_of_place(columns, place) for place in range(columns.pp)]
    strides = columns.wide([layout.stride for layout in columns.layouts])
    steps, busy = np.max(places, axis=0) * _ROUNDING, np.sum(places, axis=0) * strides * _ROUNDING
    return steps[: columns.count], busy[: columns.count]


def _busy_of_place(columns: Columns, place: int) -> Floats:
    """Return how long a place passes and updates, s, (width,)."""
    busy = np.zeros(columns.width)
    for stage in columns.stages_of(place):
        passes = sum(columns.chain(code, stage)[1:].sum(axis=0) for code in (FORWARD, BACKWARD))
        busy += passes * columns.num_microbatches
        for number in range(columns.num_layers(stage)):
            busy += columns.figures(stage, number)[END_FIGURES.index("update")]
    return busy


def bound_of(candidate: Candidate, machine: Machine) -> Bound:
    """Return the least that a configuration takes."""
    if candidate.label == "fsdp" and machine.composes:
        try:
            return _Fsdp(candidate.options, machine).bound()
        except UsageError:
            return Bound()  # it breaks a rule, which its simulation reports
    if candidate.in_usual_order is not None:
        return _of_passes(candidate.in_usual_order, machine)
    peak, world_size = machine.predictor.peak_flop_per_s, machine.problem.world_size
    seconds = machine.useful_flop / (world_size * peak) if peak and machine.model is not None else 0.0
    return Bound(seconds * _ROUNDING, 0.0, seconds * world_size * _ROUNDING)


def _of_passes(pipeline: Pipeline, machine: Machine) -> Bound:
    """Return the least that the passes of a pipeline take in any order: halves of a backward take no less than all."""
    try:
        step_time, busy = least_times(Columns(machine.pieces, [pipeline]))
    except MinitrainError:
        return Bound()  # it breaks a rule, which its simulation reports
    return Bound(float(step_time[0]), 0.0, float(busy[0]))


class _Fsdp:
    """What a step of `fsdp` takes at least: its computing, its gathers and reductions, or its moves to the host.

    Each of these follow one another on a stream of their own. What parts of a layer exchange is waited for.
    """

    def __init__(self, options: Mapping[str, Any], machine: Machine) -> None:
        self._options, self._machine = options, machine
        self._predictor, self._workload = machine.predictor, machine.workload
        self._tp: int = options.get("tp", 1)
        self._share = machine.problem.global_batch_size * self._tp // machine.problem.world_size  # samples of a rank
        self._shards = machine.problem.world_size // (self._tp * options.get("replicas", 1))
        self._size = max(1, min(options.get("microbatch_size") or self._share, self._share))
        self._inner = range(1, machine.num_layers - 1)

    def bound(self) -> Bound:
        """Return the bound."""
        if self._share < 1 or self._shards < 1:
            return Bound()  # it breaks a rule, which its simulation reports
        computing = self._compute_seconds()
        seconds = max(computing, self._shards_seconds(), self._host_seconds()) * (self._share // self._size)
        busy = computing * (self._share // self._size) * self._machine.problem.world_size
        return Bound(seconds * _ROUNDING, self._states_bytes() + self._kept_bytes(), busy * _ROUNDING)

    def _compute_seconds(self) -> float:
        """Return how long a rank computes for a microbatch, and waits for sums over parts, s."""
        compute, layers = self._predictor.compute, range(self._machine.num_layers)
        passes = [
            compute(typ, self._size, layer, self._mode()).seconds for layer in layers for typ in ("forward", "backward")
        ]
        if self._tp == 1:
            return float(sum(passes))
        border = Activation(2, self._machine.num_layers, frozenset(range(self._size)), self._size)
        op = "reduce_scatter" if self._options.get("sequence_parallel") else "all_reduce"
        one: float = self._predictor.collective(op, self._workload.message_bytes(border), range(self._tp)).seconds
        return float(sum(passes)) + 2 * one * len(self._inner)

    def _shards_seconds(self) -> float:
        """Return how long the stream of the shards is busy with a microbatch, s."""
        if self._shards == 1:
            return 0.0
        sizes, price = self._machine.model.precision, self._predictor.collective
        ranks = range(0, self._shards * self._tp, self._tp)
        seconds: float = 0.0
        for unit in self._workload.blocks:
            weight = sum(self._workload.load_bytes(1, 1, layer, self._tp) for layer in unit)
            grad = weight // sizes.parameter_bytes * (sizes.gradient_bytes or sizes.parameter_bytes)
            if self._options.get("reshard_after_forward", True):
                seconds += price("all_gather", weight, ranks).seconds
            seconds += price("reduce_scatter", grad, ranks).seconds
        return float(seconds)

    def _host_seconds(self) -> float:
        """Return how long the stream to the host is busy with a microbatch, s."""
        if self._options.get("offload") != "activations":
            return 0.0
        kept, mode = self._workload.kept_elements, self._mode()
        return float(
            sum(self._predictor.host_transfer("offload", kept(k, self._size, mode)).seconds for k in self._inner)
        )

    def _mode(self) -> PassMode:
        """Return how a layer is passed; gathered along the sequence, where it is divided."""
        sequence_parallel = bool(self._options.get("sequence_parallel")) and self._tp > 1
        return PassMode(self._options.get("recompute", "none"), self._tp, sequence_parallel)

    def _states_bytes(self) -> float:
        """Return what weights and optimizer states of a rank take all the time, bytes."""
        sizes = self._machine.model.precision
        states = sizes.parameter_bytes + (0 if self._options.get("offload") == "optimizer" else sizes.optimizer_bytes)
        held = sum(self._workload.load_bytes(1, 1, layer, self._tp) for layer in range(self._machine.num_layers))
        return float(held / sizes.parameter_bytes * states / self._shards * _ROUNDING)

    def _kept_bytes(self) -> float:
        """Return what forward keeps of a microbatch until backward begins, bytes."""
        if self._options.get("offload") == "activations":
            return 0.0
        kept, mode = self._workload.kept_elements, self._mode()
        return float(sum(kept(layer, self._size, mode) for layer in self._inner) * _ROUNDING)
