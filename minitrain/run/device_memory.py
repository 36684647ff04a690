"""What a device's memory holds at its fullest, as an allocator and a driver count it: `run.device_memory`.

`DeviceMemory` adds up the accounts below; `minitrain.run.allocator_replay` finds the reserve; `OutOfMemory` says that a
rank holds more than its device has. Runs of transformers are judged at their end, by all that a device must hold: what
communication libraries keep is known then. Others are judged at the first moment of excess, by their tensors alone.

**Accounts.** A run's own peak is what its tensors need: weights, gradients, optimizer states, what forward keeps, what
is gathered, unsharded or in flight. On a device there is more:

| account | what | bytes |
|---|---|---|
| temporaries | at the loss: copies of the logits in 16 bits, exponentials, gradients | 8 a logit, and 4 that are held |
| framework | what a framework keeps, and other temporaries | `minitrain.machine.framework_memory` |
| workspace | what matrix multiplications use for partial sums | by thread and library: `workspace_bytes_of` |
| rounding | every array takes a multiple of 512 bytes | 256 an array of a weight |
| **allocated** | the sum so far | |
| **reserved** | what the allocator holds beside in blocks | replayed, or 15 % of what a step frees, and the update |
| communication | what its library keeps for each group of ranks | `minitrain.machine.communication_buffers` |
| context | the driver's own, and the code of kernels | 0.5 GiB |
| **total** | what nvidia-smi shows | |
| **needed** | the run's peak, workspace, rounding, communication and context: what must fit | |

A run is out of memory where what is **needed** is more than the driver leaves to a process (a config's `usable_GiB`).
A loss in one kernel (flash-attn's and Liger's, Megatron's --cross-entropy-loss-fusion) puts gradients over logits, so
that its temporaries are not needed. Nor is the reserve: before PyTorch's allocator fails, it frees all cached blocks
that are not split, and tries again (CUDACachingAllocator.cpp, its first comment). What blocks in use keep it from
freeing is small with expandable segments, which torchtitan's run_train.sh sets; without them, leave some head room.

**Sources**: the loss, Megatron-LM's `vocab_parallel_cross_entropy` (logits in 16 bits, in single precision, their
exponentials, and the gradient); 512 bytes and 2 MiB, PyTorch's `CUDACachingAllocator` (kMinBlockSize, kSmallBuffer);
workspaces, PyTorch's `CublasHandlePool.cpp` and Transformer Engine's `get_cublas_workspace_size_bytes` and
`get_multi_stream_cublas_workspace`. Without journals the reserve is estimated, 10 to 20 % above allocated in published
tables, and so is the context. Both are fitted to no table.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, final

from minitrain.engine.event_loop import running_rank
from minitrain.engine.model import Model
from minitrain.engine.stores import MEMORY_KINDS
from minitrain.errors import OutOfMemoryError
from minitrain.machine.communication_buffers import Communication
from minitrain.machine.framework_memory import HeldWeight, Place, fullest_moments
from minitrain.machine.platforms import COMPONENTS, Platform
from minitrain.operations import (
    COMM,
    LAUNCHED,
    LAYER,
    LOAD_WEIGHTS,
    MEMORY,
    RECV,
    SAMPLES,
    SEND,
    STORE_NAMES,
    STREAM,
    STRIDE,
    TYP,
    UNITS_PER_ELEMENT,
    MemoryChange,
)
from minitrain.workloads.expert_layers import ExpertPass

BLOCK_BYTES = 512
SEGMENT_BYTES = 2 * 2**20
TEMPORARY_BYTES_A_LOGIT = 8
RESERVE_SHARE = 0.15
CONTEXT_BYTES = 2**29

_WORKSPACES_MIB: Mapping[str, tuple[float, float]] = {
    "": (8.125, 4),
    **dict.fromkeys(("h100", "h200", "gh200", "b200", "b300", "gb200", "gb300"), (32, 32)),
    **dict.fromkeys(("mi300x", "mi325x", "mi355x"), (128, 32)),
}
"""PyTorch's workspace of a thread, and Transformer Engine's, by family of devices, MiB."""

_STREAMS_OF_EXPERTS = 4
_ARRAYS_OF_A_WEIGHT = 5  # parameter, gradient, and three of the optimizer's


@final
@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What the device of one rank holds when it is fullest, in bytes.

    Args:
        rank: whose device it is.
        peak_bytes: what the run's tensors take at most.
        held_bytes: what they take when the device is fullest.
        temporary_bytes: what the loss, a backward or the update takes beside them.
        kept_bytes: what the framework keeps beside them (`minitrain.machine.framework_memory`).
        workspace_bytes: what matrix multiplications use.
        rounding_bytes: what arrays take for being multiples of a block.
        buffer_bytes: what the communication library keeps.
        fullest_s: when the event began at which tensors took most, s.
        replayed_bytes: what the allocator has from the driver, if it was replayed; else None.
        update_bytes: what the update alone takes from the driver, in arrays that fit into no block that was left, and
            what collectives still read.
        before_bytes: what is allocated before that at most; None where it is what is allocated.
        lasting_bytes: how much of it is never freed, in blocks of its own.
    """

    rank: int
    peak_bytes: float
    held_bytes: float
    temporary_bytes: float = 0.0
    kept_bytes: float = 0.0
    workspace_bytes: float = 0.0
    rounding_bytes: float = 0.0
    buffer_bytes: float = 0.0
    fullest_s: Any = 0.0
    replayed_bytes: float | None = None
    update_bytes: float = 0.0
    before_bytes: float | None = None
    lasting_bytes: float = 0.0

    @property
    def allocated_bytes(self) -> float:
        """Return what a framework's allocator has given out."""
        return self.held_bytes + self.temporary_bytes + self.kept_bytes + self.workspace_bytes + self.rounding_bytes

    @property
    def reserved_bytes(self) -> float:
        """Return what the allocator has from the driver: replayed, or estimated."""
        before = self.allocated_bytes if self.before_bytes is None else self.before_bytes
        reserve = RESERVE_SHARE * max(before - self.lasting_bytes - self.workspace_bytes, 0.0)
        estimated = before + reserve + self.update_bytes
        wanted = max(estimated if self.replayed_bytes is None else self.replayed_bytes, self.allocated_bytes)
        return -(-wanted // SEGMENT_BYTES) * SEGMENT_BYTES

    @property
    def context_bytes(self) -> float:
        """Return what the driver keeps."""
        return CONTEXT_BYTES

    @property
    def total_bytes(self) -> float:
        """Return what is taken of the device, as nvidia-smi shows it."""
        return self.reserved_bytes + self.buffer_bytes + self.context_bytes

    @property
    def beside_bytes(self) -> float:
        """Return what must fit beside tensors."""
        return self.workspace_bytes + self.rounding_bytes + self.buffer_bytes + self.context_bytes

    @property
    def needed_bytes(self) -> float:
        """Return what must fit into the device: all but the reserve and what a loss in one kernel does without."""
        return self.peak_bytes + self.beside_bytes

    def __str__(self) -> str:
        found = sorted(self.by_kind().items(), key=lambda item: -item[1])
        accounts = ", ".join(f"{name} {size / 2**30:.3g}" for name, size in found if size > 1e-4 * self.total_bytes)
        sizes = self.allocated_bytes, self.reserved_bytes, self.total_bytes
        counted = "{:.4g} GiB allocated, {:.4g} reserved, {:.4g} of the device".format(
            *(size / 2**30 for size in sizes)
        )
        return f"rank {self.rank}: {counted} ({accounts})"

    def beside_tensors(self) -> dict[str, float]:
        """Return the accounts that must fit beside what the run's tensors take, bytes."""
        return {
            "workspace": self.workspace_bytes,
            "rounding": self.rounding_bytes,
            "communication": self.buffer_bytes,
            "context": self.context_bytes,
        }

    def by_kind(self) -> dict[str, float]:
        """Return the accounts that add up to the total, bytes."""
        reserve_bytes = self.reserved_bytes - self.allocated_bytes
        held = {"held": self.held_bytes, "temporaries": self.temporary_bytes, "framework": self.kept_bytes}
        return {**held, **self.beside_tensors(), "reserve": reserve_bytes}

    def filled(self, place: Place, platform: Platform) -> DeviceMemory:
        """Return the same device with what a framework makes of its tensors."""
        found = fullest_moments(place, platform.memory, platform)
        before = replace(
            self, held_bytes=found.held_bytes, temporary_bytes=found.temporary_bytes, kept_bytes=found.kept_bytes
        )
        beyond_bytes = found.update_reserved_bytes + found.late_bytes
        kept = replace(
            before, update_bytes=beyond_bytes, before_bytes=before.allocated_bytes, lasting_bytes=found.lasting_bytes
        )
        if place.at_update_bytes + found.update_bytes <= found.held_bytes + found.temporary_bytes:
            return kept
        return replace(kept, held_bytes=place.at_update_bytes, temporary_bytes=found.update_bytes)


def workspace_bytes_of(machine: Any) -> int:
    """Return what a rank's multiplications have as workspace: both threads of PyTorch, and Transformer Engine.

    PyTorch keeps one for each thread that multiplies, and backward has a thread of its own. Transformer Engine
    multiplies by experts in four streams.

    Args:
        machine: what has the `system` and the `pricing` of a predictor.
    """
    family = getattr(getattr(machine, "system", None), "name", "").partition("_")[0]
    of_thread, of_engine = _WORKSPACES_MIB.get(family, _WORKSPACES_MIB[""])
    has_engine = known_platform(machine).has_modules
    has_experts = getattr(getattr(getattr(machine, "workload", None), "model", None), "num_experts", 0) > 0
    return int((2 * of_thread + has_engine * (1 + has_experts * _STREAMS_OF_EXPERTS) * of_engine) * 2**20)


def device_memory_of(model: Any) -> DeviceMemory:
    """Return the memory of one rank's device."""
    found, predictor, rows = needed_memory_of(model), model._runtime_predictor, model._log.rows_of_memory
    if not hasattr(predictor.workload, "units"):
        return found
    return found.filled(_place_of(model, rows, found.peak_bytes), known_platform(predictor))


def needed_memory_of(model: Any) -> DeviceMemory:
    """Return the same without what a framework makes of tensors: what must fit into the device does not need that."""
    predictor, rows = model._runtime_predictor, model._log.rows_of_memory
    workload = predictor.workload
    peak_bytes = model.peak_memory * workload.bytes_per_element
    return DeviceMemory(
        rank=model._rank,
        peak_bytes=peak_bytes,
        held_bytes=peak_bytes,
        workspace_bytes=workspace_bytes_of(predictor),
        rounding_bytes=bytes_of_rounding(workload, _loaded(rows)),
        buffer_bytes=communication_of(model).buffer_bytes(
            getattr(predictor, "system", None), known_platform(predictor)
        ),
        fullest_s=rows[fullest_row(rows) * STRIDE + LAUNCHED] if rows else 0.0,
    )


def known_platform(predictor: Any) -> Platform:
    """Return the platform that prices are of; components alone where a predictor has none."""
    return getattr(getattr(predictor, "pricing", None), "known_platform", COMPONENTS)


def _place_of(model: Any, rows: Sequence[Any], peak_bytes: float) -> Place:
    """Return what a rank's log and stores tell of it."""
    workload = model._runtime_predictor.workload
    kinds, modes = [unit.kind for unit in workload.units], model.pass_modes.values()
    types, layers, sizes = rows[TYP::STRIDE], rows[LAYER::STRIDE], list(map(len, rows[SAMPLES::STRIDE]))
    element_bytes = workload.bytes_per_element / UNITS_PER_ELEMENT

    def at(typ: str) -> tuple[int, float]:
        noted = zip(types, sizes, rows[MEMORY::STRIDE], strict=True)
        found = [(size, units * element_bytes) for each, size, units in noted if each == typ]
        return max((size for size, _ in found), default=0), max((held for _, held in found), default=0.0)

    num_samples, at_loss = at("loss")
    weights = _weights_of(model, workload)
    full = _with_totals(rows, workload, weights)
    parts = (getattr(each, "num_parts", 1) for each in model.weights.values() if kinds[each.layer] != "moe")
    passes = zip(types, layers, sizes, strict=True)  # to experts others' tokens travel: they count last
    forwards = ((kinds[layer] != "moe", size) for typ, layer, size in passes if typ == "forward")
    return Place(
        workload=workload,
        weights=weights,
        num_parts=max(parts, default=1),
        num_samples=max(forwards, default=(True, 0))[1],
        num_logits=num_logits(workload, num_samples) / model.parts_of_loss,
        peak_bytes=peak_bytes,
        at_loss_bytes=at_loss,
        full_at_loss_bytes=full["loss"],
        full_forward_bytes=full["forward"],
        at_update_bytes=at("update")[1],
        context=next((mode.context for mode in modes if mode.context is not None), None),
        is_scattered=any(mode.sequence_parallel for mode in modes),
        is_single=types.count("loss") == 1,
        num_in_flight=_num_in_flight(rows),
        recompute=model._recompute,
        experts=max(
            (mode for mode in modes if isinstance(mode, ExpertPass)), key=attrgetter("num_copies"), default=None
        ),
    )


def _with_totals(rows: Sequence[Any], workload: Any, weights: Sequence[HeldWeight]) -> dict[str, float]:
    """Return the most held in forwards but the head's and at losses, with all totals; a run has some, of tables one."""
    missing, most = dict.fromkeys((each.layer for each in weights), 0.0), {"forward": 0.0, "loss": 0.0}
    for each in weights:
        missing[each.layer] += each.gradient_bytes
    missing |= dict.fromkeys(workload.table_layers[:1] if missing.keys() >= {*workload.table_layers} else (), 0.0)
    for typ, layer, noted in zip(rows[TYP::STRIDE], rows[LAYER::STRIDE], rows[MEMORY::STRIDE], strict=True):
        if typ.startswith("backward") and typ != "backward_input":
            missing.pop(layer, None)
        elif typ == "loss" or (typ == "forward" and workload.units[layer].kind != "head"):
            held = noted * workload.bytes_per_element / UNITS_PER_ELEMENT
            most[typ] = max(most[typ], held + sum(missing.values()))
    return most


def _num_in_flight(rows: Sequence[Any]) -> int:
    """Return the most microbatches that a layer has taken forward and not yet back."""
    waiting, most = Counter[int](), 0
    for typ, layer in zip(rows[TYP::STRIDE], rows[LAYER::STRIDE], strict=True):
        if typ == "forward":
            waiting[layer] += 1
            most = max(most, waiting[layer])
        elif typ in ("backward", "backward_input"):
            waiting[layer] -= 1
    return most


def _weights_of(model: Any, workload: Any) -> list[HeldWeight]:
    """Return the weights of a rank, whole where they lie in shards, and the states that it has."""
    sizes, states, found = workload.model.precision, dict(model.opt_states), []
    for key, weight in model.weights.items():
        whole = workload.memory_elements(weight) * weight.num_shards / len(weight.shards)
        state = workload.memory_elements(states[key]) if key in states else 0.0
        gradient = whole * sizes.gradient_bytes / sizes.parameter_bytes
        found.append(HeldWeight(weight.layer, whole, gradient, state, len(weight.shards) < weight.num_shards))
    return found


def num_logits(workload: Any, num_samples: int) -> float:
    """Return the logits of some samples; 0 where the workload has no vocabulary."""
    vocab_size: int = getattr(getattr(workload, "model", None), "vocab_size", 0)
    return num_samples * workload.tokens_of_sample * vocab_size if vocab_size else 0.0


def bytes_at_loss(workload: Any, num_samples: int, num_parts: int) -> float:
    """Return what a loss takes beside tensors; nothing where the workload has no vocabulary."""
    return TEMPORARY_BYTES_A_LOGIT * num_logits(workload, num_samples) / num_parts


def _loaded(rows: Sequence[Any]) -> set[int]:
    """Return the layers that a rank has loaded."""
    loads = zip(rows[TYP::STRIDE], rows[LAYER::STRIDE], strict=True)
    return {layer for typ, layer in loads if typ == LOAD_WEIGHTS and layer is not None}


def bytes_of_rounding(workload: Any, layers: Iterable[int]) -> float:
    """Return what the arrays of some layers take for being multiples of a block."""
    units = getattr(workload, "units", None)
    num_weights = sum(1 if units is None else len(units[layer].weights) for layer in layers)
    return BLOCK_BYTES / 2 * _ARRAYS_OF_A_WEIGHT * num_weights


def communication_of(model: Any) -> Communication:
    """Return whom a rank has communicated with; its messages are one group's."""
    rows, world = model._log.rows_of_memory, range(model.world_size)
    column = rows[STREAM::STRIDE]
    streams = dict(zip(map(id, column), column, strict=True))
    found = {(typ, streams[place]) for typ, place in set(zip(rows[TYP::STRIDE], map(id, column), strict=True))}
    groups = {(typ, world if stream.group is None else stream.group) for typ, stream in found if stream.kind == COMM}
    return Communication(
        model.world_size,
        model._rank,
        {group for typ, group in groups if typ != "all_to_all"},
        {group for typ, group in groups if typ == "all_to_all"},
        {stream.peer for _, stream in found if stream.kind in (SEND, RECV)},
    )


_ALIKE = {"opt_states": "optimizer", "grad_activations": "activations", "in_flight": "buffers"}
_KIND_OF_STORE: Mapping[str, str] = {**STORE_NAMES, **_ALIKE}


def kinds_of_journals(journals: Sequence[Sequence[MemoryChange]], bytes_per_element: int) -> dict[str, float]:
    """Return the bytes of each kind on the rank whose stores held most, when they did."""
    peaks = [_peak_of(journal) for journal in journals]
    elements, place, rank = max((total, -place, -rank) for rank, (total, place) in enumerate(peaks))
    found = dict.fromkeys(MEMORY_KINDS, 0.0)
    for change in journals[-rank][: 1 - place] if elements else ():
        found[_KIND_OF_STORE[change.kind]] += change.elements * bytes_per_element
    return found


def _peak_of(journal: Sequence[MemoryChange]) -> tuple[float, int]:
    """Return the most elements that a rank's stores held, and after which change first."""
    total, peak, place = 0.0, 0.0, 0
    for index, change in enumerate(journal):
        total += change.elements
        if total > peak:
            peak, place = total, index
    return peak, place


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Where and when a device had to hold more than its memory: a transformer's when fullest, other workloads' first.

    Args:
        rank: the rank; the first in time, or of a transformer that with the largest excess.
        time: its clock then, s.
        capacity_bytes: the device's memory.
        held_bytes: what the rank held, by store; of a transformer by kind, with what is needed beside tensors.
        device: what the cluster calls the rank's device; "" where all devices are alike.
    """

    rank: int
    time: float
    capacity_bytes: float
    held_bytes: Mapping[str, float]
    device: str = ""

    @property
    def excess_bytes(self) -> float:
        """Return by how much that is more than the device's memory."""
        return sum(self.held_bytes.values()) - self.capacity_bytes

    def __str__(self) -> str:
        least = 1e-4 * self.capacity_bytes  # what does not matter is not told
        filled = ", ".join(
            f"{name} {size / 2**30:.3g} GiB"
            for name, size in sorted(self.held_bytes.items(), key=lambda item: -item[1])
            if size > least
        )
        device = f" ({self.device})" if self.device else ""
        return (
            f"out of memory on rank {self.rank}{device} at {self.time:.6g} s: "
            f"{sum(self.held_bytes.values()) / 2**30:.4g} GiB held of {self.capacity_bytes / 2**30:.4g} GiB ({filled})"
        )


@dataclass(frozen=True, slots=True)
class MemoryOutsideStores:
    """The most that a rank held outside its stores, in variables and containers, at the beginning of an operation.

    Args:
        rank: the rank that held the most.
        time: its clock then, s.
        elements: how much it held.
        elements_by_line: how much of it each line of the strategy made, most first.
        waiting_messages: the most elements that a rank held, beside that, of messages that had arrived and were not
            received yet.
    """

    rank: int
    time: float
    elements: float
    elements_by_line: Mapping[str, float]
    waiting_messages: float = 0.0

    def __str__(self) -> str:
        made = ", ".join(f"{elements:.4g} made at {line}" for line, elements in self.elements_by_line.items())
        held = f"{self.elements:.4g} elements on rank {self.rank} at {self.time:.6g} s: {made}" if made else "nothing"
        if not self.waiting_messages:
            return held
        return f"{held}; and {self.waiting_messages:.4g} elements of messages that waited to be received"


@contextlib.contextmanager
def watching_memory(models: Sequence[Model], *, strict: bool) -> Iterator[list[OutOfMemory]]:
    """Provide a list into which each rank reports the first time that it holds more than its device can.

    Args:
        models: the ranks, each with its own device.
        strict: raise at once, or at the end of the run where a launched result comes from another rank.

    Raises:
        OutOfMemoryError: with `strict`, a rank held too much.
    """
    excesses: list[OutOfMemory] = []
    element_bytes = models[0]._runtime_predictor.workload.bytes_per_element  # all ranks train the same

    def report(model: Model, capacity_bytes: float) -> None:
        held = {name: elements * element_bytes for name, elements in model.memory_by_store().items()}
        device = getattr(model._runtime_predictor, "device_name", "")
        moment = moment_of_excess(model, units_of(capacity_bytes, element_bytes))
        excess = OutOfMemory(model._rank, moment, capacity_bytes, held, device)
        excesses.append(excess)
        if strict and running_rank() in (None, model._rank):  # or another rank's operation has delivered it
            raise error_of(excess)

    for model in models:
        capacity_bytes = model._runtime_predictor.capacity_bytes
        if capacity_bytes is not None:
            counted = model._meter
            counted.limit_units = units_of(capacity_bytes, element_bytes)
            counted.on_overflow = partial(report, model, capacity_bytes)
    try:
        yield excesses
        if strict and excesses:
            raise error_of(min(excesses, key=when))
    finally:
        for model in models:
            model._meter.on_overflow = None  # it would keep the model alive


def units_of(size_bytes: float, element_bytes: int) -> float:
    """Return bytes in the units that an account of memory counts."""
    return size_bytes / element_bytes * UNITS_PER_ELEMENT


def when(excess: OutOfMemory) -> tuple[float, int]:
    """Return the sort key of excesses: the first in time, of the lowest rank."""
    return excess.time, excess.rank


def excess_of(model: Any, memory: DeviceMemory, capacity_bytes: float | None) -> OutOfMemory | None:
    """Return when a rank was fullest and why that is more than its device has; None where all fits.

    Args:
        model: the rank.
        memory: what its device must hold.
        capacity_bytes: what there is; None where it is not known.
    """
    if capacity_bytes is None or memory.needed_bytes <= capacity_bytes:
        return None
    element_bytes = model._runtime_predictor.workload.bytes_per_element
    kinds = model.peak_by_kind or {}
    tensors = {kind: elements * element_bytes for kind, elements in kinds.items()}
    device = getattr(model._runtime_predictor, "device_name", "")
    held = (tensors or {"tensors": memory.peak_bytes}) | memory.beside_tensors()
    return OutOfMemory(model._rank, memory.fullest_s, capacity_bytes, held, device)


def worst_of(excesses: Iterable[OutOfMemory | None]) -> OutOfMemory | None:
    """Return the largest excess, of the lowest rank; None where there is none."""
    found = [excess for excess in excesses if excess is not None]
    return max(found, key=lambda excess: (excess.excess_bytes, -excess.rank), default=None)


def error_of(excess: OutOfMemory) -> OutOfMemoryError:
    """Return the error for a rank that held too much."""
    return OutOfMemoryError(f"{excess}; shard more, use smaller microbatches, or free tensors sooner", oom=excess)


def moment_of_excess(model: Model, limit_units: float) -> float:
    """Return the clock at which a rank first held too much: that of the first event that noted too much, or now.

    The size of a launched result may not be known before it comes. Then it is added to the memory that the events since
    the launch have noted. When it comes depends on the order of tasks, and what events note does not.
    """
    place = row_of_excess(model, limit_units)
    return model._time if place is None else model._log._rows[place * STRIDE + LAUNCHED]


def row_of_excess(model: Model, limit_units: float) -> int | None:
    """Return the first event of a rank that noted too much memory so far; None where none has."""
    noted = model._log._rows[MEMORY::STRIDE]
    return next((place for place, units in enumerate(noted) if units > limit_units), None)


def fullest_row(rows: Sequence[Any]) -> int:
    """Return which event of a flat log noted the most memory first."""
    noted = rows[MEMORY::STRIDE]
    return noted.index(max(noted)) if noted else 0
