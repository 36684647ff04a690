"""`StrictModel`: a rank whose tensors are followed from the operation that makes them to the last one that uses them.

It adds to each operation and calls what it extends, so that it can be combined with other kinds of model: the numeric
one, or one of a caller's own.
"""

from __future__ import annotations

from typing import Any

from minitrain.accounting.strict.attention import StrictAttention


class StrictModel(StrictAttention):
    """One rank of a strict run.

    Args: those of `Model`.

    Adds:
        load_weights, get_input_activation: give what they return its provenance and its buffer.
        forward, loss, backward, backward_input, backward_weight, update: require valid tensors of one step before, and
            give the results their provenance; an update takes the buffers of the old weight and state over.
        load_router, load_experts, route, combine, backward_combine, backward_route: likewise for layers with experts.
        get_input_shard, keys_values, attend, project: the same, for shards of a sequence.
        backward_project, backward_attend, backward_keys_values: the same.
        set_final_weight: requires a valid weight and keeps a copy that occupies nothing.
        _collective, _send, _receive: require valid tensors and remember the line; reductions overwrite their tensors.
        _offload, _fetch: require valid tensors, and give what comes back its provenance.
        after_collective, after_message, follows_tensors: give results their provenance, and require that nothing is
            counted twice.
        launch: holds what the operation was given, and its result, until it is awaited.
        _resize: gives the buffer of a tensor the tensor's new size.
        _store: makes stores that tell the ledger what they hold.
        _counted, memory_by_store: count every tensor alive, by the ledger.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._kind = type(self)
        self._given = self._given_now()

    def _given_now(self) -> tuple[Any, ...]:
        """Return what a strategy must leave alone."""
        return (
            self._dist,
            self._log,
            self._runtime_predictor,
            self._rank,
            self._world_size,
            self._num_layers,
            self._global_batch_size,
        )
