"""Whatever a config, a run file or a command line holds: an answer, or one clear message; no traceback, no leftover.

Two seconds a test by default; `MINITRAIN_FUZZ_S=300 pytest -m fuzz` takes five minutes a test. The seed is fixed, so
that a longer run goes through what a shorter one did; `MINITRAIN_FUZZ_SEED` gives another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine import load_config
from tests.project.mutated_files import damaged

pytestmark = pytest.mark.fuzz

FUZZ_S = float(os.environ.get("MINITRAIN_FUZZ_S", "2"))
SEED = int(os.environ.get("MINITRAIN_FUZZ_SEED", "0"))
SLOWEST_S = 30.0  # on a busy machine; a comparison of six strategies writes 19 files

CONFIGS = [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "hw_configs").glob("*.json"))]
STRATEGY = """
import sys
async def good(model):
    for layer in range(model.num_layers):
        weight, _ = model.load_weights(layer)
        model.set_final_weight(layer, weight)
    return model
async def bad(model): raise ValueError("its own")
async def mute(model): pass
async def leave(model): sys.exit(7)
async def stuck(model): await model.receive((model.rank + 1) % model.world_size)
def plain(model): return model
"""
COMMANDS = ["run", "compare", "hw", "strategies", "list", "show", "check", "trace", "explain", "export", "nonsense"]
NAMES = ["ddp", "zero3", "gpipe", "1f1b", "zbv", "ddpp", "", "mine.py:good", "mine.py:bad", "mine.py:mute", "mine.py:"]
NAMES += ["mine.py:leave", "mine.py:stuck", "mine.py:plain", "broken.py:f", "absent.py:f", "folder", "h100_80g_nvl8"]
OPTIONS = ["--world-size", "--layers", "--batch", "--microbatch", "--option", "-o", "--hw", "--network", "--durations"]
OPTIONS += ["--strict-memory", "--strict", "--json", "--no-trace", "--out", "--debug", "--help", "--version", "--none"]
VALUES = ["1", "2", "4", "8", "0", "-1", "3", "x", "nan", "1e3", "99999999999999999999", "", " ", "é", "\ud800", "\x00"]
VALUES += ["microbatch_size=1", "pp=2", "zero=3", "a=b", "=", "forward=1", "forward=-1", "forward=nan", "foo=1", "flat"]
VALUES += ["hierarchical", "h100_80g_nvl8", "a100_pcie_80g", "absent.json", "broken.json", "folder", "out", "mine.py"]


def until_time_is_up(what: str, attempt: Callable[[random.Random], str]) -> None:
    """Repeat an attempt, none of which may take long, and say how they ended."""
    source, outcomes = random.Random(SEED), Counter[str]()
    end = time.monotonic() + FUZZ_S
    while time.monotonic() < end:
        begin = time.monotonic()
        outcomes[attempt(source)] += 1
        assert time.monotonic() - begin < SLOWEST_S
    print(f"{what}: {sum(outcomes.values())} attempts, {dict(outcomes)}")


def test_a_mutated_config_is_loaded_or_refused_with_one_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def attempt(source: random.Random) -> str:
        path.write_bytes(damaged(source, source.choice(CONFIGS)))
        with contextlib.suppress(HardwareConfigError):
            load_config(path)
            return "loaded"
        return "refused"

    until_time_is_up("configs", attempt)


RUNS: list[tuple[str, dict[str, Any]]] = [("ddp", {}), ("1f1b", {}), ("zero3_prefetch", {}), ("pp_dp", {"pp": 2})]
HOSTILE: list[Any] = [None, True, -1, 0, 1, 2, 9, 10**30, 10**400, 0.5, -0.5, 1e-310, 1e300, float("nan"), "", "x"]
HOSTILE += ["[/x]", "\x1b[31m", "\ud800", [], [[]], [[0, 1]], [[0, 10**12]], [[3, 1]], {}, {"rank": 0}, "send", "comm"]


def one_value_changed(source: random.Random, line: str) -> str:
    """Return a line of a run file with one value somewhere in it replaced."""
    values = place = json.loads(line)
    while True:
        key = source.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not (isinstance(place[key], list | dict) and place[key] and source.random() < 0.5):
            break
        place = place[key]
    place[key] = source.choice(HOSTILE)
    return json.dumps(values)


@pytest.fixture
def runs(tmp_path: Path) -> list[list[str]]:
    """The lines of saved runs, with journals and without."""
    found = []
    for place, (strategy, options) in enumerate(RUNS):
        sizes: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8, **options}
        mt.simulate(strategy, memory_by_kind=bool(place % 2), **sizes).save(tmp_path / "run.jsonl")
        found.append((tmp_path / "run.jsonl").read_text().splitlines())
    return found


def test_a_mutated_run_file_is_read_and_drawn_or_refused_with_one_error(tmp_path: Path, runs: list[list[str]]) -> None:
    path = tmp_path / "run.jsonl"

    def attempt(source: random.Random) -> str:
        lines = list(source.choice(runs))
        for place in {source.choice([0, source.randrange(len(lines))]) for _ in range(source.randint(1, 3))}:
            lines[place] = one_value_changed(source, lines[place])
        text = "\n".join(lines).encode()
        path.write_bytes(damaged(source, text) if source.random() < 0.3 else text)
        try:
            run = mt.load_run(path)
        except UsageError:
            return "refused"
        json.dumps(run.summary(), allow_nan=False)
        with contextlib.suppress(UsageError):  # operations that wait for one another in a circle
            run.explain().data()
            run.write_html(tmp_path / "page.html")
            run.write_chrome_trace(tmp_path / "trace.json")
        return "read"

    until_time_is_up("run files", attempt)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with strategies good and bad, to run the command line in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(STRATEGY)
    (tmp_path / "broken.py").write_text("def f(:")
    (tmp_path / "broken.json").write_text(json.dumps({"name": 1}))
    (tmp_path / "folder").mkdir()
    return tmp_path


def command_line(source: random.Random) -> list[str]:
    """Return a command line, mostly one that is nearly right."""
    words = [source.choice(COMMANDS[:2] * 4 + COMMANDS)]
    words += [source.choice(NAMES) for _ in range(source.choice([0, 1, 1, 1, 2]))]
    for _ in range(source.randrange(5)):
        words.append(source.choice(OPTIONS))
        if source.random() < 0.7:
            words.append(source.choice(VALUES))
    if source.random() < 0.1:
        source.shuffle(words)
    return [*words, "--world-size", "2", "--layers", "4", "--batch", "4"] if source.random() < 0.5 else words


def test_a_command_line_ends_with_a_code_and_one_message(folder: Path) -> None:
    runner = CliRunner()

    def attempt(source: random.Random) -> str:
        words = command_line(source)
        result = runner.invoke(app, words)
        assert result.exit_code in (0, 1, 2), (words, result.output)
        assert "--debug" in words or "Traceback" not in result.output, (words, result.output)
        assert result.exit_code == 0 or result.output.strip(), words
        assert not [path for path in folder.rglob(".*") if path.is_file()], words
        return f"exit code {result.exit_code}"

    until_time_is_up("command lines", attempt)
