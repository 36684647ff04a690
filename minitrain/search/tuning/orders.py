"""The order of a pipeline: which steps each rank takes, and what it sends and receives between them.

The strategy is executed on stand-ins that compute nothing: each stage is one layer, each microbatch one sample, and
whatever is received is there at once. Only the order in which a rank asks for its operations is kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from minitrain.errors import StrategyError
from minitrain.run.strategy_loading import choose_strategy

FORWARD, BACKWARD, SEND, RECEIVE, WAIT = range(5)
LAUNCHED = 5
"""What is added to SEND and RECEIVE where they run beside what follows."""

MESSAGES: Mapping[str, Mapping[str, bool]] = {
    "plain": {"overlap_messages": False},
    "batched": {"overlap_messages": False, "batch_messages": True},
    "hidden": {"overlap_messages": True},
}
"""How stages exchange messages, as options of `megatron`."""

Asked = tuple[int, int]
"""What a rank asks for: one of the numbers above, and a stage or the number of a message."""

Turn = tuple[int, int, int, bool]
"""What is asked for, by which place, of what; and whether it is the first forward or the last backward of a stage."""


@final
@dataclass(frozen=True, slots=True)
class Message:
    """A message between two ranks of a pipeline.

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


@final
@dataclass(frozen=True, slots=True)
class Order:
    """What the ranks of a pipeline ask for.

    Args:
        asked: of each rank, in its order.
        messages: by number.
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

    def __init__(self, asked: list[Asked], number: int) -> None:
        self._asked, self._number = asked, number

    def __await__(self) -> Any:
        self._asked.append((WAIT, self._number))
        return _TOKEN
        yield


class _StandIn:
    """What the strategy takes for its model: it notes what is asked for.

    Args:
        place: the rank.
        pp: ranks of the pipeline.
        num_stages: of all ranks.
        num_microbatches: of a step.
        numbers: of messages, by sender, receiver and tag; all ranks share it.
    """

    layers_are_alike, tied_layers = True, ()

    def __init__(self, place: int, pp: int, num_stages: int, num_microbatches: int, numbers: dict[Any, int]) -> None:
        self.asked: list[Asked] = []
        self._numbers = numbers
        self.rank, self.world_size = place, pp
        self.num_layers, self.global_batch_size = num_stages, num_microbatches
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
        self.asked.append((FORWARD, layer))
        return _TOKEN

    def backward(self, layer: int, *_: _Token) -> tuple[_Token, _Token]:
        """Note a backward."""
        self.asked.append((BACKWARD, layer))
        return _TOKEN, _TOKEN

    def update(self, *_: Any) -> tuple[_Token, _Token]:
        """Return an updated weight and state."""
        return _TOKEN, _TOKEN

    def set_final_weight(self, *_: Any) -> None:
        """Take a final weight."""

    async def send(self, dest: int, _: _Token, *, tag: Hashable) -> None:
        """Note a message."""
        key = self.rank, dest, tag
        self.asked.append((SEND, self._numbers.setdefault(key, len(self._numbers))))

    async def receive(self, source: int, *, tag: Hashable) -> _Token:
        """Note a receive."""
        key = source, self.rank, tag
        self.asked.append((RECEIVE, self._numbers.setdefault(key, len(self._numbers))))
        return _TOKEN

    def launch(self, operation: Coroutine[Any, Any, Any]) -> _Launched:
        """Note a message that runs beside what follows."""
        _end(operation)
        code, number = self.asked[-1]
        self.asked[-1] = code + LAUNCHED, number
        return _Launched(self.asked, number)


def _end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise StrategyError("megatron waits for what is no message, so that its order is not known")


@lru_cache(maxsize=4)
def order_of(pp: int, num_chunks: int, num_microbatches: int, messages: str) -> Order:
    """Return what each rank of a pipeline asks for, in its order.

    Args:
        pp: ranks of the pipeline.
        num_chunks: stages a rank.
        num_microbatches: of a step.
        messages: one of `MESSAGES`.

    Raises:
        StrategyError: these numbers do not go together.
    """
    function: Any = choose_strategy("megatron").function
    numbers: dict[Any, int] = {}
    found = []
    for place in range(pp):
        model = _StandIn(place, pp, pp * num_chunks, num_microbatches, numbers)
        options = {"microbatch_size": 1, "pp": pp, "num_chunks": num_chunks, **MESSAGES[messages]}
        _end(function(model, **options))
        found.append(tuple(model.asked))
    sent = tuple(Message(source, dest, tag[0], tag[1]) for source, dest, tag in numbers)
    return Order(tuple(found), sent, num_microbatches)


class _Turns:
    """Puts what several ranks ask for into one order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._sent = [False] * len(order.messages)
        self._streams: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._counts: dict[Asked, int] = defaultdict(int)
        self._found: list[Turn] = []

    def run(self) -> list[Turn]:
        """Return the turns."""
        num_places = len(self._order.asked)
        waiting: dict[int, int] = {}
        positions, ready = [0] * num_places, list(range(num_places))
        while ready:
            place = ready.pop()
            asked = self._order.asked[place]
            while positions[place] < len(asked):
                one = asked[positions[place]]
                lacking = self._lacking(place, one)
                if lacking is not None:
                    waiting[lacking] = place
                    break
                positions[place] += 1
                self._take(place, one)
                if one[0] in (SEND, SEND + LAUNCHED) and one[1] in waiting:
                    ready.append(waiting.pop(one[1]))
        return self._found

    def _take(self, place: int, one: Asked) -> None:
        """Take a turn."""
        code, number = one
        is_special = False
        if code in (FORWARD, BACKWARD):
            nth = self._counts[one]
            self._counts[one] = nth + 1
            is_special = nth == (0 if code == FORWARD else self._order.num_microbatches - 1)
        elif code in (SEND, SEND + LAUNCHED):
            self._sent[number] = True
        self._found.append((code, place, number, is_special))

    def _lacking(self, place: int, one: Asked) -> int | None:
        """Return a message that must be sent first: receives from one peer are done in the order of submission."""
        code, number = one
        if code in (FORWARD, BACKWARD, SEND, SEND + LAUNCHED) or self._order.messages[number].dest != place:
            return None
        message = self._order.messages[number]
        stream = self._streams[message.source, place]
        if code != WAIT and number not in stream:
            stream.append(number)
        if code == RECEIVE + LAUNCHED:
            return None
        while stream and self._sent[stream[0]] and number in stream:
            stream.popleft()
        return stream[0] if number in stream else None
