"""How long pictures of large runs take, beside the plain way of drawing them: one Plotly trace a bar.

`python -m benchmarks.trace_pages [NUM_EVENTS ...]` simulates 1F1B pipelines of about that many events (100,000 and
500,000 by default), draws and exports them, and, where there is Chromium and Playwright, opens the page and zooms in.
The plain figure has only a few thousand bars, since its time grows with their number.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

import minitrain as mt
from minitrain.run.analysis.timeline import Timeline
from minitrain.view.page import write_page

_RANKS, _LAYERS, _PLAIN_BARS = 32, 128, 4000
_EVENTS_A_MICROBATCH = 2 * _LAYERS + 4 * (_RANKS - 1)
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
_FRAMES = """async step => {
  const frames = [], count = 240, next = () => new Promise(requestAnimationFrame);
  let last = await next();
  for (let i = 0; i < count; i++) {
    const size = step * 1000 ** (-Math.sin(Math.PI * i / count)), from = 0.4 * (step - size);
    timeline.zoomTo(from, from + size);
    const now = await next();
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""


def main(sizes: list[int]) -> None:
    """Measure runs of these numbers of events, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        _plain(Path(folder))
        for size in sizes:
            measure(size, Path(folder))


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what some work gives, and how long it took, s."""
    began = perf_counter()
    return work(), perf_counter() - began


def measure(size: int, folder: Path) -> None:
    """Draw and export one run."""
    num_microbatches = max(size // _EVENTS_A_MICROBATCH, 1)
    run = mt.simulate(
        "1f1b",
        world_size=_RANKS,
        num_layers=_LAYERS,
        global_batch_size=num_microbatches,
        microbatch_size=1,
        memory_by_kind=True,
    )
    print(f"\n{run.num_events} events")
    page, trace, saved = folder / "page.html", folder / "trace.json", folder / "run.jsonl"
    works: dict[str, Callable[[], Any]] = {
        "columns": lambda: run.timeline,
        "figure": run.figure,
        "page": lambda: run.write_html(page),
        "Chrome trace": lambda: run.write_chrome_trace(trace),
        "explanation": lambda: run.explain().data(),
        "run file": lambda: run.save(saved),
    }
    for name, work in works.items():
        _say(name, _timed(work)[1])
    print(f"  page {page.stat().st_size / 1e6:.1f} MB, trace {trace.stat().st_size / 1e6:.1f} MB")
    _browse(page, run.step_time)


def _plain(folder: Path) -> None:
    """Draw bars the plain way, one trace each."""
    run = mt.simulate("1f1b", world_size=8, num_layers=32, global_batch_size=48, microbatch_size=1)
    line = run.timeline
    figure, seconds = _timed(lambda: _plain_figure(line))
    print(f"one trace a bar, {_PLAIN_BARS} bars")
    _say("figure", seconds)
    page = folder / "plain.html"
    _say("page", _timed(lambda: write_page(page, figure, "plain"))[1])
    print(f"  page {page.stat().st_size / 1e6:.1f} MB with plotly.js")
    _browse(page, None)


def _plain_figure(line: Timeline) -> Any:
    """Return a figure with one trace a bar."""
    figure = go.Figure()
    for event in range(_PLAIN_BARS):
        figure.add_trace(
            go.Bar(
                base=[line.time[event]],
                x=[line.duration[event]],
                y=[line.rank[event]],
                orientation="h",
                name=line.typs[line.typ[event]],
                hovertext=f"layer {line.layer[event]}",
                showlegend=False,
            )
        )
    return figure.update_layout(barmode="overlay", font={"size": 12})


def _browse(page: Path, step_s: float | None) -> None:
    """Open a page offline and print when it has painted; with a step time, zoom in and out."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("  not opened: there is no chromium, or no playwright")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        tab = browser.new_context(offline=True, viewport={"width": 1400, "height": 900}).new_page()
        tab.set_default_timeout(120_000)
        tab.goto(page.as_uri(), wait_until="commit")
        tab.wait_for_selector("body[data-ready=yes]")
        _say("first paint", tab.evaluate(PAINTED) / 1e3)
        if step_s is not None:
            session = tab.context.new_cdp_session(tab)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            began = _processor_s(session)
            frames = sorted(tab.evaluate(_FRAMES, step_s))
            busy_ms = (_processor_s(session) - began) / len(frames) * 1e3
            print(f"  {len(frames) / sum(frames) * 1e3:.0f} frames/s while zooming to a thousandth and back")
            middle, most = frames[len(frames) // 2], frames[-len(frames) // 20]
            print(f"  of these, 50 % under {middle:.0f} ms, 95 % under {most:.0f} ms")
            print(f"  {busy_ms:.1f} ms of processor time a frame on the page's thread")
        browser.close()


def _processor_s(session: Any) -> float:
    """Return the processor time of the page's thread so far, s: other work on the machine hardly changes it."""
    found = session.send("Performance.getMetrics")["metrics"]
    return next(float(one["value"]) for one in found if one["name"] == "ThreadTime")


def _say(name: str, seconds: float) -> None:
    """Print one line of the table."""
    print(f"  {name:14s} {seconds:7.2f} s")


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [100_000, 500_000])
