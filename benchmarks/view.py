"""All that docs/performance.md says of explorer, timeline and pages: `python -m benchmarks.view`.

It takes about three minutes of a quiet machine with Chromium and Playwright, and prints how loaded the machine is: at
a load above 1 on two cores the figures are not those of the table.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import minitrain as mt
from benchmarks import explore, trace_pages

PAGES: dict[str, dict[str, Any]] = {
    "fsdp": {"workload": "llama3-8b", "world_size": 64, "seq_len": 8192},
    "megatron": {"workload": "llama3.1-405b", "world_size": 16384, "global_batch_size": 2048, "microbatch_size": 1,
                 "seq_len": 8192, "tp": 8, "pp": 16, "fold": True},
}  # fmt: skip
OPENED, EVENTS = 5, 500_000


def opening(page: Path) -> float:
    """Return how long a page takes to its first picture, s: the median of several fresh browsers."""
    from playwright.sync_api import sync_playwright

    found: list[float] = []
    with sync_playwright() as playwright:
        for _ in range(OPENED):
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            tab = browser.new_context(offline=True, viewport={"width": 1400, "height": 900}).new_page()
            tab.goto(page.as_uri(), wait_until="commit")
            tab.wait_for_selector("body[data-ready=yes]", timeout=120_000)
            found.append(tab.evaluate(trace_pages.PAINTED) / 1e3)
            browser.close()
    return float(statistics.median(found))


def main() -> None:
    """Measure, and print rows for the tables."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| | figures, ms | picture, ms | longest, ms | goal |")
    explore.main()
    print("\n| page | kB | first paint, s; goal 1 |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for strategy, given in PAGES.items():
            page = mt.simulate(strategy, **given).write_html(Path(folder, f"{strategy}.html"))
            print(f"| {given['workload']} | {page.stat().st_size / 1e3:.0f} | {opening(page):.2f} |", flush=True)
        trace_pages.measure(EVENTS, Path(folder))


if __name__ == "__main__":
    main()
