"""The answers of `answers` where Python runs in a browser: in the lab, by Pyodide.

A browser's Python has no sockets, so that an event loop wakes itself by a pipe. Pyodide says that its own event loop
runs while it calls Python; ranks would then get a thread of their own, which it does not have either. So it is told
otherwise meanwhile, by the function that asyncio has for writers of event loops.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from minitrain.learn.explorer import plain_numpy


class _PipeEnd:
    """An end of a pipe, with what an event loop asks of a socket that wakes it.

    Args:
        reading: the file to read from.
        writing: the file to write to.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def fileno(self) -> int:
        """Return the file that is ready when it was written to."""
        return self._reading

    def setblocking(self, flag: bool) -> None:
        """Do nothing: no read or write of a pipe waits here."""

    def recv(self, size: int) -> bytes:
        """Return what was written."""
        return os.read(self._reading, size)

    def send(self, data: bytes) -> int:
        """Write some bytes."""
        return os.write(self._writing, data)

    def close(self) -> None:
        """Close the files."""
        os.close(self._reading)
        os.close(self._writing)


def _pair(*_: Any) -> tuple[_PipeEnd, _PipeEnd]:
    """Return two ends that hear each other, as `socket.socketpair` does."""
    here, there = os.pipe(), os.pipe()
    return _PipeEnd(here[0], there[1]), _PipeEnd(there[0], here[1])


def prepare() -> None:
    """Put what is there in a browser into the places of what is not: pipes for sockets, plain arrays for NumPy."""
    if sys.platform == "emscripten":
        socket.socketpair = _pair  # type: ignore[assignment]  # the ends have what asyncio calls
    plain_numpy.install()


def answer(question: str, given: str, send: Callable[[str], object]) -> None:
    """Answer a question of the page.

    Args:
        question: one of `minitrain.learn.explorer.answers.ANSWERS`.
        given: what goes with it, as JSON.
        send: takes each message, as JSON.
    """
    answers = importlib.import_module("minitrain.learn.explorer.answers")
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        answers.answer(question, json.loads(given), lambda message: send(answers.line_of(message)))
    finally:
        asyncio._set_running_loop(running)


prepare()
