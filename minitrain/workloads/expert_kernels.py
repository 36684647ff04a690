"""The kernels of layers whose experts are divided among ranks: which of a whole layer's kernels each pass runs.

The multiplications of a rank's experts are one batch, each with the mean of its experts' tokens. Launches are shared
out so that a layer's passes have those of the whole layer together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.degrees import Degrees, Work
from minitrain.workloads.kernels import Kernel, KernelList, MemoryPass
from minitrain.workloads.pass_kernels import pass_kernels
from minitrain.workloads.shapes import Projection
from minitrain.workloads.unit import Unit
from minitrain.workloads.unit_kernels import Style, repeated_kernels
from minitrain.workloads.workload import Recompute, takes_again

_LAUNCHES: Mapping[str, int] = MappingProxyType(
    {"route": 4, "forward": 4, "combine": 4, "backward_combine": 3, "backward_route": 13}
    | {"backward": 8, "backward_input": 4, "backward_weight": 4}
)
_NORM = frozenset({"norm"})
_RESIDUAL = frozenset({"residual", "dropout and residual", "second norm"})
_AROUND = _NORM | _RESIDUAL | {"residual gradient", "bias gradient"}


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
    num_tokens = -(-num_copies // model.experts_per_token)  # of a rank that gets as many copies as it sends
    if not num_tokens:
        return KernelList()
    work = Work(1, num_tokens, Degrees(ep=num_parts))
    experts = _with(unit, (projection for projection in unit.projections if projection.num_experts))
    again = "moe_act" if takes_again(recompute, "moe_act") else "none"
    whole = pass_kernels(model, experts, work, typ, again, style)
    num_again = 1 if again != "none" and typ in ("backward", "backward_input") else 0
    return KernelList(_without(whole.kernels, _AROUND), _LAUNCHES[typ] + num_again)


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
    found = pass_kernels(model, _with(unit, of_pass), work, way, "none", style).kernels
    if typ == "backward_combine":
        found = tuple(kernel for kernel in found if _name(kernel) in _RESIDUAL)
    else:
        found = _without(found, _RESIDUAL if typ in ("route", "backward_route") else _NORM)
    passes = KernelList(found, _LAUNCHES[typ])
    if typ != "backward_route":
        return passes
    names = "+".join(name for name in ("layernorm", "shared_experts") if takes_again(recompute, name))
    return passes + repeated_kernels(model, unit, work, names, style) if names else passes


def _with(unit: Unit, projections: Iterable[Projection]) -> Unit:
    """Return a unit with some of its multiplications."""
    return replace(unit, projections=tuple(projections))


def _without(kernels: Iterable[Kernel], names: frozenset[str]) -> tuple[Kernel, ...]:
    """Return all kernels but passes over memory with some names."""
    return tuple(kernel for kernel in kernels if _name(kernel) not in names)


def _name(kernel: Kernel) -> str | None:
    """Return the name of a pass over memory."""
    return kernel.name if isinstance(kernel, MemoryPass) else None
