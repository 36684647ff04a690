"""What a rank computes alone, as records: what each operation is given and makes, and what others call it.

A new computation is a record here, a method of a rank in `minitrain.engine`, what a workload asks for it
(`minitrain.workloads.workload.Workload.compute_cost`), and an entry of an arithmetic (`minitrain.proof.layers`). All
else that knows computations reads the records: laws, events, observers and executors, strict runs, the grader's replay,
exports and pages. `tests/operations/test_records.py` goes through all records and all that reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Literal

from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.compressed import CompressedGrad, CompressionState
from minitrain.tensors.kinds import LocalWeight, OuterState
from minitrain.tensors.placed import (
    ActivationGradShard,
    ActivationShard,
    Attended,
    AttendedGrad,
    ExpertOutputs,
    ExpertOutputsGrad,
    ExpertWeight,
    KeysValues,
    KeysValuesGrad,
    QueriesGrad,
    RoutedTokens,
    RoutedTokensGrad,
    RouterWeight,
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Looks:
    """What others show an operation by.

    Args:
        ink, dark, dark_ink: of the text on its bars, and both in dark mode if these differ.
        torch, jax: what comes nearest to it there; "" where nothing does.
    """

    ink: str = "#111111"
    dark: str = ""
    dark_ink: str = ""
    torch: str = ""
    jax: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A tensor that a computation is given.

    Args:
        name: of the method's parameter.
        kind: what it must be.
        stored: whether it must be in one of the rank's stores.
        optional: whether it may be None.
    """

    name: str
    kind: type
    stored: bool = False
    optional: bool = False


Family = Literal["load", "input", "pass", "attention", "experts", "compression", "local", "tied", "update", "final"]


@dataclass(frozen=True, slots=True, eq=False)
class ComputeOperation(Looks):
    """A computation: what it is given and makes, and what others call it.

    Args:
        name: of the method of a rank.
        family: what it belongs to: loading, the model's inputs, passes through whole layers or parts of them, steps of
            an attention, passes around experts, compression of gradients, what replicas do alone, tables that two
            layers share, the optimizer's step, or handing in a final weight.
        inputs: tensors in the order of the method's parameters, all of one layer.
        color: of its bars, where events have its name.
        inputs_of_experts: what it is given instead where it works on copies of tokens, by a part of the experts.
        letter: what it is called in schedules, where it is a pass of them.
    """

    name: str
    family: Family
    inputs: tuple[Input, ...] = ()
    color: str = ""
    _: KW_ONLY
    inputs_of_experts: tuple[Input, ...] = ()
    letter: str | None = None

    @property
    def event(self) -> str | None:
        """The type of its events, of which parts of layers have that of whole ones; None where it has none."""
        return self.name if self.color else "load_weights" if self.family == "load" else None

    @property
    def is_pass(self) -> bool:
        """Whether it takes samples through a layer, or gradients back."""
        return self.family in ("pass", "attention", "experts")

    @property
    def makes_new(self) -> bool:
        """Whether all its results have memory of their own; updates and states of compression take given places."""
        return self.family not in ("compression", "update", "final")


_INP, _KEPT = Input("inp", Activation), Input("inp", Activation, stored=True)
_GRAD, _GRAD_SHARD = Input("grad", ActivationGrad, stored=True), Input("grad", ActivationGradShard, stored=True)
_WEIGHT, _ROUTER = Input("weight", Weight, stored=True), Input("weight", RouterWeight, stored=True)
_UPDATED = (Input("weight_grad", WeightGrad), Input("weight", Weight), Input("opt_state", OptState))
_SHARD = Input("inp", ActivationShard, stored=True)
_ATTENDED_GRAD = Input("grad", AttendedGrad)
_KEYS_VALUES = Input("keys_values", KeysValues, stored=True)
_GRADS_WITHIN = (Input("grad_queries", QueriesGrad), Input("grad_keys_values", KeysValuesGrad))
_OUTPUTS = Input("outputs", ExpertOutputs, stored=True)
_COPIES = Input("inp", RoutedTokens, stored=True), Input("grad", ExpertOutputsGrad, stored=True)
_EXPERTS = Input("weight", ExpertWeight, stored=True)
_MESSAGES = Input("packed", CompressedGrad), Input("state", CompressionState)
_TOKENS_GRAD = Input("tokens_grad", RoutedTokensGrad, stored=True)

_IN_ORDER = (
    ComputeOperation(
        "load_weights", "load", (), "#F0E442",
        torch="torch.nn.Module.to(layer, device)", jax="jax.device_put(weight, device)",
    ),
    ComputeOperation("load_router", "load"),
    ComputeOperation("load_experts", "load"),
    ComputeOperation("get_input_activation", "input"),
    ComputeOperation("get_input_shard", "input"),
    ComputeOperation(
        "forward", "pass", (_INP, _WEIGHT), "#56B4E9", letter="F",
        inputs_of_experts=(Input("inp", RoutedTokens), _EXPERTS),
        torch="torch.func.functional_call(layer, weight, activation)", jax="jax.vjp(layer, weight, activation)",
    ),
    ComputeOperation(
        "loss", "pass", (_INP,), "#000000", ink="#ffffff", dark="#F4F4F4", dark_ink="#111111",
        torch="torch.nn.functional.cross_entropy(output, targets)", jax="jax.grad(loss)(output)",
    ),
    ComputeOperation(
        "route", "experts", (_INP, _ROUTER), "#A6D5F2",
        torch="torch.topk(scores, k)", jax="jax.lax.top_k(scores, k)",
    ),
    ComputeOperation(
        "combine", "experts", (_INP, Input("outputs", ExpertOutputs), _ROUTER), "#A6D5F2",
        torch="torch.index_add(output, 0, places, outputs)", jax="jax.ops.segment_sum(outputs, places)",
    ),
    ComputeOperation(
        "backward", "pass", (_KEPT, _GRAD, _WEIGHT), "#E69F00", letter="B", inputs_of_experts=(*_COPIES, _EXPERTS),
        torch="torch.autograd.grad(output, (weight, activation), grad)", jax="the function that jax.vjp gave, of grad",
    ),
    ComputeOperation(
        "backward_input", "pass", (_KEPT, _GRAD, _WEIGHT), "#E69F00", letter="I",
        inputs_of_experts=(*_COPIES, _EXPERTS), torch="torch.autograd.grad(output, activation, grad)",
        jax="jax.vjp with the weight held fixed",
    ),
    ComputeOperation(
        "backward_weight", "pass", (_KEPT, _GRAD, Input("weight", Weight, stored=True, optional=True)), "#F7D08A",
        letter="W", inputs_of_experts=(*_COPIES, Input("weight", ExpertWeight, stored=True, optional=True)),
        torch="torch.autograd.grad(output, weight, grad)", jax="jax.vjp with the activation held fixed",
    ),
    ComputeOperation("keys_values", "attention", (_SHARD, _WEIGHT), "#A6D8F5"),
    ComputeOperation(
        "attend", "attention", (_SHARD, _KEYS_VALUES), "#3E93CB",
        torch="torch.nn.functional.scaled_dot_product_attention(queries, keys, values)",
        jax="jax.nn.dot_product_attention(queries, keys, values)",
    ),
    ComputeOperation("project", "attention", (_SHARD, _WEIGHT, Input("attended", Attended)), "#A6D8F5"),
    ComputeOperation("backward_project", "attention", (_SHARD, _GRAD_SHARD, _WEIGHT), "#F7D08A"),
    ComputeOperation("backward_attend", "attention", (_SHARD, _ATTENDED_GRAD, _KEYS_VALUES), "#C77F00"),
    ComputeOperation("backward_keys_values", "attention", (_SHARD, _WEIGHT, *_GRADS_WITHIN), "#F7D08A"),
    ComputeOperation("backward_combine", "experts", (_KEPT, _OUTPUTS, _GRAD), "#F3C16B"),
    ComputeOperation("backward_route", "experts", (_KEPT, _GRAD, _TOKENS_GRAD, _ROUTER), "#F3C16B"),
    ComputeOperation("load_compression", "load", (_UPDATED[1],)),
    ComputeOperation("compress", "compression", (Input("grad", WeightGrad), _MESSAGES[1]), "#B3B84D"),
    ComputeOperation("second_factor", "compression", _MESSAGES, "#B3B84D"),
    ComputeOperation("decompress", "compression", _MESSAGES, "#8F9433"),
    ComputeOperation("table_gradient", "tied", (Input("grad", WeightGrad),)),
    ComputeOperation("with_table", "tied", (Input("grad", WeightGrad),)),
    ComputeOperation(
        "update", "update", _UPDATED, "#009E73", ink="#ffffff",
        torch="torch.optim.Adam.step(optimizer)", jax="optax.adam(rate).update(grad, state, weight)",
    ),
    ComputeOperation("load_outer_state", "load", (_UPDATED[1],)),
    ComputeOperation("local_copy", "local", (_UPDATED[1],), "#7FD1B9"),
    ComputeOperation(
        "outer_gradient", "local", (_UPDATED[1], Input("local", LocalWeight)), "#7FD1B9"
    ),
    ComputeOperation(
        "outer_update", "update", (*_UPDATED[:2], Input("outer_state", OuterState, optional=True)), "#00735A",
        ink="#ffffff",
    ),
    ComputeOperation(
        "mix", "update", (_UPDATED[1], Input("local", LocalWeight)), "#4FA58C",
        torch="torch.lerp(weight, local, mixing)", jax="mixing * local + (1 - mixing) * weight",
    ),
    ComputeOperation("set_final_weight", "final", (Input("weight", Weight),)),
)  # fmt: skip
COMPUTATIONS: Mapping[str, ComputeOperation] = MappingProxyType({record.name: record for record in _IN_ORDER})
"""All that a rank computes alone, by name, in the order of a step."""


def names_of(*families: Family) -> tuple[str, ...]:
    """Return the names of all computations of some families, one after the other."""
    return tuple(record.name for family in families for record in _IN_ORDER if record.family == family)
