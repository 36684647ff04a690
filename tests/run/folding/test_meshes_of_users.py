"""Strategies that users write in files of their own, on meshes of two axes, fold as shipped ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import StrategyError

SHARDS_AND_REPLICAS = """
async def my_hsdp(model, shard_size=4):
    mesh = model.mesh(replica=model.world_size // shard_size, shard=shard_size)
    shards, replicas = mesh.group("shard"), mesh.group("replica")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    size = model.global_batch_size // model.world_size
    samples = range(model.rank * size, (model.rank + 1) * size)
    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k, shards.index, shards.size)
    activations[0] = model.get_input_activation(samples)
    for k in layers:
        weights["whole"] = await model.all_gather(weights[k], k, group=shards)
        activations[k + 1] = model.forward(k, activations[k], weights["whole"])
    grad_activations[0] = model.loss(activations.pop(model.num_layers))
    for k in reversed(layers):
        weights["whole"] = await model.all_gather(weights[k], k, group=shards)
        grad_weights[k], grad_activations[0] = model.backward(k, activations[k], grad_activations[0], weights["whole"])
        grad_weights[k] = await model.reduce_scatter(grad_weights[k], k, group=shards)
        grad_weights[k] = await model.all_reduce(grad_weights[k], k, group=replicas)
        weights[k], opt_states[k] = model.update(k, grad_weights.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
"""

PIPELINES = """
async def my_pp_dp(model, pp=2):
    mesh = model.mesh(pp=pp, dp=model.world_size // pp)
    stage, replica, replicas = mesh.coord("pp"), mesh.coord("dp"), mesh.group("dp")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    num = model.num_layers // pp
    layers = range(stage * num, (stage + 1) * num)
    share = model.global_batch_size // replicas.size
    first = replica * share
    size = share // pp
    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)
    for i in range(pp):
        if stage == 0:
            activations[layers[0], i] = model.get_input_activation(range(first + i * size, first + (i + 1) * size))
        else:
            activations[layers[0], i] = await model.receive(mesh.peer("pp", -1))
        for k in layers:
            activations[k + 1, i] = model.forward(k, activations[k, i], weights[k])
        if stage < pp - 1:
            await model.send(mesh.peer("pp", 1), activations.pop((layers.stop, i)))
    for i in range(pp):
        if stage == pp - 1:
            grad_activations[0] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[0] = await model.receive(mesh.peer("pp", 1))
        for k in reversed(layers):
            inp, grad = activations[k, i], grad_activations[0]
            grad_weights["new"], grad_activations[0] = model.backward(k, inp, grad, weights[k])
            del activations[k, i]
            new = grad_weights.pop("new")
            grad_weights[k] = new if k not in grad_weights else grad_weights[k] + new
        if stage > 0:
            await model.send(mesh.peer("pp", -1), grad_activations[0])
    for k in layers:
        grad_weights[k] = await model.all_reduce(grad_weights[k], k, group=replicas)
        weights[k], opt_states[k] = model.update(k, grad_weights.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
"""

TEXTS = {"my_hsdp": SHARDS_AND_REPLICAS, "my_pp_dp": PIPELINES}
SIZES: dict[str, Any] = {"num_layers": 8, "global_batch_size": 64}


def written(folder: Path, name: str) -> str:
    """Write a strategy to a file of its own, and return what names it."""
    path = folder / "mine.py"
    path.write_text(TEXTS[name])
    return str(path)


@pytest.mark.parametrize(("name", "num_classes"), [("my_hsdp", 1), ("my_pp_dp", 2)])
@pytest.mark.parametrize("world_size", [4, 16, 32])
def test_a_mesh_of_a_user_folds_with_plain_ranges(name: str, num_classes: int, world_size: int, tmp_path: Path) -> None:
    mine = written(tmp_path, name)
    folded, full = (mt.simulate(mine, world_size=world_size, fold=fold, **SIZES) for fold in (True, False))
    assert folded.logs == full.logs
    assert (len(folded.class_logs), len(full.class_logs)) == (num_classes, world_size)
    assert folded.summary() == full.summary()


def test_a_range_that_is_longer_on_some_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SHARDS_AND_REPLICAS.replace("range(model.rank * size", "range(0 * model.rank"))
    with pytest.raises(StrategyError, match=r"cannot be folded: .* \(mine.py:8\)"):
        mt.simulate(str(path), world_size=8, fold=True, **SIZES)


def test_range_is_the_usual_one_again_after_a_folded_run() -> None:
    names: dict[str, Any] = {"__name__": "mine"}
    exec(SHARDS_AND_REPLICAS, names)
    mt.simulate(names["my_hsdp"], world_size=8, fold=True, **SIZES)
    assert "range" not in names
