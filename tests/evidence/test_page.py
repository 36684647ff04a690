"""The page of a validation, and the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from tests.evidence.test_rows import USUAL


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> mt.Validation:
    file = tmp_path_factory.mktemp("tables") / "mine.csv"
    rows = [USUAL, {**USUAL, "row_id": "x-<2>", "model": "<b>gpt</b>"}, {**USUAL, "row_id": "x-3", "n_layers": ""}]
    file.write_text("\n".join([",".join(USUAL), *(",".join(row.values()) for row in rows)]))
    return mt.validate("h1", file)


def test_the_page_has_points_summaries_bars_and_reasons(done: mt.Validation, tmp_path: Path) -> None:
    page = done.write_html(tmp_path / "page.html").read_text("utf-8")
    assert page.count('class="dot"') == 2
    assert page.count('class="bar"') == 2
    assert "memory, states" in page
    assert "where a whole number of at least 1 is needed" in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.browser
def test_labels_can_be_read_on_a_telephone(done: mt.Validation, tmp_path: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(done.write_html(tmp_path / "page.html"))
    page.set_viewport_size({"width": 390, "height": 800})
    boxes = page.eval_on_selector_all("svg text", "all => all.map(each => each.getBoundingClientRect().toJSON())")
    assert all(box["height"] > 10 and box["left"] > 0 and box["right"] < 390 for box in boxes)
    assert len(boxes) > 5


def test_what_a_table_says_is_no_markup(done: mt.Validation, tmp_path: Path) -> None:
    page = done.write_html(tmp_path / "page.html").read_text("utf-8")
    assert "<b>gpt" not in page
    assert "&lt;b&gt;gpt" in page


def test_a_page_of_memory_alone_has_no_picture(tmp_path: Path) -> None:
    page = mt.validate("h1").write_html(tmp_path / "page.html").read_text("utf-8")
    assert "<svg id" not in page
    assert "memory, states" in page


def test_the_worst_come_first(done: mt.Validation) -> None:
    sizes = [abs(result.error or 0) for result in done.worst()]
    assert sizes == sorted(sizes, reverse=True)


def test_the_command_prints_errors_by_table() -> None:
    result = CliRunner().invoke(app, ["validate", "c2", "--jobs", "1"], env={"COLUMNS": "60"})
    assert result.exit_code == 0
    assert "c2" in result.output
    assert "mean %" in " ".join(result.output.split())
    assert max(map(len, result.output.splitlines())) <= 60


@pytest.mark.ci
def test_json_is_one_object_a_figure(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["validate", "c2", "--json", "--html", str(page), "--without", "waves, starts"])
    rows = json.loads(result.stdout)
    assert len(rows) == 10
    assert {"table", "row_id", "measured_s", "predicted_s", "error"} <= rows[0].keys()
    assert "Left out: waves, starts" in page.read_text("utf-8")


def test_a_table_that_does_not_exist_is_an_error() -> None:
    result = CliRunner().invoke(app, ["validate", "z9"])
    assert result.exit_code == 2
    assert "there is no table 'z9'" in result.output


def test_a_table_of_which_nothing_can_be_simulated_fails_with_the_reasons(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("row_id,gpu\n1,A100\n")
    result = CliRunner().invoke(app, ["validate", "--table", str(file)])
    assert result.exit_code == 1
    assert "1 row was not simulated" in result.output
    assert "n_gpus" in result.output


@pytest.mark.ci
@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_an_interrupt_ends_the_command_and_its_processes() -> None:
    command = [sys.executable, "-m", "minitrain", "validate", "m1", "--jobs", "2"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert b"of 136 rows" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        text = process.stderr.read().decode()
        assert process.wait(30) == 130
    assert "interrupted" in text
    assert "Traceback" not in text
