"""The reference of exercise 09: Overlap the gather with compute; read strategies/zero3_prefetch.py."""

from minitrain.strategies.zero3_prefetch import zero3_prefetch

__all__ = ["zero3_prefetch"]
