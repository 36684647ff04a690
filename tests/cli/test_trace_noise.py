"""`minitrain trace montecarlo`: saved runs under noise, by options."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import minitrain as mt
from minitrain.cli import app


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[mt.Run]:
    with contextlib.chdir(tmp_path):
        mt.simulate("zero3", world_size=4, num_layers=4, global_batch_size=8).save("run.jsonl")
        yield mt.load_run("run.jsonl")


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", "montecarlo", "run.jsonl", *arguments])


def test_options_are_the_noise_that_they_name(saved: mt.Run) -> None:
    options = (
        "--jitter 0.05 --jitter forward=0.2 --straggler 0.1:2.0 --slowdown 3=1.5 --slow-link 0.2:4 --slow-link 1:2:0-1"
    )
    printed = _invoke(*options.split(), "--samples", "50", "--seed", "3", "--json").stdout
    noise = mt.Noise(
        jitter={"computing": 0.05, "communication": 0.05, "forward": 0.2},
        straggler=(0.1, 2.0),
        slowdown={3: 1.5},
        slow_links=[mt.SlowLink(0.2, 4.0), mt.SlowLink(1.0, 2.0, pair=(0, 1))],
    )
    assert json.loads(printed) == mt.monte_carlo(saved, noise, samples=50, seed=3).summary()


def test_words_say_what_the_object_says_and_where_the_page_is(saved: mt.Run) -> None:
    printed = _invoke("--jitter", "0.1", "--html", "page.html").stdout
    assert printed == f"{mt.monte_carlo(saved, mt.Noise(jitter=0.1))}\nwrote page.html\n"
    assert "under noise, 1,000 samples" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--jitter big", "--jitter takes numbers, as in 0.05 or all_gather=0.2, got 'big'"),
        ("--straggler 0.1", "--straggler takes numbers, as in 0.01:2.0, got '0.1'"),
        ("--slowdown a=2", "--slowdown takes ranks, as in 3=1.5, got 'a=2'"),
        ("--slow-link 0.1:2:0", "--slow-link takes ranks, as in 0.01:4.0 or 0.01:4.0:0-8, got '0.1:2:0'"),
        ("--straggler 2:0", "the noise has 2 faults: straggler's probability must be"),
        ("--slowdown 9=2", "noise must be for ranks of the run, which has 4: slowdown names rank 9"),
    ],
)
@pytest.mark.usefixtures("saved")
def test_a_wrong_option_is_one_error_with_an_example(options: str, message: str) -> None:
    result = _invoke(*options.split())
    assert result.exit_code == 2
    assert message in result.stderr
