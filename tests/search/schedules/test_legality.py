"""What validate refuses: the first illegal action, with its place and the reason."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain import schedules
from minitrain.errors import StrategyError
from minitrain.search.schedules import Action, Schedule, validate


def refuse(*orders: str) -> StrategyError:
    """Return the error of a schedule written as one text a rank."""
    with pytest.raises(StrategyError, match=r"rank|missing|never run") as caught:
        validate(Schedule.from_orders([map(Action.from_text, order.split()) for order in orders]))
    return caught.value


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (("0F0 0B0", "1B0 1F0"), "rank 1, position 0: 1B0 comes before 1F0; move it after that"),
        (("0F0 0B0", "1I0 1F0 1W0"), "rank 1, position 0: 1I0 comes before 1F0; move it after that"),
        (("0F0 0W0 0I0",), "rank 0, position 1: 0W0 comes before 0I0; move it after that"),
        (("0F0 0B0", "2F0 1B0"), "rank 1, position 1: 1B0 needs 1F0, which is missing; add it"),
        (("0F0 0B0 0F0",), "rank 0, position 2: 0F0 comes a second time; each action runs once"),
        (("0F0 0B0 0B0",), "rank 0, position 2: 0B0 comes a second time; each action runs once"),
        (("0F0 0B0 0I0",), "rank 0, position 2: 0I0 comes beside 0B0; a backward is either one B, or"),
        (("0F0 0B0 0W0",), "rank 0, position 2: 0W0 comes beside 0B0; a backward is either one B, or"),
        (("0F0 0I0 0B0",), "rank 0, position 2: 0B0 comes beside 0I0; a backward is either one B, or"),
        (("0F0 0B0", "1F0 0F0"), "rank 1, position 1: 0F0 works on a stage of rank 0; a stage lives on one"),
    ],
)
def test_an_illegal_action_is_named_with_its_place(orders: Sequence[str], message: str) -> None:
    error = refuse(*orders)
    assert str(error).startswith(message)
    assert message.startswith(f"rank {error.rank}, position {error.position}: {error.action} ")


@pytest.mark.parametrize(
    ("orders", "missing"),
    [
        (("0F0 0F1 0B0 0B1", "1F0 1B0"), "1F1"),
        (("0F0 0F1 0B0",), "0B1"),
        (("0F0 0I0",), "0W0"),
        (("0F0 0F2 0B0 0B2",), "0F1"),
        (("0F0 0B0", "2F0 2B0"), "1F0"),
        (("999999999F0 999999999B0",), "0F0"),
        (("0F999999999 0B999999999",), "0F0"),
    ],
)
def test_a_missing_action_is_named(orders: Sequence[str], missing: str) -> None:
    error = refuse(*orders)
    assert str(error).startswith(f"{missing} is missing: every stage")
    assert str(error.action) == missing


def test_a_missing_action_is_named_with_the_rank_that_lacks_it() -> None:
    assert refuse("0F0 0F1 0B0 0B1", "1F0 1B0").rank == 1


def test_a_rank_without_actions_is_refused() -> None:
    with pytest.raises(StrategyError, match="rank 1 has no action"):
        validate(Schedule.from_csv("0F0,0B0\n\n1F0,1B0"))


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (("0F0 1F1 1B1", "1F0 0F1 1B0 0B1 0B0"), "rank 1, position 4: 0B0 works on a microbatch that rank 0 has of"),
        (("0F0 1F1 1B1 0B0", "1F0 0F1 0B1 0F0 1B0"), "rank 1, position 3: 0F0 works on a microbatch that rank 0 has"),
        (("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"), r"stage 0 lives on 1 ranks \(0\), and must on each of 2 that have"),
    ],
)
def test_a_microbatch_goes_through_one_of_two_copies(orders: Sequence[str], message: str) -> None:
    validate(schedules.chimera(2, 2))
    schedule = Schedule.from_orders([map(Action.from_text, order.split()) for order in orders], copies=2)
    with pytest.raises(StrategyError, match=message):
        validate(schedule)


def test_a_schedule_without_ranks_is_refused() -> None:
    with pytest.raises(StrategyError, match="has no rank"):
        validate(Schedule(()))


def test_ranks_that_wait_for_one_another_are_listed() -> None:
    error = refuse("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    assert str(error) == (
        "the order can never run: rank 0, position 1: 0B0 waits for 1B0 or 1I0; rank 1, position 1: 1F1 waits for 0F1"
    )
    assert [str(action) for action in error.stuck] == ["0B0", "1F1"]
    assert (error.rank, error.position, error.action) == (0, 1, error.stuck[0])


def test_a_rank_that_waits_for_itself_is_refused() -> None:
    error = refuse("0F0 1F0 0B0 1B0")
    assert str(error) == "the order can never run: rank 0, position 2: 0B0 waits for 1B0 or 1I0"


def test_a_backward_order_against_the_forward_order_can_run() -> None:
    validate(schedules.looped_bfs(3, 5, 2))


def test_mixed_full_and_split_backwards_can_run() -> None:
    validate(Schedule.from_csv("0F0,0F1,0B0,0I1,0W1\n1F0,1I0,1F1,1B1,1W0"))


def can_run(orders: Sequence[Sequence[Action]], num_stages: int) -> bool:
    """Say by trial whether all actions can be done, in each rank's order, each once its inputs are."""
    left = [list(order) for order in orders]
    done: set[str] = set()
    progress = True
    while progress:
        progress = False
        for order in left:
            if order and all(done & alternatives for alternatives in inputs(order[0], num_stages)):
                done.add(str(order.pop(0)))
                progress = True
    return not any(left)


def inputs(action: Action, num_stages: int) -> list[set[str]]:
    """Return what an action waits for: of each set, one."""
    s, i = action.stage, action.microbatch
    if action.kind == "F":
        return [{f"{s - 1}F{i}"}] if s else []
    if action.kind == "W":
        return [{f"{s}I{i}"}]
    above = [{f"{s + 1}B{i}", f"{s + 1}I{i}"}] if s + 1 < num_stages else []
    return [{f"{s}F{i}"}, *above]


BASES = [
    schedules.gpipe(3, 3),
    schedules.one_f_one_b(3, 4),
    schedules.interleaved_1f1b(2, 4, 2),
    schedules.interleaved_zero_bubble(2, 4, 2),
    schedules.zb_h2(3, 5),
    schedules.zbv(3, 5),
    schedules.dualpipe_v(2, 4),
    schedules.chimera(4, 6),
]


@settings(deadline=None, max_examples=300)
@given(base=st.sampled_from(BASES), data=st.data())
def test_validate_accepts_exactly_the_shuffles_that_can_run(base: Schedule, data: st.DataObject) -> None:
    orders = [list(order) for order in base.orders]
    for _ in range(data.draw(st.integers(1, 3))):
        order = data.draw(st.sampled_from(orders))
        a, b = data.draw(st.tuples(*2 * [st.integers(0, len(order) - 1)]))
        order.insert(b, order.pop(a))
    shuffled = Schedule.from_orders(orders, copies=base.copies)
    if can_run(orders, base.num_stages):
        validate(shuffled)
    else:
        with pytest.raises(StrategyError, match=r"comes before|can never run"):
            validate(shuffled)
