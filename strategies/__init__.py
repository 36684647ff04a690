"""The shipped strategies: one a file, one public coroutine each, written against `minitrain.lib` alone."""

import sys
from types import ModuleType
from typing import Any

from .ddp import ddp
from .gpipe import gpipe
from .one_f_one_b import one_f_one_b
from .single import single
from .zero1 import zero1
from .zero2 import zero2
from .zero3 import zero3

__all__ = ["ddp", "gpipe", "one_f_one_b", "single", "zero1", "zero2", "zero3"]


class _Shipped(ModuleType):
    """This package, callable: Python binds it as `minitrain.strategies`, over the function of the public API."""

    def __call__(self) -> dict[str, Any]:
        """Return the shipped strategies by name."""
        from minitrain.loading import strategies  # noqa: PLC0415  (it imports this package)

        return strategies()


sys.modules[__name__].__class__ = _Shipped
