"""The generators: legal for every size they accept, equal to known orders, clear about sizes they refuse."""

import copy
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain import schedules
from minitrain.errors import UsageError
from minitrain.search.schedules import Action, Schedule, validate

Generator = Callable[[int, int, int], Schedule]

ONE_STAGE: list[Generator] = [schedules.gpipe, schedules.one_f_one_b, schedules.zb_h1, schedules.zb_h2]
IN_ROUNDS: list[Generator] = [schedules.interleaved_1f1b, schedules.interleaved_zero_bubble]
V_SHAPED: list[Generator] = [schedules.zbv, schedules.dualpipe_v]

ranks = st.integers(1, 7)
microbatches = st.integers(1, 24)
chunks = st.integers(1, 4)


def check(schedule: Schedule, p: int, m: int, v: int) -> None:
    """Assert that a schedule is legal and has the sizes it was asked for."""
    validate(schedule)
    sizes = schedule.num_ranks, schedule.num_stages, schedule.num_microbatches, schedule.num_chunks
    assert sizes == (p, p * v, m, v)


def text(schedule: Schedule) -> list[str]:
    """Return each rank's order, one line a rank."""
    return [" ".join(map(str, order)) for order in schedule.orders]


# Orders of torch 2.13.0 for 2 ranks and 4 microbatches; 1F1B as that release runs it.
TORCH_ORDERS = [
    (
        schedules.gpipe(2, 4),
        "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3",
        "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3",
    ),
    (
        schedules.one_f_one_b(2, 4),
        "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3",
        "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3",
    ),
    (
        schedules.interleaved_1f1b(2, 4, 2),
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ),
    (
        schedules.looped_bfs(2, 4, 2),
        "0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 2B3 2B2 2B1 2B0 0B3 0B2 0B1 0B0",
        "1F0 1F1 1F2 1F3 3F0 3F1 3F2 3F3 3B3 3B2 3B1 3B0 1B3 1B2 1B1 1B0",
    ),
    (
        schedules.interleaved_zero_bubble(2, 4, 2),
        "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3",
        "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3",
    ),
    (
        schedules.zbv(2, 4),
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3",
    ),
    (
        schedules.dualpipe_v(2, 4),
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3",
        "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3",
    ),
]


@pytest.mark.parametrize(("schedule", "rank_0", "rank_1"), TORCH_ORDERS, ids=lambda item: getattr(item, "name", ""))
def test_an_order_that_torch_offers_equals_torchs(schedule: Schedule, rank_0: str, rank_1: str) -> None:
    assert text(schedule) == [rank_0, rank_1]


def test_zb_h1_delays_weight_gradients_more_on_later_ranks() -> None:
    assert text(schedules.zb_h1(3, 4)) == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3",
    ]


def test_zb_h2_warms_up_with_two_forwards_for_every_rank_after() -> None:
    assert text(schedules.zb_h2(2, 4)) == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3",
    ]


def test_zb_h1_is_the_interleaved_zero_bubble_schedule_of_one_chunk() -> None:
    assert schedules.zb_h1(4, 8) == schedules.interleaved_zero_bubble(4, 8, 1)


@settings(max_examples=30)
@given(p=st.integers(1, 5), m=st.integers(1, 20))
def test_chimera_is_legal_for_even_numbers(p: int, m: int) -> None:
    schedule = schedules.chimera(2 * p, 2 * m)
    validate(schedule)
    assert (schedule.num_stages, schedule.num_chunks, schedule.copies) == (2 * p, 2, 2)
    with pytest.raises(UsageError, match=rf"num_ranks \({2 * p + 1}\) must be even for chimera.*use {2 * p + 2}"):
        schedules.chimera(2 * p + 1, 2 * m)
    with pytest.raises(UsageError, match=r"num_microbatches .* must be even for chimera"):
        schedules.chimera(2 * p, 2 * m - 1)


def test_chimera_draws_the_papers_figure() -> None:
    down = ["0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1", "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1"]
    up = ["1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3", "0F2 0F3 3F0 3B0 3F1 3B1 0B2 0B3"]
    assert text(schedules.chimera(4, 4)) == [*down, *up]


def test_dualpipe_v_fuses_forwards_with_backwards() -> None:
    fused = [cell for cell in schedules.dualpipe_v(4, 8).rows[1] if len(cell) > 1]
    assert len(fused) == 6
    assert all([action.kind for action in cell] == ["F", "B"] for cell in fused)


@settings(deadline=None, max_examples=30)
@given(p=ranks, rounds=st.integers(1, 4), v=chunks)
def test_interleaved_pairs_are_the_order_after_one_more_forward(p: int, rounds: int, v: int) -> None:
    paired, alone = (schedules.interleaved_1f1b(p, rounds * p, v, in_pairs=pairs) for pairs in (True, False))
    check(paired, p, rounds * p, v)
    cells = [[cell for cell in row if cell] for row in paired.rows]
    assert all(len({action.microbatch for action in cell}) == len(cell) for row in cells for cell in row)
    num_fused = [sum(len(cell) == 2 for cell in row) for row in cells]
    first = [[action.kind for action in order].index("B") for order in alone.orders]
    # a rank begins backward after one forward more than its warm-up has, which is in the order that has no pairs
    assert num_fused == [max(0, rounds * p * v - forwards) for forwards in first]


@settings(deadline=None)
@given(generator=st.sampled_from(ONE_STAGE), p=ranks, m=microbatches)
def test_a_schedule_of_one_stage_a_rank_is_legal_for_any_size(generator: Generator, p: int, m: int) -> None:
    check(generator(p, m, 1), p, m, 1)


@settings(deadline=None)
@given(p=ranks, m=microbatches, v=chunks)
def test_looped_bfs_is_legal_for_any_size(p: int, m: int, v: int) -> None:
    check(schedules.looped_bfs(p, m, v), p, m, v)


@settings(deadline=None)
@given(generator=st.sampled_from(IN_ROUNDS), p=ranks, m=st.integers(1, 48), v=chunks)
def test_an_interleaved_schedule_is_legal_or_names_sizes_that_are(generator: Generator, p: int, m: int, v: int) -> None:
    try:
        check(generator(p, m, v), p, m, v)
    except UsageError as error:
        assert m % (m // p)
        below, above = map(int, str(error).rpartition("use ")[2].split(" or "))
        assert below < m < above
        check(generator(p, below, v), p, below, v)
        check(generator(p, above, v), p, above, v)


@settings(deadline=None)
@given(p=ranks, m=microbatches)
def test_zbv_is_legal_for_any_size(p: int, m: int) -> None:
    check(schedules.zbv(p, m), p, m, 2)


@settings(deadline=None)
@given(p=ranks, extra=st.integers(0, 12))
def test_dualpipe_v_is_legal_from_two_microbatches_a_rank(p: int, extra: int) -> None:
    check(schedules.dualpipe_v(p, 2 * p + extra), p, 2 * p + extra, 2)


@settings(deadline=None)
@given(p=ranks, v=chunks)
def test_interleaved_schedules_are_placed_in_a_loop(p: int, v: int) -> None:
    for generator in [*IN_ROUNDS, schedules.looped_bfs]:
        assert generator(p, p, v).placement == {stage: stage % p for stage in range(p * v)}


@pytest.mark.parametrize("generator", V_SHAPED)
def test_v_shaped_schedules_come_back_to_the_rank_they_start_from(generator: Generator) -> None:
    assert generator(3, 6, 2).placement == {0: 0, 1: 1, 2: 2, 3: 2, 4: 1, 5: 0}


@pytest.mark.parametrize("generator", [*ONE_STAGE, *IN_ROUNDS, *V_SHAPED, schedules.looped_bfs])
@pytest.mark.parametrize("sizes", [(0, 4, 1), (2, 0, 1), (2, 4, 0), (2, -1, 1)])
def test_a_count_below_one_is_refused(generator: Generator, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match=r"\(-?\d\) must be a whole number of 1 or more for"):
        generator(*sizes)


def test_a_count_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(UsageError, match=r"num_microbatches \(4.0\) must be a whole number"):
        schedules.gpipe(2, 4.0)  # type: ignore[arg-type]  # the fault under test


@pytest.mark.parametrize("generator", ONE_STAGE)
def test_a_schedule_of_one_stage_a_rank_names_one_for_more(generator: Generator) -> None:
    with pytest.raises(UsageError, match=r"num_chunks \(2\) must be 1 for \w+; use \w+ for several"):
        generator(2, 4, 2)


@pytest.mark.parametrize("generator", V_SHAPED)
def test_a_v_shaped_schedule_takes_two_chunks(generator: Generator) -> None:
    with pytest.raises(UsageError, match=r"num_chunks \(3\) must be 2 for \w+; use interleaved_zero_bubble"):
        generator(2, 4, 3)


@pytest.mark.parametrize("generator", IN_ROUNDS)
def test_microbatches_that_cut_into_unequal_rounds_are_refused(generator: Generator) -> None:
    with pytest.raises(UsageError, match=r"\(11\) must be a multiple .* = 2, for \w+; use 10 or 12"):
        generator(4, 11, 2)


def test_too_few_microbatches_for_dualpipe_v_are_refused() -> None:
    with pytest.raises(UsageError, match=r"\(5\) must be at least the number of stages \(6\) .* use 6 or more"):
        schedules.dualpipe_v(3, 5)


@given(kind=st.sampled_from("FBIW"), stage=st.integers(0, 999), microbatch=st.integers(0, 999))
def test_an_action_survives_its_text_form(kind: schedules.Kind, stage: int, microbatch: int) -> None:
    action = Action(kind, stage, microbatch)
    assert Action.from_text(str(action)) == action


@pytest.mark.parametrize("bad", ["", "F0", "0F", "0X0", "0 F0", "0F0F", "-1F0", "1234567890F0", "٣F0", "0f0"])
def test_a_text_of_another_form_is_no_action(bad: str) -> None:
    with pytest.raises(UsageError, match="is no action; write stage"):
        Action.from_text(bad)


def test_an_action_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="kind must be one of F, B, I, W, not 'X'"):
        Action("X", 0, 0)  # type: ignore[arg-type]  # the fault under test


@pytest.mark.parametrize(("stage", "microbatch"), [(-1, 0), (0, -1)])
def test_a_negative_stage_or_microbatch_is_refused(stage: int, microbatch: int) -> None:
    with pytest.raises(UsageError, match="are counted from 0"):
        Action("F", stage, microbatch)


@pytest.mark.parametrize("number", [True, 1.5, "0", None])
def test_what_is_no_whole_number_is_no_stage(number: object) -> None:
    with pytest.raises(UsageError, match="are counted from 0, got"):
        Action("F", number, 0)  # type: ignore[arg-type]  # the fault under test


@pytest.mark.parametrize("rows", [-1, None, "0F0", [[1]], [("0F0",)], ((("0F0",),),)])
def test_a_schedule_of_something_else_than_actions_is_refused(rows: object) -> None:
    with pytest.raises(UsageError, match=r"rows of a Schedule must be one a rank, of cells.*Schedule\.from_csv text"):
        Schedule(rows)  # type: ignore[arg-type]  # the fault under test


@pytest.mark.parametrize(
    "make",
    [
        lambda: Schedule((), copies=-1),
        lambda: Schedule.from_csv(-1),  # type: ignore[arg-type]  # the fault under test, here and below
        lambda: Schedule.from_orders(-1),  # type: ignore[arg-type]
        lambda: Schedule.from_orders([[1]]),  # type: ignore[list-item]
        lambda: Action.from_text(3),  # type: ignore[arg-type]
        lambda: Action([], 0, 0),  # type: ignore[arg-type]
    ],
)
def test_other_ways_to_a_schedule_refuse_other_types_too(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match="must be"):
        make()


@pytest.mark.parametrize("generator", [schedules.gpipe, schedules.zbv, schedules.zb_1p, schedules.chimera])
def test_a_schedule_that_no_memory_holds_is_refused_at_once(generator: Callable[..., Schedule]) -> None:
    rule = r"num_ranks x num_microbatches x num_chunks must be at most (4194304|262144) for \w+, got 1000.* x 4 x "
    with pytest.raises(UsageError, match=rule):
        generator(10**30, 4)


def test_schedules_are_equal_if_their_rows_are() -> None:
    schedule = schedules.gpipe(2, 2)
    assert schedule == Schedule(schedule.rows, "another name")
    assert hash(schedule) == hash(Schedule(schedule.rows, "another name"))
    assert schedule != schedules.one_f_one_b(2, 2)


def test_a_schedule_shows_its_name_and_sizes() -> None:
    assert repr(schedules.zbv(2, 4)) == "Schedule('zbv': 2 ranks, 4 stages, 4 microbatches)"


def test_a_schedule_can_be_copied_and_pickled() -> None:
    schedule = schedules.dualpipe_v(2, 4)
    for twin in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert (twin, twin.name, twin.orders) == (schedule, schedule.name, schedule.orders)


def test_a_schedule_without_ranks_has_no_sizes() -> None:
    empty = Schedule(())
    assert (empty.num_ranks, empty.num_stages, empty.num_microbatches, empty.num_chunks) == (0, 0, 0, 0)
