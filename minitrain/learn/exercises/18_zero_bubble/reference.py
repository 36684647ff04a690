"""The reference of exercise 18: Zero bubble, with the backward split; read strategies/zb_h1.py."""

from minitrain.strategies.zb_h1 import zb_h1

__all__ = ["zb_h1"]
