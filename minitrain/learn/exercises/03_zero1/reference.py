"""The reference of exercise 03: ZeRO-1; read strategies/zero1.py."""

from minitrain.strategies.zero1 import zero1

__all__ = ["zero1"]
