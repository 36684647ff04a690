"""A device's memory as allocator and driver count it: `run.device_memory`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.run.device_memory import (
    BUFFER_BYTES_A_GROUP,
    CONTEXT_BYTES,
    SEGMENT_BYTES,
    WORKSPACE_BYTES,
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
    assert memory.total_bytes == memory.reserved_bytes + BUFFER_BYTES_A_GROUP + CONTEXT_BYTES


def test_the_loss_takes_eight_bytes_a_logit_beside_what_is_held() -> None:
    run = simulated()
    loss = next(event for event in run.logs[0] if event.typ == "loss")
    memory = memory_of(run)
    assert memory.temporary_bytes == 8 * 32 * 128 * 51200
    assert memory.held_bytes == loss.memory
    assert memory.held_bytes < run.peak_memory_bytes < memory.allocated_bytes == run.allocated_bytes


@pytest.mark.parametrize("fold", [False, True])
def test_parts_of_the_head_have_their_share_of_the_logits(fold: bool) -> None:
    run = simulated("megatron", tp=2, microbatch_size=64, fold=fold)
    assert memory_of(run).temporary_bytes == 8 * 64 * 128 * 51200 / 2


def test_a_step_whose_peak_is_elsewhere_takes_its_peak() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=4, global_batch_size=2)
    memory = memory_of(run)
    assert (memory.held_bytes, memory.temporary_bytes) == (run.peak_memory_bytes, 0)
    assert memory.allocated_bytes == run.peak_memory_bytes + WORKSPACE_BYTES + 4 * 5 * 256


def test_what_an_allocator_reserves_is_a_whole_number_of_segments() -> None:
    run = simulated()
    assert run.reserved_bytes is not None
    assert run.allocated_bytes is not None
    assert run.reserved_bytes % SEGMENT_BYTES == 0
    assert 0 <= run.reserved_bytes - 1.15 * run.allocated_bytes < SEGMENT_BYTES


def test_each_group_of_ranks_has_buffers() -> None:
    alone = memory_of(simulated(world_size=1))
    several = memory_of(simulated("megatron", world_size=8, tp=2, pp=2, microbatch_size=8))
    assert (alone.num_groups, several.num_groups) == (0, 3)  # tensor-parallel, data-parallel, and the pipeline


def test_the_fullest_device_is_told() -> None:
    run = simulated("1f1b", microbatch_size=8)
    assert memory_of(run).rank == 1  # the last stage has the head


def test_a_run_without_models_or_events_says_so(tmp_path: Path) -> None:
    run = simulated()
    run.save(tmp_path / "run.jsonl")
    loaded = mt.load_run(tmp_path / "run.jsonl")
    assert (loaded.device_memory, loaded.allocated_bytes, loaded.reserved_bytes) == (None, None, None)
    with pytest.raises(UsageError, match='log="summary" keeps totals'):
        _ = simulated(log="summary").device_memory
