"""Configurations that differ in prices alone are executed together, and their rows stay as they were."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import minitrain as mt
from minitrain.run.event_loops import run_to_end
from minitrain.search.sweeps import batches
from minitrain.search.sweeps.batches import SharedByBatch
from minitrain.search.sweeps.sweep import points_by_structure

_STRATEGIES = ["ddp", "pp_zero1:pp=2", "zero3"]
_GRIDS: dict[str, tuple[dict[str, list[Any]], dict[str, Any]]] = {
    "hardware": (
        {"hardware": ["h100_80g_nvl8", "nope", "a100_80g", "v100_32g_nvl8"], "world_size": [4, 8]},
        {"fold": True},
    ),
    "slowdown": ({"slowdown": [None, {3: 2.0}, {9: 2.0}], "network": ["auto", "flat"]}, {"world_size": 4}),
    "fidelity": ({"fidelity": ["roofline", "kernels"], "hardware": ["h100_80g_nvl8", "a100_80g"]}, {"world_size": 4}),
    "strict": ({"hardware": ["h100_80g_nvl8", "a100_80g", "phone"]}, {"world_size": 2, "strict": True}),
    "totals": ({"hardware": ["h100_80g_nvl8", "a100_80g", "phone"]}, {"world_size": 2, "log": "summary"}),
    "memory": ({"hardware": ["h100_80g_nvl8", "esp32", "phone"]}, {"world_size": 2, "global_batch_size": 512}),
}


def _one_by_one(configurations: list[Any]) -> list[batches.Row]:
    """Return the rows of configurations that are simulated each by itself."""

    async def rows() -> list[batches.Row]:
        shared = SharedByBatch()
        return [await batches.row_of(each, shared) for each in configurations]

    return run_to_end(rows)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", list(_GRIDS))
def test_rows_are_those_of_single_simulations_to_the_last_digit(name: str) -> None:
    grid, common = _GRIDS[name]
    sizes = {"num_layers": 8, "global_batch_size": 16, **common}
    configurations = [(strategy, {**sizes, **point}) for _, strategy, point in points_by_structure(grid, _STRATEGIES)]
    _, found = batches.run_batch([(str(place), each) for place, each in enumerate(configurations)])
    for row, wanted in zip([row for _, row in found], _one_by_one(configurations), strict=True):
        assert row == wanted
        assert list(map(repr, row.items())) == list(map(repr, wanted.items()))


def test_machines_of_one_structure_take_one_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "row_of", None)  # nothing is left for it
    grid = {"hardware": ["h100_80g_nvl8", "a100_80g", "v100_32g_nvl8"]}
    configurations = [
        ("zero3", {"world_size": 8, "num_layers": 8, "fold": True, **point})
        for _, _, point in points_by_structure(grid, [0])
    ]
    _, rows = batches.run_batch([(str(place), each) for place, each in enumerate(configurations)])
    assert [row["hardware"] for _, row in rows] == grid["hardware"]


def test_prices_vary_fastest_and_rows_keep_the_order_of_the_grid() -> None:
    grid: dict[str, list[Any]] = {"hardware": ["h100_80g_nvl8", "a100_80g"], "world_size": [1, 2]}
    order = [(point["world_size"], point["hardware"], place) for place, _, point in points_by_structure(grid, ["ddp"])]
    assert order == [(1, "h100_80g_nvl8", 0), (1, "a100_80g", 2), (2, "h100_80g_nvl8", 1), (2, "a100_80g", 3)]
    with ThreadPoolExecutor(1) as pool:
        rows = mt.sweep(["ddp", "zero3"], grid, pool, num_layers=2, global_batch_size=2).rows()
    named = [(row["hardware"], row["world_size"], row["strategy"]) for row in rows]
    wanted = [(name, size, one) for name in grid["hardware"] for size in (1, 2) for one in ("ddp", "zero3")]
    assert named == wanted
