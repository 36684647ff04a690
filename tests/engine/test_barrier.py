"""The barrier: nobody passes early, everybody passes, and it can be used again at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minitrain.errors import LawError, UsageError
from minitrain.lib import Barrier


def test_nobody_passes_before_everybody_has_arrived() -> None:
    passed: list[int] = []

    async def rank(barrier: Barrier, number: int) -> None:
        await barrier.wait(number)
        passed.append(number)

    async def main() -> None:
        barrier = Barrier(3)
        early = [asyncio.ensure_future(rank(barrier, number)) for number in (2, 0)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert (passed, barrier.counter, barrier.target) == ([], 2, 3)
        await rank(barrier, 1)
        await asyncio.gather(*early)
        assert barrier.counter == 0

    asyncio.run(main())
    assert sorted(passed) == [0, 1, 2]


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_it_can_be_used_again_at_once_with_or_without_reset(world_size: int, resets: bool) -> None:
    trail: list[tuple[int, int]] = []

    async def rank(barrier: Barrier, number: int) -> None:
        for turn in range(4):
            await barrier.wait(number)
            if resets and number == 0:
                await barrier.reset()
            trail.append((turn, number))

    async def main() -> None:
        barrier = Barrier(world_size)
        await asyncio.gather(*(rank(barrier, number) for number in range(world_size)))
        assert barrier.counter == 0

    asyncio.run(asyncio.wait_for(main(), 5))
    assert [turn for turn, _ in trail] == sorted(turn for turn, _ in trail)


def test_reset_waits_for_the_round_in_progress() -> None:
    async def main() -> None:
        barrier = Barrier(2)
        waiting = asyncio.ensure_future(barrier.wait(0))
        await asyncio.sleep(0)
        resetting = asyncio.ensure_future(barrier.reset())
        await asyncio.sleep(0)
        assert not resetting.done()
        await barrier.wait(1)
        await asyncio.gather(waiting, resetting)
        assert barrier.counter == 0

    asyncio.run(main())


def test_a_rank_that_waits_already_cannot_arrive_again() -> None:
    async def main() -> None:
        barrier = Barrier(2)
        waiting = asyncio.ensure_future(barrier.wait(0))
        await asyncio.sleep(0)
        with pytest.raises(LawError, match="rank 0 waits at this barrier already; each rank arrives once"):
            await barrier.wait(0)
        await barrier.wait(1)
        await waiting

    asyncio.run(main())


@pytest.mark.parametrize("target", [0, -2, 1.0, True, None])
def test_the_target_must_be_a_count(target: Any) -> None:
    with pytest.raises(UsageError, match="target must be an integer of at least 1, got"):
        Barrier(target)
