"""What a rank does without others: load, forward, loss, backward, update.

This is the hot path of a simulation: whole tensors and layers that are alike. An operation asks first, by one
expression, whether its call is a usual one, for which the laws hold. Where it is not, a function of
`minitrain.engine.laws` accepts the remaining legal calls and raises for all others. Sizes of results are taken from the
arguments or remembered, instead of measured by `Account.size`. tests/engine/test_quick_laws.py checks that all agree.

Prices come from tables (`minitrain.engine.state`) that stay empty where layers differ. Other kinds of layers and
tensors are in no table, and go to functions of their own.

Attention computed in steps, where keys and values come from several ranks: by an all_gather, or round a ring.

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
(`minitrain.workloads.pass_costs`).

What a step requires is in the functions called `_law_of_...`, see `minitrain.engine.laws`. It follows from the mask:
queries must have seen all keys up to the last query, and the gradient of keys must cover all queries from the first key
on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minitrain.engine import laws, placed_passes
from minitrain.engine.experts import backward_experts, forward_experts, update_piece
from minitrain.engine.gradients import as_declared, require_own, update_local
from minitrain.engine.laws import broken, require_kind
from minitrain.engine.placed_passes import (
    backward_placed,
    forward_placed,
    gradients_of,
    has_attention,
    hold_core_again,
    is_packed,
    keep_before_core,
    keep_of_steps,
    load_part,
    missing,
    mode_of_pass,
    output_of,
    price_of_loss,
    record_pass,
    require_same_shards,
    update_part,
    with_documents,
)
from minitrain.engine.placed_passes import mode_of_forward as known_mode
from minitrain.engine.state import RankState
from minitrain.errors import LawError
from minitrain.operations import NO_SAMPLES
from minitrain.operations.collectives import describe
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.index_sets import singleton
from minitrain.tensors.kinds import LocalWeight, maker_of
from minitrain.tensors.placed import (
    COPIES,
    PIECES,
    ActivationGradShard,
    ActivationShard,
    Attended,
    AttendedGrad,
    KeysValues,
    KeysValuesGrad,
    QueriesGrad,
    WeightGradPart,
    WeightPart,
)
from minitrain.workloads.workload import Context, PassMode, Recompute, modules_of, takes_again

_make_weight, _make_opt_state, _make_weight_grad = maker_of(Weight), maker_of(OptState), maker_of(WeightGrad)
_make_activation, _make_activation_grad = maker_of(Activation), maker_of(ActivationGrad)


class Computation(RankState):
    """The operations on a rank's compute stream.

    A result has its size when it is returned. Measuring each result would double the cost of storing it. Where all
    layers of the workload are alike, the size is therefore taken from another tensor of the same kind, with as many
    samples or shards.
    """

    def _is_whole_batch(self, samples: frozenset[int]) -> bool:
        """Return whether a set holds every sample; all ranks share the sets that are known to."""
        whole = len(samples) == self._global_batch_size and samples == frozenset(range(self._global_batch_size))
        if whole:
            self._whole_batches[id(samples)] = samples
        return whole

    def load_weights(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[Weight, OptState]:
        """Load one shard of a layer's weight and make its optimizer state, both of step 0.

        Args:
            layer: which layer.
            shard: which shard of it, or of its part.
            num_shards: number of shards that the layer, or its part, is cut into.
            part: which part of it this rank computes (some heads, columns and rows, or rows of a vocabulary).
            num_parts: number of parts that the layer is divided into; see `minitrain.tensors.placed`.

        Raises:
            LawError: there is no such layer, shard or part, or the layer has fewer rows than shards.
            UsageError: heads, columns or experts do not divide by the parts.
        """
        if num_parts != 1 or part != 0:
            laws.load(self, layer, shard, num_shards)
            laws.part(self, layer, part, num_parts)
            return load_part(self, layer, shard, num_shards, part, num_parts)
        if not (
            layer.__class__ is shard.__class__ is num_shards.__class__ is int
            and 0 <= layer < self._num_layers
            and 0 <= shard < num_shards <= self._max_shards
        ):
            laws.load(self, layer, shard, num_shards)
        found = self._remembered.loads.get(num_shards)
        if found is None or self._entry is not None:
            return placed_passes.load(self, layer, shard, num_shards)
        price, units, state_units = found
        self._record("load_weights", layer, price, NO_SAMPLES)
        layers, shards = self._num_layers, singleton(shard)
        weight = _make_weight(units, layer, layers, 0, shards, num_shards)
        return weight, _make_opt_state(state_units, layer, layers, 0, shards, num_shards)

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Hand in the trained weight of a layer (or this rank's shard of it).

        Raises:
            LawError: it is not a weight of that layer.
        """
        laws.final_weight(self, layer, weight)
        if self._semantics is not None:
            weight = as_declared(self, layer, weight)
        self._final_of(weight)[layer] = weight

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the model's input for some samples: an activation of layer 0.

        Raises:
            LawError: a sample is not of the global batch.
        """
        return Activation(0, self._num_layers, laws.input_samples(self, samples), self._global_batch_size)

    def forward(self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None) -> Activation:
        """Take an activation through a layer.

        Args:
            layer: which layer.
            inp: its input, which stands for all that is kept for backward from now on.
            weight: its complete weight, from a store.
            recompute: what backward computes again instead: "none", "selective" (the attention core), "full" (the
                whole transformer layer), or modules by Megatron-Core's words, such as "layernorm+mla_up_proj+moe_act"
                (see `minitrain.workloads.workload.MODULES`); `model.recompute` if None. Layers that are alike keep
                their input alone.

        Returns:
            The input of layer + 1, for the same samples.

        Raises:
            LawError: the weight is incomplete or not in a store, or something is of another layer.
        """
        if not laws.is_usual_forward(self, layer, inp, weight):
            if weight.__class__ in PIECES or inp.__class__ in COPIES:
                return forward_experts(self, layer, inp, weight, recompute or self._recompute)  # type: ignore[no-any-return]  # copies of tokens
            laws.require_inputs(self, "forward", layer, inp, weight)
        if weight.__class__ is WeightPart or inp.__class__ is not Activation:
            return forward_placed(self, layer, inp, weight, recompute or self._recompute)  # type: ignore[no-any-return]  # an Activation of parts, or a shard
        samples = inp.samples
        price = self._remembered.forwards.get(len(samples))
        if price is None:
            return placed_passes.forward(self, layer, inp, recompute)
        self._record("forward", layer, price, samples)
        units = self._account.units_of(inp)
        return _make_activation(units, layer + 1, self._num_layers, samples, self._global_batch_size)

    def loss(self, inp: Activation) -> ActivationGrad:
        """Return the gradient of the loss with respect to the model's output (free of cost).

        Raises:
            LawError: `inp` is not the model's output.
        """
        laws.loss(self, inp)
        samples, in_shards = inp.samples, isinstance(inp, ActivationShard)
        if self._is_uniform and not in_shards:
            price = self._runtime_predictor.compute("loss", len(samples), self._num_layers)
        else:
            price = price_of_loss(self, inp)
        self._record("loss", self._num_layers, price, samples)
        fields = self._num_layers - 1, self._num_layers, samples, self._global_batch_size
        return ActivationGradShard(*fields, inp.sequence) if in_shards else ActivationGrad(*fields)

    def backward(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """Take a gradient back through a layer.

        Args:
            layer: which layer.
            inp: the layer's input, from a store.
            grad: gradient of its output, from a store, for the same samples.
            weight: its complete weight, from a store.

        Returns:
            The gradient of the weight, and that of the layer's input (an `ActivationGrad` of layer - 1).

        Raises:
            LawError: something is of another layer, of other samples, incomplete, or not in a store.
        """
        elsewhere = self._back_elsewhere("backward", layer, inp, grad, weight)
        if elsewhere is not None:
            return elsewhere
        samples = inp.samples
        found = self._remembered.backwards.get(len(samples))
        if found is None:
            return placed_passes.backward(self, layer, inp, grad)
        price, units = found
        self._record("backward", layer, price, samples)
        layers, batch_size = self._num_layers, self._global_batch_size
        grad_inp = _make_activation_grad(self._account.units_of(grad), layer - 1, layers, samples, batch_size)
        return _make_weight_grad(units, layer, layers, samples, batch_size), grad_inp

    def _back_elsewhere(self, op: str, layer: int, inp: Any, grad: Any, weight: Any) -> tuple[Any, Any] | None:
        """Return both gradients of experts, parts or shards; None of whole layers, for which the laws hold."""
        is_usual = laws.is_usual_backward(self, op, layer, inp, grad, weight)
        if is_usual and weight.__class__ is not WeightPart:
            return None
        if weight.__class__ in PIECES or inp.__class__ in COPIES:
            return backward_experts(self, op, layer, inp, grad, weight)
        if not is_usual:
            laws.require_inputs(self, op, layer, inp, grad, weight)
        if weight.__class__ is WeightPart or isinstance(inp, ActivationShard) or inp.sequence != grad.sequence:
            return backward_placed(self, op, layer, inp, grad, weight)
        return None

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Take a gradient back to a layer's input alone: the first half of a split backward (Qi et al. 2023).

        Args, Raises: as for `backward`.

        Returns:
            The gradient of the layer's input (an `ActivationGrad` of layer - 1).
        """
        elsewhere = self._back_elsewhere("backward_input", layer, inp, grad, weight)
        if elsewhere is not None:
            return elsewhere[1]  # type: ignore[no-any-return]  # of the input
        samples = inp.samples
        price = self._remembered.backward_inputs.get(len(samples))
        if price is None:
            return placed_passes.backward_input(self, layer, inp, grad)
        self._record("backward_input", layer, price, samples)
        units = self._account.units_of(grad)
        return _make_activation_grad(units, layer - 1, self._num_layers, samples, self._global_batch_size)

    def backward_weight(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight | None = None
    ) -> WeightGrad:
        """Return the gradient of a layer's weight: the second half of a split backward (Qi et al. 2023).

        Args:
            layer: which layer.
            inp: the layer's input, from a store.
            grad: gradient of its output, from a store, for the same samples.
            weight: the weight, from a store, where it is a part of a layer, so that its gradient is one too.

        Raises:
            LawError: something is of another layer, of other samples, or not in a store.
        """
        elsewhere = self._back_elsewhere("backward_weight", layer, inp, grad, weight)
        if elsewhere is not None:
            return elsewhere[0]  # type: ignore[no-any-return]  # of the weight
        samples = inp.samples
        found = self._remembered.backward_weights.get(len(samples))
        if found is None:
            return placed_passes.backward_weight(self, layer, inp)
        price, units = found
        self._record("backward_weight", layer, price, samples)
        return _make_weight_grad(units, layer, self._num_layers, samples, self._global_batch_size)

    def update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState
    ) -> tuple[Weight, OptState]:
        """Take an optimizer step on a weight, or on the shards of it that this rank holds.

        Args:
            layer: which layer.
            weight_grad: gradient over all samples, of at least the weight's shards.
            weight: the weight.
            opt_state: its optimizer state, of the same step and of at least its shards.

        Returns:
            Weight and state, one step on; on a device they take the place of the old ones.

        Raises:
            LawError: a layer or step differs, a sample is missing, or shards do not match or are less than a row.
        """
        try:
            shards, num_shards, samples = weight.shards, weight.num_shards, weight_grad.samples
            units, state_units = weight._units, opt_state._units
            is_legal = (
                weight.layer == layer == weight_grad.layer == opt_state.layer
                and (id(samples) in self._whole_batches or self._is_whole_batch(samples))
                and weight.step == opt_state.step
                and num_shards == weight_grad.num_shards == opt_state.num_shards <= self._max_shards
                and (shards is weight_grad.shards or shards == weight_grad.shards)
                and (shards is opt_state.shards or shards == opt_state.shards)
                and weight.__class__ is Weight
                and weight_grad.__class__ is WeightGrad
                and opt_state.__class__ is OptState
            )
        except AttributeError:  # no tensor, or one that was never in a store
            is_legal = False
        if not is_legal:
            if weight.__class__ is LocalWeight:
                return update_local(self, layer, weight_grad, weight, opt_state)  # type: ignore[no-any-return]  # as given
            is_own = self._semantics is not None and self._semantics.in_turn and isinstance(weight, Weight)
            (require_own if is_own else laws.update)(self, layer, weight_grad, weight, opt_state)
            if weight.__class__ in PIECES or weight_grad.__class__ in PIECES or opt_state.__class__ in PIECES:
                return update_piece(self, weight, weight_grad, opt_state)
            if weight.__class__ is WeightPart:
                return update_part(self, weight, weight_grad, opt_state)
            units, state_units = map(self._account.units_of, (weight, opt_state))  # one may have been in no store yet
        price = self._remembered.updates.get((len(shards), num_shards))
        if price is None:
            price = placed_passes.price_of_update(self, layer, weight)
        self._record("update", layer, price, samples)
        layers, step, kept = self._num_layers, opt_state.step + 1, opt_state.shards
        state = _make_opt_state(state_units, layer, layers, step, kept, opt_state.num_shards)
        return _make_weight(units, layer, layers, weight.step + 1, shards, num_shards), state


_ALL = frozenset([0])


class Attention(Computation):
    """The operations on shards of a sequence, and the steps of an attention."""

    def has_attention(self, layer: int) -> bool:
        """Return whether tokens need one another in a layer, so that shards of a sequence take it in steps."""
        return placed_passes.has_attention(self, layer)

    def document_lengths(self, sample: int) -> tuple[int, ...]:
        """Return the tokens of the documents that a sample consists of: of one, where none are packed.

        Raises:
            LawError: the sample is not of the global batch.
        """
        (found,) = self._samples_of([sample])
        return placed_passes.lengths_of(self, found)

    def count_pairs(
        self, samples: Iterable[int], shards: Iterable[int] = (0,), num_shards: int = 1, cut: str = "sequence"
    ) -> int:
        """Return the pairs of a query of some shards and a key that it sees: attention's FLOPs are proportional.

        Args:
            samples: indices into the global batch.
            shards: those of the queries.
            num_shards: number of shards that the sequence is cut into.
            cut: as for `get_input_shard`.

        Raises:
            LawError, UsageError: as for `get_input_shard`.
        """
        found = self._samples_with_documents(self._samples_of(samples))
        return placed_passes.count_pairs(self, found, shards, num_shards, cut)

    def _samples_of(self, samples: Iterable[int]) -> Any:
        """Return samples as a set."""
        return laws.input_samples(self, samples)

    def get_input_shard(
        self, samples: Iterable[int], shards: Iterable[int], num_shards: int, cut: str = "sequence"
    ) -> ActivationShard:
        """Return the model's input for some samples, and some shards of their sequence.

        Args:
            samples: indices into the global batch.
            shards: the rank's shards, as many for every rank; [i, 2 n - 1 - i] of 2 n leave n ranks equal work.
            num_shards: number of shards that the sequence is cut into.
            cut: "sequence": a shard is a run of neighbouring tokens; "document": of each document of a packed sequence
                (see `minitrain.workloads.documents`).

        Raises:
            LawError: a sample is not of the global batch, or a shard not of the sequence.
        """
        return placed_passes.input_shard(self, samples, shards, num_shards, cut)

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
        _require_step(self, "keys_values", layer, inp, weight)
        mode = mode_of_pass(recompute or self._recompute, inp, weight)
        _require_recomputation(self, layer, mode.recompute)
        record_pass(self, "keys_values", layer, inp, mode)
        made = self._sized(KeysValues(*_of_heads(self, layer, inp, weight)))
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
        _law_of_attend(self, "attend", layer, inp, keys_values)
        self._record_core("attend", layer, inp, keys_values)
        return self._sized(Attended(*_of_heads(self, layer, inp, keys_values, keys_values.sequence.shards)))

    def _record_core(self, typ: str, layer: int, inp: Any, keys_values: Any) -> None:
        """Log a step of the queries and some keys, priced by the pairs between them that the mask leaves."""
        mode = _mode_of_forward(self, typ, layer, inp)
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
        _law_of_project(self, layer, inp, weight, attended)
        before = _mode_of_forward(self, "project", layer, inp)
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
        _require_step(self, "backward_project", layer, inp, grad, weight)
        mode = _mode_of_backward(self, "backward_project", layer, inp)
        require_same_shards(self, "backward_project", layer, inp, grad)
        record_pass(self, "backward_project", layer, inp, mode)
        return self._sized(AttendedGrad(*_of_heads(self, layer, inp, weight)))

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
        _law_of_attend(self, "backward_attend", layer, inp, keys_values, grad)
        _mode_of_backward(self, "backward_attend", layer, inp)
        require_same_shards(self, "backward_attend", layer, inp, grad)
        hold_core_again(self, layer, inp, keys_values)
        self._record_core("backward_attend", layer, inp, keys_values)
        of_queries = QueriesGrad(*_of_heads(self, layer, inp, keys_values, keys_values.sequence.shards))
        of_keys = KeysValuesGrad(*_of_heads(self, layer, keys_values, keys_values, inp.sequence.shards))
        return self._sized(of_queries), self._sized(of_keys)

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
        _law_of_backward_keys_values(self, layer, inp, weight, grad_queries, grad_keys_values)
        mode = _mode_of_backward(self, "backward_keys_values", layer, inp)
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


def _require_step(model: RankState, op: str, layer: int, inp: Any, *others: Any) -> None:
    """Require an attention, and what the record of its step says of the inputs."""
    require_kind(model, op, "inp", inp, ActivationShard)
    if not has_attention(model, layer):
        laws.require_layer(model, op, "inp", inp, layer, layer)
        raise broken(model, op, f"layer {layer} is no attention; take it by forward and backward", layer)
    laws.require_inputs(model, op, layer, inp, *others)


def _require_recomputation(model: RankState, layer: int, recompute: str) -> None:
    """Require that keys and values are kept as they travel, or made again by all steps of the attention."""
    if "mla_up_proj" in modules_of(recompute):
        rule = (
            "the projections up from the latents are not computed again by themselves where a sequence is cut between "
            f'ranks, whose keys and values travel; use "self_attn" or "full", got recompute={recompute!r}'
        )
        raise broken(model, "keys_values", rule, layer)


def _mode_of_forward(model: RankState, op: str, layer: int, inp: Any) -> PassMode:
    """Return how an input's queries were made.

    Raises:
        LawError: they were not made.
    """
    mode = known_mode(inp)
    if mode is None:
        rule = f"the queries of {describe(inp)} have not been made; call keys_values of the same input first"
        raise broken(model, op, rule, layer, value=inp)
    return mode


def _mode_of_backward(model: RankState, op: str, layer: int, inp: Any) -> PassMode:
    """Return how an input's queries were made, for a step of backward.

    Raises:
        LawError: they were not made, or nothing of them was kept.
    """
    mode = _mode_of_forward(model, op, layer, inp)
    if takes_again(mode.recompute, "self_attn"):
        rule = (
            f"{describe(inp)} is all that was kept of this attention; take keys_values, attend and project again, with "
            'recompute="none", before its backward'
        )
        raise broken(model, op, rule, layer, value=inp)
    return mode


def _law_of_attend(model: RankState, op: str, layer: int, inp: Any, keys_values: Any, *grad: Any) -> None:
    """Require queries, and keys and values of the same samples, cut alike."""
    _require_step(model, op, layer, inp, *grad, keys_values)
    mode = _mode_of_forward(model, op, layer, inp)
    if keys_values.samples != inp.samples or keys_values.sequence.cut != inp.sequence.cut:
        rule = (
            "queries and keys must be of the same samples, whose sequence is cut alike, got "
            f"{describe(inp)} and {describe(keys_values)}"
        )
        raise broken(model, op, rule, layer, value=keys_values)
    if keys_values.num_parts != mode.num_parts:
        rule = (
            f"queries and keys must be of the same part of the heads, got {describe(keys_values)} for queries of a "
            f"part of {mode.num_parts}"
        )
        raise broken(model, op, rule, layer, value=keys_values)


def _law_of_project(model: RankState, layer: int, inp: Any, weight: Any, attended: Any) -> None:
    """Require what the input's queries got from all keys up to the last of them."""
    _require_step(model, "project", layer, inp, weight, attended)
    _mode_of_forward(model, "project", layer, inp)
    _require_of_input(model, "project", "attended", layer, inp, weight, attended)
    lacking = missing(attended.keys, _keys_seen(model, layer, inp))
    if lacking:
        raise _lacks(model, "project", layer, attended, f"keys of {_shards(lacking, inp)}", "attend them too")


def _law_of_backward_keys_values(
    model: RankState, layer: int, inp: Any, weight: Any, grad_queries: Any, grad_keys_values: Any
) -> None:
    """Require the gradients of the input's queries, keys and values, over all keys and queries that there are."""
    op = "backward_keys_values"
    _require_step(model, op, layer, inp, weight, grad_queries, grad_keys_values)
    _mode_of_backward(model, op, layer, inp)
    _require_of_input(model, op, "grad_queries", layer, inp, weight, grad_queries)
    _require_of_input(model, op, "grad_keys_values", layer, inp, weight, grad_keys_values)
    lacking = missing(grad_queries.keys, _keys_seen(model, layer, inp))
    if lacking:
        raise _lacks(model, op, layer, grad_queries, f"keys of {_shards(lacking, inp)}", "backward_attend them too")
    lacking = missing(grad_keys_values.queries, _queries_that_see(model, layer, inp))
    if lacking:
        remedy = "add what other ranks have: reduce_scatter it, or let it travel round the ring"
        raise _lacks(model, op, layer, grad_keys_values, f"queries of {_shards(lacking, inp)}", remedy)


def _keys_seen(model: RankState, layer: int, inp: Any) -> Iterable[int]:
    """Return the shards of keys that an input's queries see."""
    own, count = inp.sequence.shards, inp.sequence.num_shards
    if not is_packed(model):
        return range(max(own) + 1)
    pairs = with_documents(model, layer, inp, PassMode(), Context(own, count, frozenset(range(count)))).pairs
    return {key for _, key, _ in pairs.by_shard} if pairs else ()


def _queries_that_see(model: RankState, layer: int, inp: Any) -> Iterable[int]:
    """Return the shards of queries that see the keys of an input."""
    own, count = inp.sequence.shards, inp.sequence.num_shards
    if not is_packed(model):
        return range(min(own), count)
    pairs = with_documents(model, layer, inp, PassMode(), Context(frozenset(range(count)), count, own)).pairs
    return {query for query, _, _ in pairs.by_shard} if pairs else ()


def _require_of_input(model: RankState, op: str, name: str, layer: int, inp: Any, weight: Any, value: Any) -> None:
    """Require a tensor within an attention that is of the input's samples and shards, and of the weight's part."""
    require_same_shards(model, op, layer, inp, value)
    same_part = (value.parts, value.num_parts) == (weight.parts, weight.num_parts)
    if value.samples != inp.samples or not same_part:
        rule = (
            f"{name} must be of the input's samples and of the weight's part, got {describe(value)} for "
            f"{describe(inp)} and {describe(weight)}"
        )
        raise broken(model, op, rule, layer, value=value)


def _lacks(model: RankState, op: str, layer: int, value: ActivationGrad | Attended, what: str, remedy: str) -> LawError:
    """Return the error for a sum that is not complete."""
    return broken(model, op, f"{describe(value)} lacks {what}; {remedy}", layer, value=value)


def _shards(found: str, inp: Any) -> str:
    """Return shards in words."""
    return f"{'shard' if found.isdigit() else 'shards'} {found} of {inp.sequence.num_shards}"
