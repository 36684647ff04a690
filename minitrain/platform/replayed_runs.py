"""`replay`: times finished runs again on the links of one cluster, and says how much they slow one another down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError
from minitrain.events import EventLog
from minitrain.hardware.config import SystemConfig, load_config
from minitrain.hardware.rank_placement import nodes_in_rank_order
from minitrain.platform.cluster_links import ClusterLinks
from minitrain.platform.fair_sharing import FairSharing
from minitrain.platform.platform import VirtualHardwarePlatform
from minitrain.platform.rank_routes import RankRoutes
from minitrain.platform.retimed_run import Replay, SharedLink
from minitrain.platform.routes import Routes

if TYPE_CHECKING:
    from minitrain.platform.links import Lane
    from minitrain.run.result import Run

Delays = Mapping[tuple[int, int], SharedLink]
"""Why transfers took longer than their price, by rank and place in its log."""


@final
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


@final
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
        _require_events(run)
    places = _places(all_runs, placement)
    make = _links_of(all_runs, platform, places, nics, oversubscription)
    alone = []
    for run, place in zip(all_runs, places, strict=True):
        links = make()
        alone += _together([run], [links.rank_routes(place)], links, processor_share)
    links = make()
    runs_together = _together(all_runs, [links.rank_routes(place) for place in places], links, processor_share)
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

    def rank_routes(self, processors: Sequence[int]) -> RankRoutes:
        """Return the routes between devices, in the profile's order, as `ClusterLinks.rank_routes` does."""
        if max(processors) >= len(self.names):
            raise UsageError(
                f"the platform has {len(self.names)} devices, but a rank is placed on device {max(processors)}; add "
                "devices, or place ranks on those that there are"
            )
        nodes = [processor // self.tiers[0].size for processor in processors]
        return RankRoutes(self.routes.route, [self.names[one] for one in processors], nodes, (), self.tiers)


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


def _require_events(run: Run) -> None:
    if len(run.logs) != run.world_size or not all(isinstance(log, EventLog) for log in run.logs):
        raise UsageError(
            f"replay needs every event of every rank, and the run of {run.strategy} has not kept them; simulate it "
            'with log="full"'
        )


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


def _together(runs: Sequence[Run], routes: Sequence[RankRoutes], links: Any, processor_share: bool) -> list[Run]:
    """Return runs as they share some links."""
    from simpy import Environment  # noqa: PLC0415  (where a platform runs)

    env = Environment()
    sharing = FairSharing(env)
    names = [run.strategy if len(runs) > 1 else "" for run in runs]
    replays = [
        Replay(run.logs, own, sharing, name, processor_share=processor_share)  # type: ignore[arg-type]  # `_require_events` has looked
        for run, own, name in zip(runs, routes, names, strict=True)
    ]
    for one in replays:
        one.begin()
    env.run()
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
    from simpy import Environment  # noqa: PLC0415

    if isinstance(hardware, VirtualHardwarePlatform):
        links: Any = _OwnLinks(hardware, hardware.profile.system_config())
    else:
        nodes = nodes_in_rank_order(len(logs), min(tier.size for tier in hardware.networks))
        placement = [nodes.node(rank) for rank in range(len(logs))] if placement is None else placement
        links = ClusterLinks(hardware, len(logs), placement=placement)
    env = Environment()
    one = Replay(logs, links.rank_routes(range(len(logs))), FairSharing(env))
    one.begin()
    env.run()
    return one.logs, LinkUse(one.delays, _used(links), max(log[-1].end for log in one.logs if len(log)))
