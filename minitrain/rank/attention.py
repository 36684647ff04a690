"""Attention computed in steps, where keys and values come from several ranks: by an all_gather, or round a ring.

Forward:

    kv = model.keys_values(layer, x, weight)                  # of the rank's own tokens
    attended = model.attend(layer, x, kv)                     # adds over blocks of keys
    out = model.project(layer, x, weight, attended)           # once the queries have seen all keys up to their own

Backward, in reverse:

    grad_attended = model.backward_project(layer, x, grad, weight)
    grad_queries, grad_kv = model.backward_attend(layer, x, grad_attended, kv)   # add over keys, and over queries
    grad_weight, grad_x = model.backward_keys_values(layer, x, weight, grad_queries, grad_kv)

The strategy communicates in between, by `all_gather` and `reduce_scatter`, or by `send` and `receive`. `keys_values`
makes the queries too, which stay with the layer's input. The strategy stores the rank's own keys and values until
backward. Each step checks its laws, logs one event, and is priced by the workload
(`minitrain.workloads.attention_steps`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minitrain.rank import attention_laws as steps
from minitrain.rank import placed_passes
from minitrain.rank.computation import Computation
from minitrain.rank.kept_for_backward import hold_core_again, keep_before_core, keep_of_steps
from minitrain.rank.placed_passes import gradients_of, mode_of_pass, output_of, record_pass
from minitrain.tensors import Activation, ActivationGrad
from minitrain.tensors.kinds import Weight
from minitrain.tensors.placed import (
    ActivationShard,
    Attended,
    AttendedGrad,
    KeysValues,
    KeysValuesGrad,
    QueriesGrad,
    WeightGradPart,
)
from minitrain.workloads.workload import Context, Recompute

_ALL = frozenset([0])


class Attention(Computation):
    """The operations on shards of a sequence, and the steps of an attention."""

    def has_attention(self, layer: int) -> bool:
        """Return whether tokens need one another in a layer, so that shards of a sequence take it in steps."""
        return placed_passes.has_attention(self, layer)

    def get_input_shard(self, samples: Iterable[int], shards: Iterable[int], num_shards: int) -> ActivationShard:
        """Return the model's input for some samples, and some shards of their sequence.

        Args:
            samples: indices into the global batch.
            shards: the rank's shards, as many for every rank; [i, 2 n - 1 - i] of 2 n leave n ranks equal work.
            num_shards: number of shards that the sequence is cut into.

        Raises:
            LawError: a sample is not of the global batch, or a shard not of the sequence.
        """
        return placed_passes.input_shard(self, samples, shards, num_shards)

    def keys_values(
        self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None
    ) -> KeysValues:
        """Return the keys and values of the rank's own tokens, and make the queries, which stay with the input.

        Args:
            layer: an attention.
            inp: its input, from a store.
            weight: its complete weight, from a store.
            recompute: what backward computes again (see `forward`), but not "mla_up_proj". With "self_attn" or "full"
                the strategy takes all steps again before backward, with "none": keys and values must travel again.

        Raises:
            LawError: the weight is incomplete or not in a store, or something is of another layer.
        """
        steps.require_step(self, "keys_values", layer, inp, weight)
        mode = mode_of_pass(recompute or self._recompute, inp, weight)
        steps.recomputation(self, layer, mode.recompute)
        record_pass(self, "keys_values", layer, inp, mode)
        made = KeysValues(*_of_heads(self, layer, inp, weight))
        self._account.size(made)
        keep_before_core(self, layer, inp, mode)
        return made

    def attend(self, layer: int, inp: Activation, keys_values: Activation) -> Attended:
        """Attend from the queries of an input to some keys and values.

        Args:
            layer: an attention.
            inp: its input, of which `keys_values` has made the queries.
            keys_values: of any shards of the same samples, from a store.

        Returns:
            What the queries got, a partial result that adds to what they get from other keys.

        Raises:
            LawError: something is of another layer, other samples or other parts, or cut otherwise, or not in a store.
        """
        steps.attend(self, "attend", layer, inp, keys_values)
        self._record_core("attend", layer, inp, keys_values)
        made = Attended(*_of_heads(self, layer, inp, keys_values, keys_values.sequence.shards))
        self._account.size(made)
        return made

    def _record_core(self, typ: str, layer: int, inp: Any, keys_values: Any) -> None:
        """Log a step of the queries and some keys, priced by the pairs between them that the mask leaves."""
        mode = steps.mode_of_forward(self, typ, layer, inp)
        context = _context(inp, keys_values)
        record_pass(self, typ, layer, inp, replace(mode, context=context))

    def project(self, layer: int, inp: Activation, weight: Weight, attended: Activation) -> Any:
        """Finish an attention: the output projection of what the queries got from all keys up to their own.

        Args:
            layer: an attention.
            inp: its input, which stands for all that is kept for backward from now on, but for keys and values.
            weight: its complete weight, from a store.
            attended: what the queries got.

        Returns:
            The input of layer + 1, for the same samples and shards; of one part of the heads, a partial sum.

        Raises:
            LawError: keys are missing, the weight is incomplete or not in a store, or something is of another layer.
        """
        steps.project(self, layer, inp, weight, attended)
        before = steps.mode_of_forward(self, "project", layer, inp)
        mode = replace(before, context=_context(inp, attended))
        record_pass(self, "project", layer, inp, mode)
        out = output_of(self, layer, inp, weight)
        keep_of_steps(self, layer, inp, out, mode)
        return out

    def backward_project(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> AttendedGrad:
        """Take a gradient back through the output projection.

        Args:
            layer: an attention.
            inp: its input, from a store.
            grad: gradient of its output, from a store, for the same samples and shards.
            weight: its complete weight, from a store.

        Raises:
            LawError: as for `backward`.
        """
        steps.backward_project(self, layer, inp, grad, weight)
        mode = steps.mode_of_backward(self, "backward_project", layer, inp)
        record_pass(self, "backward_project", layer, inp, mode)
        made = AttendedGrad(*_of_heads(self, layer, inp, weight))
        self._account.size(made)
        return made

    def backward_attend(
        self, layer: int, inp: Activation, grad: ActivationGrad, keys_values: Activation
    ) -> tuple[QueriesGrad, KeysValuesGrad]:
        """Take a gradient back to the queries and to some keys and values.

        Args:
            layer: an attention.
            inp: its input, from a store.
            grad: gradient of what its queries got.
            keys_values: of any shards of the same samples, from a store.

        Returns:
            The gradient of the queries, which adds over keys, and that of the keys and values, which adds over queries.

        Raises:
            LawError: as for `attend`.
        """
        steps.backward_attend(self, layer, inp, grad, keys_values)
        hold_core_again(self, layer, inp, keys_values)
        self._record_core("backward_attend", layer, inp, keys_values)
        of_queries = QueriesGrad(*_of_heads(self, layer, inp, keys_values, keys_values.sequence.shards))
        of_keys = KeysValuesGrad(*_of_heads(self, layer, keys_values, keys_values, inp.sequence.shards))
        self._account.size(of_queries)
        self._account.size(of_keys)
        return of_queries, of_keys

    def backward_keys_values(
        self,
        layer: int,
        inp: Activation,
        weight: Weight,
        grad_queries: ActivationGrad,
        grad_keys_values: ActivationGrad,
    ) -> tuple[WeightGradPart, Any]:
        """Take the gradients of queries, keys and values back to an attention's input: the last step of its backward.

        Args:
            layer: an attention.
            inp: its input, from a store.
            weight: its complete weight, from a store.
            grad_queries: the queries' gradient, over all keys that they have seen.
            grad_keys_values: the gradient of the rank's own keys and values, over the queries of all ranks.

        Returns:
            The gradient of the weight, which covers the input's shards of the sequence, and that of the input.

        Raises:
            LawError: a gradient lacks keys or queries, or is of other shards, or as for `backward`.
        """
        steps.backward_keys_values(self, layer, inp, weight, grad_queries, grad_keys_values)
        mode = steps.mode_of_backward(self, "backward_keys_values", layer, inp)
        record_pass(self, "backward_keys_values", layer, inp, mode)
        return gradients_of(self, layer, inp, weight)


def _context(inp: Any, seen: Any) -> Context:
    """Return the shards of an input's queries, and of the keys that they have to do with, or have seen."""
    keys: frozenset[int] = seen.keys if isinstance(seen, Attended) else seen.sequence.shards
    return Context(inp.sequence.shards, inp.sequence.num_shards, keys)


def _of_heads(model: Attention, layer: int, inp: Any, heads: Any, *summed: frozenset[int]) -> tuple[Any, ...]:
    """Return the fields of a tensor within an attention: shards as an input's, heads as a weight's or as keys'."""
    of_batch = layer, model._num_layers, inp.samples, model._global_batch_size
    return (*of_batch, inp.sequence, heads.parts, heads.num_parts, *summed)
