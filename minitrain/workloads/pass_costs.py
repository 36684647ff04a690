"""The demand of a pass through a unit, whole or in steps: floating-point operations, bytes read and written, kernels.

**A whole pass** (`pass_cost`). A matrix multiplication reads both operands and writes its result. Its backward is two
of the same work: one for the gradient of its input, one for that of its weight, which is written in the precision of
gradients. Flash attention reads queries, keys and values and writes its output. It computes only pairs that the causal
mask leaves, and in backward the scores again, which makes five multiplications of forward's two (Dao 2023,
"FlashAttention-2", section 3.1.2). Unfused attention computes all pairs, and its softmax reads scores and writes
probabilities. Norm and residual connection read and write the hidden state five times: the norm once each, the sum two
times in and one out.

Left out: activation functions and dropout, which are fused with their neighbours, what a kernel costs to launch,
experts that get more tokens than others, and soft caps of the logits or within flash attention. Keys and values that
several heads of queries share count for each of them.

**In steps** (`step_cost`, `step_kernels`): with context parallelism keys and values come from several ranks. Forward
has three steps: `keys_values` (norm, and the multiplications that make queries, keys and values), `attend` (the core,
of the rank's queries and some keys) and `project` (output projection and residual connection). Backward has their
mirrors: `backward_project`, `backward_attend` and `backward_keys_values`. Over all ranks and all keys they have the
operations of an undivided attention. The bytes are more, since queries are read again for every block of keys.

The core is counted by area (see `workload`): a block whose keys all come later than the queries costs nothing. Of two
shards unfused attention computes all pairs if it computes any. Adding the results of two blocks costs nothing here: it
is fused with the core, as in published kernels. Keys and values are tensors of their own: what is on the wire is as
large as what is kept, which is less than the queries where heads are grouped. A layer's input stands for all else that
is kept.

The steps around the core run the kernels that an undivided attention runs there. Of the multiplications, all but the
output projection belong to `keys_values`. Of the passes over memory, the residual connection and the gradients of
biases belong to `project`. The core is one kernel over the keys that the queries see where attention is flash.
Otherwise it is the products and the softmax of each shard of queries with each shard of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from minitrain.errors import UsageError
from minitrain.operations.computations import names_of
from minitrain.workloads.architecture import STATISTIC_BYTES, Architecture
from minitrain.workloads.kernels import (
    FLASH_BACKWARD,
    FlashAttention,
    Kernel,
    KernelList,
    Matmul,
    MemoryPass,
    backward_matmuls,
    forward_matmul,
)
from minitrain.workloads.linear_attention import require_attention
from minitrain.workloads.shapes import AttentionCore, Cut, Gemm, LinearCore, SavedTensor, Work
from minitrain.workloads.unit import Unit, has_second_norm
from minitrain.workloads.unit_kernels import (
    FLASH_LAUNCHES,
    UNFUSED_LAUNCHES,
    backward_kernels,
    forward_kernels,
    repeated_kernels,
)
from minitrain.workloads.workload import Context, Cost, PassMode, Style

MOVES_OF_NORM, MOVES_OF_RESIDUAL = 2, 3
"""How often a norm and a residual connection read or write the hidden state, forward."""
MOVES_OF_NORM_AND_RESIDUAL = MOVES_OF_NORM + MOVES_OF_RESIDUAL
_MOVES_OF_LOOKUP = 2  # a lookup reads and writes rows
_MOVES_OF_HIDDEN_STATE = {"embedding": _MOVES_OF_LOOKUP, "head": MOVES_OF_NORM}


@dataclass(frozen=True, slots=True)
class Demand:
    """Operations and bytes, which add up.

    Args:
        flop: floating-point operations.
        num_bytes: bytes read and written.
    """

    flop: float = 0
    num_bytes: float = 0

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.flop + other.flop, self.num_bytes + other.num_bytes)

    def times(self, factor: float) -> Demand:
        """Return a multiple."""
        return Demand(self.flop * factor, self.num_bytes * factor)


def pass_cost(model: Architecture, unit: Unit, work: Work, typ: str, recompute: str) -> Cost:
    """Return the cost of a pass through a unit.

    The two halves of a split backward have the cost of a whole one together. What is computed again is part of the
    first.

    Args:
        model: whose unit it is.
        unit: the unit.
        work: the rank's samples, their length, and how ranks divide the unit.
        typ: "forward", "backward", "backward_input" or "backward_weight".
        recompute: what backward computes again.

    Raises:
        UsageError: heads, columns, experts or the sequence do not divide by their degree.
    """
    parts: Iterable[Demand]
    if typ != "forward" and not unit.has_backward:
        parts = ()
    elif typ == "forward":
        parts = _forward(model, unit, work)
    elif typ == "backward_weight":
        parts = _backward_weight(model, unit, work)
    else:
        parts = [*_backward_input(model, unit, work), *_again(model, unit, work, recompute)]
        if typ == "backward":
            parts += _backward_weight(model, unit, work)
    total = sum(parts, Demand())
    return Cost(total.flop, total.num_bytes)


def _forward(model: Architecture, unit: Unit, work: Work) -> Iterator[Demand]:
    for gemm in weight_gemms(unit, work):
        yield gemm_demand(model, gemm, model.precision.parameter_bytes)
    if unit.core is not None:
        yield _core(model, unit.core, work)
        yield _index(unit.core, work)
    if unit.scan is not None:
        yield _scan(model, unit.scan, work)
    yield hidden_state_demand(model, unit, work)


def _backward_input(model: Architecture, unit: Unit, work: Work) -> Iterator[Demand]:
    for gemm in weight_gemms(unit, work):
        yield gemm_demand(model, gemm, model.precision.parameter_bytes)
    if unit.core is not None:
        forward = _core(model, unit.core, work)
        yield Demand(forward.flop * (FLASH_BACKWARD if unit.core.is_flash else 2), 2 * forward.num_bytes)
        yield _index(unit.core, work, chosen=True).times(2)
    if unit.scan is not None:
        yield _scan(model, unit.scan, work).times(2)
    yield hidden_state_demand(model, unit, work).times(2)


def _backward_weight(model: Architecture, unit: Unit, work: Work) -> Iterator[Demand]:
    for gemm in weight_gemms(unit, work):
        if gemm.is_trained:
            yield gemm_demand(model, gemm, model.precision.gradient_bytes)


def gemm_demand(model: Architecture, gemm: Gemm, weight_bytes: int) -> Demand:
    """Return the demand of one of the three multiplications of a weight, which differ in what they read and write."""
    activations = model.precision.activation_bytes * gemm.m * (gemm.k + gemm.n)
    return Demand(gemm.flop, gemm.batch * (activations + weight_bytes * gemm.k * gemm.n))


def _again(model: Architecture, unit: Unit, work: Work, recompute: str) -> Iterator[Demand]:
    """Yield what backward computes again."""
    if recompute == "full" and unit.layer is not None:
        yield from _forward(model, unit, work)
        return
    for projection in unit.repeated_projections(recompute):
        yield gemm_demand(model, projection.gemm(work), model.precision.parameter_bytes)
    if unit.core is not None and unit.repeats_core(recompute):
        yield _core(model, unit.core, work)
        yield _index(unit.core, work)
    if unit.scan is not None and unit.is_repeated(recompute):
        yield _scan(model, unit.scan, work)
    if unit.repeats_norm(recompute):
        yield norm_demand(model, work)


def norm_demand(model: Architecture, work: Work) -> Demand:
    """Return the demand of a norm of the hidden state, forward."""
    elements = MOVES_OF_NORM * work.num_tokens_between * model.hidden_size
    return Demand(0, elements * model.precision.activation_bytes)


def weight_gemms(unit: Unit, work: Work) -> Iterator[Gemm]:
    """Return the multiplications with weights."""
    return (gemm for gemm in unit.gemms(work) if gemm.has_weight)


def _core(model: Architecture, core: AttentionCore, work: Work) -> Demand:
    """Return the demand of the attention core, forward."""
    scores, values = core.gemms(work)
    ends = scores.m * scores.k + scores.n * scores.k + values.n * values.k + values.m * values.n
    element = model.precision.activation_bytes * scores.batch
    if not core.is_flash:
        return Demand(scores.flop + values.flop, element * (ends + 4 * scores.m * scores.n))
    share = core.num_pairs_of(work) / work.seq_len**2
    return Demand((scores.flop + values.flop) * share, element * ends)


def _index(core: AttentionCore, work: Work, *, chosen: bool = False) -> Demand:
    """Return the demand of an indexer: its products, and scores of all keys that are written and read."""
    share = work.num_samples * work.num_queries / work.seq_len
    pairs = 0 if chosen or not core.index_heads else replace(core, window=None).num_pairs(work.seq_len, causal=True)
    flop = core.index_flop(work.seq_len, causal=True, chosen=chosen)
    return Demand(flop * share, 2 * STATISTIC_BYTES * pairs * share)


def _scan(model: Architecture, scan: LinearCore, work: Work) -> Demand:
    """Return the demand of a linear attention's recurrence, forward: it reads and writes states in single precision."""
    share = work.num_tokens / work.seq_len / work.degrees.tp
    ends = 2 * (scan.num_key_heads * scan.key_dim + scan.num_heads * scan.value_dim) * work.num_tokens
    states = scan.num_state_bytes(work)
    element = model.precision.activation_bytes
    return Demand(scan.flop(work.seq_len, causal=True) * share, element * ends / work.degrees.tp + states)


def hidden_state_demand(model: Architecture, unit: Unit, work: Work) -> Demand:
    """Return the demand of norm and residual connection, or of a lookup."""
    moves = _MOVES_OF_HIDDEN_STATE.get(unit.kind, MOVES_OF_NORM_AND_RESIDUAL)
    if unit.layer is not None and has_second_norm(model):
        moves += MOVES_OF_NORM
    elements = moves * work.num_tokens_between * model.hidden_size + _moves_around_core(model, unit, work)
    return Demand(0, elements * model.precision.activation_bytes)


def _moves_around_core(model: Architecture, unit: Unit, work: Work) -> int:
    """Return the elements that norms of queries and keys, and a soft cap of unfused scores, read and write."""
    if unit.core is None:
        return 0
    heads = model.num_heads + model.num_kv_heads
    normed = work.num_tokens * heads * model.head_dim // work.degrees.tp if model.qk_norm != "none" else 0
    scores = unit.core.gemms(work)[0]
    capped = scores.batch * scores.m * scores.n if model.score_cap and not unit.core.is_flash else 0
    return MOVES_OF_NORM * (normed + capped)


STEPS = frozenset(names_of("attention"))
"""The steps of an attention, as events name them."""

_KEYS_AND_VALUES = frozenset({"keys", "values"})
_OUTPUT = "output"
# Their shares of `hidden_state_demand`.
_NORM, _RESIDUAL = (moves / MOVES_OF_NORM_AND_RESIDUAL for moves in (MOVES_OF_NORM, MOVES_OF_RESIDUAL))


def step_cost(model: Architecture, unit: Unit, work: Work, typ: str, mode: PassMode) -> Cost:
    """Return the cost of one step of an attention.

    Args:
        model: whose unit it is.
        unit: the attention.
        work: the rank's samples, their length, and how ranks divide the unit.
        typ: which step.
        mode: the shards of queries and of keys, and what backward computes again.

    Raises:
        UsageError: heads or the sequence do not divide by their degree.
    """
    require_attention(unit)
    if typ.startswith("backward") and not unit.has_backward:
        return Cost(0, 0)
    if typ in ("attend", "backward_attend"):
        found = _attended(model, unit, work, mode.context)
        if typ == "backward_attend":
            found = _core_backward(found, unit, mode)
        return Cost(found.flop, found.num_bytes)
    total = sum(_around_core(model, unit, work, typ), Demand())
    if typ == "backward_keys_values" and unit.repeats_norm(mode.recompute):
        total += norm_demand(model, work)
    return Cost(total.flop, total.num_bytes)


def _around_core(model: Architecture, unit: Unit, work: Work, typ: str) -> Iterator[Demand]:
    """Yield the demand of the steps before and after the core."""
    is_after = typ.endswith("project")
    is_backward = typ.startswith("backward")
    for gemm in weight_gemms(unit, work):
        if gemm.name.startswith(_OUTPUT) == is_after:  # its adapters too
            yield gemm_demand(model, gemm, model.precision.parameter_bytes)
            if is_backward and gemm.is_trained:
                yield gemm_demand(model, gemm, model.precision.gradient_bytes)
    share = _RESIDUAL if is_after else _NORM
    yield hidden_state_demand(model, unit, work).times(share * (2 if is_backward else 1))


def _attended(model: Architecture, unit: Unit, work: Work, context: Context | None) -> Demand:
    """Return the core forward, of some queries and keys."""
    core = unit.core
    assert core is not None  # an attention has one
    assert context is not None  # steps are of some shards
    shard_len = Cut("seq_len", work.seq_len).part(work.seq_len, context.num_shards, "num_shards")
    seen = _seen(core, work, context, shard_len)
    num_pairs = sum(pairs if core.is_flash else shard_len**2 for _, _, pairs in seen)
    num_queries, num_keys = (shard_len * len({pair[side] for pair in seen}) for side in (0, 1))
    num_heads = work.num_samples * Cut("num_heads", core.num_heads).part(core.num_heads, work.degrees.tp)
    sizes = core.key_dim + core.value_dim
    ends = sizes * (num_queries + num_keys) + (0 if core.is_flash else 4 * num_pairs)
    return Demand(2 * sizes * num_pairs * num_heads, model.precision.activation_bytes * num_heads * ends)


def _seen(core: AttentionCore, work: Work, context: Context, shard_len: int) -> Sequence[tuple[int, int, float]]:
    """Return each shard of queries and of keys with pairs between them, and their number for one head and sample."""
    if core.index_heads:
        raise UsageError(
            "sparse attention must have the whole sequence, of which a query's keys are chosen; use a strategy that "
            "leaves sequences whole: zero3, or with cp=1 one that does so then"
        )
    if core.num_chunks(work.seq_len) > 1:
        raise UsageError(
            f"seq_len ({work.seq_len}) must be at most the window ({core.window}) where windows lie side by side and "
            "ranks divide the sequence, since their pairs are not counted; use shorter sequences, or a strategy that "
            "leaves them whole: zero3, or with cp=1 one that does so then"
        )
    return list(context.seen(shard_len, core.window)) if work.pairs is None else work.pairs.by_shard


def _core_backward(forward: Demand, unit: Unit, mode: PassMode) -> Demand:
    """Return the core backward, with what is computed again of it."""
    core = unit.core
    assert core is not None  # an attention has one
    again = int(unit.repeats_core(mode.recompute))
    if core.is_flash:
        return Demand(forward.flop * (FLASH_BACKWARD + again), (2 + again) * forward.num_bytes)
    return forward.times(2 + again)


def keys_values_bytes(unit: Unit, work: Work) -> int:
    """Return the bytes of one rank's keys and values.

    Args:
        unit: the attention.
        work: the rank's samples, their length, and how ranks divide the unit.
    """
    return sum(tensor.num_bytes(work) for tensor in unit.saved if tensor.name in _KEYS_AND_VALUES)


def queries_bytes(unit: Unit, work: Work) -> int:
    """Return the bytes of one rank's queries, or of their gradient; see `keys_values_bytes`."""
    return sum(tensor.num_bytes(work) for tensor in unit.saved if tensor.name == "queries")


def attended_bytes(model: Architecture, unit: Unit, work: Work) -> int:
    """Return the bytes of what one rank's queries have got, without the log-sum-exp; see `keys_values_bytes`."""
    core = unit.core
    assert core is not None  # an attention has one
    heads = Cut("num_heads", core.num_heads)
    size = heads.part(core.num_heads * core.value_dim, work.degrees.tp)
    return work.num_tokens * size * model.precision.activation_bytes


def log_sum_exp_bytes(unit: Unit, work: Work) -> int:
    """Return the bytes of the log-sum-exp of one rank's queries, in single precision; see `keys_values_bytes`."""
    core = unit.core
    assert core is not None  # an attention has one
    return work.num_tokens * STATISTIC_BYTES * Cut("num_heads", core.num_heads).part(core.num_heads, work.degrees.tp)


def kept_bytes(unit: Unit, work: Work, mode: PassMode) -> int:
    """Return the bytes that the input of an attention stands for, which its keys and values do not.

    Before the queries have seen any keys, these are what precedes the core.
    """
    kept = [tensor for tensor in unit.saved if tensor.is_kept(mode.recompute) and tensor.name not in _KEYS_AND_VALUES]
    if mode.context is not None and not mode.context.keys:
        kept = list(_before_core(kept))
    return sum(tensor.num_bytes(work) for tensor in kept)


def _before_core(kept: list[SavedTensor]) -> Iterator[SavedTensor]:
    """Yield what is kept up to the queries."""
    for tensor in kept:
        yield tensor
        if tensor.name == "queries":
            return


_AFTER_CORE = frozenset({"residual", "dropout and residual", "residual gradient", "bias gradient", "second norm"})
_OF_CORE = frozenset({"softmax", "attention dropout", "gradient accumulation", "adapter"})
# The last two are listed with their products.
_LAUNCHES_AFTER = 3  # the output projection, its bias and dropout, and the residual connection; twice in backward


def step_kernels(model: Architecture, unit: Unit, work: Work, typ: str, mode: PassMode, style: Style) -> KernelList:
    """Return what one rank runs in one step of an attention.

    Args:
        model: whose unit it is.
        unit: the attention.
        work: the rank's samples, their length, and how ranks divide the unit.
        typ: which step.
        mode: the shards of queries and of keys, and what backward computes again.
        style: how a framework runs it.

    Raises:
        UsageError: heads or the sequence do not divide by their degree.
    """
    require_attention(unit)
    is_backward = typ.startswith("backward")
    if is_backward and not unit.has_backward:
        return KernelList()
    if not typ.endswith("attend"):
        found = _kernels_around_core(
            model, unit, work, style, is_after=typ.endswith("project"), is_backward=is_backward
        )
        is_normed_again = typ == "backward_keys_values" and unit.repeats_norm(mode.recompute)
        return found + repeated_kernels(model, unit, work, "layernorm", style) if is_normed_again else found
    assert mode.context is not None  # steps are of some shards
    found = _kernels_of_core(model, unit, work, mode.context, style, is_backward=is_backward)
    assert unit.core is not None  # an attention has one
    if is_backward and unit.repeats_core(mode.recompute):
        found = found + _kernels_of_core(model, unit, work, mode.context, style, is_backward=False)
    return found


def _kernels_around_core(
    model: Architecture, unit: Unit, work: Work, style: Style, *, is_after: bool, is_backward: bool
) -> KernelList:
    """Return the kernels before or after the core."""
    assert unit.core is not None  # as above
    listed = backward_kernels if is_backward else forward_kernels
    as_flash = replace(unit, core=replace(unit.core, is_flash=True))
    projections = tuple(each for each in unit.projections if (each.of == _OUTPUT) == is_after)
    products = listed(model, replace(as_flash, projections=projections), work, style).kernels
    everything = listed(model, as_flash, work, style)
    kernels = [kernel for kernel in products if _is_product(kernel)]
    for kernel in everything.kernels:
        if isinstance(kernel, MemoryPass) and not _is_product(kernel) and (kernel.name in _AFTER_CORE) == is_after:
            kernels.append(kernel)
    launches = everything.num_launches - FLASH_LAUNCHES[is_backward]
    after = _LAUNCHES_AFTER * (2 if is_backward else 1)
    return KernelList(tuple(kernels), after if is_after else launches - after)


def _is_product(kernel: Kernel) -> bool:
    """Return whether a kernel is a multiplication with a weight, or adds up its gradient."""
    return isinstance(kernel, Matmul) or (isinstance(kernel, MemoryPass) and kernel.name in _OF_CORE)


def _kernels_of_core(
    model: Architecture, unit: Unit, work: Work, context: Context, style: Style, *, is_backward: bool
) -> KernelList:
    """Return the kernels of the core, of the queries and keys that see one another; nothing where none do."""
    core = unit.core
    assert core is not None  # as above
    shard_len = Cut("seq_len", work.seq_len).part(work.seq_len, context.num_shards, "num_shards")
    seen = _seen(core, work, context, shard_len)
    if not seen:
        return KernelList()
    if not core.is_flash:
        blocks = [
            kernel for _ in seen for kernel in _block(model, unit, work, shard_len, style, is_backward=is_backward)
        ]
        return KernelList(tuple(blocks), len(seen) * UNFUSED_LAUNCHES[is_backward])
    listed = backward_kernels if is_backward else forward_kernels
    (whole,) = (kernel for kernel in listed(model, unit, work, style).kernels if isinstance(kernel, FlashAttention))
    flash = replace(
        whole,
        num_queries=shard_len * len({query for query, _, _ in seen}),
        num_keys=shard_len * len({key for _, key, _ in seen}),
        num_pairs=sum(pairs for _, _, pairs in seen),
        longest_row=work.pairs and work.pairs.longest,
    )
    return KernelList((flash,), FLASH_LAUNCHES[is_backward])


def _block(
    model: Architecture, unit: Unit, work: Work, shard_len: int, style: Style, *, is_backward: bool
) -> Iterator[Kernel]:
    """Yield the kernels of unfused attention for one shard of queries and one of keys."""
    core, element = unit.core, model.precision.activation_bytes
    assert core is not None  # as above
    batch = work.num_samples * Cut("num_heads", core.num_heads).part(core.num_heads, work.degrees.tp)
    for gemm in (
        Gemm("scores", shard_len, shard_len, core.key_dim, batch, has_weight=False),
        Gemm("values", shard_len, core.value_dim, shard_len, batch, has_weight=False),
    ):
        if is_backward:
            yield from backward_matmuls(gemm, model.precision.datatype, element, element)
        else:
            yield forward_matmul(gemm, model.precision.datatype, element)
    if model.score_cap:
        yield MemoryPass("score cap", batch * shard_len**2, (3 if is_backward else 2) * element * style.eager)
    yield MemoryPass("softmax", batch * shard_len**2, (3 if is_backward else 2) * element * style.eager)
