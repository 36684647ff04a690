"""Lower bounds of a step's time and memory, before it is priced: no configuration that could win is pruned by them.

A place of a pipeline is busy with the passes of all its microbatches, one after the other. FSDP computes every layer
for every microbatch, and holds its shards of the model's states beside all that forward keeps of one microbatch. Where
stages have divided experts, a place waits for its tokens too (but in pairs of passes, which hide that), and keeps the
microbatches that its order lets go forward before others come back. Any other strategy has the model's FLOPs to do, at
no more than the devices' peak rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitrain.errors import MinitrainError, UsageError
from minitrain.machine.platforms import StandsFor
from minitrain.run.analysis.timeline import Floats
from minitrain.search.schedules import dualpipe_v
from minitrain.search.schedules.schedule import Cell
from minitrain.search.tuning.layouts import BACKWARD, END_FIGURES, FORWARD, Columns, Pipeline
from minitrain.search.tuning.pieces import in_layout
from minitrain.search.tuning.problem import Candidate, Machine, changed_beside, cut_into_stages
from minitrain.tensors import Activation
from minitrain.workloads.expert_layers import ROUTER, ExpertPass, Piece
from minitrain.workloads.workload import PassMode, Recompute, as_recompute, takes_again

_ROUNDING = 1 - 1e-9
"""Sums in another order may be larger in their last digits."""


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
    if machine.is_usual:
        try:
            if candidate.label == "fsdp":
                return _Fsdp(candidate.options, machine).bound()
            known = _OF_EXPERTS.get(candidate.label, frozenset())
            if machine.has_experts and known and not changed_beside(candidate.strategy, candidate.options, known):
                return _Experts(candidate.options, machine, in_pairs=candidate.label == "deepseek_like").bound()
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


_DEGREES = frozenset({"pp", "ep", "microbatch_size", "zero", "recompute", "overlap_messages"})
_OF_EXPERTS: Mapping[str, frozenset[str]] = {
    "deepseek_like": _DEGREES,
    "megatron": _DEGREES.union(
        ("tp", "num_chunks", "sequence_parallel", "scatter_gather"),
        ("overlap_replicas", "overlap_parts", "batch_messages"),
    ),
}
"""The options that the bound of layouts with experts knows, by strategy."""


class _Experts:
    """What a step takes at least where experts are divided and other layers are not: in the order 1F1B, or DualPipeV.

    Args:
        options: of the strategy.
        machine: where it runs.
        in_pairs: whether passes hide one another's exchanges (`deepseek_like`), or tokens are waited for (`megatron`).
    """

    def __init__(self, options: Mapping[str, Any], machine: Machine, *, in_pairs: bool) -> None:
        self._machine, self._in_pairs = machine, in_pairs
        self._experts, self._price = machine.workload.experts, machine.predictor
        self._ep, self._pp, self._chunks = (options.get(name, 1) for name in ("ep", "pp", "num_chunks"))
        self._workload = _with_table(machine, is_shared=self._pp == 1 or in_pairs)
        self._of_stage = machine.problem.world_size // self._pp
        self._share = machine.problem.global_batch_size // self._of_stage
        self._size = max(1, min(options.get("microbatch_size") or self._share, self._share))
        self._num_microbatches = self._share // self._size
        self._shards_states = bool(options.get("zero"))
        self._mode = PassMode(as_recompute(options.get("recompute", "none")))
        self._of_experts = PassMode(_without_travel(self._mode.recompute)) if in_pairs else self._mode
        self._is_whole = options.get("tp", 1) == 1

    def bound(self) -> Bound:
        """Return the bound."""
        if not self._is_whole or self._share < 1 or self._of_stage % self._ep:
            return Bound()  # not modelled here, or it breaks a rule, which its simulation reports
        num_stages = 2 * self._pp if self._in_pairs else self._pp * self._chunks
        stages = cut_into_stages(self._machine, num_stages, self._size)
        busy = [sum(map(self._seconds, stage)) for stage in stages]
        kept = [sum(map(self._kept_bytes, stage)) for stage in stages]
        held = [[sum(pair) for pair in zip(*map(self._held_bytes, stage), strict=True)] for stage in stages]
        # of 1F1B without chunks, past its warm-up, a place surely keeps most when all gradients are there too
        has_both_at_once = not self._in_pairs and self._chunks == 1 and self._num_microbatches > self._pp
        steps, peaks = [], []
        for place, own in enumerate(self._places(num_stages)):
            steps.append(sum(busy[:place]) + self._num_microbatches * sum(busy[stage] for stage in own))
            states, gradients = (sum(held[stage][which] for stage in own) for which in (0, 1))
            most = self._most_kept(place, own, kept)
            peaks.append(states + (most + gradients if has_both_at_once else max(most, gradients)))
        total = sum(busy) * self._num_microbatches * self._of_stage
        return Bound(max(steps) * _ROUNDING, max(peaks) * _ROUNDING, total * _ROUNDING)

    def _places(self, num_stages: int) -> Iterator[Sequence[int]]:
        """Yield the stages of each place of a pipeline."""
        for place in range(self._pp):
            yield (place, num_stages - 1 - place) if self._in_pairs else range(place, num_stages, self._pp)

    def _seconds(self, layer: int) -> float:
        """Return how long a rank is busy with a microbatch in a layer, there and back, and waits for its tokens, s."""
        price = self._price.compute
        if not self._is_divided(layer):
            return float(sum(price(typ, self._size, layer, self._mode).seconds for typ in ("forward", "backward")))
        copies = self._experts.num_copies(self._size)
        repeats = takes_again(self._of_experts.recompute, "moe")
        mode = PassMode() if repeats else self._of_experts
        of_experts = ExpertPass(mode.recompute, self._ep, num_copies=copies)
        travel = 0.0 if self._in_pairs else self._travel_seconds(copies)
        forward = sum(price(typ, self._size, layer).seconds for typ in ("route", "combine")) + 2 * travel
        forward += price("forward", self._size, layer, of_experts).seconds
        around = price("backward_combine", self._size, layer).seconds
        around += price("backward_route", self._size, layer, mode).seconds
        typs = ("backward_input", "backward_weight") if self._in_pairs else ("backward",)
        backward = around + 2 * travel + sum(price(typ, self._size, layer, of_experts).seconds for typ in typs)
        return float((2 if repeats else 1) * forward + backward)

    def _travel_seconds(self, copies: int) -> float:
        """Return how long tokens take to the experts, or back, s."""
        model = self._workload.model
        size_bytes = copies * model.hidden_size * model.precision.activation_bytes
        return float(self._price.collective("all_to_all", size_bytes, range(self._ep)).seconds)

    def _most_kept(self, place: int, own: Sequence[int], kept: Sequence[float]) -> float:
        """Return what a place keeps at least of all microbatches together, when it keeps most, bytes."""
        if self._in_pairs:
            return _most_of_row(dualpipe_v(self._pp, self._num_microbatches).rows[place], kept)
        ahead = self._pp - place - 1
        if self._chunks > 1:
            ahead = 2 * ahead + (self._chunks - 1) * self._pp
        num_ahead = min(self._num_microbatches * self._chunks, ahead + 1)
        rounds, rest = divmod(num_ahead, self._pp * self._chunks)
        counts = (rounds * self._pp + min(self._pp, max(0, rest - chunk * self._pp)) for chunk in range(self._chunks))
        return float(sum(count * kept[stage] for count, stage in zip(counts, own, strict=True)))

    def _kept_bytes(self, layer: int) -> float:
        """Return what a layer keeps of a microbatch, bytes."""
        if not self._is_divided(layer):
            return float(self._workload.kept_elements(layer, self._size, self._mode))
        recompute = self._of_experts.recompute
        kept = self._experts.kept_by_router(layer, self._size, 1, recompute, combined=True)
        return float(kept + self._experts.kept_by_experts(layer, self._experts.num_copies(self._size), recompute))

    def _held_bytes(self, layer: int) -> tuple[float, float]:
        """Return what weights and optimizer states of a layer take, and what its gradients do, bytes."""
        pieces: list[tuple[Any, int]] = [(1, self._of_stage)]
        if self._is_divided(layer):
            pieces = [(ROUTER, self._of_stage), (Piece("experts", self._ep), self._of_stage // self._ep)]
        states = gradients = 0.0
        for piece, sharing in pieces:
            weight, gradient, state = self._workload.held_bytes(layer, piece)
            states += weight + state / (sharing if self._shards_states else 1)
            gradients += gradient
        return states, gradients

    def _is_divided(self, layer: int) -> bool:
        """Whether a layer is passed in parts, around its experts: `deepseek_like` always does so."""
        return (self._ep > 1 or self._in_pairs) and layer in self._experts.layers


def _without_travel(recompute: Recompute) -> Recompute:
    """Return what `deepseek_like` takes again of a layer with experts: no tokens travel again."""
    kept = "+".join(module for module in recompute.split("+") if module not in ("full", "moe"))
    return as_recompute(kept or "none")


def _with_table(machine: Machine, *, is_shared: bool) -> Any:
    """Return the sizes of a rank that has one table for embedding and head, where they share it and are both there."""
    workload: Any = machine.workload
    return workload.with_one_table(in_shards=True) if is_shared and workload.table_layers else workload


def _most_of_row(row: Sequence[Cell], kept: Sequence[float]) -> float:
    """Return the most that a place keeps of all microbatches together, by its order and what each stage keeps.

    Of a pair of passes, one frees what it needs while the other one keeps more: both count when they are done.
    """
    held = most = 0.0
    for cell in row:
        for action in cell:
            held += kept[action.stage] * {"F": 1, "I": 0}.get(action.kind, -1)
        most = max(most, held)
    return most


class _Fsdp:
    """What a step of `fsdp` takes at least: its computing, its gathers and reductions, or its moves to the host.

    Each of these follow one another on a stream of their own. What parts of a layer exchange is waited for.
    """

    def __init__(self, options: Mapping[str, Any], machine: Machine) -> None:
        self._options, self._machine = options, machine
        self._workload = _with_table(machine, is_shared=True)
        self._tp: int = options.get("tp", 1)
        self._predictor = in_layout(machine.predictor, StandsFor(None, self._tp > 1, zero=3))
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
        price = self._predictor.collective
        ranks = range(0, self._shards * self._tp, self._tp)
        seconds: float = 0.0
        for unit in self._workload.blocks:
            held = [self._workload.held_bytes(layer, self._tp) for layer in unit]
            weight = sum(each[0] for each in held)
            grad = 0 if unit[0] in self._workload.tied_layers else sum(each[1] for each in held)  # once a step
            if self._options.get("reshard_after_forward", True):
                seconds += price("all_gather", weight, ranks).seconds
            seconds += price("reduce_scatter", grad, ranks).seconds
        return float(seconds)

    def _host_seconds(self) -> float:
        """Return how long the stream to the host is busy with a microbatch, s."""
        if self._options.get("offload") != "activations" or self._options.get("offloaded_layers") is not None:
            return 0.0  # of some layers it is no bound
        kept, mode = self._workload.kept_elements, self._mode()
        return float(
            sum(self._predictor.host_transfer("offload", kept(k, self._size, mode)).seconds for k in self._inner)
        )

    def _mode(self) -> PassMode:
        """Return how a layer is passed; gathered along the sequence, where it is divided."""
        sequence_parallel = bool(self._options.get("sequence_parallel")) and self._tp > 1
        return PassMode(as_recompute(self._options.get("recompute", "none")), self._tp, sequence_parallel)

    def _states_bytes(self) -> float:
        """Return what weights and optimizer states of a rank take all the time, bytes."""
        held = [self._workload.held_bytes(layer, self._tp) for layer in range(self._machine.num_layers)]
        where = self._options.get("offload")
        here = where != "parameters", where not in ("optimizer", "optimizer_step", "parameters")  # weights, states
        states = sum(weight * here[0] + state * here[1] for weight, _, state in held)
        return float(states / self._shards * _ROUNDING)

    def _kept_bytes(self) -> float:
        """Return what forward keeps of a microbatch until backward begins, bytes."""
        if self._options.get("offload") == "activations":
            return 0.0
        kept, mode = self._workload.kept_elements, self._mode()
        return float(sum(kept(layer, self._size, mode) for layer in self._inner) * _ROUNDING)
