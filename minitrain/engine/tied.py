"""Tied embeddings: the gradient of the table that embedding and head share, summed over both uses.

    tables = [model.table_gradient(layer, grads[layer]) for layer in model.tied_layers if layer in grads]
    table = tables[0] + tables[1]  # or an all_reduce between the ranks that hold one each
    grads[layer] = model.with_table(layer, grads[layer], table)  # of each of the two layers, before its update

Both copies of the table then take equal steps (Press and Wolf 2017; Megatron-LM sums so between the first and the last
stage). Gradients are whole then, or those of a part of the layer, which has the same rows in both; summed before they
are cut into shards, as shards of the two layers lie otherwise. Which samples they cover is the same for both uses.
Neither operation takes time: on a device they name a part of the gradient.
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
from minitrain.tensors.index_sets import WHOLE_SEQUENCE, SequencePart
from minitrain.tensors.kinds import altered
from minitrain.tensors.placed import WeightGradPart
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
            grad: its gradient, or that of its part.

        Raises:
            LawError: the gradient is a shard.
            StrategyError: the layer shares no table.
        """
        self._require_whole("table_gradient", layer, grad)
        first, fields = self.tied_layers[0], (self._num_layers, grad.samples, self._global_batch_size)
        uses, part = frozenset([int(layer != first)]), (grad.parts, grad.num_parts, _whole_pieces(grad))
        return sized(self, TableGrad(first, *fields, grad.shards, grad.num_shards, uses, *part))

    def with_table(self, layer: int, grad: WeightGrad, table: WeightGrad) -> WeightGrad:
        """Return a layer's gradient with that of the table as it is by both layers.

        Args:
            layer: embedding or head.
            grad: its gradient, or that of its part.
            table: the sum of what `table_gradient` gave of both.

        Raises:
            LawError: a use is missing from the sum, the gradient is a shard, or both are of other samples or parts.
            StrategyError: the layer shares no table.
        """
        self._require_whole("with_table", layer, grad)
        if not isinstance(table, TableGrad) or len(table.uses) != len(self.tied_layers):
            rule = f"the table's gradient must be the sum of what embedding and head have made, got {describe(table)}"
            raise broken(self, "with_table", f"{rule}; add both, or all_reduce them", layer, value=table)
        if (grad.samples, grad.parts, _whole_pieces(grad)) != (table.samples, table.parts, table.sequence):
            rule = f"both must be of the same samples, sequence and part, got {describe(grad)} and {describe(table)}"
            raise broken(self, "with_table", rule, layer, value=grad)
        self.has_tied = True
        return sized(self, altered(grad))

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
        if grad.__class__ not in (WeightGrad, WeightGradPart) or not grad.is_complete():
            rule = f"tables are summed whole, before gradients are sharded, got {describe(grad)}"
            raise broken(self, op, f"{rule}; sum them before the reduce_scatter", layer, value=grad)


def _whole_pieces(grad: Any) -> SequencePart:
    """Return which shards of the sequence a gradient covers; of the table, always all of their pieces."""
    sequence: SequencePart = grad.sequence
    return sequence.with_pieces(WHOLE_SEQUENCE.pieces, 1)


def require_tied(strategy: str, models: Sequence[Any]) -> None:
    """Require that a strategy has summed the gradient of a shared table, if there is one.

    Raises:
        LawError: embedding and head were updated apart.
    """
    tied = models[0].tied_layers
    if tied and not any(model.has_tied for model in models):
        raise LawError(
            f"tied_embeddings: {strategy} updates the copies of the table in layers {tied[0]} and {tied[1]} apart; sum "
            "their gradients by model.table_gradient and model.with_table, as ddp and 1f1b do (megatron with "
            "sum_tied=True), or use dataclasses.replace(model, tied_embeddings=False)"
        )
