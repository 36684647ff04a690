"""Folding: identical to the full simulation, and refused where ranks would part ways."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import re
import signal
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.machine.predictor import RuntimePredictor
from minitrain.run.folding.expansion import FoldedRun
from minitrain.run.simulation import FailedRun
from tests.folded_runs import require_identical

MESHED = ("pp_dp", "pp_zero1", "pp_zero3", "pp_hsdp")
SCHEDULED = ("chimera", "dualpipe_v", "interleaved_zero_bubble", "looped_bfs", "zb_h2", "zbv")


def _folded(strategy: Any, **parameters: Any) -> FoldedRun:
    run = mt.simulate(strategy, fold=True, **parameters)
    assert isinstance(run, FoldedRun)
    return run


def _require_identical(strategy: Any, **parameters: Any) -> FoldedRun:
    run = require_identical(strategy, **parameters)
    assert isinstance(run, FoldedRun)
    return run


@pytest.mark.few(8)
@pytest.mark.parametrize("name", [name for name in mt.strategies() if name not in ("single",)])
@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_every_shipped_strategy_is_the_same_folded(name: str, microbatch_size: int | None) -> None:
    sizes = {"world_size": 4, "num_layers": 8, "global_batch_size": 64}
    if name in SCHEDULED:
        microbatch_size = None
    folded = _require_identical(name, microbatch_size=microbatch_size, **sizes)
    assert len(folded.class_logs) == (2 if name in MESHED else 4 if folded.fold.kept else 1)


def test_a_lone_rank_is_the_same_folded() -> None:
    _require_identical("single", world_size=1, num_layers=3, global_batch_size=2)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("zero", range(4))
def test_replicas_of_a_schedule_fold(name: str, zero: int) -> None:
    sizes = {"world_size": 8, "num_layers": 8, "global_batch_size": 64}
    assert len(_require_identical(name, pp=2, zero=zero, **sizes).class_logs) == 2


@settings(max_examples=40)
@given(
    name=st.sampled_from([name for name in mt.strategies() if name != "single"]),
    world_size=st.integers(1, 8),
    layers=st.integers(1, 3),
    share=st.integers(1, 6),
    microbatch_size=st.integers(1, 4) | st.none(),
    hardware=st.sampled_from(["h100_80g_nvl8", mt.FixedPredictor(forward=1, backward=2, send=0.5, all_gather=0.3)]),
)
def test_sizes_do_not_matter(
    name: str, world_size: int, layers: int, share: int, microbatch_size: int | None, hardware: Any
) -> None:
    parameters = {"num_layers": layers * world_size, "global_batch_size": share * world_size, "hardware": hardware}
    parameters |= {"world_size": world_size, "microbatch_size": microbatch_size}
    (full,) = mt.compare([name], **parameters).runs.values()
    if isinstance(full, FailedRun):
        with pytest.raises(mt.StrategyError, match=re.escape(str(full.error))):
            mt.simulate(name, fold=True, **parameters)
    else:
        _require_identical(name, **parameters)


@settings(max_examples=25)
@given(pp=st.integers(1, 3), replicas=st.integers(1, 3), shards=st.integers(1, 3), microbatches=st.integers(1, 3))
def test_three_dimensions_fold_whatever_their_sizes(pp: int, replicas: int, shards: int, microbatches: int) -> None:
    world_size = pp * replicas * shards
    sizes: dict[str, Any] = {
        "world_size": world_size,
        "num_layers": 2 * pp,
        "global_batch_size": world_size * microbatches,
    }
    sizes["network"] = "flat"  # in nodes, ranks of one stage may cost differently
    folded = _require_identical("pp_hsdp", pp=pp, shard_size=shards, microbatch_size=1, **sizes)
    assert len(folded.class_logs) == pp


def test_out_of_memory_is_the_same_folded() -> None:
    folded = _require_identical("zero1", world_size=8, num_layers=32, global_batch_size=4096)
    assert folded.oom is not None
    with pytest.raises(mt.OutOfMemoryError, match="out of memory on rank 0"):
        mt.simulate("zero1", fold=True, world_size=8, num_layers=32, global_batch_size=4096, strict_memory=True)


def test_a_million_ranks_are_one_class() -> None:
    run = _folded("hsdp", world_size=2**20, num_layers=2, global_batch_size=2**21, hardware="h200_141g_nvl8")
    assert len(run.class_logs) == 1
    assert run.num_events == 17 * 2**20
    assert len(run.peak_memory_per_rank) == 2**20
    assert len(run.logs[0][-1].samples) == 2**21


# What a strategy may do with its rank, and what it may not. Each body is called with the model before it trains.

span = mt.span

Probe = Callable[[mt.Model], object]


async def _train(model: mt.Model, samples: Any = None) -> mt.Model:
    """Train data parallel, one layer."""
    size = model.global_batch_size // model.world_size
    rank = model.rank
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    chosen = span(rank * size, (rank + 1) * size) if samples is None else samples
    model.activations[0] = model.get_input_activation(chosen)
    model.activations[1] = model.forward(0, model.activations[0], model.weights[0])
    model.grad_activations[0] = model.loss(model.activations[1])
    model.grad_weights[0], _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    model.grad_weights[0] = await model.all_reduce(model.grad_weights[0], 0)
    weight, _ = model.update(0, model.grad_weights[0], model.weights[0], model.opt_states[0])
    model.set_final_weight(0, weight)
    return model


SIZES: dict[str, Any] = {"world_size": 8, "num_layers": 1, "global_batch_size": 32}


def _own(model: mt.Model) -> frozenset[int]:
    """Return the samples of an activation that is each rank's own."""
    return model.get_input_activation(span(model.rank * 4, model.rank * 4 + 4)).samples


def _swallow(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:  # what a strategy may do, too
        return


ALLOWED: dict[str, Probe] = {
    "a bound that holds for all": lambda model: [0 <= model.rank < 8, model.rank != -1, not model.rank < 0],
    "arithmetic": lambda model: [2 * model.rank + 1 - model.rank, -model.rank, 7 - model.rank, +model.rank],
    "the same value": lambda model: [model.rank - model.rank, model.rank // 8, model.rank % 8 == model.rank],
    "a copy": lambda model: [copy.copy(model.rank), copy.deepcopy([model.rank])],
    "something else": lambda model: [model.rank is None, model.rank == cast(Any, "0"), model.rank != cast(Any, ())],
    "numpy's integers": lambda model: [model.rank + np.int64(1), model.rank * np.int64(2), model.rank >= np.int64(0)],
    "a range": lambda model: list(span(model.rank, model.rank + 3))[1:],
    "a part of a range": lambda model: [span(model.rank, model.rank + 9)[2:5][0], span(model.rank, model.rank)],
    "every other of a range": lambda model: span(model.rank, model.rank + 9)[::2],
    "a range's end": lambda model: [span(model.rank, model.rank + 2).stop, span(0, 3)[-1]],  # type: ignore[attr-defined]
    "a range's equal": lambda model: [span(model.rank, model.rank + 2) == span(model.rank, model.rank + 2), span(0, 1)],
    "a range's other": lambda model: [span(model.rank, model.rank + 2) == span(model.rank, model.rank + 1), 3],
    "a range and a list": lambda model: span(model.rank, model.rank + 2) == [0, 1],
    "the group of all": lambda model: [model.group(range(8)).ranks, model.group(range(8)).index],
    "text of the group of all": lambda model: repr(model.group(range(8))),
    "text of a mesh": lambda model: repr(model.mesh(world=8)),
    "a mesh's rank": lambda model: [model.mesh(world=8).rank - model.rank, model.mesh(world=8).peer("world", 0)],
    "where it is on the mesh": lambda model: model.mesh(world=8).coord("world") - model.rank,
    "its shards": lambda model: [
        len(model.load_weights(0, model.rank, 8)[0].shards),
        model.rank in model.load_weights(0, model.rank, 8)[0].shards,
        9 in model.load_weights(0, model.rank, 8)[0].shards,
        1.5 in model.load_weights(0, model.rank, 8)[0].shards,
        model.load_weights(0, model.rank, 8)[0].shards == frozenset(),
    ],
    "its samples": lambda model: max(model.get_input_activation(span(model.rank, model.rank + 2)).samples) - model.rank,
    "its samples, listed": lambda model: model.get_input_activation(iter([model.rank, model.rank + 1])),
    "the same samples": lambda model: hash(model.get_input_activation(range(4)).samples),
    "no samples": lambda model: model.get_input_activation([]),
    "text of the same samples": lambda model: repr(model.get_input_activation(range(4)).samples),
    "a group of none": lambda model: [model.mesh(world=8).group("world").rank - model.rank, model.rank is model.rank],
    "a node": lambda model: [model.rank // 4, model.rank % 4, divmod(model.rank, 4)],
    "a node of nodes": lambda model: [model.rank % 4 // 2, model.rank // 2 % 2, model.rank // 4 * 4 + model.rank % 2],
    "a node, and a mesh": lambda model: [model.rank // 4, model.mesh(node=2, place=4).coord("node")],
    "a group of its own": lambda model: model.group([model.rank]).size,
    "a group by its ranks": lambda model: model.group([model.rank // 4 * 4 + place for place in range(4)]).index,
    "its samples within": lambda model: [
        _own(model).issubset(range(32)),
        _own(model).issuperset([]),
        len(_own(model) & frozenset(range(32))),
        len(frozenset(range(32, 40)) & _own(model)),
        len(_own(model) - frozenset(range(32, 40))),
        _own(model).copy().difference(_own(model)),
        _own(model).intersection(_own(model), range(32)),
    ],
}


@pytest.mark.few(8)
@pytest.mark.parametrize("probe", ALLOWED.values(), ids=ALLOWED)
def test_what_is_the_same_for_all_ranks_folds(probe: Probe) -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        probe(model)
        return await _train(model)

    assert len(_require_identical(strategy, **SIZES).class_logs) == 1


TOLD: dict[str, Probe] = {
    "nothing": lambda model: 0,
    "its rank": lambda model: model.rank,
    "its place in all": lambda model: model.group(range(8)).index,
}


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
def test_a_mesh_may_come_after_other_ways_to_tell_ranks_apart(told: Probe) -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        shard = told(model)
        mesh = model.mesh(a=2, b=4)
        model.load_weights(0, cast(int, shard), 8)
        model.load_weights(0, mesh.coord("b"), 4)
        return await _train(model)

    async def after_a_barrier(model: mt.Model) -> mt.Model:
        await model.barrier()
        return await strategy(model)

    for function in (strategy, after_a_barrier):
        folded = _require_identical(function, **SIZES)
        assert folded.fold.axes == {"a": 2, "b": 4}


def test_a_mesh_does_not_forget_what_all_ranks_have_launched() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        launched = model.launch(model.barrier())
        mesh = model.mesh(a=2, b=4)
        await model.barrier(mesh.group("a", "b"))
        await launched
        return await _train(model)

    folded = _require_identical(strategy, **SIZES)
    assert folded.logs[0][1].time == folded.logs[0][0].end > 0


def test_a_mesh_asked_for_first_needs_no_second_attempt() -> None:
    meshes: list[mt.Mesh] = []

    async def strategy(model: mt.Model) -> mt.Model:
        model.load_weights(0)
        meshes.append(model.mesh(a=2, b=4))
        return await _train(model)

    assert _require_identical(strategy, **SIZES)
    assert len(meshes) == 8 + 1 + len({0, 7} | {mesh.rank for mesh in meshes[9:]})  # and ranks that confirm it


table = list(range(8))

REFUSED: dict[str, Probe] = {
    "a branch": lambda model: 1 if model.rank == 3 else 2,
    "the last rank": lambda model: model.rank == 7,
    "not the last rank": lambda model: model.rank != 7,
    "the first rank": lambda model: bool(model.rank),
    "an order": lambda model: [model.rank < 3],
    "an order the other way": lambda model: [model.rank <= 3, model.rank > 5],
    "numpy's comparison": lambda model: model.rank == np.int64(3),
    "numpy's comparison the other way": lambda model: np.int64(3) == model.rank,
    "a fraction": lambda model: model.rank < 0.5,
    "a list": lambda model: table[model.rank],
    "a dict": lambda model: {0: 1}.get(model.rank),
    "a set": lambda model: model.rank in {0, 1},
    "a tuple": lambda model: model.rank in (0, 1),
    "a slice": lambda model: table[: model.rank],
    "a range": lambda model: range(model.rank),
    "a range of another length": lambda model: span(0, model.rank),
    "a repetition": lambda model: [0] * model.rank,
    "an int": lambda model: int(model.rank),
    "a float": lambda model: float(model.rank),
    "a product": lambda model: model.rank * model.rank,
    "a product with a float": lambda model: model.rank * 0.5,
    "a sum with a float": lambda model: model.rank + 0.5,
    "a half": lambda model: model.rank / 2,
    "a node of a size that does not divide": lambda model: model.rank // 3,
    "every other of every other": lambda model: model.rank % 6,
    "a node, and the mesh of all": lambda model: [model.rank // 4, model.mesh(world=8)],
    "a place in a node": lambda model: [0 for place in range(4) if model.rank % 4 == place],
    "a division by a rank": lambda model: 8 // (model.rank + 1),
    "a negative division": lambda model: model.rank // -1,
    "a bit": lambda model: model.rank & 1,
    "a power": lambda model: 2**model.rank,
    "a shift": lambda model: 1 << model.rank,
    "a text": lambda model: str(model.rank),
    "a format": lambda model: f"{model.rank}",
    "a representation": lambda model: repr(model.rank),
    "a range's text": lambda model: repr(span(model.rank, model.rank + 1)),
    "a bit length": lambda model: model.rank.bit_length(),
    "the least": lambda model: min(model.rank, 3),
    "sorting": lambda model: sorted([model.rank, 3]),
    "a weight's text": lambda model: repr(model.load_weights(0, model.rank, 8)[0]),
    "a weight's shards": lambda model: 3 in model.load_weights(0, model.rank, 8)[0].shards,
    "a weight's only shard": lambda model: model.load_weights(0, model.rank, 8)[0].shards == frozenset([0]),
    "a weight's shards hashed": lambda model: hash(model.load_weights(0, model.rank, 8)[0].shards),
    "its own samples": lambda model: 0 in model.get_input_activation(span(model.rank, model.rank + 2)).samples,
    "its samples apart": lambda model: _own(model).isdisjoint([5]),
    "samples that cross": lambda model: model.get_input_activation([model.rank, 31 - model.rank]),
    "samples of two kinds": lambda model: (
        model.get_input_activation(span(model.rank, model.rank + 2)).samples
        | model.get_input_activation(range(9)).samples
    ),
    "a layer": lambda model: model.load_weights(model.rank),
    "a number of shards": lambda model: model.load_weights(0, 0, model.rank + 1),
    "a group of two ranks": lambda model: model.group([0, 1]),
    "a group of neighbours": lambda model: model.group([model.rank, model.rank + 1]),
    "a group of others": lambda model: model.group([model.rank + 1]),
    "a group of strangers": lambda model: model.group([model.rank, 99]),
    "a group of none": lambda model: model.group([]),
    "a group of no ranks": lambda model: model.group(cast(Any, ["0"])),
    "ranks of a group": lambda model: model.mesh(a=2, b=4).group("b").ranks,
    "stream of a group": lambda model: model.mesh(a=2, b=4).group("b").stream,
    "text of a group": lambda model: repr(model.mesh(a=2, b=4).group("b")),
    "a mesh's coordinate": lambda model: model.mesh(a=2, b=4).coord("b") == 3,
    "a second mesh": lambda model: [model.mesh(a=2, b=4), model.mesh(a=4, b=2)],
    "a peer": lambda model: model.mesh(a=2, b=4).peer("b", 1),
    "its log": lambda model: model.log[-1].rank,
    "what is caught": lambda model: _swallow(lambda: table[model.rank]),
}


@pytest.mark.few(24)
@pytest.mark.parametrize("probe", REFUSED.values(), ids=REFUSED)
def test_where_ranks_part_ways_the_line_is_named(probe: Probe) -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        model.load_weights(0)
        probe(model)
        return await _train(model)

    with pytest.raises(mt.StrategyError, match=r"strategy cannot be folded: .* \((test_folding.py|<string>):\d+\)"):
        mt.simulate(strategy, fold=True, **SIZES)


def test_shards_beyond_the_last_break_the_law() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        model.load_weights(0, model.rank, 4)
        return model

    with pytest.raises(mt.LawError, match="shard must lie in"):
        mt.simulate(strategy, fold=True, **SIZES)


def test_samples_beyond_the_batch_break_the_law() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        model.get_input_activation(span(model.rank * 8, model.rank * 8 + 8))
        return model

    with pytest.raises(mt.LawError, match=r"samples must lie in 0..31"):
        mt.simulate(strategy, fold=True, **SIZES)


def test_samples_dealt_out_in_turn_fold() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        return await _train(model, [model.rank + i * model.world_size for i in range(4)])

    _require_identical(strategy, **SIZES)


def test_a_missing_sample_is_a_broken_law_folded_too() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        return await _train(model, span(model.rank, model.rank + 4))

    with pytest.raises(mt.LawError, match="must cover all 32 samples"):
        mt.simulate(strategy, fold=True, **SIZES)


async def _crossing(model: mt.Model) -> mt.Model:
    """Send around a ring, which is no data parallelism."""
    model.activations[0] = model.get_input_activation(range(32))
    await model.send((model.rank + 1) % model.world_size, model.activations[0])
    await model.receive((model.rank - 1) % model.world_size)
    return model


def test_a_ring_of_messages_is_simulated_in_full() -> None:
    folded = _require_identical(_crossing, check=False, **SIZES)
    assert len(folded.class_logs) == 8


async def _pipeline_with_barrier(model: mt.Model) -> mt.Model:
    if model.rank > 0:
        await model.receive(model.rank - 1)
    if model.rank < model.world_size - 1:
        await model.send(model.rank + 1, model.get_input_activation([0]))
    await model.barrier()
    return model


def test_a_pipeline_that_meets_is_simulated_in_full() -> None:
    run = mt.simulate(_pipeline_with_barrier, fold=True, check=False, **SIZES)
    assert not isinstance(run, FoldedRun)
    assert run.num_events == 2 * 7 + 8


async def _pipelines_with_barrier(model: mt.Model) -> mt.Model:
    mesh = model.mesh(pp=2, dp=4)
    before, after = mesh.peer("pp", -1), mesh.peer("pp", 1)
    if before is not None:
        await model.receive(before)
    if after is not None:
        await model.send(after, model.get_input_activation([0]))
    await model.barrier()
    return model


def test_a_collective_over_pipeline_positions_and_replicas_is_refused() -> None:
    with pytest.raises(mt.StrategyError, match=r"barrier over the axes dp, pp"):
        mt.simulate(_pipelines_with_barrier, fold=True, check=False, **SIZES)


async def _funnel(model: mt.Model) -> mt.Model:
    mesh = model.mesh(pp=2, dp=4)
    if mesh.peer("pp", 1) is not None:
        await model.send(5, model.get_input_activation([0]), tag=0)
    elif model.rank == 5:
        for source in range(4):
            await model.receive(source, tag=0)
    return model


def test_messages_that_meet_at_one_rank_keep_all_apart() -> None:
    folded = _require_identical(_funnel, check=False, **SIZES)
    assert len(folded.class_logs) == 8


def test_a_rank_beyond_the_world_is_the_transports_to_refuse() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        if model.rank == 0:
            await model.send(99, model.get_input_activation([0]))
        return model

    with pytest.raises(mt.UsageError, match=r"dest must be a rank of 0..7, got 99"):
        mt.simulate(strategy, fold=True, **SIZES)


def test_tasks_within_a_rank_are_refused() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        await model.barrier()
        await asyncio.gather(model.barrier(), model.barrier())
        return await _train(model)

    with pytest.raises(mt.StrategyError, match="several tasks of one rank"):
        mt.simulate(strategy, fold=True, **SIZES)


async def _parts_in_a_gather(model: mt.Model) -> None:
    async def waits() -> None:
        await asyncio.sleep(0)
        await model.receive((model.rank + 1) % model.world_size)

    await asyncio.gather(waits(), asyncio.gather(waits(), waits()))


async def _parts_beside_a_gather(model: mt.Model) -> None:
    async def parts() -> bool:
        return model.rank == 3

    beside = asyncio.gather(parts(), parts())
    await asyncio.sleep(0)
    assert not beside.done()
    await asyncio.sleep(0)
    assert model.rank == 3


async def _parts_in_tasks(model: mt.Model) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(model.barrier())


@pytest.mark.parametrize("part", [_parts_in_a_gather, _parts_beside_a_gather, _parts_in_tasks])
@pytest.mark.parametrize("world_size", [8, 128])
def test_attempts_that_are_given_up_leave_no_word_of_their_tasks(
    part: Any, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        await part(model)
        return model

    with contextlib.suppress(mt.MinitrainError, AssertionError):
        mt.simulate(strategy, fold=True, world_size=world_size, num_layers=1, global_batch_size=1, check=False)
    gc.collect()
    assert not caplog.text


@pytest.mark.parametrize("operation", ["broadcast", "all_to_all"])
def test_what_is_not_symmetric_is_refused(operation: str) -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        tensor = model.get_input_activation([0])
        if operation == "broadcast":
            await model.broadcast(tensor, 0)
        else:
            await model.all_to_all([tensor] * 8)
        return model

    with pytest.raises(mt.StrategyError, match=f"{operation} of .*, which cannot be folded"):
        mt.simulate(strategy, fold=True, check=False, **SIZES)


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather"])
def test_shards_that_do_not_belong_together_are_a_mismatch(operation: str) -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        size = model.global_batch_size // model.world_size
        model.weights[0], _ = model.load_weights(0)
        model.activations[0] = model.get_input_activation(span(model.rank * size, (model.rank + 1) * size))
        out = model.forward(0, model.activations[0], model.weights[0])
        model.grad_activations[0] = model.loss(out)
        grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
        await getattr(model, operation)(grad.shard(model.rank, 8), 0)
        return model

    for fold in (False, True):
        with pytest.raises(mt.CollectiveMismatchError, match=f"all ranks of {operation} must"):
            mt.simulate(strategy, fold=fold, check=False, **SIZES)


def test_a_gather_of_too_few_shards_is_a_mismatch() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        weight, _ = model.load_weights(0, model.rank, 16)
        await model.all_gather(weight, 0)
        return model

    for fold in (False, True):
        with pytest.raises(mt.CollectiveMismatchError, match="must together bring every shard"):
            mt.simulate(strategy, fold=fold, **SIZES)


def test_incomplete_gradients_are_a_mismatch() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        model.weights[0], _ = model.load_weights(0)
        model.activations[0] = model.get_input_activation(range(4))
        model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
        grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
        await model.reduce_scatter(grad.shard(0, 8), 0)
        return model

    with pytest.raises(mt.CollectiveMismatchError, match="complete gradients"):
        mt.simulate(strategy, fold=True, **SIZES)


def test_a_final_weight_that_is_missing_is_found() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        return model

    with pytest.raises(mt.LawError, match="layer 0 has no final weight"):
        mt.simulate(strategy, fold=True, **SIZES)


def test_a_branch_is_refused_at_once_among_many_ranks() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        await model.barrier()
        if model.rank == 3:
            await model.barrier()
        return model

    with pytest.raises(mt.StrategyError, match="a comparison that holds for some ranks only"):
        mt.simulate(strategy, fold=True, world_size=2**13, num_layers=1, global_batch_size=1)


@pytest.mark.parametrize("more", [{"slowdown": {0: 2}}, {"numerics": "numpy"}, {"strict": True}], ids=str)
def test_what_tells_ranks_apart_does_not_go_with_folding(more: dict[str, Any]) -> None:
    with pytest.raises(mt.UsageError, match="fold=True does not go with"):
        mt.simulate("ddp", fold=True, **more)


def test_prices_that_nobody_knows_to_be_the_same_do_not_go_with_folding() -> None:
    class Own(RuntimePredictor):
        """It may price ranks by their number."""

    with pytest.raises(mt.UsageError, match="the same for ranks that do the same: those of a hardware config"):
        mt.simulate("ddp", fold=True, hardware=Own(8))


def test_an_error_of_the_strategy_passes() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mt.simulate(strategy, fold=True, **SIZES)


def test_an_error_names_a_rank_of_the_whole_world() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        mesh = model.mesh(pp=2, dp=4)
        if mesh.coord("pp") == 1:
            await model.receive(model.rank - 4)
            raise KeyError("mine")
        await model.send(model.rank + 4, model.get_input_activation([0]))
        return model

    with pytest.raises(KeyError, match="mine") as caught:
        mt.simulate(strategy, fold=True, **SIZES)
    assert caught.value.__notes__ == ["on rank 4 of 8, strategy strategy"]


def test_an_error_that_carries_a_rank_can_be_shown() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        raise KeyError(model.rank, f"{len(_own(model))} samples", _own(model), span(model.rank, model.rank + 1))

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyError, match=r"\(0 \(and so on\), '4 samples', \{0\.\.3\} \(and so on\), 1 integers from 0 "):
        mt.simulate(strategy, fold=True, **SIZES)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_deadlock_tells_of_the_ranks_that_were_simulated() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        mesh = model.mesh(pp=2, dp=4)
        if mesh.coord("pp") == 1:
            return model
        await model.send(model.rank + 4, model.get_input_activation([0]))
        await model.receive(model.rank + 4)
        return model

    with pytest.raises(mt.DeadlockError, match=r"rank 0 at .*: receive from rank 4 .*\n.*finished: rank 4$"):
        mt.simulate(strategy, fold=True, **SIZES)


def test_ctrl_c_passes() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mt.simulate(strategy, fold=True, **SIZES)


def test_a_cancelled_attempt_is_not_followed_by_another() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        begun.append(model)
        _swallow(lambda: model.rank == 3)
        await asyncio.Event().wait()
        return model

    async def main() -> None:
        task = asyncio.create_task(mt.simulate_async(strategy, fold=True, **SIZES))
        while not begun:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun: list[mt.Model] = []
    asyncio.run(main())
    assert len(begun) == 1


# Ranks laid out by arithmetic instead of a mesh.


async def _by_hand(model: mt.Model, inner: int = 2, turned: bool = False) -> mt.Model:
    """Shard within blocks of ranks and replicate between them (or the other way round), with groups by their ranks."""
    outer = model.world_size // inner
    block, place = divmod(model.rank, inner)
    within = [block * inner + other for other in range(inner)]
    between = [other * inner + place for other in range(outer)]
    sharded, replicas = (between, within) if turned else (within, between)
    shard, num_shards = (block, outer) if turned else (place, inner)
    size = model.global_batch_size // model.world_size
    model.weights[0], model.opt_states[0] = model.load_weights(0, shard, num_shards)
    model.activations[0] = model.get_input_activation(span(model.rank * size, (model.rank + 1) * size))
    model.weights["whole"] = await model.all_gather(model.weights[0], 0, group=sharded)
    model.activations[1] = model.forward(0, model.activations[0], model.weights["whole"])
    model.grad_activations[0] = model.loss(model.activations[1])
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights["whole"])
    del model.weights["whole"]
    grad = await model.reduce_scatter(grad, 0, group=model.group(sharded))
    grad = await model.all_reduce(grad, 0, group=replicas)
    weight, _ = model.update(0, grad, model.weights[0], model.opt_states[0])
    model.set_final_weight(0, weight)
    return model


@settings(max_examples=30)
@given(outer=st.integers(1, 5), inner=st.integers(1, 5), turned=st.booleans(), share=st.integers(1, 3))
def test_blocks_of_ranks_fold_as_a_mesh_does(outer: int, inner: int, turned: bool, share: int) -> None:
    world_size = outer * inner
    sizes = {"world_size": world_size, "num_layers": 1, "global_batch_size": world_size * share, "network": "flat"}
    assert len(_require_identical(_by_hand, inner=inner, turned=turned, **sizes).class_logs) == 1


@pytest.mark.ci
def test_a_million_ranks_in_blocks_are_one_class() -> None:
    sizes = {"world_size": 2**20, "num_layers": 1, "global_batch_size": 2**20, "hardware": "h200_141g_nvl8"}
    assert len(_folded(_by_hand, inner=8, **sizes).class_logs) == 1


async def _stages_by_hand(model: mt.Model, pp: int = 2, turned: bool = False, extra: bool = False) -> mt.Model:
    """Send along stages made by arithmetic; with `extra`, let every other replica do more."""
    replicas = model.world_size // pp
    stage, replica = reversed(divmod(model.rank, pp)) if turned else divmod(model.rank, replicas)
    stride = 1 if turned else replicas
    if stage > 0:
        model.activations[0] = await model.receive(model.rank - stride)
    if stage < pp - 1:
        await model.send(model.rank + stride, model.get_input_activation(span(replica, replica + 1)))
    if extra and model.rank % 2:
        model.load_weights(0)
    return model


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_stages_by_arithmetic_are_kept_and_replicas_fold(pp: int, turned: bool) -> None:
    sizes = {"world_size": 8, "num_layers": 1, "global_batch_size": 8, "check": False}
    assert len(_require_identical(_stages_by_hand, pp=pp, turned=turned, **sizes).class_logs) == pp


def test_replicas_that_do_not_do_the_same_are_simulated_in_full() -> None:
    assert len(_require_identical(_stages_by_hand, extra=True, check=False, **SIZES).class_logs) == 8


async def _every_other(model: mt.Model) -> mt.Model:
    """Send along one pipeline of all ranks, in pairs that do not do the same."""
    if model.rank > 0:
        model.activations[0] = await model.receive(model.rank - 1)
    if model.rank // 2 % 2 == 0:
        model.load_weights(0)
    if model.rank < model.world_size - 1:
        await model.send(model.rank + 1, model.get_input_activation([0]))
    return model


def test_a_pipeline_that_divides_its_rank_is_simulated_in_full() -> None:
    assert len(_require_identical(_every_other, check=False, **SIZES).class_logs) == 8


def test_what_is_no_int_is_said_where_a_type_is_wrong() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        json.dumps(model.rank)
        return model

    with pytest.raises(TypeError, match="not JSON serializable") as caught:
        mt.simulate(strategy, fold=True, **SIZES)
    assert "with fold=True, ranks, samples and shards are no ints" in caught.value.__notes__[-1]
