"""Bubbles and live activations of the schedules against the closed forms of their papers, exactly.

The times come from a brute-force clock of this file: every action starts when its rank is free and its inputs
are there; communication is free. tf, ti and tw are the times of a forward, an input gradient and a weight
gradient of one microbatch on one rank; a chunk takes 1/v of them, a full backward ti + tw.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain import schedules
from minitrain.search.schedules import Action, Schedule

Generator = Callable[[int, int, int], Schedule]
Key = tuple[str, int, int]


@dataclass(frozen=True)
class Times:
    """What the clock found: for each rank its first start, its last end and its work."""

    starts: list[Fraction]
    ends: list[Fraction]
    busy: list[Fraction]

    @property
    def makespan(self) -> Fraction:
        return max(self.ends)

    @property
    def span_bubbles(self) -> list[Fraction]:
        spans = zip(self.starts, self.ends, self.busy, strict=True)
        return [end - start - busy for start, end, busy in spans]


def run(schedule: Schedule, tf: int = 1, ti: int = 1, tw: int = 1) -> Times:
    """Time a schedule."""
    v = schedule.num_chunks
    cost = {kind: Fraction(time, v) for kind, time in {"F": tf, "I": ti, "W": tw, "B": ti + tw}.items()}
    waiting = [list(reversed(order)) for order in schedule.orders]
    starts: list[list[Fraction]] = [[] for _ in waiting]
    free, known = [Fraction(0)] * len(waiting), dict[Key, Fraction]()
    while any(waiting):
        ready = [r for r, left in enumerate(waiting) if left and inputs(left[-1], schedule) <= known.keys()]
        assert ready, "deadlock"
        for rank in ready:
            action = waiting[rank].pop()
            begin = max([free[rank], *(known[key] for key in inputs(action, schedule))])
            starts[rank].append(begin)
            free[rank] = begin + cost[action.kind]
            known[output(action)] = free[rank]
    busy = [sum((cost[action.kind] for action in order), Fraction(0)) for order in schedule.orders]
    return Times([begins[0] for begins in starts], free, busy)


def output(action: Action) -> Key:
    """Return what an action makes for others; an input gradient is to them the backward."""
    return ("B" if action.kind == "I" else action.kind, action.stage, action.microbatch)


def inputs(action: Action, schedule: Schedule) -> set[Key]:
    """Return what an action needs: from its own stage and from its neighbour."""
    kind, s, i = action.kind, action.stage, action.microbatch
    if kind == "F":
        return {("F", s - 1, i)} - {("F", -1, i)}
    if kind == "W":
        return {("B", s, i)}
    return {("F", s, i), ("B", s + 1, i)} - {("B", schedule.num_stages, i)}


def live(schedule: Schedule) -> list[Fraction]:
    """Return each rank's peak of live activations: from F to B, or to W where the backward is split."""
    peaks = []
    for order in schedule.orders:
        steps = {"F": 1, "B": -1, "W": -1, "I": 0}
        level, levels = 0, [0]
        for action in order:
            level += steps[action.kind]
            levels.append(level)
        peaks.append(Fraction(max(levels), schedule.num_chunks))
    return peaks


TIMES = [(1, 1, 1), (2, 3, 2), (3, 2, 1), (5, 4, 0), (1, 2, 5)]
SIZES = [(p, m) for p in range(1, 7) for m in (*range(1, 14), 18, 24)]


def multiples(*, least: int = 1) -> Iterator[tuple[int, int, int]]:
    """Yield p, m a multiple of p, and v."""
    return ((p, p * k, v) for p, k, v in product(range(1, 6), range(least, 4), range(1, 5)))


@pytest.mark.few(3)
@pytest.mark.parametrize("generator", [schedules.gpipe, schedules.one_f_one_b])
@pytest.mark.parametrize("times", TIMES)
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_turns(generator: Generator, times: tuple[int, int, int]) -> None:
    for p, m in SIZES:
        assert run(generator(p, m, 1), *times).makespan == (m + p - 1) * sum(times)


@pytest.mark.few(3)
@pytest.mark.parametrize("generator", [schedules.interleaved_1f1b, schedules.looped_bfs])
@pytest.mark.parametrize("times", TIMES)
def test_more_chunks_divide_the_bubble(generator: Generator, times: tuple[int, int, int]) -> None:
    for p, m, v in multiples():
        bubble = run(generator(p, m, v), *times).makespan - m * sum(times)
        assert bubble == Fraction((p - 1) * sum(times), v)


@pytest.mark.parametrize(("tf", "tb"), [(1, 1), (1, 2), (2, 3)])
def test_chimera_has_its_papers_time_and_memory(tf: int, tb: int) -> None:
    for p, k in product((2, 4, 6, 8, 16), (1, 2, 3)):
        schedule = schedules.chimera(p, p * k)
        timed = run(schedule, 2 * tf, 2 * tb, 0).makespan  # a stage is no half of a rank's share, as chunks are
        if k == 1:  # Li and Hoefler 2021, section 3.4: C_f = p forwards and C_b = 2p - 2 backwards are critical
            assert timed == p * tf + (2 * p - 2) * tb
        if tf == tb:  # Table 2: a share (p - 2) / (2m + p - 2) of the step is bubble
            assert timed == (2 * p * k + p - 2) * tf
        kept = [2 * alive for alive in live(schedule)]  # microbatches on stages, of which a rank holds two
        assert k > 1 or kept == [p // 2 + 1 + min(r, p - 1 - r) for r in range(p)]  # Table 2: from p / 2 + 1 to p
        assert max(kept) == p


@pytest.mark.parametrize("times", TIMES)
def test_looped_bfs_has_its_bubble_for_any_m_from_p(times: tuple[int, int, int]) -> None:
    for p, extra, v in product(range(1, 6), range(5), range(1, 4)):
        bubble = run(schedules.looped_bfs(p, p + extra, v), *times).makespan - (p + extra) * sum(times)
        assert bubble == Fraction((p - 1) * sum(times), v)


@settings(deadline=None)
@given(data=st.data(), p=st.integers(1, 6), extra=st.integers(0, 12), tf=st.integers(1, 9), ti=st.integers(1, 9))
def test_zb_h1_saves_the_weight_gradients_twice(data: st.DataObject, p: int, extra: int, tf: int, ti: int) -> None:
    tw, m = data.draw(st.integers(0, min(tf, ti))), p + extra
    bubble = run(schedules.zb_h1(p, m), tf, ti, tw).makespan - m * (tf + ti + tw)
    assert bubble == (p - 1) * (tf + ti - tw)


def test_interleaved_zero_bubble_divides_the_bubble_of_zb_h1() -> None:
    for p, m, v in multiples():
        bubble = run(schedules.interleaved_zero_bubble(p, m, v)).makespan - 3 * m
        assert bubble == Fraction(p - 1, v)


def test_zb_h2_has_no_bubble_between_first_start_and_last_end() -> None:
    for p, extra in product(range(1, 8), range(10)):
        times = run(schedules.zb_h2(p, 2 * p - 1 + extra))
        assert set(times.span_bubbles) == {0}
        assert times.makespan == 3 * (2 * p - 1 + extra) + p - 1


def test_zbv_has_no_bubble_between_first_start_and_last_end() -> None:
    for p, extra in product(range(1, 8), range(10)):
        times = run(schedules.zbv(p, 2 * p - 1 + extra))
        assert set(times.span_bubbles) == {0}
        assert times.makespan == 3 * (2 * p - 1 + extra) + Fraction(p - 1, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("unit", [1, 2, 7])
def test_dualpipe_v_run_unfused_waits_half_a_forward_for_every_rank_but_one(unit: int) -> None:
    for p, extra in product(range(1, 8), range(10)):
        m = 2 * p + extra
        makespan = run(schedules.dualpipe_v(p, m), unit, unit, unit).makespan
        assert makespan == 3 * unit * m + Fraction((p - 1) * unit, 2)


@pytest.mark.parametrize(
    ("p", "m", "makespans"),
    [(4, 8, [33, 33, 28.5, 26.25, 27, 25.5]), (8, 32, [117, 117, 106.5, 101.25, 103, 99.5])],
)
def test_the_step_times_of_the_families_compare_as_published(p: int, m: int, makespans: list[float]) -> None:
    family = [
        schedules.gpipe(p, m),
        schedules.one_f_one_b(p, m),
        schedules.interleaved_1f1b(p, m, 2),
        schedules.interleaved_1f1b(p, m, 4),
        schedules.zb_h1(p, m),
        schedules.zbv(p, m),
    ]
    assert [run(schedule).makespan for schedule in family] == makespans


def test_1f1b_keeps_a_microbatch_alive_for_every_rank_still_to_come() -> None:
    for p, m in SIZES:
        assert live(schedules.one_f_one_b(p, m)) == [min(p - r, m) for r in range(p)]


def test_interleaving_keeps_the_earlier_chunks_of_a_round_alive() -> None:
    for p, m, v in multiples():
        forms = [Fraction(min(m * v, (v - 1) * p + 2 * (p - 1 - r) + 1), v) for r in range(p)]
        assert live(schedules.interleaved_1f1b(p, m, v)) == forms


def test_breadth_first_schedules_keep_every_microbatch_alive() -> None:
    for p, m in SIZES:
        assert set(live(schedules.gpipe(p, m))) == {m}
        assert set(live(schedules.looped_bfs(p, m, 3))) == {m}


def test_zero_bubble_schedules_keep_the_same_number_alive_on_every_rank() -> None:
    for p, m in SIZES:
        assert set(live(schedules.zb_h1(p, m))) == {min(p, m)}
        assert set(live(schedules.zb_h2(p, m))) == {min(2 * p - 1, m)}
    for p, m, v in multiples():
        assert set(live(schedules.interleaved_zero_bubble(p, m, v))) == {p}


def test_zbv_keeps_no_more_alive_than_1f1b() -> None:
    for p, m in SIZES:
        peaks = live(schedules.zbv(p, m))
        assert max(peaks) == min(p, m)
        assert m < 2 * p - 1 or set(peaks) == {p}


def test_dualpipe_v_keeps_half_a_microbatch_more_alive_than_zbv() -> None:
    for p, extra in product(range(1, 8), range(6)):
        assert set(live(schedules.dualpipe_v(p, 2 * p + extra))) == {p + Fraction(1, 2)}


def test_weight_gradients_done_late_keep_the_input_gradients_memory_of_1f1b() -> None:
    """Freed at I instead of W, ZB-H1 holds exactly 1F1B's activations."""
    for p, m in SIZES:
        schedule = schedules.zb_h1(p, m)
        kinds = [[action.kind for action in order if action.kind != "W"] for order in schedule.orders]
        plain = [[action.kind for action in order] for order in schedules.one_f_one_b(p, m).orders]
        assert [["B" if kind == "I" else kind for kind in order] for order in kinds] == plain
