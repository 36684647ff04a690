"""The cycle collector around runs: rare while they go on, its thresholds back afterwards, nothing piling up."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model
from minitrain.run import event_loops as collector
from minitrain.run.event_loops import rare_collections

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 16}


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "options",
    [{}, {"strict": True}, {"log": "summary"}, {"fold": True}, {"memory_by_kind": True}, {"numerics": "numpy"}],
    ids=str,
)
@pytest.mark.parametrize("strategy", ["zero3_prefetch", "pp_zero1"])
def test_a_dropped_run_is_freed_without_the_collector(strategy: str, options: dict[str, Any]) -> None:
    if options.get("fold") and strategy == "zero3_prefetch":
        strategy = "zero3"
    run = mt.simulate(strategy, **SIZES, **options)
    model = run.models[0]
    parts = [weakref.ref(part) for part in (model, model.dist, model.runtime_predictor)]
    del run, model
    assert [part() for part in parts] == [None, None, None]


def test_a_failed_run_is_left_to_the_collector() -> None:
    models: list[weakref.ref[Model]] = []

    async def fails(model: Model) -> Model:
        models.append(weakref.ref(model))
        raise ValueError("its own")

    before = gc.get_count()[0]
    with pytest.raises(ValueError, match="its own"):
        mt.simulate(fails, **SIZES)
    assert gc.get_count()[0] > before  # what it left is young still
    gc.collect()
    assert [model() for model in models] == [None] * 4


def test_an_attempt_at_folding_in_vain_is_freed_without_the_collector() -> None:
    models: list[weakref.ref[Model]] = []

    async def pipeline(model: Model) -> Model:
        models.append(weakref.ref(model))
        mesh = model.mesh(pp=2, dp=2)
        before, after = mesh.peer("pp", -1), mesh.peer("pp", 1)
        if before is not None:
            await model.receive(before)
        if after is not None:
            await model.send(after, model.get_input_activation(range(4)))
        return model

    run = mt.simulate(pipeline, fold=True, check=False, **SIZES)
    kept, begun = run.class_models, [model() for model in models]
    assert begun[: 1 + len(kept)] == [None, *kept]  # what was tried in vain, and what folds
    assert not any(begun[1 + len(kept) :])  # ranks that were executed in full, to confirm it


def test_thresholds_come_back_after_runs_beside_each_other_and_after_errors() -> None:
    before = gc.get_threshold()
    inside = threading.Barrier(2)

    def runs() -> None:
        with rare_collections():
            inside.wait(10)
            assert gc.get_threshold() != before

    threads = [threading.Thread(target=runs) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="within"), rare_collections(), rare_collections():
        raise ValueError("within")
    assert gc.get_threshold() == before


class Circle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.ci
def test_circles_that_grew_old_are_looked_at_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_MOST_UNTRAVERSED", 10_000)
    monkeypatch.setattr(collector, "_runs_beside_frozen", 0)
    gc.unfreeze()  # what was there before the tests of this file
    circles: list[weakref.ref[Circle]] = []
    for _ in range(12):
        with rare_collections():
            new = [Circle() for _ in range(1_000)]
            circles += map(weakref.ref, new)
            del new
    assert sum(circle() is None for circle in circles) >= 5_000


def test_frozen_objects_are_not_counted_at_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count() -> int:
        counted.append(1)
        return 1_000_000

    monkeypatch.setattr(collector, "_runs_beside_frozen", 0)
    monkeypatch.setattr(gc, "get_freeze_count", count)
    for _ in range(50):
        with rare_collections():
            pass
    assert len(counted) == 1


def test_what_somebody_else_has_frozen_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_runs_beside_frozen", 0)
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with rare_collections():
            pass
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()
