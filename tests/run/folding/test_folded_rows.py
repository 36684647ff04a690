"""Rows of a sweep whose runs fold: those of runs alone, and of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

import minitrain as mt
from minitrain.search.sweeps.batches import Batch, run_batch

MESHED: dict[str, Sequence[dict[str, Any]]] = {
    "pp_dp": [{"pp": pp} for pp in (2, 4, 1)],
    "pp_zero1": [{"pp": pp} for pp in (4, 3, 2)],  # 3 does not divide the layers
    "pp_zero3": [{"pp": pp, "microbatch_size": 1} for pp in (2, 4)],
    "pp_hsdp": [{"pp": pp, "shard_size": size} for pp, size in ((2, 2), (2, 4), (4, 1), (1, 4))],
    "hsdp": [{"shard_size": size} for size in (None, 2, 4)],
    "zbv": [{"pp": 2}, {"pp": 4}, {"pp": 2, "zero": 3}, {}],
    "zero3": [{}],
    "1f1b": [{}],
}


def _figures(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what a configuration alone says of a row."""
    try:
        figures = mt.simulate(name, **parameters).summary()
    except mt.StrategyError as error:
        return {"status": "failed", "error": f"StrategyError: {error}"}
    del figures["options"]  # each has a key of its own
    return {"status": "ok", **figures}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MESHED)
def test_rows_of_a_batch_are_those_of_runs_alone_and_in_full(name: str) -> None:
    sizes = product((8, 16), (16, 32), MESHED[name])
    configurations = [
        {"world_size": world_size, "num_layers": 16, "global_batch_size": batch, **options}
        for world_size, batch, options in sizes
    ]
    batch: Batch = [("", (name, {**parameters, "fold": True})) for parameters in configurations]
    for parameters, (_, row) in zip(configurations, run_batch(batch)[1], strict=True):
        for fold in (True, False):
            figures = _figures(name, {**parameters, "fold": fold})
            assert {key: row[key] for key in figures} == figures
