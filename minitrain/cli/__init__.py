"""The command line: it parses options and prints results; the other rooms do the work.

May import: the rooms up to `grading`, and `__init__`, whose public names it calls. Open `commands` first: `minitrain
run` and `compare`. `options` are the options that commands share, and `failures` the exit codes and
messages of what goes wrong.
"""

from minitrain.cli.commands import app, main

__all__ = ["app", "main"]
