"""What communication libraries keep on a device: `minitrain.machine.communication_buffers`."""

from __future__ import annotations

from typing import Any

import pytest

import minitrain as mt
from minitrain.machine.communication_buffers import ESTIMATED_BYTES, Communication
from minitrain.machine.config import load_config
from minitrain.machine.platforms import find_platform

MIB = 2**20
MODEL = mt.Transformer(num_layers=4, hidden_size=256, num_heads=8, vocab_size=1024, seq_len=128)


def kept(hardware: str, world_size: int, *groups: range, platform: str = "components", **how: Any) -> float:
    known = Communication(world_size, 0, groups, **how)
    return known.buffer_bytes(load_config(hardware), find_platform(platform)) / MIB


def test_two_a100s_keep_what_was_measured() -> None:
    assert kept("a100_80g", 2, range(2)) == 544  # github.com/NVIDIA/nccl, issue 964


def test_four_a100s_keep_more_than_their_rings_and_less_than_trees_both_ways() -> None:
    proxy, connection = 256, 24 * 12
    assert kept("a100_80g", 4, range(4)) == proxy + 2 * connection
    assert proxy + connection < 688 < kept("a100_80g", 4, range(4))  # the root of a tree, same issue


def test_exchanged_tokens_connect_each_pair_of_a_node() -> None:
    tokens = kept("h100_80g_nvl8", 8, exchanges=[range(8)]) - 256 - 24 * 12  # the communicator of all ranks
    assert tokens == 256 + 7 * 32 * 12
    assert kept("h100_80g_nvl8", 8, exchanges=[range(8)], platform="components:dispatcher=deepep") == 0
    assert tokens * MIB == pytest.approx(3.28e9, rel=0.07)  # issue 1685


def test_b200s_connect_a_pair_by_as_many_channels_as_h100s() -> None:
    b200, h100 = (kept(name, 8, exchanges=[range(8)]) for name in ("b200_192g_nvl8", "h100_80g_nvl8"))
    assert b200 - h100 == 8 * 12  # a ring of all ranks; 32 p2p channels per peer (github.com/NVIDIA/nccl, issue 1646)


def test_a_switch_that_adds_has_memory_for_each_rank() -> None:
    by_size = {size: kept("h100_80g_nvl8", size, range(size)) for size in (2, 4, 8)}
    assert by_size == {2: 544, 4: 544 + 4 * 32, 8: 544 + 8 * 32}
    assert kept("b200_192g_nvl8", 8, range(8)) == 256 + 32 * 12 + 8 * 64  # 32 nvls channels (same issue)


def test_groups_of_one_rank_a_node_have_few_channels() -> None:
    ring = 4 * 20 + 4 * 16 / 8
    assert kept("h100_80g_nvl8", 64, range(0, 64, 8), range(64)) - kept("h100_80g_nvl8", 64, range(64)) == ring


def test_messages_connect_neighbours_of_a_node() -> None:
    near, far = (kept("h100_80g_nvl8", 16, range(16), peers=[peer]) for peer in (1, 8))
    assert near - far == 256 + 32 * 12 - 4 * 16 / 8  # all channels, and larger chunks


def test_megatron_has_a_communicator_more() -> None:
    plain, megatron = (
        kept("h100_80g_nvl8", 8, range(2), platform=platform) for platform in ("components", "nemo-h100")
    )
    assert megatron - plain == kept("h100_80g_nvl8", 8, range(8)) - 8 * 32  # no switch adds such small sums


@pytest.mark.parametrize(("hardware", "bytes_each"), [("mi300x_192g_8", 0.65 * 2**30), ("tpu_v5p", ESTIMATED_BYTES)])
def test_other_libraries_are_estimated(hardware: str, bytes_each: float) -> None:
    found = kept(hardware, 8, range(2), range(0, 8, 2), range(1), peers=[4])
    assert found * MIB == 3 * int(bytes_each)


@pytest.mark.parametrize("world_size", [1, 8])
def test_one_device_communicates_with_none(world_size: int) -> None:
    assert kept("h100_80g_nvl8", world_size, range(1)) == 0


@pytest.mark.parametrize(
    ("options", "groups", "peers"),
    [
        ({"tp": 2, "pp": 2}, [range(2), range(0, 4, 2)], [4]),
        ({"tp": 2, "cp": 2}, [range(2), range(0, 8, 2)], [2]),
        ({"zero": 3}, [range(8)], []),
    ],
)
def test_a_run_has_the_buffers_of_its_groups(options: dict[str, Any], groups: list[range], peers: list[int]) -> None:
    run = mt.simulate(
        "megatron", world_size=8, workload=MODEL, global_batch_size=16, hardware="h100_80g_nvl8", **options
    )
    (rank,) = (model for model in run.class_models if model._rank == 0)
    assert rank is not None
    memory = run.device_memory
    assert memory is not None
    assert memory.buffer_bytes == kept("h100_80g_nvl8", 8, *groups, peers=peers, platform="nemo-h100") * MIB
