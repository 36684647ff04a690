"""A second transport drives strategies unchanged: it has what `minitrain.engine.protocol` asks for and no
more.

Each rank has a transport of its own, as processes would. The ranks share only a network that carries values and clocks,
here a `Dist`. Every call is settled alone, by its own rank, without a look at the calls of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import minitrain as mt
from minitrain.engine.protocol import Call, ProcessGroup, Transport, Waiter, Waiters
from minitrain.lib import Activation, Dist, Model, WeightGrad
from minitrain.machine.config import SPECIFIED
from minitrain.machine.predictor import RuntimePredictor

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 8}


def forwarded(name: str) -> Any:
    """Return an attribute that is another call's."""
    return property(lambda self: getattr(self.call, name), lambda self, value: setattr(self.call, name, value))


class NetworkCall(Call):
    """A rank's call on the network, which settles the rank's own call alone."""

    __slots__ = ("call",)

    op, rank, value, clock, detail = map(forwarded, ("op", "rank", "value", "clock", "detail"))
    settled, outcome, error, waiters = map(forwarded, ("settled", "outcome", "error", "waiters"))

    def __init__(self, call: Call) -> None:
        self.call = call

    @staticmethod
    def settle_all(calls: Sequence[Any], results: Sequence[Any], *common: Any) -> None:
        for own, result in zip(calls, results, strict=True):
            own.call.settle_all([own.call], [result], *common)

    def sent_bytes(self) -> int:
        return self.call.sent_bytes()

    def deliver(self, value: Any, sent: float) -> None:
        self.call.deliver(value, sent)

    def describe(self) -> str:
        return self.call.describe()


class OwnGroup(ProcessGroup):
    """One rank's side of a group: what the members share on the network, and a stream of its own."""

    def __init__(self, transport: OwnTransport, shared: ProcessGroup) -> None:
        super().__init__(shared.ranks, is_world=shared.is_world)
        self.transport = transport
        self.shared = shared

    def join(self, index: int, call: Call) -> None:
        self.transport.record(call.op, self.ranks)
        self.shared.join(index, NetworkCall(call))


class OwnTransport:
    """The transport of one rank, which writes down what its model asks for."""

    def __init__(self, network: Dist, rank: int) -> None:
        self.network = network
        self.rank = rank
        self.asked: list[tuple[Any, ...]] = []
        self._groups: dict[tuple[int, ...], OwnGroup] = {}

    def record(self, *what: Any) -> None:
        self.asked.append(what)

    def _own(self, shared: ProcessGroup) -> OwnGroup:
        return self._groups.setdefault(shared.ranks, OwnGroup(self, shared))

    @property
    def world_size(self) -> int:
        return self.network.world_size

    @property
    def world(self) -> OwnGroup:
        return self._own(self.network.world)

    def communicator(self, ranks: Iterable[int]) -> OwnGroup:
        return self._own(self.network.communicator(ranks))

    def communicator_along(self, lowest: int, axes: tuple[tuple[int, int], ...]) -> OwnGroup:
        return self._own(self.network.communicator_along(lowest, axes))

    def channel(self, source: int, dest: int, tag: Any = None) -> Any:
        self.record("send" if source == self.rank else "recv", source, dest, tag)
        return self.network.channel(source, dest, tag)

    def put(self, channel: Any, call: Call) -> None:
        self.network.put(channel, NetworkCall(call))

    def get(self, channel: Any, call: Call) -> None:
        self.network.get(channel, NetworkCall(call))

    def mark_unreceived(self, call: Any) -> None:
        self.network.mark_unreceived(call)

    def hold(self, call: Call) -> None:
        self.network.hold(call)

    def release(self, call: Call) -> None:
        self.network.release(call)

    def carry_out_soon(self, go_on: Callable[[], None]) -> None:
        self.network.carry_out_soon(go_on)

    def suspend(self, call: Call) -> Waiter:
        return self.network.suspend(call)

    def wake(self, waiters: Sequence[Waiters]) -> None:
        self.network.wake(waiters)


def driven(strategy: Any, world_size: int, num_layers: int, global_batch_size: int) -> list[Model]:
    """Run a strategy with a transport for each rank, and return the models."""
    network = Dist(world_size)
    transports: list[Transport] = [OwnTransport(network, rank) for rank in range(world_size)]
    predictor = RuntimePredictor(world_size)
    models = [
        Model(rank, cast(Dist, transport), num_layers, global_batch_size, runtime_predictor=predictor)
        for rank, transport in enumerate(transports)
    ]

    async def everybody() -> None:
        await asyncio.gather(*map(strategy, models))

    asyncio.run(everybody())
    return models


@pytest.mark.parametrize("name", ["ddp", "zero3", "zero3_prefetch", "hsdp", "1f1b", "interleaved_1f1b", "zbv"])
def test_ranks_that_settle_their_own_calls_log_what_simulate_does(name: str) -> None:
    models = driven(mt.strategies()[name], **SIZES)
    run = mt.simulate(name, hardware=SPECIFIED, **SIZES)
    assert [list(model.log) for model in models] == [list(log) for log in run.logs]
    assert [model.time for model in models] == [model.time for model in run.models]
    Model.check(models)


async def chained(model: Any) -> Any:
    """Give results of launched operations to others."""
    mesh = model.mesh(outer=2, inner=2)
    grad = WeightGrad(0, 8, frozenset([model.rank]), 8)
    shard = model.launch(model.reduce_scatter(grad, 0, group=mesh.group("inner")))
    total = model.launch(model.all_reduce(shard, 0, group=mesh.group("outer")))
    sent = model.launch(model.send((model.rank + 1) % 4, total))
    whole = model.launch(model.all_gather(total, 0, group=mesh.group("inner")))
    await model.receive((model.rank - 1) % 4)
    await sent
    await whole
    return model


def test_chains_of_ranks_that_settle_their_own_calls_log_what_simulate_does() -> None:
    models = driven(chained, **SIZES)
    run = mt.simulate(chained, hardware=SPECIFIED, check=False, **SIZES)
    assert [list(model.log) for model in models] == [list(log) for log in run.logs]


async def exchange(model: Any) -> Any:
    """Exchange activations of sizes that differ between ranks."""
    pieces = [Activation(0, 2, frozenset(range(model.rank + 1)), 8) for _ in range(model.world_size)]
    received = await model.all_to_all(pieces, 0)
    assert [len(piece.samples) for piece in received] == [1, 2, 3, 4]
    return model


def test_an_exchange_is_priced_by_what_the_largest_member_sends() -> None:
    models = driven(exchange, **SIZES)
    run = mt.simulate(exchange, hardware=SPECIFIED, check=False, **SIZES)
    assert [list(model.log) for model in models] == [list(log) for log in run.logs]
    assert len({log[0].size_bytes for log in run.logs}) == 1


def test_a_transport_is_asked_for_every_communication_that_the_log_has() -> None:
    for model in driven(mt.strategies()["1f1b"], **SIZES):
        asked = [what[0] for what in cast(OwnTransport, model.dist).asked]
        assert asked == [event.typ for event in model.log if event.stream != "compute"]


def test_ranks_know_of_asyncio_only_through_their_transport() -> None:
    room = Path(mt.__file__).parent / "engine"
    found = {path.stem for path in room.glob("*.py") if "asyncio" in path.read_text()}
    assert found == {"protocol", "dist", "event_loop", "deadlocks"}
