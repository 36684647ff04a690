"""Schedules run on the real model: published times and memory, the order as written, and every ZeRO stage.

p, m and v are ranks, microbatches and stages a rank; tf, ti and tw are the times of a forward, an input gradient and a
weight gradient of one chunk, tb = ti + tw, so that a rank's whole share takes v times as long. Communication is free.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.engine.stores import Account, Store
from minitrain.operations import Event
from minitrain.search.schedules import Action, Schedule
from minitrain.tensors import Activation

Generator = Callable[[int, int, int], Schedule]
LoopFactories = Callable[[int], Callable[[], asyncio.AbstractEventLoop]]
S = mt.schedules
KINDS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
CHUNKS: dict[Generator, tuple[int, ...]] = {
    S.gpipe: (1,),
    S.one_f_one_b: (1,),
    S.interleaved_1f1b: (1, 2, 3),
    S.looped_bfs: (1, 2, 3),
    S.interleaved_zero_bubble: (1, 2, 3),
    S.zb_h1: (1,),
    S.zb_h2: (1,),
    S.zbv: (2,),
    S.dualpipe_v: (2,),
}
TIMES = [(1, 1, 1), (2, 3, 2), (3, 2, 1), (5, 4, 0)]


def units(tf: float = 1, ti: float = 1, tw: float = 1, **others: float) -> mt.FixedPredictor:
    """Return durations by hand."""
    return mt.FixedPredictor(forward=tf, backward=ti + tw, backward_input=ti, backward_weight=tw, **others)


def run(schedule: Schedule, hardware: Any = None, *, layers: int = 1, dp: int = 1, **options: Any) -> mt.Run:
    """Run a schedule with one sample a microbatch and some layers a stage."""
    return mt.simulate(
        mt.from_schedule(schedule),
        world_size=schedule.num_ranks * dp,
        num_layers=schedule.num_stages * layers,
        global_batch_size=schedule.num_microbatches * dp,
        hardware=hardware or units(),
        **options,
    )


def every_schedule(*, largest: int = 4) -> Iterator[Schedule]:
    """Yield schedules of every generator, for m a multiple of p."""
    for generator, chunks in CHUNKS.items():
        for p, k, v in product(range(1, largest + 1), (1, 2, 3), chunks):
            if generator is not S.dualpipe_v or k > 1:
                yield generator(p, p * k, v)


def actions(log: Any) -> list[Action]:
    """Read a rank's actions off its log, where a stage is a layer and a microbatch a sample."""
    return [Action(KINDS[e.typ], e.layer, *e.samples) for e in log if e.typ in KINDS]  # type: ignore[arg-type]


def test_every_rank_runs_its_actions_in_order_and_stages_on_different_ranks_alone_exchange_messages() -> None:
    for schedule in every_schedule():
        result, homes = run(schedule), schedule.placement
        assert tuple(tuple(actions(log)) for log in result.logs) == schedule.orders
        crossings = sum(homes[s] != homes[s + 1] for s in range(schedule.num_stages - 1))
        typs = Counter(event.typ for event in result.events)
        assert typs["send"] == 2 * crossings * schedule.num_microbatches
        received = {(event.tag, event.rank) for event in result.events if event.typ == "recv"}
        assert len(received) == typs["recv"]


# ---- how long it takes -----------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("generator", [S.gpipe, S.one_f_one_b])
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_turns(generator: Generator) -> None:
    for p, m in product(range(1, 6), range(1, 9)):
        times = TIMES[(p + m) % len(TIMES)]
        assert run(generator(p, m, 1), units(*times)).step_time == (m + p - 1) * sum(times)


@pytest.mark.few(1)
@pytest.mark.no_cover  # what is run here in all sizes, others run in a few
@pytest.mark.parametrize("generator", [S.interleaved_1f1b, S.looped_bfs])
def test_more_chunks_divide_the_bubble(generator: Generator) -> None:
    for p, k, v in product(range(1, 5), range(1, 4), range(1, 5)):
        times = TIMES[(p + k + v) % len(TIMES)]
        result = run(generator(p, p * k, v), units(*times))
        assert result.step_time == (p * k * v + p - 1) * sum(times)
        assert result.makespan_bubble == (p - 1) * sum(times)


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), p=st.integers(1, 6), extra=st.integers(0, 8), tf=st.integers(1, 9), ti=st.integers(1, 9))
def test_zb_h1_saves_the_weight_gradients_twice(data: st.DataObject, p: int, extra: int, tf: int, ti: int) -> None:
    tw = data.draw(st.integers(0, min(tf, ti)))
    result = run(S.zb_h1(p, p + extra), units(tf, ti, tw))
    assert result.makespan_bubble == (p - 1) * (tf + ti - tw)


@pytest.mark.few(1)
@pytest.mark.parametrize("generator", [S.zb_h2, S.zbv])
def test_zb_h2_and_zbv_wait_for_nothing_between_first_start_and_last_end(generator: Generator) -> None:
    for p, extra in product(range(1, 7), range(4)):
        v = CHUNKS[generator][0]
        result = run(generator(p, 2 * p - 1 + extra, v))
        assert result.span_bubble == 0
        assert result.makespan_bubble == p - 1


@pytest.mark.few(1)
@pytest.mark.parametrize("unit", [1, 2, 7])
def test_dualpipe_v_waits_half_a_forward_for_every_rank_but_one(unit: int) -> None:
    for p, extra in product(range(1, 6), range(4)):
        m = 2 * p + extra
        result = run(S.dualpipe_v(p, m), units(unit / 2, unit / 2, unit / 2))
        assert result.step_time == 3 * unit * m + (p - 1) * unit / 2


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("p", "m", "makespans"),
    [(4, 8, [33, 33, 28.5, 26.25, 27, 25.5]), (8, 32, [117, 117, 106.5, 101.25, 103, 99.5])],
)
@pytest.mark.parametrize("dp", [1, 2])
def test_the_step_times_of_the_families_compare_as_published(p: int, m: int, makespans: list[float], dp: int) -> None:
    family = [S.gpipe(p, m), S.one_f_one_b(p, m), S.interleaved_1f1b(p, m, 2), S.interleaved_1f1b(p, m, 4)]
    family += [S.zb_h1(p, m), S.zbv(p, m)]
    times = [1 / schedule.num_chunks for schedule in family]
    assert [run(s, units(t, t, t), dp=dp).step_time for s, t in zip(family, times, strict=True)] == makespans


def test_layers_of_a_stage_add_up() -> None:
    for schedule in (S.one_f_one_b(3, 5), S.zbv(3, 6), S.interleaved_1f1b(2, 4, 3)):
        assert run(schedule, layers=4).step_time == 4 * run(schedule).step_time


def ideal_makespan(schedule: Schedule) -> float:
    """Time a schedule on its own clock: each action starts when its rank is free and its inputs are there."""
    ends: dict[tuple[str, int, int], float] = {}
    free = [0.0] * schedule.num_ranks
    waiting = [list(order) for order in schedule.orders]
    while any(waiting):
        for rank, order in enumerate(waiting):
            if order and (needed := inputs(order[0], schedule)) <= ends.keys():
                action = order.pop(0)
                start = max([free[rank], *(ends[key] for key in needed)])
                free[rank] = start + (2 if action.kind == "B" else 1)
                kind = "B" if action.kind == "I" else action.kind
                ends[kind, action.stage, action.microbatch] = free[rank]
    return max(free)


def inputs(action: Action, schedule: Schedule) -> set[tuple[str, int, int]]:
    """Return what an action waits for."""
    if action.kind == "W":
        return set()
    neighbour = action.stage + (-1 if action.kind == "F" else 1)
    direction = "F" if action.kind == "F" else "B"
    return {(direction, neighbour, action.microbatch)} if neighbour in schedule.placement else set()


@st.composite
def legal_schedules(draw: st.DrawFn) -> Schedule:
    """Draw any legal schedule: stages anywhere, any order that can run, backwards whole or split."""
    num_ranks, num_microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    homes = [*range(num_ranks), *draw(st.lists(st.integers(0, num_ranks - 1), max_size=4))]
    homes = draw(st.permutations(homes))
    orders: list[list[Action]] = [[] for _ in range(num_ranks)]
    ready = [Action("F", 0, i) for i in range(num_microbatches)]
    while ready:
        action = ready.pop(draw(st.integers(0, len(ready) - 1)))
        kind, stage, i = action.kind, action.stage, action.microbatch
        orders[homes[stage]].append(action)
        if kind == "F" and stage + 1 < len(homes):
            ready.append(Action("F", stage + 1, i))
        elif kind in ("F", "B", "I") and (kind == "F" or stage > 0):
            backward = stage if kind == "F" else stage - 1
            ready.append(Action(draw(st.sampled_from(("B", "I"))), backward, i))
        if kind == "I":
            ready.append(Action("W", stage, i))
    return Schedule.from_orders(orders, "drawn")


@settings(max_examples=2 * settings().max_examples)
@given(schedule=legal_schedules(), layers=st.integers(1, 2), dp=st.integers(1, 2), zero=st.integers(0, 3))
def test_any_legal_order_runs_in_its_ideal_time(schedule: Schedule, layers: int, dp: int, zero: int) -> None:
    result = run(schedule, layers=layers, dp=dp, zero=zero)
    assert result.step_time == layers * ideal_makespan(schedule)
    require_every_sample_once(result)


# ---- what it holds ---------------------------------------------------------------------------------------------------


class Watched(Store[Activation]):
    """A store of activations that notes how many second layers of a two-layer stage it ever held at once.

    A stage's second input lives exactly from the stage's forward to its backward (or weight gradient).
    """

    __slots__ = ("most",)

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.most = 0

    def __setitem__(self, key: Any, value: Activation) -> None:
        super().__setitem__(key, value)
        self.most = max(self.most, sum(layer % 2 for layer, _ in self))


def live_chunks(schedule: Schedule) -> list[int]:
    """Return the most stages x microbatches that each rank kept activations of."""
    strategy, stores = mt.from_schedule(schedule), {}

    async def watched(model: mt.Model) -> mt.Model:
        model.activations = stores[model.rank] = Watched(model._account)
        await strategy(model)
        return model

    sizes: dict[str, Any] = {"num_layers": 2 * schedule.num_stages, "global_batch_size": schedule.num_microbatches}
    mt.simulate(watched, world_size=schedule.num_ranks, hardware=units(), **sizes)
    return [stores[rank].most for rank in range(schedule.num_ranks)]


def test_1f1b_keeps_a_microbatch_for_every_rank_still_to_come() -> None:
    for p, m in product(range(1, 6), range(1, 9)):
        assert live_chunks(S.one_f_one_b(p, m)) == [min(p - r, m) for r in range(p)]


def test_interleaving_keeps_the_earlier_chunks_of_a_round() -> None:
    for p, k, v in product(range(1, 5), range(1, 4), range(1, 4)):
        forms = [min(p * k * v, (v - 1) * p + 2 * (p - 1 - r) + 1) for r in range(p)]
        assert live_chunks(S.interleaved_1f1b(p, p * k, v)) == forms


def test_breadth_first_schedules_keep_every_microbatch() -> None:
    for p, m in product(range(1, 5), range(1, 8)):
        assert set(live_chunks(S.gpipe(p, m))) == {m}
        assert set(live_chunks(S.looped_bfs(p, m, 3))) == {3 * m}


def test_zero_bubble_schedules_keep_what_their_papers_say() -> None:
    for p, m in product(range(1, 6), (1, 2, 5, 9, 11)):
        assert set(live_chunks(S.zb_h1(p, m))) == {min(p, m)}
        assert set(live_chunks(S.zb_h2(p, m))) == {min(2 * p - 1, m)}
        assert max(live_chunks(S.zbv(p, m))) == 2 * min(p, m)


def test_dualpipe_v_keeps_half_a_microbatch_more_than_zbv() -> None:
    for p, extra in product(range(1, 5), range(4)):
        assert set(live_chunks(S.dualpipe_v(p, 2 * p + extra))) == {2 * p + 1}


def test_sharding_more_never_holds_more() -> None:
    for schedule in (S.one_f_one_b(2, 4), S.zbv(2, 6)):
        peaks = [run(schedule, layers=4, dp=4, zero=zero).peak_memory for zero in range(4)]
        assert peaks == sorted(peaks, reverse=True)
        assert len(set(peaks)) == 4


# ---- what it exchanges -----------------------------------------------------------------------------------------------


def events_of(result: mt.Run, typ: str) -> list[Event]:
    """Return the events of one type on rank 0."""
    return [event for event in result.logs[0] if event.typ == typ]


@pytest.mark.parametrize(
    ("zero", "counts"),
    [
        (0, {"all_reduce": 2}),
        (1, {"reduce_scatter": 2, "all_gather": 2}),
        (2, {"reduce_scatter": 2 * 4, "all_gather": 2}),
        (3, {"reduce_scatter": 2 * 4, "all_gather": 2 * 2 * 4}),
    ],
)
def test_replicas_exchange_what_their_zero_stage_says(zero: int, counts: dict[str, int]) -> None:
    result = run(S.one_f_one_b(2, 4), layers=2, dp=3, zero=zero)
    collectives = [e for e in result.logs[0] if e.typ in ("all_reduce", "reduce_scatter", "all_gather")]
    assert Counter(e.typ for e in collectives) == counts
    assert {e.group for e in collectives} == {(0, 1, 2)}


def test_messages_travel_beside_compute() -> None:
    """With a message of a tenth of a chunk, only filling and draining the pipeline pays for messages."""
    schedule = S.one_f_one_b(4, 16)
    without, with_messages = run(schedule), run(schedule, units(send=0.125))
    hops = 2 * (schedule.num_ranks - 1)  # down and up, each paid by sender and receiver
    assert with_messages.step_time < without.step_time + 6 * hops * 0.125
    assert with_messages.step_time >= without.step_time + hops * 0.125


# ---- whole training steps --------------------------------------------------------------------------------------------


def require_every_sample_once(result: mt.Run) -> None:
    """Require that each layer's forward and weight gradient saw each sample exactly once, over all ranks."""
    events = result.events
    for kinds in (("forward",), ("backward", "backward_weight")):
        seen = Counter((e.layer, s) for e in events if e.typ in kinds for s in e.samples)
        assert seen == dict.fromkeys(product(range(result.num_layers), range(result.global_batch_size)), 1)


@pytest.mark.no_cover  # what is run here in all sizes, others run in a few
def test_every_schedule_trains_on_every_sample_once_and_leaves_nothing_but_weights_and_states() -> None:
    for schedule, zero in zip(every_schedule(largest=3), cycle(range(4)), strict=False):
        result = run(schedule, layers=2, dp=2, zero=zero)
        require_every_sample_once(result)
        for model in result.models:
            held = sum(w.memory() for store in (model.weights, model.opt_states) for w in store.values())
            assert model.memory() == held


@pytest.mark.few(2)
@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("schedule", [S.interleaved_1f1b(2, 4, 2), S.zbv(2, 4), S.dualpipe_v(2, 4)], ids=repr)
def test_task_order_never_changes_the_log(schedule: Schedule, zero: int, shuffling: LoopFactories) -> None:
    logs = [
        run(schedule, "h100_80g_nvl8", layers=2, dp=2, zero=zero, loop_factory=factory).logs
        for factory in (None, *map(shuffling, range(6)))
    ]
    assert all(log == logs[0] for log in logs)


def test_a_schedule_runs_the_same_after_a_round_trip_through_csv() -> None:
    schedule = S.dualpipe_v(3, 7)
    again = Schedule.from_csv(schedule.to_csv(), schedule.name)
    assert run(again, "h100_80g_nvl8").logs == run(schedule, "h100_80g_nvl8").logs


def test_compare_shows_a_schedule_under_its_name() -> None:
    pair = [mt.from_schedule(S.zb_h2(2, 4)), mt.from_schedule(Schedule.from_csv("0F0,0B0\n1F0,1B0", "mine"))]
    result = mt.compare([*pair, "gpipe"], world_size=2, num_layers=4, global_batch_size=4)
    assert list(result.runs) == ["zb_h2", "mine", "gpipe"]
    assert not result.failed


def test_a_strategy_can_be_run_many_times_with_other_sizes() -> None:
    strategy = mt.from_schedule(S.one_f_one_b(2, 4))
    for dp, layers, size in product((1, 2), (1, 3), (1, 5)):
        sizes: dict[str, Any] = {"world_size": 2 * dp, "num_layers": 2 * layers, "global_batch_size": 4 * dp * size}
        assert mt.simulate(strategy, hardware=units(), microbatch_size=size, **sizes).step_time == 15 * layers


def test_an_illegal_schedule_is_refused_at_once() -> None:
    with pytest.raises(mt.StrategyError, match="0B0 waits for 1B0"):
        mt.from_schedule(Schedule.from_csv("0F0,1F0,0B0,1B0"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world_size": 3}, r"world_size \(3\) must be a multiple of the schedule's ranks \(2\) for zbv; use 2 or 4"),
        ({"num_layers": 6}, r"num_layers \(6\) must be a multiple of num_stages \(4\) for zbv; use 4 or 8"),
        ({"global_batch_size": 7}, r"global_batch_size \(7\) must be .* \(12\) for zbv; use 12"),
        ({"microbatch_size": 3}, r"microbatch_size \(3\) must be 2 for zbv: 2 replicas of 6 microbatches .* 24"),
        ({"zero": 4}, "zero must be a ZeRO stage, 0 to 3, for zbv, got 4"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(change: dict[str, int], message: str) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 24, **change}
    with pytest.raises(mt.StrategyError, match=message):
        mt.simulate(mt.from_schedule(S.zbv(2, 6)), **sizes)


def test_a_file_with_a_schedule_is_accepted_wherever_a_name_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(S.zb_h1(2, 4).to_csv())
    sizes: dict[str, Any] = {"world_size": 8, "workload": "tiny", "global_batch_size": 8, "platform": "nemo-h100"}
    result = mt.compare([f"{path}:tp=2,sequence_parallel=True", f"{path}:cp=2,zero=1", "megatron:pp=2"], **sizes)
    assert not result.failed
    ours = mt.simulate(str(path), **sizes, tp=2)
    assert ours.events == mt.simulate("megatron", schedule="zb_h1", pp=2, microbatch_size=1, tp=2, **sizes).events


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"none.csv cannot be read \(No such file or directory\); give the path of a schedule's CSV"),
        ("0F0,1F0,0B0,1B0", "none.csv is no schedule that can run: .*0B0 waits for 1B0"),
        ("0F0,0X0", "none.csv is no schedule that can run: .*0X0"),
    ],
)
def test_a_file_without_a_schedule_says_what_is_wrong(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(mt.StrategyError, match=message):
        mt.simulate(str(path), world_size=2, num_layers=2, global_batch_size=4)
