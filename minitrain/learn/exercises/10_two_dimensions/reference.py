"""The reference of exercise 10: Data x pipeline; read strategies/pp_dp.py."""

from minitrain.strategies.pp_dp import pp_dp

__all__ = ["pp_dp"]
