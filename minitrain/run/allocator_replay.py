"""What PyTorch's allocator does with a rank's tensors: `run.replay_allocator()`, and what a run says of its memory.

The journal of a run (`memory_by_kind=True`) says in program order which tensor entered a rank's memory,
grew, shrank or left. Each is given to `minitrain.machine.caching_allocator` as the arrays that it consists of:

| tensor | arrays |
|---|---|
| weight, gradient | one a weight of the unit, in proportion to its size, whole or a shard |
| optimizer state | the same for each four bytes that it has a parameter |
| what forward keeps | those that the unit saves (`Unit.saved`), of which the first is its input |
| in flight, gradients of activations, all of other workloads | one |

In-place operations, and results that a store takes over from a communication, keep their memory: between two operations
of a rank, a tensor that enters takes over that of one of equal size that has just left. Beside tensors there are the
workspace of matrix multiplications, from the beginning on, the loss's temporaries, and in the backward of a unit the
gradient of each array that it has saved, from the last to the first: autograd frees each once the next is there.

**Left out**: arrays of less than a layer that live for a kernel, and how long a block stays unusable. So real
fragmentation is higher than a replay's, which also lacks what forward makes and does not keep, streams of their own for
communication, whose blocks serve no other, and what earlier steps have left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from minitrain.errors import OutOfMemoryError
from minitrain.machine.caching_allocator import UNLIMITED, AllocatorSettings, Block, CachingAllocator
from minitrain.operations import LAYER, SAMPLES, STRIDE, TYP, MemoryChange
from minitrain.run.device_memory import DeviceMemory, bytes_at_loss, device_memory_of, workspace_bytes_of
from minitrain.workloads.workload import USUAL

Arrays = list[Block]

_SHARES_AT_LOSS = (0.25, 0.5, 0.25)
"""Of the temporaries of the loss: logits in 16 bits, exponentials in single precision, gradients in 16 bits."""


@dataclass(frozen=True, slots=True)
class AllocatorReplay:
    """What the allocator of one rank did in a step.

    Args:
        rank: whose it is.
        allocated_bytes: the most that it had given out, as `torch.cuda.max_memory_allocated` says.
        reserved_bytes: the most that it had from the driver, as `torch.cuda.max_memory_reserved` says.
        num_retries: how often it gave cached segments back for want of room, as `num_alloc_retries` says.
        fits: whether it always found room.
        settings: its settings.
    """

    rank: int
    allocated_bytes: int
    reserved_bytes: int
    num_retries: int
    fits: bool
    settings: AllocatorSettings

    @property
    def fragmentation(self) -> float:
        """Return the share of the most that was reserved which was never allocated at once, in 0..1."""
        return 1 - self.allocated_bytes / self.reserved_bytes if self.reserved_bytes else 0.0

    def __str__(self) -> str:
        gib = (f"{size / 2**30:.4g} GiB" for size in (self.allocated_bytes, self.reserved_bytes))
        text = f"rank {self.rank}: {' allocated, '.join(gib)} reserved, {self.fragmentation:.1%} never allocated"
        retries = f", {self.num_retries} retries" if self.num_retries else ""
        return text + retries + ("" if self.fits else ", more than the device has")


class _Rank:
    """A rank's tensors in the allocator.

    Args:
        model: the rank.
        allocator: the allocator.
    """

    def __init__(self, model: Any, allocator: CachingAllocator) -> None:
        workload = model._runtime_predictor.workload
        self.bytes_per_element: int = workload.bytes_per_element
        self.units = getattr(workload, "units", ())
        self.optimizer_arrays = workload.model.state_bytes // 4 if self.units else 1
        self.recompute = model._recompute
        self.allocator = allocator
        self.held: dict[int, tuple[int, Arrays]] = {}  # bytes and arrays of each tensor
        self.fits = True

    def between_operations(self, changes: Sequence[MemoryChange]) -> Arrays:
        """Allocate and free what a rank's tensors do between two operations.

        Returns:
            What was entered for the next operation alone, such as what backward computes again.
        """
        entered: set[int] = set()
        borrowed: Arrays = []
        wanted = Counter(self._bytes(change) for change in changes if change.elements > 0)
        kept: dict[int, list[Arrays]] = {}  # arrays of tensors that left, by their size, for those that enter
        for change in changes:
            num_bytes = self._bytes(change)
            before, arrays = self.held.pop(change.tensor, (0, []))
            after = before + num_bytes
            if num_bytes > 0:
                wanted[num_bytes] -= 1
                entered |= set() if before else {change.tensor}
                taken = kept[num_bytes].pop() if not before and kept.get(num_bytes) else None
                arrays += self.allocated(self._sizes(change, num_bytes, before)) if taken is None else taken
            elif not after and wanted[before] > len(kept.get(before, ())):
                kept.setdefault(before, []).append(arrays)
            elif not after and change.tensor in entered:
                borrowed += arrays
            elif num_bytes:
                self.free(arrays)
                arrays = self.allocated([after] if after else [])
            if after:
                self.held[change.tensor] = (after, arrays)
        for arrays in chain.from_iterable(kept.values()):
            self.free(arrays)
        return borrowed

    def _bytes(self, change: MemoryChange) -> int:
        return round(change.elements * self.bytes_per_element)

    def during_operation(self, sizes: Sequence[Sequence[int]]) -> None:
        """Allocate arrays that live while an operation goes on: each group until the next one is there."""
        before: Arrays = []
        for group in sizes:
            arrays = self.allocated(group)
            self.free(before)
            before = arrays
        self.free(before)

    def allocated(self, sizes: Sequence[int]) -> Arrays:
        """Allocate arrays; where there is no room, the device grows and that is noted."""
        found = []
        for size in sizes:
            try:
                found.append(self.allocator.allocate(size))
            except OutOfMemoryError:
                self.fits = False
                self.allocator.capacity_bytes = UNLIMITED
                found.append(self.allocator.allocate(size))
        return found

    def free(self, arrays: Arrays) -> None:
        """Free arrays."""
        for block in arrays:
            self.allocator.free(block)

    def _sizes(self, change: MemoryChange, num_bytes: int, before: int) -> Sequence[int]:
        """Return the bytes of the arrays that a tensor, or its growth, consists of."""
        if not 0 <= (change.layer if change.layer is not None else -1) < len(self.units):
            return [num_bytes]
        unit = self.units[change.layer]  # type: ignore[index]  # no None: see above
        if change.kind in ("weights", "grad_weights", "opt_states"):
            times = self.optimizer_arrays if change.kind == "opt_states" else 1
            return _divided(num_bytes, [prod(weight.shape) for weight in unit.weights] * times)
        if change.kind == "activations" and (before or unit.kind == "embedding"):
            kept = [saved for saved in unit.saved if saved.is_kept(self.recompute)]
            return _divided(num_bytes, [saved.size * saved.element_bytes for saved in kept[1:]])
        return [num_bytes]


def _divided(num_bytes: int, shares: Sequence[int]) -> Sequence[int]:
    """Return parts of some bytes, in proportion to shares."""
    total = sum(shares)
    return [round(num_bytes * share / total) for share in shares if share] if total else [num_bytes]


class DeviceMemoryFigures:
    """What a run says of its devices' memories."""

    if TYPE_CHECKING:
        capacity_bytes: float | None
        memory_journals: Sequence[Sequence[MemoryChange]]

        @property
        def class_models(self) -> Sequence[Any]:
            """The models of the ranks, or of the classes of ranks that are alike."""

    @cached_property
    def device_memory(self) -> DeviceMemory | None:
        """The fullest device's memory, as allocator and driver count it; None for a run that was read from a file."""
        found = self._estimated_memory
        replayed = self.replay_allocator()
        if found is None or replayed is None:
            return found
        # A replay has tensors alone: what a framework allocates beside them comes on top of what blocks leave unused.
        unused = replayed.reserved_bytes - replayed.allocated_bytes
        return replace(found, replayed_bytes=max(replayed.reserved_bytes, found.allocated_bytes + unused))

    @cached_property
    def _estimated_memory(self) -> DeviceMemory | None:
        found = (device_memory_of(model) for model in self.class_models)
        return max(found, key=lambda memory: memory.allocated_bytes, default=None)

    def replay_allocator(
        self, *, expandable_segments: bool = False, max_split_bytes: int | None = None
    ) -> AllocatorReplay | None:
        """Replay what PyTorch's allocator of GPU memory does with the tensors of the fullest rank.

        Args:
            expandable_segments: as in `PYTORCH_CUDA_ALLOC_CONF`.
            max_split_bytes: its `max_split_size_mb`, in bytes.

        Returns:
            Peaks in bytes, and fragmentation; None without journals (`memory_by_kind=True`), and for a run that was
            read from a file.

        Raises:
            UsageError: `max_split_bytes` is not more than the 20 MiB that the allocator asks the driver for at once.
        """
        settings, memory = AllocatorSettings(expandable_segments, max_split_bytes), self._estimated_memory
        if memory is None or not self.memory_journals:
            return None
        model = next(model for model in self.class_models if model._rank == memory.rank)
        of_others = (
            memory.buffer_bytes + memory.context_bytes if hasattr(model.runtime_predictor.workload, "units") else 0
        )
        capacity_bytes = UNLIMITED if self.capacity_bytes is None else self.capacity_bytes - of_others
        return replay(model, capacity_bytes, settings)

    @property
    def allocated_bytes(self) -> float | None:
        """What the fullest device's allocator has given out at most, bytes; None likewise."""
        return self.device_memory and self.device_memory.allocated_bytes

    @property
    def reserved_bytes(self) -> float | None:
        """What that allocator has from the driver at most, bytes: replayed with journals, else estimated."""
        return self.device_memory and self.device_memory.reserved_bytes

    @property
    def fragmentation(self) -> float | None:
        """The share of the reserved bytes that were never allocated at once, in 0..1; None without journals."""
        memory = self.device_memory
        if memory is None or memory.replayed_bytes is None:
            return None
        return 1 - memory.allocated_bytes / memory.reserved_bytes


def replay(model: Any, capacity_bytes: float, settings: AllocatorSettings) -> AllocatorReplay:
    """Allocate and free what a rank's journal says.

    Args:
        model: the rank.
        capacity_bytes: what the driver can give.
        settings: the allocator's settings.
    """
    allocator = CachingAllocator(min(int(capacity_bytes), UNLIMITED), settings)
    rank = _Rank(model, allocator)
    rank.allocated([workspace_bytes_of(model._runtime_predictor)])
    changes = {place: list(found) for place, found in groupby(model.memory_journal, attrgetter("place"))}
    for place, sizes in enumerate([*_during_operations(model), ()]):
        borrowed = rank.between_operations(changes.get(place, ()))
        rank.during_operation(sizes)
        rank.free(borrowed)
    return AllocatorReplay(
        model._rank,
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        allocator.num_retries,
        rank.fits,
        settings,
    )


def _during_operations(model: Any) -> Iterator[Sequence[Sequence[int]]]:
    """Yield the bytes of the arrays that each operation of a rank takes for itself."""
    workload, rows = model._runtime_predictor.workload, model._log._rows
    units = getattr(workload, "units", ())
    for row in range(0, len(rows), STRIDE):
        typ, layer, num_samples = rows[row + TYP], rows[row + LAYER], len(rows[row + SAMPLES])
        if typ == "loss":
            logits_bytes = bytes_at_loss(workload, num_samples, model.parts_of_loss)
            yield [[round(logits_bytes * share) for share in _SHARES_AT_LOSS]] if logits_bytes else ()
        elif units and typ in ("backward", "backward_input"):
            work = workload.work(num_samples, model.pass_modes.get(row, USUAL))
            yield [[saved.num_bytes(work)] for saved in reversed(units[layer].saved) if saved.has_gradient]
        else:
            yield ()
