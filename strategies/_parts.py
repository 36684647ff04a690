"""What ranks that have a part of each layer do between layers: tensor and sequence parallelism.

The functions are f and g of Megatron's figures (Shoeybi et al. 2019, figure 3; Korthikanti et al. 2022, figure 5).
"""

from collections.abc import MutableMapping
from typing import Any

from minitrain.engine.protocol import Group
from minitrain.lib import Model


class Parts:
    """The ranks that have one part each of every layer, as one of them sees them.

    Args:
        model: the rank.
        group: those ranks.
        sequence_parallel: whether activations between layers are shards of the sequence.

    Attributes:
        index: which part this rank has.
        size: number of parts.
        shard_sequence: whether activations between layers are shards of the sequence; one part has them whole.
    """

    def __init__(self, model: Model, group: Group, sequence_parallel: bool) -> None:
        self.index, self.size = group.index, group.size
        self.shard_sequence = sequence_parallel and group.size > 1
        self._model, self._group = model, group

    def _is_sharded(self, border: int) -> bool:
        """Return whether what passes into layer `border` is in shards: the model's input and output never are."""
        return self.shard_sequence and 0 < border < self._model.num_layers

    async def gather(self, store: MutableMapping[Any, Any], tensor: Any, border: int) -> Any:
        """Return what a layer takes: shards of the sequence are gathered, and kept in a store until `release`."""
        if not self._is_sharded(border):
            return tensor
        store["gathered"] = await self._model.all_gather(tensor, border, group=self._group)
        return store["gathered"]

    def release(self, *stores: MutableMapping[Any, Any]) -> None:
        """Free what was gathered."""
        for store in stores:
            store.pop("gathered", None)

    async def sum(self, partial: Any, border: int) -> Any:
        """Return the sum over the parts of a layer, in shards of the sequence if these are wanted."""
        if self.size == 1:
            return partial
        if self._is_sharded(border):
            return await self._model.reduce_scatter(partial, border, group=self._group)
        return await self._model.all_reduce(partial, border, group=self._group)

    async def sum_common(self, weight_grad: Any, layer: int) -> Any:
        """Return a gradient in which what all parts hold, such as norms, is summed over them where each has a share."""
        if not getattr(weight_grad, "has_share_of_common", False):
            return weight_grad
        return await self._model.all_reduce(weight_grad, layer, group=self._group)
