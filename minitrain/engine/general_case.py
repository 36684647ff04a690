"""Loads, passes and updates whose price is not remembered: the first of each size, and all where layers differ.

The operations of `minitrain.engine.computation` come here after they have checked their laws, unless a table has their
price (`minitrain.engine.remembered`). The tables are filled here, where the workload says that all layers are alike. A
new feature of layers or of tensors belongs here or behind it (`minitrain.engine.placed_passes`,
`minitrain.engine.kept_for_backward`): there it costs nothing to those who do not use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.engine import laws
from minitrain.engine.kept_for_backward import keep, mode_of, price_of_backward, with_documents
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.index_sets import singleton
from minitrain.workloads.workload import USUAL

if TYPE_CHECKING:
    from minitrain.engine.state import RankState
    from minitrain.machine.price import Price
    from minitrain.workloads.workload import Recompute


def load(model: RankState, layer: int, shard: int, num_shards: int) -> tuple[Weight, OptState]:
    """Load one shard of a layer's weight, and make its optimizer state."""
    weight = Weight(layer, model._num_layers, 0, singleton(shard), num_shards)
    opt_state = OptState(layer, model._num_layers, 0, singleton(shard), num_shards)
    price = model._record_load(weight)
    units = model._account.size(weight), model._account.size(opt_state)
    if model._remembered.may_be_shared and model._entry is None:
        model._remembered.loads[num_shards] = (price, *units)
    return weight, opt_state


def forward(model: RankState, layer: int, inp: Activation, recompute: Recompute | None) -> Activation:
    """Take an activation through a layer."""
    mode = with_documents(model, layer, inp, USUAL)
    if mode is not USUAL:
        model.pass_modes[len(model._rows)] = mode
    price = model._runtime_predictor.compute("forward", len(inp.samples), layer, *(() if mode is USUAL else (mode,)))
    model._record("forward", layer, price, inp.samples)
    out = Activation(layer + 1, model._num_layers, inp.samples, model._global_batch_size)
    if model._remembered.may_be_shared:
        model._remembered.forwards[len(inp.samples)] = price
    if model._is_uniform:
        out._units = model._account.units_of(inp)  # type: ignore[misc]  # a slot of the base
    else:
        model._account.size(out)
        keep(model, layer, inp, out, mode_of(recompute or model._recompute))
    return out


def backward(model: RankState, layer: int, inp: Activation, grad: ActivationGrad) -> tuple[WeightGrad, ActivationGrad]:
    """Take a gradient back through a layer."""
    price = _pass_back(model, "backward", layer, inp)
    weight_grad, grad_inp = _weight_grad(model, layer, inp), _grad_inp(model, layer, grad)
    if model._remembered.may_be_shared:
        model._remembered.backwards[len(inp.samples)] = price, weight_grad._units
    return weight_grad, grad_inp


def backward_input(model: RankState, layer: int, inp: Activation, grad: ActivationGrad) -> ActivationGrad:
    """Take a gradient back to a layer's input alone."""
    price = _pass_back(model, "backward_input", layer, inp)
    if model._remembered.may_be_shared:
        model._remembered.backward_inputs[len(inp.samples)] = price
    return _grad_inp(model, layer, grad)


def backward_weight(model: RankState, layer: int, inp: Activation) -> WeightGrad:
    """Return the gradient of a layer's weight."""
    price = _pass_back(model, "backward_weight", layer, inp)
    weight_grad = _weight_grad(model, layer, inp)
    if model._remembered.may_be_shared:
        model._remembered.backward_weights[len(inp.samples)] = price, weight_grad._units
    return weight_grad


def price_of_update(model: RankState, layer: int, weight: Weight) -> Price:
    """Return the price of an optimizer step on the shards of a weight."""
    laws.require_whole_matrices(model, layer, weight)
    num_held, num_shards = len(weight.shards), weight.num_shards
    price = model._runtime_predictor.update(num_held, num_shards, layer)
    if model._remembered.may_be_shared:
        model._remembered.updates[num_held, num_shards] = price
    return price


def _pass_back(model: RankState, typ: str, layer: int, inp: Activation) -> Price:
    """Record a backward, or half of one, and return its price."""
    if model._is_uniform:
        price = model._runtime_predictor.compute(typ, len(inp.samples), layer)
    else:
        price = price_of_backward(model, typ, layer, inp)
    model._record(typ, layer, price, inp.samples)
    return price


def _weight_grad(model: RankState, layer: int, inp: Activation) -> WeightGrad:
    """Return the gradient of a layer's weight, with its size."""
    weight_grad = WeightGrad(layer, model._num_layers, inp.samples, model._global_batch_size)
    model._account.size(weight_grad)
    return weight_grad


def _grad_inp(model: RankState, layer: int, grad: ActivationGrad) -> ActivationGrad:
    """Return the gradient of a layer's input, with its size: where layers are alike, that of the output's gradient."""
    grad_inp = ActivationGrad(layer - 1, model._num_layers, grad.samples, model._global_batch_size)
    if model._is_uniform:
        grad_inp._units = model._account.units_of(grad)  # type: ignore[misc]  # a slot of the base
    else:
        model._account.size(grad_inp)
    return grad_inp
