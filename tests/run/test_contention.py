"""Contention: compute slows down beside communication, and nothing else changes."""

import pytest

import minitrain as mt
from minitrain.run.contention import with_contention

USAGE = 0.15  # of the H100 server's NVLink tier, see its config


@pytest.mark.parametrize(
    "strategy",
    ["ddp", "zero1", "zero2", "zero3", *(f"{name}:overlap_messages=False" for name in ("gpipe", "1f1b", "zb_h1"))],
)
def test_without_overlap_every_time_stays_to_the_last_float(strategy: str) -> None:
    run = mt.simulate(strategy, num_layers=8, global_batch_size=16)
    again = mt.simulate(strategy, num_layers=8, global_batch_size=16, contention=True)
    assert [list(log) for log in again.logs] == [list(log) for log in run.logs]
    assert again.step_time == run.step_time


async def gather_beside_a_forward(model: mt.Model) -> mt.Model:
    """Launch one gather, compute one layer beside it, then await it."""
    weights, _, activations, _, _ = model.storage()
    weights[0], _ = model.load_weights(0)
    shard, _ = model.load_weights(1, model.rank, model.world_size)
    activations[0] = model.get_input_activation([model.rank])
    work = model.launch(model.all_gather(shard, 1))
    activations[1] = model.forward(0, activations[0], weights[0])
    weights[1] = await work
    return model


def durations(*, contention: bool) -> dict[str, float]:
    """Return the duration of each type of event on rank 0, s."""
    run = mt.simulate(
        gather_beside_a_forward,
        world_size=8,
        num_layers=2,
        global_batch_size=8,
        check=False,
        contention=contention,
    )
    return {event.typ: event.duration for event in run.logs[0]}


def test_a_forward_beside_a_longer_gather_runs_at_the_rate_that_is_left() -> None:
    plain, slowed = durations(contention=False), durations(contention=True)
    assert plain["forward"] < plain["all_gather"] * (1 - USAGE)
    assert slowed["forward"] == pytest.approx(plain["forward"] / (1 - USAGE), rel=1e-12)
    assert slowed["all_gather"] == plain["all_gather"]


def test_a_forward_gets_its_full_rate_back_when_the_gather_ends() -> None:
    run = mt.simulate("zero3_prefetch", num_layers=4, global_batch_size=512, contention=True)
    plain = mt.simulate("zero3_prefetch", num_layers=4, global_batch_size=512)
    slow = [event.duration for event in run.logs[0] if event.typ == "forward"]
    fast = [event.duration for event in plain.logs[0] if event.typ == "forward"]
    gather = next(event.duration for event in plain.logs[0] if event.typ == "all_gather")
    assert gather < fast[0]
    # during the gather, gather x (1 - usage) of the work is done; the rest goes at full speed
    assert slow[0] == pytest.approx(fast[0] + gather * USAGE, rel=1e-9)


def test_contention_never_makes_a_run_faster_nor_slower_than_the_rate_left() -> None:
    for strategy in ("ddp_overlap", "zero3_prefetch", "zbv"):
        plain = mt.simulate(strategy, num_layers=16, global_batch_size=32)
        again = mt.simulate(strategy, num_layers=16, global_batch_size=32, contention=True)
        assert plain.step_time <= again.step_time <= plain.step_time / (1 - USAGE) + 1e-12


def test_the_runs_own_logs_stay_as_they_were() -> None:
    run = mt.simulate("ddp_overlap", num_layers=4, global_batch_size=8)
    before = [list(log) for log in run.logs]
    with_contention([model.log for model in run.models])
    assert [list(log) for log in run.logs] == before
