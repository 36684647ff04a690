"""`Price`, what one operation takes, and `Predictor`, the interface of whatever computes prices.

The ranks of a run share one predictor, or have one each where they run on different devices (`RankPredictors`). The
usual one is in `minitrain.hardware.predictor`, which puts a workload, a device and a network together; others price by
kernels, by measured layers, or by durations that are given by hand (see `minitrain.hardware.chosen_predictor`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from minitrain.errors import UsageError
from minitrain.workloads.workload import PassMode, Workload


@dataclass(frozen=True, slots=True)
class Price:
    """What one operation costs.

    Args:
        seconds: its duration, s.
        size_bytes: bytes it puts on the wire, 0 for compute.
        algorithm: "ring", "tree" or "hierarchical" where the network offers the choice, else None.
        processor_usage: share of the processor that driving the transfer takes, 0 to 1.
        tier_size: processors that the network tier carrying it spans, which tells tiers apart; 0 for compute.
    """

    seconds: float
    size_bytes: float = 0
    algorithm: str | None = None
    processor_usage: float = 0.0
    tier_size: int = 0


FREE = Price(0.0)
PENDING = Price(0.0)
"""What a log shows for an operation whose price is not known yet, and for one that was given up."""


class TransferPrices(Protocol):
    """The interface of what prices collectives and messages: all ranks of a run share one."""

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        """Price a collective among some ranks, by an algorithm or by the network's choice."""
        ...

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price one side ("send" or "recv") of a message."""
        ...


class Predictor(TransferPrices, Protocol):
    """The interface by which a `Model` prices its operations: on its device, and on the network that ranks share."""

    @property
    def workload(self) -> Workload:
        """What the layers cost and hold."""
        ...

    @property
    def peak_flop_per_s(self) -> float | None:
        """The device's peak rate, or None where durations are given by hand."""
        ...

    @property
    def capacity_bytes(self) -> float | None:
        """The device's memory, or None where there is no device."""
        ...

    def compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = ...) -> Price:
        """Price a forward, loss, backward, backward_input or backward_weight of a layer."""
        ...

    def update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = ...) -> Price:
        """Price an optimizer step on some shards of a layer, or of one of its parts."""
        ...

    def load(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = ...) -> Price:
        """Price loading some shards of a layer's weight, or of one of its parts."""
        ...

    def slowed(self, factor: float) -> Predictor:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        ...

    def training(self, workload: Workload) -> Predictor:
        """Return the same machine for another workload."""
        ...


def reference_of(predictor: Predictor) -> Predictor:
    """Return the predictor by which all ranks of a run measure layers, whatever their own speed: that of rank 0."""
    return getattr(predictor, "reference", None) or predictor


@final
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

    def slowed(self, factor: float) -> _OnNetwork:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        return _OnNetwork(self._own.slowed(factor), self._network, self.reference, self.device_name)

    def training(self, workload: Workload) -> Predictor:
        """Return the same machine for another workload."""
        reference = self.reference.training(workload)
        return _OnNetwork(self._own.training(workload), self._network, reference, self.device_name)


def predictor_of(predictor: Predictor | RankPredictors, rank: int) -> Predictor:
    """Return what prices the operations of one rank, where ranks may or may not have predictors of their own."""
    return predictor.predictors[rank] if isinstance(predictor, RankPredictors) else predictor
