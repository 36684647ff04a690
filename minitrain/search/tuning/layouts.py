"""Layouts of `megatron` that are priced together: the order of their pipelines, and their pieces as columns.

`order_of` says which steps each rank of a pipeline takes, and what it sends and receives between them. The strategy is
executed on stand-ins that compute nothing: each stage is one layer, each microbatch one sample, and whatever is
received is there at once. Only the order in which a rank asks for its operations is kept. Of many microbatches few are
executed, and the block that comes twice is repeated, where the strategy declares them alike
(`minitrain.run.folding.microbatches`).

`Columns` has the pieces of the steps of layouts of one structure, with a column for each layout.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import starmap
from typing import Any

import numpy as np

from minitrain.errors import StrategyError
from minitrain.machine.platforms import StandsFor
from minitrain.operations import SEND as MESSAGE
from minitrain.run.analysis.timeline import Floats
from minitrain.run.folding.microbatches import Microbatches
from minitrain.run.rank_tasks import declared_by
from minitrain.run.strategy_loading import choose_strategy
from minitrain.search.tuning.pieces import EndKey, PassKey, Piece, Pieces, StagePiece, Triple, in_layout
from minitrain.tensors.index_sets import grouped

FORWARD, BACKWARD, SEND, RECEIVE, WAIT = range(5)
LAUNCHED = 5
"""What is added to SEND and RECEIVE where they run beside what follows."""

MESSAGES: Mapping[str, Mapping[str, bool]] = {
    "plain": {"overlap_messages": False},
    "batched": {"overlap_messages": False, "batch_messages": True},
    "hidden": {"overlap_messages": True},
}
"""How stages exchange messages, as options of `megatron`."""

Asked = tuple[int, int, int]
"""What a rank asks for: one of the numbers above; a stage, or the number of a kind of messages; and the microbatch."""

Turn = tuple[int, int, int, int]
"""What is asked for, by which place, of what, and the microbatch."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message between two ranks of a pipeline, one a microbatch.

    Args:
        source: who sends it.
        dest: who receives it.
        direction: "F" for an activation, "B" for a gradient.
        stage: the stage that takes it.
    """

    source: int
    dest: int
    direction: str
    stage: int


@dataclass(frozen=True, slots=True)
class Order:
    """What the ranks of a pipeline ask for.

    Args:
        asked: of each rank, in its order.
        messages: their kinds, by number.
        num_microbatches: of the step.
    """

    asked: tuple[Sequence[Asked], ...]
    messages: tuple[Message, ...]
    num_microbatches: int

    def turns(self) -> list[Turn]:
        """Return the steps of all ranks in one order, each after those that it waits for."""
        return _Turns(self).run()


class _Token:
    """Stands for any tensor."""

    def __add__(self, other: object) -> _Token:
        return self


_TOKEN = _Token()


class _Group:
    """A group of one rank."""

    size, index = 1, 0


_ALONE = _Group()


class _Mesh:
    """The mesh of a pipeline: other axes have one rank."""

    def __init__(self, pp: int, place: int) -> None:
        self._pp, self._place = pp, place

    def group(self, *_: str) -> _Group:
        """Return the group along an axis."""
        return _ALONE

    def coord(self, axis: str) -> int:
        """Return the place along an axis."""
        return self._place if axis == "pp" else 0

    def peer(self, _: str, offset: int, *, wrap: bool) -> int:
        """Return another rank of the pipeline."""
        del wrap
        return (self._place + offset) % self._pp


class _Launched:
    """A message that was launched."""

    def __init__(self, asked: list[Asked], message: tuple[int, int]) -> None:
        self._asked, self._message = asked, message

    def __await__(self) -> Any:
        self._asked.append((WAIT, *self._message))
        return _TOKEN
        yield


class _StandIn:
    """What the strategy takes for its model: it notes what is asked for.

    Args:
        place: the rank.
        pp: ranks of the pipeline.
        num_stages: of all ranks.
        num_microbatches: of a step.
        numbers: of kinds of messages, by sender, receiver, direction and stage; all ranks share it.
    """

    layers_are_alike, tied_layers = True, ()

    def __init__(self, place: int, pp: int, num_stages: int, num_microbatches: int, numbers: dict[Any, int]) -> None:
        self.asked: list[Asked] = []
        self._numbers = numbers
        self._passed: Counter[tuple[int, int]] = Counter()
        self.rank, self.world_size = place, pp
        self.num_layers, self.global_batch_size = num_stages, num_microbatches
        self.blocks = tuple((layer,) for layer in range(num_stages))
        self.recompute = "none"
        self.weights: dict[Any, Any] = {}
        self.opt_states: dict[Any, Any] = {}
        self.activations: dict[Any, Any] = {}
        self.grad_activations: dict[Any, Any] = {}
        self.grad_weights: dict[Any, Any] = {}

    def mesh(self, pp: int, **_: int) -> _Mesh:
        """Return the mesh."""
        return _Mesh(pp, self.rank)

    def load_weights(self, *_: int, **__: int) -> tuple[_Token, _Token]:
        """Return a weight and an optimizer state."""
        return _TOKEN, _TOKEN

    def get_input_activation(self, _: Iterable[int]) -> _Token:
        """Return an input."""
        return _TOKEN

    def loss(self, _: _Token) -> _Token:
        """Return a gradient."""
        return _TOKEN

    def forward(self, layer: int, *_: _Token) -> _Token:
        """Note a forward."""
        self._pass(FORWARD, layer)
        return _TOKEN

    def backward(self, layer: int, *_: _Token) -> tuple[_Token, _Token]:
        """Note a backward."""
        self._pass(BACKWARD, layer)
        return _TOKEN, _TOKEN

    def update(self, *_: Any) -> tuple[_Token, _Token]:
        """Return an updated weight and state."""
        return _TOKEN, _TOKEN

    def set_final_weight(self, *_: Any) -> None:
        """Take a final weight."""

    def _pass(self, code: int, stage: int) -> None:
        """Note a pass, of the next microbatch."""
        self.asked.append((code, stage, self._passed[code, stage]))
        self._passed[code, stage] += 1

    async def send(self, dest: int, _: _Token, *, tag: tuple[str, int, int]) -> None:
        """Note a message."""
        self._communicate(SEND, self.rank, dest, *tag)

    async def receive(self, source: int, *, tag: tuple[str, int, int]) -> _Token:
        """Note a receive."""
        self._communicate(RECEIVE, source, self.rank, *tag)
        return _TOKEN

    def _communicate(self, code: int, source: int, dest: int, direction: str, stage: int, microbatch: int) -> None:
        """Note one side of a message."""
        kind = source, dest, direction, stage
        self.asked.append((code, self._numbers.setdefault(kind, len(self._numbers)), microbatch))

    def launch(self, operation: Coroutine[Any, Any, Any]) -> _Launched:
        """Note a message that runs beside what follows."""
        _end(operation)
        code, *message = self.asked.pop()
        kind, microbatch = message
        self.asked.append((code + LAUNCHED, kind, microbatch))
        return _Launched(self.asked, (kind, microbatch))


def _end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise StrategyError("megatron waits for what is no message, so that its order is not known")


@lru_cache(maxsize=4)
def order_of(pp: int, num_chunks: int, num_microbatches: int, messages: str, schedule: str = "1f1b") -> Order:
    """Return what each rank of a pipeline asks for, in its order.

    Args:
        pp: ranks of the pipeline.
        num_chunks: stages a rank.
        num_microbatches: of a step.
        messages: one of `MESSAGES`.
        schedule: "1f1b", or "interleaved", which goes with fewer microbatches than ranks, too.

    Raises:
        StrategyError: these numbers do not go together.
    """
    short = _shortened(pp, num_chunks, num_microbatches)
    if short is not None:
        few = _executed(pp, num_chunks, short.few, messages, schedule)
        asked = [_lengthened(of_rank, short) for of_rank in few.asked]
        if all(asked):
            return replace(few, asked=tuple(asked), num_microbatches=num_microbatches)
    return _executed(pp, num_chunks, num_microbatches, messages, schedule)


@lru_cache(maxsize=64)
def _shortened(pp: int, num_chunks: int, num_microbatches: int) -> Microbatches | None:
    """Return how many microbatches tell what the ranks ask for; None for all."""
    function: Any = choose_strategy("megatron").function
    _, options = declared_by(function, {"microbatch_size": 1, "pp": pp, "num_chunks": num_chunks})
    found: Microbatches | None = function.microbatches(options, pp, num_microbatches)
    return found and found.shortened()


@lru_cache(maxsize=64)
def _executed(pp: int, num_chunks: int, num_microbatches: int, messages: str, schedule: str = "1f1b") -> Order:
    """Return what each rank asks for when it is executed."""
    function: Any = choose_strategy("megatron").function
    numbers: dict[tuple[int, int, str, int], int] = {}
    found = []
    for place in range(pp):
        model = _StandIn(place, pp, pp * num_chunks, num_microbatches, numbers)
        options = {"microbatch_size": 1, "pp": pp, "num_chunks": num_chunks, "schedule": schedule, **MESSAGES[messages]}
        _end(function(model, **options))
        found.append(model.asked)
    return Order(tuple(found), tuple(starmap(Message, numbers)), num_microbatches)


def _lengthened(asked: Sequence[Asked], short: Microbatches) -> list[Asked]:
    """Return what a rank asks for in the whole step, from what it asks for in a short one; nothing if no block repeats.

    Args:
        asked: in the short step.
        short: the microbatches of both.
    """
    size = short.period * sum(microbatch == short.few // 2 for *_, microbatch in asked)
    length = 0
    for cut, ((code, what, microbatch), later) in enumerate(zip(asked, asked[size:], strict=False), 1):
        length = length + 1 if later == (code, what, microbatch + short.period) else 0
        if length == size:
            columns = np.array(asked)
            blocks = np.tile(columns[cut - size : cut], (short.num_blocks, 1))
            blocks[:, 2] += np.repeat(np.arange(1, short.num_blocks + 1) * short.period, size)
            columns[cut:, 2] += short.count - short.few
            return list(zip(*np.concatenate([columns[:cut], blocks, columns[cut:]]).T.tolist(), strict=True))
    return []


class _Turns:
    """Puts what several ranks ask for into one order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._sent: set[tuple[int, int]] = set()
        self._arrived: set[tuple[int, int]] = set()
        self._streams: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)

    def run(self) -> list[Turn]:
        """Return the turns."""
        found: list[Turn] = []
        waiting: dict[tuple[int, int], int] = {}
        rest = [deque(asked) for asked in self._order.asked]
        ready = list(range(len(rest)))
        while ready:
            place = ready.pop()
            asked = rest[place]
            while asked:
                code, what, microbatch = asked[0]
                if code > BACKWARD:
                    message = what, microbatch
                    lacking = self._lacking(place, code, message)
                    if lacking is not None:
                        waiting[lacking] = place
                        break
                    if message in waiting and code in (SEND, SEND + LAUNCHED):
                        ready.append(waiting.pop(message))
                asked.popleft()
                found.append((code, place, what, microbatch))
        return found

    def _lacking(self, place: int, code: int, message: tuple[int, int]) -> tuple[int, int] | None:
        """Return a message that must be sent first: receives from one peer are done in the order of submission."""
        if code in (SEND, SEND + LAUNCHED):
            self._sent.add(message)
            return None
        kind = self._order.messages[message[0]]
        if kind.dest != place:
            return None
        stream = self._streams[kind.source, place]
        if code != WAIT and message not in stream:
            stream.append(message)
        while code != RECEIVE + LAUNCHED and message not in self._arrived:
            if stream[0] not in self._sent:
                return stream[0]
            self._arrived.add(stream.popleft())
        return None


END_FIGURES = ("load", "cover", "total", "update", "gather", "net", "peak", "weight_shard")
"""What a layer takes beside its passes: seconds, and elements of memory when it is loaded."""

Structure = tuple[int, int, int, str]
"""Ranks of a pipeline, stages a rank, microbatches, and how messages are exchanged."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A layout of `megatron`.

    Args:
        passes: what passing through layers depends on.
        ends: what loading and updating depends on.
        pp: ranks of the pipeline.
        stages: the layers of each stage.
        num_microbatches: of a replica and step.
        overlap_replicas: as the option of `megatron`.
        messages: how stages exchange messages, one of `minitrain.search.tuning.layouts.MESSAGES`.
    """

    passes: PassKey
    ends: EndKey
    pp: int
    stages: tuple[range, ...]
    num_microbatches: int
    overlap_replicas: bool = False
    messages: str = "plain"

    @property
    def structure(self) -> Structure:
        """What layouts that are priced together have in common."""
        return self.pp, len(self.stages) // self.pp, self.num_microbatches, self.messages

    @property
    def stride(self) -> int:
        """Ranks of a stage."""
        return self.ends.dp * self.ends.tp

    @property
    def gathers_early(self) -> bool:
        """Whether weights are gathered under the first forward."""
        return self.overlap_replicas and self.ends.zero == 1


class Columns:
    """The pieces of some layouts of one structure, as arrays with a column a layout.

    Layouts with the same stages are a block; what is asked of a block is asked of one layout of it and each `PassKey`.

    Args:
        pieces: of the workload.
        layouts: of one structure.
        contention: whether computing is slowed down by what replicas exchange beside it.
    """

    def __init__(self, pieces: Pieces, layouts: Sequence[Pipeline], *, contention: bool = False) -> None:
        self.pieces, self.layouts, self.contention = pieces, layouts, contention
        self.pp, self.num_chunks, self.num_microbatches, self.messages = layouts[0].structure
        self.count = len(layouts)
        self.width = max(2, self.count)  # numpy adds a single column up in another order
        self.overlaps = self.wide([layout.overlap_replicas for layout in layouts]) > 0
        self.gathers = self.wide([layout.gathers_early for layout in layouts]) > 0
        self.blocks = list(grouped((layout.stages, column) for column, layout in enumerate(layouts)).items())
        self._chains: dict[Any, Floats] = {}
        self._memory: dict[Any, tuple[Floats, Floats]] = {}
        self._figures: dict[tuple[int, ...], Floats] = {}
        self._bytes: dict[Any, Floats] = {}

    @cached_property
    def order(self) -> Order:
        """What the ranks do."""
        return order_of(self.pp, self.num_chunks, self.num_microbatches, self.messages)

    def wide(self, values: Any) -> Floats:
        """Return values, one a layout, as an array of `width` entries."""
        found = np.zeros(self.width)
        found[: self.count] = values
        return found

    def stages_of(self, place: int) -> range:
        """Return the stages of a place."""
        return range(place, self.pp * self.num_chunks, self.pp)

    def num_layers(self, stage: int) -> int:
        """Return the most layers that a stage has in any layout."""
        return max(len(stages[stage]) for stages, _ in self.blocks)

    def chain(self, code: int, stage: int) -> Floats:
        """Return a pass through a stage, s, (1 + num_operations, width), with place for a clock in the first row."""
        key = code, *(self.pieces.signature(stages[stage]) for stages, _ in self.blocks)
        if key not in self._chains:
            self._chains[key] = self._chained(self._stage_pieces(stage), _PASSES[code, 0])
        return self._chains[key]

    def memory(self, code: int, stage: int, nth: int) -> tuple[Floats, Floats]:
        """Return what a pass adds to memory, and the most that it adds meanwhile, elements, (width,) each."""
        key = code, nth, *(self.pieces.signature(stages[stage]) for stages, _ in self.blocks)
        if key not in self._memory:
            get = _PASSES[code, nth]
            found = [None if one is None else get(one) for one in self._stage_pieces(stage)]
            self._memory[key] = self._sizes(found)
        return self._memory[key]

    def layer_chain(self, code: int, stage: int, number: int) -> Floats:
        """Return the pass through one layer of a stage, like `chain`; the last layer comes first on the way back."""
        key = code, *self._layer_keys(code, stage, number)
        if key not in self._chains:
            self._chains[key] = self._chained(self._stage_pieces(stage), lambda one: _layer(one, code, number))
        return self._chains[key]

    def layer_memory(self, stage: int, number: int) -> tuple[Floats, Floats]:
        """Return what the forward of one layer adds to memory, like `memory`."""
        key = "layer", *self._layer_keys(FORWARD, stage, number)
        if key not in self._memory:
            found = [None if one is None else _layer(one, FORWARD, number) for one in self._stage_pieces(stage)]
            self._memory[key] = self._sizes(found)
        return self._memory[key]

    def figures(self, stage: int, number: int) -> Floats:
        """Return what a layer of a stage takes beside its passes, (len(END_FIGURES), width); 0 beyond the last."""
        kinds = tuple(
            self.pieces.kind(stages[stage][number]) if number < len(stages[stage]) else -1 for stages, _ in self.blocks
        )
        if kinds not in self._figures:
            found = np.zeros((len(END_FIGURES), self.width))
            for kind, (_, columns) in zip(kinds, self.blocks, strict=True):
                for column in columns if kind >= 0 else ():
                    found[:, column] = self.pieces.end_figures(self.layouts[column].ends, kind)
            self._figures[kinds] = found
        return self._figures[kinds]

    @cached_property
    def taken(self) -> Floats:
        """The share of the processor that exchanges of replicas take of what computes beside them, (width,)."""
        price = self.pieces.predictor.collective
        groups = [tuple(range(0, one.stride, one.ends.tp)) for one in self.layouts]
        shares = [price("reduce_scatter", _LARGE, ranks).processor_usage if len(ranks) > 1 else 0.0 for ranks in groups]
        return self.wide(shares) * self.overlaps * self.contention

    def shared(self, message: Message) -> Floats:
        """Return 1 where a message takes the wires that exchanges of replicas take, (width,), else 0."""
        prices = self.pieces.predictor
        found = []
        for one in self.layouts:
            ranks = tuple(range(0, one.stride, one.ends.tp))
            ends = message.source * one.stride, message.dest * one.stride
            exchange = prices.collective("reduce_scatter", _LARGE, ranks) if len(ranks) > 1 else None
            found.append(exchange is not None and exchange.tier_size == prices.p2p(MESSAGE, 1.0, *ends).tier_size)
        return self.wide(found)

    def computing(self, code: int, stage: int, number: int | None = None) -> Floats:
        """Return how long a pass through a stage computes, or through one layer of it, s, (width,)."""
        get = _PASSES[code, 0] if number is None else partial(_layer, code=code, number=number)
        found = [Piece() if one is None else get(one) for one in self._stage_pieces(stage)]
        return self.wide([piece.forward_s + piece.backward_s for piece in found])

    def has_layer(self, stage: int, number: int) -> Any:
        """Return which layouts have a layer of a stage, (width,)."""
        found = np.zeros(self.width, dtype=bool)
        for stages, columns in self.blocks:
            found[columns] = number < len(stages[stage])
        return found

    def message_bytes(self, message: Message) -> Floats:
        """Return the bytes of a message, (width,)."""
        direction, sender = message.direction, message.stage + (-1 if message.direction == "F" else 1)
        last = -1 if direction == "F" else 0
        key = direction, *(self.pieces.kind(stages[sender][last]) for stages, _ in self.blocks)
        if key not in self._bytes:
            found = self._bytes[key] = np.zeros(self.width)
            for stages, columns in self.blocks:
                for column in columns:
                    passes = self.layouts[column].passes
                    found[column] = self.pieces.message_bytes(passes, direction, stages[sender])
        return self._bytes[key]

    def message_seconds(self, message: Message) -> Floats:
        """Return how long a message takes, s, (width,)."""
        found = []
        for one, size in zip(self.layouts, self.message_bytes(message).tolist(), strict=False):
            price = in_layout(self.pieces.predictor, StandsFor(None, stage_size=one.stride)).p2p
            found.append(price(MESSAGE, size, message.source * one.stride, message.dest * one.stride).seconds)
        return self.wide(found)

    def _layer_keys(self, code: int, stage: int, number: int) -> list[Any]:
        """Return what the piece of a layer depends on, a key a block: kinds around it, and what precedes the first."""
        return [self._layer_key(stages[stage], code, number) for stages, _ in self.blocks]

    def _layer_key(self, layers: range, code: int, number: int) -> tuple[Triple, int, int] | None:
        if number >= len(layers):
            return None
        place = number if code == FORWARD else len(layers) - 1 - number
        layer, kind = layers[place], self.pieces.kind
        before = kind(layer - 1) if place else -1
        behind = kind(layer + 1) if place + 1 < len(layers) else -1
        return (before, kind(layer), behind), number == 0, number == 0 and layers.start == 0

    def _stage_pieces(self, stage: int) -> list[StagePiece | None]:
        """Return the pieces of a stage, one a layout."""
        found: list[StagePiece | None] = [None] * self.count
        for stages, columns in self.blocks:
            for column in columns:
                found[column] = self.pieces.stage(self.layouts[column].passes, stages[stage])
        return found

    def _chained(self, stages: Sequence[StagePiece | None], get: Callable[[StagePiece], Piece]) -> Floats:
        """Return pieces as columns, with place for a clock above them."""
        pieces = [Piece() if one is None else get(one) for one in stages]
        chain = np.zeros((1 + max(len(piece.seconds) for piece in pieces), self.width))
        for column, piece in enumerate(pieces):
            chain[1 : len(piece.seconds) + 1, column] = piece.seconds
        return chain

    def _sizes(self, pieces: Sequence[Piece | None]) -> tuple[Floats, Floats]:
        """Return what pieces add to memory, and the most that they add meanwhile, elements, (width,) each."""
        known = [piece or Piece() for piece in pieces]
        return self.wide([piece.net for piece in known]), self.wide([piece.peak for piece in known])


def _layer(stage: StagePiece, code: int, number: int) -> Piece:
    """Return one layer of a stage, or nothing beyond the last."""
    pieces = stage.forward_layers if code == FORWARD else stage.backward_layers
    return pieces[number] if number < len(pieces) else Piece()


_LARGE = 2.0**30
"""Bytes of an exchange of which nothing but its share of the processor is asked."""

_PASSES: dict[tuple[int, int], Callable[[StagePiece], Piece]] = {
    (FORWARD, 0): lambda one: one.forward,
    (FORWARD, 1): lambda one: one.forward,
    (BACKWARD, 0): lambda one: one.first,
    (BACKWARD, 1): lambda one: one.later,
}
