"""What an operation of a picture does, and what its price is made of, in the words of the panel that a click opens.

What it does is the law of the operation's record, or its method's docstring; what its price is made of says the
predictor (`minitrain.machine.accounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minitrain.engine.strategy_model import StrategyModel
from minitrain.machine.accounts import Account, Part
from minitrain.operations import RECV
from minitrain.operations.collectives import COLLECTIVES
from minitrain.run.analysis.labels import duration, size
from minitrain.run.analysis.timeline import NONE, Timeline
from minitrain.view.bars import RECOMPUTED

Accounts = Mapping[int, Callable[[], Account]]
"""What explains prices, by the price's id."""

_LIMITS = {
    "compute": ("compute", "arithmetic"),
    "memory": ("memory", "memory bandwidth"),
    "launches": ("launches", "launching"),
    "bandwidth": ("network bandwidth", "network bandwidth"),
    "latency": ("network latency", "messages without latency"),
}
"""What a limit is called as a bound, and as what might be endless."""
_METHODS = {RECV: "receive", RECOMPUTED: "forward"}
_LEAST_SAVED = 0.005


def law_of(name: str) -> str:
    """Return what an operation does, in a sentence; "" of one that is not known.

    >>> law_of("all_gather")
    'Put the shards of all together; each member gets what holds them.'
    """
    record = COLLECTIVES.get(name)
    told = record.law if record else getattr(StrategyModel, _METHODS.get(name, name), None)
    return (getattr(told, "__doc__", None) or "").partition("\n")[0]


def words_of(account: Account) -> dict[str, Any]:
    """Return an account for the panel: facts as pairs of a name and a text, and its kernels.

    Of a kernel there are its name, its share of all, what bounds it, and what it takes and reaches.
    """
    whole, total = account.whole, sum(part.seconds for part in account.parts)
    parts = [
        [
            part.name,
            part.seconds / total,
            _LIMITS[part.bound][0] if part.bound else "",
            ", ".join(filter(None, (duration(part.seconds), _reached(part, part.bound)))),
        ]
        for part in account.parts
    ]
    return {"facts": list(_facts(whole, account)), "parts": parts}


def of_computing(line: Timeline, accounts: Accounts) -> list[tuple[str, Part, str, str]]:
    """Return what computing in a step consists of, by kernels or by operations: longest first, means of all ranks.

    Args:
        line: the step.
        accounts: what explains its prices, by the price's id.

    Returns:
        Of each its name; seconds, FLOP and bytes together; the rate that it reaches, and what bounds most of it.
    """
    chosen = np.flatnonzero(line.computes & ~line.loading & (line.duration > 0))
    codes, first, place = np.unique(line.price[chosen], return_index=True, return_inverse=True)
    counts = np.bincount(place, minlength=len(codes))
    found: dict[str, list[tuple[Part, float, float]]] = {}
    for code, event, count in zip(codes.tolist(), chosen[first].tolist(), counts.tolist(), strict=True):
        account = accounts.get(id(line.prices[code])) if code != NONE else None
        if account is None:
            return []
        told = account()
        for part in told.parts or (told.whole,):
            name = part.name.partition(" ")[0] if part.name.startswith("matmul") else part.name
            found.setdefault(name or line.typs[line.typ[event]], []).append(
                (part, count / line.num_ranks, told.peak_flop_per_s or 0.0)
            )
    return sorted(map(_together, found, found.values()), key=lambda each: -each[1].seconds)


def _together(name: str, parts: Sequence[tuple[Part, float, float]]) -> tuple[str, Part, str, str]:
    """Return parts, each with how often a rank has it and its device's peak, as one."""
    seconds, work_flop, traffic_bytes = (
        sum(getattr(part, field) * count for part, count, _ in parts)
        for field in ("seconds", "work_flop", "traffic_bytes")
    )
    bounds: dict[str, float] = {}
    for part, count, _ in parts:
        bounds[part.bound] = bounds.get(part.bound, 0.0) + part.seconds * count
    most = max(bounds, key=bounds.__getitem__)
    whole = Part(name, seconds, work_flop, traffic_bytes)
    peak = sum(part.seconds * count * peak for part, count, peak in parts) / seconds if seconds else 0.0
    return name, whole, _reached(whole, most, peak), _LIMITS[most][0] if most else ""


def _facts(whole: Part, account: Account) -> Iterator[tuple[str, str]]:
    """Yield what is said of all that a price pays for."""
    yield "price", f"{duration(whole.seconds)}: {account.rule}"
    if whole.work_flop:
        yield "FLOP", f"{_flop(whole.work_flop)}, {_reached(whole, 'compute', account.peak_flop_per_s)}"
    if whole.traffic_bytes:
        yield "memory traffic", f"{size(whole.traffic_bytes)}, {_reached(whole, 'memory')}"
    if whole.endless:
        yield "bound by", f"{_LIMITS[whole.bound][0]}{_savings(whole)}"


def _savings(whole: Part) -> str:
    """Say what an operation would save if a limit were gone, the largest first."""
    assert whole.endless is not None
    saved = {limit: 1 - seconds / whole.seconds for limit, seconds in whole.endless.items() if whole.seconds}
    shown = [
        f"{_LIMITS[limit][1]} would save {share:.0%}"
        for limit, share in sorted(saved.items(), key=lambda each: -each[1])
        if share >= _LEAST_SAVED
    ]
    return f"; endless {', '.join(shown)}" if shown else ""


def _flop(amount: float) -> str:
    """Say an amount of arithmetic in a unit that suits it.

    >>> _flop(2.5e12), _flop(3e7)
    ('2.5 TFLOP', '0.03 GFLOP')
    """
    return f"{amount / 1e12:.4g} TFLOP" if amount >= 1e10 else f"{amount / 1e9:.4g} GFLOP"


def _reached(part: Part, bound: str, peak_flop_per_s: float | None = None) -> str:
    """Return the rate that something reaches: that of its traffic where it has no other or is bound by it."""
    if not part.seconds or not (part.work_flop or part.traffic_bytes):
        return ""
    if bound == "memory" or not part.work_flop:
        return f"{part.traffic_bytes / part.seconds / 1e9:.4g} GB/s"
    rate = part.work_flop / part.seconds
    return f"{_flop(rate)}/s" + (f", {rate / peak_flop_per_s:.0%} of peak" if peak_flop_per_s else "")
