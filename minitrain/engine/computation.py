"""What a rank does without others: load, forward, loss, backward, update.

This is the hot path of a simulation: whole tensors and layers that are alike. Three things are written out here that
stand elsewhere too:

- The laws: an operation checks them by one expression (`is_legal`) that holds for all usual calls. Where it does not
  hold, a function of `minitrain.engine.laws` accepts the remaining legal calls and raises for all others.
- The rows of the log, which are added without `RankState._record`.
- The sizes of results, which are taken from the arguments or remembered, instead of measured by `Account.size`.

They must agree with those places, which tests/engine/test_quick_laws.py checks.

Prices come from tables (`minitrain.engine.state`) that stay empty where layers differ. So this path does not check
for other kinds of layers and tensors: they fail the expression or are in no table, and go to functions of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from minitrain.engine import laws, placed_passes
from minitrain.engine.experts import backward_experts, forward_experts, update_piece
from minitrain.engine.gradients import as_declared, require_own, update_local
from minitrain.engine.placed_passes import (
    backward_placed,
    forward_placed,
    load_part,
    may_backward,
    may_forward,
    price_of_loss,
    update_part,
)
from minitrain.engine.state import RankState
from minitrain.operations import NO_SAMPLES, ON_COMPUTE
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.index_sets import singleton
from minitrain.tensors.kinds import (
    LocalWeight,
    make_activation,
    make_activation_grad,
    make_opt_state,
    make_weight,
    make_weight_grad,
)
from minitrain.tensors.placed import COPIES, PIECES, ActivationGradShard, ActivationShard, WeightPart
from minitrain.workloads.workload import Recompute


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
        time = self._time
        self._rows.extend(
            ("load_weights", layer, time, price, self._account.units, NO_SAMPLES, ON_COMPUTE, None, time, None)
        )
        self._time = time + price.seconds
        shards = singleton(shard)
        weight = make_weight(layer, self._num_layers, 0, shards, num_shards, units)
        return weight, make_opt_state(layer, self._num_layers, 0, shards, num_shards, state_units)

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
        account = self._account
        try:
            units = inp._units
            is_legal = (
                weight.layer == layer == inp.layer
                and weight._home is account
                and len(weight.shards) == weight.num_shards
                and weight.__class__ is Weight
                and inp.__class__ is Activation
            )
        except AttributeError:  # no tensor, or one that was never in a store
            is_legal = False
        if not is_legal:
            if not may_forward(self, layer, inp, weight):
                if weight.__class__ in PIECES or inp.__class__ in COPIES:
                    return forward_experts(self, layer, inp, weight, recompute or self._recompute)  # type: ignore[no-any-return]  # copies of tokens
                laws.require_inputs(self, "forward", layer, inp, weight)
            if weight.__class__ is WeightPart or isinstance(inp, ActivationShard):
                return forward_placed(self, layer, inp, weight, recompute or self._recompute)  # type: ignore[no-any-return]  # an Activation of parts, or a shard
            units = account.units_of(inp)
        samples = inp.samples
        price = self._remembered.forwards.get(len(samples))
        if price is None:
            return placed_passes.forward(self, layer, inp, recompute)
        time = self._time
        self._rows.extend(("forward", layer, time, price, account.units, samples, ON_COMPUTE, None, time, None))
        self._time = time + price.seconds
        return make_activation(layer + 1, self._num_layers, samples, self._global_batch_size, units)

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
        account = self._account
        try:
            samples = inp.samples
            units = grad._units
            is_legal = (
                weight.layer == layer == inp.layer == grad.layer
                and weight._home is account
                and inp._home is account
                and grad._home is account
                and (samples is grad.samples or samples == grad.samples)
                and len(weight.shards) == weight.num_shards
                and weight.__class__ is Weight
                and inp.__class__ is Activation
                and grad.__class__ is ActivationGrad
            )
        except AttributeError:  # as in forward
            is_legal = False
        if not is_legal:
            if not may_backward(self, layer, inp, grad, weight):
                if weight.__class__ in PIECES or inp.__class__ in COPIES:
                    return backward_experts(self, "backward", layer, inp, grad, weight)
                laws.require_inputs(self, "backward", layer, inp, grad, weight)
            if weight.__class__ is WeightPart or isinstance(inp, ActivationShard) or inp.sequence != grad.sequence:
                return backward_placed(self, "backward", layer, inp, grad, weight)
            units = account.units_of(grad)
        found = self._remembered.backwards.get(len(samples))
        if found is None:
            return placed_passes.backward(self, layer, inp, grad)
        price, weight_grad_units = found
        time = self._time
        self._rows.extend(("backward", layer, time, price, account.units, samples, ON_COMPUTE, None, time, None))
        self._time = time + price.seconds
        batch = self._global_batch_size
        weight_grad = make_weight_grad(layer, self._num_layers, samples, batch, weight_grad_units)
        return weight_grad, make_activation_grad(layer - 1, self._num_layers, samples, batch, units)

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Take a gradient back to a layer's input alone: the first half of a split backward (Qi et al. 2023).

        Args, Raises: as for `backward`.

        Returns:
            The gradient of the layer's input (an `ActivationGrad` of layer - 1).
        """
        if not laws.is_usual_half(self, "backward_input", layer, inp, grad, weight):
            if weight.__class__ in PIECES or inp.__class__ in COPIES:
                return backward_experts(self, "backward_input", layer, inp, grad, weight)[1]
            laws.require_inputs(self, "backward_input", layer, inp, grad, weight)
            if weight.__class__ is WeightPart or isinstance(inp, ActivationShard) or inp.sequence != grad.sequence:
                return backward_placed(self, "backward_input", layer, inp, grad, weight)[1]  # type: ignore[no-any-return]  # as above
        samples = inp.samples
        price = self._remembered.backward_inputs.get(len(samples))
        if price is None:
            return placed_passes.backward_input(self, layer, inp, grad)
        self._record("backward_input", layer, price, samples)
        units = self._account.units_of(grad)
        return make_activation_grad(layer - 1, self._num_layers, samples, self._global_batch_size, units)

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
        if not laws.is_usual_half(self, "backward_weight", layer, inp, grad, weight):
            if inp.__class__ in COPIES:
                return backward_experts(self, "backward_weight", layer, inp, grad, weight)[0]
            laws.require_inputs(self, "backward_weight", layer, inp, grad, weight)
            if weight.__class__ is WeightPart or isinstance(inp, ActivationShard) or inp.sequence != grad.sequence:
                return backward_placed(self, "backward_weight", layer, inp, grad, weight)[0]
        samples = inp.samples
        found = self._remembered.backward_weights.get(len(samples))
        if found is None:
            return placed_passes.backward_weight(self, layer, inp)
        price, units = found
        self._record("backward_weight", layer, price, samples)
        return make_weight_grad(layer, self._num_layers, samples, self._global_batch_size, units)

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
        except AttributeError:  # as in forward
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
        try:
            units, state_units = weight._units, opt_state._units
        except AttributeError:  # a shard that was never in a store
            units, state_units = self._account.units_of(weight), self._account.units_of(opt_state)
        price = self._remembered.updates.get((len(shards), num_shards))
        if price is None:
            price = placed_passes.price_of_update(self, layer, weight)
        time = self._time
        self._rows.extend(("update", layer, time, price, self._account.units, samples, ON_COMPUTE, None, time, None))
        self._time = time + price.seconds
        updated = make_weight(layer, self._num_layers, weight.step + 1, shards, num_shards, units)
        shards, num_shards = opt_state.shards, opt_state.num_shards
        return updated, make_opt_state(layer, self._num_layers, opt_state.step + 1, shards, num_shards, state_units)
