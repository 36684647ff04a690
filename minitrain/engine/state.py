"""The state of a rank: its stores, its clock, its log, and what prices its operations.

The operations that change this state are in `minitrain.engine.computation` and `minitrain.engine.communication`.

Ranks remember prices and sizes of layers that are alike (`Remembered`). The operations of
`minitrain.engine.computation` are quick where one look into such a table finds a price. Where layers differ the tables
stay empty, so that every operation goes on to `minitrain.engine.placed_passes`, which fills them where it may. So an
operation need not ask what kind of workload it is for.
"""

from __future__ import annotations

import copy
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from minitrain.engine.dist import Dist
from minitrain.engine.protocol import Group, ProcessGroup, Transport
from minitrain.engine.semantics import Entry, LocalSteps, SharesOfRun
from minitrain.engine.stores import Account, Journal, JournalledStore, KindAccount, KindStore, Store, logits_of
from minitrain.errors import StrategyError, UsageError, require_count
from minitrain.machine.predictor import RuntimePredictor
from minitrain.machine.price import FREE, Predictor, Price
from minitrain.operations import (
    COLLECTIVES,
    COMM,
    COMMUNICATIONS,
    NO_SAMPLES,
    ON_COMPUTE,
    RECV,
    SEND,
    STORES,
    UNITS_PER_ELEMENT,
    EventLog,
    MemoryChange,
    Stream,
)
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad, clone
from minitrain.tensors.kinds import LocalWeight, enable_annotations
from minitrain.tensors.placed import ExpertWeight
from minitrain.workloads.workload import PassMode, Recompute

if TYPE_CHECKING:
    from minitrain.engine.observers import Executor, Observer


T = TypeVar("T")


@lru_cache
def _default_predictor(world_size: int) -> RuntimePredictor:
    """Return the predictor that models of the same world share by default."""
    return RuntimePredictor(world_size)


def _for_reading(name: str, doc: str) -> Any:
    """Return an attribute of a model that its strategy may read and not change; the engine keeps it as `_name`."""
    return property(attrgetter(f"_{name}"), _refusing(name), _refusing(name), doc)


def _of_this_machine(
    name: str, doc: str, change: Callable[..., None] | None = None, given: Callable[..., Any] = lambda kept: kept
) -> Any:
    """Return an attribute likewise that tells how long operations take here; whoever asks for many machines is told.

    What is `given` of it may be a copy, so that writing to it changes no price of the run.
    """
    kept = attrgetter(f"_{name}")

    def read(model: RankState) -> Any:
        if model._looked_at is not None:
            model._looked_at(name)
        return given(kept(model))

    return property(read, change or _refusing(name), _refusing(name), doc)


def _apart(predictor: Predictor) -> Predictor:
    """Return a predictor to ask, whose parts are its own: what is written to them changes no price of the run."""
    apart = copy.copy(predictor)
    parts = getattr(apart, "__dict__", {})
    parts.update({name: copy.copy(part) for name, part in parts.items() if hasattr(part, "__dict__")})
    return apart


def _refusing(name: str) -> Callable[..., NoReturn]:
    """Return what refuses to change an attribute."""

    def refuse(model: RankState, *_: Any) -> NoReturn:
        refuse_change(model, name)

    return refuse


def refuse_change(model: RankState, name: str) -> NoReturn:
    """Raise the error for an attribute of a model that its strategy assigns or deletes."""
    message = f"model.{name} of rank {model._rank} is for reading; only the operations of a model change it"
    raise StrategyError(message, rank=model._rank)


class RankState:
    """The state of one rank: the common root of what a `Model` can do.

    Args and Attributes: see `minitrain.engine.model.Model`. Kinds of model that add to the operations are listed beside
    it. One with hooks sets `follows_tensors`: see `minitrain.engine.model`.
    """

    __slots__ = (
        "__dict__",
        "_account",
        "_chains",
        "_dist",
        "_global_batch_size",
        "_in_flight",
        "_is_uniform",
        "_log",
        "_max_shards",
        "_meter",
        "_num_layers",
        "_rank",
        "_recompute",
        "_recomputed_flop",
        "_remembered",
        "_rows",
        "_runtime_predictor",
        "_time",
        "_transport",
        "_whole_batches",
        "_world",
        "_world_size",
        "activations",
        "final_weights",
        "grad_activations",
        "grad_weights",
        "launching",
        "opt_states",
        "pass_modes",
        "weights",
    )

    follows_tensors = False
    parts_of_loss = 1  # of which this rank has one: the logits are divided by vocabulary, or by tokens
    _shares: SharesOfRun | None = None  # few runs have any
    _operation_kind: Any = None  # the class of its communications, the same for all ranks of a run
    _observer: Observer | None = None  # what is told of all that the rank does
    _executor: Executor | None = None  # what operations do beside what stands here
    _semantics: LocalSteps | None = None  # what its strategy declares; None: a synchronous step
    _met: frozenset[int] = frozenset()  # layers whose common weight replicas have taken on, where they go their own way
    _begun: Sequence[float] = ()  # when it began each step that its strategy takes in a loop, s
    _entry: Entry | None = None  # how it begins, in a run of several steps
    _tables: Mapping[int, Any] = MappingProxyType({})  # of layers that share one: how the rank has loaded each
    _looked_at: Callable[[str], None] | None = None  # is told when the strategy reads a clock or a price

    rank: int = _for_reading("rank", "This rank.")
    world_size: int = _for_reading("world_size", "Number of ranks.")
    num_layers: int = _for_reading("num_layers", "Layers of the trained model.")
    global_batch_size: int = _for_reading("global_batch_size", "Samples of one step, over all ranks.")
    dist: Dist = _for_reading("dist", "The transport that all ranks share.")
    recomputed_flop: float = _for_reading("recomputed_flop", "FLOPs that backward computed again.")
    routed_copies: int = _for_reading("routed_copies", "Copies of tokens that routers sent to experts.")
    dropped_copies: int = _for_reading("dropped_copies", "Of these, what experts did not take.")
    runtime_predictor: Predictor = _of_this_machine(
        "runtime_predictor", "What prices operations, to ask.", given=_apart
    )
    log: EventLog = _of_this_machine("log", "The events so far, a list to read.")
    time: float = _of_this_machine(
        "time",
        "The clock: when the rank has finished its last operation, s; it may be put forward, and never back.",
        lambda model, clock: model._put_forward(clock),
    )

    def __init__(
        self,
        rank: int = 1,
        dist: Dist | None = None,
        num_layers: int = 2,
        global_batch_size: int = 1,
        *,
        runtime_predictor: Predictor | None = None,
        memory_by_kind: bool = False,
    ) -> None:
        if dist is not None and not hasattr(dist, "world_size"):
            raise UsageError(f"dist must be a Dist, such as Dist(4), got {dist!r:.80}")
        self._dist = Dist(1) if dist is None else dist
        self._transport: Transport = self._dist  # all that operations use of it
        self._world_size = self._transport.world_size
        self._rank = require_count("rank", rank, 0)
        if rank >= self._world_size > 1:
            raise UsageError(f"rank must lie in 0..{self._world_size - 1}, got {rank}", rank=rank)
        self._num_layers = require_count("num_layers", num_layers)
        self._global_batch_size = require_count("global_batch_size", global_batch_size)
        self._runtime_predictor = runtime_predictor or _default_predictor(self._world_size)
        if not hasattr(self._runtime_predictor, "workload"):
            raise UsageError(
                f"runtime_predictor must be a predictor, such as RuntimePredictor(4), got {runtime_predictor!r:.80}"
            )
        self._is_uniform = self._runtime_predictor.workload.is_uniform

        self._time = 0.0
        self._log = EventLog(rank)
        self.final_weights: dict[int, Weight] = {}
        self.final_experts: dict[int, Weight] = {}
        self.final_locals: dict[int, Weight] = {}
        tells_kinds = not (self._is_uniform or memory_by_kind)  # runs of layers that are alike report no kinds
        self._sizes: Any = self._runtime_predictor.workload  # says how large tensors are on this rank
        self._account = (KindAccount if tells_kinds else Account)(self._sizes.memory_elements)
        if memory_by_kind:
            self._account.journal = Journal(self._log)
        self._meter = self._account  # what counts as this rank's memory: the stores and operations in flight
        self.weights: Store[Weight] = self._store("weights")
        self.opt_states: Store[OptState] = self._store("opt_states")
        self.activations: Store[Activation] = self._store("activations")
        self.grad_activations: Store[ActivationGrad] = self._store("grad_activations")
        self.grad_weights: Store[WeightGrad] = self._store("grad_weights")

        self.follows_tensors = self.follows_tensors  # every operation reads it, and it is found sooner on the object
        if self.follows_tensors:
            enable_annotations()
        self._rows = self._log._rows
        self._whole_batches = _shared_by(self._transport).whole_batches[global_batch_size]
        self.launching = False  # while an operation is submitted by `launch`
        self._chains: Any = None  # `Chains`, once an operation was given the result of a launched one
        self._in_flight: dict[Any, None] = {}  # launched operations that nobody has awaited yet
        self._remembered = remembered_of(self._runtime_predictor, self._transport)
        workload = self._runtime_predictor.workload
        self._max_shards = workload.max_shards(0) if self._is_uniform else 1  # 1: the laws look at each layer
        self._world = Group(self._transport.world, rank)
        self._groups: dict[ProcessGroup, Group] = {self._transport.world: self._world}
        self._peers: dict[tuple[str, int], Any] = {}  # its streams of messages
        self._interfaces: dict[int, Any] = {}  # by the network tier of their messages
        self._meshes: list[dict[str, int]] = []  # size by axis; figures name groups by them
        self._operation_kind = self._operation_kind  # on the object, where it is found sooner than on the class
        self._recompute: Recompute = "none"  # the default of a forward
        self._recomputed_flop = 0.0
        self._routed_copies = self._dropped_copies = 0
        self.pass_modes: dict[int, PassMode] = {}  # of passes that are not the usual ones, by their row of the log

    def _store(self, name: str) -> Store[Any]:
        """Make one of the five stores."""
        if self._account.journal is not None:
            return self._make_store(JournalledStore, name, self._account, name)
        return self._make_store(KindStore if self._account.__class__ is KindAccount else Store, name, self._account)

    def _make_store(self, kind: type[Store[Any]], name: str, *args: Any) -> Store[Any]:  # noqa: ARG002  (of watched ranks)
        """Make a store of a kind."""
        return kind(*args)

    def _resize(self, tensor: Any, units: int) -> None:
        """Give a tensor another size: that of all that it stands for from now on."""
        change = self._account.resize(tensor, units)
        if self._account.journal is not None and change:
            stores = (name for name in STORES if any(held is tensor for held in getattr(self, name).values()))
            self._account.journal.enter(next(stores, "in_flight"), change, tensor)

    def _mark_logits(self, tensor: Any, units: int) -> None:
        """Count so many units of the head's input, which stands for all that the head keeps, as logits."""
        journal, change = self._account.journal, units - logits_of(tensor)
        self._account.mark_logits(tensor, units)
        if journal is not None and change and getattr(tensor, "_home", None) is self._account:
            journal.enter("logits", change, tensor)
            journal.enter("activations", -change, tensor)

    def _borrow(self, units: int) -> None:
        """Hold what backward computes again until it is done."""
        self._meter.borrow(units)
        if self._account.journal is not None and units:
            borrowed = object()
            for change in (units, -units):
                self._account.journal.enter("activations", change, borrowed)

    def _final_of(self, weight: Weight) -> dict[int, Weight]:
        """Return where a final weight is kept: experts, and a replica's own, apart from the rest of their layer."""
        if weight.__class__ is LocalWeight and self._semantics.goes_on:  # type: ignore[union-attr]  # it is declared
            return self.final_locals
        return self.final_experts if weight.__class__ is ExpertWeight else self.final_weights

    def _put_forward(self, clock: Any) -> None:
        """Let the clock go on to a time, s."""
        is_number = isinstance(clock, float) or (isinstance(clock, int) and clock.bit_length() < sys.float_info.max_exp)
        found = float(clock) if is_number else math.nan
        if not self._time <= found < math.inf:
            if self._looked_at is not None:
                self._looked_at("time")  # which may be earlier on another machine
            rule = "a clock never goes back" if found < self._time else "a clock is a finite number of seconds"
            raise StrategyError(
                f"model.time of rank {self._rank} is {self._time:.9g} s, and {rule}; it was set to {clock!r:.80}",
                rank=self._rank,
            )
        self._time = found

    def storage(
        self,
    ) -> tuple[Store[Weight], Store[OptState], Store[Activation], Store[ActivationGrad], Store[WeightGrad]]:
        """Return the five stores: weights, opt_states, activations, grad_activations, grad_weights."""
        return self.weights, self.opt_states, self.activations, self.grad_activations, self.grad_weights

    def memory(self) -> float:
        """Return the elements in the five stores (and in operations launched to overlap) now."""
        return self._account.units / UNITS_PER_ELEMENT

    @property
    def peak_memory(self) -> float:
        """The most elements ever held at once, also between events."""
        return self._meter.high_water() / UNITS_PER_ELEMENT

    @property
    def peak_by_kind(self) -> dict[str, float] | None:
        """What the rank held of each kind when it held most, in elements; None where stores did not tell kinds."""
        account = self._meter
        return account.peak_by_kind() if isinstance(account, KindAccount) else None

    @property
    def memory_journal(self) -> list[MemoryChange]:
        """Every change of every store so far, in program order; empty unless it was asked for."""
        journal = self._account.journal
        changes = [] if journal is None else sorted(journal.changes, key=itemgetter(0))
        return [
            MemoryChange(place, kind, units / UNITS_PER_ELEMENT, tensor, layer)
            for place, kind, units, tensor, layer in changes
        ]

    def holds(self, value: Any) -> bool:
        """Return whether a tensor, or an equal one, is in one of the stores."""
        return getattr(value, "_home", None) is self._account or any(
            value in store.values() for store in self.storage()
        )

    def status(self) -> None:
        """Print what the stores hold."""
        for name in STORES:
            print(f"rank {self._rank} {name}:")
            for key, value in getattr(self, name).items():
                print(f"  {key!r}: {value!r}")

    def memory_by_store(self) -> dict[str, float]:
        """Return the elements in each store now, and those of operations in flight."""
        held = {name: sum(map(self._account.units_of, getattr(self, name).values())) for name in STORES}
        held["in_flight"] = self._account.units - sum(held.values())
        held |= self._meter.beside_stores()
        return {name: units / UNITS_PER_ELEMENT for name, units in held.items()}

    def log_event(
        self,
        typ: str,
        layer: int | None = None,
        samples: frozenset[int] = NO_SAMPLES,
        input: Any = None,
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
        stream = Stream(COMM if typ in COLLECTIVES else typ) if typ in COMMUNICATIONS else ON_COMPUTE
        price = self._price(typ, layer or 0, samples, input, num_shards_on_device, num_shards)
        self._record(typ, layer, price, samples, stream)

    def _samples_with_documents(self, samples: frozenset[int]) -> Collection[int]:
        """Return the samples whose documents an attention sees."""
        return samples

    def _price(
        self, typ: str, layer: int, samples: frozenset[int], value: Any, held: int | None, num_shards: int | None
    ) -> Price:
        """Return the price of an event of a type."""
        predictor = self._runtime_predictor
        if typ in ("forward", "backward", "backward_input", "backward_weight"):
            return predictor.compute(typ, len(samples), layer)
        if typ == "update":
            return predictor.update(held or 1, num_shards or 1, layer)
        if typ == "load_weights":
            return predictor.load(held or 1, num_shards or 1, layer)
        if value is None or typ not in COMMUNICATIONS:
            return FREE
        if typ in (SEND, RECV):
            return predictor.p2p(typ, self.wire_bytes(value), self._rank, self._rank)
        return predictor.collective(typ, self.wire_bytes(value), self._world.ranks)

    def _sized(self, tensor: T) -> T:
        """Return a tensor that knows its size."""
        self._account.size(tensor)
        return tensor

    def _record(
        self, typ: str, layer: int | None, price: Price, samples: frozenset[int], stream: Stream = ON_COMPUTE
    ) -> None:
        """Log an event that waits for nobody, and move the clock to its end."""
        time = self._time
        self._rows.extend((typ, layer, time, price, self._account.units, samples, stream, None, time, None))
        self._time = time + price.seconds

    def _record_load(self, weight: Weight, *kind: Any) -> Price:
        """Log the load of a weight; one that the step before has left is there, and takes nothing."""
        entry = self._entry
        if entry is not None:
            entry.loaded.append(clone(weight))
            if entry.follows and not self._rows:
                return FREE
        price = self._runtime_predictor.load(1, weight.num_shards, weight.layer, *(kind or self._division(weight)))
        self._record("load_weights", weight.layer, price, NO_SAMPLES)
        return price

    def _division(self, weight: Weight) -> tuple[Any, ...]:
        """Return how a weight is divided, as predictors take it; nothing where it is a whole layer."""
        found = self._sizes.division(weight) if len(self._tables) > 1 else weight.num_parts
        return () if found == 1 else (found,)

    def held_bytes(self, value: Any) -> int:
        """Return the bytes that a collective of a proper subgroup moves: of tensors in shards, those it works on."""
        if value is None:
            return 0
        return sum(map(self.held_bytes, value)) if isinstance(value, list) else self.message_bytes(value)

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes that a message of a tensor moves: of one in shards, those that it carries.

        By the specification a sharded tensor counts whole. That is right where all ranks work on all of it. Where some
        ranks exchange one shard among themselves (hybrid sharding, a ring of messages), each of them moves that alone.
        """
        size_bytes: int = self._sizes.message_bytes(tensor)
        if getattr(tensor, "num_shards", 1) > 1 and isinstance(tensor, Weight | WeightGrad):
            return size_bytes * len(tensor.shards) // tensor.num_shards
        return size_bytes

    def wire_bytes(self, value: Any) -> int:
        """Return the bytes that a tensor or a bucket puts on the wire."""
        if value is None:
            return 0
        if isinstance(value, list):
            return sum(self.wire_bytes(item) for item in value)
        size_bytes: int = self._sizes.message_bytes(value)
        return size_bytes


@dataclass(slots=True, eq=False, repr=False)
class Remembered:
    """Prices and sizes that layers share, as far as they were asked for. Ranks of one predictor share them too.

    Args:
        predictor: what computes the prices; kept, so that no other one has its identity.

    Attributes:
        may_be_shared: whether layers have one price, by their workload and by their predictor.
        loads: price of a load, and units of the shard of a weight and of its optimizer state, by number of shards.
        forwards: price of a forward, by number of samples.
        backwards: price of a backward, and units of the weight's gradient, by number of samples.
        backward_inputs: price of the first half of a backward, by number of samples.
        backward_weights: price of the second half, and units of the weight's gradient, by number of samples.
        updates: price of an update, by number of shards that are worked on and of all.
    """

    predictor: Predictor
    loads: dict[int, tuple[Price, int, int]] = field(default_factory=dict)
    forwards: dict[int, Price] = field(default_factory=dict)
    backwards: dict[int, tuple[Price, int]] = field(default_factory=dict)
    backward_inputs: dict[int, Price] = field(default_factory=dict)
    backward_weights: dict[int, tuple[Price, int]] = field(default_factory=dict)
    updates: dict[tuple[int, int], Price] = field(default_factory=dict)
    may_be_shared: bool = field(init=False)

    def __post_init__(self) -> None:
        alike = getattr(self.predictor, "prices_layers_alike", False)
        self.may_be_shared = self.predictor.workload.is_uniform and alike


class _Shared:
    """What the models of one run and process share: prices by the identity of predictors, and whole batches by size."""

    def __init__(self) -> None:
        self.prices: dict[int, Remembered] = {}
        self.whole_batches: defaultdict[int, dict[int, frozenset[int]]] = defaultdict(dict)


_BY_TRANSPORT: WeakKeyDictionary[Any, _Shared] = WeakKeyDictionary()  # nothing that a strategy is given leads here


def _shared_by(transport: Any) -> _Shared:
    """Return what the models on a transport share."""
    found = _BY_TRANSPORT.get(transport)
    if found is None:
        found = _BY_TRANSPORT[transport] = _Shared()
    return found


def remembered_of(predictor: Predictor, transport: Any) -> Remembered:
    """Return what all models of one predictor and transport remember together.

    Args:
        predictor: that of a model.
        transport: that of its run.
    """
    prices = _shared_by(transport).prices
    found = prices.get(id(predictor))
    if found is None:
        found = prices[id(predictor)] = Remembered(predictor)
    return found
