"""The model of a class of ranks: a `Model` of its lowest rank, whose strategy sees `Each` where ranks differ."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from itertools import chain
from typing import Any

from minitrain.events import LAYER, SAMPLES, STRIDE, EventLog
from minitrain.folding.collectives import perform
from minitrain.folding.index_ranges import EachRange, Spans
from minitrain.folding.mesh import FoldedGroup, FoldedMesh, axes_along
from minitrain.folding.rank_values import Each, Fold, in_engine
from minitrain.hardware.price import Predictor
from minitrain.rank import laws
from minitrain.rank.communicating import _TENSORS, Groupish
from minitrain.rank.model import Model
from minitrain.rank.operations import Work
from minitrain.tensors import Activation, OptState, Weight
from minitrain.transport.dist import Dist
from minitrain.transport.groups import Group, Mesh, require_axes


class FoldedModel(Model):
    """One class of ranks of a training run.

    Args:
        fold: the attempt.
        rank: the class's lowest rank.
        dist: the transport, for messages between classes.
        num_layers: layers of the trained model.
        global_batch_size: samples of one step.
        runtime_predictor: what prices the operations.
    """

    def __init__(
        self, fold: Fold, rank: int, dist: Dist, num_layers: int, global_batch_size: int, runtime_predictor: Predictor
    ) -> None:
        self.fold = fold
        super().__init__(rank, dist, num_layers, global_batch_size, runtime_predictor=runtime_predictor)
        self._finished = False
        self._task: Any = None
        self._find_place()

    def _find_place(self) -> None:
        """Find out where the class lies on the axes."""
        self._each_rank = self.fold.each(self._rank, self.fold.strides)
        self._folded_groups: dict[frozenset[str], FoldedGroup] = {}
        self._all_ranks: FoldedGroup | None = None  # made when asked for: with a mesh, hardly ever

    @property
    def rank(self) -> Any:
        """The rank: the lowest one to the engine, one number each to the strategy."""
        if in_engine():
            return self._rank
        self.fold.told = True
        return self._each_rank

    @rank.setter
    def rank(self, rank: int) -> None:
        self._rank = rank

    @property
    def log(self) -> EventLog:
        """The events of the class's lowest rank; a strategy that reads them while they are made is refused."""
        if not in_engine() and not self._finished:
            self.fold.diverge("a look into the log")
        return self._log

    @log.setter
    def log(self, log: EventLog) -> None:
        self._log = log

    def mesh(self, **axes: int) -> Mesh:
        """Lay the ranks out on named axes, which are then those along which they are folded."""
        require_axes(axes, self.world_size)
        if list(axes.items()) != list(self.fold.axes.items()):
            if not self.fold.lay_anew(axes):
                if self.fold.layout is None:
                    self.fold.layout = axes
                self.fold.diverge("a mesh of its own")
            self._find_place()
        self.fold.told = True
        return FoldedMesh(self.fold, self._rank, self._group_along)

    def group(self, ranks: Iterable[int]) -> Group:
        """Return the group of some ranks, where they are those along some axes: each rank's own, and itself in it."""
        self.fold.told = True
        listed: list[Any] = list(ranks)
        found = axes_along(self.fold, self._rank, listed)
        if found is None:
            self.fold.diverge("a group by its ranks (use model.mesh)")
        return self._group_along(found)

    def _group_along(self, axes: Iterable[str]) -> FoldedGroup:
        """Return the group along some axes."""
        found = frozenset(axis for axis in axes if self.fold.axes[axis] > 1)
        if found not in self._folded_groups:
            self._folded_groups[found] = FoldedGroup(self.fold, found, self._rank)
        return self._folded_groups[found]

    def _member(self, group: Groupish) -> FoldedGroup:
        """Return the group that a strategy named."""
        self.fold.told = True
        if group is None:
            self._all_ranks = self._all_ranks or self._group_along(self.fold.axes)
            return self._all_ranks
        named = group if isinstance(group, Group) else self.group(group)
        assert isinstance(named, FoldedGroup)  # nobody can make another
        return named if named._lowest == self._rank else self._group_along(named.axes)

    def _collective(self, op: str, v: Any, layer: int | None, group: Groupish, detail: Any = None) -> Work:
        """Submit a collective and complete it at once: all ranks of the class do the same at the same time."""
        member = self._member(group)
        if member.kept:
            self.fold.diverge(
                f"{op} over the axes {', '.join(sorted(member.axes))}, not all of which fold,", member.axes
            )
        value = v if v.__class__ in _TENSORS else self._communicable(op, v)
        self._require_one("a layer", layer)
        self._require_one_task()
        work = Work(self, op, value, member, self._reserve(op, layer, member.stream), detail)
        result = value if member.size == 1 else perform(self.fold, op, value, member)
        work.settle_all([work], [result], [work.clock], work.clock, self._rank)
        return work

    def _require_one_task(self) -> None:
        """Refuse tasks within a rank: the order in which they go on depends on who comes last to a collective."""
        task = asyncio.current_task()
        self._task = self._task or task
        if self._task is not task and self.fold.sizes:
            self.fold.diverge("communication from several tasks of one rank")

    def _require_one(self, what: str, value: Any) -> None:
        """Refuse a value that differs between ranks."""
        if isinstance(value, Each):
            self.fold.diverge(f"{what} that differs between ranks", value.slopes)

    def _send(self, dest: int, v: Any, tag: Hashable) -> Work:
        """Submit a message to another class."""
        return super()._send(self._class_of(dest), v, tag)

    def _receive(self, source: int, tag: Hashable) -> Work:
        """Submit a receive from another class."""
        return super()._receive(self._class_of(source), tag)

    def _class_of(self, peer: Any) -> Any:
        """Return the lowest rank of the class that each rank's peer belongs to.

        Peers must be as many ranks away for every rank, along axes that are kept: then each rank's messages meet those
        of its own peer, as the classes' do.
        """
        self.fold.told = True
        self._require_one_task()
        const, slopes = (peer.const, peer.slopes) if isinstance(peer, Each) else (peer, {})
        mine = self._each_rank.slopes if isinstance(self._each_rank, Each) else {}
        if slopes != mine:
            self.fold.diverge("a message to or from ranks that are not all as far away")
        if type(const) is not int or not 0 <= const < self.world_size:
            return const  # the transport says what is wrong with it
        for axis, stride in self.fold.strides.items():
            size = self.fold.axes[axis]
            if const // stride % size != self._rank // stride % size:
                if axis not in self.fold.kept:
                    self.fold.diverge(f"a message along the axis {axis}", frozenset([axis]))
                self.fold.travelled.add(axis)
        return const

    def load_weights(self, layer: int, shard: Any = 0, num_shards: int = 1) -> tuple[Weight, OptState]:
        """Load one shard of a layer's weight, each rank its own."""
        self._require_one("a layer", layer)
        self._require_one("a number of shards", num_shards)
        if not isinstance(shard, Each):
            return super().load_weights(layer, shard, num_shards)
        low, high = shard.bounds()
        for bound in (low, high):
            if not isinstance(num_shards, int) or not 0 <= bound < num_shards:
                laws.load(self, layer, bound, num_shards)
        weight, opt_state = super().load_weights(layer, shard.const, num_shards)
        weight.shards = opt_state.shards = shard.alone()
        return weight, opt_state

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the model's input for some samples, each rank its own."""
        listed: Any = samples
        if not isinstance(samples, EachRange | Spans):
            listed = laws.sample_numbers(self, samples, Each)
            laws.require_inside(self, listed if isinstance(listed, range) else ())
        if not len(listed):
            return super().get_input_activation(())
        found = Spans.of(self.fold, listed)
        laws.require_inside(self, list(found.bounds()))
        return Activation(0, self.num_layers, found, self.global_batch_size)  # type: ignore[arg-type]

    def _is_whole_batch(self, samples: Any) -> bool:
        """Return whether a set holds every sample, without listing them."""
        whole = samples == Spans.of(self.fold, range(self.global_batch_size))
        if whole:
            self._whole_batches[id(samples)] = samples
        return bool(whole)

    def finish(self) -> None:
        """Become the model of the lowest rank alone."""
        self._finished = True
        self._each_rank = self._rank
        self._finish_log()
        held: Any = [self.final_weights, *self.storage()]
        for tensor in chain(*(tensors.values() for tensors in held)):
            for name in ("shards", "samples"):
                if name in tensor.__slots__:
                    setattr(tensor, name, _of_lowest(getattr(tensor, name)))

    def _finish_log(self) -> None:
        """Make the log that of the lowest rank."""
        rows = self._rows
        for place in (LAYER, SAMPLES):
            values = rows[place::STRIDE]
            lowest = {id(value): _of_lowest(value) for value in values if value.__class__ in _OF_RANKS}
            if lowest:  # events share their sets
                rows[place::STRIDE] = [lowest.get(id(value), value) for value in values]


_OF_RANKS = frozenset({Each, Spans})


def _of_lowest(value: Any) -> Any:
    """Return the value of the class's lowest rank."""
    return value.lowest() if isinstance(value, Spans) else value.const if isinstance(value, Each) else value
