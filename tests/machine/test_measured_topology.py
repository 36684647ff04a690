"""Transfers priced by size: closed forms, sharing of interfaces, and rows of published measurements."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import UsageError
from minitrain.machine import HierarchicalTopology, Network, load_config
from minitrain.machine.measured_topology import MeasuredTopology
from minitrain.machine.network import TransferCurve

RING = {"p2p": (1.0, None), "reduce_scatter": (1.0, -1.0), "all_gather": (1.0, -1.0), "all_reduce": (2.0, -1.0)}
OPS = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"])


def tiers(nics: int | None = None) -> tuple[Network, Network]:
    inside = {
        op: TransferCurve(1e-5, bandwidths=((0.0, 200.0),)) for op in ("all_reduce", "all_gather", "reduce_scatter")
    }
    outside = {op: TransferCurve(5e-5, efficiency=0.8) for op in ("all_reduce", "all_gather", "reduce_scatter", "p2p")}
    return (
        Network(300, 0.8, 8, 1e-5, RING, curves=inside),
        Network(10, 0.9, 1024, 2e-5, RING, nics=nics, curves=outside),
    )


def test_a_curve_reaches_half_its_bandwidth_at_half_its_size() -> None:
    curve = TransferCurve(0.0, bandwidths=((0.0, 100.0),), half_bytes=1e6, exponent=0.7)
    assert curve.seconds("p2p", 1e6, 2, 100.0) == pytest.approx(2 * 1e6 / 100e9)


def test_a_ring_inside_a_node_is_a_latency_and_its_share_of_the_bytes() -> None:
    net = MeasuredTopology(tiers(), 8)
    assert net.collective("all_reduce", 1e9, range(8)).seconds == 1e-5 + 2 * 7 / 8 * 1e9 / 200e9
    assert net.collective("all_gather", 1e9, range(4)).seconds == 1e-5 + 3 / 4 * 1e9 / 200e9


def test_the_interfaces_of_all_local_ranks_work_together() -> None:
    net = MeasuredTopology(tiers(), 64)
    assert net.collective("all_gather", 1e9, range(16)).seconds == 5e-5 + 15 / 16 * 1e9 / (8 * 10e9 * 0.8)
    one_a_node = net.collective("all_gather", 1e9, range(0, 64, 8)).seconds
    steps_s = (6 * 14 - 14 * 3.4) * 1e-6  # seven across nodes, in the place of one and of fourteen inside
    assert one_a_node == pytest.approx(5e-5 + steps_s + 7 / 8 * 1e9 / (10e9 * 0.8), rel=1e-12)


def test_trees_bring_fewer_bytes_of_an_all_reduce_into_a_node_than_rings() -> None:
    net = MeasuredTopology(tiers(), 16)
    assert net.collective("all_reduce", 1e9, range(16)).seconds == pytest.approx(5e-5 + 1e9 / (8 * 10e9 * 0.8))


def test_no_group_of_several_nodes_is_faster_than_its_ranks_within_a_node() -> None:
    inner, outer = tiers()
    net = MeasuredTopology((inner, replace(outer, bandwidth=1000)), 16)
    assert net.collective("all_gather", 1e9, range(16)).seconds == 5e-5 + 15 / 16 * 1e9 / 200e9


def test_ranks_of_a_node_share_its_interfaces_and_a_lone_rank_gets_no_more_than_its_own() -> None:
    many, few = MeasuredTopology(tiers(nics=8), 64), MeasuredTopology(tiers(nics=4), 64)
    alone = MeasuredTopology(tiers(nics=4), 8, placement=range(8))
    group = range(0, 64, 8)
    assert many.collective("all_gather", 1e9, group).seconds == few.collective("all_gather", 1e9, group).seconds
    wire_s = 7 / 8 * 1e9 / (20e9 * 0.8)
    assert alone.collective("all_gather", 1e9, range(8)).seconds == pytest.approx(5e-5 + 36.4e-6 + wire_s, rel=1e-12)


def test_a_tier_without_curves_prices_as_the_hierarchical_topology() -> None:
    bare = tuple(replace(tier, curves={}) for tier in tiers())
    sized, plain = MeasuredTopology(bare, 32), HierarchicalTopology(bare, 32)
    for op in ("all_reduce", "all_gather", "broadcast", "all_to_all", "barrier"):
        assert sized.collective(op, 1e8, range(32)) == plain.collective(op, 1e8, range(32))
    assert sized.p2p(1e8, 0, 9) == plain.p2p(1e8, 0, 9)


def test_curves_change_no_price_of_the_tier_itself() -> None:
    for name in ("a100_80g", "h100_80g_nvl8"):
        for tier in load_config(name).networks:
            assert tier.curves
            bare = replace(tier, curves={})
            assert tier.time("all_reduce", 1e8, 8) == bare.time("all_reduce", 1e8, 8)


def test_operations_without_a_curve_are_priced_by_others() -> None:
    net = MeasuredTopology(tiers(), 8)
    assert net.collective("broadcast", 1e8, range(8)) == net.collective("all_gather", 1e8, range(8))
    assert net.collective("barrier", 1e8, range(8)).seconds == 1e-5
    outside = MeasuredTopology(tiers(), 16)
    seconds = outside.collective("all_to_all", 1e8, range(16)).seconds
    assert seconds == pytest.approx(5e-5 + 8 / 16 * 1e8 / (10e9 * 0.8), rel=1e-12)  # 7 of 15 partners are inside
    alone = outside.collective("all_to_all", 1e8, range(0, 16, 8)).seconds
    assert alone == pytest.approx(5e-5 + 1 / 2 * 1e8 / (10e9 * 0.8), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "num_ranks", "size_bytes", "measured_us", "within"),
    [
        ("a100_80g", 2, 2**20, 44.21, 0.1),  # i2: VIA-Research/vTrain trace/a100/AR_GPU2_1M_1024M_LUT
        ("a100_80g", 4, 2**26, 543.8, 0.04),  # i2, AR_GPU4
        ("a100_80g", 8, 2**28, 2162.3, 0.03),  # i2, AR_GPU8
        ("v100_32g_nvl8", 8, 2**28, 3527.4, 0.02),  # i2, trace/v100, AR_GPU8
        ("v100_32g_nvl8", 5, 2**30, 46223.0, 0.02),  # i2, trace/v100, AR_GPU5: one link
        ("h200_141g_nvl8", 8, 2**30, 4053.4, 0.05),  # i1 0036: stas00/ml-engineering network/README.md
        ("h100_80g_nvl8", 16, 2**30, 4607.6, 0.08),  # i1 0183: two p5.48xlarge
    ],
)
def test_measured_all_reduces_are_met(
    name: str, num_ranks: int, size_bytes: int, measured_us: float, within: float
) -> None:
    net = MeasuredTopology(load_config(name).networks, num_ranks)
    seconds = net.collective("all_reduce", size_bytes, range(num_ranks)).seconds
    assert seconds == pytest.approx(measured_us * 1e-6, rel=within)


def test_rings_of_more_ranks_take_as_much_longer_to_begin_as_they_have_steps() -> None:
    curve = TransferCurve(0.0, half_bytes=4e6, half_ranks=16.0)
    beyond = {n: curve.seconds("all_gather", 16e6, n, 1.0) / ((n - 1) / n * 16e-3) - 1 for n in (16, 64)}
    assert beyond == {16: pytest.approx(0.25), 64: pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("op", "num_nodes", "size_bytes", "measured_us", "within"),
    [  # nccl-tests on p5.48xlarge: rows of the files that hw_configs/SOURCES.md names
        ("all_reduce", 2, 2**25, 427, 0.1),
        ("all_reduce", 4, 2**27, 1133, 0.15),
        ("all_reduce", 32, 2**28, 3876, 0.15),
        ("all_reduce", 32, 2**33, 53295, 0.15),
        ("all_to_all", 2, 2**33, 101621, 0.05),
        ("all_to_all", 8, 2**29, 11901, 0.15),
        ("all_to_all", 32, 2**27, 4947, 0.15),
    ],
)
def test_collectives_measured_over_efa_are_met(
    op: str, num_nodes: int, size_bytes: int, measured_us: float, within: float
) -> None:
    seconds = _on("p5.48xlarge", op, size_bytes, num_nodes)
    assert seconds == pytest.approx(measured_us * 1e-6, rel=within)


def _on(machine: str, op: str, size_bytes: float, num_nodes: int) -> float:
    net = MeasuredTopology(load_config(machine).networks, 8 * num_nodes)
    return float(net.collective(op, size_bytes, range(8 * num_nodes)).seconds)


def test_hosts_that_forward_messages_make_small_collectives_longer() -> None:
    slow, quick, direct = (
        _on(name, "all_gather", 2**28, 32) for name in ("p5.48xlarge", "p5en.48xlarge", "a3-ultragpu-8g")
    )
    assert slow > quick > direct
    assert slow - direct == pytest.approx(255 * 39e-6, rel=0.2)  # 33 to 47 us a rank were measured
    for machine, least_us in (("p4de.24xlarge", 161), ("p5.48xlarge", 69), ("a3-megagpu-8g", 123)):
        assert _on(machine, "all_reduce", 8, 2) == pytest.approx(least_us * 1e-6, rel=0.1)


@given(OPS, st.sampled_from([2, 4, 8, 16, 64]), st.floats(0, 1e11), st.floats(0, 1e11))
def test_more_bytes_never_take_less_time(op: str, num_ranks: int, first: float, second: float) -> None:
    net, (small, large) = MeasuredTopology(load_config("h100_80g_nvl8").networks, 64), sorted((first, second))
    group = range(num_ranks)
    assert net.collective(op, small, group).seconds <= net.collective(op, large, group).seconds
    assert net.p2p(small, 0, num_ranks - 1).seconds <= net.p2p(large, 0, num_ranks - 1).seconds


def test_a_negative_size_is_refused_and_a_lone_rank_is_free() -> None:
    net = MeasuredTopology(tiers(), 8)
    with pytest.raises(UsageError, match=r"must be a number of bytes >= 0, not -1 \(all_reduce\)"):
        net.collective("all_reduce", -1, range(8))
    assert net.collective("all_reduce", 1e9, (3,)).seconds == 0


def test_a_network_keeps_its_curves_in_pickle() -> None:
    tier = load_config("a100_80g").networks[0]
    assert pickle.loads(pickle.dumps(tier)) == tier
    assert dict(pickle.loads(pickle.dumps(tier)).curves) == dict(tier.curves)
