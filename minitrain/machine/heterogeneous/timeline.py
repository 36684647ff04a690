"""When the steps of orchestrated workloads happen, by prices: units, links, power and heat of their devices.

An operation lasts as long as its price on its device, and begins when its operands have come, its device is free, and
the power budget allows it. Operations that a device fuses are priced together, as the workload manager does. Moves
share the links of the devices fairly (`minitrain.platform`), those to the host or those to peers. Operations that have
a share of a device's units share these by the rule of the platform. The speed of the machine that computes does not
matter here, so that a timeline is the same every time.

Each device draws its rated power while it computes and its idle power otherwise, as for the energy of runs. Under a
budget an operation waits until its power is available. A device with a `Thermal` warms up and cools down by that law.
Once it is as hot as where it throttles, it computes with the clock, and draws the power, that hold it there.

Left out: clocks that fall under a budget, the power of links and hosts, and heat of shared units.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from minitrain.errors import UsageError
from minitrain.machine.device_groups import Thermal
from minitrain.machine.heterogeneous.taxonomy import HardwareCapabilityProfile
from minitrain.machine.heterogeneous.workload_manager import HOST
from minitrain.machine.platform.fair_sharing import FairSharing, Flow
from minitrain.machine.platform.links import Lane
from minitrain.machine.platform.platform import SharedUnits, Steps

if TYPE_CHECKING:
    from simpy import Event

StepKind = Literal["compute", "move", "failure"]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened in an orchestrated workload.

    Args:
        kind: "compute", "move" or "failure".
        name: of the operation, or the array that moved; at a failure, of the operation that found it out.
        device: which computed or died; where a move went.
        after: the steps that it needs, by number.
        source: where a move came from.
        num_bytes: what it moved.
        seconds: what it takes where it need not share, s.
        peer_bytes_per_s: of the link that a move takes between its devices, bytes/s; None where it passes the host.
        work: what an operation's arithmetic and its traffic take, s; the rest of its seconds is starting it.
        hot_s: what an operation takes on a device that throttles, s.
        share: of the device's units that it takes.
    """

    kind: StepKind
    name: str
    device: str
    after: tuple[int, ...] = ()
    source: str = ""
    num_bytes: int = 0
    seconds: float = 0.0
    peer_bytes_per_s: float | None = None
    work: tuple[float, float] = (0.0, 0.0)
    hot_s: float = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step, and when it happened.

    Args:
        step: what happened.
        start_s: when it began, s.
        end_s: when it had ended, s.
        temperature_C: of its device then, degrees Celsius; None where nothing is known of its heat.
    """

    step: Step
    start_s: float
    end_s: float
    temperature_C: float | None = None


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """When the steps of an orchestrated workload happened.

    Args:
        steps: in the order of the run.
        seconds: when the last ended, s.
        energy_joules: of all devices until then, J; None where a config does not say what its device draws.
        peak_watts: the most that all devices drew together, W; None likewise.
        temperatures_C: at the end, of the devices that have a `Thermal`, by name, degrees Celsius.
    """

    steps: tuple[TimedStep, ...]
    seconds: float
    energy_joules: float | None
    peak_watts: float | None
    temperatures_C: Mapping[str, float] = field(default_factory=dict)

    def busy_s(self, device: str) -> float:
        """Return how long a device computed, s."""
        worked = (each for each in self.steps if each.step.kind == "compute" and each.step.device == device)
        return sum(each.end_s - each.start_s for each in worked)


def timeline(
    steps: Sequence[Step],
    devices: Sequence[HardwareCapabilityProfile],
    power_budget_W: float | None = None,
    temperatures_C: Mapping[str, float] = MappingProxyType({}),
) -> StepTimeline:
    """Return when each step happens.

    Args:
        steps: each needs only such before it.
        devices: all that take part, also those that died.
        power_budget_W: what they may draw together, W; None for no limit.
        temperatures_C: of devices that have a `Thermal`, at first; that of their surroundings where none is given.

    Raises:
        UsageError: a config does not say what its device draws, and there is a budget; or it is too small for the
            idle devices together with the working one that draws most; or a temperature is of no device that warms up.
    """
    warm = [device.name for device in devices if device.thermal is not None]
    for name in temperatures_C:
        if name not in warm:
            raise UsageError(
                f"temperatures_C names {name!r}, and the devices that have a Thermal are {', '.join(warm) or 'none'}; "
                "give mt.Devices(..., thermal=mt.Thermal(...)), or leave it out"
            )
    run = _TimelineSimulation(steps, devices, _power_left_mW(steps, devices, power_budget_W), temperatures_C)
    for number in range(len(steps)):
        run.env.process(run.step(number))
    run.env.run()
    timed = tuple(TimedStep(step, *run.times[number]) for number, step in enumerate(steps))
    seconds = max((each.end_s for each in timed), default=0.0)
    heat = {name: each.at(seconds) for name, each in run.heat.items()}
    found = StepTimeline(timed, seconds, None, None, heat)
    if any(device.tdp_W is None for device in devices):
        return found
    rest = sum(device.idle_W or 0.0 for device in devices)
    return replace(found, energy_joules=rest * found.seconds + run.worked_J, peak_watts=rest + run.peak_mW / 1e3)


def num_units_of(device: HardwareCapabilityProfile) -> int:
    """Return how many units a device has; one where its config does not say."""
    return device.device.sheet.num_units or 1


def _parts(step: Step) -> list[tuple[float, float]]:
    """Return how long the parts of an operation last where nobody else computes, and their memory traffic, s.

    A part of the units takes longer for the arithmetic, and as long for starting it.
    """
    compute_s, memory_s = step.work
    if step.share == 1:
        return [(step.seconds, memory_s)]
    return [(max(compute_s / step.share, memory_s), memory_s), (step.seconds - max(step.work), 0.0)]


def _more_mW(device: HardwareCapabilityProfile) -> int:
    """Return what a device draws more when it computes, mW; whole numbers add up without rounding."""
    return round(1e3 * ((device.tdp_W or 0.0) - (device.idle_W or 0.0)))


def _power_left_mW(steps: Sequence[Step], devices: Sequence[HardwareCapabilityProfile], budget_W: float | None) -> int:
    """Return what a budget leaves beside the devices at rest, mW; what all need together without a budget.

    Raises:
        UsageError: it does not let each device compute while the others idle, or a config does not say what its device
            draws.
    """
    if budget_W is None:
        return sum(map(_more_mW, devices))
    silent = [device.name for device in devices if device.tdp_W is None]
    if silent:
        raise UsageError(
            f"a power budget needs what devices draw, and the config of {silent[0]} has no power; add "
            "power: {tdp_W, idle_W}, or leave out the budget"
        )
    working = {step.device for step in steps if step.kind == "compute"}
    rest = sum(device.idle_W or 0.0 for device in devices)
    more, hungriest = max(
        ((_more_mW(each), each.name) for each in devices if each.name in working), default=(0, "nobody")
    )
    left = round(1e3 * (budget_W - rest))
    if more > left:
        raise UsageError(
            f"power_budget_W ({budget_W:g}) must let {hungriest} work beside the others at rest, which takes "
            f"{rest + more / 1e3:g} W; raise it, or leave a device out"
        )
    return left


@dataclass(slots=True)
class _Heat:
    """The temperature of a device under way.

    Args:
        thermal: its law.
        idle_W: what it draws when it waits, W.
        now_C: the temperature, when it changed its power last.
        since: when that was, s.
    """

    thermal: Thermal
    idle_W: float
    now_C: float
    since: float = 0.0

    def at(self, now: float) -> float:
        """Return the temperature after it has waited until now, degrees Celsius."""
        return self.thermal.temperature_C(self.idle_W, now - self.since, self.now_C)

    def draw(self, watts: float, begin: float, seconds: float) -> None:
        """Let it draw some power from a moment on for some time."""
        self.now_C, self.since = self.thermal.temperature_C(watts, seconds, self.at(begin)), begin + seconds


class _TimelineSimulation:
    """A timeline under way.

    Args:
        steps: what happens.
        devices: all that take part.
        power_mW: what they may draw beyond their rest, mW.
        temperatures_C: at first, of devices that warm up.

    Attributes:
        times: when each step begins and ends, s, and how hot its device is then, by number.
        peak_mW: the most that they drew beyond their rest, mW.
        worked_J: what they drew beyond their rest, J.
        heat: of the devices that warm up, by name.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        devices: Sequence[HardwareCapabilityProfile],
        power_mW: int,
        temperatures_C: Mapping[str, float],
    ) -> None:
        import simpy  # noqa: PLC0415 - where a timeline is made, it is loaded

        self.env = simpy.Environment()
        self.steps = steps
        self.times: dict[int, tuple[float, float, float | None]] = {}
        self.ended = [self.env.event() for _ in steps]
        self.devices = {device.name: device for device in devices}
        self.power_mW = power_mW
        self.power = simpy.Container(self.env, init=power_mW)
        self.peak_mW = 0
        self.worked_J = 0.0
        self.sharing = FairSharing(self.env)
        self.units = {each.name: SharedUnits.of(each.name, num_units_of(each), self.sharing) for each in devices}
        self.heat = {
            each.name: _Heat(each.thermal, each.idle_W or 0.0, temperatures_C.get(each.name, each.thermal.ambient_C))
            for each in devices
            if each.thermal is not None
        }
        self.lanes: dict[tuple[str, str], Lane] = {}
        for device in devices:
            link = device.device.mem_pcie
            rate = link.GBps * 1e9 * max(share for _, share in link.MB_efficiency)
            for way in ("to", "from"):
                self.lanes[way, device.name] = Lane(f"{device.name} {way} host", rate)

    def step(self, number: int) -> Steps:
        """Simulate one step."""
        step = self.steps[number]
        yield self.env.all_of([self.ended[other] for other in step.after])
        start = self.env.now
        if step.kind == "move":
            yield self._moved(step)
        elif step.kind == "compute" and step.seconds:
            start = yield from self._computed(step)
        heat = self.heat.get(step.device) if step.kind == "compute" else None
        self.times[number] = start, self.env.now, None if heat is None else heat.at(self.env.now)
        self.ended[number].succeed()

    def _computed(self, step: Step) -> Steps:
        """Let a device compute as soon as it has units and power, and return when that began."""
        shared, heat, device = self.units[step.device], self.heat.get(step.device), self.devices[step.device]
        wanted = int(step.share * shared.units.capacity)
        yield shared.units.take(wanted)
        more = round(_more_mW(device) * wanted / shared.units.capacity)
        if more:
            yield self.power.get(more)
        start = self.env.now
        cool_s = math.inf if heat is None else heat.thermal.seconds_to_throttle(device.tdp_W or 0.0, heat.at(start))
        if heat is None or cool_s >= step.seconds:
            yield from self._drawing(device, more, shared.work(step.name, wanted, _parts(step)))
        else:
            if cool_s:
                yield from self._drawing(device, more, self._waited(cool_s))
            less = more - max(0, min(more, round(1e3 * (heat.thermal.sustained_watts - heat.idle_W))))
            if less:
                self.power.put(less)
            more -= less
            yield from self._drawing(device, more, self._waited((1 - cool_s / step.seconds) * step.hot_s))
        if more:
            self.power.put(more)
        shared.units.give(wanted)
        return start

    def _waited(self, seconds: float) -> Steps:
        yield self.env.timeout(seconds)

    def _drawing(self, device: HardwareCapabilityProfile, more_mW: int, work: Steps) -> Steps:
        """Let a device do something that draws some power beside that of its rest."""
        self.peak_mW = max(self.peak_mW, self.power_mW - int(self.power.level))
        start = self.env.now
        yield from work
        seconds = self.env.now - start
        self.worked_J += more_mW / 1e3 * seconds
        if device.name in self.heat:
            self.heat[device.name].draw((device.idle_W or 0.0) + more_mW / 1e3, start, seconds)

    def _moved(self, step: Step) -> Event:
        """Return an event that happens when an array has come."""
        arrived = self.env.event()
        ways = [("from", step.source)] * (step.source != HOST) + [("to", step.device)] * (step.device != HOST)
        if not ways or not step.seconds:
            return arrived.succeed()
        if step.peer_bytes_per_s is not None:
            ways = [("peers from", step.source), ("peers to", step.device)]
            for way, name in ways:
                self.lanes.setdefault((way, name), Lane(f"{name} {way}", step.peer_bytes_per_s))
        lanes = Counter(self.lanes[way] for way in ways)
        rate = step.num_bytes / step.seconds
        end = self.env.now + step.seconds
        self.sharing.begin(Flow(step.name, lanes, step.num_bytes, rate, arrived.succeed, end))
        return arrived
