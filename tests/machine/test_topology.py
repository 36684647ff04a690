"""The hierarchical network: where ranks sit, which tier carries what, and the two-level algorithms."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import UsageError
from minitrain.machine import HierarchicalTopology, Network, load_config
from minitrain.machine.topology import nodes_in_rank_order

ROWS = {"p2p": (1.0, None), "reduce_scatter": (1.0, -1.0), "all_gather": (1.0, -1.0), "all_reduce": (2.0, -1.0)}
NODE = Network(100.0, 1.0, 4, 0.001, ROWS)
RACK = Network(10.0, 1.0, 16, 0.01, ROWS)
CLUSTER = Network(1.0, 1.0, 1024, 0.1, ROWS)
H100 = load_config("specified_h100_80g_nvl8")
SIZE = 50331648
GB = 1e9


def net(world_size: int = 64, placement: Sequence[int] | None = None) -> HierarchicalTopology:
    return HierarchicalTopology([CLUSTER, NODE, RACK], world_size, placement)


@pytest.mark.parametrize(
    ("source", "dest", "tier"),
    [(0, 3, NODE), (3, 4, RACK), (12, 15, NODE), (0, 15, RACK), (15, 16, CLUSTER), (63, 0, CLUSTER)],
)
def test_a_message_takes_the_smallest_tier_that_contains_its_ranks(source: int, dest: int, tier: Network) -> None:
    price = net().p2p(GB, source, dest)
    assert (price.tier, price.algorithm, price.seconds) == (tier, None, tier.time("p2p", GB, 2))


def test_a_group_within_a_node_is_priced_on_the_node() -> None:
    price = net().collective("all_reduce", GB, (4, 5, 6, 7))
    assert (price.tier, price.algorithm) == (NODE, "ring")
    assert price.seconds == 0.001 + 1.5 * GB / 100e9


def test_hierarchical_all_reduce_equals_the_hand_computed_sum() -> None:
    price = net().collective("all_reduce", 4 * GB, tuple(range(8)))
    inside = 0.001 + 3e9 / 100e9  # reduce_scatter, and again all_gather, of 4 GB over 4 ranks
    across = 0.01 + 1e9 / 10e9  # all_reduce of 1 GB over 2 nodes
    assert (price.algorithm, price.tier) == ("hierarchical", RACK)
    assert price.seconds == inside + across + inside
    assert price.seconds < RACK.time("all_reduce", 4 * GB, 8)


def test_a_collective_across_slices_stops_compute_while_hosts_meet() -> None:
    slices = replace(NODE, torus=2, processor_usage=0.5), replace(CLUSTER, latency_per_rank=0.05, processor_usage=0.02)
    copies = HierarchicalTopology(slices, 16).collective("all_reduce", GB, (0, 4, 8, 12))
    meeting = 0.1 + 3 * 0.05
    stopped = copies.seconds * (copies.usage or 0)
    assert stopped == pytest.approx(0.99 * meeting + 0.02 * (copies.seconds - meeting), rel=1e-9)
    both = HierarchicalTopology(slices, 16).collective("all_gather", GB, range(16))
    inside = slices[0].time("all_gather", GB, 4)
    across = both.seconds - inside
    stopped = both.seconds * (both.usage or 0)
    assert stopped == pytest.approx(0.5 * inside + 0.99 * meeting + 0.02 * (across - meeting), rel=1e-9)
    assert HierarchicalTopology(slices, 16).collective("all_gather", GB, range(4)).usage is None
    assert net().collective("all_gather", GB, range(16)).usage is None  # nodes of no torus


def test_hierarchical_gather_and_scatter_have_two_phases() -> None:
    inside, across = 0.001 + 3e9 / 100e9, 0.01 + 0.5e9 / 10e9
    for op in ("all_gather", "reduce_scatter"):
        price = net().collective(op, 4 * GB, tuple(range(8)))
        assert (price.seconds, price.algorithm) == (inside + across, "hierarchical")


def test_h100_all_reduce_over_two_servers_is_hierarchical() -> None:
    topology = HierarchicalTopology(H100.networks, 16)
    inner, outer = H100.networks
    ring = outer.time("all_reduce", SIZE, 16)
    expected = 0.00018207401025641026 + outer.time("all_reduce", SIZE / 8, 2) + 0.00018207401025641026
    price = topology.collective("all_reduce", SIZE, range(16))
    assert (price.seconds, price.algorithm, price.tier) == (expected, "hierarchical", outer)
    assert ring == 2e-05 + SIZE / 45e9
    assert inner.time("all_reduce", SIZE, 8) == 0.00020358326153846153


def test_a_small_collective_prefers_the_ring_with_its_single_latency() -> None:
    price = net().collective("all_reduce", 1, tuple(range(8)))
    assert (price.algorithm, price.seconds) == ("ring", RACK.time("all_reduce", 1, 8))


@pytest.mark.parametrize("ranks", [(0, 4), (0, 1, 4), (0, 1, 2, 4, 5, 8)])
def test_a_single_participant_in_a_node_leaves_only_the_ring(ranks: tuple[int, ...]) -> None:
    price = net().collective("all_reduce", 100 * GB, ranks)
    assert (price.algorithm, price.seconds) == ("ring", RACK.time("all_reduce", 100 * GB, len(ranks)))


def test_nodes_of_unequal_numbers_work_on_as_many_shares_as_the_emptiest_has_ports() -> None:
    ranks, inside = (0, 1, 2, 3, 4, 5), 0.001 + 3 / 4 * 4e9 / 100e9
    gathered, summed = (net().collective(op, 4 * GB, ranks) for op in ("all_gather", "all_reduce"))
    all_but_its_own = (1 - 2 / 6) * 4e9  # come into the node of two ranks, over two ports
    assert gathered.algorithm == summed.algorithm == "hierarchical"
    assert gathered.seconds == pytest.approx(0.01 + all_but_its_own / 2 / 10e9 + inside, rel=1e-12)
    assert summed.seconds == pytest.approx(0.01 + 2 * (1 / 2) * 4e9 / 2 / 10e9 + 2 * inside, rel=1e-12)


@pytest.mark.parametrize("op", ["broadcast", "barrier"])
def test_other_collectives_are_priced_on_the_containing_tier_alone(op: str) -> None:
    price = net().collective(op, 100 * GB, tuple(range(32)))
    assert (price.algorithm, price.tier, price.seconds) == (None, CLUSTER, CLUSTER.time(op, 100 * GB, 32))


def test_an_all_to_all_sends_inside_the_nodes_and_across_them_at_once() -> None:
    price = net().collective("all_to_all", 100 * GB, tuple(range(8)))
    across, inside = RACK.time("p2p", 50 * GB, 2), NODE.time("p2p", 3 / 8 * 100 * GB, 2)
    assert (price.algorithm, price.tier, price.seconds) == ("hierarchical", RACK, max(across, inside))
    assert price.seconds < RACK.time("all_to_all", 100 * GB, 8)


@pytest.mark.parametrize("ranks", [(0, 4), (0, 1, 4)])
def test_an_all_to_all_with_a_single_participant_in_a_node_goes_across(ranks: tuple[int, ...]) -> None:
    price = net().collective("all_to_all", GB, ranks)
    assert (price.algorithm, price.seconds) == (None, RACK.time("all_to_all", GB, len(ranks)))


def test_an_all_to_all_with_a_price_of_its_own_keeps_it() -> None:
    priced = replace(RACK, ops={**ROWS, "all_to_all": (2.0, -1.0)})
    topology = HierarchicalTopology([NODE, priced, CLUSTER], 64)
    assert topology.collective("all_to_all", GB, range(8)).seconds == priced.time("all_to_all", GB, 8)


def test_one_rank_costs_nothing() -> None:
    price = net().collective("all_reduce", GB, (63,))
    assert (price.seconds, price.algorithm, price.tier) == (0.0, None, NODE)


def test_a_placement_decides_who_sits_together() -> None:
    topology = net(8, [0, 4, 0, 4, 0, 4, 0, 4])
    assert topology.collective("all_reduce", GB, (0, 2, 4, 6)).tier is NODE
    assert topology.p2p(GB, 0, 1).tier is CLUSTER
    assert topology.node(3) == 4


def test_a_placement_in_rank_order_is_the_default() -> None:
    placed, default = net(32, [rank // 4 for rank in range(32)]), net(32)
    for ranks in ((0, 3), (3, 4), tuple(range(8)), tuple(range(32)), (0, 31)):
        assert placed.collective("all_reduce", GB, ranks) == default.collective("all_reduce", GB, ranks)


def test_a_node_reached_in_part_belongs_to_the_tier() -> None:
    odd = Network(10.0, 1.0, 6, 0.0, ROWS)
    topology = HierarchicalTopology([NODE, odd, CLUSTER], 16)
    assert [topology.p2p(1, 0, dest).tier.size for dest in (3, 7, 8)] == [4, 6, 1024]


def test_a_run_beyond_a_tier_to_be_filled_must_fill_it() -> None:
    with pytest.raises(
        UsageError, match=r"a multiple of its size \(8 ranks\), but world_size is 12; use 16 ranks, net"
    ):
        HierarchicalTopology(H100.networks, 12)
    with pytest.raises(UsageError, match="but world_size is 4; use 8 ranks"):
        HierarchicalTopology(H100.networks, 4, [0, 0, 1, 1])
    assert HierarchicalTopology(H100.networks, 4, [1, 1, 1, 1]).p2p(SIZE, 0, 3).tier.size == 8
    assert HierarchicalTopology(H100.networks, 12, may_be_unfilled=True).num_nodes == 2


def test_groups_of_a_run_need_not_fill_a_tier() -> None:
    topology = HierarchicalTopology(H100.networks, 24)
    assert topology.collective("all_reduce", SIZE, (0, 8, 16)).algorithm == "ring"
    assert topology.collective("all_reduce", SIZE, (0, 1, 8, 9)).algorithm == "hierarchical"
    assert topology.collective("barrier", 0, tuple(range(12))).tier.size == 65536
    assert topology.collective("all_reduce", SIZE, (1, 3, 4)).tier.size == 8


def test_messages_may_leave_a_tier_to_be_filled() -> None:
    topology = HierarchicalTopology(H100.networks, 16)
    assert topology.p2p(SIZE, 7, 8).seconds == 0.0011384810666666668


@pytest.mark.parametrize("ranks", [(), (1, 1), [2, 3, 2]])
def test_a_group_holds_each_rank_once(ranks: Sequence[int]) -> None:
    with pytest.raises(UsageError, match="at least one rank, each once"):
        net().collective("all_reduce", 1, ranks)


@pytest.mark.parametrize(("ranks", "wrong"), [((0, 64), 64), ((-1, 3), -1)])
def test_ranks_outside_the_run_are_named(ranks: tuple[int, int], wrong: int) -> None:
    with pytest.raises(UsageError, match=rf"rank {wrong} must be in 0\.\.63"):
        net().collective("all_reduce", 1, ranks)
    with pytest.raises(UsageError, match=rf"rank {wrong} must be in 0\.\.63"):
        net().p2p(1, *ranks)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ([0, 0], "the node of each of the 4 ranks, not of 2"),
        ([0, 1, 2, -1], r"nodes must be in 0\.\.255, the largest tier's, not -1"),
        ([0, 1, 2, 256], r"nodes must be in 0\.\.255, the largest tier's, not 256"),
        ([0, 0.5, 1, 1], "must be a sequence of whole node numbers"),
        (7, "must be a sequence of whole node numbers"),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(placement: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        net(4, placement)  # type: ignore[arg-type]


def test_a_placement_must_not_crowd_a_node() -> None:
    with pytest.raises(UsageError, match=r"at most 4 ranks, .* puts 5 ranks on node 2; spread them"):
        net(6, [2, 2, 2, 2, 2, 0])


def test_a_run_too_large_for_the_largest_tier_is_refused() -> None:
    with pytest.raises(UsageError, match="largest spans 1024 ranks"):
        net(1025)


def test_a_list_that_changes_is_priced_anew() -> None:
    topology, ranks = net(), [0, 1]
    assert topology.collective("all_reduce", GB, ranks).tier is NODE
    ranks.append(60)
    assert topology.collective("all_reduce", GB, ranks).tier is CLUSTER


def test_remembered_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.machine.topology._MOST_RECENT", 2)
    topology = net()
    groups = [(rank, rank + 1) for rank in range(5)]
    first = [topology.collective("all_reduce", GB, group) for group in groups]
    assert [topology.collective("all_reduce", GB, group) for group in groups] == first


def test_a_million_ranks_are_looked_at_once() -> None:
    world_size = 2**20
    topology = HierarchicalTopology(load_config("h200_141g_nvl8").networks, world_size)
    ranks = tuple(range(world_size))
    first = topology.collective("all_reduce", SIZE, ranks)
    start = time.process_time()
    assert all(topology.collective("all_reduce", SIZE, ranks) == first for _ in range(100))
    assert time.process_time() - start < 0.1  # 100 hashes of such a tuple take longer than a second


@given(st.lists(st.integers(0, 63), min_size=1, unique=True), st.floats(0, 1e12), st.randoms())
def test_the_price_is_the_better_one_and_ignores_the_order_of_ranks(
    ranks: list[int], size_bytes: float, random: object
) -> None:
    topology = net()
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        price = topology.collective(op, size_bytes, ranks)
        assert 0 <= price.seconds <= price.tier.time(op, size_bytes, len(ranks))
        assert (price.algorithm == "hierarchical") == (price.seconds < price.tier.time(op, size_bytes, len(ranks)))
        assert topology.collective(op, size_bytes, sorted(ranks)) == price


@given(st.lists(st.integers(0, 63), min_size=2, unique=True), st.floats(1, 1e12))
def test_no_collective_is_faster_than_what_must_come_into_each_node(ranks: list[int], size_bytes: float) -> None:
    topology, num_ranks = net(), len(ranks)
    counts = Counter(topology.node(rank) for rank in ranks)
    for op in ("all_gather", "reduce_scatter"):
        price = topology.collective(op, size_bytes, ranks)
        port = price.tier.bandwidth * 1e9
        least = max((1 - count / num_ranks) * size_bytes / (count * port) for count in counts.values())
        assert price.seconds >= least * (1 - 1e-12)


@given(st.sets(st.integers(0, 63), min_size=1), st.integers(0, 63), st.floats(0, 1e12))
def test_one_more_rank_makes_nothing_cheaper_unless_the_emptiest_of_several_nodes_gets_a_port(
    ranks: set[int], another: int, size_bytes: float
) -> None:
    topology = net()
    before, after = (topology.shape(sorted(group)).split for group in (ranks, ranks | {another}))
    if after.least > before.least and before.num_nodes > 1:
        return
    for op in ("all_gather", "reduce_scatter", "all_reduce"):
        few, many = (topology.collective(op, size_bytes, sorted(group)) for group in (ranks, ranks | {another}))
        assert many.seconds >= few.seconds * (1 - 1e-12)


@given(world_size=st.integers(1, 3000), node_size=st.sampled_from([1, 2, 4, 8, 16, 64, 72, 4096]))
def test_a_run_lies_evenly_in_its_nodes_and_leaves_neighbours_together(world_size: int, node_size: int) -> None:
    nodes = nodes_in_rank_order(world_size, node_size)
    held = Counter(nodes.node(rank) for rank in range(world_size))
    block, fewest = gcd(world_size, node_size, 8), -(-world_size // node_size)
    assert list(held) == list(range(len(held)))
    assert max(held.values()) <= node_size
    assert max(held.values()) - min(held.values()) <= block
    assert all(count % block == 0 for count in held.values())
    assert len(held) == fewest or (nodes.are_equal and 8 * nodes.most >= 7 * node_size)


@pytest.mark.parametrize(("world_size", "held"), [(512, [64] * 8), (504, [72] * 7), (500, [72] * 6 + [68]), (65, [65])])
def test_racks_of_72_hold_equal_numbers_where_these_nearly_fill_them(world_size: int, held: list[int]) -> None:
    nodes = nodes_in_rank_order(world_size, 72)
    assert list(Counter(map(nodes.node, range(world_size))).values()) == held


TIERS = st.tuples(st.integers(1, 9), st.integers(1, 40), st.just(2048)).map(
    lambda sizes: [Network(1000.0 / size, 1.0, size, 0.1, ROWS) for size in sizes]
)


@given(
    tiers=TIERS,
    first=st.integers(0, 60),
    step=st.integers(1, 20),
    count=st.integers(1, 60),
    spare=st.integers(0, 99),
    turned=st.booleans(),
)
def test_a_range_is_priced_as_its_ranks_one_by_one(
    tiers: list[Network], first: int, step: int, count: int, spare: int, turned: bool
) -> None:
    world_size = first + step * (count - 1) + 1 + spare
    ranks = range(first, first + step * count, step)
    topology = HierarchicalTopology(tiers, world_size)
    price = topology.collective("all_reduce", GB, ranks[::-1] if turned else ranks)
    assert price == topology.collective("all_reduce", GB, tuple(ranks))


@given(
    tiers=TIERS,
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    within=st.sets(st.integers(0, 3)),
    placed=st.none() | st.randoms(use_true_random=False),
)
def test_one_group_of_each_shape_stands_for_all_copies(
    tiers: list[Network], sizes: list[int], within: set[int], placed: Any
) -> None:
    strides = [prod(sizes[place + 1 :]) for place in range(len(sizes))]
    axes = list(zip(strides, sizes, strict=True))
    group = sums(axis for place, axis in enumerate(axes) if place in within)
    across = [axis for place, axis in enumerate(axes) if place not in within]
    node_size = min(tier.size for tier in tiers)
    places = placed and placed.sample(range(2048 // node_size * node_size), prod(sizes))
    placement = None if places is None else [place // node_size for place in places]
    topology = HierarchicalTopology(tiers, prod(sizes), placement)

    def price(ranks: Sequence[int]) -> object:
        return topology.collective("all_gather", GB, ranks)

    found = topology.one_of_each_shape(group, across)
    copies = [tuple(rank + shift for rank in group) for shift in sums(across)]
    assert found[0] == group
    assert {tuple(ranks) for ranks in found} <= set(copies)
    assert {price(ranks) for ranks in found} == {price(copy) for copy in copies}


def sums(axes: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    found = [0]
    for stride, size in axes:
        found = [known + stride * place for known in found for place in range(size)]
    return tuple(sorted(found))


def test_copies_of_a_million_ranks_are_compared_by_arithmetic() -> None:
    topology = HierarchicalTopology(load_config("h200_141g_nvl8").networks, 2**20)
    start = time.process_time()
    assert topology.one_of_each_shape(range(0, 2**20, 8), [(1, 8)]) == [range(0, 2**20, 8)]
    assert topology.one_of_each_shape(range(8), [(8, 2**17)]) == [range(8)]
    assert topology.one_of_each_shape(range(6), [(6, 2**17)]) == [range(6), range(6, 12)]
    assert time.process_time() - start < 0.1
