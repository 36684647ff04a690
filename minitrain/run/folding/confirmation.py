"""Executing some ranks of a folded run in full, to see that they do what their class does.

A class of ranks is simulated once, with numbers that stand for all its ranks. What a strategy does may depend on the
rank in ways that those numbers do not see: by a counter that ranks share, a random number, `type(model.rank)`. So of a
strategy that is not shipped, some ranks of each class are executed as ordinary ranks. What they get from others is what
their class got, at their place. Their logs, their final weights and their peaks must be those of the folded run.

What ranks share, such as a counter, may tell ranks apart that are not executed. So nothing of it may change.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import itertools
import pickle
import random
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NoReturn

from minitrain.engine.entry import require_handed_on
from minitrain.engine.model import Model
from minitrain.engine.operations import Operation
from minitrain.engine.transport.communicator import Communicator
from minitrain.engine.transport.dist import Dist
from minitrain.errors import StrategyError
from minitrain.operations import NOTE, PRICE, TIME, WAITED_FOR
from minitrain.operations.collectives import COLLECTIVES, describe
from minitrain.run.folding.expansion import SLOTS_OF_TENSORS, RankInClass
from minitrain.run.rank_tasks import PreparedRun, require_nothing_left, run_ranks
from minitrain.run.strategy_loading import unwrapped
from minitrain.tensors.kinds import passage_of
from minitrain.tensors.placed import remember

if TYPE_CHECKING:
    from minitrain.run.folding.model import FoldedModel
    from minitrain.run.folding.run import FoldedRun

MOST_CLASSES = 32
"""Of how many classes ranks are executed; of more, those that lie evenly among them."""


async def confirm(prepared: PreparedRun, run: FoldedRun, shared: Mapping[str, bytes]) -> None:
    """Execute some ranks of each class of a folded run in full: the lowest, the last, and one between them.

    Args:
        prepared: what was simulated.
        run: its folded run, whose models have kept what they communicated.
        shared: what ranks share, as `shared_by_ranks` has it, from before the run.

    Raises:
        StrategyError: one of them does something else than its class, or ranks have changed what they share.
    """
    classes = run.class_models
    for model in classes[:: -(-len(classes) // MOST_CLASSES)]:
        for rank in _chosen(run, model._rank):
            await _confirm_rank(prepared, run, model, rank)
    now = shared_by_ranks(prepared.function)
    changed = sorted(name for name in {*shared, *now} if shared.get(name) != now.get(name))
    if changed:
        raise StrategyError(
            f"{prepared.name} cannot be folded: ranks share {changed[0]} and have changed it, so that another number "
            "of ranks may do something else; let ranks share nothing that they change, or simulate without fold=True",
            is_split=False,
        )


def shared_by_ranks(strategy: Any) -> Mapping[str, bytes]:
    """Return what all ranks of a strategy share of its closure, its defaults and its module, pickled, by name.

    Functions and classes of its own package are looked into. What belongs to others, and what cannot be pickled, is
    left out.
    """
    own = getattr(unwrapped(strategy), "__module__", "minitrain").partition(".")[0]
    found: dict[str, bytes] = {}
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [] if own == "minitrain" else [("it", strategy)]
    while left:
        name, value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType | type):
            left += _parts_of(value) if value.__module__.partition(".")[0] == own else ()
        elif isinstance(value, MethodType | functools.partial):
            parts = ("__func__", "__self__", "func", "args", "keywords")
            left += [(name, getattr(value, part)) for part in parts if hasattr(value, part)]
        else:
            try:
                found[name] = pickle.dumps(value)
            except Exception:  # whatever its class raises
                left += (
                    [*getattr(value, "__dict__", {}).items()] if type(value).__module__.partition(".")[0] == own else ()
                )
    return found


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function or a class refers to, by name."""
    if isinstance(value, type):
        yield from vars(value).items()
        return
    with contextlib.suppress(ValueError):  # a variable of the closure has no value yet
        yield from inspect.getclosurevars(value).nonlocals.items()
    yield "its defaults", (value.__defaults__, value.__kwdefaults__)
    for name in _globals_in(value):
        if name in value.__globals__:
            yield name, value.__globals__[name]


def _globals_in(code: Any) -> Iterator[str]:
    """Yield the names of its module that a function uses, with those of functions in it."""
    for step in dis.get_instructions(code):
        if step.opname.endswith("_GLOBAL"):
            yield step.argval
        elif isinstance(step.argval, CodeType):
            yield from _globals_in(step.argval)


def _chosen(run: FoldedRun, lowest: int) -> Sequence[int]:
    """Return the ranks of a class that are executed; the same in each run like this one."""
    sizes, strides = run.fold.folded_sizes, run.fold.strides
    source = random.Random(f"{run.strategy} {run.world_size} {lowest}")
    last = lowest + sum((size - 1) * strides[axis] for axis, size in sizes.items())
    between = lowest + sum(source.randrange(size) * strides[axis] for axis, size in sizes.items())
    return sorted({lowest, between, last})


async def _confirm_rank(prepared: PreparedRun, run: FoldedRun, of_class: FoldedModel, rank: int) -> None:
    """Execute one rank, and compare it with what the run says of it."""
    assert run.expansion is not None  # every folded run has one
    answers = Answers(RankInClass(run.expansion, rank), of_class.communicated or (), run.logs[rank]._rows)  # type: ignore[attr-defined]  # an `EventLog`
    dist = AnsweringDist(run.world_size, answers)
    parameters = prepared.parameters
    model = Model(
        rank,
        dist,
        parameters.num_layers,
        parameters.global_batch_size,
        runtime_predictor=prepared.predictor_of(rank),
        memory_by_kind=parameters.memory_by_kind,
    )
    prepared.give_shares([model])
    prepared.enter(model)
    try:
        await run_ranks(replace(prepared, watch=None), [model])
        require_nothing_left(dist, [model])
        require_handed_on([model])
    except Exception as error:
        _refuse(prepared, rank, f"ends in {type(error).__name__}: {error!s:.300}", error)
    _require_same(prepared, run, model)


def _require_same(prepared: PreparedRun, run: FoldedRun, model: Model) -> None:
    """Require that a rank which was executed ends as the run says."""
    rank = model._rank
    for number, (own, of_class) in enumerate(zip(model.log, run.logs[rank], strict=False)):
        if own != of_class:
            _refuse(prepared, rank, f"its event {number} is {own}, where its class has {of_class}")
    expected = run.models[rank]
    compared: tuple[tuple[str, Any, Any], ...] = (
        ("events", len(model.log), len(run.logs[rank])),
        ("final weights", model.final_weights, expected.final_weights),
        ("final experts", model.final_experts, expected.final_experts),
        ("replicas' own weights", model.final_locals, expected.final_locals),
        ("elements at its peak", model.peak_memory, run.peak_memory_per_rank[rank]),
    )
    for what, own, of_class in compared:
        if own != of_class:
            _refuse(prepared, rank, f"{what}: {own!r:.120}, where its class has {of_class!r:.120}")


def _refuse(prepared: PreparedRun, rank: int, what: str, cause: Exception | None = None) -> NoReturn:
    """Raise how a rank differs from its class."""
    raise StrategyError(
        f"{prepared.name} cannot be folded: rank {rank} was executed by itself too, and does something else than the "
        f"ranks that it was folded with ({what}); let ranks differ in shard index and samples alone, share nothing "
        "that they change, draw no numbers, or simulate without fold=True",
        rank=rank,
        is_split=False,
    ) from cause


class Answers:
    """What a rank gets from others, in the order of its calls within each group and from each sender.

    Args:
        place: where the rank is within its class.
        communicated: the communications of the class's lowest rank, in program order.
        rows: those of the rank's log, as the folded run has them.
    """

    def __init__(self, place: RankInClass, communicated: Iterable[Operation], rows: Sequence[Any]) -> None:
        self._place = place
        self._rows = rows
        self._left: dict[Any, deque[Operation]] = defaultdict(deque)
        for operation in communicated:
            stream = place.stream(operation.owner.stream)
            key = stream.group if stream.peer is None else (stream.peer, _tag_of(operation))
            self._left[key].append(operation)

    def settle_collective(self, group: tuple[int, ...] | None, call: Operation) -> None:
        """Let a collective end as that of the class does.

        Args:
            group: members, None for all ranks.
            call: the rank's part in it.

        Raises:
            StrategyError: the class has none there, or another one.
        """
        of_class = self._next(group, call)
        brought = self._own(of_class.given)
        if (call.op, call.detail) != (of_class.op, of_class.detail) or _said(call.value) != _said(brought):
            raise StrategyError(
                f"{call.op} of {_said(call.value)}, where its class calls {of_class.op} of {_said(brought)}"
            )
        start, price = self._rows[of_class.row + TIME], self._rows[of_class.row + PRICE]
        largest_bytes = price.size_bytes if COLLECTIVES[call.op].priced_by == "largest" else 0
        last = self._rows[of_class.row + WAITED_FOR]
        call.settle_all([call], [self._own(of_class.outcome, call.value)], [call.clock], start, last, largest_bytes)
        if call.waiters is not None:  # it was held while its task waited
            call.model._transport.wake([call.waiters])

    def deliver(self, call: Operation) -> None:
        """Let a receive get the message that its class gets."""
        of_class = self._next((call.owner.stream.peer, _tag_of(call)), call)
        call.deliver(self._own(of_class.outcome), of_class.carried)  # type: ignore[arg-type]  # it was received

    def _next(self, key: Any, call: Operation) -> Operation:
        """Return the class's next communication in a group, or from a sender."""
        if not self._left[key]:
            raise StrategyError(f"{call.describe()}, which its class does not call")
        return self._left[key].popleft()

    def _own(self, value: Any, given: Any = None) -> Any:
        """Return what the class's lowest rank has as the rank gets it.

        Args:
            value: what that has, which it may have used since.
            given: what the rank has given for it.
        """
        if isinstance(value, list):
            return [self._own(*pair) for pair in zip(value, given or itertools.repeat(None), strict=False)]
        own = self._place.value(value)
        for slot in SLOTS_OF_TENSORS:
            if hasattr(own, slot):
                delattr(own, slot)
        if getattr(getattr(value, "_passage", None), "gathered_from", None) is not None:
            passage_of(own).gathered_from = given
        return remember(own, given)


def _said(value: Any) -> Any:
    """Return what an operation was given, in words."""
    return [_said(item) for item in value] if isinstance(value, list) else describe(value)


def _tag_of(operation: Operation) -> Any:
    """Return the tag of a message, or None."""
    note = operation.model._rows[operation.row + NOTE]
    return None if note is None else note.tag


class AnsweringCommunicator(Communicator):
    """What one rank by itself sees of a group: every collective ends at once, as that of its class did."""

    def join(self, index: int, call: Any) -> None:  # noqa: ARG002  (the rank's place in the group)
        """Let the rank take part in its next collective."""
        host: Any = self.host()
        host.detector.num_operations += 1
        host.answers.settle_collective(self.stream.group, call)


class AnsweringDist(Dist):
    """The transport of one rank by itself, whose calls are answered.

    Args:
        world_size: number of ranks.
        answers: what the rank gets from the others.
    """

    communicator_kind = AnsweringCommunicator

    def __init__(self, world_size: int, answers: Answers) -> None:
        super().__init__(world_size)
        self.answers = answers

    def put(self, channel: Any, call: Any) -> None:  # noqa: ARG002  (the transport's)
        """Take a message, which its receiver gets at once."""
        self.detector.num_operations += 1
        call.settled = True

    def get(self, channel: Any, call: Any) -> None:  # noqa: ARG002
        """Deliver a message."""
        self.detector.num_operations += 1
        self.answers.deliver(call)
