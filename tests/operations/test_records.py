"""What stands in the record of an operation, everybody knows: all records times all that reads them."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.cli.trace import _WRITERS
from minitrain.engine.model import Model, watched
from minitrain.engine.strategy_model import StrategyModel
from minitrain.machine.given_durations import FixedPredictor
from minitrain.operations import EVENT_TYPES
from minitrain.operations.collectives import COLLECTIVES, TRANSFERS
from minitrain.operations.computations import COMPUTATIONS
from minitrain.proof.layers import DenseLayers, TransformerLayers
from minitrain.proof.problem import Problem, TransformerProblem
from minitrain.run import saved_runs
from minitrain.view import bars, exports
from minitrain.workloads.transformer_workload import find_workload
from minitrain.workloads.workload import Context, PassMode, Style

OF_DENSE = ("load_weights", "load_outer_state", "load_compression")
RECORDS: dict[str, Any] = {**COMPUTATIONS, **COLLECTIVES, **TRANSFERS}


def is_a_method(record: Any) -> None:
    """Require a method of a rank that takes the record's inputs in their order."""
    method = getattr(Model, getattr(record, "submits", record.name))
    names = [each.name for each in getattr(record, "inputs", ())]
    assert [name for name in inspect.signature(method).parameters if name in names] == names


def is_hooked(record: Any) -> None:
    """Require that observers and executors have a part in it."""
    kind: Any = watched(Model)
    name = "_collective" if record.name in COLLECTIVES else getattr(record, "submits", record.name)
    assert getattr(kind, name) is not getattr(Model, name)


def is_priced_by_type(record: Any) -> None:
    """Require a price by the type of its events alone."""
    event = getattr(record, "event", record.name)
    assert event is None or FixedPredictor(**{event: 1.0})


def is_drawn(record: Any) -> None:
    """Require events that can be read from a file, with looks of their own."""
    event = getattr(record, "event", record.name)
    if event is not None:
        assert event in EVENT_TYPES
        assert event in saved_runs._STREAM_OF
        assert bars.kind_of(event).name == event
        assert bars.kind_of(event).color not in (bars._UNKNOWN_COMPUTE, bars._UNKNOWN_COMM)


def is_named_abroad(record: Any) -> None:
    """Require names for other tools, of all that does not compute."""
    if record.name not in COMPUTATIONS:
        assert record.name in exports._KERNELS
        assert isinstance(record.chakra, int)
        assert record.name in COLLECTIVES or record.name in exports._NODE_TYPES


def has_arithmetic(record: Any) -> None:
    """Require an arithmetic, and of dense layers for what they can do."""
    if record.name in COMPUTATIONS and record.family != "final":
        assert callable(getattr(TransformerLayers(TransformerProblem(mt.models()["tiny"])), record.name))
        is_of_dense = record.family in ("input", "pass", "update", "local", "compression") or record.name in OF_DENSE
        assert hasattr(DenseLayers(Problem()), record.name) is is_of_dense


def is_work(record: Any) -> None:
    """Require FLOPs or bytes, and kernels, of a pass through a transformer."""
    if getattr(record, "is_pass", False):
        of_experts, of_attention = record.family == "experts", record.family == "attention"
        workload: Any = find_workload("tiny-moe" if of_experts else "tiny", seq_len=32, precision=None)
        kind = "moe" if of_experts else "attention"
        layer = next(place for place, name in enumerate(workload.layer_names) if name.startswith(kind))
        mode = PassMode("none", context=Context(frozenset([0]), 2, frozenset([0])) if of_attention else None)
        layer = workload.num_layers if record.name == "loss" else layer
        cost = workload.compute_cost(record.name, 2, layer, mode)
        assert cost.work_flop + cost.traffic_bytes > 0 or record.name == "loss"
        assert workload.pass_kernels(record.name, 2, layer, mode, Style()).kernels


CONSUMERS: list[Callable[[Any], None]] = [
    *(is_a_method, is_hooked, is_priced_by_type, is_drawn, is_named_abroad, has_arithmetic, is_work),
]


@pytest.mark.few(64)
@pytest.mark.parametrize("reads", CONSUMERS, ids=lambda reads: reads.__name__)
@pytest.mark.parametrize("name", RECORDS)
def test_everybody_knows_every_operation(name: str, reads: Callable[[Any], None]) -> None:
    reads(RECORDS[name])


def test_whatever_a_rank_awaits_has_a_record() -> None:
    awaited = {name for name, method in vars(StrategyModel).items() if inspect.iscoroutinefunction(method)}
    assert awaited == {*COLLECTIVES, *(record.submits.removeprefix("_") for record in TRANSFERS.values())}


async def meets(model: Any) -> Any:
    """Do what no shipped strategy does."""
    await model.barrier()
    weight, _ = model.load_weights(0)
    await model.broadcast(weight if model.rank == 0 else None, 0, 0)
    model.weights[0], model.activations[0] = weight, model.get_input_activation([model.rank])
    model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], weight))
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], weight)
    await model.reduce(grad, 1, 0)
    return model


async def saves(model: Any) -> Any:
    """Write an input to the storage."""
    model.host[0] = await model.offload(model.get_input_activation([model.rank]))
    await model.write(model.host[0])
    return model


SIZES: dict[str, Any] = {"world_size": 2, "global_batch_size": 2, "check": False}
PROGRAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "experts": ("moe", {"workload": "tiny-moe", "ep": 2}),
    "attention": ("ring_attention", {"workload": "tiny"}),
    "split": ("zbv", {"num_layers": 4}),
    "host": ("fsdp", {"workload": "tiny", "offload": "activations"}),
    "host's step": ("fsdp", {"workload": "tiny", "offload": "optimizer_step"}),
    "all on the host": ("fsdp", {"workload": "tiny", "offload": "parameters"}),
    "a part by the host": ("megatron", {"workload": "tiny", "zero": 1, "optimizer_offload_fraction": 0.5}),
    "storage": (saves, {"num_layers": 1}),
    "local": ("diloco", {"num_layers": 2, "local_steps": 1, "mixing": 0.5}),
    "compressed": ("powersgd_ddp", {"num_layers": 2, "num_steps": 1}),
    "meetings": (meets, {"num_layers": 1}),
}


@cache
def run_of(program: str) -> mt.Run:
    """Return a run that does something with every rank's operations of some kind."""
    strategy, options = PROGRAMS[program]
    return mt.simulate(strategy, **SIZES, **options)


def test_the_programs_do_everything() -> None:
    done = {event.typ for program in PROGRAMS for event in run_of(program).events}
    assert done == set(EVENT_TYPES)


WAYS: dict[str, dict[str, Any]] = {
    "strict": {"strict": True},
    "numerics": {"numerics": "numpy"},
    "folded": {"fold": True},
    "kernels": {"fidelity": "kernels"},
    "contention": {"contention": True},
    "shared links": {"contention": "exact"},
    "journals": {"memory_by_kind": True},
}


@pytest.mark.few(6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_way_to_run_does_every_operation_or_refuses_it(program: str, way: str) -> None:
    strategy, options = PROGRAMS[program]
    if (program, way) == ("meetings", "folded"):  # the root of a broadcast is one rank
        with pytest.raises(mt.StrategyError, match="meets cannot be folded"):
            mt.simulate(strategy, **SIZES, **options, **WAYS[way])
        return
    run = mt.simulate(strategy, **SIZES, **options, **WAYS[way])
    assert [event.typ for event in run.logs[0]] == [event.typ for event in run_of(program).logs[0]]


def test_totals_are_those_of_every_operation() -> None:
    alone: Any = {"contention": False}  # totals are not timed again
    for strategy, options in PROGRAMS.values():
        totals: Any = mt.simulate(strategy, **SIZES, **options, **alone, log="summary")
        assert totals.by_type == mt.simulate(strategy, **SIZES, **options, **alone).by_type


@pytest.mark.few(16)
@pytest.mark.parametrize("name", _WRITERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_export_takes_every_operation(program: str, name: str, tmp_path: Path) -> None:
    assert _WRITERS[name](run_of(program), tmp_path / "out")


def test_the_card_of_torch_and_jax_is_as_the_records_have_it() -> None:
    spec = importlib.util.spec_from_file_location("card", Path(__file__).parents[2] / "docs" / "card.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.card(), "run python docs/card.py"


@pytest.mark.slow  # imports torch and JAX
@pytest.mark.parametrize("record", [one for one in RECORDS.values() if one.torch or one.jax], ids=attrgetter("name"))
def test_what_the_card_names_is_there(record: Any) -> None:
    for name in re.findall(r"\b((?:torch|jax)(?:\.\w+)+)", f"{record.torch} {record.jax}"):
        assert pkgutil.resolve_name(name) is not None
