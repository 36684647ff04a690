"""One strategy, two lives: what real processes train is what a single device trains in a NumPy run, to 1e-10.

All strategies of a size run in the same processes, one after the other: starting them takes longer than training.
Communication need not be compared: a process that does another one than the recorded ends with an error.
"""

from __future__ import annotations

import multiprocessing
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import cloudpickle  # type: ignore[import-untyped]  # noqa: E402
import numpy as np  # noqa: E402

import minitrain as mt  # noqa: E402
from minitrain.proof.problem import Problem  # noqa: E402
from minitrain.run.parameters import split_keywords  # noqa: E402
from minitrain.training.checkpoints import read_checkpoint  # noqa: E402
from minitrain.training.launcher import meeting_place  # noqa: E402
from minitrain.training.program import record  # noqa: E402
from minitrain.training.ranks import Training  # noqa: E402
from minitrain.training.worker import Doing, Task, train_rank  # noqa: E402
from minitrain.workloads.dense_rows import DenseRows  # noqa: E402

BATCH = 16
DIVIDES = {
    "deepseek_like": "experts",
    "gathered_context": "sequences",
    "moe": "experts",
    "ring_attention": "sequences",
}
"""Strategies that real processes refuse, and what they divide."""

NOT_BY = {2: ("pp_hsdp", "single"), 4: ("single",)}
"""What so many ranks are too few or too many for."""

OPTIONS = {"pp_dp": "pp=2", "pp_zero1": "pp=2", "pp_zero3": "pp=2", "pp_hsdp": "pp=2"}


def rank_of_all(rank: int, sent: bytes) -> None:
    """Be one rank in several runs, one after the other."""
    for tasks in cloudpickle.loads(sent):
        task: Task = tasks[rank]
        train_rank(task, lambda _: None, Doing())
        torch.distributed.destroy_process_group()


def trained(names: list[str], world_size: int, folder: Path, **given: Any) -> dict[str, dict[int, Any]]:
    """Return weights and optimizer states after a step of each strategy on real processes, by layer."""
    runs, held = [], ExitStack()
    for name in names:
        run, options = split_keywords({"world_size": world_size, "global_batch_size": BATCH, **given})
        training = Training(
            strategy=name,
            run=run,
            options=options,
            steps=1,
            backend="gloo",
            data=None,
            optimizer=None,
            seed=0,
            dtype="float64",
            numerics="numpy",
            folder=folder / re.sub(r"\W", "_", name),
            checkpoint_every=1,
        )
        program = record(name, {"world_size": world_size, "global_batch_size": BATCH, **given})
        meeting = held.enter_context(meeting_place())
        runs.append([training.task(program, rank, meeting) for rank in range(world_size)])
    context = multiprocessing.get_context("spawn")
    sent = cloudpickle.dumps(runs)
    processes = [context.Process(target=rank_of_all, args=(rank, sent)) for rank in range(1, world_size)]
    for process in processes:
        process.start()
    rank_of_all(0, sent)  # here, so that a debugger and coverage see it
    for process in processes:
        process.join(200)
    held.close()
    assert [process.exitcode for process in processes] == [0] * (world_size - 1)
    return {name: read_checkpoint(next((folder / re.sub(r"\W", "_", name)).iterdir())) for name in names}


def reference(**given: Any) -> dict[int, tuple[Any, Any]]:
    """Return what a single device trains in NumPy, by layer."""
    (model,) = mt.simulate("single", world_size=1, global_batch_size=BATCH, numerics="numpy", **given).models
    found: Any = model
    return {
        layer: (weight._content.values, found.final_states[layer].values)
        for layer, weight in found.final_weights.items()
    }


def require_same(found: dict[str, dict[int, Any]], wanted: dict[int, tuple[Any, Any]]) -> None:
    """Require that weights and moments are the same: the first step of Adam alone hides a wrong scale."""
    for name, layers in found.items():
        assert layers.keys() == wanted.keys(), name
        for layer, contents in layers.items():
            for what, one, other in zip(("weight", "state"), contents, wanted[layer], strict=True):
                np.testing.assert_allclose(one.numpy(), other, rtol=0, atol=1e-10, err_msg=f"{name}, {layer}, {what}")


def names_of(world_size: int) -> list[str]:
    """Return the shipped strategies, with options, that so many ranks can run."""
    names = [name for name in mt.strategies() if name not in DIVIDES and name not in NOT_BY[world_size]]
    return [f"{name}:{OPTIONS[name]}" if name in OPTIONS else name for name in names]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("is_dense", [True, False])
def test_all_shipped_strategies_train_what_a_single_device_trains(
    world_size: int, is_dense: bool, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"num_layers": 8, "workload": DenseRows(Problem().width, 8)}
    if not is_dense:
        given = {"workload": replace(mt.models()["tiny"], num_layers=4)}  # ten units, for eight stages
    found = trained(names_of(world_size), world_size, tmp_path, **given)
    require_same(found, reference(**given))


def test_experts_that_are_whole_are_trained(tmp_path: Path) -> None:
    given = {"workload": "tiny-moe"}
    require_same(trained(["ddp", "zero3", "1f1b"], 2, tmp_path, **given), reference(**given))


@pytest.mark.parametrize("name", DIVIDES)
def test_what_divides_layers_is_refused_before_a_process_starts(name: str) -> None:
    with pytest.raises(mt.UsageError, match="leave out what divides layers, sequences or experts"):
        mt.train(name, workload="tiny-moe" if DIVIDES[name] == "experts" else "tiny", steps=1)
