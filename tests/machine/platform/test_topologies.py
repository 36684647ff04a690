"""Collectives on known networks take what their closed forms say, and ways are spread as stated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from minitrain.errors import UsageError
from minitrain.machine.config import load_config
from minitrain.machine.platform import HardwareResourceProfile, VirtualHardwarePlatform
from minitrain.machine.platform.fair_sharing import message_s, op_of, shape_of, steps_of
from minitrain.machine.platform.links import ClusterLinks, Routes, nodes, star, torus, tree

GBPS = 8e9
SIZE = 1e9


def outcome(process: Any) -> Any:
    """Return the value of a process that has ended."""
    return process.value


def took(links: list[Any], op: str, members: list[str], level: Any = "high", size: float = SIZE) -> float:
    ours = VirtualHardwarePlatform(level).initialize({"network_links": links})
    ours.submit_collective_task(op, members, size)
    return ours.run()


@pytest.mark.parametrize("level", ["high", "medium"])
def test_a_ring_all_reduce_pays_two_links_of_latency_a_step_on_a_switch_and_one_on_a_ring(level: str) -> None:
    """ASTRA-sim's analytical networks: 2 (n - 1) steps of size / n over their hops (Won et al. 2023, section IV)."""
    names = [f"npu{i}" for i in range(16)]
    for links, hops in (
        (star("switch", names, 50 * GBPS, 5e-7), 2),
        (torus([16], 50 * GBPS, 5e-7, endpoints=names), 1),
    ):
        expected = 2 * 15 * (SIZE / 16 / 50e9 + hops * 5e-7)
        assert took(links, "all_reduce", names, level) == pytest.approx(expected, rel=1e-12)


def test_an_all_reduce_on_a_torus_goes_dimension_by_dimension() -> None:
    """Reduce-scatter along rows, all-reduce along columns, all-gather along rows: rings of a dimension do not meet."""
    side, size = 4, 1e9
    links = torus([side, side], 50 * GBPS, 500e-9)
    rows = [[f"chip{side * row + column}" for column in range(side)] for row in range(side)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    ours = VirtualHardwarePlatform().initialize({"network_links": links})
    for op, groups, brought in (
        ("reduce_scatter", rows, size),
        ("all_reduce", columns, size / side),
        ("all_gather", rows, size / side),
    ):
        for group in groups:
            ours.submit_collective_task(op, group, brought)
        ours.run()
    step = size / side / 50e9 + 500e-9
    inner = size / side / side / 50e9 + 500e-9
    assert ours.run() == pytest.approx(2 * (side - 1) * step + 2 * (side - 1) * inner, rel=1e-9)


def test_a_tree_with_oversubscription_is_slower_by_as_much_across_and_not_within_a_leaf() -> None:
    names = [f"n{i}" for i in range(10)]
    ends = {}
    for ratio in (1.0, 4.0):
        links = tree("net", names, GBPS, per_leaf=5, num_spines=1, oversubscription=ratio)
        ours = VirtualHardwarePlatform().initialize({"network_links": links})
        across = [ours.submit_network_transfer_task(f"n{i}", f"n{5 + i}", 1e9) for i in range(3)]
        within = ours.submit_network_transfer_task("n8", "n9", 1e9)
        ours.run()
        ends[ratio] = max(outcome(one).end for one in across), outcome(within).end
    assert ends[1.0][0] == pytest.approx(1.0)
    assert ends[4.0][0] == pytest.approx(3 * 4 / 5)  # three of the five that could send, over a quarter of the way
    assert ends[1.0][1] == ends[4.0][1] == pytest.approx(1.0)


def test_ways_are_the_shortest_and_spread_over_spines_by_their_hash() -> None:
    names = [f"n{i}" for i in range(64)]
    routes = Routes(tree("net", names, GBPS, per_leaf=8, num_spines=4))
    assert [lane.link_id for lane in routes.route("n0", "n1")] == ["n0-net.leaf0", "n1-net.leaf0"]
    spines = Counter(str(routes.route(f"n{i}", f"n{(i + 8) % 64}")[1].link_id)[-6:] for i in range(64))
    assert len(spines) == 4
    assert max(spines.values()) < 2 * 64 / 4
    assert routes.route("n3", "n50") == routes.route("n3", "n50")
    assert routes.route("n3", "n3") == ()


def test_a_torus_has_a_ring_in_each_dimension() -> None:
    links = torus([2, 3, 4], GBPS)
    degree = Counter(end for link in links for end in (link.source_id, link.dest_id))
    assert len(degree) == 24
    assert set(degree.values()) == {1 + 2 + 2}


def test_operations_have_many_spellings() -> None:
    assert {op_of(name) for name in ("AllReduce", "all_reduce", "all-reduce", "ALLREDUCE")} == {"all_reduce"}


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
def test_steps_move_what_the_closed_form_counts(op: str, num_ranks: int) -> None:
    steps = list(steps_of(op, num_ranks, 1e6))
    busiest = sum(max(size for _, _, size in step) for step in steps)
    num_steps, chunk = shape_of(op, num_ranks, 1e6)
    assert num_steps * message_s(chunk, 1e9, 1e-5) == pytest.approx(busiest / 1e9 + len(steps) * 1e-5)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8, 13])
def test_a_broadcast_reaches_everybody_once(algorithm: Any, num_ranks: int) -> None:
    has = {0}
    for step in steps_of("broadcast", num_ranks, 1.0, algorithm):
        for source, dest, _ in step:
            assert source in has
            assert dest not in has
        has |= {dest for _, dest, _ in step}
    assert has == set(range(num_ranks))


def test_a_tree_all_reduce_sums_everything_at_the_root_first() -> None:
    for num_ranks in (2, 3, 5, 8, 13):
        holds = {rank: {rank} for rank in range(num_ranks)}
        for step in steps_of("all_reduce", num_ranks, 1.0, "tree"):
            for source, dest, _ in step:
                holds[dest] |= holds[source]
        assert all(summed == set(range(num_ranks)) for summed in holds.values())


def test_a_wrong_topology_is_refused() -> None:
    with pytest.raises(UsageError, match="per_leaf"):
        tree("t", ["a"], 1.0, per_leaf=0)
    with pytest.raises(UsageError, match="oversubscription must be a positive number"):
        tree("t", ["a"], 1.0, per_leaf=1, oversubscription=0)
    with pytest.raises(UsageError, match="has 4 endpoints, got 1"):
        torus([2, 2], 1.0, endpoints=["a"])
    with pytest.raises(UsageError, match=r"nics \(4\) must be at most devices_per_node \(2\)"):
        nodes(1, 2, nvlink_bps=8e12, pcie_bps=5e11, nic_bps=4e11, nics=4)


@pytest.mark.parametrize(("world_size", "nics"), [(8, 8), (24, 4), (64, 1)])
def test_the_ways_of_a_cluster_are_those_that_routes_find(world_size: int, nics: int) -> None:
    links = ClusterLinks(load_config("h100_80g_nvl8"), world_size, nics=nics)
    for source in range(world_size):
        for dest in range(0, world_size, 3):
            ends = f"gpu{source}", f"gpu{dest}"
            assert links.route(*ends) == links.routes.route(*ends)


@pytest.mark.parametrize(("rails", "switches"), [(True, ["rail1"]), (False, ["fabric"])])
def test_a_line_makes_servers_with_switches_pcie_and_interfaces(rails: bool, switches: list[str]) -> None:
    line = {"num_nodes": 2, "devices_per_node": 4, "nvlink_bps": 8e12, "pcie_bps": 5e11, "nic_bps": 4e11, "nics": 2}
    profile = HardwareResourceProfile(network_links=[{"topology": "nodes", "rails": rails, **line}])  # type: ignore[list-item]
    routes = Routes(profile.network_links)
    assert [lane.link_id for lane in routes.route("gpu0", "gpu3")] == ["gpu0-node0.switch", "gpu3-node0.switch"]
    ends = [lane.name.rpartition(" to ")[2] for lane in routes.route("gpu2", "gpu7")]
    there, back = ["gpu2.port", "node0.pcie1", "node0.nic1"], ["node1.nic1", "node1.pcie1", "gpu7.port", "gpu7"]
    assert ends == [*there, *switches, *back]
    assert ("spine" in routes.endpoints) == rails
    assert routes.route("gpu0", "node0.host")[-1].link_id == "node0.pcie0-host"
