"""One rank's view of a training run: its stores, its operations, its clock and its log.

A strategy sees nothing else. Every operation checks the laws of training first, then logs one event priced by the
rank's predictor, then moves the rank's clock. Computing moves this rank's clock alone; what ranks do together starts
when the last of them is ready.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterable, Sequence
from functools import lru_cache
from types import CoroutineType
from typing import Any, TypeVar

from minitrain import laws
from minitrain.dist import Dist
from minitrain.errors import StrategyError, TensorTypeError, UsageError, require_count
from minitrain.events import MEMORY, ON_COMPUTE, RECV, SEND, STRIDE, EventLog, Note
from minitrain.groups import Group, Mesh, require_axes
from minitrain.predictor import FREE, Predictor, Price, RuntimePredictor
from minitrain.storage import UNITS_PER_ELEMENT, Account, Store
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.verification import check_final_weights
from minitrain.work import NO_SAMPLES, PeerStream, Work

T = TypeVar("T")

Groupish = Group | Iterable[int] | None
STORES = ("weights", "opt_states", "activations", "grad_activations", "grad_weights")
_RESULT_IS_NEW = frozenset({"all_gather", "all_to_all", "broadcast", "recv"})


@lru_cache
def _default_predictor(world_size: int) -> RuntimePredictor:
    """Return the predictor that models of the same world share by default."""
    return RuntimePredictor(world_size)


class Model:
    """One rank of a training run.

    Args:
        rank: this rank, 0 to world_size - 1 (in a world of one, any number).
        dist: the transport that all ranks share; by default a world of its own.
        num_layers: layers of the trained model.
        global_batch_size: samples of one step, over all ranks.
        runtime_predictor: what prices the operations; an H100 server by default.

    Attributes:
        time: the clock of the rank's compute stream, s.
        log: the events so far, a list to read.
        final_weights: weight by layer, as set by `set_final_weight`.
        weights, opt_states, activations, grad_activations, grad_weights: the five stores.

    Raises:
        UsageError: a parameter is outside its rule.
    """

    def __init__(
        self,
        rank: int = 1,
        dist: Dist | None = None,
        num_layers: int = 2,
        global_batch_size: int = 1,
        *,
        runtime_predictor: Predictor | None = None,
    ) -> None:
        self.dist = Dist(1) if dist is None else dist
        self.world_size = self.dist.world_size
        self.rank = require_count("rank", rank, 0)
        if rank >= self.world_size > 1:
            raise UsageError(f"rank must lie in 0..{self.world_size - 1}, got {rank}", rank=rank)
        self.num_layers = require_count("num_layers", num_layers)
        self.global_batch_size = require_count("global_batch_size", global_batch_size)
        self.runtime_predictor = runtime_predictor or _default_predictor(self.world_size)

        self.time = 0.0
        self.log = EventLog(rank)
        self._rows = self.log.rows
        self.final_weights: dict[int, Weight] = {}
        self.account = Account(self.runtime_predictor.workload.memory_elements)
        self.weights: Store[Weight] = Store(self.account)
        self.opt_states: Store[OptState] = Store(self.account)
        self.activations: Store[Activation] = Store(self.account)
        self.grad_activations: Store[ActivationGrad] = Store(self.account)
        self.grad_weights: Store[WeightGrad] = Store(self.account)

        self.launching = False
        self.in_flight: dict[int, Work] = {}
        self._world = Group(self.dist.world, rank)
        self._groups: dict[tuple[int, ...], Group] = {self._world.ranks: self._world}
        self._peers: dict[tuple[str, int], PeerStream] = {}

    # ---- what the rank holds -------------------------------------------------------------------------------------

    def storage(
        self,
    ) -> tuple[Store[Weight], Store[OptState], Store[Activation], Store[ActivationGrad], Store[WeightGrad]]:
        """Return the five stores: weights, opt_states, activations, grad_activations, grad_weights."""
        return self.weights, self.opt_states, self.activations, self.grad_activations, self.grad_weights

    def memory(self) -> float:
        """Return the elements in the five stores (and in operations launched to overlap) now."""
        return self.account.units / UNITS_PER_ELEMENT

    @property
    def peak_memory(self) -> float:
        """The most elements ever held at once, also between events."""
        return self.account.high_water() / UNITS_PER_ELEMENT

    def holds(self, value: Any) -> bool:
        """Return whether a tensor, or an equal one, is in one of the stores."""
        return getattr(value, "_home", None) is self.account or any(value in store.values() for store in self.storage())

    def status(self) -> None:
        """Print what the stores hold."""
        for name in STORES:
            print(f"rank {self.rank} {name}:")
            for key, value in getattr(self, name).items():
                print(f"  {key!r}: {value!r}")

    def memory_by_store(self) -> dict[str, float]:
        """Return the elements in each store now, and those of operations in flight."""
        held = {name: sum(map(self.account.units_of, getattr(self, name).values())) for name in STORES}
        held["in_flight"] = self.account.units - sum(held.values())
        return {name: units / UNITS_PER_ELEMENT for name, units in held.items()}

    # ---- the log -------------------------------------------------------------------------------------------------

    def log_event(
        self,
        typ: str,
        layer: int | None = None,
        samples: frozenset[int] = NO_SAMPLES,
        input: Any = None,  # noqa: A002  (the specification's own name)
        num_shards_on_device: int | None = None,
        num_shards: int | None = None,
    ) -> None:
        """Price an event by its type, log it at the present clock, and move the clock to its end.

        Args:
            typ: type of the event; one without a price lasts 0.
            layer: the layer it works on.
            samples: the samples it works on.
            input: the tensor that a communication carries.
            num_shards_on_device: shards worked on, for load_weights and update.
            num_shards: shards of the whole, for load_weights and update.
        """
        self._record(typ, layer, self._price(typ, samples, input, num_shards_on_device, num_shards), samples)

    def _price(self, typ: str, samples: frozenset[int], value: Any, held: int | None, num_shards: int | None) -> Price:
        """Return the price of an event of a type."""
        predictor = self.runtime_predictor
        if typ in ("forward", "backward", "backward_input", "backward_weight"):
            return predictor.compute(typ, len(samples))
        if typ == "update":
            return predictor.update(held or 1, num_shards or 1)
        if typ == "load_weights":
            return predictor.load(held or 1, num_shards or 1)
        if value is None:
            return FREE
        if typ in (SEND, RECV):
            return predictor.p2p(typ, self.wire_bytes(value), self.rank, self.rank)
        return predictor.collective(typ, self.wire_bytes(value), self._world.ranks)

    def _record(self, typ: str, layer: int | None, price: Price, samples: frozenset[int]) -> None:
        """Log a compute event and move the clock to its end."""
        time = self.time
        self._rows.extend((typ, layer, time, price, self.account.units, samples, ON_COMPUTE, None, time, None))
        self.time = time + price.seconds

    def _reserve(self, op: str, layer: int | None, owner: Group | PeerStream, tag: Hashable = None) -> int:
        """Log an operation that may still have to wait, and return its row, to be completed later."""
        row = len(self._rows)
        note = None if tag is None else Note(tag)
        self._rows.extend(
            (op, layer, self.time, FREE, self.account.units, NO_SAMPLES, owner.stream, None, self.time, note)
        )
        return row

    # ---- computing -----------------------------------------------------------------------------------------------

    def load_weights(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[Weight, OptState]:
        """Load one shard of a layer's weight and make its optimizer state, both of step 0.

        Args:
            layer: which layer.
            shard: which shard of it.
            num_shards: number of shards that the layer is cut into.

        Raises:
            LawError: there is no such layer or shard.
        """
        laws.load(self, layer, shard, num_shards)
        self.dist.watch.entered.add(self.rank)
        shards = frozenset([shard])
        self._record("load_weights", layer, self.runtime_predictor.load(1, num_shards), NO_SAMPLES)
        return (
            Weight(layer, self.num_layers, 0, shards, num_shards),
            OptState(layer, self.num_layers, 0, shards, num_shards),
        )

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Hand in the trained weight of a layer (or this rank's shard of it).

        Raises:
            LawError: it is not a weight of that layer.
        """
        laws.final_weight(self, layer, weight)
        self.final_weights[layer] = weight

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the model's input for some samples: an activation of layer 0.

        Raises:
            LawError: a sample is not of the global batch.
        """
        return Activation(0, self.num_layers, laws.input_samples(self, samples), self.global_batch_size)

    def forward(self, layer: int, inp: Activation, weight: Weight) -> Activation:
        """Take an activation through a layer.

        Args:
            layer: which layer.
            inp: its input.
            weight: its complete weight, from a store.

        Returns:
            The input of layer + 1, for the same samples.

        Raises:
            LawError: the weight is incomplete or not in a store, or something is of another layer.
        """
        laws.forward(self, "forward", layer, inp, weight)
        samples = inp.samples
        self._record("forward", layer, self.runtime_predictor.compute("forward", len(samples)), samples)
        return Activation(layer + 1, self.num_layers, samples, self.global_batch_size)

    def loss(self, inp: Activation) -> ActivationGrad:
        """Return the gradient of the loss with respect to the model's output (free of cost).

        Raises:
            LawError: `inp` is not the model's output.
        """
        laws.loss(self, inp)
        samples = inp.samples
        self._record("loss", self.num_layers, self.runtime_predictor.compute("loss", len(samples)), samples)
        return ActivationGrad(self.num_layers - 1, self.num_layers, samples, self.global_batch_size)

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
        laws.backward(self, "backward", layer, inp, grad, weight)
        samples = inp.samples
        self._record("backward", layer, self.runtime_predictor.compute("backward", len(samples)), samples)
        return (
            WeightGrad(layer, self.num_layers, samples, self.global_batch_size),
            ActivationGrad(layer - 1, self.num_layers, samples, self.global_batch_size),
        )

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Take a gradient back to a layer's input alone: the first half of a split backward (Qi et al. 2023).

        Args, Raises: as for `backward`.

        Returns:
            The gradient of the layer's input (an `ActivationGrad` of layer - 1).
        """
        laws.backward(self, "backward_input", layer, inp, grad, weight)
        samples = inp.samples
        price = self.runtime_predictor.compute("backward_input", len(samples))
        self._record("backward_input", layer, price, samples)
        return ActivationGrad(layer - 1, self.num_layers, samples, self.global_batch_size)

    def backward_weight(self, layer: int, inp: Activation, grad: ActivationGrad) -> WeightGrad:
        """Return the gradient of a layer's weight: the second half of a split backward (Qi et al. 2023).

        Args:
            layer: which layer.
            inp: the layer's input, from a store.
            grad: gradient of its output, from a store, for the same samples.

        Raises:
            LawError: something is of another layer, of other samples, or not in a store.
        """
        laws.backward(self, "backward_weight", layer, inp, grad)
        samples = inp.samples
        price = self.runtime_predictor.compute("backward_weight", len(samples))
        self._record("backward_weight", layer, price, samples)
        return WeightGrad(layer, self.num_layers, samples, self.global_batch_size)

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
            LawError: a layer or step differs, a sample is missing, or shards do not match.
        """
        laws.update(self, layer, weight_grad, weight, opt_state)
        price = self.runtime_predictor.update(len(weight.shards), weight.num_shards)
        self._record("update", layer, price, weight_grad.samples)
        return (
            Weight(layer, self.num_layers, weight.step + 1, weight.shards, weight.num_shards),
            OptState(layer, self.num_layers, opt_state.step + 1, opt_state.shards, opt_state.num_shards),
        )

    # ---- communicating -------------------------------------------------------------------------------------------

    def mesh(self, **axes: int) -> Mesh:
        """Lay the ranks out on named axes, the last one fastest: with `mesh(pp=4, dp=2)`, rank = 2 pp + dp.

        Raises:
            UsageError: the product of the axes is not world_size.
        """
        require_axes(axes, self.world_size)
        return Mesh(self.rank, axes, self.group)

    def group(self, ranks: Iterable[int]) -> Group:
        """Return the group of some ranks, this one among them.

        Raises:
            UsageError: a rank is not of this world, or this rank is not among them.
        """
        members = tuple(sorted(set(ranks)))
        found = self._groups.get(members)
        if found is None:
            found = self._groups[members] = Group(self.dist.communicator(members), self.rank)
        return found

    async def all_reduce(self, v: T, layer: int, *, group: Groupish = None) -> T:
        """Sum a gradient (or a bucket of them) over the ranks of a group; every rank gets the sum.

        On a device this works in place: the sum takes the place of `v`.

        Args:
            v: a `WeightGrad`, or a list of them, which share one latency.
            layer: the layer that the event names.
            group: who takes part; all ranks by default.

        Raises:
            CollectiveMismatchError: the ranks bring what cannot be summed.
            TensorTypeError: `v` is not a tensor.
        """
        return await self._collective("all_reduce", v, layer, group)  # type: ignore[no-any-return]

    async def reduce_scatter(self, v: T, layer: int, *, group: Groupish = None) -> T:
        """Sum a gradient (or a bucket of them) over the ranks of a group and keep this rank's shard of it.

        Args, Raises: as for `all_reduce`; the gradients must be complete.
        """
        return await self._collective("reduce_scatter", v, layer, group)  # type: ignore[no-any-return]

    async def all_gather(self, v: T, layer: int, *, group: Groupish = None) -> T:
        """Put the shards of a group's ranks together; every rank gets all of them.

        Args:
            v: a `Weight`, `WeightGrad` or `OptState`, or a list of them, which share one latency.
            layer: the layer that the event names.
            group: who takes part; all ranks by default.

        Raises:
            CollectiveMismatchError: the ranks bring shards that do not belong together.
            TensorTypeError: `v` is not a tensor.
        """
        return await self._collective("all_gather", v, layer, group)  # type: ignore[no-any-return]

    async def broadcast(self, v: T | None, source: int, layer: int | None = None, *, group: Groupish = None) -> T:
        """Give every rank of a group the tensor of one of them.

        Args:
            v: the tensor; on every rank but the source it is ignored.
            source: whose tensor.
            layer: the layer that the event names.
            group: who takes part; all ranks by default.

        Raises:
            UsageError: the source is not in the group.
        """
        member = self._member(group)
        if source not in member.ranks and member.size > 1:
            raise UsageError(f"the source of a broadcast must be in the group {member.ranks}, got {source!r}")
        value = v if source == self.rank else None
        return await self._collective("broadcast", value, layer, member, source)  # type: ignore[no-any-return]

    async def all_to_all(self, v: Sequence[T], layer: int | None = None, *, group: Groupish = None) -> list[T]:
        """Give the k-th tensor of a list to the k-th rank of a group, and get one from each.

        Args:
            v: one tensor for each rank of the group, in rank order.
            layer: the layer that the event names.
            group: who takes part; all ranks by default.
        """
        return await self._collective("all_to_all", list(v), layer, group)  # type: ignore[no-any-return]

    async def barrier(self, group: Groupish = None) -> None:
        """Wait until all ranks of a group are here."""
        await self._collective("barrier", None, None, group)

    async def send(self, dest: int, v: Any, *, tag: Hashable = None) -> None:
        """Send a tensor to another rank.

        Args:
            dest: who gets it.
            v: the tensor.
            tag: only a receive with the same tag gets it; tagged messages are never held back.

        Raises:
            UsageError: `dest` is not another rank.
            TensorTypeError: `v` is not a tensor.
        """
        await self._send(dest, v, tag)

    async def receive(self, source: int, *, tag: Hashable = None) -> Any:
        """Return the oldest tensor that another rank sent (under this tag) and that was not received yet.

        Args:
            source: who sends it.
            tag: the tag it was sent with.

        Raises:
            UsageError: `source` is not another rank.
        """
        return await self._receive(source, tag)

    def launch(self, operation: Coroutine[Any, Any, T]) -> Work:
        """Submit one communication of this model to run beside what follows: `work = model.launch(model.send(...))`.

        The operation is submitted before this returns, at the present clock; `await work` gives its result and moves
        the compute clock to its end. Its tensors count as memory of this rank until then. (A task made around an
        operation, in contrast, begins whenever the event loop comes to it.)

        Raises:
            StrategyError: `operation` is not a fresh communication of this model.
        """
        self._require_operation(operation)
        self.launching = True
        try:
            work: Work = operation.send(None)
        finally:
            self.launching = False
        operation.close()
        work.mark_overlap()
        self._hold(work)
        return work

    # ---- how communication is submitted --------------------------------------------------------------------------

    def _require_operation(self, operation: Any) -> None:
        """Require a coroutine that one of this model's communications has just returned."""
        fresh = isinstance(operation, CoroutineType) and operation.cr_frame is not None and operation.cr_await is None
        if fresh and operation.cr_code in _OPERATIONS and operation.cr_frame.f_locals.get("self") is self:
            return
        if isinstance(operation, CoroutineType):
            operation.close()
        raise StrategyError(
            f"launch on rank {self.rank} takes one communication of the same model that nobody awaits yet, such as "
            f"model.launch(model.all_gather(weight, layer)); got {operation!r:.80}",
            rank=self.rank,
        )

    def wire_bytes(self, value: Any) -> int:
        """Return the bytes that a tensor or a bucket puts on the wire."""
        if value is None:
            return 0
        if isinstance(value, list):
            return sum(self.wire_bytes(item) for item in value)
        return self.runtime_predictor.workload.message_bytes(value)

    def _member(self, group: Groupish) -> Group:
        """Return this rank's own view of a group."""
        if group is None:
            return self._world
        if isinstance(group, Group):
            return group if group.rank == self.rank else self.group(group.ranks)
        return self.group(group)

    def _collective(self, op: str, v: Any, layer: int | None, group: Groupish, detail: Any = None) -> Work:
        """Submit a collective."""
        self.dist.watch.entered.add(self.rank)
        member = self._member(group)
        value = list(v) if isinstance(v, tuple) else v
        if value is None and op not in ("barrier", "broadcast"):
            raise TensorTypeError(f"{op} on rank {self.rank} needs a tensor, got None", rank=self.rank)
        self.wire_bytes(value)
        work = Work(self, op, value, member, self._reserve(op, layer, member), detail)
        if member.size == 1:
            work.settle(value, self.time, None, work.terms([work], [value]))
        else:
            self.dist.join(member.communicator, member.index, work)
        return work

    def _peer(self, kind: str, peer: int) -> PeerStream:
        """Return the stream of messages to or from a peer."""
        found = self._peers.get((kind, peer))
        if found is None:
            found = self._peers[kind, peer] = PeerStream(kind, peer)
        return found

    def _send(self, dest: int, v: Any, tag: Hashable) -> Work:
        """Submit a message; it takes its stream at once, whatever its receiver does."""
        self.dist.watch.entered.add(self.rank)
        channel = self.dist.channel(self.rank, dest, tag)
        size_bytes = self.runtime_predictor.workload.message_bytes(v)
        price = self.runtime_predictor.p2p(SEND, size_bytes, self.rank, dest)
        owner = self._peer(SEND, dest)
        work = Work(self, SEND, v, owner, self._reserve(SEND, v.layer, owner, tag), None)
        work.depart(price)
        self.dist.put(channel, work)
        return work

    def _receive(self, source: int, tag: Hashable) -> Work:
        """Submit a receive."""
        self.dist.watch.entered.add(self.rank)
        channel = self.dist.channel(source, self.rank, tag)
        owner = self._peer(RECV, source)
        work = Work(self, RECV, None, owner, self._reserve(RECV, None, owner, tag), None)
        owner.pending.append(work)
        self.dist.get(channel, work)
        return work

    # ---- memory in flight ----------------------------------------------------------------------------------------

    def _hold(self, work: Work) -> None:
        """Count the tensors of an operation that was launched, until it is awaited."""
        self.in_flight[id(work)] = work
        values = work.value if isinstance(work.value, list) else [work.value]
        for value in values:
            if value is not None and getattr(value, "_home", None) is not self.account:
                work.units += self.account.units_of(value)
        self.account.grow(work.units)
        if work.op not in _RESULT_IS_NEW or work.detail == self.rank:
            return
        if work.settled:
            self._hold_result(work)
        else:
            work.window = self.account.open_window()

    def _hold_result(self, work: Work) -> None:
        """Count the result of an operation that was launched."""
        units = self._result_units(work)
        work.units += units
        self.account.grow(units)

    def close_window(self, work: Work) -> None:
        """Count the result of an operation from its launch on, now that its size is known."""
        units = self._result_units(work)
        work.units += units
        self.account.backdate(work.window, units)
        for row in range(work.row + STRIDE, len(self._rows), STRIDE):
            self._rows[row + MEMORY] += units

    def _result_units(self, work: Work) -> int:
        """Return the size of an operation's result."""
        results = work.result if isinstance(work.result, list) else [work.result]
        return sum(self.account.units_of(result) for result in results)

    def arrived(self, work: Work) -> None:
        """Give back what a launched operation held: whoever awaited it has the result now."""
        del self.in_flight[id(work)]
        self.account.units -= work.units

    @staticmethod
    def check(models: Sequence[Model]) -> None:
        """Verify that every layer was trained: see `minitrain.verification.check_final_weights`.

        Raises:
            LawError: a final weight is missing, incomplete, of the wrong step, or differs between replicas.
        """
        check_final_weights(models)


_OPERATIONS = frozenset(
    method.__code__
    for method in (
        Model.all_reduce,
        Model.reduce_scatter,
        Model.all_gather,
        Model.broadcast,
        Model.all_to_all,
        Model.barrier,
        Model.send,
        Model.receive,
    )
)
