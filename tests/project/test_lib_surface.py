"""`minitrain.lib` has the specification's names, parameters, orders and defaults: nothing less, nothing else."""

from __future__ import annotations

import dataclasses
import inspect
from functools import reduce
from operator import add
from typing import Any

import pytest

import minitrain.lib as lib
from minitrain.errors import UsageError

NAMES = {
    "BLOCK_SIZE",
    "BYTES_PER_ELEMENT",
    "DATATYPE",
    "HIDDEN_SIZE",
    "Activation",
    "ActivationGrad",
    "Barrier",
    "Dist",
    "Event",
    "Gatherable",
    "Model",
    "OptState",
    "Reduceable",
    "ReduceableGatherable",
    "RuntimePredictor",
    "Weight",
    "WeightGrad",
}

NOTHING = inspect.Parameter.empty
SIGNATURES: dict[str, dict[str, Any]] = {
    "Barrier": {"target": NOTHING},
    "Barrier.wait": {"rank": NOTHING},
    "Barrier.reset": {},
    "Dist": {"world_size": NOTHING},
    "Dist.all_reduce": dict.fromkeys(("rank", "inp", "time"), NOTHING),
    "Dist.all_gather": dict.fromkeys(("rank", "inp", "time"), NOTHING),
    "Dist.reduce_scatter": dict.fromkeys(("rank", "inp", "time"), NOTHING),
    "Dist.receive": dict.fromkeys(("rank_source", "rank_dest"), NOTHING),
    "Dist.send": dict.fromkeys(("rank_source", "rank_dest", "v"), NOTHING),
    "Model": {"rank": 1, "dist": None, "num_layers": 2, "global_batch_size": 1},
    "Model.storage": {},
    "Model.memory": {},
    "Model.status": {},
    "Model.log_event": {
        "typ": NOTHING,
        "layer": None,
        "samples": frozenset(),
        "input": None,
        "num_shards_on_device": None,
        "num_shards": None,
    },
    "Model.load_weights": {"layer": NOTHING, "shard": 0, "num_shards": 1},
    "Model.set_final_weight": dict.fromkeys(("layer", "weight"), NOTHING),
    "Model.get_input_activation": {"samples": NOTHING},
    "Model.forward": dict.fromkeys(("layer", "inp", "weight"), NOTHING),
    "Model.backward": dict.fromkeys(("layer", "inp", "grad", "weight"), NOTHING),
    "Model.loss": {"inp": NOTHING},
    "Model.update": dict.fromkeys(("layer", "weight_grad", "weight", "opt_state"), NOTHING),
    "Model.all_reduce": dict.fromkeys(("v", "layer"), NOTHING),
    "Model.reduce_scatter": dict.fromkeys(("v", "layer"), NOTHING),
    "Model.all_gather": dict.fromkeys(("v", "layer"), NOTHING),
    "Model.send": dict.fromkeys(("dest", "v"), NOTHING),
    "Model.receive": {"source": NOTHING},
    "RuntimePredictor": {"world_size": NOTHING, "config_file_name": "h100_80g_nvl8.json"},
    "RuntimePredictor.compute_flops_time": {"flops": NOTHING},
    "RuntimePredictor.compute_mem_time": {"bytes_read_write": NOTHING},
    "RuntimePredictor.get_processing_time": dict.fromkeys(("flops", "bytes_read_write"), NOTHING),
    "RuntimePredictor.get_forward_backward_time": {"batch_size": NOTHING},
    "RuntimePredictor.get_update_step_time": dict.fromkeys(("num_shards_on_device", "num_shards"), NOTHING),
    "RuntimePredictor.get_comm_bytes": {"v": NOTHING},
    "RuntimePredictor.get_collective_time": dict.fromkeys(("collective_name", "v"), NOTHING),
    "RuntimePredictor.get_send_recv_time": {"v": NOTHING},
    "RuntimePredictor.get_weight_load_time": dict.fromkeys(("num_shards_on_device", "num_shards"), NOTHING),
}
ASYNC = {"Barrier.wait", "Barrier.reset"} | {
    f"{home}.{name}"
    for home in ("Dist", "Model")
    for name in ("all_reduce", "all_gather", "reduce_scatter", "send", "receive")
}


def find(path: str) -> Any:
    found: Any = lib
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_the_module_exports_exactly_the_specified_names() -> None:
    assert {name for name in vars(lib) if not name.startswith("_")} == NAMES


def test_the_constants_have_the_specified_values() -> None:
    assert (lib.HIDDEN_SIZE, lib.BLOCK_SIZE, lib.DATATYPE, lib.BYTES_PER_ELEMENT) == (4096, 1024, "float16", 2)


@pytest.mark.parametrize("path", SIGNATURES)
def test_parameters_have_the_specified_names_order_and_defaults(path: str) -> None:
    parameters = inspect.signature(find(path)).parameters.values()
    specified = {p.name: p.default for p in parameters if p.name != "self" and p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(specified.items()) == list(SIGNATURES[path].items())
    assert all(p.default is not NOTHING for p in parameters if p.kind is p.KEYWORD_ONLY), "extras must be optional"


@pytest.mark.parametrize("path", SIGNATURES)
def test_exactly_the_specified_methods_are_coroutines(path: str) -> None:
    assert inspect.iscoroutinefunction(find(path)) == (path in ASYNC)


TENSOR_FIELDS = {
    lib.Weight: ["layer", "layers", "step", "shards", "num_shards"],
    lib.OptState: ["layer", "layers", "step", "shards", "num_shards"],
    lib.Activation: ["layer", "layers", "samples", "total_samples"],
    lib.ActivationGrad: ["layer", "layers", "samples", "total_samples"],
    lib.WeightGrad: ["layer", "layers", "samples", "total_samples", "shards", "num_shards"],
}


@pytest.mark.parametrize("kind", TENSOR_FIELDS)
def test_tensors_are_dataclasses_with_the_specified_fields(kind: Any) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    assert list(fields) == TENSOR_FIELDS[kind]
    if "shards" in fields:
        assert (fields["shards"], fields["num_shards"]) == (frozenset([0]), 1)


def test_an_event_takes_the_specified_fields_by_position() -> None:
    event = lib.Event("forward", 3, 1, 10, 5, 100, frozenset([7]))
    fields = ("typ", "layer", "rank", "time", "duration", "memory", "samples")
    assert tuple(getattr(event, name) for name in fields) == ("forward", 3, 1, 10, 5, 100, frozenset([7]))
    assert [field.name for field in dataclasses.fields(lib.Event)][:7] == list(fields)
    assert lib.Event("loss", None, 0, 0, 0, 0).samples == frozenset()
    assert event == lib.Event("forward", 3, 1, 10, 5, 100, frozenset([7]))
    assert event.end == 15


def test_a_model_offers_the_attributes_that_a_program_may_read() -> None:
    dist = lib.Dist(4)
    model = lib.Model(2, dist, 6, 8)
    assert (model.rank, model.dist, model.world_size, model.num_layers, model.global_batch_size) == (2, dist, 4, 6, 8)
    assert (model.time, list(model.log), model.final_weights) == (0, [], {})
    stores = (model.weights, model.opt_states, model.activations, model.grad_activations, model.grad_weights)
    assert all(mine is given for mine, given in zip(stores, model.storage(), strict=True))
    assert isinstance(model.runtime_predictor, lib.RuntimePredictor)
    assert model.runtime_predictor.world_size == 4


def test_dist_barrier_and_predictor_offer_the_attributes_that_a_program_may_read() -> None:
    dist = lib.Dist(4)
    assert (dist.world_size, dist.barrier.target, dist.barrier.counter, len(dist.queue)) == (4, 4, 0, 0)
    assert isinstance(dist.barrier, lib.Barrier)
    predictor = lib.RuntimePredictor(4)
    for name in ("processor", "mem_hbm", "mem_pcie", "network"):
        assert getattr(predictor, name) is not None


def test_a_default_model_is_rank_1_of_a_world_of_its_own() -> None:
    first, second = lib.Model(), lib.Model()
    assert (first.rank, first.world_size, first.num_layers, first.global_batch_size) == (1, 1, 2, 1)
    assert first.dist is not second.dist


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 4}, r"rank must lie in 0\.\.3, got 4"),
        ({"rank": -1}, "rank must be an integer of at least 0, got -1"),
        ({"rank": 0, "num_layers": 0}, "num_layers must be an integer of at least 1, got 0"),
        ({"rank": 0, "num_layers": 2.0}, r"num_layers must be an integer of at least 1, got 2\.0"),
        ({"rank": 0, "global_batch_size": True}, "global_batch_size must be an integer of at least 1, got True"),
    ],
)
def test_a_model_refuses_what_is_no_rank_or_count(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lib.Model(dist=lib.Dist(4), **arguments)


@pytest.mark.parametrize("world_size", [0, -1, 1.5, "2", None])
def test_a_dist_refuses_what_is_no_world_size(world_size: Any) -> None:
    with pytest.raises(UsageError, match="world_size must be an integer of at least 1, got"):
        lib.Dist(world_size)
    with pytest.raises(UsageError, match="p2p_buffer must be an integer of at least 1, got 0"):
        lib.Dist(2, p2p_buffer=0)


def test_the_log_reads_like_a_list() -> None:
    model = lib.Model()
    for layer in range(2):
        model.load_weights(layer)
    assert len(model.log) == 2
    assert [event.layer for event in model.log] == [0, 1]
    assert model.log[-1] == model.log[1] == list(model.log)[1]
    assert model.log[:1] == [model.log[0]]
    assert model.log == list(model.log)
    assert model.log != [model.log[0]]
    assert model.log != 7
    assert next(reversed(model.log)) in model.log
    assert "EventLog(rank=1, [Event(typ='load_weights'" in repr(model.log)
    with pytest.raises(IndexError, match="event 2 of a log of 2"):
        model.log[2]


def test_logs_add_up_to_lists_as_course_programs_do() -> None:
    models: list[Any] = [lib.Model(), lib.Model()]
    for model in models:
        model.load_weights(0)
    everything: Any = sum((model.log for model in models), [])  # noqa: RUF017  (what such programs write)
    assert everything == [*models[0].log, *models[1].log]
    assert models[0].log + models[1].log == everything


def test_status_prints_what_the_stores_hold(capsys: pytest.CaptureFixture[str]) -> None:
    model = lib.Model()
    model.weights["mine"], _ = model.load_weights(0)
    model.status()
    printed = capsys.readouterr().out
    assert "rank 1 weights:\n  'mine': Weight(layer=0, layers=2, step=0" in printed
    assert "rank 1 grad_weights:" in printed


@pytest.mark.parametrize("typ", ["loss", "mine", "set_final_weight"])
def test_an_event_without_a_price_lasts_0(typ: str) -> None:
    model = lib.Model(0, lib.Dist(8))
    model.log_event(typ, 1, frozenset([0]), model.get_input_activation([0]))
    assert (model.log[0].typ, model.log[0].duration, model.time) == (typ, 0, 0)


def test_log_event_prices_every_type_as_the_operation_does() -> None:
    model = lib.Model(0, lib.Dist(8), 2, 8)
    predictor, act = lib.RuntimePredictor(8), model.get_input_activation(range(4))
    weight = lib.Weight(0, 2, 0)
    expected = {}
    for typ in ("forward", "backward"):
        model.log_event(typ, 0, act.samples)
        expected[len(model.log) - 1] = predictor.get_forward_backward_time(4)
    model.log_event("update", 0, num_shards_on_device=1, num_shards=8)
    expected[2] = predictor.get_update_step_time(1, 8)
    model.log_event("load_weights", 0, num_shards_on_device=1, num_shards=4)
    expected[3] = predictor.get_weight_load_time(1, 4)
    for place, typ in enumerate(("send", "recv"), 4):
        model.log_event(typ, 0, act.samples, act)
        expected[place] = predictor.get_send_recv_time(act)
    for place, typ in enumerate(("all_reduce", "all_gather", "reduce_scatter"), 6):
        model.log_event(typ, 0, input=weight)
        expected[place] = predictor.get_collective_time(typ, weight)
    assert {place: event.duration for place, event in enumerate(model.log)} == expected
    assert model.log[8].time == reduce(add, [e.duration for e in model.log][:8])
