"""The five kinds of tensor: sizes, shards, sums and combinations, and the laws that guard them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import pkgutil
import weakref
from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain import tensors
from minitrain.errors import LawError
from minitrain.lib import (
    Activation,
    ActivationGrad,
    Gatherable,
    OptState,
    Reduceable,
    ReduceableGatherable,
    Weight,
    WeightGrad,
)
from minitrain.tensors import FIELDS, Tensor, clone, kinds
from minitrain.tensors.fields import OnHost

H, BLOCK = 4096, 1024
WEIGHT = Weight(1, 4, 0)
STATE = OptState(1, 4, 0)
GRAD = WeightGrad(1, 4, frozenset([0, 1]), 8)
ACT = Activation(1, 4, frozenset([0, 1, 2]), 8)
ACT_GRAD = ActivationGrad(0, 4, frozenset([0, 1]), 8)
SHARDABLE: list[Any] = [WEIGHT, STATE, GRAD]
ALL: list[Any] = [*SHARDABLE, ACT, ACT_GRAD]


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_fields_that_are_written_out_are_those_of_the_dataclass(kind: type[Any]) -> None:
    values = range(len(dataclasses.fields(kind)))
    assert FIELDS[kind](kind(*values)) == tuple(values) == dataclasses.astuple(kind(*values))


def test_every_kind_that_a_file_of_the_room_defines_has_its_fields() -> None:
    files = [import_module(f"{tensors.__name__}.{file.name}") for file in pkgutil.iter_modules(tensors.__path__)]
    defined = [value for file in files for value in vars(file).values() if isinstance(value, type)]
    kinds = {kind for kind in defined if issubclass(kind, Tensor) and "__dataclass_fields__" in vars(kind)}
    assert kinds - {OnHost} == set(FIELDS)


def test_sizes_are_the_specified_formulas() -> None:
    assert WEIGHT.memory() == STATE.memory() == GRAD.memory() == H * H
    assert ACT.memory() == 3 * H * BLOCK
    assert ACT_GRAD.memory() == 2 * H * BLOCK
    assert Activation(0, 4, frozenset(), 8).memory() == 0


@pytest.mark.parametrize("num_shards", [2, 3, 7])
def test_a_shard_has_its_share_of_the_size(num_shards: int) -> None:
    assert WEIGHT.shard(1, num_shards).memory() == (1 / num_shards) * H * H
    assert GRAD.shard(1, num_shards).memory() == (1 / num_shards) * H * H
    assert STATE.shard(1, num_shards).memory() == H * H * (1 / num_shards)


@given(st.sampled_from(SHARDABLE), st.integers(1, 8), st.randoms(use_true_random=False))
def test_shards_combine_to_the_whole_in_any_order(tensor: Any, num_shards: int, random: Any) -> None:
    shards = [tensor.shard(index, num_shards) for index in range(num_shards)]
    random.shuffle(shards)
    whole = shards[0]
    for shard in shards[1:]:
        assert not whole.is_complete()
        whole = whole.combine(shard)
    assert whole.is_complete()
    assert whole.memory() == tensor.memory()
    assert (whole.shards, whole.num_shards) == (frozenset(range(num_shards)), num_shards)


@pytest.mark.parametrize("tensor", ALL)
def test_instances_of_the_protocols_are_what_implements_them(tensor: Any) -> None:
    assert isinstance(tensor, Gatherable) == any(tensor is one for one in SHARDABLE)
    assert isinstance(tensor, Reduceable) == isinstance(tensor, ReduceableGatherable) == (tensor is GRAD)


@pytest.mark.parametrize("tensor", SHARDABLE)
def test_only_a_complete_tensor_can_be_sharded(tensor: Any) -> None:
    with pytest.raises(LawError, match=r"layer 1 holds shards \[2\] of 4; all_gather it first"):
        tensor.shard(2, 4).shard(0, 2)
    for shard in (-1, 4):
        with pytest.raises(LawError, match=rf"shard must lie in 0\.\.num_shards-1, got shard {shard} of 4"):
            tensor.shard(shard, 4)
    for quotients in ((0, 2.0), (1.0, 2)):
        with pytest.raises(LawError, match=r"must be whole numbers, got .*; divide by //"):
            tensor.shard(*quotients)


def test_gradients_add_to_the_samples_of_both() -> None:
    total = GRAD + WeightGrad(1, 4, frozenset([1, 5]), 8)
    assert total == WeightGrad(1, 4, frozenset([0, 1, 5]), 8)
    assert GRAD.samples == frozenset([0, 1]), "the operands stay as they are"


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (WEIGHT, Weight(2, 4, 0), "weights that combine: layer must be equal, got 1 and 2"),
        (WEIGHT, Weight(1, 4, 1), r"weights that combine: step must be equal, got 0 and 1 \(layer 1\)"),
        (WEIGHT, Weight(1, 4, 0, frozenset([0]), 2), "weights that combine: num_shards must be equal, got 1 and 2"),
        (WEIGHT, STATE, "weights that combine: both must be Weight, got OptState"),
        (STATE, OptState(1, 4, 1), "optimizer states that combine: step must be equal, got 0 and 1"),
        (GRAD, WeightGrad(1, 4, frozenset([7]), 8), "gradients that combine: samples must be equal"),
    ],
)
def test_what_does_not_belong_together_does_not_combine(left: Any, right: Any, message: str) -> None:
    with pytest.raises(LawError, match=message):
        left.combine(right)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (WeightGrad(2, 4, frozenset([3]), 8), r"gradients that add: layer must be equal, got 1 and 2 \(layers 1 and 2"),
        (GRAD.shard(0, 2), "gradients that add: num_shards must be equal, got 1 and 2"),
        (WEIGHT, "gradients that add: both must be WeightGrad, got Weight"),
        (3, "gradients that add: both must be WeightGrad, got 3"),
    ],
)
def test_gradients_of_different_layers_or_shards_do_not_add(other: Any, message: str) -> None:
    with pytest.raises(LawError, match=message):
        GRAD + other


def test_different_shards_of_a_gradient_do_not_add() -> None:
    with pytest.raises(LawError, match="gradients that add: shards must be equal"):
        GRAD.shard(0, 2) + GRAD.shard(1, 2)


@pytest.mark.parametrize("tensor", ALL)
def test_copies_are_equal_objects_of_their_own(tensor: Any) -> None:
    for other in (copy.copy(tensor), copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), clone(tensor)):
        assert other == tensor
        assert other is not tensor
        assert repr(other) == repr(tensor)


@pytest.mark.parametrize("tensor", ALL)
def test_tensors_are_mutable_and_can_be_weakly_referenced(tensor: Any) -> None:
    other: Any = copy.copy(tensor)
    reference = weakref.ref(other)
    other.layer = 3
    assert (tensor.layer, other.layer) == (tensor.layer, 3)
    assert reference() is other
    with pytest.raises(AttributeError, match="no attribute"):
        setattr(other, "data", 1)  # noqa: B010  (mypy knows that it is wrong)


def test_clone_leaves_other_values_alone() -> None:
    value = object()
    assert clone(value) is value


def test_only_gradients_of_one_class_add() -> None:
    class Special(WeightGrad):
        pass

    plain, special = WeightGrad(0, 1, frozenset([0]), 2), Special(0, 1, frozenset([1]), 2)
    for left, right in ((plain, special), (special, plain)):
        with pytest.raises(LawError, match="both must be"):
            left + right


@pytest.mark.parametrize("parameters", [{"numerics": "numpy"}, {"strict": True}])
def test_tensors_are_followed_from_the_first_model_that_follows_them(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any]
) -> None:
    """Sums, shards and combinations look for annotations once a run of the process annotates tensors."""
    monkeypatch.setattr("minitrain.tensors.kinds._enabled", False)
    sizes: Any = {"world_size": 4, "num_layers": 4, "global_batch_size": 16, "microbatch_size": 2}
    mt.simulate("pp_zero1", **sizes)
    assert not kinds._enabled
    run = mt.simulate("pp_zero1", **sizes, **parameters)
    assert kinds._enabled
    slot = "_content" if "numerics" in parameters else "_origin"
    assert all(hasattr(weight, slot) for model in run.models for weight in model.final_weights.values())


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_what_the_engine_makes_is_what_the_class_makes(kind: Any) -> None:
    values = [frozenset([3]) if name == "samples" else 4 for name in kind.__dataclass_fields__]
    values = values[: len(values) - len(kind.__init__.__defaults__ or ())]
    made, expected = kinds.maker_of(kind)(7, *values), kind(*values)
    assert (type(made), made, made._units) == (kind, expected, 7)


@dataclasses.dataclass(slots=True)
class AverageWeight(Weight):
    """A kind that a newcomer adds: a moving average of a layer's weight."""

    num_averaged: int = 1


@dataclasses.dataclass(slots=True)
class AverageState(OptState):
    """Another one, of what an optimizer keeps."""


@pytest.mark.parametrize("workload", [None, "rows:64", "tiny"])
@pytest.mark.parametrize(("kind", "like"), [(AverageWeight, Weight), (AverageState, OptState)])
def test_a_new_kind_is_stored_copied_and_sent_as_the_kind_that_it_extends(
    kind: Any, like: Any, workload: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    monkeypatch.setitem(FIELDS, kind, attrgetter(*names))  # as a file of the room has it

    async def moves(model: Any, kind: Any = kind) -> Any:
        model.weights["new"] = kind(0, model.num_layers, 0, frozenset([model.rank]), 2)
        model.host["new"] = await model.offload(model.weights["new"])
        model.weights["back"] = await model.fetch(model.host["new"])
        await model.send(1 - model.rank, model.weights["back"])
        model.weights["whole"] = await model.all_gather(await model.receive(1 - model.rank), 0)
        assert model.weights["whole"].__class__ is kind
        return model

    sizes: dict[str, Any] = {"world_size": 2, "global_batch_size": 2, "check": False}
    sizes |= {} if workload is None else {"workload": workload}
    simulate: Any = mt.simulate
    run, usual = (simulate(moves, kind=each, **sizes) for each in (kind, like))
    assert run.last_clock == usual.last_clock
    assert run.peak_memory == usual.peak_memory
    with pytest.raises(LawError, match=f"{kind.__name__}.* was made by hand"):
        simulate(moves, kind=kind, strict=True, **sizes)
