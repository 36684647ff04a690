"""Messages between the stages of a pipeline, hidden behind compute or waited for: what `overlap_messages` switches.

Hidden, as by `torch.distributed.pipelining` and by Megatron-LM's interleaved pipelines: a rank expects what a step
needs before the step ahead of it computes, and a send runs beside the steps that follow, until the next send to the
same rank. So there is one message in flight to each neighbour, and one that comes in. Waited for, as papers draw it: a
rank receives where a step begins, sends where it ends, and does nothing else meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from minitrain.rank.model import Model
from minitrain.rank.operations import Launched

Step = TypeVar("Step", bound=Hashable)
Incoming = Callable[[Step], Coroutine[Any, Any, Any] | None]


class Messages(Generic[Step]):
    """What one rank of a pipeline receives and sends.

    Args:
        model: the rank.
        incoming: makes the receive that a step begins with; None for a step that needs nothing of another rank.
        overlap: whether messages are hidden behind compute.
    """

    def __init__(self, model: Model, incoming: Incoming[Step], *, overlap: bool) -> None:
        self._model, self._incoming, self._overlap = model, incoming, overlap
        self._expected: dict[Step, Launched[Any]] = {}
        self._sends: list[tuple[int, Launched[None]]] = []  # the last one to each rank

    def ahead(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield steps in their order, each once what the following one needs is expected.

        Args:
            steps: the order of the rank; each step asks for its message by `received`.
        """
        for first in steps[:1]:
            self.expect(first)
        for step, following in zip_longest(steps, steps[1:]):
            if following is not None:
                self.expect(following)
            yield step

    def expect(self, step: Step) -> None:
        """Begin to receive what a step needs, if messages are hidden and it needs one."""
        receive = self._incoming(step) if self._overlap else None
        if receive is not None:
            self._expected[step] = self._model.launch(receive)

    async def received(self, step: Step) -> Any:
        """Return what a step needs of another rank, None where that is nothing."""
        receive = self._expected.pop(step, None) or self._incoming(step)
        return None if receive is None else await receive

    async def send(self, dest: int, tensor: Any, tag: Hashable = None) -> None:
        """Send a tensor; hidden, once the message before it to the same rank is out."""
        if not self._overlap:
            await self._model.send(dest, tensor, tag=tag)
            return
        for sent in [sent for sent in self._sends if sent[0] == dest]:
            self._sends.remove(sent)
            await sent[1]
        self._sends.append((dest, self._model.launch(self._model.send(dest, tensor, tag=tag))))

    async def all_sent(self) -> None:
        """Wait until every message is out."""
        while self._sends:
            await self._sends.pop(0)[1]


def from_neighbours(model: Model, before: int | None, after: int | None) -> Incoming[tuple[str, int]]:
    """Return the receives of a line of stages, by step: ("F", microbatch), or "B", "I" or "W" as in a schedule.

    Args:
        model: the rank.
        before: the rank of the stage before, None for the first stage.
        after: that of the stage after, None for the last one.
    """

    def incoming(step: tuple[str, int]) -> Coroutine[Any, Any, Any] | None:
        source = {"F": before, "W": None}.get(step[0], after)
        return None if source is None else model.receive(source)

    return incoming
