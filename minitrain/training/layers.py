"""What a rank computes in a real process: forward by torch functions, backward by autograd, layer by layer.

A layer is a function of its flat weight and its input. Forward keeps what autograd saves for backward (`Kept`), but
never the weight: backward gets the weight that the strategy gives it, so that ZeRO-3 may drop and gather it again. What
is kept belongs to the layer's input, as the memory that is counted for it does: it goes when the input goes.

Moments and master weights are the optimizer's state, element by element, so that a step on shards gives the shards of
the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.optim.adam import adam

from minitrain.engine.observers import Computed
from minitrain.engine.placed_passes import mode_of
from minitrain.errors import LawError, UsageError
from minitrain.proof.arithmetic import Adafactor, Averaged, Momentum, Muon, Optimizer
from minitrain.proof.units import WHOLE, Part
from minitrain.tensors import WeightGrad
from minitrain.tensors.index_sets import WHOLE_SEQUENCE, SequencePart
from minitrain.tensors.kinds import LocalWeight
from minitrain.training.contents import Compressing, Flat, Interval, Positions, Rows, key_of, part_of, pieces_of

Carried = Mapping[int | str, tuple[Flat, Flat]]
"""Weight and optimizer state by layer, or by the name of a part: what a rank hands on from one step to the next."""

Layer = Callable[[torch.Tensor, torch.Tensor, Positions], torch.Tensor]
"""A layer: its flat weight and its input, at some positions of the sequence, to its output."""

Function = Callable[..., Any]
"""What is computed of a flat weight and tensors: a tensor, or several, of which some may be None."""


class Datatypes(NamedTuple):
    """The datatypes of a rank's tensors.

    Args:
        compute: of weights, activations and their gradients.
        gradients: of the gradients of weights, which are summed in it.
        master: of the optimizer's moments, and of a copy of the weights beside them where that is not `compute`.
    """

    compute: torch.dtype
    gradients: torch.dtype
    master: torch.dtype

    @property
    def has_masters(self) -> bool:
        """Whether the optimizer's state has a copy of the weights, before its moments."""
        return self.master != self.compute


class Net(Protocol):
    """What is trained: layers, data and a loss; samples are numbers of the step's batch, in ascending order.

    Attributes:
        layers: in their order.
        optimizer: takes the step.
        dtypes: of what is held and sent.
        device: where the rank computes.
    """

    layers: Sequence[Layer]
    optimizer: Optimizer | Averaged
    dtypes: Datatypes
    device: torch.device

    def optimizer_of(self, layer: int) -> Any:
        """Return what takes the step of a layer, which knows its matrices."""

    def size(self, layer: int, part: Part) -> int:
        """Return the number of elements of a part of a layer's weight."""

    def num_frozen(self, layer: int, part: Part) -> int:
        """Return how many of these elements, the first, are not trained."""

    def has_backward(self, layer: int) -> bool:
        """Return whether something is trained in a layer or before it."""

    def initial_weight(self, layer: int, part: Part) -> torch.Tensor:
        """Return a part of the weight of a layer before the first step, flat."""

    def positions(self, sequence: SequencePart) -> Positions:
        """Return the positions of a part of the sequence."""

    def where(self, symbol: Any, positions: Positions) -> Positions:
        """Return the positions of a tensor's tokens as layers are given them."""

    def shape(self, layer: int, num_samples: int, positions: Positions) -> tuple[int, ...]:
        """Return the shape of a layer's input; of the model's output for the number of layers."""

    def inputs(self, samples: Sequence[int], positions: Positions, global_batch_size: int, step: int) -> torch.Tensor:
        """Return the model's input for some samples, at some positions."""

    def loss(self, output: Rows, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return these samples' and positions' share of the mean loss of the batch."""


class _Given(torch.autograd.Function):
    """Where the graph of a layer begins: a tensor that its graph does not keep alive."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Return the tensor."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None]:  # noqa: ARG004  (taken here)
        """Give no gradient on: it is taken here."""
        return None, None


_TOKEN = torch.zeros((), requires_grad=True)  # lets the output of `_Given` have a gradient


class _Saved:
    """What autograd has saved, but for the weight: the graph holds it, and it holds nothing of the graph.

    Attributes:
        tensors: in the order in which they were saved.
        weight: that backward was given, while it goes on.
    """

    __slots__ = ("tensors", "weight")

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.weight: torch.Tensor | None = None

    def keeping(self, weight: torch.Tensor) -> Callable[[torch.Tensor], Any]:
        """Return what keeps a saved tensor; of the weight, only which part of it."""
        place, start, tensors = weight.untyped_storage().data_ptr(), weight.storage_offset(), self.tensors
        device = weight.device  # what is returned must not hold the weight

        def keep(tensor: torch.Tensor) -> Any:
            if tensor.untyped_storage().data_ptr() == place:
                return tensor.shape, tensor.stride(), tensor.storage_offset() - start
            if tensor.device != device:  # torch's own, such as a seed on the host
                return tensor.detach()
            tensors.append(tensor.detach())
            return len(tensors) - 1

        return keep

    def found(self, what: Any) -> torch.Tensor:
        """Return a saved tensor, or a part of the weight that backward was given."""
        weight = self.weight
        if isinstance(what, torch.Tensor):
            return what
        if isinstance(what, int):
            return self.tensors[what] if weight is None else self.tensors[what].to(weight.device)
        shape, stride, offset = what
        assert weight is not None  # `backward` has set it
        return weight.as_strided(shape, stride, offset + weight.storage_offset())


class Kept:
    """What a layer, or a step of one, keeps for backward: its graph, and what autograd has saved but for the weight.

    Args:
        num_frozen: elements of the weight, the first, that have no gradient.
    """

    __slots__ = ("_given", "_num_frozen", "_outputs", "_saved")

    def __init__(self, num_frozen: int = 0) -> None:
        self._saved, self._num_frozen = _Saved(), num_frozen

    def forward(self, function: Function, weight: torch.Tensor, *inputs: torch.Tensor) -> Any:
        """Compute, and keep what backward needs.

        Args:
            function: what is computed of weight and inputs; of a weight in two, where some of it is frozen.
            weight: flat.
            inputs: of which integers have no gradients.
        """
        num_frozen = self._num_frozen
        own = weight[num_frozen:] if num_frozen else weight
        seen = [_Given.apply(_TOKEN, each) if each.is_floating_point() else each for each in (own, *inputs)]
        with saved_tensors_hooks(self._saved.keeping(weight), self._saved.found):
            found = function((weight[:num_frozen], seen[0]) if num_frozen else seen[0], *seen[1:])
        outputs = found if isinstance(found, tuple) else (found,)
        self._given = [_edge_of(each) for each in seen]
        self._outputs = [_edge_of(each) for each in outputs]
        made = tuple(None if each is None else each.detach() for each in outputs)
        return made if isinstance(found, tuple) else made[0]

    def backward(self, weight: torch.Tensor | None, grads: Sequence[Any], *wanted: int) -> list[Any]:
        """Return the gradients of the weight (0) and the inputs (1 ...), as wanted; None where there is none.

        The second half of a split backward takes the weight of the first, which is kept until then.

        Args:
            weight: flat; None for that of the first half.
            grads: those of the outputs.
            wanted: which gradients.

        Raises:
            UsageError: there is no weight.
        """
        saved = self._saved
        saved.weight = weight if weight is not None else saved.weight
        if saved.weight is None:
            raise UsageError("backward_weight before backward_input needs the weight; give it as the last argument")
        ends = [(edge, grad) for edge, grad in zip(self._outputs, grads, strict=True) if edge is not None]
        starts = [(place, self._given[place]) for place in wanted if self._given[place] is not None]
        found: dict[int, Any] = {}
        if ends and starts:
            edges, of_edges = zip(*ends, strict=True)
            given = [edge for _, edge in starts]
            gradients = torch.autograd.grad(edges, given, of_edges, retain_graph=True, allow_unused=True)
            found = {place: grad for (place, _), grad in zip(starts, gradients, strict=True)}
        if wanted != (1,):
            saved.weight = None
        return [found.get(place) for place in wanted]

    def move(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Keep the same elsewhere."""
        tensors = self._saved.tensors
        tensors[:] = map(move, tensors)


def _edge_of(tensor: torch.Tensor | None) -> Any:
    """Return where a tensor is in its graph, None where it has no gradient."""
    return None if tensor is None or not tensor.requires_grad else get_gradient_edge(tensor)


class Arithmetic(Compressing):
    """What one rank computes: a method for each operation, from the contents of its tensors to those of its results.

    Args:
        net: what is trained.
        global_batch_size: samples of a step.

    Attributes:
        step: number of the step, 0 for the first.
        loss_value: the rank's share of the step's loss so far.
        carried: weight and optimizer state by layer, of the step before; the initial ones where there is none.
        states: optimizer state after the update of each layer.
        momenta: of the outer optimizer, by layer, where replicas take steps of their own.
        locals: the replica's own weights by layer, with which it goes on in the next round.
        memories: what is kept to compress gradients, by layer.
    """

    def __init__(self, net: Net, global_batch_size: int) -> None:
        self.net, self.global_batch_size = net, global_batch_size
        self.momenta: dict[int, Flat] = {}
        self.locals: dict[int, Flat] = {}
        self.memories, self.shapes = {}, {}
        self.begin(0, {})

    def begin(self, step: int, carried: Carried) -> None:
        """Begin a step."""
        self.step, self.carried = step, carried
        self.loss_value: Any = 0.0
        self.states: dict[int | str, Flat] = {}

    def load_weights(self, done: Computed) -> tuple[Flat, Flat]:
        """Return a shard of a layer or of a part of it, and its optimizer state: those of the step before.

        Raises:
            LawError: the step before has handed in less.
            UsageError: the step before was of other parts.
        """
        made, net = done.made[0], self.net
        shard, key, part = min(made.shards), key_of(made), part_of(made)
        if key in self.carried:
            carried, waiting = cut_again(*self.carried[key], shard, made.num_shards)
            return carried, waiting.with_values(waiting.values.to(net.device))  # it may have waited on the host
        if self.step and (key != done.layer or any(str(each).startswith(f"{key}part") for each in self.carried)):
            raise UsageError(
                f"the state that is carried on has no layer {key}, which rank {done.model._rank} loads; go on with the "
                "parts that the state is of",
                layer=done.layer,
            )
        if self.step:
            raise LawError(f"{HANDS_IN_LESS}: no layer {done.layer} on rank {done.model._rank}; hand in what is loaded")
        initial = net.initial_weight(done.layer, part).to(net.device, net.dtypes.master)
        weight = Flat.whole(initial, regions_of(net, made)).shard(shard, made.num_shards)
        trained = self._trained(made, weight)
        state = weight.values.new_zeros(num_states(net), trained.values.numel())
        if net.dtypes.has_masters:
            state[0] = trained.values
        if isinstance(net.optimizer, Averaged):
            state[-1] = trained.values
        values = weight.values.to(net.dtypes.compute, copy=made.num_shards == 1)
        return weight.with_values(values), trained.with_values(state)

    def get_input_activation(self, done: Computed) -> Rows:
        """Return the model's input for some samples, and some part of their sequence."""
        positions = self.net.positions(getattr(done.made, "sequence", WHOLE_SEQUENCE))
        where = self.net.where(done.made, positions)
        return Rows(self.net.inputs(sorted(done.made.samples), where, self.global_batch_size, self.step), positions)

    def forward(self, done: Computed, x: Any, weight: Flat) -> Any:
        """Take an activation through a layer; keep nothing but its input where all is to be computed again."""
        is_repeated = mode_of(done.named.get("recompute") or done.model._recompute).recompute == "full"
        if self.net.has_backward(done.layer) and not is_repeated:
            return self._forward(done, x, weight)[0]
        x.kept = None
        with torch.no_grad():
            where = self.net.where(done.inp, x.positions)
            return Rows(self.net.layers[done.layer](weight.values, x.values, where), x.positions)

    def _forward(self, done: Computed, x: Rows, weight: Flat) -> tuple[Rows, Kept]:
        """Take an activation through a layer, and return what is kept too."""
        x.kept = kept = Kept(self.net.num_frozen(done.layer, WHOLE))
        layer, where = self.net.layers[done.layer], self.net.where(done.inp, x.positions)
        made = kept.forward(lambda own, seen: layer(own, seen, where), weight.values, x.values)
        return Rows(made, x.positions), kept

    def loss(self, done: Computed, output: Any) -> Any:
        """Return the gradient of the loss, whose value is added up."""
        where = self.net.where(done.made, output.positions)
        seen = Rows(output.values.detach().requires_grad_(), where)
        value = self.net.loss(seen, sorted(done.made.samples), self.global_batch_size, self.step)
        self.loss_value += value.detach().double()  # a GPU need not be waited for
        return Rows(torch.autograd.grad(value, seen.values)[0], output.positions)

    def backward(self, done: Computed, x: Any, grad: Any, weight: Flat) -> tuple[Flat, Any]:
        """Return the gradients of weight and input."""
        if not self.net.has_backward(done.layer):
            return self._gradient(done, None), nothing_of(done, x)
        of_weight, of_input = self._kept(done, x, weight).backward(weight.values, [grad.values], 0, 1)
        x.kept = None
        return self._gradient(done, of_weight), Rows(_NOTHING if of_input is None else of_input, grad.positions)

    def backward_input(self, done: Computed, x: Any, grad: Any, weight: Flat) -> Any:
        """Return the gradient of the input alone."""
        if not self.net.has_backward(done.layer):
            return nothing_of(done, x)
        (found,) = self._kept(done, x, weight).backward(weight.values, [grad.values], 1)
        return Rows(_NOTHING if found is None else found, grad.positions)

    def backward_weight(self, done: Computed, x: Any, grad: Any, weight: Flat | None = None) -> Flat:
        """Return the gradient of the weight alone."""
        if not self.net.has_backward(done.layer):
            return self._gradient(done, None)
        values = None if weight is None else weight.values
        return self._gradient(done, self._kept(done, x, weight).backward(values, [grad.values], 0)[0])

    def _gradient(self, done: Computed, values: torch.Tensor | None) -> Flat:
        """Return the gradient of what is trained of a weight, in the datatype in which gradients are summed."""
        made = done.made if isinstance(done.made, WeightGrad) else done.made[0]
        regions, net = regions_of(self.net, made, trained=True), self.net
        if values is None:  # nothing has reached it
            values = torch.zeros(sum(last - first for first, last in regions), device=net.device)
        return Flat.whole(values.to(net.dtypes.gradients), regions)

    def _gradient_at(self, done: Computed) -> Flat:
        """Return a gradient of zero for the shards that are held."""
        made, net = done.made[0], self.net
        regions = regions_of(net, made, trained=True)
        pieces = pieces_of(made.shards, made.num_shards, regions)
        size = sum(last - first for first, last in pieces)
        return Flat(torch.zeros(size, dtype=net.dtypes.gradients, device=net.device), pieces, regions)

    def _kept(self, done: Computed, x: Any, weight: Flat | None) -> Any:
        """Return what was kept for a backward; computed again from the input where nothing was."""
        if x.kept is None:
            if weight is None:
                raise UsageError(f"nothing was kept for {done.op} of layer {done.layer}; give it the weight")
            return self._forward(done, x, weight)[1]
        return x.kept

    def update(self, done: Computed, grad: Flat, weight: Flat, state: Flat) -> tuple[Flat, Flat]:
        """Take the optimizer's step; the new numbers take the place of the old ones."""
        made, net = done.made[0], self.net
        if made.__class__ is LocalWeight and done.model._semantics.delay:  # the older weights are still needed
            weight = weight.with_values(weight.values.clone())
        trained = self._trained(made, weight)
        values, own = state.at(trained.pieces), trained.values
        master, moments = (values[0], values[1:]) if net.dtypes.has_masters else (own, values)
        found = grad.settled().at(trained.pieces).to(net.dtypes.master)
        count = self.step + made.step
        if done.model._semantics is not None:  # the mean gradient of the samples of one of several steps
            found = found * (self.global_batch_size / len(done.given[1].samples))
            count = self.step * done.model._semantics.steps + made.step
        take_step(net.optimizer_of(done.layer), master, found, moments, count)
        if net.dtypes.has_masters:
            own.copy_(master)
        self.states[key_of(made)] = after = trained.with_values(values)
        return weight, after

    def _trained(self, tensor: Any, weight: Flat) -> Flat:
        """Return the elements of a weight that are trained, without copying: its last."""
        regions = regions_of(self.net, tensor, trained=True)
        pieces = pieces_of(tensor.shards, tensor.num_shards, regions)
        count = sum(last - first for first, last in pieces)
        return Flat(weight.values[weight.values.numel() - count :], pieces, regions)

    def table_gradient(self, done: Computed, grad: Flat) -> Flat:
        """Return the gradient of the table that embedding and head share, with a row for each token."""
        first, shape = self.net.units[done.layer].table(Part(0, done.made.num_parts).degrees)  # type: ignore[attr-defined]  # a transformer's
        values = grad.settled().values[first : first + prod(shape)].view(shape)
        return Flat.whole((values if done.layer == 0 else values.mT).reshape(-1).clone())

    def with_table(self, done: Computed, grad: Flat, table: Flat) -> Flat:
        """Return a gradient with that of the table by both uses, in its place."""
        first, shape = self.net.units[done.layer].table(Part(0, done.made.num_parts).degrees)  # type: ignore[attr-defined]  # as above
        rows = table.values.view(shape if done.layer == 0 else shape[::-1])
        grad.values[first : first + prod(shape)] = (rows if done.layer == 0 else rows.mT).reshape(-1)
        return grad

    def local_copy(self, done: Computed, weight: Flat) -> Flat:
        """Return a copy, which the replica's own steps change; its own weight if it has kept that."""
        kept = self.locals.pop(done.layer, None)
        return weight.with_values(weight.values.clone()) if kept is None else kept

    def load_outer_state(self, done: Computed, weight: Flat) -> Flat:
        """Return the momentum of the common weight, as the meeting before has left it."""
        trained, found = self._trained(done.made, weight), self.momenta.get(done.layer)
        return trained.with_values(torch.zeros_like(trained.values)) if found is None else found

    def outer_gradient(self, done: Computed, weight: Flat, local: Flat) -> Flat:
        """Return the replica's share of the mean difference."""
        common, own = (self._trained(done.made, each) for each in (weight, local))
        return common.with_values((common.values - own.values) / done.model._semantics.replicas)

    def outer_update(self, done: Computed, grad: Flat, weight: Flat, momentum: Flat | None = None) -> Any:
        """Take the declared outer optimizer's step; the new numbers take the place of the old ones."""
        outer = done.model._semantics.outer
        trained = self._trained(done.given[2], weight)
        found = grad.settled().at(trained.pieces)
        if momentum is None:
            trained.values.add_(found, alpha=-outer.rate)
            return weight
        momentum.values.mul_(outer.decay).add_(found)
        trained.values.add_(found + outer.decay * momentum.values, alpha=-outer.rate)
        self.momenta[done.layer] = momentum
        return weight, momentum

    def mix(self, done: Computed, weight: Flat, local: Flat) -> Flat:
        """Return the declared mixture; the new numbers take the place of the replica's own."""
        local.values.mul_(done.model._semantics.mixing).add_(weight.values, alpha=1 - done.model._semantics.mixing)
        return local


_NOTHING = torch.zeros(())  # the gradient of tokens' numbers


def regions_of(net: Net, tensor: Any, *, trained: bool = False) -> list[Interval]:
    """Return what of a weight, its gradient or its state is cut into shards by itself.

    Args:
        net: what is trained.
        tensor: the weight, or its gradient or state.
        trained: whether elements that are frozen are left out, as gradients and states do.
    """
    part = part_of(tensor)
    size, frozen = net.size(tensor.layer, part), net.num_frozen(tensor.layer, part)
    found = [(0, frozen), (frozen, size)] if frozen else [(0, size)]
    return found[-1:] if trained else found


def nothing_of(done: Computed, x: Rows) -> Rows:
    """Return the gradient of an input below which nothing is trained: zeros, which take no memory."""
    nothing = torch.zeros((), device=x.values.device)
    return Rows(nothing.expand(x.values.shape) if done.layer else _NOTHING, x.positions)


def num_states(net: Net) -> int:
    """Return how many numbers the optimizer has of each element of a weight."""
    return net.optimizer.num_moments + net.dtypes.has_masters


def wide(values: torch.Tensor) -> torch.Tensor:
    """Return numbers of 16 bits in single precision, where exponentials are summed; others as they are."""
    return values.float() if values.dtype.itemsize < 4 else values


HANDS_IN_LESS = (
    "a step begins with what the step before has handed in by set_final_weight, and this strategy hands in less than "
    "it loads"
)


def cut_again(weight: Flat, state: Flat, shard: int, num_shards: int) -> tuple[Flat, Flat]:
    """Return a shard of what the step before has handed on.

    ZeRO-1 and ZeRO-2 load the whole state and cut it: what a rank holds of it is all that it needs.

    Raises:
        LawError: the step before has handed on less.
    """
    try:
        found = weight.shard(shard, num_shards)
    except ValueError as error:
        raise LawError(f"{HANDS_IN_LESS}: {error}; hand in what is loaded") from None
    return found, state if state.pieces != weight.pieces or num_shards == 1 else state.shard(shard, num_shards)


def take_step(
    optimizer: Optimizer | Averaged, weight: torch.Tensor, grad: torch.Tensor, state: torch.Tensor, count: int
) -> None:
    """Take an optimizer's step in place, as `minitrain.proof.arithmetic` has it.

    Args:
        optimizer: which.
        weight: flat.
        grad: its gradient.
        state: moments x elements.
        count: which step it is, 1 for the first.
    """
    if isinstance(optimizer, Averaged):
        take_step(optimizer.of, weight, grad, state[:-1], count)
        state[-1].lerp_(weight, 1 - optimizer.decay)
        return
    if isinstance(optimizer, Muon):
        adam_of = optimizer.adam
        optimizer.move(
            weight, grad, state, lambda here: take_step(adam_of, weight[here], grad[here], state[:, here], count)
        )
        return
    if isinstance(optimizer, Adafactor):
        optimizer.move(weight, grad, state[0], count)
        return
    if isinstance(optimizer, Momentum):
        state[0].mul_(optimizer.decay).add_(grad)
        weight.add_(state[0], alpha=-optimizer.rate)
        return
    adam(
        [weight], [grad], [state[0]], [state[1]], [], [torch.full((), float(count - 1), device=weight.device)],
        fused=True, amsgrad=False, beta1=optimizer.beta1, beta2=optimizer.beta2, lr=optimizer.rate, weight_decay=0.0,
        eps=optimizer.epsilon, maximize=False,
    )  # fmt: skip
