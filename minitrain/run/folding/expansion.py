"""The log and the model of any rank of a folded run, made from its class when they are first read.

The rows of a class hold for all its ranks, but for a few columns. Samples are symbolic sets, which are worked out at
the place of a rank within its class. A group is the rank's own. A peer is as far away from a rank as that of the lowest
rank of the class is from this one, and so is the sender of a message that was waited for. The rank for which a
collective was waited is a member of the rank's own group.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar, overload

from minitrain.engine.model import Model
from minitrain.operations import COMM, LAYER, SAMPLES, STORES, STREAM, STRIDE, WAITED_FOR, EventLog, Stream
from minitrain.run.folding.attempt import FoldAttempt
from minitrain.run.folding.mesh import members_along
from minitrain.run.folding.model import FoldedModel
from minitrain.run.folding.per_rank_values import PerRankInt, PerRankSet
from minitrain.run.ranks_once import Partners, Repeated, repeated
from minitrain.tensors import Tensor

T = TypeVar("T")

SLOTS_OF_TENSORS = ("_units", "_passage")
_AT_THE_END = ("_time", "_recomputed_flop", "_routed_copies", "_dropped_copies", "pass_modes", "_recompute", "_meshes")
_OF_CLASSES = frozenset({"attempt", "symbolic_columns"})


class OfEveryRank(Sequence[T], Generic[T]):
    """One value a rank, made when it is first looked at and kept from then on.

    Args:
        make: returns the value of a rank.
        num_ranks: number of ranks.
    """

    __slots__ = ("_made", "_make", "_num_ranks")

    def __init__(self, make: Callable[[int], T], num_ranks: int) -> None:
        self._make = make
        self._num_ranks = num_ranks
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._num_ranks

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        found = range(self._num_ranks)[index]  # raises an IndexError as a list does
        return self._of(found) if isinstance(found, int) else [self._of(rank) for rank in found]

    def __iter__(self) -> Iterator[T]:
        return map(self._of, range(self._num_ranks))

    def _of(self, rank: int) -> T:
        """Return the value of a rank."""
        if rank not in self._made:
            self._made[rank] = self._make(rank)
        return self._made[rank]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __add__(self, other: list[T]) -> list[T]:
        return [*self, *other]

    def __radd__(self, other: list[T]) -> list[T]:
        return [*other, *self]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain list of them all."""
        return list, (list(self),)

    def __repr__(self) -> str:
        return repr(list(self))


class Expansion:
    """The logs and the models of all ranks of a folded run.

    Args:
        attempt: how ranks were folded.
        models: the model of each class, in the order of their lowest ranks, at their end.

    Attributes:
        classes: those models.
    """

    def __init__(self, attempt: FoldAttempt, models: Sequence[FoldedModel]) -> None:
        self.attempt = attempt
        self.classes = models
        self._class_of = {model._rank: model for model in models}
        self._rows_of: dict[int, _RowsOfClass] = {}
        self._sets: dict[Any, frozenset[int]] = {}
        self._axes_of = {id(stream): axes for (_, axes), stream in attempt.streams.items()}
        self._streams: dict[tuple[int, frozenset[str]], Stream] = {}

    def __deepcopy__(self, _: Any) -> Expansion:
        """Share it with a copy of a run, which has the logs of all ranks."""
        return self

    def every_rank(self) -> tuple[OfEveryRank[EventLog], OfEveryRank[Model]]:
        """Return the log of every rank, and the model of every rank, a plain `Model`."""
        logs = OfEveryRank(self._log_of, self.attempt.world_size)
        return logs, OfEveryRank(lambda rank: self._model_of(rank, logs[rank]), self.attempt.world_size)

    def repeated(self, rank: int) -> Repeated | None:
        """Return how a rank repeats the lowest one of its class, if it is another one and does."""
        place = RankInClass(self, rank)
        if place.lowest == rank:
            return None
        return self._rows_of_class(place.lowest).repeated(place, RankInClass(self, place.lowest))

    def _rows_of_class(self, lowest: int) -> _RowsOfClass:
        """Return the rows of the class of a lowest rank."""
        if lowest not in self._rows_of:
            self._rows_of[lowest] = _RowsOfClass(self._class_of[lowest])
        return self._rows_of[lowest]

    def _log_of(self, rank: int) -> EventLog:
        """Make the log of a rank."""
        place = RankInClass(self, rank)
        return EventLog(rank, self._rows_of_class(place.lowest).of_rank(place))

    def _model_of(self, rank: int, log: EventLog) -> Model:
        """Make the model of a rank as it was at its end, with its log."""
        place = RankInClass(self, rank)
        source = self._class_of[place.lowest]
        model = Model(
            rank,
            source._dist,
            source._num_layers,
            source._global_batch_size,
            runtime_predictor=source._runtime_predictor,
        )
        added = vars(source).keys() - vars(model).keys() - _OF_CLASSES
        of_strategy = (name for name in added if not name.startswith("_"))
        for name in (*_AT_THE_END, *of_strategy):
            setattr(model, name, place.value(getattr(source, name)))
        model._log, model._rows = log, log._rows
        model.final_weights, model.final_experts, model.final_locals = (
            {key: place.value(value) for key, value in held.items()}
            for held in (source.final_weights, source.final_experts, source.final_locals)
        )
        _copy_stores(source, model, place)
        return model

    def frozen(self, symbolic: PerRankSet, shift: int) -> frozenset[int]:
        """Return a symbolic set as it is where it has moved by so much; equal sets are one object."""
        key = symbolic.intervals, symbolic.repeats, shift
        found = self._sets.get(key)
        if found is None:
            intervals = ((start + shift, stop + shift) for start, stop in symbolic.listed())
            found = self._sets[key] = frozenset(chain.from_iterable(range(*interval) for interval in intervals))
        return found

    def axes_of(self, stream: Stream) -> frozenset[str] | None:
        """Return the axes along which the members of a collective's group differ; None for other streams."""
        return self._axes_of.get(id(stream))

    def stream_along(self, rank: int, axes: frozenset[str]) -> Stream:
        """Return the stream of a rank's group along some axes, which its members share."""
        strides, sizes = self.attempt.strides, self.attempt.axes
        lowest = rank - sum(rank // strides[axis] % sizes[axis] * strides[axis] for axis in axes)
        found = self._streams.get((lowest, axes))
        if found is None:
            group = tuple(members_along(self.attempt, lowest, axes))
            found = self._streams[lowest, axes] = Stream(COMM, group)
        return found


class RankInClass:
    """The place of a rank within its class, at which symbolic values are worked out.

    Args:
        expansion: that of the run.
        rank: the rank.

    Attributes:
        lowest: the lowest rank of its class.
        shift: how far it is from that one.
    """

    __slots__ = ("_expansion", "_places", "lowest", "rank", "shift")

    def __init__(self, expansion: Expansion, rank: int) -> None:
        attempt = expansion.attempt
        self._expansion = expansion
        self.rank = rank
        self._places = {axis: rank // attempt.strides[axis] % size for axis, size in attempt.folded_sizes.items()}
        self.shift = self._moved(attempt.strides)
        self.lowest = rank - self.shift

    def _moved(self, slopes: Any) -> int:
        """Return by how much a value with these slopes differs from that of the lowest rank."""
        return sum(place * slopes.get(axis, 0) for axis, place in self._places.items())

    def value(self, value: Any) -> Any:
        """Return a value, or a tensor, as it is on the rank."""
        if isinstance(value, PerRankSet):
            return self._expansion.frozen(value, self._moved(value.slopes))
        if isinstance(value, PerRankInt):
            return value.const + self._moved(value.slopes)
        if isinstance(value, tuple):  # the fields of a tensor in host memory
            return tuple(map(self.value, value))
        return self._tensor(value) if isinstance(value, Tensor) else value

    def _tensor(self, tensor: Any) -> Any:
        """Return a tensor as it is on the rank, an object of its own."""
        own = tensor.__class__(*(self.value(getattr(tensor, name)) for name in tensor.__dataclass_fields__))
        for slot in SLOTS_OF_TENSORS:
            if hasattr(tensor, slot):
                setattr(own, slot, getattr(tensor, slot))
        return own

    def stream(self, stream: Stream) -> Stream:
        """Return the rank's own stream in the place of that of the lowest rank."""
        if stream.peer is not None:
            return Stream(stream.kind, None, stream.peer + self.shift)
        axes = self._expansion.axes_of(stream)
        if axes is None or stream.group is None:  # computing, host memory, or the group of all ranks
            return stream
        return self._expansion.stream_along(self.rank, axes)

    def other(self, other: int, stream: Stream) -> int:
        """Return the rank that this one waited for on a stream, where the lowest rank waited for another one."""
        if stream.peer is not None:
            return other + self.shift
        along = self._expansion.axes_of(stream) or frozenset()
        return other + sum(
            place * self._expansion.attempt.strides[axis] for axis, place in self._places.items() if axis not in along
        )

    def partners(self, stream: Stream, waited_for: int | None) -> Partners:
        """Return the rank's own partners in the place of those of the lowest rank."""
        own = self.stream(stream)
        return own.group, own.peer, None if waited_for is None else self.other(waited_for, stream)


class _RowsOfClass:
    """The rows of a class, with those columns apart that differ between its ranks.

    Args:
        model: that of the class, at its end.
    """

    __slots__ = ("_columns", "_partners", "_rows", "_waits")

    def __init__(self, model: FoldedModel) -> None:
        self._rows = rows = model._rows
        symbolic = {place: model.symbolic_columns.get(place, rows[place::STRIDE]) for place in (LAYER, SAMPLES)}
        self._columns = {
            place: _by_object(values) for place, values in (symbolic | {STREAM: rows[STREAM::STRIDE]}).items()
        }
        waited_for = enumerate(rows[WAITED_FOR::STRIDE])
        self._waits = [(row * STRIDE, other) for row, other in waited_for if other is not None]
        pairs = zip(rows[STREAM::STRIDE], rows[WAITED_FOR::STRIDE], strict=True)
        self._partners = list({(id(stream), other): (stream, other) for stream, other in pairs}.values())

    def repeated(self, place: RankInClass, lowest: RankInClass) -> Repeated | None:
        """Return how a rank repeats the lowest one; None where layers differ, or one partner stands for several."""
        if any(place.value(layer) != lowest.value(layer) for layer in self._columns[LAYER][1]):
            return None
        samples = ((lowest.value(each), place.value(each)) for each in self._columns[SAMPLES][1])
        partners = ((lowest.partners(*each), place.partners(*each)) for each in self._partners)
        return repeated(place.rank, lowest.rank, samples, partners)

    def of_rank(self, place: RankInClass) -> list[Any]:
        """Return the rows of a rank."""
        rows = list(self._rows)
        for column, (index, distinct) in self._columns.items():
            found = [place.stream(one) if column == STREAM else place.value(one) for one in distinct]
            rows[column::STRIDE] = [found[which] for which in index]
        for row, other in self._waits:
            rows[row + WAITED_FOR] = place.other(other, self._rows[row + STREAM])
        return rows


def _by_object(values: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Return the place of each value among the distinct objects, and these."""
    distinct = list({id(value): value for value in values}.values())
    places = {id(value): place for place, value in enumerate(distinct)}
    return [places[id(value)] for value in values], distinct


def _copy_stores(source: FoldedModel, model: Model, place: RankInClass) -> None:
    """Give a model the stores of its class, each with tensors of its own, and the account of what they held."""
    model._account = model._meter = copy.copy(source._account)
    for name in STORES:
        store = model._store(name)
        setattr(model, name, store)
        _fill(store, getattr(source, name), place)
    if source._host is not None:
        _fill(model.host, source._host, place)
        model.host._account = copy.copy(source._host._account)


def _fill(store: Any, source: Any, place: RankInClass) -> None:
    """Put the tensors of a class's store into that of a rank, whose account counts them already."""
    for key, value in source.items():
        own = place.value(value)
        own._home = store._account
        dict.__setitem__(store, key, own)
