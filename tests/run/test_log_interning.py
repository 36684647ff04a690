"""Large runs let equal sizes be one object: the same log, in less memory."""

from __future__ import annotations

from typing import Any

import pytest

import minitrain as mt
from minitrain.engine import deadlocks as watch
from minitrain.operations import MEMORY, STRIDE
from minitrain.run.result import Run


def distinct_sizes(run: Run) -> int:
    """Return how many numbers the events of a run refer to."""
    return len({id(units) for model in run.models for units in model.log._rows[MEMORY::STRIDE]})


@pytest.mark.parametrize("strategy", ["1f1b", "zero3_prefetch"])
def test_sizes_are_shared_and_the_log_is_the_same(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 64, "microbatch_size": 1}
    plain = mt.simulate(strategy, **sizes)
    monkeypatch.setattr(watch, "OPERATIONS_BETWEEN_HOUSEKEEPING", 1)
    shared = mt.simulate(strategy, **sizes)
    assert shared == plain
    assert distinct_sizes(shared) < distinct_sizes(plain)
