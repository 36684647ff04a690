"""Embeddings that are tied to the head, whose table has gradients from both."""

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

from minitrain.engine.protocol import Mesh
from minitrain.lib import Model

from ._batch import add


async def sum_tied(model: Model, grads: MutableMapping[Any, Any], ends: Iterable[int] | None = None) -> None:
    """Sum the gradient of the table that embedding and head share; nothing where none do.

    Args:
        model: the rank.
        grads: its gradients by layer, whole or of its part, which get the sum.
        ends: the ranks of the first and of the last stage, where each of the two layers is on one of them.
    """
    held = [layer for layer in tied_layers(model) if layer in grads]
    if not held:
        return
    for layer in held:
        grads["table"] = add(grads.get("table"), model.table_gradient(layer, grads[layer]))
    if ends is not None and len(held) == 1:
        grads["table"] = await model.all_reduce(grads["table"], held[0], group=ends)
    for layer in held:
        grads[layer] = model.with_table(layer, grads[layer], grads["table"])
    del grads["table"]


def tied_layers(model: Model) -> Sequence[int]:
    """Return embedding and head where they share a table, whose gradients stay whole until both are there."""
    return getattr(model, "tied_layers", ())  # the specification knows none


async def reduce_tied(
    model: Model, grads: MutableMapping[Any, Any], group: Any = None, ends: Iterable[int] | None = None
) -> None:
    """Sum the gradient of a shared table, and make shards of those of embedding and head; nothing where none do.

    Args:
        model: the rank.
        grads: its gradients by layer, of the rank's own samples.
        group: the ranks that share them; all if None.
        ends: as for `sum_tied`.
    """
    await sum_tied(model, grads, ends)
    for layer in tied_layers(model):
        if layer in grads:
            grads[layer] = await model.reduce_scatter(grads[layer], layer, group=group)


def ends_of(mesh: Mesh) -> list[Any]:
    """Return the ranks of the first and of the last stage that hold the same share as a rank along the other axes."""
    stage, last = mesh.coord("pp"), mesh.axes["pp"] - 1
    return [mesh.peer("pp", -stage), mesh.peer("pp", last - stage)]
