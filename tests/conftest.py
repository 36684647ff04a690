"""What the core's tests share: loops that shuffle, ranks driven by plain asyncio, and the goldens' flag."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import sys
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from minitrain.engine.dist import Dist
from minitrain.engine.model import Model

settings.register_profile("all", deadline=None, derandomize=True)
settings.register_profile("ci", settings.get_profile("all"), max_examples=20)
settings.register_profile("quick", settings.get_profile("all"), max_examples=10)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that writes the golden event logs anew."""
    parser.addoption("--update-goldens", action="store_true", help="write traces/golden/ anew instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    """Grade on machines whose kernel does not hold all; let processes share what they compile.

    Proofs' programs are kept in pytest's folder, and modules where Python keeps them, also where it was told not to
    (`PYTHONDONTWRITEBYTECODE`): else each of hundreds of processes compiles the package anew, and workers all tests.
    Where `ci` tests are asked for, Hypothesis tries 20 examples, and where slow ones are, its 100.
    """
    left_out = config.option.markexpr
    settings.load_profile("all" if "not slow" not in left_out else "quick" if "not ci" in left_out else "ci")
    os.environ.setdefault("MINITRAIN_ISOLATION", "auto")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if find_spec("filelock"):  # without it, JAX lets two workers write a file at once
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.rootpath / ".pytest_cache" / "jax"))
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**26))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the cycle collector, which would go through all that is imported again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `slow` and `ci` leave any out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out parameter sets as `one_in` and `few` say."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        sets = tests[item.nodeid.partition("[")[0]]
        thinned = item.get_closest_marker("one_in")
        if thinned is not None and len(sets) % thinned.args[0]:
            item.add_marker("slow")
        sets.append(item)
    for sets in tests.values():
        few = sets[0].get_closest_marker("few")
        in_ci = [item for item in sets if item.get_closest_marker("slow") is None]
        if few is not None and len(in_ci) > few.args[0]:
            apart = len(in_ci) // few.args[0]  # a step more each time: else one of two values would stay the same
            quick = {turn * apart + turn % apart for turn in range(few.args[0])}
            for place, item in enumerate(in_ci):
                if place not in quick:
                    item.add_marker("ci")


@pytest.fixture(scope="module", autouse=True)
def _only_what_a_module_makes_is_collected() -> None:
    """Keep what was there before out of the cycle collector: hundreds of thousands of objects of libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _only_threads_that_a_test_starts_count() -> Iterator[None]:
    """Hide the threads of libraries, and of pytest: any thread might wake a loop that would wait for ever else."""
    every = threading.enumerate
    others = set(every()) - {threading.current_thread()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "enumerate", lambda: [thread for thread in every() if thread not in others])
        yield


class _InThisProcess(Executor):
    """Workers that simulate at once, where they are asked to.

    Args:
        num_processes: of a sweep that has its own.
    """

    def __init__(self, num_processes: int) -> None:
        self.num_at_once = num_processes

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """End nothing."""


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps and searches that are given no workers simulate here: a process takes half a second to start."""
    monkeypatch.setattr("minitrain.search.sweeps.executors.OwnProcesses", _InThisProcess)


@pytest.fixture(scope="session")
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Whether goldens are to be written instead of compared."""
    return bool(request.config.getoption("--update-goldens"))


_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_OF_CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Else Plotly is parsed again for the debugger's stacks, and Perfetto's WebAssembly is optimised for one import.
    "--js-flags=--no-enable-lazy-source-positions",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a headless Chromium, driven by Playwright; it ends with the module, as asyncio does not run beside it."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if path is None:
        pytest.skip("there is no chromium on this machine")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=_OF_CHROMIUM)
        yield running
        running.close()


@pytest.fixture(scope="module")
def _tab(browser: Any) -> Iterator[tuple[Any, list[str]]]:
    """Return a page that is offline, and what it logs as an error or asks of a network.

    A module has one of them: each is a process that compiles Plotly anew, which takes three times as long as to draw.
    """
    faults: list[str] = []
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith(("file:", "data:")) else faults.append(one.url))
    yield page, faults
    context.close()


@pytest.fixture
def open_page(_tab: tuple[Any, list[str]]) -> Iterator[Callable[..., Any]]:
    """Return what loads a page offline; at the end, nothing may have been logged as an error or asked of a network.

    It is loaded into the same tab as the one before, which is gone then.
    """
    page, faults = _tab

    def leave() -> None:
        page.goto("about:blank")
        page.mouse.move(0, 0)

    def open_one(path: Path, scheme: str = "light", width: int = 1300) -> Any:
        leave()
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(path.resolve().as_uri())
        return page

    faults.clear()
    yield open_one
    leave()
    assert not faults


class ShufflingLoop(asyncio.SelectorEventLoop):
    """An event loop that runs the callbacks of each iteration in a random, seeded order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]  # asyncio's own list of callbacks
        shuffled = list(ready)
        self._random.shuffle(shuffled)
        ready.clear()
        ready.extend(shuffled)
        super()._run_once()  # type: ignore[misc]  # asyncio's own


@pytest.fixture(scope="session")
def shuffling() -> Callable[[int], Callable[[], asyncio.AbstractEventLoop]]:
    """Return what makes a loop factory from a seed."""
    return lambda seed: partial(ShufflingLoop, seed)


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., list[Any]]:
    """Return what drives a program of one model on every rank by `asyncio.gather`, and returns what they return."""

    def run(
        world_size: int,
        program: Callable[[Model], Awaitable[Any]],
        num_layers: int = 2,
        global_batch_size: int = 4,
        **dist: Any,
    ) -> list[Any]:
        async def main() -> list[Any]:
            transport = Dist(world_size, **dist)
            models = [Model(rank, transport, num_layers, global_batch_size) for rank in range(world_size)]
            return await asyncio.gather(*(program(model) for model in models))

        return asyncio.run(main())

    return run
