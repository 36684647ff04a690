"""The shipped strategies: one a file, one public coroutine each, written against `minitrain.lib` alone."""

from .ddp import ddp
from .gpipe import gpipe
from .one_f_one_b import one_f_one_b
from .single import single
from .zero1 import zero1
from .zero2 import zero2
from .zero3 import zero3

__all__ = ["ddp", "gpipe", "one_f_one_b", "single", "zero1", "zero2", "zero3"]
