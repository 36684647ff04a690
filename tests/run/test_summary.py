"""Runs that keep totals and no events: the figures of a whole run, to the last float, in memory that does not grow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.engine.observers import Observer
from minitrain.errors import DeadlockError, LawError, UsageError
from minitrain.lib import Model
from minitrain.run import summary_log
from minitrain.run.result import Run

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
DIGESTS = st.sampled_from([1, 2, 3, 7, 20])


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what sets the events kept a rank."""

    def keep(most_events: int) -> None:
        monkeypatch.setattr(summary_log, "EVENTS_OF_RUN", 0)
        monkeypatch.setattr(summary_log, "EVENTS_OF_RANK", most_events)

    return keep


def require_equal(full: Run, totals: Run) -> None:
    """Require that two runs tell the same, to the last float."""
    assert totals.summary() == full.summary()
    assert totals.peak_memory_per_rank == full.peak_memory_per_rank
    assert totals.by_type == full.by_type
    assert totals.oom == full.oom
    assert [len(log) for log in totals.logs] == [len(log) for log in full.logs]
    for part in ("computing", "exposed", "overlapped", "waiting"):
        assert getattr(totals.breakdown, part).tolist() == getattr(full.breakdown, part).tolist(), part


def both(strategy: Any, **parameters: Any) -> tuple[Run, Run]:
    """Simulate with events and with totals alone."""
    return mt.simulate(strategy, **parameters), mt.simulate(strategy, log="summary", **parameters)


@pytest.mark.few(6)
@pytest.mark.parametrize("most_events", [1, 5, 100_000])
@pytest.mark.parametrize("strategy", mt.strategies())
def test_every_strategy_has_the_same_figures(strategy: str, most_events: int, eager: Callable[[int], None]) -> None:
    eager(most_events)
    require_equal(*both(strategy, **SIZES | ({"world_size": 1} if strategy == "single" else {})))


@pytest.mark.ci
@settings(max_examples=25)
@given(
    strategy=st.sampled_from(["ddp_overlap", "zero3_prefetch", "1f1b", "pp_dp", "hsdp", "zb_h1", "dualpipe_v"]),
    most_events=DIGESTS,
    layers=st.integers(1, 3),
    microbatch=st.sampled_from([1, 2]),
    slow=st.floats(0.25, 4),
)
def test_figures_do_not_depend_on_when_events_are_let_go(
    strategy: str, most_events: int, layers: int, microbatch: int, slow: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary_log, "EVENTS_OF_RUN", 0)
        patch.setattr(summary_log, "EVENTS_OF_RANK", most_events)
        sizes = {"world_size": 4, "num_layers": 8 * layers, "global_batch_size": 32}
        require_equal(*both(strategy, microbatch_size=microbatch, slowdown={1: slow}, **sizes))


async def entangled(model: Model, rounds: int = 12) -> Model:
    """Overlap collectives and messages in sub-tasks, await late, twice and out of order, and give one up."""
    other = 1 - model.rank
    weight, _ = model.load_weights(0)
    model.weights[0] = weight
    group = model.group([model.rank])
    for i in range(rounds):
        late = model.launch(model.barrier())
        sent = model.launch(model.send(other, weight, tag=i))
        received = model.launch(model.receive(other, tag=i))
        model.weights["alone"] = await model.broadcast(weight, model.rank, group=group)
        for _ in range(i % 5):
            model.forward(0, model.get_input_activation([0]), weight)
        first, second = asyncio.ensure_future(model.barrier()), asyncio.ensure_future(_again(received))
        await asyncio.gather(second, first)
        await late
        del model.weights["alone"]
        model.forward(0, model.get_input_activation([1]), weight)
        await late
        await sent
    return model


async def _again(received: Any) -> None:
    """Await a launched operation from a sub-task, twice."""
    await received
    await received


@pytest.mark.parametrize("most_events", [1, 2, 3, 10])
def test_sub_tasks_and_launched_operations_keep_their_rows(most_events: int, eager: Callable[[int], None]) -> None:
    eager(most_events)
    require_equal(*both(entangled, world_size=2, num_layers=1, global_batch_size=2, check=False))


async def gives_up(model: Model) -> Model:
    """Cancel a wait for a collective that the others still complete."""
    model.weights[0], _ = model.load_weights(0)
    if model.rank == 0:
        waiting = asyncio.ensure_future(model.barrier())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    else:
        model.forward(0, model.get_input_activation([0]), model.weights[0])
        await model.barrier()
    for _ in range(5):
        model.forward(0, model.get_input_activation([0]), model.weights[0])
        await model.barrier()
    return model


@pytest.mark.parametrize("most_events", [1, 3])
def test_an_operation_that_was_given_up_is_counted_all_the_same(most_events: int, eager: Callable[[int], None]) -> None:
    eager(most_events)
    require_equal(*both(gives_up, world_size=2, num_layers=1, global_batch_size=1, check=False))


async def lonely(model: Model, steps: int = 1000) -> Model:
    """Compute for long without ever waiting."""
    model.weights[0], _ = model.load_weights(0)
    for _ in range(steps):
        model.forward(0, model.get_input_activation([0]), model.weights[0])
        assert list.__len__(model.log._rows) <= 10 * 10
    return model


async def talkative(model: Model, steps: int = 300) -> Model:
    """Meet for long without ever computing."""
    for _ in range(steps):
        await model.barrier()
        await model.launch(model.barrier())
        assert list.__len__(model.log._rows) <= 11 * 10
    return model


@pytest.mark.parametrize("strategy", [lonely, talkative])
def test_the_rows_kept_do_not_grow_with_the_events(strategy: Any, eager: Callable[[int], None]) -> None:
    eager(10)
    run = mt.simulate(strategy, world_size=2, num_layers=1, global_batch_size=2, check=False, log="summary")
    assert run.num_events >= 1200
    assert not any(list.__len__(log._rows) for log in run.logs)  # type: ignore[attr-defined]


def test_noisy_durations_take_no_place_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.run.analysis.breakdown._MOST_DURATIONS", 2)
    require_equal(*both("1f1b", slowdown={1: 1.1, 2: 1.3, 3: 0.7}, **SIZES))


def test_by_type_counts_and_times_every_event() -> None:
    run = mt.simulate("zero1", hardware=mt.FixedPredictor(forward=1, backward=2, all_gather=0.1), **SIZES)
    assert run.by_type["forward"] == (32, 32.0)
    assert run.by_type["backward"] == (32, 64.0)
    assert run.by_type["all_gather"].seconds == pytest.approx(3.2)
    assert sum(total.num_events for total in run.by_type.values()) == run.num_events
    assert list(run.by_type) == sorted(run.by_type)


def test_a_saved_run_has_the_same_totals_by_type(tmp_path: Path) -> None:
    run = mt.simulate("zero1", **SIZES)
    run.save(tmp_path / "run.jsonl")
    assert mt.load_run(tmp_path / "run.jsonl").by_type == run.by_type


def test_out_of_memory_is_told_as_ever() -> None:
    full, totals = both("ddp", world_size=2, num_layers=32, global_batch_size=512, hardware="l40s_48g_pcie8")
    assert totals.oom is not None
    require_equal(full, totals)
    with pytest.raises(mt.OutOfMemoryError, match="out of memory on rank"):
        mt.simulate(
            "ddp",
            world_size=2,
            num_layers=32,
            global_batch_size=512,
            hardware="l40s_48g_pcie8",
            log="summary",
            strict_memory=True,
        )


async def untrained(model: Model) -> Model:
    """Do nothing."""
    return model


async def stuck(model: Model) -> Model:
    """Wait for a message that nobody sends, after many events."""
    for _ in range(10):
        await model.barrier()
    if model.rank:
        await model.receive(0, tag="never")
    return model


def test_laws_and_deadlocks_are_found_as_ever(eager: Callable[[int], None]) -> None:
    eager(2)
    with pytest.raises(LawError, match="layer 0 has no final weight"):
        mt.simulate(untrained, log="summary", **SIZES)
    with pytest.raises(DeadlockError, match="receive from rank 0 with tag 'never'"):
        mt.simulate(stuck, log="summary", **SIZES)


READERS: dict[str, Callable[[Run], Any]] = {
    "events": lambda run: run.events,
    "an event": lambda run: run.models[0].log[0],
    "a slice": lambda run: run.models[0].log[:2],
    "iteration": lambda run: list(run.logs[0]),
    "timeline": lambda run: run.timeline,
    "figure": lambda run: run.figure(),
    "explain": lambda run: run.explain(),
    "save": lambda run: run.save("unwritten"),
    "write_html": lambda run: run.write_html("unwritten"),
    "write_chrome_trace": lambda run: run.write_chrome_trace("unwritten"),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_needs_events_is_refused(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = mt.simulate("ddp", log="summary", **SIZES)
    with pytest.raises(UsageError, match=r'none of the 41 events of rank 0.*simulate with log="full"'):
        READERS[reader](run)
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_words() -> None:
    run = mt.simulate("ddp", log="summary", **SIZES)
    assert set(run._repr_mimebundle_()) == {"text/plain", "text/html"}
    assert repr(run.models[0].log) == "<log of rank 0: 41 events, not kept>"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fold", True),
        ("contention", True),
        ("strict", True),
        ("numerics", "numpy"),
        ("memory_by_kind", True),
        ("observers", [Observer()]),
    ],
)
def test_what_needs_every_event_is_not_simulated_with_totals(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f'log="summary" does not go with {name}; leave one out'):
        mt.simulate("ddp", log="summary", **{name: value}, **SIZES)


def test_an_unknown_log_is_refused() -> None:
    with pytest.raises(UsageError, match='log must be "full" or "summary", got \'none\''):
        mt.simulate("ddp", log="none", **SIZES)


@pytest.mark.usefixtures("in_this_process")
def test_comparisons_and_sweeps_take_totals() -> None:
    assert (
        mt.compare(["ddp", "1f1b"], log="summary", **SIZES).summary() == mt.compare(["ddp", "1f1b"], **SIZES).summary()
    )
    with_totals, full = (
        mt.sweep("ddp", [{"num_layers": 4}], executor=None, world_size=2, global_batch_size=4, log=log).rows()
        for log in ("summary", "full")
    )
    assert [row | {"log": ""} for row in with_totals] == [row | {"log": ""} for row in full]
