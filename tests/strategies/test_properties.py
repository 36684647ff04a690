"""What every shipped strategy does for any sizes, on any loop, in any order of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import StrategyError
from minitrain.lib import Model

Loops = Callable[[int], Callable[[], asyncio.AbstractEventLoop]]
CORE = ["single", "ddp", "zero1", "zero2", "zero3", "gpipe", "1f1b"]


@st.composite
def programs(draw: Any) -> tuple[str, dict[str, Any]]:
    """Draw a strategy and sizes that are legal for it."""
    name = draw(st.sampled_from(CORE))
    world_size = 1 if name == "single" else draw(st.integers(1, 6))
    share = draw(st.integers(1, 5))
    sizes = {
        "world_size": world_size,
        "num_layers": draw(st.integers(1, 3)) * world_size,
        "global_batch_size": share * world_size,
        "microbatch_size": draw(st.none() | st.integers(1, share)),
        "hardware": draw(st.sampled_from(["h100_80g_nvl8", "a100_80g", "l40s_48g_pcie8"])),
    }
    return name, sizes


@given(programs())
def test_final_weights_are_complete_and_one_step_on(program: tuple[str, dict[str, Any]]) -> None:
    name, sizes = program
    run = mt.simulate(name, check=False, **sizes)
    for layer in range(sizes["num_layers"]):
        final = [model.final_weights[layer] for model in run.models if layer in model.final_weights]
        assert {weight.step for weight in final} == {1}
        assert frozenset().union(*(weight.shards for weight in final)) == frozenset(range(final[0].num_shards))
    Model.check(run.models)


@given(programs())
def test_every_sample_passes_every_layer_exactly_once_and_is_in_every_update(
    program: tuple[str, dict[str, Any]],
) -> None:
    name, sizes = program
    run = mt.simulate(name, **sizes)
    samples, events = list(range(sizes["global_batch_size"])), run.events
    for typ in ("forward", "backward"):
        for layer in range(sizes["num_layers"]):
            passed = [s for e in events if (e.typ, e.layer) == (typ, layer) for s in e.samples]
            assert sorted(passed) == samples
    assert all(sorted(event.samples) == samples for event in events if event.typ == "update")


@given(programs())
def test_computing_communicating_and_waiting_add_up_to_the_step_time(program: tuple[str, dict[str, Any]]) -> None:
    name, sizes = program
    run = mt.simulate(name, **sizes)
    split = run.breakdown
    total = split.computing + split.exposed + split.waiting
    assert total.tolist() == pytest.approx([run.step_time] * sizes["world_size"], rel=1e-12)
    assert 0 <= run.bubble_fraction <= 1
    assert 0 <= run.exposed_comm_fraction <= 1


@given(programs())
def test_events_of_a_rank_follow_one_another_and_the_clock_ends_the_last(
    program: tuple[str, dict[str, Any]],
) -> None:
    name, sizes = program
    strategy = partial(mt.strategies()[name], overlap_messages=False) if name in ("gpipe", "1f1b") else name
    run = mt.simulate(strategy, **sizes)
    for model, log in zip(run.models, run.logs, strict=True):
        assert all(after.time >= before.end for before, after in zip(log, list(log)[1:], strict=False))
        assert log[-1].end == model.time <= run.last_clock
        assert not any([*store] for store in model.storage()[2:]), "nothing dead is left in the stores"
        assert all(
            e.recomputed is False and e.rank == model.rank and e.awaited in (None, i + 1) for i, e in enumerate(log)
        )


@given(programs(), st.integers(0, 2**32))
def test_the_order_of_tasks_never_shows_in_the_logs(
    shuffling: Loops, program: tuple[str, dict[str, Any]], seed: int
) -> None:
    name, sizes = program
    plain, shuffled = mt.simulate(name, **sizes), mt.simulate(name, loop_factory=shuffling(seed), **sizes)
    assert plain == shuffled
    assert [list(log) for log in plain.logs] == [list(log) for log in shuffled.logs]


@settings(max_examples=25)
@given(programs())
def test_another_event_loop_gives_the_same_log(program: tuple[str, dict[str, Any]]) -> None:
    uvloop = pytest.importorskip("uvloop")
    name, sizes = program
    plain, other = mt.simulate(name, **sizes), mt.simulate(name, loop_factory=uvloop.new_event_loop, **sizes)
    assert plain.summary() == other.summary()
    assert [list(log) for log in plain.logs] == [list(log) for log in other.logs]


@settings(max_examples=25)
@given(programs())
def test_a_saved_run_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, program: tuple[str, dict[str, Any]]
) -> None:
    name, sizes = program
    run = mt.simulate(name, **sizes)
    path: Path = tmp_path_factory.getbasetemp() / "run.jsonl"
    run.save(path)
    assert mt.load_run(path) == run
    assert mt.load_run(path).summary() == run.summary()


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("single", {}, r"world_size \(4\) must be 1 for single; use 1"),
        (
            "ddp",
            {"global_batch_size": 6},
            r"global_batch_size \(6\) must be a multiple of world_size \(4\) for ddp; use 4",
        ),
        ("zero1", {"global_batch_size": 3}, r"\(3\) must be a multiple of world_size \(4\) for zero1; use 4(\n|$)"),
        ("zero2", {"global_batch_size": 9}, r"for zero2; use 8 or 12"),
        ("zero3", {"global_batch_size": 9}, r"for zero3; use 8 or 12"),
        (
            "gpipe",
            {"num_layers": 30},
            r"num_layers \(30\) must be a multiple of world_size \(4\) for gpipe; use 28 or 32",
        ),
        ("1f1b", {"num_layers": 3}, r"num_layers \(3\) must be a multiple of world_size \(4\) for 1f1b; use 4"),
        ("1f1b", {"global_batch_size": 9}, r"global_batch_size \(9\) must be a multiple"),
        ("gpipe", {"global_batch_size": 9}, r"global_batch_size \(9\) must be a multiple"),
        ("gpipe", {"microbatch_size": 9}, r"microbatch_size must be an integer of 1\.\.8 for gpipe, got 9"),
        ("ddp", {"microbatch_size": 0}, r"microbatch_size must be an integer of 1\.\.2 for ddp, got 0"),
        ("ddp", {"microbatch_size": 1.0}, r"must be an integer of 1\.\.2 for ddp, got 1\.0"),
        ("zero2", {"microbatch_size": True}, r"must be an integer of 1\.\.2 for zero2, got True"),
    ],
)
def test_what_a_strategy_needs_is_said_with_a_remedy(name: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        mt.simulate(name, **{"world_size": 4, "num_layers": 4, "global_batch_size": 8, **sizes})


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_uneven_microbatches_are_allowed_where_a_size_is_given(name: str) -> None:
    run = mt.simulate(name, world_size=4, num_layers=4, global_batch_size=7, microbatch_size=3)
    assert {len(event.samples) for event in run.events if event.typ == "forward"} == {3, 1}
