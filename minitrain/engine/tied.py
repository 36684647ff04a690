"""Tied embeddings: the gradient of the table that embedding and head share, summed over both uses.

    tables = [model.table_gradient(layer, grads[layer]) for layer in model.tied_layers if layer in grads]
    table = tables[0] + tables[1]  # or an all_reduce between the ranks that hold one each
    grads[layer] = model.with_table(layer, grads[layer], table)  # of each of the two layers, before its update

Both copies of the table then take equal steps (Press and Wolf 2017; Megatron-LM sums so between the first and the last
stage). Neither operation takes time: on a device they name a part of the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitrain.engine import laws
from minitrain.engine.laws import broken
from minitrain.engine.local_steps import sized
from minitrain.engine.state import RankState
from minitrain.errors import LawError, StrategyError
from minitrain.operations.collectives import describe
from minitrain.tensors import WeightGrad
from minitrain.tensors.tied import TableGrad


class TiedEmbeddings(RankState):
    """The operations on the table that two layers share.

    Attributes:
        has_tied: whether a layer got the table's gradient by both.
    """

    has_tied = False

    @property
    def tied_layers(self) -> tuple[int, ...]:
        """The two layers that share a table that is trained, embedding and head; none where none do."""
        found: tuple[int, ...] = getattr(self._runtime_predictor.workload, "tied_layers", ())
        return found

    def table_gradient(self, layer: int, grad: WeightGrad) -> TableGrad:
        """Return the gradient of the shared table by one of the two layers.

        Args:
            layer: embedding or head.
            grad: its whole gradient, of all samples.

        Raises:
            LawError: the gradient is a shard or a part, or samples are missing.
            StrategyError: the layer shares no table.
        """
        self._require_whole("table_gradient", layer, grad)
        first, fields = self.tied_layers[0], (self._num_layers, grad.samples, self._global_batch_size)
        return sized(self, TableGrad(first, *fields, uses=frozenset([int(layer != first)])))

    def with_table(self, layer: int, grad: WeightGrad, table: WeightGrad) -> WeightGrad:
        """Return a layer's gradient with that of the table as it is by both layers.

        Args:
            layer: embedding or head.
            grad: its whole gradient, of all samples.
            table: the sum of what `table_gradient` gave of both.

        Raises:
            LawError: a use is missing from the sum, or the gradient is a shard or a part.
            StrategyError: the layer shares no table.
        """
        self._require_whole("with_table", layer, grad)
        if not isinstance(table, TableGrad) or len(table.uses) != len(self.tied_layers):
            rule = f"the table's gradient must be the sum of what embedding and head have made, got {describe(table)}"
            raise broken(self, "with_table", f"{rule}; add both, or all_reduce them", layer, value=table)
        self.has_tied = True
        return sized(self, WeightGrad(layer, self._num_layers, grad.samples, self._global_batch_size))

    def _require_whole(self, op: str, layer: int, grad: Any) -> None:
        """Require the whole gradient of one of the two layers."""
        if layer not in self.tied_layers:
            has = f"layers {' and '.join(map(str, self.tied_layers))} do" if self.tied_layers else "no layers do"
            raise StrategyError(
                f"{op} on rank {self._rank}: layer {layer} shares no table with another, {has}; see model.tied_layers",
                op=op,
                rank=self._rank,
                layer=layer,
            )
        laws.require_inputs(self, op, layer, grad)
        if grad.__class__ is not WeightGrad or not grad.is_complete():
            rule = f"tables are summed whole, before gradients are sharded, and not by parts, got {describe(grad)}"
            raise broken(self, op, f"{rule}; gather it, or leave tensor parallelism out", layer, value=grad)
        laws.require_all_samples(self, layer, grad, laws.ADD_UP)


def require_tied(strategy: str, models: Sequence[Any]) -> None:
    """Require that a strategy has summed the gradient of a shared table, if there is one.

    Raises:
        LawError: embedding and head were updated apart.
    """
    tied = models[0].tied_layers
    if tied and not any(model.has_tied for model in models):
        raise LawError(
            f"tied_embeddings: {strategy} updates the copies of the table in layers {tied[0]} and {tied[1]} apart; sum "
            "their gradients by model.table_gradient and model.with_table, as ddp and 1f1b do, or use "
            "dataclasses.replace(model, tied_embeddings=False)"
        )
