"""What a run is judged by is for reading, and a strict run changes none of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model
from minitrain.machine.price import Price
from minitrain.operations import EventLog


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "name", ["rank", "world_size", "num_layers", "global_batch_size", "dist", "runtime_predictor", "log"]
)
def test_what_a_model_was_made_with_can_be_read_and_not_changed(name: str, strict: bool) -> None:
    async def strategy(model: Model) -> Model:
        value = getattr(model, name)
        with pytest.raises(mt.StrategyError, match=rf"model\.{name} of rank 0 is for reading; only the operations"):
            setattr(model, name, value)
        with pytest.raises(mt.StrategyError, match=rf"model\.{name} of rank 0 is for reading"):
            delattr(model, name)
        return model

    mt.simulate(strategy, world_size=1, num_layers=1, global_batch_size=1, strict=strict, check=False)


class _Equal(float):
    """A number that no comparison tells from another."""

    __eq__ = __le__ = __ge__ = lambda *_: True  # type: ignore[assignment]
    __hash__ = float.__hash__


NO_TIMES = [float("nan"), float("inf"), "1", None, 10**400]


@pytest.mark.parametrize("clock", [0.0, -1, _Equal(0), *NO_TIMES], ids=repr)
def test_a_clock_never_goes_back(clock: Any) -> None:
    is_none = any(clock is each for each in NO_TIMES)  # by identity, as one of the clocks equals all of these
    rule = "is a finite number of seconds" if is_none else "never goes back"

    async def strategy(model: Model) -> Model:
        model.load_weights(0)
        model.time += 1.0
        model.time = model.time  # nothing happens
        with pytest.raises(mt.StrategyError, match=rf"model\.time of rank 0 is 1\.\d+ s, and a clock {rule}; it"):
            model.time = clock
        return model

    run = mt.simulate(strategy, world_size=1, num_layers=1, global_batch_size=1, check=False)
    assert run.models[0].time == run.logs[0][0].end + 1.0


@pytest.mark.parametrize("parameters", [{}, {"log": "summary"}, {"fold": True}])
def test_logs_of_every_kind_are_for_reading(parameters: dict[str, Any]) -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4, **parameters)
    log: Any = run.models[0].log
    changes: list[Callable[[], Any]] = [
        lambda: log.append(1),
        log.clear,
        log.pop,
        lambda: log.__setitem__(0, 1),
        lambda: log.__delitem__(0),
        lambda: setattr(log, "rank", 5),
        lambda: delattr(log, "rank"),
        lambda: log.__iadd__([1]),
        lambda: setattr(log, "__class__", type("Log", (EventLog,), {"__slots__": ()})),
    ]
    for change in changes:
        with pytest.raises(mt.UsageError, match="a log is for reading: it holds what operations wrote"):
            change()
    with pytest.raises(AttributeError, match="rows"):
        log.rows  # noqa: B018
    assert (log.rank, len(log)) == (0, 11)


def test_a_log_can_be_copied_and_pickled() -> None:
    log = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4).logs[0]
    assert isinstance(log, EventLog)
    assert copy.copy(log) == log
    assert [event.time for event in pickle.loads(pickle.dumps(log))] == [event.time for event in log]


def test_a_machine_without_sensible_prices_is_refused() -> None:
    class Generous(mt.FixedPredictor):
        def update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
            return Price(-1.0)

    with pytest.raises(mt.StrategyError, match=r"the hardware gives -1\.0 s for a update; a duration is a number"):
        mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4, strict=True, hardware=Generous())


def test_every_kind_of_transfer_has_the_log_of_a_plain_run() -> None:
    """On nodes of different sizes, with buckets, shards in groups, broadcasts, exchanges and messages."""

    async def strategy(model: Model) -> Model:
        mesh = model.mesh(replica=2, shard=8)
        weight, state = model.load_weights(0, mesh.coord("shard"), 8)
        other, _ = model.load_weights(1)
        await model.all_gather([weight, state], 0, group=mesh.group("shard"))
        await model.broadcast(other if model.rank == 3 else None, 3, 1)
        inputs = [model.get_input_activation(range(rank % 3)) for rank in range(16)]
        await model.all_to_all(inputs)
        await model.barrier(mesh.group("replica"))
        await model.send((model.rank + 1) % 16, other)
        await model.receive((model.rank - 1) % 16)
        work = model.launch(model.receive((model.rank + 8) % 16, tag=1))
        await model.send((model.rank + 8) % 16, inputs[2], tag=1)
        await work
        return model

    sizes: dict[str, Any] = {"world_size": 16, "num_layers": 2, "global_batch_size": 4, "check": False}
    plain, strict = (mt.simulate(strategy, strict=strict, **sizes) for strict in (False, True))
    assert [[*log] for log in strict.logs] == [[*log] for log in plain.logs]
