"""The reference of exercise 07: GPipe; read strategies/gpipe.py."""

from minitrain.strategies.gpipe import gpipe

__all__ = ["gpipe"]
