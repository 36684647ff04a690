"""One predictor for several machines: each of its prices has a time for each machine, as a `PerMachine` number.

It is put together from parts, each with the machines that it answers for: a machine's own predictor, or a fleet
(`minitrain.hardware.roofline_fleet`, `minitrain.hardware.kernel_fleet`), which answers for hundreds at once. The
figures are those that each machine's own predictor gives, to the last float. What a price says beside its time and its
bytes (the algorithm, the tier) is left out, as it may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, final

import numpy as np

from minitrain.hardware.measured_topology import places_of
from minitrain.hardware.per_machine import Floats, Ints, PerMachine, part_ways, per_machine, values_of
from minitrain.hardware.price import Price
from minitrain.hardware.rank_placement import Step

Answer = Callable[..., Price]


@final
@dataclass(frozen=True, slots=True)
class PricedMachines:
    """Machines whose prices come from one predictor.

    Args:
        machines: their places among all.
        predictor: one machine's, or a fleet.
    """

    machines: Ints
    predictor: Any


class ManyPredictors:
    """The prices of several machines for one rank, or for all ranks.

    Args:
        parts: the machines, each in one of them.
        reference: the predictor of ranks that are no stragglers; None for such a one.

    Attributes:
        workload: what all machines train.
        num_machines: how many there are.
        topology: where ranks sit on each machine, for folding.
        host_transfer: prices a move to or from the host; None where no machine has one.
    """

    peak_flop_per_s = None  # columns of results take the machines' own
    capacity_bytes = None
    system = None

    def __init__(self, parts: Sequence[PricedMachines], reference: ManyPredictors | None = None) -> None:
        self.parts = parts
        self.reference = reference
        self.workload = parts[0].predictor.workload
        self.num_machines = sum(len(part.machines) for part in parts)
        self.prices_layers_alike = all(getattr(part.predictor, "prices_layers_alike", False) for part in parts)
        self.topology = ManyTopologies([getattr(part.predictor, "topology", None) for part in parts], self._collect)
        ask = cache(self._price)
        self.compute: Answer = partial(ask, "compute")
        self.update: Answer = partial(ask, "update")
        self.load: Answer = partial(ask, "load")
        self.p2p: Answer = partial(ask, "p2p")
        self.collective: Answer = partial(ask, "collective")

    @property
    def host_transfer(self) -> Answer | None:
        """What prices moves to and from the host; None where there is no host."""
        known = [getattr(part.predictor, "host_transfer", None) is not None for part in self.parts]
        return partial(self._price, "host_transfer") if self._collect(known) else None

    @property
    def host_capacity_bytes(self) -> Any:
        """The memory of a rank's host on each machine; None where there is no host."""
        found = [getattr(part.predictor, "host_capacity_bytes", None) for part in self.parts]
        if self._collect([size is None for size in found]):
            return None
        return self._collect(found)

    @cached_property
    def capacities(self) -> tuple[list[float], Ints]:
        """The different sizes of the machines' memories, ascending, bytes, and which of them each has; -1 for none."""
        sizes = self.of_each("capacity_bytes")
        known = np.array([np.nan if size is None else size for size in sizes], dtype=float)
        _, firsts, labels = np.unique(known, return_index=True, return_inverse=True)
        labels = np.where(np.isnan(known), -1, labels.reshape(-1))
        return [size for first in firsts.tolist() if (size := sizes[first]) is not None], labels

    def kinds(self) -> list[str | None]:
        """Return how each machine prices transfers: "flat", "hierarchical", "measured", or None."""
        found: list[str | None] = [None] * self.num_machines
        for part in self.parts:
            kind = getattr(getattr(part.predictor, "topology", None), "kind", None)
            for machine in part.machines.tolist():
                found[machine] = kind
        return found

    def of_each(self, name: str) -> list[Any]:
        """Return a figure of each machine's own predictor, None where it has none."""
        found: list[Any] = [None] * self.num_machines
        for part in self.parts:
            for machine, figure in zip(part.machines.tolist(), _figures(part, name), strict=True):
                found[machine] = figure
        return found

    def slowed(self, factor: float) -> ManyPredictors:
        """Return the same machines for a rank whose computing takes `factor` times as long."""
        return self.slowed_by(np.full(self.num_machines, float(factor)))

    def slowed_by(self, factors: Floats) -> ManyPredictors:
        """Return the same machines for a rank that is a straggler on some of them.

        Args:
            factors: how many times as long computing takes, (num_machines,); 1 for those where it is none.
        """
        parts = [PricedMachines(part.machines, _slowed(part.predictor, factors[part.machines])) for part in self.parts]
        return ManyPredictors(parts, self.reference or self)

    def training(self, workload: Any) -> ManyPredictors:
        """Return the same machines for another workload."""
        reference = self.reference and self.reference.training(workload)
        return ManyPredictors(
            [PricedMachines(part.machines, part.predictor.training(workload)) for part in self.parts], reference
        )

    def _price(self, kind: str, *question: Any, **named: Any) -> Price:
        """Ask every part."""
        answers = [getattr(part.predictor, kind)(*question, **named) for part in self.parts]
        seconds = self._collect([answer.seconds for answer in answers])
        return Price(seconds, self._collect([answer.size_bytes for answer in answers]))

    def _collect(self, numbers: Sequence[Any]) -> Any:
        """Return the numbers of all machines, from those of the parts; one number where all have the same."""
        first = numbers[0]
        if len(numbers) == 1 or (type(first) is not PerMachine and numbers.count(first) == len(numbers)):
            return first
        found = np.empty(self.num_machines)
        for part, number in zip(self.parts, numbers, strict=True):
            found[part.machines] = values_of(number)
        return per_machine(found)


def _figures(part: PricedMachines, name: str) -> list[Any]:
    """Return a figure of each machine of a part."""
    of_each = getattr(part.predictor, "of_each", None)
    return [getattr(part.predictor, name, None)] * len(part.machines) if of_each is None else of_each(name)


def _slowed(predictor: Any, factors: Floats) -> Any:
    """Return the predictor of a part for a rank that is a straggler."""
    factor = per_machine(factors)
    return predictor if type(factor) is float and factor == 1.0 else predictor.slowed(factor)


class ManyTopologies:
    """Where the ranks of a run sit on several machines.

    Args:
        parts: what prices transfers on each part of the machines.
        collect: makes a number for each machine of one for each part.
    """

    kind = None

    def __init__(self, parts: Sequence[Any], collect: Callable[[Sequence[Any]], Any]) -> None:
        self._parts = parts
        self._collect = collect

    @property
    def places(self) -> Any:
        """Which ranks sit where, for folding; None where all pairs of ranks are alike on all machines.

        Raises:
            MachinesDifferError: they are alike on some machines only.
        """
        found = [None if part is None else places_of(part) for part in self._parts]
        are_flat = [place is None for place in found]
        if len(set(are_flat)) > 1:
            part_ways(values_of(self._collect(are_flat)), "folding the ranks of flat networks beside those of others")
        return None if are_flat[0] else _ManyPlaces(found, self._collect)


class _ManyPlaces:
    """Which ranks sit where on several machines, as folding asks `RankNodes`."""

    def __init__(self, parts: Sequence[Any], collect: Callable[[Sequence[Any]], Any]) -> None:
        self._parts = parts
        self._collect = collect

    def one_of_each_shape(self, ranks: Sequence[int], steps: Iterable[Step]) -> list[Sequence[int]]:
        """Return groups that stand for a group and all its copies, on every machine."""
        listed = list(steps)
        return list(dict.fromkeys(group for part in self._parts for group in part.one_of_each_shape(ranks, listed)))

    def distance(self, source: int, dest: int) -> Any:
        """Return the size of the tier that carries a message between two ranks, on each machine."""
        return self._collect([part.distance(source, dest) for part in self._parts])
