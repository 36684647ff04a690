"""The MLP unit, dense or of experts: norm, matrices with an activation function between them, dropout.

Tensor parallelism gives each rank some columns of the first matrices and the same rows of the last one; expert
parallelism gives it some experts. What is saved follows Korthikanti et al. (2022, section 4.1): the norm's input and
output, the activation function's input, the last matrix's input, and the mask of the dropout. ReLU's input is not
saved, since its output suffices; SwiGLU and GEGLU are one kernel that saves both its inputs.

Experts save, beside that, the copy of a token that each expert was sent. The router saves its probabilities. They are
multiplied in before the last matrix, so that what comes back need not be kept (the `probs` of `TEGroupedMLP` in
Megatron-Core, `score_before_experts` in torchtitan). Routed copies lie between tensor-parallel operations, as the
hidden state does.

In eight bits, inputs of matrices are kept in eight, inputs of norms and activation functions in 16 (Transformer
Engine); the router's input too, beside the copy that shared experts have.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.degrees import Cut
from minitrain.workloads.norms import saved_by_second_norm, unit_norms
from minitrain.workloads.precision import MASK_BYTES, STATISTIC_BYTES
from minitrain.workloads.shapes import Projection, SavedTensor, WeightShape
from minitrain.workloads.unit import Unit


def _first(model: Architecture) -> tuple[str, ...]:
    """Return the matrices before the activation function."""
    return ("gate", "up") if model.is_gated else ("up",)


def mlp_unit(model: Architecture, layer: int) -> Unit:
    """Return the dense MLP of a transformer layer."""
    cut = Cut("ffn_hidden_size", model.ffn_hidden_size)
    return Unit(
        kind="mlp",
        layer=layer,
        output_size=model.hidden_size,
        weights=(*unit_norms(model), *_mlp_weights(model, "", cut.count, cut)),
        projections=tuple(_mlp_projections(model, "", cut.count, cut)),
        core=None,
        saved=(
            *_saved_by_norm(model, model.precision.saved_bytes),
            *_saved_by_mlp(model, "", cut.count, cut, ("mlp",)),
            *_saved_after(model, "mlp"),
        ),
    )


def moe_unit(model: Architecture, layer: int) -> Unit:
    """Return the mixture of experts of a transformer layer."""
    cut = Cut("moe_ffn_hidden_size", model.moe_ffn_hidden_size)
    shared = model.num_shared_experts * cut.count
    return Unit(
        kind="moe",
        layer=layer,
        output_size=model.hidden_size,
        weights=(
            *unit_norms(model),
            *_router_weights(model),
            *_expert_weights(model, cut),
            *(_mlp_weights(model, "shared.", shared, cut) if shared else ()),
        ),
        projections=(
            Projection("router", model.hidden_size, model.num_experts),
            *_expert_projections(model, cut),
            *(_mlp_projections(model, "shared.", shared, cut) if shared else ()),
        ),
        core=None,
        saved=(
            *_saved_by_norm(model, model.precision.activation_bytes),
            *_saved_by_experts(model, cut),
            *(_saved_by_shared_experts(model, shared, cut) if shared else ()),
            *_saved_after(model, "moe"),
        ),
    )


def _mlp_weights(model: Architecture, prefix: str, size: int, cut: Cut) -> Iterator[WeightShape]:
    """Yield the weights of an MLP; the last one's bias is added once, after the sum over ranks."""
    for name in _first(model):
        yield WeightShape(f"{prefix}{name}", (model.hidden_size, size), cut, 1)
        if model.mlp_bias:
            yield WeightShape(f"{prefix}{name}.bias", (size,), cut)
    yield WeightShape(f"{prefix}down", (size, model.hidden_size), cut, 0)
    if model.mlp_bias:
        yield WeightShape(f"{prefix}down.bias", (model.hidden_size,))


def _mlp_projections(model: Architecture, prefix: str, size: int, cut: Cut) -> Iterator[Projection]:
    """Yield the multiplications of an MLP; gate and up are one."""
    first = _first(model)
    yield Projection(prefix + "_".join(first), model.hidden_size, len(first) * size, cut)
    yield Projection(f"{prefix}down", size, model.hidden_size, cut, "k")


def _router_weights(model: Architecture) -> Iterator[WeightShape]:
    """Yield the router's weights, which every rank holds."""
    yield WeightShape("router", (model.hidden_size, model.num_experts))
    if model.router_bias:
        yield WeightShape("router.bias", (model.num_experts,))


def _expert_weights(model: Architecture, cut: Cut) -> Iterator[WeightShape]:
    """Yield the weights of all routed experts, each kind of matrix as one with the experts in front."""
    experts, per_token = model.num_experts, model.experts_per_token
    for name in _first(model):
        yield WeightShape(f"experts.{name}", (experts, model.hidden_size, cut.count), cut, 2, per_token)
        if model.mlp_bias:
            yield WeightShape(f"experts.{name}.bias", (experts, cut.count), cut, 1, per_token)
    yield WeightShape("experts.down", (experts, cut.count, model.hidden_size), cut, 1, per_token)
    if model.mlp_bias:
        yield WeightShape("experts.down.bias", (experts, model.hidden_size), experts_per_token=per_token)


def _expert_projections(model: Architecture, cut: Cut) -> Iterator[Projection]:
    """Yield the batched multiplications of the routed experts."""
    first, counts = _first(model), (model.num_experts, model.experts_per_token)
    size = len(first) * cut.count
    yield Projection("experts." + "_".join(first), model.hidden_size, size, cut, "n", *counts)
    yield Projection("experts.down", cut.count, model.hidden_size, cut, "k", *counts)


def _saved_by_norm(model: Architecture, output_bytes: int) -> Iterator[SavedTensor]:
    """Yield the norm's input and output."""
    yield SavedTensor("norm input", model.hidden_size, model.precision.activation_bytes)
    yield SavedTensor("mlp input", model.hidden_size, output_bytes, None, ("layernorm",))


def _saved_by_mlp(
    model: Architecture, prefix: str, size: int, cut: Cut, again: tuple[str, ...], act: tuple[str, ...] = ()
) -> Iterator[SavedTensor]:
    """Yield the activation function's inputs and the last matrix's input.

    Args:
        model: the model.
        prefix: of the names.
        size: columns of all experts of a token.
        cut: what the columns consist of.
        again: the modules whose recomputation makes both again.
        act: those that make the activation function's output again, from its input.
    """
    sizes = model.precision
    if model.mlp != "relu":
        columns = len(_first(model)) * size
        yield SavedTensor(f"{prefix}activation input", columns, sizes.activation_bytes, cut, again)
        again = (*again, *act)
    yield SavedTensor(f"{prefix}down input", size, sizes.saved_bytes, cut, again)


def _saved_by_experts(model: Architecture, cut: Cut) -> Iterator[SavedTensor]:
    """Yield what router and routed experts save, for all experts of a token together."""
    copies, again = model.experts_per_token, ("moe",)
    yield SavedTensor("router probabilities", model.num_experts, STATISTIC_BYTES, None, again)
    yield SavedTensor("expert inputs", copies * model.hidden_size, model.precision.saved_bytes, None, again)
    yield from _saved_by_mlp(model, "expert ", copies * cut.count, cut, again, ("moe_act",))


def _saved_by_shared_experts(model: Architecture, size: int, cut: Cut) -> Iterator[SavedTensor]:
    """Yield what shared experts save: in eight bits an input of their own, made of what the norm makes."""
    sizes = model.precision
    if sizes.saved_bytes != sizes.activation_bytes:
        again = ("moe", "shared_experts", "layernorm")
        yield SavedTensor("shared input", model.hidden_size, sizes.saved_bytes, None, again)
    yield from _saved_by_mlp(model, "shared ", size, cut, ("moe", "shared_experts"))


def _saved_after(model: Architecture, module: str) -> Iterator[SavedTensor]:
    """Yield what a norm before the residual connection saves, and the mask of the dropout there."""
    yield from saved_by_second_norm(model, module)
    if model.dropout:
        yield SavedTensor("dropout mask", model.hidden_size, MASK_BYTES)
