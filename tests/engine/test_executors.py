"""Executors decide what operations do: they print, compute, or work with other processes."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.engine.dist import Barrier, Communicator, Dist
from minitrain.engine.model import Model, watched
from minitrain.engine.observers import ContentExecutor, Executor, Observer
from minitrain.operations.collectives import describe, perform
from minitrain.operations.computations import COMPUTATIONS
from minitrain.proof import ArraysExecutor
from minitrain.tensors import clone

SIZES: dict[str, Any] = {"num_layers": 4, "global_batch_size": 8}


class Prints(Executor):
    """Prints what each rank does."""

    def compute(
        self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], do: Callable[[], Any]
    ) -> Any:
        print(f"rank {model.rank}: {op} {given[0]}")
        return super().compute(model, op, given, named, do)

    def communicate(self, model: Any, op: str, given: tuple[Any, ...], submit: Callable[[], Any]) -> Any:
        print(f"rank {model.rank}: {op}")
        return super().communicate(model, op, given, submit)

    def finish(self, models: Sequence[Any]) -> None:
        print(f"{len(models)} ranks are done")


def test_an_executor_may_print_what_each_rank_does(capsys: pytest.CaptureFixture[str]) -> None:
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 2}
    run = mt.simulate("ddp", execution=Prints(), **sizes)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 ranks are done"
    alone = [line.removeprefix("rank 1: ").split()[0] for line in lines if line.startswith("rank 1")]
    kept = [op for op in alone if op not in ("get_input_activation", "set_final_weight")]
    assert kept == [event.typ for event in run.logs[1]]
    assert run.logs == mt.simulate("ddp", **sizes).logs


def test_what_an_arithmetic_does_not_have_is_refused_by_name() -> None:
    class Numbers(ContentExecutor):
        def arithmetic_of(self, model: Any) -> Any:
            return SimpleNamespace(load_weights=lambda done: ("weight", "state"))

    with pytest.raises(mt.UsageError, match="get_input_activation on rank 0: SimpleNamespace do not say what it comp"):
        mt.simulate("ddp", execution=Numbers(), world_size=1)


def test_numbers_have_an_executor_of_their_own() -> None:
    with pytest.raises(mt.UsageError, match="execution does not go with numerics; leave one out"):
        mt.simulate("ddp", execution=Prints(), numerics="numpy")


# ------------------------------------------------- ranks that share no model: a thread for each, as a process would be


def symbols(value: Any) -> Any:
    """Return tensors without contents."""
    return [clone(item) for item in value] if isinstance(value, list) else value and clone(value)


def tensors(value: Any) -> list[Any]:
    """Return the tensors of a bucket, or one alone."""
    return value if isinstance(value, list) else [] if value is None else [value]


class Recording(Observer):
    """What each rank did with others: the communications in the order of their submission."""

    def __init__(self) -> None:
        self.programs: dict[int, list[SimpleNamespace]] = defaultdict(list)
        self._steps: dict[Any, SimpleNamespace] = {}

    def after(self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], made: Any) -> None:
        if op not in COMPUTATIONS and getattr(made.owner, "size", 2) > 1:  # nobody meets alone
            step = self._steps.setdefault(made, SimpleNamespace())
            step.op, step.value = op, describe(given[1] if op == "send" else None if op == "recv" else given[0])
            self.programs[model.rank].append(step)

    def settled(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        clocks = [operation.clock for operation in operations]
        start, last = operations[0].latest(clocks, operations[0].owner.ranks)
        for operation, result in zip(operations, results, strict=True):
            step = self._steps.setdefault(operation, SimpleNamespace())
            step.result, step.start, step.last = symbols(result), start, last

    def awaited(self, operation: Any, result: Any) -> None:
        if operation.op == "recv":
            self._steps[operation].result, self._steps[operation].start = clone(result), operation.carried


class AloneInGroup(Communicator):
    """A group of which this process has one member."""

    __slots__ = ()

    def join(self, index: int, call: Any) -> None:
        """Settle a member's next collective as it was recorded."""
        step = self.host().follow(call)  # type: ignore[union-attr]  # the transport below
        call.settle_all([call], [symbols(step.result)], step.start, step.last, 0)


class Alone(Dist):
    """The transport of one rank, which follows a recorded program."""

    def __init__(self, world_size: int, program: list[SimpleNamespace]) -> None:
        super().__init__(world_size)
        self.program = iter(program)
        self.world = AloneInGroup(self, tuple(range(world_size)), Barrier(world_size), is_world=True)
        self._communicators = {self.world.ranks: self.world}

    def communicator(self, ranks: Any) -> Communicator:
        """Return a group."""
        members = tuple(sorted(ranks))
        return self._communicators.setdefault(members, AloneInGroup(self, members, Barrier(1), is_world=False))

    def follow(self, call: Any) -> SimpleNamespace:
        """Return the next recorded step, which must be what is called."""
        step = next(self.program)
        assert (call.op, describe(call.value)) == (step.op, step.value)
        return step

    def put(self, channel: Any, call: Any) -> None:
        """Accept a message."""
        self.follow(call)
        call.settled = True

    def get(self, channel: Any, call: Any) -> None:
        """Deliver the symbol of a message."""
        step = self.follow(call)
        call.deliver(step.result, step.start)


class Meetings:
    """Where threads meet, as processes do in a library of collectives."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._brought: dict[Any, dict[int, Any]] = defaultdict(dict)
        self.messages: dict[Any, queue.Queue[Any]] = defaultdict(queue.Queue)

    def bring(self, key: Any, rank: int, value: Any) -> None:
        """Start a collective, without waiting."""
        with self._changed:
            self._brought[key][rank] = value
            self._changed.notify_all()

    def wait(self, key: Any, size: int) -> list[Any]:
        """Return what all members have brought, once all are there."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._brought[key]) == size, timeout=10)
            return [self._brought[key][rank] for rank in sorted(self._brought[key])]


class OnThreads(ArraysExecutor):
    """Computes in NumPy, and communicates with the threads of the other ranks; it blocks where results are awaited."""

    def __init__(self, meetings: Meetings) -> None:
        super().__init__()
        self.meetings = meetings
        self.handles: dict[Any, Callable[[Any], None]] = {}
        self.counts: Counter[Any] = Counter()

    def settle(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Start this rank's part in a collective."""
        (operation,) = operations
        model, op, ranks, place = operation.model, operation.op, operation.owner.ranks, operation.owner.index
        key = (ranks, self.counts[ranks])
        self.counts[ranks] += 1
        self.meetings.bring(key, operation.rank, operation.value)

        def finish(result: Any) -> None:
            values = self.meetings.wait(key, len(ranks))
            made = perform(op, values, ranks, operation.detail, whole=False)
            members = [SimpleNamespace(model=model, op=op, value=value) for value in values]
            super(OnThreads, self).settle(members, made)
            assert describe(result) == describe(made[place])
            for tensor, mine in zip(tensors(result), tensors(made[place]), strict=True):
                tensor._content = mine._content

        self.handles[operation] = finish

    def communicate(self, model: Any, op: str, given: tuple[Any, ...], submit: Callable[[], Any]) -> Any:
        """Send a message on its way."""
        if op == "send":
            dest, value, tag = given
            self.meetings.messages[model.rank, dest, tag].put(value._content)
        return submit()

    def receive(self, operation: Any, value: Any, result: Any) -> None:
        """Start to receive a message."""
        note = operation.model._rows[operation.row + mt.operations.NOTE]
        key = operation.owner.stream.peer, operation.rank, None if note is None else note.tag

        def finish(result: Any) -> None:
            result._content = self.meetings.messages[key].get(timeout=10)

        self.handles[operation] = finish

    def awaited(self, operation: Any, result: Any) -> None:
        """Wait for what was started."""
        finish = self.handles.pop(operation, None)
        if finish is not None:
            finish(result)


@pytest.mark.parametrize("name", ["ddp", "zero3", "zero3_prefetch", "1f1b", "ddp_overlap", "hsdp", "hsdp:shard_size=2"])
def test_ranks_that_share_no_model_train_as_simulated_ones_do(name: str) -> None:
    world_size, recording = 4, Recording()
    run = mt.simulate(name, world_size=world_size, observers=[recording], numerics="numpy", **SIZES)
    strategy: Any = partial(mt.strategies()[name.split(":", maxsplit=1)[0]], **run.options)
    meetings, done = Meetings(), dict[int, Any]()

    def process(rank: int) -> None:
        dist, executor = Alone(world_size, recording.programs[rank]), OnThreads(meetings)
        predictor = run.models[rank].runtime_predictor
        model = watched(Model, executor)(rank, dist, *SIZES.values(), runtime_predictor=predictor)
        done[rank] = asyncio.run(strategy(model))
        assert next(dist.program, None) is None
        assert not executor.handles

    threads = [threading.Thread(target=process, args=[rank]) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, model in enumerate(run.models):
        assert done[rank].log == run.logs[rank]
        finals: dict[int, Any] = model.final_weights
        for layer, weight in finals.items():
            np.testing.assert_array_equal(done[rank].final_weights[layer]._content.values, weight._content.values)
