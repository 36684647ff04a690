"""A sweep's page in a browser: sorting, choosing, and nothing asked of a network."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    grid = {"world_size": [1, 2, 4], "global_batch_size": [8, 16]}
    made = mt.sweep(["ddp", "zero3", "single"], grid, ThreadPoolExecutor(1), num_layers=2)
    return made.write_html(tmp_path_factory.mktemp("page") / "sweep.html", pictures=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [500, 900, 1500])
def test_a_click_in_table_scatter_or_lines_chooses_the_same_row(
    open_page: Callable[..., Any], path: Path, scheme: str, width: int
) -> None:
    page = open_page(path, scheme, width)
    steps = [float(text) for text in page.locator("tbody td:nth-child(4)").all_inner_texts() if text != "-"]
    assert steps == sorted(steps)
    assert len(steps) == 14  # of 18: `single` runs on one rank alone
    page.click("tbody tr:first-child")
    assert page.locator("#details img").count() == 1
    page.click("tbody tr:nth-child(5)")
    assert page.locator("#details img").count() == 0
    assert page.locator("#details code").inner_text().startswith("minitrain run ")
    assert page.locator("circle.chosen").count() == page.locator("path.chosen").count() == 1
    page.click("th:nth-child(4) button")
    assert page.locator("tbody td:nth-child(4)").first.inner_text() == max(map(str, steps), key=float)
    page.locator("circle.mark").nth(3).dispatch_event("click")
    assert page.locator("tbody tr.chosen").count() == 1
    page.select_option("#x", "world_size")
    assert page.locator("circle.mark").count() == 14
    assert page.evaluate("document.documentElement.scrollWidth") <= width
