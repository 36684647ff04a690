"""What a price is made of: the rule that gave it, its work, its kernels, and what it is bound by.

A predictor remembers what it was asked and answers with one object a question. So whoever has the object that a log
shows can ask how it came about (`price.accounts_of`), and nothing is kept for that while a run is simulated.

What bounds an operation is found by pricing it once more with each limit of the machine gone: endless arithmetic,
endless bandwidth of the memory, launches in no time; for a transfer, no latency or an endless bandwidth. The limit
without which it would be quickest is the bound. So the bound follows from the model of the device as it is, whichever
that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast, final

from minitrain.machine.kernel_device import LIMITS, KernelDevice
from minitrain.workloads.workload import Cost

if TYPE_CHECKING:
    from minitrain.machine.device import Device
    from minitrain.machine.price import Price
    from minitrain.workloads.kernels import KernelList


_ROUNDING = 1e-9


@final
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


@final
@dataclass(frozen=True, slots=True)
class Account:
    """What a price is made of.

    Args:
        rule: how it was found, in words.
        whole: all that it pays for.
        parts: the kernels of which it is the sum.
        peak_flop_per_s: of the device; None where it has none.
    """

    rule: str
    whole: Part
    parts: tuple[Part, ...] = ()
    peak_flop_per_s: float | None = None


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
    others = {limit: known.endless(limit) for limit in LIMITS}
    usual = known.pass_seconds(work)
    endless = {limit: _scaled(price, other.pass_seconds(work), usual) for limit, other in others.items()}
    whole = Part("", price.seconds, work.work_flop, work.traffic_bytes, endless)
    parts = [
        Part(
            kernel.title,
            _scaled(price, known.kernel_seconds(kernel), usual),
            kernel.work_flop,
            kernel.traffic_bytes,
            {limit: _scaled(price, other.kernel_seconds(kernel), usual) for limit, other in others.items()},
        )
        for kernel in work.kernels
    ]
    rule = f"the sum of its {len(parts)} kernel{'s' if len(parts) > 1 else ''}"
    late = price.seconds - sum(part.seconds for part in parts)
    if late > _ROUNDING * price.seconds:
        rule = f"its {work.num_launches} launches, longer than {rule}"
        parts.append(Part("waiting for launches", late, endless={"launches": 0.0}))
    return Account(rule, whole, tuple(part for part in parts if part.seconds > 0), peak)


def _scaled(price: Price, seconds: float, usual: float) -> float:
    """Return what a part of an operation takes on a device that is as slow as its price says, s."""
    return price.seconds * seconds / usual if usual else 0.0


def account_of_transfer(price: Price, latency: Price, among: int, node_size: int | None) -> Account:
    """Return the account of a collective or a message.

    Args:
        price: what it came to.
        latency: what it would with no bytes.
        among: how many ranks take part.
        node_size: devices of a node, where the network has several tiers.
    """
    where = "" if node_size is None else " inside a node" if price.tier_size == node_size else " across nodes"
    rule = f"{price.algorithm or ''} among {among} ranks{where}".strip()
    endless = {"bandwidth": latency.seconds, "latency": max(price.seconds - latency.seconds, 0.0)}
    return Account(rule, Part("", price.seconds, endless=endless))
