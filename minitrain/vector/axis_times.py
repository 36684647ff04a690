"""What ranks communicate along each axis, on each machine: the totals of `minitrain.analysis.communication`.

The sums over intervals are added in the same order, machine by machine, and means over ranks are rounded once, so that
the totals are the same floats. Bytes are the same on all machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from minitrain.analysis.communication import AxisTotal, Meshes, axis_finder
from minitrain.events import COMPUTE, PRICE, RECV, STREAM, STRIDE, TYP
from minitrain.hardware.per_machine import Floats, PerMachine
from minitrain.vector.busy_times import covered, identity_of, in_order, times_of


class _Sums(NamedTuple):
    """What one rank communicates along one axis.

    Args:
        number: of operations.
        size_bytes: theirs.
        seconds: time with any under way, s, (num_machines,).
        exposed_s: time of that with no compute beside it, s, (num_machines,).
    """

    number: int
    size_bytes: float
    seconds: Floats
    exposed_s: Floats


def communication_by_axis(
    logs: Iterable[tuple[int, Any]], world_size: int, meshes: Meshes, num_machines: int
) -> list[dict[str, AxisTotal]] | None:
    """Return what a rank communicates along each axis on average, on each machine; None where bytes differ by machine.

    Args:
        logs: the flat log of each rank, or of each class of ranks, with its rank.
        world_size: number of ranks.
        meshes: size by axis of each mesh that the ranks have made.
        num_machines: how many machines the times are of.
    """
    known: dict[Any, dict[str, _Sums]] = {}
    of_ranks = []
    for rank, log in logs:
        rows = log._rows
        if any(type(price.size_bytes) is PerMachine for price in rows[PRICE::STRIDE]):
            return None
        axis_of = axis_finder(rank, world_size, meshes)
        axes = tuple("" if stream.kind == COMPUTE else axis_of(stream) for stream in rows[STREAM::STRIDE])
        key = identity_of(log), axes
        if key not in known:
            known[key] = _sums_of(rows, axes, num_machines)
        of_ranks.append(known[key])
    return _means(of_ranks, num_machines)


def _sums_of(rows: Sequence[Any], axes: Sequence[str | None], num_machines: int) -> dict[str, _Sums]:
    """Return what one rank communicates along each axis; "" stands for compute, None for nothing."""
    names = [axis for axis in dict.fromkeys(axes) if axis]
    if not names:
        return {}
    starts, ends = times_of(rows, num_machines)
    codes = {axis: code for code, axis in enumerate(dict.fromkeys(axes))}
    labels = np.array([codes[axis] for axis in axes])[:, None]
    starts, ends, labels = in_order(starts, ends, labels)
    computes = labels == codes.get("", -1)
    computing = covered(starts, np.where(computes, ends, -np.inf))
    found = {}
    for name in names:
        communicates = labels == codes[name]
        seconds = covered(starts, np.where(communicates, ends, -np.inf))
        either = covered(starts, np.where(computes | communicates, ends, -np.inf))
        own = [place for place, axis in enumerate(axes) if axis == name]
        size_bytes = sum(0.0 if typ == RECV else price.size_bytes for typ, price in _of(rows, own))
        found[name] = _Sums(len(own), 0.0 + size_bytes, seconds, either - computing)
    return found


def _of(rows: Sequence[Any], places: Iterable[int]) -> Iterable[tuple[str, Any]]:
    """Return type and price of some events of a flat log."""
    return ((rows[place * STRIDE + TYP], rows[place * STRIDE + PRICE]) for place in places)


def _means(of_ranks: Sequence[dict[str, _Sums]], num_machines: int) -> list[dict[str, AxisTotal]]:
    """Return the means over ranks on each machine, axes in alphabetical order."""
    found: list[dict[str, AxisTotal]] = [{} for _ in range(num_machines)]
    for axis in sorted({axis for sums in of_ranks for axis in sums}):
        nothing = _Sums(0, 0.0, np.zeros(num_machines), np.zeros(num_machines))
        parts = [sums.get(axis, nothing) for sums in of_ranks]
        number, size_bytes = _mean([part.number for part in parts]), _mean([part.size_bytes for part in parts])
        seconds, exposed_s = (_mean_of_columns([part[place] for part in parts]) for place in (2, 3))
        for machine, times in enumerate(zip(seconds, exposed_s, strict=True)):
            found[machine][axis] = AxisTotal(number, size_bytes, *times)
    return found


def _mean_of_columns(columns: Sequence[Any]) -> list[float]:
    """Return the mean of some columns on each machine, rounded once."""
    if all(column is columns[0] for column in columns):
        return columns[0].tolist()  # type: ignore[no-any-return]  # floats
    return [_mean(values) for values in np.stack(columns, axis=1).tolist()]


def _mean(values: Sequence[float]) -> float:
    """Return a mean that is rounded once: a sum of floats is, and halving it is exact."""
    count = len(values)
    if count & (count - 1) == 0:
        return math.fsum(values) / count
    return float(sum(map(Fraction, values)) / count)
