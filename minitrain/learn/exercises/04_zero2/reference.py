"""The reference of exercise 04: ZeRO-2; read strategies/zero2.py."""

from minitrain.strategies.zero2 import zero2

__all__ = ["zero2"]
