"""A pipeline schedule, which is data, run as a strategy: `from_schedule`.

Stage s of S holds the s-th of S contiguous parts of the layers: equal ones where layers are alike, and those of
`Model.stages` where they differ. Each rank runs its actions exactly in the order of the schedule. Tensors from another
rank are received under a tag of kind, stage and microbatch, so that messages may overtake one another. Communication
overlaps with compute as in `torch.distributed.pipelining`: the receive for an action is launched before the action
before it computes, and a send runs beside the following actions until the next send to the same rank. Two neighbouring
stages on one rank pass their tensors through its stores, without a message.

Activations are kept from F until B, or until W where the backward is split. Then the gradients of a stage's outputs are
kept too, from I until W. Replicas take equal parts of the batch, each cut into the schedule's microbatches. The ZeRO
stage (Rajbhandari et al. 2020) says what they share: gradients are summed at the end of the step (stages 0 and 1) or
after each microbatch (2 and 3), and whole weights are gathered for one layer at a time (3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, cast

from minitrain.errors import StrategyError
from minitrain.rank.model import Model
from minitrain.rank.operations import Launched
from minitrain.run.strategy_loading import Strategy
from minitrain.schedules import Action, Schedule, validate
from minitrain.source_lines import count_as_strategy
from minitrain.tensors import Weight, WeightGrad
from minitrain.tensors.index_sets import span
from minitrain.transport.groups import Mesh

ZERO_STAGES = (0, 1, 2, 3)

count_as_strategy(__file__)


def from_schedule(schedule: Schedule) -> Strategy:
    """Return the strategy that runs a schedule.

    Its ranks are laid out on `model.mesh(pp=schedule.num_ranks, dp=...)`. The strategy has the schedule's name and
    four options beside the model: `microbatch_size` (samples; a replica's share over the schedule's microbatches if
    None), `zero` (ZeRO stage 0 to 3 of the replicas), `layers_per_stage` (the layers of each stage), and `recompute`
    (what backward computes again).

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
    ) -> Model:
        if recompute is not None:
            model.recompute = recompute
        mesh = _mesh(model, schedule)
        if zero not in ZERO_STAGES:
            raise StrategyError(f"zero must be a ZeRO stage, 0 to 3, for {schedule.name}, got {zero!r}")
        if layers_per_stage is None and model.layers_are_alike:
            _require_multiple("num_layers", model.num_layers, "num_stages", schedule.num_stages, schedule.name)
        batches = _batches(model, schedule.name, schedule.num_microbatches, mesh, microbatch_size)
        stages = model.stages(schedule.num_stages, len(batches[0]), layers_per_stage=layers_per_stage)
        await _Rank(model, schedule, mesh, batches, stages, _Replica(model, mesh, zero)).run()
        return model

    strategy.__name__ = strategy.__qualname__ = schedule.name
    strategy.__doc__ = f"Run the schedule {schedule.name}."
    return strategy


def _mesh(model: Model, schedule: Schedule) -> Mesh:
    """Return the ranks as pipeline x replicas."""
    num_ranks = schedule.num_ranks
    _require_multiple("world_size", model.world_size, "the schedule's ranks", num_ranks, schedule.name)
    return model.mesh(pp=num_ranks, dp=model.world_size // num_ranks)


def _batches(
    model: Model, name: str, num_microbatches: int, mesh: Mesh, microbatch_size: int | None
) -> list[Sequence[int]]:
    """Return the samples of each of the schedule's microbatches, for this rank's replica."""
    num_replicas, total = mesh.size("dp"), model.global_batch_size
    _require_multiple("global_batch_size", total, "replicas x microbatches", num_replicas * num_microbatches, name)
    size = total // num_replicas // num_microbatches
    if microbatch_size not in (None, size):
        raise StrategyError(
            f"microbatch_size ({microbatch_size}) must be {size} for {name}: {num_replicas} replicas of "
            f"{num_microbatches} microbatches make up the batch of {total}; leave it None"
        )
    first = mesh.coord("dp") * num_microbatches
    return [span((first + i) * size, (first + i + 1) * size) for i in range(num_microbatches)]


def _require_multiple(what: str, value: int, of: str, divisor: int, name: str) -> None:
    """Raise a StrategyError unless `value` is a multiple of `divisor`."""
    if value % divisor:
        nearest = " or ".join(str(use) for use in (value - value % divisor, value - value % divisor + divisor) if use)
        raise StrategyError(f"{what} ({value}) must be a multiple of {of} ({divisor}) for {name}; use {nearest}")


class _Rank:
    """One rank of a pipeline: it runs its actions in order, and receives and sends what they need and make."""

    def __init__(
        self,
        model: Model,
        schedule: Schedule,
        mesh: Mesh,
        batches: list[Sequence[int]],
        stages: Sequence[range],
        replica: _Replica,
    ) -> None:
        self.model = model
        self.schedule = schedule
        self.mesh = mesh
        self.here = mesh.coord("pp")
        self.batches = batches
        self.stages = stages
        self.replica = replica
        self.receives: dict[tuple[str, int, int], Launched[Any]] = {}  # by tag
        self.sends: dict[int, Launched[Any]] = {}  # the last one to each place

    async def run(self) -> None:
        """Train one step."""
        steps = {"F": self.forward, "B": self.backward, "I": self.backward_input, "W": self.backward_weight}
        order, placement = self.schedule.orders[self.here], self.schedule.placement
        stages = [stage for stage, place in placement.items() if place == self.here]
        layers = [layer for stage in stages for layer in self.layers(stage)]
        for layer in layers:
            self.replica.load(layer)
        self.post(order[0])
        for action, following in zip_longest(order, order[1:]):
            if following:
                self.post(following)
            await steps[action.kind](action.stage, action.microbatch)
        for send in self.sends.values():
            await send
        await self.replica.finish_reduction()
        for layer in layers:
            await self.replica.update(layer)

    def layers(self, stage: int) -> range:
        """Return the layers of a stage."""
        return self.stages[stage]

    async def forward(self, stage: int, i: int) -> None:
        """Take microbatch i through a stage."""
        model, activations, layers = self.model, self.model.activations, self.layers(stage)
        if stage == 0:
            activations[0, i] = model.get_input_activation(self.batches[i])
        elif ("F", stage, i) in self.receives:
            activations[layers[0], i] = await self.receives.pop(("F", stage, i))
        for layer in layers:
            weight = await self.replica.whole(layer)
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weight)
            self.replica.drop_whole()
        dest = self.elsewhere(stage + 1)
        if dest is not None:
            await self.send(dest, activations.pop((layers.stop, i)), ("F", stage + 1, i))

    async def backward(self, stage: int, i: int) -> None:
        """Take the gradient of microbatch i back through a stage."""
        model, activations, grad_activations = self.model, self.model.activations, self.model.grad_activations
        await self.take_gradient(stage, i)
        for layer in reversed(self.layers(stage)):
            weight = await self.replica.whole(layer)
            model.grad_weights["new"], grad_activations[layer - 1, i] = model.backward(
                layer, activations[layer, i], grad_activations[layer, i], weight
            )
            self.replica.drop_whole()
            del activations[layer, i], grad_activations[layer, i]
            await self.replica.collect(layer)
        await self.pass_gradient(stage, i)

    async def backward_input(self, stage: int, i: int) -> None:
        """Take the gradient of microbatch i back to a stage's input alone, and send it on at once."""
        model, activations, grad_activations = self.model, self.model.activations, self.model.grad_activations
        await self.take_gradient(stage, i)
        for layer in reversed(self.layers(stage)):
            weight = await self.replica.whole(layer)
            grad_activations[layer - 1, i] = model.backward_input(
                layer, activations[layer, i], grad_activations[layer, i], weight
            )
            self.replica.drop_whole()
        await self.pass_gradient(stage, i)

    async def backward_weight(self, stage: int, i: int) -> None:
        """Compute the weight gradients that `backward_input` left out, and free the tensors that were kept for them."""
        model, activations, grad_activations = self.model, self.model.activations, self.model.grad_activations
        for layer in reversed(self.layers(stage)):
            model.grad_weights["new"] = model.backward_weight(layer, activations[layer, i], grad_activations[layer, i])
            del activations[layer, i], grad_activations[layer, i]
            await self.replica.collect(layer)

    async def take_gradient(self, stage: int, i: int) -> None:
        """Store the gradient of a stage's output, of the loss or from the next rank.

        If the next stage is on this rank, the gradient is stored already.
        """
        model, last = self.model, self.layers(stage)[-1]
        if last == model.num_layers - 1:
            model.grad_activations[last, i] = model.loss(model.activations.pop((last + 1, i)))
        elif ("B", stage, i) in self.receives:
            model.grad_activations[last, i] = await self.receives.pop(("B", stage, i))

    async def pass_gradient(self, stage: int, i: int) -> None:
        """Pass the gradient of a stage's input to the stage before; that of the model's input is dropped."""
        key = (self.layers(stage)[0] - 1, i)
        dest = self.elsewhere(stage - 1)
        if dest is not None:
            await self.send(dest, self.model.grad_activations.pop(key), ("B", stage - 1, i))
        elif stage == 0:
            del self.model.grad_activations[key]

    def elsewhere(self, stage: int) -> int | None:
        """Return the place of a stage in the pipeline, or None where there is no such stage or it is on this rank."""
        place = self.schedule.placement.get(stage, self.here)
        return None if place == self.here else place

    def rank_at(self, place: int) -> int:
        """Return the rank at a place of this rank's pipeline."""
        return cast(int, self.mesh.peer("pp", place - self.here))

    def post(self, action: Action) -> None:
        """Launch the receive of what an action needs from another rank."""
        if action.kind == "W":
            return
        tag = ("F" if action.kind == "F" else "B", action.stage, action.microbatch)
        source = self.elsewhere(action.stage + (-1 if action.kind == "F" else 1))
        if source is not None:
            self.receives[tag] = self.model.launch(self.model.receive(self.rank_at(source), tag=tag))

    async def send(self, place: int, tensor: object, tag: tuple[str, int, int]) -> None:
        """Launch a send, once the one before it to the same rank is done: one message in flight a direction."""
        if place in self.sends:
            await self.sends.pop(place)
        self.sends[place] = self.model.launch(self.model.send(self.rank_at(place), tensor, tag=tag))


class _Replica:
    """A rank's part in data parallelism: which shards it holds, and what it exchanges with its replicas."""

    def __init__(self, model: Model, mesh: Mesh, zero: int) -> None:
        self.model = model
        self.group = mesh.group("dp")
        self.zero = zero if self.group.size > 1 else 0
        self.reduction: tuple[int, Launched[Any]] | None = None

    def load(self, layer: int) -> None:
        """Load what this rank holds of a layer: its shard (ZeRO-3), or the whole weight."""
        model, index, size = self.model, self.group.index, self.group.size
        if self.zero == 3:
            model.weights[layer], model.opt_states[layer] = model.load_weights(layer, index, size)
            return
        model.weights[layer], opt_state = model.load_weights(layer)
        model.opt_states[layer] = opt_state.shard(index, size) if self.zero else opt_state

    async def whole(self, layer: int) -> Weight:
        """Return a layer's whole weight, gathered where it is in shards."""
        model = self.model
        if self.zero < 3:
            return model.weights[layer]
        model.weights["whole"] = await model.all_gather(model.weights[layer], layer, group=self.group)
        return model.weights["whole"]

    def drop_whole(self) -> None:
        """Free a gathered weight."""
        self.model.weights.pop("whole", None)

    async def collect(self, layer: int) -> None:
        """Add the new gradient of a layer to its total; in shards (ZeRO-2 and 3) once its sum is there."""
        model = self.model
        if self.zero < 2:
            self.accumulate(layer, model.grad_weights.pop("new"))
            return
        await self.finish_reduction()
        operation = model.reduce_scatter(model.grad_weights.pop("new"), layer, group=self.group)
        self.reduction = layer, model.launch(operation)

    async def finish_reduction(self) -> None:
        """Add the shard of the gradient that is being reduced, if there is one."""
        if self.reduction is not None:
            (layer, work), self.reduction = self.reduction, None
            self.accumulate(layer, await work)

    def accumulate(self, layer: int, grad: WeightGrad) -> None:
        """Add a gradient to a layer's total in place: the first one becomes the total."""
        total = self.model.grad_weights.get(layer)
        self.model.grad_weights[layer] = grad if total is None else total + grad

    async def update(self, layer: int) -> None:
        """Sum the gradient of a layer over the replicas where that is still to do, and take the optimizer's step."""
        model, group, grad_weights = self.model, self.group, self.model.grad_weights
        if self.zero == 1:
            grad_weights[layer] = await model.reduce_scatter(grad_weights[layer], layer, group=group)
        elif self.zero == 0 and group.size > 1:
            grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=group)
        weight = model.weights[layer]
        if self.zero in (1, 2):
            weight = weight.shard(group.index, group.size)
        model.weights[layer], model.opt_states[layer] = model.update(
            layer, grad_weights[layer], weight, model.opt_states[layer]
        )
        del grad_weights[layer]
        if self.zero in (1, 2):
            model.weights[layer] = await model.all_gather(model.weights[layer], layer, group=group)
        model.set_final_weight(layer, model.weights[layer])
