"""The CSV form of torch.distributed.pipelining: read, written back as it was, refused where it is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain import schedules
from minitrain.errors import UsageError
from minitrain.search.schedules import Action, Schedule

actions = st.builds(Action, st.sampled_from("FBIW"), st.integers(0, 20), st.integers(0, 20))
cells = st.one_of(
    st.just(()), actions.map(lambda action: (action,)), st.lists(actions, min_size=2, max_size=3).map(tuple)
)
rows = st.lists(st.lists(cells, min_size=1, max_size=9).map(tuple), min_size=1, max_size=5).map(tuple)


@given(rows=rows)
def test_any_schedule_survives_the_csv_form(rows: tuple[tuple[tuple[Action, ...], ...], ...]) -> None:
    schedule = Schedule(rows)
    again = Schedule.from_csv(schedule.to_csv())
    assert again == schedule
    assert again.to_csv() == schedule.to_csv()


# What torch 2.13.0 dumps for DualPipeV on 2 ranks with 4 microbatches, with an idle cell put in.
DUALPIPE_V = """\
0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3
,1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3
"""


def test_fused_and_idle_cells_are_written_back_as_they_were() -> None:
    assert Schedule.from_csv(DUALPIPE_V).to_csv() == DUALPIPE_V


def test_fused_cells_run_in_their_order_and_idle_cells_not_at_all() -> None:
    assert Schedule.from_csv(DUALPIPE_V).orders == schedules.dualpipe_v(2, 4).orders


def test_a_generated_schedule_is_written_without_idle_cells() -> None:
    assert schedules.one_f_one_b(2, 2).to_csv() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_lines_may_end_as_torch_ends_them() -> None:
    assert Schedule.from_csv("0F0,0B0\r\n1F0,1B0\r\n") == schedules.gpipe(2, 1)


def test_blanks_around_actions_and_empty_lines_at_the_end_mean_nothing() -> None:
    assert Schedule.from_csv(" 0F0 , 0B0\n1F0,1B0\n\n\n") == schedules.gpipe(2, 1)


def test_cells_that_communicate_are_left_out() -> None:
    text = (
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"
    )
    assert Schedule.from_csv(text) == schedules.gpipe(2, 1)


def test_a_csv_takes_the_name_it_is_given() -> None:
    assert Schedule.from_csv("0F0,0B0", name="mine").name == "mine"


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("0X0", "'0X0' is no action"),
        ("0F", "'0F' is no action"),
        ("(0F0;0B0)", "is no action"),
        ("(0F0;)OVERLAP_F_B", "'' is no action"),
        ("(0F0;1SEND_F0)OVERLAP_F_B", "'1SEND_F0' is no action"),
        ("(0F0)OVERLAP_F_B", "needs two actions or more"),
    ],
)
def test_a_cell_of_another_form_is_refused_with_its_place(cell: str, why: str) -> None:
    with pytest.raises(UsageError, match="row 1, cell 2 of the CSV: ") as caught:
        Schedule.from_csv(f"0F0,0B0\n1F0,1B0,{cell}\n")
    assert why in str(caught.value)
    assert caught.value.rank == 1


@pytest.mark.parametrize("text", ["", "\n", "\n\n"])
def test_a_text_without_rows_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="needs one row a rank, but it is empty"):
        Schedule.from_csv(text)


def test_a_text_that_is_no_csv_is_refused() -> None:
    with pytest.raises(UsageError, match="the schedule is no CSV text: field larger"):
        Schedule.from_csv('"' + 200_000 * "x")
