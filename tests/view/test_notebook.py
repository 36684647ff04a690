"""What notebooks show of a run: its timeline, its picture or its text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.view.run_folder import picture_of_first_ranks, view_of


def test_a_notebook_shows_a_run_as_a_timeline_that_needs_no_other_file() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4)
    bundle: Any = run._repr_mimebundle_()
    assert list(bundle) == ["text/plain", "text/html"]
    assert "<p><b>ddp: 2 ranks" in bundle["text/html"]
    page = unescape(re.findall(r'srcdoc="([^"]*)"', bundle["text/html"])[0])
    (shown,) = json.loads(re.findall(r'<script id="timeline-data"[^>]*>(.*?)</script>', page)[0])
    assert [row["count"] for row in shown["data"]["rows"]] == [2]
    assert not re.search(r"<(script|link)[^>]*(src|href)=.http", page)


def test_html_that_runs_no_script_has_a_picture() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4)
    assert "<svg" in run._repr_html_()
    assert "<script" not in run._repr_html_()


def test_of_a_run_too_large_for_a_picture_its_first_ranks_are_drawn() -> None:
    run = mt.simulate("1f1b", world_size=8, num_layers=16, global_batch_size=256, microbatch_size=1)
    shown = run._repr_html_()
    assert "h100_80g_nvl8: rank 0 of 8 ranks</text>" in shown
    assert ">rank 0<" in shown
    assert ">rank 1<" not in shown


def test_a_picture_never_leaves_out_one_rank_alone() -> None:
    run = mt.simulate("1f1b", world_size=8, num_layers=16, global_batch_size=64, microbatch_size=2)
    view = view_of(run)
    most = run.num_events - 1  # room for seven ranks
    assert ">rank 7<" in picture_of_first_ranks(run, view, most)
    fewer = picture_of_first_ranks(run, view, most - len(run.logs[7]))
    assert "h100_80g_nvl8: the first 6 of 8 ranks</text>" in fewer
    assert ">rank 6<" not in fewer


def test_a_rank_with_too_many_events_for_a_picture_has_its_figures_alone() -> None:
    run = mt.simulate("1f1b", world_size=2, num_layers=16, global_batch_size=256, microbatch_size=1)
    assert len(run.logs[0]) > 3000
    assert "<svg" not in run._repr_html_()
    assert "<p><b>1f1b: 2 ranks" in run._repr_html_()


@pytest.mark.ci
@pytest.mark.browser
def test_the_frame_of_a_notebook_is_as_high_as_its_timeline(open_page: Callable[..., Any], tmp_path: Path) -> None:
    run = mt.simulate("1f1b", world_size=4, num_layers=4, global_batch_size=8)
    file = tmp_path / "notebook.html"
    file.write_text(run._repr_mimebundle_()["text/html"], encoding="utf-8")
    page = open_page(file)
    frame = page.frame_locator("iframe")
    frame.locator("body[data-ready=yes]").wait_for(timeout=30_000)
    page.wait_for_function("document.querySelector('iframe').offsetHeight !== 480")
    inner, outer = (one.bounding_box()["height"] for one in (frame.locator("canvas"), page.locator("iframe")))
    assert inner < outer
