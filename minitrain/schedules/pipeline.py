"""A rank of a pipeline: it runs the actions of its schedule in order, and receives and sends what they need and make.

Tensors from another rank are received under a tag of kind, stage and microbatch, so that messages may overtake one
another. Two neighbouring stages on one rank pass their tensors through its stores, without a message. Messages are

- "hidden" behind compute, as in `torch.distributed.pipelining`: the receive for an action is launched before the action
  before it computes, and a send runs beside the following actions until the next send to the same rank;
- "batched", as by Megatron-LM: what an action has made goes out while what the next one needs comes in;
- "plain": one after the other.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from itertools import zip_longest
from typing import Any

from minitrain.rank.model import Model
from minitrain.schedules.action import Action, Cell
from minitrain.schedules.division import Division
from minitrain.schedules.expert_passes import Travelling
from minitrain.schedules.held_layers import HeldLayers, Steps
from minitrain.schedules.layer_passes import LayerPasses
from minitrain.schedules.messages import Messages
from minitrain.schedules.schedule import Schedule
from minitrain.source_lines import count_as_strategy
from minitrain.tensors.placed import kept_whole, share_of_sequence

HIDDEN, BATCHED, PLAIN = "hidden", "batched", "plain"

count_as_strategy(__file__)


class PipelineRank:
    """One rank of a pipeline.

    Args:
        model: the rank.
        schedule: the order of every rank.
        division: how ranks divide what a stage does.
        batches: the samples of each microbatch.
        stages: the layers of each stage.
        held: what the rank holds.
        passes: its passes through layers.
        messages: how stages exchange messages: "hidden", "batched" or "plain".
        sends_shares: whether each of several parts sends a share of an activation, and gathers those that come in.
        in_pairs: whether actions that are fused run by turns, one while tokens of the other travel.
    """

    def __init__(
        self,
        model: Model,
        schedule: Schedule,
        division: Division,
        batches: Sequence[Sequence[int]],
        stages: Sequence[Sequence[int]],
        held: HeldLayers,
        passes: LayerPasses,
        *,
        messages: str = HIDDEN,
        sends_shares: bool = False,
        in_pairs: bool = False,
    ) -> None:
        self._model, self._schedule, self._division = model, schedule, division
        self._here = division.place
        self._batches, self._stages = batches, stages
        self._held, self._passes = held, passes
        self._way, self._sends_shares, self._in_pairs = messages, sends_shares, in_pairs
        self._messages = Messages(model, self._incoming, overlap=messages != PLAIN)

    async def run(self) -> None:
        """Train one step."""
        placement = self._schedule.placement
        self._held.load(
            layer for stage, place in placement.items() if place == self._here for layer in self._stages[stage]
        )
        cells = self._cells()
        if self._way == HIDDEN:
            self._expect(cells[0])
        for cell, following in zip_longest(cells, cells[1:], fillvalue=()):
            if self._way == HIDDEN:
                self._expect(following)
            await self._run_cell(cell)
            if self._way == BATCHED:
                self._expect(following)
                await self._messages.all_sent()
        await self._messages.all_sent()
        await _alone(self._held.update())

    def _expect(self, cell: Cell) -> None:
        """Begin to receive what some actions need."""
        for action in cell:
            self._messages.expect(action)

    def _cells(self) -> list[Cell]:
        """Return what the rank runs, one action or a pair at a time."""
        if self._in_pairs:
            return [cell for cell in self._schedule.rows[self._here] if cell]
        return [(action,) for action in self._schedule.orders[self._here]]

    async def _run_cell(self, cell: Cell) -> None:
        """Run an action, or several of them by turns: one computes until its tokens travel, then the next one."""
        if len(cell) == 1:
            await _alone(await self._begin(cell[0]))
            await self._end(cell[0])
            return
        turns: list[tuple[Action, Steps | None, Any]] = [(action, None, None) for action in cell]
        while turns:
            action, steps, waiting = turns.pop(0)
            if steps is None:
                waiting = await _until_travelling(steps := await self._begin(action), None)
            else:
                waiting = await _until_travelling(steps, await waiting)
            if waiting is None:
                await self._end(action)
            else:
                turns.append((action, steps, waiting))

    async def _begin(self, action: Action) -> Steps:
        """Store what an action begins with: an input, a loss, or what another rank has sent; return its pass."""
        model, stage, i = self._model, action.stage, action.microbatch
        layers = self._stages[stage]
        if action.kind == "W":
            return self._passes.backward_weight(layers, i)
        first, last = layers[0], layers[-1]
        if action.kind == "F":
            if first == 0:
                model.activations[0, i] = self._division.input_of(self._batches[i])
            elif self._elsewhere(stage - 1) is not None:
                model.activations[first, i] = await self._received(action, first)
            return self._passes.forward(layers, i)
        if last == model.num_layers - 1:
            model.grad_activations[last, i] = model.loss(model.activations.pop((last + 1, i)))
        elif self._elsewhere(stage + 1) is not None:
            model.grad_activations[last, i] = await self._received(action, last + 1)
        return self._passes.backward(layers, i, action.kind)

    async def _end(self, action: Action) -> None:
        """Pass on what an action has made; the gradient of the model's input is dropped."""
        stage, i = action.stage, action.microbatch
        layers, grads = self._stages[stage], self._model.grad_activations
        if action.kind == "F":
            dest = self._elsewhere(stage + 1)
            if dest is not None:
                await self._send(dest, self._model.activations.pop((layers[-1] + 1, i)), ("F", stage + 1, i))
        elif action.kind != "W":
            dest = self._elsewhere(stage - 1)
            if dest is not None:
                await self._send(dest, grads.pop((layers[0] - 1, i)), ("B", stage - 1, i))
            elif stage == 0:
                del grads[-1, i]

    def _elsewhere(self, stage: int) -> int | None:
        """Return the place of a stage in the pipeline, or None where there is no such stage or it is on this rank."""
        place = self._schedule.placement.get(stage, self._here)
        return None if place == self._here else place

    def _incoming(self, action: Action) -> Coroutine[Any, Any, Any] | None:
        """Return the receive of what an action needs from another rank."""
        direction, before = ("F", -1) if action.kind == "F" else ("B", 1)
        source = self._elsewhere(action.stage + before)
        if action.kind == "W" or source is None:
            return None
        return self._model.receive(self._division.peer(source), tag=(direction, action.stage, action.microbatch))

    async def _received(self, action: Action, border: int) -> Any:
        """Return what another stage has passed on."""
        tensor = await self._messages.received(action)
        if not self._sends_shares:
            return tensor
        return kept_whole(await self._model.all_gather(tensor, border, group=self._division.parts))

    async def _send(self, place: int, tensor: Any, tag: tuple[str, int, int]) -> None:
        """Send a tensor, or a share of it."""
        parts = self._division.parts
        shared = share_of_sequence(tensor, parts.index, parts.size) if self._sends_shares else tensor
        await self._messages.send(self._division.peer(place), shared, tag=tag)


async def _alone(steps: Steps) -> None:
    """Run a pass that waits for each of its communications."""
    result = None
    try:
        while True:
            result = await steps.send(result)
    except StopIteration:
        return


async def _until_travelling(steps: Steps, result: Any) -> Any:
    """Run a pass until its tokens travel, and return their exchange; None once the pass has ended."""
    try:
        while True:
            waiting = steps.send(result)
            if isinstance(waiting, Travelling):
                return waiting
            result = await waiting
    except StopIteration:
        return None
