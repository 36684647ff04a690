"""What a strategy may use of a model: `StrategyModel`, by which strategies may annotate theirs.

Every kind of model extends it, so that a type checker compares each method with what stands here. What a `Model` has
beside is to be read of a finished rank, or the engine's. The methods say in a sentence what they do; those of `Model`
tell arguments, results and errors.

Collectives alone are implemented here: all that they do is in their records (`minitrain.operations.collectives`), so
that each is one line over `_collective`, which is a model's way to submit one.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from minitrain.machine.network import require_algorithm

if TYPE_CHECKING:
    from minitrain.engine.host_memory import HostStore
    from minitrain.engine.operations import Launched
    from minitrain.engine.protocol import Group, Mesh
    from minitrain.engine.semantics import Shares
    from minitrain.engine.stores import Store
    from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
    from minitrain.tensors.compressed import ApproximateGrad, CompressedGrad, CompressionState
    from minitrain.tensors.fields import OnHost
    from minitrain.tensors.kinds import LocalWeight, OuterState
    from minitrain.tensors.placed import (
        ActivationShard,
        Attended,
        AttendedGrad,
        ExpertOptState,
        ExpertOutputsGrad,
        ExpertWeight,
        KeysValues,
        KeysValuesGrad,
        QueriesGrad,
        RoutedTokens,
        RouterGrad,
        RouterOptState,
        RouterWeight,
        TableGrad,
        WeightGradPart,
    )
    from minitrain.workloads.workload import Recompute

T = TypeVar("T")


class StrategyModel(Protocol):
    """One rank of a training run, as its strategy sees it.

    Attributes:
        rank: this rank, 0 to world_size - 1.
        world_size: number of ranks.
        num_layers: layers of the trained model.
        global_batch_size: samples of one step, over all ranks.
        time: when the rank has finished its last operation, s.
        recompute: what backward computes again of a layer, where its forward does not say.
        layers_are_alike: whether all layers cost the same and hold tensors of the same sizes.
        blocks: the layers that belong together.
        shares: who takes how much of the step; None where all take the same.
        weights, opt_states, activations, grad_activations, grad_weights: the five stores.
        host: what the rank keeps in the memory of its host.
    """

    __slots__ = ()

    weights: Store[Weight]
    opt_states: Store[OptState]
    activations: Store[Activation]
    grad_activations: Store[ActivationGrad]
    grad_weights: Store[WeightGrad]
    rank: int
    world_size: int
    num_layers: int
    global_batch_size: int
    time: float
    recompute: Any  # takes any word, and gives one that is known

    @property
    def layers_are_alike(self) -> bool: ...  # noqa: D102  (above, as the next three)
    @property
    def blocks(self) -> tuple[range, ...]: ...  # noqa: D102
    @property
    def shares(self) -> Shares | None: ...  # noqa: D102
    @property
    def host(self) -> HostStore: ...  # noqa: D102

    def stages(
        self, num_stages: int, microbatch_size: int = 1, *, layers_per_stage: Sequence[int] | None = None
    ) -> tuple[range, ...]:
        """Return the layers of each stage of a pipeline."""

    def steps(self) -> Iterator[int]:
        """Yield the steps of a strategy that takes them in a loop of its own."""

    def samples_of_rank(self, num_replicas: int | None = None, index: int | None = None) -> Sequence[int]:
        """Return the samples of this rank."""

    def microbatches(
        self,
        microbatch_size: int | None = None,
        *,
        num_replicas: int | None = None,
        index: int | None = None,
        in_step: bool = False,
    ) -> Sequence[Sequence[int]]:
        """Return the samples of this rank in microbatches."""

    def storage(
        self,
    ) -> tuple[Store[Weight], Store[OptState], Store[Activation], Store[ActivationGrad], Store[WeightGrad]]:
        """Return the five stores: weights, opt_states, activations, grad_activations, grad_weights."""

    def memory(self) -> float:
        """Return the elements in the five stores (and in operations launched to overlap) now."""

    def load_weights(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[Weight, OptState]:
        """Load one shard of a layer's weight and make its optimizer state, both of step 0."""

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Hand in the trained weight of a layer (or this rank's shard of it)."""

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the model's input for some samples: an activation of layer 0."""

    def forward(self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None) -> Activation:
        """Take an activation through a layer."""

    def loss(self, inp: Activation) -> ActivationGrad:
        """Return the gradient of the loss with respect to the model's output."""

    def backward(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """Take a gradient back through a layer."""

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Take a gradient back to a layer's input alone: the first half of a split backward."""

    def backward_weight(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight | None = None
    ) -> WeightGrad:
        """Return the gradient of a layer's weight: the second half of a split backward."""

    def update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState
    ) -> tuple[Weight, OptState]:
        """Take an optimizer step on a weight, or on the shards of it that this rank holds."""

    def local_copy(self, layer: int, weight: Weight) -> LocalWeight:
        """Return a copy of the common weight, from which this replica goes its own way."""

    def load_outer_state(self, layer: int, weight: Weight) -> OuterState:
        """Return the momentum of the common weight."""

    def outer_gradient(self, layer: int, weight: Weight, local: Weight) -> WeightGrad:
        """Return by how much this replica has moved the common weight."""

    def outer_update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, outer_state: OptState | None = None
    ) -> Any:
        """Take the common weight on by the mean of what all replicas have moved it by."""

    def mix(self, layer: int, weight: Weight, local: Weight) -> LocalWeight:
        """Let a replica's own weight be the declared mixture of itself and the common weight that it meets."""

    def load_compression(self, layer: int, weight: Weight) -> CompressionState:
        """Return what a worker keeps to compress a layer's gradients."""

    def compress(self, layer: int, grad: WeightGrad, state: OptState) -> tuple[CompressedGrad, CompressionState]:
        """Return the message in which this worker sends its gradient, and its state."""

    def second_factor(
        self, layer: int, packed: CompressedGrad, state: OptState
    ) -> tuple[CompressedGrad, CompressionState]:
        """Return PowerSGD's second message, and the state."""

    def decompress(
        self, layer: int, packed: CompressedGrad, state: OptState
    ) -> tuple[ApproximateGrad, CompressionState]:
        """Return the gradient that all messages stand for, and the state for the next step."""

    @property
    def tied_layers(self) -> tuple[int, ...]:
        """The two layers that share a table that is trained, embedding and head; none where none do."""

    def table_gradient(self, layer: int, grad: WeightGrad) -> TableGrad:
        """Return the gradient of the shared table by one of the two layers."""

    def with_table(self, layer: int, grad: WeightGrad, table: WeightGrad) -> WeightGrad:
        """Return a layer's gradient with that of the table as it is by both layers."""

    def has_attention(self, layer: int) -> bool:
        """Return whether tokens need one another in a layer, so that shards of a sequence take it in steps."""

    def document_lengths(self, sample: int) -> tuple[int, ...]:
        """Return the tokens of the documents that a sample consists of."""

    def count_pairs(
        self, samples: Iterable[int], shards: Iterable[int] = (0,), num_shards: int = 1, cut: str = "sequence"
    ) -> int:
        """Return the pairs of a query of some shards and a key that it sees: attention's FLOPs are proportional."""

    def get_input_shard(
        self, samples: Iterable[int], shards: Iterable[int], num_shards: int, cut: str = "sequence"
    ) -> ActivationShard:
        """Return the model's input for some samples, and some shards of their sequence."""

    def keys_values(
        self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None
    ) -> KeysValues:
        """Return the keys and values of the rank's own tokens, and make the queries, which stay with the input."""

    def attend(self, layer: int, inp: Activation, keys_values: Activation) -> Attended:
        """Attend from the queries of an input to some keys and values."""

    def project(self, layer: int, inp: Activation, weight: Weight, attended: Activation) -> Any:
        """Finish an attention: the output projection of what the queries got from all keys up to their own."""

    def backward_project(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> AttendedGrad:
        """Take a gradient back through the output projection."""

    def backward_attend(
        self, layer: int, inp: Activation, grad: ActivationGrad, keys_values: Activation
    ) -> tuple[QueriesGrad, KeysValuesGrad]:
        """Take a gradient back to the queries and to some keys and values."""

    def backward_keys_values(
        self,
        layer: int,
        inp: Activation,
        weight: Weight,
        grad_queries: ActivationGrad,
        grad_keys_values: ActivationGrad,
    ) -> tuple[WeightGradPart, Any]:
        """Take the gradients of queries, keys and values back to an attention's input."""

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer has experts that can be divided among ranks."""

    def load_router(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[RouterWeight, RouterOptState]:
        """Load what every rank holds of a layer with experts: norm, router and shared experts."""

    def load_experts(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[ExpertWeight, ExpertOptState]:
        """Load one part of a layer's experts, or a shard of that part."""

    def route(
        self,
        layer: int,
        inp: Activation,
        weight: Weight,
        num_parts: int,
        *,
        imbalance: float | str | Sequence[float] = 1,
        capacity_factor: float | None = None,
        drop_tokens: bool = True,
        recompute: Recompute | None = None,
    ) -> RoutedTokens:
        """Choose experts for each token, and return copies of the tokens for all parts of the experts."""

    def combine(self, layer: int, inp: Activation, outputs: Activation, weight: Weight) -> Activation:
        """Add up what experts have made of each token, with shared experts and residual."""

    def backward_combine(
        self, layer: int, inp: Activation, outputs: Activation, grad: ActivationGrad
    ) -> ExpertOutputsGrad:
        """Take a gradient back to what the experts have made of the samples' tokens."""

    def backward_route(
        self, layer: int, inp: Activation, grad: ActivationGrad, tokens_grad: ActivationGrad, weight: Weight
    ) -> tuple[RouterGrad, ActivationGrad]:
        """Take gradients back through shared experts, router and norm."""

    def mesh(self, **axes: int) -> Mesh:
        """Lay the ranks out on named axes, the last one fastest: with `mesh(pp=4, dp=2)`, rank = 2 pp + dp."""

    def group(self, ranks: Iterable[int]) -> Group:
        """Return the group of some ranks, this one among them."""

    async def send(self, dest: int, v: Any, *, tag: Hashable = None) -> None:
        """Send a tensor to another rank."""

    async def receive(self, source: int, *, tag: Hashable = None) -> Any:
        """Return the oldest tensor that another rank sent (under this tag) and that was not received yet."""

    async def update_on_host(self, weight_grad: OnHost, weight: OnHost, opt_state: OnHost) -> None:
        """Take an optimizer step of what lies in the host's memory, in place, by the host's processor."""

    async def offload(self, v: T) -> OnHost:
        """Copy a tensor to the host's memory; free it on the device by taking it out of its store."""

    async def fetch(self, v: OnHost) -> Any:
        """Copy what was offloaded back to the device; the copy on the host stays until it is deleted."""

    async def write(self, v: OnHost) -> None:
        """Write what was offloaded to the storage, as a part of a checkpoint."""

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Submit one communication of this model to run beside what follows: `work = model.launch(model.send(...))`."""

    def _collective(self, op: str, v: Any, layer: int | None, group: Any, detail: Any = None) -> Any:
        """Submit a collective; to await its result."""

    def _listed(self, v: Any) -> Any:
        """Return what a rank gives to an exchange: a list of tensors, or copies of tokens."""

    def _of_root(self, op: str, v: Any, layer: int | None, group: Any, root: int) -> tuple[Any, int | None, Any, int]:
        """Return what a rank gives to a collective with a root, as `_collective` takes it."""

    async def all_reduce(
        self, v: T, layer: int, *, group: Group | Iterable[int] | None = None, algorithm: str | None = None
    ) -> T:
        """Sum a gradient (or a bucket of them) over the ranks of a group; every rank gets the sum.

        On a device this works in place: the sum takes the place of `v`.

        Args:
            v: a `WeightGrad`, or a list of them, which share one latency.
            layer: the layer that the event names.
            group: who takes part; all ranks by default.
            algorithm: "ring", "tree" or "hierarchical"; the network's own choice by default (see
                `minitrain.machine.network`). It changes the price, not the sum.

        Raises:
            CollectiveMismatchError: the ranks bring what cannot be summed, or ask for different algorithms.
            TensorTypeError: `v` is not a tensor.
            UsageError: there is no such algorithm, or the network has none such for the group.
        """
        asked = algorithm if algorithm is None else require_algorithm("all_reduce", algorithm)
        return await self._collective("all_reduce", v, layer, group, asked)  # type: ignore[no-any-return]

    async def reduce_scatter(
        self, v: T, layer: int, *, group: Group | Iterable[int] | None = None, algorithm: str | None = None
    ) -> T:
        """Sum a gradient (or a bucket of them) over the ranks of a group and keep this rank's shard of it.

        Args, Raises: as for `all_reduce`; the gradients must be complete, and there is no tree.
        """
        asked = algorithm if algorithm is None else require_algorithm("reduce_scatter", algorithm)
        return await self._collective("reduce_scatter", v, layer, group, asked)  # type: ignore[no-any-return]

    async def all_gather(
        self, v: T, layer: int, *, group: Group | Iterable[int] | None = None, algorithm: str | None = None
    ) -> T:
        """Put the shards of a group's ranks together; every rank gets all of them.

        Args:
            v: a `Weight`, `WeightGrad` or `OptState`, or a list of them, which share one latency.
            layer: the layer that the event names.
            group: who takes part; all ranks by default.
            algorithm: "ring" or "hierarchical"; the network's own choice by default.

        Raises:
            CollectiveMismatchError: the ranks bring shards that do not belong together, or ask for two algorithms.
            TensorTypeError: `v` is not a tensor.
            UsageError: there is no such algorithm, or the network has none such for the group.
        """
        asked = algorithm if algorithm is None else require_algorithm("all_gather", algorithm)
        return await self._collective("all_gather", v, layer, group, asked)  # type: ignore[no-any-return]

    async def broadcast(
        self, v: T | None, source: int, layer: int | None = None, *, group: Group | Iterable[int] | None = None
    ) -> T:
        """Give every rank of a group the tensor of one of them.

        Args:
            v: the tensor; on every rank but the source it is ignored.
            source: whose tensor.
            layer: the layer that the event names.
            group: who takes part; all ranks by default.

        Raises:
            UsageError: the source is not in the group.
        """
        return await self._collective("broadcast", *self._of_root("broadcast", v, layer, group, source))  # type: ignore[no-any-return]

    async def reduce(
        self, v: T, dest: int, layer: int | None = None, *, group: Group | Iterable[int] | None = None
    ) -> T | None:
        """Sum what all ranks of a group bring, as `all_reduce` does, for one of them.

        Args:
            v: the tensor.
            dest: who gets the sum.
            layer: the layer that the event names.
            group: who takes part; all ranks by default.

        Returns:
            The sum on rank `dest`, None on the others, whose tensors are used up as well; so for each of a bucket.

        Raises:
            CollectiveMismatchError: the ranks bring tensors that do not add.
            TensorTypeError: `v` is not a tensor.
            UsageError: the destination is not in the group.
        """
        return await self._collective("reduce", *self._of_root("reduce", v, layer, group, dest))  # type: ignore[no-any-return]

    async def all_to_all(self, v: Any, layer: int | None = None, *, group: Group | Iterable[int] | None = None) -> Any:
        """Give the k-th tensor of a list to the k-th rank of a group, and get one from each.

        Copies of tokens are one tensor: those for the k-th part of a layer's experts go to the k-th rank, and what the
        experts have made of them comes back to the ranks whose samples they are.

        Args:
            v: one tensor for each rank of the group, in rank order; or copies of tokens (`RoutedTokens`,
                `ExpertOutputs`, or the gradient of one).
            layer: the layer that the event names.
            group: who takes part; all ranks by default.

        Returns:
            A list of one tensor from each rank; or copies of tokens.

        Raises:
            CollectiveMismatchError: the ranks bring copies of tokens that do not belong together.
            TensorTypeError: `v` is neither.
        """
        return await self._collective("all_to_all", self._listed(v), layer, group)

    async def barrier(self, group: Group | Iterable[int] | None = None) -> None:
        """Wait until all ranks of a group have arrived."""
        await self._collective("barrier", None, None, group)
