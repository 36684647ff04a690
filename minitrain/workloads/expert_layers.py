"""Layers whose experts are divided among ranks, as a workload: costs, sizes and memory of what each rank does.

A whole layer with experts is one unit. Here it is taken apart as its passes are: `route` (norm and router) goes before
the experts, `combine` (shared experts, the weighted sum and the residual connection) after them. What the passes cost,
hold and keep adds up to the unit's own figures; where tokens are not balanced, the rank's own tokens count. Backward is
the mirror: `backward_combine` is what must be done before gradients can go to the experts, `backward_route` the rest of
`combine` and `route`.

Left out, as for whole units: the sorting of tokens, and padding to the capacity of experts, but for one-hot matrices.

The kernels of layers whose experts are divided among ranks: which of a whole layer's kernels each pass runs.

The multiplications of a rank's experts are one batch, each with the mean of its experts' tokens. Launches are those of
Megatron-Core's layer, such that a layer's passes have those of the whole layer together: `route` is the norm, the
router (casts, product, top k, auxiliary loss: 8), counts of tokens, which ranks exchange and the host reads (13), and
the permutation (4); experts have their chunks sorted (4) and their activation beside their multiplications; `combine`
is the inverse permutation, shared experts and the residual. Source: `core/transformer/moe/router.py` and
`MoEAlltoAllTokenDispatcher` of `token_dispatcher.py`, with fused router and permutation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from math import ceil, comb, lcm, prod
from types import MappingProxyType
from typing import Any, Literal

from minitrain.operations.computations import names_of
from minitrain.tensors.placed import COPIES, EXPERT_PIECES, ROUTER_PIECES
from minitrain.workloads.architecture import NARROW_BYTES, Architecture
from minitrain.workloads.kernels import Kernel, KernelList, Matmul, MemoryPass, one_hot_products
from minitrain.workloads.pass_costs import MOVES_OF_NORM, MOVES_OF_RESIDUAL
from minitrain.workloads.shapes import WHOLE, Degrees, Gemm, Projection, WeightShape, Work
from minitrain.workloads.unit import Unit, has_second_norm
from minitrain.workloads.unit_kernels import PERMUTATIONS, PROBABILITIES, UNFUSED_ROUTER, pass_kernels, repeated_kernels
from minitrain.workloads.workload import Cost, PassMode, Recompute, Style, takes_again

_LAUNCHES: Mapping[str, int] = {"route": 26, "combine": 4, "backward_combine": 3, "backward_route": 13}
_AROUND_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"forward": ("route", "combine"), "backward_weight": ()}
    | dict.fromkeys(("backward", "backward_input"), ("backward_combine", "backward_route"))
)
_NORM = frozenset({"norm"})
_RESIDUAL = frozenset({"residual", "dropout and residual", "second norm"})
_AROUND = _NORM | _RESIDUAL | {"residual gradient", "bias gradient", *PERMUTATIONS}
_CHUNKS = 4  # copies that came are put into the order of the rank's experts, and results back: each read and written

_PADDED = 4
"""Copies that are padded to what cuBLAS multiplies in eight bits, rows by 16 or 32, and results cut back: each read and
written (`quantization_padding` of `TEGroupedMLP` in `core/transformer/moe/experts.py`). HybridEP pads as it copies."""

_ONCE = frozenset({"deepep", "hybridep"})
_COUNTS_LAUNCHES, _CHUNK_LAUNCHES = 10, 4
"""Launches that DeepEP and HybridEP save: of counts, three are left (of router and counts together 17 of 31:
docs/discussions/deepseek-v3-gb200-optimization of github.com/NVIDIA/Megatron-LM, section 2.2.1), and copies are made in
the order of experts, so that no chunks are sorted."""

_BIAS_OF_SINGLE = (14 / 6, 20 / 8)
"""How much more adding the last bias reads and writes, forward and backward, where probabilities have 32 bits, as
DeepEP and HybridEP send them (`dispatch` of `_DeepepManager` in `core/transformer/moe/token_dispatcher.py`): product,
sum and concatenation, and gradients' products and sums, have them too, and are cast (`_apply_bias` in `experts.py`)."""

_BIAS_OF_FUSED = (0, 1 / 8)
"""That of fused multiplications: backward reads the gradient once."""


@lru_cache(maxsize=256)
def num_touched(
    num_parts: int, num_experts: int, num_chosen: int, groups: tuple[int, int] = (1, 1), *, in_turn: bool = False
) -> float:
    """Return among how many of some parts of the experts a token's lie, in the mean.

    Experts are taken to be chosen at random, all as often: a part has none of a token's with the chance that all of
    them are among the others. So are groups, of which a part has one or several, or several parts have one;
    otherwise they are left out.

    Args:
        num_parts: of the experts.
        num_experts: all of them.
        num_chosen: of a token.
        groups: of experts, and those that a token's are in.
        in_turn: whether each token has the experts that follow those of the token before.

    >>> round(num_touched(8, 256, 8), 2), round(num_touched(64, 256, 8), 2)
    (5.29, 7.68)
    >>> round(num_touched(8, 256, 8, (8, 4)), 2), round(num_touched(4, 256, 8, (8, 4)), 2)
    (3.63, 2.93)
    >>> num_touched(8, 256, 8, in_turn=True), num_touched(64, 256, 8, in_turn=True)
    (1.0, 2.0)
    """
    if in_turn:
        firsts, size = range(0, lcm(num_chosen, num_experts), num_chosen), num_experts // num_parts
        touched = (len({(first + i) % num_experts // size for i in range(num_chosen)}) for first in firsts)
        return sum(touched) / len(firsts)
    num_groups, chosen = (1, 1) if num_parts % groups[0] and groups[0] % num_parts else groups
    size, each = num_experts // num_groups, max(1, num_groups // num_parts)
    inside, found = chosen * size, 0.0
    for here in range(1, min(each, chosen) + 1):  # of a part's groups
        chance = comb(each, here) * comb(num_groups - each, chosen - here) / comb(num_groups, chosen)
        others = inside - here * min(size, num_experts // num_parts)
        found += chance * (1 - comb(others, num_chosen) / comb(inside, num_chosen))
    return num_parts * found


def shared_copies(model: Architecture, num_parts: int, *, in_turn: bool = False) -> float:
    """Return how many tokens a rank is sent for each copy that its experts take, where a token travels once.

    >>> from minitrain.workloads.transformer import models
    >>> round(shared_copies(models()["deepseek-v3"], 8), 2)
    0.45
    """
    num_chosen: int = model.experts_per_token
    groups = model.expert_groups, model.groups_per_token
    return num_touched(num_parts, model.num_experts, num_chosen, groups, in_turn=in_turn) / num_chosen


def kernels_of_experts(
    model: Architecture, unit: Unit, typ: str, num_copies: int, num_parts: int, recompute: Recompute, style: Style
) -> KernelList:
    """Return what a rank's experts run for some copies of tokens.

    Args:
        model: whose unit it is.
        unit: a unit with experts.
        typ: "forward", "backward", "backward_input" or "backward_weight".
        num_copies: copies of tokens, for all experts of the rank.
        num_parts: parts that the experts are divided into.
        recompute: what backward computes again.
        style: how a framework runs it.
    """
    has_slots = bool(style.one_hot_capacity)
    if has_slots:  # of which all are multiplied
        num_copies = ceil(num_copies * style.one_hot_capacity)
        style = replace(style, one_hot_capacity=0.0)
    num_tokens = -(-num_copies // model.experts_per_token)  # of a rank that gets as many copies as it sends
    if not num_tokens:
        return KernelList()
    work = Work(1, num_tokens, Degrees(ep=num_parts))
    weights = (weight for weight in unit.weights if weight.experts_per_token)
    experts = _with(unit, (projection for projection in unit.projections if projection.num_experts), weights)
    again = "moe_act" if takes_again(recompute, "moe_act") else "none"
    among = -(-style.copies_units // num_parts)  # ranks that share a part's experts
    style_of_all = replace(style, captures=style.captures_experts, fused_router=True, copies_units=among)
    whole = pass_kernels(model, experts, work, typ, again, style_of_all)
    kernels = _without(whole.kernels, _AROUND)
    if has_slots:
        kernels = tuple(replace(each, is_grouped=False) if isinstance(each, Matmul) else each for each in kernels)
    is_fused = style.captures == "whole" and model.precision.scaling == "mx"
    if is_fused:
        kernels = _fused(kernels, experts, work, model.mlp, is_backward=typ != "forward")
    of_bias = _BIAS_OF_FUSED if is_fused else _BIAS_OF_SINGLE if style.dispatcher in _ONCE else (1, 1)
    kernels = tuple(_with_bias(kernels, of_bias[typ != "forward"]))
    sends_once = style.dispatcher in _ONCE and typ != "backward_weight"
    has_chunks = typ != "backward_weight" and (sends_once or not style.moves_apart)
    if 1 < num_parts < model.num_experts and has_chunks:  # `sort_chunks_by_idxs` of Megatron-Core
        accesses = 2 * shared_copies(model, num_parts, in_turn=style.in_turn) if sends_once else _CHUNKS
        moved = accesses * model.precision.activation_bytes * style.eager
        kernels = (*kernels, MemoryPass("chunks", num_copies * model.hidden_size, moved))
    is_narrow = (style.datatype or model.precision.weight_datatype) in NARROW_BYTES and style.casts_apart
    if is_narrow and not style.pads_experts and style.dispatcher != "hybridep" and typ != "backward_weight":
        moved = _PADDED * model.precision.activation_bytes * style.eager
        kernels = (*kernels, MemoryPass("padding", num_copies * model.hidden_size, moved))
    around = sum(_LAUNCHES[each] for each in _AROUND_OF[typ]) + _CHUNK_LAUNCHES * sends_once
    if style.captures_experts:
        return KernelList(kernels, whole.num_launches, max(0, whole.num_in_graph - around))
    return KernelList(kernels, whole.num_launches - around)


def kernels_around_experts(
    model: Architecture, unit: Unit, typ: str, work: Work, recompute: Recompute, style: Style
) -> KernelList:
    """Return the kernels of a pass before the experts, or of one after them.

    Args:
        model: whose unit it is.
        unit: a unit with experts.
        typ: "route", "combine", "backward_combine" or "backward_route".
        work: the rank's samples and their length.
        recompute: what backward computes again.
        style: how a framework runs it.
    """
    router = [projection for projection in unit.projections if projection.name == "router"]
    shared = [projection for projection in unit.projections if projection.name.startswith("shared.")]
    way = "backward" if typ.startswith("backward") else "forward"
    of_pass = {"route": router, "combine": shared, "backward_route": [*router, *shared]}.get(typ, ())
    gathered = (weight for weight in unit.weights if typ.endswith("route") and not weight.experts_per_token)
    sorts = replace(style, one_hot_capacity=0.0, copies_units=style.copies_units if typ.endswith("route") else 0)
    found = pass_kernels(model, _with(unit, of_pass, gathered), work, way, "none", sorts).kernels
    before, after = PERMUTATIONS
    if typ == "backward_combine":
        found = tuple(kernel for kernel in found if _name(kernel) in _RESIDUAL | {after})
    else:
        found = _without(found, _RESIDUAL | {after} if typ in ("route", "backward_route") else _NORM | {before})
    if style.one_hot_capacity:
        found = (*_without(found, frozenset(PERMUTATIONS)), *_one_hot(model, typ, work, style))
    in_graph = typ in ("route", "backward_route")
    launches = _LAUNCHES[typ] - _COUNTS_LAUNCHES * (typ == "route" and style.dispatcher in _ONCE)
    launches += UNFUSED_ROUTER[model.expert_groups > 1] * (typ == "route" and not style.fused_router)
    passes = KernelList(found, *(style.captured(launches, unit.kind) if in_graph else (launches, 0)))
    if typ != "backward_route":
        return passes
    names = "+".join(name for name in ("layernorm", "shared_experts") if takes_again(recompute, name))
    return passes + repeated_kernels(model, unit, work, names, style) if names else passes


def _one_hot(model: Architecture, typ: str, work: Work, style: Style) -> tuple[Kernel, ...]:
    """Return the products with one-hot matrices of a pass before the experts, or of one after them."""
    num_slots = round(work.seq_len * model.experts_per_token * style.one_hot_capacity)
    is_backward = typ.startswith("backward")
    made = one_hot_products(work, model.hidden_size, num_slots, model.precision.datatype, is_backward=is_backward)
    return made[:1] if typ.endswith("route") else made[1:]  # that of the tokens is first, backward as forward


def _fused(
    kernels: Iterable[Kernel], experts: Unit, work: Work, activation: str, *, is_backward: bool
) -> tuple[Kernel, ...]:
    """Return the kernels of experts whose activation function, and the casts of its results, are the multiplications'.

    A graph of the whole step needs experts that the host gives no sizes; Transformer Engine multiplies those by cuDNN's
    kernels, which add the bias, clamp, activate, weigh and cast what they have, forward and backward
    (`ForwardGroupedMLP_CuTeGEMMSwiGLU_MXFP8` of its `pytorch/ops/fused/forward_grouped_mlp.py`, and
    `use_transformer_engine_op_fuser` of all `full_iteration` recipes of Megatron Bridge, `perf_recipes`).
    """
    down = next(projection for projection in experts.projections if projection.name.endswith("down")).gemm(work)
    up = next(projection for projection in experts.projections if not projection.name.endswith("down")).gemm(work)
    made = up.batch * up.m * up.n if is_backward else down.batch * down.m * down.k
    kept = [kernel for kernel in kernels if _name(kernel) not in (activation, PROBABILITIES)]
    casts = [kernel for kernel in kept if isinstance(kernel, MemoryPass) and kernel.name == "scaling"]
    left_out = [kernel for kernel in casts if kernel.num_elements == made][:1]
    return tuple(kernel for kernel in kept if all(kernel is not each for each in left_out))


def _with_bias(kernels: Iterable[Kernel], factor: float) -> Iterator[Kernel]:
    """Yield kernels with as many times the traffic of adding the last bias."""
    for kernel in kernels:
        if not (isinstance(kernel, MemoryPass) and kernel.name == "expert bias"):
            yield kernel
        elif factor:
            yield replace(kernel, element_bytes=factor * kernel.element_bytes)


def _with(unit: Unit, projections: Iterable[Projection], weights: Iterable[WeightShape] = ()) -> Unit:
    """Return a unit with some of its multiplications, and the weights that a pass gathers."""
    return replace(unit, projections=tuple(projections), weights=tuple(weights))


def _without(kernels: Iterable[Kernel], names: frozenset[str]) -> tuple[Kernel, ...]:
    """Return all kernels but passes over memory with some names."""
    return tuple(kernel for kernel in kernels if _name(kernel) not in names)


def _name(kernel: Kernel) -> str | None:
    """Return the name of a pass over memory."""
    return kernel.name if isinstance(kernel, MemoryPass) else None


_ROUTING = frozenset(names_of("experts"))


@dataclass(frozen=True, slots=True)
class Piece:
    """What a rank holds of a layer, where that is less than all, or than a part of it.

    Args:
        what: of a layer with experts "router" (norm, router and shared experts) or "experts" (a part of them); of
            embedding and head "own": all but the table, which the other one of them has.
        num_parts: parts that the experts, or the layer, are divided into; 1 for the router.
    """

    what: Literal["router", "experts", "own"]
    num_parts: int = 1


ROUTER = Piece("router")
_ALL = Fraction(1)
_piece = lru_cache(maxsize=256)(Piece)  # the same for each tensor

_WHAT: Mapping[type[Any], Literal["router", "experts"]] = {
    **dict.fromkeys(ROUTER_PIECES, "router"),
    **dict.fromkeys(EXPERT_PIECES, "experts"),
}


def division_of(tensor: Any) -> int | Piece:
    """Return how a weight, a gradient or a state is divided: in parts of whole layers, or as a piece with experts."""
    num_parts: int = getattr(tensor, "num_parts", 1)
    what = _WHAT.get(tensor.__class__)
    return num_parts if what is None else _piece(what, num_parts)


@dataclass(frozen=True, slots=True)
class ExpertPass(PassMode):
    """How a rank takes copies of tokens through its experts.

    Args:
        num_copies: copies that the rank has, for all its experts.
    """

    num_copies: int = 0


class ExpertLayers:
    """The layers with experts of a transformer.

    Args:
        model: the transformer.
        units: its units.
        seq_len: tokens of a sample.
    """

    def __init__(self, model: Architecture, units: tuple[Unit, ...], seq_len: int) -> None:
        self._model = model
        self._units = units
        self._seq_len = seq_len
        self.layers = frozenset(layer for layer, unit in enumerate(units) if unit.kind == "moe")
        self.num_experts = model.num_experts
        self._copy_bytes = model.hidden_size * model.precision.activation_bytes
        self._kept: dict[tuple[Any, ...], int] = {}  # what has been asked of what is kept, in bytes

    def num_copies(self, num_samples: int, share: Fraction = _ALL) -> int:
        """Return how many copies of tokens of some samples a share of them is, rounded up."""
        whole = num_samples * self._seq_len * self._model.experts_per_token
        return int(-(-whole * share.numerator // share.denominator))

    def held_copies(self, copies: Any) -> int:
        """Return how many copies a tensor holds."""
        if not copies.load.shares:
            return self._equal_copies(copies)
        return self.num_copies(len(copies.samples), copies.load.share(copies.parts) * copies.sequence.share)

    def _equal_copies(self, copies: Any) -> int:
        """Return the same where all parts get as many: in integers, as every tensor asks for it."""
        taken, sequence = 1 - copies.load.dropped if copies.load.dropped else _ALL, copies.sequence
        part = len(copies.parts) * sequence.count * taken.numerator
        whole = copies.load.num_parts * sequence.num_shards * sequence.num_pieces * taken.denominator
        return int(-(-len(copies.samples) * self._seq_len * self._model.experts_per_token * part // whole))

    def memory_bytes(self, copies: Any) -> int:
        """Return the bytes of the copies that a tensor holds."""
        return self.held_copies(copies) * self._copy_bytes

    def exchanged_bytes(self, copies: Any) -> int:
        """Return the bytes that the busiest rank of an exchange sends or receives, what stays on it included.

        All ranks exchange copies of as many samples, so that the busiest one is that with the busiest part.
        """
        if not copies.load.shares:
            return self.memory_bytes(copies)
        share = copies.load.busiest * len(copies.parts) * copies.sequence.share
        return self.num_copies(len(copies.samples), share) * self._copy_bytes

    def num_parameters(self, layer: int, piece: Piece, *, trained: bool = False) -> int:
        """Return the parameters of a piece of a layer, or those that are trained.

        Raises:
            UsageError: experts do not divide by the parts.
        """
        degrees = Degrees(ep=piece.num_parts)
        weights = self._units[layer].weights
        return sum(
            prod(weight.part(degrees))
            for weight in weights
            if bool(weight.experts_per_token) == (piece != ROUTER) and (weight.is_trained or not trained)
        )

    def cost(self, typ: str, num_samples: int, layer: int, mode: PassMode) -> Cost:
        """Return the cost of a pass through the experts, or of one before or after them.

        Args:
            typ: "route", "combine", "backward_combine" or "backward_route"; for experts "forward", "backward",
                "backward_input" or "backward_weight".
            num_samples: samples of the rank; for the experts themselves, `mode` says how many copies of tokens.
            layer: the layer.
            mode: how it is passed through.
        """
        unit = self._units[layer]
        if typ.startswith("backward") and not unit.has_backward:
            return Cost(0, 0)
        work = self._work(num_samples, 1 if mode.context is None else mode.context.degree)
        asked: Iterable[tuple[float, float]]
        asked = self._experts(unit, typ, mode) if isinstance(mode, ExpertPass) else self._around(unit, typ, work)
        if typ == "backward_route":
            asked = chain(asked, self._again(unit, work, mode.recompute))
        everything = list(asked)
        return Cost(sum(flop for flop, _ in everything), sum(num_bytes for _, num_bytes in everything))

    def kernels(self, typ: str, num_samples: int, layer: int, mode: PassMode, style: Style) -> KernelList:
        """Return the kernels of a pass; arguments as those of `cost`, and how a framework runs it."""
        unit = self._units[layer]
        if typ.startswith("backward") and not unit.has_backward:
            return KernelList()
        if isinstance(mode, ExpertPass):
            return kernels_of_experts(self._model, unit, typ, mode.num_copies, mode.num_parts, mode.recompute, style)
        work = self._work(num_samples, 1 if mode.context is None else mode.context.degree)
        return kernels_around_experts(self._model, unit, typ, work, mode.recompute, style)

    def _work(self, num_samples: int, num_parts: int) -> Work:
        """Return what a rank does with one of so many parts of each sequence, every token by itself."""
        return Work(num_samples, self._seq_len, Degrees(cp=num_parts))

    def _experts(self, unit: Unit, typ: str, mode: ExpertPass) -> Iterator[tuple[float, float]]:
        """Yield FLOPs and bytes of a rank's experts: each multiplication is one for each expert, together for all."""
        sizes = self._model.precision
        work = Work(1, self._seq_len, Degrees(ep=mode.num_parts))
        for projection in unit.projections:
            if projection.num_experts:
                gemm = projection.gemm(work)
                for name in _MOVED_OF_WEIGHTS[typ]:
                    if name == "parameter_bytes" or gemm.is_trained:
                        yield self._gemm(mode.num_copies, gemm, getattr(sizes, name), gemm.batch)

    def _around(self, unit: Unit, typ: str, work: Work) -> Iterator[tuple[float, float]]:
        """Yield FLOPs and bytes of a pass before or after the experts."""
        sizes = self._model.precision
        hidden = work.num_tokens * self._copy_bytes
        gemms = [projection.gemm(work) for projection in _shared(unit)]
        router = [projection.gemm(work) for projection in unit.projections if projection.name == "router"]
        moves_after = MOVES_OF_RESIDUAL + (MOVES_OF_NORM if has_second_norm(self._model) else 0)
        if typ == "route":
            yield 0, MOVES_OF_NORM * hidden
            yield from (self._gemm(gemm.m, gemm, sizes.parameter_bytes) for gemm in router)
        elif typ == "combine":
            yield 0, moves_after * hidden
            yield from (self._gemm(gemm.m, gemm, sizes.parameter_bytes) for gemm in gemms)
        elif typ == "backward_combine":
            yield 0, 2 * moves_after * hidden
        else:
            yield 0, 2 * MOVES_OF_NORM * hidden
            for gemm in (*router, *gemms):
                yield self._gemm(gemm.m, gemm, sizes.parameter_bytes)
                if gemm.is_trained:
                    yield self._gemm(gemm.m, gemm, sizes.gradient_bytes)

    def _again(self, unit: Unit, work: Work, recompute: Recompute) -> Iterator[tuple[float, float]]:
        """Yield FLOPs and bytes of what backward computes again of norm and shared experts by itself."""
        if unit.repeats_norm(recompute):
            yield 0, MOVES_OF_NORM * work.num_tokens * self._copy_bytes
        for projection in _shared(unit) if takes_again(recompute, "shared_experts") else ():
            gemm = projection.gemm(work)
            yield self._gemm(gemm.m, gemm, self._model.precision.parameter_bytes)

    def _gemm(self, num_rows: int, gemm: Gemm, weight_bytes: int, num_weights: int = 1) -> tuple[float, float]:
        """Return FLOPs and bytes of rows times a weight, or times several, of which each row takes one."""
        activations = self._model.precision.activation_bytes * num_rows * (gemm.k + gemm.n)
        return 2 * num_rows * gemm.k * gemm.n, activations + num_weights * weight_bytes * gemm.k * gemm.n

    def kept_by_router(
        self, layer: int, num_samples: int, num_parts: int = 1, recompute: Recompute = "none", *, combined: bool
    ) -> int:
        """Return the bytes that a layer's input stands for, once it is routed, and once it is combined.

        Args:
            layer: the layer.
            num_samples: samples of the rank.
            num_parts: ranks that each have an equal part of these samples' tokens.
            recompute: what backward computes again.
            combined: whether it is combined.
        """
        asked = layer, num_samples, num_parts, recompute, combined
        found = self._kept.get(asked)
        if found is None:
            found = self._kept[asked] = self._saved_by_router(*asked)
        return found

    def _saved_by_router(
        self, layer: int, num_samples: int, num_parts: int, recompute: Recompute, combined: bool
    ) -> int:
        """Add up what is kept for the first time."""
        work = self._work(num_samples, num_parts)
        saved = (
            tensor
            for tensor in self._units[layer].saved
            if not tensor.name.startswith("expert ")
            and (combined or tensor.name in _KEPT_BY_ROUTE)
            and tensor.is_kept(recompute)
        )
        return sum(tensor.num_bytes(work) for tensor in saved)

    def kept_by_experts(self, layer: int, num_copies: int, recompute: Recompute = "none") -> int:
        """Return the bytes that copies of tokens stand for, once they have gone through the experts."""
        found = self._kept.get((layer, recompute))
        if found is None:
            of_experts = (tensor for tensor in self._units[layer].saved if tensor.name.startswith("expert "))
            kept = (tensor.num_bytes(Work(1, 1, WHOLE)) for tensor in of_experts if tensor.is_kept(recompute))
            found = sum(num_bytes // self._model.experts_per_token for num_bytes in kept)
            self._kept[layer, recompute] = found
        return num_copies * found


_MOVED_OF_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "forward": ("parameter_bytes",),
    "backward": ("parameter_bytes", "gradient_bytes"),
    "backward_input": ("parameter_bytes",),
    "backward_weight": ("gradient_bytes",),
}
"""What each pass through experts moves of an element of a weight: a field of `Precision` for each multiplication."""

_KEPT_BY_ROUTE = frozenset({"norm input", "mlp input", "router probabilities"})


def _shared(unit: Unit) -> Iterator[Projection]:
    """Yield the multiplications of the shared experts."""
    return (projection for projection in unit.projections if projection.name.startswith("shared."))


def is_of_experts(typ: str, mode: PassMode) -> bool:
    """Return whether a pass is one of a layer whose experts are divided among ranks."""
    return typ in _ROUTING or mode.__class__ is ExpertPass


def is_copies(tensor: Any) -> bool:
    """Return whether a tensor is copies of tokens."""
    return tensor.__class__ in COPIES
