"""The command line: it parses and prints; `minitrain.simulation` and `minitrain.comparison` do the work."""

from minitrain.cli.commands import app, main

__all__ = ["app", "main"]
