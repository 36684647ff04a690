"""The explorer in headless Chromium, as a person uses it: drag, type, break a rule, share a link, go back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")

import uvicorn

from minitrain.learn.explorer import server
from minitrain.learn.explorer.answers import STARTER

pytestmark = pytest.mark.browser

TOKEN = "secret"
NO_SUM = STARTER.replace("await model.reduce_scatter(grads[k], k)", "grads[k].shard(rank, n)")
SMALL = "strategy=zero3&world_size=8&num_layers=8&global_batch_size=16"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve the explorer from a thread."""
    with pytest.MonkeyPatch.context() as patch, closing(socket.create_server((server.ADDRESS, 0))) as listening:
        patch.setattr("minitrain.learn.explorer.server.SPARE", 1)
        port = listening.getsockname()[1]
        app = server.application(TOKEN, port)
        running = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=lambda: asyncio.run(running.serve(sockets=[listening])))
        thread.start()
        yield f"http://{server.ADDRESS}:{port}/"
        running.should_exit = True
        thread.join()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """Open the explorer with a small state; at the end, nothing may have been logged as an error."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page, faults = context.new_page(), []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{address}#token={TOKEN}&{SMALL}")
    until(page, "document.querySelector('#why table') && document.querySelector('#options select')")
    yield page
    context.close()
    assert not faults


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true; Playwright's own way is forbidden by what the page may run."""
    for _ in range(1000):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(10)
    raise AssertionError(f"not reached: {expression}")


def figure(page: Any, name: str) -> float:
    """Return a figure of the page."""
    text: str = page.locator("#figures tr", has_text=name).locator("td").last.text_content()
    return float(text.replace(",", "").removesuffix(" %"))


def after(page: Any, act: Any) -> None:
    """Do something, and wait until the page shows what it leads to."""
    before = page.evaluate("Number(document.body.dataset.shown || 0)")
    act()
    until(page, f"Number(document.body.dataset.shown) > {before}")


def test_dragging_sharing_and_going_back(page: Any, address: str) -> None:
    assert TOKEN not in page.url
    step = figure(page, "step ms")
    slider = page.locator("#field-global_batch_size input[type=range]")
    after(page, lambda: slider.press("ArrowRight"))
    assert "global_batch_size=32" in page.url
    larger = figure(page, "step ms")
    assert larger > step
    link = page.url
    after(page, page.go_back)
    assert figure(page, "step ms") == step
    other = page.context.new_page()
    other.goto(link)
    until(other, "document.querySelector('#figures td')")
    assert figure(other, "step ms") == larger
    other.close()


def test_two_settings_are_compared_and_a_curve_is_drawn(page: Any) -> None:
    page.click("#pin")
    after(page, lambda: page.select_option("#knob-hardware", "a100_80g"))
    assert page.locator("#figures th").all_text_contents() == ["", "A", "B", "B / A"]
    assert page.locator("#figures tr", has_text="step ms").locator("td").last.text_content() > "1"
    assert page.locator("#pictures canvas").count() == 2
    assert "hardware a100_80g" in page.locator("#pictures section").last.inner_text()  # what differs
    page.select_option("#knob", "network")
    page.click("#draw")
    until(page, "document.body.dataset.drawn === '3'")
    assert page.locator("#curve circle").count() == 3


def test_a_broken_rule_is_told_at_its_knob_and_goes_away(page: Any) -> None:
    number = page.locator("#knob-world_size")
    after(page, lambda: (number.fill("7"), number.press("Tab")))
    told = page.locator("#field-world_size .fault")
    assert "global_batch_size (16) must be a multiple of world_size (7)" in told.text_content()
    after(page, lambda: (number.fill("4"), number.press("Tab")))
    assert told.count() == 0


def test_a_strategy_is_checked_while_it_is_typed(page: Any) -> None:
    after(page, lambda: page.select_option("#knob-strategy", "own"))
    text = page.locator("#field-source textarea")
    assert text.input_value() == STARTER
    after(page, lambda: text.fill(NO_SUM))
    assert "sample" in page.locator("#field-source .fault").text_content()
    after(page, lambda: text.fill(f"{STARTER}# mine\n"))
    assert page.locator("#field-source .fault").count() == 0
    link = page.url
    other = page.context.new_page()
    other.goto(link)
    until(other, "document.querySelector('#fault button')")  # it came with a link: nothing has run
    assert other.locator("#figures td").count() == 0
    after(other, lambda: other.click("#fault button"))
    assert figure(other, "step ms") == figure(page, "step ms")
    other.close()


@pytest.mark.ci
def test_what_never_ends_can_be_stopped_and_the_page_goes_on(page: Any) -> None:
    after(page, lambda: page.select_option("#knob-strategy", "own"))
    text = page.locator("#field-source textarea")
    shown = page.evaluate("document.body.dataset.shown")
    text.fill("async def mine(model):\n    while True:\n        pass\n")
    while (
        page.evaluate("document.body.dataset.shown") == shown
    ):  # the answer before may still go on, and is stopped first
        page.click("#stop")
        page.wait_for_timeout(500)
    assert "was stopped" in page.locator("#fault").text_content()
    after(page, lambda: text.fill(STARTER))
    assert page.locator("#fault").is_hidden()
    assert figure(page, "step ms") > 0
