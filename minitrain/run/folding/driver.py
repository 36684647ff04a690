"""Finding the classes of a strategy's ranks, and simulating one rank of each.

Attempts are made one after the other, each with what the one before found out: the axes of the strategy's own mesh (or
of its divisions of the rank), and axes along which ranks diverge, whose positions must be kept apart. An attempt that
fails costs little, since ranks diverge early. An axis that is kept must carry messages, as that of a pipeline does. If
it does not, the strategy depends on the rank in another way, and folding refuses it. An axis that is kept because its
ranks lie differently in the network needs no messages.

Executing some ranks of a folded run in full, to see that they do what their class does.

A class of ranks is simulated once, with numbers that stand for all its ranks. What a strategy does may depend on the
rank in ways that those numbers do not see: by a counter that ranks share, a random number, `type(model.rank)`. So of a
strategy that is not shipped, some ranks of each class are executed as ordinary ranks. What they get from others is what
their class got, at their place. Their logs, their final weights and their peaks must be those of the folded run.

What ranks share, such as a counter, may tell ranks apart that are not executed. So nothing of it may change.
"""

from __future__ import annotations

import asyncio
import contextlib
import dis
import functools
import inspect
import itertools
import pickle
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, NoReturn

from minitrain.engine.dist import Communicator, Dist
from minitrain.engine.model import Model
from minitrain.engine.operations import Operation
from minitrain.engine.semantics import check_final_weights, require_handed_on
from minitrain.errors import MinitrainError, StrategyError, UsageError
from minitrain.machine import FlatTopology, HierarchicalTopology
from minitrain.machine.given_durations import FixedPredictor
from minitrain.machine.measured_topology import MeasuredTopology
from minitrain.machine.predictor import KernelPredictor, LayerPredictor, RuntimePredictor
from minitrain.machine.price import Predictor, RankPredictors
from minitrain.operations import NOTE, PRICE, TIME, WAITED_FOR
from minitrain.operations.collectives import COLLECTIVES, describe
from minitrain.run.contention import slow_down
from minitrain.run.device_memory import OutOfMemory, kinds_of_journals, watching_memory
from minitrain.run.event_loops import rare_collections
from minitrain.run.facts import trained_model_of
from minitrain.run.folding.attempt import FoldAttempt, classes_are_alike, labels_of
from minitrain.run.folding.expansion import SLOTS_OF_TENSORS, Expansion, FoldedRun, RankInClass
from minitrain.run.folding.model import FoldedModel, model_of_class
from minitrain.run.folding.per_rank_values import PerRankSet
from minitrain.run.rank_tasks import PreparedRun, RunProgress, require_nothing_left, run_ranks
from minitrain.run.strategy_loading import is_shipped, unwrapped
from minitrain.tensors import clone
from minitrain.tensors.index_sets import forget_latest_union, span
from minitrain.tensors.kinds import passage_of
from minitrain.tensors.placed import remember

_KNOWN = (RuntimePredictor, KernelPredictor, LayerPredictor)

LEAST_RANKS_A_CLASS = 4
"""The fewest ranks of a class for which `fold="auto"` folds."""


async def simulate_folded(prepared: PreparedRun) -> FoldedRun | None:
    """Simulate one rank of each class; return None where nothing can be folded, so that every rank is to be simulated.

    Args:
        prepared: what is to be simulated.

    Raises:
        UsageError: operations do not cost the same on all ranks.
        StrategyError: the strategy depends on the rank in a way that does not fold.
    """
    _require_prices_alike(prepared.predictor)
    search = _Search(prepared)
    with ranges_of_every_rank(prepared.function):
        try:
            return await search.run(may_change_axes=True)
        except StrategyError as refusal:
            if not refusal.is_split:
                raise
            try:  # as one axis, it may be a pipeline
                return await search.run(may_change_axes=False)
            except StrategyError:
                raise refusal from None


async def simulate_where_it_folds(prepared: PreparedRun) -> FoldedRun | None:
    """Simulate one rank of each class, if that works and classes have enough ranks; return None otherwise.

    An attempt ends where too few ranks are left in a class, or anything is raised: the simulation of every rank raises
    a strategy's errors again. `watch` is called once, when the folded run is done.

    Args:
        prepared: what is to be simulated.
    """
    search = _Search(replace(prepared, watch=None), LEAST_RANKS_A_CLASS)
    try:
        _require_prices_alike(prepared.predictor)
        run = await search.run(may_change_axes=True)
    except Exception as error:  # every rank raises the same again, unless folding alone is to blame
        if prepared.variant is not None and not isinstance(error, StrategyError):
            raise  # an extension of the engine raises for reasons of its own
        run = None
    if run is not None and prepared.watch is not None:
        prepared.watch(RunProgress(run.class_models, run.num_ranks_a_class))
    return run


def _require_prices_alike(predictor: Predictor | RankPredictors) -> None:
    """Require that an operation costs the same on all ranks."""
    predictor = getattr(predictor, "recorded", predictor)  # of a run that is recorded
    topology = getattr(predictor, "topology", None)
    if isinstance(predictor, RankPredictors) and predictor.cluster is None:
        raise UsageError("fold=True does not go with a predictor for each rank, which tells ranks apart")
    if isinstance(predictor, RankPredictors):
        return  # on a cluster, ranks of one class have one kind of device (see `minitrain.run.folding.attempt`)
    networks = FlatTopology | HierarchicalTopology | MeasuredTopology
    has_known_network = type(predictor) in _KNOWN and isinstance(topology, networks)
    if not has_known_network and type(predictor) is not FixedPredictor:
        raise UsageError(
            "fold=True needs prices that are known to be the same for ranks that do the same: those of a hardware "
            f"config or a FixedPredictor, got {predictor!r:.80}"
        )


class _Search:
    """The search for axes along which the ranks of a strategy fold.

    Args:
        prepared: what is to be simulated.
        least: how many ranks a class must have for an attempt.
    """

    def __init__(self, prepared: PreparedRun, least: int = 1) -> None:
        self.prepared = prepared
        self.least = least
        self.labels = labels_of(prepared)

    async def run(self, *, may_change_axes: bool) -> FoldedRun | None:
        """Make one attempt after the other, and leave nothing of them behind; return None where nothing folds.

        Args:
            may_change_axes: whether divisions of the rank lay out the ranks.
        """
        try:
            return await self._run(may_change_axes=may_change_axes)
        finally:
            forget_latest_union()

    async def _run(self, *, may_change_axes: bool) -> FoldedRun | None:
        """Make one attempt after the other."""
        axes: Mapping[str, int] = {"world": self.prepared.parameters.world_size}
        reasons: dict[str, str] = {}  # why each axis is kept
        apart: frozenset[str] = frozenset()  # those that are kept for prices alone
        is_world = True  # as long as the strategy has not asked for a mesh
        split: dict[str, int] = {}  # axes of the strategy's mesh whose ranks are unlike in blocks
        while True:
            kept, may_change = frozenset(reasons), may_change_axes and is_world
            attempt, run = await self._attempt(FoldAttempt(axes, kept, apart, may_change_axes=may_change, split=split))
            if attempt.needs_every_rank:
                return None
            if attempt.has_adopted_mesh:
                axes, is_world = attempt.mesh_axes, False
            if attempt.wanted_split:
                split |= attempt.wanted_split
                continue
            if attempt.diverged is None:
                assert run is not None
                self._require_messages(attempt, reasons)
                return run
            diverged, place = attempt.diverged
            if attempt.wanted_axes is not None and is_world:
                axes, reasons, is_world = attempt.wanted_axes, {}, attempt.wants_split
                apart = frozenset()
                continue
            sizes = attempt.folded_sizes
            new = (diverged if attempt.wanted_axes is None else frozenset(sizes)) & sizes.keys()
            if not new or (attempt.prices_differ and new == sizes.keys()):
                self._require_nothing_folds(attempt, reasons)
                return None
            reasons |= dict.fromkeys(new, place)
            apart |= new if attempt.prices_differ or attempt.sequences_differ else frozenset()

    def _require_nothing_folds(self, attempt: FoldAttempt, reasons: Mapping[str, str]) -> None:
        """Refuse the strategy where some axes fold and ranks still diverge.

        Where ranks do the same, but some of it takes longer on some of them, nothing folds.
        """
        if attempt.prices_differ or attempt.apart:
            return
        assert attempt.diverged is not None
        diverged, place = attempt.diverged
        blamed = (diverged & attempt.kept) or attempt.kept
        self._require_messages(attempt, {axis: reasons.get(axis, place) for axis in blamed})
        if attempt.folded_sizes:
            self._refuse(attempt, place)

    def _require_messages(self, attempt: FoldAttempt, reasons: Mapping[str, str]) -> None:
        """Require that messages go along every axis that is kept, unless it is for prices.

        Args:
            attempt: the last one.
            reasons: kept axes, and where ranks diverged along them.
        """
        for axis, place in reasons.items():
            if axis not in attempt.message_axes | attempt.apart and attempt.axes[axis] > 1:
                self._refuse(attempt, place)

    def _refuse(self, attempt: FoldAttempt, place: str) -> NoReturn:
        """Raise why a strategy cannot be folded."""
        message = (
            f"{self.prepared.name} cannot be folded: what it does depends on the rank in a way that folding does not "
            f"follow, by {place}; let ranks differ in shard index and samples alone (see `minitrain.span`), or "
            "simulate without fold=True"
        )
        raise StrategyError(message, place=place, is_split=attempt.may_change_axes and len(attempt.axes) > 1)

    async def _attempt(self, attempt: FoldAttempt) -> tuple[FoldAttempt, FoldedRun | None]:
        """Make an attempt, and return what was found out and the run; no run if ranks diverged."""
        if attempt.num_ranks_a_class < self.least:
            attempt.needs_every_rank = True
            return attempt, None
        representatives = attempt.representatives()
        if self.labels is not None and not classes_are_alike(attempt, representatives, self.labels):
            return attempt, None
        return attempt, await _simulate_classes(self.prepared, attempt, representatives)


async def _simulate_classes(
    prepared: PreparedRun, attempt: FoldAttempt, representatives: Sequence[int]
) -> FoldedRun | None:
    """Simulate a rank of each class; return None if ranks diverged."""
    dist = prepared.transport()
    models = [model_of_class(prepared, attempt, rank, dist) for rank in representatives]
    try:
        return await _run_classes(prepared, attempt, models)
    except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):  # meant for the caller
        raise
    except BaseException as error:
        if attempt.diverged is not None:
            error.with_traceback(None)  # else a reference cycle keeps the attempt's tasks alive, which slow all others
            return None
        is_of_python = isinstance(error, TypeError | AttributeError) and not isinstance(error, MinitrainError)
        if attempt.folded_sizes and is_of_python:
            error.add_note(
                "with fold=True, ranks, samples and shards are no ints and frozensets; if that is why, leave it"
            )
        raise
    finally:
        attempt.is_over = True  # errors may show values from now on


async def _run_classes(prepared: PreparedRun, attempt: FoldAttempt, models: Sequence[FoldedModel]) -> FoldedRun:
    """Run the strategy on each class to its end, and return the run of all ranks."""
    parameters = prepared.parameters
    is_confirmed = prepared.folded_kind is None and not is_shipped(prepared.function)
    shared = shared_by_ranks(prepared.function) if is_confirmed else {}
    with rare_collections(), watching_memory(models, strict=parameters.strict_memory) as excesses:
        await run_ranks(prepared, models, attempt.num_ranks_a_class)
        require_nothing_left(models[0].dist, models)
        prepared.require_shares_read(models)
    require_handed_on(models)
    if parameters.check:
        check_final_weights([_with_all_shards(model, attempt) for model in models])
    attempt.is_over = True
    for model in models:
        model.finish()
    run = run_of_classes(prepared, attempt, models, excesses)
    if is_confirmed:
        await confirm(prepared, run, shared)
    return run


def run_of_classes(
    prepared: PreparedRun, attempt: FoldAttempt, models: Sequence[FoldedModel], excesses: Sequence[OutOfMemory]
) -> FoldedRun:
    """Return the run of all ranks from the models of its classes, at their end, and what exceeded a device's memory."""
    parameters, expansion = prepared.parameters, Expansion(attempt, models)
    if prepared.contention:
        slow_down(models, expansion.lowest)
    logs, of_ranks = expansion.every_rank()
    return prepared.result(
        FoldedRun,
        models,
        excesses,
        logs=logs,
        models=of_ranks,
        peak_memory_per_rank=attempt.of_every_rank([model.peak_memory for model in models]),
        trained_model=trained_model_of(prepared.predictor.workload, models, attempt.num_ranks_a_class),
        expansion=expansion,
        was_asked_for=parameters.fold is True,
        **(_journals(prepared, attempt, models) if parameters.memory_by_kind else {}),
    )


def _journals(prepared: PreparedRun, attempt: FoldAttempt, models: Sequence[FoldedModel]) -> dict[str, Any]:
    """Return the journals of all ranks, and what the fullest one held of each kind."""
    journals = [model.memory_journal for model in models]
    kinds = kinds_of_journals(journals, prepared.predictor.workload.bytes_per_element)
    return {"memory_journals": attempt.of_every_rank(journals), "memory_by_kind": kinds}


def _with_all_shards(model: FoldedModel, attempt: FoldAttempt) -> Any:
    """Return what the check of final weights reads of a model, with the shards of all ranks of its class."""
    final = {layer: _whole(weight, attempt) for layer, weight in model.final_weights.items()}
    experts = {layer: _whole(weight, attempt) for layer, weight in model.final_experts.items()}
    sizes = {"rank": model._rank, "num_layers": model.num_layers}
    written = [_whole(tensor, attempt) for tensor in model.written if hasattr(tensor, "shards")]
    known = {"written": written, "_runtime_predictor": model._runtime_predictor}
    return SimpleNamespace(**sizes, **known, final_weights=final, final_experts=experts)


def _whole(weight: Any, attempt: FoldAttempt) -> Any:
    """Return a tensor with the shards and parts that a class holds together."""
    whole = clone(weight)
    for name in ("shards", "parts"):
        held = getattr(weight, name, None)
        if isinstance(held, PerRankSet):
            setattr(whole, name, held.union_over(attempt.folded_sizes))
    return whole


@contextmanager
def ranges_of_every_rank(strategy: Callable[..., Any]) -> Iterator[None]:
    """Let `range` in the module of a strategy stand for the ranges of every rank of a class.

    Python's own `range` takes ints alone, and a strategy that says which samples a rank has is most naturally written
    with it; its ends may differ between ranks, as those of `span` may.

    Args:
        strategy: a user's strategy; shipped ones use `span`.
    """
    names: dict[str, Any] = getattr(unwrapped(strategy), "__globals__", {})
    if "range" in names or f"{names.get('__name__', 'minitrain')}.".startswith("minitrain."):
        yield
        return
    names["range"] = _range
    try:
        yield
    finally:
        names.pop("range", None)


def _range(*ends: Any) -> Sequence[Any]:
    """Return a range whose start and stop may differ between ranks."""
    return span(*ends) if len(ends) == 2 else range(*ends)


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
                module = type(value).__module__
                left += [*getattr(value, "__dict__", {}).items()] if module.partition(".")[0] == own else ()
                if module == "itertools":  # which Python 3.14 does not pickle
                    found[name] = repr(value).encode()
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
    message = (
        f"{prepared.name} cannot be folded: rank {rank} was executed by itself too, and does something else than the "
        f"ranks that it was folded with ({what}); let ranks differ in shard index and samples alone, share nothing "
        "that they change, draw no numbers, or simulate without fold=True"
    )
    raise StrategyError(message, rank=rank, is_split=False) from cause


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
        call.settle_all([call], [self._own(of_class.outcome, call.value)], start, last, largest_bytes)
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
