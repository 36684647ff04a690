"""Clusters of unlike devices: what they are, what their links cost, what caps and heat do, and mistakes in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine import load_config
from minitrain.machine.cluster import Places
from minitrain.machine.cluster_network import predictors_of, system_of
from minitrain.machine.config import shipped_clusters
from minitrain.machine.device import Power
from minitrain.machine.device_groups import clock_share
from minitrain.machine.network import Network
from minitrain.machine.price import Price
from minitrain.operations.collectives import RING_ROWS

NEW, OLD = mt.Devices("h100_80g_nvl8", 8, name="new"), mt.Devices("a100_80g", 8, name="old", per_node=4)
SLOW = mt.Link(2.8e9, 3e-5)
PAIR = mt.Cluster([NEW, OLD], between_groups=SLOW)
BYTES = 2**25


def network(cluster: mt.Cluster, **more: Any) -> Any:
    """Return what prices transfers between all devices of a cluster."""
    return predictors_of(cluster, cluster.num_devices, **more).predictors[0]


def slow_tier(bytes_per_s: float) -> Network:
    """Return the slow link as a tier."""
    return Network(bytes_per_s / 1e9, 1.0, 16, SLOW.latency_s, RING_ROWS)


# ---- prices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"])
def test_ranks_of_one_group_pay_what_they_would_on_that_hardware_alone(op: str) -> None:
    prices, alone = network(PAIR), predictors_of(mt.Cluster([OLD]), 8).predictors[0]
    assert prices.collective(op, BYTES, range(8, 16)) == alone.collective(op, BYTES, range(8))
    assert prices.collective(op, BYTES, (8, 12)) == alone.collective(op, BYTES, (0, 4))
    assert prices.p2p("send", BYTES, 9, 14) == alone.p2p("send", BYTES, 1, 6)


def test_the_slowest_link_sets_the_pace_of_a_ring() -> None:
    price = network(PAIR).collective("all_reduce", BYTES, (0, 8))  # one device of each node: its part of the link
    part = min(2.8e9 / 8, 2.8e9 / 4)
    assert (price.seconds, price.algorithm) == (slow_tier(part).time("all_reduce", BYTES, 2), "ring")


def test_members_of_a_node_have_their_part_of_its_link_together() -> None:
    """Eight of eight devices on one side, four of four on each node of the other: the link's whole bandwidth."""
    price = network(PAIR).collective("all_reduce", BYTES, range(16))
    assert price.seconds == slow_tier(2.8e9).time("all_reduce", BYTES, 16)
    half = network(PAIR).collective("all_reduce", BYTES, range(0, 16, 2))
    assert half.seconds == slow_tier(2.8e9 * 0.5).time("all_reduce", BYTES, 8)


def test_nodes_with_as_many_members_each_take_the_two_level_algorithm_if_it_is_faster() -> None:
    cluster = mt.Cluster([NEW, mt.Devices("a100_80g", 8, name="old")], between_groups=mt.Link(50e9, 1e-5))
    price = network(cluster).collective("all_reduce", BYTES, range(16))
    ring = Network(50, 1.0, 16, 1e-5, RING_ROWS).time("all_reduce", BYTES, 16)
    assert price.algorithm == "hierarchical"
    assert price.seconds < ring


def test_one_cable_is_shared_by_all_ranks_of_a_group() -> None:
    cable = mt.Cluster([NEW, OLD], between_groups=mt.Link(2.8e9, 3e-5, is_one_cable=True))
    assert network(cable).p2p("send", BYTES, 0, 15).seconds == slow_tier(2.8e9 / 8).time("p2p", BYTES, 2)
    everyone = network(cable).collective("all_gather", BYTES, range(16))
    assert everyone.seconds == slow_tier(2.8e9).time("all_gather", BYTES, 16)


@given(st.floats(1e8, 1e12), st.floats(1.01, 100.0), st.integers(1, 2**30))
def test_a_faster_link_never_costs_more(bytes_per_s: float, factor: float, size_bytes: int) -> None:
    seconds = [
        network(mt.Cluster([NEW, OLD], between_groups=mt.Link(speed, 1e-5))).collective(op, size_bytes, ranks).seconds
        for speed in (bytes_per_s, bytes_per_s * factor)
        for op, ranks in (("all_reduce", range(16)), ("all_to_all", (0, 1, 8, 9)))
    ]
    assert seconds[2] <= seconds[0]
    assert seconds[3] <= seconds[1]


def test_links_of_a_group_may_be_other_than_its_config_says() -> None:
    group = mt.Devices("a100_80g", 8, per_node=2, inside_node=mt.Link(64e9, 1e-6), between_nodes=mt.Link(25e9, 2e-5))
    prices = network(mt.Cluster([group]))
    assert prices.p2p("send", BYTES, 0, 1).seconds == 1e-6 + BYTES / 64e9
    assert prices.p2p("send", BYTES, 0, 2).seconds == 2e-5 + BYTES / (25e9 / 2)


def test_copies_of_a_group_of_one_shape_have_one_price() -> None:
    prices = network(mt.Cluster([mt.Devices("h100_80g_nvl8", 16, name="new"), OLD], between_groups=SLOW))
    shapes = prices.topology.one_of_each_shape(range(2), [(2, 12)])
    found = {prices.collective("all_reduce", BYTES, range(first, first + 2)) for first in range(0, 24, 2)}
    assert found == {prices.collective("all_reduce", BYTES, shape) for shape in shapes}
    assert isinstance(found.pop(), Price)


def test_a_cluster_of_measured_layers_takes_each_kinds_own(tmp_path: Path) -> None:
    def table(name: str, seconds: float) -> mt.MeasuredLayers:
        path = tmp_path / f"{name}.csv"
        path.write_text(
            "microbatch,tp,first_layer,last_layer,forward_s,backward_s,update_s\n"
            f"1,1,0,3,{seconds},{2 * seconds},0\n4,1,0,3,{4 * seconds},{8 * seconds},0\n"
        )
        return mt.MeasuredLayers.read(path)

    groups = [mt.Devices("rtx_3090", 1, prices=table("a", 1)), mt.Devices("titan_rtx", 1, prices=table("b", 3))]
    run = mt.simulate("ddp", hardware=mt.Cluster(groups, between_groups=SLOW), num_layers=4, shares=[3, 1], check=False)
    passes = [{event.duration for event in log if event.typ == "forward"} for log in run.logs]
    assert passes == [{3.0}, {3.0}]


# ---- places ----------------------------------------------------------------------------------------------------------


def test_ranks_take_devices_in_order_or_by_a_placement() -> None:
    places = Places(PAIR, 16)
    assert places.nodes == (0,) * 8 + (1,) * 4 + (2,) * 4
    assert [places.group(rank) for rank in (7, 8, 15)] == ["new", "old", "old"]
    placed = Places(PAIR, 4, [2, 0, 2, 0])
    assert ([placed.group(rank) for rank in range(4)], placed.local((0, 2))) == (["old", "new"] * 2, (0, 1))
    assert Places(PAIR, 3).used_groups == ("new",)  # a device may be left out


# ---- power and heat --------------------------------------------------------------------------------------------------


def test_the_clock_under_a_cap_follows_the_cube_root_of_what_is_left_beside_the_idle_power() -> None:
    power = Power(700, 100)
    assert clock_share(power, 700, "x") == clock_share(power, 900, "x") == 1.0
    assert clock_share(power, 100 + 600 / 8, "x") == pytest.approx(0.5, rel=1e-12)
    shares = [clock_share(power, watts, "x") for watts in range(110, 700, 10)]
    assert all(low < high for low, high in pairwise(shares))


def test_a_cap_slows_arithmetic_and_leaves_memory_and_peak_rate() -> None:
    capped = mt.Devices("h100_80g_nvl8", 8, power_cap_watts=175)
    system, plain = system_of(capped), load_config("h100_80g_nvl8")
    assert capped.clock_share == pytest.approx(0.5, rel=1e-12)
    assert system.processor.throughput("float16", 1e12) == pytest.approx(
        plain.processor.throughput("float16", 1e12) / 2
    )
    assert system.processor.peak("float16") == plain.processor.peak("float16")  # MFU counts what it could do
    assert (system.mem_hbm, system.networks) == (plain.mem_hbm, plain.networks)
    assert system.sheet.power == Power(175, 100)


def test_the_tightest_of_device_node_and_heat_counts() -> None:
    thermal = mt.Thermal(resistance_K_per_W=0.1, capacity_J_per_K=500, throttle_C=85, ambient_C=30)
    group = mt.Devices("h100_80g_nvl8", 8, power_cap_watts=600, node_power_cap_watts=8 * 580, thermal=thermal)
    assert (round(group.watts or 0, 9), group.limited_by) == (550, "heat")
    assert mt.Devices("h100_80g_nvl8", 8, power_cap_watts=600, node_power_cap_watts=8 * 580).limited_by == (
        "node power cap"
    )
    assert mt.Devices("h100_80g_nvl8", 8, power_cap_watts=900).limited_by is None


def test_a_device_warms_up_to_its_steady_state_and_throttles_on_the_way() -> None:
    thermal = mt.Thermal(resistance_K_per_W=0.1, capacity_J_per_K=500, throttle_C=85, ambient_C=30)
    assert thermal.temperature_C(300) == pytest.approx(60)
    assert thermal.temperature_C(300, 0) == 30
    after = thermal.seconds_to_throttle(700)
    assert thermal.temperature_C(700, after) == pytest.approx(85)
    assert thermal.seconds_to_throttle(550) == float("inf")


@pytest.mark.parametrize(
    "given", [(math.nan,), (-1,), (300, 1, "x"), (300, math.nan), (300, -5), (300, 1, math.nan), ("300",)]
)
def test_a_temperature_needs_numbers(given: tuple[Any, ...]) -> None:
    thermal = mt.Thermal(resistance_K_per_W=0.1, capacity_J_per_K=500, throttle_C=85)
    with pytest.raises(mt.UsageError, match=r"^(watts|seconds|start_C) must be a"):
        thermal.temperature_C(*given)


def test_a_cluster_within_a_budget_draws_no_more_and_keeps_what_it_may() -> None:
    budget = PAIR.within_power(6000)
    assert budget.peak_watts == pytest.approx(6000)
    assert PAIR.within_power(1e6).peak_watts == PAIR.peak_watts == 8 * 700 + 8 * 400
    with pytest.raises(UsageError, match=r"draws 1280 W when all its devices are idle.*give more than 1280 W"):
        PAIR.within_power(1000)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_cluster_is_read_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "groups:\n"
        "  - {name: new, kind: h100_80g_nvl8, count: 8}\n"
        "  - {name: old, kind: a100_80g, count: 8, per_node: 4}\n"
        "links:\n"
        "  - {between: [old, new], bytes_per_s: 2.8e9, latency_s: 3e-5}\n"
    )
    cluster = mt.Cluster.load(file)
    assert cluster.devices == PAIR.devices
    assert (cluster.links, cluster.name) == (PAIR.links, "mine")
    assert str(cluster) == (
        "mine: 8 x h100_80g_nvl8 (new) in 1 node, 8 x a100_80g (old) in 2 nodes of 4; "
        "between them 2.8 GB/s a node, 30 us"
    )


@pytest.mark.parametrize("name", shipped_clusters())
def test_shipped_clusters_load_by_their_names(name: str) -> None:
    assert mt.Cluster.load(name).name == name


def test_all_faults_of_a_file_are_told_by_key_path(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "groups:\n"
        "  - {kind: h200_nvl, count: 8}\n"
        "  - {kind: a100_80g, count: none, power_cap: 3}\n"
        "  - {kind: a100_80g}\n"
        "links:\n"
        "  - {between: [a], bytes_per_s: 1e9}\n"
        "  - {between: [a, b], bytes_per_s: -1}\n"
    )
    with pytest.raises(HardwareConfigError) as caught:
        mt.Cluster.load(file)
    faults = "\n".join(caught.value.faults)
    for part in (
        'groups[0]: "h200_nvl": expected the name of a shipped config',
        "groups[1].power_cap: expected one of the keys",
        "groups[2].count: expected a value, found none",
        'links[0].between: expected a list of two names of groups, found ["a"]',
        "links[1]: bytes_per_s of a link must be a number above 0, got -1",
    ):
        assert part in faults


# ---- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a kind that is not there": (
        lambda: mt.Devices("h100_80", 8),
        HardwareConfigError,
        r'did you mean "h100_80g_nvl8"\?',
    ),
    "no devices": (
        lambda: mt.Devices("a100_80g", 0),
        UsageError,
        r"count of a100_80g must be an integer of at least 1",
    ),
    "no groups": (lambda: mt.Cluster([]), UsageError, r"a cluster is made of groups of devices, as in mt.Cluster"),
    "two groups of one name": (
        lambda: mt.Cluster([mt.Devices("a100_80g", 4), mt.Devices("a100_80g", 4)], between_groups=SLOW),
        UsageError,
        r"two groups of the cluster are called a100_80g; give each a name of its own",
    ),
    "groups without a link": (
        lambda: mt.Cluster([NEW, OLD]),
        UsageError,
        r"there is none between new and old; add it to links, or give between_groups",
    ),
    "a link of a group that is not there": (
        lambda: mt.Cluster([NEW, OLD], {("new", "odl"): SLOW}),
        UsageError,
        r"a link is between groups of the cluster, and odl is none of them; use two of new, old",
    ),
    "a link with itself": (
        lambda: mt.Cluster([NEW, OLD], {("new", "new"): SLOW}),
        UsageError,
        r"a link is between two groups, as in \('new', 'old'\)",
    ),
    "a link without bandwidth": (lambda: mt.Link(0), UsageError, r"bytes_per_s of a link must be a number above 0"),
    "more ranks than devices": (
        lambda: mt.simulate("ddp", hardware=PAIR, world_size=17),
        UsageError,
        r"cluster has 16 devices, and the run 17 ranks; use at most 16 ranks, or add devices",
    ),
    "a node that is not there": (
        lambda: mt.simulate("ddp", hardware=PAIR, world_size=2, placement=[0, 3]),
        UsageError,
        r"a placement's nodes must be in 0..2, those of cluster, not 3",
    ),
    "a node that is full": (
        lambda: mt.simulate("ddp", hardware=PAIR, world_size=5, placement=[1] * 5),
        UsageError,
        r"node 1 of cluster has 4 devices, and the placement puts 5 ranks there; spread them",
    ),
    "a flat network": (
        lambda: mt.simulate("ddp", hardware=PAIR, network="flat"),
        UsageError,
        r"a cluster has links of its own; leave network out",
    ),
    "links that are shared exactly": (
        lambda: mt.simulate("ddp", hardware=PAIR, contention="exact"),
        UsageError,
        r"a cluster has links between its groups; use contention=True",
    ),
    "a cap below the idle power": (
        lambda: mt.Devices("h100_80g_nvl8", 8, power_cap_watts=90),
        UsageError,
        r"draws 100 W when it is idle, so that 90 W leave nothing to compute with",
    ),
    "a cap on a device of unknown power": (
        lambda: mt.Devices("tpu_v5p", 1, power_cap_watts=200),
        HardwareConfigError,
        r"needs the device's rated and idle power, which the config of tpu_v5p does not have",
    ),
    "a device that throttles when it is cold": (
        lambda: mt.Thermal(0.1, 500, throttle_C=20, ambient_C=30),
        UsageError,
        r"must throttle above the temperature of its surroundings",
    ),
    "a field that a group has not": (
        lambda: PAIR.changed("old", power_cap=300),
        UsageError,
        r"a group of devices has no power_cap; it has kind, count",
    ),
    "a group that is not there": (
        lambda: PAIR.changed("older", count=3),
        UsageError,
        r"cluster has no group called 'older'; use one of new, old",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_rule_value_and_remedy(name: str) -> None:
    make, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        make()
