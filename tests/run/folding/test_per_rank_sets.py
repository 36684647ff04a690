"""Sets of integers that differ between ranks, held against plain sets of every rank."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.run.folding.attempt import DivergesError, FoldAttempt
from minitrain.run.folding.per_rank_values import PerRankInt, PerRankSet, per_rank
from minitrain.tensors.index_sets import span

FOLD = FoldAttempt({"a": 3, "b": 4}, frozenset())


def _members(values: PerRankSet, a: int, b: int) -> set[int]:
    """Return the set of the rank with coordinates a and b."""
    coordinates = {"a": a, "b": b}
    moved = [value if isinstance(value, int) else _value(value, coordinates) for value in values]
    assert len(moved) == len(values) == len(set(moved))
    return set(moved)


def _value(each: PerRankInt, coordinates: dict[str, int]) -> int:
    return each.const + sum(slope * coordinates[axis] for axis, slope in each.slopes.items())


PIECES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=4)
SLOPES = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(-12, 12).filter(bool))
RANKS = [(a, b) for a in range(3) for b in range(4)]


@given(PIECES, SLOPES, st.sets(st.sampled_from(["a", "b"])))
def test_a_union_over_axes_is_that_of_every_rank(
    pieces: list[tuple[int, int]], slopes: dict[str, int], axes: set[str]
) -> None:
    whole = PerRankSet(FOLD, pieces, slopes)
    united = whole.union_over(axes)
    for a, b in RANKS:
        expected: set[int] = set()
        for other_a, other_b in RANKS:
            if (other_a == a or "a" in axes) and (other_b == b or "b" in axes):
                expected |= _members(whole, other_a, other_b)
        assert _members(united, a, b) == expected
    if pieces:
        every = set().union(*(_members(united, a, b) for a, b in RANKS))
        assert united.bounds() == (min(every), max(every))


@given(PIECES, PIECES, SLOPES)
def test_a_union_of_two_is_that_of_every_rank(
    left: list[tuple[int, int]], right: list[tuple[int, int]], slopes: dict[str, int]
) -> None:
    one, other = PerRankSet(FOLD, left, slopes), PerRankSet(FOLD, right, slopes)
    both = one | other
    for a, b in RANKS:
        assert _members(both, a, b) == _members(one, a, b) | _members(other, a, b)


@given(PIECES, PIECES, st.integers(1, 40))
def test_sets_that_are_the_same_for_all_compare_as_plain_sets(
    left: list[tuple[int, int]], right: list[tuple[int, int]], step: int
) -> None:
    one, other = PerRankSet(FOLD, left, {"b": step}).union_over(["b"]), PerRankSet(FOLD, right)
    assert (one == other) == (set(one) == set(other))
    assert one == frozenset(one)
    assert set(one | other) == set(one) | set(other) == set(one.union(other))
    assert all((value in one) == (value in set(one)) for value in range(-5, 200, 3))
    assert {1, 2} | other == {1, 2} | set(other)


def test_a_batch_takes_no_memory_a_sample() -> None:
    fold = FoldAttempt({"dp": 2**20}, frozenset())
    half = PerRankSet(fold, [(0, 2**10)], {"dp": 2**11})
    other = PerRankSet(fold, [(2**10, 2**11)], {"dp": 2**11})
    assert len(half.union_over(["dp"])) == 2**30
    assert (half.union_over(["dp"]) | other.union_over(["dp"])).intervals == ((0, 2**31),)
    assert half.union_over(["dp"]) == half.union_over(["dp"])
    assert 2**11 in half.union_over(["dp"])
    assert 2**10 not in half.union_over(["dp"])


def test_a_union_of_too_many_pieces_is_refused() -> None:
    fold = FoldAttempt({"dp": 2**20}, frozenset())
    with pytest.raises(DivergesError, match="more than 4096 intervals"):
        PerRankSet(fold, [(0, 1), (100, 102)], {"dp": 3}).union_over(["dp"])


def test_sets_that_move_differently_do_not_mix() -> None:
    one, other = PerRankSet(FOLD, [(0, 2)], {"a": 2}), PerRankSet(FOLD, [(0, 2)], {"b": 2})
    for work in (lambda: one | other, lambda: one == other):
        fold_error: Any = pytest.raises(DivergesError, match="part ways")
        with fold_error:
            work()
    assert one != PerRankSet(FOLD, [(0, 3)], {"b": 2})


def test_a_look_up_in_a_strided_set_is_of_one_value() -> None:
    strided = PerRankSet(FOLD, [(0, 1)], {"b": 10}).union_over(["b"])
    with pytest.raises(DivergesError, match="on some ranks only"):
        assert PerRankInt(FOLD, 0, {"a": 1}) in strided
    assert strided == PerRankSet(FOLD, [(0, 1), (10, 11), (20, 21), (30, 31)])
    assert hash(strided) == hash(frozenset({0, 10, 20, 30}))
    assert (strided | frozenset()) is strided
    assert frozenset() | strided == strided
    assert (PerRankSet(FOLD, []) | strided) == strided
    with pytest.raises(TypeError):
        strided | [1]


def test_a_large_set_is_no_key_for_a_strategy() -> None:
    fold = FoldAttempt({"dp": 2**20}, frozenset())
    large = PerRankSet(fold, [(0, 2**20)])
    with pytest.raises(DivergesError, match="more than 4096 members"):
        hash(large)
    fold.is_over = True
    assert hash(large) == hash(PerRankSet(fold, [(0, 1)], {"dp": 1}).union_over(["dp"]))


def test_sets_of_all_kinds_of_values() -> None:
    each = PerRankInt(FOLD, 3, {"a": 1})
    assert len(PerRankSet.of(FOLD, [each, each + 1])) == 2
    assert PerRankSet.of(FOLD, range(2, 6)) == {2, 3, 4, 5}
    assert PerRankSet.of(FOLD, range(0)) == frozenset()
    assert PerRankSet.of(FOLD, range(0, 6, 2)) == {0, 2, 4}
    assert len(PerRankSet.of(FOLD, span(each, each))) == 0
    assert None not in PerRankSet.of(FOLD, [1])
    assert PerRankSet.of(FOLD, [1]) & {1, 2} == {1}


# What is computed from a rank, held against the same for every rank.

Term = Any  # ("rank",), ("place", axis), a number, or (operator, left, right)

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "lt", "le", "eq", "ne", "ge")
    },
    "min": min,
    "max": max,
    "quotient": lambda left, right: divmod(left, right)[0],
    "minus": lambda left, _: -left,
    "true": lambda left, _: bool(left),
}

_TERMS = st.recursive(
    st.sampled_from([("rank",), ("place", "a"), ("place", "b")]) | st.integers(-6, 12),
    lambda terms: st.tuples(st.sampled_from(sorted(_OPERATORS)), terms, terms),
    max_leaves=8,
)


def _computed(term: Term, rank: Any, places: dict[str, Any]) -> Any:
    if isinstance(term, int):
        return term
    if term[0] == "rank":
        return rank
    if term[0] == "place":
        return places[term[1]]
    return _OPERATORS[term[0]](_computed(term[1], rank, places), _computed(term[2], rank, places))


def _outcome(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except ZeroDivisionError:
        return "division by zero"


@settings(max_examples=500)
@given(_TERMS, st.integers(1, 4), st.integers(1, 5), st.sets(st.sampled_from(["a", "b"])))
def test_what_is_computed_is_that_of_every_rank_or_refused(
    term: Term, size_a: int, size_b: int, kept: set[str]
) -> None:
    fold = FoldAttempt({"a": size_a, "b": size_b}, frozenset(kept))
    for lowest in fold.representatives():
        here = {"a": lowest // size_b, "b": lowest % size_b}
        places = {axis: per_rank(fold, here[axis], {axis: 1}) for axis in here}
        try:
            found = _outcome(lambda: _computed(term, per_rank(fold, lowest, fold.strides), places))  # noqa: B023
        except DivergesError:
            continue
        for rank in range(size_a * size_b):
            own = {"a": rank // size_b, "b": rank % size_b}
            if all(own[axis] == here[axis] for axis in here if axis not in fold.folded_sizes):
                value = _value(found, own) if isinstance(found, PerRankInt) else found
                expected = _outcome(lambda: _computed(term, rank, own))  # noqa: B023
                assert (value, type(value)) == (expected, type(expected))
