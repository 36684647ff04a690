"""Embeddings that are tied to the head, whose table has gradients from both."""

from collections.abc import Iterable, MutableMapping
from typing import Any

from minitrain.lib import Model

from ._batch import add


async def sum_tied(model: Model, grads: MutableMapping[Any, Any], ends: Iterable[int] | None = None) -> None:
    """Sum the gradient of the table that embedding and head share; nothing where none do.

    Args:
        model: the rank.
        grads: its gradients by layer, of all samples, which get the sum.
        ends: the ranks of the first and of the last stage, where each of the two layers is on one of them.
    """
    held = [layer for layer in getattr(model, "tied_layers", ()) if layer in grads]
    if not held:
        return
    for layer in held:
        grads["table"] = add(grads.get("table"), model.table_gradient(layer, grads[layer]))
    if ends is not None and len(held) == 1:
        grads["table"] = await model.all_reduce(grads["table"], held[0], group=ends)
    for layer in held:
        grads[layer] = model.with_table(layer, grads[layer], grads["table"])
    del grads["table"]
