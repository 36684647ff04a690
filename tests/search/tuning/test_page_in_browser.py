"""A search's page in a browser: a click shows where the time of a layout goes, and nothing is asked of a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt

pytestmark = pytest.mark.browser

_FEW: dict[str, list[Any]] = {
    "tp": [1, 2],
    "pp": [1, 2],
    "num_chunks": [1],
    "overlap_parts": [False],
    "recompute": ["none", "full"],
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = mt.tune("gpt2", world_size=4, global_batch_size=8, strategies="megatron", space=_FEW, jobs=1)
    return found.write_html(tmp_path_factory.mktemp("page") / "tune.html", pictures=2)


def _has_ink(page: Any, selector: str) -> bool:
    """Return whether anything is drawn on a canvas."""
    script = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(byte => byte)"
    return bool(page.locator(selector).evaluate(script))


def _place_of(page: Any, row: int) -> dict[str, float]:
    """Return where the scatter plot has a row, in pixels from its corner."""
    script = """row => {
      const plot = document.getElementById('points'), at = axis($('x').value, 60, plot.clientWidth - 16, 4).at(row);
      return { x: at, y: axis($('y').value, plot.clientHeight - 30, 12, 5).at(row) };
    }"""
    found: dict[str, float] = page.evaluate(script, row)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [500, 1400])
def test_a_click_on_a_point_or_a_row_shows_where_its_time_goes_and_what_its_ranks_do(
    open_page: Callable[..., Any], path: Path, scheme: str, width: int
) -> None:
    page = open_page(path, scheme, width)
    assert _has_ink(page, "#lines canvas")
    assert _has_ink(page, "#points canvas")
    ranked = page.evaluate("data.ranked")
    page.locator("#points").click(position=_place_of(page, ranked[1]))
    assert page.locator("tbody tr").nth(1).get_attribute("class") == "chosen"
    assert page.locator("#details .bar").count() == 2
    assert page.locator("#details .legend").first.inner_text().startswith("computing ")
    assert _has_ink(page, "#details canvas")
    assert page.locator("#details code").inner_text().startswith("minitrain run megatron ")
    page.locator("tbody tr").nth(4).click()
    assert page.locator("tbody tr.chosen").count() == 1
    assert page.locator("#details .bar").count() == 0  # the first two alone are drawn
    page.locator("#lines").click(position={"x": 60, "y": 200})
    assert page.locator("#details dl").count() == 1
    page.select_option("#x", "pp")
    assert _has_ink(page, "#points canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
