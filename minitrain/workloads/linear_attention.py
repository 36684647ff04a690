"""The unit of a linear attention: what it holds, multiplies and saves.

One matrix makes queries, keys, values, a gate and the numbers of decays of the hidden state; a convolution over a few
tokens follows where there is one, then the states' recurrence, a norm with the gate, and the output's matrix. Tensor
parallelism gives each rank some heads of keys, with their heads of values (`MambaMixer` and `GatedDeltaNet` of
Megatron-Core's `core/ssm`).

The recurrence is computed chunk by chunk (`LinearCore`): products within a chunk, as attention's, and products with the
state, which is passed on. With a delta rule, keys and values of a chunk are first made independent of one another: the
inverse of a triangular matrix times both (Yang et al. 2024, "Parallelizing linear transformers with the delta rule",
section 3.2). Left out: that inverse, and the decay's exponentials, which are elementwise.

What is saved: what the norm and the matrices take, what comes of the first matrix, and what the recurrence makes. The
convolution is made again (`mamba_split_conv1d_scan_combined` of github.com/state-spaces/mamba, which saves `zxbcdt` and
`out_x`), but for delta rules, which save queries and keys of each head, values, and the inverse (`ChunkGatedDeltaRule`
of github.com/fla-org/flash-linear-attention). States are made again by all.

Ranks that divide a sequence are refused, since states would have to pass from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.errors import UsageError
from minitrain.workloads.architecture import STATISTIC_BYTES, Architecture
from minitrain.workloads.mixers import LinearAttention
from minitrain.workloads.shapes import Cut, LinearCore, Projection, SavedTensor, WeightShape
from minitrain.workloads.unit import Unit, saved_by_second_norm, unit_norms

_ALL = "self_attn"


def linear_unit(model: Architecture, layer: int, linear: LinearAttention) -> Unit:
    """Return the linear attention of a transformer layer."""
    cut = Cut("num_key_heads", linear.num_key_heads)
    return Unit(
        kind="linear_attention",
        layer=layer,
        output_size=model.hidden_size,
        weights=(*unit_norms(model), *_weights(model, linear, cut)),
        projections=tuple(_projections(model, linear, cut)),
        core=None,
        saved=tuple(_saved(model, linear, cut)),
        scan=LinearCore(
            linear.num_heads,
            linear.num_key_heads,
            linear.key_head_dim,
            linear.value_head_dim,
            linear.chunk,
            linear.has_delta,
        ),
    )


def _weights(model: Architecture, linear: LinearAttention, cut: Cut) -> Iterator[WeightShape]:
    """Yield its weights, but for the norm before it."""
    yield WeightShape("mixed", (model.hidden_size, linear.input_size), cut, 1)
    for name, rank, size in linear.low_rank():
        yield WeightShape(f"{name}_down", (model.hidden_size, rank))
        yield WeightShape(f"{name}_up", (rank, size), cut, 1)
    if linear.conv:
        yield WeightShape("conv", (linear.mixed_size * (linear.conv + linear.conv_bias),), cut)
    if linear.vector_size:
        yield WeightShape("decay", (linear.vector_size,), cut)
    yield WeightShape("gated_norm.weight", (linear.norm_size,), None if linear.has_delta else cut, is_norm=True)
    yield WeightShape("mixed_output", (linear.value_size, model.hidden_size), cut, 0)


def _projections(model: Architecture, linear: LinearAttention, cut: Cut) -> Iterator[Projection]:
    """Yield its multiplications with weights."""
    yield Projection("mixed", model.hidden_size, linear.input_size, cut)
    for name, rank, size in linear.low_rank():
        yield Projection(f"{name}_down", model.hidden_size, rank)
        yield Projection(f"{name}_up", rank, size, cut)
    yield Projection("mixed_output", linear.value_size, model.hidden_size, cut, "k")


def _saved(model: Architecture, linear: LinearAttention, cut: Cut) -> Iterator[SavedTensor]:
    """Yield what forward keeps for backward."""
    sizes, again = model.precision, (_ALL,)
    element = sizes.activation_bytes
    yield SavedTensor("norm input", model.hidden_size, element, is_always_kept=True)
    normed = ("mixed", *(f"{name}_down" for name, _, _ in linear.low_rank()))
    yield SavedTensor(
        "projection input", model.hidden_size, sizes.saved_bytes, None, (_ALL, "layernorm", "op"), needed_for=normed
    )
    yield SavedTensor("mixed", linear.input_size, element, cut, again)
    for name, rank, size in linear.low_rank():
        yield SavedTensor(f"{name} latent", rank, element, None, again, needed_for=(f"{name}_up",))
        yield SavedTensor(name, size, element, cut, again)
    if linear.has_delta:
        own = 2 * linear.num_heads * linear.key_head_dim + linear.value_size
        yield SavedTensor("queries, keys and values of heads", own, element, cut, again)
        yield SavedTensor("inverse", linear.num_heads * linear.chunk, element, cut, again)
        yield SavedTensor("decays", linear.num_heads, STATISTIC_BYTES, cut, again)
    yield SavedTensor("scan output", linear.value_size, element, cut, again)
    yield SavedTensor(
        "output projection input", linear.value_size, sizes.saved_bytes, cut, again, needed_for=("mixed_output",)
    )
    yield from saved_by_second_norm(model, _ALL)
    if model.dropout:
        yield SavedTensor("dropout mask", model.hidden_size, 1, None, again)


def require_attention(unit: Unit) -> None:
    """Require an attention whose queries can see keys of other ranks.

    Raises:
        UsageError: the unit is a linear attention.
    """
    if unit.scan is not None:
        raise UsageError(
            f"{unit.name} must have the whole sequence, since its state is not passed between ranks here; use a "
            "strategy that leaves sequences whole: zero3, or with cp=1 one that does so then"
        )
