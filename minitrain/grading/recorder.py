"""Recording the operations of a strategy: one list of steps a rank, in program order, as plain data.

A step is a list that begins with its kind. A tensor is named by the number of the step that made it and its place
among that step's results. A step is also recorded when a tensor is freed, so that a replay has the same tensors alive
at every step as the strategy had, wherever the strategy kept them.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Hashable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from minitrain.accounting.strict.stores import FollowedStore
from minitrain.errors import StrategyError
from minitrain.grading.expert_steps import RecordedExperts
from minitrain.grading.recorded_program import Program, name_of
from minitrain.rank.operations import Launched, Operation
from minitrain.rank.stores import Account, Store
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.workloads.workload import Recompute

T = TypeVar("T")


class Interned(dict[Hashable, int]):
    """A number for each key that is asked for, the same for equal keys."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


class RecordedStore(FollowedStore[Any]):
    """A store that records what enters and leaves it."""

    __slots__ = ("keys_seen", "name", "program")

    def __init__(self, account: Account, name: str, program: Program) -> None:
        super().__init__(account)
        self.name = name
        self.program = program
        self.keys_seen = Interned()

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.program.add("put", self.name, self.keys_seen[key], name_of(value))

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.program.add("drop", self.name, self.keys_seen[key])

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a key and return its value."""
        held = key in self
        value = super().pop(key, *default)
        if held:
            self.program.add("drop", self.name, self.keys_seen[key])
        return value

    def popitem(self) -> tuple[Any, Any]:
        """Remove and return the pair that came last."""
        key, value = super().popitem()
        self.program.add("drop", self.name, self.keys_seen[key])
        return key, value


class RecordedOperation(Operation):
    """An operation that records when it is awaited and when it is freed."""

    __slots__ = ()

    model: RecordingModel

    def __await__(self) -> Generator[Any, None, Any]:
        result = yield from super().__await__()
        self.model.record_await(self, result)
        return result

    def __del__(self) -> None:
        self.model.program.add_late("forget", self.model.submitted[self.row])


class RecordingModel(RecordedExperts):
    """A rank that records its operations, under strict accounting.

    Adds:
        load_weights, get_input_activation, set_final_weight: write a step, and name the results.
        forward, loss, backward, backward_input, backward_weight, update: the same.
        load_router, load_experts, route, combine, backward_combine, backward_route: the same.
        get_input_shard, keys_values, attend, project: the same.
        backward_project, backward_attend, backward_keys_values: the same.
        _collective, _send, _receive, launch: write a step when the communication is submitted.
        _offload: refuses, since exercises are graded by what the device holds.
        after_collective: names the results.
        _operation_kind: operations that write down that they were awaited and freed.
        _store: makes stores that write down what enters and leaves.

    Attributes:
        program: its steps.
        submitted: the step that submitted an operation, by its row in the log.
        tags: numbers for the tags of messages, the same on all ranks.
        started: the models of the run, as far as they were made, where a subclass has a list of its own.
    """

    _operation_kind = RecordedOperation
    tags = Interned()
    started: ClassVar[list[Any] | None] = None

    def __init__(self, *args: Any, **named: Any) -> None:
        self.program = Program()
        self.submitted: dict[int, int] = {}
        super().__init__(*args, **named)
        if self.started is not None:
            self.started.append(self)

    def _store(self, name: str) -> Store[Any]:
        super()._store(name)  # makes the ledger
        return RecordedStore(self._account, name, self.program)

    def load_weights(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[Weight, OptState]:
        """Record a load."""
        made = super().load_weights(layer, shard, num_shards, part=part, num_parts=num_parts)
        of_part = () if num_parts == 1 else (part, num_parts)
        self._write("load_weights", layer, shard, num_shards, *of_part, made=made)
        return made

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Record an input."""
        made = super().get_input_activation(samples)
        self._write("get_input_activation", sorted(made.samples), made=[made])
        return made

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Record a final weight; the copy that is kept has no name."""
        self.program.add("set_final_weight", layer, name_of(weight))
        super().set_final_weight(layer, weight)
        _forget(self._final_of(weight)[layer])

    def forward(self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None) -> Activation:
        """Record a forward."""
        made = super().forward(layer, inp, weight, recompute=recompute)
        self._write("forward", layer, inp, weight, made=[made])
        return made

    def loss(self, inp: Activation) -> ActivationGrad:
        """Record a loss."""
        made = super().loss(inp)
        self._write("loss", inp, made=[made])
        return made

    def backward(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """Record a backward."""
        made = super().backward(layer, inp, grad, weight)
        self._write("backward", layer, inp, grad, weight, made=made)
        return made

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Record the first half of a backward."""
        made = super().backward_input(layer, inp, grad, weight)
        self._write("backward_input", layer, inp, grad, weight, made=[made])
        return made

    def backward_weight(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight | None = None
    ) -> WeightGrad:
        """Record the second half of a backward."""
        made = super().backward_weight(layer, inp, grad, weight)
        self._write("backward_weight", layer, inp, grad, made=[made])
        return made

    def update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState
    ) -> tuple[Weight, OptState]:
        """Record an update."""
        made = super().update(layer, weight_grad, weight, opt_state)
        self._write("update", layer, weight_grad, weight, opt_state, made=made)
        return made

    def _collective(self, op: str, v: Any, layer: int | None, group: Any, detail: Any = None) -> Operation:
        ranks = [*(self._world if group is None else self._member(group)).ranks]
        step = self.program.add(op, name_of(v), layer, ranks, detail, self.launching)
        self.submitted[len(self._rows)] = step
        return super()._collective(op, v, layer, group, detail)

    def _send(self, dest: int, v: Any, tag: Hashable) -> Operation:
        step = self.program.add("send", name_of(v), dest, self._tag(tag), self.launching)
        self.submitted[len(self._rows)] = step
        work = super()._send(dest, v, tag)
        if work.value is not v:
            _forget(work.value)  # the copy on its way
        return work

    def _receive(self, source: int, tag: Hashable) -> Operation:
        self.submitted[len(self._rows)] = self.program.add("receive", source, self._tag(tag), self.launching)
        return super()._receive(source, tag)

    def _offload(self, v: Any) -> Operation:  # noqa: ARG002  (of every model)
        """Refuse: exercises are graded by what the device holds."""
        raise StrategyError(
            f"offload on rank {self.rank}: exercises have no host memory; keep tensors in the stores", rank=self.rank
        )

    def _tag(self, tag: Hashable) -> int | None:
        """Return the number of a tag."""
        return None if tag is None else self.tags[tag]

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Record a launch; the step of a launched collective is marked as such."""
        launched = super().launch(operation)
        if launched.operation.op == "send":
            _forget(launched.operation.value)
        return launched

    def after_collective(self, works: Sequence[Any], results: Sequence[Any]) -> None:
        """Name every member's results."""
        super().after_collective(works, results)
        for work, result in zip(works, results, strict=True):
            if result is not work.value:
                work.model._made(work.model.submitted[work.row], *leaves(result))

    def record_await(self, work: Operation, result: Any) -> None:
        """Record that the result of an operation has come."""
        step = self.submitted[work.row]
        if work.op == "recv" and not hasattr(result, "_content"):
            self._made(step, result)
        self.program.add("await", step, [name_of(leaf) for leaf in leaves(result)])


def recording_kind(started: list[Any] | None = None) -> type[RecordingModel]:
    """Return the models of one run, whose tags are numbered apart from those of other runs.

    Args:
        started: a list to which each model is added when it is made.
    """
    return type("Model", (RecordingModel,), {"tags": Interned(), "started": started})  # the name that errors use


def _forget(tensor: Any) -> None:
    """Take the name off a tensor that the strategy does not see."""
    if hasattr(tensor, "_content"):
        del tensor._content


def leaves(value: Any) -> list[Any]:
    """Return the tensors of a result, however deep."""
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value is None else [value]
