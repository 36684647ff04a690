"""The graph of a run gives its clocks again, to the last float, for its own durations and for those of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.operations import LAUNCHED, STRIDE, TIME
from minitrain.run.analysis.retiming import (
    Values,
    collectives,
    make_graph,
    messages,
    program_of_logs,
    retime,
    retimed_events,
    seconds_of,
)
from minitrain.run.analysis.timeline import Floats, Timeline
from minitrain.run.folding.expansion import FoldedRun

Move = tuple[str, int]
_BATCH = 8


async def make(model: mt.Model, kind: str, number: int, weights: Any, activations: Any, under_way: list[Any]) -> None:
    """Make one move of a rank."""
    activations[0] = model.get_input_activation(range((model.rank + number) % 3 + 1))
    if kind == "compute":
        activations[1] = model.forward(0, activations[0], weights[0])
    elif kind == "gather":
        under_way.append(model.launch(model.all_gather(weights[1], 1)))
    elif kind == "chain" and model.world_size > 1:
        gathered = model.launch(model.all_gather(weights[1], 1))
        after, before = ((model.rank + step) % model.world_size for step in (1, -1))
        under_way.append(model.launch(model.send(after, gathered, tag=-1)))
        under_way.append(model.launch(model.receive(before, tag=-1)))
    elif kind == "meet":
        await model.barrier()
    elif kind == "await" and under_way:
        await under_way.pop(number % len(under_way))
    elif kind == "ring" and model.world_size > 1:
        after, before = ((model.rank + step) % model.world_size for step in (1, -1))
        under_way.append(model.launch(model.send(after, activations[0], tag=number)))
        under_way.append(model.launch(model.receive(before, tag=number)))


def program(moves: list[Move]) -> Any:
    """Return a strategy that computes, sends around and gathers, and awaits what it launched in any order."""

    async def strategy(model: mt.Model) -> mt.Model:
        weights, states, activations, *_ = model.storage()
        for layer, shard in ((0, (0, 1)), (1, (model.rank, model.world_size))):
            weights[layer], states[layer] = model.load_weights(layer, *shard)
        under_way: list[Any] = []
        for kind, number in moves:
            await make(model, kind, number, weights, activations, under_way)
        for work in under_way:
            await work
        return model

    return strategy


moves = st.lists(
    st.tuples(st.sampled_from(["compute", "compute", "gather", "meet", "await", "ring", "chain"]), st.integers(0, 5)),
    max_size=25,
)
sizes: dict[str, Any] = {"num_layers": 2, "global_batch_size": _BATCH, "check": False}


def require_own_clocks(run: Any) -> None:
    """Require that the graph of a run gives the clocks of its log."""
    program, prices = program_of_logs(run.class_logs, run.ranks_of_class_logs)
    times = retime(program, seconds_of(prices))[:, 0]
    for moments, log, model in zip(program.ranks, run.class_logs, run.class_models, strict=True):
        assert times[moments.begin].tolist() == log._rows[TIME::STRIDE]
        assert times[moments.submitted].tolist() == log._rows[LAUNCHED::STRIDE]
        assert times[moments.clock] == model.time


def by_the_rules(line: Timeline, durations: Floats) -> tuple[Floats, Floats]:
    """Return when events are submitted, and begin, by going over all rules until nothing moves any more."""
    made, given = line.handed_on
    sends, receives = messages(line)
    members, places = collectives(line)
    groups = [group.tolist() for group in np.split(members, places[1:-1]) if len(group)]
    own: list[list[int]] = [np.flatnonzero((line.rank == r) & (line.index < i)).tolist() for r, i in _places(line)]
    over = [
        [other for other in earlier if line.computes[other] or line.awaited[other] <= line.index[event]]
        for event, earlier in enumerate(own)
    ]
    moves = [
        [other for other in earlier if not line.computes[event] and line.stream[other] == line.stream[event]]
        for event, earlier in enumerate(own)
    ]
    for maker, event in zip(made.tolist(), given.tolist(), strict=True):
        moves[event].append(maker)
    submitted, begin = [0.0] * line.num_events, [0.0] * line.num_events
    while True:
        end = [time + lasts for time, lasts in zip(begin, durations.tolist(), strict=True)]
        now = [max([0.0, *(submitted[e] for e in own[k]), *(end[e] for e in over[k])]) for k in range(len(begin))]
        then = [max([submitted[k], *(end[e] for e in moves[k])]) for k in range(len(begin))]
        for send, receive in zip(sends.tolist(), receives.tolist(), strict=True):
            then[receive] = max(then[receive], begin[send])
        for group in groups:
            latest = max(then[event] for event in group)
            then = [latest if event in group else time for event, time in enumerate(then)]
        if (now, then) == (submitted, begin):
            return np.array(now), np.array(then)
        submitted, begin = now, then


def _places(line: Timeline) -> list[tuple[int, int]]:
    return list(zip(line.rank.tolist(), line.index.tolist(), strict=True))


@settings(max_examples=60)
@given(moves, st.integers(1, 4))
def test_a_graph_gives_the_clocks_of_its_log(moves: list[Move], world_size: int) -> None:
    require_own_clocks(mt.simulate(program(moves), world_size=world_size, **sizes))


@settings(max_examples=30)
@given(moves, st.integers(1, 4), st.lists(st.floats(1.0, 5000.0), min_size=2, max_size=3))
def test_any_program_is_priced_as_by_separate_simulations(
    moves: list[Move], world_size: int, speeds: list[float]
) -> None:
    vary = {"networks[0].bandwidth": speeds, "mem1.GBps": speeds[::-1], "mem2.GBps": speeds}
    priced = mt.price(program(moves), vary=vary, world_size=world_size, **sizes)
    assert priced.notes == ()
    assert priced.summary() == [run.summary() for run in priced]


@settings(max_examples=30)
@given(moves, st.integers(1, 4), st.data())
def test_other_durations_give_the_times_of_the_rules(moves: list[Move], world_size: int, data: Any) -> None:
    run = mt.simulate(program(moves), world_size=world_size, **sizes)
    (recorded, prices), line = program_of_logs(run.logs, range(world_size)), run.timeline
    factors = data.draw(st.lists(st.floats(0.0, 3.0), min_size=len(prices), max_size=len(prices)))
    durations = seconds_of(prices) * np.array(factors)[:, None]
    factor_of = dict(zip(map(id, prices), factors, strict=True))
    of_events = [price.seconds * factor_of[id(price)] for log in run.logs for price in log._rows[3::STRIDE]]  # type: ignore[attr-defined]
    times = retime(recorded, durations)[:, 0]
    found = by_the_rules(line, np.array(of_events))
    np.testing.assert_array_equal(times[recorded.begin], found[1])
    np.testing.assert_array_equal(times[recorded.submitted], found[0])
    for ours, theirs in zip(retimed_events(make_graph(line), np.array(of_events)), found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", sorted(mt.strategies()))
def test_a_graph_of_classes_gives_the_clocks_of_a_folded_run(name: str) -> None:
    world_size = 1 if name == "single" else 8
    run = mt.simulate(name, world_size=world_size, num_layers=16, global_batch_size=16, fold=True)
    assert isinstance(run, FoldedRun)
    require_own_clocks(run)


def test_few_rows_are_enough_and_give_the_same_times() -> None:
    run = mt.simulate("1f1b", world_size=4, num_layers=4, global_batch_size=8)
    program, prices = program_of_logs(run.logs, range(4))
    durations = seconds_of(prices) * np.array([[1.0, 0.5, 2.0]])
    wanted = program.clock
    np.testing.assert_array_equal(retime(program, durations, wanted), retime(program, durations)[wanted])


def test_ranks_that_do_the_same_share_their_moments() -> None:
    one, many = (mt.simulate("ddp", world_size=size, num_layers=4, global_batch_size=size) for size in (2, 16))
    lengths = [len(program_of_logs(run.logs, range(run.world_size))[0].code) for run in (one, many)]
    assert lengths[0] == lengths[1]


def test_what_comes_after_another_moment_is_the_latest_of_both() -> None:
    values = Values()
    first = values.of((0, 0))
    second = values.of((first, 1))
    other = values.of((0, 2))
    both = values.latest([second, other])
    assert values.latest([0, first, second]) == second
    assert values.latest([second, other, both]) == both
    assert values.latest([]) == 0


def test_a_log_without_its_partners_is_damaged() -> None:
    run = mt.simulate("1f1b", world_size=2, num_layers=2, global_batch_size=2)
    with pytest.raises(mt.UsageError, match="wait for one another in a circle"):
        program_of_logs(run.logs[1:], [1])
