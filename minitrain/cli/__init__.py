"""The command line: it parses and prints; `minitrain.run.simulation` and `minitrain.run.comparison` do the work."""

from minitrain.cli.commands import app, main

__all__ = ["app", "main"]
