"""A tensor in a notebook: its bars, and its numbers in words."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.index_sets import ranges
from minitrain.tensors.kinds import tensor_html


def _filled(drawn: str) -> list[tuple[float, float]]:
    """Return left end and width of every filled part, px."""
    svg = re.search(r"<svg.*</svg>", drawn)
    assert svg
    rects = ET.fromstring(svg[0]).iter("rect")
    return [(float(rect.get("x", 0)), float(rect.get("width", 0))) for rect in rects]


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


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([4], "4"),
        ([1, 0], "0-1"),
        ([0, 1, 2, 8], "0-2,8"),
        (range(0, 16, 4), "0-12 step 4"),
        ([0, 2], "0,2"),
        ([i * i for i in range(12)], "0-1,4,9,16,25,36,49,64,... (12 in all)"),
    ],
)
def test_numbers_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
