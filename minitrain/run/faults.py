"""Devices that fail during a run, and how long recovery takes: `Fault`, `FaultRate` and `Recovery`.

    run = mt.simulate("ddp", ..., faults=[mt.Fault(rank=5, at_s=0.02)], recovery=mt.Recovery(spares=1))

These are the values alone. What happens to a step is simulated in `minitrain.whatif.faults`, and so are long runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, final

from minitrain.errors import UsageError, require_count
from minitrain.machine.device import mtbf_hours_of, require_mtbf

_SECONDS_AN_HOUR = 3600


@final
@dataclass(frozen=True, slots=True)
class Fault:
    """A device that dies.

    Args:
        rank: whose device it is.
        at_s: when, s from the beginning of the step.

    Raises:
        UsageError: the rank is no count, or the time no number from 0 on.
    """

    rank: int
    at_s: float

    def __post_init__(self) -> None:
        require_count("rank", self.rank, 0)
        _require_seconds("at_s of a fault", self.at_s)


@final
@dataclass(frozen=True, slots=True)
class FaultRate:
    """Faults that come by chance: every device fails at a constant rate, on its own.

    Args:
        mtbf_hours: mean time between failures of a device, hours, for all or by hardware config, group of a cluster, or
            family; the published one of its family if None (see `minitrain.machine.device`).
        seed: the same seed draws the same faults.

    Raises:
        UsageError: a time is no positive number, or the seed no count.
    """

    mtbf_hours: float | Mapping[str, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_mtbf(self.mtbf_hours)
        require_count("seed", self.seed, 0)

    def draw(self, devices: Sequence[str], seconds: float) -> list[Fault]:
        """Draw the faults of a stretch of time, each device's first one, in the order of time.

        Args:
            devices: the hardware config or the group of each rank's device.
            seconds: how long to wait for them.
        """
        chance = random.Random(self.seed)
        rates = [1 / (mtbf_hours_of(device, self.mtbf_hours) * _SECONDS_AN_HOUR) for device in devices]
        drawn = [Fault(rank, chance.expovariate(rate)) for rank, rate in enumerate(rates)]
        return sorted((fault for fault in drawn if fault.at_s < seconds), key=lambda fault: (fault.at_s, fault.rank))


@final
@dataclass(frozen=True, slots=True)
class Recovery:
    """What happens after a device has died, and how long each part of it takes.

    The defaults are those of a large job on a shared storage. Each is a published figure, or marked as assumed.

    Args:
        detection_s: until all ranks are stopped. PyTorch waits 600 s for a collective on NCCL by default; systems with
            heartbeats take less.
        restart_s: to start the processes and to connect them again, s: 300; assumed.
        repair_s: until a dead device is back, where no spare takes its place: a day; assumed.
        replan_s: to find the layout of what is left, where the job goes on with fewer ranks; 0.
        spares: devices that stand by.
        elastic: whether the job goes on with fewer ranks when no spare is left, instead of waiting for the repair.
        storage_bytes_per_s: what the storage takes from and gives to all nodes together: 2e12 (Llama 3, 2024, 3.3.1).
        node_bytes_per_s: what one node reads and writes: 25e9, a port of 200 Gb/s; assumed.
        snapshot_bytes_per_s: from one device into its host's memory, for checkpoints that are written beside the
            training: 25e9, what a PCIe slot of the fourth generation reaches; assumed.
        since_checkpoint_s: work of finished steps since the last checkpoint, which a fault undoes as well; used for a
            single step alone, 0.

    Raises:
        UsageError: a time or rate is outside its rule.
    """

    detection_s: float = 600.0
    restart_s: float = 300.0
    repair_s: float = 86_400.0
    replan_s: float = 0.0
    spares: int = 0
    elastic: bool = False
    storage_bytes_per_s: float = 2e12
    node_bytes_per_s: float = 25e9
    snapshot_bytes_per_s: float = 25e9
    since_checkpoint_s: float = 0.0

    def __post_init__(self) -> None:
        require_count("spares", self.spares, 0)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_bytes_per_s"):
                _require_rate(each.name, value)
            elif each.name.endswith("_s"):
                _require_seconds(each.name, value)


def require_recovery(recovery: object) -> None:
    """Require that what follows a failure is a `Recovery`, or None.

    Raises:
        UsageError: it is not.
    """
    if recovery is not None and not isinstance(recovery, Recovery):
        raise UsageError(f"recovery must be a mt.Recovery, such as mt.Recovery(spares=1), got {recovery!r:.80}")


def require_faults(faults: Any, recovery: Any, world_size: int) -> None:
    """Require that faults are of ranks of the run, and that what follows them is a `Recovery`.

    Raises:
        UsageError: they are not.
    """
    require_recovery(recovery)
    if recovery is not None and not faults:
        raise UsageError("recovery is for runs with faults, and none are given; give faults=[mt.Fault(rank=, at_s=)]")
    if not faults or isinstance(faults, FaultRate):
        return
    if not isinstance(faults, Sequence) or not all(isinstance(fault, Fault) for fault in faults):
        raise UsageError(
            "faults must be a list of mt.Fault, such as [mt.Fault(rank=5, at_s=0.02)], or a mt.FaultRate, got "
            f"{faults!r:.80}"
        )
    beyond = next((fault for fault in faults if fault.rank >= world_size), None)
    if beyond is not None:
        raise UsageError(f"a fault names rank {beyond.rank}, but ranks are 0..{world_size - 1}", rank=beyond.rank)


def _require_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"{name} must be a number of seconds from 0 on, got {value!r}")


def _require_rate(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"{name} must be a positive number of bytes a second, got {value!r}")
