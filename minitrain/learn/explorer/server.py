"""The explorer's server: who may ask, and the files of its page. It keeps nothing that could not be computed again.

It listens on the loopback address alone. Each request must name that address as its host, so that no other name can
lead a browser here; each question must come from the page itself (its origin) and carry the token that was printed when
the server began. The token stands in the fragment of the address, which browsers do not send, and the page takes it
out. The page may load nothing from elsewhere. Strategies of one's own run in processes of their own, with the
rights of who started the server: whoever has the token may do what that user may. The page runs no strategy that came
with a link before it is told to.

Of one tab and question, one is answered at a time, and of those that come meanwhile the newest alone is next: an answer
that takes longer than `PATIENCE_S` is then stopped.

Processes that answer the questions of the explorer's page, one at a time each, and that can be stopped at any time.

A simulation does not yield, so a long one is stopped by ending its process. A spare one stands ready, since a process
needs a second to import what it answers with. Each ends when the pipe to its parent closes, whatever becomes of that.
The server's event loop watches the pipes: a thread that waits for one would keep the server from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import secrets
import socket
import sys
import webbrowser
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minitrain.errors import NO_MEMORY, lacks_memory
from minitrain.learn.explorer.answers import line_of
from minitrain.learn.explorer.lab import PAGE, media_type, text_of
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

ADDRESS = "127.0.0.1"
PATIENCE_S = 1.0
"""How long an answer may still take when the same tab has asked anew."""
MOST_BYTES = 2**18
"""Of a question."""
_MOST_CACHED = 128
_CACHED = ("page", "evaluate", "options", "chart")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)
_NOTEBOOKS = "http://localhost:* http://127.0.0.1:* vscode-webview:"


@dataclass
class Lane:
    """The questions of one kind that one tab asks.

    Args:
        turn: held by the one that is answered.
        newest: the number of the last one.
        waiting: how many there are.
        stop: set to stop the one that is answered.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    newest: int = 0
    waiting: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)


class Explorer:
    """Answers questions of several tabs.

    Args:
        workers: the processes that do so.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._cache: OrderedDict[str, list[bytes]] = OrderedDict()

    async def lines(self, tab: str, question: str, given: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Yield the messages of an answer, a line of JSON each."""
        lane = self._lanes.setdefault((tab, question), Lane())
        lane.newest, mine = lane.newest + 1, lane.newest + 1
        lane.waiting += 1
        try:
            await self._hurry(lane)
            async with lane.turn:
                if mine != lane.newest:
                    yield _line({"superseded": True})
                    return
                async for line in self._remembered(lane, question, given):
                    yield line
        finally:
            lane.waiting -= 1
            if not lane.waiting:
                self._lanes.pop((tab, question), None)

    async def _hurry(self, lane: Lane) -> None:
        """Stop the answer of a lane that does not end soon."""
        if not lane.turn.locked():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S), lane.turn:
                return
        lane.stop.set()

    async def _remembered(self, lane: Lane, question: str, given: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Yield an answer that is known, or find it out and remember it."""
        key = json.dumps([question, given], sort_keys=True)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            for line in found:
                yield line
            return
        lines: list[bytes] = []
        lane.stop.clear()
        async with contextlib.aclosing(self._workers.answer(question, given, lane.stop)) as answer:
            try:
                async for message in answer:
                    lines.append(_line(message))
                    yield lines[-1]
            except WorkerEndedError as error:
                yield _line({"error": str(error), "fields": [], "stopped": True})
                return
        if question in _CACHED:
            self._cache[key] = lines
            while len(self._cache) > _MOST_CACHED:
                self._cache.popitem(last=False)

    def stop(self, tab: str) -> None:
        """Stop all that a tab has asked."""
        for (whose, _), lane in self._lanes.items():
            if whose == tab:
                lane.stop.set()


def _line(message: Mapping[str, Any]) -> bytes:
    """Return a message as it is sent."""
    return line_of(dict(message)).encode()


def application(token: str, port: int, *, in_notebook: bool = False) -> ASGIApp:
    """Return the server as an ASGI application.

    Args:
        token: what questions must carry.
        port: where it is reached.
        in_notebook: whether pages of other ports of this machine may show it in a frame.
    """
    workers = Workers()
    explorer = Explorer(workers)

    @contextlib.asynccontextmanager
    async def running(_app: Starlette) -> AsyncIterator[None]:
        workers.warm()
        try:
            yield
        finally:
            workers.close()

    async def show(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in PAGE:
            return PlainTextResponse("there is no such file", 404)
        return Response(text_of(name), media_type=media_type(name))

    async def ask(request: Request) -> Response:
        asked = await _read(request)
        if asked is None:
            return PlainTextResponse("a question must be a JSON object of at most 256 KiB", 413)
        tab, question = str(asked.pop("tab", "")), request.path_params["question"]
        if question == "stop":
            explorer.stop(tab)
            return PlainTextResponse("stopped")
        return StreamingResponse(explorer.lines(tab, question, asked), media_type="application/x-ndjson")

    routes = [Route("/ask/{question}", ask, methods=["POST"]), Route("/", show), Route("/{name}", show)]
    policy = _POLICY.format(frames=_NOTEBOOKS if in_notebook else "'none'")
    hosts = frozenset({f"{ADDRESS}:{port}", f"localhost:{port}"})
    return _Guard(Starlette(routes=routes, lifespan=running), token, hosts, _headers(policy))


async def _read(request: Request) -> dict[str, Any] | None:
    """Return the object that a request carries; None where it is none, or too long."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            return None
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class _Guard:
    """An application that refuses who must not ask, and says what its page may load.

    Args:
        inner: what answers.
        token: what questions must carry.
        hosts: the names that it answers to.
        headers: what each response says.
    """

    inner: ASGIApp
    token: str
    hosts: frozenset[str]
    headers: Sequence[tuple[bytes, bytes]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self.headers]
            await send(message)

        refused = self._refusal(scope)
        answer = self.inner if refused is None else PlainTextResponse(refused[1], refused[0])
        try:
            await answer(scope, receive, with_headers)
        except asyncio.CancelledError:  # the server ends; an answer that is not whole would be logged as its fault
            with contextlib.suppress(Exception):
                await send({"type": "http.response.body"})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status of a refusal and its reason; None where there is none."""
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if given.get("host") not in self.hosts:
            return 421, "the explorer answers to the address that it printed, and to no other name"
        if scope["method"] in ("GET", "HEAD"):
            return None
        if given.get("origin") not in {f"http://{host}" for host in self.hosts}:
            return 403, "questions must come from the explorer's own page"
        if not secrets.compare_digest(given.get("authorization", "").encode(), f"Bearer {self.token}".encode()):
            return 401, "the token is missing or of another server; open the address that `minitrain explore` printed"
        return None


def _headers(policy: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of all responses."""
    return [
        (b"content-security-policy", policy.encode()),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
    ]


def serve(port: int, say: Callable[[str], None], *, opens: bool = False, in_notebook: bool = False) -> None:
    """Serve the explorer until Ctrl-C, or in a notebook until stdin closes.

    Args:
        port: where; 0 for any that is free.
        say: takes the address with its token, once the server can be reached.
        opens: whether a browser is to open it.
        in_notebook: whether a notebook shows it.

    Raises:
        OSError: the port is taken.
    """
    with socket.create_server((ADDRESS, port)) as listening:
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(24)
        address = f"http://{ADDRESS}:{port}/#token={token}"
        app = application(token, port, in_notebook=in_notebook)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        say(address)
        if opens:
            webbrowser.open(address)
        asyncio.run(_until_closed(server, listening) if in_notebook else server.serve(sockets=[listening]))


async def _until_closed(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until stdin closes: the notebook has ended."""

    async def watch() -> None:
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        await server.serve(sockets=[listening])


MOST = 8
"""Processes at once; further questions wait."""
SPARE = 2
"""Processes that are kept though nothing is asked."""


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
            stuck = StuckProcesses()
            while not has_come.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(has_come.wait(), None if limit_bytes() is None else LOOK_S)
                stuck.end(self.pid or 0)
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

    def kill(self) -> None:
        """Stop the process; who waits for a message learns of it."""
        self._process.kill()

    def end(self) -> None:
        """End the process at once; its pipe closes when nobody waits for it any more."""
        self._process.kill()
        self._process.join()


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


if __name__ == "__main__":
    serve(0, lambda address: print(address, flush=True), in_notebook=True)
