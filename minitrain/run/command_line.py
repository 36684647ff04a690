"""A run as a command: parameters of `simulate` as options of `minitrain run`, so that its figures can be had again.

`OPTIONS` is the one table of them; the command line reads it too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from minitrain.run.parameters import DEFAULTS
from minitrain.run.strategy_loading import split_options

OPTIONS: Mapping[str, str] = {
    "workload": "--model",
    "seq_len": "--seq",
    "precision": "--precision",
    "world_size": "--world-size",
    "num_layers": "--layers",
    "global_batch_size": "--batch",
    "shares": "--shares",
    "hardware": "--hw",
    "network": "--network",
    "fidelity": "--fidelity",
    "platform": "--platform",
    "faults": "--fault",
    "recovery": "--recovery",
    "without": "--without",
    "prices": "--prices",
    "strict": "--strict",
    "strict_memory": "--strict-memory",
    "log": "--log",
    "fold": "--fold",
}
"""The parameters of a run that the command line has, by name."""

_LISTS = ("shares", "without")  # values between commas


def command_of(strategy: str, given: Mapping[str, Any]) -> str:
    """Return the command that simulates a strategy, or a remark where only Python can.

    Args:
        strategy: its name, with options or without.
        given: parameters of `simulate`, and options of the strategy; defaults may be left out.

    >>> command_of("pp_dp:pp=4", {"pp": 4, "world_size": 16, "num_layers": 32, "fidelity": "kernels", "depth": 2})
    'minitrain run pp_dp:pp=4 --world-size 16 --fidelity kernels -o depth=2'
    >>> command_of("ddp", {"placement": [0, 1]})
    '# in Python only: placement has no option'
    """
    own = split_options(strategy)[1]
    words = ["minitrain", "run", strategy]
    for name, value in given.items():
        if name not in DEFAULTS:
            words += [] if name in own else _strategy_option(name, value)
        elif not _is_default(name, value):
            if not _is_text(name, value):
                return f"# in Python only: {name} has no option{' for such a value' if name in OPTIONS else ''}"
            words += _words(name, value)
    return shlex.join(words)


def _strategy_option(name: str, value: Any) -> Iterator[str]:
    """Yield an option of a strategy."""
    yield from ("--microbatch", str(value)) if name == "microbatch_size" else ("-o", f"{name}={value}")


def _is_default(name: str, value: Any) -> bool:
    """Return whether a parameter need not be said."""
    return type(value) is type(DEFAULTS[name]) and bool(value == DEFAULTS[name])


def _is_text(name: str, value: Any) -> bool:
    """Return whether the command line can say a parameter."""
    if name not in OPTIONS:
        return False
    if name in _LISTS:
        return isinstance(value, list | tuple) and all(isinstance(one, str | int) for one in value)
    return isinstance(value, str | int | PathLike)


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield a parameter as the command line says it."""
    option = OPTIONS[name]
    if isinstance(value, bool):
        yield option if value else option.replace("--", "--no-", 1)
    else:
        yield from (option, ",".join(map(str, value)) if name in _LISTS else str(value))
