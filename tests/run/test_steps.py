"""Runs of many steps: against one continuous run, against closed forms, and what is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.machine.given_durations import FixedPredictor
from minitrain.run.facts import Steps
from minitrain.run.strategy_loading import choose_strategy

SIZES: dict[str, Any] = {"num_layers": 16, "global_batch_size": 16}


def of(run: mt.Run) -> Steps:
    """Return the steps of a run of many."""
    assert run.steps is not None
    return run.steps


def continuous(name: str, num_steps: int) -> Any:
    """Return a strategy that does all steps in one run, whose loads must be free."""
    step = choose_strategy(name).function

    async def steps(model: Any) -> Any:
        for _ in range(num_steps):
            await step(model)
        return model

    return steps


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name", ["ddp_overlap", "zero3_prefetch", "gpipe", "1f1b", "zb_h1", "zb_h2", "zbv", "pp_zero3"]
)
def test_steps_take_as_long_as_one_continuous_run(name: str) -> None:
    free = FixedPredictor(forward=1.0, backward=2.0, update=0.25, load_weights=0.0, send=0.5, recv=0.5)
    sizes = {**SIZES, "world_size": 4, "hardware": free}
    run = mt.simulate(name, steps=6, **sizes)
    whole = mt.simulate(continuous(name, 6), check=False, fold=False, **sizes)
    assert of(run).total_time == pytest.approx(whole.last_clock, rel=1e-12)
    assert sum(run.step_times) == pytest.approx(whole.last_clock, rel=1e-12)


def test_the_steady_step_of_zb_h2_is_shorter_than_the_first() -> None:
    """Qi et al. 2023, section 2.3: without a wait of all stages, the trapezoid becomes a parallelogram.

    Its ranks begin and end a step one after the other, so that the next step fits in without a bubble.
    """
    run = mt.simulate("zb_h2", world_size=4, **ZB_H2, steps=1000)
    first = mt.simulate("zb_h2", world_size=4, **ZB_H2)
    busy = first.step_time * (1 - first.bubble_fraction)
    assert run.step_times[0] == first.step_time == of(run).first.step_time
    assert run.step_time < first.step_time
    assert run.step_time == pytest.approx(busy)
    assert run.bubble_fraction == pytest.approx(0, abs=1e-12)
    assert first.bubble_fraction > 0.05
    assert run.step_times[1:] == pytest.approx([run.step_time] * 999)


ONE_SECOND = FixedPredictor(
    forward=1.0, backward=2.0, backward_input=1.0, backward_weight=1.0, update=0.0, load_weights=0.0, send=0.0, recv=0.0
)


ZB_H2: dict[str, Any] = {"num_layers": 4, "global_batch_size": 16, "microbatch_size": 1, "hardware": ONE_SECOND}


@pytest.mark.parametrize("name", ["zero3", "fsdp", "pp_zero3", "megatron", "moe"])
def test_folded_steps_equal_those_of_all_ranks(name: str) -> None:
    options = {"pp": 2} if name == "megatron" else {}
    runs = [mt.simulate(name, world_size=8, steps=50, fold=fold, options=options, **SIZES) for fold in (True, False)]
    folded, full = runs
    assert (folded.is_folded, full.is_folded) == (True, False)
    assert folded.steps == full.steps
    assert folded == full
    assert folded.bubble_fraction == pytest.approx(full.bubble_fraction, rel=1e-12)


def test_two_ranks_that_meet_take_as_long_as_the_slower_one() -> None:
    """x' = max(x, y) + m + a and y' = max(x, y) + m + b: each step takes m + max(a, b), from the first on."""

    async def meets(model: Any) -> Any:
        layer, peer = model.rank, 1 - model.rank
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer)
        sending = model.launch(model.send(peer, model.get_input_activation([layer])))
        await model.receive(peer)
        await sending
        for _ in range(1 + 2 * model.rank):
            model.log_event("forward", 0, frozenset([0]))
        model.set_final_weight(layer, model.weights[layer])
        return model

    times = FixedPredictor(forward=1.0, load_weights=5.0, send=10.0, recv=10.0)
    run = mt.simulate(meets, world_size=2, num_layers=2, global_batch_size=2, hardware=times, steps=7, check=False)
    assert run.step_times == [13.0] * 7
    assert of(run).total_time == 5 + 7 * 13
    assert run.breakdown.computing.tolist() == [1.0, 3.0]


def test_times_of_steps_that_return_after_two() -> None:
    steps = Steps(7, load_time=1.0, ends=(11.0, 14.0, 19.0), period=2)
    assert steps.times == [10, 3, 5, 3, 5, 3, 5]
    assert steps.total_time == 1 + sum(steps.times)
    assert steps.steady_time == 4
    assert Steps(3, 1.0, (11.0, 14.0, 19.0), None).times == [10, 3, 5]


def test_a_rank_hands_in_what_it_begins_with() -> None:
    async def forgets(model: Any) -> Any:
        whole = await choose_strategy("ddp").function(model)
        if model.rank == 1:
            del model.final_weights[3]
        return whole

    with pytest.raises(
        mt.LawError, match=r"rank 1 begins a step with .*3.* and ends it with none of it; the next step"
    ):
        mt.simulate(forgets, world_size=2, steps=3, **SIZES)
    assert mt.simulate(forgets, world_size=2, **SIZES).steps is None


def test_a_rank_hands_in_the_shard_that_it_begins_with() -> None:
    async def turned(model: Any) -> Any:
        await choose_strategy("zero3").function(model)
        model.set_final_weight(2, model.final_weights[2].__class__(2, 16, 1, frozenset([1 - model.rank]), 2))
        return model

    with pytest.raises(
        mt.LawError, match=r"rank 0 begins a step with .* and ends it with .*hand in all that a rank loads"
    ):
        mt.simulate(turned, world_size=2, steps=3, **SIZES)


def test_later_steps_load_nothing_and_hold_as_much() -> None:
    run = mt.simulate("zero3", world_size=4, steps=3, **SIZES)
    first = of(run).first
    assert {event.typ for event in first.logs[0]} - {event.typ for event in run.logs[0]} == {"load_weights"}
    assert run.load_time == 0 < first.load_time
    assert run.peak_memory == first.peak_memory
    assert of(run).total_time == pytest.approx(first.load_time + sum(run.step_times))


def test_a_load_in_mid_step_is_paid_in_each() -> None:
    async def reads_again(model: Any) -> Any:
        await choose_strategy("ddp").function(model)
        model.load_weights(0)
        return model

    run = mt.simulate(reads_again, world_size=2, steps=5, **SIZES)
    assert [event.typ for event in run.logs[0]].count("load_weights") == 1


@pytest.mark.parametrize(
    "other", [{"contention": True}, {"numerics": "numpy"}, {"faults": [mt.Fault(rank=0, at_s=0.001)]}]
)
def test_what_follows_one_step_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(mt.UsageError, match="steps does not go with"):
        mt.simulate("ddp", world_size=2, steps=2, **SIZES, **other)


@pytest.mark.parametrize("steps", [0, -1, 1.5, "many", None, True])
def test_steps_are_counted(steps: Any) -> None:
    with pytest.raises(mt.UsageError, match="steps must be"):
        mt.simulate("ddp", world_size=2, steps=steps, **SIZES)


@pytest.mark.few(1)
@pytest.mark.parametrize("asks", [mt.sensitivity, mt.monte_carlo, mt.replay])
def test_what_times_a_run_again_is_for_one_step(asks: Any) -> None:
    run = mt.simulate("zb_h2", world_size=4, steps=20, **SIZES)
    noise = {"noise": mt.Noise(jitter=0.05)} if asks is mt.monte_carlo else {}
    with pytest.raises(mt.UsageError, match="follows one step whose ranks begin together, and the run of zb_h2 has 20"):
        asks(run, **noise)
    assert asks(of(run).first, **noise)


def test_one_step_is_a_run_as_ever() -> None:
    assert mt.simulate("ddp", world_size=2, steps=1, **SIZES) == mt.simulate("ddp", world_size=2, **SIZES)


def test_steps_are_saved(tmp_path: Path) -> None:
    run = mt.simulate("zb_h2", world_size=4, steps=100, **SIZES)
    run.save(tmp_path / "run.jsonl")
    again = mt.load_run(tmp_path / "run.jsonl")
    assert (again.steps, again.step_time, again.step_times) == (run.steps, run.step_time, run.step_times)
    assert again.summary() == run.summary()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"ends": []}, "at least one step"),
        ({"ends": [3.0, 2.0]}, "in order"),
        ({"ends": [1.0, "x"]}, r"steps\.ends\[1\]"),
        ({"period": 7}, r"steps\.period"),
        ({"period": None}, "or a period"),
        ({"num_steps": 0}, r"steps\.num_steps"),
    ],
)
def test_damaged_steps_are_named(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    file = tmp_path / "run.jsonl"
    mt.simulate("ddp", world_size=2, steps=100, **SIZES).save(file)
    first, *rest = file.read_text().splitlines()
    header = json.loads(first)
    header["steps"] |= change
    file.write_text("\n".join([json.dumps(header), *rest]) + "\n")
    with pytest.raises(mt.UsageError, match=found):
        mt.load_run(file)


def test_steps_in_a_loop_that_runs() -> None:
    run = asyncio.run(mt.simulate_async("1f1b", world_size=4, steps=10, **SIZES))
    assert len(run.step_times) == 10
