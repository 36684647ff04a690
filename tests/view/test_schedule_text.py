"""Schedules as text and as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.machine.given_durations import FixedPredictor
from minitrain.operations import Event
from minitrain.search.schedules import gpipe, one_f_one_b
from minitrain.view.lanes import schedule_text
from minitrain.view.layout import View
from minitrain.view.svg import svg, write_svg
from tests.sample_logs import one_f_one_b as sample

_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 16, "microbatch_size": 2}
_SVG = "{http://www.w3.org/2000/svg}"


def _logs(name: str, **more: Any) -> Any:
    return mt.simulate(name, **{**_SIZES, **more}).logs


@pytest.mark.parametrize("generator", [gpipe, one_f_one_b])
def test_the_text_of_a_run_is_the_schedule_it_was_written_from(generator: Any) -> None:
    name = "1f1b" if generator is one_f_one_b else "gpipe"
    orders = generator(4, 8, 1).orders
    expected = "".join(" ".join(f"{a.kind}{a.microbatch}" for a in order) + "\n" for order in orders)
    assert schedule_text(_logs(name)) == expected


def test_the_halves_of_a_split_backward_are_i_and_w() -> None:
    assert schedule_text(_logs("zb_h1")).splitlines()[0].startswith("F0 F1 F2 F3 I0 W0 F4 I1 W1")


def test_where_ranks_hold_several_stages_the_stage_stands_in_front() -> None:
    lines = schedule_text(_logs("interleaved_1f1b")).splitlines()
    assert lines[0].startswith("0F0 0F1 0F2 0F3 4F0")
    assert lines[3].split()[0] == "3F0"


def test_a_rank_with_one_microbatch_has_two_tokens() -> None:
    assert schedule_text(_logs("ddp", microbatch_size=None)) == "F0 B0\n" * 4


def test_a_log_without_passes_has_empty_lines() -> None:
    assert schedule_text([[Event("update", 0, 0, 0.0, 1.0, 0)], []]) == "\n\n"
    assert schedule_text([]) == ""
    assert schedule_text([[Event("forward", 0, 0, 0.0, 1.0, 0)]]) == "F\n"


def test_the_svg_has_a_rectangle_a_bar_and_the_numbers_of_the_microbatches(tmp_path: Path) -> None:
    path = write_svg(tmp_path / "gantt.svg", sample(2, 3), View("1f1b <of> 2"))
    root = ET.parse(path).getroot()
    texts = [text.text for text in root.iter(f"{_SVG}text")]
    assert texts[0] == "1f1b <of> 2"
    assert {"rank 0", "rank 1", "0", "1", "2", "forward", "waiting", "10 ms"} <= set(texts)
    fills = [rect.get("fill") for rect in root.iter(f"{_SVG}rect")]
    assert fills.count("#56B4E9") == 2 * 3 + 1  # the forwards, and their place in the legend


def test_every_bar_of_the_svg_is_inside_the_picture() -> None:
    root = ET.fromstring(svg(_logs("zero3_prefetch", hardware=FixedPredictor(forward=1, backward=1, all_gather=0.7))))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for rect in root.iter(f"{_SVG}rect"):
        x, y, w, h = (float(rect.get(name, -1)) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height


def test_an_empty_log_is_an_empty_picture() -> None:
    root = ET.fromstring(svg([[], []]))
    assert [text.text for text in root.iter(f"{_SVG}text")] == ["rank 0", "rank 1", "waiting"]


def test_a_long_title_ends_within_the_picture_which_is_as_narrow_as_its_page() -> None:
    title = "fsdp: " + ", ".join(["llama3-8b of 32 layers"] * 9)
    root = ET.fromstring(svg(sample(2, 2), View(title), width=600))
    shown = next(root.iter(f"{_SVG}text")).text or ""
    assert shown.endswith(" …")
    assert 40 < len(shown) < 600 / 9
    assert next(root.iter(f"{_SVG}title")).text == title
    assert "max-width:100%" in root.get("style", "")


def test_a_long_legend_wraps() -> None:
    narrow = ET.fromstring(svg(sample(2, 2), width=320))
    assert len({rect.get("y") for rect in narrow.iter(f"{_SVG}rect") if rect.get("height") == "12"}) > 1
