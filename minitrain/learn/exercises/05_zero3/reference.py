"""The reference of exercise 05: ZeRO-3; read strategies/zero3.py."""

from minitrain.strategies.zero3 import zero3

__all__ = ["zero3"]
