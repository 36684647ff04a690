"""Pieces of a step as values: what some operations take in time and in memory, and what each piece depends on.

Recording what each operation of a short run takes: its time, its bytes, and what memory does beside it.

The strategy is executed by the engine's own folded models. Their logs say when memory was measured, and what an
operation took. What memory did between two rows of the log is noted here: how much was held when the second one was
written, and the most that was held since the first.

Cutting the operations of a short run into pieces.

Pieces of a pipeline's step: what passing through one layer takes, in time and in memory, by what lies beside it.

The strategy `megatron` does the same for a layer whatever the number of stages, of microbatches and of replicas. So it
is executed on short pipelines of few layers, and what each layer takes is cut out of
their logs. A layer's piece depends on the layers beside it in its stage, as the engine keeps less for a layer whose
input can be made again. Long pipelines are put together from these pieces in `minitrain.search.tuning.step_figures`, by
the same additions in the same order, so that times are those of a whole simulation to the last float. Where ranks share
a sequence, an attention is one piece of as long as its ring takes; then times differ by rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, starmap
from typing import Any

from minitrain.engine.stores import Account
from minitrain.machine.platforms import StandsFor
from minitrain.machine.price import Price
from minitrain.operations import COMPUTE, LAYER, PRICE, STREAM, STRIDE, TIME, TYP, UNITS_PER_ELEMENT
from minitrain.run.event_loops import rare_collections, run_to_end
from minitrain.run.folding.attempt import FoldAttempt
from minitrain.run.folding.model import FoldedModel
from minitrain.run.rank_tasks import PreparedRun, prepare, require_nothing_left, run_ranks

NOTHING = -1
"""The kind of what lies beyond the border of a stage."""


@dataclass(frozen=True, slots=True)
class PassKey:
    """What the passes through layers depend on, beside the layers.

    Args: options of `megatron`, and samples of a microbatch.
    """

    tp: int
    microbatch_size: int
    sequence_parallel: bool
    recompute: str
    scatter_gather: bool = False
    overlap_parts: bool = False
    cp: int = 1
    is_alone: bool = False  # whether a stage has all layers, so that embedding and head may share a table


@dataclass(frozen=True, slots=True)
class EndKey:
    """What loading and updating depend on, beside the layers.

    Args: options of `megatron`; `dp` is the number of ranks that hold the same, those that share a sequence among them.
    """

    tp: int
    dp: int
    zero: int
    sequence_parallel: bool
    is_alone: bool = False
    overlap_parts: bool = False

    @property
    def layout(self) -> StandsFor:
        """What the prices of these depend on."""
        return StandsFor(None, self.tp > 1 and not self.overlap_parts, self.dp * self.tp, self.dp, self.zero)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some operations that follow one another on a rank.

    Args:
        seconds: how long each lasts, s.
        net: what memory grows by, elements.
        peak: the most that it grows by meanwhile, elements.
        forward_s: how long forwards compute in it, s; those that backward takes again too.
        backward_s: how long it computes otherwise, s.
    """

    seconds: tuple[float, ...] = ()
    net: float = 0.0
    peak: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0

    def longer(self, less: Piece, num_steps: int) -> Piece:
        """Return this piece with some steps more, each of which takes what it has more than another piece."""

        def more(mine: float, its: float) -> float:
            return mine + num_steps * (mine - its)

        seconds = tuple(starmap(more, zip(self.seconds, less.seconds, strict=True)))
        computing = more(self.forward_s, less.forward_s), more(self.backward_s, less.backward_s)
        return Piece(seconds, self.net, self.peak, *computing)

    def then(self, other: Piece) -> Piece:
        """Return this piece, and another one after it."""
        return joined((self, other))


@dataclass(frozen=True, slots=True)
class EndPiece:
    """What a layer takes before the first step of a rank and after the last.

    Args:
        load: loading it, and sharding its optimizer state.
        cover: summing what each shard of the sequence has seen of norms, s.
        total: summing its gradient over the replicas, s.
        update: the optimizer step, s.
        gather: gathering the updated weight, s.
    """

    load: Piece
    cover: float
    total: float
    update: float
    gather: float


Triple = tuple[int, int, int]  # kinds: of the layer before, of the layer, of the layer behind


@dataclass(slots=True)
class Passes:
    """The pieces of one `PassKey`.

    Attributes:
        forward: passes of a microbatch, by kinds; so the next two.
        first: backward passes that make a gradient of weights.
        later: those that add to it.
        fronts: what a stage does with what it has received, by direction and kind of the layer at the border; or with
            the loss, by "loss".
        message_bytes: what is sent over a border, by direction and kind of the layer that takes it.
    """

    forward: dict[Triple, Piece] = field(default_factory=dict)
    first: dict[Triple, Piece] = field(default_factory=dict)
    later: dict[Triple, Piece] = field(default_factory=dict)
    fronts: dict[tuple[str, int], Piece] = field(default_factory=dict)
    message_bytes: dict[tuple[str, int], float] = field(default_factory=dict)

    def extend(self, shorter: Passes, longer: Passes, num_steps: int) -> None:
        """Take the pieces of a ring that has some steps more than the longer of two, which has one more than the other.

        Each further step takes as long, and needs no more memory.
        """
        for name in ("forward", "first", "later"):
            of_shorter, table = getattr(shorter, name), getattr(self, name)
            for triple, piece in getattr(longer, name).items():
                table[triple] = piece.longer(of_shorter[triple], num_steps)
        self.fronts.update(longer.fronts)
        self.message_bytes.update(longer.message_bytes)

    def has(self, kinds: Sequence[int], at_ends: tuple[bool, bool]) -> bool:
        """Return whether all pieces of a stage are here, by its layers' kinds and whether it is first and last."""
        wanted = [] if at_ends[0] else [("F", kinds[1])]
        wanted.append(("loss" if at_ends[1] else "B", kinds[-2]))
        return all(triple in self.forward for triple in triples_of(kinds)) and all(
            front in self.fronts for front in wanted
        )


@dataclass(frozen=True, slots=True)
class StagePiece:
    """What a stage takes, put together from its layers.

    Args:
        forward: of a microbatch.
        first: its first backward.
        later: each other backward.
        forward_layers: the pieces of forward by layer, in order; the front of the stage comes with its first layer.
        backward_layers: those of the first backward, in the order in which they are passed.
    """

    forward: Piece
    first: Piece
    later: Piece
    forward_layers: tuple[Piece, ...]
    backward_layers: tuple[Piece, ...]


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return pieces one after the other."""
    net = peak = 0.0
    for piece in pieces:
        peak = max(peak, net + piece.peak)
        net += piece.net
    computing = sum(piece.forward_s for piece in pieces), sum(piece.backward_s for piece in pieces)
    return Piece(tuple(one for piece in pieces for one in piece.seconds), net, peak, *computing)


def triples_of(kinds: Sequence[int]) -> list[Triple]:
    """Return each layer with what lies beside it.

    Args:
        kinds: those of a stage's layers, with what lies beyond them.
    """
    return [
        (before, kind, behind)
        for (before, kind), (_, behind) in zip(pairwise(kinds), pairwise(kinds[1:]), strict=False)
    ]


@dataclass(frozen=True, slots=True)
class Noted:
    """An operation of a rank, in program order.

    Args:
        typ: the type of its event.
        layer: the layer that its event names.
        start: when it begins, s.
        seconds: how long it lasts, s.
        size_bytes: what it puts on the wire, bytes.
        net: what memory has grown by when the next operation is submitted, elements.
        peak: the most that memory grew by until then, elements, at least 0.
        computes: whether it computes.
    """

    typ: str
    layer: int | None
    start: float
    seconds: float
    size_bytes: float
    net: float
    peak: float
    computes: bool

    def piece(self, seconds: tuple[float, ...]) -> Piece:
        """Return it as a piece that takes some seconds."""
        computing = self.seconds if self.computes else 0.0
        halves = (computing, 0.0) if self.typ == "forward" else (0.0, computing)
        return Piece(seconds, self.net, self.peak, *halves)


class _NotedRows(list[Any]):
    """The rows of a log, which also note what memory is held whenever one is added.

    Attributes:
        borrowed: the most that is held for a moment by the operation whose row comes next, in units.
    """

    __slots__ = ("account", "borrowed", "marks")

    def __init__(self, account: Any) -> None:
        self.account = account
        self.marks: list[tuple[int, int]] = []
        self.borrowed = 0

    def extend(self, row: Iterable[Any]) -> None:
        """Add a row, and note what is held now and the most that was held since the row before."""
        self.mark()
        list.extend(self, row)

    def mark(self) -> None:
        """Note what is held now, and begin to look for the next peak."""
        self.marks.append((self.account.units, self.account.peak_units))
        self.account.peak_units = max(self.account.units, self.borrowed)
        self.borrowed = 0


class _NotingMeter(Account):
    """The memory meter of a rank whose rows are noted: what is held for a moment counts to the row that comes next.

    Args:
        rows: the rank's.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: _NotedRows) -> None:
        super().__init__(rows.account.measure)
        self._rows = rows

    def grow(self, units: int) -> None:
        """Count in the account."""
        self._rows.account.grow(units)

    def borrow(self, units: int) -> None:
        """Hold what backward computes again: it counts to the backward, whose row is written next."""
        self._rows.borrowed = max(self._rows.borrowed, self._rows.account.units + units)


def _watch(model: FoldedModel) -> _NotedRows:
    """Let the rows of a model be noted."""
    rows = model._rows = model._log._rows = _NotedRows(model._account)
    model._meter = _NotingMeter(rows)
    return rows


def _noted(rows: _NotedRows) -> list[Noted]:
    """Return the operations of a rank, once it has finished."""
    rows.mark()
    return [
        Noted(
            rows[place + TYP],
            rows[place + LAYER],
            rows[place + TIME],
            rows[place + PRICE].seconds,
            rows[place + PRICE].size_bytes,
            (after[0] - before[0]) / UNITS_PER_ELEMENT,
            (after[1] - before[0]) / UNITS_PER_ELEMENT,
            rows[place + STREAM].kind == COMPUTE,
        )
        for place, before, after in zip(range(0, len(rows), STRIDE), rows.marks, rows.marks[1:], strict=False)
    ]


def in_layout(predictor: Any, layout: StandsFor) -> Any:
    """Return what prices runs of a layout; the predictor itself where prices do not depend on it."""
    return predictor.in_layout(layout) if hasattr(predictor, "in_layout") else predictor


class PricesOfFirst:
    """The prices of a machine for groups of neighbours, each of which costs as much as the one that begins at rank 0.

    A short pipeline may have more ranks than the machine that it stands for. Messages between stages take no time here:
    what they take depends on where the stages of the long pipeline lie.

    Args:
        predictor: the prices.
        num_neighbours: ranks of a stage.
        ring: ranks from one that shares a sequence to the next, and how many do: all messages of a ring take as long as
            its slowest, for which the others wait.
    """

    world_size = None  # of any number of ranks

    def __init__(self, predictor: Any, num_neighbours: int, ring: tuple[int, int]) -> None:
        self._predictor, self._num_neighbours = predictor, num_neighbours
        self._hops = [(place * ring[0], (place + 1) % ring[1] * ring[0]) for place in range(ring[1])]
        self.workload, self.compute = predictor.workload, predictor.compute
        self.update, self.load = predictor.update, predictor.load
        self.topology = None  # so that groups are those of neighbours from rank 0 on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._predictor, name)

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        """Price a collective as if its group began at rank 0."""
        first = ranks[0]
        price: Price = self._predictor.collective(op, size_bytes, tuple(rank - first for rank in ranks), algorithm)
        return price

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price a message of a ring; of one between stages, return the bytes."""
        if source // self._num_neighbours != dest // self._num_neighbours:
            return Price(0.0, size_bytes)
        return Price(max(self._predictor.p2p(op, size_bytes, *hop).seconds for hop in self._hops), size_bytes)


def record(strategy: str, axes: dict[str, int], kept: frozenset[str], **parameters: Any) -> list[list[Noted]]:
    """Execute a strategy, folded along all axes of its mesh but some, and return each class's operations.

    Args:
        strategy: what `simulate` takes.
        axes: the strategy's mesh.
        kept: axes whose positions are classes of their own.
        parameters: those of `simulate`.

    Returns:
        The operations of the lowest rank of each class, in the order of these.

    Raises:
        MinitrainError: the strategy cannot be run so, or its ranks part ways.
    """
    prepared = prepare(strategy, {**parameters, "fold": True, "check": False})
    attempt = FoldAttempt(axes, kept)
    return run_to_end(lambda: _recorded(prepared, attempt))


async def _recorded(prepared: PreparedRun, attempt: FoldAttempt) -> list[list[Noted]]:
    """Run one rank of each class, and return what was noted."""
    sizes = prepared.parameters.num_layers, prepared.parameters.global_batch_size
    dist = prepared.transport()
    with rare_collections():
        models = [
            FoldedModel(attempt, rank, dist, *sizes, prepared.predictor_of(rank)) for rank in attempt.representatives()
        ]
        rows = [_watch(model) for model in models]
        try:
            await run_ranks(prepared, models)
            require_nothing_left(dist, models)
        finally:
            attempt.is_over = True
    return [_noted(each) for each in rows]


_INPUT_GRADS = "backward_input"
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})
_MAIN = {
    "F": frozenset({"forward", "project"}),
    "B": frozenset({"backward", "backward_weight", "backward_keys_values"}),
}
_IN_STEPS = frozenset({"project", "backward_keys_values"})  # ends of an attention whose sequence is on several ranks


def _piece(noted: Sequence[Noted]) -> Piece:
    """Return some operations as a piece; a reduction that was launched beside the second half runs at its time."""
    found, launched = Piece(), 0.0
    for place, one in enumerate(noted):
        seconds: tuple[float, ...] = (one.seconds,)
        if place and noted[place - 1].typ == _INPUT_GRADS and one.typ in _REDUCTIONS:
            seconds, launched = (), one.seconds
        elif one.typ == "backward_weight":
            seconds = (max(one.seconds, launched),)
        found = found.then(one.piece(seconds))
    return found


def _elapsed(noted: Sequence[Noted]) -> Piece:
    """Return operations as a piece that lasts as long as all of them: keys and values travel beside what computes."""
    found = joined([one.piece(()) for one in noted])
    return replace(found, seconds=(noted[-1].start + noted[-1].seconds - noted[0].start,))


class StageReader:
    """Cuts the operations of a rank with one stage into pieces, in the order of 1F1B with two microbatches.

    Args:
        noted: the operations of the rank.
        key: what it was executed with.
        layers: those of its stage.
        num_layers: of the model that was executed.
        kinds: of the layers, with what lies beyond them.
    """

    def __init__(
        self, noted: Sequence[Noted], key: PassKey, layers: range, num_layers: int, kinds: Sequence[int]
    ) -> None:
        self._noted, self._key, self._layers, self._num_layers = noted, key, layers, num_layers
        self._kinds = kinds
        self._place = len(layers)  # behind the loads

    def read(self, passes: Passes, warmup: int) -> None:
        """Add the pieces of the rank."""
        steps = ["F"] * warmup + ["F", "B"] * (2 - warmup) + ["B"] * warmup
        num_backwards = 0
        for step in steps:
            self._front(passes, step)
            backward = passes.later if num_backwards else passes.first
            self._pass(passes.forward if step == "F" else backward, step)
            self._send(passes, step)
            num_backwards += step == "B"

    def _front(self, passes: Passes, step: str) -> None:
        """Read what comes before a step's first layer."""
        border = self._kinds[1] if step == "F" else self._kinds[-2]
        at_end = self._layers.start == 0 if step == "F" else self._layers.stop == self._num_layers
        if not at_end:
            received = self._take()
            front = replace(_piece([received]), seconds=())
            if self._key.scatter_gather and self._key.tp > 1 and not self._key.sequence_parallel:
                front = front.then(_piece([self._take()]))
            passes.fronts[step, border] = front
        elif step == "B":
            passes.fronts["loss", border] = _piece([self._take()])

    def _pass(self, table: dict[Triple, Piece], step: str) -> None:
        """Read a step's layers."""
        layers = list(zip(self._layers, triples_of(self._kinds), strict=True))
        for layer, kinds in layers if step == "F" else reversed(layers):
            noted = [self._take()]
            while noted[-1].typ not in _MAIN[step]:
                noted.append(self._take())
            in_steps = noted[-1].typ in _IN_STEPS
            is_summed = self._key.tp > 1 and (step == "F" or layer > 0)
            if is_summed and noted[-1].typ != "backward_weight":
                noted.append(self._take())
            table[kinds] = _elapsed(noted) if in_steps else _piece(noted)

    def _send(self, passes: Passes, step: str) -> None:
        """Read what a step sends."""
        at_end = self._layers.stop == self._num_layers if step == "F" else self._layers.start == 0
        if not at_end:
            passes.message_bytes[step, self._kinds[-2] if step == "F" else self._kinds[1]] = self._take().size_bytes

    def _take(self) -> Noted:
        """Return the next operation."""
        self._place += 1
        return self._noted[self._place - 1]


def end_piece(noted: Sequence[Noted], place: int, layer: int, key: EndKey) -> tuple[EndPiece, int]:
    """Return what a layer takes beside its passes, and the place behind it."""
    seconds = dict.fromkeys(("cover", "total", "update", "gather"), 0.0)
    wanted = ["cover"] if key.sequence_parallel and key.tp > 1 and layer > 0 else []
    wanted += ["total"] if key.dp > 1 or key.zero else []
    wanted += ["update", *(["gather"] if key.zero else [])]
    for name in wanted:
        seconds[name] = noted[place].seconds
        place += 1
    load = noted[layer]
    return EndPiece(Piece((load.seconds,), load.net, load.peak), **seconds), place


_LONGEST = 7
_LONGEST_RING = 4
"""Beyond so many ranks that share a sequence, each further one adds a step like the last."""
_SMALL_LAYERS = 5  # transformer layers of a short pipeline


class Pieces:
    """The pieces of a workload on a machine, which are executed when they are asked for.

    Args:
        workload: what is trained, a transformer.
        predictor: what prices its operations on the whole machine.
        ring: ranks that share a sequence, where fewer stand for them; those of a `PassKey` if None.
    """

    def __init__(self, workload: Any, predictor: Any, ring: int | None = None) -> None:
        self.workload, self._ring = workload, ring
        self._shorter: dict[
            tuple[int, int], Pieces
        ] = {}  # by ranks that share a sequence, and those that stand for them
        self.predictor = predictor.training(workload)
        self._short = _short_workload(workload)
        self._of_short = predictor.training(self._short)
        self._of_neighbours: dict[tuple[int, int, bool], PricesOfFirst] = {}  # by `tp`, `cp` and `overlap_parts`
        self._kind_of: list[int] = [*map(workload.first_like, range(workload.num_layers))]
        self._figures: dict[tuple[EndKey, int], Sequence[float]] = {}
        self._passes: dict[PassKey, Passes] = {}
        self._ends: dict[EndKey, dict[int, EndPiece]] = {}
        self._stages: dict[tuple[PassKey, int, int], StagePiece] = {}

    @property
    def is_short(self) -> bool:
        """Whether a shorter model stands for the workload's."""
        return self._short is not self.workload

    def kind(self, layer: int) -> int:
        """Return the kind of a layer, a number; equal kinds cost the same."""
        return self._kind_of[layer]

    def stage(self, key: PassKey, layers: range) -> StagePiece:
        """Return what a stage takes.

        Raises:
            MinitrainError: the strategy cannot be run so.
        """
        signature = key, *self.signature(layers)
        found = self._stages.get(signature)
        if found is None:
            passes, kinds = self._passes.setdefault(key, Passes()), self._kinds(layers)
            if not passes.has(kinds, (layers.start == 0, layers.stop == self.workload.num_layers)):
                self._execute(key, passes, *self._shortened(layers))
            found = self._stages[signature] = _stage(passes, kinds, layers, self.workload.num_layers)
        return found

    def message_bytes(self, key: PassKey, direction: str, layers: range) -> float:
        """Return the bytes of what a stage sends to the next one ("F") or to the one before ("B")."""
        self.stage(key, layers)
        layer = layers[-1] if direction == "F" else layers[0]
        return self._passes[key].message_bytes[direction, self.kind(layer)]

    def ends(self, key: EndKey) -> dict[int, EndPiece]:
        """Return what each kind of layer takes before and after a rank's steps."""
        if key not in self._ends:
            self._ends[key] = self._executed_ends(key)
        return self._ends[key]

    def _kind_of_short(self, layer: int) -> int:
        """Return the kind, in the whole model, of a layer of the short one."""
        is_head = layer == self._short.num_layers - 1
        return self.kind(self.workload.num_layers - 1) if is_head else int(self._short.first_like(layer))

    def _kinds(self, layers: range) -> list[int]:
        """Return the kinds of a stage's layers, and of what lies beyond them."""
        return [NOTHING, *map(self.kind, layers), NOTHING]

    def signature(self, layers: range) -> tuple[int, int]:
        """Return a key of a stage: those with equal keys have layers of the same kinds."""
        if not self.is_short or layers.start == 0 or layers.stop == self.workload.num_layers:
            return layers.start, layers.stop
        start = 1 + (layers.start - 1) % 2
        return start, start + len(layers)

    def _shortened(self, layers: range) -> tuple[int, int]:
        """Return a stage of the short model that has the same layers at its ends, and all that lie between."""
        if not self.is_short:
            return layers.start, layers.stop
        num_layers, short = self.workload.num_layers, self._short.num_layers
        if len(layers) == num_layers:
            return 0, short
        length = len(layers) if len(layers) <= _LONGEST else _LONGEST - 1 + len(layers) % 2
        if layers.stop == num_layers:
            return short - length, short
        start = layers.start if layers.start == 0 else 3 + (layers.start - 1) % 2
        return start, start + length

    def _execute(self, key: PassKey, passes: Passes, start: int, stop: int) -> None:
        """Execute a pipeline that has a stage of the short model, and keep the pieces of all its stages."""
        if key.cp > _LONGEST_RING:
            self._execute_shorter(key, passes, start, stop)
            return
        num_layers = self._short.num_layers
        borders = sorted({0, start, stop, num_layers})
        stages = [range(*pair) for pair in itertools.pairwise(borders)]
        pp, num_neighbours = len(stages), key.cp * key.tp
        sharing = {"cp": key.cp} if key.cp > 1 else {}
        ring = key.tp, self._ring or key.cp
        own = in_layout(self._of_short, StandsFor(None, not key.overlap_parts, self._of_short.world_size, 2))
        group = key.tp, key.cp, key.overlap_parts
        prices = self._of_neighbours.setdefault(group, PricesOfFirst(own, num_neighbours, ring))
        noted = record(
            "megatron",
            {"pp": pp, "dp": 1, **sharing, "tp": key.tp},
            frozenset({*sharing, *(("pp",) if pp > 1 else ())}),
            world_size=pp * num_neighbours,
            global_batch_size=2 * key.microbatch_size,
            microbatch_size=key.microbatch_size,
            hardware=prices,
            tp=key.tp,
            pp=pp,
            **sharing,
            layers_per_stage=[len(layers) for layers in stages],
            sequence_parallel=key.sequence_parallel,
            recompute=key.recompute,
            scatter_gather=key.scatter_gather,
            overlap_parts=key.overlap_parts,
            overlap_messages=False,  # so that pieces follow one another
        )
        for place, layers in enumerate(stages):
            operations = noted[place * key.cp]  # all of a ring do the same at the same time
            kinds = [NOTHING, *map(self._kind_of_short, layers), NOTHING]
            StageReader(operations, key, layers, num_layers, kinds).read(passes, min(pp - 1 - place, 2))

    def _execute_shorter(self, key: PassKey, passes: Passes, start: int, stop: int) -> None:
        """Execute rings of fewer ranks with as many tokens a rank, and add the steps that they lack."""
        tokens, found = self.workload.seq_len // key.cp, list[Passes]()
        for cp in (_LONGEST_RING - 1, _LONGEST_RING):
            if (key.cp, cp) not in self._shorter:
                workload = self.workload.resized(self.workload.model, tokens * cp)
                self._shorter[key.cp, cp] = Pieces(workload, self.predictor, key.cp)
            shorter = self._shorter[key.cp, cp]
            found.append(shorter._passes.setdefault(replace(key, cp=cp), Passes()))
            shorter._execute(replace(key, cp=cp), found[-1], start, stop)
        passes.extend(found[0], found[1], key.cp - _LONGEST_RING)

    def end_figures(self, key: EndKey, kind: int) -> Sequence[float]:
        """Return what a kind of layer takes beside its passes, in the order of `layouts.END_FIGURES`."""
        if (key, kind) not in self._figures:
            one = self.ends(key)[kind]
            workload = self._workload_at_ends(self.workload, key)
            if key.is_alone and workload.table_layers:
                workload = workload.with_one_table(in_shards=False)
            shard = workload.held_bytes(kind, key.tp)[0] / key.dp
            times = one.load.seconds[0], one.cover, one.total, one.update, one.gather
            self._figures[key, kind] = (*times, one.load.net, one.load.peak, shard)
        return self._figures[key, kind]

    def _executed_ends(self, key: EndKey) -> dict[int, EndPiece]:
        """Execute a step of one stage, and keep what comes before and after its passes."""
        workload = self._workload_at_ends(self._short, key)
        prices = self._of_short if workload is self._short else self.predictor.training(workload)
        (noted,) = record(
            "megatron",
            {"pp": 1, "dp": key.dp, "tp": key.tp},
            frozenset(),
            world_size=key.dp * key.tp,
            global_batch_size=key.dp,
            microbatch_size=1,
            hardware=in_layout(prices, key.layout),
            tp=key.tp,
            pp=1,
            zero=key.zero,
            sequence_parallel=key.sequence_parallel,
        )
        num_layers, found = self._short.num_layers, {}
        behind = [one.typ for one in noted]
        place = len(behind) - behind[::-1].index("backward")  # after the backward of layer 0
        for layer in range(num_layers):
            found[self._kind_of_short(layer)], place = end_piece(noted, place, layer, key)
        return found

    @staticmethod
    def _workload_at_ends(workload: Any, key: EndKey) -> Any:
        """Return a workload whose embedding and head have a table each, unless one stage has both."""
        if key.is_alone or not workload.table_layers:
            return workload
        return workload.resized(replace(workload.model, tied_embeddings=False), workload.seq_len)


def _short_workload(workload: Any) -> Any:
    """Return a workload of fewer layers of the same kinds, or the same one where layers differ otherwise."""
    num_layers = workload.num_layers
    usual = [0, *[1 + (layer - 1) % 2 for layer in range(1, num_layers - 1)], num_layers - 1]
    if [workload.first_like(layer) for layer in range(num_layers)] != usual or num_layers <= 2 * _SMALL_LAYERS + 2:
        return workload
    short: Any = workload.resized(replace(workload.model, num_layers=_SMALL_LAYERS), workload.seq_len)
    same = all(_unit_like(short.units[layer]) == _unit_like(workload.units[layer]) for layer in range(3))
    return short if same and _unit_like(short.units[-1]) == _unit_like(workload.units[-1]) else workload


def _unit_like(unit: Any) -> Any:
    """Return a unit without its place."""
    return replace(unit, layer=None)


def _stage(passes: Passes, kinds: Sequence[int], layers: range, num_layers: int) -> StagePiece:
    """Put a stage together."""
    triples = triples_of(kinds)
    front = passes.fronts[("F", kinds[1])] if layers.start else Piece()
    forward_layers = [passes.forward[triple] for triple in triples]
    forward_layers[0] = front.then(forward_layers[0])
    backs = []
    for table in (passes.first, passes.later):
        pieces = [table[triple] for triple in reversed(triples)]
        behind = passes.fronts[("loss" if layers.stop == num_layers else "B", kinds[-2])]
        pieces[0] = behind.then(pieces[0])
        backs.append(pieces)
    return StagePiece(
        joined(forward_layers), joined(backs[0]), joined(backs[1]), tuple(forward_layers), tuple(backs[0])
    )
