"""Who may ask the explorer's server, how answers are stopped, and that no process is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from minitrain.learn.explorer.server import Worker, Workers
from minitrain.run.worker_processes import WorkerEndedError

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

from starlette.testclient import TestClient

from minitrain.learn.explorer import server

PORT, TOKEN = 8123, "secret"
ADDRESS = f"http://127.0.0.1:{PORT}"
ALLOWED = {"origin": ADDRESS, "authorization": f"Bearer {TOKEN}"}
STATE = {"strategy": "ddp", "world_size": 4, "num_layers": 4, "global_batch_size": 8}
ENDLESS = "async def mine(model):\n    while True:\n        pass\n"


@pytest.fixture
def outside() -> TestClient:
    """Return a client of a server that has no processes yet."""
    return TestClient(server.application(TOKEN, PORT), base_url=ADDRESS)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minitrain.learn.explorer.server.SPARE", 1)
        patch.setattr(server, "PATIENCE_S", 0.05)
        with TestClient(server.application(TOKEN, PORT), base_url=ADDRESS) as running:
            yield running


def lines(response: Any) -> list[dict[str, Any]]:
    """Return the messages of an answer."""
    assert response.status_code == 200
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example", **ALLOWED}, 421),
        ({"host": f"127.0.0.1:{PORT + 1}", **ALLOWED}, 421),
        ({"authorization": ALLOWED["authorization"]}, 403),
        ({**ALLOWED, "origin": "http://evil.example"}, 403),
        ({**ALLOWED, "origin": "null"}, 403),
        ({"origin": ADDRESS}, 401),
        ({**ALLOWED, "authorization": "Bearer other"}, 401),
        ({**ALLOWED, "authorization": "Bearer \xe9"}, 401),
    ],
)
def test_who_is_not_the_page_is_refused(outside: TestClient, headers: dict[str, str], status: int) -> None:
    given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    response = outside.post("/ask/evaluate", headers=given, content=b"{}")
    assert response.status_code == status


def test_another_name_gets_no_page_either(outside: TestClient) -> None:
    assert outside.get("/", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("name", ["", "explore.js", "explore.css", "style.css"])
def test_the_files_of_the_page_load_nothing_from_elsewhere(outside: TestClient, name: str) -> None:
    response = outside.get(f"/{name}")
    assert response.status_code == 200
    assert "default-src 'none'; script-src 'self'" in response.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert "https://" not in response.text
    assert TOKEN not in response.text


@pytest.mark.parametrize("name", ["..%2fserver.py", "server.py", ".."])
def test_no_other_file_is_given(outside: TestClient, name: str) -> None:
    assert "Starlette" not in outside.get(f"/{name}").text


@pytest.mark.parametrize("body", [b"[]", b"not json", b'{"state": "' + b"x" * server.MOST_BYTES + b'"}'])
def test_a_question_is_an_object_that_is_not_too_long(outside: TestClient, body: bytes) -> None:
    assert outside.post("/ask/evaluate", headers=ALLOWED, content=body).status_code == 413


def test_notebooks_of_this_machine_may_frame_it_if_asked() -> None:
    client = TestClient(server.application(TOKEN, PORT, in_notebook=True), base_url=ADDRESS)
    assert "frame-ancestors http://localhost:*" in client.get("/").headers["content-security-policy"]


def test_an_answer_comes_in_lines_and_is_remembered(client: TestClient) -> None:
    asked = {"tab": "1", "state": STATE}
    first = lines(client.post("/ask/evaluate", headers=ALLOWED, json=asked))
    assert [next(iter(message)) for message in first] == ["title", "picture", "why"]
    assert lines(client.post("/ask/evaluate", headers=ALLOWED, json={**asked, "tab": "2"})) == first


def test_what_a_newer_question_replaces_is_stopped_and_other_tabs_go_on() -> None:
    async def ask() -> tuple[Any, ...]:
        workers = Workers()
        workers.warm()
        explorer = server.Explorer(workers)

        async def told(tab: str, state: dict[str, Any]) -> list[dict[str, Any]]:
            return [json.loads(line) async for line in explorer.lines(tab, "evaluate", {"state": state})]

        try:
            endless = asyncio.create_task(told("1", {**STATE, "strategy": "own", "source": ENDLESS}))
            await asyncio.sleep(0)
            other = await told("2", STATE)
            replaced = asyncio.create_task(told("1", {**STATE, "world_size": 8}))
            await asyncio.sleep(0)
            newest = asyncio.create_task(told("1", {**STATE, "world_size": 2}))
            found = await asyncio.wait_for(asyncio.gather(endless, replaced, newest), 60)
        finally:
            workers.close()
        return other, *found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "PATIENCE_S", 0.05)
        other, endless, replaced, newest = asyncio.run(ask())
    assert other[0]["summary"]["world_size"] == 4
    assert endless[-1]["stopped"]
    assert replaced == [{"superseded": True}]
    assert newest[0]["summary"]["world_size"] == 2


def test_numbers_that_json_has_no_word_for_are_null() -> None:
    assert json.loads(server._line({"a": [float("nan"), 1.5]})) == {"a": [None, 1.5]}


def _is_running(pid: int | None) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid or 0, 0)
        return True
    return False


def test_a_process_ends_when_its_pipe_closes() -> None:
    worker = Worker()
    worker._pipe.close()
    worker._process.join(30)
    assert worker._process.exitcode is not None
    assert not _is_running(worker.pid)


@pytest.mark.few(1)
@pytest.mark.parametrize("is_stuck", [False, True])
def test_who_waits_for_a_process_that_is_stopped_or_stuck_learns_of_it(
    monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    worker = Worker()
    worker.ask("evaluate", {"state": {**STATE, "strategy": "own", "source": ENDLESS}})
    if is_stuck:
        monkeypatch.setattr("minitrain.learn.explorer.server.limit_bytes", lambda: 2**30)
        monkeypatch.setattr(
            "minitrain.learn.explorer.server.StuckProcesses.end", lambda _, pid: os.kill(pid, signal.SIGKILL)
        )
    else:
        worker.kill()
    with pytest.raises(WorkerEndedError, match="was stopped"):
        asyncio.run(worker.next_message())
    worker.end()
    until = time.monotonic() + 10
    while _is_running(worker.pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _is_running(worker.pid)
