"""What a rank sends, as records: messages to others, moves to host memory and back, and from there to the storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import final


@final
@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """A transfer between two memories, on a stream of its own for each partner and direction.

    Args:
        name: of its events, and of the kind of its stream.
        submits: the method of a rank that submits it.
        partner: whom or what it goes to or comes from, in words.
        kernel: its name, as Holistic Trace Analysis knows it.
        chakra: the type of its node in et_def.proto of MLCommons Chakra.
        color, ink, dark, dark_ink: its looks on pages: bar and text, and in dark mode if these differ.
        of_host: whether it is between host memory and a device, or the storage.
        result_is_new: whether the result takes memory of the device.
        torch, jax: what comes nearest to it there.
    """

    name: str
    submits: str
    partner: str
    kernel: str
    chakra: int
    color: str
    _: KW_ONLY
    ink: str = "#111111"
    dark: str = ""
    dark_ink: str = ""
    of_host: bool = False
    result_is_new: bool = False
    torch: str = ""
    jax: str = ""


_IN_ORDER = (
    Transfer(
        "send", "_send", "to rank", "ncclDevKernel_Send", 5, "#332288",
        ink="#ffffff", dark="#6F5FE8", dark_ink="#ffffff",
        torch="torch.distributed.isend(activation, dst)", jax='jax.lax.ppermute(activation, "pp", pairs)',
    ),
    Transfer(
        "recv", "_receive", "from rank", "ncclDevKernel_Recv", 6, "#8C7BC8",
        ink="#ffffff", dark="#B9ACEB", dark_ink="#111111", result_is_new=True,
        torch="torch.distributed.irecv(activation, src)", jax='jax.lax.ppermute(activation, "pp", pairs)',
    ),
    Transfer(
        "offload", "_offload", "to the host", "Memcpy DtoH", 3, "#999933", of_host=True,
        torch='torch.Tensor.to(state, "cpu", non_blocking=True)', jax="jax.device_put(state, host)",
    ),
    Transfer(
        "fetch", "_fetch", "from the host", "Memcpy HtoD", 2, "#DDCC77", of_host=True, result_is_new=True,
        torch='torch.Tensor.to(state, "cuda", non_blocking=True)', jax="jax.device_put(state, device)",
    ),
    Transfer(
        "write", "_write", "to the storage", "Checkpoint write", 3, "#5A3A22", ink="#ffffff", dark="#A8744A",
        dark_ink="#111111", of_host=True, torch="torch.distributed.checkpoint.async_save(state)",
        jax="orbax.checkpoint.AsyncCheckpointer.save(path, state)",
    ),
)  # fmt: skip
TRANSFERS: Mapping[str, Transfer] = MappingProxyType({record.name: record for record in _IN_ORDER})
"""All transfers, by name."""
