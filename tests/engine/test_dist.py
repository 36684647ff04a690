"""The transport used raw, as a program may: any values, clocks carried as given, and clear errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import CollectiveMismatchError, LawError, StrategyError, TensorTypeError, UsageError
from minitrain.lib import Dist, OptState, Weight, WeightGrad


def on_all_ranks(world_size: int, program: Callable[[Dist, int], Awaitable[Any]], **keywords: Any) -> list[Any]:
    async def main() -> list[Any]:
        dist = Dist(world_size, **keywords)
        return await asyncio.gather(*(program(dist, rank) for rank in range(world_size)))

    return asyncio.run(main())


@dataclass
class Letters:
    """A Reduceable and Gatherable of one's own, whose order shows."""

    text: str

    def __add__(self, other: Letters) -> Letters:
        return Letters(self.text + other.text)

    def combine(self, other: Letters) -> Letters:
        return Letters(f"({self.text}|{other.text})")

    def shard(self, shard: int, num_shards: int) -> Letters:
        size = len(self.text) // num_shards
        return Letters(self.text[shard * size : (shard + 1) * size])

    def is_complete(self) -> bool:
        return True


@given(st.lists(st.tuples(st.integers(), st.integers(0, 100)), min_size=1, max_size=6))
def test_all_reduce_sums_numbers_and_ends_at_the_latest_time(brought: list[tuple[int, int]]) -> None:
    results = on_all_ranks(len(brought), lambda dist, rank: dist.all_reduce(rank, *brought[rank]))
    expected = sum(value for value, _ in brought), max(time for _, time in brought)
    assert results == [expected] * len(brought)


def test_reductions_combine_in_rank_order_whoever_comes_first() -> None:
    async def program(dist: Dist, rank: int) -> Any:
        for _ in range(3 - rank):
            await asyncio.sleep(0)
        reduced = await dist.all_reduce(rank, Letters("abcd"[rank]), 0)
        gathered = await dist.all_gather(rank, Letters("abcd"[rank]), 0)
        return reduced[0].text, gathered[0].text, await dist.reduce_scatter(rank, Letters("abcd"[rank]), rank)

    results = on_all_ranks(4, program)
    assert {result[:2] for result in results} == {("abcd", "(((a|b)|c)|d)")}
    assert [result[2] for result in results] == [(Letters(letter), 3) for letter in "abcd"]


def test_every_rank_gets_a_result_of_its_own() -> None:
    tensors: list[Any] = [WeightGrad(0, 1, frozenset([0]), 1), Letters("a")]

    async def program(dist: Dist, rank: int) -> Any:
        return [(await dist.all_reduce(rank, tensor, 0))[0] for tensor in tensors]

    for first, second in zip(*on_all_ranks(2, program), strict=True):
        assert first == second
        assert first is not second


def test_lists_of_numbers_are_values_that_add_like_any_other() -> None:
    results = on_all_ranks(2, lambda dist, rank: dist.all_reduce(rank, [rank, rank], 0))
    assert results == [([0, 0, 1, 1], 0)] * 2


def test_a_world_of_one_returns_its_input_at_its_own_time() -> None:
    async def program(dist: Dist, rank: int) -> Any:
        value = Weight(0, 1, 0).shard(0, 2)
        for op in (dist.all_reduce, dist.all_gather, dist.reduce_scatter):
            result, time = await op(rank, value, 7)
            assert (result is value, time) == (True, 7)
        return await dist.all_reduce(5, 1, 2)

    assert on_all_ranks(1, program) == [(1, 2)]


@pytest.mark.parametrize("value", [3, None, "text", [1, 2], ("tuple", 4.5), Weight(0, 1, 0)])
def test_any_object_can_be_sent(value: Any) -> None:
    async def program(dist: Dist, rank: int) -> Any:
        return await (dist.send(0, 1, value) if rank == 0 else dist.receive(0, 1))

    assert on_all_ranks(2, program) == [None, value]


def test_receive_waits_for_a_message_that_comes_later() -> None:
    happened: list[str] = []

    async def program(dist: Dist, rank: int) -> Any:
        if rank == 1:
            for _ in range(5):
                await asyncio.sleep(0)
            happened.append("sent")
            return await dist.send(1, 0, "late")
        found = await dist.receive(1, 0)
        happened.append("received")
        return found

    assert on_all_ranks(2, program) == ["late", None]
    assert happened == ["sent", "received"]


@given(st.integers(1, 4), st.integers(1, 12), st.booleans())
def test_messages_come_first_in_first_out_whatever_the_buffer(buffer: int, count: int, unbounded: bool) -> None:
    async def program(dist: Dist, rank: int) -> Any:
        if rank == 0:
            for number in range(count):
                await dist.send(0, 1, number)
        return rank and [await dist.receive(0, 1) for _ in range(count)]

    assert on_all_ranks(2, program, p2p_buffer=None if unbounded else buffer)[1] == list(range(count))


@pytest.mark.parametrize(("buffer", "sent"), [(1, 1), (3, 3), (None, 5)])
def test_a_full_buffer_holds_the_sender_back(buffer: int | None, sent: int) -> None:
    async def main() -> None:
        dist, done = Dist(2, p2p_buffer=buffer), []

        async def sender() -> None:
            for number in range(5):
                await dist.send(0, 1, number)
                done.append(number)

        task = asyncio.ensure_future(sender())
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(done) == sent
        assert [await dist.receive(0, 1) for _ in range(5)] == list(range(5))
        await task

    asyncio.run(main())


def test_tagged_messages_match_their_tag_and_ignore_the_buffer() -> None:
    async def program(dist: Dist, rank: int) -> Any:
        if rank == 0:
            for number in range(4):
                await dist.send(0, 1, number, tag=("even", "odd")[number % 2])
            return await dist.send(0, 1, "plain")
        plain = await dist.receive(0, 1)
        return [plain, *[await dist.receive(0, 1, tag=tag) for tag in ("odd", "even", "even", "odd")]]

    assert on_all_ranks(2, program)[1] == ["plain", 1, 0, 2, 3]


def test_queues_are_made_when_they_are_first_used() -> None:
    async def main() -> None:
        dist = Dist(10_000)
        assert len(dist.queue) == 0
        await dist.send(0, 9_999, "far")
        assert len(dist.queue) == 1
        assert await dist.receive(0, 9_999) == "far"

    asyncio.run(main())


@pytest.mark.parametrize("receiver_waits", [False, True])
def test_the_channel_of_a_tag_is_gone_once_its_messages_are_received(receiver_waits: bool) -> None:
    async def main() -> None:
        dist = Dist(2)
        for number in range(100):
            operations = [dist.send(0, 1, number, tag=number), dist.receive(0, 1, tag=number)]
            await asyncio.gather(*(reversed(operations) if receiver_waits else operations))
            assert not dist.queue
        await dist.send(0, 1, "first", tag="twice")
        await dist.send(0, 1, "second", tag="twice")
        assert await dist.receive(0, 1, tag="twice") == "first"
        assert list(dist.queue) == [(0, 1, "twice")]
        assert await dist.receive(0, 1, tag="twice") == "second"
        assert not dist.queue

    asyncio.run(main())


@pytest.mark.parametrize(
    ("source", "dest", "message"),
    [
        (0, 2, r"dest must be a rank of 0\.\.1, got 2"),
        (0, -1, r"dest must be a rank of 0\.\.1, got -1"),
        (-1, 0, r"source must be a rank of 0\.\.1, got -1"),
        (1.0, 0, r"source must be a rank of 0\.\.1, got 1\.0"),
        (0, True, r"dest must be a rank of 0\.\.1, got True"),
        (0, None, r"dest must be a rank of 0\.\.1, got None"),
        (1, 1, "rank 1 cannot send to itself; keep the tensor"),
    ],
)
def test_a_peer_must_be_another_rank_of_the_world(source: Any, dest: Any, message: str) -> None:
    async def main() -> None:
        dist = Dist(2)
        with pytest.raises(UsageError, match=message):
            await dist.send(source, dest, 1)
        with pytest.raises(UsageError, match=message):
            await dist.receive(source, dest)
        assert not dist.queue

    asyncio.run(main())


@pytest.mark.parametrize("rank", [-1, 2, 7])
def test_a_collective_is_for_ranks_of_the_world(rank: int) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match=rf"rank {rank} is not in the group \(0, 1\)"):
            await Dist(2).all_reduce(rank, 1, 0)

    asyncio.run(main())


def failing(program: Callable[[Dist, int], Awaitable[Any]], world_size: int = 2) -> list[Any]:
    """Return each rank's result or error; all must come to an end."""

    async def main() -> list[Any]:
        dist = Dist(world_size)
        tasks = (program(dist, rank) for rank in range(world_size))
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    return asyncio.run(main())


WEIGHT, STATE, GRAD = Weight(0, 2, 0), OptState(0, 2, 0), WeightGrad(0, 2, frozenset([0]), 2)


@pytest.mark.parametrize(
    ("op", "brought", "kind", "message"),
    [
        ("all_gather", [WEIGHT.shard(0, 2), WEIGHT.shard(0, 2)], LawError, "must together bring every shard"),
        ("all_gather", [STATE.shard(1, 2), STATE.shard(1, 2)], LawError, "must together bring every shard"),
        ("all_gather", [GRAD.shard(1, 2), GRAD.shard(1, 2)], LawError, "must together bring every shard"),
        ("all_gather", [WEIGHT.shard(0, 2), Weight(1, 2, 0).shard(1, 2)], LawError, "same layer, step, num_shards"),
        ("all_gather", [WEIGHT.shard(0, 2), Weight(0, 2, 1).shard(1, 2)], LawError, "same layer, step, num_shards"),
        ("all_gather", [WEIGHT.shard(0, 2), STATE.shard(1, 2)], LawError, "must bring the same kind of tensor"),
        (
            "all_gather",
            [GRAD.shard(0, 2), WeightGrad(0, 2, frozenset([1]), 2).shard(1, 2)],
            LawError,
            "num_shards, and differ in samples; rank 0: WeightGrad.*; rank 1: WeightGrad",
        ),
        ("all_reduce", [GRAD, WeightGrad(1, 2, frozenset([1]), 2)], LawError, "same layer, shards, num_shards"),
        ("all_reduce", [GRAD, WEIGHT], LawError, "rank 0: WeightGrad.*rank 1: Weight"),
        ("all_reduce", [GRAD.shard(0, 2), GRAD.shard(1, 2)], LawError, "same layer, shards, num_shards"),
        ("all_reduce", [WEIGHT, WEIGHT], TensorTypeError, "all_reduce needs values that add .*, got Weight"),
        ("reduce_scatter", [GRAD.shard(0, 2), GRAD.shard(0, 2)], LawError, "must bring complete gradients"),
        ("reduce_scatter", [STATE, STATE], TensorTypeError, "reduce_scatter needs values that add .*, got OptState"),
        ("all_gather", [3, 4], TensorTypeError, "all_gather needs values that combine .*, got int"),
        ("all_gather", [[WEIGHT], [WEIGHT, WEIGHT]], LawError, "must bring buckets of the same length"),
        ("all_reduce", [GRAD, [GRAD]], LawError, "must bring buckets of the same length"),
    ],
)
def test_what_does_not_belong_together_ends_every_rank_with_the_same_error(
    op: str, brought: list[Any], kind: type, message: str
) -> None:
    errors = failing(lambda dist, rank: getattr(dist, op)(rank, brought[rank], 0))
    assert [type(error) for error in errors] in ([kind] * 2, [CollectiveMismatchError] * 2)
    for error in errors:
        assert isinstance(error, AssertionError)
        with pytest.raises(kind, match=message):
            raise error


def test_different_collectives_in_the_same_place_are_a_mismatch_that_says_who_and_where() -> None:
    async def program(dist: Dist, rank: int) -> Any:
        return await (dist.all_gather(rank, WEIGHT, 0) if rank == 2 else dist.all_reduce(rank, 1, 0))

    first, second, third = failing(program, 3)
    assert type(first) is type(second) is type(third) is CollectiveMismatchError
    with pytest.raises(
        CollectiveMismatchError, match=r"must start the same collectives in the same order; .*all_gather \(test_dist.py"
    ):
        raise first
    assert first.ranks == (0, 1, 2)


def test_a_closed_dist_says_why() -> None:
    async def main() -> None:
        dist = Dist(2)
        waiting = asyncio.ensure_future(dist.receive(0, 1))
        await asyncio.sleep(0)
        dist.close(ValueError("first"))
        dist.close(KeyError("second"))
        with pytest.raises(ValueError, match="first"):
            await waiting
        for call in (dist.send(0, 1, 1), dist.receive(0, 1), dist.all_reduce(0, 1, 0)):
            with pytest.raises(StrategyError, match=r"this Dist was closed by an error \(ValueError\); make a new one"):
                await call

    asyncio.run(main())


def test_groups_match_their_own_collectives() -> None:
    async def program(dist: Dist, rank: int) -> Any:
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        mine = await dist.all_reduce(rank, rank, rank, group=pair)
        return mine, await dist.all_reduce(rank, 10 * rank, rank)

    assert on_all_ranks(4, program) == [((1, 1), (60, 3))] * 2 + [((5, 3), (60, 3))] * 2


@pytest.mark.parametrize("ranks", [[], [0, 4], [-1, 0]])
def test_a_group_is_made_of_ranks_of_the_world(ranks: list[int]) -> None:
    with pytest.raises(UsageError, match=r"a group needs ranks of 0\.\.3, at least one; got"):
        Dist(4).communicator(ranks)


def test_cancelling_one_rank_that_waits_spares_the_others() -> None:
    async def main() -> None:
        dist = Dist(3)
        tasks = [asyncio.ensure_future(dist.receive(2, rank)) for rank in (0, 1)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        await dist.send(2, 1, "kept")
        assert await tasks[1] == "kept"
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        again = asyncio.ensure_future(dist.receive(2, 0))
        await dist.send(2, 0, "for the second receive")
        assert await again == "for the second receive"

    asyncio.run(main())
