"""A transformer as a workload: what each of its units costs, holds and sends.

A layer of the engine is a unit: the embedding is layer 0, then attention and MLP by turns, and the head comes last.

Memory is counted in bytes, so that an element of this workload is a byte: parameters, gradients and optimizer states
have sizes of their own (see `precision`). A layer's input is what the layer before passes on; token ids and the loss
take nothing. Gradients of activations are as large as these.

Time is that of a roofline over a whole unit (`pass_costs` says what it counts), or the sum of its kernels
(`unit_kernels`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import groupby
from math import prod
from typing import Any, cast

from minitrain.errors import UsageError, count_fault, refuse
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.compressed import COMPRESSED_KINDS, Shapes
from minitrain.tensors.kinds import OUTER_MOMENTUM_BYTES, OuterState
from minitrain.tensors.placed import (
    OF_ATTENTION,
    Attended,
    KeysValues,
    KeysValuesGrad,
    PartialActivation,
    QueriesGrad,
    TableGrad,
)
from minitrain.workloads.architecture import AVERAGE_BYTES, STATISTIC_BYTES
from minitrain.workloads.documents import Documents, pairs_of
from minitrain.workloads.expert_layers import ExpertLayers, Piece, division_of, is_copies, is_of_experts
from minitrain.workloads.kernels import KernelList, adam_launches, kernels_of_weight_pass, newton_schulz
from minitrain.workloads.linear_attention import require_attention
from minitrain.workloads.matmul import DENSE, DENSE_LAYER, DenseRows
from minitrain.workloads.pass_costs import (
    STEPS,
    attended_bytes,
    kept_bytes,
    keys_values_bytes,
    log_sum_exp_bytes,
    pass_cost,
    queries_bytes,
    step_cost,
    step_kernels,
)
from minitrain.workloads.shapes import Degrees, Work, num_factors
from minitrain.workloads.transformer import Transformer, find_model
from minitrain.workloads.unit import Unit
from minitrain.workloads.unit_kernels import loss_kernels, pass_kernels, update_kernels
from minitrain.workloads.workload import (
    USUAL,
    WEIGHT_PASSES,
    Context,
    Cost,
    Pairs,
    PassMode,
    Style,
    Workload,
    cost_of_weight_pass,
    held_compressed_bytes,
    other_message_bytes,
)

_SAMPLED = (Activation, ActivationGrad)

ADAM_FLOP = 14
"""Operations of an Adam step a parameter: 3 for the first moment, 4 for the second, 7 for decay and update."""

ADAFACTOR_FLOP = 14
"""Operations of an Adafactor step a parameter: 4 for the square and its two sums, 3 for the second moment of a row and
a column and its root, 1 for the quotient, 4 for both root mean squares, 2 for the update."""

_MOMENT_BYTES = 4
_WITHOUT_TABLE = Piece("own")
AVERAGE_FLOP = 3
"""Operations of an average's step a parameter: a difference, times a factor, added."""


class TransformerWorkload:
    """A transformer, trained on samples of some length.

    Args:
        model: the transformer.
        seq_len: tokens of a sample; the model's own if None.

    Raises:
        UsageError: `seq_len` is no integer of at least 1, or longer than the model's table of positions.
    """

    bytes_per_element = 1
    is_uniform = False
    _gathers_table: bool | None = None  # of a rank with one table for embedding and head; None: with one for each

    def __init__(self, model: Transformer, seq_len: int | None = None) -> None:
        self.model = model
        self.seq_len = model.seq_len if seq_len is None else seq_len
        _require_length(model, self.seq_len)
        self.units = model.units()
        self.num_layers = len(self.units)
        self.datatype = model.precision.datatype
        element = model.precision.activation_bytes * self.seq_len
        self._output_bytes = [unit.output_size * element for unit in self.units]  # of a sample
        alike: dict[Unit, int] = {}
        self._first_like = [alike.setdefault(replace(unit, layer=None), k) for k, unit in enumerate(self.units)]
        self._kept: dict[tuple[int, PassMode], int] = {}  # bytes of a sample
        self._bytes_by_kind: dict[type[Any], int] = {}
        self._pairs: dict[Hashable, Pairs] = {}
        self._within: dict[tuple[type[Any], int, int], int] = {}  # bytes of a sample
        self._held: dict[tuple[int, int | Piece], int] = {}  # parameters, by layer and number of parts, or piece
        self._held_trained: dict[tuple[int, int | Piece], int] = {}  # those of them that are trained
        self.experts = ExpertLayers(model, self.units, self.seq_len)
        self.trains_a_part = not all(weight.is_trained for unit in self.units for weight in unit.weights)
        self.has_adapters = model.lora is not None
        self.is_packed = model.documents is not None
        self._optimizer = model.optimizer
        is_shared = any(weight.is_shared for weight in self.units[-1].weights)
        self.table_layers: tuple[int, ...] = (0, self.num_layers - 1) if is_shared else ()
        self._factors = [sum(map(num_factors, (weight.shape for weight in unit.weights))) for unit in self.units]

    def __repr__(self) -> str:
        return f"TransformerWorkload({self.model.name}, seq_len={self.seq_len})"

    def resized(self, model: Transformer, seq_len: int) -> TransformerWorkload:
        """Return the workload of another model, on samples of another length."""
        return TransformerWorkload(model, seq_len)

    @property
    def name(self) -> str:
        """What tables call the trained model."""
        return self.model.name

    @property
    def tokens_of_sample(self) -> int:
        """The tokens of a sample that a rank takes through the layers."""
        return self.seq_len

    @property
    def layer_names(self) -> tuple[str, ...]:
        """What figures call the layers: "embedding", "attention 0", "mlp 0" ..."""
        return tuple(unit.name for unit in self.units)

    def has_attention(self, layer: int) -> bool:
        """Return whether tokens need one another in a layer."""
        return self.units[layer].mixes_tokens

    @cached_property
    def blocks(self) -> tuple[range, ...]:
        """The units of each transformer layer, and embedding and head by themselves."""
        places = [range(place, place + 1) for place in range(self.num_layers)]
        by_layer = groupby(places, lambda place: self.units[place.start].layer)
        found = (list(together) for _, together in by_layer)
        return tuple(range(together[0].start, together[-1].stop) for together in found)

    @property
    def tied_layers(self) -> tuple[int, ...]:
        """Embedding and head, where they share a table that is trained."""
        is_trained = all(weight.is_trained for weight in self.units[-1].weights if weight.is_shared)
        return self.table_layers if is_trained else ()

    def with_one_table(self, *, in_shards: bool) -> TransformerWorkload:
        """Return the sizes of a rank that holds embedding and head, whose table is one weight.

        It counts with the embedding's weight and state, and with the head's gradient, which backward makes first. A
        whole head that was gathered of shards has it too, since the embedding's was freed since.

        Args:
            in_shards: whether the rank has loaded shards of both.
        """
        found = copy(self)
        found._gathers_table = in_shards
        return found

    def division(self, tensor: Any) -> int | Piece:
        """Return how a weight, a gradient or a state is divided, and where its table counts with another layer's."""
        found = division_of(tensor)
        if self._gathers_table is None or not self._lacks_table(tensor.layer, isinstance(tensor, WeightGrad)):
            return found
        is_gathered = self._gathers_table and isinstance(tensor, Weight) and 1 < tensor.num_shards == len(tensor.shards)
        return found if is_gathered else Piece("own", found)  # type: ignore[arg-type]  # neither has experts

    def _lacks_table(self, layer: int, is_gradient: bool) -> bool:
        """Return whether what a rank has of a layer lacks the table, which counts with another one's."""
        return self._gathers_table is not None and layer == self.table_layers[0 if is_gradient else 1]

    def _table_size(self, num_parts: int) -> int:
        return prod(self.units[0].table(Degrees(tp=num_parts))[1])

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of a gradient, as it is kept or, where none is kept, sent."""
        return self.model.precision.gradient_bytes or self.model.precision.parameter_bytes

    def matrices(self, layer: int) -> Shapes:
        """Return the shapes of a unit's weights that train."""
        return tuple(weight.shape for weight in self.units[layer].weights if weight.is_trained and not weight.is_shared)

    def max_shards(self, layer: int) -> int:
        """Return the parameters of a layer: a unit's weights are cut as one flat array (Rajbhandari et al. 2020)."""
        return self._parameters(layer)

    def compute_cost(self, typ: str, num_samples: int, layer: int, mode: PassMode = USUAL) -> Cost:
        """Return the cost of a pass through a unit, or of the loss, which reads logits and writes their gradient."""
        if is_of_experts(typ, mode):
            return self.experts.cost(typ, num_samples, layer, mode)
        if typ in WEIGHT_PASSES:
            return cost_of_weight_pass(self, typ, layer, mode)
        work = self.work(num_samples, mode)
        if typ == "loss":
            return Cost(0, 2 * STATISTIC_BYTES * work.num_tokens * self.model.vocab_size // mode.num_parts)
        if typ in STEPS:
            return step_cost(self.model, self.units[layer], work, typ, mode)
        return pass_cost(self.model, self.units[layer], work, typ, mode.recompute)

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int | Piece = 1) -> Cost:
        """Return the cost of Adam: it reads the gradient, reads and writes its state, and writes the parameter.

        An average of weights is a pass of its own: it reads both, and writes one. Muon has a moment of a matrix less,
        and multiplies. Adafactor reads the gradient for its sums, and once more for their norm.
        """
        held = self._shards(num_shards_on_device, num_shards, self._trained(layer, num_parts))
        sizes, averages, matrices = self.model.precision, self.model.ema is not None, self.orthogonalised(layer)
        traffic = sizes.gradient_bytes + 2 * sizes.optimizer_bytes + sizes.parameter_bytes
        flop = ADAM_FLOP
        if self._optimizer == "adafactor":
            master = sizes.optimizer_bytes - 2 * _MOMENT_BYTES
            weights = 3 * master + sizes.parameter_bytes if master else 3 * sizes.parameter_bytes
            traffic, flop = 3 * sizes.gradient_bytes + weights, ADAFACTOR_FLOP
        cost = Cost((flop + AVERAGE_FLOP * averages) * held, (traffic + 3 * AVERAGE_BYTES * averages) * held)
        multiplied, without = newton_schulz(matrices), 2 * _MOMENT_BYTES * sum(map(prod, matrices))
        work = cost.work_flop + sum(kernel.work_flop for kernel in multiplied)
        return Cost(work, cost.traffic_bytes - without + sum(kernel.traffic_bytes for kernel in multiplied))

    def first_like(self, layer: int) -> int:
        """Return the first layer that runs the same kernels: units differ by their place alone where they are alike."""
        return self._first_like[layer] if layer < self.num_layers else layer  # the loss comes after the last

    def pass_kernels(self, typ: str, num_samples: int, layer: int, mode: PassMode, style: Style) -> KernelList:
        """Return the kernels of a pass through a unit, or of the loss."""
        if is_of_experts(typ, mode):
            return self.experts.kernels(typ, num_samples, layer, mode, style)
        if typ in WEIGHT_PASSES:
            return kernels_of_weight_pass(self, typ, layer, mode, style.datatype or self.datatype)
        work = self.work(num_samples, mode)
        if typ == "loss":
            return loss_kernels(self.model, self.units[-1], work, style)
        if typ in STEPS:
            return step_kernels(self.model, self.units[layer], work, typ, mode, style)
        return pass_kernels(self.model, self.units[layer], work, typ, mode.recompute, style)

    def update_kernels(
        self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int | Piece, style: Style
    ) -> KernelList:
        """Return Adam on the parameters of some shards, and what is done with the whole gradients before."""
        trained = self._trained(layer, num_parts)
        return update_kernels(
            self._shards(num_shards_on_device, num_shards, trained),
            style,
            num_gradients=trained,
            precision=self.model.precision,
            averages=self.model.ema is not None,
            matrices=self.orthogonalised(layer),
            has_factors=self._optimizer == "adafactor",
            num_launches=self._adam_launches(layer, num_parts, style),
        )

    def _adam_launches(self, layer: int, num_parts: int | Piece, style: Style) -> int:
        """Return Adam's launches: one, or those of each parameter, which is a DTensor if FSDP2 or ranks divide it."""
        if not style.by_parameter or self._optimizer != "adam":
            return 1
        weights = [weight for weight in self.units[layer].weights if weight.is_trained and not weight.is_shared]
        has_parts = style.dtensors and num_parts != 1
        num_dtensors = sum(bool(style.copies_units or (has_parts and weight.cut)) for weight in weights)
        return adam_launches(len(weights) - num_dtensors, num_dtensors, style.launch_factor)

    def load_bytes(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int | Piece = 1) -> int:
        """Return the bytes of the parameters of some shards."""
        held = self._shards(num_shards_on_device, num_shards, self._parameters(layer, num_parts))
        return self.model.precision.parameter_bytes * held

    def held_bytes(self, layer: int, num_parts: int | Piece = 1) -> tuple[int, int, int]:
        """Return the bytes of a layer's weight, of its gradient and of its optimizer state, or of those of a part."""
        sizes, own = self.model.precision, Piece("own", num_parts)  # type: ignore[arg-type]  # where there are experts, it is of none
        of_weight = own if self._lacks_table(layer, is_gradient=False) else num_parts
        of_gradient = own if self._lacks_table(layer, is_gradient=True) else num_parts
        weight = sizes.parameter_bytes * self._parameters(layer, of_weight)
        gradient = sizes.gradient_bytes * self._trained(layer, of_gradient)
        return weight, gradient, self._state_bytes(layer, of_weight)

    def trained_share(self, weight: Any) -> float:
        """Return which share of a weight's elements is trained."""
        division = division_of(weight)
        return self._trained(weight.layer, division) / self._parameters(weight.layer, division)

    def common_bytes(self, weight_grad: Any) -> int:
        """Return the bytes on the wire of what parts do not divide, such as norms."""
        sizes, unit = self.model.precision, self.units[weight_grad.layer]
        common: int = sum(weight.num_parameters for weight in unit.weights if weight.cut is None and weight.is_trained)
        return (sizes.gradient_bytes or sizes.parameter_bytes) * common

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire; a weight, a part of one, or its gradient counts whole, however it is sharded.

        Gradients are summed in the precision that they are kept in. What parts of the head exchange is their loss's
        statistics: maximum, sum and the target's logit of each token (Shoeybi et al. 2019, section 3).
        """
        if isinstance(tensor, PartialActivation) and tensor.layer == self.num_layers:
            num_tokens: int = self.seq_len * len(tensor.samples)
            return 3 * STATISTIC_BYTES * tensor.sequence.share_of(num_tokens)
        if is_copies(tensor):
            return self.experts.exchanged_bytes(tensor)
        if isinstance(tensor, _SAMPLED):
            return self._sampled_bytes(tensor)
        if tensor.__class__ in COMPRESSED_KINDS:
            return other_message_bytes(self, tensor)
        sizes, num_parts = self.model.precision, self.division(tensor)
        if isinstance(tensor, Weight):
            return sizes.parameter_bytes * self._parameters(tensor.layer, num_parts)
        if isinstance(tensor, WeightGrad):
            of_table = tensor.__class__ is TableGrad
            count = self._table_size(tensor.num_parts) if of_table else self._trained(tensor.layer, num_parts)
            return self.gradient_bytes * count
        if isinstance(tensor, OptState):
            num_shards: int = tensor.num_shards
            return self._state_bytes(tensor.layer, num_parts) // num_shards
        return other_message_bytes(self, tensor)

    def memory_elements(self, tensor: Any) -> float:
        """Return the bytes that a tensor holds, before a layer has kept more beside its input."""
        if isinstance(tensor, _SAMPLED):
            return self._sampled_bytes(tensor)
        if tensor.__class__ in COMPRESSED_KINDS:
            return held_compressed_bytes(self, tensor)
        if tensor.__class__ is TableGrad:
            return 0.0  # a part of a gradient that counts
        count = self._trained if self.trains_a_part and not isinstance(tensor, Weight) else self._parameters
        size_bytes = self._bytes_per_parameter(tensor) * count(tensor.layer, self.division(tensor))
        if self._optimizer != "adam" and isinstance(tensor, OptState) and not isinstance(tensor, OuterState):
            size_bytes = self._state_bytes(tensor.layer, self.division(tensor))
        num_held: int = len(tensor.shards)
        return size_bytes if num_held == tensor.num_shards else size_bytes * num_held / tensor.num_shards

    def kept_elements(self, layer: int, num_samples: int, mode: PassMode) -> float:
        """Return the bytes that a unit keeps for its backward: see `Unit.saved_bytes`."""
        found = self._kept.get((layer, mode))
        if found is None:
            unit, work = self.units[layer], self.work(1, mode)
            if mode.context is not None:
                require_attention(unit)
            in_steps = unit.core is not None and mode.context is not None
            found = kept_bytes(unit, work, mode) if in_steps else unit.saved_bytes(work, mode.recompute)
            self._kept[layer, mode] = found
        return found * num_samples

    def logits_elements(self, num_samples: int, mode: PassMode) -> int:
        """Return the bytes of the logits among what the head keeps."""
        work = self.work(num_samples, mode)
        return sum(tensor.num_bytes(work) for tensor in self.units[-1].saved if tensor.name == "logits")

    def training_flop(self, num_samples: int, num_layers: int) -> float:  # noqa: ARG002  (those of the model)
        """Return the model's FLOPs of a step (Narayanan et al. 2021, equation 3, without recomputation)."""
        documents = self.model.documents
        if documents is None:
            return num_samples * self.seq_len * self.model.flop_per_token(self.seq_len)
        alike = documents.are_alike(self.seq_len)  # each document is a sequence of its own
        lengths = (documents.of_sample(sample, self.seq_len) for sample in range(1 if alike else num_samples))
        flop = sum(length * self.model.flop_per_token(length) for each in lengths for length in each)
        return num_samples * flop if alike else flop

    def dropped_flop(self, num_copies: float) -> float:
        """Return those of `training_flop` that copies of tokens stand for which no expert takes."""
        experts = [(unit, each) for unit in self.units for each in unit.projections if each.num_experts]
        layers = sum(any(each.num_experts for each in unit.projections) for unit in self.units)
        passes = sum(each.n * each.k * (1 + unit.has_backward * (1 + each.is_trained)) for unit, each in experts)
        return 2 * num_copies * passes / layers if layers else 0.0

    def recomputed_flop(self, num_samples: int, layer: int, mode: PassMode) -> float:
        """Return the FLOPs that a backward repeats for some samples, counted as those of `training_flop`."""
        unit, ranks = self.units[layer], mode.num_parts * (mode.context.degree if mode.context else 1)
        found = num_samples * unit.recomputed_flop(self.seq_len, mode.recompute) / ranks
        core = unit.core
        if core is None or mode.pairs is None or not unit.repeats_core(mode.recompute):
            return found
        num_queries = num_samples * self.seq_len / (mode.context.degree if mode.context else 1)
        squares = 2 * mode.pairs.total - num_queries  # l (l + 1) / 2 pairs are of l^2
        of_pair = 2 * core.num_heads * (core.key_dim + core.value_dim) / mode.num_parts
        return found - num_samples * core.flop(self.seq_len, causal=False) / ranks + of_pair * squares

    def work(self, num_samples: int, mode: PassMode) -> Work:
        """Return what one rank does in a pass."""
        cp = 1 if mode.context is None else mode.context.degree
        degrees = Degrees(tp=mode.num_parts, cp=cp, sequence_parallel=mode.sequence_parallel)
        if mode.pairs is None:
            return Work(num_samples, self.seq_len, degrees)
        mean = tuple((query, key, count / num_samples) for query, key, count in mode.pairs.by_shard)
        return Work(num_samples, self.seq_len, degrees, replace(mode.pairs, by_shard=mean))

    def pairs(self, layer: int, samples: Collection[int], context: Context | None, *, cut: str) -> Pairs | None:
        """Return the pairs that documents leave to an attention, as `PassMode` has them; None where none are packed.

        Args:
            layer: the attention.
            samples: which.
            context: the shards of queries and keys; None for whole sequences.
            cut: what the shards are of.
        """
        core, documents = self.units[layer].core, self.model.documents
        if core is None or documents is None:
            return None
        asked = core.window, samples, context, cut
        found = self._pairs.get(asked)
        if found is None:
            found = self._pairs[asked] = self._count_pairs(documents, *asked)
        return found

    def _count_pairs(
        self, documents: Documents, window: int | None, samples: Collection[int], context: Context | None, cut: str
    ) -> Pairs:
        """Count pairs for the first time."""
        queries, keys = ([0], [0]) if context is None else (sorted(context.queries), sorted(context.keys))
        num_shards = 1 if context is None else context.num_shards
        found = pairs_of(documents, samples, self.seq_len, num_shards, cut, window)
        seen = ((query, key, int(found[query, key])) for query in queries for key in keys if found[query, key])
        longest = max((max(documents.of_sample(sample, self.seq_len)) for sample in samples), default=0)
        return Pairs(tuple(seen), min(longest, window or longest))

    def _parameters(self, layer: int, num_parts: int | Piece = 1) -> int:
        """Return the parameters of a unit, of one of its parts, or of a piece of one with experts."""
        found = self._held.get((layer, num_parts))
        if found is None:
            found = self._held[layer, num_parts] = self._counted(layer, num_parts, trained=False)
        return found

    def _trained(self, layer: int, num_parts: int | Piece = 1) -> int:
        """Return those of the parameters that are trained."""
        if not self.trains_a_part:
            return self._parameters(layer, num_parts)
        found = self._held_trained.get((layer, num_parts))
        if found is None:
            found = self._held_trained[layer, num_parts] = self._counted(layer, num_parts, trained=True)
        return found

    def _counted(self, layer: int, num_parts: int | Piece, *, trained: bool) -> int:
        """Count parameters for the first time."""
        if isinstance(num_parts, Piece) and num_parts.what == "own":
            is_counted = bool(self.tied_layers) or not trained
            whole = self._counted(layer, num_parts.num_parts, trained=trained)
            return whole - self._table_size(num_parts.num_parts) * is_counted
        if isinstance(num_parts, Piece):
            return self.experts.num_parameters(layer, num_parts, trained=trained)
        unit, degrees = self.units[layer], Degrees(tp=num_parts)
        return unit.num_trained_parameters(degrees) if trained else unit.num_held_parameters(degrees)

    @staticmethod
    def _shards(num_held: int, num_shards: int, num_parameters: int) -> int:
        """Return the parameters of some shards, rounded up as by padding."""
        return -(-num_parameters * num_held // num_shards)

    def _state_bytes(self, layer: int, num_parts: int | Piece = 1) -> int:
        """Return the bytes of an optimizer state; of a matrix, Muon has one moment, Adam two, Adafactor factors."""
        trained, matrices = self._trained(layer, num_parts), self.orthogonalised(layer)
        whole, has_table = self.model.state_bytes * trained, num_parts == 1
        if not has_table and num_parts != _WITHOUT_TABLE:
            return whole  # of parts, other optimizers than Adam take no step
        if self._optimizer == "adafactor":
            factors = self._factors[layer] - (0 if has_table else num_factors(self.units[layer].table()[1]))
            return whole - _MOMENT_BYTES * (2 * trained - factors)
        return whole - _MOMENT_BYTES * sum(map(prod, matrices))

    def orthogonalised(self, layer: int) -> Shapes:
        """Return the shapes of the matrices of a layer that Muon trains."""
        return tuple(shape for _, shape in self.units[layer].orthogonalised) if self._optimizer == "muon" else ()

    def why_whole(self, layer: int) -> str:
        """Return why an update of a layer needs its whole weights; nothing where it works element by element."""
        if self._optimizer == "adafactor":
            return "adafactor has second moments of whole rows and columns, and steps by the size of whole weights"
        return "muon orthogonalises whole matrices" if self.orthogonalised(layer) else ""

    def _bytes_per_parameter(self, tensor: Any) -> int:
        """Return what a parameter takes in a weight, a gradient or an optimizer state."""
        found = self._bytes_by_kind.get(tensor.__class__)
        if found is None:  # asking a kind what it extends takes long
            sizes = self.model.precision
            of_others = sizes.gradient_bytes if isinstance(tensor, WeightGrad) else self.model.state_bytes
            found = sizes.parameter_bytes if isinstance(tensor, Weight) else of_others
            found = OUTER_MOMENTUM_BYTES if isinstance(tensor, OuterState) else found
            self._bytes_by_kind[tensor.__class__] = found
        return found

    def _sampled_bytes(self, tensor: Activation | ActivationGrad) -> int:
        """Return the bytes of an activation, as its layer takes it from the one before, or of a gradient."""
        if is_copies(tensor):
            return self.experts.memory_bytes(tensor)
        if isinstance(tensor, OF_ATTENTION):
            key = tensor.__class__, tensor.layer, tensor.num_parts
            found = self._within.get(key)
            if found is None:
                found = self._within[key] = self._bytes_of_sample(*key)
            size_bytes: int = tensor.sequence.share_of(found * len(tensor.samples))
            return size_bytes
        after = tensor.layer - 1 if isinstance(tensor, Activation) else tensor.layer
        return 0 if after < 0 else tensor.sequence.share_of(self._output_bytes[after] * len(tensor.samples))

    def _bytes_of_sample(self, kind: type[Any], layer: int, num_parts: int) -> int:
        """Return the bytes of such a tensor for one whole sample."""
        unit, work = self.units[layer], Work(1, self.seq_len, Degrees(tp=num_parts))
        if issubclass(kind, KeysValues | KeysValuesGrad):
            return keys_values_bytes(unit, work)
        if kind is QueriesGrad:
            return queries_bytes(unit, work)
        size_bytes = attended_bytes(self.model, unit, work)
        return size_bytes + (log_sum_exp_bytes(unit, work) if kind is Attended else 0)


def _require_length(model: Transformer, seq_len: int) -> None:
    """Require a length that the model can be trained on."""
    fault = count_fault("seq_len", seq_len, 1, f"seq_len={model.seq_len}")
    if not fault and model.positions == "learned" and seq_len > model.num_positions:
        fault = (
            f"seq_len ({seq_len}) must be at most num_positions ({model.num_positions}) of {model.name}, whose "
            f"positions are learned; use {model.num_positions} or less"
        )
    if fault:
        raise refuse("the sequence", [fault])


@lru_cache(maxsize=64)
def _workload_of(model: Transformer, seq_len: int | None) -> TransformerWorkload:
    return TransformerWorkload(model, seq_len)


def find_workload(
    workload: Any,
    seq_len: int | None = None,
    precision: Any = None,
    lora: Any = None,
    frozen_layers: int | None = None,
    documents: Any = None,
    ema: float | None = None,
) -> Workload:
    """Return what a run trains: the same object for the same model, length and precision, which predictors share.

    Args:
        workload: a shipped model's name, a path to a Hugging Face config, a `Transformer`, a workload, "dense" for
            equal layers with a backward of two multiplications, or "rows:512" for the dense layers of that width that
            real processes train.
        seq_len: tokens of a sample of a transformer; the model's own if None.
        precision: of a transformer, as `mt.Transformer` takes it; the model's own if None.
        lora: its adapters, likewise, or the text of their rank, or the path of a config of PEFT.
        frozen_layers: how many of its layers are not trained, likewise.
        documents: which are packed into its samples, likewise, or as `Documents.read` takes them.
        ema: decay of the average of its weights, likewise.

    Raises:
        UsageError: there is no such model or precision, or the length is not one for it.
    """
    if isinstance(lora, str):
        from minitrain.workloads.hugging_face import read_lora  # noqa: PLC0415 - only where a config is read

        lora = int(lora) if lora.strip().isdecimal() else read_lora(lora)
    documents = None if documents is None else Documents.read(documents)
    changes = {"precision": precision, "lora": lora, "frozen_layers": frozen_layers, "documents": documents, "ema": ema}
    changed = {name: value for name, value in changes.items() if value is not None}
    if isinstance(workload, str):
        workload = DENSE_LAYER if workload == DENSE else DenseRows.named(workload) or workload
    if hasattr(workload, "compute_cost"):
        for name, value in {"seq_len": seq_len, **changes}.items():
            if value is not None:
                raise UsageError(
                    f"{name} is for transformers, and {workload!r:.80} is a workload with samples of its own; leave "
                    f"{name} out"
                )
        return cast(Workload, workload)
    model = find_model(workload)
    return _workload_of(replace(model, **changed) if changed else model, seq_len)
