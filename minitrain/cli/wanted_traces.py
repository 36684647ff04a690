"""Which files are written and how ranks are folded, by --trace, --log, --strict and --fold together."""

from __future__ import annotations

from enum import Enum

from minitrain.errors import UsageError
from minitrain.run.command_line import OPTIONS
from minitrain.run.exclusions import AUTO, EXCLUSIONS
from minitrain.run.parameters import LOGS


class Traces(Enum):
    """What is written of a run: nothing, its page alone, or page, Chrome trace and event log."""

    NONE = 0
    PAGES = 1
    ALL = 2


def folding(fold: bool | None) -> bool | str:
    """Return the parameter of `simulate` for --fold, --no-fold or neither."""
    return AUTO if fold is None else fold


def wanted_traces(trace: bool | None, log: str, *, strict: bool, fold: bool | None) -> Traces:
    """Return which traces are to be written: all where events are kept, and pages alone where ranks are folded.

    Of a folded run, --trace asks for the files that have every rank.

    Raises:
        UsageError: there is no such log, or another option needs every event.
    """
    if log not in LOGS:
        raise UsageError(f"--log must be full or summary, got {log!r}")
    excluded = EXCLUSIONS["log"].found({"log": log, "memory_by_kind": trace, "strict": strict})
    for name, option in (("memory_by_kind", "--trace"), ("strict", OPTIONS["strict"])):
        if name in excluded:
            raise UsageError(f"{option} needs every event, but --log {log} keeps totals; leave one out")
    if fold and log != "full":
        raise UsageError(f"--fold does not go with --log {log}; leave one out")
    if EXCLUSIONS["fold"].found({"fold": fold, "strict": strict}):
        raise UsageError(
            f"{OPTIONS['strict']} needs every rank, but --fold simulates ranks that do the same once; leave one out"
        )
    if log != "full" or trace is False:
        return Traces.NONE
    return Traces.PAGES if fold and trace is None else Traces.ALL
