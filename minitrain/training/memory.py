"""How much memory a rank's tensors take, as its allocator says.

On a GPU that is torch's own count, with what an operation takes while it computes. On a CPU it is what glibc's `malloc`
has given out and not got back, read after each operation: every tensor that is held then, what autograd has kept, and
buffers of gloo; not what an operation takes and gives back. Elsewhere it is what the process occupies.

Of what kinds it is, the stores say: the storages of what their tensors carry and have kept for backward, each once.
What the allocator counts beside them are buffers: results under way, messages, and what torch holds for itself.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from minitrain.engine.memory_by_kind import MEMORY_KINDS, kind_of
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


def held_by_kind(model: Any, made: Any = ()) -> dict[str, int]:
    """Return the bytes of what a rank holds, by kind: in its stores, and what it has just made; no buffers."""
    found = dict.fromkeys(MEMORY_KINDS, 0)
    seen: set[int] = set()

    def count(values: torch.Tensor, kind: str) -> torch.Tensor:
        storage = values.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found[kind] += storage.nbytes()
        return values

    in_stores = [tensor for store in model.storage() for tensor in store.values()]
    for tensor in (*in_stores, *(made if isinstance(made, Sequence) else [made])):
        is_output = getattr(tensor, "samples", None) is not None and tensor.layer == model.num_layers
        kind = "logits" if is_output else kind_of(tensor)
        moved(getattr(tensor, "_content", None), partial(count, kind=kind))
    return found
