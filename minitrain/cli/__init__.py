"""The command line: it parses options and prints results; the other rooms do the work.

May import: the rooms up to `grading`, and `__init__`, whose public names it calls. Open `application` first: the table
of all commands, each of which is imported when it is called. `commands` has `minitrain run` and `compare`. `options`
are the options that commands share, and `failures` the exit codes and messages of what goes wrong.
"""

from minitrain.cli.application import app, main

__all__ = ["app", "main"]
