"""`mt.train` and `minitrain train`: it learns, goes on where it was killed, measures, and ends cleanly when wrong."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.learn import load_exercise
from minitrain.proof.problem import TransformerProblem
from minitrain.proof.units import WHOLE
from minitrain.tensors.index_sets import WHOLE_SEQUENCE
from minitrain.training import checkpoints, ranks
from minitrain.training.calibration import calibration_of
from minitrain.training.layers import Kept
from minitrain.training.measured import measured_run
from minitrain.training.program import record
from minitrain.training.transformer import TransformerNet
from minitrain.workloads.matmul import DenseRows
from minitrain.workloads.transformer_workload import TransformerWorkload
from minitrain.workloads.workload import USUAL
from tests.training.processes import left, marked, minitrain, wait_for
from tests.training.test_calibration import as_if_measured

WRONG = Path(__file__).parent / "wrong_programs.py"


def test_zero3_learns_bytes_and_is_measured() -> None:
    seen: list[int] = []
    run = mt.train("zero3", world_size=2, steps=60, watch=lambda step, _: seen.append(step))
    assert run.losses[0] > 5.4
    assert sum(run.losses[-5:]) / 5 < 3.2
    assert seen == list(range(60))
    assert len(run.step_times) == 60
    assert re.fullmatch(r"measured; half of 59 steps took \S+ \S+ to \S+ \S+", run.sureness)
    assert run.predicted is not None
    rows = [[(event.typ, event.layer, event.samples) for event in log] for log in run.logs]
    assert rows == [[(event.typ, event.layer, event.samples) for event in log] for log in run.predicted.logs]
    assert run.step_time == pytest.approx(sorted(run.step_times[-50:])[24], rel=1e-6)
    for log in run.logs:  # what was not launched is one thing after another
        ends = [event.time + event.duration for event in log]
        assert all(event.time >= end - 1e-6 for event, end in zip(log[1:], ends, strict=False))
    assert min(run.peak_memory_per_rank) > 0
    assert run.summary()["losses"] == list(run.losses)
    told = [account() for account in run.accounts_of_prices().values()]
    assert len(told) >= sum(event.duration > 0 for log in run.logs for event in log)
    assert any(
        each.whole.work_flop and each.rule.startswith("measured; on h100_80g_nvl8 predicted are ") for each in told
    )


@pytest.mark.ci
def test_all_ranks_leave_a_collective_after_the_last_has_come() -> None:
    run = mt.train("ddp", world_size=2, steps=5)
    assert run.predicted is not None
    for events in zip(*run.logs, strict=True):
        if events[0].typ == "all_reduce":
            assert events[0].time == events[1].time
            waits = [event.waited_for for event in events]
            assert waits.count(None) >= 1


def test_a_run_that_was_killed_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    whole = mt.train("zero3", world_size=2, steps=24, checkpoints=tmp_path / "whole", checkpoint_every=5)
    command = [*minitrain(), "train", "zero3", "--world-size", "2", "--steps", "24", "--checkpoint-every", "5"]
    folder = tmp_path / "killed"
    environment = marked(str(tmp_path))
    killed = subprocess.Popen([*command, "--checkpoints", str(folder)], stdout=subprocess.DEVNULL, env=environment)
    try:
        wait_for((folder / "step-00000010" / "minitrain.json").exists)
    finally:
        killed.kill()
        killed.wait()
    again = mt.train("zero3", world_size=2, steps=24, checkpoints=folder, checkpoint_every=5)
    assert again.first_step >= 10 or again.losses == whole.losses
    assert again.losses == whole.losses[again.first_step :]
    wait_for(lambda: not left(str(tmp_path)))


@pytest.mark.ci
@pytest.mark.parametrize(("keep", "steps"), [(2, [4, 5]), (0, [1, 2, 3, 4, 5])])
def test_the_latest_checkpoints_are_kept_and_those_of_other_things_left_alone(
    tmp_path: Path, keep: int, steps: list[int]
) -> None:
    (tmp_path / "step-notes").mkdir()
    mt.train("ddp", world_size=2, steps=5, checkpoints=tmp_path, checkpoint_every=1, keep_latest_k=keep)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(f"step-{n:08}" for n in steps), "step-notes"]
    gone_on = mt.train("ddp", world_size=2, steps=6, checkpoints=tmp_path, checkpoint_every=1, keep_latest_k=keep)
    assert gone_on.first_step == 5


def test_another_strategy_goes_on_from_the_same_checkpoint(tmp_path: Path) -> None:
    mt.train("zero3", world_size=2, steps=4, checkpoints=tmp_path, dtype="float64")
    ddp = mt.train("ddp", world_size=4, steps=8, checkpoints=tmp_path, dtype="float64")
    straight = mt.train("ddp", world_size=1, steps=8, dtype="float64")
    assert ddp.first_step == 4
    assert ddp.losses == pytest.approx(straight.losses[4:], abs=1e-9)


@pytest.mark.ci
def test_parts_of_a_checkpoint_are_not_taken_for_whole_layers(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"workload": "tiny", "world_size": 2, "global_batch_size": 4, "checkpoints": tmp_path}
    mt.train("megatron:tp=2", steps=2, **sizes)
    with pytest.raises(
        mt.UsageError, match=r"has no layer 0, which rank \d loads; go on with the parts that the state is of"
    ):
        mt.train("fsdp", steps=4, **sizes)


@pytest.mark.parametrize("damage", ["cut", "metadata"])
def test_a_damaged_checkpoint_is_told_in_one_line(damage: str, tmp_path: Path) -> None:
    mt.train("ddp", world_size=2, steps=2, checkpoints=tmp_path)
    folder = tmp_path / "step-00000002"
    damaged = folder / ".metadata" if damage == "metadata" else next(folder.glob("*.distcp"))
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(mt.UsageError, match=r"the checkpoint \S+step-00000002 cannot be read: .+; remove it") as caught:
        mt.train("ddp", world_size=2, steps=4, checkpoints=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_the_system_keeps_is_not_told_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    mt.train("ddp", world_size=2, steps=2, checkpoints=tmp_path)
    monkeypatch.setattr(checkpoints, "read_json", keep)
    with pytest.raises(mt.UsageError, match="Permission denied; make it readable, or give another folder"):
        mt.train("ddp", world_size=2, steps=4, checkpoints=tmp_path)
    monkeypatch.undo()
    metadata = tmp_path / "step-00000002" / ".metadata"
    metadata.unlink()
    metadata.mkdir()  # even root cannot read it
    with pytest.raises(mt.UsageError, match="Is a directory; make it readable, or give another folder"):
        mt.train("ddp", world_size=2, steps=4, checkpoints=tmp_path)


@pytest.mark.ci
def test_chains_of_launched_collectives_train_the_same() -> None:
    run = mt.train(f"{WRONG}:chained", world_size=4, steps=4, dtype="float64")
    assert run.losses == pytest.approx(mt.train("ddp", world_size=1, steps=4, dtype="float64").losses, abs=1e-12)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    mt.train("ddp", world_size=2, steps=2, checkpoints=tmp_path)
    with pytest.raises(mt.UsageError, match="has 2 steps already; ask for more in all, got 2"):
        mt.train("ddp", world_size=2, steps=2, checkpoints=tmp_path)
    with pytest.raises(mt.UsageError, match=r"is of another run .seed 0 there and 1 here"):
        mt.train("ddp", world_size=2, steps=4, seed=1, checkpoints=tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "mpi"}, "backend must be gloo or nccl, got 'mpi'"),
        ({"dtype": "int8"}, "dtype must be float32 or float64 or bfloat16, got 'int8'"),
        ({"steps": 0}, "steps"),
        ({"patience": math.nan}, "patience must be a positive number of seconds, got nan"),
        ({"data": "/no/such/file"}, "No such file"),
        ({"keep_latest_k": -1}, "keep_latest_k must be an integer of at least 0, got -1"),
        ({"checkpoints": "/dev/null/no"}, "checkpoints cannot be written into /dev/null/no: Not a directory"),
        ({"data": ["short"]}, "at least 64 bytes to learn from, got 5"),
        ({"workload": "dense"}, "real processes train dense layers and transformers"),
    ],
)
def test_bad_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.train("ddp", **given)


def test_more_ranks_than_the_machine_is_made_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(mt.UsageError, match=r"17 processes are too many for the 2 cores here.*--force"):
        mt.train("ddp", world_size=17, global_batch_size=17)


def test_a_model_that_does_not_fit_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "free_bytes", lambda: 2**29)
    said = r"2 processes need 0\.\d\d GiB \(0\.00 GiB of tensors on the largest, as simulated, .* 0.50 GiB"
    with pytest.raises(mt.UsageError, match=said) as found:
        mt.train("ddp", steps=1)
    predicted = mt.simulate("ddp", world_size=2, num_layers=4, global_batch_size=64, workload=DenseRows(256, 4))
    tensors = sum(predicted.peak_memory_per_rank) * 4
    assert found.value.needed_bytes == tensors + 2 * ranks.PROCESS_BYTES
    assert mt.train("ddp", steps=1, force=True).losses


def test_free_memory_is_some_of_the_machines() -> None:
    free = ranks.free_bytes()
    assert free is None or 2**24 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")


def test_a_world_size_that_torchrun_does_not_match_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(mt.UsageError, match="torchrun has started 2 ranks, and world_size is 4; leave it out"):
        mt.train("ddp", world_size=4)


def at_a_free_port() -> list[str]:
    """Return where nodes of torchrun meet on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return ["--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1])]


@pytest.mark.ci
@pytest.mark.parametrize("what", ["program", "code"])
def test_nodes_with_different_code_are_refused(what: str, tmp_path: Path) -> None:
    """One node has a strategy with a line more."""
    more = {"code": "", "program": "    await model.barrier()\n"}[what]
    where = at_a_free_port()
    source = (WRONG.parent / "wrong_programs.py").read_text(encoding="utf-8")
    nodes = []
    for node in range(2):
        path = tmp_path / str(node) / "mine.py"
        path.parent.mkdir()
        begin = "async def mine(model: Model) -> Model:\n"
        path.write_text(
            f"{source}\n\n{begin}{more if node else ''}    return await ddp(model)  # {node}\n", encoding="utf-8"
        )
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), *where]
        told = ["--nproc-per-node", "1", "-m", "minitrain", "train", "mine.py:mine", "--steps", "2"]
        nodes.append(
            subprocess.Popen([*command, *told], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=path.parent)
        )
    said = [node.communicate(timeout=200)[0].decode() for node in nodes]
    assert all(node.returncode for node in nodes)
    assert any(re.search(what + r" \w{12} on ranks \[0\], \w{12} on ranks \[1\]", each) for each in said)


@pytest.mark.ci
def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    where = at_a_free_port()
    told = ["-m", "minitrain", "train", "zero3", "--steps", "4", "--json"]
    nodes = [
        subprocess.Popen([*command, "--node-rank", str(node), *where, *told], stdout=subprocess.PIPE, cwd=tmp_path)
        for node in range(2)
    ]
    said = [node.communicate(timeout=200)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert json.loads(said[0])["losses"] == list(mt.train("zero3", world_size=2, steps=4).losses)
    assert said[1] == b""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("sleeps", r"minitrain: rank 1 has done nothing for \d+ s of step 0: after "),
        pytest.param(
            "sleeps_in_loop",
            r"minitrain: rank 1 has done nothing for \d+ s of step 0: at its beginning",
            marks=pytest.mark.slow,
        ),
        ("raises", "minitrain: KeyError: 'oops'"),
        ("killed", r"exitcode: -9\) local_rank: 1"),
        pytest.param("stops", "minitrain: rank 1 was stopped by a signal in step 0", marks=pytest.mark.slow),
        pytest.param(
            "lets_nothing_run",
            r"minitrain: rank 1 has not answered for \d+ s: it is stopped, or in code that lets nothing",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rank_that_fails_under_torchrun_ends_all(name: str, cause: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *at_a_free_port()]
    told = ["-m", "minitrain", "train", f"{Path(__file__).parent / 'wrong_programs.py'}:{name}", "--patience", "1"]
    began = time.monotonic()
    ended = subprocess.run(
        [*command, *told],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert ended.returncode
    assert time.monotonic() - began < 40  # of which most is importing torch, and torchrun's own pace
    assert re.search(cause, ended.stderr), ended.stderr


def test_the_command_prints_losses_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calibration_of([as_if_measured(name, 256) for name in ("ddp", "zero3", "1f1b", "gpipe")], 2).write(
        tmp_path / "this_machine.json"
    )
    options = "--world-size 2 --steps 5 --html page.html --out run.jsonl --contribute there"
    predicted = "--hardware this_machine.json --against predicted"
    said = _said(["train", "gpipe", *options.split(), *predicted.split()])
    assert "gpipe on 2 processes (gloo" in said
    begun, ended = map(float, re.findall(r"loss (\d\.\d+) to (\d\.\d+) ", said)[0])
    assert ended < begun - 0.5
    assert 5 < begun < 6.5  # what chance gives, log 256 = 5.55, and above; the text to learn is code that changes
    assert re.search(r"measured takes \S+ ms a step, predicted \S+ ms", said)
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert mt.load_run(tmp_path / "run.jsonl").step_time > 0
    assert re.search(
        r"[01] of 1 measured times lie in their intervals of 80 %", _said(["validate", "--table", "there"])
    )


def test_the_command_trains_by_a_file_that_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("from strategies.ddp import ddp\n\n\nclass Sizes:\n    steps = 2\n")
    mine = "import beside\nfrom beside import Sizes\n\n\nasync def mine(model):\n    assert Sizes.steps == 2\n"
    (tmp_path / "mine.py").write_text(f"{mine}    return await beside.ddp(model)\n")
    said = _said(["train", str(tmp_path / "mine.py"), "--world-size", "2", "--steps", "2", "--json"])
    assert json.loads(said)["losses"] == list(mt.train("ddp", world_size=2, steps=2).losses)


def _said(command: list[str]) -> str:
    """Return what a command prints in this process, which has torch already."""
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_programs_are_the_same_wherever_they_are_simulated() -> None:
    digests = {record("fsdp", {"world_size": 4, "num_layers": 4}).digest for _ in range(2)}
    assert len(digests) == 1
    assert record("ddp", {"world_size": 4, "num_layers": 4}).digest not in digests


def test_a_measured_peak_is_at_least_what_stores_held_so_that_the_run_is_read(tmp_path: Path) -> None:
    run = mt.train("ddp", world_size=1, num_layers=2, global_batch_size=4, steps=2)
    seen = run.recorded
    assert seen is not None
    late = [replace(each, most_bytes=0) for each in seen._times]  # all of it was freed by the step before
    again = measured_run(seen._program, late, run.losses, run.backend, "cpu", run.versions)
    assert again.peak_memory == max(event.memory for event in again.events) > 0
    again.save(tmp_path / "run.jsonl")
    assert mt.load_run(tmp_path / "run.jsonl").peak_memory == again.peak_memory


@pytest.mark.ci
def test_measured_memory_is_what_is_predicted() -> None:
    """Of so small runs within 12 %, and of the same kinds; what torch and gloo hold for themselves is in it."""
    model = replace(mt.models()["tiny"], hidden_size=128, ffn_hidden_size=384, head_dim=16, seq_len=64)
    for name, workload in (("ddp", "matmul"), ("zero3", "matmul"), ("ddp", model), ("1f1b", model)):
        given: dict[str, Any] = {"num_layers": 8} if workload == "matmul" else {"workload": workload}
        run = mt.train(name, world_size=2, global_batch_size=16, steps=3, **given)
        assert run.predicted is not None
        for measured, predicted in zip(run.peak_memory_per_rank, run.predicted.peak_memory_per_rank, strict=True):
            assert measured == pytest.approx(predicted, rel=0.12)
        assert min(run.process_bytes) > 10 * max(run.peak_memory_per_rank)
        assert run.memory_by_kind is not None
        assert sum(run.memory_by_kind.values()) == pytest.approx(run.peak_memory_bytes, rel=0.01)
        assert run.memory_by_kind["buffers"] < 2**21  # of gloo
        for kind, size_bytes in (run.predicted.memory_by_kind or {}).items():
            # at the peak a gradient has just come or is just about to
            assert abs(run.memory_by_kind[kind] - size_bytes) < 0.1 * run.peak_memory_bytes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "layernorm", "mlp": "gelu", "positions": "learned", "bias": True, "num_kv_heads": 8},
        {"num_kv_heads": 8, "mlp": "relu", "window": 16},
    ],
)
def test_layers_keep_what_memory_counts(changes: dict[str, Any]) -> None:
    """What autograd has saved of a layer, each storage once, but for a norm's statistics and rotary angles."""
    model = replace(mt.models()["tiny"], **{"precision": "fp32", **changes})
    workload = TransformerWorkload(model)
    net = TransformerNet(TransformerProblem(model, seq_len=model.seq_len))
    positions = net.positions(WHOLE_SEQUENCE)
    x = net.inputs(range(4), positions, 4, 0)
    for layer, unit in enumerate(workload.units):
        kept = Kept()
        weight = net.initial_weight(layer, WHOLE).float()
        made = kept.forward(lambda *given, own=net.layers[layer]: own(*given, positions), weight, x)
        if 0 < layer < len(workload.units) - 1:  # the head's logits are its output
            storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()}
            for tensor in kept._saved.tensors:
                storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            counted = workload.kept_elements(layer, 4, USUAL)
            assert counted <= sum(storages.values()) < 1.03 * counted, unit.name
        x = made


@pytest.mark.slow
def test_recomputation_frees_what_it_computes_again() -> None:
    tiny = replace(mt.models()["tiny"], num_layers=12)
    none, full = (
        mt.train(f"zero3:recompute={how}", workload=tiny, global_batch_size=32, steps=2) for how in ("none", "full")
    )
    assert full.losses == none.losses
    assert max(full.peak_memory_per_rank) < 0.5 * max(none.peak_memory_per_rank)


@pytest.mark.ci
def test_a_submission_is_trained_and_compared_with_its_prediction(tmp_path: Path) -> None:
    exercise = load_exercise("05")
    shutil.copy(exercise.folder / "reference.py", tmp_path / "05_zero3.py")
    command = [*minitrain(), "learn", "run", "05", "--processes", "2", "--steps", "40"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    found = re.search(r"zero3 on 2 processes .*: 40 steps.*\nloss (\S+) to (\S+) ", said)
    assert found is not None
    first, last = map(float, found.groups())
    assert first > 5.4
    assert last < 3.6
    assert re.search(r"measured takes .* a step, predicted .*: .* longer", said)
