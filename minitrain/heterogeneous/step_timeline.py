"""The steps of an orchestrated workload, and when each happens by prices, on shared devices and links.

The steps are those of a run of real arithmetic: operations, moves, and devices that died. Their timeline is simulated.
An operation lasts as long as its price on its device, and begins when its operands have come, its device is free, and
the power budget allows it. Moves share the links of the devices fairly (`minitrain.platform`). The speed of the machine
that computes does not matter, so that the timeline is the same every time.

Each device draws its rated power while it computes and its idle power otherwise, as for the energy of runs. Under a
budget an operation waits until its power is available. Left out: clocks that fall instead, the power of links and
hosts, and the time until a death is noticed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from minitrain.errors import UsageError
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile
from minitrain.heterogeneous.data_movement import HOST, link_of
from minitrain.platform.fair_sharing import FairSharing, Flow
from minitrain.platform.links import Lane

if TYPE_CHECKING:
    from simpy import Environment, Event

StepKind = Literal["compute", "move", "failure"]


@final
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
    """

    kind: StepKind
    name: str
    device: str
    after: tuple[int, ...] = ()
    source: str = ""
    num_bytes: int = 0
    seconds: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step, and when it happened.

    Args:
        step: what happened.
        start_s: when it began, s.
        end_s: when it had ended, s.
    """

    step: Step
    start_s: float
    end_s: float


@final
@dataclass(frozen=True, slots=True)
class StepTimeline:
    """When the steps of an orchestrated workload happened.

    Args:
        steps: in the order of the run.
        seconds: when the last ended, s.
        energy_joules: of all devices until then, J; None where a config does not say what its device draws.
        peak_watts: the most that all devices drew together, W; None likewise.
    """

    steps: tuple[TimedStep, ...]
    seconds: float
    energy_joules: float | None
    peak_watts: float | None

    def busy_s(self, device: str) -> float:
        """Return how long a device computed, s."""
        worked = (each for each in self.steps if each.step.kind == "compute" and each.step.device == device)
        return sum(each.end_s - each.start_s for each in worked)


def timeline(
    steps: Sequence[Step],
    devices: Sequence[HardwareCapabilityProfile],
    power_budget_W: float | None = None,  # noqa: N803
) -> StepTimeline:
    """Return when each step happens.

    Args:
        steps: each needs only such before it.
        devices: all that take part, also those that died.
        power_budget_W: what they may draw together, W; None for no limit.

    Raises:
        UsageError: a config does not say what its device draws, and there is a budget; or it is too small for the
            idle devices together with the working one that draws most.
    """
    from simpy import Environment  # noqa: PLC0415 - where a timeline is made, it is loaded

    require_power(devices, {step.device for step in steps if step.kind == "compute"}, power_budget_W)
    env = Environment()
    run = _TimelineSimulation(env, steps, devices, power_budget_W)
    for number in range(len(steps)):
        env.process(run.step(number))
    env.run()
    timed = tuple(TimedStep(step, *run.times[number]) for number, step in enumerate(steps))
    energy, peak = (None, None) if run.power is None else (run.power.energy(env.now), run.power.peak)
    return StepTimeline(timed, max((each.end_s for each in timed), default=0.0), energy, peak)


def require_power(
    devices: Sequence[HardwareCapabilityProfile],
    working: set[str],
    power_budget_W: float | None,  # noqa: N803
) -> None:
    """Require a power budget that allows each device to compute while the others idle.

    Raises:
        UsageError: it is too small, or a config does not say what its device draws.
    """
    if power_budget_W is None:
        return
    silent = [device.name for device in devices if device.tdp_W is None]
    if silent:
        raise UsageError(
            f"a power budget needs what devices draw, and the config of {silent[0]} has no power; add "
            "power: {tdp_W, idle_W}, or leave out the budget",
            device=silent[0],
        )
    rest = sum(_idle(device) for device in devices)
    more = [(_rated(device) - _idle(device), device.name) for device in devices if device.name in working]
    hungriest = max(more, default=(0.0, "nobody"))
    if rest + hungriest[0] > power_budget_W:
        raise UsageError(
            f"power_budget_W ({power_budget_W:g}) must let {hungriest[1]} work beside the others at rest, which takes "
            f"{rest + hungriest[0]:g} W; raise it, or leave a device out",
            power_budget_W=power_budget_W,
        )


def _rated(device: HardwareCapabilityProfile) -> float:
    return device.tdp_W or 0.0


def _idle(device: HardwareCapabilityProfile) -> float:
    return device.idle_W or 0.0


@final
class _Power:
    """The power that devices draw, and the devices that wait for power."""

    def __init__(self, env: Environment, devices: Sequence[HardwareCapabilityProfile], budget: float) -> None:
        self.env = env
        self.budget = budget
        self.more = {device.name: _rated(device) - _idle(device) for device in devices}
        self.rest = self.now = self.peak = sum(map(_idle, devices))
        self.joules = 0.0
        self.waiting: deque[tuple[str, Event]] = deque()

    def ask(self, device: str) -> Event:
        """Return an event that happens when a device may begin to work."""
        allowed = self.env.event()
        self.waiting.append((device, allowed))
        self._admit()
        return allowed

    def stop(self, device: str, worked_s: float) -> None:
        """Note that a device has worked."""
        self.now -= self.more[device]
        self.joules += self.more[device] * worked_s
        self._admit()

    def energy(self, until_s: float) -> float:
        """Return what was used until a moment, J."""
        return self.joules + self.rest * until_s

    def _admit(self) -> None:
        """Start waiting devices, in their order, as far as the budget allows."""
        while self.waiting and self.now + self.more[self.waiting[0][0]] <= self.budget:
            device, allowed = self.waiting.popleft()
            self.now += self.more[device]
            self.peak = max(self.peak, self.now)
            allowed.succeed()


@final
class _TimelineSimulation:
    """A timeline under way."""

    def __init__(
        self,
        env: Environment,
        steps: Sequence[Step],
        devices: Sequence[HardwareCapabilityProfile],
        budget: float | None,
    ) -> None:
        self.env = env
        self.steps = steps
        self.times: dict[int, tuple[float, float]] = {}
        self.ended = [env.event() for _ in steps]
        self.before = _previous_on_device(steps)
        is_known = all(device.tdp_W is not None for device in devices)
        self.power = _Power(env, devices, float("inf") if budget is None else budget) if is_known else None
        self.sharing = FairSharing(env)
        self.lanes = {
            (way, device.name): Lane(f"{device.name} {way} host", _best_rate(link_of(device)))
            for device in devices
            for way in ("to", "from")
        }

    def step(self, number: int) -> Generator[Event, None, None]:
        """Simulate one step."""
        step = self.steps[number]
        needed = (*step.after, *self.before[number])
        yield self.env.all_of([self.ended[other] for other in needed])
        start = self.env.now
        if step.kind == "move":
            yield self._moved(step)
        elif step.kind == "compute":
            if self.power is not None:
                yield self.power.ask(step.device)
                start = self.env.now
            yield self.env.timeout(step.seconds)
            if self.power is not None:
                self.power.stop(step.device, step.seconds)
        self.times[number] = start, self.env.now
        self.ended[number].succeed()

    def _moved(self, step: Step) -> Event:
        """Return an event that happens when an array has come."""
        arrived = self.env.event()
        ways = [("from", step.source)] * (step.source != HOST) + [("to", step.device)] * (step.device != HOST)
        if not ways or not step.num_bytes:
            return arrived.succeed()
        lanes = Counter(self.lanes[way] for way in ways)
        rate = step.num_bytes / step.seconds
        end = self.env.now + step.seconds
        self.sharing.begin(Flow(step.name, lanes, step.num_bytes, rate, lambda: _succeed(arrived), end))
        return arrived


def _succeed(event: Event) -> None:
    event.succeed()


def _best_rate(memory: Any) -> float:
    """Return what a link carries at most, bytes/s."""
    return float(memory.GBps * 1e9 * max(share for _, share in memory.MB_efficiency))


def _previous_on_device(steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """Return for each operation the one before it on its device; a move waits for what it needs alone."""
    latest: dict[str, int] = {}
    found: list[tuple[int, ...]] = []
    for number, step in enumerate(steps):
        found.append((latest[step.device],) if step.kind != "move" and step.device in latest else ())
        if step.kind != "move":
            latest[step.device] = number
    return found
