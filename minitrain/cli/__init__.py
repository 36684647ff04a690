"""The command line: it parses options and prints results; the other rooms do the work.

May import: the rooms up to `learn`, and `__init__`, whose public names it calls. Open `application` first: the table
of all commands, each of which is imported when it is called, and who waits for one with little memory.

| module | what it does |
|---|---|
| `commands` | `minitrain run`, `compare`, `prove`, `goodput`, `plan`, `explore` and `lab` |
| `searches`, `validate` | `minitrain sweep`, `tune` and `validate` |
| `models` | `minitrain models` and `strategies`: what is shipped |
| `train` | `minitrain train` and `diff` |
| `trace` | `minitrain trace`: saved runs, drawn, exported and under noise |
| `hw`, `platform` | `minitrain hw`, `platform` and `solve` |
| `learn` | `minitrain learn`, for learners and for teachers |
| `generation` | how a function becomes a command |
| `options` | options that several commands share, and how they become arguments of `simulate` |
| `output`, `failures` | what is printed; exit codes and messages of what goes wrong |
"""

from minitrain.cli.application import app, main

__all__ = ["app", "main"]
