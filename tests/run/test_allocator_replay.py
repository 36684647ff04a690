"""The allocator of a run's fullest rank, replayed from its journal."""

from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.lib import Model
from minitrain.machine.caching_allocator import MIN_BLOCK_BYTES, AllocatorSettings
from minitrain.run.allocator_replay import replay
from minitrain.run.device_memory import SEGMENT_BYTES
from minitrain.workloads.workload import USUAL

SIZES: dict[str, Any] = {"world_size": 4, "workload": "gpt2", "seq_len": 256, "global_batch_size": 16}


def _run(strategy: str, **more: Any) -> mt.Run:
    return mt.simulate(strategy, **{"memory_by_kind": True, "check": False} | SIZES | more)


def rounded(size: float) -> float:
    """Return the segments that hold so many bytes, in bytes."""
    return -(-size // SEGMENT_BYTES) * SEGMENT_BYTES


def _slack(run: mt.Run, rank: int) -> int:
    """Return what the engine's account does not count: two gradients within a unit, and the rounding of arrays."""
    workload: Any = run.models[0].runtime_predictor.workload
    work = workload.work(SIZES["global_batch_size"], USUAL)
    largest = max(saved.num_bytes(work) for unit in workload.units for saved in unit.saved if saved.has_gradient)
    return int(2 * largest + 64 * len(run.memory_journals[rank]) * MIN_BLOCK_BYTES)


@pytest.mark.few(3)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp", "1f1b", "zero3_prefetch"])
def test_no_tensor_is_lost_and_none_stays(strategy: str, recompute: str) -> None:
    """The peak is that of the engine's account, which adds up sizes and knows no blocks."""
    run = _run(strategy, recompute=recompute)
    replayed, memory = run.replay_allocator(expandable_segments=True), run.device_memory
    assert replayed is not None
    assert memory is not None
    assert memory.held_bytes < replayed.allocated_bytes
    counted = memory.peak_bytes + memory.temporary_bytes + memory.workspace_bytes
    assert replayed.allocated_bytes <= counted + _slack(run, replayed.rank)
    assert replayed.allocated_bytes <= replayed.reserved_bytes
    assert replayed.fits


def test_expandable_segments_leave_less_unused() -> None:
    run = _run("fsdp", recompute="selective")
    usual, expandable = run.replay_allocator(), run.replay_allocator(expandable_segments=True)
    assert usual is not None
    assert expandable is not None
    assert 0 <= expandable.fragmentation < usual.fragmentation < 0.2


def test_cached_segments_are_given_back_where_room_is_short() -> None:
    run = _run("zero3")
    model, usual = run.models[0], run.replay_allocator()
    assert usual is not None
    short = replay(model, usual.reserved_bytes - 2**20, AllocatorSettings())
    assert short.num_retries > 0
    assert short.reserved_bytes < usual.reserved_bytes or not short.fits
    assert not replay(model, usual.allocated_bytes - 1, AllocatorSettings()).fits


def test_a_devices_reserve_is_the_replayed_one_where_there_are_journals(tmp_path: Path) -> None:
    run, plain = _run("fsdp"), _run("fsdp", memory_by_kind=False, platform="components")
    replayed, memory = run.replay_allocator(), run.device_memory
    assert replayed is not None
    assert memory is not None
    unused = replayed.reserved_bytes - replayed.allocated_bytes
    assert run.reserved_bytes == max(replayed.reserved_bytes, rounded(memory.allocated_bytes + unused))
    assert sum(memory.by_kind().values()) == pytest.approx(memory.total_bytes)
    assert plain.replay_allocator() is None
    assert plain.fragmentation is None
    beside, of = plain.device_memory, plain.models[0].runtime_predictor.workload.model  # type: ignore[attr-defined]
    assert beside is not None
    with_head = of.num_parameters + of.vocab_size * of.hidden_size
    lasting_bytes = 18 * with_head / SIZES["world_size"]
    freed_bytes = beside.allocated_bytes - lasting_bytes - beside.workspace_bytes
    assert beside.reserved_bytes == pytest.approx(beside.allocated_bytes + 0.15 * freed_bytes, rel=2e-3)
    run.save(tmp_path / "run.jsonl")
    assert mt.load_run(tmp_path / "run.jsonl").replay_allocator() is None


@pytest.mark.parametrize("platform", ["nemo-h100", "nanotron", "bloom", "internevo"])
@pytest.mark.parametrize("loads", [True, False])
def test_who_does_not_train_has_neither_totals_nor_arrays_of_an_update(platform: str, loads: bool) -> None:
    async def infer(model: Model) -> Model:
        weights, _, activations, *_ = model.storage()
        for layer in range(model.num_layers if loads else 0):
            weights[layer], _ = model.load_weights(layer)
        activations[0] = model.get_input_activation([0])
        for layer in range(len(weights)):
            activations[layer + 1] = model.forward(layer, activations.pop(layer), weights[layer])
        return model

    run = _run(infer, world_size=1, platform=platform)  # type: ignore[arg-type]  # strategies are functions too
    memory = run.device_memory
    assert memory is not None
    assert memory.allocated_bytes == memory.peak_bytes + memory.workspace_bytes + memory.rounding_bytes


def test_what_a_framework_takes_beside_tensors_comes_on_top_of_a_replay() -> None:
    run = _run("pp_zero1", platform="bloom")
    replayed, memory = run.replay_allocator(), run.device_memory
    assert replayed is not None
    assert memory is not None
    assert memory.allocated_bytes > replayed.reserved_bytes  # by a bucket
    unused = replayed.reserved_bytes - replayed.allocated_bytes
    assert run.reserved_bytes == rounded(memory.allocated_bytes + unused)


def test_multiplications_have_a_workspace_without_a_transformer_too() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=4, global_batch_size=2, memory_by_kind=True)
    replayed = run.replay_allocator()
    assert replayed is not None
    assert run.allocated_bytes == pytest.approx(replayed.allocated_bytes, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"max_split_bytes": 20 * 2**20}, "max_split_bytes must be an integer of at least 20971521"),
        ({"max_split_bytes": 5e7}, "max_split_bytes must be an integer"),
        ({"expandable_segments": "yes"}, "expandable_segments must be True or False, got 'yes'"),
    ],
    ids=str,
)
def test_settings_that_pytorch_refuses_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2).replay_allocator(**settings)


def test_both_print_in_gib() -> None:
    run = _run("fsdp")
    assert str(run.replay_allocator()).startswith("rank 0: ")
    assert str(run.replay_allocator()).endswith("% never allocated")
    memory = run.device_memory
    assert memory is not None
    assert f"{memory.total_bytes / 2**30:.4g} of the device (" in str(memory)
