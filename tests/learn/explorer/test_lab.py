"""The lab: built from the registries of npm and Python, and used in headless Chromium and in node as people would."""

from __future__ import annotations

import fcntl
import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.learn import load_exercise
from minitrain.learn.explorer.answers import STARTER
from minitrain.learn.explorer.lab import build_lab

NO_SUM = STARTER.replace("await model.reduce_scatter(grads[k], k)", "grads[k].shard(rank, n)")
SMALL = "strategy=zero3&world_size=8&num_layers=8&global_batch_size=16"
ENDLESS = "async def mine(model):\n    while True:\n        pass\n"
IN_NODE = """
import fs from 'fs';
const { begin } = await import(process.argv[2] + '/lab_engine.js');
const bytes = async name => new Uint8Array(fs.readFileSync(process.argv[2] + '/' + name));
const answer = await begin(bytes, process.argv[2] + '/');
for (const [question, given] of JSON.parse(fs.readFileSync(0, 'utf8')))
  answer(question, JSON.stringify(given), line => console.log(line.trim()));
"""


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a lab, built once for all workers; skip where the registries cannot be reached."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / "lab"
    with (shared / "lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "lab.json").is_file():
            try:
                build_lab(folder)
            except UsageError as error:
                pytest.skip(f"the lab cannot be built here: {error}")
    return folder


class Files(http.server.SimpleHTTPRequestHandler):
    """A static host."""

    extensions_map = {  # noqa: RUF012  (as in the class above it)
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def address(lab: Path) -> Iterator[str]:
    """Serve the lab from a folder of a static host."""
    handler = functools.partial(Files, directory=str(lab.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as host:
        thread = threading.Thread(target=host.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{host.server_port}/lab/"
        host.shutdown()
        thread.join()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """Open the lab; nothing may be asked of another host, or logged as an error."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page, faults = context.new_page(), []
    page.set_default_timeout(240_000)  # of a machine that others use, too
    context.on(
        "request", lambda one: None if one.url.startswith((address, "data:", "blob:")) else faults.append(one.url)
    )
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{address}#{SMALL}")
    page.wait_for_function("document.querySelector('#why table')")
    yield page
    context.close()
    assert not faults


def after(page: Any, do: Any) -> None:
    """Do something, and wait until what came of it is shown."""
    before = page.evaluate("+(document.body.dataset.shown || 0)")
    do()
    page.wait_for_function(f"+document.body.dataset.shown > {before}")


def step_ms(page: Any) -> float:
    """Return the step time that is shown."""
    return float(page.locator("#figures tr", has_text="step").first.locator("td").nth(1).text_content().split()[0])


@pytest.mark.ci
@pytest.mark.browser
def test_a_person_uses_the_lab(page: Any) -> None:
    run = mt.simulate("zero3", world_size=8, num_layers=8, global_batch_size=16)
    assert step_ms(page) == pytest.approx(run.step_time * 1e3, rel=1e-3)
    assert page.locator("#pictures canvas").count() == 1
    assert page.locator("#tune").is_hidden()
    slider = page.locator("#field-world_size input[type=range]")
    after(page, lambda: slider.press("ArrowLeft"))  # drag a knob
    run = mt.simulate("zero3", world_size=4, num_layers=8, global_batch_size=16)
    assert step_ms(page) == pytest.approx(run.step_time * 1e3, rel=1e-3)
    after(page, page.go_back)
    assert page.locator("#knob-world_size").input_value() == "8"

    after(page, lambda: page.select_option("#knob-strategy", "own"))  # a strategy of one's own
    text, told = page.locator("#field-source textarea"), page.locator("#field-source .fault")
    after(page, lambda: text.fill(NO_SUM))
    assert "must cover all 16 samples" in told.text_content()
    after(page, lambda: text.fill(STARTER))
    assert told.count() == 0

    shown = page.evaluate("document.body.dataset.shown")
    text.fill(ENDLESS)  # Python in a worker cannot be interrupted: another one begins
    while (
        page.evaluate("document.body.dataset.shown") == shown
    ):  # the answer before may still go on, and is stopped first
        page.click("#stop")
        page.wait_for_timeout(500)
    assert "was stopped" in page.locator("#fault").text_content()
    after(page, lambda: text.fill(f"{STARTER}# mine\n"))
    page.click("#exercises summary")
    page.wait_for_selector("#exercise option[value='02_ddp']", state="attached")
    page.select_option("#exercise", "02_ddp")
    assert "all ranks sum their" in page.locator("#statement").text_content()
    page.click("#check")
    page.wait_for_function("document.body.dataset.checked === '1'")
    assert "has no function 'ddp'" in page.locator("#verdict").text_content()
    after(page, lambda: text.fill(load_exercise("02").solution))
    page.click("#check")
    page.wait_for_function("document.body.dataset.checked === '2'")
    assert "every check passed but numbers" in page.locator("#verdict").text_content()

    other = page.context.new_page()  # the link that is shared
    other.goto(page.url)
    other.wait_for_selector("#fault button")
    assert other.locator("#figures td").count() == 0  # nothing has run
    after(other, lambda: other.click("#fault button"))
    assert step_ms(other) == step_ms(page)
    assert other.locator("#exercise").input_value() in ("", "02_ddp")


@pytest.mark.slow
def test_the_lab_answers_in_node(lab: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    (lab.parent / "package.json").write_text('{"type": "module"}')
    script = lab.parent / "in_node.js"
    script.write_text(IN_NODE)
    solved = [load_exercise(number) for number in ("02", "19", "21", "22", "23", "24", "16")]
    llama: dict[str, Any] = {"workload": "llama3-8b", "seq_len": 8192, "world_size": 64, "global_batch_size": 64}
    waits = "async def mine(model):\n    await model.receive(1 - model.rank)\n"
    asked = [
        ["evaluate", {"state": {"strategy": "fsdp", **llama}}],
        ["evaluate", {"state": {"strategy": "own", "source": waits, "world_size": 2, "num_layers": 2}}],
        *(["check", {"state": {"source": one.solution}, "exercise": one.name}] for one in solved),
    ]
    done = subprocess.run(
        [node, script, lab], check=False, input=json.dumps(asked), capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    figures, picture, why, deadlock, *checks = map(json.loads, done.stdout.splitlines())
    assert {said["verdict"] for said in checks[:-1]} == {"every check passed but numbers, which are not compared here"}
    assert checks[-1]["error"] == "16_experts is checked by `minitrain learn check`, and not on this page"
    run = mt.simulate("fsdp", **llama)
    assert figures["summary"] == json.loads(json.dumps(run.summary()))
    assert picture["picture"]["rows"][0]["count"] == 64
    assert "What would help" in why["why"]
    assert "deadlock" in deadlock["error"].lower() or "wait" in deadlock["error"]


@pytest.mark.ci
def test_what_cannot_be_fetched_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="the lab is built with npm, which is not installed"):
        build_lab(tmp_path / "lab")
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no such registry >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(UsageError, match=r"`npm ci` failed: no such registry; the lab needs the registries"):
        build_lab(tmp_path / "lab")
