"""The reference of exercise 02: Data parallelism; read strategies/ddp.py."""

from minitrain.strategies.ddp import ddp

__all__ = ["ddp"]
