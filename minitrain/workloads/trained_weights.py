"""Which weights of a transformer train: all, those of its last layers, or low-rank adapters beside frozen matrices.

What is frozen has no gradient, no optimizer state and no multiplication for its gradient, and what was kept for that
alone is not kept. A unit below all that is trained has no backward.

Each adapted matrix, k inputs by n outputs, has two more: A of k x rank, and B of rank x n. Tensor parallelism cuts
them as it cuts the matrix: where that is cut by columns, B is, and every part has A; where it is cut by rows, A is, and
every part has B. What every part has, each takes all tokens through, so that a part's gradient of it is one share of a
sum over the parts. Megatron-Bridge exchanges the rank's activations in every pass instead, and has no such sum.

Source: Hu et al. (2021), "LoRA: Low-rank adaptation of large language models".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from minitrain.workloads.architecture import Architecture, Lora
from minitrain.workloads.degrees import Cut
from minitrain.workloads.shapes import ADAPTER, Projection, SavedTensor, WeightShape
from minitrain.workloads.unit import Unit


def with_trained(model: Architecture, units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Return a model's units with the weights that it trains marked, and adapters beside its matrices."""
    found, trains = list[Unit](), False
    for unit in units:
        marked = _marked(model, unit) if model.lora or model.frozen_layers else unit
        trains = trains or any(weight.is_trained for weight in marked.weights)
        found.append(marked if trains else replace(marked, saved=(), has_backward=False))
    return tuple(found)


def _marked(model: Architecture, unit: Unit) -> Unit:
    """Return a unit with its trained weights marked."""
    first = unit.kind == "embedding" or (unit.layer is not None and unit.layer < model.frozen_layers)
    if first or model.lora is not None:
        adapted = () if first or model.lora is None else tuple(_adapted(unit, model.lora))
        unit = _frozen(unit, adapted)
        return unit if model.lora is None else _with_adapters(model, model.lora, unit, adapted)
    tied = any(weight.is_shared for weight in unit.weights)  # to the embedding, which is frozen
    return _with_frozen_table(unit) if tied else unit


def _adapted(unit: Unit, lora: Lora) -> Iterator[WeightShape]:
    """Yield the matrices of a unit that have adapters."""
    for weight in unit.weights:
        if weight.name in (lora.targets or ()) and len(weight.shape) == 2 and unit.kind in ("attention", "mlp"):
            yield weight


def _frozen(unit: Unit, adapted: tuple[WeightShape, ...]) -> Unit:
    """Return a unit of which nothing is trained, without what is kept for its weights; adapters need their inputs."""
    kept_for = {weight.name for weight in adapted}
    return replace(
        unit,
        weights=tuple(replace(weight, is_trained=False) for weight in unit.weights),
        projections=tuple(replace(projection, is_trained=False) for projection in unit.projections),
        saved=tuple(each for each in unit.saved if not each.needed_for or kept_for.intersection(each.needed_for)),
    )


def _with_frozen_table(head: Unit) -> Unit:
    """Return a head whose norm is trained, and whose table is that of a frozen embedding."""
    return replace(
        head,
        weights=tuple(replace(weight, is_trained=not weight.is_shared) for weight in head.weights),
        projections=tuple(replace(projection, is_trained=False) for projection in head.projections),
        saved=tuple(each for each in head.saved if "tokens" not in each.needed_for),
    )


def _with_adapters(model: Architecture, lora: Lora, unit: Unit, adapted: tuple[WeightShape, ...]) -> Unit:
    """Return a unit with adapters beside some of its matrices."""
    module = "self_attn" if unit.kind == "attention" else "mlp"
    weights, projections, saved = list(unit.weights), list(unit.projections), list(unit.saved)
    for weight in adapted:
        (k, n), cut, by_rows = weight.shape, weight.cut, weight.cut_dim == 0
        copied, a, b = Cut("rank", lora.rank, is_copied=True), f"{weight.name}{ADAPTER}a", f"{weight.name}{ADAPTER}b"
        weights.append(WeightShape(a, (k, lora.rank), cut if by_rows else None, 0))
        weights.append(WeightShape(b, (lora.rank, n), None if by_rows else cut, 1))
        projections.append(Projection(a, k, lora.rank, cut if by_rows else copied, "k" if by_rows else "n"))
        projections.append(Projection(b, lora.rank, n, copied if by_rows else cut, "k" if by_rows else "n"))
        between = SavedTensor(f"{b} input", lora.rank, model.precision.activation_bytes, copied, (module,))
        saved.append(between)
    return replace(
        unit, weights=tuple(weights), projections=tuple(projections), saved=tuple(saved), adapter_scale=lora.scale
    )
