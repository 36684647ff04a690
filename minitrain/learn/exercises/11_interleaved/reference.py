"""The reference of exercise 11: Interleaved 1F1B; read strategies/interleaved_1f1b.py."""

from minitrain.strategies.interleaved_1f1b import interleaved_1f1b

__all__ = ["interleaved_1f1b"]
