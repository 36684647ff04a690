"""The page of a sweep or a search in a browser: choosing, sorting, and nothing asked of a network."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
def search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = mt.tune("gpt2", world_size=4, global_batch_size=8, strategies="megatron", space=_FEW, jobs=1)
    return found.write_html(tmp_path_factory.mktemp("page") / "tune.html", pictures=2)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    grid = {"world_size": [1, 2, 4], "global_batch_size": [8, 16]}
    made = mt.sweep(["ddp", "zero3", "single"], grid, ThreadPoolExecutor(1), num_layers=2)
    return made.write_html(tmp_path_factory.mktemp("page") / "sweep.html", pictures=1)


def _has_ink(page: Any, selector: str) -> bool:
    """Return whether anything is drawn on a canvas."""
    script = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(byte => byte)"
    return bool(page.locator(selector).evaluate(script))


def _place_of(page: Any, row: int) -> dict[str, float]:
    """Return where the scatter plot has a row, in pixels from its corner."""
    script = "row => { const [x, y] = pointAxes(); return { x: x.at(row), y: y.at(row) }; }"
    found: dict[str, float] = page.evaluate(script, row)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [500, 1400])
def test_a_click_on_a_point_or_a_row_shows_where_its_time_goes_and_what_its_ranks_do(
    open_page: Callable[..., Any], search: Path, scheme: str, width: int
) -> None:
    page = open_page(search, scheme, width)
    assert _has_ink(page, "#lines canvas")
    assert _has_ink(page, "#points canvas")
    named = page.evaluate("data.named")
    page.locator("#points").click(position=_place_of(page, named[1]))
    assert page.locator("#table tbody tr").nth(1).get_attribute("class") == "chosen"
    assert page.locator("#details .parts").count() == 2
    assert page.locator("#details .legend").first.inner_text().startswith("computing ")
    page.wait_for_selector("#details canvas")
    assert _has_ink(page, "#details canvas")
    assert page.locator("#details code").inner_text().startswith("minitrain run megatron ")
    page.locator("#table tbody tr").nth(4).click()
    assert page.locator("#table tbody tr.chosen").count() == 1
    assert page.locator("#details .parts").count() == 0  # the first two alone are drawn
    page.locator("#lines").click(position={"x": 60, "y": 200})
    assert page.locator("#details > dl").count() == 1
    page.select_option("#x", "pp")
    assert _has_ink(page, "#points canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


_CUT = """() => [...document.querySelectorAll('svg text')].filter(text => {
    const [one, all] = [text, text.ownerSVGElement].map(each => each.getBoundingClientRect());
    return one.left < all.left - .5 || one.right > all.right + .5;
}).map(text => text.textContent)"""


@pytest.mark.few(1)
@pytest.mark.parametrize("axis", ["#x", "#y"])
def test_no_figure_beside_an_axis_is_cut(open_page: Callable[..., Any], search: Path, axis: str) -> None:
    page = open_page(search, "light", 500)
    for name in page.locator(f"{axis} option").evaluate_all("all => all.map(one => one.value)"):
        page.select_option(axis, name)
        assert page.evaluate(_CUT) == [], name


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [500, 1500])
def test_a_sweep_is_sorted_by_a_column_and_shows_the_picture_of_what_is_chosen(
    open_page: Callable[..., Any], sweep: Path, width: int
) -> None:
    page = open_page(sweep, "light", width)

    def steps() -> list[float]:
        return [float(text) for text in page.locator("#table tbody td:nth-child(4)").all_inner_texts() if text != "-"]

    assert steps() == sorted(steps())
    assert len(steps()) == 14  # of 18: `single` runs on one rank alone
    page.click("#table tbody tr:first-child")
    page.wait_for_selector("#details canvas")
    page.click("#table tbody tr:nth-child(5)")
    assert page.locator("#details canvas").count() == 0
    assert page.locator("#details code").inner_text().startswith("minitrain run ")
    page.click("#table th:nth-child(4) button")
    page.click("#table th:nth-child(4) button")
    assert steps() == sorted(steps(), reverse=True)
    page.click("#table th:first-child button")
    strategies = page.locator("#table tbody td:first-child").all_inner_texts()
    assert strategies == sorted(strategies)
    page.select_option("#x", "world_size")
    chosen = page.evaluate("data.named[3]")
    page.locator("#points").click(position=_place_of(page, chosen))
    assert page.evaluate("chosen == data.named[3] || pointAxes()[0].at(chosen) == pointAxes()[0].at(data.named[3])")
    page.locator("#points").hover(position=_place_of(page, chosen))
    assert "world_size: " in page.locator("#points canvas").get_attribute("title")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
