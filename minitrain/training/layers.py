"""What a rank computes in a real process: forward by torch functions, backward by autograd, layer by layer.

A layer is a function of its flat weight and its input. Forward keeps what autograd saves for backward (`Kept`), but
never the weight: backward gets the weight that the strategy gives it, so that ZeRO-3 may drop and gather it again. What
is kept belongs to the layer's input, as the memory that is counted for it does: it goes when the input goes.

Moments and master weights are the optimizer's state, element by element, so that a step on shards gives the shards of
the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.optim.adam import adam

from minitrain.engine.executors import Computed
from minitrain.engine.kept_for_backward import mode_of
from minitrain.errors import LawError, UsageError
from minitrain.proof.arithmetic import Adam, Momentum
from minitrain.training.contents import Flat, Rows

Carried = Mapping[int | str, tuple[Flat, Flat]]
"""Weight and optimizer state by layer, or by the name of a part: what a rank hands on from one step to the next."""

Layer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A layer: its flat weight and its input to its output."""


class Net(Protocol):
    """What is trained: layers, data and a loss; samples are numbers of the step's batch, in ascending order."""

    @property
    def layers(self) -> Sequence[Layer]:
        """The layers."""
        ...

    @property
    def optimizer(self) -> Adam | Momentum:
        """What takes the step."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The datatype of weights, activations and gradients."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the rank computes."""
        ...

    def size(self, layer: int) -> int:
        """Return the number of elements of a layer's weight."""
        ...

    def initial_weight(self, layer: int) -> torch.Tensor:
        """Return the weight of a layer before the first step, flat."""
        ...

    def shape(self, layer: int, num_samples: int) -> tuple[int, ...]:
        """Return the shape of a layer's input; of the model's output for the number of layers."""
        ...

    def inputs(self, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return the model's input for some samples."""
        ...

    def loss(self, output: torch.Tensor, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return these samples' share of the mean loss of the batch."""
        ...


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

        def keep(tensor: torch.Tensor) -> Any:
            if tensor.untyped_storage().data_ptr() == place:
                return tensor.shape, tensor.stride(), tensor.storage_offset() - start
            tensors.append(tensor.detach())
            return len(tensors) - 1

        return keep

    def found(self, what: Any) -> torch.Tensor:
        """Return a saved tensor, or a part of the weight that backward was given."""
        weight = self.weight
        if isinstance(what, int):
            return self.tensors[what] if weight is None else self.tensors[what].to(weight.device)
        shape, stride, offset = what
        assert weight is not None  # `backward` has set it
        return weight.as_strided(shape, stride, offset + weight.storage_offset())


@final
class Kept:
    """What a layer keeps for its backward: the graph, and what autograd has saved, but for the weight."""

    __slots__ = ("_given", "_output", "_saved")

    def __init__(self) -> None:
        self._saved = _Saved()

    def forward(self, layer: Layer, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Take an input through a layer, and keep what its backward needs.

        Args:
            layer: what it computes.
            weight: flat.
            x: the input.
        """
        own, seen = _Given.apply(_TOKEN, weight), _Given.apply(_TOKEN, x) if x.is_floating_point() else x
        with saved_tensors_hooks(self._saved.keeping(weight), self._saved.found):
            output = layer(own, seen)
        self._given = [get_gradient_edge(own)] + ([get_gradient_edge(seen)] if seen is not x else [])
        self._output = get_gradient_edge(output)
        return output.detach()

    def backward(self, weight: torch.Tensor | None, grad: torch.Tensor, *wanted: int) -> list[torch.Tensor]:
        """Return the gradients of the weight (0) and the input (1), as wanted; integers as inputs have none.

        The second half of a split backward takes the weight of the first, which is kept until then.

        Args:
            weight: flat; None for that of the first half.
            grad: that of the output.
            wanted: which gradients.

        Raises:
            UsageError: there is no weight.
        """
        saved = self._saved
        saved.weight = weight if weight is not None else saved.weight
        if saved.weight is None:
            raise UsageError("backward_weight before backward_input needs the weight; give it as the last argument")
        edges = [self._given[place] for place in wanted if place < len(self._given)]
        found = list(torch.autograd.grad([self._output], edges, [grad], retain_graph=True)) if edges else []
        if wanted != (1,):
            saved.weight = None
        return found

    def move(self, place: Any) -> None:
        """Keep the same on another device."""
        tensors = self._saved.tensors
        tensors[:] = [tensor.to(place) for tensor in tensors]


@final
class Arithmetic:
    """What one rank computes: a method for each operation, from the contents of its tensors to those of its results.

    Args:
        net: what is trained.
        global_batch_size: samples of a step.

    Attributes:
        step: number of the step, 0 for the first.
        loss_value: the rank's share of the step's loss so far.
        carried: weight and optimizer state by layer, of the step before; the initial ones where there is none.
        states: optimizer state after the update of each layer.
    """

    def __init__(self, net: Net, global_batch_size: int) -> None:
        self.net, self.global_batch_size = net, global_batch_size
        self.begin(0, {})

    def begin(self, step: int, carried: Carried) -> None:
        """Begin a step."""
        self.step, self.carried = step, carried
        self.loss_value = 0.0
        self.states: dict[int | str, Flat] = {}

    def load_weights(self, done: Computed) -> tuple[Flat, Flat]:
        """Return a shard of a layer's weight, and its optimizer state: those of the step before."""
        (shard,), num_shards = done.made[0].shards, done.made[0].num_shards
        if done.layer in self.carried:
            return cut_again(*self.carried[done.layer], shard, num_shards)
        weight = Flat.whole(self.net.initial_weight(done.layer).to(self.net.device, self.net.dtype))
        weight = weight.shard(shard, num_shards)
        values = weight.values.clone() if num_shards == 1 else weight.values
        moments = values.new_zeros(self.net.optimizer.num_moments, values.numel())
        return Flat(values, weight.pieces, weight.size), Flat(moments, weight.pieces, weight.size)

    def get_input_activation(self, done: Computed) -> Rows:
        """Return the model's input for some samples."""
        return Rows(self.net.inputs(sorted(done.made.samples), self.global_batch_size, self.step))

    def forward(self, done: Computed, x: Rows, weight: Flat) -> Rows:
        """Take an activation through a layer; keep nothing but its input where all is to be computed again."""
        if mode_of(done.named.get("recompute") or done.model._recompute).recompute != "full":
            return self._forward(done.layer, x, weight)
        x.kept = None
        with torch.no_grad():
            return Rows(self.net.layers[done.layer](weight.values, x.values))

    def _forward(self, layer: int, x: Rows, weight: Flat) -> Rows:
        x.kept = kept = Kept()
        return Rows(kept.forward(self.net.layers[layer], weight.values, x.values))

    def loss(self, done: Computed, output: Rows) -> Rows:
        """Return the gradient of the loss, whose value is added up."""
        seen = output.values.detach().requires_grad_()
        value = self.net.loss(seen, sorted(done.made.samples), self.global_batch_size, self.step)
        self.loss_value += value.item()
        return Rows(torch.autograd.grad(value, seen)[0])

    def backward(self, done: Computed, x: Rows, grad: Rows, weight: Flat) -> tuple[Flat, Rows]:
        """Return the gradients of weight and input."""
        of_weight, *of_input = self._kept(done, x, weight).backward(weight.values, grad.values, 0, 1)
        x.kept = None
        return Flat.whole(of_weight), Rows(of_input[0] if of_input else _NOTHING)

    def backward_input(self, done: Computed, x: Rows, grad: Rows, weight: Flat) -> Rows:
        """Return the gradient of the input alone."""
        found = self._kept(done, x, weight).backward(weight.values, grad.values, 1)
        return Rows(found[0] if found else _NOTHING)

    def backward_weight(self, done: Computed, x: Rows, grad: Rows, weight: Flat | None = None) -> Flat:
        """Return the gradient of the weight alone."""
        values = None if weight is None else weight.values
        return Flat.whole(self._kept(done, x, weight).backward(values, grad.values, 0)[0])

    def _kept(self, done: Computed, x: Rows, weight: Flat | None) -> Kept:
        """Return what was kept for a backward; computed again from the input where nothing was."""
        if x.kept is None:
            if weight is None:
                raise UsageError(f"nothing was kept for {done.op} of layer {done.layer}; give it the weight")
            self._forward(done.layer, x, weight)
        return x.kept  # type: ignore[no-any-return]

    def update(self, done: Computed, grad: Flat, weight: Flat, state: Flat) -> tuple[Flat, Flat]:
        """Take the optimizer's step; the new numbers take the place of the old ones."""
        values, moments = weight.values, cut_as(state, weight)
        take_step(self.net.optimizer, values, cut_as(grad, weight), moments, self.step + done.made[0].step)
        self.states[done.layer] = after = Flat(moments, weight.pieces, weight.size)
        return weight, after


_NOTHING = torch.zeros(())  # the gradient of tokens' numbers


def cut_again(weight: Flat, state: Flat, shard: int, num_shards: int) -> tuple[Flat, Flat]:
    """Return a shard of what the step before has handed on.

    ZeRO-1 and ZeRO-2 load the whole state and cut it: what a rank holds of it is all that it needs.

    Raises:
        LawError: the step before has handed on less.
    """
    try:
        found = weight.shard(shard, num_shards)
    except ValueError as error:
        raise LawError(
            "a step begins with what the step before has handed in by set_final_weight, and this strategy hands in "
            f"less than it loads: {error}; hand in what is loaded"
        ) from None
    return found, state if state.pieces != weight.pieces or num_shards == 1 else state.shard(shard, num_shards)


def cut_as(content: Flat, like: Flat) -> torch.Tensor:
    """Return the elements that another content has, without copying."""
    if list(content.pieces) == list(like.pieces):
        return content.values
    found = [content.shard_at(piece) for piece in like.pieces]
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def take_step(
    optimizer: Adam | Momentum, weight: torch.Tensor, grad: torch.Tensor, state: torch.Tensor, count: int
) -> None:
    """Take an optimizer's step in place, as `minitrain.proof.arithmetic` has it.

    Args:
        optimizer: which.
        weight: flat.
        grad: its gradient.
        state: moments x elements.
        count: which step it is, 1 for the first.
    """
    if isinstance(optimizer, Momentum):
        state[0].mul_(optimizer.decay).add_(grad)
        weight.add_(state[0], alpha=-optimizer.rate)
        return
    adam(
        [weight], [grad], [state[0]], [state[1]], [], [torch.tensor(float(count - 1))],
        fused=True, amsgrad=False, beta1=optimizer.beta1, beta2=optimizer.beta2, lr=optimizer.rate, weight_decay=0.0,
        eps=optimizer.epsilon, maximize=False,
    )  # fmt: skip
