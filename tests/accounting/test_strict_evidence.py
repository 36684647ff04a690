"""What a strict run is judged by is out of a strategy's reach, or compared when the run has ended."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain import tensors
from minitrain.events import PRICE, STRIDE, TIME, TYP, EventLog
from minitrain.hardware import load_config
from minitrain.hardware.predictor import RuntimePredictor
from minitrain.hardware.price import FREE, Price
from minitrain.hardware.topology import FlatTopology
from minitrain.lib import Model
from minitrain.rank import laws
from minitrain.workloads.matmul import MatmulLayer

Step = Callable[[Model], Any]


def nothing(model: Model) -> None:
    pass


async def trains(model: Model, before: Step = nothing, within: Step = nothing, after: Step = nothing) -> Model:
    """Train data parallel, with something done behind the engine's back."""
    before(model)
    weights, opt_states, activations, act_grads, grads = model.storage()
    layers, share = range(model.num_layers), model.global_batch_size // model.world_size
    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)
    activations[0] = model.get_input_activation(range(model.rank * share, (model.rank + 1) * share))
    for k in layers:
        activations[k + 1] = model.forward(k, activations[k], weights[k])
    act_grads[0] = model.loss(activations.pop(model.num_layers))
    for k in reversed(layers):
        grads[k], act_grads[0] = model.backward(k, activations[k], act_grads[0], weights[k])
        del activations[k]
        within(model)
        grads[k] = await model.all_reduce(grads[k], k)
    for k in layers:
        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    after(model)
    return model


def simulate(**steps: Step) -> mt.Run:
    async def strategy(model: Model) -> Model:
        return await trains(model, **steps)

    return mt.simulate(strategy, world_size=2, num_layers=2, global_batch_size=4, strict=True)


def test_without_any_change_it_is_accepted() -> None:
    assert simulate().step_time == mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4).step_time


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


def free_of_charge(typ: str) -> Step:
    """Return a change that makes all operations of one type free, in all rows and all times after them."""

    def change(model: Any) -> None:
        rows = model._rows
        for row in range(0, len(rows), STRIDE):
            if rows[row + TYP] == typ:
                saved = rows[row + PRICE].seconds
                rows[row + PRICE] = FREE
                for later in range(row + STRIDE, len(rows), STRIDE):
                    rows[later + TIME] -= saved
                    rows[later + 8] -= saved
                model.time -= saved

    return change


@pytest.mark.parametrize("typ", ["load_weights", "forward", "backward", "update", "all_reduce"])
def test_rows_that_cost_less_than_their_operations_are_found(typ: str) -> None:
    """Even who writes to private attributes has to know all of them."""
    with pytest.raises(mt.StrategyError, match=r"the clock of rank \d does not add up: the duration of a"):
        simulate(after=free_of_charge(typ))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_rank_whose_rows_cost_less_than_those_of_the_others_is_found(rank: int) -> None:
    async def strategy(model: Model) -> Model:
        await trains(model)
        if model.rank == rank:
            free_of_charge("update")(model)
        return model

    with pytest.raises(mt.StrategyError, match=f"the clock of rank {rank} does not add up: the duration of a update"):
        mt.simulate(strategy, world_size=3, num_layers=2, global_batch_size=3, strict=True)


def starts_later(model: Any) -> None:
    model._rows[-STRIDE + TIME] += 1e-9


def ends_sooner(model: Any) -> None:
    model.time -= 1e-9


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("change", "what"), [(starts_later, r"the start of event \d+"), (ends_sooner, r"model\.time at the end")]
)
def test_a_time_of_one_rank_that_differs_from_those_of_the_others_is_found(rank: int, change: Step, what: str) -> None:
    async def strategy(model: Model) -> Model:
        await trains(model)
        if model.rank == rank:
            change(model)
        return model

    with pytest.raises(mt.StrategyError, match=rf"the clock of rank {rank} does not add up: {what} is"):
        mt.simulate(strategy, world_size=3, num_layers=2, global_batch_size=3, strict=True)


def assign(name: str, value: Any) -> Step:
    def change(model: Model) -> None:
        owner: Any = model.runtime_predictor
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        object.__setattr__(owner, last, value(getattr(owner, last)))

    return change


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("collective", lambda _: lambda *_: FREE),
        ("compute", lambda _: lambda *_: Price(1e-9)),
        ("load", lambda _: lambda *_: Price(-1.0)),
        ("update", lambda price: lambda *what: price(1, 4096)),
        ("slowed", lambda slowed: slowed),
        ("slowdown", lambda _: 0.5),
        ("device.memory.GBps", lambda _: 1e9),
        ("device.host_memory.GBps", lambda _: 1e9),
        ("device.processor.matrix", dict),
        ("topology.tier.bandwidth", lambda bandwidth: bandwidth * 10),
        ("topology.tier.latency", lambda _: 0.0),
        ("workload.is_uniform", lambda _: True),
        ("workload.message_bytes", lambda _: lambda _: 0),
        ("system.name", lambda _: "another"),
    ],
)
def test_a_changed_predictor_workload_or_machine_is_found(name: str, value: Any) -> None:
    predictor = own_predictor()

    async def strategy(model: Model) -> Model:
        return await trains(model, before=assign(name, value) if model.rank == 0 else nothing)

    with pytest.raises(
        mt.StrategyError, match=r"(model\.runtime_predictor.* was changed during the run|does not add up)"
    ):
        mt.simulate(strategy, world_size=2, num_layers=2, global_batch_size=4, strict=True, hardware=predictor)


def own_predictor() -> RuntimePredictor:
    """Return a predictor of a machine and a workload that no other test shares."""
    return RuntimePredictor(2, copy.deepcopy(load_config("h100_80g_nvl8")), workload=MatmulLayer())


def test_a_price_that_was_written_to_is_found() -> None:
    def cheapens(model: Model) -> None:
        object.__setattr__(model.runtime_predictor.collective("all_reduce", 2 * 4096**2, (0, 1)), "seconds", 0.0)

    async def strategy(model: Model) -> Model:
        return await trains(model, before=cheapens)

    with pytest.raises(mt.StrategyError, match=r"the duration of a all_reduce is 0\.0 s"):
        mt.simulate(strategy, world_size=2, num_layers=2, global_batch_size=4, strict=True, hardware=own_predictor())


def test_a_machine_without_sensible_prices_is_refused() -> None:
    class Generous(mt.FixedPredictor):
        def update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
            return Price(-1.0)

    with pytest.raises(mt.StrategyError, match=r"the hardware gives -1\.0 s for a update; a duration is a number"):
        mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4, strict=True, hardware=Generous())


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Price, "seconds", property(lambda _: 0.0)),
        (tensors.Activation, "memory", lambda _: 0),
        (FlatTopology, "collective", lambda *_: None),
        (laws, "update", lambda *_: None),
        (EventLog, "__len__", lambda _: 0),
        (Model, "check", staticmethod(lambda _: None)),
    ],
)
def test_code_that_was_replaced_is_found(owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaces(model: Model) -> None:
        if model.rank == 0:
            monkeypatch.setattr(owner, name, value)

    with pytest.raises(mt.StrategyError, match=rf"minitrain\..*{name} was changed during the run"):
        simulate(after=replaces)


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    [
        (laws, "of_ones_own", lambda: setattr(laws, "of_ones_own", print)),
        (laws, "final_weight", lambda: delattr(laws, "final_weight")),
        (FlatTopology, "of_ones_own", lambda: setattr(FlatTopology, "of_ones_own", print)),
        (FlatTopology, "collective", lambda: delattr(FlatTopology, "collective")),
    ],
)
def test_code_that_is_new_or_gone_is_found_by_name(
    owner: Any, name: str, change: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changes(model: Model) -> None:
        if model.rank == 1:
            monkeypatch.setattr(owner, name, getattr(owner, name, None), raising=False)  # is put back after the test
            change()

    with pytest.raises(mt.StrategyError, match=rf"minitrain\..*\.{name} was changed during the run"):
        simulate(after=changes)


def test_code_that_was_replaced_between_runs_is_the_code_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate()
    monkeypatch.setattr(laws, "of_ones_own", print, raising=False)
    monkeypatch.setattr(laws, "describe", lambda value: f"a {value}")
    simulate()
    monkeypatch.delattr(laws, "of_ones_own")
    simulate()


def test_a_class_that_was_changed_is_found() -> None:
    def changes_that_of_the_model(model: Model) -> None:
        model.__class__ = Model

    def changes_that_of_the_log(model: Model) -> None:
        object.__setattr__(model.log, "__class__", type("Log", (EventLog,), {"__slots__": ()}))

    with pytest.raises(mt.StrategyError, match="the class of model of rank 0 was changed during the run"):
        simulate(after=changes_that_of_the_model)
    with pytest.raises(mt.StrategyError, match=r"the class of model\.log of rank 0 was changed during the run"):
        simulate(after=changes_that_of_the_log)


def test_a_part_of_the_batch_is_never_all_of_it() -> None:
    def declares_it_whole(model: Model) -> None:
        for grad in model.grad_weights.values():
            model.dist.whole_batches[model.global_batch_size][id(grad.samples)] = grad.samples

    async def strategy(model: Model) -> Model:
        grads = {}
        for k in range(model.num_layers):
            model.weights[k], model.opt_states[k] = model.load_weights(k)
        model.activations[0] = model.get_input_activation([model.rank])
        for k in range(model.num_layers):
            model.activations[k + 1] = model.forward(k, model.activations[k], model.weights[k])
        model.grad_activations[0] = model.loss(model.activations.pop(model.num_layers))
        for k in reversed(range(model.num_layers)):
            both = model.backward(k, model.activations[k], model.grad_activations[0], model.weights[k])
            model.grad_weights[k], model.grad_activations[0] = both
            declares_it_whole(model)
            grads[k] = model.update(k, model.grad_weights[k], model.weights[k], model.opt_states[k])
        return model

    with pytest.raises(mt.LawError, match=r"must cover all 4 samples"):
        mt.simulate(strategy, world_size=2, num_layers=2, global_batch_size=4, strict=True)


def test_a_launched_operation_that_is_forgotten_is_found_in_the_log() -> None:
    async def strategy(model: Any) -> Model:
        model.launch(model.barrier())
        model._in_flight.clear()
        return model  # type: ignore[no-any-return]

    with pytest.raises(mt.StrategyError, match="rank 0 launched an operation and never awaited it"):
        mt.simulate(strategy, world_size=2, num_layers=2, global_batch_size=4, strict=True, check=False)


def test_every_kind_of_transfer_is_priced_again() -> None:
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
