"""The model of a class of ranks: a `Model` of its lowest rank, which shows the strategy a value for each rank.

Shards of a sequence where ranks fold: ranks with different shards are not folded together.

Such ranks do the same with other shards, and attention costs more towards the end of the sequence. So the axis along
which shards differ is kept apart, as one along which the network has other prices. Tensors say which shards their class
has, so that collectives among classes are completed as where ranks do the same.

Expert parallelism where ranks fold: each rank of a class loads its own part, and all parts get as many tokens.

The results of collectives whose groups lie within a class of ranks: by symmetry, from one value for all of them.

The laws are those of `minitrain.operations.collectives`, which here ask one value that stands for those of all ranks.

The part of a class of ranks in a collective with other classes, which is completed when the last one is there.

Classes meet through the transport, as the ranks of a full run do. Each of them then takes the union over the ranks of
the class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

from minitrain.engine import laws
from minitrain.engine.communication import TENSORS, Groupish
from minitrain.engine.dist import Dist
from minitrain.engine.model import Model
from minitrain.engine.operations import Launched, Operation
from minitrain.engine.protocol import Group, Mesh, require_axes
from minitrain.engine.state import refuse_change
from minitrain.errors import CollectiveMismatchError
from minitrain.machine.measured_topology import places_of
from minitrain.machine.price import Predictor, Price
from minitrain.machine.topology import RankNodes
from minitrain.operations import LAYER, PRICE, SAMPLES, STRIDE, EventLog
from minitrain.operations.collectives import COLLECTIVES, describe
from minitrain.run.folding.attempt import FoldAttempt, Labels, labels_of, require_alike
from minitrain.run.folding.mesh import (
    FoldedGroup,
    FoldedMesh,
    GroupOfEnds,
    axes_along,
    axis_of_ends,
    require_same_price,
)
from minitrain.run.folding.per_rank_values import PerRankInt, PerRankRange, PerRankSet, of_lowest, per_rank
from minitrain.run.rank_tasks import PreparedRun
from minitrain.run.strategy_loading import is_shipped
from minitrain.tensors import Activation, OptState, Sharded, Weight, WeightGrad
from minitrain.tensors.index_sets import SequencePart
from minitrain.tensors.kinds import altered
from minitrain.tensors.placed import (
    PARTIAL,
    SHARDS,
    ActivationShard,
    ExpertOptState,
    ExpertWeight,
    KeysValues,
    KeysValuesGrad,
    RoutedTokens,
    RouterOptState,
    RouterWeight,
    TableGrad,
)

_OF_CLASSES = (KeysValues, KeysValuesGrad, TableGrad)
_getter = lru_cache(maxsize=64)(attrgetter)  # of a few names, by every collective


class Symmetric:
    """What the ranks of a group bring, each its own of one value that stands for all of them.

    Args:
        op: the collective.
        value: what each rank brings.
        group: the group of each rank.
    """

    def __init__(self, op: str, value: Any, group: FoldedGroup) -> None:
        self.op, self.first, self.size, self.detail = op, value, group.size, None
        self._group = group

    def mismatch(self, rule: str) -> Exception:
        """Return the error of ranks that do not keep a rule."""
        return CollectiveMismatchError(
            f"all ranks of {self.op} {rule}, got {describe(self.first)} from all of them", op=self.op
        )

    def agree(self, *names: str) -> None:
        """Require tensors that agree in some fields."""
        for name in names:
            if not self.is_one(name):
                raise CollectiveMismatchError(
                    f"all ranks of {self.op} must bring the same kind of tensor with the same {name}, which differ "
                    f"between the ranks of a group: {describe(self.first)}",
                    op=self.op,
                )

    def is_one(self, name: str) -> bool:
        """Return whether all bring the same in a field."""
        field = _getter(name)(self.first)
        if field.__class__ is SequencePart:
            return self._is_one(field.shards) and self._is_one(field.pieces)
        return self._is_one(field)

    def _is_one(self, value: Any) -> bool:
        return value.__class__ is not PerRankSet or self._group.axes.isdisjoint(value.slopes)

    def union(self, name: str) -> Any:
        """Return the union of a set that each brings."""
        values = _getter(name)(self.first)
        return values.union_over(self._group.axes) if isinstance(values, PerRankSet) else values

    def total(self, count: Callable[[Any], int]) -> int:
        """Return the sum of a number over what each brings."""
        return count(self.first) * self.size


def perform(attempt: FoldAttempt, op: str, value: Any, group: FoldedGroup) -> Any:
    """Return each rank's result of a collective.

    Args:
        attempt: how ranks are folded.
        op: which collective.
        value: what each rank brings.
        group: the group of each rank.

    Raises:
        CollectiveMismatchError: the values of a group's ranks do not belong together.
        DivergesError: the operation cannot be completed by symmetry.
    """
    require_symmetric(attempt, op, value, group)
    if op == "barrier":
        return value  # None
    if isinstance(value, list):
        return [perform(attempt, op, item, group) for item in value]
    record = COLLECTIVES[op]
    result = record.law(Symmetric(op, value, group))(value, group.index)
    if (
        record.gives == "union"
        and group.communicator.is_world
        and isinstance(value, Sharded)
        and not result.is_complete()
    ):
        raise CollectiveMismatchError(
            f"all ranks of all_gather must together bring every shard, got {describe(result)}"
        )
    return result


def perform_of_classes(attempt: FoldAttempt, op: str, value: Any, result: Any, group: FoldedGroup) -> Any:
    """Return each rank's result of a collective whose groups have members of several classes.

    Args:
        attempt: how ranks are folded.
        op: which collective.
        value: what each rank of the class brings.
        result: what the lowest ranks of all those classes get among themselves; unions over classes and within a class
            may be made in any order.
        group: the group of each rank.

    Raises:
        CollectiveMismatchError: the values of a group's ranks do not belong together.
    """
    if isinstance(result, list):
        return [
            perform_of_classes(attempt, op, item, of_item, group) for item, of_item in zip(value, result, strict=True)
        ]
    if isinstance(value, _OF_CLASSES) or (type(result) is not type(value) and isinstance(value, PARTIAL)):
        return result  # all came together among classes
    if COLLECTIVES[op].gives == "exchange":  # of kept axes alone
        return result
    if COLLECTIVES[op].scatters:  # its shards are those of the group's ranks, not of its classes
        result = altered(result, shards=value.shards, num_shards=value.num_shards)
    return perform(attempt, op, result, group)


def require_symmetric(attempt: FoldAttempt, op: str, value: Any, group: FoldedGroup) -> None:
    """Require a collective that all ranks of a group take part in alike, and tensors that `perform` knows.

    Raises:
        DivergesError: it is none, or they are not.
    """
    if not _is_symmetric(op, value):
        attempt.diverge(f"{op} of {describe(value)}, which cannot be folded,", group.axes)


def united_within(op: str, value: Any, group: FoldedGroup) -> Any:
    """Return what a class brings to a sum with other classes: with the samples of all its ranks in the group.

    Classes whose ranks have different numbers of samples move differently between ranks, and so their sets are united
    within each class first.
    """
    if isinstance(value, list):
        return [united_within(op, item, group) for item in value]
    if COLLECTIVES[op].gives != "sum" or value.__class__ is not WeightGrad:
        return value
    samples = Symmetric(op, value, group).union("samples")
    return value if samples is value.samples else altered(value, samples=samples)


def _is_symmetric(op: str, value: Any) -> bool:
    """Return whether a collective of a tensor, or of a bucket of them, is known."""
    record = COLLECTIVES[op]
    if isinstance(value, list):
        return record.takes_buckets and all(_is_symmetric(op, item) for item in value)
    return record.gives == "nothing" or isinstance(value, record.kinds)


class ClassOperation(Operation):
    """The part of a class in a collective whose groups have members of several classes.

    Attributes:
        own_value: what the lowest rank of the class gave; its `value` may have the samples of all ranks of the class.
    """

    __slots__ = ("own_value",)
    own_value: Any

    @property
    def given(self) -> Any:
        """What the lowest rank gave, whose memory counts."""
        return self.own_value

    @staticmethod
    def settle_all(calls: Sequence[Any], results: Sequence[Any], start: float, last: int, largest_bytes: int) -> None:
        """Complete the collective of all classes; `results` are those of their lowest ranks among themselves."""
        found = [
            perform_of_classes(call.model.attempt, call.op, call.value, result, call.owner)
            for call, result in zip(calls, results, strict=True)
        ]
        Operation.settle_all(calls, found, start, last, largest_bytes)
        calls[0].model.require_same_price(calls[0])


def keep_shards_apart(attempt: FoldAttempt, shards: Any) -> Any:
    """Return shards of the sequence, which must be the same for all ranks of a class.

    Args:
        attempt: how ranks are folded.
        shards: what the strategy gave; what are no shards is for the engine to refuse.

    Raises:
        DivergesError: they differ between the ranks of a class.
    """
    if not isinstance(shards, Iterable):
        return shards
    listed = list(shards)
    for shard in listed:
        if isinstance(shard, PerRankInt):
            attempt.sequences_differ = True
            attempt.diverge("a shard of the sequence that differs between ranks", shard.slopes)
    return listed


def tells_classes_apart(value: Any) -> bool:
    """Return whether a tensor says what differs between classes: the shards of the sequence that their ranks have."""
    sequence = getattr(value, "sequence", None)  # buckets have none
    return sequence is not None and sequence.num_shards > 1 and not isinstance(value, (*SHARDS, *PARTIAL))


T = TypeVar("T")


class FoldedModel(Model):
    """One class of ranks of a training run.

    Args:
        attempt: how ranks are folded.
        rank: the class's lowest rank.
        dist: the transport, for messages between classes.
        num_layers: layers of the trained model.
        global_batch_size: samples of one step.
        runtime_predictor: what prices the operations.
        labels: what the ranks of a class must have in common, for each rank; None where all ranks are alike.
        memory_by_kind: keep a journal of every change of every store.

    Attributes:
        symbolic_columns: columns of the finished log, by their place in a row, with values that stand for every rank.
        communicated: the collectives and receives so far, where ranks are to be executed in full too.

    Adds:
        rank: a number for each rank of the class, whoever asks; that of the lowest one is `_rank`.
        log: refuses to be read by the strategy.
        mesh, group, _member: give groups that stand for those of every rank of the class.
        launch: refuses to keep a journal of what is in flight.
        _collective, _join: complete at once, as all ranks of the class do the same at the same time.
        _send, _receive: go to and come from another class.
        load_weights, load_router, load_experts, get_input_activation, get_input_shard: take shards, parts and
            samples that differ between ranks.
        document_lengths, count_pairs, _samples_of, _samples_with_documents: want documents that are the class's.
        route: keeps ranks apart whose experts get unlike shares of the tokens.
        _is_whole_batch: recognizes a set of all samples without listing them.
    """

    _class_operation_kind: Any = ClassOperation

    def __init__(
        self,
        attempt: FoldAttempt,
        rank: int,
        dist: Dist,
        num_layers: int,
        global_batch_size: int,
        runtime_predictor: Predictor,
        labels: Labels | None = None,
        *,
        memory_by_kind: bool = False,
    ) -> None:
        self.attempt = attempt
        self.symbolic_columns: dict[int, list[Any]] = {}
        self._labels = labels
        topology = getattr(runtime_predictor, "topology", None)
        self._nodes = None if topology is None else places_of(topology)
        super().__init__(
            rank,
            dist,
            num_layers,
            global_batch_size,
            runtime_predictor=runtime_predictor,
            memory_by_kind=memory_by_kind,
        )
        self._finished = False
        self.communicated: list[Operation] | None = None
        self._task: Any = None
        self._find_coordinates()

    def _find_coordinates(self) -> None:
        """Find out where the class lies on the axes, which the strategy's mesh may replace."""
        if self._labels is not None:
            require_alike(self.attempt, self._rank, self._labels)
        self._rank_of_each = per_rank(self.attempt, self._rank, self.attempt.strides)
        self._folded_groups: dict[frozenset[str], FoldedGroup] = {}
        self._meetings: dict[Any, Any] = {}  # of classes, by the axes and spans of their group
        self._peers_alike: set[int] = set()
        self._unlike_along: frozenset[str] = frozenset()  # axes along which ranks have other parts of the experts
        self._all_ranks: FoldedGroup | None = None  # made when asked for: a strategy with a mesh hardly needs it

    @property
    def rank(self) -> Any:
        """A number for each rank of the class; the engine has that of the lowest rank in `_rank`."""
        self.attempt.is_observed = True
        return self._rank_of_each

    @rank.setter
    def rank(self, _: Any) -> None:
        refuse_change(self, "rank")

    @property
    def log(self) -> EventLog:
        """The events of the class's lowest rank; during the run, the strategy may not read them."""
        if not self._finished:
            self.attempt.diverge("a look into the log")
        return self._log

    @log.setter
    def log(self, _: Any) -> None:
        refuse_change(self, "log")

    def mesh(self, **axes: int) -> Mesh:
        """Lay the ranks out on named axes, which are then those along which they are folded."""
        require_axes(axes, self.world_size)
        if list(axes.items()) != list(self.attempt.mesh_axes.items()):
            if not self.attempt.adopt_mesh(axes):
                self.attempt.wanted_axes = axes if self.attempt.wanted_axes is None else self.attempt.wanted_axes
                self.attempt.diverge("a mesh of its own")
            self._find_coordinates()
        self.attempt.is_observed = True
        self._note_mesh(axes)
        return FoldedMesh(self.attempt, self._rank, self._group_along)

    def group(self, ranks: Iterable[int]) -> Group:
        """Return the group of some ranks, if they are all ranks along some axes and each rank is in its own group."""
        self.attempt.is_observed = True
        members = list[Any](ranks)
        found = axes_along(self.attempt, self._rank, members)
        if found is not None:
            return self._group_along(found)
        axis = axis_of_ends(self.attempt, self._rank, members)
        if axis is None:
            self.attempt.diverge("a group by its ranks (use model.mesh)")
        return GroupOfEnds(self.attempt, axis, self._rank, self._nodes)

    def _group_along(self, axes: Iterable[str]) -> FoldedGroup:
        """Return the group along some axes."""
        found = frozenset(axis for axis in axes if self.attempt.axes[axis] > 1)
        if found not in self._folded_groups:
            self._folded_groups[found] = FoldedGroup(self.attempt, found, self._rank, self._nodes)
        return self._folded_groups[found]

    def _member(self, group: Groupish) -> FoldedGroup:
        """Return the group that a strategy named."""
        self.attempt.is_observed = True
        if group is None:
            self._all_ranks = self._all_ranks or self._group_along(self.attempt.axes)
            return self._all_ranks
        named = group if isinstance(group, Group) else self.group(group)
        assert isinstance(named, FoldedGroup)  # the model makes all of them
        return named if named.lowest_rank == self._rank else self._group_along(named.axes)

    def _collective(self, op: str, v: Any, layer: int | None, group: Groupish, detail: Any = None) -> Operation:
        """Submit a collective and complete it at once: all ranks of the class do the same at the same time."""
        member = self._member(group)
        value = v if v.__class__ in TENSORS else self._communicable(op, v)
        self._require_one("a layer", layer)
        self._require_one_task()
        kind = self._class_operation_kind if member.kept else self._operation_kind
        operation: Operation = kind(self, op, value, member, layer, detail, None)
        if self._chains is None or not self._chains.hold(operation, self._join):
            self._join(operation)
        return operation

    def _join(self, operation: Any) -> None:
        """Complete a collective within the class, or let it meet those of other classes."""
        op, value, member = operation.op, operation.value, operation.owner
        if self.communicated is not None and member.size > 1:
            self.communicated.append(operation)
        if not (member.kept <= self.attempt.apart or tells_classes_apart(value) or self._is_between_classes(member)):
            self.attempt.diverge(
                f"{op} over the axes {', '.join(sorted(member.axes))}, not all of which fold,", member.axes
            )
        if member.kept:
            self._meet(operation)
        else:
            operation.settle_alone(value if member.size == 1 else perform(self.attempt, op, value, member))
            self.require_same_price(operation)

    def _is_between_classes(self, member: FoldedGroup) -> bool:
        """Return whether a group has one rank of each of some classes, between which messages go.

        Ranks that differ and all meet were never alike.
        """
        axes = self.attempt.kept & self.attempt.message_axes
        return bool(member.kept) and member.axes <= axes and member.size < self.world_size

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Submit a communication to run beside what follows, where no journal is kept.

        When the result enters a journal depends on which rank of the group comes last, which a class cannot tell.
        """
        if self._account.journal is not None and self.attempt.folded_sizes:
            operation.close()
            self.attempt.needs_every_rank = True
            self.attempt.diverge("a journal of what is in flight")
        return super().launch(operation)

    def _meet(self, operation: Any) -> None:
        """Submit a collective with other classes, which is completed when the last one is there."""
        op, value, member = operation.op, operation.value, operation.owner
        require_symmetric(self.attempt, op, value, member)
        if COLLECTIVES[op].gives == "exchange" and not member.axes <= self.attempt.kept:
            self.attempt.diverge("all_to_all over some axes that fold and some that do not", member.axes)
        operation.own_value, operation.value = value, united_within(op, value, member)
        classes = self._classes_of(member)
        classes.join(classes.index_of(self._rank), operation)

    def _classes_of(self, member: FoldedGroup) -> Any:
        """Return where the classes meet that a group has members of."""
        key = member.axes, member.spans
        found = self._meetings.get(key)
        if found is None:
            found = self._meetings[key] = self._transport.communicator_along(member.lowest_class(), member.spans)
        return found

    def require_same_price(self, operation: Operation) -> None:
        """Refuse a collective that costs more in some groups of the class than in others.

        Args:
            operation: the collective, which is completed.
        """
        member: Any = operation.owner  # a folded group
        if len(member.communicator.shapes) == 1:
            return
        op, size_bytes = operation.op, self._rows[operation.row + PRICE].size_bytes
        asked = () if operation.detail is None else (operation.detail,)
        assert self._nodes is not None  # groups on a flat network are all alike

        def price(machine: Predictor, ranks: Sequence[int]) -> Price:
            return machine.collective(op, size_bytes, ranks, *asked)

        shapes, predictor = member.communicator.shapes, self._runtime_predictor
        require_same_price(self.attempt, self._nodes, op, shapes, member.axes, price, predictor)

    def _require_one_task(self) -> None:
        """Refuse tasks within a rank: which one continues first depends on who comes last to a collective."""
        task = asyncio.current_task(self._dist.detector.loop)  # which loop runs takes a call of the operating system
        self._task = self._task or task
        if self._task is not task and self.attempt.folded_sizes:
            self.attempt.diverge("communication from several tasks of one rank")

    def _require_one(self, what: str, value: Any) -> None:
        """Refuse a value that differs between ranks."""
        if isinstance(value, PerRankInt):
            self.attempt.diverge(f"{what} that differs between ranks", value.slopes)

    def _send(self, dest: int, v: Any, tag: Hashable) -> Operation:
        """Submit a message to another class."""
        return super()._send(self._class_of(dest), v, tag)

    def _receive(self, source: int, tag: Hashable) -> Operation:
        """Submit a receive from another class."""
        operation = super()._receive(self._class_of(source), tag)
        if self.communicated is not None:
            self.communicated.append(operation)
        return operation

    def _class_of(self, peer: Any) -> Any:
        """Return the lowest rank of the class that each rank's peer belongs to.

        Peers must be equally far away for every rank, along kept axes alone. Then messages between two classes stand
        for messages between each rank and its own peer.
        """
        self.attempt.is_observed = True
        self._require_one_task()
        const, slopes = (peer.const, peer.slopes) if isinstance(peer, PerRankInt) else (peer, {})
        mine = self._rank_of_each.slopes if isinstance(self._rank_of_each, PerRankInt) else {}
        if slopes != mine:
            self.attempt.diverge("a message to or from ranks that are not all as far away")
        if type(const) is not int or not 0 <= const < self.world_size:
            return const  # the transport refuses it with its own message
        for axis, stride in self.attempt.strides.items():
            size = self.attempt.axes[axis]
            if const // stride % size != self._rank // stride % size:
                if axis not in self.attempt.kept:
                    self.attempt.diverge(f"a message along the axis {axis}", frozenset([axis]))
                self.attempt.message_axes.add(axis)
        if self._nodes is not None and const not in self._peers_alike:
            self._require_same_tier(self._nodes, const)
        return const

    def _require_same_tier(self, nodes: RankNodes, peer: int) -> None:
        """Refuse messages to or from another class that cross nodes on some ranks only."""
        if peer != self._rank:  # a message to oneself is the transport's to refuse
            low, high = sorted((self._rank, peer))
            steps = ((self.attempt.strides[axis], size) for axis, size in self.attempt.folded_sizes.items())
            shapes = nodes.one_of_each_shape(range(low, high + 1, high - low), steps)

            def distance(_: Any, pair: Sequence[int]) -> Hashable:
                return nodes.distance(pair[0], pair[-1])

            require_same_price(self.attempt, nodes, "a message", shapes, frozenset(), distance)
        self._peers_alike.add(peer)

    def load_weights(
        self, layer: int, shard: Any = 0, num_shards: int = 1, *, part: Any = 0, num_parts: int = 1
    ) -> tuple[Weight, OptState]:
        """Load one shard of a layer's weight, or of a part of it, each rank its own."""
        counts = {"num_shards": num_shards, "num_parts": num_parts}
        return self._each_its_own(super().load_weights, layer, {"shard": shard, "part": part}, **counts)

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the model's input for some samples, each rank its own."""
        return Activation(0, self.num_layers, self._samples_of(samples), self.global_batch_size)

    def _samples_of(self, samples: Iterable[int]) -> Any:
        """Return samples as a set, each rank its own."""
        listed: Any = samples
        if not isinstance(samples, PerRankRange | PerRankSet):
            listed = laws.sample_numbers(self, samples, PerRankInt)
            laws.require_inside(self, listed if isinstance(listed, range) else ())
        if not len(listed):
            return frozenset[int]()
        found = PerRankSet.of(self.attempt, listed)
        laws.require_inside(self, list(found.bounds()))
        return found

    def _samples_with_documents(self, samples: Any) -> Collection[int]:
        """Return samples whose documents are those of every rank of the class."""
        workload: Any = self._runtime_predictor.workload
        if not getattr(workload, "is_packed", False) or workload.model.documents.are_alike(workload.seq_len):
            return range(len(samples))
        if isinstance(samples, PerRankSet) and samples.slopes:
            self.attempt.diverge("documents of which each rank has others", samples.slopes)
        return frozenset(samples)

    def document_lengths(self, sample: Any) -> tuple[int, ...]:
        """Return the documents of a sample, which all ranks of the class must look at together."""
        self._require_one("a look at the documents of a sample", sample)
        return super().document_lengths(sample)

    def count_pairs(
        self, samples: Iterable[int], shards: Any = (0,), num_shards: int = 1, cut: str = "sequence"
    ) -> int:
        """Return the pairs of a query of some shards and a key that it sees, which are the class's."""
        return super().count_pairs(samples, keep_shards_apart(self.attempt, shards), num_shards, cut)

    def get_input_shard(
        self, samples: Iterable[int], shards: Iterable[int], num_shards: int, cut: str = "sequence"
    ) -> ActivationShard:
        """Return the model's input for some samples, each rank its own, and shards that are the class's."""
        self._require_one("a number of shards", num_shards)
        found = super().get_input_shard((), keep_shards_apart(self.attempt, shards), num_shards, cut)
        found.samples = self.get_input_activation(samples).samples
        return found

    def _is_whole_batch(self, samples: Any) -> bool:
        """Return whether a set holds every sample, without listing them."""
        whole = samples == PerRankSet.of(self.attempt, range(self.global_batch_size))
        if whole:
            self._whole_batches[id(samples)] = samples
        return bool(whole)

    def finish(self) -> None:
        """Put the values of the lowest rank into the log, and keep those that stand for every rank beside it."""
        self._finished = True
        self._task = None
        self._rank_of_each = self._rank
        rows = self._rows
        for place in (LAYER, SAMPLES):
            values = rows[place::STRIDE]
            lowest = {id(value): of_lowest(value) for value in values if value.__class__ in _PER_RANK}
            if lowest:  # events share their sets
                self.symbolic_columns[place] = values
                rows[place::STRIDE] = [lowest.get(id(value), value) for value in values]

    def load_router(self, layer: int, shard: Any = 0, num_shards: int = 1) -> tuple[RouterWeight, RouterOptState]:
        """Load one shard of what all ranks hold of a layer with experts, each rank its own."""
        return self._each_its_own(super().load_router, layer, {"shard": shard}, num_shards=num_shards)  # type: ignore[return-value]  # a router piece

    def load_experts(
        self, layer: int, shard: Any = 0, num_shards: int = 1, *, part: Any = 0, num_parts: int = 1
    ) -> tuple[ExpertWeight, ExpertOptState]:
        """Load one part of a layer's experts, or a shard of it, each rank its own."""
        if isinstance(part, PerRankInt):
            self._unlike_along |= frozenset(part.slopes)
        counts = {"num_shards": num_shards, "num_parts": num_parts}
        return self._each_its_own(super().load_experts, layer, {"shard": shard, "part": part}, **counts)  # type: ignore[return-value]  # a part of experts

    def _each_its_own(self, load: Any, layer: int, which: Mapping[str, Any], **counts: int) -> tuple[Weight, OptState]:
        """Load what is of another shard or part on each rank; the laws see the last of them too if it is none."""
        if PerRankInt in map(type, (layer, *counts.values())):
            self._diverge_by({"layer": layer, **counts})
        if PerRankInt not in map(type, which.values()):
            return load(layer, **which, **counts)  # type: ignore[no-any-return]  # weight and state
        differing = {name: value for name, value in which.items() if isinstance(value, PerRankInt)}
        first = {**which, **{name: value.const for name, value in differing.items()}}
        for name, value in differing.items():
            low, high = value.bounds()
            if low < 0 or high >= counts[f"num_{name}s"]:
                load(layer, **{**first, name: min(low, 0) or high}, **counts)  # raises
        weight, state = load(layer, **first, **counts)
        for name, value in differing.items():
            own = value.singleton()
            noted = () if self._entry is None else (self._entry.loaded[-1],)
            for loaded in (weight, state, *noted):
                setattr(loaded, f"{name}s", own)
        return weight, state

    def _diverge_by(self, counts: Mapping[str, Any]) -> None:
        """End the attempt for numbers that must be the same on all ranks."""
        for name, count in counts.items():
            if isinstance(count, PerRankInt):
                what = "a layer" if name == "layer" else f"a number of {name.removeprefix('num_')}"
                self.attempt.diverge(f"{what} that differs between ranks", count.slopes)

    def route(self, layer: int, inp: Activation, weight: Weight, num_parts: int, **how: Any) -> RoutedTokens:
        """Return copies of tokens; parts of the experts that get unlike shares are not those of one class."""
        tokens = super().route(layer, inp, weight, num_parts, **how)
        if tokens.load.shares and self._unlike_along:
            self.attempt.prices_differ = True  # they do the same, at other prices
            self.attempt.diverge("experts of which some get more tokens than others", self._unlike_along)
        return tokens


_PER_RANK = frozenset({PerRankInt, PerRankSet})


def model_of_class(prepared: PreparedRun, attempt: FoldAttempt, rank: int, dist: Dist) -> FoldedModel:
    """Return the model of the class of a lowest rank, on the transport that all classes share."""
    parameters, predictor = prepared.parameters, prepared.predictor_of(rank)
    kind: type[FoldedModel] = prepared.folded_kind or FoldedModel
    sizes, more = (parameters.num_layers, parameters.global_batch_size), {"memory_by_kind": parameters.memory_by_kind}
    model = kind(attempt, rank, dist, *sizes, predictor, labels_of(prepared), **more)
    if not is_shipped(prepared.function):
        model.communicated = []
    prepared.give_shares([model])
    prepared.enter(model)
    return model
