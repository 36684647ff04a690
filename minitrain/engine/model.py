"""One rank's view of a training run: its stores, its operations, its clock and its log.

A strategy sees nothing else. Every operation checks the laws of training first, then logs one event priced by the
rank's predictor, then moves the rank's clock. Computing moves this rank's clock alone; what ranks do together starts
when the last of them is ready.

What only watches (strict accounting, a recording) is an observer; what operations do beside, such as computing in
NumPy, is an executor's: see `minitrain.engine.observers`. `watched` makes a class of a kind of model whose operations
have hooks for both, by one table of operations. A question in each operation, whether somebody watches, would cost
every run.

Models of folded ranks are subclasses. A kind of model adds to operations by overriding some of the following, and
nothing else; an override calls `super()` for what it does not replace. The docstring of a kind lists under "Adds" what
it overrides and why, which tests/engine/test_model_kinds.py checks.

| overridden | when it is called |
|---|---|
| `load_weights`, `load_router`, `load_experts`, `get_input_activation`, `get_input_shard` | by the strategy |
| `route`, `launch`, `document_lengths`, `count_pairs` | by the strategy |
| `_samples_of`, `_samples_with_documents` | when samples come in, and when their documents are looked at |
| `_collective`, `_send`, `_receive` | when a communication is submitted, awaited or launched |
| `_join` | when a collective has what it was given, and is to meet those of other ranks |
| `mesh`, `group`, `_member` | when a group of ranks is named |
| `rank`, `log`, `_is_whole_batch` | when the strategy or an operation reads them |

A journal of memory by kind needs no kind of model: it is another store (see `minitrain.engine.stores`). Nor do totals
in the place of events: they are another log (see `minitrain.run.summary_log`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from types import MappingProxyType
from typing import Any, TypeVar

from minitrain.engine import stages
from minitrain.engine.communication import Communication
from minitrain.engine.computation import Attention
from minitrain.engine.experts import ExpertComputation
from minitrain.engine.gradients import Compression, LocalComputation, TiedEmbeddings, steps_of
from minitrain.engine.observers import Executor, Observer
from minitrain.engine.operations import Launched, Operation
from minitrain.engine.placed_passes import mode_of
from minitrain.engine.semantics import Shares, check_final_weights
from minitrain.engine.stages import blocks_of, stages_of
from minitrain.engine.stores import Store
from minitrain.engine.strategy_model import StrategyModel
from minitrain.operations.collectives import TRANSFERS
from minitrain.operations.computations import COMPUTATIONS
from minitrain.workloads.workload import Recompute

M = TypeVar("M", bound="Model")
T = TypeVar("T")

_NOT_NAMED: Mapping[str, Any] = MappingProxyType({})


@cache
def _watched_store(kind: type[Store[Any]]) -> type[Any]:
    """Return a kind of store that tells an observer what enters and leaves it.

    Its methods call those of the kind directly, since `super()` takes as long as storing a tensor.
    """
    put, delete, pop, popitem = kind.__setitem__, kind.__delitem__, kind.pop, kind.popitem

    class WatchedStore(kind):  # type: ignore[valid-type,misc]  # any kind
        """A store that tells what enters and leaves it.

        Attributes:
            observer: who is told.
            rank: whose it is.
            label: which of the five stores it is.
        """

        __slots__ = ("label", "observer", "rank")

        def __setitem__(self, key: Any, value: Any) -> None:
            if key in self:
                before = self[key]
                put(self, key, value)
                self.observer.left(self, key, before)
            else:
                put(self, key, value)
            self.observer.stored(self, key, value)

        def __delitem__(self, key: Any) -> None:
            value = self[key]
            delete(self, key)
            self.observer.left(self, key, value)

        def pop(self, key: Any, *default: Any) -> Any:
            """Remove a key and return its value."""
            held = key in self
            value = pop(self, key, *default)
            if held:
                self.observer.left(self, key, value)
            return value

        def popitem(self) -> tuple[Any, Any]:
            """Remove and return the pair that came last."""
            key, value = popitem(self)
            self.observer.left(self, key, value)
            return key, value

    return WatchedStore


class _Watched:
    """What a rank with hooks does with others, and how its stores are made; see `watched`."""

    follows_tensors = True
    _observer: Observer | None
    _executor: Executor | None = None

    def __init__(self, *args: Any, observer: Observer | None = None, **named: Any) -> None:
        nobody = None if self._executor else Observer()  # where a strategy makes a model like its own
        self._observer = observer or nobody
        super().__init__(*args, **named)
        if self._observer is not None:
            self._observer.begin(self)
        if self._executor is not None:
            self._executor.begin(self)

    def after_collective(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Tell the results of a collective, before any rank gets them; called on the lowest member.

        Args:
            operations: each member's part, in rank order, with its `model` and the `value` it brought.
            results: each member's result.
        """
        if self._observer is not None:
            self._observer.settled(operations, results)
        if self._executor is not None:
            self._executor.settle(operations, results)

    def after_message(self, operation: Any, value: Any, result: Any) -> None:
        """Tell a received tensor.

        Args:
            operation: the receive.
            value: what the sender sent.
            result: what this rank gets.
        """
        if self._observer is not None:
            self._observer.received(operation, value, result)
        if self._executor is not None:
            self._executor.receive(operation, value, result)

    def _make_store(self, kind: type[Store[Any]], name: str, *args: Any) -> Store[Any]:
        """Make a store that tells what enters and leaves it."""
        if self._observer is None:
            return kind(*args)
        store = _watched_store(kind)(*args)
        store.observer, store.rank, store.label = self._observer, self._rank, name  # type: ignore[attr-defined]  # of a model
        return store  # type: ignore[no-any-return]

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Submit a communication to run beside what follows; see `Model.launch`."""
        launched: Launched[T] = super().launch(operation)  # type: ignore[misc]
        if self._observer is not None:
            self._observer.launched(launched._operation)
        return launched

    def _resize(self, tensor: Any, units: int) -> None:
        """Give a tensor another size."""
        super()._resize(tensor, units)  # type: ignore[misc]
        if self._observer is not None:
            self._observer.resized(self, tensor, units)

    def _communicated(self, op: str, given: tuple[Any, ...], submit: Callable[[], Operation]) -> Operation:
        """Submit a communication, and tell the observer before and after."""
        observer, executor = self._observer, self._executor
        if observer is not None:
            observer.before(self, op, given)
        operation: Operation = submit() if executor is None else executor.communicate(self, op, given, submit)
        if observer is not None:
            observer.after(self, op, given, _NOT_NAMED, operation)
        return operation


def watched(kind: type[M], executor: Executor | None = None) -> Callable[..., M]:
    """Return what makes models of a kind that tell an observer, given as `observer=`, of all that they do.

    Args:
        kind: the class of model.
        executor: what their operations do in addition.
    """
    hooked = _hooked(kind)
    return hooked if executor is None else type(kind.__name__, (hooked,), {"_executor": executor, "__slots__": ()})


@cache
def _hooked(kind: type[M]) -> type[M]:
    """Return a kind of model with hooks."""
    told = {name: _telling(name, getattr(kind, name)) for name in COMPUTATIONS}
    submits = {
        record.submits: _telling_submission(op, getattr(kind, record.submits)) for op, record in TRANSFERS.items()
    }
    return type(
        kind.__name__,
        (_Watched, kind),
        {**told, **submits, "_collective": _telling_collective(kind), "__slots__": ("_observer",)},
    )


def _telling_submission(op: str, submit: Callable[..., Operation]) -> Callable[..., Operation]:
    """Return a method that submits a message, or a move to or from the host."""

    def submission(self: Any, *given: Any) -> Operation:
        return self._communicated(op, given, partial(submit, self, *given))  # type: ignore[no-any-return]  # of a model

    return submission


def _telling_collective(kind: Any) -> Callable[..., Operation]:
    """Return a method that submits a collective."""
    submit = kind._collective

    def collective(self: Any, op: str, *given: Any) -> Operation:
        return self._communicated(op, given, partial(submit, self, op, *given))  # type: ignore[no-any-return]  # as above

    return collective


def _telling(op: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that computes, and tells the observer before and after."""
    signature = inspect.signature(compute)
    places = frozenset(
        name for name, known in signature.parameters.items() if known.kind is known.POSITIONAL_OR_KEYWORD
    )

    @wraps(compute)
    def operation(self: Any, *given: Any, **named: Any) -> Any:
        if named and not places.isdisjoint(named):
            given, named = _in_order(signature, self, given, named)
        observer, executor = self._observer, self._executor
        if observer is not None:
            observer.before(self, op, given)
        if executor is None:
            made = compute(self, *given, **named)
        else:
            made = executor.compute(self, op, given, named, partial(compute, self, *given, **named))
        if observer is not None:
            observer.after(self, op, given, named, made)
        return made

    return operation


def _in_order(
    signature: inspect.Signature, model: Any, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with those that have a place in it; wrong ones as they are, for the operation to refuse."""
    try:
        bound = signature.bind(model, *given, **named)
    except TypeError:
        return given, named
    bound.apply_defaults()
    return bound.args[1:], bound.kwargs


_OF_THE_ENGINE = frozenset(
    {
        "account",
        "after_collective",
        "after_message",
        "counted",
        "follows_tensors",
        "held_bytes",
        "in_flight",
        "launching",
        "message_bytes",
        "operation_kind",
        "wire_bytes",
    }
)
"""Names that kinds of model override or that the engine uses, and that no strategy needs: `dir` leaves them out."""


class Model(Attention, ExpertComputation, LocalComputation, Compression, TiedEmbeddings, Communication, StrategyModel):
    """One rank of a training run.

    Args:
        rank: this rank, 0 to world_size - 1 (in a world of one, any number).
        dist: the transport that all ranks share; by default a world of its own.
        num_layers: layers of the trained model.
        global_batch_size: samples of one step, over all ranks.
        runtime_predictor: what prices the operations; the specified H100 server by default.
        memory_by_kind: keep a journal of every change of every store (see `Run.memory_journals`).

    Attributes:
        time: the clock of the rank's compute stream, s.
        log: the events so far, a list to read.
        final_weights: weight by layer, as set by `set_final_weight`.
        final_experts: likewise, part of the experts by layer.
        final_locals: likewise, a replica's own weight, where fragments meet in turn.
        weights, opt_states, activations, grad_activations, grad_weights: the five stores.

    Raises:
        UsageError: a parameter is outside its rule.
    """

    @property
    def recompute(self) -> Recompute:
        """What backward computes again of a layer, where its forward does not say: see `forward`.

        Layers that are alike keep their input alone, whatever it is.
        """
        return self._recompute

    @recompute.setter
    def recompute(self, recompute: str) -> None:
        self._recompute = mode_of(recompute).recompute

    @property
    def layers_are_alike(self) -> bool:
        """Whether all layers cost the same and hold tensors of the same sizes."""
        return self._is_uniform

    @property
    def blocks(self) -> tuple[range, ...]:
        """The layers that belong together: attention and MLP of a transformer layer; one layer where all are alike."""
        return blocks_of(self)

    def stages(
        self, num_stages: int, microbatch_size: int = 1, *, layers_per_stage: Sequence[int] | None = None
    ) -> tuple[range, ...]:
        """Return the layers of each stage of a pipeline, so that the costliest stage costs as little as it can.

        Layers that are alike go in equal shares. Where the run has shares of layers (`mt.Shares`), these are taken.

        Args:
            num_stages: how many stages.
            microbatch_size: samples a microbatch; layers are priced with as many.
            layers_per_stage: how many layers each stage has, instead.

        Raises:
            UsageError: the layers cannot be shared so.
        """
        return stages_of(self, num_stages, microbatch_size, layers_per_stage)

    @property
    def shares(self) -> Shares | None:
        """Who takes how much of the step; None where all take the same."""
        return None if self._shares is None else self._shares.shares

    def samples_of_rank(self, num_replicas: int | None = None, index: int | None = None) -> Sequence[int]:
        """Return the samples of this rank: an equal, contiguous part of the batch, or what the run's shares say.

        Args:
            num_replicas: how many share the batch; world_size if None.
            index: which of them this rank belongs to; its rank if None.

        Raises:
            UsageError: the batch does not divide equally, or the shares are of another number of replicas.
        """
        return stages.samples_of_rank(self, num_replicas, index)  # type: ignore[no-any-return]  # of folded ranks, an object like a range

    def microbatches(
        self,
        microbatch_size: int | None = None,
        *,
        num_replicas: int | None = None,
        index: int | None = None,
        in_step: bool = False,
    ) -> Sequence[Sequence[int]]:
        """Return the samples of this rank in microbatches; the last one is smaller where they do not divide.

        Args:
            microbatch_size: the most samples of one; all of them if None. The run's shares may say it for each replica.
            num_replicas: how many share the batch; world_size if None.
            index: which of them this rank belongs to; its rank if None.
            in_step: whether all replicas take the same number of microbatches, as they must where they communicate in
                each. Unequal shares are then cut into as many as the replica with the most would need.

        Raises:
            UsageError: as for `samples_of_rank`, or a share has fewer samples than there are microbatches.
        """
        return stages.microbatches(self, microbatch_size, num_replicas, index, in_step=in_step)

    def steps(self) -> Iterator[int]:
        """Yield the steps of a strategy that takes them in a loop of its own: 0, 1 and so on.

        Raises:
            StrategyError: it declares none; see `minitrain.own_steps`.
        """
        return steps_of(self)

    def __dir__(self) -> list[str]:
        """List what a strategy may use, and what may be read of a finished rank."""
        return [name for name in super().__dir__() if not name.startswith("_") and name not in _OF_THE_ENGINE]

    @staticmethod
    def check(models: Sequence[Model]) -> None:
        """Verify that every layer was trained: see `minitrain.engine.semantics.check_final_weights`.

        Raises:
            LawError: a final weight is missing, incomplete, of the wrong step, or differs between replicas.
        """
        check_final_weights(models)
