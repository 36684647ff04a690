"""Folding on networks of tiers: the same floats as the full simulation, wherever groups lie in nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.machine import Network, SystemConfig, load_config
from minitrain.run.folding.expansion import FoldedRun
from tests.folded_runs import require_identical

H100 = load_config("h100_80g_nvl8")
SHIPPED = [name for name in mt.strategies() if name != "single"]
PIPELINES = ("1f1b", "chimera", "gpipe", "looped_bfs", "pipedream_2bw", "zb_h1", "zb_h2")  # of all ranks
LAYOUTS: dict[str, list[dict[str, Any]]] = {
    **{
        name: [{}, {"cp": 4}, {"cp": 2, "tp": 2}]
        for name in ("ring_attention", "gathered_context", "packed_context_parallel")
    },
    "deepseek_like": [{"pp": 2}, {"pp": 4}],
    "fsdp": [{}, {"replicas": 2}, {"replicas": 8, "reshard_after_forward": False}],
    "hsdp": [{}, {"shard_size": 4}, {"shard_size": 2}],
    "pp_hsdp": [{"pp": 2, "shard_size": 2}, {"pp": 4, "shard_size": 4}],
    **{name: [{"pp": 2}, {"pp": 4}] for name in ("pp_dp", "pp_zero1", "pp_zero3", "interleaved_1f1b")},
    **{name: [{"pp": 4}, {"pp": 8, "zero": 2}] for name in ("chimera", "dualpipe_v", "interleaved_zero_bubble", "zbv")},
}
SIZES: dict[int, Any] = {16: (), 64: pytest.mark.slow}
CASES = [
    pytest.param(name, world_size, options, marks=marks)
    for name in SHIPPED
    for world_size, marks in SIZES.items()
    for options in LAYOUTS.get(name, [{}])
]


def machine(*tiers: int, of: SystemConfig = H100) -> SystemConfig:
    """Return a machine whose network has tiers of some sizes, the smaller the faster."""
    outer = of.networks[-1]
    networks = [replace(outer, size=size, bandwidth=4000 / size**0.5) for size in tiers]
    return replace(of, networks=(*networks, outer))


def num_classes(run: mt.Run) -> int:
    return len(run.class_logs)


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "world_size", "options"), CASES, ids=str)
def test_every_shipped_strategy_is_the_same_folded_over_nodes(
    name: str, world_size: int, options: dict[str, Any]
) -> None:
    layers = 2 * world_size if name in PIPELINES else 16
    sizes = {"world_size": world_size, "num_layers": layers, "global_batch_size": 4 * world_size}
    run = require_identical(name, **sizes, **options)
    assert run.network == "hierarchical"
    assert isinstance(run, FoldedRun)


@pytest.mark.few(4)
@pytest.mark.parametrize("world_size", [9, 12, 20, 36])
@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "zero3", "zero3_prefetch", "ddp_overlap", "1f1b"])
def test_a_last_node_that_is_not_full_changes_nothing(name: str, world_size: int) -> None:
    sizes = {"world_size": world_size, "num_layers": world_size, "global_batch_size": world_size}
    run = require_identical(name, **sizes)
    assert num_classes(run) == (world_size if name == "1f1b" else 1)


@pytest.mark.ci
@settings(max_examples=2 * settings().max_examples)
@given(
    pp=st.integers(1, 3),
    replicas=st.integers(1, 5),
    shards=st.integers(1, 6),
    tiers=st.lists(st.integers(1, 20), min_size=1, max_size=2),
)
def test_three_dimensions_are_the_same_folded_wherever_nodes_end(
    pp: int, replicas: int, shards: int, tiers: list[int]
) -> None:
    sizes = {"world_size": pp * replicas * shards, "num_layers": 2 * pp, "global_batch_size": pp * replicas * shards}
    options = {"pp": pp, "shard_size": shards, "microbatch_size": 1}
    require_identical("pp_hsdp", hardware=machine(*tiers), **sizes, **options)


@settings(max_examples=40)
@given(
    axes=st.permutations(["a", "b", "c"]),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
    sharded=st.sets(st.sampled_from("abc"), max_size=2),
    node_size=st.integers(1, 9),
    placed=st.none() | st.randoms(use_true_random=False),
)
def test_any_mesh_on_any_placement_is_the_same_folded(
    axes: Sequence[str], sizes: tuple[int, int, int], sharded: set[str], node_size: int, placed: Any
) -> None:
    mesh = dict(zip(axes, sizes, strict=True))
    world_size = sizes[0] * sizes[1] * sizes[2]
    nodes = [rank // node_size for rank in range(world_size)]
    if placed is not None:
        placed.shuffle(nodes)
    require_identical(
        sharded_along(mesh, sorted(sharded)),
        hardware=machine(node_size),
        placement=nodes,
        world_size=world_size,
        num_layers=2,
        global_batch_size=world_size,
    )


def sharded_along(axes: dict[str, int], sharded: Sequence[str]) -> Any:
    """Return a strategy that shards weights along some axes of a mesh, and replicates them along the others."""

    async def strategy(model: mt.Model) -> mt.Model:
        mesh = model.mesh(**axes)
        shards, replicas = mesh.group(*sharded), mesh.group(*(axis for axis in axes if axis not in sharded))
        model.activations[0] = model.get_input_activation(mt.span(model.rank, model.rank + 1))
        for layer in range(model.num_layers):
            model.weights[layer], model.opt_states[layer] = model.load_weights(layer, shards.index, shards.size)
            model.weights["all"] = await model.all_gather(model.weights[layer], layer, group=shards)
            model.activations[layer + 1] = model.forward(layer, model.activations[layer], model.weights["all"])
        model.grad_activations[0] = model.loss(model.activations[model.num_layers])
        for layer in reversed(range(model.num_layers)):
            model.weights["all"] = await model.all_gather(model.weights[layer], layer, group=shards)
            inputs, weight = model.activations[layer], model.weights["all"]
            grad, model.grad_activations[0] = model.backward(layer, inputs, model.grad_activations[0], weight)
            grad = await model.reduce_scatter(grad, layer, group=shards)
            grad = await model.all_reduce(grad, layer, group=replicas)
            await model.barrier(replicas)
            final, _ = model.update(layer, grad, model.weights[layer], model.opt_states[layer])
            model.set_final_weight(layer, final)
        return model

    return strategy


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("shard_size", "num_found"),
    [(8, 1), (4, 1), (16, 1), (6, 6), (12, 1), (2, 1)],
)
def test_groups_that_lie_differently_in_nodes_keep_one_axis_apart(shard_size: int, num_found: int) -> None:
    sizes = {"world_size": 6 * shard_size, "num_layers": 2, "global_batch_size": 6 * shard_size}
    assert num_classes(require_identical("hsdp", shard_size=shard_size, **sizes)) == num_found


def test_a_stage_whose_messages_cross_nodes_on_some_ranks_only_is_simulated_in_full() -> None:
    run = require_identical("pp_dp", pp=4, world_size=12, num_layers=4, global_batch_size=12)
    assert not isinstance(run, FoldedRun)
    aligned = require_identical("pp_dp", pp=4, world_size=16, num_layers=4, global_batch_size=16)
    assert num_classes(aligned) == 4


def test_classes_that_are_apart_for_prices_bring_buckets_too() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        mesh = model.mesh(replica=3, shard=3)
        shards, replicas = mesh.group("shard"), mesh.group("replica")
        model.activations[0] = model.get_input_activation(mt.span(model.rank, model.rank + 1))
        for layer in range(2):
            model.weights[layer], model.opt_states[layer] = model.load_weights(layer)
            model.activations[layer + 1] = model.forward(layer, model.activations[layer], model.weights[layer])
        model.grad_activations[0] = model.loss(model.activations[2])
        for layer in (1, 0):
            inputs, grad = model.activations[layer], model.grad_activations[0]
            model.grad_weights[layer], model.grad_activations[0] = model.backward(
                layer, inputs, grad, model.weights[layer]
            )
        await model.barrier(shards)
        summed = await model.all_reduce(list(model.grad_weights.values()), 0, group=shards)
        beside = model.launch(model.barrier())
        scattered = await model.reduce_scatter(summed, 0, group=replicas)
        for layer, whole in zip((1, 0), await model.all_gather(scattered, 0, group=replicas), strict=True):
            final, _ = model.update(layer, whole, model.weights[layer], model.opt_states[layer])
            model.set_final_weight(layer, final)
        await beside
        return model

    run = require_identical(strategy, world_size=9, num_layers=2, global_batch_size=9, hardware=machine(5))
    assert num_classes(run) == 3


def test_what_is_not_symmetric_is_refused_between_classes_too() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        mesh = model.mesh(replica=3, shard=3)
        await model.barrier(mesh.group("shard"))
        await model.broadcast(model.get_input_activation([0]), 0)
        return model

    run = require_identical(strategy, world_size=9, num_layers=2, global_batch_size=9, check=False)
    assert not isinstance(run, FoldedRun)


def test_ranks_that_differ_in_what_they_do_are_refused_whatever_the_network() -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        if model.rank == 3:
            await model.barrier()
        return model

    with pytest.raises(mt.StrategyError, match=r"cannot be folded: .* a comparison that holds for some ranks only"):
        mt.simulate(strategy, world_size=64, fold=True)


def test_a_million_ranks_fold_over_nodes_as_on_a_flat_network() -> None:
    sizes: dict[str, Any] = {
        "num_layers": 16,
        "hardware": "h200_141g_nvl8",
        "world_size": 2**20,
        "global_batch_size": 2**20,
    }
    for network in ("flat", "auto"):
        assert num_classes(mt.simulate("hsdp", fold=True, network=network, **sizes)) == 1


def test_a_network_of_one_size_of_node_is_no_slower_than_a_flat_one_of_that_tier() -> None:
    tier = Network(50.0, 0.9, 65536, 2e-5, dict(H100.networks[-1].ops))
    alone = replace(H100, networks=(tier,))
    sizes: dict[str, Any] = {"world_size": 16, "num_layers": 4, "global_batch_size": 16, "hardware": alone}
    assert mt.simulate("zero3", **sizes).network == "flat"
    tiered = mt.simulate("zero3", network="hierarchical", **sizes)
    assert tiered.step_time == mt.simulate("zero3", network="flat", **sizes).step_time
