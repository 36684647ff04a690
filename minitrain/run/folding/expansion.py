"""The log and the model of any rank of a folded run, made from its class when they are first read.

The rows of a class hold for all its ranks, but for a few columns. Samples are symbolic sets, which are worked out at
the place of a rank within its class. A group is the rank's own. A peer is as far away from a rank as that of the lowest
rank of the class is from this one, and so is the sender of a message that was waited for. The rank for which a
collective was waited is a member of the rank's own group.

The result of a folded run: figures from one log for each class, and logs of all ranks where somebody reads them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from minitrain.engine.model import Model
from minitrain.errors import typed_methods
from minitrain.operations import (
    COMM,
    LAYER,
    SAMPLES,
    STORES,
    STREAM,
    STRIDE,
    WAITED_FOR,
    EventLog,
    MadeWhenRead,
    Stream,
)
from minitrain.run.figures import peak_watts
from minitrain.run.folding.attempt import FoldAttempt
from minitrain.run.folding.mesh import ENDS, members_along
from minitrain.run.folding.model import FoldedModel
from minitrain.run.folding.per_rank_values import PerRankInt, PerRankSet
from minitrain.run.ranks_once import Partners, Repeated, repeated
from minitrain.run.result import Run
from minitrain.tensors import Tensor

if TYPE_CHECKING:
    from minitrain.operations import Event, MemoryChange
    from minitrain.run.analysis.breakdown import Breakdown
    from minitrain.run.analysis.explanation import Explanation
    from minitrain.run.analysis.timeline import Timeline


T = TypeVar("T")

SLOTS_OF_TENSORS = ("_units", "_passage")
_AT_THE_END = ("_time", "_recomputed_flop", "_routed_copies", "_dropped_copies", "pass_modes", "_recompute", "_meshes")
_OF_CLASSES = frozenset({"attempt", "symbolic_columns"})


class OfEveryRank(MadeWhenRead[T]):
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

    def _at(self, place: int) -> T:
        """Return the value of a rank."""
        if place not in self._made:
            self._made[place] = self._make(place)
        return self._made[place]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain list of them all."""
        return list, (list(self),)


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

    def lowest(self, rank: int) -> int:
        """Return the lowest rank of a rank's class."""
        return RankInClass(self, rank).lowest

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
        lowest = rank - sum(rank // strides[axis] % sizes[axis] * strides[axis] for axis in axes - {ENDS})
        found = self._streams.get((lowest, axes))
        if found is None:
            along = members_along(self.attempt, lowest, axes)
            group = (along[0], along[-1]) if ENDS in axes else tuple(along)
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


MOST_DRAWN = 50_000
"""The most events of a run whose ranks are drawn one by one where nobody asked for folding; of more, classes are."""


@typed_methods
@dataclass(frozen=True, repr=False, eq=False)
class FoldedRun(Run):
    """A run of which one rank of each class was simulated.

    It equals the run of all ranks. Logs and models are made for the ranks that somebody looks at. Figures are made from
    the classes.

    Args:
        expansion: what makes the logs and models of all ranks, and the models of the classes.
        was_asked_for: whether folding was asked for. Then pictures have a row for each class of ranks.
    """

    expansion: Expansion | None = field(default=None, repr=False, compare=False)
    was_asked_for: bool = field(default=True, repr=False, compare=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        compared = [one.name for one in fields(Run) if one.compare]
        return all(getattr(self, name) == getattr(other, name) for name in compared)

    __hash__ = None  # type: ignore[assignment]  # as that of `Run`, which has lists

    @property
    def _classes(self) -> Sequence[FoldedModel]:
        """The model of each class; none where the run was given other logs, as by `dataclasses.replace`."""
        return self.expansion.classes if self.expansion and isinstance(self.logs, OfEveryRank) else ()

    @property
    def fold(self) -> FoldAttempt:
        """How ranks were folded."""
        assert self.expansion is not None  # every folded run has one
        return self.expansion.attempt

    @property
    def representatives(self) -> Sequence[int]:
        """The lowest rank of each class."""
        return self.fold.representatives()

    @property
    def is_folded(self) -> bool:
        """Whether one rank of each class was simulated for all of them: it was."""
        return True

    @property
    def ranks_of_rows(self) -> Sequence[Sequence[int]]:
        """The ranks of each class."""
        found: list[list[int]] = [[] for _ in self.class_logs]
        if not self._classes:
            return [[rank] for rank in range(self.world_size)]
        for rank, place in enumerate(self.fold.of_every_rank(list(range(len(found))))):
            found[place].append(rank)
        return found

    @property
    def num_ranks_a_class(self) -> int:
        """How many ranks each of the classes has."""
        return self.fold.num_ranks_a_class if self._classes else 1

    @property
    def clocks(self) -> Sequence[float]:
        """When each rank has ended all that it did, s."""
        return self.fold.of_every_rank([model._time for model in self._classes]) if self._classes else super().clocks

    @property
    def class_logs(self) -> Sequence[Sequence[Event]]:
        """The log of the lowest rank of each class."""
        return [model._log for model in self._classes] or self.logs

    @property
    def class_models(self) -> Sequence[Any]:
        """The model of each class."""
        return self._classes or self.models

    @property
    def ranks_of_class_logs(self) -> Sequence[int]:
        """The lowest rank of each class, whose log it is."""
        return self.representatives if self._classes else range(self.world_size)

    def repeated_ranks(self, most_events: int | None = None) -> Sequence[Repeated] | None:
        """Return the ranks that did what the lowest rank of their class did: all others, mostly."""
        if not self._classes:
            return super().repeated_ranks(most_events)
        if most_events is not None and sum(map(len, self.class_logs)) > most_events:
            return None
        assert self.expansion is not None
        found = list(filter(None, map(self.expansion.repeated, range(self.world_size))))
        left = sum(len(model._log) for model in self._classes) * self.num_ranks_a_class
        left -= sum(len(self.class_logs[self.representatives.index(each.like)]) for each in found)
        return found if most_events is None or left <= most_events else None

    @property
    def draws_classes(self) -> bool:
        """Whether pictures have a row a class: where folding was asked for, or every rank would be too many."""
        return self.num_ranks_a_class > 1 and (self.was_asked_for or self.num_events > MOST_DRAWN)

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time, s, one row a rank."""
        parts = super().breakdown
        return replace(parts, ranks=self.fold.of_every_rank(list(parts.ranks))) if self._classes else parts

    @cached_property
    def peak_watts(self) -> float | None:
        """The most that all devices draw together at any moment, W; ranks of a class are busy at the same moments."""
        ranks = self.ranks_of_class_logs
        sheets = [self.sheets[rank] for rank in ranks] if len(self.sheets) > 1 else self.sheets
        of_classes = peak_watts(self.step_timeline_of_classes, sheets)
        return None if of_classes is None else of_classes * self.num_ranks_a_class

    @property
    def drawn(self) -> Timeline:
        """What pictures show: a row a class, which says how many ranks it stands for, or a row a rank."""
        return self.step_timeline_of_classes if self.draws_classes else self.step_timeline

    @cached_property
    def timeline_of_classes(self) -> Timeline:
        """The columns of one log a class, whose peers are classes."""
        import numpy as np  # noqa: PLC0415

        from minitrain.run.analysis.timeline import as_timeline  # noqa: PLC0415

        if not self._classes:
            return self.timeline
        line, size = self._named(as_timeline(self.class_logs), self.representatives), self.num_ranks_a_class
        row_of = np.array([*self.fold.of_every_rank(list(range(len(self._classes)))), -1])  # -1 is no rank: it stays so
        named = line.rank_names or tuple(map(str, self.representatives))
        names = tuple(f"{name} (x {size})" for name in named) if size > 1 else line.rank_names
        peer, waited_for = row_of[line.peer], row_of[line.waited_for]
        return replace(line, peer=peer, waited_for=waited_for, rank_names=names, ranks_a_row=size)

    @cached_property
    def step_timeline_of_classes(self) -> Timeline:
        """The columns of classes that figures of the step are made from."""
        return self._of_step(self.timeline_of_classes) if self._classes else self.step_timeline

    def explain(self) -> Explanation:
        """Return why ranks wait, or classes of them in a large run that was to be folded, and what would help."""
        from minitrain.run.analysis.explanation import Explanation  # noqa: PLC0415

        if not (self._classes and self.was_asked_for and self.num_events > MOST_DRAWN):
            return super().explain()
        journals = self._of_classes(self.memory_journals)
        sizes = self.bytes_per_element, self.step_end
        return Explanation(self.step_timeline_of_classes, *sizes, self.strategy, self.options, journals)

    @property
    def drawn_journals(self) -> Sequence[Sequence[MemoryChange]]:
        """Every change of every store of what is drawn."""
        return self._of_classes(self.memory_journals) if self.draws_classes else self.memory_journals

    def _of_classes(self, journals: Sequence[Any]) -> Sequence[Any]:
        """Return the journal of each class, where journals were kept."""
        return [journals[rank] for rank in self.representatives] if journals else ()
