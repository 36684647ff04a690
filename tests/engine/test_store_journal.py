"""The journal of memory by kind: its sums are the events' memory, and keeping it changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model, Weight
from minitrain.operations import MemoryChange


@pytest.mark.few(2)
@pytest.mark.parametrize("name", mt.strategies())
def test_what_the_journal_sums_to_is_every_events_memory(name: str) -> None:
    world_size = 1 if name == "single" else 8 if name == "pp_hsdp" else 4
    sizes: Any = {"world_size": world_size, "num_layers": 8, "global_batch_size": 16}
    run, plain = mt.simulate(name, memory_by_kind=True, **sizes), mt.simulate(name, **sizes)
    assert [list(log) for log in run.logs] == [list(log) for log in plain.logs]
    assert run.peak_memory_per_rank == plain.peak_memory_per_rank
    for log, journal in zip(run.logs, run.memory_journals, strict=True):
        held: Counter[str] = Counter()
        changes = iter([*journal, MemoryChange(len(log) + 1, "", 0.0)])
        place, kind, size, *_ = next(changes)
        for index, event in enumerate(log):
            while place <= index:
                held[kind] += size  # type: ignore[assignment]  # elements, not counts
                place, kind, size, *_ = next(changes)
            assert sum(held.values()) == event.memory
            assert min(held.values(), default=0) >= 0


def test_every_way_to_store_and_free_is_in_the_journal() -> None:
    async def program(model: Model) -> Model:
        weights, *_ = model.storage()
        weights[0] = weights[1] = Weight(0, 1, 0)
        weights[0] = Weight(0, 1, 0).shard(0, 2)
        weights.setdefault(2, Weight(0, 1, 0))
        weights.update({3: Weight(0, 1, 0)})
        weights.pop(3)
        weights.pop(9, None)
        weights.popitem()
        del weights[0]
        weights.clear()
        return model

    run = mt.simulate(program, world_size=1, num_layers=1, global_batch_size=1, check=False, memory_by_kind=True)
    sizes = [change.elements / 4096**2 for change in run.memory_journals[0]]
    assert sizes == [1, 1, -1, 0.5, 1, 1, -1, -1, -0.5, -1]
    assert {change.kind for change in run.memory_journals[0]} == {"weights"}
