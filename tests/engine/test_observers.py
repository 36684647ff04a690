"""Observers are told of all that ranks do, whoever else watches, and change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.engine.model import _watched_store
from minitrain.engine.observers import Observer, together
from minitrain.engine.stores import Account, Store
from minitrain.lib import Activation, Model, Weight
from minitrain.operations.computations import COMPUTATIONS

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}


class Watcher(Observer):
    """Counts what it is told, and keeps the stores as it is told of them."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.held: dict[Any, Any] = {}
        self.begun: list[tuple[int, str]] = []

    def begin(self, model: Any) -> None:
        self.told["begin"] += 1

    def before(self, model: Any, op: str, given: tuple[Any, ...]) -> None:
        self.begun.append((model.rank, op))

    def after(self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], made: Any) -> None:
        assert (model.rank, op) in self.begun
        self.told["computed" if op in COMPUTATIONS else "submitted"] += 1

    def launched(self, operation: Any) -> None:
        self.told["launched"] += 1

    def settled(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        self.told["settled"] += len(operations)

    def received(self, operation: Any, value: Any, result: Any) -> None:
        assert (operation.op, value.layer) == ("recv", result.layer)
        self.told["received"] += 1

    def awaited(self, operation: Any, result: Any) -> None:
        self.told["awaited"] += 1

    def stored(self, store: Any, key: Any, value: Any) -> None:
        self.held.setdefault((store.rank, store.label, key), []).append(value)

    def left(self, store: Any, key: Any, value: Any) -> None:
        self.held[store.rank, store.label, key].remove(value)

    def resized(self, model: Any, tensor: Any, units: int) -> None:
        self.told["resized"] += 1

    def finish(self, models: Sequence[Any]) -> None:
        self.told["finish"] += 1


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["ddp", "zero3_prefetch", "1f1b", "megatron"])
@pytest.mark.parametrize("parameters", [{}, {"strict": True}, {"numerics": "numpy"}, {"memory_by_kind": True}], ids=str)
def test_what_is_watched_is_the_run_that_nobody_watches(name: str, parameters: dict[str, Any]) -> None:
    watchers = Watcher(), Watcher()
    plain = mt.simulate(name, **SIZES, **parameters)
    run = mt.simulate(name, observers=watchers, **SIZES, **parameters)
    assert [[*log] for log in run.logs] == [[*log] for log in plain.logs]
    assert run.peak_memory_per_rank == plain.peak_memory_per_rank
    first, second = watchers
    assert (first.told, first.begun) == (second.told, second.begun)


def test_an_observer_is_told_of_everything() -> None:
    watcher = Watcher()
    run = mt.simulate("megatron", tp=2, pp=2, workload="tiny", world_size=4, global_batch_size=8, observers=[watcher])
    assert watcher.told["begin"] == 4
    assert watcher.told["finish"] == 1
    assert watcher.told["resized"] > 0
    types = Counter(event.typ for event in run.events)
    collectives = types["all_reduce"] + types["all_gather"] + types["reduce_scatter"]
    assert watcher.told["settled"] == collectives
    assert watcher.told["received"] == types["recv"]
    assert watcher.told["awaited"] == watcher.told["submitted"] == collectives + types["send"] + types["recv"]
    assert Counter(op for _, op in watcher.begun if op in types) == types
    for (rank, label, key), values in watcher.held.items():
        store = getattr(run.models[rank], label)
        assert values == ([store[key]] if key in store else [])


def test_an_operation_that_an_observer_refuses_does_not_happen() -> None:
    class Refusing(Observer):
        def before(self, model: Any, op: str, given: tuple[Any, ...]) -> None:
            if op == "all_reduce" and given[1] == 3:
                raise ValueError(f"no sum of layer {given[1]}")

    watcher = Watcher()
    with pytest.raises(ValueError, match="no sum of layer 3"):
        mt.simulate("ddp", observers=[Refusing(), watcher], **SIZES)
    assert max(watcher.begun.count((rank, "all_reduce")) for rank in range(4)) == 3  # of layers 0 to 2
    assert watcher.told["finish"] == 0


def test_arguments_by_name_are_told_in_their_places() -> None:
    class Noting(Observer):
        def __init__(self) -> None:
            self.noted: list[Any] = []

        def after(self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], made: Any) -> None:
            self.noted.append((op, given, dict(named)))

    async def strategy(model: Model) -> Model:
        model.load_weights(num_shards=2, layer=1, part=0)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'layer'"):
            model.load_weights(num_shards=2)  # type: ignore[call-arg]
        return model

    noting = Noting()
    mt.simulate(strategy, world_size=1, num_layers=2, global_batch_size=1, check=False, observers=[noting])
    assert noting.noted == [("load_weights", (1, 0, 2), {"part": 0, "num_parts": 1})]


def test_one_observer_needs_nobody_who_tells_it() -> None:
    watcher = Watcher()
    assert together([watcher]) is watcher


MOVES = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "pop", "popitem"]), st.integers(0, 3), st.integers(0, 4)), max_size=12
)


def moved(store: Store[Any], moves: list[tuple[str, int, int]]) -> list[tuple[list[int], int]]:
    """Return what a store and its account hold after each of some moves."""
    tensors = [
        Weight(0, 1, 0),
        Weight(0, 1, 0, frozenset([0]), 2),
        *(Activation(0, 1, frozenset(range(n)), 4) for n in (1, 2, 4)),
    ]
    history = []
    for move, key, number in moves:
        with suppress(KeyError):
            if move == "set":
                store[key] = tensors[number]
            elif move == "delete":
                del store[key]
            elif move == "pop":
                store.pop(key)
            else:
                store.popitem()
        history.append(([tensors.index(value) for value in store.values()], store._account.units))
    return history


@given(MOVES)
def test_watched_stores_hold_count_and_tell_what_plain_ones_do(moves: list[tuple[str, int, int]]) -> None:
    watcher = Watcher()
    store: Any = _watched_store(Store)(Account(lambda tensor: tensor.memory()))
    store.observer, store.rank, store.label = watcher, 0, "weights"
    assert moved(Store(Account(lambda tensor: tensor.memory())), moves) == moved(store, moves)
    told = {key: values[0] for (_, _, key), values in watcher.held.items() if values}
    assert told == store
