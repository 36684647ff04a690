"""What notebooks show: a run as its figure, a tensor as a small drawing."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

import minitrain as mt
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.trace.notebook import PLOTLY_MIME
from minitrain.trace.tensor_drawing import tensor_html


def _filled(drawn: str) -> list[tuple[float, float]]:
    """Return left end and width of every filled part, px."""
    svg = re.search(r"<svg.*</svg>", drawn)
    assert svg
    rects = ET.fromstring(svg[0]).iter("rect")
    return [(float(rect.get("x", 0)), float(rect.get("width", 0))) for rect in rects]


def test_a_notebook_shows_a_run_as_figure_picture_or_text() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4)
    bundle: Any = run._repr_mimebundle_()
    assert list(bundle) == ["text/plain", PLOTLY_MIME, "text/html"]
    figure = json.loads(json.dumps(bundle[PLOTLY_MIME]))
    assert figure["config"]["plotlyServerURL"] == ""
    assert len(figure["data"]) == len(run.figure().data)
    assert bundle["text/html"].startswith("<svg")


def test_a_run_too_large_for_a_picture_is_shown_as_its_figure() -> None:
    run = mt.simulate("1f1b", world_size=8, num_layers=16, global_batch_size=256, microbatch_size=1)
    assert list(run._repr_mimebundle_()) == ["text/plain", PLOTLY_MIME]


def test_a_weight_shows_its_layer_and_the_shards_it_holds() -> None:
    drawn = Weight(3, 8, 1, frozenset([0, 1]), 4)._repr_html_()
    assert "<b>Weight</b> · layer 3 of 8 · step 1 · shards 0-1 of 4" in drawn
    assert _filled(drawn) == [(52 + 3 * 30, 30), (52, 120)]


def test_an_activation_shows_its_samples() -> None:
    drawn = tensor_html(Activation(0, 2, frozenset([0, 2, 3]), 8))
    assert "samples 0,2-3 of 8" in drawn
    assert _filled(drawn) == [(52, 120), (52, 30), (52 + 60, 60)]


@pytest.mark.parametrize(
    "tensor",
    [
        OptState(0, 1, 0),
        WeightGrad(1, 2, frozenset([0]), 1, frozenset([5]), 64),
        ActivationGrad(-1, 4, frozenset(), 4),
        Activation(4, 4, frozenset(range(512)), 512),
    ],
)
def test_every_tensor_is_drawn_inside_its_frame(tensor: Any) -> None:
    for left, width in _filled(tensor_html(tensor)):
        assert 52 <= left <= left + width <= 52 + 240 + 0.01
