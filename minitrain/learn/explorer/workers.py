"""Processes that answer the questions of the explorer's page, one at a time each, and that can be stopped at any time.

A simulation does not yield, so a long one is stopped by ending its process. A spare one stands ready, since a process
needs a second to import what it answers with. Each ends when the pipe to its parent closes, whatever becomes of that.
The server's event loop watches the pipes: a thread that waits for one would keep the server from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncGenerator, Mapping
from multiprocessing.connection import Connection
from typing import Any, final

from minitrain.errors import NO_MEMORY, lacks_memory
from minitrain.run.worker_processes import (
    LOOK_S,
    SparedProcess,
    StuckProcesses,
    WorkerEndedError,
    begin_work,
    end_without_memory,
    limit_bytes,
    why_ended,
)

MOST = 8
"""Processes at once; further questions wait."""
SPARE = 2
"""Processes that are kept though nothing is asked."""


@final
class Worker:
    """One process."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self._process = SparedProcess(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        """The number of its process."""
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether the process is there."""
        return self._process.is_alive()

    def ask(self, question: str, given: Mapping[str, Any]) -> None:
        """Send a question."""
        with contextlib.suppress(OSError):  # the process has ended; who waits for its answer learns of it
            self._pipe.send((question, given))

    async def next_message(self) -> dict[str, Any] | None:
        """Wait for the next message of the answer; None at its end.

        Raises:
            WorkerEndedError: the process ended.
        """
        loop, has_come, file = asyncio.get_running_loop(), asyncio.Event(), self._pipe.fileno()
        loop.add_reader(file, has_come.set)
        try:
            await self._wait_for(has_come)
        finally:
            loop.remove_reader(file)
        try:
            message: dict[str, Any] | None = self._pipe.recv()  # a process sends all of a message at once
        except (EOFError, OSError):
            why = why_ended(limit_bytes())
            raise WorkerEndedError(
                f"the simulation was stopped, or its process ended ({why}); change a knob, or try again"
            ) from None
        return message

    async def _wait_for(self, has_come: asyncio.Event) -> None:
        """Wait for a message; where memory is limited, end the process if it is stuck."""
        stuck = StuckProcesses()
        while not has_come.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(has_come.wait(), None if limit_bytes() is None else LOOK_S)
            stuck.end(self.pid or 0)

    def kill(self) -> None:
        """Stop the process; who waits for a message learns of it."""
        self._process.kill()

    def end(self) -> None:
        """End the process at once; its pipe closes when nobody waits for it any more."""
        self._process.kill()
        self._process.join()


@final
class Workers:
    """All processes of a server; it is used from one event loop."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._places = asyncio.Semaphore(MOST)
        self._is_closed = False

    def warm(self) -> None:
        """Start the spare ones, as far as there is memory."""
        with contextlib.suppress(WorkerEndedError):
            while len(self._idle) < SPARE and not self._is_closed:
                self._idle.append(self._started())

    def _free(self) -> Worker:
        """Return a process that is idle, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_running():
                return worker
            self._all.discard(worker)
        return self._started()

    def _started(self) -> Worker:
        try:
            worker = Worker()
        except (OSError, MemoryError) as error:
            if not lacks_memory(error):
                raise
            raise WorkerEndedError(f"no process can be started for the simulation: {NO_MEMORY}") from None
        self._all.add(worker)
        return worker

    async def answer(
        self, question: str, given: Mapping[str, Any], stop: asyncio.Event
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the messages of an answer; who does not listen any more stops the work.

        Args:
            question: one of `minitrain.learn.explorer.answers.ANSWERS`.
            given: what goes with it.
            stop: stops the work when it is set.

        Raises:
            WorkerEndedError: the process ended.
        """
        async with self._places:
            worker = self._free()
            stopping = asyncio.create_task(self._stop(worker, stop))
            is_over = False
            try:
                worker.ask(question, given)
                while (message := await worker.next_message()) is not None:
                    yield message
                is_over = not stop.is_set()
            finally:
                stopping.cancel()
                self._take_back(worker, is_over=is_over)

    @staticmethod
    async def _stop(worker: Worker, stop: asyncio.Event) -> None:
        """Stop a worker when it is told to."""
        await stop.wait()
        worker.kill()

    def _take_back(self, worker: Worker, *, is_over: bool) -> None:
        """Keep a worker whose answer is over and who may be needed; end another one."""
        if is_over and len(self._idle) < SPARE:
            self._idle.append(worker)
            return
        self._all.discard(worker)
        worker.end()
        if not is_over:
            self.warm()

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        for worker in self._all:
            worker.end()
        self._all.clear()
        self._idle.clear()


def _work(pipe: Connection) -> None:  # pragma: no cover  (only in a worker)
    """Answer until the pipe closes, or memory ends: who asked learns that this process has."""
    begin_work()
    try:
        from minitrain.learn.explorer.answers import answer  # noqa: PLC0415  (it takes a second, in which the page is loaded)

        while True:
            question, given = pipe.recv()
            answer(question, given, pipe.send)
            pipe.send(None)
    except (EOFError, OSError):  # nobody asks any more
        return
    except Exception as error:
        end_without_memory(error)
        raise
