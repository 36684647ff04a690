"""Strict accounting: every live tensor counts once, honest programs pass, and the log stays what it is."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain import schedules
from minitrain.lib import Activation, Model, Weight
from minitrain.operations import Event
from minitrain.run.strict.buffers import Line
from minitrain.tensors import KINDS

H2, SAMPLE = 4096**2, 4096 * 1024
GENERATORS = {
    name: (getattr(schedules, name), arguments)
    for name, arguments in {
        "gpipe": (4, 4),
        "one_f_one_b": (4, 4),
        "zb_h1": (4, 4),
        "zb_h2": (4, 8),
        "interleaved_1f1b": (4, 4, 2),
        "looped_bfs": (4, 4, 2),
        "zbv": (4, 8),
        "dualpipe_v": (4, 8),
        "chimera": (4, 8),
    }.items()
    if hasattr(schedules, name)
}


def strict(program: Callable[[Model], Awaitable[Any]], world_size: int = 1, **parameters: Any) -> mt.Run:
    """Run a program that need not train anything."""
    sizes: dict[str, Any] = {"world_size": world_size, "num_layers": 2, "global_batch_size": 4, "check": False}
    return mt.simulate(program, strict=True, hardware=mt.FixedPredictor(), **{**sizes, **parameters})


@pytest.mark.few(8)
@pytest.mark.parametrize("name", mt.strategies())
@pytest.mark.parametrize("microbatch_size", [None, 1])
def test_shipped_strategies_pass_with_the_log_they_have(name: str, microbatch_size: int | None) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
    if microbatch_size:
        sizes["microbatch_size"] = microbatch_size
    if name == "single":
        sizes["world_size"] = 1
    plain, run = mt.simulate(name, **sizes), mt.simulate(name, strict=True, **sizes)
    assert [[*log] for log in run.logs] == [[*log] for log in plain.logs]
    if name == "interleaved_zero_bubble":  # whose fullest rank has messages that it has not received yet
        assert run.held_outside is not None
        assert plain.peak_memory < run.peak_memory <= plain.peak_memory + run.held_outside.waiting_messages
    else:
        assert run.peak_memory == plain.peak_memory


@pytest.mark.few(3)
@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_schedules_pass_at_every_zero_stage(name: str, zero: int) -> None:
    make, arguments = GENERATORS[name]
    strategy = mt.from_schedule(make(*arguments))
    run = mt.simulate(strategy, world_size=8, num_layers=8, global_batch_size=16, zero=zero, strict=True)
    assert run.held_outside is not None


def test_numbers_and_strictness_go_together() -> None:
    run = mt.simulate("zero3", world_size=2, num_layers=2, global_batch_size=4, strict=True, numerics="numpy")
    rank: Any = run.models[0]
    assert rank.final_states
    assert run.held_outside is not None


def test_the_log_is_the_same_on_a_shuffling_loop(shuffling: Any) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 8, "strict": True}
    runs = [mt.simulate("zbv", loop_factory=shuffling(seed), **sizes) for seed in range(4)]
    assert len({tuple(run.peak_memory_per_rank) for run in runs}) == 1
    assert all([*run.logs[0]] == [*runs[0].logs[0]] for run in runs)


async def hoards(model: Model) -> Model:
    """Keep what was loaded in a variable."""
    kept = [model.load_weights(layer) for layer in range(2)]
    await model.barrier()
    del kept
    return model


@pytest.mark.parametrize("container", ["variable", "list", "closure", "attribute"])
def test_a_tensor_counts_wherever_it_is_kept(container: str) -> None:
    async def program(model: Model) -> Model:
        kept: list[Any] = [model.load_weights(layer) for layer in range(2)]
        if container == "closure":
            model.keeper = lambda kept=kept: kept  # type: ignore[attr-defined]
        elif container == "attribute":
            model.kept = kept  # type: ignore[attr-defined]
        only = kept[0][0] if container == "variable" else None
        if container != "list":
            del kept
        await model.barrier()
        model.load_weights(0)
        del only
        return model

    run = strict(program)
    held = 2 if container == "variable" else 4  # when the second layer is loaded, or when all are
    assert run.peak_memory == (4 if container == "variable" else 6) * H2
    assert run.held_outside is not None
    assert run.held_outside.elements == held * H2
    assert str(run.held_outside).startswith(f"{held * H2:.4g} elements on rank 0 at 0 s: {held * H2:.4g} made at test_")


def test_a_buffer_counts_once_however_often_it_is_stored() -> None:
    async def program(model: Model) -> Model:
        model.weights[0], model.opt_states[0] = model.load_weights(0)
        model.weights["again"] = model.weights[0]
        model.weights["shard"] = model.weights[0].shard(0, 2)
        await model.barrier()
        assert model.memory() == 3.5 * H2  # the specified one adds up what the stores hold
        return model

    assert strict(program).peak_memory == 2 * H2


def test_a_shard_counts_for_itself_once_the_whole_is_freed() -> None:
    async def program(model: Model) -> Model:
        whole, state = model.load_weights(0)
        del state
        shards = [whole.shard(0, 4), whole.shard(0, 4), whole.shard(1, 4)]
        assert ledger(model) == H2
        del whole
        assert ledger(model) == H2 / 2
        shards.pop()
        assert ledger(model) == H2 / 4
        return model

    strict(program)


def ledger(model: Model) -> float:
    """Return the elements that a strict model really holds."""
    return float(model._meter.units / 2**40)


def test_update_and_sums_work_in_place() -> None:
    async def program(model: Model) -> Model:
        held = {}
        for sample in (0, 1):
            held[sample] = gradient(model, [sample])
        before = ledger(model)
        total = held[0] + held[1]
        assert ledger(model) == before
        del held
        assert ledger(model) == before - H2
        reduced = await model.all_reduce(total, 0)
        assert ledger(model) == before - H2
        weight, state = model.update(0, reduced, model.weights[0], model.opt_states[0])
        assert ledger(model) == before - H2
        model.weights[0], model.opt_states[0] = weight, state
        return model

    strict(program, num_layers=1, global_batch_size=2)


def gradient(model: Model, samples: list[int]) -> Any:
    """Return the gradient of the only layer, and leave the stores with its weight and state alone."""
    if 0 not in model.weights:
        model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.activations[0] = model.get_input_activation(samples)
    model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    del model.activations[0], model.grad_activations[0]
    return grad


def test_nothing_of_the_run_keeps_a_tensor_alive() -> None:
    async def program(model: Model) -> Model:
        other = 1 - model.rank
        works = []
        for _ in range(3):
            shard, _ = model.load_weights(0, model.rank, 2)
            await model.all_gather(shard, 0)
            for operation in (model.all_gather(shard, 0), model.send(other, shard)):
                works.append(model.launch(operation))
                await works[-1]
            await model.receive(other)
            del shard, _
            assert ledger(model) == 0
        return model

    strict(program, world_size=2)


def test_a_launched_operation_counts_from_launch_to_await() -> None:
    async def program(model: Model) -> Model:
        shard, state = model.load_weights(0, model.rank, 2)
        del state
        work = model.launch(model.all_gather(shard, 0))
        del shard
        await model.barrier()
        assert ledger(model) == 1.5 * H2
        whole = await work
        assert ledger(model) == H2
        assert (await work) is whole
        return model

    run = strict(program, world_size=2)
    assert run.peak_memory == 1.5 * H2


def test_shards_may_update_one_after_the_other() -> None:
    async def program(model: Model) -> Model:
        grad = gradient(model, [0, 1])
        weight, state = model.weights[0], model.opt_states[0]
        halves = [model.update(0, grad, weight.shard(i, 2), state.shard(i, 2)) for i in (0, 1)]
        model.weights[0] = halves[0][0].combine(halves[1][0])
        model.set_final_weight(0, model.weights[0])
        return model

    assert strict(program, num_layers=1, global_batch_size=2, check=True).peak_memory >= 2 * H2


async def recomputing(model: Model) -> Model:
    """Train by tasks and helpers, with recomputation, other keys, and a split backward."""
    weights, states, activations, grad_activations, grads = model.storage()
    for layer in range(model.num_layers):
        weights["w", layer], states["o", layer] = model.load_weights(layer)
    share = model.global_batch_size // model.world_size if model.rank < 2 else 0
    activations["in"] = model.get_input_activation(range(model.rank * share, (model.rank + 1) * share))

    def inputs(layer: int) -> Activation:
        activations["x"] = activations["in"]
        for below in range(layer):
            activations["x"] = model.forward(below, activations["x"], weights["w", below])
        return activations["x"]

    grad_activations["dy"] = model.loss(inputs(model.num_layers))
    for layer in reversed(range(model.num_layers)):
        x = inputs(layer)
        grads[layer] = model.backward_weight(layer, x, grad_activations["dy"])
        grad_activations["dy"] = model.backward_input(layer, x, grad_activations["dy"], weights["w", layer])

    async def finish(layer: int) -> None:
        grad = await model.all_reduce(grads.pop(layer), 0)  # the layer is for the log
        weight, states["o", layer] = model.update(layer, grad, weights["w", layer], states["o", layer])
        model.set_final_weight(layer, weight)

    for layer in range(model.num_layers):
        await asyncio.create_task(finish(layer))
    return model


def test_recomputation_sub_tasks_other_keys_and_empty_ranks_are_honest() -> None:
    assert mt.simulate(recomputing, world_size=2, num_layers=3, global_batch_size=4, strict=True).num_events > 0


def test_ranks_without_layers_or_samples_are_honest() -> None:
    async def program(model: Model) -> Model:
        group = model.group([0, 1]) if model.rank < 2 else None
        if group is None:
            return model
        grad = gradient(model, [0, 1, 2, 3] if model.rank == 0 else [])
        grad = await model.all_reduce(grad, 0, group=group)
        weight, _ = model.update(0, grad, model.weights[0], model.opt_states[0])
        model.set_final_weight(0, weight)
        return model

    assert strict(program, world_size=3, num_layers=1, check=True).num_events > 0


def test_memory_by_kind_and_strictness_go_together() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4, strict=True, memory_by_kind=True)
    assert len(run.memory_journals[0]) > 0


def test_what_overflows_the_device_outside_the_stores_is_out_of_memory() -> None:
    async def program(model: Model) -> Model:
        kept = [model.load_weights(layer) for layer in range(model.num_layers)]
        await model.barrier()
        del kept
        return model

    sizes: dict[str, Any] = {"world_size": 1, "num_layers": 2000, "global_batch_size": 1, "check": False}
    run = mt.simulate(program, strict=True, **sizes)
    assert "outside the stores" in str(run.oom)
    assert mt.simulate(program, **sizes).oom is None


def test_a_strict_run_leaves_no_trace_in_the_process() -> None:
    constructors = [vars(kind)["__init__"] for kind in KINDS]
    strict(hoards)
    assert [vars(kind)["__init__"] for kind in KINDS] == constructors
    assert not hasattr(Weight(0, 1, 0), "_origin")


def test_compare_takes_strict() -> None:
    comparison = mt.compare(["ddp", "zero1"], world_size=2, num_layers=2, global_batch_size=2, strict=True)
    assert [row["held_outside_bytes"] for row in comparison.summary()] == [2 * SAMPLE, 2 * SAMPLE]


def test_a_line_that_is_not_known_says_so() -> None:
    assert str(Line(None, 0)) == "unknown line"


# Deadlocks where tasks wait for something of their own


async def shielded(model: Model) -> None:
    await asyncio.shield(model.receive(1 - model.rank))


async def one_by_one(model: Model) -> None:
    for done in asyncio.as_completed([model.receive(1 - model.rank)]):
        await done


async def grouped(model: Model) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(model.receive(1 - model.rank))
        group.create_task(model.barrier())
    await model.receive(1 - model.rank)


async def first_of_two(model: Model) -> None:
    tasks = [asyncio.create_task(model.receive(1 - model.rank, tag=tag)) for tag in range(2)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def nested(model: Model) -> None:
    await asyncio.gather(asyncio.gather(model.receive(1 - model.rank)), asyncio.gather(model.barrier()))


async def fed_by_a_queue(model: Model) -> None:
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def feed() -> None:
        await queue.put(await model.receive(1 - model.rank))

    task = asyncio.create_task(feed())
    await queue.get()
    await task


async def locked_out(model: Model) -> None:
    lock = asyncio.Lock()
    async with lock:
        task = asyncio.create_task(model.receive(1 - model.rank))
        await asyncio.gather(task, lock.acquire())


@pytest.mark.parametrize("wait", [shielded, one_by_one, grouped, first_of_two, nested, fed_by_a_queue, locked_out])
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_deadlock_is_found_through_whatever_asyncio_offers(wait: Any, is_strict: bool) -> None:
    if len(threading.enumerate()) > 1 and wait in (fed_by_a_queue, locked_out):
        pytest.skip("another thread could still put something in")

    async def program(model: Model) -> Model:
        await wait(model)
        return model

    begin_s = time.perf_counter()
    with pytest.raises(mt.DeadlockError, match="rank 0 at 0 s: receive from rank 1"):
        mt.simulate(program, world_size=2, num_layers=1, global_batch_size=2, check=False, strict=is_strict)
    assert time.perf_counter() - begin_s < 1


def test_sleepers_timers_and_executors_are_waited_for() -> None:
    async def program(model: Model) -> Model:
        loop = asyncio.get_running_loop()
        if model.rank == 1:
            await model.receive(0)
            return model
        await asyncio.sleep(0.02)
        await loop.run_in_executor(None, time.sleep, 0.02)
        ready: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.02, ready.set_result, None)
        await ready
        await model.send(1, model.get_input_activation([0]))
        return model

    assert strict(program, world_size=2).num_events == 2


def test_a_failing_run_leaves_no_task_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def program(model: Model) -> Model:
        tasks = [asyncio.create_task(model.receive(1 - model.rank, tag=tag)) for tag in range(2)]
        await asyncio.sleep(0)
        if model.rank == 0:
            raise ValueError("its own")
        await asyncio.gather(*tasks)
        return model

    async def main() -> int:
        with pytest.raises(ValueError, match="its own"):
            await mt.simulate_async(program, world_size=2, num_layers=1, global_batch_size=2)
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    gc.collect()
    assert not caplog.records


def test_an_error_in_a_sub_task_that_nobody_awaits_ends_the_run() -> None:
    async def program(model: Model) -> Model:
        async def fail() -> None:
            raise ValueError("lost")

        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        assert task.done()
        return model

    with pytest.raises(ValueError, match="lost"):
        strict(program)


def test_an_interrupt_reaches_a_run_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()
    ended = []

    async def program(model: Model) -> Model:
        waiting.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(model.rank)
        return model

    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "minitrain" and not ended:
            monkeypatch.setattr(threading.Thread, "join", join)
            waiting.wait()
            raise KeyboardInterrupt
        join(thread, timeout)

    async def main() -> None:
        monkeypatch.setattr(threading.Thread, "join", interrupted)
        strict(program, world_size=2)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert sorted(ended) == [0, 1]


def test_event_memory_stays_the_specified_one() -> None:
    async def program(model: Model) -> Model:
        kept = model.load_weights(0)
        await model.barrier()
        del kept
        return model

    events: list[Event] = strict(program).events
    assert [event.memory for event in events] == [0, 0]


async def receives_late(model: Model, work: Callable[[], Any], num_messages: int, *, launched: bool) -> None:
    """Receive messages of rank 0 after some work, and launch their receives before it if that is asked for."""
    works = [model.launch(model.receive(0, tag=tag)) for tag in range(num_messages if launched else 0)]
    work()
    for each in works:
        await each
    for tag in range(0 if launched else num_messages):
        await model.receive(0, tag=tag)


def parks(
    num_messages: int, *, asks_early: bool = False, launched: bool = False
) -> Callable[[Model], Awaitable[Model]]:
    """Return a strategy whose rank 0 leaves activations with rank 1, under tags, and frees them."""

    async def program(model: Model) -> Model:
        weights, states, activations, *_ = model.storage()
        weights[0], states[0] = model.load_weights(0)
        activations["input"] = model.get_input_activation([0])

        def work() -> None:
            for _ in range(0 if asks_early else 4 * num_messages):
                model.forward(0, activations["input"], weights[0])

        if model.rank:
            await receives_late(model, work, num_messages, launched=launched)
            return model
        for tag in range(num_messages):
            activations["made"] = model.forward(0, activations["input"], weights[0])
            await model.send(1, activations.pop("made"), tag=tag)
        return model

    return program


def in_time(program: Callable[[Model], Awaitable[Any]], **parameters: Any) -> mt.Run:
    """Run a program whose operations take time, on two ranks."""
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 4, "check": False}
    return mt.simulate(program, strict=True, **sizes, **parameters)


def test_messages_that_nobody_asks_for_lie_on_the_receiver(shuffling: Any) -> None:
    found = in_time(parks(4))
    assert found.held_outside is not None
    assert found.held_outside.waiting_messages == 4 * SAMPLE
    weights_and_input = 2 * H2 + SAMPLE
    made = SAMPLE  # the forward that rank 1 throws away
    assert found.peak_memory_per_rank == [weights_and_input + SAMPLE, weights_and_input + made + 4 * SAMPLE]
    assert "messages that waited to be received" in str(found.held_outside)
    for seed in range(4):
        again = in_time(parks(4), loop_factory=shuffling(seed))
        assert again.peak_memory_per_rank == found.peak_memory_per_rank


def test_messages_that_are_waited_for_count_once() -> None:
    early = in_time(parks(4, asks_early=True))
    assert early.held_outside is not None
    assert early.held_outside.waiting_messages == 0
    launched = in_time(parks(4, launched=True))
    assert launched.held_outside is not None
    assert launched.held_outside.waiting_messages == 0
    assert launched.peak_memory_per_rank == in_time(parks(4)).peak_memory_per_rank


def test_waiting_messages_can_be_too_much(tmp_path: Path) -> None:
    config = json.loads(resources.files("minitrain.hw_configs").joinpath("h100_80g_nvl8.json").read_text())
    config["mem1"]["GiB"] = (2 * H2 + 4 * SAMPLE) * 2 / 2**30
    small = tmp_path / "small.json"
    small.write_text(json.dumps(config))
    in_time(parks(1), strict_memory=True, hardware=str(small))
    with pytest.raises(mt.OutOfMemoryError, match="rank 1"):
        in_time(parks(4), strict_memory=True, hardware=str(small))


@pytest.mark.parametrize("pause_s", [1e-5, None], ids=["rests", "never rests"])
def test_a_thread_that_samples_stacks_changes_no_peak(pause_s: float | None) -> None:
    """As the profiler of Dask's workers does: frames that it has seen live until it has looked at them."""

    def look_at(model: Model, layer: int) -> None:
        weight, _ = model.load_weights(layer)
        time.sleep(1e-4)  # other threads have their turn
        del model, weight

    async def program(model: Model) -> Model:
        for layer in range(model.num_layers):
            look_at(model, layer)
            await model.barrier()
            await asyncio.sleep(0)
        return model

    kept: list[Any] = []
    ends = threading.Event()

    def sample() -> None:
        while not ends.is_set():
            kept.append([*sys._current_frames().values()])
            del kept[:-50]
            if pause_s is not None:
                time.sleep(pause_s)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        run = mt.simulate(program, world_size=2, num_layers=100, global_batch_size=2, strict=True, check=False)
    finally:
        ends.set()
        thread.join()
    assert run.peak_memory_per_rank == [2 * H2, 2 * H2]


def test_who_asks_for_frames_gets_them_while_a_strict_run_goes_on() -> None:
    seen: list[str] = []

    async def program(model: Model) -> Model:
        def look() -> None:
            frame: Any = sys._current_frames()[ranks]
            while frame is not None:
                seen.append(frame.f_code.co_name)
                frame = frame.f_back

        ranks, thread = threading.get_ident(), threading.Thread(target=look)
        thread.start()
        for _ in range(1000):
            await model.barrier()
            await asyncio.sleep(0.001 * thread.is_alive())
        assert not thread.is_alive()
        return model

    mt.simulate(program, world_size=1, num_layers=1, global_batch_size=1, strict=True, check=False)
    assert "run_forever" in seen
    assert "program" not in seen
