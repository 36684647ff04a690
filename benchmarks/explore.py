"""From a knob to a painted picture in the explorer, in headless Chromium: `python -m benchmarks.explore`.

Each row has the medians for figures and picture, and the longest for the picture, of several lengths of the sequence,
none of which was asked for before.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import statistics
import threading
from typing import Any

OF_MEGATRON = "strategy=megatron&o.microbatch_size=1"
CASES = {
    "fsdp, 64 ranks": "strategy=fsdp&world_size=64&global_batch_size=64",
    "megatron tp 4 pp 2, 64 ranks, batch 64": f"{OF_MEGATRON}&o.tp=4&o.pp=2&world_size=64&global_batch_size=64",
    "megatron tp 4 pp 2, 64 ranks, batch 256": f"{OF_MEGATRON}&o.tp=4&o.pp=2&world_size=64&global_batch_size=256",
    "fsdp, 4,096 ranks": "strategy=fsdp&world_size=4096&global_batch_size=4096",
    "megatron tp 4 pp 2, 4,096 ranks": f"{OF_MEGATRON}&o.tp=4&o.pp=2&world_size=4096&global_batch_size=4096",
    "megatron tp 8 pp 8, 4,096 ranks": f"{OF_MEGATRON}&o.tp=8&o.pp=8&world_size=4096&global_batch_size=4096",
}
SEQUENCES = (1536, 2048, 3072, 4096, 5120, 6144, 7168, 8192)


def latencies(page: Any, address: str, case: str) -> list[tuple[float, float]]:
    """Return how long each sequence takes to its figures and to its picture, ms; the first ones warm the processes."""
    page.goto("about:blank")
    page.goto(f"{address}&workload=llama3-8b&hardware=h100_80g_nvl8&seq_len=1024&{case}")
    found = [_latency(page)]
    for length in SEQUENCES:
        page.fill("#knob-seq_len", str(length))
        page.press("#knob-seq_len", "Tab")
        found.append(_latency(page))
    return found[2:]


def _latency(page: Any) -> tuple[float, float]:
    """Wait for a picture and all that follows it, and return how long figures and picture took, ms."""
    while not (text := page.evaluate("document.body.dataset.latency || ''")):
        page.wait_for_timeout(10)
    page.wait_for_timeout(700)
    figures = page.evaluate("document.body.dataset.figures")
    page.evaluate("delete document.body.dataset.latency")
    return float(figures), float(text)


def main() -> None:
    """Serve the explorer, open it, and print a row a case."""
    import uvicorn
    from playwright.sync_api import sync_playwright

    from minitrain.learn.explorer.server import ADDRESS, application

    with socket.create_server((ADDRESS, 0)) as listening, sync_playwright() as playwright:
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(application("benchmark", port), log_level="warning"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        for name, case in CASES.items():
            found = latencies(page, f"http://{ADDRESS}:{port}/#token=benchmark", case)
            medians = [statistics.median(column) for column in zip(*found, strict=True)]
            longest, goal = max(picture for _, picture in found), 150 if "64 ranks" in name else 400
            print(f"| {name} | {medians[0]:.0f} | {medians[1]:.0f} | {longest:.0f} | {goal} |", flush=True)
        browser.close()
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
