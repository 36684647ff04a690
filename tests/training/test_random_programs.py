"""Random legal programs, made of the public operations: real processes train what a single device trains."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import cloudpickle  # type: ignore[import-untyped]  # noqa: E402
import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import minitrain as mt  # noqa: E402
from minitrain.proof.problem import Problem  # noqa: E402
from minitrain.run.parameters import split_keywords  # noqa: E402
from minitrain.training.checkpoints import read_checkpoint  # noqa: E402
from minitrain.training.launcher import meeting_place  # noqa: E402
from minitrain.training.program import record  # noqa: E402
from minitrain.training.ranks import Training  # noqa: E402
from minitrain.training.worker import Doing, train_rank  # noqa: E402
from minitrain.workloads.matmul import DenseRows  # noqa: E402

LAYERS, BATCH, STEPS = 4, 16, 1
PROGRAM = f"{Path(__file__).parent / 'random_program.py'}:drawn"

layers = st.fixed_dictionaries(
    {
        "shards": st.sampled_from(["none", "states", "all"]),
        "sums": st.sampled_from(["once", "launched", "halved", "by_mesh"]),
        "splits": st.booleans(),
        "offloads": st.booleans(),
        "meets": st.booleans(),
    }
)
plans = st.fixed_dictionaries(
    {
        "microbatches": st.sampled_from([1, 2]),
        "recompute": st.sampled_from(["none", "full"]),
        "order": st.permutations(range(LAYERS)),
        "layers": st.lists(layers, min_size=LAYERS, max_size=LAYERS),
    }
)


def be_a_rank(rank: int, tasks: Any) -> None:
    """Be one rank in several runs, one after the other, as a pipe says."""
    while (sent := tasks.recv()) is not None:
        train_rank(cloudpickle.loads(sent)[rank], lambda _: None, Doing())
        torch.distributed.destroy_process_group()
        tasks.send("done")


@pytest.fixture(scope="module", params=[2, 4])
def pipes(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Start the ranks but for the first, which is this process."""
    context = multiprocessing.get_context("forkserver")  # spawned, each takes seconds to import torch
    context.set_forkserver_preload([__name__])
    ends = [context.Pipe() for _ in range(1, request.param)]
    processes = [context.Process(target=be_a_rank, args=(rank, end[1])) for rank, end in enumerate(ends, 1)]
    for process in processes:
        process.start()
    yield [end[0] for end in ends]
    for end in ends:
        end[0].send(None)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


@pytest.fixture(scope="module")
def wanted() -> dict[int, tuple[Any, Any]]:
    """Return weights and moments of a single device, by layer."""
    found = mt.simulate("single", world_size=1, num_layers=LAYERS, global_batch_size=BATCH, numerics="numpy")
    model: Any = found.models[0]
    return {k: (weight._content.values, model.final_states[k].values) for k, weight in model.final_weights.items()}


@pytest.mark.few(1)
@given(plan=plans)
@settings(max_examples=5)
def test_random_programs_train_what_a_single_device_trains(
    pipes: list[Any], wanted: dict[int, tuple[Any, Any]], plan: dict[str, Any]
) -> None:
    world_size = len(pipes) + 1
    sizes = {"world_size": world_size, "num_layers": LAYERS, "global_batch_size": BATCH}
    parameters = {**sizes, "workload": DenseRows(Problem().width, 8), "plan": json.dumps(plan)}
    run, options = split_keywords(parameters)
    with tempfile.TemporaryDirectory() as folder, meeting_place() as meeting:
        training = Training(
            strategy=PROGRAM,
            run=run,
            options=options,
            steps=STEPS,
            backend="gloo",
            data=None,
            optimizer=None,
            seed=0,
            dtype="float64",
            numerics="numpy",
            folder=folder,
            checkpoint_every=STEPS,
        )
        program = record(PROGRAM, parameters)
        tasks = [training.task(program, rank, meeting) for rank in range(world_size)]
        for pipe in pipes:
            pipe.send(cloudpickle.dumps(tasks))
        train_rank(tasks[0], lambda _: None, Doing())
        torch.distributed.destroy_process_group()
        assert [pipe.recv() for pipe in pipes] == ["done"] * len(pipes)
        trained = read_checkpoint(Path(folder) / f"step-{STEPS:08d}")
    assert trained.keys() == wanted.keys()
    for layer, contents in trained.items():
        for one, other in zip(contents, wanted[int(layer)], strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=0, atol=1e-10)
