"""What a rank does with gradients beside summing them: local steps, compressed messages, one table of two uses.

*Local steps* (local SGD, DiLoCo): replicas take optimizer steps of their own, and go on from their mean. *Compression*:
each worker compresses the gradient of its own samples, with what the step before has left; messages of all workers come
together before anything is made of them; and an update takes what came of messages, never an exact gradient. The laws
of both follow from what the strategy declares (`minitrain.engine.semantics.LocalSteps`).

*Tied embeddings*: the gradient of the table that embedding and head share, summed over both uses.

    tables = [model.table_gradient(layer, grads[layer]) for layer in model.tied_layers if layer in grads]
    table = tables[0] + tables[1]  # or an all_reduce between the ranks that hold one each
    grads[layer] = model.with_table(layer, grads[layer], table)  # of each of the two layers, before its update

Both copies of the table then take equal steps (Press and Wolf 2017; Megatron-LM sums so between the first and the last
stage). The gradients are whole, or those of a part of the layer, which has the same rows in both. They are summed
before they are cut into shards, as shards of the two layers lie otherwise. Which samples they cover is the same for
both uses. Neither operation takes time: on a device they name a part of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import Any, TypeVar

from minitrain.engine import laws
from minitrain.engine.laws import broken
from minitrain.engine.semantics import LocalSteps
from minitrain.engine.state import RankState
from minitrain.errors import LawError, StrategyError
from minitrain.operations import NO_SAMPLES
from minitrain.operations.collectives import describe
from minitrain.tensors import OptState, Weight, WeightGrad, clone
from minitrain.tensors.compressed import ApproximateGrad, CompressedGrad, CompressionState, Compressor
from minitrain.tensors.index_sets import WHOLE_SEQUENCE, SequencePart, union
from minitrain.tensors.kinds import LocalWeight, OuterState, altered
from minitrain.tensors.placed import TableGrad, WeightGradPart
from minitrain.workloads.workload import Packing, PassMode

T = TypeVar("T")


class LocalComputation(RankState):
    """The operations of a rank whose replica takes steps of its own."""

    def local_copy(self, layer: int, weight: Weight) -> LocalWeight:
        """Return a copy of the common weight, from which this replica goes its own way.

        Raises:
            LawError: the weight is not the common one, or has seen a meeting in this step already.
            StrategyError: the strategy does not declare local steps.
        """
        _declared(self, "local_copy")
        laws.require_inputs(self, "local_copy", layer, weight)
        _require_common(self, "local_copy", layer, weight)
        _record(self, "local_copy", layer, weight, NO_SAMPLES)
        shards = weight.shards, weight.num_shards
        return self._sized(LocalWeight(layer, self._num_layers, 0, *shards, NO_SAMPLES, self._global_batch_size))

    def load_outer_state(self, layer: int, weight: Weight) -> OuterState:
        """Return the momentum of the common weight, for the shards of it that this rank holds; it begins at zero.

        Raises:
            LawError: the weight is not the common one.
            StrategyError: the strategy does not declare local steps, or an outer optimizer without momentum.
        """
        if not _declared(self, "load_outer_state").outer.decay:
            remedy = "declare outer=mt.Nesterov(0.7, 0.9), or leave the state out"
            raise _undeclared(self, "load_outer_state", f"the declared outer optimizer has no momentum; {remedy}")
        laws.require_inputs(self, "load_outer_state", layer, weight)
        _require_common(self, "load_outer_state", layer, weight)
        return self._sized(OuterState(layer, self._num_layers, 0, weight.shards, weight.num_shards))

    def outer_gradient(self, layer: int, weight: Weight, local: Weight) -> WeightGrad:
        """Return by how much this replica has moved the common weight: its share of the outer gradient.

        Args:
            layer: which layer.
            weight: the common weight, or some shards of it.
            local: this replica's own, which has seen all steps until the meeting, of the same shards.

        Returns:
            A gradient of the samples that the replica has seen; summed over all replicas, it covers the batch.

        Raises:
            LawError: the replica has taken another number of steps, or shards differ.
            StrategyError: the strategy does not declare local steps.
        """
        declared = _declared(self, "outer_gradient")
        if declared.in_turn:
            raise broken(self, "outer_gradient", f"{declared} have no outer step; hand in the last weights", layer)
        laws.require_inputs(self, "outer_gradient", layer, weight, local)
        _require_common(self, "outer_gradient", layer, weight)
        sent_after = declared.sends_after(layer, self._num_layers)
        if local.step != sent_after:
            rule = f"replicas meet after {declared.steps} steps of their own, got {describe(local)}"
            if declared.goes_on:
                rule = f"layer {layer} is sent after {sent_after} of a replica's own steps, got {describe(local)}"
                raise broken(self, "outer_gradient", f"{rule}; send it then", layer)
            raise broken(self, "outer_gradient", f"{rule}; take as many updates as the strategy declares", layer)
        _require_shards(self, "outer_gradient", layer, local, weight)
        seen: frozenset[int] = local.samples  # type: ignore[attr-defined]  # the record requires a `LocalWeight`
        _record(self, "outer_gradient", layer, weight, seen)
        shards = weight.shards, weight.num_shards
        return self._sized(WeightGrad(layer, self._num_layers, seen, self._global_batch_size, *shards))

    def outer_update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, outer_state: OptState | None = None
    ) -> Any:
        """Take the common weight on by the outer gradient, the mean of what all replicas have moved it by.

        Args:
            layer: which layer.
            weight_grad: the outer gradient, of all samples.
            weight: the common weight.
            outer_state: its momentum; None where the declared outer optimizer has none.

        Returns:
            The weight one step on; with a state, both.

        Raises:
            LawError: a replica is missing, the momentum is missing or of another step, or shards differ.
            StrategyError: the strategy does not declare local steps.
        """
        declared = _declared(self, "outer_update")
        outer = declared.outer
        laws.require_inputs(self, "outer_update", layer, weight_grad, weight, outer_state)
        _require_all_sent(self, layer, weight_grad)
        _require_common(self, "outer_update", layer, weight)
        require_as_declared(self, "outer_update", layer, weight_grad, is_shared=True)
        if (outer_state is not None) != bool(outer.decay):
            needs = "needs its momentum; give what load_outer_state returned" if outer.decay else "has no state"
            raise broken(self, "outer_update", f"the declared outer optimizer {outer} {needs}", layer)
        _require_shards(self, "outer_update", layer, weight_grad, weight)
        _record(self, "outer_update", layer, weight, weight_grad.samples)
        fields = layer, self._num_layers, 1, weight.shards, weight.num_shards
        updated = self._sized(Weight(*fields))
        self._met |= {layer}
        if outer_state is None:
            return updated
        _require_shards(self, "outer_update", layer, outer_state, weight)
        if outer_state.step != weight.step:
            raise broken(
                self, "outer_update", f"the momentum has seen another step, got {describe(outer_state)}", layer
            )
        return updated, self._sized(OuterState(*fields))

    def mix(self, layer: int, weight: Weight, local: Weight) -> LocalWeight:
        """Let a replica's own weight be the declared mixture of itself and the common weight that it meets.

        Args:
            layer: which layer.
            weight: the common weight, as `outer_update` returned it.
            local: this replica's own, of the same shards, whose place the result takes.

        Raises:
            LawError: it is not the layer's turn, or the common weight has not been taken on.
            StrategyError: the strategy declares neither fragments, overlap nor mixing.
        """
        declared = _declared(self, "mix")
        if not declared.goes_on:
            remedy = "declare fragments, overlap or mixing of @mt.local_steps, or leave it out"
            raise _undeclared(self, "mix", f"replicas go on from the common weight; {remedy}")
        laws.require_inputs(self, "mix", layer, weight, local)
        if weight.__class__ is not Weight or weight.step != 1:
            rule = f"weight must be the common one that outer_update has returned, got {describe(weight)}"
            raise broken(self, "mix", rule, layer, value=weight)
        own: Any = local  # the record requires a `LocalWeight`
        turn = declared.meets_after(layer, self._num_layers)
        if own.step != turn or own.has_met:
            again = ", which has met" if own.has_met else ""
            rule = f"layer {layer} meets once, after {turn} steps of a replica's own, got {describe(local)}{again}"
            raise broken(self, "mix", rule, layer, value=local)
        if not (weight.is_complete() and local.is_complete()):
            _require_shards(self, "mix", layer, local, weight)
        _record(self, "mix", layer, local, own.samples)
        fields = layer, self._num_layers, own.step, own.shards, own.num_shards, own.samples, own.total_samples
        return self._sized(LocalWeight(*fields, has_met=True))


def update_local(model: RankState, layer: int, weight_grad: WeightGrad, weight: LocalWeight, state: OptState) -> Any:
    """Take a replica's own optimizer step."""
    require_own(model, layer, weight_grad, weight, state)
    if state.__class__ is not OptState:
        raise broken(model, "update", f"a replica's own step needs its own state, got {describe(state)}", layer)
    laws.require_whole_matrices(model, layer, weight)
    shards = weight.shards, weight.num_shards
    price = model._runtime_predictor.update(len(weight.shards), weight.num_shards, layer, *model._division(weight))
    model._record("update", layer, price, weight_grad.samples)
    seen = union(weight.samples, weight_grad.samples)
    fields = layer, model._num_layers, weight.step + 1, *shards, seen, model._global_batch_size
    updated = LocalWeight(*fields, weight.has_met)
    moved = OptState(layer, model._num_layers, state.step + 1, state.shards, state.num_shards)
    return model._sized(updated), model._sized(moved)


def require_own(model: RankState, layer: int, weight_grad: Any, weight: Any, state: Any) -> None:
    """Require what `laws.update` does, and a gradient of the samples of the step that the weight takes next."""
    declared = _declared(model, "update")
    require_as_declared(model, "update", layer, weight_grad, is_shared=declared.in_turn)
    _require_met(model, "update", layer, weight)
    laws.update(model, layer, weight_grad, weight, state, partial(_require_local_samples, step=weight.step))


def steps_of(model: RankState) -> Iterator[int]:
    """Yield the steps that the strategy declares, and note when the rank begins each.

    Raises:
        StrategyError: it declares none that one replica takes in turn.
    """
    if model._semantics is None or not model._semantics.in_turn:
        remedy = 'put @mt.own_steps("num_steps") before it, with an option of that name'
        raise _undeclared(model, "model.steps", f"the strategy declares no steps of its own; {remedy}")
    model._begun = begun = []
    for step in range(model._semantics.steps):
        begun.append(model._time)
        yield step


def as_declared(model: RankState, layer: int, weight: Any) -> Weight:
    """Require a weight that may be handed in by what the strategy declares, and return it as it is kept."""
    meant, op = _declared(model, "set_final_weight"), "set_final_weight"
    if meant.in_turn:
        if weight.step != meant.steps:
            rule = f"the weight must have seen all {meant.steps} steps that the strategy declares, got"
            raise broken(model, op, f"{rule} {describe(weight)}; update its layer", layer, value=weight)
        return _as_common(weight)
    if meant.goes_on and weight.__class__ is LocalWeight:
        if weight.step != meant.steps:
            rule = f"a replica goes on with its own weight after {meant.steps} steps, got {describe(weight)}"
            raise broken(model, op, f"{rule}; update its layer", layer, value=weight)
        _require_met(model, op, layer, weight)
    elif layer not in model._met:
        rule = f"replicas that take steps of their own must have met, got {describe(weight)}; outer_update its layer"
        raise broken(model, op, rule, layer, value=weight)
    elif meant.goes_on and layer not in model.final_locals:
        rule = f"replicas go on with their own weights, and that of layer {layer} is not there; hand it in first"
        raise broken(model, op, rule, layer, value=weight)
    return weight  # type: ignore[no-any-return]  # a weight of some kind


def _as_common(weight: Any) -> Weight:
    """Return the weight that steps in turn end with as the common one, which carries the same numbers."""
    if weight.__class__ is LocalWeight:
        found = Weight(weight.layer, weight.layers, 1, weight.shards, weight.num_shards)
    else:
        found = clone(weight)
        found.step = 1
    if hasattr(weight, "_content"):
        found._content = weight._content  # type: ignore[misc]  # a slot of tensors
    return found


def _require_met(model: RankState, op: str, layer: int, local: Any) -> None:
    """Require that a replica's own weight has taken the common one, if its turn is over."""
    declared = _declared(model, op)
    if declared.goes_on and local.__class__ is LocalWeight and not local.has_met:
        turn = declared.meets_after(layer, model._num_layers)
        if local.step >= turn:
            rule = f"layer {layer} must meet after {turn} steps of a replica's own, got {describe(local)}"
            raise broken(model, op, f"{rule}, which has not; mix it with the common weight first", layer, value=local)


def _require_all_sent(model: RankState, layer: int, weight_grad: WeightGrad) -> None:
    """Require the outer gradient of all replicas: of all samples that they have seen when they sent it."""
    declared, batch = _declared(model, "outer_update"), model._global_batch_size
    sent = declared.sends_after(layer, model._num_layers) * batch // declared.steps
    if sent == batch:
        laws.require_all_samples(model, layer, weight_grad, laws.ADD_UP)
    elif len(weight_grad.samples) != sent or bounds_of(weight_grad.samples) != (0, sent - 1):
        rule = f"the outer gradient of layer {layer} must cover the {sent} samples that all replicas have seen when"
        rule = f"{rule} they send it, got {describe(weight_grad)}; sum it over the {declared.replicas} replicas"
        raise broken(model, "outer_update", rule, layer, value=weight_grad)


def _require_local_samples(model: RankState, layer: int, weight_grad: WeightGrad, step: int) -> None:
    """Require a gradient of the samples that a replica takes in this local step."""
    declared = _declared(model, "update")
    batch = model._global_batch_size // declared.steps
    share, samples = declared.share(model._global_batch_size), weight_grad.samples
    if step >= declared.steps:
        rule = f"a replica takes {declared.steps} steps of its own, and this is one more; let replicas meet before"
        if declared.in_turn:
            rule = f"the strategy declares {declared}, and this is one more"
        raise broken(model, "update", rule, layer)
    low, high = bounds_of(samples)
    if not step * batch <= low <= high < (step + 1) * batch:
        name, own = "local step", "model.samples_of_rank(steps * replicas, step * replicas + replica)"
        if declared.in_turn:
            name, own = "step", "that step"
        rule = f"{name} {step} takes samples of {step * batch}..{(step + 1) * batch - 1}, got {describe(weight_grad)}"
        raise broken(model, "update", f"{rule}; take those of {own}", layer, value=weight_grad)
    if len(samples) != share:
        whose, over = "a replica's local", "the replica's own ranks and microbatches, and over no other replica's"
        if declared.in_turn:
            whose, over = "a", "all ranks that hold the weight and all microbatches of the step"
        rule = f"{whose} step takes {share} samples, got {describe(weight_grad)}; sum its gradients over {over}"
        raise broken(model, "update", rule, layer, value=weight_grad)


def require_as_declared(model: RankState, op: str, layer: int, grad: WeightGrad, *, is_shared: bool) -> None:
    """Require an exact gradient, or one of messages where the strategy declares that such are applied.

    Args:
        model: the rank.
        op: the operation that applies it.
        layer: of which layer.
        grad: the gradient.
        is_shared: whether it is what workers exchange.
    """
    meant = _declared(model, op)
    how = meant.compression if is_shared else None
    if how is not None and grad.__class__ is not ApproximateGrad and isinstance(grad, WeightGrad):
        rule = f"the strategy declares gradients by {how}, got an exact {describe(grad)}; compress and decompress it"
        raise broken(model, op, rule, layer, value=grad)
    if how is None and grad.__class__ is ApproximateGrad:
        rule = f"a compressed gradient is no exact one, which {meant} apply here, got {describe(grad)}"
        raise broken(model, op, rule, layer, value=grad)


def bounds_of(samples: Set[int]) -> tuple[int, int]:
    """Return the least and the greatest sample; where ranks fold, of any rank."""
    known = getattr(samples, "bounds", None)
    return (min(samples), max(samples)) if known is None else known()


def _declared(model: RankState, op: str) -> LocalSteps:
    """Return what the strategy declares."""
    if model._semantics is None:
        why = "the strategy means one synchronous step, in which replicas have no weights of their own"
        remedy = "declare @mt.local_steps, @mt.delayed_steps or @mt.approximate_steps before it"
        raise _undeclared(model, op, f"{why}; {remedy}")
    return model._semantics


def _undeclared(model: RankState, op: str, why: str) -> StrategyError:
    """Return the error for an operation that a strategy has not declared."""
    return StrategyError(f"{op} on rank {model._rank}: {why}", op=op, rank=model._rank)


def _require_common(model: RankState, op: str, layer: int, weight: Weight) -> None:
    """Require the common weight, as it is since the last meeting."""
    if weight.__class__ is not Weight or weight.step:
        rule = f"weight must be the common one, whole or in shards, as it was loaded, got {describe(weight)}"
        raise broken(model, op, rule, layer, value=weight)


def _require_shards(model: RankState, op: str, layer: int, value: Any, weight: Weight) -> None:
    """Require the shards of the common weight."""
    if value.num_shards != weight.num_shards or value.shards != weight.shards:
        raise broken(model, op, f"both must hold the same shards, got {describe(value)} for {describe(weight)}", layer)


def _record(model: RankState, typ: str, layer: int, weight: Weight, samples: Any) -> None:
    """Log a pass over some shards of a weight."""
    share = max(weight.num_shards // len(weight.shards), 1)
    mode = PassMode("none", num_parts=share, pieces=model._division(weight))
    price = model._runtime_predictor.compute(typ, 1, layer, mode)
    model._record(typ, layer, price, samples)


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
        return self._sized(TableGrad(first, *fields, grad.shards, grad.num_shards, uses, *part))

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
        return self._sized(altered(grad))

    def _require_whole(self, op: str, layer: int, grad: Any) -> None:
        """Require the whole gradient of one of the two layers."""
        if layer not in self.tied_layers:
            has = f"layers {' and '.join(map(str, self.tied_layers))} do" if self.tied_layers else "no layers do"
            raise _undeclared(self, op, f"layer {layer} shares no table with another, {has}; see model.tied_layers")
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


class Compression(RankState):
    """The operations of a rank that compresses gradients."""

    def load_compression(self, layer: int, weight: Weight) -> CompressionState:
        """Return what a worker keeps to compress a layer's gradients: no error yet, and random factors.

        Raises:
            StrategyError: the strategy does not declare compression.
        """
        how = _compressor(self, "load_compression")
        laws.require_inputs(self, "load_compression", layer, weight)
        return self._sized(CompressionState(layer, self._num_layers, 0, weight.shards, weight.num_shards, how))

    def compress(self, layer: int, grad: WeightGrad, state: OptState) -> tuple[CompressedGrad, CompressionState]:
        """Return the message in which this worker sends its gradient, and its state, which takes the old one's place.

        All-reduce the message where the compressor's messages are sums (PowerSGD's factors), else all-gather it.

        Args:
            layer: which layer.
            grad: the gradient of this worker's samples of the step; its place is free afterwards.
            state: what the step before has left.

        Raises:
            LawError: the gradient is of other samples, or the state of another step.
            StrategyError: the strategy does not declare compression.
        """
        how = _compressor(self, "compress")
        laws.require_inputs(self, "compress", layer, grad, state)
        shards = grad.shards, grad.num_shards
        if grad.__class__ is not WeightGrad or (how.sums and grad.num_shards > 1):
            whole = " of a whole layer" if how.sums else ""
            raise broken(self, "compress", f"{how} takes an exact gradient{whole}, got {describe(grad)}", layer)
        cut: Any = self._semantics
        if grad.num_shards != cut.shards or len(grad.shards) != 1:
            rule = f"each rank of a worker compresses one of {cut.shards} shards, got {describe(grad)}"
            raise broken(self, "compress", f"{rule}; shard the gradient over the worker's ranks", layer, value=grad)
        _require_own_samples(self, layer, grad, state)
        _require_state(self, "compress", layer, state, shards, 0)
        _record_packing(self, "compress", layer, grad.samples, Packing(how, 1, len(grad.shards) / grad.num_shards))
        packed = CompressedGrad(layer, self._num_layers, grad.samples, self._global_batch_size, *shards, how)
        return self._sized(packed), _moved(self, state, 1, grad.samples)

    def second_factor(
        self, layer: int, packed: CompressedGrad, state: OptState
    ) -> tuple[CompressedGrad, CompressionState]:
        """Return PowerSGD's second message: the gradient times the first factors, made orthonormal; and the state.

        Args:
            layer: which layer.
            packed: the sum of the first factors of all workers.
            state: what `compress` has returned.

        Raises:
            LawError: a worker is missing, or the compressor has no second message.
        """
        how = _compressor(self, "second_factor")
        _require_messages(self, "second_factor", layer, packed, state, 1)
        if how.phases < 2:
            raise broken(self, "second_factor", f"{how} has one message alone; decompress it", layer)
        _record_packing(self, "second_factor", layer, packed.samples, Packing(how))
        seen: Any = state.samples  # type: ignore[attr-defined]  # the record requires a `CompressionState`
        second = CompressedGrad(layer, self._num_layers, seen, packed.total_samples, packed.shards, 1, how, 1)
        return self._sized(second), _moved(self, state, 2, seen)

    def decompress(
        self, layer: int, packed: CompressedGrad, state: OptState
    ) -> tuple[ApproximateGrad, CompressionState]:
        """Return the gradient that all messages stand for, and the state for the next step, with the new error.

        Raises:
            LawError: a worker is missing, or a message.
        """
        how = _compressor(self, "decompress")
        _require_messages(self, "decompress", layer, packed, state, how.phases)
        share = len(packed.shards) / packed.num_shards
        _record_packing(self, "decompress", layer, packed.samples, Packing(how, packed.members, share))
        shards = packed.shards, packed.num_shards
        made = ApproximateGrad(layer, self._num_layers, packed.samples, self._global_batch_size, *shards)
        return self._sized(made), _moved(self, state, 0, NO_SAMPLES)


def _compressor(model: RankState, op: str) -> Compressor:
    """Return the compressor that the strategy declares."""
    meant = model._semantics
    if meant is None or meant.compression is None:
        remedy = 'declare @mt.approximate_steps(...), or compression="int4" of @mt.local_steps(...), before it'
        raise _undeclared(model, op, f"the strategy means exact gradients; {remedy}")
    return meant.compression


def _require_own_samples(model: RankState, layer: int, grad: WeightGrad, state: OptState) -> None:
    """Require the gradient of one worker's samples, of the step whose turn it is by the state."""
    meant: Any = model._semantics
    batch = model._global_batch_size
    size = meant.compressed_samples(batch, layer, model._num_layers)
    if len(grad.samples) != size:
        rule = f"each of {meant.workers} workers compresses the gradient of its own {size} samples, got"
        raise broken(model, "compress", f"{rule} {describe(grad)}; compress before gradients are summed", layer)
    if meant.in_turn:
        low, high = bounds_of(grad.samples)
        first, last = (bound * meant.steps // batch for bound in (low, high))
        if not first == last == state.step:
            raise broken(
                model,
                "compress",
                f"a gradient of step {first} is compressed with what step {first - 1} has left (its error, and the "
                f"factors to begin with), got a state that has seen {state.step} steps and {describe(grad)}; keep what "
                "decompress returns",
                layer,
                value=state,
            )


def _require_messages(model: RankState, op: str, layer: int, packed: Any, state: Any, phase: int) -> None:
    """Require messages of all workers, and the state that has made this rank's."""
    laws.require_inputs(model, op, layer, packed, state)
    meant: Any = model._semantics
    size = meant.compressed_samples(model._global_batch_size, layer, model._num_layers) * meant.workers
    if len(packed.samples) != size:
        how = "all_reduce" if packed.how.sums else "all_gather"
        rule = f"messages of all {meant.workers} workers must be there, {size} samples, got {describe(packed)}"
        raise broken(model, op, f"{rule}; {how} them first", layer, value=packed)
    _require_state(model, op, layer, state, (packed.shards, packed.num_shards), phase)
    if packed.phase != phase - 1:
        rule = f"message {phase} of {packed.how} is needed, got message {packed.phase + 1}"
        raise broken(model, op, f"{rule}; make the next by second_factor", layer, value=packed)


def _require_state(model: RankState, op: str, layer: int, state: Any, shards: Any, phase: int) -> None:
    """Require a state of the same shards, that has made as many messages of this step."""
    if (state.shards, state.num_shards) != shards:
        raise broken(model, op, f"the state must be of the gradient's shards, got {describe(state)}", layer)
    if state.phase != phase:
        rule = f"the state must have made {phase} messages of this step, got one that has made {state.phase}"
        raise broken(model, op, f"{rule}; keep what compress, second_factor and decompress return", layer, value=state)


def _moved(model: RankState, state: Any, phase: int, samples: Any) -> CompressionState:
    """Return a state that is one message on; one step on where that begins with the first again."""
    step = state.step + (phase == 0)
    fields = state.layer, state.layers, step, state.shards, state.num_shards, state.how, phase, samples
    return model._sized(CompressionState(*fields))


def _record_packing(model: RankState, typ: str, layer: int, samples: Any, packing: Packing) -> None:
    """Log a computation of compression."""
    price = model._runtime_predictor.compute(typ, 1, layer, PassMode("none", packing=packing))
    model._record(typ, layer, price, samples)
