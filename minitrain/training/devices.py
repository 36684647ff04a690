"""Where a rank computes: on a CPU or a GPU, how it tells time there, and how tensors move to the host and back.

On a CPU an operation is over when its call returns. On a GPU it is only queued then: moments are events in the queue,
which have times once it was worked off (CUDA's event timing). Copies have a stream of their own and pinned memory, so
that they pass beside what computes.

How much memory a rank's tensors take, as its allocator says.

On a GPU that is torch's own count, with what an operation takes while it computes. On a CPU it is what glibc's `malloc`
has given out and not got back, read after each operation: every tensor that is held then, what autograd has kept, and
buffers of gloo; not what an operation takes and gives back. Elsewhere it is what the process occupies.

Of what kinds it is, the stores say: the storages of what their tensors carry and have kept for backward, each once.
What the allocator counts beside them are buffers: results under way, messages, and what torch holds for itself.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cache, partial
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any, Self

import torch

from minitrain.engine.stores import MEMORY_KINDS, kind_of
from minitrain.errors import UsageError
from minitrain.run.analysis.labels import GIB
from minitrain.training.contents import moved

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    """The fields of glibc's `struct mallinfo2` (malloc.h)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())


@cache
def _mallinfo2() -> Any:
    """Return glibc's function, or None where there is none: another library, or glibc before 2.33."""
    found = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if found is not None:
        found.restype = _Mallinfo2
    return found


def gpu_bytes(device: torch.device) -> Callable[[], int]:
    """Return what says the most bytes that a GPU's allocator has given out since now."""
    torch.cuda.reset_peak_memory_stats(device)
    return lambda: torch.cuda.max_memory_allocated(device)


def host_bytes() -> Callable[[], int]:
    """Return what says how many bytes this process holds now."""
    mallinfo2 = _mallinfo2()
    if mallinfo2 is None:
        return process_bytes

    def in_use() -> int:
        found = mallinfo2()
        return int(found.uordblks + found.hblkhd)

    return in_use


def process_bytes() -> int:
    """Return the most memory that this process has ever occupied."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def held_by_kind(model: Any, made: Any = (), device: torch.device | None = None) -> dict[str, int]:
    """Return the bytes of what a rank holds on a device, by kind: in its stores, and just made; no buffers."""
    found = dict.fromkeys(MEMORY_KINDS, 0)
    seen: set[int] = set()

    def count(values: torch.Tensor, kind: str) -> torch.Tensor:
        storage = values.untyped_storage()
        if storage.data_ptr() not in seen and values.device == (device or CPU):
            seen.add(storage.data_ptr())
            found[kind] += storage.nbytes()
        return values

    in_stores = [tensor for store in model.storage() for tensor in store.values()]
    for tensor in (*in_stores, *(made if isinstance(made, Sequence) else [made])):
        is_output = getattr(tensor, "samples", None) is not None and tensor.layer == model.num_layers
        kind = "logits" if is_output else kind_of(tensor)
        moved(getattr(tensor, "_content", None), partial(count, kind=kind))
    return found


CPU = torch.device("cpu")

WITHOUT_TAGS = {"nccl"}
"""The backends whose messages are received in the order in which they are sent, whatever their tags."""

Moment = Any
"""A time, s; on a GPU an event whose time is known at the end of the step."""


class Cpu:
    """A rank that computes on the CPU: its methods do what those of `Gpu` say."""

    device = CPU
    begin = now = staticmethod(perf_counter)
    counting = staticmethod(host_bytes)

    def end(self) -> None:
        """Wait for nothing: what was called is done."""

    def seconds(self, moment: float) -> float:
        """Return a moment."""
        return moment

    def copied(self, content: Any, *, to_host: bool) -> tuple[Any, Sequence[Any], float]:  # noqa: ARG002  (both are one memory)
        """Return a copy of a content."""
        return moved(content, torch.clone), (), perf_counter()


class _Copy:
    """A copy under way, waited for as works of torch.distributed are: by what is queued after it."""

    __slots__ = ("_end",)

    def __init__(self, end: Any) -> None:
        self._end = end

    def is_completed(self) -> bool:
        """Return whether nobody needs to wait."""
        return bool(self._end.query())

    def finish(self) -> None:
        """Wait for the end."""
        self._end.synchronize()

    def wait(self) -> None:
        """Let what computes wait."""
        torch.cuda.current_stream().wait_event(self._end)


class Written:
    """A content on its way from host memory to the storage, waited for as works of torch.distributed are.

    Args:
        writer: what writes, one content after the other.
        content: in host memory.
        copies: on whose way it still may be.
    """

    __slots__ = ("_written",)

    def __init__(self, writer: Executor, content: Any, copies: Sequence[Any]) -> None:
        self._written = writer.submit(_write, content, copies)

    def get_future(self) -> Self:
        """Return what tells the end."""
        return self

    def then(self, note: Callable[[Any], None]) -> None:
        """Call something at the end."""
        self._written.add_done_callback(note)

    def is_completed(self) -> bool:
        """Return whether nobody needs to wait."""
        return self._written.done()

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            OSError: it could not be written.
        """
        self._written.result()


def _write(content: Any, copies: Sequence[Any]) -> None:
    """Write a content to a file until the disk has it, and remove it."""
    for copy in copies:
        copy.finish()
    with TemporaryFile() as file:

        def put(values: torch.Tensor) -> torch.Tensor:
            file.write(values.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
            return values

        moved(content, put)
        file.flush()
        os.fsync(file.fileno())


class Gpu:
    """A rank that computes on a GPU.

    Args:
        device: which.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        torch.cuda.set_device(device)
        self._copies = torch.cuda.Stream()

    def begin(self) -> float:
        """Begin a step: an event that the host has waited for is a moment of its clock too."""
        torch.cuda.synchronize()
        self._zero = self.now()
        self._zero.synchronize()
        self._zero_s = perf_counter()
        return self._zero_s

    def end(self) -> None:
        """Wait until all that was queued is done."""
        torch.cuda.synchronize()

    def now(self) -> Any:
        """Return an event that is recorded in the stream which is current."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, moment: Any) -> float:
        """Return when an event was, s."""
        return self._zero_s + float(self._zero.elapsed_time(moment)) * 1e-3

    def copied(self, content: Any, *, to_host: bool) -> tuple[Any, Sequence[Any], Any]:
        """Return a copy on the host, in pinned memory, or back, what must be waited for before it is used, and its end.

        It passes beside what computes.
        """
        computing = torch.cuda.current_stream()
        self._copies.wait_stream(computing)
        with torch.cuda.stream(self._copies):
            made = moved(content, self._to_host if to_host else partial_to(self.device, computing))
            end = self.now()
        return made, [_Copy(end)], end

    def _to_host(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy in pinned memory; the original is not overwritten before it is made."""
        if values.is_cuda:
            values.record_stream(self._copies)
        return torch.empty_like(values, device=CPU, pin_memory=True).copy_(values, non_blocking=True)

    def counting(self) -> Callable[[], int]:
        """Return what says the most bytes that were held since now."""
        return gpu_bytes(self.device)


Place = Cpu | Gpu
"""Where a rank computes."""


def partial_to(device: torch.device, used_by: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what copies tensors to a device, for the use of a stream."""

    def to_device(values: torch.Tensor) -> torch.Tensor:
        made = values.to(device, non_blocking=True, copy=True)
        made.record_stream(used_by)
        return made

    return to_device


def place_of(device: str) -> Place:
    """Return where a rank computes: "cpu", or "cuda:0" and so on."""
    found = torch.device(device)
    return Gpu(found) if found.type == "cuda" else Cpu()


def require_gpus(num_here: int) -> None:
    """Require a GPU for each rank of this machine, which nccl needs.

    Raises:
        UsageError: there are fewer, or torch was built without them.
    """
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        raise UsageError(
            f"backend='nccl' needs NVIDIA GPUs and a torch built for them, and torch {torch.__version__} finds none "
            "here; use backend='gloo', which trains on CPUs",
            backend="nccl",
        )
    if num_here > (found := torch.cuda.device_count()):
        raise UsageError(
            f"backend='nccl' needs a GPU for each rank, and here are {found} for {num_here}; use fewer ranks, or "
            "backend='gloo' on CPUs",
            backend="nccl",
        )


def require_gpu_memory(peaks: Sequence[float]) -> None:
    """Require that each rank's tensors fit into its GPU.

    Args:
        peaks: of each rank here, bytes, as simulated.

    Raises:
        UsageError: they do not.
    """
    for device, peak in enumerate(peaks):
        if peak > (size := torch.cuda.get_device_properties(device).total_memory):
            message = (
                f"a rank needs {peak / GIB:.2f} GiB for its tensors, as simulated, and GPU {device} has "
                f"{size / GIB:.2f} GiB; use a smaller model or more ranks that divide it, or force=True (--force)"
            )
            raise UsageError(message, needed_bytes=peak, free_bytes=size)
