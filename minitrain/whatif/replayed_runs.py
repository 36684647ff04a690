"""`replay`: times finished runs again on the links of one cluster, and says how much they slow one another down.

The dependencies are those of `minitrain.run.contention`: program order, streams, launches, awaits, messages and
collectives; computing is slowed down by communication beside it, as there. A transfer takes links: a message those of
its route, a copy to or from the host those of PCIe. A collective is one flow over the links between neighbours of its
ring. The hierarchical algorithm has three such flows, one after the other: inside the nodes, between them, and inside
again. Where no link is crowded, every moment is that of `contention=True`, to the last float.

A receive takes no links, since its send does. It ends when its own time is over, and not before its send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError, typed
from minitrain.machine.config import SystemConfig, load_config
from minitrain.machine.network import Network
from minitrain.machine.platform.fair_sharing import FairSharing, Flow, at
from minitrain.machine.platform.links import ClusterLinks, Lane, Routes
from minitrain.machine.platform.platform import VirtualHardwarePlatform
from minitrain.machine.price import Price
from minitrain.machine.topology import nodes_in_rank_order
from minitrain.operations import (
    COMM,
    HOST_MOVES,
    LAYER,
    OFFLOAD,
    ON_HOST,
    PRICE,
    RECV,
    SEND,
    STREAM,
    STRIDE,
    TIME,
    TYP,
    EventLog,
)
from minitrain.run.contention import Meeting, Retiming, TransferPart
from minitrain.run.facts import require_events
from minitrain.tensors.index_sets import grouped

if TYPE_CHECKING:
    from simpy import Environment

    from minitrain.run.result import Run

Route = Callable[[str, str], tuple[Lane, ...]]


@dataclass(frozen=True, slots=True)
class Phase:
    """A flow that a transfer consists of.

    Args:
        lanes: what it passes, and how often.
        size_bytes: what it moves over each.
        full_rate: what it moves in a second where it is alone, bytes/s.
        latency_s: what it waits first, s.
        seconds: how long it lasts where it is alone, s.
    """

    lanes: Mapping[Lane, float]
    size_bytes: float
    full_rate: float
    latency_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RankRoutes:
    """The routes between the ranks of a run, and between each and its host.

    Args:
        route: returns the lanes from one endpoint to another.
        endpoints: the endpoint of each rank.
        node_of: the node of each rank.
        hosts: the endpoint of each rank's host; none where copies to it are not shared.
        tiers: those of the hardware config that priced the run, the smallest first.
    """

    route: Route
    endpoints: Sequence[str]
    node_of: Sequence[int]
    hosts: Sequence[str]
    tiers: Sequence[Network]

    def _tier(self, price: Price) -> Network | None:
        return {tier.size: tier for tier in self.tiers}.get(price.tier_size)

    def _route(self, source: int, dest: int) -> tuple[Lane, ...]:
        return self.route(self.endpoints[source], self.endpoints[dest])

    def message(self, source: int, dest: int, price: Price) -> list[Phase]:
        """Return what a message puts on the links."""
        tier = self._tier(price)
        lanes = Counter(self._route(source, dest))
        return [self._phase(tier, "p2p", 2, lanes, price.size_bytes, price.seconds)]

    def host_copy(self, rank: int, price: Price, kind: str) -> list[Phase]:
        """Return what a copy between a processor and its host puts on the links; nothing where hosts are not known.

        What the host writes to the storage, or computes, uses no link of the platform.
        """
        if not self.hosts or kind in ON_HOST:
            return [self._phase(None, "p2p", 2, Counter(), price.size_bytes, price.seconds)]
        ends = self.endpoints[rank], self.hosts[rank]
        lanes = Counter(self.route(*(ends if kind == OFFLOAD else ends[::-1])))
        return [self._phase(None, "p2p", 2, lanes, price.size_bytes, price.seconds)]

    def collective(self, op: str, ranks: Sequence[int], price: Price) -> list[Phase]:
        """Return what a collective puts on the links."""
        tier = self._tier(price)
        if price.algorithm == "hierarchical" and tier is not None:
            return self._hierarchical(op, ranks, price, tier)
        return [self._phase(tier, op, len(ranks), self._ring([list(ranks)]), price.size_bytes, price.seconds)]

    def _ring(self, groups: Sequence[Sequence[int]]) -> Counter[Lane]:
        """Return the lanes between neighbours of rings that run at the same time."""
        lanes: Counter[Lane] = Counter()
        for ranks in groups:
            if len(ranks) > 1:
                for source, dest in pairwise([*ranks, ranks[0]]):
                    lanes.update(self._route(source, dest))
        return lanes

    def _hierarchical(self, op: str, ranks: Sequence[int], price: Price, outer: Network) -> list[Phase]:
        """Return the phases of the two-level algorithm (see `minitrain.machine.topology`)."""
        nodes = grouped((self.node_of[rank], rank) for rank in ranks)
        local = [nodes[node] for node in sorted(nodes)]
        across = [list(column) for column in zip(*local, strict=False)]  # as many rings as the emptiest node has ranks
        most, least, inner = max(map(len, local)), len(across), self.tiers[0]
        inside, between = self._ring(local), self._ring(across)
        num_like_it = len(local) if op == "all_reduce" else len(ranks) / least
        share = price.size_bytes / least
        phases = []
        if op in ("all_reduce", "reduce_scatter"):
            seconds = inner.time("reduce_scatter", price.size_bytes, most)
            phases.append(self._phase(inner, "reduce_scatter", most, inside, price.size_bytes, seconds))
        phases.append(self._phase(outer, op, num_like_it, between, share, outer.time(op, share, num_like_it)))
        if op in ("all_reduce", "all_gather"):
            seconds = inner.time("all_gather", price.size_bytes, most)
            phases.append(self._phase(inner, "all_gather", most, inside, price.size_bytes, seconds))
        total = sum(phase.seconds for phase in phases)
        if abs(total - price.seconds) <= 1e-9 * price.seconds:
            return phases
        # The price is by curves, not by the rows of the tiers: each phase keeps its part of it.
        slower = price.seconds / total
        return [
            replace(
                each,
                full_rate=each.full_rate / slower,
                latency_s=each.latency_s * slower,
                seconds=each.seconds * slower,
            )
            for each in phases
        ]

    def _phase(
        self, tier: Network | None, op: str, num_ranks: float, lanes: Counter[Lane], size_bytes: float, seconds: float
    ) -> Phase:
        """Return a flow that takes `seconds` where it is alone.

        It moves what the tier's row says, at the tier's rate. Where a price has no row (a curve by size, a copy), it
        fills its links, or moves as much as its time allows.
        """
        if tier is None or not lanes:
            rate = size_bytes / seconds if seconds else 1.0
            return Phase(lanes, size_bytes, rate, 0.0, seconds)
        rate = tier.bandwidth * 1e9 * tier.efficiency
        latency_s = min(tier.latency, seconds)
        scalar, offset = tier.ops.get(op) or (1.0, None)
        wire_bytes = size_bytes * scalar
        if offset is not None:
            wire_bytes += (1 / num_ranks * wire_bytes) * offset
        if abs(latency_s + wire_bytes / rate - seconds) > 1e-9 * seconds:
            rate = min(wire_bytes / (seconds - latency_s), rate) if seconds > latency_s else rate
            wire_bytes = (seconds - latency_s) * rate
        return Phase(lanes, wire_bytes, rate, latency_s, seconds)


@dataclass(frozen=True, slots=True)
class SharedLink:
    """The reason why a transfer took longer than its price.

    Args:
        link: the link that it shared last.
        others: the transfers that it shared that link with.
        extra_s: by how much longer it took, s.
    """

    link: str
    others: tuple[str, ...]
    extra_s: float = 0.0

    def __str__(self) -> str:
        if not self.others:
            return f"its own ranks shared {self.link}"
        return f"shared {self.link} with {', '.join(self.others)}"


class Replay(Retiming):
    """One run on shared links.

    Args:
        logs: the log of each rank.
        routes: those between its ranks.
        sharing: the flows of all runs that share the links.
        name: what other runs' reasons call this one; nothing where it is alone.
        processor_share: whether transfers slow down the computing beside them.

    Attributes:
        delays: why transfers took longer than their price, by rank and place in its log.
    """

    def __init__(
        self,
        logs: Sequence[EventLog],
        routes: RankRoutes,
        sharing: FairSharing,
        name: str = "",
        *,
        processor_share: bool = True,
    ) -> None:
        super().__init__(logs)
        self.routes = routes
        self.sharing = sharing
        self.env: Environment = sharing.env
        self.name = name
        self.processor_share = processor_share
        self.delays: dict[tuple[int, int], SharedLink] = {}
        self._phases: dict[tuple[Any, ...], list[Phase]] = {}
        self._late: dict[Meeting, list[Meeting]] = {}

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        at(self.env, time, lambda _: self._let(happen))

    def _let(self, happen: Callable[[], None]) -> None:
        """Call a function now, by the environment's clock."""
        self.now = self.env.now
        happen()

    def _carry(self, meeting: Meeting) -> None:
        part = meeting.parts[0]
        row = part.place * STRIDE
        rows = self.logs[part.rank]._rows
        kind = rows[row + STREAM].kind
        end = self.now + part.price.seconds
        if kind == RECV:
            self._at(end, lambda: self._receive(meeting))
            return
        phases = self._phases_of(part, rows[row + TYP], rows[row + STREAM], kind)
        _Carried(self, meeting, self._label(rows, row), phases, end).begin()

    def _count_transfer(self, part: TransferPart, change: int) -> None:
        if self.processor_share:
            super()._count_transfer(part, change)

    def _receive(self, meeting: Meeting) -> None:
        """End a receive, unless its send is still under way."""
        send = meeting.message
        if send is not None and send.end is None:
            self._late.setdefault(send, []).append(meeting)
        else:
            self._end(meeting)

    def _phases_of(self, part: TransferPart, op: str, stream: Any, kind: str) -> list[Phase]:
        """Return what a transfer puts on the links, remembered for all that are alike."""
        key = (op, stream.group, part.price) if kind == COMM else (op, part.rank, stream.peer, part.price)
        found = self._phases.get(key)
        if found is None:
            found = self._phases[key] = self._make_phases(part, op, stream, kind)
        return found

    def _make_phases(self, part: TransferPart, op: str, stream: Any, kind: str) -> list[Phase]:
        if kind in HOST_MOVES:
            return self.routes.host_copy(part.rank, part.price, kind)
        if kind == SEND:
            return self.routes.message(part.rank, stream.peer, part.price)
        group = range(len(self.logs)) if stream.group is None else stream.group
        return self.routes.collective(op, group, part.price)

    def _label(self, rows: Sequence[Any], row: int) -> str:
        """Return what reasons call a transfer: "all_reduce of layer 17"."""
        layer = rows[row + LAYER]
        label = str(rows[row + TYP]) if layer is None else f"{rows[row + TYP]} of layer {layer}"
        return f"{self.name}: {label}" if self.name else label

    def finish(self, meeting: Meeting, slowed_by: Flow | None) -> None:
        """End a transfer, and the receives that waited for it."""
        self.now = self.env.now
        if slowed_by is not None and slowed_by.slowed_by is not None:
            lane, names = slowed_by.slowed_by
            others = tuple(name for name in names if name is not slowed_by.name)
            begun = self.logs[meeting.parts[0].rank]._rows[meeting.parts[0].place * STRIDE + TIME]
            extra_s = self.now - begun - meeting.parts[0].price.seconds
            reason = SharedLink(lane.link_id or lane.name, others, extra_s)
            for part in meeting.parts:
                self.delays[part.rank, part.place] = reason
        _lengthen(self, meeting)
        self._end(meeting)
        for receive in self._late.pop(meeting, ()):
            _lengthen(self, receive)
            self._end(receive)


@dataclass(slots=True)
class _Carried:
    """A transfer under way: its phases, one after the other.

    The event of its end at its price is set when it begins, as in `Retiming`, so that events at one moment keep their
    order. If a flow was slowed, the transfer ends with the last flow instead.
    """

    replay: Replay
    meeting: Meeting
    label: str
    phases: list[Phase]
    end: float
    place: int = 0
    flow: Flow | None = None
    slowed: Flow | None = None

    def begin(self) -> None:
        """Begin the first phase."""
        self.replay._at(self.end, self._end_at_price)
        self.go_on()

    def go_on(self) -> None:
        """Begin the next phase, after its latency; or end."""
        replay, now = self.replay, self.replay.env.now
        if self.place == len(self.phases):
            if self.slowed is not None:
                replay.finish(self.meeting, self.slowed)
            return
        phase = self.phases[self.place]
        self.place += 1
        is_at_price = self.slowed is None and self.place == len(self.phases)
        end = self.end if is_at_price else now + phase.seconds
        if not phase.lanes or phase.size_bytes <= 0:
            if not is_at_price:
                replay._at(end, self.go_on)
            return
        self.flow = flow = Flow(self.label, phase.lanes, phase.size_bytes, phase.full_rate, self._arrived, end)
        at(replay.env, min(now + phase.latency_s, end), lambda _: replay.sharing.begin(flow))

    def _arrived(self, flow: Flow) -> None:
        if flow.was_slowed:
            self.slowed = flow
        self.go_on()

    def _end_at_price(self) -> None:
        """End, unless a flow was slowed, or is."""
        if self.slowed is None and (self.flow is None or not self.flow.was_slowed):
            self.replay.finish(self.meeting, None)


def _lengthen(replay: Replay, meeting: Meeting) -> None:
    """Write into the logs how long a transfer really took, where that is not its price."""
    for part in meeting.parts:
        rows, row = replay.logs[part.rank]._rows, part.place * STRIDE
        if rows[row + TIME] + part.price.seconds != replay.now:
            rows[row + PRICE] = replace(part.price, seconds=replay.now - rows[row + TIME])


Delays = Mapping[tuple[int, int], SharedLink]
"""Why transfers took longer than their price, by rank and place in its log."""


@dataclass(frozen=True)
class LinkUse:
    """What links carried during a run.

    Args:
        delays: why transfers took longer than their price.
        lanes: each direction of each link that carried something.
        until: the end of the run, s.
    """

    delays: Delays
    lanes: Sequence[Lane]
    until: float

    @cached_property
    def utilization(self) -> dict[str, float]:
        """The share of what each direction of a link could have carried that it did carry, the most used first."""
        shares = {lane.name: lane.utilization(self.until) for lane in self.lanes}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Replayed:
    """Runs on shared links.

    Args:
        runs: the runs as they went together; `run.links` says what was shared.
        alone: step time of each with the links for itself, s.
        utilization: share of what each direction of a link could have carried that it did carry, most used first.
    """

    runs: tuple[Run, ...]
    alone: tuple[float, ...]
    utilization: Mapping[str, float]

    @property
    def together(self) -> tuple[float, ...]:
        """The step time of each beside the others, s."""
        return tuple(run.step_time for run in self.runs)

    def __str__(self) -> str:
        rows = zip(self.runs, self.alone, self.together, strict=True)
        lines = [
            f"{run.strategy}: {alone * 1e3:.3f} ms alone, {together * 1e3:.3f} ms together "
            f"({together / alone - 1:+.1%}), {len(run.links.delays) if run.links else 0} transfers delayed"
            for run, alone, together in rows
        ]
        busiest = next(iter(self.utilization.items()), None)
        return "\n".join([*lines, *([] if busiest is None else [f"busiest link: {busiest[0]} ({busiest[1]:.1%})"])])


@typed
def replay(
    runs: Run | Sequence[Run],
    platform: Any = None,
    *,
    placement: Sequence[Sequence[int]] | None = None,
    nics: int | None = None,
    oversubscription: float = 1.0,
    processor_share: bool = True,
) -> Replayed:
    """Time finished runs again, all beginning at once, on the links of one cluster.

    Args:
        runs: a run, or several that share the cluster.
        platform: a `VirtualHardwarePlatform` whose devices are the processors, a hardware config or its name, or
            `ClusterLinks`; the config of the first run if None.
        placement: processors of each run, one a rank; one run after the other by default.
        nics: interfaces of a node, which its processors share; as the config says by default.
        oversubscription: how many times more the processors of a network's unit can send than leaves it.
        processor_share: whether transfers slow down the computing beside them, as `contention=True` does.

    Returns:
        The runs as they went together, and what each takes alone.

    Raises:
        UsageError: no run, a folded one or one whose events were not kept, a placement that does not fit, or two ranks
            on one processor.
    """
    all_runs = tuple(runs) if isinstance(runs, Sequence) else (runs,)
    if not all_runs:
        raise UsageError("replay needs at least one run; give it what simulate returns")
    for run in all_runs:
        require_events(run, "replay", EventLog)
    places = _places(all_runs, placement)
    make = _links_of(all_runs, platform, places, nics, oversubscription)
    alone = []
    for run, place in zip(all_runs, places, strict=True):
        links = make()
        alone += _together([run], [_rank_routes(links, place)], links, processor_share)
    links = make()
    runs_together = _together(all_runs, [_rank_routes(links, place) for place in places], links, processor_share)
    until = max(run.last_clock for run in runs_together)
    utilization = LinkUse({}, _used(links), until).utilization
    return Replayed(tuple(runs_together), tuple(run.step_time for run in alone), utilization)


class _OwnLinks:
    """The links of a user's platform, with what `replay` uses of `ClusterLinks`."""

    def __init__(self, platform: VirtualHardwarePlatform, config: SystemConfig) -> None:
        profile = platform.profile
        self.names = [device.device_id for device in profile.compute_devices]
        self.routes = Routes(profile.network_links, self.names)
        self.tiers = sorted(config.networks, key=lambda tier: tier.size)


def _rank_routes(links: ClusterLinks | _OwnLinks, processors: Sequence[int]) -> RankRoutes:
    """Return the routes between some processors, in the order of the ranks that run on them."""
    if isinstance(links, ClusterLinks):
        nodes = [links.node_of[processor] for processor in processors]
        names = [f"gpu{processor}" for processor in processors]
        return RankRoutes(links.route, names, nodes, [f"node{node}.host" for node in nodes], links.tiers)
    if max(processors) >= len(links.names):
        raise UsageError(
            f"the platform has {len(links.names)} devices, but a rank is placed on device {max(processors)}; add "
            "devices, or place ranks on those that there are"
        )
    nodes = [processor // links.tiers[0].size for processor in processors]
    return RankRoutes(links.routes.route, [links.names[one] for one in processors], nodes, (), links.tiers)


def _links_of(
    runs: Sequence[Run], platform: Any, places: Sequence[Sequence[int]], nics: int | None, oversubscription: float
) -> Any:
    """Return a function that makes new links, without flows."""
    config = None if isinstance(platform, VirtualHardwarePlatform | ClusterLinks) else platform
    config = _config_of(runs[0]) if config is None else load_config(config)
    if isinstance(platform, VirtualHardwarePlatform):
        return lambda: _OwnLinks(platform, config)
    if isinstance(platform, ClusterLinks):
        return platform.fresh
    size = 1 + max(max(place) for place in places)
    return lambda: ClusterLinks(config, size, nics=nics, oversubscription=oversubscription)


def _config_of(run: Run) -> SystemConfig:
    """Return the hardware config that a run was priced by."""
    if run.models:
        system = getattr(run.models[0]._runtime_predictor, "system", None)
        if isinstance(system, SystemConfig):
            return system
    return load_config(run.hardware)


def _places(runs: Sequence[Run], placement: Sequence[Sequence[int]] | None) -> list[Sequence[int]]:
    """Return the processors of each run."""
    if placement is None:
        begins = [sum(run.world_size for run in runs[:place]) for place in range(len(runs))]
        return [range(begin, begin + run.world_size) for begin, run in zip(begins, runs, strict=True)]
    if len(placement) != len(runs) or any(len(p) != run.world_size for p, run in zip(placement, runs, strict=False)):
        sizes = ", ".join(str(run.world_size) for run in runs)
        raise UsageError(f"placement must list the processors of each run, {sizes} of them; got {placement!r:.80}")
    flat = [processor for place in placement for processor in place]
    if len(set(flat)) != len(flat) or min(flat) < 0:
        raise UsageError("placement must name each processor once, from 0 up; two ranks cannot compute on one")
    return list(placement)


def _retimed(
    logs: Sequence[Any], routes: Sequence[RankRoutes], names: Sequence[str], *, processor_share: bool = True
) -> list[Replay]:
    """Return some runs, by their logs, as they share links."""
    from simpy import Environment  # noqa: PLC0415  (where a platform runs)

    env = Environment()
    sharing = FairSharing(env)
    replays = [
        Replay(own, between, sharing, name, processor_share=processor_share)
        for own, between, name in zip(logs, routes, names, strict=True)
    ]
    for one in replays:
        one.begin()
    env.run()
    return replays


def _together(runs: Sequence[Run], routes: Sequence[RankRoutes], links: Any, processor_share: bool) -> list[Run]:
    """Return runs as they share some links."""
    names = [run.strategy if len(runs) > 1 else "" for run in runs]
    replays = _retimed([run.logs for run in runs], routes, names, processor_share=processor_share)
    found = [replace(run, logs=one.logs) for run, one in zip(runs, replays, strict=True)]
    lanes = _used(links)
    return [
        replace(run, links=LinkUse(one.delays, lanes, run.last_clock)) for run, one in zip(found, replays, strict=True)
    ]


def _used(links: Any) -> list[Lane]:
    return [lane for lane in links.routes.lanes if lane.steps]


def replayed_logs(
    logs: Sequence[EventLog], hardware: SystemConfig | VirtualHardwarePlatform, placement: Sequence[int] | None
) -> tuple[Sequence[EventLog], LinkUse]:
    """Return the logs of a run on the links of its hardware, and what these carried.

    Args:
        logs: the log of each rank.
        hardware: the hardware config, or a platform whose devices are the ranks'.
        placement: node of each rank; as `nodes_in_rank_order` says if None.
    """
    if isinstance(hardware, VirtualHardwarePlatform):
        links: Any = _OwnLinks(hardware, hardware.profile.system_config())
    else:
        nodes = nodes_in_rank_order(len(logs), min(tier.size for tier in hardware.networks))
        placement = [nodes.node(rank) for rank in range(len(logs))] if placement is None else placement
        links = ClusterLinks(hardware, len(logs), placement=placement)
    (one,) = _retimed([logs], [_rank_routes(links, range(len(logs)))], [""])
    return one.logs, LinkUse(one.delays, _used(links), max(log[-1].end for log in one.logs if len(log)))
