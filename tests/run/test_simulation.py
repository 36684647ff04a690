"""`simulate`: what it returns, what it refuses, and how a run that fails comes to its end."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import (
    CollectiveMismatchError,
    DeadlockError,
    HardwareConfigError,
    LawError,
    OutOfMemoryError,
    StrategyError,
    UsageError,
)
from minitrain.lib import Model

SMALL: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8}


def simulate(strategy: Any, **parameters: Any) -> mt.Run:
    return mt.simulate(strategy, **{**SMALL, **parameters})


async def nothing(model: Model) -> Model:
    return model


def test_a_run_tells_what_was_simulated() -> None:
    run = simulate("one_f_one_b", microbatch_size=2, hardware="a100_80g.json")
    assert (run.strategy, run.world_size, run.num_layers, run.global_batch_size) == ("1f1b", 4, 4, 8)
    assert (run.hardware, dict(run.options)) == ("a100_80g", {"microbatch_size": 2})
    assert len(run.models) == len(run.logs) == len(run.peak_memory_per_rank) == 4
    assert run.num_events == len(run.events) == sum(len(log) for log in run.logs)
    assert run.events == sorted(run.events, key=lambda event: (event.time, event.rank))
    assert run.last_clock == max(event.end for event in run.events)
    assert run.step_time == run.last_clock - run.load_time
    json.dumps(run.summary())


def test_the_defaults_are_those_of_the_card() -> None:
    run = mt.simulate(nothing, check=False)
    assert (run.world_size, run.num_layers, run.global_batch_size, run.hardware) == (8, 32, 64, "h100_80g_nvl8")


def test_a_run_in_which_nothing_happens_has_figures_too() -> None:
    run = simulate(nothing, check=False)
    assert (run.step_time, run.peak_memory, run.bubble_fraction, run.span_bubble, run.makespan_bubble) == (
        0,
        0,
        0,
        0,
        0,
    )
    assert run.mfu == 0
    assert run.summary()["step_time_s"] == 0


@pytest.mark.parametrize("inside", [False, True])
def test_the_error_of_a_failing_rank_passes_with_its_type_and_the_rank_noted(inside: bool) -> None:
    async def fails(model: Model) -> Model:
        if model.rank == 2:
            raise RuntimeError("mine")
        await model.barrier()
        return model

    async def notebook() -> None:
        simulate(fails)

    with pytest.raises(RuntimeError, match="mine") as caught:
        asyncio.run(notebook()) if inside else simulate(fails)
    assert caught.value.__notes__ == ["on rank 2 of 4, strategy fails"]


def test_a_broken_law_is_noted_with_the_line_of_the_strategy() -> None:
    async def forgets(model: Model) -> Model:
        weights, *_ = model.storage()
        weights[0] = model.launch(model.all_gather(model.load_weights(0)[0], 0))  # type: ignore[assignment]
        return model

    line = forgets.__code__.co_firstlineno + 2
    with pytest.raises(mt.errors.TensorTypeError, match=r"got Launched .*; `await` it, and use what that") as caught:
        simulate(forgets)
    assert caught.value.__notes__ == [f"on rank 0 of 4, strategy forgets, test_simulation.py:{line}"]


async def waits_on_rank_0(model: Model) -> Model:
    """Leave sub-tasks and waiting ranks behind when rank 3 fails."""
    keep = asyncio.ensure_future(asyncio.sleep(3600))
    if model.rank == 3:
        raise KeyError("gone")
    await model.receive((model.rank + 1) % 4)
    await keep
    return model


def test_a_failed_run_leaves_no_tasks_and_no_warnings() -> None:
    async def main() -> list[Any]:
        with pytest.raises(KeyError, match="gone"):
            await mt.simulate_async(waits_on_rank_0, **SMALL)
        return [task for task in asyncio.all_tasks() if "run" in repr(task.get_coro()) and "main" not in repr(task)]

    assert asyncio.run(main()) == []
    gc.collect()


def test_the_lowest_rank_that_fails_by_itself_is_the_one_told() -> None:
    async def all_fail(model: Model) -> Model:
        raise ValueError(f"of rank {model.rank}")

    with pytest.raises(ValueError, match="of rank 0"):
        simulate(all_fail)


def test_a_strategy_that_cancels_itself_ends_the_run() -> None:
    async def cancels(model: Model) -> Model:
        if model.rank == 1:
            raise asyncio.CancelledError
        await model.barrier()
        return model

    with pytest.raises(mt.StrategyError, match="rank 1 was cancelled from within the strategy cancels"):
        simulate(cancels)


@pytest.mark.parametrize("result", [None, 7, "model"])
def test_a_rank_must_return_its_model(result: Any) -> None:
    async def forgets(model: Model) -> Any:
        return result

    message = rf"the strategy forgets must return the model of its rank, got {result!r} on rank 0; end it with `return"
    with pytest.raises(StrategyError, match=message):
        simulate(forgets)


def test_messages_nobody_received_are_told() -> None:
    async def loses(model: Model) -> Model:
        if model.rank == 1:
            for tag in ("a", "b"):
                await model.send(0, model.get_input_activation([0]), tag=tag)
        return model

    with pytest.raises(StrategyError, match=r"2 messages were sent and never received; the first: rank 1 sent Activ"):
        simulate(loses, check=False)


def test_launched_work_that_is_never_awaited_is_told() -> None:
    async def forgets(model: Model) -> Model:
        await model.barrier()
        model.launch(model.all_gather(model.load_weights(1, model.rank, 4)[0], 1))
        return model

    told = (
        r"rank 0 launched all_gather and never awaited it; `await work` before .*\(all_gather of layer 1, at 0.0\d+ s\)"
    )
    with pytest.raises(StrategyError, match=told):
        simulate(forgets, check=False)


def test_a_deadlock_ends_at_once_and_names_who_waits_for_what() -> None:
    async def crossed(model: Model) -> Model:
        await model.receive((model.rank + 1) % 4)
        return model

    with pytest.raises(DeadlockError, match=r"rank 0 at 0 s: receive from rank 1 \(test_simulation.py:\d+\)") as caught:
        simulate(crossed)
    assert caught.value.ranks == (0, 1, 2, 3)


def test_a_deadlock_tells_who_has_finished() -> None:
    async def early(model: Model) -> Model:
        if model.rank < 3:
            await model.all_reduce(model.load_weights(0)[0].shard(0, 1), 0)
        return model

    with pytest.raises(DeadlockError, match="not waiting, because finished: rank 3"):
        simulate(early)


def test_different_collectives_in_the_same_place_are_a_mismatch() -> None:
    async def confused(model: Model) -> Model:
        weight, _ = model.load_weights(0)
        await (model.barrier() if model.rank == 2 else model.all_gather(weight, 0))
        return model

    with pytest.raises(CollectiveMismatchError, match=r"ranks 0, 1, 3: all_gather of layer 0 .*; rank 2: barrier"):
        simulate(confused)


@pytest.mark.parametrize(
    ("parameters", "kind", "message"),
    [
        ({"world_size": 0}, UsageError, "world_size must be an integer of at least 1, got 0"),
        ({"num_layers": -1}, UsageError, "num_layers must be an integer of at least 1, got -1"),
        ({"global_batch_size": "8"}, UsageError, "global_batch_size must be an integer of at least 1, got '8'"),
        ({"p2p_buffer": 0}, UsageError, "p2p_buffer must be an integer of at least 1, got 0"),
        ({"network": "ring"}, UsageError, 'network must be "auto", "flat" or "hierarchical", got \'ring\''),
        ({"placement": [0] * 4, "network": "flat"}, UsageError, 'placement needs network="auto" or "hierarchical"'),
        ({"slowdown": {4: 2}}, UsageError, r"slowdown names rank 4, but ranks are 0\.\.3"),
        ({"slowdown": {0: 0}}, UsageError, "the slowdown of rank 0 must be a positive number, got 0"),
        ({"slowdown": {0: float("inf")}}, UsageError, "must be a positive number, got inf"),
        ({"slowdown": {0: True}}, UsageError, "must be a positive number, got True"),
        ({"world_size": 2**21}, UsageError, r"world_size \(2097152\) must fit into a tier .* largest spans 1048576"),
        ({"hardware": "h101"}, HardwareConfigError, "h101"),
        (
            {"microbatch": 2},
            StrategyError,
            r"ddp does not take microbatch=2; did you mean microbatch_size\?",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(parameters: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        simulate("ddp", **parameters)


def test_the_final_weights_are_verified_unless_told_otherwise() -> None:
    with pytest.raises(LawError, match="layer 0 has no final weight on any rank"):
        simulate(nothing)
    assert simulate(nothing, check=False).num_events == 0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: (0, 1, 0)}, "final weight of layer 0 on rank 0 must have seen exactly one update, got Weight.*step 0"),
        ({0: (0, 2, 1)}, r"final weight of layer 0 is incomplete: shards \[1\] of 2 are on no rank"),
        ({0: (0, 2, 1), 1: (0, 4, 1)}, "must be cut alike on all ranks, got .* of 2\\) on rank 0 and .* on rank 1"),
        ({0: (0, 1, 1), 1: (0, 1, 2)}, "layer 0 on rank 1 must have seen exactly one update, got .*step 2"),
    ],
)
def test_a_final_weight_must_be_complete_one_step_on_and_alike(weights: Any, message: str) -> None:
    async def hands_in(model: Model) -> Model:
        if model.rank in weights:
            shard, num_shards, step = weights[model.rank]
            weight = model.load_weights(0, shard, num_shards)[0]
            weight.step = step
            model.set_final_weight(0, weight)
        return model

    with pytest.raises(LawError, match=message):
        simulate(hands_in, num_layers=1)


def small_memory(tmp_path: Any, gib: float) -> str:
    raw = json.loads(resources.files("minitrain.hw_configs").joinpath("h100_80g_nvl8.json").read_text())
    raw["mem1"]["GiB"] = gib
    path = tmp_path / "small.json"
    path.write_text(json.dumps(raw))
    return str(path)


def test_who_holds_more_than_the_device_is_told_with_the_moment_and_what_filled_it(tmp_path: Any) -> None:
    run = simulate("ddp", num_layers=16, hardware=small_memory(tmp_path, 1))
    assert run.oom is not None
    assert run.oom.capacity_bytes == 2**30
    assert 2**30 < sum(run.oom.held_bytes.values()) <= run.peak_memory_bytes
    assert (run.oom.rank, run.oom.held_bytes["weights"]) == (0, 16 * 2 * 4096**2)
    assert "out of memory on rank 0 at" in str(run.oom)
    assert "of 1 GiB (weights 0.5 GiB, opt_states 0.5 GiB, activations" in str(run.oom)
    assert run.summary()["out_of_memory"] == str(run.oom)


def test_what_fits_exactly_fits(tmp_path: Any) -> None:
    free = simulate("ddp")
    gib = free.peak_memory_bytes / 2**30
    assert simulate("ddp", hardware=small_memory(tmp_path, gib)).oom is None
    assert simulate("ddp", hardware=small_memory(tmp_path, gib * 0.999)).oom is not None


def test_strict_memory_ends_the_run_where_it_overflows(tmp_path: Any) -> None:
    with pytest.raises(
        OutOfMemoryError, match=r"out of memory on rank 0 .*; shard more, use smaller microbatches"
    ) as e:
        simulate("ddp", num_layers=16, hardware=small_memory(tmp_path, 1), strict_memory=True)
    assert e.value.oom.rank == 0


def test_simulate_works_inside_a_running_loop_and_simulate_async_in_it() -> None:
    async def main() -> tuple[mt.Run, mt.Run]:
        return simulate("zero2"), await mt.simulate_async("zero2", **SMALL)

    inside, awaited = asyncio.run(main())
    assert inside == awaited == simulate("zero2")


def test_what_makes_no_event_loop_is_refused() -> None:
    with pytest.raises(mt.UsageError, match="loop_factory must make an event loop of asyncio, got <class 'object'>"):
        mt.simulate("ddp", world_size=2, loop_factory=lambda: object)  # type: ignore[arg-type, return-value]


def test_two_runs_in_one_loop_do_not_disturb_each_other() -> None:
    async def main() -> list[mt.Run]:
        return list(await asyncio.gather(*(mt.simulate_async(name, **SMALL) for name in ("ddp", "gpipe", "zero3"))))

    assert asyncio.run(main()) == [simulate(name) for name in ("ddp", "gpipe", "zero3")]


def test_a_cancelled_simulation_ends_its_ranks() -> None:
    started: list[int] = []

    async def waits(model: Model) -> Model:
        started.append(model.rank)
        try:
            await asyncio.Event().wait()
        finally:
            started.remove(model.rank)
        return model

    async def main() -> None:
        task = asyncio.ensure_future(mt.simulate_async(waits, **SMALL))
        while len(started) < 4:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not started

    asyncio.run(main())


def test_a_straggler_computes_slower_and_the_others_wait() -> None:
    plain, slow = simulate("ddp"), simulate("ddp", slowdown={2: 3})
    forward = [next(e.duration for e in log if e.typ == "forward") for log in slow.logs]
    expected = next(e.duration for e in plain.logs[0] if e.typ == "forward")
    assert forward == [expected, expected, 3 * expected, expected]
    assert [e.duration for e in slow.logs[2] if e.typ == "load_weights"] == [
        e.duration for e in plain.logs[2] if e.typ == "load_weights"
    ]
    reduces = [event for log in slow.logs for event in log if event.typ == "all_reduce"]
    assert {event.waited_for for event in reduces if event.rank != 2 and event.layer == 0} == {2}
    assert {event.waited_for for event in reduces if event.rank == 2} == {None}


def test_any_predictor_serves_as_hardware() -> None:
    run = simulate("gpipe", hardware=mt.FixedPredictor(forward=1, backward=2, send=0.5))
    assert (run.mfu, run.capacity_bytes, run.peak_flop_per_s, run.oom) == (None, None, None, None)
    assert run.hardware == "FixedPredictor(forward=1, backward=2, send=0.5)"
    assert {event.duration for event in run.events if event.typ in ("send", "recv")} == {0.5}
    assert run.summary()["mfu"] is None


def test_backpressure_costs_no_logical_time() -> None:
    logs: list[Callable[[], Any]] = [
        lambda buffer=buffer: simulate("gpipe", p2p_buffer=buffer, microbatch_size=1).logs  # type: ignore[misc]
        for buffer in (1, 2, None)
    ]
    first, second, third = ([list(log) for log in make()] for make in logs)
    assert first == second == third


def test_the_hierarchical_network_prices_neighbours_on_their_own_tier() -> None:
    flat = simulate("gpipe", world_size=16, num_layers=16, global_batch_size=16, network="flat")
    tiered = simulate("gpipe", world_size=16, num_layers=16, global_batch_size=16, network="hierarchical")
    sends = {(e.rank, e.peer): e.duration for e in tiered.events if e.typ == "send"}
    across = {e.duration for e in flat.events if e.typ == "send"}
    assert {sends[7, 8], sends[8, 7]} == across
    assert sends[0, 1] < sends[7, 8]
    spread = simulate("zero1", world_size=16, global_batch_size=16, network="hierarchical")
    assert {event.algorithm for event in spread.events if event.typ == "all_gather"} == {"hierarchical"}
    assert {event.algorithm for event in flat.events} == {None}


def test_the_garbage_collector_is_set_back_after_a_run() -> None:
    before = gc.get_threshold()
    simulate(nothing, check=False)
    with pytest.raises(LawError, match="no final weight"):
        simulate(nothing)
    assert gc.get_threshold() == before
