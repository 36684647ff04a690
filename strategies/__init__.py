"""The shipped strategies: one a file, one public coroutine each.

May import: the rooms up to `search`, `lib` and `__init__`. Strategies call the public `Model` alone; they need the
other rooms for errors and schedules. Open `ddp` first, the simplest one on several ranks, then `one_f_one_b`, a
pipeline. Files that begin with an underscore have what several strategies share.
"""

import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from minitrain.lib import Model

from .chimera import chimera
from .ddp import ddp
from .ddp_overlap import ddp_overlap
from .deepseek_like import deepseek_like
from .diloco import diloco
from .dualpipe_v import dualpipe_v
from .fsdp import fsdp
from .gathered_context import gathered_context
from .gpipe import gpipe
from .hsdp import hsdp
from .interleaved_1f1b import interleaved_1f1b
from .interleaved_zero_bubble import interleaved_zero_bubble
from .local_sgd import local_sgd
from .looped_bfs import looped_bfs
from .megatron import megatron
from .moe import moe
from .one_f_one_b import one_f_one_b
from .packed_context_parallel import packed_context_parallel
from .pipedream_2bw import pipedream_2bw
from .powersgd_ddp import powersgd_ddp
from .pp_dp import pp_dp
from .pp_hsdp import pp_hsdp
from .pp_zero1 import pp_zero1
from .pp_zero3 import pp_zero3
from .ring_attention import ring_attention
from .single import single
from .zb_h1 import zb_h1
from .zb_h2 import zb_h2
from .zbv import zbv
from .zero1 import zero1
from .zero2 import zero2
from .zero3 import zero3
from .zero3_prefetch import zero3_prefetch

__all__ = [
    "chimera",
    "ddp",
    "ddp_overlap",
    "deepseek_like",
    "diloco",
    "dualpipe_v",
    "fsdp",
    "gathered_context",
    "gpipe",
    "hsdp",
    "interleaved_1f1b",
    "interleaved_zero_bubble",
    "local_sgd",
    "looped_bfs",
    "megatron",
    "moe",
    "one_f_one_b",
    "packed_context_parallel",
    "pipedream_2bw",
    "powersgd_ddp",
    "pp_dp",
    "pp_hsdp",
    "pp_zero1",
    "pp_zero3",
    "ring_attention",
    "single",
    "zb_h1",
    "zb_h2",
    "zbv",
    "zero1",
    "zero2",
    "zero3",
    "zero3_prefetch",
]


class _Strategies(ModuleType):
    """This module, which can be called: importing it puts it in the place of the function `minitrain.strategies`."""

    def __call__(self) -> dict[str, Callable[..., Awaitable[Model]]]:
        """Return the shipped strategies by name, as `minitrain.run.strategy_loading.strategies` does."""
        from minitrain.run.strategy_loading import strategies  # noqa: PLC0415  (it imports this module)

        return strategies()

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a strategy that calls it be sent to the processes of ranks."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Strategies
