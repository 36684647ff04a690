"""The reference of exercise 08: 1F1B; read strategies/one_f_one_b.py."""

from minitrain.strategies.one_f_one_b import one_f_one_b

__all__ = ["one_f_one_b"]
