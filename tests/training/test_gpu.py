"""A rank on a GPU trains what it trains on a CPU, without a wait within the step, and in the memory that is predicted.

Skipped where there is no GPU. Ranks that share one meet by nccl's sockets, which shows what they do and not how fast.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import minitrain as mt  # noqa: E402
from minitrain.proof.problem import Problem  # noqa: E402
from minitrain.run.parameters import split_keywords  # noqa: E402
from minitrain.training import layers, worker  # noqa: E402
from minitrain.training.launcher import meeting_place  # noqa: E402
from minitrain.training.measured import MeasuredRun, measured_run  # noqa: E402
from minitrain.training.program import record  # noqa: E402
from minitrain.training.ranks import Training  # noqa: E402
from minitrain.training.worker import Doing, train_rank  # noqa: E402
from minitrain.workloads.matmul import DenseRows  # noqa: E402
from tests.training.processes import left, marked, minitrain, wait_for  # noqa: E402
from tests.training.test_conformance import DIVIDES, divided, names_of, reference, require_same, trained  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

DENSE: dict[str, Any] = {"num_layers": 8, "workload": DenseRows(Problem().width, 8)}
NOT_ALONE = ("chimera", "pp_dp:pp=2", "pp_hsdp", "pp_zero1:pp=2", "pp_zero3:pp=2")
ALONE = [name for name in names_of(2) if name not in NOT_ALONE] + [
    "single",
    "fsdp:offload=activations",
    "fsdp:offload=optimizer",
    "zero3:recompute=full",
    "zb_h1:microbatch_size=2",
]
OWN: dict[str, Any] = {
    "dense": {"num_layers": 4, "workload": DenseRows(1024), "global_batch_size": 64},
    "transformer": {
        "workload": replace(mt.models()["tiny"], hidden_size=256, ffn_hidden_size=768, head_dim=32, seq_len=256),
        "global_batch_size": 16,
    },
}


def run_here(strategy: str, steps: int = 3, dtype: str = "float32", **given: Any) -> MeasuredRun:
    """Return a run of one rank in this process."""
    given = {"world_size": 1, "precision": "fp32" if dtype == "float32" else "bf16", **given}
    if isinstance(given["workload"], DenseRows):
        del given["precision"]
    run, options = split_keywords(given)
    others: dict[str, Any] = dict.fromkeys(("data", "optimizer", "numerics", "folder"))
    training = Training(strategy, run, options, steps, "nccl", seed=0, dtype=dtype, checkpoint_every=steps, **others)
    program, losses = record(strategy, given), []
    with meeting_place() as meeting:
        task = training.task(program, 0, meeting)
        times = train_rank(task, lambda told: losses.append(told[2]) if told[0] == "step" else None, Doing())
    torch.distributed.destroy_process_group()
    return measured_run(program, [times], losses, "nccl", torch.cuda.get_device_name(), {})


@pytest.mark.parametrize("given", [DENSE, {"workload": "tiny"}], ids=["dense", "tiny"])
def test_all_strategies_of_one_rank_train_what_a_single_device_trains(given: dict[str, Any], tmp_path: Path) -> None:
    require_same(trained(ALONE, 1, tmp_path, backend="nccl", steps=2, **given), trained_alone(tmp_path, given))


def trained_alone(folder: Path, given: dict[str, Any]) -> Any:
    """Return what two steps on the CPU train."""
    (found,) = trained(["single"], 1, folder / "cpu", steps=2, **given).values()
    return {key: tuple(map(torch.Tensor.numpy, both)) for key, both in found.items()}


def test_ranks_that_share_a_gpu_train_what_a_single_device_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    names = ["ddp", "zero2", "fsdp", "1f1b", "zb_h1"]
    require_same(trained(names, 2, tmp_path, backend="nccl", **DENSE), reference(**DENSE))


def test_what_is_divided_among_ranks_of_a_gpu_is_trained_as_on_a_single_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    wanted, model = reference(workload="tiny"), mt.models()["tiny"]
    found = trained(list(DIVIDES[2]["tiny"]), 2, tmp_path, backend="nccl", workload="tiny")
    for name, held in found.items():
        require_same({name: held}, {key: divided(wanted, str(key), model) for key in held})


@pytest.mark.parametrize("kind", ["dense", "transformer"])
@pytest.mark.parametrize(
    "strategy", ["ddp", "zero3", "fsdp:offload=activations", "fsdp:offload=optimizer", "zero3:recompute=full"]
)
def test_nothing_waits_for_the_gpu_within_a_step(strategy: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step_of = worker._step

    async def step(task: Any, model: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            await step_of(task, model)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    run_here(strategy, **OWN[kind])  # what is made once is there now
    monkeypatch.setattr(worker, "_step", step)  # weights are there before a step begins: loading them may wait
    monkeypatch.setattr(layers.Arithmetic, "load_weights", waiting(layers.Arithmetic.load_weights))
    assert run_here(strategy, **OWN[kind]).losses


def waiting(load: Any) -> Any:
    """Return a method that may wait."""

    def loads(*given: Any) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        found = load(*given)
        torch.cuda.set_sync_debug_mode("error")
        return found

    return loads


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp:offload=activations", "fsdp:offload=optimizer"])
def test_measured_memory_of_a_gpu_is_what_is_predicted(strategy: str) -> None:
    run_here("ddp", **OWN["dense"])  # what cuBLAS takes once is there now
    run = run_here(strategy, **OWN["dense"])
    assert run.predicted is not None
    assert run.peak_memory_bytes == pytest.approx(run.predicted.peak_memory_bytes, rel=0.15)
    assert run.memory_by_kind is not None
    assert sum(run.memory_by_kind.values()) == pytest.approx(run.peak_memory_bytes, rel=0.01)


def test_16_bits_learn_as_32_do() -> None:
    kind: dict[str, Any] = {**OWN["transformer"], "steps": 20}
    single, half = (list(run_here("zero3", dtype=dtype, **kind).losses) for dtype in ("float32", "bfloat16"))
    assert half[-1] < half[0] - 1
    assert half == pytest.approx(single, rel=0.03)


def test_copies_to_the_host_pass_beside_what_computes() -> None:
    large: dict[str, Any] = {"num_layers": 8, "workload": DenseRows(2048), "global_batch_size": 8192}
    run = run_here("fsdp:offload=activations", steps=6, **large)
    (log,) = run.logs
    copies = [(event.time, event.time + event.duration) for event in log if event.typ == "offload"]
    forwards = [(event.time, event.time + event.duration) for event in log if event.typ == "forward"]
    beside = sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in copies for since, until in forwards)
    assert beside > 0.5 * sum(end - begin for begin, end in forwards)  # a copy takes longer than a forward here


def test_a_run_on_a_gpu_goes_on_from_its_checkpoint_as_after_a_kill(tmp_path: Path) -> None:
    given: dict[str, Any] = {"world_size": 1, "backend": "nccl", "checkpoint_every": 5}
    whole = mt.train("zero3", steps=12, **given)
    assert whole.losses[-1] < whole.losses[0]
    assert whole.hardware == torch.cuda.get_device_name()
    first = mt.train("fsdp:offload=optimizer", steps=6, checkpoints=tmp_path, **given)
    then = mt.train("zero3", steps=12, checkpoints=tmp_path, **given)
    assert then.first_step == 6
    assert [*first.losses, *then.losses] == pytest.approx(list(whole.losses), rel=1e-4)


def test_ctrl_c_leaves_no_process_on_the_gpu(tmp_path: Path) -> None:
    environment = {**marked(str(tmp_path)), "PYTHONUNBUFFERED": "1"}
    command = [*minitrain(), "train", "ddp", "--world-size", "1", "--backend", "nccl", "--steps", "1000000"]
    checkpoints = ["--checkpoints", str(tmp_path / "there"), "--checkpoint-every", "10"]
    running = subprocess.Popen([*command, *checkpoints], env=environment, stderr=subprocess.PIPE)
    try:
        wait_for((tmp_path / "there" / "step-00000010" / "minitrain.json").exists)
        running.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert running.wait(timeout=30) != 0
        assert time.monotonic() - began < 15
    finally:
        running.kill()
    wait_for(lambda: not left(str(tmp_path)))


def test_more_ranks_than_gpus_are_refused() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(mt.UsageError, match=f"a GPU for each rank, and here are {count} for {count + 1}"):
        mt.train("ddp", world_size=count + 1, backend="nccl", global_batch_size=count + 1)
    assert "LOCAL_RANK" not in os.environ
