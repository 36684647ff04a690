"""What a rank does to send gradients in fewer bytes, where its strategy declares that it does.

The laws follow from what is declared (`minitrain.engine.semantics.LocalSteps`): each worker compresses the gradient
of its own samples, with what the step before has left; messages of all workers come together before anything is made of
them; and an update takes what came of messages, never an exact gradient.
"""

from __future__ import annotations

from typing import Any

from minitrain.engine import laws
from minitrain.engine.laws import broken
from minitrain.engine.local_steps import bounds_of, sized
from minitrain.engine.state import RankState
from minitrain.errors import StrategyError
from minitrain.operations import NO_SAMPLES
from minitrain.operations.collectives import describe
from minitrain.tensors import OptState, Weight, WeightGrad
from minitrain.tensors.compressed import ApproximateGrad, CompressedGrad, CompressionState, Compressor
from minitrain.workloads.workload import Packing, PassMode


class Compression(RankState):
    """The operations of a rank that compresses gradients."""

    def load_compression(self, layer: int, weight: Weight) -> CompressionState:
        """Return what a worker keeps to compress a layer's gradients: no error yet, and random factors.

        Raises:
            StrategyError: the strategy does not declare compression.
        """
        how = _declared(self, "load_compression")
        laws.require_inputs(self, "load_compression", layer, weight)
        return sized(self, CompressionState(layer, self._num_layers, 0, weight.shards, weight.num_shards, how))

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
        how = _declared(self, "compress")
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
        _record(self, "compress", layer, grad.samples, Packing(how, 1, len(grad.shards) / grad.num_shards))
        packed = CompressedGrad(layer, self._num_layers, grad.samples, self._global_batch_size, *shards, how)
        return sized(self, packed), _moved(self, state, 1, grad.samples)

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
        how = _declared(self, "second_factor")
        _require_messages(self, "second_factor", layer, packed, state, 1)
        if how.phases < 2:
            raise broken(self, "second_factor", f"{how} has one message alone; decompress it", layer)
        _record(self, "second_factor", layer, packed.samples, Packing(how))
        seen: Any = state.samples  # type: ignore[attr-defined]  # the record requires a `CompressionState`
        second = CompressedGrad(layer, self._num_layers, seen, packed.total_samples, packed.shards, 1, how, 1)
        return sized(self, second), _moved(self, state, 2, seen)

    def decompress(
        self, layer: int, packed: CompressedGrad, state: OptState
    ) -> tuple[ApproximateGrad, CompressionState]:
        """Return the gradient that all messages stand for, and the state for the next step, with the new error.

        Raises:
            LawError: a worker is missing, or a message.
        """
        how = _declared(self, "decompress")
        _require_messages(self, "decompress", layer, packed, state, how.phases)
        share = len(packed.shards) / packed.num_shards
        _record(self, "decompress", layer, packed.samples, Packing(how, packed.members, share))
        shards = packed.shards, packed.num_shards
        made = ApproximateGrad(layer, self._num_layers, packed.samples, self._global_batch_size, *shards)
        return sized(self, made), _moved(self, state, 0, NO_SAMPLES)


def _declared(model: RankState, op: str) -> Compressor:
    """Return the compressor that the strategy declares."""
    meant = model._semantics
    if meant is None or meant.compression is None:
        raise StrategyError(
            f"{op} on rank {model._rank}: the strategy means exact gradients; declare @mt.approximate_steps(...), or "
            'compression="int4" of @mt.local_steps(...), before it',
            op=op,
            rank=model._rank,
        )
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
    return sized(model, CompressionState(*fields))


def _record(model: RankState, typ: str, layer: int, samples: Any, packing: Packing) -> None:
    """Log a computation of compression."""
    price = model._runtime_predictor.compute(typ, 1, layer, PassMode("none", packing=packing))
    model._record(typ, layer, price, samples)
