"""What a device's memory holds at its fullest, as an allocator and a driver count it: `run.device_memory`.

A run's own peak is what its tensors need: weights, gradients, optimizer states, what forward keeps, what is gathered,
unsharded or in flight. On a device there is more:

| account | what | bytes |
|---|---|---|
| temporaries | at the loss: copies of the logits in 16 bits, exponentials, gradients | 8 a logit, and 4 that are held |
| workspace | what matrix multiplications use for partial sums | 8.125 MiB |
| rounding | every array takes a multiple of 512 bytes | 256 an array of a weight |
| **allocated** | the sum so far | |
| **reserved** | what the allocator holds beside, in blocks that fit nothing | 15 % more, in steps of 2 MiB |
| buffers | what a communication library keeps for each group of ranks | 0.2 GiB a group |
| context | the driver's own, and the code of kernels | 0.5 GiB |
| **total** | what nvidia-smi shows | |

Sources: the loss, Megatron-LM's `vocab_parallel_cross_entropy` (logits in 16 bits, in single precision, their
exponentials, and the gradient); 512 bytes and 2 MiB, PyTorch's `CUDACachingAllocator` (kMinBlockSize, kSmallBuffer);
the workspace, PyTorch's default for cuBLAS (":4096:2:16:8"). Reserved memory is 10 to 20 % above allocated in published
tables; buffers and context together are 0.2 to 1 GiB. These last three are estimates, and fitted to no table.

Left out: arrays of less than a layer that live for a kernel, and how long a block stays unusable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from minitrain.events import COLLECTIVES, STRIDE
from minitrain.workloads.workload import USUAL

if TYPE_CHECKING:
    from minitrain.events import Event

BLOCK_BYTES = 512
SEGMENT_BYTES = 2 * 2**20
WORKSPACE_BYTES = int(8.125 * 2**20)
TEMPORARY_BYTES_A_LOGIT = 8
RESERVE_SHARE = 0.15
BUFFER_BYTES_A_GROUP = int(0.2 * 2**30)
CONTEXT_BYTES = 2**29

_ARRAYS_OF_A_WEIGHT = 5  # parameter, gradient, and three of the optimizer's


@final
@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What the device of one rank holds when it is fullest, in bytes.

    Args:
        rank: whose device it is.
        held_bytes: what the run's tensors take at that moment.
        temporary_bytes: what the loss takes beside them.
        workspace_bytes: what matrix multiplications use.
        rounding_bytes: what arrays take for being multiples of a block.
        num_groups: groups of ranks that the rank communicates in.
    """

    rank: int
    held_bytes: float
    temporary_bytes: float = 0.0
    workspace_bytes: float = WORKSPACE_BYTES
    rounding_bytes: float = 0.0
    num_groups: int = 0

    @property
    def allocated_bytes(self) -> float:
        """Return what a framework's allocator has given out."""
        return self.held_bytes + self.temporary_bytes + self.workspace_bytes + self.rounding_bytes

    @property
    def reserved_bytes(self) -> float:
        """Return what the allocator has from the driver."""
        wanted = self.allocated_bytes * (1 + RESERVE_SHARE)
        return -(-wanted // SEGMENT_BYTES) * SEGMENT_BYTES

    @property
    def buffer_bytes(self) -> float:
        """Return what the communication library keeps."""
        return self.num_groups * BUFFER_BYTES_A_GROUP

    @property
    def context_bytes(self) -> float:
        """Return what the driver keeps."""
        return CONTEXT_BYTES

    @property
    def total_bytes(self) -> float:
        """Return what is taken of the device, as nvidia-smi shows it."""
        return self.reserved_bytes + self.buffer_bytes + self.context_bytes

    def by_kind(self) -> dict[str, float]:
        """Return the accounts that add up to the total, bytes."""
        return {
            "held": self.held_bytes,
            "temporaries": self.temporary_bytes,
            "workspace": self.workspace_bytes,
            "rounding": self.rounding_bytes,
            "reserve": self.reserved_bytes - self.allocated_bytes,
            "buffers": self.buffer_bytes,
            "context": self.context_bytes,
        }


class DeviceMemoryFigures:
    """What a run says of its devices' memories.

    Attributes:
        bytes_per_element: size of an element.
    """

    bytes_per_element: int

    if TYPE_CHECKING:

        @property
        def class_models(self) -> Sequence[Any]:
            """The models of the ranks, or of the classes of ranks that are alike."""
            ...

        @property
        def class_logs(self) -> Sequence[Sequence[Event]]:
            """Their events."""
            ...

    @cached_property
    def device_memory(self) -> DeviceMemory | None:
        """The fullest device's memory, as allocator and driver count it; None for a run that was read from a file.

        Raises:
            UsageError: the run kept totals instead of events.
        """
        ranks = zip(self.class_models, self.class_logs, strict=False)
        found = (_of_rank(model, log, self.bytes_per_element) for model, log in ranks)
        return max(found, key=lambda memory: memory.total_bytes, default=None)

    @property
    def allocated_bytes(self) -> float | None:
        """What the fullest device's allocator has given out, bytes; None likewise."""
        return self.device_memory and self.device_memory.allocated_bytes

    @property
    def reserved_bytes(self) -> float | None:
        """What that allocator has from the driver, bytes; None likewise."""
        return self.device_memory and self.device_memory.reserved_bytes


def _of_rank(model: Any, log: Sequence[Event], bytes_per_element: int) -> DeviceMemory:
    """Return the memory of one rank's device."""
    workload, events = model._runtime_predictor.workload, list(log)
    held_bytes, temporary_bytes = model.peak_memory * bytes_per_element, 0.0
    for place, event in enumerate(events):
        if event.typ == "loss":
            mode = model.pass_modes.get(place * STRIDE, USUAL)
            logits_bytes = TEMPORARY_BYTES_A_LOGIT * _num_logits(workload, len(event.samples), mode.num_parts)
            held_at_loss = event.memory * bytes_per_element
            if held_at_loss + logits_bytes > held_bytes + temporary_bytes:
                held_bytes, temporary_bytes = held_at_loss, logits_bytes
    return DeviceMemory(
        rank=model.rank,
        held_bytes=held_bytes,
        temporary_bytes=temporary_bytes,
        rounding_bytes=BLOCK_BYTES / 2 * _num_arrays(workload, events),
        num_groups=_num_groups(events) if model.world_size > 1 else 0,
    )


def _num_logits(workload: Any, num_samples: int, num_parts: int) -> float:
    """Return how many logits a rank has at a loss; none where the workload has no vocabulary."""
    vocab_size: int = getattr(getattr(workload, "model", None), "vocab_size", 0)
    return num_samples * workload.seq_len * vocab_size / num_parts if vocab_size else 0.0


def _num_arrays(workload: Any, events: Iterable[Event]) -> int:
    """Return how many arrays a rank keeps of its weights."""
    units = getattr(workload, "units", None)
    layers = {event.layer for event in events if event.typ == "load_weights" and event.layer is not None}
    return _ARRAYS_OF_A_WEIGHT * sum(1 if units is None else len(units[layer].weights) for layer in layers)


def _num_groups(events: Iterable[Event]) -> int:
    """Return in how many groups of several ranks a rank communicates; its pipeline is one."""
    groups: set[Any] = set()
    for event in events:
        if event.peer is not None:
            groups.add("pipeline")
        elif event.typ in COLLECTIVES and (event.group is None or len(event.group) > 1):
            groups.add(event.group)
    return len(groups)
