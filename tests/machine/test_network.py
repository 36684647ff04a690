"""One network tier: the exact values of the specification, derived operations, the choice of a tier."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import UsageError
from minitrain.machine import FlatTopology, Network, load_config, select_tier

SIZE = 50331648
H100 = load_config("specified_h100_80g_nvl8").networks


def tier(size: int = 8, **changes: object) -> Network:
    rows = {"p2p": (1.0, None), "reduce_scatter": (1.0, -1.0), "all_gather": (1.0, -1.0), "all_reduce": (2.0, -1.0)}
    fields = {"bandwidth": 100.0, "efficiency": 0.5, "size": size, "latency": 1e-5, "ops": rows, **changes}
    return Network(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("network", "op", "num_ranks", "seconds"),
    [
        (H100[0], "all_reduce", 8, 0.00020358326153846153),
        (H100[0], "all_gather", 8, 0.00018207401025641026),
        (H100[1], "p2p", 2, 0.0011384810666666668),
    ],
)
def test_the_specified_times_are_met_to_the_last_float(
    network: Network, op: str, num_ranks: int, seconds: float
) -> None:
    assert network.time(op, SIZE, num_ranks) == seconds


def test_a_ring_moves_n_minus_1_nths_of_the_bytes() -> None:
    assert tier().time("all_gather", 8e9, 8) == 1e-5 + 7e9 / 50e9
    assert tier().time("all_reduce", 8e9, 8) == 1e-5 + 14e9 / 50e9


def test_a_message_costs_the_same_whatever_number_of_ranks_is_given() -> None:
    assert tier().time("p2p", 1e9, 2) == tier().time("p2p", 1e9, 1) == tier().time("p2p", 1e9, 64)


def test_a_row_of_p2p_with_an_offset_counts_two_ranks() -> None:
    network = tier(ops={"p2p": (1.0, 1.0)})
    assert network.time("p2p", 1e9, 64) == 1e-5 + 1.5e9 / 50e9


def test_broadcast_is_priced_by_the_all_gather_row() -> None:
    assert tier().time("broadcast", SIZE, 8) == tier().time("all_gather", SIZE, 8)


def test_all_to_all_is_its_share_of_bytes_at_the_message_rate_plus_one_latency() -> None:
    assert tier().time("all_to_all", 8e9, 8) == tier().time("p2p", 7e9, 2) == 1e-5 + 7e9 / 50e9


def test_a_barrier_is_one_latency() -> None:
    assert tier().time("barrier", 0, 8) == 1e-5


def test_a_tier_may_name_a_row_of_its_own_for_a_derived_operation() -> None:
    mesh = load_config("mi300x_192g_8").network(8)
    assert mesh.time("all_to_all", 8e9, 8) < mesh.time("p2p", 7e9, 2)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"])
def test_a_collective_of_one_rank_lasts_0(op: str) -> None:
    assert tier().time(op, SIZE, 1) == 0.0


def test_an_unknown_operation_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"not 'gossip'; use one of p2p, .*all_to_all, barrier"):
        tier().time("gossip", 1, 2)
    with pytest.raises(UsageError, match="not 'all_gather'"):
        tier(ops={}).time("broadcast", 1, 2)


def test_negative_sizes_and_no_ranks_are_refused() -> None:
    for size in (-1, math.nan):
        with pytest.raises(UsageError, match=r"number of bytes >= 0, not .* \(all_reduce\)"):
            tier().time("all_reduce", size, 2)
    with pytest.raises(UsageError, match="all_reduce needs at least one rank, not 0"):
        tier().time("all_reduce", 1, 0)


@given(st.integers(2, 10**6), st.floats(0, 1e12), st.floats(0, 1e12))
def test_more_bytes_never_take_less_time(num_ranks: int, first: float, second: float) -> None:
    small, large = sorted((first, second))
    for op in ("all_reduce", "all_gather", "p2p", "all_to_all"):
        assert 1e-5 <= tier().time(op, small, num_ranks) <= tier().time(op, large, num_ranks)


@pytest.mark.parametrize(("world_size", "size"), [(1, 8), (8, 8), (9, 65536), (65536, 65536)])
def test_a_run_gets_the_smallest_tier_that_spans_it(world_size: int, size: int) -> None:
    assert select_tier(H100, world_size).size == size
    assert select_tier(tuple(reversed(H100)), world_size).size == size


def test_too_large_a_world_is_told_the_largest_tier() -> None:
    with pytest.raises(UsageError, match=r"world_size \(65537\) .* largest spans 65536 ranks; use at most 65536"):
        load_config("specified_h100_80g_nvl8").network(65537)
    with pytest.raises(UsageError, match="largest spans 0 ranks"):
        select_tier([], 1)


def test_a_world_without_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="world_size must be at least 1, not 0"):
        select_tier(H100, 0)


def test_the_flat_topology_prices_everything_on_its_tier() -> None:
    flat = FlatTopology(H100[1])
    price = flat.collective("all_gather", SIZE, [3, 1])
    assert (price.seconds, price.algorithm, price.tier) == (H100[1].time("all_gather", SIZE, 2), None, H100[1])
    assert flat.p2p(SIZE, 0, 1).seconds == 0.0011384810666666668
    assert flat.collective("all_gather", SIZE, (5,)).seconds == 0.0


def test_each_further_rank_of_a_ring_through_hosts_takes_its_latency() -> None:
    hosts = tier(latency_per_rank=1e-3)
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        assert hosts.time(op, 8e9, 5) == pytest.approx(tier().time(op, 8e9, 5) + 4e-3, rel=1e-12)
    assert hosts.time("p2p", 8e9, 2) == tier().time("p2p", 8e9, 2)
    assert hosts.time("all_reduce", 8e9, 1) == 0


def test_a_group_along_some_axes_of_a_torus_has_their_links_alone() -> None:
    torus = tier(512, torus=3, latency=0.0)
    for num_ranks, num_axes in ((8, 1), (64, 2), (512, 3)):
        ring = 8e9 * (num_ranks - 1) / num_ranks
        assert torus.time("all_gather", 8e9, num_ranks) == pytest.approx(ring / (num_axes / 3 * 50e9), rel=1e-12)
    assert torus.time("p2p", 8e9, 2) == tier(512, latency=0.0).time("p2p", 8e9, 2)  # one link, to a neighbour
    assert torus.of_slice(64).time("all_gather", 8e9, 64) == pytest.approx(8e9 * 63 / 64 / 50e9, rel=1e-12)
