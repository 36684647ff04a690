"""PyTorch's ring attention: what it copies and merges, and what of its exchanges no block hides."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from minitrain.workloads.kernels import FlashAttention, KernelList
from minitrain.workloads.rings import RINGS, exposed_seconds, ring_pass

CORE = FlashAttention(1, 8, num_keys=32, num_heads=4, num_kv_heads=2, key_dim=16, value_dim=16, num_pairs=100)
MODEL = SimpleNamespace(num_heads=8)  # in two parts
BLOCK_BYTES = 2 * 8 * 4 * 16 * 2  # keys and values of a rank's tokens, for all of its heads


def exposed(core: FlashAttention, ring: str, core_s: float) -> float:
    """Return what is exposed where a byte takes a second, of an attention among ranks 0, 2, 4 and 6."""

    def collective(op: str, size_bytes: float, ranks: range) -> Any:
        assert (op, ranks) == ("all_gather", range(0, 8, 2))
        return SimpleNamespace(seconds=size_bytes)

    def p2p(size_bytes: float, source: int, dest: int) -> Any:
        assert (source, dest) == (0, 2)
        return SimpleNamespace(seconds=size_bytes)

    device, topology = SimpleNamespace(kernel_seconds=lambda _: core_s), SimpleNamespace(collective=collective, p2p=p2p)
    return exposed_seconds(KernelList((core,), 1), ring, device, topology, MODEL)


def test_what_is_gathered_at_once_is_hidden_by_the_first_block_alone() -> None:
    assert exposed(CORE, "gathered", 0) == 4 * BLOCK_BYTES
    assert exposed(CORE, "gathered", 4000) == 4 * BLOCK_BYTES - 1000


def test_a_ring_sends_the_heads_of_keys_alone_each_beside_a_block() -> None:
    assert exposed(CORE, "ring", 0) == 3 * BLOCK_BYTES / 2
    assert exposed(CORE, "ring", 4 * (BLOCK_BYTES / 2 - 10)) == pytest.approx(3 * 10)


@pytest.mark.parametrize("ring", RINGS)
def test_the_last_gradient_comes_home_beside_nothing(ring: str) -> None:
    """It is in single precision."""
    heads = 1 if RINGS[ring].gathers else 0.5
    assert exposed(replace(CORE, is_backward=True), ring, 1e9) == pytest.approx(2 * heads * BLOCK_BYTES)


@pytest.mark.parametrize("ring", RINGS)
def test_each_rank_more_merges_once_more(ring: str) -> None:
    def moved(num_ranks: int) -> float:
        return ring_pass(replace(CORE, num_keys=8 * num_ranks), ring).traffic_bytes

    assert moved(5) - moved(4) == moved(4) - moved(3) == RINGS[ring].merged * 8 * 4 * 16
