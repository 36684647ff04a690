"""The program of each rank, recorded in a simulation: what real processes must do, and what comes of it.

Laws, deadlocks and mismatches are found in the simulation, before a process is started. In a process, the k-th
operation of a rank must be the recorded one. So members of a collective need to exchange nothing about their tensors:
what each of them brings is in the program.
"""

from __future__ import annotations

import hashlib
from asyncio import current_task
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from minitrain.engine.gradients import require_tied
from minitrain.engine.observers import Observer
from minitrain.engine.operations import Launched
from minitrain.errors import StrategyError
from minitrain.operations import LAYER, RECV, SEND, STRIDE, TYP
from minitrain.operations.collectives import COLLECTIVES, describe, tensors_of
from minitrain.operations.computations import COMPUTATIONS
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.tensors import Tensor, clone
from minitrain.tensors.fields import fields_of
from minitrain.tensors.placed import COPIES

Lane = tuple[int, int, int]
"""A sequence of messages from one rank to another that are received in the order in which they are sent; its number."""


@dataclass(slots=True)
class Communication:
    """A communication of one rank, as it was simulated.

    Args:
        op: as its event is named.
        with_ranks: the members of a collective's group, or the other rank of a message; () for a move to or from the
            host.
        tag: of a message.
        detail: what members agree in beside their tensors (the root of a broadcast, an algorithm).
        given: what the rank itself brings; None for a receive.
        brought: what all members bring, in rank order; of a receive, what was sent.
    """

    op: str
    with_ranks: tuple[int, ...]
    tag: Hashable
    detail: Any
    given: Any
    brought: Sequence[Any] = ()

    def describe(self) -> str:
        """Return it in words."""
        value = "" if self.given is None else f" of {describe(self.given)}"
        if self.op in COLLECTIVES:
            return f"{self.op}{value} among ranks {list(self.with_ranks)}"
        peer = f" {'to' if self.op == 'send' else 'from'} rank {self.with_ranks[0]}" if self.with_ranks else ""
        return f"{self.op}{value}{peer}" + (f" with tag {self.tag!r}" if self.tag is not None else "")


@dataclass
class RankProgram:
    """What one rank does.

    Args:
        rank: which rank.
        operations: name and layer of each row of its log.
        communications: by their row.
        has_tasks: whether operations are those of several tasks.
        turns: of a rank with several tasks, when each await of a communication ended: its row, and how many rows the
            log had then.
        lanes: of messages that it sends or receives, by sender, receiver and tag.
    """

    rank: int
    operations: list[tuple[str, int | None]] = field(default_factory=list)
    communications: dict[int, Communication] = field(default_factory=dict)
    has_tasks: bool = False
    turns: list[tuple[int, int]] = field(default_factory=list)
    lanes: dict[tuple[int, int, Hashable], Lane] = field(default_factory=dict)

    def lane(self, source: int, dest: int, tag: Hashable) -> Lane:
        """Return in which lane a message goes."""
        return self.lanes[source, dest, tag]

    @property
    def num_loads(self) -> int:
        """How many loads of weights the step begins with."""
        return next((row for row, (op, _) in enumerate(self.operations) if op != "load_weights"), 0)

    @cached_property
    def last_load(self) -> int:
        """The last row that loads weights; -1 if none does."""
        return max((row for row, (op, _) in enumerate(self.operations) if op == "load_weights"), default=-1)

    @property
    def layers(self) -> set[int]:
        """The layers whose weights the rank loads."""
        return {layer for op, layer in self.operations if op == "load_weights" and layer is not None}

    def expect(self, row: int, op: str, with_ranks: tuple[int, ...], tag: Hashable, detail: Any, value: Any) -> Any:
        """Return the communication of a row, which must be the one that a rank is about to do.

        Raises:
            StrategyError: it is another one.
        """
        known = self.communications.get(row)
        if (
            known is not None
            and known.op == op
            and known.with_ranks == with_ranks
            and known.tag == tag
            and known.detail == detail
            and _are_alike(known.given, value)
        ):
            return known
        does = Communication(op, with_ranks, tag, detail, value)
        raise _differs(self.rank, row, does.describe(), self._at(row))

    def require_same(self, rows: Sequence[Any]) -> None:
        """Require that a step has done what was recorded.

        Args:
            rows: of the rank's log.

        Raises:
            StrategyError: it has not.
        """
        done = list(zip(rows[TYP::STRIDE], rows[LAYER::STRIDE], strict=True))
        if done == self.operations:
            return
        both = zip(done, self.operations, strict=False)
        row = next((row for row, (one, other) in enumerate(both) if one != other), min(len(done), len(self.operations)))
        raise _differs(self.rank, row, _named(done[row]) if row < len(done) else "the end of its step", self._at(row))

    def between(self, row: int) -> str:
        """Return which operation is done and which is next, in words, once so many have been begun."""
        done = f"after {self._at(row - 1)}" if row else "at its beginning"
        return f"{done}, the next is {self._at(row)}"

    def _at(self, row: int) -> str:
        """Return what was recorded for a row, in words."""
        if row in self.communications:
            return self.communications[row].describe()
        return _named(self.operations[row]) if row < len(self.operations) else "the end of its step"


def _named(operation: tuple[str, int | None]) -> str:
    op, layer = operation
    return op if layer is None else f"{op} of layer {layer}"


def _differs(rank: int, row: int, does: str, recorded: str) -> StrategyError:
    """Return the error of a rank that does something else than it did in the simulation."""
    message = (
        f"rank {rank} does something else than in the simulation: its operation {row} is {does}, and was {recorded}; a "
        "strategy must do the same in every step and every process, whatever the time, a random number or a file says"
    )
    return StrategyError(message, rank=rank, row=row)


@dataclass(frozen=True)
class Program:
    """What all ranks do.

    Args:
        ranks: the program of each.
        run: the simulated step, whose figures are the prediction.
    """

    ranks: Sequence[RankProgram]
    run: Run

    @cached_property
    def digest(self) -> str:
        """What tells this program from others: the same wherever the same is simulated."""
        said = [
            (rank.operations, [(row, each.describe()) for row, each in sorted(rank.communications.items())])
            for rank in self.ranks
        ]
        return hashlib.sha256(repr(said).encode()).hexdigest()

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The groups whose collectives the ranks take part in, but for the world; in one order for all ranks."""
        world = tuple(range(len(self.ranks)))
        found = {
            each.with_ranks for rank in self.ranks for each in rank.communications.values() if each.op in COLLECTIVES
        }
        return sorted(group for group in found if group != world and len(group) > 1)

    @property
    def lanes(self) -> list[Lane]:
        """All lanes of messages, in one order for all ranks."""
        return sorted({lane for rank in self.ranks for lane in rank.lanes.values()})


def record(strategy: Any, parameters: Mapping[str, Any]) -> Program:
    """Simulate a step of a strategy, and return what its ranks do.

    Args:
        strategy: as for `simulate`.
        parameters: those of `simulate`, and the strategy's options.

    Raises:
        MinitrainError: what `simulate` raises.
    """
    recorder = _Recorder()
    run = simulate(strategy, **{**parameters, "observers": [*parameters.get("observers", ()), recorder], "fold": False})
    require_tied(run.strategy, run.models)
    for model in run.models:
        rows = model._rows
        recorder.of(model).operations = list(zip(rows[TYP::STRIDE], rows[LAYER::STRIDE], strict=True))
    ranks = [recorder.of(model) for model in run.models]
    _give_lanes(ranks)
    return Program(ranks, run)


def copies_tag(ranks: tuple[int, ...]) -> Hashable:
    """Return the tag of copies of tokens that the members of a group exchange."""
    return "copies", ranks


def _give_lanes(programs: Sequence[RankProgram]) -> None:
    """Tell each rank in which lanes its messages go: one for each pair, or for each tag where they overtake.

    Copies of tokens have their own: they are sent once they are made, and received once it is known how many come.
    """
    sent, received, copies = defaultdict[Any, list[Any]](list), defaultdict[Any, list[Any]](list), set[Any]()
    for program in programs:
        for row in sorted(program.communications):
            each, rank = program.communications[row], program.rank
            if each.op in (SEND, RECV):
                (peer,) = each.with_ranks
                pair, tags = ((rank, peer), sent) if each.op == SEND else ((peer, rank), received)
                tags[pair].append(each.tag)
            elif each.given.__class__ in COPIES:
                copies |= {(rank, other, copies_tag(each.with_ranks)) for other in set(each.with_ranks) - {rank}}
    lanes = {
        (*pair, tag): (*pair, number if tags != received[pair] else 0)
        for pair, tags in sent.items()
        for number, tag in enumerate(dict.fromkeys(tags))
    }
    for number, (source, dest, tag) in enumerate(sorted(copies)):
        lanes[source, dest, tag] = source, dest, -1 - number
    for program in programs:
        program.lanes = {message: lane for message, lane in lanes.items() if program.rank in lane[:2]}


class _Recorder(Observer):
    """Writes down what ranks communicate."""

    __slots__ = ("_given", "_programs", "_tasks")

    def __init__(self) -> None:
        self._programs: dict[int, RankProgram] = {}
        self._tasks: dict[int, Any] = {}
        self._given: list[tuple[Communication, Any]] = []

    def of(self, model: Any) -> RankProgram:
        """Return the program of a rank."""
        return self._programs.setdefault(model._rank, RankProgram(model._rank))

    def after(self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], made: Any) -> None:  # noqa: ARG002  (as observers')
        """Write down a communication that was submitted, and whether several tasks do operations."""
        program = self.of(model)
        program.has_tasks |= self._tasks.setdefault(model._rank, task := current_task()) is not task
        if op in COMPUTATIONS:
            return
        owner, row = made.owner, made.row // STRIDE
        peer = getattr(owner, "stream", None) and owner.stream.peer
        with_ranks = owner.ranks if op in COLLECTIVES else () if peer is None else (peer,)
        tag = given[-1] if op in ("send", "recv") else None
        before = program.communications.get(row)  # a collective is settled when its last member submits
        brought = before.brought if before is not None else ()
        known = program.communications[row] = Communication(op, with_ranks, tag, made.detail, None, brought)
        self._given.append((known, made))
        if not any(isinstance(item, Launched) for item in tensors_of(made.value)):
            known.given = snapshot(made.value)

    def settled(self, operations: Sequence[Any], results: Sequence[Any]) -> None:  # noqa: ARG002
        """Write down what the members of a collective have brought."""
        brought = [snapshot(operation.value) for operation in operations]
        for operation in operations:
            self._know(operation, brought).given = snapshot(operation.value)

    def received(self, operation: Any, value: Any, result: Any) -> None:  # noqa: ARG002
        """Write down what a message brings."""
        self._know(operation, [snapshot(value)])

    def awaited(self, operation: Any, result: Any) -> None:  # noqa: ARG002
        """Write down when an await ended."""
        model = operation.model
        self.of(model).turns.append((operation.row // STRIDE, len(model._rows) // STRIDE))

    def _know(self, operation: Any, brought: Sequence[Any]) -> Communication:
        empty = Communication(operation.op, (), None, None, None)
        known = self.of(operation.model).communications.setdefault(operation.row // STRIDE, empty)
        known.brought = brought
        return known

    def finish(self, models: Sequence[Any]) -> None:  # noqa: ARG002
        """Write down what was sent of a chain: it was launched before it was known."""
        for known, sent in self._given:
            if known.op == "send" and known.given is None:
                known.given = snapshot(sent.value)


class Turns(Observer):
    """Lets the tasks of a rank go on in the order in which they did in the simulation.

    A process waits for numbers where a result is awaited, so that its other tasks do not run meanwhile. So an await
    ends when its turn comes: when as much has been done before it as in the simulation. All ranks then wait in an order
    in which the simulation came to its end.

    Args:
        program: what the rank does, with several tasks.
    """

    __slots__ = ("_held", "_left", "_turns")

    def __init__(self, program: RankProgram) -> None:
        self._turns = program.turns

    def begin(self, model: Any) -> None:  # noqa: ARG002  (as observers')
        """Begin a step."""
        self._left = deque(self._turns)
        self._held: dict[int, Any] = {}

    def after(self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], made: Any) -> None:  # noqa: ARG002
        """Hold what was submitted until its turn."""
        if op not in COMPUTATIONS and not model.launching:
            self._hold(made)
        self._go_on(model)

    def launched(self, operation: Any) -> None:
        """Hold what was launched until its turn."""
        self._hold(operation)
        self._go_on(operation.model)

    def awaited(self, operation: Any, result: Any) -> None:  # noqa: ARG002
        """Let the next one go on."""
        self._left.popleft()
        self._go_on(operation.model)

    def _hold(self, operation: Any) -> None:
        """Let whoever awaits an operation wait, though it is settled."""
        operation.settled = False
        self._held[operation.row // STRIDE] = operation

    def _go_on(self, model: Any) -> None:
        """Let the await whose turn it is end."""
        if self._left and self._left[0][1] == len(model._rows) // STRIDE:
            operation = self._held.pop(self._left[0][0], None)
            if operation is not None:
                operation.settled = True
                model._transport.wake([operation.waiters])


def snapshot(value: Any) -> Any:
    """Return a copy of a tensor, or of a list of tensors, without what it carries."""
    return [snapshot(item) for item in value] if isinstance(value, list) else clone(value)


def _are_alike(known: Any, value: Any) -> bool:
    """Return whether a value is of the kind and fields that were recorded."""
    if known.__class__ is not value.__class__:
        return False
    if isinstance(known, list):
        return len(known) == len(value) and all(map(_are_alike, known, value))
    return fields_of(known) == fields_of(value) if isinstance(known, Tensor) else bool(known == value)
