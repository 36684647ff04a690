"""One switch for all pipelines: the same order takes the same time, whoever runs it, hidden or waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import minitrain as mt
from minitrain.search.schedules import Action, Schedule
from minitrain.tensors import BLOCK_SIZE, HIDDEN_SIZE

SHIPPED: dict[str, tuple[Callable[..., Schedule], int]] = {
    "gpipe": (mt.schedules.gpipe, 1),
    "1f1b": (mt.schedules.one_f_one_b, 1),
    "zb_h1": (mt.schedules.zb_h1, 1),
    "zb_h2": (mt.schedules.zb_h2, 1),
    "interleaved_1f1b": (mt.schedules.interleaved_1f1b, 2),
    "looped_bfs": (mt.schedules.looped_bfs, 2),
    "interleaved_zero_bubble": (mt.schedules.interleaved_zero_bubble, 2),
    "zbv": (mt.schedules.zbv, 2),
    "dualpipe_v": (mt.schedules.dualpipe_v, 2),
}
SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 16, "global_batch_size": 16}
MACHINES: dict[str, Any] = {
    "short messages": "h100_80g_nvl8",
    "messages of half a stage": mt.FixedPredictor(
        forward=1, backward=2, backward_input=1, backward_weight=1, send=2, recv=2, update=1
    ),
    "messages longer than a stage": mt.FixedPredictor(
        forward=1, backward=2, backward_input=1, backward_weight=1, send=7, recv=7
    ),
}
KINDS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}


def simulate(strategy: Any, hardware: Any, **options: Any) -> mt.Run:
    """Run a strategy with microbatches of 2 samples."""
    return mt.simulate(strategy, **SIZES, hardware=hardware, microbatch_size=2, **options)


def order_of(run: mt.Run, num_stages: int) -> Schedule:
    """Read the order of each rank off its log: every stage has the same number of layers."""
    layers = run.num_layers // num_stages
    orders = []
    for log in run.logs:
        passes = [event for event in log if event.typ in KINDS]
        actions = [Action(KINDS[e.typ], e.layer // layers, min(e.samples) // 2) for e in passes]  # type: ignore[arg-type, operator]
        orders.append(tuple(dict.fromkeys(actions)))
    return Schedule.from_orders(orders, "read")


@pytest.mark.few(4)
@pytest.mark.parametrize("hardware", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("overlap", [True, False], ids=["hidden", "waited for"])
def test_the_same_order_takes_the_same_time_shipped_and_from_a_schedule(
    name: str, hardware: Any, overlap: bool
) -> None:
    shipped = simulate(name, hardware, overlap_messages=overlap)
    order = order_of(shipped, 4 * SHIPPED[name][1])
    again = simulate(mt.from_schedule(order), hardware, overlap_messages=overlap)
    assert again.step_time == shipped.step_time


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_order_is_that_of_its_generator(name: str) -> None:
    generator, num_chunks = SHIPPED[name]
    shipped = order_of(simulate(name, "h100_80g_nvl8"), 4 * num_chunks)
    assert shipped.orders == generator(4, 8, num_chunks).orders


@pytest.mark.parametrize("hardware", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("name", "options"), [("1f1b", {}), ("interleaved_1f1b", {"num_chunks": 2})])
@pytest.mark.parametrize("overlap", [True, False], ids=["hidden", "waited for"])
def test_megatron_takes_the_time_of_its_pipeline_alone(
    name: str, options: dict[str, Any], hardware: Any, overlap: bool
) -> None:
    megatron = simulate("megatron", hardware, pp=4, overlap_messages=overlap, **options)
    assert megatron.step_time == simulate(name, hardware, overlap_messages=overlap).step_time


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["pp_dp", "pp_zero1", "pp_zero3", "pp_hsdp", *SHIPPED])
def test_messages_are_hidden_by_default_and_waiting_for_them_takes_longer(name: str) -> None:
    usual, waiting = simulate(name, "h100_80g_nvl8"), simulate(name, "h100_80g_nvl8", overlap_messages=False)
    assert usual.step_time < waiting.step_time
    assert usual.step_time == simulate(name, "h100_80g_nvl8", overlap_messages=True).step_time


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("overlap", [True, False])
def test_free_messages_leave_the_bubble_of_the_papers(name: str, overlap: bool) -> None:
    hardware = mt.FixedPredictor(forward=1, backward=2)
    for p, m in ((1, 3), (2, 2), (4, 4), (4, 9), (8, 16)):
        run = mt.simulate(
            name,
            world_size=p,
            num_layers=p,
            global_batch_size=m,
            microbatch_size=1,
            hardware=hardware,
            overlap_messages=overlap,
        )
        assert run.step_time == 3 * (m + p - 1)
        assert run.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))


def most_activations(run: mt.Run, rank: int) -> float:
    """Return the most activations that a rank's store held, in microbatches of one layer."""
    held = most = 0.0
    for change in run.memory_journals[rank]:
        if change.kind == "activations":
            held += change.elements
            most = max(most, held)
    return most / (2 * HIDDEN_SIZE * BLOCK_SIZE)


@pytest.mark.parametrize("overlap", [True, False])
def test_1f1b_holds_activations_of_one_microbatch_for_every_stage_to_come(overlap: bool) -> None:
    run = simulate("1f1b", "h100_80g_nvl8", overlap_messages=overlap, memory_by_kind=True)
    layers = 4
    for rank in range(4):
        # What the last forward has made is there for a moment beside the inputs of all layers.
        assert most_activations(run, rank) == layers * (4 - rank) + 1


def ways() -> Sequence[tuple[str, dict[str, Any]]]:
    """Return pipelines to train in every way that checks them."""
    return [(name, {}) for name in (*SHIPPED, "chimera", "pp_dp", "pp_zero1", "pp_zero3", "pp_hsdp")]


SEVERAL_STAGES_A_RANK = {"chimera", "interleaved_1f1b", "interleaved_zero_bubble", "dualpipe_v", "looped_bfs", "zbv"}
"""Schedules in which a message may come while its rank works for another of its stages."""


@pytest.mark.few(6)
@pytest.mark.parametrize(("name", "options"), ways())
@pytest.mark.parametrize("overlap", [True, False])
def test_every_pipeline_is_proved_and_strict_both_ways(name: str, options: dict[str, Any], overlap: bool) -> None:
    options = {"overlap_messages": overlap, **options}
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
    assert mt.prove(name, **sizes, **options)
    strict, usual = (mt.simulate(name, **sizes, strict=flag, fold=False, **options) for flag in (True, False))
    assert strict.step_time == usual.step_time
    assert strict.held_outside is not None
    waiting = strict.held_outside.waiting_messages  # that have come before their rank asks for them
    assert usual.peak_memory <= strict.peak_memory <= usual.peak_memory + waiting
    assert strict.peak_memory == usual.peak_memory or name in SEVERAL_STAGES_A_RANK


@pytest.mark.few(2)
@pytest.mark.parametrize("buffer", [1, None])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1", "pp_dp"])
def test_hidden_messages_never_deadlock(name: str, buffer: int | None) -> None:
    for world_size, size in ((2, 1), (4, 1), (4, 2), (8, 1)):
        options: dict[str, Any] = {"microbatch_size": size, "p2p_buffer": buffer}
        mt.simulate(name, world_size=world_size, num_layers=8, global_batch_size=16, **options)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["pp_dp", "pp_zero1", "pp_zero3", "pp_hsdp", "interleaved_1f1b", "zbv"])
@pytest.mark.parametrize("overlap", [True, False])
def test_replicas_of_a_pipeline_fold(name: str, overlap: bool) -> None:
    options: dict[str, Any] = {"pp": 2, "overlap_messages": overlap}
    sizes: dict[str, Any] = {"world_size": 16, "num_layers": 8, "global_batch_size": 64}
    folded, full = (mt.simulate(name, **sizes, **options, fold=fold) for fold in (True, False))
    assert folded.logs == full.logs
