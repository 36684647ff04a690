"""What configurations of a sweep remember for the next ones: it changes how long folding takes, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.run.folding.attempt import FoldAttempt
from minitrain.run.folding.driver import DivergenceHistory, find_early_divergence
from minitrain.run.folding.expansion import FoldedRun
from minitrain.run.rank_tasks import prepare
from minitrain.search.sweeps.batches import Batch, run_batch
from minitrain.tensors.index_sets import span

Configuration = tuple[Any, dict[str, Any]]

MESHED: dict[str, Sequence[dict[str, Any]]] = {
    "pp_dp": [{"pp": pp} for pp in (2, 4, 1)],
    "pp_zero1": [{"pp": pp} for pp in (4, 3, 2)],  # 3 does not divide the layers
    "pp_zero3": [{"pp": pp, "microbatch_size": 1} for pp in (2, 4)],
    "pp_hsdp": [{"pp": pp, "shard_size": size} for pp, size in ((2, 2), (2, 4), (4, 1), (1, 4))],
    "hsdp": [{"shard_size": size} for size in (None, 2, 4)],
    "zbv": [{"pp": 2}, {"pp": 4}, {"pp": 2, "zero": 3}, {}],
    "zero3": [{}],
    "1f1b": [{}],
}


def _by_turns(name: str) -> list[Configuration]:
    """Return configurations of a strategy whose neighbours differ in world, mesh and batch."""
    sizes = product((8, 16), (16, 32), MESHED[name])
    return [
        (name, {"world_size": world_size, "num_layers": 16, "global_batch_size": batch, **options})
        for world_size, batch, options in sizes
    ]


def _outcome(configuration: Configuration, fold: bool | DivergenceHistory) -> Any:
    """Return all that a configuration comes to: its figures, its classes and their logs, or why there are none."""
    strategy, parameters = configuration
    try:
        run = mt.simulate(strategy, fold=fold, **parameters)
    except mt.MinitrainError as error:
        return type(error), str(error)
    classes = None
    if isinstance(run, FoldedRun):
        classes = run.representatives, list(run.fold.axes.items()), run.fold.kept, run.num_ranks_a_class
    return run.summary(), run.peak_memory_per_rank, classes, [list(log) for log in run.class_logs]


@cache
def _alone(strategy: Any, parameters: tuple[tuple[str, Any], ...]) -> Any:
    return _outcome((strategy, dict(parameters)), True)


def _require_nothing_depends_on_what_came_before(configurations: Sequence[Configuration]) -> None:
    shared = DivergenceHistory()
    for strategy, parameters in configurations:
        assert _outcome((strategy, parameters), shared) == _alone(strategy, tuple(parameters.items()))


def _figures(configuration: Configuration, *, fold: bool) -> dict[str, Any]:
    """Return what a configuration alone says of a row."""
    strategy, parameters = configuration
    try:
        figures = mt.simulate(strategy, fold=fold, **parameters).summary()
    except mt.StrategyError as error:
        return {"status": "failed", "error": f"StrategyError: {error}"}
    del figures["options"]  # each has a key of its own
    return {"status": "ok", **figures}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MESHED)
def test_rows_of_a_batch_are_those_of_runs_alone_and_in_full(name: str) -> None:
    configurations = _by_turns(name)
    batch: Batch = [("", (name, {**parameters, "fold": True})) for _, parameters in configurations]
    for configuration, (_, row) in zip(configurations, run_batch(batch)[1], strict=True):
        for fold in (True, False):
            figures = _figures(configuration, fold=fold)
            assert {key: row[key] for key in figures} == figures


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MESHED)
def test_classes_and_logs_are_those_of_runs_alone(name: str) -> None:
    _require_nothing_depends_on_what_came_before(_by_turns(name))


# Strategies whose classes depend on what the memory does not tell apart.

BATCHES = (16, 32, 64)


async def _train(model: mt.Model, samples: Any) -> mt.Model:
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.activations[0] = model.get_input_activation(samples)
    model.activations[1] = model.forward(0, model.activations[0], model.weights[0])
    model.grad_activations[0] = model.loss(model.activations[1])
    model.grad_weights[0], _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    model.grad_weights[0] = await model.all_reduce(model.grad_weights[0], 0)
    model.weights[0], _ = model.update(0, model.grad_weights[0], model.weights[0], model.opt_states[0])
    model.set_final_weight(0, model.weights[0])
    return model


def _share(model: mt.Model) -> Any:
    size = model.global_batch_size // model.world_size
    return span(model.rank * size, (model.rank + 1) * size)


async def _hand_on(model: mt.Model, pp: int) -> None:
    """Send something from stage to stage."""
    mesh = model.mesh(pp=pp, dp=model.world_size // pp)
    before, after = mesh.peer("pp", -1), mesh.peer("pp", 1)
    if before is not None:
        model.activations["before"] = await model.receive(before)
    if after is not None:
        await model.send(after, model.get_input_activation(range(4)))


async def _stages_by_batch(model: mt.Model) -> mt.Model:
    """Make 2 stages of a middling batch, 4 of a large one, and none of a small one."""
    if model.global_batch_size == BATCHES[0]:
        return await _train(model, _share(model))
    await _hand_on(model, 2 if model.global_batch_size == BATCHES[1] else 4)
    return model


async def _refused_by_batch(model: mt.Model) -> mt.Model:
    """Depend on the rank, for a large batch, in a way that only classes finer than one's own would forgive."""
    if model.global_batch_size == BATCHES[2] and model.rank < model.world_size // 2:
        model.load_weights(0)
    if model.global_batch_size != BATCHES[0]:
        await _hand_on(model, 2)
        return model
    return await _train(model, _share(model))


async def _rank_before_mesh(model: mt.Model) -> mt.Model:
    """Ask for the rank first, by a division of it for some batches."""
    if model.global_batch_size == BATCHES[1]:
        model.load_weights(0, model.rank // 4, 4)
    if model.global_batch_size != BATCHES[0]:
        assert model.rank >= 0
        await _hand_on(model, 4 if model.global_batch_size == BATCHES[2] else 2)
        return model
    return await _train(model, _share(model))


async def _swallowing(model: mt.Model) -> mt.Model:
    """Look at the rank, and go on where that is refused."""
    try:
        assert model.global_batch_size == BATCHES[0] or model.rank == 3
    except (mt.StrategyError, AssertionError):
        await asyncio.sleep(0)
    return await _train(model, _share(model))


async def _failing_by_batch(model: mt.Model) -> mt.Model:
    """Break a law, for a large batch, before ranks part ways."""
    if model.global_batch_size == BATCHES[2]:
        model.load_weights(99)
    return await _stages_by_batch(model)


async def _waiting_by_batch(model: mt.Model) -> mt.Model:
    """Wait, for a large batch, before ranks part ways."""
    if model.global_batch_size == BATCHES[2]:
        await asyncio.sleep(0)
    await _hand_on(model, 2)
    return model


async def _beginning_tasks(model: mt.Model) -> mt.Model:
    """Begin a task before ranks part ways."""
    task = asyncio.ensure_future(asyncio.sleep(0))
    try:
        await _hand_on(model, 2)
    finally:
        task.cancel()
    return model


async def _cancelling_itself(model: mt.Model) -> mt.Model:
    """Cancel its own task, for a large batch, before ranks part ways."""
    task = asyncio.current_task()
    assert task is not None
    if model.global_batch_size == BATCHES[2]:
        task.cancel()
    await _hand_on(model, 2)
    return model


STRATEGIES: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        _stages_by_batch,
        _refused_by_batch,
        _rank_before_mesh,
        _swallowing,
        _failing_by_batch,
        _waiting_by_batch,
        _beginning_tasks,
        _cancelling_itself,
    )
}


def _of_batch(name: str, batch: int, world_size: int = 16) -> Configuration:
    sizes = {"world_size": world_size, "num_layers": 1, "global_batch_size": batch, "check": False}
    return STRATEGIES[name], sizes


@pytest.mark.few(6)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("first", "second"), [*permutations(BATCHES, 2)])
def test_what_one_batch_needs_is_not_believed_of_another(name: str, first: int, second: int) -> None:
    _require_nothing_depends_on_what_came_before([_of_batch(name, batch) for batch in (first, first, second, first)])


@pytest.mark.ci
@settings(max_examples=30)
@given(
    st.lists(
        st.builds(_of_batch, st.sampled_from(sorted(STRATEGIES)), st.sampled_from(BATCHES), st.sampled_from([8, 16])),
        max_size=6,
    )
)
def test_no_order_of_configurations_matters(configurations: list[Configuration]) -> None:
    _require_nothing_depends_on_what_came_before(configurations)


def test_a_dry_run_leaves_no_task_behind() -> None:
    async def main() -> set[asyncio.Task[Any]]:
        history = DivergenceHistory()
        strategy, sizes = _of_batch("_beginning_tasks", BATCHES[1])
        for _ in range(3):
            await mt.simulate_async(strategy, fold=history, **sizes)
        return asyncio.all_tasks()

    assert len(asyncio.run(main())) == 1


@pytest.mark.parametrize("name", ["_swallowing", "_waiting_by_batch", "_beginning_tasks", "_failing_by_batch"])
def test_a_dry_run_finds_only_what_the_whole_attempt_would(name: str) -> None:
    strategy, sizes = _of_batch(name, BATCHES[2])
    del sizes["check"]
    predictor = mt.FixedPredictor(forward=1)
    prepared = prepare(strategy, sizes | {"hardware": predictor})
    attempt = FoldAttempt({"world": sizes["world_size"]}, frozenset(), may_change_axes=True)
    assert asyncio.run(find_early_divergence(prepared, attempt)) is None


def test_memory_that_runs_out_in_a_dry_run_is_reported_as_alone() -> None:
    large = {"world_size": 8, "num_layers": 32, "global_batch_size": 8, "pp": 2, "strict_memory": True}
    _require_nothing_depends_on_what_came_before(
        [("pp_dp", large | {"global_batch_size": batch}) for batch in (8, 8, 2**16, 8)]
    )


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("zero3", {}, [1, 1, 1]),
        ("hsdp", {"shard_size": 4}, [1, 1, 1]),
        ("pp_zero1", {"pp": 2}, [1, 2, 2, 2]),
        ("1f1b", {}, [1, 8, 8, 8]),
    ],
    ids=str,
)
def test_an_attempt_that_was_in_vain_is_not_made_again(
    name: str, options: dict[str, Any], expected: list[int], attempts: list[int]
) -> None:
    sizes = {"world_size": 8, "num_layers": 8, "fold": True}
    run_batch([("", (name, {**sizes, **options, "global_batch_size": batch})) for batch in (8, 16, 24)])
    assert attempts == expected


async def _grid_of_stages(model: mt.Model) -> mt.Model:
    """Send along two axes."""
    mesh = model.mesh(a=2, b=2, dp=model.world_size // 4)
    for axis in ("a", "b"):
        before, after = mesh.peer(axis, -1), mesh.peer(axis, 1)
        if before is not None:
            model.activations[axis] = await model.receive(before)
        if after is not None:
            await model.send(after, model.get_input_activation(range(4)))
    return model


def test_of_several_classes_all_are_tried(attempts: list[int]) -> None:
    sizes = {"world_size": 8, "num_layers": 1, "check": False, "fold": True}
    run_batch([("", (_grid_of_stages, {**sizes, "global_batch_size": batch})) for batch in (8, 16, 24)])
    assert attempts == [1, 2, 4, 2, 4, 2, 4]


def test_a_guess_that_did_not_hold_is_given_up(attempts: list[int]) -> None:
    small, large = (_of_batch("_stages_by_batch", batch) for batch in BATCHES[:2])
    run_batch([("", (strategy, sizes | {"fold": True})) for strategy, sizes in (large, large, small, small, large)])
    assert attempts == [1, 2, 2, 1, 1, 1, 2]
