"""A rank of a pipeline: it runs the actions of its schedule in order, and receives and sends what they need and make.

Tensors from another rank are received under a tag of kind, stage and microbatch, so that messages may overtake one
another. Two neighbouring stages on one rank pass their tensors through its stores, without a message. Messages are

- "hidden" behind compute, as in `torch.distributed.pipelining`: the receive for an action is launched before the action
  before it computes, and a send runs beside the following actions until the next send to the same rank;
- "batched", as by Megatron-LM: what an action has made goes out while what the next one needs comes in;
- "plain": one after the other.

Messages between the stages of a pipeline, hidden behind compute or waited for: what `overlap_messages` switches.

Hidden, as by `torch.distributed.pipelining` and by Megatron-LM's interleaved pipelines: a rank expects what a step
needs before the step ahead of it computes, and a send runs beside the steps that follow, until the next send to the
same rank. So there is one message in flight to each neighbour, and one that comes in. Waited for, as papers draw it: a
rank receives where a step begins, sends where it ends, and does nothing else meanwhile.

A pipeline schedule, which is data, run as a strategy: `from_schedule`.

Stage s of S holds the s-th of S contiguous parts of the layers: equal ones where layers are alike, and those of
`Model.stages` where they differ. Each rank runs its actions exactly in the order of the schedule;
within a stage, layers, sequences and experts may be divided among ranks
(`minitrain.search.schedules.held_layers`). Replicas take equal parts of the batch, each cut into the schedule's
microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Generic, TypeVar

from minitrain.engine.model import Model
from minitrain.engine.operations import Launched
from minitrain.errors import StrategyError, UsageError, typed
from minitrain.files import read_text
from minitrain.run.strategy_loading import ShippedStrategy
from minitrain.search.schedules.held_layers import Degrees, Division, HeldLayers, Steps, require_multiple
from minitrain.search.schedules.layer_passes import LayerPasses, Routing, Travelling
from minitrain.search.schedules.schedule import Action, Cell, Schedule, validate
from minitrain.source_lines import count_as_strategy
from minitrain.tensors.index_sets import span
from minitrain.tensors.placed import kept_whole, share_of_sequence

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

    def received(self, step: Step) -> Any:
        """Return the receive, to be awaited, of what a step needs of another rank."""
        return self._expected.pop(step, None) or self._incoming(step)

    async def send(self, dest: int, tensor: Any, tag: Hashable = None) -> None:
        """Send a tensor; hidden, once the message before it to the same rank is out."""
        if not self._overlap:
            await self._model.send(dest, tensor, tag=tag)
            return
        for place, (rank, _) in enumerate(self._sends):
            if rank == dest:
                await self._sends.pop(place)[1]
                break
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
    sources = {"F": before, "B": after, "I": after, "W": None}

    def incoming(step: tuple[str, int]) -> Coroutine[Any, Any, Any] | None:
        source = sources[step[0]]
        return None if source is None else model.receive(source)

    return incoming


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
        mine = [layer for stage in self._schedule.stages_of(self._here) for layer in self._stages[stage]]
        await _alone(self._held.load(mine))
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
            elif self._elsewhere(stage - 1, i) is not None:
                model.activations[first, i] = await self._received(action, first)
            return self._passes.forward(layers, i)
        if last == model.num_layers - 1:
            model.grad_activations[last, i] = model.loss(model.activations.pop((last + 1, i)))
        elif self._elsewhere(stage + 1, i) is not None:
            model.grad_activations[last, i] = await self._received(action, last + 1)
        return self._passes.backward(layers, i, action.kind)

    async def _end(self, action: Action) -> None:
        """Pass on what an action has made; the gradient of the model's input is dropped."""
        stage, i = action.stage, action.microbatch
        layers, grads = self._stages[stage], self._model.grad_activations
        if action.kind == "F":
            dest = self._elsewhere(stage + 1, i)
            if dest is not None:
                await self._send(dest, self._model.activations.pop((layers[-1] + 1, i)), ("F", stage + 1, i))
        elif action.kind != "W":
            dest = self._elsewhere(stage - 1, i)
            if dest is not None:
                await self._send(dest, grads.pop((layers[0] - 1, i)), ("B", stage - 1, i))
            elif stage == 0:
                del grads[-1, i]

    def _elsewhere(self, stage: int, microbatch: int) -> int | None:
        """Return the place of a stage, or None where there is no such stage or this rank has the microbatch there."""
        place = self._schedule.homes.get((stage, microbatch), self._here)
        return None if place == self._here else place

    def _incoming(self, action: Action) -> Coroutine[Any, Any, Any] | None:
        """Return the receive of what an action needs from another rank."""
        direction, before = ("F", -1) if action.kind == "F" else ("B", 1)
        source = self._elsewhere(action.stage + before, action.microbatch)
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


count_as_strategy(__file__)


@typed
def from_schedule(schedule: Schedule) -> ShippedStrategy:
    """Return the strategy that runs a schedule.

    Its pipelines have `schedule.num_ranks` places, with tp x cp ranks at each; all others are replicas. The strategy
    has the schedule's name and these options beside the model:

    - `microbatch_size` (samples; a replica's share over the schedule's microbatches if None),
    - `zero` (ZeRO stage 0 to 3 of the ranks that hold the same) and `shard_size` (how many of them share; all if None),
    - `layers_per_stage` (the layers of each stage), and `recompute` (what backward computes again),
    - `tp`, `sequence_parallel`, `cp`, `cp_comm_type` and `ep`: see `minitrain.search.schedules.held_layers.Degrees`,
    - `overlap_messages` (whether messages are hidden behind compute; True by default),
    - `imbalance` and `capacity_factor`: how tokens are sent to experts, as in `Model.route`,
    - `overlap_experts` (whether actions that are fused run by turns, one while tokens of the other travel).

    Args:
        schedule: the order of every rank; num_layers must be a multiple of its stages where layers are alike.

    Returns:
        A coroutine function of a model, to be simulated or compared.

    Raises:
        StrategyError: the schedule is not legal; when the strategy runs, sizes that do not divide.

    >>> import minitrain as mt
    >>> strategy = from_schedule(mt.schedules.zb_h1(4, 8))
    >>> units = mt.FixedPredictor(forward=1, backward_input=1, backward_weight=1)
    >>> mt.simulate(strategy, world_size=4, num_layers=4, hardware=units).step_time
    27.0
    """
    validate(schedule)

    async def strategy(
        model: Model,
        microbatch_size: int | None = None,
        zero: int = 0,
        layers_per_stage: Sequence[int] | None = None,
        recompute: str | None = None,
        overlap_messages: bool = True,
        tp: int = 1,
        cp: int = 1,
        ep: int = 1,
        sequence_parallel: bool = False,
        shard_size: int | None = None,
        cp_comm_type: str = "p2p",
        imbalance: float | str | Sequence[float] = 1,
        capacity_factor: float | None = None,
        overlap_experts: bool = True,
    ) -> Model:
        name = schedule.name
        if recompute is not None:
            model.recompute = recompute
        require_multiple("world_size", model.world_size, "the schedule's ranks", schedule.num_ranks, name)
        degrees = Degrees(schedule.num_ranks, tp, cp, ep, sequence_parallel, shard_size, cp_comm_type, schedule.copies)
        division = Division(model, degrees, name)
        if layers_per_stage is None and model.layers_are_alike:
            require_multiple("num_layers", model.num_layers, "num_stages", schedule.num_stages, name)
        batches = _batches(model, name, schedule.num_microbatches, division, microbatch_size)
        stages = model.stages(schedule.num_stages, len(batches[0]), layers_per_stage=layers_per_stage)
        ends = schedule.homes[0, 0], schedule.homes[schedule.num_stages - 1, 0]
        held = HeldLayers(model, division, zero, len(batches), name, sum_tied=True, ends=ends)
        in_pairs = overlap_experts and ep > 1 and schedule.has_pairs
        passes = LayerPasses(model, division, held, Routing(imbalance, capacity_factor), in_pairs=in_pairs)
        messages = HIDDEN if overlap_messages else PLAIN
        pipeline = PipelineRank(
            model, schedule, division, batches, stages, held, passes, messages=messages, in_pairs=in_pairs
        )
        await pipeline.run()
        return model

    strategy.__name__ = strategy.__qualname__ = schedule.name
    strategy.__doc__ = f"Run the schedule {schedule.name}."
    strategy.framework = "torchtitan"  # type: ignore[attr-defined]  # what a strategy may say: see `framework_of`
    return strategy


def from_schedule_file(path: Path) -> ShippedStrategy:
    """Return the strategy that runs the schedule of a CSV file (see `Schedule.from_csv`), which has the file's name.

    Raises:
        StrategyError: there is no such file, it cannot be read, or the schedule is not legal.
    """
    try:
        text = read_text(path, "schedule")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise StrategyError(f"{path} cannot be read ({why}); give the path of a schedule's CSV") from error
    try:
        return from_schedule(Schedule.from_csv(text, path.stem))
    except (StrategyError, UsageError) as error:
        raise StrategyError(f"{path} is no schedule that can run: {error}") from error


def _batches(
    model: Model, name: str, num_microbatches: int, division: Division, microbatch_size: int | None
) -> list[Sequence[int]]:
    """Return the samples of each of the schedule's microbatches, for this rank's replica."""
    num_replicas, total = division.replicas.size, model.global_batch_size
    require_multiple("global_batch_size", total, "replicas x microbatches", num_replicas * num_microbatches, name)
    size = total // num_replicas // num_microbatches
    if microbatch_size not in (None, size):
        raise StrategyError(
            f"microbatch_size ({microbatch_size}) must be {size} for {name}: {num_replicas} replicas of "
            f"{num_microbatches} microbatches make up the batch of {total}; leave it None"
        )
    first = division.replicas.index * num_microbatches
    return [span((first + i) * size, (first + i + 1) * size) for i in range(num_microbatches)]
