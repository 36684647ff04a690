"""Drawings as plain dicts: what Plotly's own figures would be, valid for Plotly, and JSON whatever they hold."""

from __future__ import annotations

import json
import math
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.view.bars import make_bars
from minitrain.view.gantt import MAX_BARS, drawn_bars
from minitrain.view.layout import Drawing, as_figure, figure_json, page_json
from minitrain.view.page import write_page
from minitrain.view.run_folder import view_of

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8}


def of_run(run: mt.Run) -> Drawing:
    return drawn_bars(make_bars(run.timeline, run.last_clock), view_of(run), run.memory_journals)


def many_bars() -> mt.Run:
    run = mt.simulate("zero3", world_size=32, num_layers=32, global_batch_size=32)
    assert len(make_bars(run.timeline, run.last_clock)) > MAX_BARS
    return run


DRAWN: dict[str, Callable[[], Drawing]] = {
    "a pipeline with memory by kind": lambda: of_run(mt.simulate("1f1b", **SIZES, memory_by_kind=True)),
    "lanes beside one another": lambda: of_run(mt.simulate("zero3_prefetch", **SIZES)),
    "a heat map": lambda: of_run(many_bars()),
}


@pytest.mark.parametrize("what", DRAWN)
def test_a_drawing_is_valid_and_the_json_that_plotly_makes_of_it(what: str) -> None:
    drawing = DRAWN[what]()
    figure = as_figure(drawing)  # which refuses what Plotly does not know
    assert json.loads(figure_json(drawing)) == json.loads(figure.to_json())


def test_a_page_is_written_without_plotlys_python_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("plotly.graph_objects", "plotly.io", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    drawing = of_run(mt.simulate("1f1b", **SIZES))
    page = write_page(tmp_path / "page.html", drawing, "").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in page
    assert 'plotlyServerURL:{valType:"string",dflt:""' in page


def test_numbers_that_json_does_not_have_are_null() -> None:
    found = page_json({"list": [1.5, math.inf, [math.nan]], "number": np.float64(math.nan), "text": "</script>"})
    assert json.loads(found) == {"list": [1.5, None, [None]], "number": None, "text": "</script>"}
    assert "<" not in found


@pytest.mark.parametrize(("values", "kind"), [([1, -2], "i1"), ([1, 300], "i2"), ([1, 2**20], "i4")])
def test_whole_numbers_take_the_smallest_type(values: list[int], kind: str) -> None:
    found = json.loads(page_json(np.array(values)))
    assert found["dtype"] == kind
    assert np.frombuffer(b64decode(found["bdata"]), kind).tolist() == values


def test_what_cannot_be_packed_is_a_list() -> None:
    assert json.loads(page_json(np.array([2**40, 1]))) == [2**40, 1]
    assert json.loads(page_json(np.array([]))) == []
    assert json.loads(page_json(np.array(["a", "b"]))) == ["a", "b"]
    with pytest.raises(TypeError, match="object is no part of a figure"):
        page_json(object())
