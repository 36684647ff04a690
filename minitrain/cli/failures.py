"""How a command ends when something goes wrong: one message on stderr, and an exit code.

0: success. 1: a run failed (a broken law, a deadlock, out of memory with --strict-memory, an exception of the
strategy), or a result could not be written. 2: wrong usage (an unknown strategy, a bad value, a bad config). 130:
Ctrl-C, or SIGTERM, as a scheduler of jobs sends it.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from minitrain import errors
from minitrain.plain_text import printable

FAILED, USAGE, INTERRUPTED = 1, 2, 130

_LONGEST_MESSAGE = 20_000  # characters
_STDERR = 2
_WITHOUT_MEMORY = f"minitrain: {errors.NO_MEMORY}\n".encode()


class RunFailedError(Exception):
    """A strategy failed while it ran; `__cause__` is its error."""


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Turn whatever a strategy raises, even `SystemExit`, into a `RunFailedError`; wrong usage stays what it is."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, errors.UsageError | errors.HardwareConfigError) and not hasattr(error, "__notes__"):
            raise  # it is no rank's: what a rank raises has a note of it
        raise RunFailedError from error


@contextlib.contextmanager
def saying_what_is_kept(kept: Callable[[], str]) -> Iterator[None]:
    """Say on Ctrl-C or SIGTERM what is left of the work, before it ends the command.

    Args:
        kept: says it, when it is asked.
    """
    try:
        yield
    except KeyboardInterrupt:
        print_error(f"interrupted; {kept()}")
        raise


class Commands(TyperGroup):
    """The commands, with the messages and exit codes of this module."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **extra: Any) -> Any:
        """Run a command and leave with its exit code."""
        extra["standalone_mode"] = False  # typer raises errors instead of printing them
        arguments = list(sys.argv[1:] if args is None else args)
        _replace_unprintable_characters()
        before, hook = _interrupt_at_once(), sys.unraisablehook
        sys.unraisablehook = partial(errors.say_ignored, hook)
        try:
            code = super().main(arguments, prog_name, **extra)
            if sys.stdout is not None:
                sys.stdout.flush()  # a failure must be raised here, not at exit
        except (KeyboardInterrupt, typer.Abort):  # older versions of typer turn the former into the latter
            code = INTERRUPTED
        except BrokenPipeError:
            code = _discard_further_output()
        except Exception as error:
            try:
                code = report(error, debug="--debug" in arguments)
            except (MemoryError, SystemError):  # there is none even for words
                error.__traceback__, code = None, FAILED  # which lets go of what was going on
                os.write(_STDERR, _WITHOUT_MEMORY)
        finally:
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)
        sys.exit(code)


def _interrupt_at_once() -> dict[int, Any]:
    """Let Ctrl-C and SIGTERM end a strategy at once, also between two `await`s, for which asyncio would wait.

    Returns:
        The handlers before; none outside of the main thread, where they cannot be changed.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}


def _interrupt(_signal: int, _frame: Any) -> None:
    """Raise as Python's default handler does, which asyncio would replace."""
    raise KeyboardInterrupt


def _replace_unprintable_characters() -> None:
    """Print what is like a character that the terminal cannot show, or "?", instead of failing."""
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="plain")  # type: ignore[union-attr]  # suppressed where it has no such method
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # in no columns rich would print nothing


_LIKE = {"★": "*", "✓": "v", "µ": "u", "≈": "~", "·": "-", "→": ">", "↑": "^"}


def _plain(error: Any) -> tuple[str, int]:
    """Return what is printed for characters that cannot be, and where printing goes on, as `codecs` asks."""
    return "".join(_LIKE.get(char, "?") for char in error.object[error.start : error.end]), error.end


def _discard_further_output() -> int:
    """Discard what is still to be printed, so that Python does not fail when it flushes stdout at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # where stdout is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def report(error: Exception, *, debug: bool) -> int:
    """Print one message for an error, with its traceback if asked, and return the exit code."""
    cause = error.__cause__ if isinstance(error, RunFailedError) and error.__cause__ is not None else error
    if debug:
        traceback.print_exception(cause)
    format_message = getattr(error, "format_message", None)  # of the parser's own errors
    if format_message is not None:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help, or nothing where that was printed
            print(format_message())
        else:
            print_error(_with_help(f"{format_message().rstrip('.')}{_given(error)}", error))
        return int(getattr(error, "exit_code", USAGE))
    is_of_output = isinstance(error, OSError) and error.filename is None and not errors.lacks_memory(error)
    unprinted = error.strerror if isinstance(error, OSError) and is_of_output else None
    if unprinted:
        _discard_further_output()
    print_error(f"the output cannot be written: {unprinted}" if unprinted else errors.message_of(cause))
    return USAGE if isinstance(error, errors.MinitrainError) else FAILED


def say_never_awaited() -> None:
    """Let Python say in one line that a communication was called without `await`, until the process ends."""
    shown: Any = warnings.showwarning

    def show(message: Any, category: Any, filename: str, lineno: int, *more: Any, **named: Any) -> None:
        found = re.fullmatch("coroutine '(?:.*[.])?(.*)' was never awaited", str(message))
        if found is None:
            shown(message, category, filename, lineno, *more, **named)
        else:
            place = "" if filename == "sys" else f" ({filename}:{lineno})"
            print_error(f"{found[1]} was called and never awaited{place}; write `await` before the call")

    warnings.showwarning = show


def _given(error: Exception) -> str:
    """Return in words what the parser was given, where its message does not say it."""
    details = getattr(error.__cause__, "errors", None)  # of pydantic, by which newer versions of typer parse
    return "" if details is None else f", got {details()[0]['input']!r:.80}"


def _with_help(message: str, error: Exception) -> str:
    """Return a message of the parser with a hint at the help of the command that could not be parsed."""
    command = getattr(getattr(error, "ctx", None), "command_path", "minitrain")
    return f"{message}{' See' if message.endswith('?') else '; see'} `{command} --help`"


def print_error(message: str) -> None:
    """Print a message on stderr."""
    more = len(message) - _LONGEST_MESSAGE
    cut = f"{message[:_LONGEST_MESSAGE]}... ({more} more characters)" if more > 0 else message
    print(f"minitrain: {printable(cut)}", file=sys.stderr)
