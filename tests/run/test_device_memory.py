"""A device's memory as allocator and driver count it: `run.device_memory`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import OutOfMemoryError
from minitrain.machine.config import load_config
from minitrain.run.device_memory import (
    CONTEXT_BYTES,
    SEGMENT_BYTES,
    DeviceMemory,
)

WIDE = mt.Transformer(num_layers=2, hidden_size=64, num_heads=4, vocab_size=51200, seq_len=128)


def simulated(strategy: str = "ddp", **changes: Any) -> mt.Run:
    """Return a run of a model whose logits are most of its memory."""
    return mt.simulate(strategy, **{"world_size": 2, "workload": WIDE, "global_batch_size": 64, **changes})


def memory_of(run: mt.Run) -> DeviceMemory:
    """Return the memory of a run that has one."""
    found = run.device_memory
    assert found is not None
    return found


def test_accounts_add_up_to_what_is_taken_of_the_device() -> None:
    memory = memory_of(simulated())
    assert sum(memory.by_kind().values()) == pytest.approx(memory.total_bytes, rel=1e-12)
    assert memory.total_bytes == memory.reserved_bytes + memory.buffer_bytes + CONTEXT_BYTES


def test_the_loss_takes_eight_bytes_a_logit_beside_what_is_held() -> None:
    run = simulated()
    loss = next(event for event in run.logs[0] if event.typ == "loss")
    memory = memory_of(run)
    assert memory.temporary_bytes == 8 * 32 * 128 * 51200
    assert memory.held_bytes == loss.memory
    assert memory.held_bytes < run.peak_memory_bytes < memory.allocated_bytes == run.allocated_bytes


@pytest.mark.parametrize("fold", [False, True])
def test_parts_of_the_head_have_their_share_of_the_logits(fold: bool) -> None:
    run = simulated("megatron", tp=2, microbatch_size=64, fold=fold, platform="components")
    assert memory_of(run).temporary_bytes == 8 * 64 * 128 * 51200 / 2


def test_a_step_whose_peak_is_elsewhere_takes_its_peak() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=4, global_batch_size=2)
    memory = memory_of(run)
    assert (memory.held_bytes, memory.temporary_bytes) == (run.peak_memory_bytes, 0)
    assert memory.allocated_bytes == run.peak_memory_bytes + memory.workspace_bytes + 4 * 5 * 256


def test_what_an_allocator_reserves_is_a_whole_number_of_segments() -> None:
    run = simulated()
    assert run.reserved_bytes is not None
    assert run.allocated_bytes is not None
    assert run.reserved_bytes % SEGMENT_BYTES == 0
    memory = memory_of(run)
    freed = run.allocated_bytes - memory.workspace_bytes - memory.lasting_bytes
    assert 0 <= run.reserved_bytes - run.allocated_bytes - 0.15 * freed < SEGMENT_BYTES


@pytest.mark.parametrize(
    ("platform", "hardware", "mib"),
    [
        ("components", "a100_80g", 2 * 8.125),  # forward's and backward's, of PyTorch
        ("components", "h100_80g_nvl8", 2 * 32),
        ("nemo-h100", "a100_80g", 2 * 8.125 + 4),  # and Transformer Engine's
        ("nemo-h100", "h100_80g_nvl8", 3 * 32),
        ("nemo-h100", "mi300x_192g_8", 2 * 128 + 32),
    ],
)
def test_multiplications_have_a_workspace_of_each_thread_and_library(platform: str, hardware: str, mib: float) -> None:
    memory = memory_of(simulated("megatron", microbatch_size=32, platform=platform, hardware=hardware))
    assert memory.workspace_bytes == mib * 2**20


@pytest.mark.parametrize(("platform", "mib"), [("components", 2 * 32), ("nemo-h100", 2 * 32 + 5 * 32)])
def test_experts_are_multiplied_in_four_streams_of_their_own(platform: str, mib: int) -> None:
    experts = mt.Transformer(
        num_layers=2, hidden_size=64, num_heads=4, vocab_size=512, seq_len=128, num_experts=4, experts_per_token=2
    )
    run = simulated("megatron", workload=experts, microbatch_size=32, platform=platform, hardware="h100_80g_nvl8")
    assert memory_of(run).workspace_bytes == mib * 2**20


def test_the_fullest_device_is_told() -> None:
    run = simulated("1f1b", microbatch_size=8)
    assert memory_of(run).rank == 1  # the last stage has the head


def test_a_run_that_was_read_knows_what_was_needed(tmp_path: Path) -> None:
    run = simulated()
    run.save(tmp_path / "run.jsonl")
    loaded = mt.load_run(tmp_path / "run.jsonl")
    assert (loaded.device_memory, loaded.allocated_bytes, loaded.reserved_bytes) == (None, None, None)
    assert loaded.needed_memory_bytes == run.needed_memory_bytes == memory_of(run).needed_bytes


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "megatron:tp=2,pp=2,microbatch_size=1"])
@pytest.mark.parametrize("changes", [{"log": "summary"}, {"fold": True}, {"strict": True, "fold": False}])
def test_every_way_to_run_needs_the_same(strategy: str, changes: dict[str, Any]) -> None:
    sizes = {"world_size": 8, "global_batch_size": 16}
    run, other = simulated(strategy, fold=False, **sizes), simulated(strategy, **sizes, **changes)
    assert memory_of(other).beside_tensors() == memory_of(run).beside_tensors()
    if "strict" not in changes:  # which counts variables too
        assert other.needed_memory_bytes == run.needed_memory_bytes


# ---- the verdict -----------------------------------------------------------------------------------------------------


def with_memory(usable_bytes: float) -> Any:
    """Return the machine with so much memory that a process may use."""
    system = load_config("h100_80g_nvl8")
    return replace(system, mem1=replace(system.mem1, usable_GiB=usable_bytes / 2**30))


def test_a_transformer_fits_exactly_where_all_that_is_needed_does() -> None:
    needed = simulated().needed_memory_bytes
    assert needed is not None
    assert simulated(hardware=with_memory(needed + 1)).oom is None
    excess = simulated(hardware=with_memory(needed - 1000)).oom
    assert excess is not None
    assert sum(excess.held_bytes.values()) == pytest.approx(needed, rel=1e-12)
    assert excess.held_bytes["context"] == CONTEXT_BYTES


def test_what_is_given_back_or_done_without_need_not_fit() -> None:
    run = simulated()
    memory = memory_of(run)
    assert memory.needed_bytes == run.peak_memory_bytes + sum(memory.beside_tensors().values())
    assert memory.total_bytes > memory.needed_bytes + memory.temporary_bytes / 2
    assert simulated(hardware=with_memory((memory.needed_bytes + memory.total_bytes) / 2)).oom is None


def test_strict_memory_refuses_what_does_not_fit() -> None:
    needed = simulated().needed_memory_bytes or 0.0
    with pytest.raises(OutOfMemoryError, match=r"out of memory on rank 0 .*context"):
        simulated(hardware=with_memory(needed - 1000), strict_memory=True)


def test_machines_of_different_memory_are_judged_as_alone() -> None:
    needed = simulated().needed_memory_bytes or 0.0
    machines = [with_memory(needed + 1), with_memory(needed - 1000), with_memory(needed / 2)]
    priced = mt.price("ddp", world_size=2, workload=WIDE, global_batch_size=64, hardware=machines)
    alone = [simulated(hardware=machine).oom for machine in machines]
    assert list(map(str, priced.oom)) == list(map(str, alone))


def test_other_workloads_are_judged_by_their_tensors_alone() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=4, global_batch_size=2)
    assert run.needed_memory_bytes is None
    assert run.capacity_bytes == 80 * 2**30  # all of it
    assert simulated().capacity_bytes == int(79.11 * 2**30)


def test_a_rank_has_its_share_of_the_logits_of_a_cut_sequence() -> None:
    run = simulated("ring_attention", world_size=4, cp=4, global_batch_size=4, microbatch_size=4)
    assert memory_of(run).temporary_bytes == 8 * 4 * 128 * 51200 / 4
