"""Algorithms of collectives: NCCL's own rule between nodes, what a strategy may ask for, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import CollectiveMismatchError, UsageError
from minitrain.machine import HierarchicalTopology, load_config
from minitrain.machine.measured_topology import MeasuredTopology
from minitrain.machine.network import overhead_s
from minitrain.machine.topology import FlatTopology, Topology
from tests.folded_runs import require_identical
from tests.small_transformers import LLAMA_LIKE
from tests.whatif.test_price import require_equal_to_separate

MB = 1e6
H100 = load_config("h100_80g_nvl8")


def sized(world_size: int) -> MeasuredTopology:
    return MeasuredTopology(H100.networks, world_size)


def seconds(net: Topology, op: str, size_bytes: float, algorithm: str | None, ranks: range) -> float:
    return net.collective(op, size_bytes, ranks, algorithm).seconds


def summed(algorithm: str | None) -> Any:
    """Return data parallelism whose all_reduces are by an algorithm."""

    async def strategy(model: mt.Model) -> mt.Model:
        weights, states, activations, _, grads = model.storage()
        weights[0], states[0] = model.load_weights(0)
        backward(model, activations, grads, weights[0])
        grads[0] = await model.all_reduce(grads[0], 0, algorithm=algorithm)
        weights[0], states[0] = model.update(0, grads.pop(0), weights[0], states[0])
        model.set_final_weight(0, weights[0])
        return model

    return strategy


def sharded(algorithm: str | None) -> Any:
    """Return the same with a gradient that is scattered, and a weight that is gathered, by an algorithm."""

    async def strategy(model: mt.Model) -> mt.Model:
        weights, states, activations, _, grads = model.storage()
        weights["shard"], states[0] = model.load_weights(0, model.rank, model.world_size)
        weights[0] = await model.all_gather(weights["shard"], 0, algorithm=algorithm)
        backward(model, activations, grads, weights[0])
        del weights[0]
        grads[0] = await model.launch(model.reduce_scatter(grads[0], 0, algorithm=algorithm))
        weights["shard"], states[0] = model.update(0, grads.pop(0), weights["shard"], states[0])
        model.set_final_weight(0, weights["shard"])
        return model

    return strategy


def backward(model: mt.Model, activations: Any, grads: Any, weight: Any) -> None:
    """Take the rank's samples through the one layer and back."""
    share = model.global_batch_size // model.world_size
    activations[0] = model.get_input_activation(mt.span(model.rank * share, (model.rank + 1) * share))
    activations[1] = model.forward(0, activations[0], weight)
    activations["grad"] = model.loss(activations.pop(1))
    grads[0], activations["end"] = model.backward(0, activations[0], activations["grad"], weight)
    activations.clear()


SIZES: dict[str, Any] = {"num_layers": 1, "world_size": 16, "global_batch_size": 16}


def test_a_ring_has_a_step_for_each_rank_and_a_tree_for_each_doubling_of_nodes() -> None:
    few, many = (overhead_s("ring", "all_gather", 1e12, n, n // 8, 3.0) for n in (16, 512))
    assert many - few == pytest.approx((434 * 3.4 + 62 * 14) * 1e-6)  # Simple: 3.4 us inside a node, 14 us across
    few, many = (overhead_s("tree", "all_reduce", 0, n, n // 8, 0.0) for n in (16, 512))
    assert many - few == pytest.approx(2 * 5 * 5e-6)  # LL: 64 nodes are five doublings of two, 5 us each way


def test_few_bytes_go_by_short_steps_and_many_by_full_bandwidth() -> None:
    def beyond_bytes(wire_s: float) -> float:
        return overhead_s("ring", "all_gather", 1.0, 16, 2, wire_s)

    assert beyond_bytes(0.0) == pytest.approx((6.6 + 14 * 1 + 2.7) * 1e-6)
    assert beyond_bytes(1.0) == pytest.approx((8.4 + 14 * 3.4 + 14) * 1e-6)


def test_curves_are_met_as_they_are_in_the_layout_of_their_sweep() -> None:
    net, curve = sized(16), H100.networks[1].curves["all_gather"]
    for size_bytes in (1.0, 1e5, 1e7, 1e10):
        expected = curve.seconds("all_gather", size_bytes, 16, 0.8 * 400)
        assert net.collective("all_gather", size_bytes, range(16)).seconds == expected


@given(st.sampled_from([16, 32, 64, 512]), st.sampled_from([1, 2, 8]), st.floats(1, 1e11))
def test_the_choice_of_an_all_reduce_is_the_faster_of_ring_and_tree(num: int, step: int, size_bytes: float) -> None:
    net, ranks = sized(num), range(0, num, step)
    asked = {each: seconds(net, "all_reduce", size_bytes, each, ranks) for each in ("ring", "tree")}
    chosen = net.collective("all_reduce", size_bytes, ranks)
    assert chosen.algorithm is not None
    assert chosen.seconds == min(asked.values()) == asked[chosen.algorithm]


def test_large_rings_are_slow_for_few_bytes_which_two_levels_mend() -> None:
    net, ranks = sized(1024), range(1024)
    ring, nested = (seconds(net, "all_gather", 16 * MB, each, ranks) for each in ("ring", "hierarchical"))
    assert nested < ring / 2
    ring, nested = (seconds(net, "all_gather", 4000 * MB, each, ranks) for each in ("ring", "hierarchical"))
    assert ring < nested


def test_two_levels_are_collectives_inside_the_nodes_and_one_of_a_share_between_them() -> None:
    net, ranks = sized(64), range(64)
    inside = sum(seconds(net, op, 80 * MB, None, range(8)) for op in ("reduce_scatter", "all_gather"))
    across = seconds(net, "all_reduce", 10 * MB, None, range(0, 64, 8))
    assert seconds(net, "all_reduce", 80 * MB, "hierarchical", ranks) == pytest.approx(inside + across)
    inside, across = (
        seconds(net, "all_gather", size, None, group)
        for size, group in ((80 * MB, range(8)), (10 * MB, range(0, 64, 8)))
    )
    assert seconds(net, "all_gather", 80 * MB, "hierarchical", ranks) == pytest.approx(inside + across)


def test_a_ring_within_a_node_does_without_sums_in_the_switch() -> None:
    net, ranks = sized(8), range(8)
    ring, usual = (seconds(net, "all_reduce", 1000 * MB, each, ranks) for each in ("ring", None))
    assert ring / usual == pytest.approx(489 / 366, rel=0.05)


def test_tiers_without_curves_have_rings_and_two_levels() -> None:
    net, (inner, outer) = HierarchicalTopology(H100.networks, 64), H100.networks
    assert seconds(net, "all_reduce", 1.0, "ring", range(64)) == outer.time("all_reduce", 1.0, 64)
    small = inner.time("reduce_scatter", 1.0, 8) + outer.time("all_reduce", 1 / 8, 8) + inner.time("all_gather", 1.0, 8)
    assert seconds(net, "all_reduce", 1.0, "hierarchical", range(64)) == small
    assert net.collective("all_reduce", 1.0, range(64)).algorithm == "ring"


def test_the_flat_network_has_the_ring_that_its_row_is() -> None:
    net = FlatTopology(H100.networks[0])
    assert seconds(net, "all_reduce", 1e9, "ring", range(8)) == seconds(net, "all_reduce", 1e9, None, range(8))
    switch = replace(H100.networks[0], ops={**H100.networks[0].ops, "all_reduce": (1.0, 1)})
    with pytest.raises(UsageError, match=r"its tier's row \(1.0, 1\) is no ring's; use algorithm=None"):
        FlatTopology(switch).collective("all_reduce", 1e9, range(8), "ring")


@pytest.mark.parametrize(
    ("net", "algorithm", "ranks", "message"),
    [
        (FlatTopology(H100.networks[0]), "tree", range(8), "the flat network has one tier and no nodes"),
        (FlatTopology(H100.networks[0]), "hierarchical", range(8), 'use network="hierarchical", or algorithm=None'),
        (HierarchicalTopology(H100.networks, 64), "tree", range(64), 'fidelity="kernels" on hardware whose networks'),
        (HierarchicalTopology(H100.networks, 64), "hierarchical", range(0, 64, 8), "not two ranks or more in each of"),
        (sized(64), "tree", range(8), "trees are of nodes and its group lies in one"),
        (sized(64), "hierarchical", range(8), "not two ranks or more in each of several nodes; use algorithm=None"),
        (sized(64), "butterfly", range(64), "must be one of 'ring', 'tree', 'hierarchical', or None"),
    ],
)
def test_what_a_network_has_not_is_refused_by_name(net: Topology, algorithm: str, ranks: range, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        net.collective("all_reduce", 1e6, ranks, algorithm)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_only_an_all_reduce_goes_by_a_tree(op: str) -> None:
    with pytest.raises(UsageError, match=f"algorithm of {op} must be one of 'ring', 'hierarchical', or None"):
        sized(64).collective(op, 1e6, range(64), "tree")


@pytest.mark.parametrize(("make", "algorithm"), [(summed, "ring"), (summed, "hierarchical"), (sharded, "hierarchical")])
def test_a_strategy_has_what_it_asks_for_folded_strict_and_on_many_machines(make: Any, algorithm: str) -> None:
    parameters: dict[str, Any] = {**SIZES, "hardware": "h100_80g_nvl8", "network": "hierarchical"}
    run = require_identical(make(algorithm), **parameters)
    own = mt.simulate(make(None), **parameters)
    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    assert {event.algorithm for event in run.events if event.typ in kinds} == {algorithm}
    assert run.step_time >= own.step_time
    assert mt.simulate(make(algorithm), **parameters, strict=True).step_time == run.step_time
    machines = {"networks[1].bandwidth": [5.0, 50.0, 500.0]}
    require_equal_to_separate(mt.price(make(algorithm), vary=machines, **parameters))


def test_kernels_and_many_machines_price_what_a_strategy_asks_for() -> None:
    async def gathered(model: mt.Model) -> mt.Model:
        shards = [model.load_weights(layer, model.rank, model.world_size)[0] for layer in range(model.num_layers)]
        for layer, shard in enumerate(shards):
            await model.all_gather(shard, layer, algorithm="hierarchical")
        return model

    parameters: dict[str, Any] = {"world_size": 16, "global_batch_size": 16, "workload": LLAMA_LIKE, "check": False}
    run = require_identical(gathered, **parameters, fidelity="kernels", hardware="h100_80g_nvl8")
    assert {event.algorithm for event in run.events if event.typ == "all_gather"} == {"hierarchical"}
    shared = mt.simulate(gathered, **parameters, fidelity="kernels", hardware="h100_80g_nvl8", contention="exact")
    assert shared.step_time == pytest.approx(run.step_time, rel=0.02)
    priced = mt.price(gathered, vary={"networks[0].bandwidth": [300, 450]}, **parameters, fidelity="kernels")
    require_equal_to_separate(priced)


def test_ranks_that_ask_for_different_algorithms_are_told() -> None:
    async def torn(model: mt.Model) -> mt.Model:
        shard, _ = model.load_weights(0, model.rank, 16)
        await model.all_gather(shard, 0, algorithm="ring" if model.rank else "hierarchical")
        return model

    with pytest.raises(CollectiveMismatchError, match="all_gather of layer 0 by algorithm='hierarchical'"):
        mt.simulate(torn, **SIZES)


def test_a_run_that_one_tier_prices_refuses_two_levels() -> None:
    with pytest.raises(UsageError, match="the flat network has one tier and no nodes"):
        mt.simulate(summed("hierarchical"), num_layers=1, world_size=8, global_batch_size=8)
    mt.simulate(summed("ring"), num_layers=1, world_size=8, global_batch_size=8)
