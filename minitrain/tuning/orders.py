"""The order of a pipeline: which steps each rank takes, and what it sends and receives between them.

The strategy is executed on stand-ins that compute nothing: each stage is one layer, each microbatch one sample, and
whatever is received is there at once. Only the order in which a rank asks for its operations is kept.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from minitrain.errors import MinitrainError
from minitrain.run.chosen_strategy import choose_strategy

Message = tuple[int, int, Hashable]  # from, to, tag


@dataclass(frozen=True, slots=True)
class Asked:
    """What a rank asks for.

    Args:
        typ: "forward", "backward", "send", "receive" or "wait".
        stage: the stage that is passed, or -1.
        message: what is sent or received, or None.
        is_launched: whether it runs beside what follows, until "wait".
    """

    typ: str
    stage: int = -1
    message: Message | None = None
    is_launched: bool = False


class _Token:
    """Stands for any tensor."""

    def __add__(self, other: object) -> _Token:
        return self

    def shard(self, *_: int) -> _Token:
        """Return a shard of it."""
        return self


_TOKEN = _Token()


class _Group:
    """A group of one rank."""

    size, index = 1, 0


class _Mesh:
    """The mesh of a pipeline: other axes have one rank."""

    def __init__(self, pp: int, place: int) -> None:
        self._pp, self._place = pp, place

    def group(self, *_: str) -> _Group:
        """Return the group along an axis."""
        return _Group()

    def coord(self, axis: str) -> int:
        """Return the place along an axis."""
        return self._place if axis == "pp" else 0

    def peer(self, _: str, offset: int, *, wrap: bool) -> int:
        """Return another rank of the pipeline."""
        del wrap
        return (self._place + offset) % self._pp


class _Launched:
    """A message that was launched."""

    def __init__(self, asked: list[Asked], message: Message) -> None:
        self._asked, self._message = asked, message

    def __await__(self) -> Any:
        self._asked.append(Asked("wait", message=self._message))
        return _TOKEN
        yield


class _StandIn:
    """What the strategy takes for its model: it notes what is asked for."""

    layers_are_alike = True

    def __init__(self, place: int, pp: int, num_stages: int, num_microbatches: int) -> None:
        self.asked: list[Asked] = []
        self.rank, self.world_size = place, pp
        self.num_layers, self.global_batch_size = num_stages, num_microbatches
        self.recompute = "none"

    def mesh(self, pp: int, **_: int) -> _Mesh:
        """Return the mesh."""
        return _Mesh(pp, self.rank)

    def storage(self) -> tuple[dict[Any, Any], ...]:
        """Return five stores."""
        return {}, {}, {}, {}, {}

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
        self.asked.append(Asked("forward", layer))
        return _TOKEN

    def backward(self, layer: int, *_: _Token) -> tuple[_Token, _Token]:
        """Note a backward."""
        self.asked.append(Asked("backward", layer))
        return _TOKEN, _TOKEN

    def update(self, *_: Any) -> tuple[_Token, _Token]:
        """Return an updated weight and state."""
        return _TOKEN, _TOKEN

    def set_final_weight(self, *_: Any) -> None:
        """Take a final weight."""

    async def send(self, dest: int, _: _Token, *, tag: Hashable) -> None:
        """Note a message."""
        self.asked.append(Asked("send", message=(self.rank, dest, tag)))

    async def receive(self, source: int, *, tag: Hashable) -> _Token:
        """Note a receive."""
        self.asked.append(Asked("receive", message=(source, self.rank, tag)))
        return _TOKEN

    def launch(self, operation: Coroutine[Any, Any, Any]) -> _Launched:
        """Note a message that runs beside what follows."""
        _end(operation)
        last = self.asked[-1]
        assert last.message is not None
        self.asked[-1] = Asked(last.typ, message=last.message, is_launched=True)
        return _Launched(self.asked, last.message)


def _end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise MinitrainError("a strategy waits for what is no message, so that its order is not known; simulate it instead")


@lru_cache(maxsize=64)
def orders(pp: int, num_chunks: int, num_microbatches: int, *, overlap_messages: bool) -> tuple[Sequence[Asked], ...]:
    """Return what each rank of a pipeline asks for, in its order.

    Args:
        pp: ranks of the pipeline.
        num_chunks: stages a rank.
        num_microbatches: of a step.
        overlap_messages: whether messages are launched.

    Raises:
        StrategyError: these numbers do not go together.
    """
    function: Any = choose_strategy("megatron").function
    found = []
    for place in range(pp):
        model = _StandIn(place, pp, pp * num_chunks, num_microbatches)
        _end(
            function(
                model, microbatch_size=1, pp=pp, num_chunks=num_chunks, overlap_messages=overlap_messages
            )
        )
        found.append(tuple(model.asked))
    return tuple(found)
