"""Shares by finishing time and stages by min-max partition, against every other way to divide."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.search.planning.layouts import balanced_stages, finishing_time, samples_by_finishing_time

RATES = st.lists(st.floats(0.1, 10), min_size=1, max_size=4)


@given(RATES, st.integers(1, 9))
def test_no_other_division_of_samples_is_done_sooner(rates: list[float], num_samples: int) -> None:
    clocks = [lambda count, rate=rate: rate * count for rate in rates]
    found = samples_by_finishing_time(clocks, num_samples)
    if num_samples < len(rates):
        assert found is None
        return
    assert found is not None
    others = (each for each in product(range(1, num_samples + 1), repeat=len(rates)) if sum(each) == num_samples)
    best = min(finishing_time(clocks, each) for each in others)
    assert sum(found) == num_samples
    assert finishing_time(clocks, found) == pytest.approx(best)


def test_memory_bounds_the_samples_of_a_replica() -> None:
    clocks = [float, lambda count: 10.0 * count]
    assert samples_by_finishing_time(clocks, 10, most=[4, 10]) == [4, 6]
    assert samples_by_finishing_time(clocks, 10, most=[4, 5]) is None


def slowest_stage(seconds: list[list[float]], counts: Sequence[int]) -> float:
    starts = [0, *accumulate(counts)]
    return max(sum(row[start:stop]) for row, (start, stop) in zip(seconds, pairwise(starts), strict=False))


@st.composite
def stages(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], list[float]]:
    num_stages, num_layers = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    table = st.lists(
        st.lists(st.integers(1, 9).map(float), min_size=num_layers, max_size=num_layers),
        min_size=num_stages,
        max_size=num_stages,
    )
    places = st.lists(st.integers(2, 40).map(float), min_size=num_stages, max_size=num_stages)
    return draw(table), draw(table), draw(places)


@given(stages())
def test_no_other_cut_that_fits_has_a_faster_slowest_stage(
    case: tuple[list[list[float]], list[list[float]], list[float]],
) -> None:
    seconds, held, places = case
    num_stages, num_layers = len(seconds), len(seconds[0])
    best = None
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        ends = [0, *cuts, num_layers]
        counts = [stop - start for start, stop in pairwise(ends)]
        fits = all(sum(held[stage][ends[stage] : ends[stage + 1]]) <= places[stage] for stage in range(num_stages))
        if fits and min(counts) > 0:
            slowest = slowest_stage(seconds, counts)
            best = slowest if best is None else min(best, slowest)
    found = balanced_stages(seconds, held, places)
    assert (found is None) == (best is None)
    if found is not None:
        assert sum(found) == num_layers
        assert slowest_stage(seconds, found) == best
