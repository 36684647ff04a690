"""The five stores are dicts that keep the rank's memory exact, whatever a program does with them."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import minitrain.lib as lib
from minitrain.engine.stores import KindStore
from minitrain.errors import TensorTypeError
from minitrain.machine.given_durations import FixedPredictor
from minitrain.workloads.matmul import MatmulLayer

KEYS = st.sampled_from(["a", "b", 0, (1, 2)])
TENSORS: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda n, k: lib.Weight(0, 1, 0).shard(k % n, n), st.sampled_from([1, 2, 3, 8]), st.integers(0, 7)),
    st.builds(lambda n: lib.Activation(0, 1, frozenset(range(n)), 8), st.integers(0, 8)),
    st.builds(lambda n: lib.ActivationGrad(0, 1, frozenset(range(n)), 8), st.integers(0, 8)),
)
PLACES = st.integers(0, 4)


class LayersThatDiffer(MatmulLayer):
    """The specified layers, declared to differ."""

    is_uniform = False


class Stores(RuleBasedStateMachine):
    """Random dict operations on the five stores and on five plain dicts, which must stay equal."""

    def make_model(self) -> Any:
        """Return a model of layers that are alike, whose stores are plain ones."""
        return lib.Model()

    @initialize()
    def start(self) -> None:
        self.model: Any = self.make_model()
        self.stores: Any = self.model.storage()
        self.plain: list[dict[Any, Any]] = [{} for _ in self.stores]
        self.peak = 0.0

    def held(self) -> float:
        return float(sum(value.memory() for store in self.plain for value in store.values()))

    @rule(place=PLACES, key=KEYS, value=TENSORS)
    def set_item(self, place: int, key: Any, value: Any) -> None:
        self.stores[place][key] = self.plain[place][key] = value

    @rule(place=PLACES, key=KEYS)
    def set_itself_and_under_another_key(self, place: int, key: Any) -> None:
        for store in (self.stores[place], self.plain[place]):
            if key in store:
                store[key] = store[key]
                store["again"] = store[key]

    @rule(place=PLACES, key=KEYS)
    def delete(self, place: int, key: Any) -> None:
        if key in self.plain[place]:
            del self.stores[place][key], self.plain[place][key]
        else:
            with pytest.raises(KeyError):
                del self.stores[place][key]

    @rule(place=PLACES, key=KEYS)
    def pop(self, place: int, key: Any) -> None:
        assert self.stores[place].pop(key, None) == self.plain[place].pop(key, None)
        with pytest.raises(KeyError):
            self.stores[place].pop(key)

    @rule(place=PLACES)
    def pop_last(self, place: int) -> None:
        if self.plain[place]:
            assert self.stores[place].popitem() == self.plain[place].popitem()

    @rule(place=PLACES, key=KEYS, value=TENSORS)
    def set_default(self, place: int, key: Any, value: Any) -> None:
        assert self.stores[place].setdefault(key, value) == self.plain[place].setdefault(key, value)

    @rule(place=PLACES, pairs=st.dictionaries(KEYS, TENSORS, max_size=2), value=TENSORS)
    def update(self, place: int, pairs: dict[Any, Any], value: Any) -> None:
        for key, one in [*pairs.items(), ("word", value)]:  # the total between two entries counts for the peak
            self.plain[place][key] = one
            self.peak = max(self.peak, self.held())
        self.stores[place].update(pairs, word=value)

    @rule(place=PLACES, value=TENSORS)
    def update_in_place(self, place: int, value: Any) -> None:
        store = self.stores[place]
        store |= {"a": value}
        self.plain[place] |= {"a": value}
        assert store is self.stores[place]

    @rule(place=PLACES)
    def clear(self, place: int) -> None:
        self.stores[place].clear()
        self.plain[place].clear()

    @rule(place=PLACES, duplicate=st.sampled_from([copy.copy, copy.deepcopy, dict.copy, lambda s: s.copy(), dict]))
    def copies_hold_no_memory(self, place: int, duplicate: Any) -> None:
        assert duplicate(self.stores[place]) == self.plain[place]

    @rule(place=PLACES)
    def pickles_hold_no_memory(self, place: int) -> None:
        assert pickle.loads(pickle.dumps(self.stores[place])) == self.plain[place]

    @invariant()
    def memory_is_the_sum_over_the_stores(self) -> None:
        self.peak = max(self.peak, self.held())
        summed = sum(value.memory() for store in self.stores for value in store.values())
        assert [dict(store) for store in self.stores] == self.plain
        assert self.model.memory() == pytest.approx(summed, rel=1e-12, abs=1e-9)
        assert self.model.peak_memory == pytest.approx(self.peak, rel=1e-12, abs=1e-9)
        assert sum(self.model.memory_by_store().values()) == pytest.approx(self.model.memory(), rel=1e-12, abs=1e-9)


TestStores = Stores.TestCase


class StoresByKind(Stores):
    """The same operations on stores that also add up what they hold of each kind, as where layers differ."""

    def make_model(self) -> Any:
        return lib.Model(runtime_predictor=FixedPredictor().training(LayersThatDiffer()))

    @invariant()
    def kinds_add_up_to_the_memory(self) -> None:
        assert {type(store) for store in self.stores} == {KindStore}
        assert sum(self.model._account.held) == self.model._account.units
        assert sum(self.model.peak_by_kind.values()) == pytest.approx(self.model.peak_memory, rel=1e-12, abs=1e-9)


TestStoresByKind = StoresByKind.TestCase
TestStoresByKind.settings = settings(max_examples=20)


def test_the_peak_sees_what_is_gone_before_the_next_event() -> None:
    model = lib.Model()
    weight, state = model.load_weights(0)
    model.weights[0], model.opt_states[0] = weight, state
    model.activations["brief"] = model.get_input_activation([0])
    del model.activations["brief"]
    model.load_weights(1)
    assert model.peak_memory == 2 * 4096**2 + 4096 * 1024
    assert max(event.memory for event in model.log) == 2 * 4096**2


def test_a_tensor_in_two_places_counts_twice_and_stays_stored_until_it_leaves_both() -> None:
    model = lib.Model()
    weight, _ = model.load_weights(0)
    model.weights["one"] = model.weights["other"] = weight
    assert model.memory() == 2 * weight.memory()
    del model.weights["one"]
    assert model.memory() == weight.memory()
    model.forward(0, model.get_input_activation([0]), weight)


@pytest.mark.parametrize("value", [None, 3, "weight", [lib.Weight(0, 1, 0)]])
def test_only_tensors_can_be_stored_and_a_refused_one_changes_nothing(value: Any) -> None:
    store: Any = lib.Model().weights
    store[0] = lib.Weight(0, 1, 0)
    with pytest.raises(TensorTypeError, match=f"only tensors can be held in a store, got {type(value).__name__}"):
        store[0] = value
    assert store == {0: lib.Weight(0, 1, 0)}


@pytest.mark.parametrize("miss", [operator.getitem, operator.delitem, lambda store, key: store.pop(key)])
@pytest.mark.parametrize(("number", "said"), [(0, "nothing"), (2, "0, 1"), (9, "0, 1, 2, 3, 4, 5, 6, 7, ...")])
def test_who_looks_for_a_key_that_is_not_there_is_told_which_are(miss: Any, number: int, said: str) -> None:
    store: Any = lib.Model().weights
    store.update({key: lib.Weight(0, 1, 0) for key in range(number)})
    with pytest.raises(KeyError, match=r"^99\n") as caught:
        miss(store, 99)
    assert caught.value.__notes__ == [f"the store has {said}"]


def test_anything_with_a_size_of_its_own_can_be_stored() -> None:
    class Buffer:
        def memory(self) -> int:
            return 100

    model = lib.Model()
    store: Any = model.activations
    store["buffer"] = Buffer()
    assert model.memory() == 100
    del store["buffer"]
    assert model.memory() == 0


@pytest.mark.parametrize("num_shards", [3, 5, 6, 7, 11])
def test_shards_of_any_number_leave_no_rounding_behind(num_shards: int) -> None:
    model = lib.Model()
    for turn in range(100):
        for shard in range(num_shards):
            model.weights[turn, shard] = lib.Weight(0, 1, 0).shard(shard, num_shards)
    assert model.memory() == pytest.approx(100 * 4096**2, rel=1e-12)
    model.weights.clear()
    assert model.memory() == 0
