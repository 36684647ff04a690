"""Numbers over their steps as a line."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from minitrain.view.svg import curve_svg


def test_a_curve_goes_from_the_first_step_to_the_last_between_its_extremes() -> None:
    picture = ElementTree.fromstring(curve_svg([3.0, math.nan, 1.0, 2.0], 5, "loss & more", "nats"))
    texts = [each.text for each in picture.iter() if each.tag.endswith("text")]
    assert texts == ["3", "1", "step 5", "step 8, nats"]
    (line,) = [each.get("points", "") for each in picture.iter() if each.tag.endswith("polyline")]
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    assert len(points) == 3  # nan is no point
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert points[0][1] < points[2][1] < points[1][1]
    assert curve_svg([math.nan], 0, "", "") == ""


def test_a_curve_of_many_steps_has_few_points() -> None:
    line = curve_svg([1.0, 2.0] * 5000, 0, "", "").partition('points="')[2].partition('"')[0]
    assert len(line.split()) == 500
