"""What one operation takes (`Price`), the interface of whatever computes it (`Predictor`), and how a run chooses one.

**Predictors.** The ranks of a run share one, or have one each where they run on different devices (`RankPredictors`).
`minitrain.machine.predictor` has the usual ones, `minitrain.machine.given_durations` those whose durations are given.

**`Pricing`** is how the operations of a run are priced, as one value: `simulate(..., fidelity=, platform=, without=,
prices=, collectives=)`.

| fidelity | an operation takes | a transfer takes |
|---|---|---|
| "roofline" | the slower of its FLOPs and its bytes | latency and bandwidth of a tier |
| "kernels" | the sum of its kernels (`kernel_device`) | what measured curves say (`measured_topology`) |

None is what suits the run: a transformer is priced by kernels, any other workload by the roofline, as the specification
has it. Where a device has no rates of kernels, and where layers were measured, a transformer is priced by the roofline
too; the first is said with every figure. `Pricing.on` decides, since it needs device and workload. `prices` are
measured times of layers, a `MeasuredLayers`: computing then takes these, and transfers what the fidelity says. With
kernels, a platform says what a framework adds (`platforms`): the one that is asked for, or the one that the strategy
stands for. `without` leaves terms of the model out, to see what each is worth. `collectives` are laws of one's own, for
networks and algorithms that are not modelled; what tensor parallelism hides of a collective, it hides of what they say.

**`Account`** is what a price is made of: the rule that gave it, its work, its kernels, and what it is bound by. A
predictor remembers what it was asked and answers with one object a question. So whoever has the object that a log shows
can ask how it came about (`accounts_of`), and nothing is kept for that while a run is simulated. What bounds an
operation is found by pricing it once more with each limit of the machine gone: endless arithmetic, endless bandwidth of
the memory, launches in no time; for a transfer, no latency or an endless bandwidth. The limit without which it would be
quickest is the bound. So the bound follows from the model of the device, whichever that is.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from minitrain.errors import UsageError, is_number, message_of
from minitrain.machine.device import TERMS as TERMS_OF_KERNELS
from minitrain.machine.kernel_device import LIMITS, KernelDevice, why_no_kernels
from minitrain.machine.measured_layers import MeasuredLayers
from minitrain.machine.measured_topology import places_of
from minitrain.machine.network import Network, Split, wire_share
from minitrain.machine.platforms import COMPONENTS, Platform, StandsFor, find_platform
from minitrain.operations.collectives import COLLECTIVES
from minitrain.workloads.workload import Cost, PassMode, Workload

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig
    from minitrain.machine.device import Device
    from minitrain.machine.topology import Topology, Transfer
    from minitrain.workloads.kernels import KernelList

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Price:
    """What one operation costs.

    Args:
        seconds: its duration, s.
        size_bytes: bytes it puts on the wire, 0 for compute.
        algorithm: "ring", "tree" or "hierarchical" where the network offers the choice, else None.
        processor_usage: share of the processor that driving the transfer takes, 0 to 1.
        tier_size: processors that the network tier carrying it spans, which tells tiers apart; 0 for compute.
        computing_usage: share of the transfer's rate that computing beside it takes, 0 to 1.
        memory_s: seconds that it would take alone of the memory's bandwidth: a transfer for what it reads and writes,
            a computation for its passes over memory; 0 where nobody knows.
        persistent_s: seconds of a computation's persistent kernels, which divide their work among all multiprocessors
            before they begin.
        alone: the price that a predictor has answered, where something beside the operation made it last longer.
    """

    seconds: float
    size_bytes: float = 0
    algorithm: str | None = None
    processor_usage: float = 0.0
    tier_size: int = 0
    computing_usage: float = 0.0
    memory_s: float = 0.0
    persistent_s: float = 0.0
    alone: Price | None = field(default=None, repr=False, compare=False)

    def lasting(self, seconds: float) -> Price:
        """Return the same for another duration, s: a third of the time of `dataclasses.replace`."""
        price = self.size_bytes, self.algorithm, self.processor_usage, self.tier_size, self.computing_usage
        return Price(seconds, *price, self.memory_s, self.persistent_s, self.alone or self)

    @property
    def answered(self) -> Price:
        """The price that a predictor has answered, which explains it."""
        return self.alone or self


FREE = Price(0.0)
PENDING = Price(0.0)
"""What a log shows for an operation whose price is not known yet, and for one that was given up."""


class TransferPrices(Protocol):
    """The interface of what prices collectives and messages: all ranks of a run share one."""

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        """Price a collective among some ranks, by an algorithm or by the network's choice."""

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price one side ("send" or "recv") of a message."""


class Predictor(TransferPrices, Protocol):
    """The interface by which a `Model` prices its operations: on its device, and on the network that ranks share."""

    @property
    def workload(self) -> Workload:
        """What the layers cost and hold."""

    @property
    def peak_flop_per_s(self) -> float | None:
        """The device's peak rate, or None where durations are given by hand."""

    @property
    def capacity_bytes(self) -> float | None:
        """The device's memory, or None where there is no device."""

    def compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = ...) -> Price:
        """Price a forward, loss, backward, backward_input or backward_weight of a layer."""

    def update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = ...) -> Price:
        """Price an optimizer step on some shards of a layer, or of one of its parts."""

    def load(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = ...) -> Price:
        """Price loading some shards of a layer's weight, or of one of its parts."""

    def slowed(self, factor: float) -> Predictor:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""

    def training(self, workload: Workload) -> Predictor:
        """Return the same machine for another workload."""


def decide(
    predictor: Predictor,
    prices_on: Callable[[Predictor], list[Any]],
    choose: Callable[[Sequence[Any]], T],
    choose_each: Callable[[Any], Sequence[T]] | None = None,
    key: Hashable = None,
) -> T:
    """Return what is chosen by prices; on which machines the same is chosen can be asked where a run is recorded.

    Args:
        predictor: what prices operations here.
        prices_on: asks a predictor for the prices.
        choose: makes of them what is chosen, which can be compared.
        choose_each: does so for many machines, where prices are seconds: (num_prices, num_machines).
        key: equal where `choose_each` chooses the same on the same machines.
    """
    recorded = getattr(predictor, "decide", None)
    return choose(prices_on(predictor)) if recorded is None else recorded(prices_on, choose, choose_each, key)


def reference_of(predictor: Predictor) -> Predictor:
    """Return the predictor by which all ranks of a run measure layers, whatever their own speed: that of rank 0."""
    return getattr(predictor, "reference", None) or predictor


class RankPredictors:
    """A predictor for each rank of a run, where ranks run on different devices.

    The ranks train one workload and share one network. A collective has one price for all its members, and a message
    has the same for both sides: that of the shared network, whoever takes part.

    Args:
        predictors: one a rank.
        network: what prices collectives and messages; the predictor of rank 0 by default.
        devices: what runs call the device of each rank, where they tell them apart.
        cluster: what the devices belong to, if they are those of a `mt.Cluster`.

    Attributes:
        predictors: one a rank, each with the prices of its own device and of the shared network; ranks that were given
            one predictor share one here.

    Raises:
        UsageError: the predictors are of different workloads.
    """

    def __init__(
        self,
        predictors: Sequence[Predictor],
        network: TransferPrices | None = None,
        *,
        devices: Sequence[str] = (),
        cluster: Any = None,
    ) -> None:
        for rank, predictor in enumerate(predictors):
            if predictor.workload is not predictors[0].workload:
                raise UsageError(
                    f"all ranks of a run must train the same workload, but that of rank {rank} is "
                    f"{predictor.workload!r:.80} and that of rank 0 {predictors[0].workload!r:.80}; give all "
                    "predictors one",
                    rank=rank,
                )
        shared = predictors[0] if network is None else network
        self._shared = shared
        self.devices = tuple(devices)
        self.cluster = cluster
        known: dict[int, Predictor] = {}
        for predictor, device in zip(predictors, devices or [""] * len(predictors), strict=True):
            if id(predictor) not in known:
                other = _OnNetwork(predictor, shared, predictors[0], device)
                known[id(predictor)] = predictor if predictor is shared else other
        self.predictors: tuple[Predictor, ...] = tuple(known[id(predictor)] for predictor in predictors)

    def training(self, workload: Workload) -> RankPredictors:
        """Return the same machines for another workload."""
        known = {id(predictor): predictor for predictor in self.predictors}
        trained = {key: predictor.training(workload) for key, predictor in known.items()}
        each = [trained[id(predictor)] for predictor in self.predictors]
        return RankPredictors(each, self._shared, devices=self.devices, cluster=self.cluster)

    @property
    def workload(self) -> Workload:
        """What all ranks train."""
        return self.predictors[0].workload

    @property
    def peak_flop_per_s(self) -> float | None:
        """The mean of the devices' peak rates, so that world_size times it is that of all; None if any has none."""
        rates = [predictor.peak_flop_per_s for predictor in self.predictors]
        known = [rate for rate in rates if rate is not None]
        return math.fsum(known) / len(known) if len(known) == len(rates) else None

    @property
    def capacity_bytes(self) -> float | None:
        """The memory of each device if all have the same; None otherwise, or where there is no device."""
        capacities = {predictor.capacity_bytes for predictor in self.predictors}
        return capacities.pop() if len(capacities) == 1 else None


class _OnNetwork:
    """A rank's predictor whose collectives and messages are priced by the network that it shares with the others.

    Args:
        own: what prices the operations of the rank's device.
        network: what prices collectives and messages.
        reference: the predictor of rank 0.
        device_name: what runs call the device.
    """

    def __init__(self, own: Predictor, network: TransferPrices, reference: Predictor, device_name: str = "") -> None:
        self.device_name = device_name
        self._own = own
        self._network = network
        self.workload = own.workload
        self.prices_layers_alike = getattr(own, "prices_layers_alike", False)
        self.peak_flop_per_s = own.peak_flop_per_s
        self.capacity_bytes = own.capacity_bytes
        self.system = getattr(own, "system", None)
        self.pricing = getattr(own, "pricing", "roofline")
        self.topology = getattr(network, "topology", network)
        self.num_nodes = getattr(network, "num_nodes", 1)
        self.reference = reference_of(reference)
        self.compute = own.compute
        self.update = own.update
        self.load = own.load
        self.host_capacity_bytes = getattr(own, "host_capacity_bytes", None)
        self.host_transfer = getattr(own, "host_transfer", None)
        self.collective = network.collective
        self.p2p = network.p2p

    def accounts(self) -> Mapping[int, Callable[[], Any]]:
        """Return what explains each price of the device and of the network, by the price's id."""
        return {**accounts_of(self._own), **accounts_of(self._network)}

    def slowed(self, factor: float) -> _OnNetwork:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        return _OnNetwork(self._own.slowed(factor), self._network, self.reference, self.device_name)

    def training(self, workload: Workload) -> Predictor:
        """Return the same machine for another workload."""
        reference = self.reference.training(workload)
        return _OnNetwork(self._own.training(workload), self._network, reference, self.device_name)


def accounts_of(predictor: Any) -> Mapping[int, Callable[[], Account]]:
    """Return what explains each price that a predictor has answered, by the price's id; nothing where it knows none.

    Each is asked for what the price is made of.
    """
    found: Callable[[], Mapping[int, Callable[[], Account]]] = getattr(predictor, "accounts", dict)
    return found()


def predictor_of(predictor: Predictor | RankPredictors, rank: int) -> Predictor:
    """Return what prices the operations of one rank, where ranks may or may not have predictors of their own."""
    return predictor.predictors[rank] if isinstance(predictor, RankPredictors) else predictor


FIDELITIES = ("roofline", "kernels")

TERMS = (*TERMS_OF_KERNELS, "elementwise", "loss", "update", "curves", "transfers")
"""What an ablation may leave out: terms of a kernel's price, passes over memory (those of layers, of the loss, of the
optimizer), the curves of transfers, and transfers at all."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """How operations are priced.

    Args:
        fidelity: "roofline" or "kernels"; what suits device and workload if None.
        platform: what a framework adds to the price of kernels: a name or a `Platform`.
        without: terms to leave out, of `TERMS`.
        prices: measured times of layers, or None.
        collectives: laws of one's own by collective, each a `Law` or "FILE.py:FUNCTION"; or "OP=FILE.py:FUNCTION,...".
        stands_for: the strategy's framework, whose platform is taken where None was asked for, and the run's layout.
        reason: why a transformer is priced by the roofline, where nobody asked for that.

    Raises:
        UsageError: there is no such fidelity, platform or term, or these two are given for the roofline.
    """

    fidelity: str | None = None
    platform: str | Platform | None = None
    without: Sequence[str] = ()
    prices: MeasuredLayers | None = None
    collectives: Any = field(default=None, hash=False)  # laws by collective
    stands_for: StandsFor | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.fidelity is not None and self.fidelity not in FIDELITIES:
            known = " or ".join(f'"{name}"' for name in FIDELITIES)
            raise UsageError(f"fidelity must be {known}, got {self.fidelity!r:.80}", fidelity=self.fidelity)
        terms = (self.without,) if isinstance(self.without, str) else tuple(self.without)
        for term in terms:
            if term not in TERMS:
                raise UsageError(f"a price has no term {term!r:.80}; use {', '.join(TERMS)}")
        if self.fidelity == "roofline" and (self.platform is not None or terms):
            raise _for_kernels("without" if self.platform is None else "platform")
        if self.prices is not None and not isinstance(self.prices, MeasuredLayers):
            raise UsageError(
                f"prices must be measured times of layers, a MeasuredLayers, got {self.prices!r:.80}; read a table "
                "with mt.MeasuredLayers.read"
            )
        if self.platform is not None:
            find_platform(self.platform)  # raises where there is none
        object.__setattr__(self, "without", terms)
        object.__setattr__(self, "collectives", _laws_of(self.collectives))

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Pricing("kernels", "megatron-2021", ["waves"]))
        'kernels, platform megatron-2021, without waves'
        """
        words = [f"{self.fidelity or 'default'}{f' ({self.reason})' if self.reason else ''}"]
        if self.platform is not None:
            words.append(f"platform {self.known_platform.title}")
        if self.without:
            words.append(f"without {' '.join(self.without)}")
        if self.prices is not None:
            words.append(f"layers of {self.prices.source}")
        words += [f"{op} by {_name_of(law)}" for op, law in self.collectives.items()]
        return ", ".join(words)

    def on(self, system: SystemConfig, workload: Any) -> Pricing:
        """Return how operations of a workload are priced on a device: with a fidelity, and with kernels a platform.

        Raises:
            UsageError: a platform or terms are given, and the workload is priced by the roofline.
        """
        reason = self._why_roofline(system, workload)
        if reason is not None:
            return replace(self, fidelity="roofline", stands_for=None, reason=reason or self.reason)
        framework = None if self.stands_for is None else self.stands_for.framework
        wanted = self.platform or (framework if _has_model(workload) else None)
        platform = None if wanted is None and not _has_model(workload) else find_platform(wanted, system.name)
        return replace(self, fidelity="kernels", platform=platform)

    def _why_roofline(self, system: SystemConfig, workload: Any) -> str | None:
        """Return why the roofline prices a workload, "" where it was asked for or is usual; None where kernels do."""
        if self.fidelity is not None:
            return None if self.fidelity == "kernels" else ""
        if not _has_model(workload):
            if self._has_options:
                raise _for_kernels("without" if self.platform is None else "platform", "a transformer")
            return ""
        if self._has_options:
            return None
        return "" if self.prices is not None else why_no_kernels(system, workload) or None

    @property
    def _has_options(self) -> bool:
        """Whether something was given that is for prices of kernels alone."""
        return self.platform is not None or bool(self.without)

    @property
    def is_default(self) -> bool:
        """Whether nothing was asked for but the specified pricing, or what suits the run."""
        is_own = self.prices is not None or bool(self.collectives) or self._has_options
        return self.fidelity != "kernels" and not is_own

    def transfer(
        self, topology: Topology, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None
    ) -> Transfer:
        """Return what a collective takes: by a law of one's own unless an algorithm is asked for, else by the network.

        Raises:
            UsageError: the law returns something else than seconds.
        """
        found, law = topology.collective(op, size_bytes, ranks, algorithm), self.collectives.get(op)
        if law is None or algorithm is not None:
            return found
        places = places_of(topology)
        split = Split.of([len(ranks)]) if places is None else places.shape(ranks).split
        tiers = [found.tier] if places is None else [tier for tier in places.tiers if tier.size <= found.tier.size]
        asked = (
            f"the law of {op}, {_name_of(law)}, must return seconds from 0 on for {size_bytes:.0f} bytes and {split}"
        )
        try:
            seconds = law(size_bytes, split, tiers)
        except Exception as error:
            raise UsageError(f"{asked}, and raised {message_of(error)}", op=op) from error
        if not is_number(seconds):
            raise UsageError(f"{asked}, got {seconds!r:.80}", op=op)
        return replace(found, seconds=float(seconds), algorithm=_name_of(law))

    @property
    def known_platform(self) -> Platform:
        """Return what the platform is in the run's layout; components alone if none was named."""
        found = COMPONENTS if self.platform is None else find_platform(self.platform)
        return found if self.stands_for is None else found.in_layout(self.stands_for)


Law = Callable[[float, Split, Sequence[Network]], float]
"""Returns the seconds of a collective, from the bytes of the whole tensor, how its ranks lie in nodes, and the tiers of
the network that they cross, the innermost first."""


def _laws_of(given: Any) -> Mapping[str, Law]:
    """Return laws of one's own by collective; none where none are given.

    Raises:
        UsageError: there is no such collective, or no such function.
    """
    if given and not isinstance(given, Mapping):
        given = dict(part.strip().partition("=")[::2] for part in str(given).split(","))
    for op in given or {}:
        if op not in COLLECTIVES:
            raise UsageError(
                f"a law must be of one of {', '.join(COLLECTIVES)}, got {op!r:.80}; write OP=FILE.py:FUNCTION", op=op
            )
    return {op: law if callable(law) else _law_in(op, str(law)) for op, law in (given or {}).items()}


def _law_in(op: str, text: str) -> Law:
    """Return the function that "FILE.py:FUNCTION" names, the law of a collective."""
    path, _, name = text.rpartition(":")
    try:
        found = runpy.run_path(path).get(name) if path else None
    except Exception as error:  # the file may raise anything
        raise UsageError(f"the law of {op} cannot be read from {text!r}: {message_of(error)}", op=op) from error
    if not callable(found):
        raise UsageError(f"the law of {op} must be a function, got {text!r}; write {op}=FILE.py:FUNCTION", op=op)
    return cast("Law", found)


def _name_of(law: Law) -> str:
    return getattr(law, "__name__", type(law).__name__)


def _has_model(workload: Any) -> bool:
    """Return whether a workload is a transformer."""
    return getattr(workload, "model", None) is not None


def _for_kernels(name: str, *others: str) -> UsageError:
    """Return the error for what is given beside the roofline, and for kernels alone."""
    remedy = " or ".join(['give fidelity="kernels" too', *(f"train {other}" for other in others)])
    return UsageError(f"{name} is for prices of kernels; {remedy}, or leave {name} out", fidelity="roofline")


ROOFLINE = Pricing("roofline")
"""The specified pricing."""

USUAL = Pricing()
"""What suits the run."""

PRICING_PARAMETERS = ("fidelity", "platform", "without", "prices", "collectives")
"""The parameters of a run that make its `Pricing`."""


_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel, or all that a price pays for.

    Args:
        name: what it is called.
        seconds: how long it takes, s.
        work_flop: its floating-point operations.
        traffic_bytes: what it reads and writes in the device's memory.
        endless: how long it would take with a limit of the machine gone, s, by the limit; empty where nobody knows.
    """

    name: str
    seconds: float
    work_flop: float = 0.0
    traffic_bytes: float = 0.0
    endless: Mapping[str, float] | None = None

    @property
    def bound(self) -> str:
        """The limit without which it would be quickest; "" where that is unknown."""
        return min(self.endless, key=self.endless.__getitem__) if self.endless else ""


@dataclass(frozen=True, slots=True)
class Account:
    """What a price is made of.

    Args:
        rule: how it was found, in words.
        whole: all that it pays for.
        parts: the kernels of which it is the sum.
        peak_flop_per_s: of the device; None where it has none.
        wire_bytes: what a transfer puts on the wire of each rank; 0 where nobody knows.
        wire_s: how long they are on it, s: more than the price where computing beside them hides a part.
    """

    rule: str
    whole: Part
    parts: tuple[Part, ...] = ()
    peak_flop_per_s: float | None = None
    wire_bytes: float = 0.0
    wire_s: float = 0.0


def account_of_work(work: Cost | KernelList, device: Device, datatype: str, price: Price) -> Account:
    """Return the account of an operation on a device.

    Args:
        work: its cost, or its kernels on a `KernelDevice`.
        device: what priced it.
        datatype: of the workload.
        price: what it came to, which for a straggler is more.
    """
    peak = device.peak_flop_per_s(datatype)
    if isinstance(work, Cost):
        gone = {"compute": replace(work, work_flop=0), "memory": replace(work, traffic_bytes=0)}
        usual = device.seconds(work, datatype)
        endless = {limit: _scaled(price, device.seconds(cost, datatype), usual) for limit, cost in gone.items()}
        whole = Part("", price.seconds, work.work_flop * work.share, work.traffic_bytes * work.share, endless)
        return Account("the slower of its arithmetic and its memory traffic", whole, (), peak)
    known = cast("KernelDevice", device)
    alone, usual = known.alone(), known.pass_seconds(work)
    others = {limit: known.endless(limit) for limit in LIMITS}
    endless = {limit: _scaled(price, other.pass_seconds(work), usual) for limit, other in others.items()}
    whole = Part("", price.seconds, work.work_flop, work.traffic_bytes, endless)
    of_one = {limit: alone.endless(limit) for limit in LIMITS}
    parts = [
        Part(
            kernel.title,
            _scaled(price, alone.kernel_seconds(kernel), usual),
            kernel.work_flop,
            kernel.traffic_bytes,
            {limit: _scaled(price, other.kernel_seconds(kernel), usual) for limit, other in of_one.items()},
        )
        for kernel in work.kernels
    ]
    rule = f"the sum of its {len(parts)} kernel{'s' if len(parts) > 1 else ''}"
    slower = _scaled(price, known.busy_seconds(work.kernels) - alone.busy_seconds(work.kernels), usual)
    if slower > _ROUNDING * price.seconds:
        parts.append(Part(f"pace of the slowest of {known.num_devices} devices", slower, endless={"compute": 0.0}))
    small = _scaled(price, work.num_unlisted * known.rates.graph_launch_s, usual)
    if small > _ROUNDING * price.seconds:
        parts.append(Part(f"{work.num_unlisted} small kernels of its graph", small, endless={"launches": 0.0}))
    late = price.seconds - sum(part.seconds for part in parts)
    if late > _ROUNDING * price.seconds:
        rule = f"its {work.num_launches} launches, longer than {rule}"
        parts.append(Part("launches", late, endless={"launches": 0.0}))
    return Account(rule, whole, tuple(part for part in parts if part.seconds > 0), peak)


def _scaled(price: Price, seconds: float, usual: float) -> float:
    """Return what a part of an operation takes on a device that is as slow as its price says, s."""
    return price.seconds * seconds / usual if usual else 0.0


def account_of_transfer(
    op: str, price: Price, latency: Price, on_wire: Price | None, among: int, node_size: int | None
) -> Account:
    """Return the account of a collective or a message.

    Args:
        op: "p2p" or a collective.
        price: what it came to.
        latency: what it would with no bytes.
        on_wire: what it would if computing beside it hid nothing; None where nobody knows.
        among: how many ranks take part.
        node_size: devices of a node, where the network has several tiers.
    """
    where = "" if node_size is None else " inside a node" if price.tier_size == node_size else " across nodes"
    rule = f"{price.algorithm or ''} among {among} ranks{where}".strip()
    endless = {"bandwidth": latency.seconds, "latency": max(price.seconds - latency.seconds, 0.0)}
    whole = Part("", price.seconds, endless=endless)
    if on_wire is None:
        return Account(rule, whole)
    return Account(rule, whole, (), None, wire_share(op, among) * on_wire.size_bytes, on_wire.seconds)
